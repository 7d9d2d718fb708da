"""Progress and importance: the hypervolume of a study's front after every trial, and each parameter's share of variance."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recallmap.results.analysis.labels import canonical_text, differing

MOST_DIALS = 12


def hypervolumes(scores: Sequence[float], states: Sequence[int], *, chance: float, ceiling: float) -> list[float]:
    """After every trial, in the order given, the fraction of the plane that the trials so far dominate. The plane spans the
    score from chance to ceiling, and log2 of the state from the smallest to twice the largest. A value of 1 means
    the ceiling with the smallest state."""
    if not scores or ceiling <= chance:
        return [0.0] * len(scores)
    logs = [math.log2(max(1, state)) for state in states]
    least, most = min(logs), max(logs) + 1
    front: list[tuple[float, float]] = []  # (height, room): higher ones have less room
    shares = []
    area = 0.0
    for score, log in zip(scores, logs, strict=True):
        height, room = min(1.0, (score - chance) / (ceiling - chance)), (most - log) / (most - least)
        if height > 0 and not any(h >= height and r >= room for h, r in front):
            front = sorted([(h, r) for h, r in front if h > height or r > room] + [(height, room)], reverse=True)
            lower = [h for h, _ in front[1:]] + [0.0]
            area = sum((h - below) * r for (h, r), below in zip(front, lower, strict=True))
        shares.append(area)
    return shares


def importance(
    scores: Sequence[float], archs: Sequence[str], leaves: Sequence[Mapping[str, Any]]
) -> list[tuple[str, float]]:
    """The fraction of the scores' variance that lies between architectures, and for every parameter that differs within an
    architecture the fraction between its values there, the largest first, at most MOST_DIALS.

    These are main effects in the trials given: each of two parameters that vary together gets the whole effect, and fractions
    need not add up to 1. A parameter whose values hardly repeat would explain everything, and is left out.
    """
    values = np.asarray(scores, dtype=np.float64)
    whole = float(np.square(values - values.mean()).sum()) if len(values) else 0.0
    if len(values) < 3 or not whole:
        return []
    members: dict[str, list[int]] = defaultdict(list)
    for number, arch in enumerate(archs):
        members[arch].append(number)
    shares = {"architecture": _between(values, list(members.values())) / whole} if len(members) > 1 else {}
    found: dict[str, float] = defaultdict(float)
    for own in members.values():
        within: dict[str, float] = {}
        for path in differing([leaves[n] for n in own]):
            groups: dict[str, list[int]] = defaultdict(list)
            for number in own:
                groups[canonical_text(leaves[number].get(path))].append(number)
            if len(groups) * 2 <= len(own) or len(groups) == len(own) == 2:
                name = path.rsplit(".", 1)[-1]
                within[name] = max(within.get(name, 0.0), _between(values, list(groups.values())))
        for name, share in within.items():
            found[name] += share / whole
    return sorted((shares | found).items(), key=lambda item: -item[1])[:MOST_DIALS]


def _between(values: NDArray[np.float64], groups: Sequence[Sequence[int]]) -> float:
    """The sum of squares between groups, each a list of indices into `values`."""
    middle = values[[n for own in groups for n in own]].mean()
    return float(sum(len(own) * (values[list(own)].mean() - middle) ** 2 for own in groups))
