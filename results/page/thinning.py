"""Thinning of very many means, lines and rows of a page to the foremost, with a note of how many there were.

Counts and averages stay complete, and every trial stays in the page's data.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from recallmap.results.analysis.confidence import deviation
from recallmap.results.record import Record
from recallmap.results.score_tables.table import Table

MOST_MEANS = 250  # of one view, as large markers

MOST_CURVES = 300  # of one view, as single lines; with more, each is the mean over an architecture's seeds

MOST_LINES = 100  # of a figure by part or option, or of pairs held

MOST_VALUES = 60  # of an option, along such a figure; more are joined to stretches

MOST_ROWS = 200  # of a table

MOST_DOCUMENTS = 500  # architectures in YAML; of more, those of the tables

Item = TypeVar("Item")


def foremost(
    items: Sequence[Item], most: int, *, family: Callable[[Item], Hashable], worth: Callable[[Item], float]
) -> list[Item]:
    """Up to `most` of the items, in the order given: the best of every family, then the second of every one, and so on."""
    if len(items) <= most:
        return list(items)
    families: dict[Hashable, list[int]] = defaultdict(list)
    for number in sorted(range(len(items)), key=lambda n: -worth(items[n])):
        families[family(items[number])].append(number)
    ranked = [(rank, -worth(items[n]), n) for own in families.values() for rank, n in enumerate(own)]
    return [items[n] for n in sorted(n for *_, n in sorted(ranked)[:most])]


def means(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The means of a view, by rising state, that are on the front or best of their architecture in an octave of state."""
    if len(points) <= MOST_MEANS:
        return list(points)
    front, best = set[int](), -math.inf
    for number in sorted(range(len(points)), key=lambda n: (points[n]["state"], -points[n]["mean"])):
        if points[number]["mean"] > best:
            best = points[number]["mean"]
            front.add(number)

    def octave(number: int) -> Hashable:
        return points[number]["arch"], round(math.log2(max(1, points[number]["state"])))

    others = [n for n in range(len(points)) if n not in front]
    room = max(0, MOST_MEANS - len(front))
    kept = front | set(foremost(others, room, family=octave, worth=lambda n: points[n]["mean"]))
    return [points[n] for n in sorted(kept)]


def rows(table: Table) -> Table:
    """The table with the best of its measured rows by the last column, and a note that says so; unchanged where it has few."""
    measured = [line for line in table.lines if line.kind == "measured"]
    if len(measured) <= MOST_ROWS:
        return table
    ends = [line.cells[-1] for line in measured]
    told = [cell.mean for cell in ends if cell.mean is not None]
    down = any(cell.mark == "best" and cell.mean == min(told) < max(told) for cell in ends)  # less is better

    def worth(number: int) -> float:
        mean = ends[number].mean
        return -math.inf if mean is None else -mean if down else mean

    places = foremost(range(len(measured)), MOST_ROWS, family=lambda _: 0, worth=worth)
    kept = [measured[place] for place in places]
    rest = [line for line in table.lines if line.kind != "measured"]
    note = f"The best {MOST_ROWS} of {len(measured):,} architectures by the last column; recallmap table prints all."
    return replace(table, lines=(*kept, *rest), notes=(note, *table.notes))


def names(every: Collection[str], tables: Sequence[Table]) -> list[str]:
    """The names of rows that the tables show, out of very many."""
    if len(every) <= MOST_DOCUMENTS:
        return list(every)
    held = set(every)
    shown = dict.fromkeys(x.labels[0] for table in tables for x in rows(table).lines if x.kind == "measured")
    return ([name for name in shown if name in held] or list(every))[:MOST_DOCUMENTS]


def mean_curves(views: Sequence[dict[str, Any]], done: Sequence[Record], most: int) -> list[dict[str, Any]]:
    """Add `curves` to views of very many curves, as [architecture, row, index], and return the curves: each is the mean over
    the trials of one mean of the view, at up to `most` steps.

    A curve has steps, means and their standard deviations (`half`), one per step, and the number of trials.
    """
    known: dict[tuple[int, ...], int] = {}
    found: list[dict[str, Any]] = []
    for view in views:
        drawn = [m for m in view["means"] if any(done[n].curve.get("validation_accuracy") for n in m["trials"])]
        if view.get("meansOnly") or sum(len(m["trials"]) for m in drawn) <= MOST_CURVES:
            continue
        kept = foremost(drawn, MOST_CURVES, family=lambda m: m["arch"], worth=lambda m: m["mean"])
        for mean in kept:
            own = tuple(mean["trials"])
            if own not in known:
                known[own] = len(found)
                found.append(_mean_curve([done[n] for n in own], most))
        view["curves"] = [[m["arch"], m["row"], known[tuple(m["trials"])]] for m in kept]
    return found


def _mean_curve(own: Sequence[Record], most: int) -> dict[str, Any]:
    """The trials with the most common evaluation steps."""
    curves = [r.curve for r in own if r.curve.get("validation_accuracy")]
    clock = Counter(tuple(curve["step"]) for curve in curves).most_common(1)[0][0]
    kept = spread(len(clock), most)
    told = [curve["validation_accuracy"] for curve in curves if tuple(curve["step"]) == clock]
    scores = np.array([[math.nan if one[i] is None else one[i] for i in kept] for one in told], dtype=np.float64)
    columns = [column[~np.isnan(column)] for column in scores.T]
    return {
        "steps": [int(clock[i] or 0) for i in kept],
        "mean": [round(float(column.mean()), 3) if len(column) else None for column in columns],
        "half": [None if (half := deviation(column.tolist())) is None else round(half, 3) for column in columns],
        "count": len(told),
    }


@cache
def spread(count: int, most: int) -> list[int]:
    """Up to `most` of the numbers below `count`, evenly spread, with the first and the last."""
    found: list[int] = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int)).tolist()
    return found
