"""Gated DeltaNet: the memory fades as a whole, then a token replaces what it holds under its key.

S_t = a_t (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t,   o_t = s q_t S_t

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import LinearGate, SigmoidDecay, SoftplusDecay, WriteStrength, gates_of
from recallmap.arch.parts.heads import QueryKeyValue, ReadOut, ScaledHeads
from recallmap.arch.parts.preconditioner import MOMENT_FLOPS, PreconditionedState, Preconditioner, corrected

RATES = (1e-4, 16.0)  # of decay, before training


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNet(ScaledHeads, MixerSpec):
    """Gated DeltaNet, by default Yang et al.'s layer with another scale. The zoo's `gated_deltanet` has their `scale`
    "key_dim"; `gated_deltanet_mesanet` is MesaNet's baseline.

    decay      "softplus", a = exp(-exp(A) softplus(x W + b)), as in Mamba-2; "sigmoid", a = sigmoid(x W + b)
    beta_max   write strengths lie in (0, beta_max); 2 lets the transition have negative eigenvalues
    beta_bias  give the write strength a bias
    preconditioned  write under keys whose channels count the less, the more was written under them (see `Preconditioner`)
    """

    kind: Literal["gated_deltanet"] = "gated_deltanet"
    conv_v: bool = True
    out_norm: Literal["head", "shared", "none"] = "shared"
    out_gate: bool = True
    decay: Literal["softplus", "sigmoid"] = "softplus"
    beta_max: Literal[1, 2] = 1
    beta_bias: bool = False
    preconditioned: bool = field(default=False, metadata={"later": True})

    equation: ClassVar[str] = "S_t = a_t (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t,  o_t = s q_t S_t"
    state_formula: ClassVar[str] = "H K V + (taps - 1) channels, + H K preconditioned"
    source: ClassVar[str] = (
        "Yang et al. 2025 (Gated DeltaNet), eq. 10; beta up to 2: Grazzi et al. 2025; preconditioned: 2604.21100"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta_max not in (1, 2):
            raise ValueError(f"beta_max must be 1 or 2 (negative eigenvalues), got {self.beta_max}")
        if self.preconditioned and self.beta_max != 1:
            raise ValueError("preconditioned needs beta_max 1, because it lengthens a write by up to 1.5; got 2")

    def differs(self) -> tuple[str, ...]:
        if self.mesanet:
            return (
                "MesaNet's baseline, the zoo's gated_deltanet_mesanet: no output gate; gated_deltanet is the published layer",
            )
        narrow = self.key_dim is None and self.value_dim is None
        return (*self.unscaled, *(("values as wide as keys, in the published layer twice as wide",) if narrow else ()))

    def build(self, width: int) -> MixerModule:
        return _GatedDeltaNet(self, width)

    def parameters(self, width: int) -> int:
        decay = (SoftplusDecay if self.decay == "softplus" else SigmoidDecay).count(width, self.heads)
        write = WriteStrength.count(width, self.heads, bias=self.beta_bias)
        preconditioner = Preconditioner.count(width, self.heads) if self.preconditioned else 0
        return self.parameters_around(width) + decay + write + preconditioner

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        moments = self.heads * key_dim if self.preconditioned else 0
        return StateSize(self.heads * key_dim * value_dim + moments + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        moments = 4 * width + MOMENT_FLOPS * key_dim if self.preconditioned else 0
        return self.flops_around(width) + self.heads * (4 * width + moments + 7 * key_dim * value_dim)

    def memory(self, width: int) -> Memory:
        """The memory, read with scale 1 as for every mixer here: the norm of a head, which the probe leaves out, undoes
        another scale. It holds for `preconditioned`, too: with c without bound and strength 1 / 1.5, M times beta is 1."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.delta(q, k, v, beta=write)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})


class _GatedDeltaNet(MixerModule):
    def __init__(self, spec: GatedDeltaNet, width: int) -> None:
        super().__init__()
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)  # longer keys would make the recurrence blow up
        self.decay: LinearGate = (
            SoftplusDecay(width, spec.heads, rates=RATES)
            if spec.decay == "softplus"
            else SigmoidDecay(width, spec.heads)
        )
        self.write = WriteStrength(width, spec.heads, bias=spec.beta_bias, most=spec.beta_max)
        self.precondition = Preconditioner(width, spec.heads) if spec.preconditioned else None
        self.scale = spec.read_scale(width)
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * spec.sizes(width)[1], width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or PreconditionedState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        log_decay_BTH, beta_BTH = gates_of(x_BTD, self.decay, self.write)
        correction, moments = {"k": k_BTHK, "beta": beta_BTH}, None
        if self.precondition is not None:
            written_BTHK, moments = self.precondition(k_BTHK, x_BTD, state.moments, implementation=self.implementation)
            correction = corrected(k_BTHK, log_decay_BTH, beta_BTH, written_BTHK)
        o_BTHV, memory = kernels.delta(
            q_BTHK,
            v=v_BTHV,
            log_decay=log_decay_BTH,
            **correction,
            scale=self.scale,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), PreconditionedState(conv, memory, moments)
