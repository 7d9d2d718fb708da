"""The lines of a page's figures on parts, options and capacity, and its published marks, as plain data."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from recallmap.results.analysis.breakdown import (
    OF_EVERY_TASK,
    Cut,
    Strand,
    averaged,
    by_dials,
    by_every_setting,
    by_parts,
    by_setting,
    further_scores,
    joined,
    neighbours,
)
from recallmap.results.analysis.confidence import deviation
from recallmap.results.analysis.measures import Measure, measures
from recallmap.results.analysis.pairs_held import Held, Row, holdings
from recallmap.results.analysis.published_figures import Column, Published
from recallmap.results.page import thinning
from recallmap.results.page.name_index import Index, carried
from recallmap.results.page.thinning import MOST_LINES, MOST_MEANS, MOST_VALUES
from recallmap.results.record import Record
from recallmap.results.score_tables.columns import Sheet, tables_about
from recallmap.results.score_tables.table import is_share, readable, size

Drawn = dict[str, Any]

Known = dict[tuple[str, frozenset[str], str | None], Drawn | None]  # cuts along an option, shared by all settings on it


def cuts_of(own: Sequence[Measure], group: Sequence[Measure], index: Index, known: Known) -> list[Drawn]:
    """One setting's scores by part, by option of the architectures, and by the options that tell it from the group's other
    settings."""
    if not own:
        return []
    near = neighbours(group, own[0].dials)

    def across(metric: str | None = None) -> Iterator[Drawn]:
        for dial, settings in near.items():
            place = dial, settings, metric
            if place not in known:
                cut = by_setting(group, dial, settings, metric)
                known[place] = None if cut is None else _cut(cut, index)
            if (drawn := known[place]) is not None:
                yield drawn

    parts = [(cut.by, _cut(cut, index)) for cut in by_parts(own)]
    cuts = [drawn for by, drawn in parts if by != OF_EVERY_TASK]
    for name in (None, *further_scores(own)):
        cuts += [*across(name), *(_cut(cut, index) for cut in by_dials(own, name))]
    return cuts + [drawn for by, drawn in parts if by == OF_EVERY_TASK]


def cuts_of_mean(own: Sequence[Measure], index: Index) -> list[Drawn]:
    """Scores of the mean over several settings, a line for every architecture: by part, and by the options that tell
    settings apart."""
    parts = [averaged(cut) for cut in by_parts(own)]
    cuts = [*(cut for cut in parts if cut.by != OF_EVERY_TASK), *by_every_setting(own)]
    cuts += [cut for name in further_scores(own) for cut in by_every_setting(own, name)]
    cuts += [cut for cut in parts if cut.by == OF_EVERY_TASK]
    drawn = [_cut(cut, index) for cut in cuts if len(cut.values) > 1]
    return list({cut["label"]: cut for cut in reversed(drawn)}.values())[::-1]


def _cut(cut: Cut, index: Index) -> Drawn:
    cut = joined(cut, MOST_VALUES)
    strands = thinning.foremost(cut.strands, MOST_LINES, family=_arch, worth=_height)

    def chance(value: str) -> float | None:
        return next((s.cells[value].chance for s in cut.strands if value in s.cells), None)

    lines = [
        {
            "name": strand.row,
            "arch": index.archs.of(next(iter(strand.cells.values())).arch),
            "at": [n for n, value in enumerate(cut.values) if value in strand.cells],
            "y": [carried(float(np.mean(list(m.values.values())))) for m in cells],
            "half": [carried(deviation(list(m.values.values()))) for m in cells],
            "states": [m.state_bytes for m in cells],
            "trials": [[index.trial[key] for key in m.keys] for m in cells],
        }
        for strand in strands
        if (cells := [strand.cells[value] for value in cut.values if value in strand.cells])
    ]
    metric = readable(cut.metric)
    return {
        "label": f"{metric} by {readable(cut.by)}",
        "by": readable(cut.by),
        "metric": metric,
        "percent": is_share(cut.metric),
        "x": cut.values,
        "chance": [chance(value) for value in cut.values],
        "lines": lines,
        "of": len(cut.strands),
    }


def _arch(strand: Strand) -> str:
    return next((m.arch for m in strand.cells.values()), "")


def _height(strand: Strand) -> float:
    """The mean of a strand's means; the highest come first, whichever direction is better."""
    means = [sum(m.values.values()) / len(m.values) for m in strand.cells.values() if m.values]
    return sum(means) / len(means) if means else -math.inf


