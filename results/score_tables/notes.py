"""Notes under score tables: sources of published figures, rank correlations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from recallmap.results.analysis.confidence import Interval, share_interval
from recallmap.results.analysis.measures import NEAR, Measure
from recallmap.results.analysis.published_figures import Published
from recallmap.results.analysis.rank_correlation import FEW, bootstrap_interval, leaving_one_out, spearman
from recallmap.results.analysis.selection import On
from recallmap.results.score_tables.columns import Sheet
from recallmap.results.score_tables.table import Cell, Line, is_share, readable

ONE_CELL = (
    "One cell of hyper-parameters a task, the one with the best mean validation score over its settings; its seeds chose it, "
    "and are in the mean."
)


BELOW_CHANCE = (
    "A figure may lie below chance: chance is a guess among the answers that the rules allow, such as the values that the "
    "sequence shows, and a model that has not learned the rules guesses among all ids."
)


def notes_of(found: list[Measure], lines: list[Line], on: On) -> list[str]:
    metric = readable(found[0].metric.partition("/")[0])
    unit = ", percent" if is_share(found[0].metric) else ""
    cells = [cell for line in lines for cell in line.cells]
    bounded = {cell.chance is not None and cell.ceiling is not None for cell in cells if cell.interval}
    spread = ["in brackets its 95 % interval, for any scores between chance and ceiling"] * (True in bounded)
    spread += ["in brackets its 95 % t interval"] * (bounded == {False})
    spread += ["in parentheses both of two seeds"] * any(cell.spread and cell.seeds == 2 for cell in cells)
    said = "; ".join(spread) or "no interval, which needs three seeds"
    notes = [f"{metric[:1].upper()}{metric[1:]} on test{unit}: mean over seeds, {said}."]
    if any(cell.sampling is not None for cell in cells):
        notes.append("±: the standard error that the test sequences alone give; the interval over seeds has it in it.")
    if shares := sorted({(cell.learned, cell.seeds) for cell in cells if cell.learned is not None}):
        said = ", ".join(f"{count}/{of} {_percent(share_interval(count, of))}" for count, of in shares)
        notes.append(f"k/n: k of n seeds learned, where their scores have two peaks; Wilson's 95 % intervals: {said}.")
    if is_share(found[0].metric) and any(_below_chance(cell) for cell in cells):
        notes.append(BELOW_CHANCE)
    if any(cell.edge for cell in cells):
        notes.append("↑, ↓: best at the highest or lowest learning rate that was tried; one beyond it may be better.")
    most = max(m.candidates for m in found)
    if on == "test":
        notes.append(
            "Checkpoint and hyper-parameters are chosen on the test set, as the published protocol does: that of mad-lab "
            "takes the checkpoint of the lowest test loss, whose accuracy need not be the best. The table chosen on "
            "validation is the honest one."
        )
    if most > 1:
        notes.append(f"Of up to {most} hyper-parameter settings, the one with the best mean {on} score over seeds.")
    if any(m.values.keys() - m.chose_none for m in found):
        notes.append("Seeds that chose hyper-parameters are in the mean, and raise it; verdicts leave them out.")
    if any(c.outside for x in lines for c in x.cells):
        notes.append("‡: the published figure lies outside our 95 % interval.")
    if any(c.failed for x in lines for c in x.cells):
        notes.append("†n: n trials behind the figure failed, under any hyper-parameters; they are in no mean.")
    if any(c.mark == "partial" for x in lines for c in x.cells):
        notes.append("*: over some of the settings of the column only, so not to be compared.")
    return [*notes, *remarks_of(lines)]


def _below_chance(cell: Cell) -> bool:
    return cell.mean is not None and cell.chance is not None and cell.mean < cell.chance - NEAR


def reference_notes(lines: Sequence[Line]) -> list[str]:
    """What the marks of reference lines mean, in a table that has such lines."""
    names = [line.labels[0] for line in lines if line.kind == "reference"]
    if not names:
        return []
    several = len(names) > 1
    marks = ", ".join(f"§{number} {name}" for number, name in enumerate(names, start=1)) if several else f"§ {names[0]}"
    return [
        f"References, scores of simpler rules than the task asks for: {marks}. A figure with the mark does not lie above that "
        f"line{', the lowest of several' * several}."
    ]


def _percent(interval: Interval) -> str:
    return f"[{100 * interval[0]:.0f}, {100 * interval[1]:.0f}] %"


def remarks_of(lines: Iterable[Line]) -> list[str]:
    """A note for every remark, which names its architectures."""
    about: dict[str, dict[str, None]] = {}
    for line in lines:
        if line.remark:
            about.setdefault(line.remark, {})[line.labels[0].partition(" ")[0]] = None
    return [f"{', '.join(sorted(names))}: {said}." for said, names in about.items()]


def order_notes(sheet: Sheet, measured: Sequence[tuple[list[Measure], Line]], *, more: bool) -> list[str]:
    """The rank correlation with the published order, which has a meaning even where settings differ. Where one published row
    belongs to several of ours, the best one counts."""
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
            said.append(f"{column.name} {_order(*zip(*both.values(), strict=True))} of {len(both)}")
    if not said:
        return []
    return [
        "Rank correlation with the published order of architectures (1: the same, 0: none), in brackets its 95 % bootstrap "
        f"interval over them, in parentheses its range where one is left out: {'; '.join(said)}."
    ]


def _order(ours: Sequence[float], theirs: Sequence[float]) -> str:
    found = spearman(ours, theirs)
    if found is None:
        return "all alike"
    said = f"{found:+.2f}"
    if interval := bootstrap_interval(ours, theirs):
        said += f" [{interval[0]:+.2f}, {interval[1]:+.2f}]"
    if without := leaving_one_out(ours, theirs):
        said += f" ({without[0]:+.2f} to {without[1]:+.2f})"
    return said


def source_notes(sheet: Sheet, beside: Published | None) -> list[str]:
    """The sources of published figures, for tables that have our columns."""
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
