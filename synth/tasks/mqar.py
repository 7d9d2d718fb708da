"""Multi-query associative recall (Arora et al. 2023): key-value pairs first, then every key once, amid fillers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import queries
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import distinct
from recallmap.synth.lookback import previous_same
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles


@dataclass(frozen=True, kw_only=True)
class Mqar(Task):
    """`pairs` distinct keys with distinct values at positions 0 .. 2 pairs - 1, then every key once at an even position
    g of the rest, drawn without replacement in proportion to (g + 1)^(power - 1). The answer is due at the key and is
    never shown after it. The other positions hold 0, or with `fillers` uniformly random tokens. All splits are alike.

    "zoology" hands out query positions in the order of the pairs, so that pairs shown early tend to be asked early and
    "n-th query, n-th pair" beats chance; and a filler can be a key of its own sequence. "repaired" has neither: queries
    come in random order, and fillers are never a key that is asked. Every sequence has `pairs` scored positions, so the
    share of right answers is also the published mean over sequences.

    With `passes` the pairs are shown so many times before the queries, each further time in an order of its own; under
    "zoology" in the same.

    With `dense` the queries follow a blank back to back, as in Kimi Linear: length is 3 pairs + 1 (one pass), and neither
    `power` nor `fillers` count.
    """

    kind: Literal["mqar"] = "mqar"
    protocol: Literal["repaired", "zoology"] = "repaired"
    vocab: int = 8192
    length: int = 64
    pairs: int = 4
    power: float = 0.01
    fillers: bool = True
    passes: int = field(default=1, metadata={"later": True})
    dense: bool = field(default=False, metadata={"later": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("repaired", "zoology"):
            raise ValueError(f"protocol must be 'repaired' or 'zoology', got '{self.protocol}'")
        if self.pairs < 1:
            raise ValueError(f"pairs must be at least 1, got {self.pairs}")
        if self.length % 2 and not self.dense:
            raise ValueError(f"length must be even, got {self.length}")
        if self.passes < 1:
            raise ValueError(f"passes must be at least 1, got {self.passes}")
        if self.dense:
            self._check_dense()
        elif (needed := self._context + 2 * self.pairs) > self.length:
            raise ValueError(
                f"{self.pairs} pairs and their queries take {needed} positions, length is {self.length}: "
                f"lower pairs to {self.length // (2 * self.passes + 2)}, or raise length"
            )
        if self.vocab // 2 - 1 < self.pairs:
            raise ValueError(
                f"vocab {self.vocab} has {max(self.vocab // 2 - 1, 0)} keys for {self.pairs} pairs: "
                f"raise vocab to at least {2 * self.pairs + 2}"
            )
        if self.protocol == "zoology" and self.vocab <= self.length:
            raise ValueError(
                f"protocol 'zoology' needs vocab above length {self.length}, got {self.vocab}: "
                "raise vocab, or use protocol 'repaired'"
            )
        if not self.dense:
            queries.check(self.power, self._gaps)

    def _check_dense(self) -> None:
        if self.protocol == "zoology":
            raise ValueError("protocol 'zoology' has no dense queries: use protocol 'repaired'")
        if (needed := self._context + 1 + self.pairs) != self.length:
            raise ValueError(
                f"{self.pairs} pairs, a blank and dense queries take {needed} positions, length is {self.length}: "
                f"set length to {needed}"
            )

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        return queries.halves(self.vocab)

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        half, context, repaired = self.vocab // 2, self._context, self.protocol == "repaired"
        keys = 1 + distinct(rng, count, self.pairs, half - 1)
        values = half + distinct(rng, count, self.pairs, self.vocab - half)
        inputs = np.empty((count, self.length), dtype=np.int64)
        inputs[:, 0 : 2 * self.pairs : 2], inputs[:, 1 : 2 * self.pairs : 2] = keys, values
        inputs[:, context:] = 0
        if self.fillers and not self.dense:
            inputs[:, context:] = queries.fillers(rng, keys, self.length - context, self.vocab, avoid=repaired)
        if self.dense:
            asked = context + 1 + rng.permuted(np.tile(np.arange(self.pairs), (count, 1)), axis=1)
        else:
            asked = context + 2 * queries.slots(rng, self._gaps, self.power, keys.shape, in_order=not repaired)
        for start in range(2 * self.pairs, context, 2 * self.pairs):
            order = np.tile(np.arange(self.pairs), (count, 1))
            order = rng.permuted(order, axis=1) if repaired else order
            inputs[:, start : start + 2 * self.pairs : 2] = np.take_along_axis(keys, order, axis=1)
            inputs[:, start + 1 : start + 2 * self.pairs : 2] = np.take_along_axis(values, order, axis=1)
        np.put_along_axis(inputs, asked, keys, axis=1)
        targets = np.full((count, self.length), IGNORE, dtype=np.int64)
        np.put_along_axis(targets, asked, values, axis=1)
        return Batch(inputs=inputs, targets=targets)

    @property
    def _context(self) -> int:
        """Positions that pairs take."""
        return 2 * self.pairs * self.passes

    @property
    def _gaps(self) -> int:
        """Slots in which a pair may be asked for."""
        return (self.length - self._context) // 2

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The value next to the key among the pairs."""
        context = self._context
        asked = np.where(batch.targets != IGNORE, batch.inputs, -1 - np.arange(self.length))
        asked[:, 0:context:2] = batch.inputs[:, 0:context:2]
        key = previous_same(asked)
        return np.where((batch.targets != IGNORE) & (key >= 0), key + 1, -1)

    def chance(self) -> float:
        """One in `pairs`: a guess among the values that the sequence shows."""
        return 1 / self.pairs

    def ceiling(self) -> float:
        return 1.0
