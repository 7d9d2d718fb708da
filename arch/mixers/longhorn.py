"""Longhorn: the closed-form step of online regression, a channel's value on the token's key.

exact      S_t = S_{t-1} + k_t^T (e_t * (v_t - k_t S_{t-1}))
deployed   S_t = (1 - (k_t * k_t)^T e_t) * S_{t-1} + k_t^T (e_t * v_t)
o_t = q_t S_t + d v_t,   e_t = beta_t / (1 + beta_t |k_t|^2),   beta_t = sigmoid(step) a channel

B batch, T time, D model width, C channels, N key width
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Channels as KeyChannels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.channels import ChannelBlock, ChannelInputs, Channels
from recallmap.arch.parts.heads import HeadsState


@dataclass(frozen=True, kw_only=True)
class Longhorn(Channels, MixerSpec):
    """Longhorn in Mamba's surroundings, with keys and queries of any length.

    form  "deployed": only the diagonal of the exact recurrence, as Liu et al. train it; "exact": all of it
    """

    kind: Literal["longhorn"] = "longhorn"
    form: Literal["deployed", "exact"] = "deployed"

    equation: ClassVar[str] = (
        "S_t = (1 - (k_t * k_t)^T e_t) * S_{t-1} + k_t^T (e_t * v_t),  e_t = b_t / (1 + b_t |k_t|^2),  o_t = q_t S_t"
    )
    state_formula: ClassVar[str] = "C N + (taps - 1) C,  C = expand D"
    source: ClassVar[str] = "Liu et al. 2024 (Longhorn): the closed form, and its diagonal as deployed"

    def differs(self) -> tuple[str, ...]:
        return ("the recurrence as a whole, of which their code keeps the diagonal",) if self.form == "exact" else ()

    def build(self, width: int) -> MixerModule:
        return _Longhorn(self, width)

    def parameters(self, width: int) -> int:
        return self.parameters_of_block(width)

    def state_size(self, width: int, length: int) -> StateSize:
        return StateSize(self.floats(width))

    def flops(self, width: int, length: int) -> float:
        return self.flops_of_block(width)

    def memory(self, width: int) -> Memory:
        """The memory: all channels are its values, because they share their keys. A strength of 1 is the limit of long
        keys."""

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            if self.form == "exact":
                return kernels.delta(q, k, v, beta=write)[0]
            return kernels.selective_scan(q, k, v, step=write[..., None].expand_as(v))[0]

        return Memory(1, self.state_dim, self.channels(width), answer, {"d_k": self.state_dim})

    def widened(self, width: int, factor: int) -> Longhorn:
        if factor < 2:
            raise ValueError(f"factor must be at least 2, got {factor}")
        return replace(self, state_dim=factor * self.state_dim, step_rank=self.rank(width))

    def key_channels(self, width: int) -> KeyChannels:
        first, select = self.rank(width), "block.select.weight"
        middle, last = first + self.state_dim, first + 2 * self.state_dim
        return KeyChannels(
            keys={select: range(first, middle)},
            queries={select: range(middle, last)},
            muting=frozenset({select}),
            anew=frozenset({select, "block.step_bias"}),
        )


class _Longhorn(MixerModule):
    def __init__(self, spec: Longhorn, width: int) -> None:
        super().__init__()
        channels = spec.channels(width)
        self.form = spec.form
        self.block = ChannelBlock(spec, width, bias=torch.zeros(channels))
        self.out = nn.Linear(channels, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        conv, memory = state or HeadsState()
        inputs, gate_BTC, conv = self.block(x_BTD, conv)
        beta_BTC = torch.sigmoid(inputs.step)
        strength_BTC = beta_BTC / (1 + beta_BTC * inputs.k.square().sum(-1, keepdim=True))
        recur = self.exact if self.form == "exact" else self.deployed
        o_BTC, memory = recur(inputs, strength_BTC, memory, return_state)
        return self.out(self.block.finish(o_BTC, inputs.u, gate_BTC)), HeadsState(conv, memory)

    def exact(
        self, inputs: ChannelInputs, strength_BTC: Tensor, memory: Tensor | None, return_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The delta rule with one head per channel, all with the same keys."""
        o_BTC1, memory = kernels.delta(
            inputs.q[:, :, None],
            inputs.k[:, :, None],
            inputs.u[..., None],
            beta=strength_BTC,
            scale=1.0,
            initial_state=memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return o_BTC1.squeeze(-1), memory

    def deployed(
        self, inputs: ChannelInputs, strength_BTC: Tensor, memory: Tensor | None, return_state: bool
    ) -> tuple[Tensor, Tensor | None]:
        o_BT1C, memory = kernels.selective_scan(
            inputs.q[:, :, None],
            inputs.k[:, :, None],
            inputs.u[:, :, None],
            step=strength_BTC[:, :, None],
            initial_state=memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return o_BT1C.squeeze(2), memory
