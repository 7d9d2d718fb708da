"""A named question: a base trial, what of it varies, what is best, what is not worth training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from recallmap.search.documents import content_key, outside, type_hints
from recallmap.search.documents.nodes import Fault, Node, Patch, Place, SpecError, fault
from recallmap.search.space import grid
from recallmap.search.space.axis_values import Point, is_of_trial
from recallmap.search.space.corners import Given
from recallmap.search.space.grid import Grid
from recallmap.search.space.parameters import Choices, words_of
from recallmap.search.space.search_space import ANCHORS, Search, Space
from recallmap.search.study.goals import SPEED, STATIC, Constraints, Goal
from recallmap.search.study.race import Race
from recallmap.search.study.reading import TrialReader, at_their_axes, is_within
from recallmap.search.study.trial_filter import filtered
from recallmap.search.trials import Trial
from recallmap.search.trials.single import TrialSpec

MOST_FAULTS = 100  # different ones, after which no more are looked for

MOST_POINTS = 100_000  # of a grid: beyond it, somebody slipped

_ANY_GOAL = Goal(score="parameters", direction="minimise")  # one that every sampler and every trial has

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """A study. The base trial stays a document, for the space patches it before it is read.

    budgets  by name, patches (path: value) of the study; `budget` names the one that is applied
    only     train only grid trials that match, such as {task: mqar, arch: {name: mesa, width: [64, 128]}}; any value of a
             list matches, and a name or a kind stands for the whole part
    extend   of a grid: where the best learning rate is at the edge, train one an octave further, and so on
    race     of a grid: train all hyper-parameters on some settings of a task, and on the others those near the best alone
    """

    name: str
    description: str = ""
    trial: Node
    space: Space = field(default_factory=Grid)
    goals: tuple[Goal, ...] = (
        Goal(score="accuracy", direction="maximise"),
        Goal(score="state_bytes", direction="minimise"),
    )
    constraints: Constraints = field(default_factory=Constraints)
    budgets: Node = field(default_factory=lambda: Node({}, Place("budgets")))
    budget: str | None = None
    only: Node = field(default_factory=lambda: Node({}, Place("only")))
    extend: bool = field(default=False, metadata={"later": True})
    race: Race | None = field(default=None, metadata={"later": True})

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name must be letters, digits and _ - . (it names the ledger's file), got {self.name!r}")
        if not self.goals:
            raise ValueError("goals must hold at least one goal, got none")
        if self.extend and isinstance(self.space, Search):
            raise ValueError(
                "extend is for a grid, got a search, whose range of learning rates is its own: leave it out"
            )
        if self.race is not None and isinstance(self.space, Search):
            raise ValueError(
                "race is for a grid, got a search, which tries few points as it is: leave it out, or use rungs"
            )
        for sampler in self.space.samplers if isinstance(self.space, Search) else ():
            if len(self.goals) > 1 and not sampler.several_goals:
                raise ValueError(
                    f"goals must be one for {sampler.label}, got {len(self.goals)}: leave the others out, or choose tpe"
                )
        rungs = self.space.rungs if isinstance(self.space, Search) else None
        if rungs is not None and rungs.kind == "asha" and len(self.goals) > 1:
            raise ValueError(
                f"space has rungs of kind asha and {len(self.goals)} goals: asha ranks points by one figure as they come, "
                "and what it stops would enter the front as if it were trained; use kind: halving, or one goal"
            )
        if not isinstance(self.trial.value, dict):
            raise fault(self.trial.place, "trial", "expected a mapping: task, arch, training, ...")
        if not isinstance(self.budgets.value, dict):
            raise fault(self.budgets.place, "budgets", "expected a mapping of budgets by name")
        if not isinstance(self.only.value, dict):
            raise fault(self.only.place, "only", "expected a mapping, such as {arch: mesa, seed: [0, 1]}")

    def check(self, document: Node) -> None:
        """Read every trial of a grid, or every corner of a search, and check the goals. Raises SpecError with all faults, at
        their places in the `document` that the study was read from."""
        if isinstance(self.space, Search):
            if self.only.value:
                raise fault(self.only.place, "only", "a search has no list of trials to choose from: narrow its space")
            wrong = list(_goals_astray(self.goals, _corners_of(self, self.space), document))
            if wrong:
                raise SpecError(wrong)
        else:
            self._judged  # noqa: B018 - it is kept

    def trials(self) -> tuple[Trial, ...]:
        """The trials within the constraints, in the order of the space, none twice. Raises SpecError. A search has none
        before it has run: its points have, see `expanded`."""
        return tuple(spec for spec, why in self._judged if not why)

    def rejected(self) -> tuple[tuple[Trial, str], ...]:
        """The trials that break a constraint, and which."""
        return tuple((spec, why) for spec, why in self._judged if why)

    @property
    def most_trials(self) -> int:
        """The number of trials; for a search an upper bound."""
        if not isinstance(self.space, Search):
            return len(self.trials())
        rungs = len(self.space.rungs.values) if self.space.rungs else 0
        on_rungs = rungs * self.space.points * len(self.space.samplers)
        return (self.space.most_points + on_rungs) * len(self.space.each)

    def expanded(self, point: Point) -> tuple[Trial, ...]:
        """The trials of a point of a search, one for each combination of `over`. An architecture whose blocks are a word over
        an alphabet has the word in its name. Raises SpecError."""
        arch = self.trial.get("arch")
        named = arch.get("name") if arch is not None else None
        words = words_of(point)
        if words and named is not None and not any(patch.path == "trial.arch.name" for patch in point):
            name = "_".join([str(named.value), *words])
            point = (*point, Patch("trial.arch.name", Node(name, named.place, text=name), named.place))
        each = self.space.each if isinstance(self.space, Search) else ((),)
        return tuple(self._reading.trial((*point, *patches)) for patches in each)

    def address(self, arm: str) -> str:
        """The name of an arm of a search in its journal; another question is another search."""
        if not isinstance(self.space, Search):
            raise TypeError(f"{self.name} is a grid, which keeps no journal")
        said: dict[str, Any] = {
            name: content_key.plain(getattr(self, name)) for name in ("trial", "goals", "constraints")
        }
        of_sampler = content_key.plain(self.space.sampler)  # the label of the arm has it
        if codes := outside.named_in([self._reading.base.plain(), content_key.plain(self.space)]):
            said["code"] = codes
        free = {*of_sampler, "points", "beside", *(() if arm == ANCHORS else ("anchors",))}
        said["space"] = {name: value for name, value in content_key.plain(self.space).items() if name not in free}
        return f"{self.name}/{self.budget or 'whole'}/{arm}/{content_key.key(said)[:8]}"

    @cached_property
    def _reading(self) -> TrialReader:
        return TrialReader(self.trial)

    @cached_property
    def _judged(self) -> tuple[tuple[Trial, str], ...]:
        if isinstance(self.space, Search):
            raise TypeError(f"{self.name} is a search, which has no list of trials before it has run")
        specs: dict[str, Trial] = {}
        faulty: list[tuple[Point, Fault]] = []
        different: set[Fault] = set()
        points = grid.count(self.space)
        if points > MOST_POINTS:
            raise fault(self.trial.place, "space", f"has {points:,} points, expected at most {MOST_POINTS:,}")
        for number, point in enumerate(grid.grid(self.space), start=1):
            try:
                spec = self._reading.trial(point)
                specs.setdefault(content_key.key(spec), spec)
            except SpecError as error:
                faulty += [(point, f) for f in error.faults]
                different.update(error.faults)
                if len(different) > MOST_FAULTS:
                    raise SpecError(at_their_axes(self.trial, faulty, number)) from None
        if faulty:
            raise SpecError(at_their_axes(self.trial, faulty, points))
        meant = filtered(list(specs.values()), self.only) if self.only.value else specs.values()
        return tuple((spec, self.constraints.broken_by(spec)) for spec in meant)


def checked(document: Node) -> StudySpec:
    """The study that a document holds, each of its trials right. Raises SpecError with the faults of the study's own keys and
    of its trials together."""
    try:
        spec: StudySpec = type_hints.read(StudySpec, document, also=outside.USES)
    except SpecError as error:
        raise SpecError([*error.faults, *_faults_of_trials(document)]) from None
    spec.check(document)
    return spec


def _faults_of_trials(document: Node) -> Sequence[Fault]:
    """The faults of the trials of a study that has others, too: of all trials where the space can be read, else those of the
    base trial that no path in the space may mend."""
    trial, space = document.get("trial"), document.get("space")
    if trial is None or not isinstance(trial.value, dict):
        return ()
    try:
        own = Grid() if space is None else type_hints.read(Space, space)
    except SpecError:
        varied = [] if space is None else list(_paths_of_trials(space))
        try:
            TrialReader(trial).trial(())
        except SpecError as error:
            return [f for f in error.faults if not any(is_within(f.path, p) or is_within(p, f.path) for p in varied)]
        return ()
    try:
        StudySpec(name="trials", trial=trial, space=own, goals=(_ANY_GOAL,)).check(document)
    except SpecError as error:
        return error.faults
    return ()


def _paths_of_trials(node: Node) -> Iterator[str]:
    """The keys of a space that are paths of a trial, however the space is written."""
    if isinstance(node.value, dict):
        yield from (key for key in node.value if is_of_trial(key))
    parts = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, tuple) else ()
    for part in parts:
        yield from _paths_of_trials(part)


def _corners_of(study: StudySpec, space: Search) -> list[Trial]:
    """Trials of the points that a search may ask for: every corner that is not excluded, the points to try first, and the
    anchors. One corner is read with all of `over`, the others with the first of it. Raises SpecError where one cannot be
    built."""
    faulty: list[tuple[Point, Fault]] = []
    at: dict[Fault, Choices] = {}
    specs: list[Trial] = []
    corners = list(space.corners())
    if not corners:
        raise SpecError(
            Fault(rule.place, "space.exclude", "forbids every corner of the space") for rule in space.exclude
        )
    firsts = [(values, space.point(Given(values))) for values in map(_plain_values, space.first)]
    anchors: list[tuple[Choices, Point]] = [({}, point) for point in space.anchor_points()]
    for number, (choices, point) in enumerate([*corners, *firsts, *anchors]):
        for patches in space.each if number == 0 else space.each[:1]:
            try:
                specs.append(study._reading.trial((*point, *patches)))
            except SpecError as error:
                for f in error.faults:
                    faulty.append(((*point, *patches), f))
                    at[f] = {n: v for n, v in at.get(f, choices).items() if choices.get(n, not v) == v}
        if len(at) > MOST_FAULTS:
            break
    if faulty:
        told = [(point, _with_corner(f, at[f])) for point, f in faulty]
        raise SpecError(at_their_axes(study.trial, told, len(corners)))
    for value in space.rungs.values if space.rungs else ():
        lower = _on_rung(study, space, corners[0][1], value)
        if not lower.steps < specs[0].steps:
            said = (
                f"rung {value} takes {lower.steps} steps and the whole budget {specs[0].steps}: a rung must be cheaper"
            )
            raise fault(study.trial.place, "space.rungs.values", said)
    return specs


def _goals_astray(goals: Sequence[Goal], specs: Sequence[Trial], document: Node) -> Iterator[Fault]:
    """Faults of goals that ask for a task, or for a score of it, that these trials do not have."""
    said = document.get("goals")
    tasks = {spec.task.kind: spec for spec in specs}
    for number, goal in enumerate(goals):

        def wrong(key: str, message: str, number: int = number) -> Fault:
            part = said.value[number].get(key) if said is not None else None
            return Fault(document.place if part is None else part.place, f"goals[{number}].{key}", message)

        if goal.task is not None and goal.task not in tasks:
            may = f"expected {type_hints.either(sorted(tasks))}{type_hints.guess(goal.task, list(tasks))}"
            yield wrong("task", f"no trial is on the task '{goal.task}', {may}")
        elif goal.score == SPEED and not all(isinstance(spec, TrialSpec) for spec in specs):
            yield wrong("score", f"{SPEED} can be measured only for trials of kind 'trial'")
        elif goal.score not in (*STATIC, SPEED):
            for kind, spec in tasks.items():
                known = [*spec.task.score_names(), "loss", *STATIC, SPEED]
                if goal.task in (None, kind) and goal.score.partition("/")[0] not in known:
                    guess = type_hints.guess(goal.score, known)
                    yield wrong(
                        "score", f"{kind} has no score '{goal.score}', expected {type_hints.either(known)}{guess}"
                    )


def _on_rung(study: StudySpec, space: Search, point: Point, value: int) -> Trial:
    try:
        return study.expanded(space.on_rung(point, value))[0]
    except SpecError as error:
        raise SpecError(Fault(f.place, f.path, f"{f.message} (on the rung {value})") for f in error.faults) from error


def _with_corner(f: Fault, choices: Choices) -> Fault:
    """The fault, with the values that its corners have in common."""
    if not choices:
        return f
    where = ", ".join(f"{name}={value}" for name, value in list(choices.items())[:4])
    return Fault(
        f.place, f.path, f"{f.message} (at the corner {where}; change the values of the space, or space.exclude it)"
    )


def _plain_values(node: Node) -> Choices:
    return {name: part.value for name, part in node.value.items()}
