"""Averages over tasks that a single task does not decide: interquartile means of scaled scores (Agarwal et al. 2021)."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from recallmap.results.analysis.confidence import FEWEST_TO_DECIDE, LEVEL, Interval
from recallmap.results.analysis.measures import Measure, way

_DRAWS = 2000

_PAIRED = 8  # values from which numpy sums in another order


def mean(values: Sequence[float]) -> float:
    """What `np.mean` gives of a list, to the last digit. Of a few it takes a tenth of the time, and most are few."""
    if len(values) >= _PAIRED:
        return float(np.mean(values))
    total = 0.0
    for value in values:  # in this order, as numpy sums them; Python's own sum is rounded otherwise from 3.12 on
        total += value
    return total / len(values)


def scaled_scores(own: Sequence[Measure]) -> dict[str, list[float]]:
    """The scores of an architecture by task, one for each seed that all its measures have: the mean over the settings of the
    task, each from chance (0) to the ceiling (1). Empty where there is no such seed, or a bound is unknown."""
    seeds = sorted(set.intersection(*(set(m.values) for m in own))) if own else []
    scaled: dict[str, list[list[float]]] = {}
    for m in own:
        if m.chance is None or m.ceiling is None:
            return {}
        scaled.setdefault(m.task, []).append([way(m.values[s], m.chance, m.ceiling) for s in seeds])
    return {task: np.mean(scores, axis=0).tolist() for task, scores in scaled.items()} if seeds else {}


def interquartile_mean(by_task: Sequence[Sequence[float]]) -> tuple[float, Interval | None]:
    """The mean of the middle half of all scores over tasks and seeds, [tasks, seeds], and its 95 % percentile interval by the
    bootstrap of seeds within each task; none for fewer than five seeds, and where they do not differ."""
    scores = np.asarray(by_task, dtype=np.float64)
    value = float(_middle_mean(scores.reshape(1, -1))[0])
    tasks, seeds = scores.shape
    if seeds < FEWEST_TO_DECIDE or (scores == scores[:, :1]).all():
        return value, None
    sampled = scores.reshape(-1)[_places(tasks, seeds)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(_middle_mean(sampled), [tail, 1 - tail])
    return value, (float(low), float(high))


def _middle_mean(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each row [rows, scores] without its lowest and its highest quarter, rounded down."""
    count = scores.shape[1]
    cut = count // 4
    return np.partition(scores, (cut, count - cut - 1), axis=1)[:, cut : count - cut].mean(axis=1)


@functools.lru_cache(maxsize=16)
def _places(tasks: int, seeds: int) -> NDArray[np.int64]:
    """int [draws, tasks * seeds]: places in [tasks * seeds], seeds drawn with replacement within each task, the same every
    time."""
    drawn = np.random.default_rng(0).integers(seeds, size=(_DRAWS, tasks, seeds))
    return (drawn + seeds * np.arange(tasks)[None, :, None]).reshape(_DRAWS, -1)
