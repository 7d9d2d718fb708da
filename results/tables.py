"""Records as score tables: architectures down, settings or tasks across, beside what others have published."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from results.choose import Measure, On, differing, measures, trait, words
from results.interval import t_interval
from results.namesakes import remark
from results.order import by_number, by_size
from results.published import Column, Published, PublishedTable, Row
from results.rank import FEW, spearman
from results.record import Record

MAD = {  # the six tasks of MAD, in the order of its paper
    "in_context_recall": "in-context recall",
    "fuzzy_in_context_recall": "fuzzy recall",
    "noisy_in_context_recall": "noisy recall",
    "selective_copying": "selective copying",
    "compression": "compression",
    "memorization": "memorization",
}
SHOUTED = {"cg": "CG", "tvd": "TVD"}  # words that are written large wherever they are read
Unit = Literal["percent", "score", "count", "bytes", "seconds"]
ALWAYS_SHOWN = {"mqar": ("length", "pairs")}  # dials that a column of the task names even where they do not differ


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure of a table, a fraction unless the task's metric is none.

    mean       over seeds, and over settings where the column has several, of the seeds that all of these have if there are
               two; None where there is nothing to show
    interval   95 % t interval over seeds; None for fewer than two
    published  what stands beside it
    alike      whether that is a mean over as many settings; if not, there is no difference to speak of
    failed     failed trials behind the cell, under any hyper-parameters
    mark       "best" of its column; "partial" where settings of the column are missing
    keys       of the records that the mean rests on
    """

    mean: float | None = None
    seeds: int = 0
    interval: tuple[float, float] | None = None
    published: float | None = None
    alike: bool = True
    chance: float | None = None
    ceiling: float | None = None
    failed: int = 0
    settings: int = 0
    mark: Literal["", "best", "partial"] = ""
    keys: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours less the published figure, where they are of the same settings."""
        if self.mean is None or self.published is None or not self.alike or self.mark == "partial":
            return None
        return self.mean - self.published

    @property
    def outside(self) -> bool:
        """Whether the published figure lies outside our interval; no where there is no interval."""
        return self.interval is not None and self.difference is not None and not self._holds(self.published or 0.0)

    def _holds(self, value: float) -> bool:
        low, high = self.interval or (value, value)
        return low - 1e-9 <= value <= high + 1e-9


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a table: `labels` under the headings of `Table.corner`, then a cell a column.

    remark  what the architecture is, where its name promises another model (see `namesakes`)
    """

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    kind: Literal["measured", "published", "chance", "ceiling"] = "measured"
    remark: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as plain data.

    units    of the columns; those in percent hold fractions
    mean_at  which column averages the others, if one does
    beside   the published source
    protocol of the task, "" for tables of several
    """

    title: str
    corner: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    units: tuple[Unit, ...]
    mean_at: int | None = None
    beside: str = ""
    protocol: str = ""

    @property
    def percent(self) -> bool:
        """Whether figures are fractions, to be shown as percent."""
        return self.units[0] == "percent"


def table_of(records: Sequence[Record], beside: Published | None = None, *, settings: bool = False) -> list[Table]:
    """The tables that a list of records makes: one of MAD where two or more of its tasks are there, one for every other
    task. Protocols are kept apart. A published protocol gives two tables: the honest one, and as published (choice on test).

    `settings` True adds to MAD's table one for each of its tasks, a column a setting.
    Raises ValueError where hyper-parameters cannot be chosen (see `choose_hyperparameters`).
    """
    mad: dict[str, list[Record]] = defaultdict(list)
    others: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.task in MAD:
            mad[record.protocol].append(record)
        else:
            others[record.task, record.protocol].append(record)
    tables = []
    for protocol, group in mad.items():
        together = len({r.task for r in group}) > 1
        for on in _choices(group):
            found = measures(group, on=on)
            if together:
                tables.append(_mad_table([m for m in found if not m.tested], protocol, on, beside))
            for task in MAD:
                own = [m for m in found if m.task == task]
                if own and (settings or not together or any(m.tested for m in own)):
                    tables.append(task_table(own, task, protocol, on, beside))
    for (task, protocol), group in others.items():
        for on in _choices(group):
            tables.append(task_table(measures(group, on=on), task, protocol, on, beside))
    return tables


def size(count: int) -> str:
    """A number of bytes for people, in units of 1000: 512 B, 34.3 kB, 1.05 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * scale:  # from there on it reads as 1 of the unit
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def is_share(metric: str) -> bool:
    """Whether a metric is a share, to be shown as percent."""
    return "accuracy" in metric or metric.startswith("exact_match")


