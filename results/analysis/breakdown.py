"""Cuts of the same trials: scores by a part of the answers (depth, position), or by a parameter that varies.

The parameter belongs to the architecture (window, degree, cg_steps, those of an expansion) or to the task's setting
(length, pairs). Everything else on a line is equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recallmap.results.analysis.labels import canonical_text, differing, words
from recallmap.results.analysis.measures import Measure, is_error
from recallmap.results.analysis.natural_order import by_number

OF_EVERY_TASK = "distance_up_to"  # tokens back to the answer: the cut of every task that names no cut of its own

USUAL = ("accuracy", "macro_accuracy", "exact_match", "loss")  # scores that add nothing to the headline score

NONE = "none"  # the value of a parameter that is not set

MOST_PARTS = 16  # of an answer: more of them are joined into STRETCHES

STRETCHES = 10


@dataclass(frozen=True, kw_only=True)
class Strand:
    """One line of a cut: the measure at every value at which there is one."""

    row: str
    setting: str  # the parameters in which lines differ, as text
    cells: Mapping[str, Measure]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """`metric` of every strand against the `values` of `by`, in their order."""

    by: str
    metric: str
    values: tuple[str, ...]
    strands: tuple[Strand, ...]


def by_parts(measures: Sequence[Measure], *, but: Collection[str] = ()) -> list[Cut]:
    """A cut for every way in which the task breaks its answers down. `measures` are of one task; each gives a strand. Where
    settings differ only in the parameter of the cut (a length that includes the shorter ones), the one with the most parts
    counts. More than MOST_PARTS parts (the depths of RULER's grid) are joined with their neighbours, with equal weights.

    but  ways that give no cut
    """
    cells: dict[str, dict[str, tuple[Measure, dict[str, Measure]]]] = defaultdict(dict)
    metrics: dict[str, str] = {}
    for measure in measures:
        for by, (metric, values) in _parts(measure).items():
            if by in but:
                continue
            metrics[by] = metric
            rest = {name: value for name, value in measure.dials.items() if name != by}
            place = canonical_text([measure.row, rest])
            if len(values) > len(cells[by].get(place, (measure, {}))[1]):
                cells[by][place] = measure, {value: measure.of(f"{metric}/{by}={value}") for value in values}
    cuts = []
    for by, found in cells.items():
        shown = differing([m.dials for m, _ in found.values()])
        ordered = sorted(
            found.values(), key=lambda one: (by_number(one[0].row), [_order(_said(one[0].dials.get(d))) for d in shown])
        )
        strands = [Strand(row=m.row, setting=", ".join(words(m.dials, shown)), cells=own) for m, own in ordered]
        cuts.append(joined(_cut(by, metrics[by], strands), MOST_PARTS))
    return cuts


def by_dials(measures: Sequence[Measure], metric: str | None = None) -> list[Cut]:
    """A cut for every parameter in which alone, names aside, two architectures differ. `measures` are of one setting, all by
    the score `metric` where it is given."""
    by_row = {m.row: m for measure in measures if (m := measure.of(metric) if metric else measure).values}
    own = list(by_row.values())
    shown = [path for path in differing([m.leaves for m in own]) if path != "name"]
    strands: dict[str, list[Strand]] = defaultdict(list)
    told: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(path.rsplit(".", 1)[-1] for path in shown):
        for cells in _alike(own, name, shown):
            strands[name].append(Strand(row=_label(cells, name, own, told), setting="", cells=cells))
    return [_cut(name, _metric_of(found), found) for name, found in strands.items()]


def _label(
    cells: Mapping[str, Measure], name: str, measures: Sequence[Measure], told: dict[tuple[str, ...], list[str]]
) -> str:
    """The names of the architectures on a line, and the parameters that tell them from others of these names, which `told`
    caches."""
    called = tuple(dict.fromkeys(_called(m) for m in cells.values()))
    first = next(iter(cells.values()))
    if called not in told:
        told[called] = differing([m.leaves for m in measures if _called(m) in called])
    rest = [path for path in told[called] if path != "name" and path.rsplit(".", 1)[-1] != name]
    return " ".join([" / ".join(called), *words(first.leaves, rest, "=")])


def _called(measure: Measure) -> str:
    return str(measure.leaves.get("name", measure.arch))


def by_settings(measures: Sequence[Measure], at: Mapping[str, Any], metric: str | None = None) -> list[Cut]:
    """A cut for every parameter of the task in which alone a setting differs from the one at `at`."""
    found = (by_setting(measures, dial, near, metric) for dial, near in neighbours(measures, at).items())
    return [cut for cut in found if cut is not None]


def neighbours(measures: Sequence[Measure], at: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """For every parameter in which measures differ: the settings that differ from the one at `at` in it alone, and that one
    itself."""
    settings = {m.setting: m.dials for m in measures}
    found = {}
    for dial in differing(list(settings.values())):
        rest = {name: value for name, value in at.items() if name != dial}
        near = (of for of, dials in settings.items() if {n: v for n, v in dials.items() if n != dial} == rest)
        found[dial] = frozenset(near)
    return found


def by_setting(measures: Sequence[Measure], dial: str, near: Collection[str], metric: str | None = None) -> Cut | None:
    """The cut along one parameter through settings that differ in nothing else. None where no architecture was measured on
    two of them."""
    rows: dict[str, dict[str, Measure]] = defaultdict(dict)
    for measure in (m.of(metric) if metric else m for m in measures if m.setting in near):
        if measure.values:
            rows[measure.row][_said(measure.dials.get(dial))] = measure
    strands = [Strand(row=row, setting="", cells=rows[row]) for row in sorted(rows, key=by_number)]
    if max((len(s.cells) for s in strands), default=0) < 2:
        return None
    return _cut(dial.rsplit(".", 1)[-1], _metric_of(strands), strands)


def by_every_setting(measures: Sequence[Measure], metric: str | None = None) -> list[Cut]:
    """A cut for every parameter of the task in which alone two settings differ, at any values of the others. Lines are means
    over all settings of the other parameters."""
    measures = [m.of(metric) if metric else m for m in measures]
    cuts = []
    for dial in differing([m.dials for m in measures]):
        rows: dict[tuple[str, str], dict[str, Measure]] = defaultdict(dict)
        for measure in measures:
            rest = {name: value for name, value in measure.dials.items() if name != dial}
            place = measure.row, canonical_text([measure.task, rest])
            if measure.values:
                rows[place][_said(measure.dials.get(dial))] = measure
        strands = [Strand(row=row, setting="", cells=cells) for (row, _), cells in rows.items() if len(cells) > 1]
        if strands:
            cuts.append(averaged(_cut(dial.rsplit(".", 1)[-1], _metric_of(strands), strands)))
    return cuts


def averaged(cut: Cut) -> Cut:
    """The cut with one line per architecture: its mean over settings, at the values at which it was measured on all."""
    rows: dict[str, list[Strand]] = defaultdict(list)
    for strand in cut.strands:
        rows[strand.row].append(strand)
    strands = []
    for row in sorted(rows, key=by_number):
        cells = {}
        for value in cut.values:
            if all(value in strand.cells for strand in rows[row]):
                own = [strand.cells[value] for strand in rows[row]]
                cells[value] = _mean(own, sorted(set.intersection(*(set(m.values) for m in own))))
        strands.append(Strand(row=row, setting="", cells={value: m for value, m in cells.items() if m.values}))
    return _cut(cut.by, cut.metric, [strand for strand in strands if strand.cells])


def joined(cut: Cut, most: int) -> Cut:
    """The cut with neighbouring values joined into STRETCHES, where there are more than `most` and all are numbers."""
    if len(cut.values) <= most or any(_order(value)[0] != 1 for value in cut.values):
        return cut
    parts = [[str(value) for value in part] for part in np.array_split(np.array(cut.values), STRETCHES)]
    strands = []
    for strand in cut.strands:
        cells = {}
        for part in parts:
            own = [strand.cells[value] for value in part if value in strand.cells]
            if own:
                seeds = sorted(set.union(*(set(m.values) for m in own)))
                cells[f"{part[0]}-{part[-1]}"] = _mean(own, seeds)
        strands.append(replace(strand, cells=cells))
    return _cut(cut.by, cut.metric, strands)


def _mean(own: Sequence[Measure], seeds: Sequence[int]) -> Measure:
    """The mean measure of one architecture over several settings or parts; a seed averages those on which it was measured."""

    def bound(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None

    return replace(
        own[0],
        values={seed: float(np.mean([m.values[seed] for m in own if seed in m.values])) for seed in seeds},
        errors={},
        keys=tuple(dict.fromkeys(key for m in own for key in m.keys)),
        state_bytes=max(m.state_bytes for m in own),
        chance=bound([m.chance for m in own]),
        ceiling=bound([m.ceiling for m in own]),
    )


def further_scores(measures: Iterable[Measure]) -> list[str]:
    """The names of scores that measure something other than the headline does, such as tvd or cg_steps."""
    names = {name: None for m in measures for scores in m.scores.values() for name in scores if name != m.metric}
    return [name for name in sorted(names) if "/" not in name and name not in USUAL and not is_error(name)]


def _parts(measure: Measure) -> dict[str, tuple[str, list[str]]]:
    """The ways in which the answers of a measure are broken down: {"depth": ("exact_match", ["0", "50", "100"])}. The score
    is the scaled headline if there is one, else the headline, else the accuracy."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in dict.fromkeys(name for scores in measure.scores.values() for name in scores):
        metric, _, part = name.partition("/")
        by, is_part, value = part.partition("=")
        if is_part and "/" not in value and not is_error(metric):
            found[by][metric].append(value)
    wanted = (f"scaled_{measure.metric}", measure.metric, "accuracy")
    best = {by: next((m for m in wanted if m in metrics), None) for by, metrics in found.items()}
    return {by: (metric, found[by][metric]) for by, metric in best.items() if metric and len(found[by][metric]) > 1}


def _alike(own: Sequence[Measure], name: str, shown: Sequence[str]) -> list[dict[str, Measure]]:
    """Measures by value of the parameter `name`, in groups that agree in all others, the architecture's name aside. A measure
    without the whole part (it was not expanded) agrees with any group that has the part, and its value is NONE."""
    paths = [p for p in shown if p.rsplit(".", 1)[-1] == name]
    parents = {path.rpartition(".")[0] for path in paths}
    whole, lacking = [], []
    for measure in own:
        held = [p for p in paths if p in measure.leaves]
        none = [p for p in parents if p in measure.leaves]
        if held and len({_said(measure.leaves[p]) for p in held}) == 1:
            whole.append((measure, _said(measure.leaves[held[0]])))
        elif none and not held:
            lacking.append(measure)

    def rest(measure: Measure, without: Iterable[str]) -> str:
        below = tuple(f"{parent}." for parent in without)
        ignored = {"name", *paths, *without}
        kept = {n: v for n, v in measure.leaves.items() if n not in ignored and not n.startswith(below)}
        return canonical_text(kept)

    groups: dict[str, dict[str, Measure]] = defaultdict(dict)
    for measure, value in whole:
        groups[rest(measure, ())][value] = measure
    examples = [(next(iter(cells.values())), cells) for cells in groups.values()]
    like: dict[tuple[str, ...], dict[str, list[dict[str, Measure]]]] = {}
    for measure in lacking:
        parts = tuple(p for p in parents if p in measure.leaves)
        if parts not in like:
            like[parts] = defaultdict(list)
            for example, cells in examples:
                like[parts][rest(example, parts)].append(cells)
        for cells in like[parts].get(rest(measure, parts), ()):
            cells[NONE] = measure
    return [cells for cells in groups.values() if len(cells) > 1]


def _cut(by: str, metric: str, strands: Sequence[Strand]) -> Cut:
    values = sorted({value for strand in strands for value in strand.cells}, key=_order)
    return Cut(by=by, metric=metric, values=tuple(values), strands=tuple(strands))


def _metric_of(strands: Sequence[Strand]) -> str:
    return next(iter(strands[0].cells.values())).metric


def _said(value: Any) -> str:
    if value is None:
        return NONE
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _order(value: str) -> tuple[int, float, str]:
    """A key to sort values by: NONE first, then numbers, then words; a stretch ("17-32") by its end."""
    if value == NONE:
        return 0, 0.0, ""
    try:
        return 1, float(value.rpartition("-")[2] if value[:1].isdigit() and "e-" not in value else value), value
    except ValueError:
        return 2, 0.0, value
