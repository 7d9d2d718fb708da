"""Records as score tables: architectures down, settings or tasks across, compared with published figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from recallmap.results.analysis.labels import differing, row_names, words
from recallmap.results.analysis.measures import Measure, measures
from recallmap.results.analysis.namesakes import remark
from recallmap.results.analysis.natural_order import by_number, by_size
from recallmap.results.analysis.outside_code import has_unknown_state
from recallmap.results.analysis.published_figures import Column, Published
from recallmap.results.analysis.selection import On
from recallmap.results.record import Record
from recallmap.results.score_tables.columns import Sheet, tables_about
from recallmap.results.score_tables.notes import notes_of, order_notes, reference_notes, source_notes
from recallmap.results.score_tables.table import (
    MAD,
    UNKNOWN,
    Cell,
    Line,
    State,
    Table,
    is_count,
    more_is_better,
    protocol_of,
    readable,
    unit_of,
)

ALWAYS_SHOWN = {"mqar": ("length", "pairs")}  # options that a column of the task names even where they do not differ


@dataclass(frozen=True, kw_only=True)
class Group:
    """What one table is about: all of MAD ("mad"), or one task, by one protocol.

    measures  by what chose the hyper-parameters: validation, and test where the protocol publishes such a choice
    """

    about: str
    protocol: str
    measures: Mapping[On, list[Measure]]


def grouped(records: Iterable[Record]) -> list[Group]:
    """The records' measures, table by table: MAD first. Raises ValueError where hyper-parameters cannot be chosen (see
    `choose_hyperparameters`)."""
    by_table: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_table["mad" if record.task in MAD else record.task, record.protocol].append(record)
    groups = []
    for (about, protocol), own in sorted(by_table.items(), key=lambda item: item[0][0] != "mad"):
        names = row_names(own)
        found = {on: measures(own, on=on, names=names) for on in _choices(own)}
        groups.append(Group(about=about, protocol=protocol, measures=found))
    return groups


def table_of(records: Sequence[Record], beside: Published | None = None, *, settings: bool = False) -> list[Table]:
    """The tables of a list of records: one of MAD where two or more of its tasks are there, one for every other task.
    Protocols are kept apart. A published protocol gives two tables: the honest one, and as published (choice on test).

    settings  add to MAD's table one for each of its tasks, with a column for each setting

    Raises ValueError where hyper-parameters cannot be chosen (see `choose_hyperparameters`).
    """
    return tables_of(grouped(records), beside, settings=settings)


def tables_of(groups: Iterable[Group], beside: Published | None = None, *, settings: bool = False) -> list[Table]:
    """As `table_of`, of measures that are there."""
    tables = []
    for group in groups:
        for on, found in group.measures.items():
            if group.about != "mad":
                tables.append(task_table(found, group.about, group.protocol, on, beside))
                continue
            trained = [m for m in found if not m.tested]
            together = len({m.task for m in trained}) > 1
            if together:
                tables.append(_mad_table(trained, group.protocol, on, beside))
            for task in MAD:
                own = [m for m in found if m.task == task]
                if own and (settings or not together or any(m.tested for m in own)):
                    tables.append(task_table(own, task, group.protocol, on, beside))
    return tables


def _choices(records: Iterable[Record]) -> tuple[On, ...]:
    return ("validation", "test") if any(r.published_choice for r in records) else ("validation",)


def _mad_table(found: list[Measure], protocol: str, on: On, beside: Published | None) -> Table:
    theirs = tables_about(beside, "mad")
    if theirs:
        columns = list(theirs[0].columns)
    else:
        columns = [Column(name=name, tasks=(task,)) for task, name in MAD.items()] + [Column(name="mean", mean=True)]
    sheet = Sheet(found, columns, theirs)
    trained = {m.task for m in found}
    missing = [MAD.get(task, task) for column in columns for task in column.tasks if task not in trained]
    notes = [f"Not trained here: {', '.join(missing)}; so there is no mean."] if missing else []
    counts = [f"{c.name} {len(sheet.settings(c))}" + (f" / {c.settings}" if c.settings else "") for c in sheet.parts]
    notes.append(f"Settings in a column{', here / published' if theirs else ''}: {', '.join(counts)}.")
    if not all(map(sheet.alike, columns)):
        notes.append("No difference is given where a column has not as many settings as the published one.")
    if theirs and protocol != "mad-lab":
        notes.append(
            f"Published figures are of protocol mad-lab, ours of {protocol}: differences are not like for like."
        )
    return replace(_table(sheet, f"MAD{protocol_of(protocol)}", on, beside, notes), protocol=protocol)


def task_table(
    found: list[Measure], task: str, protocol: str, on: On, beside: Published | None, *, score: str = ""
) -> Table:
    """The table of one task: a column for every setting, named by the options that differ."""
    settings = list({m.setting: m for m in found}.values())
    always = [d for d in ALWAYS_SHOWN.get(task, ()) if d in settings[0].dials]
    shown = list(dict.fromkeys([*always, *differing([m.dials for m in settings])]))
    settings.sort(key=lambda m: (m.task != task, m.task, [by_size(m.dials.get(d)) for d in shown]))
    several = len({m.task for m in settings}) > 1
    columns: list[Column] = []
    for measure in settings:
        dials = {d: measure.dials.get(d) for d in shown}  # one that a setting lacks tells it apart, too
        name = ", ".join([*([measure.task] if several else []), *words(dials, shown)])
        name = name or ("score" if len(settings) == 1 else "default")
        taken = sum(column.name.split(" #")[0] == name for column in columns)
        name = f"{name} #{taken + 1}" if taken else name
        columns.append(Column(name=name, tasks=(measure.task,), dials=dials))
    if len(columns) > 1:
        columns.append(Column(name="mean", mean=True))
    same = words(settings[0].dials, [d for d in settings[0].dials if d not in shown and "." not in d])
    notes = [f"Everywhere: {', '.join(same)}."] if same else []
    title = f"{task}{f', {readable(score)}' if score else ''}{protocol_of(protocol)}"
    sheet = Sheet(found, columns, tables_about(beside, task))
    return replace(_table(sheet, title, on, beside, notes), protocol=protocol)


def _table(sheet: Sheet, title: str, on: On, beside: Published | None, notes: list[str]) -> Table:
    rows: dict[str, list[Measure]] = defaultdict(list)
    for measure in sheet.found:
        rows[measure.row].append(measure)
    families = len({own[0].arch for own in rows.values()}) < len(rows)
    more = more_is_better(sheet.found[0].metric)
    lined = [(own, _line(sheet, own)) for own in rows.values()]
    measured = sorted(lined, key=_by_state if families else lambda row: _by_score(row, more))
    lines = [line for _, line in measured]
    lines = lines if is_count(sheet.found[0].metric) else best(lines, more=more)
    references = _reference_lines(sheet)
    lines = [_beside_references(line, references) for line in lines]
    if sheet.found[0].chance is not None:
        chance, ceiling = (
            tuple(Cell(mean=sheet.bound(c, name)) for c in sheet.columns) for name in ("chance", "ceiling")
        )
        lines.append(Line(labels=("chance", "", ""), cells=chance, kind="chance"))
        lines += references
        lines.append(Line(labels=("ceiling", "", ""), cells=ceiling, kind="ceiling"))
    used = {row.name for own in rows.values() for _, row in sheet.published_rows(own[0])}
    for name in dict.fromkeys(row.name for table in sheet.theirs for row in table.rows if row.name not in used):
        theirs = [(table, row) for table in sheet.theirs for row in table.rows if row.name == name]
        cells = tuple(Cell(mean=sheet.published(column, theirs)) for column in sheet.columns)
        if sum(cell.mean is not None for cell in cells) >= min(2, len(cells)):  # a lone figure says too little
            lines.append(Line(labels=(name, "", ""), cells=cells, kind="published"))
    return Table(
        title=title + (" as published: chosen on test" if on == "test" else ""),
        corner=("architecture", "state", "seeds"),
        columns=tuple(column.name for column in sheet.columns),
        lines=tuple(lines),
        notes=(
            *order_notes(sheet, measured, more=more),
            *notes_of(sheet.found, lines, on),
            *reference_notes(lines),
            *notes,
            *source_notes(sheet, beside),
        ),
        units=(unit_of(sheet.found[0].metric),) * len(sheet.columns),
        mean_at=next((i for i, column in enumerate(sheet.columns) if column.mean), None),
        beside=beside.source if beside and sheet.theirs else "",
    )


def _line(sheet: Sheet, own: list[Measure]) -> Line:
    theirs = sheet.published_rows(own[0])
    cells = [sheet.cell(own, column) for column in sheet.columns]
    if sheet.theirs:
        cells = [
            replace(cell, published=sheet.published(column, theirs), alike=sheet.alike(column))
            for cell, column in zip(cells, sheet.columns, strict=True)
        ]
    counts = sorted({cell.seeds for cell in cells if cell.seeds}) or [0]
    state = states_of(own)
    return Line(
        labels=(
            own[0].row,
            str(state or UNKNOWN),
            "–".join(str(n) for n in dict.fromkeys((counts[0], counts[-1]))),
        ),
        cells=tuple(cells),
        remark=remark(own[0].leaves),
        state=state,
    )


def _reference_lines(sheet: Sheet) -> list[Line]:
    """The lines of simpler rules, from the lowest to the highest."""
    found = []
    for name in dict.fromkeys(name for measure in sheet.found for name in measure.references):
        cells = tuple(Cell(mean=sheet.reference(column, name)) for column in sheet.columns)
        if told := [cell.mean for cell in cells if cell.mean is not None]:
            found.append((told[0], Line(labels=(name, "", ""), cells=cells, kind="reference")))
    return [line for _, line in sorted(found, key=lambda each: each[0])]


def _beside_references(line: Line, references: Sequence[Line]) -> Line:
    """A measured line whose cells say which reference line they do not lie above."""
    cells = []
    for at, cell in enumerate(line.cells):
        known = [(value, number) for number, of in enumerate(references) if (value := of.cells[at].mean) is not None]
        if cell.mean is not None and (over := [each for each in known if cell.mean <= each[0]]):
            cell = replace(cell, not_above=f"§{min(over)[1] + 1 if len(references) > 1 else ''}")
        cells.append(cell)
    return replace(line, cells=tuple(cells))


def states_of(own: Sequence[Measure]) -> State | None:
    """The state of an architecture; None where it is unknown."""
    if has_unknown_state(own[0].leaves):
        return None
    sizes = [m.state_bytes for m in own]
    return State(lowest=min(sizes), highest=max(sizes), grows=any(m.state_grows for m in own))


def best(lines: list[Line], *, more: bool) -> list[Line]:
    """Mark the best of every column; figures that read the same share the mark."""
    if len(lines) < 2:
        return lines

    def shown(cell: Cell) -> float | None:
        return None if cell.mean is None or cell.mark == "partial" else round(cell.mean, 3)

    columns = list(zip(*(line.cells for line in lines), strict=True))
    top_of = max if more else min
    tops = [
        top_of((value for cell in column if (value := shown(cell)) is not None), default=None) for column in columns
    ]
    marked = []
    for line in lines:
        pairs = zip(line.cells, tops, strict=True)
        cells = (replace(cell, mark="best") if top is not None and shown(cell) == top else cell for cell, top in pairs)
        marked.append(replace(line, cells=tuple(cells)))
    return marked


def _by_score(row: tuple[list[Measure], Line], more: bool) -> tuple[bool, float, str]:
    """Sort lines by their last column, the best first; those without one come last."""
    score = row[1].cells[-1].mean
    return score is None, (score or 0.0) * (-1 if more else 1), row[0][0].row


def _by_state(row: tuple[list[Measure], Line]) -> tuple[str, int, list[tuple[float, str]]]:
    return row[0][0].arch, row[0][0].state_bytes, by_number(row[0][0].row)