def more_is_better(metric: str) -> bool:
    """Losses, distances and counts of steps are better where they are small."""
    return is_share(metric) or metric.startswith("explained")


def is_count(metric: str) -> bool:
    """Whether a score counts what was spent, of which neither much nor little is good in itself."""
    return metric.endswith("_steps")


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
    """One task: a column for every setting, named by the dials that differ."""
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
    for name in ("chance", "ceiling") if sheet.found[0].chance is not None else ():
        cells = tuple(Cell(mean=sheet.bound(column, name)) for column in sheet.columns)
        lines.append(Line(labels=(name, "", ""), cells=cells, kind="chance" if name == "chance" else "ceiling"))
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
            *_order_notes(sheet, measured, more=more),
            *notes_of(sheet.found, lines, on),
            *notes,
            *_source_notes(sheet, beside),
        ),
        units=(unit_of(sheet.found[0].metric),) * len(sheet.columns),
        mean_at=next((i for i, column in enumerate(sheet.columns) if column.mean), None),
        beside=beside.source if beside and sheet.theirs else "",
    )


def _line(sheet: Sheet, own: list[Measure]) -> Line:
    theirs = sheet.published_rows(own[0])
    cells = [
        replace(sheet.cell(own, column), published=sheet.published(column, theirs), alike=sheet.alike(column))
        for column in sheet.columns
    ]
    counts = sorted({cell.seeds for cell in cells if cell.seeds}) or [0]
    return Line(
        labels=(
            own[0].row,
            states_of(own),
            "–".join(str(n) for n in dict.fromkeys((counts[0], counts[-1]))),
        ),
        cells=tuple(cells),
        remark=remark(own[0].leaves),
    )


def states_of(own: Sequence[Measure]) -> str:
    """The sizes of state that an architecture had, "1–4 kB, grows"."""
    sizes = sorted({m.state_bytes for m in own})
    (low, unit), (high, same) = size(sizes[0]).split(), size(sizes[-1]).split()
    state = f"{high} {same}" if low == high else f"{low}{'' if unit == same else f' {unit}'}–{high} {same}"
    return state + (", grows" if any(m.state_grows for m in own) else "")


