"""Group word problems: the product of the group elements read so far.

Which group decides how hard that is: Z60 is commutative, A4xZ5 solvable, A5, S5 not; all but S5 have order 60
(Merrill et al. 2024, The Illusion of State; Siems et al. 2025, DeltaProduct).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import Split
from recallmap.synth.tracking import StateTracking
from recallmap.synth.vocab import Roles

_LONGEST_NAME = 40  # the ten factors that a group of so many elements can have at most
LARGEST = 720  # elements of a group whose table we hold


@dataclass(frozen=True, kw_only=True)
class GroupWord(StateTracking):
    """Uniform elements x_1, x_2, ... of a group; the answer after x_t is x_1 x_2 ... x_t. Element 0 is the identity.

    group               S3, A5, Z60 and the like (symmetric, alternating, cyclic), or products of them: A4xZ5
    moved               inputs are only permutations that move at most so many points, the identity among them: 2 leaves
                        the swaps. None: all elements. Products and cyclic groups have no such choice
    tokens_per_element  so many tokens stand for an element; its answer is due at the last of them, so that a mixer has
                        more steps for it
    filler              what those after the first are: a token of their own (`pause`), or the element again (`repeat`)

    Protocol `word-problem` puts a start token first, which is its own answer, as Merrill et al. do (inputs are one
    longer then); `repaired` has no such gift. Their sets hold no sequence twice; these do not look for it.
    """

    kind: Literal["group_word"] = "group_word"
    protocol: Literal["repaired", "word-problem"] = "repaired"
    group: str = "S3"
    length: int = 32
    moved: int | None = None
    tokens_per_element: int = 1
    filler: Literal["pause", "repeat"] = "pause"

    def __post_init__(self) -> None:
        if self.tokens_per_element < 1:
            raise ValueError(f"tokens_per_element must be at least 1, got {self.tokens_per_element}")
        super().__post_init__()
        if self.protocol not in ("repaired", "word-problem"):
            raise ValueError(f"protocol must be 'repaired' or 'word-problem', got '{self.protocol}'")
        if self.filler not in ("pause", "repeat"):
            raise ValueError(f"filler must be 'pause' or 'repeat', got '{self.filler}'")
        order = math.prod(_order(factor) for factor in _factors(self.group))
        if not 2 <= order <= LARGEST:
            raise ValueError(f"group must have 2 to {LARGEST} elements, {self.group} has {order}")
        if self.moved is not None and (len(_factors(self.group)) > 1 or self.group.startswith("Z")):
            raise ValueError(f"moved counts points of a permutation, {self.group} has none: leave moved out")
        if len(self.generators) < 2:
            raise ValueError(f"only the identity of {self.group} moves at most {self.moved} points: raise moved")

    @property
    def _unit(self) -> int:
        return self.tokens_per_element

    @property
    def _first(self) -> int:
        return 1 if self.protocol == "word-problem" else 0

    @property
    def table(self) -> NDArray[np.int64]:
        """int64 [order, order]: the product of two elements."""
        return _product_table(self.group)

    @property
    def generators(self) -> NDArray[np.int64]:
        """The elements that occur in inputs."""
        if self.moved is None:
            return np.arange(len(self.table))
        points = _permutations(self.group)
        return np.flatnonzero((points != np.arange(points.shape[1])).sum(axis=1) <= self.moved)

    def roles(self) -> Roles:
        order = len(self.table)
        names = ["pad"]
        names += ["pause"] if self.tokens_per_element > 1 and self.filler == "pause" else []
        names += ["start"] if self.protocol == "word-problem" else []
        extra = {name: range(order + i, order + i + 1) for i, name in enumerate(names)}
        return Roles({"element": range(order), **extra})

    @property
    def answers(self) -> range:
        return self.roles().of("element")

    @property
    def shape(self) -> tuple[int, int]:
        return self._first + self.length, self.vocab

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        batch = super().sample(rng, count, split)
        if self.protocol == "repaired":
            return batch
        first = np.full((count, 1), self.roles().of("start").start)
        return Batch(
            inputs=np.concatenate([first, batch.inputs[:, :-1]], axis=1),
            targets=np.concatenate([first, batch.targets[:, :-1]], axis=1),
        )

    def trace(
        self, rng: np.random.Generator, sizes: NDArray[np.int64], width: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        each, count = self.tokens_per_element, len(sizes)
        elements = self.generators[rng.integers(0, len(self.generators), (-(-width // each), count))]
        states, table = np.empty_like(elements), self.table.ravel()
        state = np.zeros(count, dtype=np.int64)
        for step, element in enumerate(elements):
            state = states[step] = table.take(state * len(self.table) + element)
        tokens = np.repeat(elements.T, each, axis=1)
        if each > 1 and self.filler == "pause":
            tokens[:, np.arange(tokens.shape[1]) % each > 0] = self.roles().of("pause").start
        answers = np.full(tokens.shape, IGNORE)
        answers[:, each - 1 :: each] = states.T
        return tokens[:, :width], answers[:, :width]

    def chance(self) -> float:
        if self.protocol == "repaired":
            return super().chance()
        fewest = self.length if self.min_length is None else self.min_length
        asked = 1 if self.labels == "final" else (fewest + self.length) / 2 / self.tokens_per_element
        return (1 + asked * super().chance()) / (1 + asked)


def _factors(group: str) -> list[str]:
    """The factors of a product. Raises ValueError for a name that is none."""
    if len(group) > _LONGEST_NAME:
        raise ValueError(f"group must be named by at most {_LONGEST_NAME} characters, got {len(group):,}")
    factors = group.split("x")
    for factor in factors:
        if not re.fullmatch(r"[SAZ][1-9][0-9]*", factor):
            raise ValueError(f"group must be like S5, A5, Z60, or a product of such (A4xZ5), got '{group[:40]}'")
    return factors


def _order(factor: str) -> int:
    kind, number = factor[0], int(factor[1:])
    if kind == "Z":
        return number
    if number > 10:
        raise ValueError(f"{factor} has {number}! elements or half of them: at most {LARGEST} can be held")
    return max(1, math.factorial(number) // (2 if kind == "A" else 1))


def _permutations(factor: str) -> NDArray[np.int64]:
    """int64 [order, points]: the elements of S_n or A_n in lexicographic order, the identity first."""
    points = np.array(list(permutations(range(int(factor[1:])))))
    if factor[0] == "S":
        return points
    inversions = sum((points[:, [i]] > points[:, i + 1 :]).sum(axis=1) for i in range(points.shape[1]))
    return points[inversions % 2 == 0]


@cache
def _product_table(group: str) -> NDArray[np.int64]:
    """int64 [order, order]. In a product the first factor counts most; of permutations (a b)(i) = a(b(i))."""
    table = np.zeros((1, 1), dtype=np.int64)
    for factor in _factors(group):
        own = _factor_table(factor)
        table = np.kron(table, np.ones_like(own)) * len(own) + np.tile(own, table.shape)
    table.setflags(write=False)
    return table


def _factor_table(factor: str) -> NDArray[np.int64]:
    if factor[0] == "Z":
        numbers = np.arange(int(factor[1:]))
        return (numbers[:, None] + numbers) % len(numbers)
    points = _permutations(factor)
    codes = points @ points.shape[1] ** np.arange(points.shape[1])[::-1]  # rise in lexicographic order
    products = points[:, points]  # [a, b, i] = a(b(i))
    return np.searchsorted(codes, products @ points.shape[1] ** np.arange(points.shape[1])[::-1])