def published_marks(groups: Sequence[Sequence[Measure]], beside: Sequence[Published]) -> list[dict[str, Any]]:
    """Published figures for what was measured on one setting, or means over all settings of each group, which is one
    architecture; each at the largest state that ours has there."""
    every = [measure for own in groups for measure in own]
    known = dict.fromkeys(dial for m in every for dial in m.dials)
    each = {m.setting: Column(name=m.setting, tasks=(m.task,), dials={d: m.dials.get(d) for d in known}) for m in every}
    mean = [Column(name="mean", mean=True)] if len(each) > 1 else []
    marks = []
    for source in beside:
        theirs = [table for task in dict.fromkeys(m.task for m in every) for table in tables_about(source, task)]
        sheet = Sheet(every, [*each.values(), *mean], theirs)
        for own in groups if theirs else ():
            score = sheet.published(sheet.columns[-1], sheet.published_rows(own[0]))
            if score is not None:
                state = max(m.state_bytes for m in own)
                marks.append({"name": own[0].row, "source": source.source, "state": state, "score": score})
    return marks


def held_by(records: Sequence[Record], index: Index, probed: Sequence[Row]) -> list[dict[str, Any]]:
    """Capacities by task, protocol and setting, a line for each architecture; those of most architectures come first."""
    by_task: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if "pairs" in record.spec.get("task", {}):
            by_task[record.task, record.protocol].append(record)
    found = [
        {
            "label": label if protocol == "repaired" else f"{label}, protocol {protocol}",
            "lines": [_line_of(one, index) for one in _most_held(held)],
            "of": len(held),
            "seen": _held_seen(held),
        }
        for (_, protocol), own in by_task.items()
        for label, held in holdings(measures(own, names=index.row_of), probed).items()
    ]
    return sorted(found, key=lambda one: -len({line["arch"] for line in one["lines"]}))


def _most_held(held: Sequence[Held]) -> list[Held]:
    return thinning.foremost(held, MOST_MEANS, family=lambda one: one.arch, worth=lambda one: max(one.trained.values()))


def _line_of(held: Held, index: Index) -> dict[str, Any]:
    return {
        "name": held.row,
        "arch": index.archs.of(held.arch),
        "line": index.line[held.row],
        "state": held.state_bytes,
        "tried": [held.tried[0], held.tried[-1]],
        "trained": list(held.trained.values()),
        "probed": list(held.probed.values()),
        "bounds": list(held.bounds.items()),
        "trials": [index.trial[key] for key in held.keys],
    }


def _held_seen(held: Sequence[Held]) -> str:
    """The architecture that holds most pairs with a fixed state, at the strictest threshold that any of them meets."""
    fixed = [one for one in held if not one.state_grows] or list(held)
    parts: list[str] = []
    for least in sorted(fixed[0].trained, reverse=True):
        best = max(fixed, key=lambda one: (one.trained[least], -one.state_bytes))
        if best.trained[least]:
            end = " or more" if best.trained[least] == best.tried[-1] else ""
            most = f"{best.trained[least]}{end}, {best.row} with {size(best.state_bytes)}"
            return " ".join([*parts, f"Most pairs at {100 * least:.0f} % with a state of fixed size: {most}."])
        parts.append(f"None with a state of fixed size holds the fewest pairs that were tried at {100 * least:.0f} %.")
    return parts[-1]
