"""Gated KalmaNet: every read solves a ridge regression whose regulariser is a share of what is remembered.

H_t = a_t H_{t-1} + b_t k_t^T k_t,   U_t = a_t U_{t-1} + b_t k_t^T v_t,   x_t = q_t (H_t + r |H_t| I)^{-1}
o_t = (q_t + c_t (x_t - q_t)) U_t / sqrt(K)

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SoftplusDecay, WriteStrength, gates_of
from recallmap.arch.parts.heads import Heads, HeadsState, QueryKeyValue, ReadOut, check_at_least, check_at_most

RATES = (1e-4, 16.0)  # of decay, before training
MOST_STEPS = 10_000  # of the solver, whose error falls by a quarter a step


@dataclass(frozen=True, kw_only=True)
class Gka(Heads, MixerSpec):
    """Gated KalmaNet, with the surroundings of Gated DeltaNet. flash-linear-attention's layer multiplies keys and values by b
    each, so that it writes with b^2; the paper's equations, and this mixer, write with b.

    ridge  the regulariser as a share of the Frobenius norm |H_t|. It alone says how fast the solver converges
    steps  of the solver, Chebyshev's iteration; 30 are within 4e-4 of the solution at a ridge of 0.02
    blend  learn the share c of the solution in what reads; otherwise it is 1
    """

    kind: Literal["gka"] = "gka"
    conv_v: bool = True
    out_norm: Literal["head", "shared", "none"] = "shared"
    out_gate: bool = True
    ridge: float = 0.02
    steps: int = 30
    blend: bool = True

    equation: ClassVar[str] = (
        "H_t = a_t H_{t-1} + b_t k_t^T k_t,  U_t = a_t U_{t-1} + b_t k_t^T v_t,  "
        "o_t = (q_t + c_t (q_t (H_t + r |H_t|)^-1 - q_t)) U_t / sqrt(K)"
    )
    state_formula: ClassVar[str] = "H (K V + K^2) + (taps - 1) channels"
    source: ClassVar[str] = "Peng et al. 2025 (Gated KalmaNet, arXiv:2511.21016)"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, steps=self.steps)
        check_at_most(MOST_STEPS, steps=self.steps)
        if self.ridge <= 0:
            raise ValueError(f"ridge must be positive to keep the solve well posed, got {self.ridge}")

    def differs(self) -> tuple[str, ...]:
        return (
            "writes with beta once, as in the paper's equations; flash-linear-attention's layer writes with its square",
            "the norm of a head has an eps of 1e-5, theirs 1e-6",
            *(() if self.blend else ("reads with the solution alone, theirs with a blend of it and the query",)),
        )

    def build(self, width: int) -> MixerModule:
        return _Gka(self, width)

    def parameters(self, width: int) -> int:
        gates = WriteStrength.count(width, self.heads, bias=True) * (1 + self.blend)
        return self.parameters_around(width) + SoftplusDecay.count(width, self.heads) + gates

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * (value_dim + key_dim) + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        core = 5 * key_dim * value_dim + 5 * key_dim**2 + self.steps * (2 * key_dim**2 + 8 * key_dim)
        return self.flops_around(width) + self.heads * (2 * width * (2 + self.blend) + core)

    def memory(self, width: int) -> Memory:
        """The memory read by the solution alone, with its own ridge and steps."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.mesa(q, k, v, beta=write, ridge=self.ridge, steps=self.steps)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})


class _Gka(MixerModule):
    def __init__(self, spec: Gka, width: int) -> None:
        super().__init__()
        self.spec = spec
        key_dim, value_dim = spec.sizes(width)
        self.scale = key_dim**-0.5
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)
        self.decay = SoftplusDecay(width, spec.heads, rates=RATES)
        self.write = WriteStrength(width, spec.heads, bias=True)
        self.blend = WriteStrength(width, spec.heads, bias=True) if spec.blend else None
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        log_decay_BTH, beta_BTH = gates_of(x_BTD, self.decay, self.write)
        o_BTHV, memory = kernels.mesa(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            ridge=self.spec.ridge,
            log_decay=log_decay_BTH,
            beta=beta_BTH,
            alpha=None if self.blend is None else self.blend(x_BTD),
            steps=self.spec.steps,
            scale=self.scale,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)
