"""The cohorts of a plan in words, and why they do not train together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby, pairwise

from recallmap.results.analysis.labels import counted
from recallmap.search.engines.plan import Plan
from recallmap.search.training.packing import Room, why_apart
from recallmap.search.trials import Trial
from recallmap.search.trials.geometry import differences, few

MOST = 12  # lines; cohorts of the same description share one


def cohorts_of(plan: Plan, room: Room) -> Iterator[str]:
    """Lines about the first cohorts, and one that says what keeps cohorts apart."""
    cohorts = [[plan.missing[index] for index in cohort] for cohort in plan.cohorts]
    number = 0
    alike = [(members, len(list(own))) for members, own in groupby((len(specs), _members(specs)) for specs in cohorts)]
    for (size, members), count in alike[:MOST]:
        first, number = number + 1, number + count
        which = f"cohort {number}" if count == 1 else f"cohorts {first} to {number}"
        yield f"{which}: {counted(size, 'trial')}{' each' if count > 1 else ''} of {members}"
    if number < len(cohorts):
        yield f"and {counted(len(cohorts) - number, 'more cohort')}"
    if len(cohorts) > 1:
        yield f"apart: {'; '.join(_reasons(cohorts, room))}"


def _members(specs: Sequence[Trial]) -> str:
    archs, tasks = (list(dict.fromkeys(names)) for names in ((s.name for s in specs), (s.task.kind for s in specs)))
    unit = "channels" if specs[0].task.signal == "vectors" else "ids"
    sizes = f"{_span([s.steps for s in specs])} steps, {_span([s.task.shape[1] for s in specs])} {unit}"
    return f"{few(archs)} on {few(tasks)}, {sizes}"


def _span(values: Sequence[int]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _reasons(cohorts: Sequence[Sequence[Trial]], room: Room) -> list[str]:
    by_shape: dict[Hashable, list[Sequence[Trial]]] = {}
    for specs in cohorts:
        by_shape.setdefault((specs[0].kind, specs[0].shape), []).append(specs)
    alike = [pair for group in by_shape.values() for pair in pairwise(sorted(group, key=lambda own: own[0].steps))]
    return [
        *differences([group[0][0].shape for group in by_shape.values()]),
        *dict.fromkeys(why_apart(one, other, room) for one, other in alike),
    ]
