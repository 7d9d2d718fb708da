"""The surroundings of a memory that learns at test time: heads, gates, output.

    q, k = L2(SiLU(conv(x W)));   v = SiLU(conv(x W));   alpha, eta, gamma = sigmoid(x W + b) a head
    y = W_o (RMSNorm_head(o) * sigmoid(x W_g))

B batch, T time, D model width, H heads, K key width, V value width, c window
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from recallmap.arch.parts.gates import WriteStrength
from recallmap.arch.parts.heads import Heads, QueryKeyValue, check_at_least, check_at_most, check_expansion
from recallmap.arch.parts.precision import widen

RETENTION = (
    0.999  # of a token, before training: all matrices of a deep memory fade at once, and near zero none can learn
)
MOST_MATRICES = 100  # of a memory


@dataclass(frozen=True, kw_only=True)
class MemoryHeads(Heads):
    """The common options of memories of this kind.

    window     c, tokens whose losses each step descends
    chunk      b, gradients are taken at the start of each chunk of b tokens; 1: at every token, which is slow if deep
    depth      matrices of the memory; 1: linear
    expansion  hidden width of the memory over key_dim
    residual   the memory is M(x) = x + ...
    forget     a learned retention alpha; without it, nothing fades
    eta_max    the inner learning rate is eta_max * sigmoid(x W + b) over the squared length of a key's features, and times
               1 - theta where gradients have momentum. None: min(1, 2 / b) / c, and that over `safety` in a deep memory. With
               it a linear memory that descends squared errors is stable on all inputs (higher powers only while errors stay
               near 1)
    eta_over   "target": in a deep memory without LayerNorm inside, the rate falls as one over the length of v - k (v without
               residual) where that is longer than `safety`. Weights grow with the length of their answers, and the stable
               rate falls with it. "key": the rate does not fall
    safety     a factor. A step in a deep memory depends on what it has learned already, and no rate is safe. At 1 a repeated
               key drives an untrained memory to infinity; over "key", values several times as long as keys, which training
               makes, still do at 4, unless LayerNorm is inside
    """

    heads: int = 4
    conv_v: bool = True
    out_norm: Literal["head", "shared", "none"] = "shared"
    out_gate: bool = True
    window: int = 1
    chunk: int = 16
    depth: int = 2
    expansion: float = 4
    residual: bool = True
    forget: bool = True
    eta_max: float | None = None
    eta_over: Literal["key", "target"] = "target"
    safety: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, window=self.window, chunk=self.chunk, depth=self.depth)
        check_at_most(MOST_MATRICES, depth=self.depth)
        check_expansion(expansion=self.expansion)
        if self.eta_max is not None and self.eta_max <= 0:
            raise ValueError(f"eta_max must be positive or null (the stable rate), got {self.eta_max}")
        if self.safety < 1:
            raise ValueError(f"safety must be at least 1, got {self.safety}")

    def check(self, width: int) -> None:
        key_dim, value_dim = self.sizes(width)
        if self.residual and key_dim != value_dim:
            raise ValueError(
                f"a residual memory needs keys as wide as values, got {key_dim} and {value_dim}; set residual to false"
            )

    def hidden(self, width: int) -> int:
        """Width of the memory's hidden units."""
        return max(1, round(self.expansion * self.sizes(width)[0]))

    @property
    def rate(self) -> float:
        """The largest value of eta times the squared length of a key's features."""
        if self.eta_max is not None:
            return self.eta_max
        return stable_rate(self.window, self.chunk) / (self.safety if self.overshoots else 1.0)

    @property
    def overshoots(self) -> bool:
        """True where a step may be too long although that of a linear memory is not."""
        return self.depth > 1

    @property
    def normed(self) -> bool:
        """True where answers have a fixed length, so that weights need not grow with it."""
        return False

    def target(self, k: Tensor, v: Tensor) -> Tensor | float:
        """A further divisor of the rate, besides the length of the features and `safety`: k, v [..., K] -> [...] or 1."""
        if not self.overshoots or self.normed or self.eta_over == "key":
            return 1.0
        target = widen(v) - widen(k) if self.residual else widen(v)
        return (target.square().sum(-1) / self.safety**2).clamp(min=1).sqrt()

    @property
    def bounded(self) -> tuple[str, ...]:
        """The difference of the rate from every paper, a phrase where there is one."""
        if self.eta_max is not None:
            return ()
        falls = (
            ", and falls where values are long"
            if self.overshoots and not self.normed and self.eta_over == "target"
            else ""
        )
        return (f"the learning rate is bounded by what is stable{falls}",)

    def window_state(self, width: int) -> int:
        """Floats of keys and values that a window holds."""
        return (self.window - 1) * self.heads * sum(self.sizes(width))

    def parameters_of_gates(self, width: int, more: int = 0) -> int:
        """Parameters of the gates here and of `more` others."""
        gates = 1 + self.forget + (self.window if self.window > 1 else 0) + more
        return WriteStrength.count(width, self.heads * gates, bias=True)

    def flops_of_gates(self, width: int, more: int = 0) -> float:
        """Operations per token of the gates here and of `more` others."""
        gates = 1 + self.forget + (self.window if self.window > 1 else 0) + more
        return 2 * width * self.heads * gates