class Sheet:
    """What was measured, laid out in columns, and what stands beside it."""

    def __init__(self, found: list[Measure], columns: list[Column], theirs: list[PublishedTable]) -> None:
        self.found = found
        self.columns = columns
        self.theirs = theirs
        self.parts = [column for column in columns if not column.mean]
        self._settings = {column.name: {m.setting: m for m in _of(found, column)} for column in self.parts}

    def settings(self, column: Column) -> dict[str, Measure]:
        """The settings that a column averages, with one measure of each."""
        return self._settings[column.name]

    def cell(self, own: list[Measure], column: Column) -> Cell:
        """Of one architecture. The mean of columns counts each column once, as published averages do."""
        parts = [column] if not column.mean else self.parts
        held = [_of(own, part) for part in parts]
        scored = [[m for m in group if m.values] for group in held]
        choices = {m.keys or m.setting: m for group in held for m in group}  # one choice may be measured many times
        failed = sum(m.failed for m in choices.values())
        if not any(held):  # a setting to test on alone, of trials that all failed
            return Cell(failed=0 if any(m.values for m in own) else max(m.failed for m in own))
        whole = all({m.setting for m in group} == set(self.settings(p)) for group, p in zip(scored, parts, strict=True))
        if any({m.task for m in group} != set(p.tasks) for group, p in zip(scored, parts, strict=True)):
            tried = all({m.task for m in group} == set(p.tasks) for group, p in zip(held, parts, strict=True))
            return Cell(failed=failed if tried or not any(m.values for m in own) else 0)
        if column.mean and not whole:
            return Cell(failed=failed)

        def average(value: Callable[[Measure], float]) -> float:
            return float(np.mean([_over_tasks(g, p, value) for g, p in zip(scored, parts, strict=True)]))

        seeds = sorted(set.intersection(*(set(m.values) for group in scored for m in group)))
        several = len(seeds) > 1  # then of these alone, so that the interval is that of the mean
        by_seed = _by_seed(scored, parts, seeds)
        return Cell(
            mean=float(np.mean(by_seed)) if several else average(lambda m: float(np.mean(list(m.values.values())))),
            seeds=len(seeds) if several else min(len(m.values) for group in scored for m in group),
            interval=t_interval(by_seed),
            chance=self._average_bound(scored, parts, "chance"),
            ceiling=self._average_bound(scored, parts, "ceiling"),
            failed=failed,
            settings=sum(len(group) for group in scored),
            mark="" if whole else "partial",
            keys=tuple(dict.fromkeys(key for group in scored for m in group for key in m.keys)),
        )

    @staticmethod
    def _average_bound(scored: list[list[Measure]], parts: list[Column], name: str) -> float | None:
        if any(getattr(m, name) is None for group in scored for m in group):
            return None
        found = [_over_tasks(g, p, lambda m: float(getattr(m, name))) for g, p in zip(scored, parts, strict=True)]
        return float(np.mean(found))

    def bound(self, column: Column, name: str) -> float | None:
        """Chance or ceiling of a column, every setting once."""
        values = []
        for part in [column] if not column.mean else self.parts:
            own = list(self.settings(part).values())
            if {m.task for m in own} != set(part.tasks):
                return None
            values.append(_over_tasks(own, part, lambda m: float(getattr(m, name))))
        return float(np.mean(values))

    def alike(self, column: Column) -> bool:
        """Whether a column of ours averages as many settings as the published one says it does."""
        parts = self.parts if column.mean else [column]
        return all(not part.settings or part.settings == len(self.settings(part)) for part in parts)

    def published_rows(self, measure: Measure) -> list[tuple[PublishedTable, Row]]:
        """The published rows of the architecture that was measured."""
        return [
            (table, row)
            for table in self.theirs
            for row in table.rows
            if measure.arch in row.ours
            and not row.note
            and all(trait(*dial) in measure.traits for dial in row.dials.items())
        ]

    def published(self, column: Column, rows: list[tuple[PublishedTable, Row]]) -> float | None:
        """The first published figure that speaks of a column of ours."""
        for table, row in rows:
            for theirs, value in zip(table.columns, row.values, strict=True):
                if value is not None and self._same(column, theirs, table):
                    return value
        return None

    def _same(self, ours: Column, theirs: Column, table: PublishedTable) -> bool:
        """Whether two columns are of the same settings, trained alike."""
        if ours.mean and theirs.mean and theirs.over:
            singles = [list(self.settings(part).values()) for part in self.parts]
            found = [sum(all(_agree(m, dials, table) for m in own) for own in singles) for dials in theirs.over]
            return len(self.parts) == len(theirs.over) and found == [1] * len(found)
        if theirs.mean:
            tasks = [{task for column in columns for task in column.tasks} for columns in (self.parts, table.columns)]
            return ours.mean and tasks[0] == tasks[1] and len(self.parts) == len(table.columns) - 1
        own = [m for part in (self.parts if ours.mean else [ours]) for m in self.settings(part).values()]
        averaged = theirs.settings and ours != theirs  # of a task whose settings are each a column of ours
        if ours.mean or averaged:
            return {m.task for m in own} == set(theirs.tasks) and len(own) == theirs.settings
        return set(ours.tasks) == set(theirs.tasks) and all(_agree(m, theirs.dials, table) for m in own)


def _agree(measure: Measure, dials: Mapping[str, Any], table: PublishedTable) -> bool:
    return measure.mixed == table.mix and all(measure.dials.get(name) == value for name, value in dials.items())


def _of(own: Iterable[Measure], column: Column) -> list[Measure]:
    return [m for m in own if m.task in column.tasks and all(m.dials.get(d) == v for d, v in column.dials.items())]


def _over_tasks(own: list[Measure], column: Column, value: Callable[[Measure], float]) -> float:
    """Mean over the settings of a task, then over the tasks of a column."""
    return float(np.mean([np.mean([value(m) for m in own if m.task == task]) for task in column.tasks]))


def _by_seed(scored: list[list[Measure]], parts: list[Column], seeds: list[int]) -> list[float]:
    """`_over_tasks`, and then the mean over columns, of every seed: all of them at once, for there may be thousands."""

    def over(means: list[list[float]] | list[NDArray[np.float64]]) -> NDArray[np.float64]:
        return np.ascontiguousarray(np.transpose(np.array(means, dtype=np.float64))).mean(axis=1)

    columns = [
        over([over([[m.values[s] for s in seeds] for m in own if m.task == task]) for task in column.tasks])
        for own, column in zip(scored, parts, strict=True)
    ]
    return [float(mean) for mean in over(columns)] if seeds else []


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
    """The best last column first; those without one at the end."""
    score = row[1].cells[-1].mean
    return score is None, (score or 0.0) * (-1 if more else 1), row[0][0].row


