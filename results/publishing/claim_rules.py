"""The rules by which records decide a claim: comparisons of measures, their intervals, and the verdict of all together.

The 95 % interval of mean(a) - mean(b) decides a comparison of a and b: Student's t with a common variance, which needs two
seeds of each. Where the trials of every seed went on from the same weights, the interval is that of the differences seed by
seed, which needs two common seeds. A claim is reproduced if all of its comparisons are, not reproduced if any is decided
against it, and otherwise not decided.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from recallmap.results.analysis.confidence import difference_interval, half_width, t_interval
from recallmap.results.analysis.labels import words
from recallmap.results.analysis.measures import Measure
from recallmap.results.score_tables.table import more_is_better

Verdict = Literal["reproduced", "not reproduced", "not decided"]


Value = int | float | str | bool | None  # of a parameter


@dataclass(frozen=True, kw_only=True)
class Which:
    """The measures that a rule picks: all that is given must hold. Given nothing, it picks every measure.

    archs       names of architectures, one of which it has
    has, lacks  kinds of mixers: one of `has` is in the architecture, none of `lacks`
    parameters  of the architecture: names, each with the values that it may have
    at          parameters of the setting, each with its value
    grown       whether training expanded the state (StateX)
    """

    archs: tuple[str, ...] = ()
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    parameters: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    at: Mapping[str, Value] = field(default_factory=dict)
    grown: bool | None = None

    def holds(self, measure: Measure) -> bool:
        values: dict[str, list[Any]] = {}
        for path, value in measure.leaves.items():
            values.setdefault(path.rsplit(".", 1)[-1], []).append(value)
        kinds = values.get("kind", [])
        return (
            (not self.archs or measure.arch in self.archs)
            and (not self.has or any(kind in kinds for kind in self.has))
            and not any(kind in kinds for kind in self.lacks)
            and all(any(value in may for value in values.get(name, ())) for name, may in self.parameters.items())
            and all(measure.dials.get(name) == value for name, value in self.at.items())
            and self.grown
            in (None, any(path.startswith("expand.") and path.endswith(".count") for path in measure.leaves))
        )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One comparison: the rows compared, their setting, the figures as text, and the verdict."""

    who: str
    where: str
    figures: str
    verdict: Verdict


class RuleSpec(ABC):
    """How measures decide a claim: frozen data that checks itself."""

    kind: str

    @abstractmethod
    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        """Yield one piece of evidence for every comparison that the measures allow."""


@dataclass(frozen=True, kw_only=True)
class Above(RuleSpec):
    """`better` scores above `worse` on the same setting, both with the same initialisation of weights (`init`).

    score       name of the score; None: the headline score of the task
    margin      None: the difference must be above 0. A number: the difference must be smaller than it in size
    no_worse    with a margin: `better` may also be better by more
    but         parameters in which the two may differ, all others being equal; "expand" for all of an expansion. None: any
    same_state  the largest difference of their states in bytes, as a fraction of the larger; None: any

    Raises ValueError where margin or same_state is negative, and where no_worse comes without a margin.
    """

    kind: Literal["above"] = "above"
    better: Which
    worse: Which
    score: str | None = None
    margin: float | None = None
    no_worse: bool = False
    but: tuple[str, ...] | None = None
    same_state: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("margin", self.margin), ("same_state", self.same_state)):
            if value is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value:g}")
        if self.no_worse and self.margin is None:
            raise ValueError("no_worse needs a margin, got none; give margin, or leave no_worse out")

    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        scored = [m for measure in measures if (m := measure.of(self.score) if self.score else measure).values]
        for a in filter(self.better.holds, scored):
            for b in filter(self.worse.holds, scored):
                if a is not b and a.setting == b.setting and self.alike(a, b):
                    yield self.compare(a, b)

    def alike(self, a: Measure, b: Measure) -> bool:
        """Whether the rule compares the two, given that they share a setting."""
        if a.leaves.get("init") != b.leaves.get("init"):
            return False
        if self.same_state is not None and abs(a.state_bytes - b.state_bytes) > self.same_state * max(
            a.state_bytes, b.state_bytes
        ):
            return False
        return self.but is None or _rest(a, self.but) == _rest(b, self.but)

    def compare(self, a: Measure, b: Measure) -> Evidence:
        """The comparison of two measures, seed by seed where they began from the same weights, and its verdict."""
        ours, theirs, paired = _sides(a, b)
        sign = 1 if more_is_better(a.metric) else -1
        spread = t_interval(np.subtract(ours, theirs).tolist()) if paired else difference_interval(ours, theirs)
        low, high = (float("-inf"), float("inf")) if spread is None else sorted(sign * end for end in spread)
        least = 0.0 if self.margin is None else -self.margin
        most = float("inf") if self.margin is None or self.no_worse else self.margin
        verdict: Verdict = "not decided"
        if low > least and high < most:
            verdict = "reproduced"
        elif high < least or low > most or (self.margin is None and low == high == 0 and not _at_bound(b, theirs)):
            verdict = "not reproduced"
        difference = float(np.mean(ours) - np.mean(theirs))
        said = f"{_mean(ours)} against {_mean(theirs)}, difference {_signed(difference)}"
        said += f" in [{_signed(spread[0])}, {_signed(spread[1])}]" if spread else ", no interval: too few seeds"
        said += ", seed by seed" if paired else ""
        return Evidence(who=f"{a.row} against {b.row}", where=_where(a), figures=said, verdict=verdict)


