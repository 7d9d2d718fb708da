"""What the page shows, as plain data: page/figures.js draws it, and both name the same things."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from results import thinned
from results.choose import Answer, Measure, answers, differing, flatten, measures, row_names, words
from results.holding import Row
from results.index import Index, Names, carried
from results.interval import half_width, t_interval
from results.lines import Known, cuts_of, cuts_of_mean, held_by, hollow
from results.order import by_size
from results.pareto import front_band, front_shares
from results.progress import hypervolumes, importance
from results.published import Column, Published
from results.record import SHORT, Record
from results.render import figure
from results.tables import MAD, Cell, Line, Sheet, Table, is_share, protocol_of, size, tables_about

CURVE_POINTS = 60  # of one learning curve, at most
ALL_POINTS = 60_000  # of all curves together; very many trials have coarser curves, so that the page stays small
DRAWS = 500  # of seeds, for the front's band
NEAR = 0.05  # how far below the best a smaller state is still worth a mention


def figures(
    records: Sequence[Record],
    tables: Sequence[Table],
    *,
    beside: Sequence[Published] = (),
    probed: Sequence[Row] = (),
) -> dict[str, Any]:
    """Trials as columns of numbers, the views of most figures, what memories hold, and the tables of the heat map.

    Scores travel as whole millionths, curves of single trials as whole thousandths. Of very many means, curves, lines and
    rows the foremost are there, see `thinned`. Needs one record with a score.
    """
    done = [r for r in records if r.score is not None]
    index = Index(done, row_names(records))
    hypers, clocks = Names(), Names()
    labels = hyper_names(done)
    points = max(2, min(CURVE_POINTS, ALL_POINTS // len(done)))
    trials = {
        "key": [r.key[:SHORT] for r in done],
        "arch": [index.archs.of(r.arch) for r in done],
        "row": [index.rows.of(index.row_of[r.key]) for r in done],
        "hyper": [hypers.of(label) for label in labels],
        "seed": [r.seed for r in done],
        "validation": [_millionths(r.validation.get(r.metric)) for r in done],
        "steps": [r.steps for r in done],
        "seconds": [round(r.seconds, 1 if r.seconds < 10 else None) for r in done],
        "curve": [_curve(r, points, clocks) for r in done],
    }
    views = _views(records, index, beside)
    return {
        "trials": trials,
        "archs": [{"name": name, "grows": n in index.growing} for n, name in enumerate(index.archs.names)],
        "rows": index.rows.names,
        "hypers": hypers.names,
        "clocks": [json.loads(clock) for clock in clocks.names],
        "curves": thinned.mean_curves(views, done, CURVE_POINTS),
        "views": views,
        "held": held_by(records, index, probed),
        **_heats(tables, index),
    }


def _views(records: Sequence[Record], index: Index, beside: Sequence[Published]) -> list[dict[str, Any]]:
    """A view for every setting, and one for their mean where trials were tested on more than they trained on."""
    by_task: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        by_task[record.task, record.protocol].append(record)
    views: list[dict[str, Any]] = []
    place = 0  # of MAD's mean: ahead of its tasks
    for number, ((task, protocol), own) in enumerate(by_task.items()):
        place = len(views) if task in MAD and not any(t in MAD for t, _ in list(by_task)[:number]) else place
        group = task if protocol == "repaired" else f"{task}, protocol {protocol}"
        scored = {r.key: [a for a in answers(r) if a.score is not None] for r in own if r.score is not None}
        settings: dict[str, dict[str, Answer]] = defaultdict(dict)
        for key, found in scored.items():
            for answer in found:
                settings[answer.setting][key] = answer
        points: dict[str, list[Measure]] = defaultdict(list)
        by_choice: dict[tuple[str, ...], list[Measure]] = defaultdict(list)
        group_measures = measures(own, names=index.row_of)
        for measure in group_measures:
            if measure.values:
                points[measure.setting].append(measure)
                by_choice[measure.keys].append(measure)
        known: Known = {}
        shown = differing([next(iter(by_key.values())).dials for by_key in settings.values()])
        most = max((len(found) for found in scored.values()), default=0)
        if most > 1:
            whole = {key: found for key, found in scored.items() if len(found) == most}
            groups = [own for own in by_choice.values() if len(own) == most and _common(own)]
            view = _view(f"{group}: mean over {most} settings", whole, groups, index)
            cuts = cuts_of_mean([m for own in groups for m in own], index)
            views.append(view | {"cuts": cuts, "published": hollow(groups, beside)})
        examples = {setting: next(iter(by_key.values())) for setting, by_key in settings.items()}
        places = {setting: _place(answer, task, shown) for setting, answer in examples.items()}
        for setting in sorted(settings, key=places.__getitem__):
            by_key, answer = settings[setting], examples[setting]
            dials = ", ".join([*([answer.task] if answer.task != task else []), *words(answer.dials, shown)])
            label = f"{group}: {dials}" if dials else group
            single = {key: [answer] for key, answer in by_key.items()}
            groups = [[m] for m in points[setting]]
            view = _view(label, single, groups, index)
            views.append(
                view
                | {
                    "cuts": cuts_of(points[setting], group_measures, index, known),
                    "published": hollow(groups, beside),
                }
            )
    return [*views[:place], *_mad_views(records, index, beside), *views[place:]]


def _place(answer: Answer, task: str, shown: Sequence[str]) -> tuple[Any, ...]:
    """Where a setting stands among those of its trials: settings of their own task first, then by the dials that differ."""
    return answer.task != task, answer.task, [by_size(answer.dials.get(dial)) for dial in shown]


def _mad_views(records: Sequence[Record], index: Index, beside: Sequence[Published]) -> list[dict[str, Any]]:
    """The mean of MAD for every protocol in which two or more of its tasks were trained: means alone, for no trial is of all
    tasks."""
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
        certain = _sure(means)
        keys = dict.fromkeys(key for cell in cells.values() for key in cell.keys)
        numbers = [index.trial[key] for key in keys]
        records_of = [index.done[number] for number in numbers]
        bounds = {"chance": chance, "ceiling": ceiling, "references": {}, "percent": True}
        views.append(
            {
                "label": f"MAD: mean over {len(trained)} tasks{protocol_of(protocol)}",
                "metric": "accuracy",
                **bounds,
                "own": bounds,
                "length": max(r.length for r in records_of),
                "meansOnly": True,
                "trials": numbers,
                "scores": [_millionths(r.score) for r in records_of],
                "states": [r.state_bytes for r in records_of],
                **certain,
                "seen": _seen(means, index, True, NEAR),
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
        "half": carried(half_width(cell.interval)),
        "count": cell.seeds,  # of many trials, whose hyper-parameters are not the same
        "trials": [index.trial[key] for key in cell.keys],
    }


def _mad_seeds(own: Sequence[Measure]) -> list[float]:
    """The mean over tasks, each the mean over its settings, of every seed that all of them have."""
    seeds = _common(own)
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
    """Published means over the tasks that ours is over, made of their columns, each at the state that ours has."""
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


def _view(label: str, found: dict[str, list[Answer]], groups: list[list[Measure]], index: Index) -> dict[str, Any]:
    """What trials scored on one setting, or on the mean of several: `found` by key, `groups` by architecture."""
    first, example = index.done[index.trial[next(iter(found))]], next(iter(found.values()))
    percent = is_share(first.metric)
    chance, ceiling = (float(np.mean([getattr(answer, name) for answer in example])) for name in ("chance", "ceiling"))
    means = sorted((_point(own, index) for own in groups), key=lambda m: (m["state"], m["mean"]))
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
        "scores": [_millionths(_mean(own)) for own in found.values()],
        "states": [max(answer.state_bytes for answer in own) for own in found.values()],
        **_sure(means),
        "progress": _progress(found, index, chance, ceiling),
        "seen": _seen(means, index, percent, NEAR * (1.0 if percent else ceiling - chance)),
        "learnt": _learnt(means, index),
    }


def _sure(means: list[dict[str, Any]]) -> dict[str, Any]:
    """The means with how often seeds drawn anew put them on the front, of how many, and the front's band, which needs two seeds
    of one of them."""
    seeds, states = [m.pop("seeds") or [m["mean"]] for m in means], [m["state"] for m in means]
    sure = any(len(own) > 1 for own in seeds)
    shares = front_shares(seeds, states, np.random.default_rng(0), draws=DRAWS if sure else 1)
    shared = [{**mean, "share": round(float(share), 2)} for mean, share in zip(means, shares, strict=True)]
    return {
        "means": thinned.means(shared),
        "of": len(means),
        "band": front_band(seeds, states, np.random.default_rng(0), draws=DRAWS) if sure else [],
    }


def _mean(found: list[Answer]) -> float:
    return float(np.mean([answer.score for answer in found if answer.score is not None]))


def _point(own: list[Measure], index: Index) -> dict[str, Any]:
    """The mean over seeds of one architecture, over all the settings that it was measured on."""
    seeds = _common(own)
    values = [float(np.mean([m.values[seed] for m in own])) for seed in seeds]
    return {
        "arch": index.archs.of(own[0].arch),
        "row": index.rows.of(own[0].row),
        "line": index.line[own[0].row],
        "state": max(m.state_bytes for m in own),
        "mean": carried(float(np.mean(values))),
        "half": carried(half_width(t_interval(values))),
        "trials": [index.trial[key] for key in own[0].keys],
        "seeds": values,
    }


def _common(own: Sequence[Measure]) -> list[int]:
    """The seeds that all measures have."""
    return sorted(set.intersection(*(set(m.values) for m in own)))


def _progress(found: dict[str, list[Answer]], index: Index, chance: float, ceiling: float) -> dict[str, Any]:
    """What the front of the trials so far dominates, in the order in which they ended, and what scores depend on."""
    keys = sorted(found, key=lambda key: (index.done[index.trial[key]].created, index.trial[key]))
    scores = [_mean(found[key]) for key in keys]
    states = [max(answer.state_bytes for answer in found[key]) for key in keys]
    shares = [round(share, 3) for share in hypervolumes(scores, states, chance=chance, ceiling=ceiling)]
    steps = [n for n, share in enumerate(shares) if n in (0, len(shares) - 1) or share != shares[n - 1]]
    trials = [index.trial[key] for key in keys]
    shares_of = importance(scores, [index.done[n].arch for n in trials], [index.varied[n] for n in trials])
    dials = [[name.replace("_", " "), round(share, 3)] for name, share in shares_of]
    return {"at": [n + 1 for n in steps], "volume": [shares[n] for n in steps], "importance": dials}


def _seen(means: list[dict[str, Any]], index: Index, percent: bool, near: float) -> str:
    """The figure's message: who recalls most, who with a fixed state, and who nearly as much with less."""
    if not means:
        return ""

    def say(point: dict[str, Any]) -> str:
        score = figure(point["mean"], percent) + (" %" if percent else "")
        return f"{index.rows.names[point['row']]}, {score} with {size(point['state'])}"

    def best_of(points: list[dict[str, Any]]) -> dict[str, Any]:
        return max(points, key=lambda m: (round(m["mean"], 3), -m["state"]))  # as it reads, ties to the smaller state

    grows = index.growing
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


