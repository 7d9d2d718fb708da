"""mLSTM: a matrix with exponential gates, read relative to the sum of all keys.

C_t = sigmoid(f_t) C_{t-1} + e^{i_t} k_t^T v_t,   n_t = sigmoid(f_t) n_{t-1} + e^{i_t} k_t
o_t = s q_t C_t / max(|s q_t . n_t|, 1),   s = 1 / sqrt(K)

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from arch import kernels
from arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from arch.parts.gates import RETENTION
from arch.parts.heads import Heads, HeadsState, QueryKeyValue, ReadOut
from arch.parts.precision import widen


@dataclass(frozen=True, kw_only=True)
class MLSTM(Heads, MixerSpec):
    """The defaults are MesaNet's baseline; the zoo's `xlstm` sets the dials as Beck et al. do.

    out_gate  the output times sigmoid(x W_o)
    """

    kind: Literal["mlstm"] = "mlstm"
    activation: Literal["silu", "identity"] = "identity"

    equation: ClassVar[str] = (
        "C_t = sigmoid(f_t) C_{t-1} + e^i_t k_t^T v_t,  n_t alike of k_t,  o_t = s q_t C_t / max(|s q_t . n_t|, 1)"
    )
    state_formula: ClassVar[str] = "H (K V + K + 1) + (taps - 1) channels"
    source: ClassVar[str] = "Beck et al. 2024 (xLSTM), eq. 19 to 27; defaults: von Oswald et al. 2025, appendix E.1"

    def build(self, width: int) -> MixerModule:
        return _MLSTM(self, width)

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * (key_dim * value_dim + key_dim + 1) + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        return self.flops_around(width) + self.heads * (4 * width + 5 * key_dim * value_dim + 5 * key_dim)


class _MLSTM(MixerModule):
    def __init__(self, spec: MLSTM, width: int) -> None:
        super().__init__()
        self.key_dim, value_dim = spec.sizes(width)
        self.qkv = QueryKeyValue(spec, width, qk_norm=False)
        self.gates = nn.Linear(width, 2 * spec.heads)
        with torch.no_grad():
            self.gates.bias.copy_(
                torch.tensor([0.0, math.log(RETENTION / (1 - RETENTION))]).repeat_interleave(spec.heads)
            )
        self.read = ReadOut(replace(spec, out_gate=False), width)
        self.out_gate = nn.Linear(width, spec.heads * value_dim, bias=False) if spec.out_gate else None
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        i_BTH, f_BTH = widen(self.gates(x_BTD)).chunk(2, dim=-1)
        o_BTHV, memory = kernels.mlstm(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            i=i_BTH,
            f=f_BTH,
            scale=self.key_dim**-0.5,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        y_BTC = self.read(o_BTHV, x_BTD)
        if self.out_gate is not None:
            y_BTC = y_BTC * torch.sigmoid(self.out_gate(x_BTD))
        return self.out(y_BTC), HeadsState(conv, memory)
