"""What the page shows, as plain data: page/figures.js draws it, and both name the same things."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from results.choose import Answer, Measure, answers, differing, flatten, measures, row_names, words
from results.interval import t_interval
from results.pareto import front
from results.record import SHORT, Record
from results.render import figure
from results.tables import Cell, Line, Table, is_share, size

CURVE_POINTS = 60  # of one learning curve, at most
ALL_POINTS = 60_000  # of all curves together; very many trials have coarser curves, so that the page stays small
NEAR = 0.05  # how far below the best a smaller state is still worth a mention


def figures(records: Sequence[Record], tables: Sequence[Table]) -> dict[str, Any]:
    """Trials as columns of numbers, the views of the first figure, and the tables of the second.

    Scores travel as whole ten-thousandths, curves as whole thousandths. Needs one record with a score.
    """
    done = [r for r in records if r.score is not None]
    index = _Index(done, row_names(records))
    hypers, clocks = _Names(), _Names()
    labels = hyper_names(done)
    points = max(2, min(CURVE_POINTS, ALL_POINTS // len(done)))
    trials = {
        "key": [r.key[:SHORT] for r in done],
        "arch": [index.archs.of(r.arch) for r in done],
        "row": [index.rows.of(index.row_of[r.key]) for r in done],
        "hyper": [hypers.of(label) for label in labels],
        "seed": [r.seed for r in done],
        "validation": [_ten_thousandths(r.validation.get(r.metric)) for r in done],
        "steps": [r.steps for r in done],
        "seconds": [round(r.seconds, 1 if r.seconds < 10 else None) for r in done],
        "curve": [_curve(r, points, clocks) for r in done],
    }
    grows = {r.arch for r in done if r.state_grows}
    return {
        "trials": trials,
        "archs": [{"name": name, "grows": name in grows} for name in index.archs.names],
        "rows": index.rows.names,
        "hypers": hypers.names,
        "clocks": [json.loads(clock) for clock in clocks.names],
        "views": _views(records, index),
        "tables": [_heat(table, index) for table in tables],
    }


class _Names:
    """Names by number, so that the page holds each name once."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers: dict[str, int] = {}
        for name in names:
            self.of(name)

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        return list(self._numbers)


class _Index:
    """Where a trial, an architecture and a row of the tables stand in the page's data."""

    def __init__(self, done: list[Record], row_of: dict[str, str]) -> None:
        self.done = done
        self.trial = {r.key: number for number, r in enumerate(done)}
        self.row_of = row_of
        self.archs = _Names(sorted({r.arch for r in done}))
        self.rows = _Names(sorted(set(row_of.values())))


def _views(records: Sequence[Record], index: _Index) -> list[dict[str, Any]]:
    """A view for every setting, and one for their mean where trials were tested on more than they trained on."""
    by_task: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_task[record.task, record.protocol].append(record)
    views = []
    for (task, protocol), own in by_task.items():
        group = task if protocol == "repaired" else f"{task}, protocol {protocol}"
        scored = {r.key: [a for a in answers(r) if a.score is not None] for r in own if r.score is not None}
        settings: dict[str, dict[str, Answer]] = defaultdict(dict)
        for key, found in scored.items():
            for answer in found:
                settings[answer.setting][key] = answer
        points: dict[str, list[Measure]] = defaultdict(list)
        by_choice: dict[tuple[str, ...], list[Measure]] = defaultdict(list)
        for measure in measures(own, names=index.row_of):
            if measure.values:
                points[measure.setting].append(measure)
                by_choice[measure.keys].append(measure)
        most = max((len(found) for found in scored.values()), default=0)
        if most > 1:
            whole = {key: found for key, found in scored.items() if len(found) == most}
            groups = [own for own in by_choice.values() if len(own) == most]
            views.append(_view(f"{group}: mean over {most} settings", whole, groups, index))
        shown = differing([next(iter(by_key.values())).dials for by_key in settings.values()])
        for setting, by_key in settings.items():
            answer = next(iter(by_key.values()))
            dials = ", ".join([*([answer.task] if answer.task != task else []), *words(answer.dials, shown)])
            label = f"{group}: {dials}" if dials else group
            single = {key: [answer] for key, answer in by_key.items()}
            views.append(_view(label, single, [[m] for m in points[setting]], index))
    return views


