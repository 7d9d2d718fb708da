"""Echo: repeat the tokens heard so far when the mark comes.

T positions, n sequences
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import recallmap as rm


@dataclass(frozen=True, kw_only=True)
class Echo(rm.Task):
    """Letters, a mark, and as many blanks: at each blank the answer is the letter at the same place before the mark.

    letters  different letters
    count    letters in a sequence
    """

    kind: Literal["echo"] = "echo"
    letters: int = 16
    count: int = 12

    def __post_init__(self) -> None:
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be repaired, got {self.protocol!r}")
        if self.letters < 2:
            raise ValueError(f"letters must be at least 2, got {self.letters}")
        if self.count < 1:
            raise ValueError(f"count must be at least 1, got {self.count}")

    @property
    def vocab(self) -> int:
        """Token ids."""
        return self.letters + 2

    @property
    def length(self) -> int:
        """Positions."""
        return 2 * self.count + 1

    @property
    def shape(self) -> tuple[int, int]:
        """The length of the inputs, and the number of token ids."""
        return self.length, self.vocab

    def roles(self) -> rm.Roles:
        """Token ids by what they stand for."""
        return rm.Roles({"blank": range(1), "mark": range(1, 2), "letter": range(2, self.vocab)})

    def sample(self, rng: np.random.Generator, count: int, split: Any) -> rm.Batch:
        """Draw sequences. All chance comes from `rng`."""
        letters = rng.integers(2, self.vocab, size=(count, self.count))
        inputs = np.zeros((count, self.length), dtype=np.int64)
        inputs[:, : self.count] = letters
        inputs[:, self.count] = 1
        targets = np.full_like(inputs, rm.IGNORE)
        targets[:, self.count + 1 :] = letters
        return rm.Batch(inputs=inputs, targets=targets)

    def sources(self, batch: rm.Batch) -> Any:
        """Where each answer could be read, -1 where nothing is asked."""
        found = np.full_like(batch.targets, -1)
        found[:, self.count + 1 :] = np.arange(self.count)
        return found

    def chance(self) -> float:
        """The accuracy of one who guesses a letter."""
        return 1 / self.letters

    def ceiling(self) -> float:
        """The accuracy of one who remembers all letters."""
        return 1.0
