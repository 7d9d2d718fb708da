"""Results of a study: its front with uncertainty, the progress of samplers, the importance of parameters, agreement of tiers.

A point is chosen by its goals on validation. Its figures are measured on test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from recallmap.results.analysis.labels import counted, flatten, leaves_of
from recallmap.results.analysis.outside_code import has_unknown_state
from recallmap.results.analysis.pareto import front, volume_curves
from recallmap.results.analysis.rank_correlation import FEW, spearman
from recallmap.results.record import Record
from recallmap.results.score_tables.table import in_few_digits
from recallmap.search.documents import content_key
from recallmap.search.documents.type_hints import either
from recallmap.search.proposers.generations import ranked, said_choices
from recallmap.search.proposers.journal import Journal
from recallmap.search.proposers.proposer import Told, point_of
from recallmap.search.space.parameters import Choices
from recallmap.search.space.search_space import ANCHORS, Search
from recallmap.search.study.differences import telling, values_of
from recallmap.search.study.goals import SPEED, STATIC, Goal
from recallmap.search.study.inner_grid import judged
from recallmap.search.study.spec import StudySpec
from recallmap.search.trials import Trial

DRAWS = 1000  # of the bootstrap


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A trained point with the records of all its trials.

    proposer  label of the sampler, or anchors, or grid
    chosen    values of the goals on validation, by which points are compared
    by_seed   values of the goals on test, a row a seed
    parents   ordinals of the points of the same sampler that it descends from; `change` says what tells it from the first
    """

    proposer: str
    ordinal: int
    choices: Choices
    trial: Trial  # the first of the point; all have the same architecture
    records: tuple[Record, ...]
    chosen: tuple[float, ...]
    by_seed: tuple[tuple[float, ...], ...]
    rungs: tuple[tuple[float, ...], ...] = ()
    parents: tuple[int, ...] = ()
    change: str = ""

    @property
    def name(self) -> str:
        return f"{self.proposer} {self.ordinal}"

    @property
    def tested(self) -> tuple[float, ...]:
        """Means over seeds."""
        return tuple(float(x) for x in np.mean(np.asarray(self.by_seed), axis=0))

    @property
    def state_bytes(self) -> float:
        """A mean over its trials, whose lengths may differ."""
        return sum(record.state_bytes for record in self.records) / len(self.records)


@dataclass(frozen=True, kw_only=True)
class Findings:
    """All results of a study. `candidates` are in the order of asking, sampler by sampler; a point that several samplers
    proposed is several candidates."""

    study: StudySpec
    candidates: tuple[Candidate, ...]
    importances: Mapping[str, Mapping[str, float]]  # shares by parameter, by label of the sampler
    agreements: tuple[Agreement, ...]
    narrower: int = 0  # points of a grid that are left out, because they ask fewer trials than others do

    @property
    def maximise(self) -> list[bool]:
        return [goal.direction == "maximise" for goal in self.study.goals]

    @property
    def scored(self) -> int | None:
        """The place of the first goal that is a score and no cost; None where there is none."""
        return next((at for at, goal in enumerate(self.study.goals) if goal.score not in (*STATIC, SPEED)), None)

    @cached_property
    def apart(self) -> tuple[bool, ...]:
        """For every candidate, True where its state is a goal and its size unknown; none where this holds for all."""
        asks = any(goal.score in ("state_bytes", "state_floats") for goal in self.study.goals)
        found = [asks and has_unknown_state(leaves_of(one.records[0])) for one in self.candidates]
        return tuple(found) if not all(found) else (False,) * len(found)

    def front_of_known(self, values: Sequence[Sequence[float]]) -> NDArray[np.bool_]:
        """bool [N]: the front of the candidates that are not apart."""
        kept = ~np.asarray(self.apart)
        kept[kept] = front([value for value, apart in zip(values, self.apart, strict=True) if not apart], self.maximise)
        return kept

    def on_front(self) -> list[Candidate]:
        """Candidates that no other beats on every goal at once, by the first goal; the first of equal points."""
        values = [one.chosen for one in self.candidates]
        if not values:
            return []
        kept = front(values, self.maximise) if not any(self.apart) else self.front_of_known(values)
        found: dict[tuple[str, ...], Candidate] = {}
        for index in ranked(values, self.maximise):
            if kept[index]:
                one = self.candidates[index]
                found.setdefault(tuple(sorted(record.key for record in one.records)), one)
        return list(found.values())


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How two tiers rank the same points by the first goal: Spearman's correlation, 1 where they agree."""

    lower: str
    higher: str
    points: int
    correlation: float


