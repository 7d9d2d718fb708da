"""The rules by which records decide a claim: comparisons of measures and their tests.

A test needs five fresh seeds on each side. Seeds that chose hyper-parameters look better than they are, and are left out, as
are those that no commit explains. Where every seed tried all hyper-parameters, each counts under those that the others chose.
Seeds that both sides have are compared with themselves: on one setting they share their data, across settings (`across`) the
weights that they begin with. The verdict of all comparisons together is that of `verdicts`; a comparison that cannot speak says
why (`silence`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from recallmap.results.analysis.comparison import Comparison, compared, fewer_than_half, fisher, independent
from recallmap.results.analysis.confidence import FEWEST_TO_DECIDE, gap_between_peaks, mean_interval, share_interval
from recallmap.results.analysis.labels import words
from recallmap.results.analysis.measures import Measure, at_ceiling, edge_of
from recallmap.results.analysis.namesakes import remark
from recallmap.results.publishing.silence import failed_to_train, ill_chosen, silence
from recallmap.results.publishing.verdicts import Evidence
from recallmap.results.score_tables.table import is_share, more_is_better

SMALLEST = 0.01  # difference of shares that is of interest

_CHOSEN = ", each by what the other seeds chose"

Value = int | float | str | bool | None  # of a parameter
Side = Literal["for", "against"]


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
        return all(measure.dials.get(name) == value for name, value in self.at.items()) and self.fits(measure)

    def fits(self, measure: Measure) -> bool:
        """Whether it picks this measure's architecture, whatever the setting."""
        if self.archs and measure.arch not in self.archs:
            return False
        values: dict[str, list[Any]] = {}
        for path, value in measure.leaves.items():
            values.setdefault(path.rsplit(".", 1)[-1], []).append(value)
        kinds = values.get("kind", [])
        return (
            (not self.has or any(kind in kinds for kind in self.has))
            and not any(kind in kinds for kind in self.lacks)
            and all(any(value in may for value in values.get(name, ())) for name, may in self.parameters.items())
            and self.grown
            in (None, any(path.startswith("expand.") and path.endswith(".count") for path in measure.leaves))
        )


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
    smallest    the smallest difference of interest, in the unit of the score. None: one point of a share, 0 of other scores
    margin      None: the difference must be above 0. A number: the difference must be smaller than it in size
    no_worse    with a margin: `better` may also be better by more
    but         parameters in which the two may differ, all others being equal; "expand" for all of an expansion. None: any
    same_state  the largest difference of their states in bytes, as a fraction of the larger; None: any
    across      parameters of the setting in which the two may differ, all others being equal
    minus       name of a score that is taken from `score`, seed by seed, so that what a part loses can be compared

    Without a margin, the comparison leans to the claim where the means differ by `smallest` or more, and is tested against a
    difference of 0; else it leans against, and is tested against a difference of `smallest`. With a margin, a difference within
    it is for the claim (two one-sided tests), and one beyond it against.

    Raises ValueError where a number is negative, where no_worse comes without a margin, where smallest comes with one, and
    where minus comes without a score.
    """

    kind: Literal["above"] = "above"
    better: Which
    worse: Which
    score: str | None = None
    smallest: float | None = None
    margin: float | None = None
    no_worse: bool = False
    but: tuple[str, ...] | None = None
    same_state: float | None = None
    across: tuple[str, ...] = ()
    minus: str | None = None

    def __post_init__(self) -> None:
        for name in ("smallest", "margin", "same_state"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must be at least 0, got {value:g}")
        if self.no_worse and self.margin is None:
            raise ValueError("no_worse needs a margin, got none; give margin, or leave no_worse out")
        if self.minus is not None and self.score is None:
            raise ValueError("minus needs a score to be taken from, got none; give score, or leave minus out")
        if self.smallest is not None and self.margin is not None:
            raise ValueError("smallest and margin exclude each other, got both; leave one out")

    def weigh(self, measures: Sequence[Measure]) -> Iterator[Evidence]:
        scored = [m for measure in measures if (m := self.scored(measure)).values]
        worse = [*filter(self.worse.holds, scored)]
        for a in filter(self.better.holds, scored):
            against = [b for b in worse if a is not b and self._same_question(a, b) and self.alike(a, b)]
            tells_apart = not all(map(at_ceiling, against))
            yield from (self.compare(a, b, tells_apart=tells_apart) for b in against)

    def scored(self, measure: Measure) -> Measure:
        """The measure by the score of the rule."""
        return measure.of(self.score, minus=self.minus) if self.score else measure

    def _same_question(self, a: Measure, b: Measure) -> bool:
        if not self.across:
            return a.setting == b.setting
        first, second = ({n: v for n, v in m.dials.items() if n not in self.across} for m in (a, b))
        return a.task == b.task and first == second and a.setting != b.setting

    def alike(self, a: Measure, b: Measure) -> bool:
        """Whether the rule compares the two, given that they share a setting."""
        if a.leaves.get("init") != b.leaves.get("init"):
            return False
        if self.same_state is not None and abs(a.state_bytes - b.state_bytes) > self.same_state * max(
            a.state_bytes, b.state_bytes
        ):
            return False
        return self.but is None or _rest(a, self.but) == _rest(b, self.but)

    def compare(self, a: Measure, b: Measure, *, tells_apart: bool = False) -> Evidence:
        """The comparison of two measures, seed by seed where both have five fresh seeds in common, and the test of it. For
        `tells_apart` see `silence`."""
        found = _compared(a, b)
        sides = (found.ours, found.theirs) if found else (list(a.values.values()), list(b.values.values()))
        difference = float(np.mean(sides[0]) - np.mean(sides[1]))
        alone = found.dependent if found else (False, False)
        said = (
            f"{_mean(sides[0], a, alone[0])} against {_mean(sides[1], b, alone[1])}, difference {_signed(difference)}"
        )
        if found is None:
            said += _too_few(a, b)
        elif found.interval:
            said += f" in [{_signed(found.interval[0])}, {_signed(found.interval[1])}]"
        said += (", seed by seed" if found and found.paired else "") + (_CHOSEN if any(alone) else "")
        said += _learned(sides[0], sides[1], a)
        side = self._leaning(difference, a.metric)
        p = self._tested(found, side, a.metric) if found else None
        who = " against ".join(
            " ".join([m.row, *words(m.dials, [n for n in self.across if n in m.dials])]) for m in (a, b)
        )
        return Evidence(
            who=who,
            where=_where(a, self.across),
            figures=said,
            side=side,
            p=p,
            silent=silence(a, b, tells_apart=tells_apart),
            remarks=_remarks(a, b),
            keys=frozenset(a.keys + b.keys),
        )

    def _leaning(self, difference: float, metric: str) -> Side:
        """The side to which the difference of means leans."""
        better = difference if more_is_better(metric) else -difference
        if self.margin is None:
            return "for" if better > 0 and better >= self._least(metric) else "against"
        return "for" if better > -self.margin and (self.no_worse or better < self.margin) else "against"

    def _tested(self, found: Comparison, side: Side, metric: str) -> float:
        """The p value of a side."""
        up = more_is_better(metric)
        better, worse = (found.p_above, found.p_below) if up else (_less(found.p_below), _less(found.p_above))
        if self.margin is None:
            return better(0.0) if side == "for" else worse(self._least(metric))
        if self.no_worse:
            return better(-self.margin) if side == "for" else worse(-self.margin)
        return found.p_within(self.margin) if side == "for" else min(better(self.margin), worse(-self.margin))

    def _least(self, metric: str) -> float:
        return self.smallest if self.smallest is not None else SMALLEST if is_share(metric) else 0.0


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
    """Every seed of `which` scores between `least` and `most`, and none fails. Reproduced where all fresh seeds do, and by the
    binomial test more than half of all seeds would. Not reproduced where by that test fewer than half would. Six that agree
    have a p value of 0.03, nine with one exception 0.04.

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
            scored = measure.of(self.score) if self.score else measure
            if scored.values:
                yield self._of(scored)

    def _of(self, measure: Measure) -> Evidence:
        fresh = list(measure.fresh.values())
        few = len(fresh) < FEWEST_TO_DECIDE
        own = list(measure.values.values()) if few else fresh
        inside = sum(self.least <= value <= self.most for value in own)
        ends = [f"at least {self.least:g}"] * (self.least > float("-inf"))
        ends += [f"at most {self.most:g}"] * (self.most < float("inf"))
        said = (
            f"{_mean(own, measure, measure.dependent and not few)}; {inside} of {len(own)} seeds {' and '.join(ends)}"
        )
        if measure.lost:
            said += f", {measure.lost} failed"
        if few:
            said += _too_few(measure)
        else:
            low, high = share_interval(inside, len(own))
            said += f", a share in [{low:.2f}, {high:.2f}]{_CHOSEN if measure.dependent else ''}"
        alike = independent(len(own), measure.dependent)
        every = inside == len(own) and not measure.lost
        one_sided = 0.5**alike if every else fewer_than_half(inside, alike + measure.lost)
        p = None if few else min(1.0, 2 * one_sided)
        silent = ""
        if float(np.mean(own)) < self.least:
            silent = ill_chosen(measure) or (f"{measure.row} failed to train" if failed_to_train(measure) else "")
        elif float(np.mean(own)) <= self.most < float("inf"):
            silent = ill_chosen(measure)  # it might come above, better chosen
        return Evidence(
            who=measure.row,
            where=_where(measure),
            figures=said,
            side="for" if 2 * inside > len(own) else "against",
            p=p,
            silent=silent,
            remarks=_remarks(measure),
            keys=frozenset(measure.keys),
        )


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

        values = {seed: self._mean(own, [m.values[seed] for m in own]) for seed in sorted(seeds)}
        if not values:
            return None
        tasks, settings = len({m.task for m in own}), len({m.setting for m in own})
        return replace(
            own[0],
            task=own[0].task if tasks == 1 else f"mean of {tasks} tasks",
            values=values,
            errors={},
            dials={"settings": settings},
            chose_none=frozenset.intersection(*(m.chose_none for m in own)),
            traceable=frozenset.intersection(*(m.traceable for m in own)),
            held_out=self._held_out(own),
            edge=edge_of(own),
            surpassed=max(m.surpassed for m in own),
            lost=max(m.lost for m in own),
            keys=tuple(key for m in own for key in m.keys),
            trained={seed: max(m.trained.get(seed, 0.0) for m in own) for seed in seeds},
            chance=self._bound(own, "chance"),
            ceiling=self._bound(own, "ceiling"),
        )

    def _held_out(self, own: Sequence[Measure]) -> dict[int, float]:
        """The same average of fresh values, where any measure's are dependent; empty where none are."""
        if not any(m.dependent for m in own):
            return {}
        seeds = set.intersection(*(set(m.fresh) for m in own))
        return {seed: self._mean(own, [m.fresh[seed] for m in own]) for seed in sorted(seeds)}

    def _bound(self, own: Sequence[Measure], name: str) -> float | None:
        """The same average of chance or of the ceiling; None where a measure has none."""
        bounds = [getattr(m, name) for m in own]
        return None if None in bounds else self._mean(own, bounds)

    def _mean(self, own: Sequence[Measure], values: Sequence[float]) -> float:
        """The average of values that belong to the measures."""
        by_task: dict[str, list[float]] = {}
        for measure, value in zip(own, values, strict=True):
            by_task.setdefault(measure.task, []).append(value)
        return float(np.mean([np.mean([np.mean(by_task[task]) for task in column]) for column in self.columns]))


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
            scored = self.rule.scored(measure)
            if scored.values and not measure.tested and measure.task in self.over.tasks:
                rows.setdefault(measure.row, []).append(scored)
        better, worse = (
            [own for own in rows.values() if any(map(side.fits, own))] for side in (self.rule.better, self.rule.worse)
        )
        for ours in better:
            for theirs in worse:
                common = {m.setting for m in ours} & {m.setting for m in theirs}
                a, b = (self.over.of([m for m in own if m.setting in common]) for own in (ours, theirs))
                if not a or not b or a.row == b.row or not self.rule.alike(a, b):
                    continue
                if self.rule.better.holds(a) and self.rule.worse.holds(b):
                    yield self.rule.compare(a, b)


