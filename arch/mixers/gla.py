"""Gated linear attention: outer products that fade by a gate of the token, a scalar a head (MesaNet's
baseline) or a factor a key channel (GLA).

S_t = diag(e^{g_t}) S_{t-1} + beta_t k_t^T v_t,   o_t = s q_t S_t

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import LowRankDecay, SigmoidDecay, SignedDecay, WriteStrength
from recallmap.arch.parts.heads import Heads, HeadsState, QueryKeyValue, ReadOut, check_at_least, merge_heads

MESANET = "MesaNet's baseline of that name, with a scalar gate, unit keys and a write gate; GLA itself is gla_vector"


@dataclass(frozen=True, kw_only=True)
class GatedLinearAttention(Heads, MixerSpec):
    """Gated linear attention. By default it is not GLA, but the baseline that MesaNet calls so (zoo `gla_mesanet`): a scalar
    gate per head, unit keys, a write gate. GLA as Yang et al. define it is zoo `gla_vector`: gate "vector", neither unit keys
    nor a write gate.

    gate        a token's log decay: "scalar", log sigmoid(x W + b) per head;
                "vector", log sigmoid(x W_1 W_2 + b) / 16 per key channel
    gate_rank   columns of W_1 (only "vector")
    write_gate  write a token with strength beta = sigmoid(x W + b) instead of 1
    qk_norm     q and k of L2 norm 1; if not, scores are scaled by 1 / sqrt(key_dim)
    signed_decay  a decay in (-1, 1) in place of (0, 1), for parity (only "scalar")
    """

    kind: Literal["gla"] = "gla"
    qk_norm: bool = True
    gate: Literal["scalar", "vector"] = "scalar"
    gate_rank: int = 16
    write_gate: bool = True
    signed_decay: bool = False

    equation: ClassVar[str] = "S_t = diag(exp g_t) S_{t-1} + beta_t k_t^T v_t,  o_t = s q_t S_t"
    state_formula: ClassVar[str] = "H K V + (taps - 1) channels"
    source: ClassVar[str] = "vector gate: Yang et al. 2024, eq. 4; scalar gate: von Oswald et al. 2025, table 1 (GLA)"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, gate_rank=self.gate_rank)
        if self.signed_decay and self.gate != "scalar":
            raise ValueError(f"signed_decay needs gate 'scalar', got {self.gate!r}; a sign belongs to a whole head")

    def differs(self) -> tuple[str, ...]:
        return (MESANET,) if self.gate == "scalar" else ()

    def build(self, width: int) -> MixerModule:
        return _GatedLinearAttention(self, width)

    def parameters(self, width: int) -> int:
        if self.gate == "scalar":
            decay = SigmoidDecay.count(width, self.heads)  # as many as SignedDecay has
        else:
            decay = LowRankDecay.count(width, self.heads * self.sizes(width)[0], rank=self.gate_rank)
        write = WriteStrength.count(width, self.heads, bias=True) if self.write_gate else 0
        return self.parameters_around(width) + decay + write

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * value_dim + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        decay = width * self.heads if self.gate == "scalar" else self.gate_rank * (width + self.heads * key_dim)
        write = width * self.heads if self.write_gate else 0
        return self.flops_around(width) + 2 * (decay + write) + 5 * self.heads * key_dim * value_dim

    def memory(self, width: int) -> Memory:
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.gated_linear(q, k, v, beta=write)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})

    def merged(self, width: int) -> GatedLinearAttention | None:
        return merge_heads(self, width)


class _GatedLinearAttention(MixerModule):
    def __init__(self, spec: GatedLinearAttention, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.key_dim, value_dim = spec.sizes(width)
        self.qkv = QueryKeyValue(spec, width, qk_norm=spec.qk_norm)
        self.decay: nn.Module = (
            (SignedDecay if spec.signed_decay else SigmoidDecay)(width, spec.heads)
            if spec.gate == "scalar"
            else LowRankDecay(width, spec.heads * self.key_dim, rank=spec.gate_rank)
        )
        self.write = WriteStrength(width, spec.heads, bias=True) if spec.write_gate else None
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        log_decay, sign_BTH = self.decay(x_BTD) if self.spec.signed_decay else (self.decay(x_BTD), None)
        if self.spec.gate == "vector":
            log_decay = log_decay.unflatten(-1, (self.spec.heads, self.key_dim))
        o_BTHV, memory = kernels.gated_linear(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            log_decay=log_decay,
            beta=None if self.write is None else self.write(x_BTD),
            sign=sign_BTH,
            scale=1.0 if self.spec.qk_norm else self.key_dim**-0.5,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)
