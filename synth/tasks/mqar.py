"""Multi-query associative recall (Arora et al. 2023): key-value pairs first, then every key once, amid fillers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import distinct, weighted_order
from recallmap.synth.lookback import previous_same
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles

_STEEPEST = 650  # the logarithm of how many times as likely the last slot may be as the first: floats end at 709

_CACHED = 2**14  # numbers whose places are sought at once: what is computed of them stays in a processor's cache


@dataclass(frozen=True, kw_only=True)
class Mqar(Task):
    """`pairs` distinct keys with distinct values at positions 0 .. 2 pairs - 1, then every key once at an even position
    g of the rest, drawn without replacement in proportion to (g + 1)^(power - 1). The answer is due at the key and is
    never shown after it. The other positions hold 0, or with `fillers` uniformly random tokens. All splits are alike.

    "zoology" hands out query positions in the order of the pairs, so that pairs shown early tend to be asked early and
    "n-th query, n-th pair" beats chance; and a filler can be a key of its own sequence. "repaired" has neither: queries
    come in random order, and fillers are never a key that is asked. Every sequence has `pairs` scored positions, so the
    share of right answers is also the published mean over sequences.
    """

    kind: Literal["mqar"] = "mqar"
    protocol: Literal["repaired", "zoology"] = "repaired"
    vocab: int = 8192
    length: int = 64
    pairs: int = 4
    power: float = 0.01
    fillers: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("repaired", "zoology"):
            raise ValueError(f"protocol must be 'repaired' or 'zoology', got '{self.protocol}'")
        if self.pairs < 1:
            raise ValueError(f"pairs must be at least 1, got {self.pairs}")
        if self.length % 2:
            raise ValueError(f"length must be even, got {self.length}")
        if 4 * self.pairs > self.length:
            raise ValueError(
                f"{self.pairs} pairs and their queries take {4 * self.pairs} positions, length is {self.length}: "
                f"lower pairs to {self.length // 4}, or raise length"
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
        if not 0 < self.power < np.inf:
            raise ValueError(f"power must be positive and finite (1.0 is uniform), got {self.power}")
        if self._gaps > 1 and (self.power - 1) * np.log(self._gaps) > _STEEPEST:
            most = 1 + _STEEPEST / np.log(self._gaps)
            raise ValueError(f"power must be at most {int(most)} with {self._gaps} slots for queries, got {self.power}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        half = self.vocab // 2
        return Roles({"blank": range(1), "key": range(1, half), "value": range(half, self.vocab)})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        half, context = self.vocab // 2, 2 * self.pairs
        keys = 1 + distinct(rng, count, self.pairs, half - 1)
        values = half + distinct(rng, count, self.pairs, self.vocab - half)
        inputs = np.empty((count, self.length), dtype=np.int64)
        inputs[:, 0:context:2], inputs[:, 1:context:2] = keys, values
        inputs[:, context:] = self._fill(rng, keys)
        queries = context + 2 * self._slots(rng, count)
        np.put_along_axis(inputs, queries, keys, axis=1)
        targets = np.full((count, self.length), IGNORE, dtype=np.int64)
        np.put_along_axis(targets, queries, values, axis=1)
        return Batch(inputs=inputs, targets=targets)

    @property
    def _gaps(self) -> int:
        """Slots in which a pair may be asked for."""
        return self.length // 2 - self.pairs

    def _slots(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """int64 [n, pairs]: the slot in which each pair is asked for."""
        weights = np.arange(1, self._gaps + 1, dtype=np.float64) ** (self.power - 1)
        slots = weighted_order(rng, weights, count, self.pairs)
        return slots if self.protocol == "zoology" else rng.permuted(slots, axis=1)

    def _fill(self, rng: np.random.Generator, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n, length - 2 pairs]: what stands where no key is asked."""
        size = len(keys), self.length - 2 * self.pairs
        if not self.fillers:
            return np.zeros(size, dtype=np.int64)
        if self.protocol == "zoology":
            return rng.integers(self.vocab, size=size)
        # A number below vocab - pairs, raised by one for every own key at or below it, runs over all tokens but those.
        drawn = rng.integers(self.vocab - self.pairs, size=size)
        steps = np.sort(keys, axis=1) - np.arange(self.pairs)
        at_once = max(1, _CACHED // size[1])
        for start in range(0, len(keys), at_once):
            rows = slice(start, start + at_once)
            drawn[rows] += _at_most(drawn[rows], steps[rows])
        return drawn

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The value next to the key among the pairs."""
        context = 2 * self.pairs
        asked = np.where(batch.targets != IGNORE, batch.inputs, -1 - np.arange(self.length))
        asked[:, 0:context:2] = batch.inputs[:, 0:context:2]
        key = previous_same(asked)
        return np.where((batch.targets != IGNORE) & (key >= 0), key + 1, -1)

    def chance(self) -> float:
        """One in `pairs`: a guess among the values that the sequence shows."""
        return 1 / self.pairs

    def ceiling(self) -> float:
        return 1.0


def _at_most(numbers: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [n, m]: how many of its row's ascending `steps` [n, k] are at most each of `numbers` [n, m].

    By halving, all numbers at once: no branch depends on one, hence faster than to search for one after the other.
    """
    count, width = steps.shape
    bit = 1 << width.bit_length() >> 1
    padded = np.full((count, 2 * bit - 1), np.iinfo(np.int64).max)
    padded[:, :width] = steps
    flat = padded.ravel()
    before = np.arange(-1, flat.size - 1, padded.shape[1])[:, None]
    last = np.repeat(before, numbers.shape[1], axis=1)  # the place of the last step known to be small enough
    while bit:
        last += bit * (flat[last + bit] <= numbers)
        bit >>= 1
    return last - before
