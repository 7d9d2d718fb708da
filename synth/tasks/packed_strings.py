"""Packed strings (Jelassi et al. 2024): strings and their copies, one after the other, until the sequence is full."""

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

_EXAM = 4096  # sequences that the line `one_token_match` is computed on


@dataclass(frozen=True, kw_only=True)
class PackedStrings(Task):
    """Examples "begin, string, separator, the string again, end" one after the other, of which the sequence cuts the last.

    The copy is due, from the separator on; training asks for the end besides. An example that is cut asks nothing.

    alphabet    number of letters, all equally likely
    length      positions of a sequence
    min_size    fewest letters of a string
    max_size    most letters; all sizes are equally likely

    Under protocol "jelassi" validation and test have no string of the largest size, as in the public code. "repaired" has.
    """

    kind: Literal["packed_strings"] = "packed_strings"
    protocol: Literal["repaired", "jelassi"] = "repaired"
    alphabet: int = 26
    length: int = 220
    min_size: int = 5
    max_size: int = 20

    exam: ClassVar[int] = _EXAM

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("repaired", "jelassi"):
            raise ValueError(f"protocol must be 'repaired' or 'jelassi', got '{self.protocol}'")
        if self.alphabet < 2:
            raise ValueError(f"alphabet must be at least 2, got {self.alphabet}")
        if not 1 <= self.min_size <= self.max_size:
            raise ValueError(f"min_size must lie in 1..{self.max_size} (max_size), got {self.min_size}")
        if self.length < (least := 2 * self.max_size + 3):
            raise ValueError(
                f"a string of {self.max_size} letters and its copy take {least} positions, length is {self.length}: raise it, "
                "or lower max_size"
            )
        if self.protocol == "jelassi" and self.min_size == self.max_size:
            raise ValueError(
                f"protocol 'jelassi' tests no string of max_size, {self.max_size}, so that min_size must be lower: lower it, "
                "or use protocol 'repaired'"
            )

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return self.alphabet + 4

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        names = {"letter": range(self.alphabet)}
        for number, name in enumerate(("begin", "separator", "end", "pad")):
            names[name] = range(self.alphabet + number, self.alphabet + number + 1)
        return Roles(names)

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        most = self.max_size - (self.protocol == "jelassi" and split != "train")
        examples = -(-self.length // (2 * self.min_size + 3))
        sizes = rng.integers(self.min_size, most + 1, size=(count, examples))
        letters = rng.integers(self.alphabet, size=(count, self.length))
        end = (2 * sizes + 3).cumsum(axis=1)  # where the next example begins
        begins = np.zeros((count, self.length), dtype=np.int64)
        row, example = np.nonzero(end < self.length)
        begins[row, end[row, example]] = 1
        number = begins.cumsum(axis=1)  # of the example at each position
        size, end = (np.take_along_axis(values, number, axis=1) for values in (sizes, end))
        place = np.arange(self.length) - end + 2 * size + 3  # in the example
        string, copy = (place > 0) & (place <= size), (place > size + 1) & (place < 2 * size + 2)
        inputs = np.where(string, letters, self.alphabet + (place > 0) + (place > size + 1))
        row, at = np.nonzero(copy)
        inputs[row, at] = letters[row, at - size[row, at] - 1]
        asks = (place > size) & (place <= 2 * size + (split == "train")) & (end <= self.length)
        targets = np.full(inputs.shape, IGNORE)
        row, at = np.nonzero(asks)
        targets[row, at] = inputs[row, at + 1]
        return Batch(inputs=inputs, targets=targets, aux={"size": np.where(asks & (place <= 2 * size), size, -1)})

    def drawn_bytes(self, count: int) -> float:
        return 4 * super().drawn_bytes(count)

    def chance(self) -> float:
        """A guess among all letters."""
        return 1 / self.alphabet

    def ceiling(self) -> float:
        return 1.0

    def references(self) -> dict[str, float]:
        """`one_token_match`: find the last answer at a random one of its places in the string and say what follows there, as
        one layer can that matches single letters, on 4,096 sequences; it counts all answers but the first of a string."""
        return {"one_token_match": _one_token_match(self)} if self.max_size > 2 else {}

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The letter in the string."""
        size = batch.aux["size"]
        return np.where(size > 0, np.arange(self.length) - size, -1)

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How long the string is, which is how far back the letter stood, rounded up to a power of two."""
        return {"size_up_to": score.up_to(batch.aux["size"])}


@lru_cache(maxsize=64)
def _one_token_match(task: PackedStrings) -> float:
    batch = task.sample(np.random.default_rng(0), _EXAM, "test")
    size = batch.aux["size"]
    later = size[(size > 1) & (batch.inputs < task.alphabet)]  # answers that a letter asks for
    others = later - 1.0
    found = task.alphabet / others * (1 - (1 - 1 / task.alphabet) ** others)
    return float((found + (1 - found) / task.alphabet).mean())
