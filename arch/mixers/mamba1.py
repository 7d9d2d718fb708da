"""Mamba-1: every channel is a state-space model, with steps, keys and queries of the token.

h_t = exp(-D_t A) * h_{t-1} + D_t u_t k_t,   o_t = h_t . q_t + d u_t   for every channel, A a row of its own

B batch, T time, D model width, C channels, N state width
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.channels import ChannelBlock, Channels
from recallmap.arch.parts.gates import inverse_softplus
from recallmap.arch.parts.heads import HeadsState

FIRST_STEPS = (1e-3, 1e-1)  # before training, log-uniform


@dataclass(frozen=True, kw_only=True)
class Mamba1(Channels, MixerSpec):
    """Gu and Dao's block with its own gate; the state is `state_dim` numbers a channel."""

    kind: Literal["mamba1"] = "mamba1"

    equation: ClassVar[str] = "h_t = exp(-D_t A) * h_{t-1} + D_t u_t k_t,  o_t = h_t . q_t + d u_t, a channel each"
    state_formula: ClassVar[str] = "C N + (taps - 1) C,  C = expand D"
    source: ClassVar[str] = "Gu and Dao 2023 (Mamba), algorithm 2"

    def differs(self) -> tuple[str, ...]:
        return ()

    def build(self, width: int) -> MixerModule:
        return _Mamba1(self, width)

    def parameters(self, width: int) -> int:
        return self.parameters_of_block(width) + self.channels(width) * self.state_dim

    def state_size(self, width: int, length: int) -> StateSize:
        return StateSize(self.floats(width))

    def flops(self, width: int, length: int) -> float:
        return self.flops_of_block(width)

    def memory(self, width: int) -> Memory:
        """The memory: all channels are its values, because they share their keys."""

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            unfading = torch.zeros(*v.shape[2:], k.shape[-1], dtype=v.dtype, device=v.device)
            return kernels.selective_scan(q, k, v, step=write[..., None].expand_as(v), rate=unfading)[0]

        return Memory(1, self.state_dim, self.channels(width), answer, {"d_k": self.state_dim})


class _Mamba1(MixerModule):
    def __init__(self, spec: Mamba1, width: int) -> None:
        super().__init__()
        channels = spec.channels(width)
        step = torch.empty(channels).uniform_(*map(math.log, FIRST_STEPS)).exp()
        self.block = ChannelBlock(spec, width, bias=inverse_softplus(step))
        self.log_rate = nn.Parameter(torch.arange(1, spec.state_dim + 1).log().repeat(channels, 1))
        self.out = nn.Linear(channels, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        conv, memory = state or HeadsState()
        (u_BTC, k_BTN, q_BTN, step_BTC), gate_BTC, conv = self.block(x_BTD, conv)
        o_BT1C, memory = kernels.selective_scan(
            q_BTN[:, :, None],
            k_BTN[:, :, None],
            u_BTC[:, :, None],
            step=F.softplus(step_BTC)[:, :, None],
            rate=self.log_rate.exp()[None],
            initial_state=memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.block.finish(o_BT1C.squeeze(2), u_BTC, gate_BTC)), HeadsState(conv, memory)