def stable_rate(window: int, chunk: int) -> float:
    """The largest eta with eta b sum(gamma) < 2 under all gates, so that the error of a repeated key of length 1 never grows.
    It is at most 1 / c, at which an error is gone in one step."""
    return min(1.0, 2 / chunk) / window


class Inputs(NamedTuple):
    """The inputs of the memory for a token, by head; alpha and gamma are None where they are 1."""

    q: Tensor  # [B, T, H, K]
    k: Tensor  # [B, T, H, K]
    v: Tensor  # [B, T, H, V]
    eta: Tensor  # [B, T, H]
    alpha: Tensor | None  # [B, T, H]
    gamma: Tensor | None  # [B, T, H, c]


class MemoryInputs(nn.Module):
    """The maps x [B, T, D] -> Inputs, and the convolution's state."""

    def __init__(self, dials: MemoryHeads, width: int) -> None:
        super().__init__()
        self.dials = dials
        self.qkv = QueryKeyValue(dials, width, qk_norm=True)  # the stable rate is that of keys of length 1
        self.retention = nn.Linear(width, dials.heads) if dials.forget else None
        if self.retention is not None:
            nn.init.constant_(self.retention.bias, math.log(RETENTION / (1 - RETENTION)))
        self.rate = WriteStrength(width, dials.heads, bias=True, most=dials.rate)
        self.window = WriteStrength(width, dials.heads * dials.window, bias=True) if dials.window > 1 else None

    def forward(self, x_BTD: Tensor, cache: Tensor | None, energy: Tensor | float) -> tuple[Inputs, Tensor | None]:
        """`energy` is the squared length of a key's features."""
        q_BTHK, k_BTHK, v_BTHV, cache = self.qkv(x_BTD, cache)
        alpha_BTH = None if self.retention is None else torch.sigmoid(widen(self.retention(x_BTD)))
        gamma_BTHc = None if self.window is None else self.window(x_BTD).unflatten(-1, (self.dials.heads, -1))
        eta_BTH = self.rate(x_BTD) / energy / self.dials.target(k_BTHK, v_BTHV)
        return Inputs(q_BTHK, k_BTHK, v_BTHV, eta_BTH, alpha_BTH, gamma_BTHc), cache

    def queries(self, x_BTD: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Only q [B, T, H, K]."""
        q_BTHK, _, _, cache = self.qkv(x_BTD, cache)
        return q_BTHK, cache


def first_weights(heads: int, rows: int, columns: int, scale: float) -> nn.Parameter:
    """A matrix a head [H, rows, columns] with entries N(0, scale^2 / rows)."""
    return nn.Parameter(torch.randn(heads, rows, columns) * scale * rows**-0.5)
