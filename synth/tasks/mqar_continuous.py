"""Recall of vectors, a continuous form of MQAR (Arora et al. 2023, arXiv:2312.04927): pairs first, then every key once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import Batch
from recallmap.synth.task import LONGEST, MOST_IDS, Split, Task
from recallmap.synth.vocab import Roles


@dataclass(frozen=True, kw_only=True)
class MqarContinuous(Task):
    """K pairs of vectors, each pair one position, then each key again in random order, where its value is due. Keys and values
    are uniform on the unit sphere. All splits are alike.

    inputs   [n, 2K, 2d]  key and value; of a query the key, then zeros
    targets  [n, 2K, 2d]  of a query zeros, which are not scored, and the value; elsewhere the input, which is not trained
    `weight` [n, 2K] among aux is 1 at queries, `pair` [n, 2K] the position of the pair there, elsewhere -1.

    width  d, of keys and of values
    pairs  K

    The headline `explained` is 1 - |output - value|^2, averaged. Its references are what a memory of d x d numbers can hold.
    """

    kind: Literal["mqar_continuous"] = "mqar_continuous"
    protocol: Literal["repaired"] = "repaired"
    width: int = 16
    pairs: int = 16

    signal: ClassVar[Literal["tokens", "vectors"]] = "vectors"
    metric: ClassVar[str] = "explained"

    def __post_init__(self) -> None:
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        for name, most in (("width", MOST_IDS // 2), ("pairs", LONGEST // 2)):
            if not 2 <= getattr(self, name) <= most:
                raise ValueError(f"{name} must be at least 2 and at most {most:,}, got {getattr(self, name):,}")

    @property
    def vocab(self) -> int:
        """Channels of inputs and targets."""
        return 2 * self.width

    @property
    def length(self) -> int:
        """Positions of a sequence."""
        return 2 * self.pairs

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        return Roles({"key": range(self.width), "value": range(self.width, self.vocab)})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        d, pairs = self.width, self.pairs
        told = rng.standard_normal((count, pairs, 2, d), dtype=np.float32)
        told /= np.linalg.norm(told, axis=3, keepdims=True)
        told = told.reshape(count, pairs, 2 * d)
        asked = rng.permuted(np.tile(np.arange(pairs), (count, 1)), axis=1)
        query, answer = (np.take_along_axis(told, asked[:, :, None], axis=1) for _ in range(2))
        query[:, :, d:] = answer[:, :, :d] = 0
        pair, weight = np.full((count, self.length), -1), np.zeros((count, self.length), dtype=np.float32)
        pair[:, pairs:], weight[:, pairs:] = asked, 1
        return Batch(
            inputs=np.concatenate([told, query], axis=1),
            targets=np.concatenate([told, answer], axis=1),
            aux={"weight": weight, "pair": pair},
        )

    def drawn_bytes(self, count: int) -> float:
        return 16.0 * count * self.length * self.vocab

    def chance(self) -> float:
        """The mean of all values, the least error of one who does not know which is asked for."""
        return 1 / self.pairs

    def ceiling(self) -> float:
        return 1.0

    def references(self) -> dict[str, float]:
        """Two memories that answer with a matrix of d x d numbers times the key:

        sum_of_products  the sum of all values times their keys, scaled as is best: one layer of linear attention
        least_squares    the matrix that errs least on the pairs, as a layer can that solves for it: d of K pairs' worth
        """
        d, pairs = self.width, self.pairs
        return {"sum_of_products": d / (d + pairs - 1), "least_squares": min(1.0, d / pairs)}

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The pair."""
        found: NDArray[np.int64] = batch.aux["pair"]
        return found

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """explained                   1 - |output - value|^2, averaged over queries
        retrieved                   share of queries whose output lies nearest to the right one of the sequence's values
        explained/distance_up_to=D  of values told D/2 + 1 to D positions before
        """
        explained, retrieved, labels = self._answered(batch, predictions)
        scores = {"explained": float(explained.mean()), "retrieved": float(retrieved.mean())}
        for label in np.unique(labels).tolist():
            scores[f"explained/distance_up_to={label}"] = float(explained[labels == label].mean())
        return scores

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        explained, retrieved, labels = self._answered(batch, predictions)
        errors = {
            name: score.standard_error(values.mean(axis=1))
            for name, values in (("explained", explained), ("retrieved", retrieved))
        }
        for label in np.unique(labels).tolist():
            own = labels == label
            errors[f"explained/distance_up_to={label}"] = score.standard_error(
                (explained * own).sum(axis=1), own.sum(axis=1)
            )
        return score.known(errors)

    def _answered(
        self, batch: Batch, predictions: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
        """[n, K]: of every query what is explained, whether its value is the nearest, and its distance's label."""
        said = predictions[:, self.pairs :, self.width :].astype(np.float64)
        due = batch.targets[:, self.pairs :, self.width :]
        pair = batch.aux["pair"][:, self.pairs :]
        nearest = (said @ batch.inputs[:, : self.pairs, self.width :].swapaxes(1, 2)).argmax(axis=2)
        return (
            1 - np.square(said - due).sum(axis=2),
            nearest == pair,
            self.slices(batch)["distance_up_to"][:, self.pairs :],
        )
