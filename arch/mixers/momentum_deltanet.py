"""Momentum DeltaNet: a delta rule whose corrections gather in a second memory, its momentum.

M_t = mu_t M_{t-1} + eta_t k_t^T (p_t S_{t-1} - v_t),   S_t = alpha_t S_{t-1} - beta_t M_t,   p_t = alpha_t k_t
o_t = s (q_t - exp(D) k_t) S_t

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.kernels.test_time.learning_rule import Rule
from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SoftplusDecay, WriteStrength
from recallmap.arch.parts.heads import HeadsState, QueryKeyValue, ReadOut, ScaledHeads
from recallmap.arch.parts.precision import widen

RATES = (1e-4, 16.0)  # of both decays, before training
ANGLES = (0.0, 4.0)  # of phi, before training
CORRECTIONS = (0.0, 1.0)  # of D, before training
LEAST_LOG_MOMENTUM = -2.0  # part of the definition
RULE = Rule(momentum="outside")


@dataclass(frozen=True, kw_only=True)
class MomentumDeltaNet(ScaledHeads, MixerSpec):
    """Momentum DeltaNet in Gated DeltaNet's projections, convolutions, norms and output gate. What a token wants corrected goes
    to a momentum M, from which S learns, so that the state is twice as large. With mu = 0 it is Gated DeltaNet with strength
    beta eta. Its gates are of a token and a head:

    eta = 1 + tanh(x W / sqrt(D)),   psi = arctan(eta exp(phi)),   alpha = cos^2(psi) exp(-A softplus(x W + b)),
    beta = sin^2(psi) sigmoid(x W),   ln mu = max(-A' softplus(x W + b'), -2)

    It is their recurrence; their chunked code adds 1e-6 to beta. It has no probe: memory and writes share sin^2 + cos^2 = 1, so
    that no gates both keep all and write all.

    corrects  the memory that p reads: "faded", p = alpha k, as published; "unfaded", p = k
    """

    kind: Literal["momentum_deltanet"] = "momentum_deltanet"
    conv_v: bool = True
    out_norm: Literal["head", "shared", "none"] = "shared"
    out_gate: bool = True
    scale: Literal["one", "key_dim"] = "key_dim"
    corrects: Literal["faded", "unfaded"] = "faded"

    equation: ClassVar[str] = (
        "M_t = mu_t M_{t-1} + eta_t k_t^T (alpha_t k_t S_{t-1} - v_t),  S_t = alpha_t S_{t-1} - beta_t M_t,  "
        "o_t = s (q_t - exp(D) k_t) S_t"
    )
    state_formula: ClassVar[str] = "2 H K V + (taps - 1) channels"
    source: ClassVar[str] = "Momentum DeltaNet, arXiv 2605.05838"

    def differs(self) -> tuple[str, ...]:
        return (*self.unscaled, *(("corrects what has not faded",) if self.corrects == "unfaded" else ()))

    def build(self, width: int) -> MixerModule:
        return _MomentumDeltaNet(self, width)

    def parameters(self, width: int) -> int:
        decays = 2 * SoftplusDecay.count(width, self.heads)
        return self.parameters_around(width) + decays + 2 * width * self.heads + 2 * self.heads

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(2 * self.heads * key_dim * value_dim + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        return self.flops_around(width) + self.heads * (8 * width + 10 * key_dim * value_dim)


class _MomentumDeltaNet(MixerModule):
    def __init__(self, spec: MomentumDeltaNet, width: int) -> None:
        super().__init__()
        self.shape = (spec.heads, *spec.sizes(width))
        self.faded = spec.corrects == "faded"
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)  # longer keys would make the recurrence blow up
        self.decay = SoftplusDecay(width, spec.heads, rates=RATES)
        self.momentum = SoftplusDecay(width, spec.heads, rates=RATES)
        self.write = WriteStrength(width, spec.heads, bias=False)
        self.rate = nn.Linear(width, spec.heads, bias=False)
        self.angle = nn.Parameter(torch.empty(spec.heads).uniform_(*ANGLES))
        self.correction = nn.Parameter(torch.empty(spec.heads, 1).uniform_(*CORRECTIONS))
        self.scale = spec.read_scale(width)
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * spec.sizes(width)[1], width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        eta_BTH, alpha_BTH, beta_BTH = self.gates(x_BTD)
        read_BTHK = k_BTHK
        if self.faded:  # the gradient for a key alpha k is alpha k^T (alpha k S - v)
            read_BTHK, eta_BTH = (alpha_BTH[..., None] * k_BTHK).to(k_BTHK.dtype), eta_BTH / alpha_BTH
        o_BTHV, memory = kernels.memory(
            (q_BTHK - self.correction.exp().to(q_BTHK.dtype) * k_BTHK) * self.scale,
            read_BTHK,
            v_BTHV,
            weights=(alpha_BTH.new_zeros(self.shape),),
            rule=RULE,
            eta=beta_BTH,
            alpha=alpha_BTH,
            theta=self.momentum(x_BTD).clamp(min=LEAST_LOG_MOMENTUM).exp(),
            gamma=eta_BTH[..., None],
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)

    def gates(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """eta, alpha and beta [B, T, H]."""
        eta_BTH = 1 + torch.tanh(widen(self.rate(x_BTD)) * x_BTD.shape[-1] ** -0.5)
        square_BTH = (eta_BTH * self.angle.exp()).square()  # of tan psi
        alpha_BTH = self.decay(x_BTD).exp() / (1 + square_BTH)
        return eta_BTH, alpha_BTH, self.write(x_BTD) * square_BTH / (1 + square_BTH)
