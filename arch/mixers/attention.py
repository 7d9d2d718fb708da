"""Softmax attention over all tokens seen, or over the last few.

o_t = sum_j softmax_j(q_t . k_j / sqrt(K)) v_j   over j <= t, or t - window < j <= t;   q, k turned by their positions

B batch, T time, D model width, H heads, K channels of a head
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.heads import check_at_least, head_size
from recallmap.arch.parts.rotary import rotate

SHARPEST = 1e4  # of the probe: scores that leave all weight to the best key


@dataclass(frozen=True, kw_only=True)
class Attention(MixerSpec):
    """Softmax attention. With `out_gate` "channel" it is the gated attention of Qiu et al. as their text finds it best: its
    gate is made of the layer's input, ahead of the map back. flash-linear-attention has no layer of that name; its `Attention`
    is this one without a gate, with options for a norm of queries and keys and for shared keys and values.

    heads     number of heads side by side
    head_dim  channels of one head; None: width / heads
    rope      turn q and k by their positions (base 10,000); without it, only the causal mask tells positions
    window    tokens that a token sees, itself included; None: all
    bias      of all projections
    out_gate  the output times sigmoid(x W_g): by "head", by "channel", or "none"
    """

    kind: Literal["attention"] = "attention"
    heads: int = 8
    head_dim: int | None = None
    rope: bool = True
    window: int | None = None
    bias: bool = False
    out_gate: Literal["none", "head", "channel"] = field(default="none", metadata={"later": True})

    prefix: ClassVar[int] = 0  # first tokens that stay in sight, see `sighted`
    equation: ClassVar[str] = "o_t = sum_j softmax_j(q_t . k_j / sqrt(K)) v_j,  t - window < j <= t"
    state_formula: ClassVar[str] = "2 H K min(t, window)"
    source: ClassVar[str] = (
        "Vaswani et al. 2017, eq. 1; rotary positions: Su et al. 2021; window: Beltagy et al. 2020; gate: Qiu et al. 2025"
    )

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, head_dim=self.head_dim, window=self.window)

    def differs(self) -> tuple[str, ...]:
        return ()

    def check(self, width: int) -> None:
        head_dim = self.size(width)
        if self.rope and head_dim % 2:
            raise ValueError(
                f"rope turns pairs of channels: head_dim must be even, got {head_dim}; or set rope to false"
            )

    def size(self, width: int) -> int:
        """The number K of channels in a model of `width`."""
        return head_size(width, self.heads, self.head_dim, "head_dim")

    def gates(self, width: int) -> int:
        """The number of columns of the output gate."""
        return {"none": 0, "head": self.heads, "channel": self.heads * self.size(width)}[self.out_gate]

    def build(self, width: int) -> MixerModule:
        return _Attention(self, width)

    def parameters(self, width: int) -> int:
        channels = self.heads * self.size(width)
        gates = self.gates(width)
        return width * (4 * channels + gates) + (3 * channels + gates + width if self.bias else 0)

    def state_size(self, width: int, length: int) -> StateSize:
        a_token = 2 * self.heads * self.size(width)
        if self.window is not None and length >= self.window + self.prefix:
            return StateSize(a_token * (self.window + self.prefix))
        return StateSize(0, growing=a_token * length)

    def flops(self, width: int, length: int) -> float:
        channels = self.heads * self.size(width)
        window = length if self.window is None else min(self.window + self.prefix, length)
        seen = window - window * (window - 1) / (2 * length)  # mean of min(t, window + prefix), t = 1 ... length
        return 2 * width * (4 * channels + self.gates(width)) + 4 * channels * seen

    def sighted(self, prefix: int) -> MixerSpec:
        return _Sighted(**{f.name: getattr(self, f.name) for f in fields(self)}, prefix=prefix)

    def memory(self, width: int) -> Memory:
        """The memory without positions, as sharp as queries can make it."""
        head_dim = self.size(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            if self.window is not None:  # reads take no place in it: each read sees what a token of its own would see
                behind = write.flip(1).cumsum(1).flip(1)  # pairs written from here on
                k, v = (x * (behind < self.window)[..., None] for x in (k, v))
            return kernels.attention(q, k, v, scale=SHARPEST)[0]

        bounds = {} if self.window is None else {"window": self.window - 1}
        return Memory(self.heads, head_dim, head_dim, answer, bounds)


@dataclass(frozen=True, kw_only=True)
class _Sighted(Attention):
    """Attention with a prefix, which the surrounding block sets and not an option."""

    prefix: int = 0  # type: ignore[misc]


class _Attention(MixerModule):
    def __init__(self, spec: Attention, width: int) -> None:
        super().__init__()
        self.spec = spec
        channels = spec.heads * spec.size(width)
        self.qkv = nn.Linear(width, 3 * channels, bias=spec.bias)
        self.gate = nn.Linear(width, spec.gates(width), bias=spec.bias) if spec.out_gate != "none" else None
        self.out = nn.Linear(channels, width, bias=spec.bias)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        q_BTHK, k_BTHK, v_BTHK = self.qkv(x_BTD).unflatten(-1, (3, self.spec.heads, -1)).unbind(2)
        if self.spec.rope:
            position_T = torch.arange(x_BTD.shape[1], device=x_BTD.device) + (0 if state is None else state.position)
            q_BTHK, k_BTHK = rotate(q_BTHK, position_T), rotate(k_BTHK, position_T)
        o_BTHK, carried = kernels.attention(
            q_BTHK,
            k_BTHK,
            v_BTHK,
            window=self.spec.window,
            prefix=self.spec.prefix,
            initial_state=state,
            return_state=return_state,
            implementation=self.implementation,
        )
        if self.gate is not None:
            o_BTHK = o_BTHK * torch.sigmoid(self.gate(x_BTD).unflatten(-1, (self.spec.heads, -1)))
        return self.out(o_BTHK.flatten(-2)), carried
