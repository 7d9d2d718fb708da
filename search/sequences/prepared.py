"""One set of sequences, prepared for a pool: the positions that are scored, and what is expected there.

S sequences, T time, W positions with a target (T, or fewer where all answers are read from the last vector), Q positions
read out
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch

ROUND = 4  # positions read out are a multiple of this, so that the shape of batches seldom changes

WORTHWHILE = 0.75  # logits are taken at scored positions alone where these are fewer than this share of all

_NARROW = (np.int8, np.int16, np.int32)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Sequences with their scored positions first, at no less than the Q that they need, or with all positions.

    inputs   [S, T] or [S, T, channels]
    columns  the Q that these sequences need
    width    W
    at       [S, Q] positions, or None: all W
    targets  [S, Q] or [S, W], IGNORE where unscored; or [S, W, channels]
    weight   float32 like `at`, 0 where unscored; None: 1 at every scored position
    """

    inputs: NDArray[Any]
    columns: int
    width: int
    at: NDArray[Any] | None
    targets: NDArray[Any]
    weight: NDArray[np.float32] | None

    @staticmethod
    def of(batch: Batch, columns: int = 1) -> Prepared:
        """A batch, at no less than so many columns."""
        targets, weight = batch.targets, batch.aux.get("weight")
        mask: NDArray[np.bool_] = targets != IGNORE if targets.ndim == 2 else np.ones(targets.shape[:2], dtype=bool)
        needed = -(-int(mask.sum(1).max(initial=0)) // ROUND) * ROUND
        at = None
        if not _is_everywhere(max(columns, needed), mask.shape[1]):
            # the scored positions of each sequence first, in order, then unscored ones
            at = np.argsort(~mask, axis=1, kind="stable")[:, : max(columns, needed)]
            targets = np.take_along_axis(targets, at, axis=1)
            if weight is not None:
                weight, mask = np.take_along_axis(weight, at, axis=1), np.take_along_axis(mask, at, axis=1)
        return Prepared(
            inputs=batch.inputs,
            columns=needed,
            width=batch.targets.shape[1],
            at=at,
            targets=targets,
            weight=None if weight is None else np.asarray(weight, dtype=np.float32) * mask,
        )

    def with_columns(self, columns: int) -> Prepared:
        """The same at exactly so many columns, no fewer than these have, or at all positions where so many are not worth
        choosing."""
        if self.at is None:
            return self
        if _is_everywhere(columns, self.width):
            return self._everywhere()
        return self if columns == self.at.shape[1] else self._wider(columns)

    def narrow(self) -> Prepared:
        """The same whole numbers in the smallest type that holds them, to travel between processes."""
        at = None if self.at is None else _narrow(self.at)
        return replace(self, inputs=_narrow(self.inputs), at=at, targets=_narrow(self.targets))

    def weights(self) -> NDArray[np.float32]:
        """float32 [S, Q] or [S, W], where `weight` may be None."""
        if self.weight is not None:
            return self.weight
        if self.targets.ndim == 3:
            return np.ones(self.targets.shape[:2], dtype=np.float32)
        return (self.targets != IGNORE).astype(np.float32)

    def _everywhere(self) -> Prepared:
        """What was left out is unscored."""
        assert self.at is not None
        shape = (len(self.targets), self.width)
        targets = np.full(shape, IGNORE, dtype=self.targets.dtype)
        np.put_along_axis(targets, self.at, self.targets, axis=1)
        weight = None
        if self.weight is not None:
            weight = np.zeros(shape, dtype=np.float32)
            np.put_along_axis(weight, self.at, self.weight, axis=1)
        return replace(self, at=None, targets=targets, weight=weight)

    def _wider(self, columns: int) -> Prepared:
        """The next unscored positions follow."""
        assert self.at is not None
        there = np.zeros((len(self.at), self.width), dtype=bool)
        np.put_along_axis(there, self.at, True, axis=1)
        more = np.argsort(there, axis=1, kind="stable")[:, : columns - self.at.shape[1]].astype(self.at.dtype)
        weight = self.weight
        if weight is not None:
            weight = np.concatenate([weight, np.zeros(more.shape, dtype=np.float32)], axis=1)
        return replace(
            self,
            at=np.concatenate([self.at, more], axis=1),
            targets=np.concatenate([self.targets, np.full(more.shape, IGNORE, dtype=self.targets.dtype)], axis=1),
            weight=weight,
        )


def _is_everywhere(columns: int, width: int) -> bool:
    """True where answers are read at all of `width` positions, because so many columns are not worth choosing."""
    return columns > WORTHWHILE * width


def _narrow(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind != "i" or not values.size:
        return values
    low, high = values.min(), values.max()
    for kind in _NARROW:
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values