def findings_of(study: StudySpec, records: Iterable[Record], journal: Journal) -> Findings:
    """Collect the results of a study from its records and journal. Points that lack a record are left out."""
    kept = {record.key: record for record in records}
    if not isinstance(study.space, Search):
        done = {key: record for key, record in kept.items() if record.status == "done"}
        points = _points_of_grid(study)
        most = max(map(len, points), default=0)
        whole = tuple(_of_grid(study, points, most, done))
        narrower = sum(len(trials) < most for trials in points)
        return Findings(study=study, candidates=whole, importances={}, agreements=(), narrower=narrower)
    arms = {label: study.address(label) for label in study.space.arms}
    candidates = tuple(c for arm, name in arms.items() for c in _of_search(study, arm, journal.told(name), kept))
    importances = {arm: journal.importances(name) for arm, name in arms.items() if arm != ANCHORS}
    return Findings(
        study=study,
        candidates=candidates,
        importances={arm: shares for arm, shares in importances.items() if shares},
        agreements=(*_rungs_agree(candidates, study), *_budgets_agree(study, journal)),
    )


def _of_search(study: StudySpec, arm: str, told: Iterable[Told], kept: Mapping[str, Record]) -> Iterator[Candidate]:
    if not isinstance(study.space, Search):
        return
    for one in told:
        if one.end != "done":
            continue
        trials = study.expanded(point_of(study.space, one, arm))
        keys = [content_key.key(trial) for trial in trials]
        if any(key not in kept for key in keys):
            continue
        found = tuple(judged(study.space, [kept[key] for key in keys]))
        if any(record.status == "failed" for record in found):  # trained again since the point was reported
            continue
        yield Candidate(
            proposer=arm,
            ordinal=one.ordinal,
            choices=one.choices,
            trial=trials[0],
            records=found,
            chosen=one.values,
            by_seed=_by_seed(study.goals, found, one.milliseconds),
            rungs=one.rungs,
            parents=one.parents,
            change=one.change,
        )


def _points_of_grid(study: StudySpec) -> list[list[Trial]]:
    """Trials that differ in the seed and the task alone are one point."""
    groups: dict[str, list[Trial]] = {}
    for trial in study.trials():
        groups.setdefault(content_key.canonical(_shared(trial)), []).append(trial)
    return list(groups.values())


def _shared(trial: Trial) -> dict[str, Any]:
    said = content_key.plain(trial)
    return {name: said[name] for name in said if name not in ("seed", "task", "tests", "mix", "data")}


def _of_grid(
    study: StudySpec, points: Sequence[Sequence[Trial]], most: int, kept: Mapping[str, Record]
) -> Iterator[Candidate]:
    """The points whose trials are all done, of those that ask as many as any."""
    leaves = [dict(flatten(_shared(trials[0]))) for trials in points]
    paths = telling([(own.get("arch.name"), own.get("training.lr")) for own in leaves], leaves)
    scored, why = 0, ""
    for ordinal, (trials, own) in enumerate(zip(points, leaves, strict=True)):
        found = tuple(kept[content_key.key(trial)] for trial in trials if content_key.key(trial) in kept)
        if len(found) < most:
            continue
        try:
            chosen = tuple(goal.of(found, None) for goal in study.goals)
            by_seed = _by_seed(study.goals, found, None)
        except ValueError as error:  # a goal that these tasks do not score
            why = str(error)
            continue
        scored += 1
        yield Candidate(
            proposer="grid",
            ordinal=ordinal,
            choices={"arch": trials[0].name, **values_of(own, ("training.lr", *paths))},
            trial=trials[0],
            records=found,
            chosen=chosen,
            by_seed=by_seed,
        )
    if why and not scored:
        raise ValueError(f"{why}; give the study other goals")


def _by_seed(
    goals: Sequence[Goal], records: Sequence[Record], milliseconds: float | None
) -> tuple[tuple[float, ...], ...]:
    seeds = sorted({record.seed for record in records})
    rows = [[record for record in records if record.seed == seed] for seed in seeds]
    return tuple(tuple(goal.of(row, milliseconds, split="test") for goal in goals) for row in rows)


# Uncertainty. -------------------------------------------------------------------------------------


