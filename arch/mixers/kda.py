"""Kimi Delta Attention: Gated DeltaNet whose memory fades key channel by key channel.

S_t = (I - beta_t k_t^T k_t) diag(a_t) S_{t-1} + beta_t k_t^T v_t,   o_t = s q_t S_t

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import WriteStrength
from recallmap.arch.parts.heads import QueryKeyValue
from recallmap.arch.parts.low_rank_gates import LowRankGates, fading, turned, turned_back
from recallmap.arch.parts.preconditioner import MOMENT_FLOPS, PreconditionedState, Preconditioner, corrected


@dataclass(frozen=True, kw_only=True)
class KDA(LowRankGates, MixerSpec):
    """Kimi Delta Attention as flash-linear-attention has it: maps to q, k and v without a bias, a convolution of 4 taps and
    SiLU behind each, q and k of norm 1, a softplus decay and a sigmoid output gate by low-rank maps of rank V, one RMSNorm for
    all heads, and its first values of A and b. `scale` is in its code alone: the paper has none.

    decay     as in `LowRankGates`. "bounded" is that code's later gate. "signed", with beta_max 2 and activation "identity",
              is CKDA, where keys must change their sign, too; `activation` here leaves v without SiLU as well. "head" leaves
              one decay a head: with gate_form "full" and gate_activation "silu" that is Gated DeltaNet itself
    beta_max  write strengths lie in (0, beta_max)
    preconditioned  write under keys whose channels count the less, the more was written under them (see `Preconditioner`)
    """

    kind: Literal["kda"] = "kda"
    beta_max: Literal[1, 2] = 1
    preconditioned: bool = False

    equation: ClassVar[str] = "S_t = (I - beta_t k_t^T k_t) diag(a_t) S_{t-1} + beta_t k_t^T v_t,  o_t = s q_t S_t"
    state_formula: ClassVar[str] = "H K V + (taps - 1) channels, + H K preconditioned"
    source: ClassVar[str] = (
        "Kimi Team 2025 (Kimi Linear), eq. 1; signed decays: arXiv 2609.24797; preconditioned: 2604.21100"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta_max not in (1, 2):
            raise ValueError(f"beta_max must be 1 or 2 (negative eigenvalues), got {self.beta_max}")
        if self.preconditioned and self.beta_max != 1:
            raise ValueError("preconditioned needs beta_max 1, because it lengthens a write by up to 1.5; got 2")

    def differs(self) -> tuple[str, ...]:
        return self.unpublished

    def build(self, width: int) -> MixerModule:
        return _KDA(self, width)

    def parameters(self, width: int) -> int:
        preconditioner = Preconditioner.count(width, self.heads) if self.preconditioned else 0
        return self.parameters_around(width) + WriteStrength.count(width, self.heads, bias=False) + preconditioner

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        moments = self.heads * key_dim if self.preconditioned else 0
        return StateSize(self.heads * key_dim * value_dim + moments + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        moments = 4 * width + MOMENT_FLOPS * key_dim if self.preconditioned else 0
        return self.flops_around(width) + self.heads * (2 * width + moments + 7 * key_dim * value_dim)

    def memory(self, width: int) -> Memory:
        """The memory, read with scale 1 as for every mixer here: the norm of a head, which the probe leaves out, undoes
        another scale. It holds for `preconditioned`, too: with c without bound and strength 1 / 1.5, M times beta is 1."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.delta(q, k, v, beta=write)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})


class _KDA(MixerModule):
    def __init__(self, spec: KDA, width: int) -> None:
        super().__init__()
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)  # longer keys would make the recurrence blow up
        self.decay = spec.build_decay(width)
        self.write = WriteStrength(width, spec.heads, bias=False, most=spec.beta_max)
        self.precondition = Preconditioner(width, spec.heads) if spec.preconditioned else None
        self.scale = spec.read_scale(width)
        self.read = spec.build_read_out(width)
        self.out = nn.Linear(spec.heads * spec.sizes(width)[1], width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or PreconditionedState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        log_decay, signs_BTHK = fading(self.decay, x_BTD)
        k_BTHK, beta_BTH = turned(k_BTHK, signs_BTHK), self.write(x_BTD)
        correction, moments = {"k": k_BTHK, "beta": beta_BTH}, None
        if self.precondition is not None:
            written_BTHK, moments = self.precondition(k_BTHK, x_BTD, state.moments, implementation=self.implementation)
            correction = corrected(k_BTHK, log_decay, beta_BTH, written_BTHK)
        o_BTHV, memory = kernels.delta(
            turned(q_BTHK, signs_BTHK),
            v=v_BTHV,
            log_decay=log_decay,
            **correction,
            scale=self.scale,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        carried = PreconditionedState(conv, turned_back(memory, signs_BTHK), moments)
        return self.out(self.read(o_BTHV, x_BTD)), carried
