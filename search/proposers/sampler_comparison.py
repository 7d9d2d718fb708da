"""A comparison of samplers: the hypervolume after each point, over repeats of a search that differ in the seed alone.

A repeat has points of every sampler, and samplers share the random ones that they begin with. So repeats are compared with
themselves: each sampler with random search, by a paired t test of the last hypervolume.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from recallmap.results.analysis.comparison import ALPHA, Comparison, compared, holm
from recallmap.results.analysis.confidence import FEWEST_TO_DECIDE, Interval, mean_interval
from recallmap.results.analysis.pareto import volume_curves
from recallmap.search.proposers.journal import Journal
from recallmap.search.proposers.proposer import Told
from recallmap.search.samplers.random import Random
from recallmap.search.space.search_space import ANCHORS, Search
from recallmap.search.study.spec import StudySpec

NULL = Random().label  # the null model


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One sampler over all repeats.

    curves      float [repeats, points]: the hypervolume after each point
    comparison  of the last hypervolume with that of random search; None for random search itself
    p           of a difference, adjusted by Holm for all samplers
    """

    sampler: str
    curves: NDArray[np.float64]
    comparison: Comparison | None = None
    p: float | None = None

    def after(self, points: int) -> tuple[float, Interval | None]:
        """The mean hypervolume after so many points, and its 95 % interval over repeats."""
        values = self.curves[:, points - 1]
        return float(values.mean()), mean_interval(values.tolist(), 0.0, 1.0)

    @property
    def verdict(self) -> str:
        """What the test says of random search and this sampler: "better", "worse", "undecided" or, for too few repeats, ""."""
        if self.comparison is None or self.p is None or len(self.curves) < FEWEST_TO_DECIDE:
            return ""
        if self.p >= ALPHA:
            return "undecided"
        return "better" if self.comparison.difference > 0 else "worse"


def standings(repeats: Sequence[StudySpec], journal: Journal) -> list[Standing]:
    """Every sampler of a search, as its repeats left them in the journal. Raises ValueError where there are fewer than two
    repeats or more than three goals, no random search to compare with, or a repeat that is not finished."""
    study = repeats[0]
    if not isinstance(study.space, Search):
        raise ValueError(f"{study.name} is a grid, expected a search, whose samplers can be compared")
    samplers = [label for label in study.space.arms if label != ANCHORS]
    if NULL not in samplers or len(samplers) < 2:
        raise ValueError(f"{study.name} has the samplers {', '.join(samplers)}; add others beside: one must be {NULL}")
    if len(repeats) < 2:
        raise ValueError(f"repeats must be at least 2, got {len(repeats)}")
    if len(study.goals) > 3:
        raise ValueError(f"the hypervolume is exact for up to 3 goals, got {len(study.goals)}")
    groups: dict[tuple[str, int], list[tuple[float, ...]]] = {}
    for label in samplers:
        for number, repeat in enumerate(repeats):
            own = [told for told in journal.told(repeat.address(label)) if told.end != "rejected"]
            _check_finished(repeat, label, own, study.space.points)
            groups[label, number] = [told.values for told in own[: study.space.points]]
    curves = volume_curves(groups, [goal.direction == "maximise" for goal in study.goals])
    by_sampler = {label: np.asarray([curves[label, n] for n in range(len(repeats))]) for label in samplers}
    return _compared(by_sampler)


def _check_finished(repeat: StudySpec, label: str, own: Sequence[Told], points: int) -> None:
    if len(own) < points and isinstance(repeat.space, Search):
        raise ValueError(
            f"{label} has {len(own)} of {points} points with space.seed={repeat.space.seed}; to finish that repeat, run the "
            f"study with --set space.seed={repeat.space.seed} and the same further options"
        )


def _compared(curves: Mapping[str, NDArray[np.float64]]) -> list[Standing]:
    last = {label: own[:, -1].tolist() for label, own in curves.items()}
    found = {label: compared(own, last[NULL], paired=True) for label, own in last.items() if label != NULL}
    raw = [min(1.0, one.p_above(0) if one.difference > 0 else one.p_below(0)) for one in found.values()]
    adjusted = dict(zip(found, holm(raw), strict=True))
    return [
        Standing(sampler=label, curves=own, comparison=found.get(label), p=adjusted.get(label))
        for label, own in curves.items()
    ]


def table_of(found: Sequence[Standing]) -> Table:
    """A line a sampler: the hypervolume after a quarter, a half and all of its points, and less that of random search."""
    repeats, points = found[0].curves.shape
    marks = sorted({max(1, points // 4), max(1, points // 2), points})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    for name in ("sampler", *(f"after {mark}" for mark in marks), f"less {NULL}", "adjusted p", f"than {NULL}"):
        table.add_column(name, overflow="fold")
    for one in found:
        compare = one.comparison
        less = "" if compare is None else _said(compare.difference, compare.interval)
        p = "" if one.p is None else f"{one.p:.2g}"
        table.add_row(one.sampler, *(_said(*one.after(mark)) for mark in marks), less, p, one.verdict)
    table.caption = (
        f"hypervolume of goals on validation, from 0 to 1 over all points; means over {repeats} repeats with 95 % intervals; "
        f"the difference after {points} points by a paired t test over repeats, p by Holm over samplers"
    )
    if repeats < FEWEST_TO_DECIDE:
        table.caption += f"; {FEWEST_TO_DECIDE} repeats decide"
    return table


def data_of(found: Sequence[Standing]) -> Iterator[dict[str, Any]]:
    """What the table says, and every curve, as plain data for programs."""
    for one in found:
        points = one.curves.shape[1]
        after = [one.after(n) for n in range(1, points + 1)]
        yield {
            "sampler": one.sampler,
            "curves": one.curves.tolist(),
            "mean": [mean for mean, _ in after],
            "intervals": [interval for _, interval in after],
            "difference": None if one.comparison is None else one.comparison.difference,
            "interval": None if one.comparison is None else one.comparison.interval,
            "p": one.p,
            "verdict": one.verdict,
        }


def _said(value: float, interval: Interval | None) -> str:
    return f"{value:.3f}" if interval is None else f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"
