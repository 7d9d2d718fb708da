"""Brackets of several types (Hewitt et al. 2020): words of Dyck-(k, m), in which every closing bracket is due."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles

_EXAM = 4096  # sequences that the line `last_opened` is computed on
_END, _OPEN = 1, 2  # token ids, 0 being the padding; _OPEN is the first opening bracket
_TRIES = 64  # rounds in which sequences that do not end in time are drawn anew


@dataclass(frozen=True, kw_only=True)
class Dyck(Task):
    """A word of brackets and an end. Where all are closed the word ends, with probability 1/2, or one opens; at full depth one
    closes; else one opens or closes, as likely. An opening bracket is of a uniform type.

    Wherever one closes next, it is due: the bracket that was opened last and is not closed. Words that close nothing and those
    that do not end in time are drawn anew. All splits are alike.

    types       of brackets
    depth       most brackets that are open at once
    length      most tokens of a word, its end included; shorter ones are padded
    min_length  fewest, its end included: before, no word ends. Published words begin at 3; short ones are so few that those of
                tests come in training, too

    The reference `last_opened` is of one who closes what was opened last, closed or not. Test longer words.
    """

    kind: Literal["dyck"] = "dyck"
    protocol: Literal["repaired"] = "repaired"
    types: int = 8
    depth: int = 5
    length: int = 180
    min_length: int = 40

    exam: ClassVar[int] = _EXAM

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        for name in ("types", "depth"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} must be at least 2, or nothing must be remembered; got {getattr(self, name)}")
        if not 3 <= self.min_length <= self.length:
            raise ValueError(f"min_length must lie in 3..{self.length} (length), got {self.min_length}")
        if self.length - self.min_length < self.depth and self.min_length > 3:
            raise ValueError(
                f"from {self.min_length} to {self.length} tokens hardly any word of depth {self.depth} ends: lower min_length"
            )

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return _OPEN + 2 * self.types

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        closing = _OPEN + self.types
        return Roles(
            {
                "pad": range(_END),
                "end": range(_END, _OPEN),
                "open": range(_OPEN, closing),
                "close": range(closing, self.vocab),
            }
        )

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        inputs, opened = self._draw(rng, count)
        for _ in range(_TRIES):
            wrong = np.flatnonzero(~((inputs == _END).any(axis=1) & (opened >= 0).any(axis=1)))
            if not wrong.size:
                break
            inputs[wrong], opened[wrong] = self._draw(rng, wrong.size)
        else:
            raise ValueError(f"words of up to {self.length} tokens hardly ever end: raise length, or lower depth")
        targets = np.full(inputs.shape, IGNORE)
        targets[:, :-1] = np.where(opened[:, 1:] >= 0, inputs[:, 1:], IGNORE)
        due = np.full(inputs.shape, -1)
        due[:, :-1] = opened[:, 1:]
        return Batch(inputs=inputs, targets=targets, aux={"opened": due})

    def drawn_bytes(self, count: int) -> float:
        return 2 * super().drawn_bytes(count)

    def _draw(self, rng: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Words, some without an end, and at closing brackets where each was opened, elsewhere -1; both int64 [n, T]. Products
        with 0 and 1 choose, several times as fast as masks do."""
        shape = self.length, count
        up, opening = rng.random(shape) < 0.5, (_OPEN + rng.integers(self.types, size=shape)).astype(np.int32)
        tokens, opened = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.int32)
        # What closes the bracket that is open at every depth, and where it was opened, from 1; what lies at `free` is not open.
        closing, place = (np.zeros((self.depth + 2) * count, dtype=np.int32) for _ in range(2))
        free, height, alive = (
            np.arange(count, 2 * count),
            np.zeros(count, dtype=np.int32),
            np.ones(count, dtype=np.bool_),
        )
        for at in range(self.length):
            empty = height == 0
            ends = alive & empty & ~up[at] if at > 0 and at + 1 >= self.min_length else np.zeros(count, dtype=np.bool_)
            alive &= ~ends
            opens = alive & (empty | (up[at] & (height < self.depth)))
            rises, falls = opens.astype(np.int32), (alive & ~opens).astype(np.int32)
            top = free - count
            tokens[at] = opening[at] * rises + closing.take(top) * falls + _END * ends
            opened[at] = place.take(top) * falls - 1
            closing[free], place[free] = opening[at] + self.types, at + 1
            rises -= falls
            height += rises
            free += np.multiply(rises, count, dtype=np.int64)
        return _by_row(tokens), _by_row(opened)

    def chance(self) -> float:
        """A guess among all types."""
        return 1 / self.types

    def ceiling(self) -> float:
        return 1.0

    def references(self) -> dict[str, float]:
        """`last_opened`: always close what was opened last, on 4,096 sequences; of long words (depth + 1) / (2 depth) and its
        luck among types."""
        return {"last_opened": _last_opened(self)}

    def last_opened(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: at each scored position the closing bracket of what was opened last, elsewhere IGNORE."""
        opens = (batch.inputs >= _OPEN) & (batch.inputs < _OPEN + self.types)
        last = np.maximum.accumulate(np.where(opens, np.arange(self.length), 0), axis=1)
        said = np.take_along_axis(batch.inputs, last, axis=1) + self.types
        return np.where(batch.targets != IGNORE, said, IGNORE)

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How far back the bracket was opened, rounded up to a power of two."""
        opened = batch.aux["opened"]
        return {"opened_up_to": score.up_to(np.where(opened >= 0, np.arange(self.length) + 1 - opened, -1))}


@lru_cache(maxsize=64)
def _last_opened(task: Dyck) -> float:
    batch = task.sample(np.random.default_rng(0), _EXAM, "test")
    return task.score(batch, task.last_opened(batch))["accuracy"]


def _by_row(drawn: NDArray[np.int32]) -> NDArray[np.int64]:
    """int64 [n, T] of int32 [T, n]."""
    return drawn.T.astype(np.int64, order="C")
