"""mLSTM: a matrix with exponential gates, read relative to the sum of all keys.

C_t = sigmoid(f_t) C_{t-1} + e^{i_t} k_t^T v_t,   n_t = sigmoid(f_t) n_{t-1} + e^{i_t} k_t
o_t = s q_t C_t / max(|s q_t . n_t|, 1),   s = 1 / sqrt(K)

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import RETENTION
from recallmap.arch.parts.heads import Heads, HeadsState, QueryKeyValue, ReadOut, merge_heads
from recallmap.arch.parts.precision import widen

NEVER = -1e30  # the pre-activation of a gate that is shut


@dataclass(frozen=True, kw_only=True)
class MLSTM(Heads, MixerSpec):
    """The mLSTM. The defaults are MesaNet's baseline; the zoo's `xlstm` has the options of Beck et al.

    out_gate  the output times sigmoid(x W_o)
    """

    kind: Literal["mlstm"] = "mlstm"
    activation: Literal["silu", "identity"] = "identity"

    equation: ClassVar[str] = (
        "C_t = sigmoid(f_t) C_{t-1} + e^i_t k_t^T v_t,  n_t alike of k_t,  o_t = s q_t C_t / max(|s q_t . n_t|, 1)"
    )
    state_formula: ClassVar[str] = "H (K V + K + 1) + (taps - 1) channels"
    source: ClassVar[str] = "Beck et al. 2024 (xLSTM), eq. 19 to 27; defaults: von Oswald et al. 2025, appendix E.1"

    def differs(self) -> tuple[str, ...]:
        if not self.out_gate:
            return ("MesaNet's baseline, without activation and output gate; the cell with both is xlstm",)
        return (
            "the cell alone, with an RMSNorm and gates made of the token: theirs has a LayerNorm, gates made of q, k and v, "
            "and a block around it that doubles the width, with a learned skip and a SiLU gate",
        )

    def build(self, width: int) -> MixerModule:
        return _MLSTM(self, width)

    def parameters(self, width: int) -> int:
        return self.parameters_around(width) + 2 * (width + 1) * self.heads

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * (key_dim * value_dim + key_dim + 1) + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        return self.flops_around(width) + self.heads * (4 * width + 5 * key_dim * value_dim + 5 * key_dim)

    def memory(self, width: int) -> Memory:
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.mlstm(q, k, v, i=write.log().clamp(min=NEVER), f=torch.full_like(write, -NEVER), scale=1.0)[
                0
            ]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})

    def merged(self, width: int) -> MLSTM | None:
        return merge_heads(self, width)


class _MLSTM(MixerModule):
    def __init__(self, spec: MLSTM, width: int) -> None:
        super().__init__()
        self.key_dim, value_dim = spec.sizes(width)
        self.qkv = QueryKeyValue(spec, width, qk_norm=False)
        self.entry, self.forget = nn.Linear(width, spec.heads), nn.Linear(width, spec.heads)
        nn.init.zeros_(self.entry.bias)
        nn.init.constant_(self.forget.bias, math.log(RETENTION / (1 - RETENTION)))
        self.read = ReadOut(spec, width, activation="sigmoid")
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        o_BTHV, memory = kernels.mlstm(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            i=widen(self.entry(x_BTD)),
            f=widen(self.forget(x_BTD)),
            scale=self.key_dim**-0.5,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)