def intervals(one: Candidate, rng: np.random.Generator) -> list[tuple[float, float] | None]:
    """The 95 % percentile bootstrap interval over seeds of every goal on test; None where nothing varies or there is one
    seed."""
    values = np.asarray(one.by_seed)
    if len(values) < 2:
        return [None] * values.shape[1]
    means = values[rng.integers(len(values), size=(DRAWS, len(values)))].mean(axis=1)
    ends = np.quantile(means, [0.025, 0.975], axis=0)
    return [(float(low), float(high)) if low < high else None for low, high in ends.T]


def shares_on_front(found: Findings, rng: np.random.Generator, draws: int = 200) -> NDArray[np.float64]:
    """float [N]: share of bootstrap draws of seeds in which each candidate is on the front of test scores."""
    samples = [np.asarray(one.by_seed) for one in found.candidates]
    on = np.zeros(len(samples))
    for _ in range(draws):
        means = [sample[rng.integers(len(sample), size=len(sample))].mean(axis=0) for sample in samples]
        on += front(means, found.maximise) if not any(found.apart) else found.front_of_known(means)
    return on / draws


def volumes(found: Findings) -> dict[str, list[float]]:
    """The hypervolume after every point, by sampler, on a scale over all points: see `volume_curves`. Empty with more than
    three goals."""
    if len(found.study.goals) > 3:
        return {}
    groups: dict[str, list[tuple[float, ...]]] = {}
    for one in found.candidates:
        groups.setdefault(one.proposer, []).append(one.chosen)
    curves = volume_curves(groups, found.maximise)
    return {proposer: curve for proposer, curve in curves.items() if proposer != ANCHORS}


def _rungs_agree(candidates: Sequence[Candidate], study: StudySpec) -> Iterator[Agreement]:
    rungs = study.space.rungs if isinstance(study.space, Search) else None
    for step, value in enumerate(rungs.values if rungs else ()):
        # Samplers may begin with the same points.
        apart = {tuple(r.key for r in one.records): one for one in candidates}
        pairs = [(one.rungs[step][0], one.chosen[0]) for one in apart.values() if len(one.rungs) > step]
        name = rungs.path.rpartition(".")[2] if rungs else ""
        yield from _agreement(f"{name}={value}", "whole budget", pairs)


def _budgets_agree(study: StudySpec, journal: Journal) -> Iterator[Agreement]:
    """Agreement on points that this budget shares with another, such as the random first ones of equal seed."""
    ours = _first_goal(journal, _searches(study, journal, study.budget))
    for name in [*study.budgets.value, None]:
        if name == study.budget:
            continue
        theirs = _first_goal(journal, _searches(study, journal, name))
        pairs = [(theirs[key], value) for key, value in ours.items() if key in theirs]
        yield from _agreement(f"budget {name or 'whole'}", f"budget {study.budget or 'whole'}", pairs)


def _searches(study: StudySpec, journal: Journal, budget: str | None) -> list[str]:
    start = f"{study.name}/{budget or 'whole'}/"
    return [name for name in journal.names() if name.startswith(start) and f"/{ANCHORS}/" not in name]


def _first_goal(journal: Journal, names: Sequence[str]) -> dict[str, float]:
    done = [one for name in names for one in journal.told(name) if one.end == "done"]
    return {content_key.canonical(one.choices): one.values[0] for one in done}


def _agreement(lower: str, higher: str, pairs: Sequence[tuple[float, float]]) -> Iterator[Agreement]:
    correlation = spearman(*zip(*pairs, strict=True)) if len(pairs) >= FEW else None
    if correlation is not None:
        yield Agreement(lower=lower, higher=higher, points=len(pairs), correlation=correlation)


# Tables, and the winner. --------------------------------------------------------------------------


