"""Stacks (after Kimi Linear): pushes to and pops from many stacks; what a pop takes off is due at it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles

_EXAM = 4096  # sequences that the line `last_push` is computed on
_AT_ONCE = 512  # sequences drawn at once: what is computed of them stays in a processor's cache
_PAD, _PUSH, _POP, _FIRST = 0, 1, 2, 3  # token ids; _FIRST is the first stack


class Operations(NamedTuple):
    """What n sequences do, in order; int64 [operations, n] each.

    stack    which stack it is about
    element  what is pushed or taken off
    pushed   of a pop, which operation pushed that; of a push -1
    since    of a pop, how many operations on its stack came after that; of a push -1
    """

    stack: NDArray[np.int64]
    element: NDArray[np.int64]
    pushed: NDArray[np.int64]
    since: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Stacks(Task):
    """Operations "push, stack, element" and "pop, stack, element" on `stacks` stacks, each of them uniform.

    An operation on a stack that holds something is a pop with probability `pop`, else a push of a uniform element. The
    element that a pop takes off is due at its stack. What `length` leaves of an operation is padded. A sequence without a
    pop is drawn anew. All splits are alike.

    With many stacks nearly every pop asks for what was last pushed on its stack, which is recall: the reference
    `last_push` is of one who remembers no more. With few stacks a stack has to be remembered below its top.
    """

    kind: Literal["stacks"] = "stacks"
    protocol: Literal["repaired"] = "repaired"
    length: int = 256
    stacks: int = 8
    elements: int = 64
    pop: float = 0.5

    exam: ClassVar[int] = _EXAM

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        if self.length < 6:
            raise ValueError(f"length must be at least 6, for a push and a pop of three tokens each, got {self.length}")
        if self.stacks < 1:
            raise ValueError(f"stacks must be at least 1, got {self.stacks}")
        if self.elements < 2:
            raise ValueError(f"elements must be at least 2, or nothing is asked, got {self.elements}")
        if not 0 < self.pop <= 1:
            raise ValueError(f"pop must be above 0 and at most 1, got {self.pop}")
        if 4 * self.pop * self._operations**2 < self.stacks:
            raise ValueError(
                f"{self._operations} operations on {self.stacks:,} stacks hardly ever pop: raise length or pop, or lower "
                "stacks"
            )

    @property
    def _operations(self) -> int:
        return self.length // 3

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return _FIRST + self.stacks + self.elements

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        element = _FIRST + self.stacks
        return Roles(
            {
                "pad": range(_PAD, _PUSH),
                "push": range(_PUSH, _POP),
                "pop": range(_POP, _FIRST),
                "stack": range(_FIRST, element),
                "element": range(element, self.vocab),
            }
        )

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        size = 3 * self._operations
        inputs = np.zeros((count, self.length), dtype=np.int64)
        targets = np.full((count, self.length), IGNORE)
        pushed, since = (np.empty((count, self._operations), dtype=np.int64) for _ in range(2))
        for start in range(0, count, _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            done = self._asking(rng, len(inputs[rows]))
            pops, element = (done.pushed >= 0).T, done.element.T + (_FIRST + self.stacks)
            inputs[rows, 0:size:3] = np.where(pops, _POP, _PUSH)
            inputs[rows, 1:size:3] = done.stack.T + _FIRST
            inputs[rows, 2:size:3] = element
            targets[rows, 1:size:3] = np.where(pops, element, IGNORE)
            pushed[rows], since[rows] = done.pushed.T, done.since.T
        return Batch(inputs=inputs, targets=targets, aux={"pushed": pushed, "since": since})

    def drawn_bytes(self, count: int) -> float:
        return 1.5 * super().drawn_bytes(count) + 16.0 * count * self.stacks

    def _asking(self, rng: np.random.Generator, count: int) -> Operations:
        """Sequences of which each has a pop."""
        done = self._draw(rng, count)
        while (silent := np.flatnonzero((done.pushed < 0).all(axis=0))).size:
            again = self._draw(rng, silent.size)
            for old, new in zip(done, again, strict=True):
                old[:, silent] = new
        return done

    def _draw(self, rng: np.random.Generator, count: int) -> Operations:
        shape = self._operations, count
        stack, element = rng.integers(self.stacks, size=shape), rng.integers(self.elements, size=shape)
        pops = rng.random(shape) < self.pop
        each = np.arange(count)
        place = stack * count + each  # of its stack
        own = np.arange(stack.size).reshape(shape)  # the number of each operation, in all sequences
        top = np.full(self.stacks * count, -1)  # the operation that pushed what lies on top
        acted = np.zeros(top.size, dtype=np.int64)  # operations on every stack so far
        below, number, values = np.full(shape, -1), np.empty(shape, dtype=np.int64), element.ravel()
        under = below.ravel()
        for step, here in enumerate(place):
            below[step] = on_top = top.take(here)
            pops[step] &= on_top >= 0
            top[here] = np.where(pops[step], under.take(on_top), own[step])
            number[step] = done = acted.take(here)
            acted[here] = done + 1
        # Elements are looked up behind the loop: what a pop takes off was pushed, and a push keeps its own.
        pushed = np.where(pops, below, -1)
        return Operations(
            stack=stack,
            element=np.where(pops, values.take(below), element),
            pushed=np.where(pops, pushed // count, -1),
            since=np.where(pops, number - number.ravel().take(below) - 1, -1),
        )

    def chance(self) -> float:
        """A guess among all elements."""
        return 1 / self.elements

    def ceiling(self) -> float:
        return 1.0

    def references(self) -> dict[str, float]:
        """`last_push`: always what was last pushed on that stack, pops ignored, on 4,096 sequences."""
        return {"last_push": _last_push(self)}

    def last_pushed(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: at each pop the element that was last pushed on its stack, elsewhere IGNORE."""
        found = np.full(batch.targets.shape, IGNORE)
        last = np.full((len(batch), self.stacks), IGNORE)
        each = np.arange(len(batch))
        for at in range(0, 3 * self._operations, 3):
            stack, pops = batch.inputs[:, at + 1] - _FIRST, batch.inputs[:, at] == _POP
            found[:, at + 1] = np.where(pops, last[each, stack], IGNORE)
            last[each, stack] = np.where(pops, last[each, stack], batch.inputs[:, at + 2])
        return found

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The element where it was pushed."""
        pushed = batch.aux["pushed"]
        return self._at_stacks(np.where(pushed >= 0, 3 * pushed + 2, -1))

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How far back the push lies, and how many operations on the stack came between, each rounded up to a power of
        two; 0 between is recall."""
        since = batch.aux["since"]
        return super().slices(batch) | {
            "operations_between": self._at_stacks(np.where(since > 0, score.up_to(since), since))
        }

    def _at_stacks(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n, T]: a value an operation, put where its answer is due; elsewhere -1."""
        found = np.full((len(values), self.length), -1)
        found[:, 1 : 3 * self._operations : 3] = values
        return found


@lru_cache(maxsize=64)
def _last_push(task: Stacks) -> float:
    batch = task.sample(np.random.default_rng(0), _EXAM, "test")
    return task.score(batch, task.last_pushed(batch))["accuracy"]