def _learnt(means: list[dict[str, Any]], index: Index) -> str:
    """Who is first half-way from chance to ceiling on validation, and who never is."""
    passed: dict[str, float] = {}
    never = []
    for mean in means:
        told = [_half_way(index.done[number]) for number in mean["trials"] if index.done[number].curve]
        steps = [math.inf if step is None else step for step in told]  # a seed that never got there is the slowest
        name = index.rows.names[mean["row"]]
        if steps and (middle := sorted(steps)[len(steps) // 2]) < math.inf:
            passed[name] = middle if len(steps) % 2 else float(np.median(steps))
        elif steps and min(steps) == math.inf:
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


def _heats(tables: Sequence[Table], index: Index) -> dict[str, Any]:
    """All tables for the heat map, and in which order to offer them: ahead of MAD's tasks all of their settings."""
    heats, order = [_heat(thinned.rows(table), index) for table in tables], []
    for number, table in enumerate(tables):
        parts = mad_parts(table, tables)
        groups = [(name, len(part.columns) - (part.mean_at is not None)) for name, part in parts.items()]
        if sum(size for _, size in groups) > len([c for c in table.columns if c in parts]):
            order.append(len(heats))
            several = any(size > 1 for _, size in groups)  # else columns have the names of their tasks
            heats.append(_heat(thinned.rows(_joined(table, parts)), index) | ({"groups": groups} if several else {}))
        if not says_no_more(table, tables):
            order.append(number)
    return {"tables": heats, "heats": order}


def says_no_more(table: Table, tables: Sequence[Table]) -> bool:
    """Whether a table of one of MAD's tasks has a single column, which is that of MAD's own table."""
    if len(table.columns) > 1:
        return False
    return any(part is table and name in w.columns for w in tables for name, part in mad_parts(w, tables).items())


def mad_parts(table: Table, tables: Sequence[Table]) -> dict[str, Table]:
    """The tables of MAD's tasks that go with that of MAD, by name of the task; none for other tables."""
    whole = table.title.removeprefix("MAD")
    if whole == table.title:
        return {}
    return {name: part for task, name in MAD.items() for part in tables if part.title == task + whole}


def _joined(table: Table, parts: dict[str, Table]) -> Table:
    """MAD with a column for every setting of its tasks, and no means."""
    columns, of = [], []
    for name, part in parts.items():
        for at in (n for n in range(len(part.columns)) if n != part.mean_at):
            columns.append(f"{name}: {part.columns[at]}" if len(part.columns) > 1 else name)
            of.append(({line.labels[0]: line for line in part.lines}, at))
    lines = [
        replace(line, cells=tuple(own[line.labels[0]].cells[at] if line.labels[0] in own else Cell() for own, at in of))
        for line in table.lines
        if line.kind != "published"
    ]
    return replace(
        table,
        title=f"{table.title}, every setting",
        columns=tuple(columns),
        lines=tuple(lines),
        units=table.units[:1] * len(columns),
        mean_at=None,
    )


def _heat(table: Table, index: Index) -> dict[str, Any]:
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
    share = None
    if cell.chance is not None and cell.ceiling is not None and cell.ceiling > cell.chance:
        share = round(min(1.0, max(0.0, (cell.mean - cell.chance) / (cell.ceiling - cell.chance))), 3)
    return [carried(cell.mean), carried(half_width(cell.interval)), cell.seeds, share]


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


def _curve(record: Record, points: int, clocks: Names) -> list[Any] | None:
    """[number of its steps, validation scores in thousandths], thinned evenly; the last point is always there."""
    steps, scores = record.curve.get("step", ()), record.curve.get("validation_accuracy", ())
    if not steps:
        return None
    kept = thinned.spread(len(steps), points)
    clock = clocks.of(json.dumps([int(steps[i] or 0) for i in kept]))
    return [clock, [None if (score := scores[i]) is None else round(1000 * score) for i in kept]]


def hyper_names(records: Sequence[Record]) -> list[str]:
    """Training values that differ between trials, and always the learning rate."""
    leaves = [dict(flatten(r.spec.get("training", {}))) for r in records]
    shown = list(dict.fromkeys(["lr", *differing(leaves)]))
    return [", ".join(words(leaf, shown)) for leaf in leaves]


def _millionths(score: float | None) -> int | None:
    return None if score is None else round(1_000_000 * score)
