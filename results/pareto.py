"""Which architectures no other beats on every goal at once, how much room they leave, and how recall grows with state.

Points are float [N, G], a row a candidate and a column a goal; `maximise` says of every goal whether more is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from results.interval import bootstrap_interval

BLOCK = 256  # candidates compared with all others at a time; bounds memory to BLOCK x N x G


def front(points: ArrayLike, maximise: Sequence[bool]) -> NDArray[np.bool_]:
    """bool [N]: the points that no other dominates (as good in every goal and better in one). Equal points stand or
    fall together."""
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
    """The exact measure of what the points dominate, up to a reference point that is worse; for 2 or 3 goals.

    A point that does not beat the reference in every goal adds nothing.
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
    # Between two neighbouring depths of the third goal, the cut is the area of all points that reach that deep.
    depths = np.unique(gains[:, 2])
    steps = np.diff(depths, prepend=0.0)
    return float(sum(step * _area(gains[gains[:, 2] >= depth, :2]) for step, depth in zip(steps, depths, strict=True)))


def front_shares(
    scores: Sequence[Sequence[float]],
    costs: Sequence[float],
    rng: np.random.Generator,
    *,
    draws: int = 1000,
) -> NDArray[np.float64]:
    """float [N]: how often each candidate is on the front of (score up, cost down) when its seeds are drawn anew.

    scores  a list of scores, one a seed, for every candidate
    costs   what does not vary with the seed, such as state bytes
    """
    on = np.zeros(len(scores))
    samples = [np.asarray(values, dtype=np.float64) for values in scores]
    for _ in range(draws):
        means = [sample[rng.integers(len(sample), size=len(sample))].mean() for sample in samples]
        on += front(np.column_stack([means, costs]), [True, False])
    return on / draws


@dataclass(frozen=True, kw_only=True)
class CapacityPoint:
    """Recall of one architecture at one size of state."""

    state_bytes: int
    mean: float
    interval: tuple[float, float] | None  # 95 % bootstrap over seeds
    seeds: int


def capacity_curve(
    scores: Mapping[int, Sequence[float]], rng: np.random.Generator, *, draws: int = 2000
) -> list[CapacityPoint]:
    """Recall against state: a point a state size, smallest first. `scores` has a score a seed by state bytes."""
    return [
        CapacityPoint(
            state_bytes=size,
            mean=float(np.mean(values)),
            interval=bootstrap_interval(values, rng, draws=draws),
            seeds=len(values),
        )
        for size, values in sorted(scores.items())
    ]


def largest_pairs(scores: Mapping[int, float], threshold: float = 0.99) -> int:
    """The most pairs held: the largest number up to which every measured score is at least the threshold; 0 for none.

    `scores` has a mean score by number of pairs. A later recovery does not count: it would be luck, not capacity.
    """
    held = 0
    for pairs, score in sorted(scores.items()):
        if score < threshold:
            break
        held = pairs
    return held


def _losses(points: ArrayLike, maximise: Sequence[bool]) -> NDArray[np.float64]:
    """float [N, G] where less is better."""
    values = np.asarray(points, dtype=np.float64).reshape(-1, len(maximise))
    if np.isnan(values).any():
        raise ValueError("a point has a goal that is not a number; leave failed trials out of a front")
    return np.where(np.asarray(maximise), -values, values)


def _area(gains: NDArray[np.float64]) -> float:
    """Of the union of rectangles from the origin to each of [N, 2]."""
    ordered = gains[np.argsort(-gains[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    return float((ordered[:, 0] * np.diff(reach, prepend=0.0)).sum())
