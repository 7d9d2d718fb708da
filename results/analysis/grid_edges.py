"""Edges of grids: the learning rates to try where the best rate is the highest or the lowest that was tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recallmap.results.analysis.labels import words
from recallmap.results.analysis.measures import edge_of, measures
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


def at_edges(records: Sequence[Record]) -> list[AtEdge]:
    """Every choice whose best learning rate is at the edge of the grid. What is at the ceiling cannot gain, and is left out.
    Raises ValueError where hyper-parameters cannot be chosen."""
    by_key = {record.key: record for record in records}
    found = []
    for m in measures(records):
        if m.tested or not (edge := edge_of([m])):
            continue
        rate = float(by_key[m.keys[0]].spec["training"]["lr"])
        further = rate * OCTAVE if edge == "highest" else rate / OCTAVE
        where = " ".join([m.task, *words(m.dials, [name for name in m.dials if "." not in name])])
        further = float(f"{further:.6g}")
        found.append(AtEdge(row=m.row, where=where, edge=edge, rate=rate, further=further, keys=m.keys))
    return found