@dataclass(frozen=True, kw_only=True)
class Rises(RuleSpec):
    """The score is higher at the largest value of a parameter than at the smallest, all else being equal."""

    kind: Literal["rises"] = "rises"
    parameter: str
    which: Which = Which()
    score: str | None = None

    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        groups: dict[str, dict[float, Measure]] = {}
        for measure in filter(self.which.holds, measures):
            value = next((v for p, v in measure.leaves.items() if p.rsplit(".", 1)[-1] == self.parameter), None)
            if isinstance(value, int | float) and measure.values:
                groups.setdefault(f"{measure.setting}{_rest(measure, (self.parameter,))}", {})[value] = measure
        above = Above(better=Which(), worse=Which(), score=self.score)
        for by_value in groups.values():
            if len(by_value) > 1:
                yield from _first(above, by_value[max(by_value)], by_value[min(by_value)])


@dataclass(frozen=True, kw_only=True)
class Each(RuleSpec):
    """Every seed of `which` scores between `least` and `most`. Not reproduced if no seed does, not decided if some do.

    Raises ValueError where neither bound is given, or `least` is above `most`.
    """

    kind: Literal["each"] = "each"
    which: Which
    least: float = float("-inf")
    most: float = float("inf")
    score: str | None = None

    def __post_init__(self) -> None:
        if self.least == float("-inf") and self.most == float("inf"):
            raise ValueError("least or most must be given, got neither")
        if self.least > self.most:
            raise ValueError(f"least must be at most {self.most:g} (most), got {self.least:g}")

    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        for measure in filter(self.which.holds, measures):
            own = list((measure.of(self.score) if self.score else measure).values.values())
            inside = [self.least <= value <= self.most for value in own]
            verdict: Verdict = "reproduced" if all(inside) else "not decided" if any(inside) else "not reproduced"
            ends = [f"at least {self.least:g}"] * (self.least > float("-inf"))
            ends += [f"at most {self.most:g}"] * (self.most < float("inf"))
            said = f"{_mean(own)}; {sum(inside)} of {len(own)} seeds {' and '.join(ends)}"
            if own:
                yield Evidence(who=measure.row, where=_where(measure), figures=said, verdict=verdict)


@dataclass(frozen=True, kw_only=True)
class Average:
    """A mean of columns. A column is the mean of its tasks, a task the mean of its settings.

    Raises ValueError where there is no column, or a column has no task.
    """

    columns: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if not self.columns or not all(self.columns):
            raise ValueError("columns must be lists of at least one task, got an empty one")

    @property
    def tasks(self) -> frozenset[str]:
        """All tasks of all columns."""
        return frozenset(task for column in self.columns for task in column)

    def of(self, own: Sequence[Measure]) -> Measure | None:
        """One measure for all of these. None where a task is missing, or no seed was trained on all settings."""
        if not all(any(m.task == task for m in own) for task in self.tasks):
            return None
        seeds = set.intersection(*(set(m.values) for m in own))

        def mean(seed: int) -> float:
            tasks = [[np.mean([m.values[seed] for m in own if m.task == t]) for t in column] for column in self.columns]
            return float(np.mean([np.mean(column) for column in tasks]))

        values = {seed: mean(seed) for seed in sorted(seeds)}
        if not values:
            return None
        tasks, settings = len({m.task for m in own}), len({m.setting for m in own})
        return replace(own[0], task=f"mean of {tasks} tasks", values=values, dials={"settings": settings})


