"""The page's figures as plain data, which page/assets/figures.js draws under the same names."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recallmap.results.analysis.importance import hypervolumes, importance
from recallmap.results.analysis.labels import ALWAYS_TOLD, MOST_DIALS, differing, flatten, row_names, telling, words
from recallmap.results.analysis.measures import Answer, Measure, answers, measures
from recallmap.results.analysis.natural_order import by_size
from recallmap.results.analysis.pairs_held import Row
from recallmap.results.analysis.published_figures import Published
from recallmap.results.page import thinning
from recallmap.results.page.breakdown_figures import Known, cuts_of, cuts_of_mean, held_by, published_marks
from recallmap.results.page.captions import caption_of, learnt_caption
from recallmap.results.page.heat_map import heat_maps
from recallmap.results.page.mad_view import mad_views
from recallmap.results.page.name_index import Index, Names
from recallmap.results.page.points import NEAR, common_fields, interval_of, millionths, point_of
from recallmap.results.record import SHORT, Record
from recallmap.results.score_tables.table import MAD, Table, is_share

CURVE_POINTS = 60  # most points of one learning curve

ALL_POINTS = 60_000  # of all curves together; very many trials have coarser curves, so that the page stays small,
LEAST_POINTS = 5  # yet show how they rise


def figures(
    records: Sequence[Record],
    tables: Sequence[Table],
    *,
    beside: Sequence[Published] = (),
    probed: Sequence[Row] = (),
) -> dict[str, Any]:
    """Trials as columns of numbers, the views of most figures, capacities, and the tables of the heat map.

    `first` is the view that the page opens with. A view whose label is short has the whole one as its `setting`. Scores are
    whole millionths, curves of single trials whole thousandths. Very many means, curves, lines and rows are thinned, see
    `thinning`. One record needs a score.
    """
    done = [r for r in records if r.score is not None]
    index = Index(done, row_names(records))
    hypers, clocks = Names(), Names()
    labels = hyper_names(done)
    points = max(LEAST_POINTS, min(CURVE_POINTS, ALL_POINTS // len(done)))
    trials = {
        "key": [r.key[:SHORT] for r in done],
        "arch": [index.archs.of(r.arch) for r in done],
        "row": [index.rows.of(index.row_of[r.key]) for r in done],
        "hyper": [hypers.of(label) for label in labels],
        "seed": [r.seed for r in done],
        "validation": [millionths(r.validation.get(r.metric)) for r in done],
        "steps": [r.steps for r in done],
        "seconds": [round(r.seconds, 1 if r.seconds < 10 else None) for r in done],
        "curve": [_curve(r, points, clocks) for r in done],
    }
    views = views_of(records, index, beside)
    return {
        "trials": trials,
        "archs": [{"name": name, "grows": n in index.growing} for n, name in enumerate(index.archs.names)],
        "rows": index.rows.names,
        "hypers": hypers.names,
        "clocks": [json.loads(clock) for clock in clocks.names],
        "curves": thinning.mean_curves(views, done, CURVE_POINTS),
        "views": views,
        "first": opening(views),
        "held": held_by(records, index, probed),
        **heat_maps(tables, index),
    }


def opening(views: Sequence[Mapping[str, Any]]) -> int:
    """The view that is shown where none is asked for: the first, or the one of most architectures if they are more than twice
    as many."""
    sizes = [len({mean["arch"] for mean in view["means"]}) for view in views]
    return 0 if 2 * sizes[0] >= max(sizes) else sizes.index(max(sizes))


def views_of(records: Sequence[Record], index: Index, beside: Sequence[Published]) -> list[dict[str, Any]]:
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
        asked = [next(iter(by_key.values())).dials for by_key in settings.values()]
        shown = differing(asked)
        many = max((len(words(dials, shown)) for dials in asked), default=0) > MOST_DIALS
        brief = telling(asked, shown, always=ALWAYS_TOLD) if many else shown
        views += _mean_views(group, scored, list(by_choice.values()), index, beside)
        examples = {setting: next(iter(by_key.values())) for setting, by_key in settings.items()}
        places = {setting: _place(answer, task, shown) for setting, answer in examples.items()}
        for setting in sorted(settings, key=places.__getitem__):
            by_key, answer = settings[setting], examples[setting]
            label, in_full = (_label(group, task, answer, named) for named in (brief, shown))
            single = {key: [answer] for key, answer in by_key.items()}
            groups = [[m] for m in points[setting]]
            view = _view(label, single, groups, index)
            views.append(
                view
                | ({"setting": in_full} if in_full != label else {})
                | {
                    "cuts": cuts_of(points[setting], group_measures, index, known),
                    "published": published_marks(groups, beside),
                }
            )
    return [*views[:place], *mad_views(records, index, beside), *views[place:]]


def _mean_views(
    group: str,
    scored: Mapping[str, list[Answer]],
    by_choice: Sequence[list[Measure]],
    index: Index,
    beside: Sequence[Published],
) -> list[dict[str, Any]]:
    """A view for the mean over the most settings that trials were tested on, for each such set of settings; none for one."""
    most = max(map(len, scored.values()), default=0)
    sets: dict[frozenset[str], dict[str, list[Answer]]] = defaultdict(dict)
    for key, found in scored.items():
        if len(found) == most > 1:
            sets[frozenset(answer.setting for answer in found)][key] = found
    alike = [_common([answer.dials for answer in next(iter(whole.values()))]) for whole in sets.values()]
    told, views = telling(alike, differing(alike), always=ALWAYS_TOLD) if alike else [], []
    for (settings, whole), dials in zip(sets.items(), alike, strict=True):
        groups = [own for own in by_choice if {m.setting for m in own} == settings and common_fields(own)]
        label = ", ".join([f"{group}: mean over {most} settings", *words(dials, told)])
        cuts = cuts_of_mean([m for own in groups for m in own], index)
        views.append(_view(label, whole, groups, index) | {"cuts": cuts, "published": published_marks(groups, beside)})
    return views


def _common(dials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options that all have alike."""
    apart = set(differing(dials))
    return {name: value for name, value in dials[0].items() if name not in apart}


