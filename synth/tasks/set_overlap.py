"""Set overlap (Just Read Twice): two sets one after the other, and the one token that stands in both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import distinct
from recallmap.synth.task import LONGEST, MOST_IDS, Split, Task
from recallmap.synth.vocab import Roles

_FIRST_MARK, _SECOND_MARK, _QUESTION, _TOKENS = 1, 2, 3, 4  # token ids, 0 being the padding; _TOKENS is the first token


@dataclass(frozen=True, kw_only=True)
class SetOverlap(Task):
    """A mark, `first` distinct tokens, a mark, `second` distinct tokens, and a mark at which the one token is due that both
    sets hold. All splits are alike.

    passes  how often the sets are shown before the question, each time alike

    A state of fixed size has to keep the first set until the second tells which token counts: small sets first are easier,
    and with two passes the order should not matter.
    """

    kind: Literal["set_overlap"] = "set_overlap"
    protocol: Literal["repaired"] = "repaired"
    vocab: int = 2048
    first: int = 4
    second: int = 16
    passes: int = 1

    def __post_init__(self) -> None:
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        for name, least in (
            ("first", 2),
            ("second", 2),
            ("passes", 1),
        ):  # of a set of one token nothing is to be chosen
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not _TOKENS <= self.vocab <= MOST_IDS or 2 * max(self.first, self.second) > self.vocab - _TOKENS:
            least = 2 * max(self.first, self.second) + _TOKENS
            raise ValueError(
                f"vocab must be at least {least:,} for sets of {self.first:,} and {self.second:,} tokens, and at most "
                f"{MOST_IDS:,}, got {self.vocab:,}"
            )
        if self.shape[0] > LONGEST:
            raise ValueError(f"sets and passes take {self.shape[0]:,} positions, at most {LONGEST:,}: lower passes")

    @property
    def shape(self) -> tuple[int, int]:
        return self.passes * (2 + self.first + self.second) + 1, self.vocab

    def roles(self) -> Roles:
        names = {"pad": 0, "first_mark": _FIRST_MARK, "second_mark": _SECOND_MARK, "question": _QUESTION}
        marks = {name: range(token, token + 1) for name, token in names.items()}
        return Roles({**marks, "token": range(_TOKENS, self.vocab)})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        # The published draw, each set from a random half of the tokens, makes all choices of so many as likely.
        tokens = _TOKENS + distinct(rng, count, self.first + self.second, self.vocab - _TOKENS)
        one, two = tokens[:, : self.first], tokens[:, self.first :]
        each = np.arange(count)
        common = one[each, rng.integers(self.first, size=count)]
        two[each, rng.integers(self.second, size=count)] = common
        marks = [np.full((count, 1), mark) for mark in (_FIRST_MARK, _SECOND_MARK, _QUESTION)]
        inputs = np.concatenate([*[marks[0], one, marks[1], two] * self.passes, marks[2]], axis=1)
        targets = np.full(inputs.shape, IGNORE)
        targets[:, -1] = common
        return Batch(inputs=inputs, targets=targets)

    def chance(self) -> float:
        """A guess among the tokens of the smaller set."""
        return 1 / min(self.first, self.second)

    def ceiling(self) -> float:
        return 1.0

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The token where it was shown last."""
        found = np.full(batch.targets.shape, -1)
        found[:, -1] = batch.inputs.shape[1] - 1 - (batch.inputs == batch.targets[:, -1:])[:, ::-1].argmax(axis=1)
        return found
