"""The surroundings of a recurrence with a matrix state per head: projections, convolution, norms, output gate.

    q, k = L2(SiLU(conv(x W)));   v = x W_v, or as q and k without L2;   y = W_o (RMSNorm_head(o) * SiLU(x W_g))

Each piece is an option; the published skeletons (MesaNet's, Gated DeltaNet's, GLA's) are settings of these options.

B batch, T time, D model width, H heads, K key width, V value width, C channels convolved
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch.kernels.norm_gate import GateActivation, norm_gate
from recallmap.arch.kernels.select import fuses
from recallmap.arch.kernels.short_conv import short_conv_qkv
from recallmap.arch.parts.norm import RMSNorm, l2_norm
from recallmap.arch.parts.short_conv import ShortConv

MOST_SHARES = 12  # numbers of heads that a refusal names
WIDEST = 1_000_000  # hidden units over the width of what they read


def head_size(width: int, heads: int, given: int | None, name: str) -> int:
    """Channels of one head: the given number, or width / heads. Raises ValueError where heads do not divide the width."""
    if given is not None:
        return given
    if width % heads:
        some = ", ".join(map(str, _shares(width, heads)))
        raise ValueError(f"{heads} heads do not share out width {width}; take one of {some} heads, or give {name}")
    return width // heads


def _shares(width: int, heads: int) -> list[int]:
    """Numbers of heads that divide the width, those next to `heads`, rising."""
    low = [n for n in range(1, math.isqrt(width) + 1) if width % n == 0]
    every = sorted({*low, *(width // n for n in low)}, key=lambda n: abs(n - heads))
    return sorted(every[:MOST_SHARES])


def check_at_least(least: int, **dials: int | None) -> None:
    """Raise ValueError for an option below `least`; None stands for a default and passes."""
    for name, value in dials.items():
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")


def check_at_most(most: int, **dials: int) -> None:
    """Raise ValueError for an option above `most`."""
    for name, value in dials.items():
        if value > most:
            raise ValueError(f"{name} must be at most {most:,}, got {value:,}")


def check_expansion(**dials: float) -> None:
    """Raise ValueError for a ratio of widths that is not positive, or too large."""
    for name, value in dials.items():
        if not 0 < value <= WIDEST:
            raise ValueError(f"{name} must be positive and at most {WIDEST:,}, got {value}")


def check_normed(what: str, channels: int) -> None:
    """Raise ValueError where a head has one channel, because its LayerNorm is always zero."""
    if channels < 2:
        raise ValueError(
            f"{what} of a head go through a LayerNorm, which leaves nothing of a single channel: take fewer heads"
        )


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The common options of mixers with a matrix state per head.

    heads               memories side by side, each with keys, values and a state of its own
    key_dim, value_dim  channels of one head; None: width / heads
    short_conv          taps of the causal convolution on q and k; 0: none
    conv_v              convolve and activate v as q and k
    activation          after the convolution
    out_norm            RMSNorm of each head's output: "head" with weights of its own, "shared" with one set for all
    out_gate            the output times SiLU(x W_g)
    """

    heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    short_conv: int = 4
    conv_v: bool = False
    activation: Literal["silu", "identity"] = "silu"
    out_norm: Literal["head", "shared", "none"] = "head"
    out_gate: bool = False

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, key_dim=self.key_dim, value_dim=self.value_dim)
        check_at_least(0, short_conv=self.short_conv)

    def check(self, width: int) -> None:
        self.sizes(width)

    def sizes(self, width: int) -> tuple[int, int]:
        """(K, V) in a model of `width`."""
        return (
            head_size(width, self.heads, self.key_dim, "key_dim"),
            head_size(width, self.heads, self.value_dim, "value_dim"),
        )

    @property
    def writes(self) -> int:
        """Keys and values of one token in one head."""
        return 1

    def shaped_channels(self, width: int) -> int:
        """Channels that are convolved and activated, those of q and k first."""
        key_dim, value_dim = self.sizes(width)
        return self.heads * ((1 + self.writes) * key_dim + (self.writes * value_dim if self.conv_v else 0))

    def conv_state(self, width: int) -> int:
        """Floats that the convolution carries."""
        return max(self.short_conv - 1, 0) * self.shaped_channels(width)

    def parameters_around(self, width: int) -> int:
        """Parameters of everything here and of the map back to the model's width."""
        norm = {"head": self.heads, "shared": 1, "none": 0}[self.out_norm] * self.sizes(width)[1]
        return width * self._columns(width) + self.short_conv * self.shaped_channels(width) + norm

    def flops_around(self, width: int) -> float:
        """Operations per token of everything here: matrices and convolution."""
        return 2 * width * self._columns(width) + 2 * self.short_conv * self.shaped_channels(width)

    def _columns(self, width: int) -> int:
        """Columns of the maps to q, k, v and the output gate, and rows of the map back."""
        (key_dim, value_dim), writes = self.sizes(width), self.writes
        return self.heads * ((1 + writes) * key_dim + (writes + (2 if self.out_gate else 1)) * value_dim)


@dataclass(frozen=True, kw_only=True)
class ScaledHeads(Heads):
    """Heads of a mixer with unit keys, whose published code still divides its reads by sqrt(K).

    scale  scale of a head's output before its norm: "one", 1; "key_dim", 1 / sqrt(K). The norm undoes it up to its eps,
           which matters while outputs are small, as before training
    """

    scale: Literal["one", "key_dim"] = field(default="one", metadata={"later": True})

    def read_scale(self, width: int) -> float:
        """`scale` as a number, in a model of `width`."""
        return 1.0 if self.scale == "one" else self.sizes(width)[0] ** -0.5

    @property
    def mesanet(self) -> bool:
        """True for the surroundings of MesaNet's baselines, whose scale is not published."""
        return not self.conv_v and not self.out_gate and self.out_norm == "head"

    @property
    def unscaled(self) -> tuple[str, ...]:
        """The difference of `scale` from the published layer, a phrase where there is one."""
        return ("reads with scale 1, the published layer with 1 / sqrt(K)",) if self.scale == "one" else ()