def front_table(found: Findings) -> Table:
    """The front, a line a point."""
    rng = np.random.default_rng(0)
    shares = dict(zip((one.name for one in found.candidates), shares_on_front(found, rng), strict=True))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    for name in ("point", "arch", *(f"{goal.name} (test)" for goal in found.study.goals), "on front", "parameters"):
        table.add_column(name, overflow="fold")
    seeds = max(len(one.by_seed) for one in found.candidates)
    for one in found.on_front():
        ends = intervals(one, rng)
        figures = [_figure(value, interval) for value, interval in zip(one.tested, ends, strict=True)]
        choices = said_choices({name: value for name, value in one.choices.items() if name != "arch"})
        share = f"{shares[one.name]:.0%}" if seeds > 1 else "yes" if shares[one.name] else "no"
        table.add_row(one.name, one.trial.name, *figures, share, choices)
    sure = (
        "one seed, so no intervals; on front: whether no other point beats it on test"
        if seeds == 1
        else f"in brackets 95 % bootstrap intervals over {seeds} seeds; on front: the share of draws of seeds in which no "
        "other point beats it on test"
    )
    ruled_out = isinstance(found.study.space, Search) and found.study.constraints.limits
    numbers = "; numbers count what a constraint ruled out, too" if ruled_out else ""
    whole = counted(len(found.candidates), "point")
    if found.narrower:
        whole += f", {found.narrower:,} that ask fewer trials left out"
    table.caption = f"{whole}; chosen on validation, shown on test; {sure}{numbers}"
    return table


def lines_of(found: Findings) -> Iterator[str]:
    """Lines on hypervolume, importance of parameters, and agreement of tiers; the order of a grid tells no progress."""
    for proposer, curve in volumes(found).items() if isinstance(found.study.space, Search) else ():
        marks = sorted({max(1, len(curve) // 4), max(1, len(curve) // 2), len(curve)})
        said = ", ".join(f"{curve[n - 1]:.3f} after {n}" for n in marks)
        what = "best so far" if len(found.study.goals) == 1 else "hypervolume"
        yield f"{what} ({proposer}): {said} points"
    for proposer, shares in found.importances.items():
        said = ", ".join(f"{_short(name)} {share:.2f}" for name, share in list(shares.items())[:8])
        yield f"importance of parameters ({proposer}, PED-ANOVA): {said}"
    for one in found.agreements:
        yield f"rank correlation of {one.lower} with {one.higher}: {one.correlation:.2f} over {one.points} points"


def data_of(found: Findings) -> dict[str, Any]:
    """All points that are trained, the front, what `lines_of` says, and where the records come from that points are judged by,
    as plain data for programs. Values by goal are in the order of `goals`."""
    rng = np.random.default_rng(0)
    shares = dict(zip((one.name for one in found.candidates), shares_on_front(found, rng).tolist(), strict=True))
    trained = {
        one.name: {
            "point": one.name,
            "arch": one.trial.name,
            "validation": list(one.chosen),
            "test": list(one.tested),
            "test_by_seed": [list(values) for values in one.by_seed],
            "parameters": dict(one.choices),
        }
        for one in found.candidates
    }
    front_points = [
        trained[one.name]
        | {
            "intervals": intervals(one, rng),
            "on_front": shares[one.name],
            "keys": [record.key for record in one.records],
        }
        for one in found.on_front()
    ]
    records = [record for one in found.candidates for record in one.records]
    return {
        "study": found.study.name,
        "goals": [{"name": goal.name, "direction": goal.direction} for goal in found.study.goals],
        "points": len(found.candidates),
        "narrower": found.narrower,
        "front": front_points,
        "trained": list(trained.values()),
        "records": {
            "number": len(records),
            "commits": sorted({record.commit or "unknown" for record in records}),
            "devices": sorted({record.device for record in records}),
        },
        "hypervolumes": volumes(found),
        "importances": {name: dict(own) for name, own in found.importances.items()},
        "agreements": list(found.agreements),
    }


def winner(found: Findings, name: str | None = None) -> Candidate:
    """The point of that name; without a name the best on the front by the first goal, an anchor only where no sampler has one.
    Raises ValueError where there is none."""
    if name is not None:
        chosen = next((one for one in found.candidates if one.name == name), None)
        if chosen is None:
            samplers = either(list(dict.fromkeys(one.proposer for one in found.candidates)))
            raise ValueError(
                f"no trained point '{name}', expected {samplers} with a number, such as '{winner(found).name}'"
            )
        return chosen
    best = found.on_front()
    if not best:
        raise ValueError("no point is trained to its end yet")
    return next((one for one in best if one.proposer != ANCHORS), best[0])


def _figure(value: float, interval: tuple[float, float] | None) -> str:
    said, *ends = (in_few_digits(x) for x in (value, *(interval or ())))
    return f"{said} [{', '.join(ends)}]" if ends else said


def _short(name: str) -> str:
    return name.removeprefix("trial.").removeprefix("arch.")
