"""Proposers: the points of one sampler, and their order.

A search asks for a generation, trains it, and reports it in the order of asking, so that the same seed gives the same study.
The journal holds all of this, and Optuna's own tools open it. An interrupted driver leaves points without an answer. The next
driver asks for each again under a new number, so that none is lost and the order stays.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from recallmap.search.samplers.sampler import LINEAGE, POINT
from recallmap.search.space.axis_values import Point
from recallmap.search.space.corners import Given
from recallmap.search.space.parameters import Choices, FloatDial, IntDial, Scalar
from recallmap.search.space.search_space import ANCHORS, Search

End = Literal["done", "stopped", "rejected", "failed"]

# Keys of a point in the journal beside POINT and LINEAGE: how it ended, and why; the number of the point that it resumes; its
# place among those to try first; its validation scores by rung; the milliseconds measured.
_END, _WHY, _AGAIN, _FIRST, _RUNGS, _SPEED = "end", "why", "again", "first", "rungs", "milliseconds"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A point that waits for its answer."""

    number: int  # in the journal
    ordinal: int  # in the order of asking
    choices: Choices
    point: Point


@dataclass(frozen=True, kw_only=True)
class Told:
    """A reported point.

    values   values of the goals, in their order; () unless the point is done
    rungs    values of the goals on the budgets below the whole one, lowest first
    parents  ordinals of the points that it descends from, where the sampler says them
    change   what tells it from the first parent, in words
    """

    ordinal: int
    end: End
    choices: Choices
    values: tuple[float, ...] = ()
    rungs: tuple[tuple[float, ...], ...] = ()
    milliseconds: float | None = None
    why: str = ""
    parents: tuple[int, ...] = ()
    change: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The outcome of a point. `over` gives the excess over each constraint that is broken, by name."""

    end: End
    values: tuple[float, ...] = ()
    rungs: tuple[tuple[float, ...], ...] = ()
    milliseconds: float | None = None
    why: str = ""
    over: Mapping[str, float] = field(default_factory=dict)


class Proposer:
    """One arm of a search, by its label. Points are reported in the order in which they were asked for.

    study  Optuna's, which the journal keeps
    """

    def __init__(self, study: Any, space: Search, arm: str) -> None:
        self.study = study
        self.space = space
        self.arm = arm
        self.sampler = space.arms[arm]
        self._fail_what_was_left()
        self.told = [told_of(trial) for trial in self._trials() if is_answered(trial)]
        self._asked = len(self.told)
        self._open: dict[int, Any] = {}

    @property
    def asked(self) -> int:
        """Points asked for so far, rejected ones too."""
        return self._asked

    @property
    def counted(self) -> int:
        """Reported points that count: all but those that were rejected before training."""
        return sum(told.end != "rejected" for told in self.told)

    def ask(self) -> Asked:
        """The next point. It depends on the seed, on its place in the order, and on the points reported before."""
        ordinal = self._asked
        fixed, said = self._fixed()
        self.study.sampler = base = self._seeded(ordinal)
        trial = self.study.ask()
        for name, value in said.items():
            trial.set_user_attr(name, value)
        if _AGAIN in said:
            trial = self._with_notes_of(said[_AGAIN], trial)
        if self.sampler.has_parents:
            self._join_generation(trial.number)
            self.study.sampler = base = self._seeded(ordinal)
        if fixed:
            self.study.sampler = _fixing(fixed, base)
        if self.arm == ANCHORS:
            choices, point = {}, self.space.anchor_points()[ordinal]
        else:
            point = self.space.point(_Suggest(trial))
            choices = dict(trial.params)
        trial.set_user_attr(POINT, ordinal)
        self._open[trial.number] = trial
        self._asked += 1
        return Asked(number=trial.number, ordinal=ordinal, choices=choices, point=point)

    def tell(self, asked: Asked, answer: Answer) -> None:
        """Report a point. Optuna learns the values of a point that is done, and the broken constraints of a rejected one."""
        import optuna

        state = optuna.trial.TrialState
        states = {"done": state.COMPLETE, "stopped": state.PRUNED, "rejected": state.PRUNED, "failed": state.FAIL}
        trial = self._open.pop(asked.number)
        for name, over in answer.over.items():
            trial.set_constraint(name, over)
        said = {_WHY: answer.why, _RUNGS: answer.rungs, _SPEED: answer.milliseconds}
        for name, value in said.items():
            if value not in ("", (), None):
                trial.set_user_attr(name, value)
        trial.set_user_attr(_END, answer.end)
        values = list(answer.values) if answer.end == "done" else None
        self.study.tell(asked.number, values, state=states[answer.end])
        self.told.append(told_of(self._trials()[asked.number]))

    def _seeded(self, ordinal: int) -> Any:
        """An Optuna sampler for one point, seeded by its place in the order, so that an interruption changes nothing."""
        seed = int(np.random.SeedSequence((self.space.seed, ordinal)).generate_state(1)[0])
        return self.sampler.build(seed, self.space.generation)

    def _with_notes_of(self, number: int, trial: Any) -> Any:
        """The trial with the sampler's notes on the point that it resumes, such as its population: made anew, they would depend
        on the points that were reported before the interruption."""
        import optuna

        for name, value in self._trials()[number].system_attrs.items():
            trial.storage.set_trial_system_attr(trial._trial_id, name, value)
        return optuna.trial.Trial(self.study, trial._trial_id)  # a trial reads its notes when it is made

    def _join_generation(self, number: int) -> None:
        """Give a point its population, and that its parents. A point with given values would get none otherwise, and the point
        that asks for the parents first chooses them, with draws that the next point does not make."""
        sampler = self.study.sampler
        generation = sampler.get_trial_generation(self.study, self._trials()[number])
        sampler.get_parent_population(self.study, generation)

    def _trials(self) -> list[Any]:
        trials: list[Any] = self.study.get_trials(deepcopy=False)
        return trials

    def _fail_what_was_left(self) -> None:
        """Report points that an interrupted driver left running as failed, to Optuna alone."""
        import optuna

        for trial in self._trials():
            if trial.state == optuna.trial.TrialState.RUNNING:
                self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def _fixed(self) -> tuple[Choices, dict[str, int]]:
        """Given values of the next point, where one has no answer yet or is to be tried first; and its notes for the journal,
        which show after any number of interruptions which points were asked for again."""
        whole = [trial for trial in self._trials() if POINT in trial.user_attrs]  # all its values are known
        again = {trial.user_attrs.get(_AGAIN) for trial in whole}
        begun = {trial.user_attrs.get(_FIRST) for trial in whole}
        left = [t for t in whole if not is_answered(t) and t.number not in again and t.number not in self._open]
        if left:
            first = min(left, key=lambda trial: int(trial.user_attrs[POINT]))
            return dict(first.params), {_AGAIN: first.number}
        for index, node in enumerate(self.space.first if self.arm != ANCHORS else ()):
            if index not in begun:
                return {name: part.value for name, part in node.value.items()}, {_FIRST: index}
        return {}, {}


def _fixing(values: Choices, base: Any) -> Any:
    """An Optuna sampler that gives these values, and leaves the others to the base."""
    from optuna import samplers
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():  # its interface may change: only this file depends on it
        warnings.simplefilter("ignore", ExperimentalWarning)
        return samplers.PartialFixedSampler(values, base)


class _Suggest:
    """Gives parameters the values that Optuna suggests."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def choice(self, name: str, options: tuple[Scalar, ...]) -> Scalar:
        value: Scalar = self.trial.suggest_categorical(name, options)
        return value

    def whole(self, name: str, dial: IntDial) -> int:
        low, high = dial.int
        return int(self.trial.suggest_int(name, low, high, step=dial.step, log=dial.log))

    def real(self, name: str, dial: FloatDial) -> float:
        low, high = dial.float
        return float(self.trial.suggest_float(name, low, high, log=dial.log))


def point_of(space: Search, told: Told, arm: str) -> Point:
    """The point of a report in the journal."""
    return space.anchor_points()[told.ordinal] if arm == ANCHORS else space.point(Given(told.choices))


def is_answered(trial: Any) -> bool:
    """Say whether a point has its answer. An interrupted driver may have written parts of one."""
    ends = {"done": "COMPLETE", "stopped": "PRUNED", "rejected": "PRUNED", "failed": "FAIL"}
    return ends.get(trial.user_attrs.get(_END)) == trial.state.name


def told_of(trial: Any) -> Told:
    """The report of an Optuna trial that has its answer."""
    said, lineage = trial.user_attrs, trial.system_attrs.get(LINEAGE, {})
    return Told(
        ordinal=said[POINT],
        end=said[_END],
        choices=dict(trial.params),
        values=tuple(trial.values) if said[_END] == "done" else (),
        rungs=tuple(tuple(values) for values in said.get(_RUNGS, ())),
        milliseconds=said.get(_SPEED),
        why=said.get(_WHY, ""),
        parents=tuple(lineage.get("parents", ())),
        change=lineage.get("change", ""),
    )