def _label(group: str, task: str, answer: Answer, named: Sequence[str]) -> str:
    """The name of a setting: its group, its task where that is another, and these of its options."""
    dials = ", ".join([*([answer.task] if answer.task != task else []), *words(answer.dials, named)])
    return f"{group}: {dials}" if dials else group


def _place(answer: Answer, task: str, shown: Sequence[str]) -> tuple[Any, ...]:
    """The sort key of a setting among those of its trials: settings of their own task first, then by the options that
    differ."""
    return answer.task != task, answer.task, [by_size(answer.dials.get(dial)) for dial in shown]


def _view(label: str, found: dict[str, list[Answer]], groups: list[list[Measure]], index: Index) -> dict[str, Any]:
    """The scores of trials on one setting, or on the mean of several: `found` by key, `groups` by architecture."""
    first, example = index.done[index.trial[next(iter(found))]], next(iter(found.values()))
    percent = is_share(first.metric)
    chance, ceiling = (float(np.mean([getattr(answer, name) for answer in example])) for name in ("chance", "ceiling"))
    means = sorted((point_of(own, index) for own in groups), key=lambda m: (m["state"], m["mean"]))
    return {
        "label": label,
        "task": first.task,
        "metric": first.metric,
        "percent": percent,
        "chance": chance,
        "ceiling": ceiling,
        "own": {"chance": first.chance, "ceiling": first.ceiling, "references": first.references, "percent": percent},
        "references": example[0].references if len(example) == 1 else {},
        "length": max(answer.state_length for answer in example),
        "trials": [index.trial[key] for key in found],
        "scores": [millionths(_mean(own)) for own in found.values()],
        "states": [max(answer.state_bytes for answer in own) for own in found.values()],
        **interval_of(means),
        "progress": _progress(found, index, chance, ceiling),
        "seen": caption_of(means, index, percent, NEAR * (1.0 if percent else ceiling - chance)),
        "learnt": learnt_caption(means, index),
    }


def _mean(found: list[Answer]) -> float:
    return float(np.mean([answer.score for answer in found if answer.score is not None]))


def _progress(found: dict[str, list[Answer]], index: Index, chance: float, ceiling: float) -> dict[str, Any]:
    """The share that the front of the trials so far dominates, by the order in which they ended, and the importance of
    options."""
    keys = sorted(found, key=lambda key: (index.done[index.trial[key]].created, index.trial[key]))
    scores = [_mean(found[key]) for key in keys]
    states = [max(answer.state_bytes for answer in found[key]) for key in keys]
    shares = [round(share, 3) for share in hypervolumes(scores, states, chance=chance, ceiling=ceiling)]
    steps = [n for n, share in enumerate(shares) if n in (0, len(shares) - 1) or share != shares[n - 1]]
    trials = [index.trial[key] for key in keys]
    shares_of = importance(scores, [index.done[n].arch for n in trials], [index.varied[n] for n in trials])
    dials = [[name.replace("_", " "), round(share, 3)] for name, share in shares_of]
    return {"at": [n + 1 for n in steps], "volume": [shares[n] for n in steps], "importance": dials}


def _curve(record: Record, points: int, clocks: Names) -> list[Any] | None:
    """A curve as [number of its steps, validation scores in thousandths], thinned evenly; the last point always stays."""
    steps, scores = record.curve.get("step", ()), record.curve.get("validation_accuracy", ())
    if not steps or not scores:
        return None
    kept = thinning.spread(len(steps), points)
    clock = clocks.of(json.dumps([int(steps[i] or 0) for i in kept]))
    return [clock, [None if (score := scores[i]) is None else round(1000 * score) for i in kept]]


def hyper_names(records: Sequence[Record]) -> list[str]:
    """Training values that differ between trials of one task and protocol, and always the learning rate."""
    leaves = [dict(flatten(r.spec.get("training", {}))) for r in records]
    of_task: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for record, leaf in zip(records, leaves, strict=True):
        of_task[record.task, record.protocol].append(leaf)
    shown = {task: dict.fromkeys(["lr", *differing(own)]) for task, own in of_task.items()}
    return [", ".join(words(leaf, shown[r.task, r.protocol])) for r, leaf in zip(records, leaves, strict=True)]