Dials = TypeVar("Dials", bound=Heads)


def merge_heads(dials: Dials, width: int) -> Dials | None:
    """One head with the channels of all; None where there is one already."""
    key_dim, value_dim = dials.sizes(width)
    if dials.heads == 1:
        return None
    return replace(dials, heads=1, key_dim=dials.heads * key_dim, value_dim=dials.heads * value_dim)


class HeadsState(NamedTuple):
    """The state of a mixer. conv: the last inputs of the convolution, None where there is none; memory: the op's state."""

    conv: Tensor | None = None
    memory: Any = None


class QueryKeyValue(nn.Module):
    """The maps x [B, T, D] -> q [B, T, H, K], k [B, T, W H, K] (both of norm 1 with `qk_norm`), v [B, T, W H, V], and the
    convolution's state. W writes of a token: the heads of the first, then those of the next."""

    def __init__(self, dials: Heads, width: int, *, qk_norm: bool) -> None:
        super().__init__()
        self.dials = dials
        self.qk_norm = qk_norm
        self.sizes = dials.sizes(width)
        columns = (1 + dials.writes) * self.sizes[0] + dials.writes * self.sizes[1]
        self.linear = nn.Linear(width, dials.heads * columns, bias=False)
        self.conv = ShortConv(dials.shaped_channels(width), dials.short_conv) if dials.short_conv else None

    def forward(self, x_BTD: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        heads, (key_dim, value_dim) = self.dials.heads, self.sizes
        pairs = self.dials.writes * heads
        columns = [(heads + pairs) * key_dim, pairs * value_dim]
        qkv_BTC = self.linear(x_BTD)
        if self.conv is not None and cache is None and fuses(qkv_BTC):
            shaped = short_conv_qkv(
                qkv_BTC,
                weight=self.conv.weight,
                heads=heads,
                pairs=pairs,
                key_width=key_dim,
                activation=self.dials.activation,
                unit=self.qk_norm,
            )
            if shaped is not None:
                return *shaped[0], shaped[1]
        qk_BTC, v_BTC = qkv_BTC.split(columns, dim=-1)
        unit = key_dim if self.qk_norm else None
        if self.conv is not None and self.dials.conv_v:
            of_qk, of_v = (None, None) if cache is None else cache.split(columns, dim=-1)
            qk_BTC, of_qk = self.conv(qk_BTC, of_qk, activation=self.dials.activation, unit=unit)
            v_BTC, of_v = self.conv(v_BTC, of_v, activation=self.dials.activation, first=columns[0])
            cache = torch.cat([of_qk, of_v], dim=-1)
        elif self.conv is not None:
            qk_BTC, cache = self.conv(qk_BTC, cache, activation=self.dials.activation, unit=unit)
        else:
            qk_BTC = self._shaped(qk_BTC, unit)
            v_BTC = self._shaped(v_BTC, None) if self.dials.conv_v else v_BTC
        q_BTHK, k_BTHK = qk_BTC.unflatten(-1, (heads + pairs, key_dim)).split([heads, pairs], dim=-2)
        return q_BTHK, k_BTHK, v_BTC.unflatten(-1, (pairs, value_dim)), cache

    def _shaped(self, x_BTC: Tensor, unit: int | None) -> Tensor:
        """The activation and the norm of keys, which the convolution does where there is one."""
        a_BTC = F.silu(x_BTC) if self.dials.activation == "silu" else x_BTC
        return a_BTC if unit is None else l2_norm(a_BTC.unflatten(-1, (-1, unit))).flatten(-2)


class ReadOut(nn.Module):
    """The read-out o [B, T, H, V], x [B, T, D] -> [B, T, H * V]: norm of each head, activated output gate, heads joined.

    With `rank` the gate is a low-rank map of so many inner channels, with a bias.
    """

    def __init__(
        self, dials: Heads, width: int, *, activation: GateActivation = "silu", rank: int | None = None
    ) -> None:
        super().__init__()
        heads, (_, value_dim) = dials.heads, dials.sizes(width)
        shape = (heads, value_dim) if dials.out_norm == "head" else (value_dim,)
        self.norm = RMSNorm(*shape) if dials.out_norm != "none" else None
        self.gate: nn.Module | None = None
        if dials.out_gate and rank is None:
            self.gate = nn.Linear(width, heads * value_dim, bias=False)
        elif dials.out_gate and rank is not None:
            self.gate = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, heads * value_dim))
        self.activation = activation

    def forward(self, o_BTHV: Tensor, x_BTD: Tensor) -> Tensor:
        gate_BTHV = None if self.gate is None else self.gate(x_BTD).unflatten(-1, o_BTHV.shape[-2:])
        if self.norm is not None:
            o_BTHV, _ = norm_gate(
                o_BTHV, weight=self.norm.weight, gate=gate_BTHV, activation=self.activation, eps=self.norm.eps
            )
        elif gate_BTHV is not None:
            o_BTHV = o_BTHV * (F.silu if self.activation == "silu" else torch.sigmoid)(gate_BTHV)
        return o_BTHV.flatten(-2)
