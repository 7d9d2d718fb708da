"""Rearrangement: a string, then the same symbols again, copied, turned round, doubled, odd places first, or sorted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import dealt, distinct
from recallmap.synth.task import LONGEST, Split, Task
from recallmap.synth.vocab import Roles

Rule = Literal["copy", "reverse", "duplicate", "odds_first", "sort"]

_ALLOWED = {
    "protocol": ("repaired", "kimi", "deletang"),
    "rule": get_args(Rule),
    "answers": ("shown", "blank"),
}
_SEPARATOR, _BLANK, _FIRST = 1, 2, 3  # token ids, 0 being the padding; _FIRST is the first symbol


@dataclass(frozen=True, kw_only=True)
class Rearrangement(Task):
    """A string of uniform symbols, a separator that asks for the first answer, then a position for each further answer.

    rule        copy, reverse; duplicate: the string twice; odds_first: places 1, 3, 5, ... then 2, 4, ...; sort
    alphabet    number of symbols
    length      symbols of the string
    min_length  fewest symbols; sizes from there to `length` are equally likely, shorter sequences are padded on the
                right. None: all have `length`
    repeats     whether a symbol may come twice
    answers     shown: a further answer is asked for by the one before. blank: by a blank

    Protocol "kimi" does not ask for the first answer, and shows the last: the palindrome of Kimi Linear. "deletang" puts
    even places first in odds_first, as the public code does against its text, and has blanks. All splits are alike.
    """

    kind: Literal["rearrangement"] = "rearrangement"
    protocol: Literal["repaired", "kimi", "deletang"] = "repaired"
    rule: Rule = "copy"
    alphabet: int = 26
    length: int = 32
    min_length: int | None = None
    repeats: bool = True
    answers: Literal["shown", "blank"] = "shown"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got '{getattr(self, name)}'")
        if self.length < 2:
            raise ValueError(f"length must be at least 2, got {self.length}")
        if self.alphabet < 2:
            raise ValueError(f"alphabet must be at least 2, got {self.alphabet}")
        if self.min_length is not None and not 1 <= self.min_length <= self.length:
            raise ValueError(
                f"min_length must lie in 1..{self.length} (the length), or be left out where all strings have one size; "
                f"got {self.min_length}"
            )
        if not self.repeats and self.alphabet < self.length:
            raise ValueError(
                f"{self.length} distinct symbols need an alphabet as large, got {self.alphabet}: raise alphabet, lower "
                "length, or let symbols repeat"
            )
        if self.rule == "sort" and self.answers == "shown":
            raise ValueError("rule sort needs answers 'blank', for a shown answer says what cannot follow; got 'shown'")
        if self.protocol == "kimi" and (self.rule != "reverse" or self.answers != "shown" or self.min_length == 1):
            raise ValueError(
                "protocol 'kimi' is of rule reverse with answers shown and strings of two symbols or more, got "
                f"{self.rule}, {self.answers}: use protocol 'repaired'"
            )
        if self.protocol == "deletang" and (self.rule == "copy" or self.answers != "blank"):
            raise ValueError(
                "protocol 'deletang' is of rules reverse, duplicate, odds_first and sort with answers blank, got "
                f"{self.rule}, {self.answers}: use protocol 'repaired'"
            )
        if self.shape[0] > LONGEST:
            raise ValueError(f"length {self.length:,} takes {self.shape[0]:,} positions, at most {LONGEST:,}: lower it")

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return _FIRST + self.alphabet

    @property
    def shape(self) -> tuple[int, int]:
        return self.length + self._times * self.length + (self.protocol == "kimi"), self.vocab

    @property
    def _times(self) -> int:
        """Answers for each symbol."""
        return 2 if self.rule == "duplicate" else 1

    def roles(self) -> Roles:
        return Roles(
            {
                "pad": range(1),
                "separator": range(_SEPARATOR, _BLANK),
                "blank": range(_BLANK, _FIRST),
                "symbol": range(_FIRST, self.vocab),
            }
        )

    @property
    def _sizes(self) -> range:
        """The numbers of symbols that a string may have."""
        return range(self.length if self.min_length is None else self.min_length, self.length + 1)

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        size = rng.integers(self._sizes.start, self._sizes.stop, count)[:, None]
        symbols = _FIRST + self._draw(rng, count)
        place = self._places(symbols, size)
        answers = np.take_along_axis(symbols, place, axis=1)
        number = np.arange(place.shape[1])
        due = number < self._times * size
        row, at = np.nonzero(due)
        at += size[row, 0]

        inputs, targets = np.zeros((count, self.shape[0] + 1), dtype=np.int64), np.full((count, self.shape[0]), IGNORE)
        inputs[row, at + 1] = answers[due] if self.answers == "shown" else _BLANK
        targets[row, at] = answers[due]
        inputs[:, : self.length] = np.where(np.arange(self.length) < size, symbols, inputs[:, : self.length])
        np.put_along_axis(inputs, size, _SEPARATOR, axis=1)
        if self.protocol == "kimi":
            np.put_along_axis(targets, size, IGNORE, axis=1)
        else:  # the last answer asks for nothing
            np.put_along_axis(inputs, (1 + self._times) * size, 0, axis=1)
        return Batch(inputs=np.ascontiguousarray(inputs[:, : self.shape[0]]), targets=targets)

    def drawn_bytes(self, count: int) -> float:
        return 2 * super().drawn_bytes(count)

    def _draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        if self.repeats:
            return rng.integers(self.alphabet, size=(count, self.length))
        few = 8 * self.length > self.alphabet
        return (dealt if few else distinct)(rng, count, self.length, self.alphabet)

    def _places(self, symbols: NDArray[np.int64], size: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n, answers]: the place in the string [n, length] of every answer; beyond those of its `size` [n, 1], any."""
        number = np.arange(self._times * self.length)
        if self.rule == "sort":
            beyond = np.arange(self.length) >= size
            return np.argsort(np.where(beyond, self.vocab, symbols), axis=1, kind="stable")
        if self.rule == "reverse":
            place = size - 1 - number
        elif self.rule == "duplicate":
            place = number % size
        elif self.rule == "odds_first":
            late = self.protocol == "deletang"  # whether even places, counted from 1, come first
            first = size // 2 if late else -(-size // 2)
            place = np.where(number < first, 2 * number + late, 2 * (number - first) + (not late))
        else:
            place = number + 0 * size
        return np.clip(place, 0, self.length - 1)

    def chance(self) -> float:
        """A guess among all symbols; where they do not repeat, among those of the string that no answer has shown yet.

        Sorted symbols are guessed better without reading: the likeliest symbol of each place.
        """
        asked = sum(self._times * size for size in self._sizes)
        if self.rule == "sort":
            return sum(_likeliest(size, self.alphabet, self.repeats) for size in self._sizes) / asked
        if self.repeats:
            return 1 / self.alphabet
        if self.answers == "blank":
            return self._times * len(self._sizes) / asked
        harmonic = np.cumsum(1 / np.arange(1, self.length + 1))
        if self.protocol == "kimi":  # the first, for which most symbols are left, is not asked
            return sum(harmonic[size - 1] - 1 / size for size in self._sizes) / (asked - len(self._sizes))
        return float(self._times * harmonic[self._sizes.start - 1 :].sum() / asked)

    def ceiling(self) -> float:
        return 1.0

    def references(self) -> dict[str, float]:
        """`one_token_match`, where answers are shown and symbols repeat: find the last answer at a random one of its places
        in the string and say its neighbour, as one layer can that matches single symbols. It counts all answers but the
        first, which no answer precedes."""
        if self.rule not in ("copy", "reverse") or self.answers == "blank" or not self.repeats:
            return {}
        others = np.array([size - 1 for size in self._sizes if size > 1], dtype=np.float64)
        found = self.alphabet / others * (1 - (1 - 1 / self.alphabet) ** others)
        return {"one_token_match": float((others * (found + (1 - found) / self.alphabet)).sum() / others.sum())}

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The symbol's place in the string."""
        size = (batch.inputs == _SEPARATOR).argmax(axis=1)[:, None]
        number = np.arange(batch.inputs.shape[1]) - size
        place = self._places(batch.inputs[:, : self.length], size)
        found = np.take_along_axis(place, np.clip(number, 0, place.shape[1] - 1), axis=1)
        return np.where(batch.targets != IGNORE, found, -1)

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How far back the symbol stood, and which answer it is, counted from 1, each rounded up to a power of two."""
        number = np.arange(batch.inputs.shape[1]) - (batch.inputs == _SEPARATOR).argmax(axis=1)[:, None]
        return super().slices(batch) | {"place_up_to": score.up_to(number + 1)}


@lru_cache(maxsize=4096)
def _likeliest(size: int, alphabet: int, repeats: bool) -> float:
    """The expected number of right places of one who says the likeliest symbol at every place of a sorted string."""
    logarithms = np.log(np.arange(1, max(size, alphabet) + 1)).cumsum()
    factorial = np.concatenate([[0.0], logarithms])
    symbol = np.arange(alphabet)[:, None]
    if not repeats:
        place = np.arange(size)
        below, above = symbol - place, alphabet - 1 - symbol - (size - 1 - place)  # symbols that are not drawn
        chosen = factorial[symbol] - factorial[place] - factorial[np.maximum(below, 0)]
        chosen = (
            chosen + factorial[alphabet - 1 - symbol] - factorial[size - 1 - place] - factorial[np.maximum(above, 0)]
        )
        total = factorial[alphabet] - factorial[size] - factorial[alphabet - size]
        share = np.where((below >= 0) & (above >= 0), np.exp(chosen - total), 0.0)
        return float(share.max(axis=0).sum())
    number = np.arange(size + 1)
    up_to_it = (symbol[:-1] + 1) / alphabet
    binomial = factorial[size] - factorial[number] - factorial[size - number]
    chance = np.exp(binomial + number * np.log(up_to_it) + (size - number) * np.log1p(-up_to_it))
    beyond = 1 - chance.cumsum(axis=1)[:, :-1]  # that more than `number` symbols are at most this one
    beyond = np.concatenate([np.zeros((1, size)), beyond, np.ones((1, size))])
    return float(np.diff(beyond, axis=0).max(axis=0).sum())