def _view(label: str, found: dict[str, list[Answer]], groups: list[list[Measure]], index: _Index) -> dict[str, Any]:
    """What trials scored on one setting, or on the mean of several: `found` by key, `groups` by architecture."""
    first, example = index.done[index.trial[next(iter(found))]], next(iter(found.values()))
    percent = is_share(first.metric)
    chance, ceiling = (float(np.mean([getattr(answer, name) for answer in example])) for name in ("chance", "ceiling"))
    means = sorted((_point(own, index) for own in groups), key=lambda m: (m["state"], m["mean"]))
    on_front = front([(m["mean"], m["state"]) for m in means], [True, False])
    return {
        "label": label,
        "metric": first.metric,
        "percent": percent,
        "chance": chance,
        "ceiling": ceiling,
        "own": {"chance": first.chance, "ceiling": first.ceiling, "references": first.references, "percent": percent},
        "references": first.references if example == answers(first)[:1] else {},
        "length": max(answer.state_length for answer in example),
        "trials": [index.trial[key] for key in found],
        "scores": [_ten_thousandths(_mean(own)) for own in found.values()],
        "states": [max(answer.state_bytes for answer in own) for own in found.values()],
        "means": [{**mean, "front": bool(on)} for mean, on in zip(means, on_front, strict=True)],
        "seen": _seen(means, index, percent, NEAR * (1.0 if percent else ceiling - chance)),
        "learnt": _learnt(means, index),
    }


def _mean(found: list[Answer]) -> float:
    return float(np.mean([answer.score for answer in found if answer.score is not None]))


def _point(own: list[Measure], index: _Index) -> dict[str, Any]:
    """The mean over seeds of one architecture, over all the settings that it was measured on."""
    seeds = sorted(set.intersection(*(set(m.values) for m in own)))
    values = [float(np.mean([m.values[seed] for m in own])) for seed in seeds]
    spread = t_interval(values)
    return {
        "arch": index.archs.of(own[0].arch),
        "row": index.rows.of(own[0].row),
        "state": max(m.state_bytes for m in own),
        "mean": round(float(np.mean(values)), 5),
        "half": None if spread is None else round((spread[1] - spread[0]) / 2, 5),
        "trials": [index.trial[key] for key in own[0].keys],
    }


def _seen(means: list[dict[str, Any]], index: _Index, percent: bool, near: float) -> str:
    """The figure's message: who recalls most, who with a fixed state, and who nearly as much with less."""
    if not means:
        return ""

    def say(point: dict[str, Any]) -> str:
        score = figure(point["mean"], percent) + (" %" if percent else "")
        return f"{index.rows.names[point['row']]}, {score} with {size(point['state'])}"

    def best_of(points: list[dict[str, Any]]) -> dict[str, Any]:
        return max(points, key=lambda m: (round(m["mean"], 3), -m["state"]))  # as it reads, ties to the smaller state

    grows = {index.archs.of(r.arch) for r in index.done if r.state_grows}
    fixed = [m for m in means if m["arch"] not in grows] or means
    best, best_fixed = best_of(means), best_of(fixed)
    cheap = min((m for m in fixed if m["mean"] >= best_fixed["mean"] - near), key=lambda m: (m["state"], -m["mean"]))
    distance = f"{100 * near:.0f} points" if percent else f"{near:.2g}"
    parts = [f"Most recall: {say(best)} of state{', which grows with length' if best['arch'] in grows else ''}."]
    if best_fixed is not best:
        parts.append(f"With a state of fixed size: {say(best_fixed)}.")
    if cheap["state"] < best_fixed["state"]:
        parts.append(f"Within {distance} of that with the least state: {say(cheap)}.")
    elif len(fixed) > 1:
        parts.append(f"None with less state comes within {distance} of that.")
    return " ".join(parts)


