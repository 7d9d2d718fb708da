"""Capacity in pairs: the largest number of pairs that a trained memory still recalled, by size of state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from recallmap.results.analysis.labels import canonical_text, differing, words
from recallmap.results.analysis.measures import Measure
from recallmap.results.analysis.pareto import largest_pairs

Row = Mapping[str, Any]  # of search.measurement.capacity_probe.probe

THRESHOLDS = (0.99, 0.9)


@dataclass(frozen=True, kw_only=True)
class Held:
    """The capacity of one architecture in pairs, by threshold of accuracy; 0 where it misses the fewest pairs tried.

    tried    numbers of pairs on which it was measured, ascending
    trained  capacity after training, by threshold
    probed   capacity of its memory without training, by threshold
    bounds   pairs that theory allows a head, by name of the bound
    """

    row: str
    arch: str
    state_bytes: int
    state_grows: bool
    tried: tuple[int, ...]
    trained: Mapping[float, int]
    probed: Mapping[float, int] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)
    keys: tuple[str, ...] = ()


def holdings(measures: Sequence[Measure], probed: Sequence[Row] = ()) -> dict[str, list[Held]]:
    """The capacities of architectures measured on at least two numbers of pairs, by setting as text (all but pairs and
    length). Where one number of pairs has several lengths, the worst counts. A row of `probed` belongs to the architecture
    whose row it names in `arch`."""
    found: dict[str, dict[str, list[Measure]]] = defaultdict(lambda: defaultdict(list))
    asked = [m for m in measures if isinstance(m.dials.get("pairs"), int) and m.values]
    rest = [{n: v for n, v in m.dials.items() if n not in ("pairs", "length")} for m in asked]
    shown = differing(rest)
    settings = {canonical_text(dials): dials for dials in rest}
    for measure, dials in zip(asked, rest, strict=True):
        found[canonical_text(dials)][measure.row].append(measure)
    untrained: dict[str, list[Row]] = defaultdict(list)
    for row in probed:
        untrained[row["arch"]].append(row)
    holdings = {}
    for setting, by_row in found.items():
        held = [_held(own, untrained[row]) for row, own in by_row.items() if len({m.dials["pairs"] for m in own}) > 1]
        if held:
            label = ", ".join([asked[0].task, *words(settings[setting], shown)])
            holdings[label] = sorted(held, key=lambda h: (h.arch, h.state_bytes, h.row))
    return holdings


def _held(own: Sequence[Measure], probed: Sequence[Row]) -> Held:
    scores: dict[int, float] = {}
    for measure in own:
        pairs = measure.dials["pairs"]
        scores[pairs] = min(scores.get(pairs, 1.0), float(np.mean(list(measure.values.values()))))
    mixers = dict.fromkeys(row["mixer"] for row in probed)
    curves = [{row["pairs"]: row["recall"] for row in probed if row["mixer"] == mixer} for mixer in mixers]
    return Held(
        row=own[0].row,
        arch=own[0].arch,
        state_bytes=max(m.state_bytes for m in own),
        state_grows=own[0].state_grows,
        tried=tuple(sorted(scores)),
        trained={least: largest_pairs(scores, least) for least in THRESHOLDS},
        probed={least: max(largest_pairs(curve, least) for curve in curves) for least in THRESHOLDS if curves},
        bounds={name: bound for row in probed for name, bound in row["bounds"].items()},
        keys=tuple(dict.fromkeys(key for m in own for key in m.keys)),
    )
