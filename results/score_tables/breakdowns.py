"""Tables beyond the headline: other scores, scores by part and by option, and the cost of trials."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np

from recallmap.results.analysis.averages import interquartile_mean, scaled_scores
from recallmap.results.analysis.breakdown import (
    OF_EVERY_TASK,
    Cut,
    Strand,
    by_dials,
    by_parts,
    by_settings,
    further_scores,
)
from recallmap.results.analysis.labels import canonical_text, differing, words
from recallmap.results.analysis.measures import Measure, measures
from recallmap.results.analysis.namesakes import remark
from recallmap.results.analysis.natural_order import by_number
from recallmap.results.analysis.published_figures import Published
from recallmap.results.analysis.reach import Reach, reaches
from recallmap.results.record import Record
from recallmap.results.score_tables.columns import cell_of, over_seeds
from recallmap.results.score_tables.copied_bits import copied_bits_tables
from recallmap.results.score_tables.costs import cost_tables
from recallmap.results.score_tables.notes import notes_of
from recallmap.results.score_tables.scores import Group, best, grouped, states_of, tables_of, task_table
from recallmap.results.score_tables.table import (
    MAD,
    UNKNOWN,
    Cell,
    Line,
    Table,
    is_count,
    more_is_better,
    protocol_of,
    readable,
    unit_of,
)

ERROR = "relative_error"


def all_tables(records: Sequence[Record], beside: Published | None = None, *, settings: bool = False) -> list[Table]:
    """The tables of `table_of`, then `further_tables`, with one choice of hyper-parameters for all.

    Raises as `table_of`."""
    groups = grouped(records)
    return [*tables_of(groups, beside, settings=settings), *further_tables(records, groups)]


def further_tables(records: Sequence[Record], groups: Sequence[Group] | None = None) -> list[Table]:
    """Tables beyond the headline. For every task outside MAD: its other scores (tvd, cg_steps), how far seeds reach, of copying
    the bits beside those of the state, and the headline by parts of the answers (length, depth, position), for learnability as
    a loss. For MAD: averages over its tasks. Then the cost of trials. `groups`: those of the records, where they are known.

    Raises as `table_of`."""
    groups = grouped(records) if groups is None else groups
    further = [
        table
        for group in groups
        if group.about != "mad"
        for table in _further(group.measures["validation"], group.about, group.protocol)
    ]
    averages = [
        table
        for group in groups
        if group.about == "mad"
        for table in _average_tables(group.measures["validation"], group.protocol)
    ]
    return [*further, *averages, *cost_tables(records)]


def _average_tables(found: Iterable[Measure], protocol: str) -> list[Table]:
    """For a protocol of MAD with several tasks, the plain and the interquartile mean of scaled scores over tasks."""
    found = [m for m in found if m.values and not m.tested]
    tasks = {m.task for m in found}
    rows: dict[str, list[Measure]] = defaultdict(list)
    for measure in found:
        rows[measure.row].append(measure)
    lines = [_average_line(of) for of in rows.values() if {m.task for m in of} == tasks and scaled_scores(of)]
    return [_average_table(lines, tasks, protocol)] if len(tasks) > 1 and lines else []


def _average_line(own: list[Measure]) -> Line:
    scores = list(scaled_scores(own).values())
    plain = np.mean(scores, axis=0).tolist()
    middle, interval = interquartile_mean(scores)
    cells = (
        Cell(mean=float(np.mean(plain)), seeds=len(plain), **over_seeds(plain, 0.0, 1.0)),
        Cell(mean=middle, seeds=len(plain), interval=interval),
    )
    state = states_of(own)
    labels = (own[0].row, str(state or UNKNOWN), str(len(plain)))
    return Line(labels=labels, cells=cells, remark=remark(own[0].leaves), state=state)


def _average_table(lines: list[Line], tasks: set[str], protocol: str) -> Table:
    notes = (
        "Scores from chance (0) to the ceiling (100), over the seeds that all tasks have, each task once: "
        f"{', '.join(name for task, name in MAD.items() if task in tasks)}.",
        "Interquartile mean: of the middle half of all scores over tasks and seeds, so that no single task decides it; in "
        "brackets its 95 % bootstrap interval over the seeds of each task.",
    )
    return Table(
        title=f"MAD, averages{protocol_of(protocol)}",
        corner=("architecture", "state", "seeds"),
        columns=("plain mean", "interquartile mean"),
        lines=tuple(best(sorted(lines, key=lambda line: -(line.cells[1].mean or 0.0)), more=True)),
        notes=notes,
        units=("percent", "percent"),
        protocol=protocol,
    )


def _further(found: Iterable[Measure], task: str, protocol: str) -> list[Table]:
    """The tables of one task outside MAD beyond its headline."""
    found = [m for m in found if m.values]
    tables = []
    for name in further_scores(found):
        own = [other for m in found if (other := m.of(name)).values]
        tables.append(task_table(own, task, protocol, "validation", None, score=name))
    tables += _reach_tables(reaches(found), task, protocol)
    tables += copied_bits_tables(found, task, protocol)
    cuts = by_parts(found, but=(OF_EVERY_TASK,))
    return tables + [_parts_table(_as_loss(cut), f"{task}{protocol_of(protocol)}", protocol) for cut in cuts]


def _reach_tables(found: Sequence[Reach], task: str, protocol: str) -> list[Table]:
    """How far the median and the worst seed reach, a table for every setting that was trained and tested alike."""
    asked: dict[tuple[str, tuple[float, ...]], list[Reach]] = defaultdict(list)
    for reach in found:
        asked[canonical_text([reach.option, reach.dials]), reach.tested].append(reach)
    telling = differing([reach.dials for reach in found])
    tables = []
    for own in asked.values():
        option, trained, tested = own[0].option, own[0].trained, own[0].tested
        lines = [_reach_line(reach) for reach in own]
        reached = f"reach in {readable(option)} from {trained:,g} to {tested[-1]:,g}"
        said = f"trained at {trained:,g}, tested at {', '.join(f'{value:,g}' for value in tested)}"
        notes = (
            f"The largest {readable(option)} up to which a seed is above midway between chance and the ceiling: {said}. 0: not "
            "where it was trained either.",
            "Of the seeds the lower median, and the worst.",
        )
        tables.append(
            Table(
                title=", ".join([f"{task}{protocol_of(protocol)}", *words(own[0].dials, telling), reached]),
                corner=("architecture", "state", "seeds"),
                columns=("median", "worst"),
                lines=tuple(best(sorted(lines, key=lambda line: -(line.cells[0].mean or 0.0)), more=True)),
                notes=notes,
                units=("count", "count"),
                protocol=protocol,
            )
        )
    return tables


def _reach_line(reach: Reach) -> Line:
    values = list(reach.of.values())
    cells = tuple(Cell(mean=of(values), seeds=len(values)) for of in (statistics.median_low, min))
    state = states_of(reach.own)
    return Line(
        labels=(reach.own[0].row, str(state or UNKNOWN), str(len(values))),
        cells=cells,
        remark=remark(reach.own[0].leaves),
        state=state,
    )


def tables_by(records: Sequence[Record], by: str) -> list[Table]:
    """Scores by one part (depth, distance_up_to) or option (window, cg_steps, pairs), a table for every task and score that
    has it. Raises ValueError with the known names where none has it; and as `table_of`."""
    groups: dict[tuple[str, str], list[Measure]] = defaultdict(list)
    for task, protocol in dict.fromkeys((r.task, r.protocol) for r in records):
        own = [r for r in records if (r.task, r.protocol) == (task, protocol)]
        groups[task, protocol] = [m for m in measures(own) if m.values]
    tables: list[Table] = []
    known: dict[str, None] = {}
    for (task, protocol), found in groups.items():
        title = f"{task}{protocol_of(protocol)}"
        parts = by_parts(found)
        split = {cut.by for cut in parts}
        tables += [_parts_table(cut, title, protocol) for cut in parts if cut.by == by]
        for said, cut, own_setting in _cuts(found, title):
            known[cut.by] = None
            if cut.by == by:
                apart = _EACH_A_SETTING if own_setting and by in split else _ALIKE
                tables.append(_cut_table(cut, said, protocol, apart))
        known |= dict.fromkeys(split)
    if not tables:
        raise ValueError(f"nothing here varies by '{by}', expected {', '.join(sorted(known)) or 'nothing'}")
    return list({(table.title, table.lines): table for table in tables}.values())


def _cuts(found: Sequence[Measure], title: str) -> Iterable[tuple[str, Cut, bool]]:
    """Title and cut of every option that varies, and whether it is one of the task, so that each value is a setting."""
    shown = differing([m.dials for m in found])
    for setting in dict.fromkeys(m.setting for m in found):
        own = [m for m in found if m.setting == setting]
        said = ", ".join([title, *words(own[0].dials, shown)])
        for name in (None, *further_scores(own)):
            yield from ((said, cut, False) for cut in by_dials(own, name))
            yield from ((title, cut, True) for cut in by_settings(found, own[0].dials, name))


class _Apart(NamedTuple):
    """What tells a cut from another by the same name: the end of its title, and a note."""

    ending: str = ""
    note: str = ""


_ALIKE = _Apart()

_EACH_A_SETTING = _Apart(", each a setting", "Every column is a setting of its own, scored over all of its answers.")


def _parts_table(cut: Cut, title: str, protocol: str) -> Table:
    """The table of a cut by parts of the answers. Where an option of that name is set too (length), it says so."""
    dials = [m.dials for strand in cut.strands for m in strand.cells.values()]
    whole = sorted({str(own[cut.by]) for own in dials if own.get(cut.by) is not None}, key=by_number)
    if not whole:
        return _cut_table(cut, title, protocol)
    note = f"Columns are parts of the answers at {readable(cut.by)} {' or '.join(whole)}, and no settings of their own."
    return _cut_table(cut, title, protocol, _Apart(", parts of the answers", note))


def _cut_table(cut: Cut, title: str, protocol: str, apart: _Apart = _ALIKE) -> Table:
    """A line for every strand of a cut, and a column for every value."""
    metric = cut.metric.partition("/")[0]
    several = any(strand.setting for strand in cut.strands)
    lines = []
    for strand in cut.strands:
        own = list(strand.cells.values())
        cells = tuple(cell_of(strand.cells[v]) if v in strand.cells else Cell() for v in cut.values)
        seeds = dict.fromkeys(f(len(m.values) for m in own) for f in (min, max))
        state = states_of(own)
        about = (str(state or UNKNOWN), "–".join(map(str, seeds)))
        labels = (strand.row, *([strand.setting] if several else []), *about)
        lines.append(Line(labels=labels, cells=cells, remark=remark(own[0].leaves), state=state))
    if not several and not is_count(metric):
        lines = best(lines, more=more_is_better(metric))
    kinds: tuple[Literal["chance"], Literal["ceiling"]] = ("chance", "ceiling")
    for kind in kinds:
        cells = tuple(Cell(mean=_agreed(cut.strands, value, kind)) for value in cut.values)
        if any(cell.mean is not None for cell in cells):
            lines.append(Line(labels=(kind, *[""] * (3 if several else 2)), cells=cells, kind=kind))
    return Table(
        title=f"{title}, {readable(metric)} by {readable(cut.by)}{apart.ending}",
        corner=("architecture", *(["setting"] if several else []), "state", "seeds"),
        columns=tuple(f"{readable(cut.by)} {value}" for value in cut.values),
        lines=tuple(lines),
        notes=(
            *([apart.note] if apart.note else []),
            *notes_of([m for s in cut.strands for m in s.cells.values()], lines, "validation"),
        ),
        units=(unit_of(metric),) * len(cut.values),
        protocol=protocol,
    )


def _as_loss(cut: Cut) -> Cut:
    """A cut of the explained share as relative error, as it is published; other cuts unchanged."""
    if cut.metric != "explained":
        return cut
    strands = [replace(s, cells={value: _unexplained(m) for value, m in s.cells.items()}) for s in cut.strands]
    return replace(cut, metric=ERROR, strands=tuple(strands))


def _unexplained(measure: Measure) -> Measure:
    def less(bound: float | None) -> float | None:
        return None if bound is None else 1 - bound

    values = {seed: 1 - value for seed, value in measure.values.items()}
    return replace(measure, metric=ERROR, values=values, chance=less(measure.chance), ceiling=less(measure.ceiling))


def _agreed(strands: Iterable[Strand], value: str, kind: str) -> float | None:
    """Chance or ceiling of a column, where it is equal for all of its strands."""
    bounds = {getattr(strand.cells[value], kind) for strand in strands if value in strand.cells}
    return bounds.pop() if len(bounds) == 1 else None
