"""The view of MAD on the page: the mean over its tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from recallmap.results.analysis.measures import Measure, measures
from recallmap.results.analysis.published_figures import Column, Published
from recallmap.results.page.captions import caption_of
from recallmap.results.page.name_index import Index, carried
from recallmap.results.page.points import NEAR, apart_of, common_fields, interval_of, millionths
from recallmap.results.record import Record
from recallmap.results.score_tables.columns import Sheet, tables_about
from recallmap.results.score_tables.table import MAD, Cell, protocol_of


def mad_views(records: Sequence[Record], index: Index, beside: Sequence[Published]) -> list[dict[str, Any]]:
    """The mean of MAD for every protocol in which two or more of its tasks were trained. It has means only, because no trial
    has all tasks."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if record.task in MAD:
            groups[record.protocol].append(record)
    views = []
    for protocol, own in groups.items():
        found = [m for m in measures(own, names=index.row_of) if not m.tested and m.values]
        trained = [task for task in MAD if any(m.task == task for m in found)]
        whole = Column(name="mean", mean=True)
        sheet = Sheet(found, [*(Column(name=task, tasks=(task,)) for task in trained), whole], [])
        rows: dict[str, list[Measure]] = defaultdict(list)
        for measure in found:
            rows[measure.row].append(measure)
        cells = {row: cell for row, own in rows.items() if (cell := sheet.cell(own, whole)).mean is not None}
        if len(trained) < 2 or not cells:
            continue
        chance, ceiling = (sheet.bound(whole, name) or 0.0 for name in ("chance", "ceiling"))
        points = [_mad_point(rows[row], cell, index) | {"seeds": _mad_seeds(rows[row])} for row, cell in cells.items()]
        means = sorted(points, key=lambda m: m["state"])
        certain = interval_of(means)
        keys = dict.fromkeys(key for cell in cells.values() for key in cell.keys)
        numbers = [index.trial[key] for key in keys]
        records_of = [index.done[number] for number in numbers]
        bounds = {"chance": chance, "ceiling": ceiling, "references": {}, "percent": True}
        views.append(
            {
                "task": "MAD",
                "label": f"MAD: mean over {len(trained)} tasks{protocol_of(protocol)}",
                "metric": "accuracy",
                **bounds,
                "own": bounds,
                "length": max(r.length for r in records_of),
                "meansOnly": True,
                "trials": numbers,
                "scores": [millionths(r.score) for r in records_of],
                "states": [r.state_bytes for r in records_of],
                **certain,
                "seen": caption_of(means, index, True, NEAR),
                "learnt": "",
                "published": _mad_hollow(rows, cells, found, beside, protocol),
            }
        )
    return views


def _mad_point(own: Sequence[Measure], cell: Cell, index: Index) -> dict[str, Any]:
    return {
        "arch": index.archs.of(own[0].arch),
        "row": index.rows.of(own[0].row),
        "line": index.line[own[0].row],
        "state": max(m.state_bytes for m in own),
        "mean": carried(cell.mean or 0.0),
        "half": carried(cell.deviation),
        "count": cell.seeds,  # of many trials, whose hyper-parameters are not the same
        "trials": [index.trial[key] for key in cell.keys],
        **apart_of(own),
    }


def _mad_seeds(own: Sequence[Measure]) -> list[float]:
    """The mean over tasks, each the mean over its settings, for every seed that all of them have."""
    seeds = common_fields(own)
    tasks: dict[str, list[Measure]] = defaultdict(list)
    for measure in own:
        tasks[measure.task].append(measure)
    return [float(np.mean([np.mean([m.values[seed] for m in one]) for one in tasks.values()])) for seed in seeds]


def _mad_hollow(
    rows: dict[str, list[Measure]],
    cells: dict[str, Cell],
    found: list[Measure],
    beside: Sequence[Published],
    protocol: str,
) -> list[dict[str, Any]]:
    """Published means over our tasks, made of their columns, each at the state that ours has."""
    marks = []
    other = "" if protocol == "mad-lab" else ", of protocol mad-lab"
    trained = {m.task for m in found}
    for source in beside:
        for table in tables_about(source, "mad"):
            parts = [column for column in table.columns if not column.mean]
            if sorted(task for column in parts for task in column.tasks) != sorted(trained):
                continue
            sheet = Sheet(found, parts, [table])
            for row in cells:
                theirs = sheet.published_rows(rows[row][0])
                scores = [sheet.published(column, theirs) for column in parts]
                told = [score for score in scores if score is not None]
                if len(told) == len(parts):
                    score = float(np.average(told, weights=[len(column.tasks) for column in parts]))
                    state = max(m.state_bytes for m in rows[row])
                    marks.append(
                        {"name": row, "source": source.source + other, "state": state, "score": carried(score)}
                    )
    return marks