Rule = Above | Rises | Each | OnAverage


def _compared(a: Measure, b: Measure) -> Comparison | None:
    """The comparison over fresh seeds: of those in common where there are five, else of all; None where a side has fewer."""
    ours, theirs = a.fresh, b.fresh
    common = [seed for seed in ours if seed in theirs]
    if len(common) >= FEWEST_TO_DECIDE:
        pairs = [ours[seed] for seed in common], [theirs[seed] for seed in common]
        return compared(*pairs, paired=True, dependent=(a.dependent, b.dependent))
    if min(len(ours), len(theirs)) >= FEWEST_TO_DECIDE:
        sides = list(ours.values()), list(theirs.values())
        return compared(*sides, paired=False, dependent=(a.dependent, b.dependent))
    return None


def _too_few(*own: Measure) -> str:
    said = f"; {' and '.join(str(len(m.fresh)) for m in own)} fresh seeds, {FEWEST_TO_DECIDE} are needed"
    lost = [len(m.values.keys() - m.traceable) for m in own]
    return f"{said} ({' and '.join(map(str, lost))} are untraceable)" if any(lost) else said


def _less(p: Callable[[float], float]) -> Callable[[float], float]:
    """A test of a score that is better where it is smaller, asked in differences that are better where they are larger."""
    return lambda bound: p(-bound)