def _learnt(means: list[dict[str, Any]], index: _Index) -> str:
    """Who is first half-way from chance to ceiling on validation, and who never is."""
    passed: dict[str, float] = {}
    never = []
    for mean in means:
        steps = [step for number in mean["trials"] if (step := _half_way(index.done[number])) is not None]
        name = index.rows.names[mean["row"]]
        if len(steps) * 2 > len(mean["trials"]):
            passed[name] = float(np.median(steps))
        elif any(index.done[number].curve for number in mean["trials"]):
            never.append(name)
    parts = []
    if passed:
        when = min(passed.values())
        first = [name for name, step in passed.items() if step == when]
        who = ", ".join(first) if len(first) < 4 else f"{len(first)} of {len(means)} architectures"
        parts.append(f"First half-way from chance to ceiling: {who}, after {when:,.0f} steps (median over seeds).")
    if never:
        parts.append(f"Not half-way by the end: {_few(never)}.")
    return " ".join(parts)


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _half_way(record: Record) -> float | None:
    """The first evaluated step at which validation is half-way from chance to ceiling."""
    goal = (record.chance + record.ceiling) / 2
    steps, scores = record.curve.get("step", ()), record.curve.get("validation_accuracy", ())
    return next((s for s, a in zip(steps, scores, strict=True) if a is not None and a >= goal), None)


def _heat(table: Table, index: _Index) -> dict[str, Any]:
    lines = [line for line in table.lines if line.kind == "measured"]
    bounds = {
        line.kind: [cell.mean for cell in line.cells] for line in table.lines if line.kind in ("chance", "ceiling")
    }
    return {
        "title": table.title,
        "percent": table.percent,
        "columns": list(table.columns),
        "rows": [line.labels[0] for line in lines],
        "states": [line.labels[1] for line in lines],
        "chance": bounds["chance"],
        "ceiling": bounds["ceiling"],
        "cells": [[_cell(cell) for cell in line.cells] for line in lines],
        "trials": [
            [
                [] if number == table.mean_at else [index.trial[k] for k in cell.keys]
                for number, cell in enumerate(line.cells)
            ]
            for line in lines
        ],  # of a mean, figures.js takes those of the whole line
        "seen": _heat_seen(table, lines),
    }


def _cell(cell: Cell) -> list[float | None]:
    """Mean, half of its interval, number of seeds, and how far the mean is from chance to ceiling, within 0 and 1."""
    if cell.mean is None:
        return [None, None, 0, None]
    half = None if cell.interval is None else round((cell.interval[1] - cell.interval[0]) / 2, 4)
    share = None
    if cell.chance is not None and cell.ceiling is not None and cell.ceiling > cell.chance:
        share = round(min(1.0, max(0.0, (cell.mean - cell.chance) / (cell.ceiling - cell.chance))), 3)
    return [round(cell.mean, 5), half, cell.seeds, share]


def _heat_seen(table: Table, lines: list[Line]) -> str:
    """Which column is hardest, and which tells architectures apart."""
    columns = {}
    for number, column in enumerate(table.columns):
        means = [m for line in lines if (m := line.cells[number].mean) is not None]
        if means and number != table.mean_at:
            columns[column] = means
    if len(columns) < 2 or len(lines) < 2:
        return ""
    hardest = min(columns, key=lambda c: float(np.median(columns[c])))
    widest = max(columns, key=lambda c: max(columns[c]) - min(columns[c]))
    middle, top = (
        figure(float(np.median(columns[hardest])), table.percent),
        figure(max(columns[hardest]), table.percent),
    )
    low, high = figure(min(columns[widest]), table.percent), figure(max(columns[widest]), table.percent)
    hard = f"Hardest: {hardest}, {middle} for the median architecture and {top} for the best."
    return f"{hard} Architectures differ most on {widest}: from {low} to {high}."


def _curve(record: Record, points: int, clocks: _Names) -> list[Any] | None:
    """[number of its steps, validation scores in thousandths], thinned evenly; the last point is always there."""
    steps, scores = record.curve.get("step", ()), record.curve.get("validation_accuracy", ())
    if not steps:
        return None
    kept = np.unique(np.linspace(0, len(steps) - 1, min(points, len(steps))).round().astype(int)).tolist()
    clock = clocks.of(json.dumps([int(steps[i] or 0) for i in kept]))
    return [clock, [None if (score := scores[i]) is None else round(1000 * score) for i in kept]]


def hyper_names(records: Sequence[Record]) -> list[str]:
    """Training values that differ between trials, and always the learning rate."""
    leaves = [dict(flatten(r.spec.get("training", {}))) for r in records]
    shown = list(dict.fromkeys(["lr", *differing(leaves)]))
    return [", ".join(words(leaf, shown)) for leaf in leaves]


def _ten_thousandths(score: float | None) -> int | None:
    return None if score is None else round(10_000 * score)
