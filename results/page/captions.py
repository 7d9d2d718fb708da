"""Captions of the page's figures."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from recallmap.results.page.name_index import Index
from recallmap.results.record import Record
from recallmap.results.score_tables.rendering import figure
from recallmap.results.score_tables.table import size


def caption_of(means: list[dict[str, Any]], index: Index, percent: bool, near: float) -> str:
    """The figure's message: the best recall, the best with a fixed state, and nearly the same with less state; all of them
    among those whose state is known."""
    means = [mean for mean in means if not mean.get("apart")]
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


def learnt_caption(means: list[dict[str, Any]], index: Index) -> str:
    """The architectures that are first half-way from chance to ceiling on validation, and those that never are."""
    passed: dict[str, float] = {}
    never = []
    for mean in means:
        told = [_half_way(r) for r in map(index.done.__getitem__, mean["trials"]) if r.curve.get("validation_accuracy")]
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
    """The first evaluated step with a validation score half-way from chance to ceiling."""
    goal = (record.chance + record.ceiling) / 2
    steps, scores = record.curve.get("step", ()), record.curve.get("validation_accuracy", ())
    return next((s for s, a in zip(steps, scores, strict=True) if a is not None and a >= goal), None)
