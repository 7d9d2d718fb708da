"""Pareto fronts of architectures, their hypervolume, and their uncertainty over seeds.

Points are float [N, G]: one row per candidate, one column per goal. `maximise` says for every goal whether more is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Name = TypeVar("Name")

BLOCK = 256  # candidates compared with all others at a time; bounds memory to BLOCK x N x G


def front(points: ArrayLike, maximise: Sequence[bool]) -> NDArray[np.bool_]:
    """bool [N]: the points that no other dominates, being as good in every goal and better in one. Equal points are on the
    front together or not at all."""
    losses = _losses(points, maximise)
    kept = np.ones(len(losses), dtype=bool)
    for start in range(0, len(losses), BLOCK):
        ours = losses[start : start + BLOCK, None]
        no_worse = np.ones((ours.shape[0], len(losses)), dtype=bool)
        better = np.zeros_like(no_worse)
        for goal in range(losses.shape[1]):
            no_worse &= losses[:, goal] <= ours[..., goal]
            better |= losses[:, goal] < ours[..., goal]
        kept[start : start + BLOCK] = ~(no_worse & better).any(axis=1)
    return kept


def hypervolume(points: ArrayLike, reference: Sequence[float], maximise: Sequence[bool]) -> float:
    """The exact hypervolume that the points dominate, up to a worse reference point, for 2 or 3 goals.

    A point that does not beat the reference in every goal adds nothing. Raises ValueError for another number of goals.
    """
    losses = _losses(points, maximise)
    worst = _losses([list(reference)], maximise)[0]
    if len(maximise) not in (2, 3):
        raise ValueError(f"hypervolume is exact for 2 or 3 goals, got {len(maximise)}")
    gains = worst - losses[(losses < worst).all(axis=1)]
    if len(gains) == 0:
        return 0.0
    if gains.shape[1] == 2:
        return _area(gains)
    # Between two neighbouring gains in the third goal, the cross-section is the area of all points that reach the larger.
    depths = np.unique(gains[:, 2])
    steps = np.diff(depths, prepend=0.0)
    return float(sum(step * _area(gains[gains[:, 2] >= depth, :2]) for step, depth in zip(steps, depths, strict=True)))


def volume_curves(
    groups: Mapping[Name, Sequence[Sequence[float]]], maximise: Sequence[bool]
) -> dict[Name, list[float]]:
    """The hypervolume after each point, by group. A point without values, (), adds nothing.

    Goals are scaled to 0 (worst) and 1 (best) over the points of all groups, costs by their logarithm, so that groups share
    the scale. With one goal it is the best so far. Raises ValueError for more than three goals.
    """
    known = [values for points in groups.values() for values in points if len(values)]
    if not known:
        return {name: [0.0] * len(points) for name, points in groups.items()}
    of = iter(_scaled(np.asarray(known, dtype=np.float64), maximise))
    curves: dict[Name, list[float]] = {}
    for name, points in groups.items():
        seen: list[NDArray[np.float64]] = []
        curves[name] = []
        for values in points:
            if len(values):
                seen.append(next(of))
            curves[name].append(
                _scaled_volume(seen, len(maximise)) if len(values) or not curves[name] else curves[name][-1]
            )
    return curves


def _scaled_volume(points: Sequence[NDArray[np.float64]], goals: int) -> float:
    if not points:
        return 0.0
    if goals == 1:
        return float(np.max(points))
    return hypervolume(points, [-0.01] * goals, [True] * goals) / 1.01**goals


def _scaled(values: NDArray[np.float64], maximise: Sequence[bool]) -> NDArray[np.float64]:
    """[N, G] between 0 (worst) and 1 (best)."""
    logs = (values > 0).all(axis=0) & ~np.asarray(maximise)
    gains = np.where(logs, np.log(np.maximum(values, 1e-12)), values) * np.where(maximise, 1.0, -1.0)
    low, high = gains.min(axis=0), gains.max(axis=0)
    return np.asarray((gains - low) / np.where(high > low, high - low, 1.0))


def front_shares(
    scores: Sequence[Sequence[float]],
    costs: Sequence[float],
    rng: np.random.Generator,
    *,
    draws: int = 1000,
) -> NDArray[np.float64]:
    """float [N]: the fraction of `draws` bootstrap samples of seeds in which each candidate is on the front of (score up, cost
    down).

    scores  a list of scores, one per seed, for every candidate
    costs   a cost that does not vary with the seed, such as state bytes
    """
    order = np.argsort(np.asarray(costs, dtype=np.float64), kind="stable")
    ordered = np.asarray(costs, dtype=np.float64)[order]
    drawn = _resampled([scores[candidate] for candidate in order], rng, draws)
    best = np.maximum.accumulate(drawn, axis=1)
    first, last = (np.searchsorted(ordered, ordered, side=side) for side in ("left", "right"))
    cheaper = np.where(first > 0, best[:, first - 1], -np.inf)
    shares = np.empty(len(scores))
    shares[order] = ((drawn >= best[:, last - 1]) & (drawn > cheaper)).mean(axis=0)
    return shares


def front_band(
    scores: Sequence[Sequence[float]],
    costs: Sequence[float],
    rng: np.random.Generator,
    *,
    level: float = 0.95,
    draws: int = 500,
) -> list[tuple[float, float, float]]:
    """(cost, low, high) for every cost, ascending: the percentile bootstrap interval over seeds of the best score at no more
    than that cost. Where candidates have one seed each, low equals high."""
    order = np.argsort(np.asarray(costs, dtype=np.float64), kind="stable")
    best = np.maximum.accumulate(_resampled([scores[candidate] for candidate in order], rng, draws), axis=1)
    low, high = np.quantile(best, [(1 - level) / 2, (1 + level) / 2], axis=0)
    band = {float(costs[c]): (float(a), float(b)) for c, a, b in zip(order, low, high, strict=True)}
    return [(cost, *ends) for cost, ends in band.items()]


def largest_pairs(scores: Mapping[int, float], threshold: float = 0.99) -> int:
    """The capacity in pairs: the largest number up to which every measured score is at least the threshold; 0 for none.

    `scores` has a mean score by number of pairs. A recovery at more pairs does not count: it would be luck, not capacity.
    """
    held = 0
    for pairs, score in sorted(scores.items()):
        if score < threshold:
            break
        held = pairs
    return held


def _resampled(scores: Sequence[Sequence[float]], rng: np.random.Generator, draws: int) -> NDArray[np.float64]:
    """float [draws, N]: means over seeds drawn with replacement."""
    means = np.empty((draws, len(scores)))
    for column, values in enumerate(scores):
        sample = np.asarray(values, dtype=np.float64)
        means[:, column] = sample[rng.integers(len(sample), size=(draws, len(sample)))].mean(axis=1)
    return means


def _losses(points: ArrayLike, maximise: Sequence[bool]) -> NDArray[np.float64]:
    """float [N, G]: the points with signs such that less is better. Raises ValueError on a NaN."""
    values = np.asarray(points, dtype=np.float64).reshape(-1, len(maximise))
    if np.isnan(values).any():
        raise ValueError("a point has a goal that is not a number; leave failed trials out of a front")
    return np.where(np.asarray(maximise), -values, values)


def _area(gains: NDArray[np.float64]) -> float:
    """The area of the union of rectangles from the origin to each point of [N, 2]."""
    ordered = gains[np.argsort(-gains[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    return float((ordered[:, 0] * np.diff(reach, prepend=0.0)).sum())
