"""Recall by two keys at once: a value for every pair of a first and a second key, asked for by both."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import queries
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import distinct
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles


@dataclass(frozen=True, kw_only=True)
class MqarPairs(Task):
    """n first and n second keys, and a distinct value for each of their n^2 = `pairs` pairs; then every pair once, first key
    and second key, at the second of which its value is due. All splits are alike.

    layout  triples: "first key, second key, value" in random order. blocks: every first key once, then its n "second key,
            value", first keys and second keys in random order

    Queries stand in slots of three positions, drawn as mqar draws them; fillers are uniform tokens. Of one who looks at one
    of the two keys alone, the reference `one_key` tells the score.

    "zoology" hands out slots in the order of the triples, and fillers can be keys that are asked; "repaired" does neither.
    """

    kind: Literal["mqar_pairs"] = "mqar_pairs"
    protocol: Literal["repaired", "zoology"] = "repaired"
    vocab: int = 8192
    length: int = 64
    pairs: int = 9
    layout: Literal["triples", "blocks"] = "triples"
    power: float = 0.01
    fillers: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("repaired", "zoology"):
            raise ValueError(f"protocol must be 'repaired' or 'zoology', got '{self.protocol}'")
        if self.layout not in ("triples", "blocks"):
            raise ValueError(f"layout must be 'triples' or 'blocks', got '{self.layout}'")
        if self.protocol == "zoology" and self.layout == "blocks":
            raise ValueError("protocol 'zoology' has layout 'triples', got 'blocks': use protocol 'repaired'")
        if self.pairs < 4 or self._side**2 != self.pairs:
            raise ValueError(f"pairs must be a square, such as 4, 9 or 16, got {self.pairs}")
        if (needed := self._context + 3 * self.pairs) > self.length:
            raise ValueError(
                f"{self.pairs} pairs and their queries take {needed} positions, length is {self.length}: lower pairs, or "
                "raise length"
            )
        if self.vocab - 2 * (self.vocab // 3) < self.pairs or self.vocab // 3 - 1 < self._side:
            raise ValueError(
                f"vocab {self.vocab} has too few values for {self.pairs} pairs: raise vocab to at least {3 * self.pairs}"
            )
        queries.check(self.power, self._gaps)

    @property
    def _side(self) -> int:
        """Keys of each kind."""
        return isqrt(max(self.pairs, 0))

    @property
    def _context(self) -> int:
        """Positions that keys and values take before the queries."""
        return 3 * self.pairs if self.layout == "triples" else 2 * self.pairs + self._side

    @property
    def _gaps(self) -> int:
        """Slots in which a pair may be asked for."""
        return (self.length - self._context) // 3

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        third = self.vocab // 3
        return Roles(
            {
                "blank": range(1),
                "first": range(1, third),
                "second": range(third, 2 * third),
                "value": range(2 * third, self.vocab),
            }
        )

    @property
    def _shown(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """int64 [pairs] each: the positions of the first key and of the second key of every pair; its value is behind."""
        number = np.arange(self.pairs)
        if self.layout == "triples":
            return 3 * number, 3 * number + 1
        block = number // self._side * (2 * self._side + 1)
        return block, block + 1 + 2 * (number % self._side)

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        third, side, repaired = self.vocab // 3, self._side, self.protocol == "repaired"
        first = 1 + distinct(rng, count, side, third - 1)
        second = third + distinct(rng, count, side, third)
        values = 2 * third + distinct(rng, count, self.pairs, self.vocab - 2 * third)
        grid = np.tile(np.arange(self.pairs), (count, 1))
        if self.layout == "triples":
            grid = rng.permuted(grid, axis=1)
        else:  # first keys are in random order as they are; each has the second keys in an order of its own
            grid = rng.permuted(grid.reshape(-1, side), axis=1).reshape(count, -1)
        one, two = np.take_along_axis(first, grid // side, axis=1), np.take_along_axis(second, grid % side, axis=1)

        inputs, at = np.zeros((count, self.length), dtype=np.int64), self._shown
        inputs[:, at[0]], inputs[:, at[1]], inputs[:, at[1] + 1] = one, two, values
        if self.fillers:
            keys = np.concatenate([first, second], axis=1)
            rest = self.length - self._context
            inputs[:, self._context :] = queries.fillers(rng, keys, rest, self.vocab, avoid=repaired)
        slots = queries.slots(rng, self._gaps, self.power, one.shape, in_order=not repaired)
        asked = self._context + 3 * slots
        np.put_along_axis(inputs, asked, one, axis=1)
        np.put_along_axis(inputs, asked + 1, two, axis=1)
        targets = np.full((count, self.length), IGNORE)
        np.put_along_axis(targets, asked + 1, values, axis=1)
        return Batch(inputs=inputs, targets=targets)

    def chance(self) -> float:
        """A guess among the values that the sequence shows."""
        return 1 / self.pairs

    def ceiling(self) -> float:
        return 1.0

    def references(self) -> dict[str, float]:
        """`one_key`: a random one of the values that go with one of the two keys."""
        return {"one_key": 1 / self._side}

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The value behind both keys."""
        rows, at = np.nonzero(batch.targets != IGNORE)
        first, second = (batch.inputs[:, shown][rows] for shown in self._shown)
        pair = ((first == batch.inputs[rows, at - 1][:, None]) & (second == batch.inputs[rows, at][:, None])).argmax(
            axis=1
        )
        found = np.full(batch.targets.shape, -1)
        found[rows, at] = self._shown[1][pair] + 1
        return found
