"""Recall of overwritten values: key-value pairs, some of which are given a new value before every key is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import queries
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import distinct
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles


@dataclass(frozen=True, kw_only=True)
class MqarUpdates(Task):
    """`pairs` distinct keys with values, then `updates` of the keys again with other values; then every key once, as in
    mqar, where the value that it had last is due. All splits are alike.

    order  after: pairs come first, then updates. mixed: all these writes in random order; the last of a key counts

    Of an updated key the reference `first_value` says the value that was overwritten.

    "repaired" has `pairs` + `updates` distinct values, queries in random order, and no asked key among the fillers.
    "zoology" draws a new value as the public code does, which keeps it from being that of another pair rather than the old
    one: values occur twice, and a new value can be the old. Queries and fillers are as published for mqar too.
    """

    kind: Literal["mqar_updates"] = "mqar_updates"
    protocol: Literal["repaired", "zoology"] = "repaired"
    vocab: int = 8192
    length: int = 64
    pairs: int = 8
    updates: int = 4
    order: Literal["after", "mixed"] = "after"
    power: float = 0.01
    fillers: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("repaired", "zoology"):
            raise ValueError(f"protocol must be 'repaired' or 'zoology', got '{self.protocol}'")
        if self.order not in ("after", "mixed"):
            raise ValueError(f"order must be 'after' or 'mixed', got '{self.order}'")
        if self.protocol == "zoology" and self.order == "mixed":
            raise ValueError("protocol 'zoology' has order 'after', got 'mixed': use protocol 'repaired'")
        if self.pairs < 2:
            raise ValueError(f"pairs must be at least 2, got {self.pairs}")
        if not 0 <= self.updates <= self.pairs:
            raise ValueError(f"updates must lie in 0..{self.pairs} (the pairs), got {self.updates}")
        if self.length % 2:
            raise ValueError(f"length must be even, got {self.length}")
        if (needed := self._context + 2 * self.pairs) > self.length:
            raise ValueError(
                f"{self.pairs} pairs, {self.updates} updates and the queries take {needed} positions, length is "
                f"{self.length}: lower pairs or updates, or raise length"
            )
        if self.vocab // 2 - 1 < self.pairs + self.updates:
            raise ValueError(
                f"vocab {self.vocab} has {max(self.vocab // 2 - 1, 0)} keys and about as many values for {self.pairs} pairs "
                f"and {self.updates} updates: raise vocab to at least {2 * (self.pairs + self.updates) + 2}"
            )
        queries.check(self.power, self._gaps)

    @property
    def _context(self) -> int:
        """Positions that writes take."""
        return 2 * (self.pairs + self.updates)

    @property
    def _gaps(self) -> int:
        """Slots in which a key may be asked for."""
        return (self.length - self._context) // 2

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        return queries.halves(self.vocab)

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        context, writes, repaired = self._context, self.pairs + self.updates, self.protocol == "repaired"
        keys = 1 + distinct(rng, count, self.pairs, self.vocab // 2 - 1)
        updated = distinct(rng, count, self.updates, self.pairs)
        pair = np.concatenate([np.tile(np.arange(self.pairs), (count, 1)), updated], axis=1)  # that each write is of
        values = self._values(rng, count)
        if self.order == "mixed":
            order = rng.permuted(np.tile(np.arange(writes), (count, 1)), axis=1)
            pair, values = np.take_along_axis(pair, order, axis=1), np.take_along_axis(values, order, axis=1)
        final = np.empty_like(keys)
        each = np.arange(count)
        for write in range(writes):
            final[each, pair[:, write]] = values[:, write]

        inputs = np.zeros((count, self.length), dtype=np.int64)
        inputs[:, 0:context:2], inputs[:, 1:context:2] = np.take_along_axis(keys, pair, axis=1), values
        if self.fillers:
            inputs[:, context:] = queries.fillers(rng, keys, self.length - context, self.vocab, avoid=repaired)
        asked = context + 2 * queries.slots(rng, self._gaps, self.power, keys.shape, in_order=not repaired)
        np.put_along_axis(inputs, asked, keys, axis=1)
        targets = np.full((count, self.length), IGNORE)
        np.put_along_axis(targets, asked, final, axis=1)
        return Batch(inputs=inputs, targets=targets)

    def _values(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """int64 [n, pairs + updates]: the value of every write."""
        half = self.vocab // 2
        if self.protocol == "repaired":
            return half + distinct(rng, count, self.pairs + self.updates, self.vocab - half)
        first = distinct(rng, count, self.pairs, self.vocab - half)
        other = rng.integers(self.vocab - half - 1, size=(count, self.updates))
        other += other >= first[:, : self.updates]  # all values but that of the pair that is as old as the update
        return half + np.concatenate([first, other], axis=1)

    def _writes(self, batch: Batch, *, last: bool) -> NDArray[np.int64]:
        """int64 [n, T]: where a position asks, the position of the first or last write of its key, elsewhere -1."""
        rows, at = np.nonzero(batch.targets != IGNORE)
        same = batch.inputs[rows, 0 : self._context : 2] == batch.inputs[rows, at][:, None]
        write = self._context // 2 - 1 - same[:, ::-1].argmax(axis=1) if last else same.argmax(axis=1)
        found = np.full(batch.targets.shape, -1)
        found[rows, at] = 2 * write
        return found

    def chance(self) -> float:
        """A guess among the values that count."""
        return 1 / self.pairs

    def ceiling(self) -> float:
        return 1.0

    def references(self) -> dict[str, float]:
        """`first_value`: always the first value of a key."""
        equal = 0.0
        if (
            self.protocol == "zoology"
        ):  # that a new value is the old: the pair kept from it is another one, and the draw hits
            equal = (1 - 1 / self.pairs) / (self.vocab - self.vocab // 2 - 1)
        return {"first_value": 1 - self.updates / self.pairs * (1 - equal)}

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The value beside the last write of the key."""
        write = self._writes(batch, last=True)
        return np.where(write >= 0, write + 1, -1)

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How far back the value stands, and whether the key was updated (1) or not (0)."""
        first, last = self._writes(batch, last=False), self._writes(batch, last=True)
        return super().slices(batch) | {"updated": np.where(last >= 0, first != last, -1)}
