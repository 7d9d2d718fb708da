"""What the state-tracking tasks share: sequences of varying size, an answer at the end or after every symbol, and
accuracy by length.

Their two published forms: one answer at the end of sequences of many sizes (xLSTM's generators, as Grazzi et al. 2025
use them), and an answer after every symbol of sequences of one size (Merrill et al. 2024; MesaNet, appendix I).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import Split, Task

WINDOW = 255  # width of all inputs under "unlocking": 256 tokens less the last, which is only a target

_POWERS = 2 ** np.arange(6, 25)
_EDGES = np.append([16, 40], np.stack([_POWERS, _POWERS + _POWERS // 2], axis=1))  # 16 40 64 96 128 192 256 384 ...


@dataclass(frozen=True, kw_only=True)
class StateTracking(Task):
    """Sequences of symbols that move a state, whose answer is the state.

    length      most symbols a sequence has, and the width of the inputs
    min_length  fewest symbols; sizes between are equally likely, shorter sequences are padded. None: all have `length`
    labels      `final`: the state after the last symbol is due there. `all`: after every symbol

    Of very short sequences there are few, so that with a small `min_length` test and training share some.
    """

    length: int = 40
    min_length: int | None = None
    labels: Literal["all", "final"] = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        unit = self._unit
        if self.labels not in ("all", "final"):
            raise ValueError(f"labels must be 'all' or 'final', got '{self.labels}'")
        if self.length < unit or self.length % unit:
            raise ValueError(f"length must be a positive multiple of {unit}, got {self.length}")
        if self.min_length is not None and (not unit <= self.min_length <= self.length or self.min_length % unit):
            raise ValueError(
                f"min_length must be a multiple of {unit} from {unit} to length {self.length}, or left out where all "
                f"sequences have one size; got {self.min_length}"
            )

    @property
    def _unit(self) -> int:
        """Sizes of sequences are multiples of this."""
        return 1

    @property
    def _first(self) -> int:
        """The position of the first symbol."""
        return 0

    @property
    @abstractmethod
    def answers(self) -> range:
        """The tokens that are answers."""

    @abstractmethod
    def trace(self, rng: np.random.Generator, sizes: NDArray[np.int64], width: int) -> tuple[Any, Any]:
        """Tokens [n, width], of which row i means `sizes[i]`, and the answers [n, width] due after each, where there is
        one, else IGNORE."""

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return self.roles().vocab

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def sizes(self, rng: np.random.Generator, count: int, split: Split) -> NDArray[np.int64]:
        """int64 [n]: how many symbols each sequence has."""
        fewest = self.length if self.min_length is None else self.min_length
        return self._between(rng, count, fewest, self.length)

    def _between(self, rng: np.random.Generator, count: int, fewest: int, most: int) -> NDArray[np.int64]:
        return self._unit * rng.integers(fewest // self._unit, most // self._unit + 1, count)

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        width = self.shape[0]
        sizes = self.sizes(rng, count, split)[:, None]
        tokens, answers = self.trace(rng, sizes[:, 0], width)
        time = np.arange(width)
        asked = time < sizes if self.labels == "all" else time == sizes - 1
        return Batch(
            inputs=np.where(time < sizes, tokens, self.roles().of("pad").start),
            targets=np.where(asked, answers, IGNORE),
        )

    def chance(self) -> float:
        """A guess among all states, which is the c of the published scaled accuracy."""
        return 1 / len(self.answers)

    def ceiling(self) -> float:
        """Every answer follows from the symbols read."""
        return 1.0

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """Besides the scores of tokens:

        scaled_accuracy      (accuracy - chance) / (1 - chance), of the whole and of every part; parts have no answer that
                             is known beforehand
        accuracy/length=L    of answers due after so many symbols: more than the next smaller L there is, at most L
        exact_match/length=L share of sequences of L symbols or more that are right throughout the first L (labels `all`)
        """
        scores = self.scoring(batch).of(predictions)
        for name, accuracy in list(scores.items()):
            if name.startswith("accuracy"):
                chance = 1 / len(self.answers) if "/" in name else self.chance()
                scores[f"scaled_{name}"] = (accuracy - chance) / (1 - chance)
        for edge, right in self._right_up_to(batch, predictions):
            scores[f"exact_match/length={edge}"] = float(right.mean())
        return scores

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        errors: dict[str, float | None] = dict(self.scoring(batch).standard_errors(predictions))
        for name, error in list(errors.items()):
            if name.startswith("accuracy") and error is not None:
                chance = 1 / len(self.answers) if "/" in name else self.chance()
                errors[f"scaled_{name}"] = error / (1 - chance)
        for edge, right in self._right_up_to(batch, predictions):
            errors[f"exact_match/length={edge}"] = score.standard_error(right)
        return score.known(errors)

    def _right_up_to(self, batch: Batch, predictions: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
        """Lengths, and of the sequences of at least that which are right throughout (labels `all`)."""
        if self.labels == "all":
            asked = batch.targets != IGNORE
            right = (~asked | (predictions == batch.targets)).cumprod(axis=1)
            for edge in _EDGES[right.shape[1] - self._first >= _EDGES].tolist():
                last = self._first + edge - 1
                if asked[:, last].any():
                    yield edge, right[asked[:, last], last]

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        read = np.arange(1, batch.targets.shape[1] + 1) - self._first
        edges = np.where(read > 0, _EDGES[np.searchsorted(_EDGES, read)], -1)
        return {"length": np.broadcast_to(edges, batch.targets.shape)}


@dataclass(frozen=True, kw_only=True)
class UnlockingTask(StateTracking):
    """A task of Grazzi et al. 2025 ("Unlocking state-tracking in linear RNNs through negative eigenvalues").

    Protocol `unlocking` is the public generator: inputs are 255 wide whatever the sizes; training has sizes from
    min_length to length, validation and test from `length` to the width. `repaired` is as wide as its longest sequence
    and treats all splits alike; put other lengths among a trial's `tests`.
    """

    protocol: Literal["repaired", "unlocking"] = "repaired"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("repaired", "unlocking"):
            raise ValueError(f"protocol must be 'repaired' or 'unlocking', got '{self.protocol}'")
        if self.protocol == "unlocking" and self.length > self._widest:
            raise ValueError(f"length must be at most {self._widest} under protocol 'unlocking', got {self.length}")

    @property
    def _widest(self) -> int:
        """Most symbols of a sequence under "unlocking"."""
        return WINDOW - WINDOW % self._unit

    @property
    def shape(self) -> tuple[int, int]:
        return WINDOW if self.protocol == "unlocking" else self.length, self.vocab

    def sizes(self, rng: np.random.Generator, count: int, split: Split) -> NDArray[np.int64]:
        if self.protocol == "unlocking" and split != "train":
            return self._between(rng, count, self.length, self._widest)
        return super().sizes(rng, count, split)