def _learned(ours: Sequence[float], theirs: Sequence[float], measure: Measure) -> str:
    """The seeds of both sides that learned, where either has two peaks, and Fisher's test of their shares."""
    gaps = [gap_between_peaks(side, measure.chance, measure.ceiling) for side in (ours, theirs)]
    gap = gaps[0] if gaps[0] is not None else gaps[1]
    if gap is None:
        return ""
    first, second = ((sum(value > gap for value in side), len(side)) for side in (ours, theirs))
    said = f"; learned: {first[0]} of {first[1]} against {second[0]} of {second[1]} seeds"
    return f"{said} (Fisher p {fisher(first, second):.3f})"


def _first(rule: Above, a: Measure, b: Measure) -> Iterator[Evidence]:
    """The comparison of the first measure with the second, by the rule's score; nothing where either lacks it."""
    a, b = rule.scored(a), rule.scored(b)
    if a.values and b.values:
        yield rule.compare(a, b)


def _remarks(*own: Measure) -> tuple[str, ...]:
    return tuple(f"{m.arch}: {said}" for m in own if (said := remark(m.leaves)))


def _rest(measure: Measure, but: Sequence[str]) -> str:
    """The parameters in which two architectures must agree, as text. The name of the architecture is none of them."""
    kept = {
        path: value
        for path, value in measure.leaves.items()
        if path.rsplit(".", 1)[-1] not in ("name", *but) and not ("expand" in but and path.startswith("expand."))
    }
    return repr(sorted(kept.items()))


def _where(measure: Measure, but: Sequence[str] = ()) -> str:
    of_training = ("data.train", "training.steps", "training.epochs", "training.trained_")
    shown = [d for d in measure.dials if d not in but and ("." not in d or d.startswith(of_training))]
    return " ".join([measure.task, *words(measure.dials, shown)])


def _signed(difference: float) -> str:
    """The difference to three decimals, or to two significant digits where it is smaller."""
    return f"{difference:+.3f}" if abs(difference) >= 0.0005 or difference == 0 else f"{difference:+.1e}"


def _mean(values: Sequence[float], measure: Measure, dependent: bool) -> str:
    """The mean with its interval, which dependent seeds have not, and the number of seeds."""
    interval = None if dependent else mean_interval(values, measure.chance, measure.ceiling)
    within = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
    return f"{np.mean(values):.3f}{within} (n={len(values)})"
