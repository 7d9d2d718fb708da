"""Lookup in a string (Jelassi et al. 2024): what followed a few given letters, which are told before the string or after it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import LONGEST, Split, Task
from recallmap.synth.vocab import Roles

_STRINGS = 2**14  # that chance is computed on where the rest is due


@dataclass(frozen=True, kw_only=True)
class Lookup(Task):
    """A string of uniform letters, `given` of its letters in a row, and then the `answer` letters that follow these there.

    alphabet  number of letters
    letters   of the string
    given     letters to look up
    answer    letters that are due; 0: the rest of the string, one letter at least, and the row is padded on the right
    order     prefix: begin, what is given, separator, the string, separator. suffix: begin, the string, separator, what is
              given. With prefix a memory knows what to keep before it reads

    Each further letter of the answer is asked for by the one before. All splits are alike. Under protocol "repaired" what is
    given occurs once in the string. "jelassi" is the public code: it may occur again, its first occurrence counts, the last
    three places are never drawn, and some other piece of the string occurs once.
    """

    kind: Literal["lookup"] = "lookup"
    protocol: Literal["repaired", "jelassi"] = "repaired"
    alphabet: int = 26
    letters: int = 50
    given: int = 3
    answer: int = 3
    order: Literal["prefix", "suffix"] = "prefix"

    metric: ClassVar[str] = "exact_match"

    def __post_init__(self) -> None:
        if self.protocol not in ("repaired", "jelassi"):
            raise ValueError(f"protocol must be 'repaired' or 'jelassi', got '{self.protocol}'")
        if self.order not in ("prefix", "suffix"):
            raise ValueError(f"order must be 'prefix' or 'suffix', got '{self.order}'")
        for name, least in (("alphabet", 2), ("given", 1), ("answer", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self._places < 1:
            least = self.letters + 1 - self._places
            due = self.answer or "the rest"
            raise ValueError(
                f"letters must be at least {least} for {self.given} given and {due} due, got {self.letters}"
            )
        pieces = float(self.alphabet) ** min(self.given, 64)
        if pieces > 2**62:
            raise ValueError(f"{self.alphabet} letters make more than 2^62 pieces of {self.given}: lower given")
        if self.letters > 4 * pieces:
            raise ValueError(
                f"in {self.letters:,} letters hardly any of {pieces:,.0f} pieces occurs once: raise given or alphabet, or "
                "lower letters"
            )
        if self.shape[0] > LONGEST:
            raise ValueError(f"letters take {self.shape[0]:,} positions, at most {LONGEST:,}: lower letters")

    @property
    def _places(self) -> int:
        """Where what is given may begin."""
        if self.protocol == "jelassi":
            return self.letters - self.given - self.answer - 2
        return self.letters - self.given - max(self.answer, 1) + 1

    @property
    def _due(self) -> int:
        """Most letters that are due."""
        return self.answer or self.letters - self.given

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return self.roles().vocab

    @property
    def shape(self) -> tuple[int, int]:
        return self.letters + self.given + self._due + (2 if self.order == "prefix" else 1), self.vocab

    def roles(self) -> Roles:
        begin, separator = self.alphabet, self.alphabet + 1
        return Roles(
            {
                "letter": range(begin),
                "begin": range(begin, separator),
                "separator": range(separator, separator + 1),
            }
            | ({} if self.answer else {"pad": range(separator + 1, separator + 2)})
        )

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        string = rng.integers(self.alphabet, size=(count, self.letters))
        place = rng.integers(self._places, size=count)
        wrong = np.arange(count)
        while wrong.size:
            wrong = wrong[self._ambiguous(string[wrong], place[wrong])]
            string[wrong] = rng.integers(self.alphabet, size=(wrong.size, self.letters))
            place[wrong] = rng.integers(self._places, size=wrong.size)
        if self.protocol == "jelassi":
            pieces = self._pieces(string)
            place = (pieces == pieces[np.arange(count), place][:, None]).argmax(axis=1)
        due = np.arange(self._due) < self.letters - self.given - place[:, None]
        at = np.minimum(place[:, None] + np.arange(self.given + self._due), self.letters - 1)
        piece = np.take_along_axis(string, at, axis=1)
        given, answer = piece[:, : self.given], piece[:, self.given :]
        begin, separator = (np.full((count, 1), self.alphabet + mark) for mark in (0, 1))
        order = (
            [begin, given, separator, string, separator]
            if self.order == "prefix"
            else [begin, string, separator, given]
        )
        shown = np.where(due[:, 1:], answer[:, :-1], self.alphabet + 2)  # the letters that ask for others
        inputs = np.concatenate([*order, shown], axis=1)
        targets = np.full(inputs.shape, IGNORE)
        targets[:, -self._due :] = np.where(due, answer, IGNORE)
        return Batch(inputs=inputs, targets=targets, aux={"place": place})

    def _pieces(self, string: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n, places]: every piece as one number."""
        pieces = np.zeros((len(string), self.letters - self.given + 1), dtype=np.int64)
        for at in range(self.given):
            pieces = pieces * self.alphabet + string[:, at : at + pieces.shape[1]]
        return pieces

    def _ambiguous(self, string: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool [n]: whether a row must be drawn anew."""
        pieces = self._pieces(string)
        if self.protocol == "repaired":
            own = np.take_along_axis(pieces, place[:, None], axis=1)
            return np.asarray((pieces == own).sum(axis=1) > 1)
        return np.logical_not(_once(pieces)[0].any(axis=1))

    def chance(self) -> float:
        """A guess of all letters; where the rest is due, over strings that were drawn and all places in them."""
        return float(self.alphabet) ** -self.answer if self.answer else _chance_of_the_rest(self)

    def ceiling(self) -> float:
        return 1.0

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The letter in the string."""
        found = np.full(batch.inputs.shape, -1)
        first = 2 + self.given if self.order == "prefix" else 1
        found[:, -self._due :] = first + batch.aux["place"][:, None] + self.given + np.arange(self._due)
        return np.where(batch.targets != IGNORE, found, -1)


def _once(pieces: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Of the piece at each place whether it occurs once in its row, and where it occurs first, both [n, places]."""
    order = np.argsort(pieces, axis=1, kind="stable")
    ranked = np.take_along_axis(pieces, order, axis=1)
    other = np.ones((len(ranked), ranked.shape[1] + 1), dtype=bool)  # whether a piece differs from the one before
    other[:, 1:-1] = ranked[:, 1:] != ranked[:, :-1]
    start = np.maximum.accumulate(np.where(other[:, :-1], np.arange(ranked.shape[1]), 0), axis=1)
    once, first = np.empty(pieces.shape, dtype=bool), np.empty(pieces.shape, dtype=np.int64)
    np.put_along_axis(once, order, other[:, 1:] & other[:, :-1], axis=1)
    np.put_along_axis(first, order, np.take_along_axis(order, start, axis=1), axis=1)
    return once, first


@lru_cache(maxsize=64)
def _chance_of_the_rest(task: Lookup) -> float:
    strings = max(1, min(_STRINGS, 2**22 // task.letters))
    string = np.random.default_rng(0).integers(task.alphabet, size=(strings, task.letters))
    once, first = _once(task._pieces(string))
    drawn, place = once, np.broadcast_to(np.arange(once.shape[1]), once.shape)  # what a row may be
    if task.protocol == "jelassi":
        drawn, place = np.broadcast_to(once.any(axis=1, keepdims=True), once.shape), first
    drawn, rest = drawn[:, : task._places], (task.letters - task.given - place)[:, : task._places]
    return float((drawn * float(task.alphabet) ** -rest).sum() / drawn.sum())