@dataclass(frozen=True, kw_only=True)
class OnAverage(RuleSpec):
    """As `Above`, for the average over several tasks of the settings on which both sides were measured.

    over  the columns of tasks; records of other tasks do not count
    rule  the comparison of the averages
    """

    kind: Literal["average"] = "average"
    over: Average
    rule: Above

    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        rows: dict[str, list[Measure]] = {}
        for measure in measures:
            if measure.values and not measure.tested and measure.task in self.over.tasks:
                rows.setdefault(measure.row, []).append(measure)
        for ours in rows.values():
            for theirs in rows.values():
                common = {m.setting for m in ours} & {m.setting for m in theirs}
                a, b = (self.over.of([m for m in own if m.setting in common]) for own in (ours, theirs))
                if not a or not b or a.row == b.row or not self.rule.alike(a, b):
                    continue
                if self.rule.better.holds(a) and self.rule.worse.holds(b):
                    yield from _first(self.rule, a, b)


Rule = Above | Rises | Each | OnAverage


def verdict_of(evidence: Sequence[Evidence]) -> Verdict:
    """The verdict of all comparisons together."""
    found = {one.verdict for one in evidence}
    if "not reproduced" in found:
        return "not reproduced"
    return "reproduced" if found == {"reproduced"} else "not decided"


def _at_bound(measure: Measure, values: Sequence[float]) -> bool:
    """Whether every value is at the ceiling, where nothing can be better, or at most chance, where nothing was learned."""
    full = measure.ceiling is not None and min(values) >= measure.ceiling
    return full or (measure.chance is not None and max(values) <= measure.chance)


def _sides(a: Measure, b: Measure) -> tuple[list[float], list[float], bool]:
    """The values to compare, and whether they are pairs. They are pairs, of the common seeds, if there are at least two and
    each of them went on from the same weights; otherwise they are all values of each side."""
    common = sorted(a.values.keys() & b.values.keys())
    paired = len(common) > 1 and all(a.began.get(s) and a.began.get(s) == b.began.get(s) for s in common)
    if paired:
        return [a.values[s] for s in common], [b.values[s] for s in common], True
    return list(a.values.values()), list(b.values.values()), False


def _first(rule: Above, a: Measure, b: Measure) -> Iterator[Evidence]:
    """The comparison of the first measure with the second, by the rule's score; nothing where either lacks it."""
    a, b = (m.of(rule.score) if rule.score else m for m in (a, b))
    if a.values and b.values:
        yield rule.compare(a, b)


def _rest(measure: Measure, but: Sequence[str]) -> str:
    """The parameters in which two architectures must agree, as text. The name of the architecture is none of them."""
    kept = {
        path: value
        for path, value in measure.leaves.items()
        if path.rsplit(".", 1)[-1] not in ("name", *but) and not ("expand" in but and path.startswith("expand."))
    }
    return repr(sorted(kept.items()))


def _where(measure: Measure) -> str:
    of_training = ("training.steps", "training.epochs", "training.trained_")
    shown = [d for d in measure.dials if "." not in d or d.startswith(of_training)]
    return " ".join([measure.task, *words(measure.dials, shown)])


def _signed(difference: float) -> str:
    """The difference to three decimals, or to two significant digits where it is smaller."""
    return f"{difference:+.3f}" if abs(difference) >= 0.0005 or difference == 0 else f"{difference:+.1e}"


def _mean(values: Sequence[float]) -> str:
    half = half_width(t_interval(values))
    return f"{np.mean(values):.3f}{'' if half is None else f' ±{half:.3f}'} (n={len(values)})"
