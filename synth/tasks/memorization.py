"""Memorization (MAD): a fixed map from keys to values that no sequence shows and that weights must hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.mad import MadTask
from recallmap.synth.task import Split
from recallmap.synth.vocab import Roles

PUBLISHED_TRAIN = 256  # sequences in the published training set, the same for every vocabulary


@dataclass(frozen=True, kw_only=True)
class Memorization(MadTask):
    """length/2 times a key and the insert token, at which the key's value is due. One injective map from keys to
    values, made from `fact_seed` alone, holds for all splits and all seeds; it is never among the inputs.

    "mad-lab" draws the keys of 256 training sequences with replacement, so that with a large vocabulary many facts are
    never shown: that bounds its ceiling. "repaired" deals training keys from shuffled decks, so that 2 keys / length
    sequences in a row show every fact. Validation and test draw with replacement under both.
    """

    kind: Literal["memorization"] = "memorization"
    vocab: int = 256
    length: int = 32
    fact_seed: int = 12345

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 2 or self.length % 2:
            raise ValueError(f"length must be even and at least 2, got {self.length}")
        if self.vocab < 5:
            raise ValueError(f"vocab must be at least 5 (two keys, two values, the insert token), got {self.vocab}")
        if self.fact_seed < 0:
            raise ValueError(f"fact_seed must not be negative, got {self.fact_seed}")

    @property
    def _keys(self) -> int:
        return (self.vocab - 1) // 2

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        keys, insert = self._keys, self.vocab - 1
        return Roles({"key": range(keys), "value": range(keys, insert), "insert": range(insert, insert + 1)})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        size = count, self.length // 2
        if split == "train" and not self.published:
            decks = -(-size[0] * size[1] // self._keys)
            dealt = rng.permuted(np.tile(np.arange(self._keys), (decks, 1)), axis=1)
            keys = dealt.ravel()[: size[0] * size[1]].reshape(size)
        else:
            keys = rng.integers(self._keys, size=size)
        inputs = np.full((count, self.length), self.vocab - 1, dtype=np.int64)
        inputs[:, ::2] = keys
        targets = np.full((count, self.length), IGNORE, dtype=np.int64)
        targets[:, 1::2] = _facts(self.vocab, self.fact_seed)[keys]
        return Batch(inputs=inputs, targets=targets)

    def choices(self, batch: Batch) -> NDArray[np.int64]:
        """All values."""
        return np.full(batch.targets.shape, self.vocab - 1 - self._keys)

    def ceiling(self) -> float:
        """Of perfect memory for all that training showed: the expected share of facts in 256 sequences under "mad-lab".
        Under "repaired" 1, given a training set of 2 keys / length sequences or more; where that is more than a stream
        draws at once (1,024), of some such sets more, for each draw deals afresh."""
        if not self.published:
            return 1.0
        return 1 - (1 - 1 / self._keys) ** (PUBLISHED_TRAIN * self.length // 2)


@lru_cache(maxsize=8)
def _facts(vocab: int, fact_seed: int) -> NDArray[np.int64]:
    """int64 [keys]: the value of every key."""
    keys = (vocab - 1) // 2
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence(fact_seed)))
    return rng.permutation(np.arange(keys, vocab - 1))[:keys]
