"""Edges of grids: the learning rates to try where the best rate is the highest, the lowest or the only one that was tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recallmap.results.analysis.labels import words
from recallmap.results.analysis.measures import Measure, at_ceiling, edge_of, measures
from recallmap.results.analysis.selection import Edge
from recallmap.results.record import Record

OCTAVE = 2.0


@dataclass(frozen=True, kw_only=True)
class AtEdge:
    """A choice at the edge of its grid, below the ceiling: the architecture, its setting, the best rate, and the rate an octave
    further. `keys` are those of the chosen trials' records."""

    row: str
    where: str
    edge: Edge
    rate: float
    further: float
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OneRate:
    """A choice below the ceiling whose grid has one learning rate, which is both of its edges: the architecture, its setting,
    the rate, and the rates an octave below and above."""

    row: str
    where: str
    rate: float
    lower: float
    higher: float


def at_edges(records: Sequence[Record]) -> list[AtEdge]:
    """Every choice whose best learning rate is at the edge of a grid of several. What is at the ceiling cannot gain: it is left
    out. Raises ValueError where hyper-parameters cannot be chosen."""
    by_key = {record.key: record for record in records}
    found = []
    for m in measures(records):
        if m.tested or not (edge := edge_of([m])):
            continue
        rate = _rate(by_key[m.keys[0]])
        further = _rounded(rate * OCTAVE if edge == "highest" else rate / OCTAVE)
        found.append(AtEdge(row=m.row, where=_where(m), edge=edge, rate=rate, further=further, keys=m.keys))
    return found


def of_one_rate(records: Sequence[Record]) -> list[OneRate]:
    """Every choice that was trained at one learning rate, which cannot tell whether another is better. What is at the ceiling
    cannot gain, and is left out. Raises ValueError where hyper-parameters cannot be chosen."""
    by_key = {record.key: record for record in records}
    found = []
    for m in measures(records):
        if m.tested or m.rates != 1 or not m.values or at_ceiling(m):
            continue
        rate = _rate(by_key[m.keys[0]])
        lower, higher = _rounded(rate / OCTAVE), _rounded(rate * OCTAVE)
        found.append(OneRate(row=m.row, where=_where(m), rate=rate, lower=lower, higher=higher))
    return found


def _where(measure: Measure) -> str:
    return " ".join([measure.task, *words(measure.dials, [name for name in measure.dials if "." not in name])])


def _rate(record: Record) -> float:
    return float(record.spec["training"]["lr"])


def _rounded(rate: float) -> float:
    return float(f"{rate:.6g}")
