"""The interface of every task: sample sequences, name the roles of tokens, score answers, know chance and ceiling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import Batch
from recallmap.synth.score import Scoring
from recallmap.synth.vocab import Roles

Split = Literal["train", "validation", "test"]

LONGEST = 2**22  # positions of a sequence
MOST_IDS = 2**22  # token ids


def check_sizes(length: int, min_length: int | None) -> None:
    """Refuse sizes of which a string is shorter than two tokens, or the fewest more than the most. Raises ValueError.

    length, min_length  the dials of a task whose sizes lie between them; min_length None: all strings have `length`
    """
    if length < 2:
        raise ValueError(f"length must be at least 2, got {length}")
    if min_length is not None and not 2 <= min_length <= length:
        raise ValueError(f"min_length must lie in 2..{length} (length), or be left out; got {min_length}")


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A frozen spec that samples batches and scores answers. A sibling adds its dials as fields and its own `kind`.

    What every sibling has besides its dials: `kind` (its name in YAML), `protocol` ("repaired", or a published one by
    name), `vocab` (number of token ids; a dial of most, a property of the rest) and `length` (length of `inputs` as
    the protocol counts it).
    """

    kind: str
    protocol: str = "repaired"

    joinable: ClassVar[bool] = True  # others may define more of its family
    signal: ClassVar[Literal["tokens", "vectors"]] = "tokens"
    readout: ClassVar[Literal["each", "last"]] = "each"  # "last": all outputs are read from the last position's vector
    metric: ClassVar[str] = (
        "accuracy"  # the headline among the scores, higher is better; chance() and ceiling() bound it
    )
    wants_probabilities: ClassVar[bool] = False  # whether score() needs the model's distribution, not only its choice
    exam: ClassVar[int] = 0  # sequences that chance() and ceiling() are computed on

    def __post_init__(self) -> None:
        for name, most in (("length", LONGEST), ("vocab", MOST_IDS)):
            if name in self.__dataclass_fields__ and getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most:,}, got {getattr(self, name):,}")

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """(T, V): the exact length of the inputs that sample() gives, and the number of token ids (or channels)."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        """Draw `count` sequences. All chance comes from `rng`; `split` matters where a protocol trains and tests
        differently."""

    @abstractmethod
    def roles(self) -> Roles:
        """Token ids carved into named, disjoint roles."""

    @abstractmethod
    def chance(self) -> float:
        """The expected `metric` of one who knows the rules and guesses among admissible answers."""

    @abstractmethod
    def ceiling(self) -> float:
        """The expected `metric` of an oracle that uses all that a sequence shows (and all that training showed)."""

    def references(self) -> dict[str, float]:
        """Further reference lines by name (a baseline that is neither chance nor oracle), of `metric`."""
        return {}

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: where the answer of a scored position could be read in the inputs, -1 where nowhere."""
        return np.full(batch.targets.shape[:2], -1, dtype=np.int64)

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """Scores of `predictions` (int64 [n, T], read only at scored positions) by name.

        Always holds `metric`; a score of a part of the answers is named `accuracy/<slice>=<value>`.
        """
        return self.scoring(batch).of(predictions)

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """The standard errors of the scores of `score`, over sequences, by the score's name. A task with scores of its own
        says them itself; otherwise it has none."""
        return self.scoring(batch).standard_errors(predictions) if type(self).score is Task.score else {}

    def scoring(self, batch: Batch) -> Scoring:
        """The scoring of answers to a batch, by `slices`; made out once."""
        if self not in batch.scorings:
            batch.scorings[self] = Scoring(batch.targets, self.slices(batch))
        found: Scoring = batch.scorings[self]
        return found

    def drawn_bytes(self, count: int) -> float:
        """Roughly what `sample` takes of memory for so many sequences: inputs, targets, and what they are made of."""
        return 32.0 * count * self.shape[0]

    def score_names(self) -> list[str]:
        """Names of what `score` tells, but for scores of parts of the answers."""
        length, vocab = self.shape
        batch = self.sample(np.random.default_rng(0), max(1, min(8, 2**20 // (length + vocab))), "validation")
        shares = np.full((len(batch), length, vocab), 1 / vocab) if self.wants_probabilities else None
        return [name for name in self.score(batch, batch.targets, shares) if "/" not in name]

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Labels by which accuracy is broken down, [n] (a sequence) or [n, T] (a position) each.

        Unless a task knows better: how far back an answer's source lies, rounded up to a power of two.
        """
        sources = self.sources(batch)
        readers = np.arange(sources.shape[1]) if self.readout == "each" else sources.shape[1] - 1
        return {"distance_up_to": score.up_to(np.where(sources < 0, -1, readers - sources))}