def _by_state(row: tuple[list[Measure], Line]) -> tuple[str, int, list[tuple[float, str]]]:
    return row[0][0].arch, row[0][0].state_bytes, by_number(row[0][0].row)


def notes_of(found: list[Measure], lines: list[Line], on: On) -> list[str]:
    metric = readable(found[0].metric.partition("/")[0])
    unit = ", percent" if is_share(found[0].metric) else ""
    several = any(cell.interval for line in lines for cell in line.cells)
    spread = "± half of the 95 % t interval over seeds" if several else "no interval, which needs two seeds"
    notes = [f"{metric[:1].upper()}{metric[1:]} on test{unit}: mean over seeds, {spread}."]
    most = max(m.candidates for m in found)
    if on == "test":
        notes.append(
            "Checkpoint and hyper-parameters are chosen on the test set, as the published protocol does: that of mad-lab "
            "takes the checkpoint of the lowest test loss, whose accuracy need not be the best. The table chosen on "
            "validation is the honest one."
        )
    if most > 1:
        notes.append(f"Of up to {most} hyper-parameter settings, the one with the best mean {on} score over seeds.")
    if any(c.outside for x in lines for c in x.cells):
        notes.append("‡: the published figure lies outside our 95 % interval.")
    if any(c.failed for x in lines for c in x.cells):
        notes.append("†n: n trials behind the figure failed, under any hyper-parameters; they are in no mean.")
    if any(c.mark == "partial" for x in lines for c in x.cells):
        notes.append("*: over some of the settings of the column only, so not to be compared.")
    return [*notes, *remarks_of(lines)]


def remarks_of(lines: Iterable[Line]) -> list[str]:
    """A note for every remark, after the names of the architectures that it is about."""
    about: dict[str, dict[str, None]] = {}
    for line in lines:
        if line.remark:
            about.setdefault(line.remark, {})[line.labels[0].partition(" ")[0]] = None
    return [f"{', '.join(sorted(names))}: {said}." for said, names in about.items()]


def tables_about(beside: Published | None, about: str) -> list[PublishedTable]:
    """Those of a task, and for one of MAD's those of MAD, of which a column may be its mean."""
    wanted = (about, "mad") if about in MAD else (about,)
    return [table for table in beside.tables if table.about in wanted] if beside else []


def _order_notes(sheet: Sheet, measured: Sequence[tuple[list[Measure], Line]], *, more: bool) -> list[str]:
    """Whether architectures come in the published order, which can be told where settings differ and figures do not compare.
    Of several rows of ours that one published row stands beside, the best one counts."""
    said = []
    theirs = [tuple((r.name, *r.dials.items()) for _, r in sheet.published_rows(own[0])) for own, _ in measured]
    for number, column in enumerate(sheet.columns):
        both: dict[tuple[Any, ...], tuple[float, float]] = {}
        for row, (_, line) in zip(theirs, measured, strict=True):
            cell = line.cells[number]
            if cell.mean is not None and cell.published is not None and cell.mark != "partial":
                score = round(cell.mean, 3)
                both[row] = ((max if more else min)(score, both.get(row, (score,))[0]), cell.published)
        if len(both) >= FEW:
            found = spearman(*zip(*both.values(), strict=True))
            said.append(f"{column.name} {'all alike' if found is None else f'{found:+.2f}'} of {len(both)}")
    if not said:
        return []
    return [f"Rank correlation with the published order of architectures (1: the same, 0: none): {', '.join(said)}."]


def _source_notes(sheet: Sheet, beside: Published | None) -> list[str]:
    """Where published figures come from, for the tables that speak of our columns."""
    if beside is None:
        return []
    rows = [(table, [(table, row) for row in table.rows]) for table in sheet.theirs]
    used = [table for table, own in rows if any(sheet.published(column, own) is not None for column in sheet.columns)]
    notes = []
    for table in used:
        how = "" if table.how == "reported" else f", {table.how}"
        error = f" to ±{100 * table.tolerance:g} points" if table.tolerance else ""
        notes.append(f"Published: {beside.source}, {table.where}{how}{error}. {table.note}".strip())
    return notes or [f"Published: {beside.source} has no figure for these settings, trained like this."]


def unit_of(metric: str) -> Unit:
    return "percent" if is_share(metric) else "score"


def readable(name: str) -> str:
    """The name of a dial or a score in words: CG steps for cg_steps."""
    return " ".join(SHOUTED.get(word, word) for word in name.split("_"))


def protocol_of(protocol: str) -> str:
    return "" if protocol == "repaired" else f", protocol {protocol}"
