"""The first Mesa layer: recursive least squares over all earlier keys, whose ridge fades with the past.

P_t = (P_{t-1} - beta_t P_{t-1} k_t^T k_t P_{t-1} / (a_t + beta_t k_t P_{t-1} k_t^T)) / a_t,   P_0 = Lambda^{-1}
G_t = a_t G_{t-1} + beta_t k_t^T v_t,   o_t = q_t P_t G_t

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SigmoidDecay, WriteStrength, inverse_softplus
from recallmap.arch.parts.heads import Heads, HeadsState, QueryKeyValue, ReadOut, merge_heads
from recallmap.arch.parts.precision import widen

LEAST_RIDGE = 1e-6  # in a memory that is measured: the recursion loses digits by it


@dataclass(frozen=True, kw_only=True)
class MesaRls(Heads, MixerSpec):
    """Recursive least squares in MesaNet's surroundings.

    P grows by 1 / a per token in directions without keys, so a must not come near 0, and fp32 loses those directions. Where
    one token repeats, outputs are off by a third after 256 tokens at a = 0.95, and by 5e-4 after 1,000 at the initial a.
    Mesa keeps no inverse and has no such bound.

    least_decay   a lies in (least_decay, 1); 1: nothing fades, and this is Mesa without decay
    lambda_floor  Lambda = floor + softplus(learned), a key channel each
    lambda_init   Lambda before training
    """

    kind: Literal["mesa_rls"] = "mesa_rls"
    least_decay: float = 0.9
    lambda_floor: float = 0.25
    lambda_init: float = 1.0

    equation: ClassVar[str] = (
        "P_t = (P_{t-1} - b_t P_{t-1} k_t^T k_t P_{t-1} / (a_t + b_t k_t P_{t-1} k_t^T)) / a_t,  o_t = q_t P_t G_t"
    )
    state_formula: ClassVar[str] = "H (K V + K^2) + (taps - 1) channels"
    source: ClassVar[str] = "von Oswald et al. 2023 (Uncovering mesa-optimization); a and beta: MesaNet"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.least_decay <= 1:
            raise ValueError(f"least_decay must lie in (0, 1], got {self.least_decay}")
        if self.lambda_floor <= 0:
            raise ValueError(f"lambda_floor must be positive to keep the solve well posed, got {self.lambda_floor}")
        if self.lambda_init <= self.lambda_floor:
            raise ValueError(f"lambda_init must be above lambda_floor, got {self.lambda_init} and {self.lambda_floor}")

    def differs(self) -> tuple[str, ...]:
        return ("gates, unit keys and the convolution are MesaNet's, which came later",)

    def build(self, width: int) -> MixerModule:
        return _MesaRls(self, width)

    def parameters(self, width: int) -> int:
        gates = WriteStrength.count(width, self.heads, bias=True)
        gates += SigmoidDecay.count(width, self.heads) if self.least_decay < 1 else 0
        return self.parameters_around(width) + gates + self.heads * self.sizes(width)[0]

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * (value_dim + key_dim) + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        gates = 2 * width * (2 if self.least_decay < 1 else 1)
        return self.flops_around(width) + self.heads * (gates + 4 * key_dim * value_dim + 7 * key_dim**2)

    def memory(self, width: int) -> Memory:
        """The memory with hardly any regulariser."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            lam = torch.full((self.heads, key_dim), LEAST_RIDGE, dtype=q.dtype, device=q.device)
            return kernels.mesa_rls(q, k, v, beta=write, lam=lam)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})

    def merged(self, width: int) -> MesaRls | None:
        return merge_heads(self, width)


class _MesaRls(MixerModule):
    def __init__(self, spec: MesaRls, width: int) -> None:
        super().__init__()
        self.spec = spec
        key_dim, value_dim = spec.sizes(width)
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)
        self.decay = SigmoidDecay(width, spec.heads) if spec.least_decay < 1 else None
        self.write = WriteStrength(width, spec.heads, bias=True)
        above = torch.full((spec.heads, key_dim), spec.lambda_init - spec.lambda_floor, dtype=torch.float64)
        self.ridge = nn.Parameter(inverse_softplus(above).to(torch.get_default_dtype()))
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        o_BTHV, memory = kernels.mesa_rls(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            lam=self.spec.lambda_floor + F.softplus(widen(self.ridge)),
            log_decay=self.log_decay(x_BTD),
            beta=self.write(x_BTD),
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)

    def log_decay(self, x_BTD: Tensor) -> Tensor | None:
        """The log decay ln(least + (1 - least) sigmoid(x W + b)), [B, T, H]."""
        if self.decay is None:
            return None
        return torch.log1p((1 - self.spec.least_decay) * torch.expm1(self.decay(x_BTD)))
