"""Scores of token answers: micro and macro accuracy, exact match, and the accuracy of named parts, with their standard errors;
bins of positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE

_EDGES = (0, 16, 64, 128, 256, 512, 1024)  # of the bins of positions; beyond, one bin per 1024 positions

STANDARD_ERROR = "_stderr"  # ends the name of a score's standard error, as in lm-evaluation-harness

_WHOLE: Mapping[str, NDArray[Any]] = MappingProxyType({})


class Scoring:
    """The scores of answers to one batch: of predictions [n, T], read only where targets [n, T] are not IGNORE. What does not
    depend on the answers is made out once.

    slices  [n], a label a sequence, or [n, T], a label a position, by name; a negative number labels what belongs to no part

    Raises ValueError where nothing is scored.
    """

    def __init__(self, targets: NDArray[Any], slices: Mapping[str, NDArray[Any]] = _WHOLE) -> None:
        self.shape = targets.shape
        self.at = np.flatnonzero(targets != IGNORE)
        if not self.at.size:
            raise ValueError(f"none of the {targets.size} positions is scored: give more sequences, or another split")
        self.answers = targets.ravel()[self.at]
        self.rows = self.at // targets.shape[1]
        self.asked = np.bincount(self.rows, minlength=len(targets)) > 0
        self.classes = _Parts(self.answers)
        self.slices = {name: _Parts(self._by_position(labels)) for name, labels in slices.items()}
        self.batches: dict[int, list[tuple[slice, int, _Parts]]] = {}

    def of(self, predictions: NDArray[Any]) -> dict[str, float]:
        """Scores by name.

        accuracy                  share of scored positions that are right
        macro_accuracy            mean over the classes that occur as targets of the share of each that is right
        exact_match               share of sequences, of those with a scored position, that are right throughout
        accuracy/<slice>=<value>  accuracy of the positions that the slice labels `value`
        """
        hits = self._guesses(predictions) == self.answers
        wrong = np.bincount(self.rows, ~hits, minlength=self.shape[0])
        scores = {
            "accuracy": float(hits.mean()),
            "macro_accuracy": float(self.classes.shares(hits).mean()),
            "exact_match": float((wrong == 0)[self.asked].mean()),
        }
        for name, parts in self.slices.items():
            for value, share in zip(parts.values.tolist(), parts.shares(hits).tolist(), strict=True):
                if isinstance(value, str) or value >= 0:
                    scores[f"accuracy/{name}={value}"] = share
        return scores

    def standard_errors(self, predictions: NDArray[Any]) -> dict[str, float]:
        """The standard error of every score of `of`, by its name: over sequences, which are independent, while the answers of
        one are not. A score that rests on fewer than two sequences has none."""
        hits = self._guesses(predictions) == self.answers
        count = self.shape[0]
        asked = np.bincount(self.rows, minlength=count)
        right = np.bincount(self.rows, hits, minlength=count)
        of_class = self.classes.shares(hits)[self.classes.which]
        parts = self.classes.counts[self.classes.which] * self.classes.counts.size
        errors = {
            "accuracy": standard_error(right, asked),
            "macro_accuracy": _of_sums(np.bincount(self.rows, (hits - of_class) / parts, minlength=count)[self.asked]),
            "exact_match": standard_error((right == asked)[self.asked]),
        }
        for name, labelled in self.slices.items():
            places, size = labelled.which * count + self.rows, labelled.values.size * count
            counts = np.bincount(places, minlength=size).reshape(-1, count)
            sums = np.bincount(places, hits, minlength=size).reshape(-1, count)
            for value, of_part, among in zip(labelled.values.tolist(), sums, counts, strict=True):
                if isinstance(value, str) or value >= 0:
                    errors[f"accuracy/{name}={value}"] = standard_error(of_part, among)
        return known(errors)

    def batched_macro(self, predictions: NDArray[Any], batch: int = 128) -> float:
        """The published MAD metric: macro accuracy of every `batch` sequences, averaged by number of sequences.

        Within a batch a class that is predicted at a scored position but never a target counts with accuracy 0, and a class
        that is neither is left out. So the figure depends on `batch`, and on the order of the sequences. Raises ValueError
        where a batch has no scored position.
        """
        total = 0.0
        for value, sequences in self._macros(predictions, batch):
            total += value * sequences
        return total / self.shape[0]

    def batched_macro_error(self, predictions: NDArray[Any], batch: int = 128) -> float | None:
        """The standard error of `batched_macro` over its batches; None for fewer than two."""
        values, sequences = np.array(list(self._macros(predictions, batch))).T
        return standard_error(values * sequences, sequences)

    def _macros(self, predictions: NDArray[Any], batch: int) -> Iterator[tuple[float, int]]:
        """The figure of every batch, and its number of sequences."""
        guesses = self._guesses(predictions)
        hits = guesses == self.answers
        for own, sequences, parts in self._batched(batch):
            absent = np.setdiff1d(_distinct(guesses[own])[0], parts.values).size
            present = parts.values.size
            yield float(parts.shares(hits[own]).mean()) * present / (present + absent), sequences

    def _batched(self, batch: int) -> list[tuple[slice, int, _Parts]]:
        """Of every so many sequences: their scored positions, their number, and the classes among their targets."""
        if batch not in self.batches:
            starts = list(range(0, self.shape[0], batch))
            bounds = np.searchsorted(self.rows, [*starts, self.shape[0]]).tolist()
            if any(low == high for low, high in pairwise(bounds)):
                raise ValueError(f"none of the positions of {batch} sequences is scored: give them, or another split")
            sizes = [min(batch, self.shape[0] - start) for start in starts]
            self.batches[batch] = [
                (slice(low, high), size, _Parts(self.answers[low:high]))
                for (low, high), size in zip(pairwise(bounds), sizes, strict=True)
            ]
        return self.batches[batch]

    def _by_position(self, labels: NDArray[Any]) -> NDArray[Any]:
        return labels[self.rows] if labels.ndim == 1 else labels.ravel()[self.at]

    def _guesses(self, predictions: NDArray[Any]) -> NDArray[Any]:
        if predictions.shape != self.shape:
            raise ValueError(f"predictions must have the shape of targets {self.shape}, got {predictions.shape}")
        guesses: NDArray[Any] = predictions.ravel()[self.at]
        return guesses


class _Parts:
    """Positions by label: the distinct labels in ascending order, and which of them each position has."""

    def __init__(self, labels: NDArray[Any]) -> None:
        self.values, self.which = _distinct(labels)
        self.counts = np.bincount(self.which)

    def shares(self, hits: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Of each label, the share of positions that are hits."""
        return np.asarray(np.bincount(self.which, hits) / self.counts, dtype=np.float64)


