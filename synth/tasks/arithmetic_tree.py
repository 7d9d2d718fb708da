"""Arithmetic on trees (Mano of Allen-Zhu 2025): the value of a prefix expression modulo a prime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import LONGEST, MOST_IDS, Split, Task
from recallmap.synth.vocab import Roles

_PLUS, _MINUS, _TIMES = range(3)  # operators


@dataclass(frozen=True, kw_only=True)
class ArithmeticTree(Task):
    """A begin mark, a tag that tells the number of operators, an expression with its operators in front, and a tag of the same
    number that asks for its value.

    An operator is +, - or *, each as likely. Of what is left of its operators a uniform number from none to all is in its first
    part, the rest in its second. Operands are uniform.

    operators  most of an expression. Training has 1 to so many, each as likely, validation and test so many
    modulus    of all arithmetic, a prime

    Under protocol "mano" the begin mark, tags and operators have two tokens each, drawn at random.
    """

    kind: Literal["arithmetic_tree"] = "arithmetic_tree"
    protocol: Literal["repaired", "mano"] = "repaired"
    operators: int = 10
    modulus: int = 23

    def __post_init__(self) -> None:
        if self.protocol not in ("repaired", "mano"):
            raise ValueError(f"protocol must be 'repaired' or 'mano', got '{self.protocol}'")
        if self.operators < 1:
            raise ValueError(f"operators must be at least 1, got {self.operators}")
        if self.shape[0] > LONGEST:
            raise ValueError(f"operators take {self.shape[0]:,} positions, at most {LONGEST:,}: lower them")
        if not 2 <= self.modulus < MOST_IDS // 2 or any(
            self.modulus % factor == 0 for factor in range(2, int(self.modulus**0.5) + 1)
        ):
            raise ValueError(f"modulus must be a prime below {MOST_IDS // 2:,}, got {self.modulus:,}")

    @property
    def _names(self) -> int:
        """Tokens of every mark, tag and operator."""
        return 2 if self.protocol == "mano" else 1

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return self.roles().vocab

    @property
    def shape(self) -> tuple[int, int]:
        return 2 * self.operators + 4, 1 + self._names * (4 + 2 * self.operators) + self.modulus

    def roles(self) -> Roles:
        found, first = {"pad": range(1)}, 1
        for name, size in (("begin", 1), ("operator", 3), ("tag", self.operators), ("ask", self.operators)):
            found[name], first = range(first, first + self._names * size), first + self._names * size
        return Roles({**found, "operand": range(first, first + self.modulus)})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        size = np.full(count, self.operators)
        if split == "train":
            size = rng.integers(1, self.operators + 1, size=count)
        is_operator = self._shape(rng, size)  # [places, n]
        operator, operand = (rng.integers(most, size=is_operator.shape) for most in (3, self.modulus))
        value, with_zero = _value(is_operator, operator, operand, size, self.modulus)

        roles, names = self.roles(), self._names
        marks, tags, asks, operators = (roles.of(name).start for name in ("begin", "tag", "ask", "operator"))
        extra = rng.integers(names, size=(self.shape[0], count))  # which of its tokens
        inputs = np.zeros((count, self.shape[0]), dtype=np.int64)
        inputs[:, 0], inputs[:, 1] = marks + extra[0], tags + (size - 1) * names + extra[1]
        places = np.arange(len(is_operator))[:, None]
        other = operators + operator * names + extra[2:-1]
        tokens = np.where(is_operator, other, roles.of("operand").start + operand)
        inputs[:, 2:-1] = np.where(places < 2 * size + 1, tokens, 0).T
        each, last = np.arange(count), 2 * size + 3
        inputs[each, last] = asks + (size - 1) * names + extra[-1]
        targets = np.full(inputs.shape, IGNORE)
        targets[each, last] = roles.of("operand").start + value
        return Batch(inputs=inputs, targets=targets, aux={"zero": with_zero.astype(np.int64)})

    def drawn_bytes(self, count: int) -> float:
        return 2 * super().drawn_bytes(count)

    def _shape(self, rng: np.random.Generator, size: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool [places, n]: whether an operator stands at each place of the expressions with `size` [n] operators."""
        count, places = size.size, 2 * self.operators + 1
        each = np.arange(count)
        waiting = np.zeros(
            (self.operators + 2) * count, dtype=np.int64
        )  # operators of every part that is still to come
        waiting[:count] = size
        parts = np.ones(count, dtype=np.int64)
        found = np.zeros((places, count), dtype=bool)
        for place, share in enumerate(rng.random((places, count))):
            top = np.maximum(parts - 1, 0) * count + each
            here = np.where(parts > 0, waiting.take(top), 0)
            found[place] = splits = here > 0
            first = np.floor(share * here).astype(np.int64)
            waiting[top] = np.where(splits, here - 1 - first, here)
            above = np.minimum(top + count, waiting.size - count + each)
            waiting[above] = np.where(splits, first, waiting.take(above))
            parts += np.where(splits, 1, -1)
        return found

    def chance(self) -> float:
        """0, or any other number: what an expression of all operators has more often as its value."""
        zero = [1 / self.modulus]
        others = self.modulus - 1
        for size in range(1, self.operators + 1):
            parts = [(zero[first], zero[size - 1 - first]) for first in range(size)]
            sums = [a * b + (1 - a) * (1 - b) / others for a, b in parts]
            products = [1 - (1 - a) * (1 - b) for a, b in parts]
            zero.append(float(np.mean(sums)) * 2 / 3 + float(np.mean(products)) / 3)
        return max(zero[-1], (1 - zero[-1]) / others)

    def ceiling(self) -> float:
        return 1.0

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Whether a factor is 0 somewhere (1) or nowhere (0)."""
        return {"zero_factor": batch.aux["zero"]}


def _value(
    is_operator: NDArray[np.bool_],
    operator: NDArray[np.int64],
    operand: NDArray[np.int64],
    size: NDArray[np.int64],
    modulus: int,
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Values int64 [n] of expressions with `size` [n] operators, and whether a factor of them is 0, read from the right."""
    places, count = is_operator.shape
    each = np.arange(count)
    stack = np.zeros((places + 2) * count, dtype=np.int64)
    height, zero = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    for place in range(places - 1, -1, -1):
        told, acts = place < 2 * size + 1, is_operator[place]
        first = stack.take(np.maximum(height - 1, 0) * count + each)
        second = stack.take(np.maximum(height - 2, 0) * count + each)
        kind = operator[place]
        sums = first + np.where(kind == _MINUS, -second, second)
        made = np.where(kind == _TIMES, first * second, sums) % modulus
        zero |= told & acts & (kind == _TIMES) & (first * second == 0)
        height += np.where(told, np.where(acts, -1, 1), 0)
        top = np.maximum(height - 1, 0) * count + each
        stack[top] = np.where(told, np.where(acts, made, operand[place]), stack.take(top))
    return stack[:count].copy(), zero
