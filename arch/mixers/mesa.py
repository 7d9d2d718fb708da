"""Mesa: every read solves the ridge regression of all earlier values on all earlier keys.

H_t = a_t H_{t-1} + beta_t k_t^T k_t,   G_t = a_t G_{t-1} + beta_t k_t^T v_t,   o_t = q_t (H_t + Lambda)^{-1} G_t

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import LinearGate, SigmoidDecay, SignedDecay, WriteStrength, gates_of, inverse_softplus
from recallmap.arch.parts.heads import Heads, HeadsState, QueryKeyValue, ReadOut, check_at_least, check_at_most
from recallmap.arch.parts.precision import widen

MOST_STEPS = 10_000  # of the solver, which has converged after as many as a key has channels
UNROLLED = 5  # steps from which on the implicit gradient is close to theirs
LEAST_RIDGE = 1e-9  # of the probe: what a memory holds with Lambda -> 0
SIGNED_FLOOR = 49.0  # = 0.98 / (1 - 0.98): what unit keys that fade by 0.98 a token can add up to and be turned over


@dataclass(frozen=True, kw_only=True)
class Mesa(Heads, MixerSpec):
    """MesaNet's mixer. The solver is conjugate gradients, all tokens at once.

    cg_steps      most steps; 0 with x0 "q" is gated linear attention. Below 5 the gradient is that of the steps taken. From 5
                  on it is that of the exact solution, which then differs by less than 1 %
    tolerance     stop a token whose residual is below this share of its first one; None: all take all steps
    x0            the start of the solver: "diag", q / diag(H_t + Lambda); "q"; "zero"
    lambda_floor  Lambda = floor + softplus(learned), a key channel each; keeps H + Lambda well conditioned
    lambda_init   Lambda before training
    decay_cap     the largest decay for a token that is written with beta = 1: a <- a (1 - (1 - cap) beta^2)
    signed_decay  a in (-1, 1), for parity; H + Lambda then stays positive only by a large Lambda
    """

    kind: Literal["mesa"] = "mesa"
    cg_steps: int = 30
    tolerance: float | None = None
    x0: Literal["diag", "q", "zero"] = "diag"
    lambda_floor: float = 0.25
    lambda_init: float = 1.0
    decay_cap: float = 0.9975
    signed_decay: bool = False

    equation: ClassVar[str] = (
        "H_t = a_t H_{t-1} + b_t k_t^T k_t,  G_t = a_t G_{t-1} + b_t k_t^T v_t,  o_t = q_t (H_t + L)^-1 G_t"
    )
    state_formula: ClassVar[str] = "H (K V + K^2) + (taps - 1) channels"
    source: ClassVar[str] = "von Oswald et al. 2025 (MesaNet), eq. 8 and 43, appendix G.5"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(0, cg_steps=self.cg_steps)
        check_at_most(MOST_STEPS, cg_steps=self.cg_steps)
        if self.cg_steps == 0 and self.x0 == "zero":
            raise ValueError(
                "a solver that starts at zero and takes no step answers nothing: raise cg_steps, or set x0 to 'q' or 'diag'"
            )
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance must lie in (0, 1) or be null (take all steps), got {self.tolerance}")
        if self.lambda_floor <= 0:
            raise ValueError(f"lambda_floor must be positive to keep the solve well posed, got {self.lambda_floor}")
        if self.lambda_init <= self.lambda_floor:
            raise ValueError(f"lambda_init must be above lambda_floor, got {self.lambda_init} and {self.lambda_floor}")
        if not 0 < self.decay_cap <= 1:
            raise ValueError(f"decay_cap must lie in (0, 1], got {self.decay_cap}")
        if self.signed_decay and self.lambda_floor < SIGNED_FLOOR:
            raise ValueError(
                f"signed_decay needs lambda_floor of at least {SIGNED_FLOOR:g}, got {self.lambda_floor}; "
                f"set lambda_floor to {SIGNED_FLOOR:g} and lambda_init above it"
            )

    def differs(self) -> tuple[str, ...]:
        capped = f"a written token keeps at most {self.decay_cap:g} of the memory, by the paper's appendix G.5"
        begun = "the solver starts at q / diag(H + Lambda), as in the paper"
        theirs = "which flash-linear-attention's layer does not"
        return (
            *((f"{capped}, {theirs}",) if self.decay_cap < 1 else ()),
            *((f"{begun}, {theirs} in training",) if self.x0 == "diag" else ()),
        )

    def build(self, width: int) -> MixerModule:
        return _Mesa(self, width)

    def parameters(self, width: int) -> int:
        gates = SigmoidDecay.count(width, self.heads) + WriteStrength.count(width, self.heads, bias=True)
        return self.parameters_around(width) + gates + self.heads * self.sizes(width)[0]

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * (value_dim + key_dim) + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        solve = (self.cg_steps + 1) * (2 * key_dim**2 + 12 * key_dim)
        core = 5 * key_dim * value_dim + 3 * key_dim**2 + solve
        return self.flops_around(width) + self.heads * (4 * width + core)

    def memory(self, width: int) -> Memory:
        """The memory with hardly any regulariser, and `cg_steps` steps."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            lam = torch.full((self.heads, key_dim), LEAST_RIDGE, dtype=q.dtype, device=q.device)
            return kernels.mesa(
                q, k, v, beta=write, lam=lam, steps=self.cg_steps, tolerance=self.tolerance, x0=self.x0
            )[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})


class _Mesa(MixerModule):
    def __init__(self, spec: Mesa, width: int) -> None:
        super().__init__()
        self.spec = spec
        key_dim, value_dim = spec.sizes(width)
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)
        self.decay: LinearGate = (SignedDecay if spec.signed_decay else SigmoidDecay)(width, spec.heads)
        self.write = WriteStrength(width, spec.heads, bias=True)
        above = torch.full((spec.heads, key_dim), spec.lambda_init - spec.lambda_floor, dtype=torch.float64)
        self.ridge = nn.Parameter(inverse_softplus(above).to(torch.get_default_dtype()))
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        qkv, gates, conv = self._given(x_BTD, state.conv)
        o_BTHV, memory = kernels.mesa(
            *qkv,
            **gates,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)

    def gauge(self, x_BTD: Tensor) -> dict[str, Tensor]:
        """The number of the solver's steps."""
        qkv, gates, _ = self._given(x_BTD, None)
        taken_BTH = kernels.mesa_steps_taken(*qkv, **gates, implementation=self.implementation)
        return {"cg_steps": taken_BTH.mean((0, 1))}

    def _given(
        self, x_BTD: Tensor, cache: Tensor | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], dict[str, Any], Tensor | None]:
        """The op's inputs and gates, and the convolution's state."""
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, cache)
        beta_BTH, decay = gates_of(x_BTD, self.write, self.decay)
        log_decay_BTH, sign_BTH = decay if self.spec.signed_decay else (decay, None)
        cap_BTH = torch.log1p(-(1 - self.spec.decay_cap) * beta_BTH.square())
        gates = {
            "log_decay": log_decay_BTH + cap_BTH,
            "beta": beta_BTH,
            "sign": sign_BTH,
            "lam": self.spec.lambda_floor + F.softplus(widen(self.ridge)),
            "steps": self.spec.cg_steps,
            "gradient": "unroll" if self.spec.cg_steps < UNROLLED else "implicit",
            "tolerance": self.spec.tolerance,
            "x0": self.spec.x0,
        }
        return (q_BTHK, k_BTHK, v_BTHV), gates, conv