def of_tokens(
    targets: NDArray[Any], predictions: NDArray[Any], slices: Mapping[str, NDArray[Any]] = _WHOLE
) -> dict[str, float]:
    """The scores of `Scoring`, of answers that are scored once."""
    return Scoring(targets, slices).of(predictions)


def batched_macro(targets: NDArray[Any], predictions: NDArray[Any], batch: int = 128) -> float:
    """That of `Scoring`, of answers that are scored once."""
    return Scoring(targets).batched_macro(predictions, batch)


def standard_error(sums: NDArray[Any], counts: NDArray[Any] | None = None) -> float | None:
    """The standard error of sum(sums) / sum(counts), where each entry is a sequence and sequences are independent: the usual
    one of a mean where each counts 1 (None), else that of a ratio to first order (Cochran 1977, section 2.11). Entries that
    count 0 are left out. None for fewer than two."""
    if counts is None:
        counts = np.ones(len(sums))
    there = counts > 0
    total = counts.sum(dtype=np.float64)
    if there.sum() < 2:
        return None
    return _of_sums((sums[there] - sums.sum(dtype=np.float64) / total * counts[there]) / total)


def _of_sums(parts: NDArray[Any]) -> float | None:
    """The standard error of a sum of independent parts whose mean is 0; None for fewer than two."""
    return float(np.sqrt(np.square(parts).sum() * len(parts) / (len(parts) - 1))) if len(parts) > 1 else None


def known(errors: Mapping[str, float | None]) -> dict[str, float]:
    """Those that there are."""
    return {name: error for name, error in errors.items() if error is not None}


def error_name(score: str) -> str:
    """The name of a score's standard error: accuracy_stderr, or accuracy_stderr/depth=50 of a part."""
    metric, slash, part = score.partition("/")
    return f"{metric}{STANDARD_ERROR}{slash}{part}"


def up_to(distance: NDArray[np.int64]) -> NDArray[np.int64]:
    """The smallest power of two that is not below each distance: labels for a slice. Negative distances stay -1."""
    rounded = 2 ** np.ceil(np.log2(np.maximum(distance, 1))).astype(np.int64)
    return np.where(distance < 0, -1, rounded)


def bins(length: int) -> dict[str, slice]:
    """The bins of positions over which curves are averaged, by name: "0-16" holds positions 0 to 15."""
    edges = [e for e in _EDGES if e < length] + list(range(2048, length, 1024)) + [length]
    return {f"{a}-{b}": slice(a, b) for a, b in pairwise(edges)}


def _distinct(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """The distinct labels in ascending order, and which of them each of `labels` [m] is. Small integers are counted, not
    sorted."""
    if labels.dtype.kind in "iu" and labels.size:
        least, most = int(labels.min()), int(labels.max())
        if most - least < 2 * labels.size + 1024:
            at = labels - least
            there = np.bincount(at, minlength=most - least + 1) > 0
            return np.flatnonzero(there) + least, (np.cumsum(there) - 1)[at]
    values, which = np.unique(labels, return_inverse=True)
    return values, which
