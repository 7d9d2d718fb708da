"""What the six tasks of MAD (Poli, Thomas et al. 2024) share: two protocols, the published metric, chance and ceiling.

"mad-lab" behaves as the public code does, quirks included, so that published figures can be compared; "repaired" does
not have the quirks. Each task says which those are.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import Task

Protocol = Literal["repaired", "mad-lab"]

BATCH = 128  # sequences over which the published metric averages classes
TESTS = 1280  # sequences of a published test set


@dataclass(frozen=True, kw_only=True)
class MadTask(Task):
    """A task of MAD. Under "mad-lab" the score `accuracy` is the published macro accuracy by batch of 128 sequences,
    and `micro_accuracy` the share of right answers; under "repaired" `accuracy` is the share of right answers."""

    protocol: Protocol = "repaired"

    answer_role: ClassVar[str] = "value"  # tokens that a guesser chooses among
    exam: ClassVar[int] = TESTS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("repaired", "mad-lab"):
            raise ValueError(f"protocol must be 'repaired' or 'mad-lab', got '{self.protocol}'")

    @abstractmethod
    def choices(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: among how many answers one who knows the rules, but not the facts, has to guess."""

    @property
    def published(self) -> bool:
        return self.protocol == "mad-lab"

    def chance(self) -> float:
        """Of a uniform guess among admissible answers, on 1,280 test sequences: exact where all positions leave the
        same choice, to about 0.0003 where they do not."""
        return _expected(self, reads=False)

    def ceiling(self) -> float:
        """Of an oracle that reads every answer that is there to be read and guesses the others, on 1,280 test
        sequences."""
        return _expected(self, reads=True)

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        scores = super().score(batch, predictions, probabilities)
        if self.published:
            scores["micro_accuracy"] = scores["accuracy"]
            scores["accuracy"] = self.scoring(batch).batched_macro(predictions, BATCH)
        return scores

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        errors: dict[str, float | None] = dict(self.scoring(batch).standard_errors(predictions))
        if self.published:
            errors["micro_accuracy"] = errors.pop("accuracy", None)
            errors["accuracy"] = self.scoring(batch).batched_macro_error(predictions, BATCH)
        return score.known(errors)


@lru_cache(maxsize=1024)
def _expected(task: MadTask, reads: bool) -> float:
    rng = np.random.Generator(np.random.Philox(key=2024))
    batch = task.sample(rng, TESTS, "test")
    right = 1 / task.choices(batch)
    if reads:
        right[task.sources(batch) >= 0] = 1.0
    if not task.published:
        return float(right[batch.targets != IGNORE].mean())
    choice = len(task.roles().of(task.answer_role))
    parts = [slice(start, start + BATCH) for start in range(0, TESTS, BATCH)]
    return float(np.mean([_expected_macro(batch.targets[rows], right[rows], choice) for rows in parts]))


def _expected_macro(targets: NDArray[np.int64], right: NDArray[np.float64], choice: int) -> float:
    """Expected macro accuracy of a batch, given the probability of a right answer at every position. A class that is
    guessed but never a target lowers it: their expected number is divided by, rather than each number averaged over,
    which is exact where all classes occur as targets."""
    scored = targets != IGNORE
    _, which = np.unique(targets[scored], return_inverse=True)
    recalls = np.bincount(which, right[scored]) / np.bincount(which)
    guesses = np.count_nonzero(right[scored] < 1)
    absent = max(0, choice - recalls.size) * (1 - (1 - 1 / choice) ** guesses)
    return float(recalls.sum() / (recalls.size + absent))
