"""A phone book (Jelassi et al. 2024): lines of names and numbers, two examples, and the name whose number is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import distinct
from recallmap.synth.task import LONGEST, MOST_IDS, Split, Task
from recallmap.synth.vocab import Roles

_EXAMPLES = 2  # lines that are shown again before the question


@dataclass(frozen=True, kw_only=True)
class Phonebook(Task):
    """`entries` lines "first name, last name, colon, digits, newline", a newline, two of these lines again, a newline, and a
    third line without its end. Its digits are due, each asked for by the token before it.

    entries  lines of the book
    names    first names, and as many last names, all equally likely. Pairs of names differ within a book, single names may
             recur: both must be bound
    digits   of a number; all uniform. Numbers may recur

    The published books have ten digits, of which the first is 6 to 9, and names as frequent as in a census, and are asked of
    pretrained models. All splits are alike.
    """

    kind: Literal["phonebook"] = "phonebook"
    protocol: Literal["repaired"] = "repaired"
    entries: int = 20
    names: int = 64
    digits: int = 10

    metric: ClassVar[str] = "exact_match"

    def __post_init__(self) -> None:
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        for name, least in (("entries", _EXAMPLES + 2), ("names", 2), ("digits", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.entries > self.names**2:
            raise ValueError(
                f"{self.names} first and last names make {self.names**2:,} pairs, got {self.entries:,} entries: raise names"
            )
        if self.vocab > MOST_IDS:
            raise ValueError(f"names must be at most {(MOST_IDS - 12) // 2:,}, got {self.names:,}")
        if self.shape[0] > LONGEST:
            raise ValueError(f"entries take {self.shape[0]:,} positions, at most {LONGEST:,}: lower entries or digits")

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return 12 + 2 * self.names

    @property
    def _line(self) -> int:
        return self.digits + 4

    @property
    def shape(self) -> tuple[int, int]:
        return self._line * (self.entries + _EXAMPLES) + self.digits + 4, self.vocab

    def roles(self) -> Roles:
        last = 10 + self.names
        return Roles(
            {
                "digit": range(10),
                "first": range(10, last),
                "last": range(last, last + self.names),
                "colon": range(self.vocab - 2, self.vocab - 1),
                "newline": range(self.vocab - 1, self.vocab),
            }
        )

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        roles = self.roles()
        pair = distinct(rng, count, self.entries, self.names**2)
        lines = np.empty((count, self.entries, self._line), dtype=np.int64)
        lines[:, :, 0] = roles.of("first").start + pair // self.names
        lines[:, :, 1] = roles.of("last").start + pair % self.names
        lines[:, :, 2], lines[:, :, -1] = roles.of("colon").start, roles.of("newline").start
        lines[:, :, 3:-1] = rng.integers(10, size=(count, self.entries, self.digits))
        shown = distinct(rng, count, _EXAMPLES + 1, self.entries)
        again = np.take_along_axis(lines, shown[:, :, None], axis=1)
        blank = np.full((count, 1), roles.of("newline").start)
        asked = again[:, -1, : self.digits + 2]
        inputs = np.concatenate(
            [lines.reshape(count, -1), blank, again[:, :-1].reshape(count, -1), blank, asked], axis=1
        )
        targets = np.full(inputs.shape, IGNORE)
        targets[:, -self.digits :] = again[:, -1, 3:-1]
        return Batch(inputs=inputs, targets=targets, aux={"entry": shown[:, -1]})

    def chance(self) -> float:
        """One in so many entries as the examples have not shown: a guess among their numbers."""
        return 1 / (self.entries - _EXAMPLES)

    def ceiling(self) -> float:
        return 1.0

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The digit in the book."""
        found = np.full(batch.inputs.shape, -1)
        found[:, -self.digits :] = self._line * batch.aux["entry"][:, None] + 3 + np.arange(self.digits)
        return found

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Which digit it is, counted from 1, besides how far back it stands: after two or three the number itself says the
        rest."""
        digit = np.full(batch.inputs.shape, -1)
        digit[:, -self.digits :] = 1 + np.arange(self.digits)
        return super().slices(batch) | {"digit": digit}
