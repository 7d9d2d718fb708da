"""The online learner of the learnability mappings: one gradient step per position, on that position's loss.

loss_j = |M(i_j) - o_j|^2 / |o_j|^2, taken before the step on it        (ATLAS, section on learnability, mended)

M is an MLP. Members (tasks x seeds) are one stack of weights. Every optimizer on offer works element by element, so a
member learns exactly as it would alone.

Legend: M members, T positions, d width
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

Optimizer = Literal["adamw", "adam", "rmsprop", "sgd"]

MOST = 1000  # hidden layers, and units of a layer per unit of width


@dataclass(frozen=True, kw_only=True)
class Learner:
    """An MLP d -> [expand d -> gelu] x hidden -> d with biases, and the optimizer that trains it online."""

    hidden: int = 2
    expand: int = 1
    optimizer: Optimizer = "adamw"
    lr: float = 5e-4
    weight_decay: float = 0.01  # of adamw only

    def __post_init__(self) -> None:
        for name in ("hidden", "expand"):
            if not 1 <= getattr(self, name) <= MOST:
                raise ValueError(f"{name} must be at least 1 and at most {MOST:,}, got {getattr(self, name):,}")
        if self.optimizer not in get_args(Optimizer):
            raise ValueError(f"optimizer must be one of {', '.join(get_args(Optimizer))}, got '{self.optimizer}'")
        if self.lr <= 0:
            raise ValueError(f"lr must be positive, got {self.lr}")

    @property
    def name(self) -> str:
        """`mlp 2x1`: hidden layers x expansion."""
        return f"mlp {self.hidden}x{self.expand}"

    def parameters(self, width: int) -> int:
        """Weights and biases of an MLP on vectors of `width`."""
        return sum((rows + 1) * columns for rows, columns in pairwise(self.sizes(width)))

    @property
    def moments(self) -> int:
        """Floats that the optimizer keeps for each parameter."""
        return {"adamw": 2, "adam": 2, "rmsprop": 1, "sgd": 0}[self.optimizer]

    def sizes(self, width: int) -> list[int]:
        """Widths of its layers, from input to output."""
        return [width, *[self.expand * width] * self.hidden, width]
