"""Whether records bear a claim out: comparisons of measures, each with its interval, and what they come to together.

A comparison of a and b is decided by the 95 % interval of mean(a) - mean(b), Student's with a common variance: two seeds of
each are the fewest. Where the trials of every seed went on from the same weights, it is that of the differences seed by seed:
two seeds that both have are the fewest. A claim stands if all of its comparisons do, falls with any that is decided against
it, and is otherwise not decided.
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


@dataclass(frozen=True, kw_only=True)
class Which:
    """The measures that are meant: everything that is said must agree.

    archs    names of architectures, any of them
    has, lacks  kinds of mixers that it has, any of them; and that it has none of
    dials    of the architecture: a name and the values that it may have
    at       dials of the setting
    grown    whether its state was expanded in training (StateX)
    """

    archs: tuple[str, ...] = ()
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    dials: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    at: Mapping[str, Any] = field(default_factory=dict)
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
            and all(any(value in may for value in values.get(name, ())) for name, may in self.dials.items())
            and all(measure.dials.get(name) == value for name, value in self.at.items())
            and self.grown
            in (None, any(path.startswith("expand.") and path.endswith(".count") for path in measure.leaves))
        )


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One comparison: who, where, the figures in words, and what it says of the claim."""

    who: str
    where: str
    figures: str
    verdict: Verdict


class Rule(ABC):
    """What a claim asks of measures of one task."""

    @abstractmethod
    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        """A piece of evidence for every comparison that the measures allow."""


@dataclass(frozen=True, kw_only=True)
class Above(Rule):
    """`better` scores above `worse` on the same setting, where the weights of both began alike (`init`).

    margin      None: the difference must be above 0. A number: the two differ by less than it (`no_worse`: better may well be
                better)
    but         dials in which the two may differ, all others being equal; "expand" for all of an expansion. None: any
    same_state  how much their states may differ, as a share; None: at will
    """

    better: Which
    worse: Which
    score: str | None = None
    margin: float | None = None
    no_worse: bool = False
    but: tuple[str, ...] | None = None
    same_state: float | None = None

    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        scored = [m for measure in measures if (m := measure.of(self.score) if self.score else measure).values]
        for a in filter(self.better.holds, scored):
            for b in filter(self.worse.holds, scored):
                if a is not b and a.setting == b.setting and self.alike(a, b):
                    yield self.compare(a, b)

    def alike(self, a: Measure, b: Measure) -> bool:
        """Whether the two are to be compared, on one setting."""
        if a.leaves.get("init") != b.leaves.get("init"):
            return False
        if self.same_state is not None and abs(a.state_bytes - b.state_bytes) > self.same_state * max(
            a.state_bytes, b.state_bytes
        ):
            return False
        return self.but is None or _rest(a, self.but) == _rest(b, self.but)

    def compare(self, a: Measure, b: Measure) -> Evidence:
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
class Rises(Rule):
    """The score is higher at the largest value of a dial than at the smallest, all else being equal."""

    dial: str
    which: Which = Which()
    score: str | None = None

    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        groups: dict[str, dict[float, Measure]] = {}
        for measure in filter(self.which.holds, measures):
            value = next((v for p, v in measure.leaves.items() if p.rsplit(".", 1)[-1] == self.dial), None)
            if isinstance(value, int | float) and measure.values:
                groups.setdefault(f"{measure.setting}{_rest(measure, (self.dial,))}", {})[value] = measure
        above = Above(better=Which(), worse=Which(), score=self.score)
        for by_value in groups.values():
            if len(by_value) > 1:
                yield from _first(above, by_value[max(by_value)], by_value[min(by_value)])


@dataclass(frozen=True, kw_only=True)
class Each(Rule):
    """Every seed of `which` scores within `least` and `most`; if none does, it is not so; otherwise it is not decided."""

    which: Which
    least: float = float("-inf")
    most: float = float("inf")
    score: str | None = None

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
class OnAverage(Rule):
    """As `Above`, of the mean over several tasks: a mean of columns, each of them the mean of its tasks, each of those the
    mean of the settings that both have been measured on."""

    rule: Above
    columns: tuple[tuple[str, ...], ...]

    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        rows: dict[str, list[Measure]] = {}
        for measure in measures:
            if measure.values and not measure.tested:
                rows.setdefault(measure.row, []).append(measure)
        for ours in rows.values():
            for theirs in rows.values():
                common = {m.setting for m in ours} & {m.setting for m in theirs}
                a, b = (self._pooled([m for m in own if m.setting in common]) for own in (ours, theirs))
                if not a or not b or a.row == b.row or not self.rule.alike(a, b):
                    continue
                if self.rule.better.holds(a) and self.rule.worse.holds(b):
                    yield from _first(self.rule, a, b)

    def _pooled(self, own: Sequence[Measure]) -> Measure | None:
        """One measure for all; None where a task is missing, or no seed was trained on everything."""
        if not all(any(m.task == task for m in own) for column in self.columns for task in column):
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


def verdict_of(evidence: Sequence[Evidence]) -> Verdict:
    """All of it together."""
    found = {one.verdict for one in evidence}
    if "not reproduced" in found:
        return "not reproduced"
    return "reproduced" if found == {"reproduced"} else "not decided"


def _at_bound(measure: Measure, values: Sequence[float]) -> bool:
    """Whether the ceiling is reached, where nothing can be better, or chance not passed, where nothing has been learned."""
    full = measure.ceiling is not None and min(values) >= measure.ceiling
    return full or (measure.chance is not None and max(values) <= measure.chance)


def _sides(a: Measure, b: Measure) -> tuple[list[float], list[float], bool]:
    """The values to compare, and whether they are pairs: of the seeds that both have, if there are two and each of them went
    on from the same weights; otherwise all."""
    common = sorted(a.values.keys() & b.values.keys())
    paired = len(common) > 1 and all(a.began.get(s) and a.began.get(s) == b.began.get(s) for s in common)
    if paired:
        return [a.values[s] for s in common], [b.values[s] for s in common], True
    return list(a.values.values()), list(b.values.values()), False


def _first(rule: Above, a: Measure, b: Measure) -> Iterator[Evidence]:
    """Of two measures, the comparison of the first with the second."""
    a, b = (m.of(rule.score) if rule.score else m for m in (a, b))
    if a.values and b.values:
        yield rule.compare(a, b)


def _rest(measure: Measure, but: Sequence[str]) -> str:
    """The dials of an architecture that two are to agree in; what it is called is none."""
    kept = {
        path: value
        for path, value in measure.leaves.items()
        if path.rsplit(".", 1)[-1] not in ("name", *but) and not ("expand" in but and path.startswith("expand."))
    }
    return repr(sorted(kept.items()))


def _where(measure: Measure) -> str:
    of_training = ("training.steps", "training.epochs", "training.trained_")
    told = [d for d in measure.dials if "." not in d or d.startswith(of_training)]
    return " ".join([measure.task, *words(measure.dials, told)])


def _signed(difference: float) -> str:
    """To three digits behind the point, or to the first two that are not 0."""
    return f"{difference:+.3f}" if abs(difference) >= 0.0005 or difference == 0 else f"{difference:+.1e}"


def _mean(values: Sequence[float]) -> str:
    half = half_width(t_interval(values))
    return f"{np.mean(values):.3f}{'' if half is None else f' ±{half:.3f}'} (n={len(values)})"
