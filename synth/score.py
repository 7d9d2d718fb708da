"""Scores of token answers: micro and macro accuracy, exact match, and the accuracy of named parts; bins of positions."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE

_EDGES = (0, 16, 64, 128, 256, 512, 1024)  # of the bins of positions; beyond, one bin per 1024 positions

_WHOLE: Mapping[str, NDArray[Any]] = MappingProxyType({})


def of_tokens(
    targets: NDArray[Any], predictions: NDArray[Any], slices: Mapping[str, NDArray[Any]] = _WHOLE
) -> dict[str, float]:
    """Scores by name, of predictions [n, T] read only where targets [n, T] are not IGNORE.

    accuracy                  share of scored positions that are right
    macro_accuracy            mean over the classes that occur as targets of the share of each that is right
    exact_match               share of sequences, of those with a scored position, that are right throughout
    accuracy/<slice>=<value>  accuracy of the positions that `slices[slice]` ([n], a label a sequence, or [n, T], a
                              label a position) labels `value`; a negative number labels what belongs to no part

    Raises ValueError where nothing is scored.
    """
    scored = _scored(targets, predictions)
    right = scored & (predictions == targets)
    hits = right[scored]
    asked = scored.any(axis=1)
    scores = {
        "accuracy": float(hits.mean()),
        "macro_accuracy": _macro(targets[scored], hits),
        "exact_match": float((right == scored).all(axis=1)[asked].mean()),
    }
    for name, labels in slices.items():
        spread = labels if labels.ndim == 2 else labels[:, None]
        values, part = _distinct(np.broadcast_to(spread, targets.shape)[scored])
        shares = np.bincount(part, hits) / np.bincount(part)
        for value, share in zip(values.tolist(), shares.tolist(), strict=True):
            if isinstance(value, str) or value >= 0:
                scores[f"accuracy/{name}={value}"] = share
    return scores


def batched_macro(targets: NDArray[Any], predictions: NDArray[Any], batch: int = 128) -> float:
    """The published MAD metric: macro accuracy of every `batch` sequences, averaged by number of sequences.

    Within a batch a class that is predicted at a scored position but never a target counts with accuracy 0, and a class
    that is neither is left out. So the figure depends on `batch`, and on the order of the sequences.
    """
    total = 0.0
    for start in range(0, len(targets), batch):
        rows = slice(start, start + batch)
        scored = _scored(targets[rows], predictions[rows])
        answers, guesses = targets[rows][scored], predictions[rows][scored]
        present = _distinct(answers)[0].size
        absent = _distinct(np.concatenate([answers, guesses]))[0].size - present
        total += _macro(answers, answers == guesses) * present / (present + absent) * len(targets[rows])
    return total / len(targets)


def up_to(distance: NDArray[np.int64]) -> NDArray[np.int64]:
    """The smallest power of two that is not below each distance: labels for a slice. Negative distances stay -1."""
    rounded = 2 ** np.ceil(np.log2(np.maximum(distance, 1))).astype(np.int64)
    return np.where(distance < 0, -1, rounded)


def bins(length: int) -> dict[str, slice]:
    """The bins of positions over which curves are averaged, by name: "0-16" holds positions 0 to 15."""
    edges = [e for e in _EDGES if e < length] + list(range(2048, length, 1024)) + [length]
    return {f"{a}-{b}": slice(a, b) for a, b in pairwise(edges)}


def _scored(targets: NDArray[Any], predictions: NDArray[Any]) -> NDArray[np.bool_]:
    if predictions.shape != targets.shape:
        raise ValueError(f"predictions must have the shape of targets {targets.shape}, got {predictions.shape}")
    scored: NDArray[np.bool_] = targets != IGNORE
    if not scored.any():
        raise ValueError(f"none of the {targets.size} positions is scored: give more sequences, or another split")
    return scored


def _macro(answers: NDArray[Any], hits: NDArray[np.bool_]) -> float:
    _, which = _distinct(answers)
    return float((np.bincount(which, hits) / np.bincount(which)).mean())


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
