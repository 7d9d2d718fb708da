"""Proposers: which points of a space to try, and in which order. The only door to Optuna.

A search asks a generation, trains it, and tells it in the order of asking, so that the same seed gives the same study.
What was asked and told lies in a journal that Optuna's own tools open. A driver that was stopped leaves points without
an answer; the next one takes each up again under a new number, so that none is lost and the order stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from recallmap.search.proposers.samplers import fixing, sampler_of
from recallmap.search.space.axis_values import Point
from recallmap.search.space.corners import Given
from recallmap.search.space.parameters import Choices, FloatDial, IntDial, Scalar
from recallmap.search.space.search_space import ANCHORS, Search

End = Literal["done", "stopped", "rejected", "failed"]

# Of a point in the journal: its place in the order of asking; how it ended, and why; the point it takes up again; its
# place among those to try first; its validation score by rung; the milliseconds measured.
_ORDINAL, _END, _WHY, _AGAIN, _FIRST, _RUNGS, _SPEED = "point", "end", "why", "again", "first", "rungs", "milliseconds"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A point that waits for its answer."""

    number: int  # in the journal
    ordinal: int  # in the order of asking
    choices: Choices
    point: Point


@dataclass(frozen=True, kw_only=True)
class Told:
    """A point and what became of it.

    values  of the goals, in their order; () unless the point is done
    rungs   values of the goals on the budgets below the whole one, lowest first
    """

    ordinal: int
    end: End
    choices: Choices
    values: tuple[float, ...] = ()
    rungs: tuple[tuple[float, ...], ...] = ()
    milliseconds: float | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a point. `over` says by how much each constraint is broken, of those that are."""

    end: End
    values: tuple[float, ...] = ()
    rungs: tuple[tuple[float, ...], ...] = ()
    milliseconds: float | None = None
    why: str = ""
    over: Mapping[str, float] = field(default_factory=dict)


class Proposer:
    """Asks and tells one search. Points come in the order of asking, and are told in it."""

    def __init__(self, study: Any, space: Search, kind: str) -> None:
        self.study = study
        self.space = space
        self.kind = kind
        self._fail_what_was_left()
        self.told = [told_of(trial) for trial in self._trials() if is_answered(trial)]
        self._asked = len(self.told)
        self._open: dict[int, Any] = {}

    @property
    def asked(self) -> int:
        """Points asked so far, rejected ones too."""
        return self._asked

    @property
    def counted(self) -> int:
        """Points that had their answer and count: all but those that were rejected before training."""
        return sum(told.end != "rejected" for told in self.told)

    def ask(self) -> Asked:
        """The next point. What it is depends on the seed, on its place in the order, and on what was told before."""
        ordinal = self._asked
        fixed, said = self._fixed()
        self.study.sampler = base = sampler_of(self.kind, self.space, ordinal)
        trial = self.study.ask()
        for name, value in said.items():
            trial.set_user_attr(name, value)
        if self.kind in ("nsga2", "nsga3"):
            self._join_generation(trial.number)
            self.study.sampler = base = sampler_of(self.kind, self.space, ordinal)
        if fixed:
            self.study.sampler = fixing(fixed, base)
        if self.kind == ANCHORS:
            choices, point = {}, self.space.anchor_points()[ordinal]
        else:
            point = self.space.point(_Suggest(trial))
            choices = dict(trial.params)
        trial.set_user_attr(_ORDINAL, ordinal)
        self._open[trial.number] = trial
        self._asked += 1
        return Asked(number=trial.number, ordinal=ordinal, choices=choices, point=point)

    def tell(self, asked: Asked, answer: Answer) -> None:
        """What became of a point. Optuna learns values of done points alone, and of rejected ones by how much they broke
        which constraint."""
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
        self.told.append(
            Told(
                ordinal=asked.ordinal,
                end=answer.end,
                choices=asked.choices,
                values=answer.values,
                rungs=answer.rungs,
                milliseconds=answer.milliseconds,
                why=answer.why,
            )
        )

    def _join_generation(self, number: int) -> None:
        """Let a point belong to a generation, which else one whose values are given does not, and let that have parents:
        the first to ask for them chooses them, and would draw other numbers than the next."""
        sampler = self.study.sampler
        generation = sampler.get_trial_generation(self.study, self._trials()[number])
        sampler.get_parent_population(self.study, generation)

    def _trials(self) -> list[Any]:
        trials: list[Any] = self.study.get_trials(deepcopy=False)
        return trials

    def _fail_what_was_left(self) -> None:
        """What a stopped driver left running has failed, as far as Optuna knows."""
        import optuna

        for trial in self._trials():
            if trial.state == optuna.trial.TrialState.RUNNING:
                self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)

    def _fixed(self) -> tuple[Choices, dict[str, int]]:
        """Values of the next point that are given: where one was left without an answer, or is to be tried first. And what
        the journal says of it: wherever a driver is stopped, and however often, it tells which of them were asked again.
        """
        whole = [trial for trial in self._trials() if _ORDINAL in trial.user_attrs]  # asked to its end, or asked anew
        again = {trial.user_attrs.get(_AGAIN) for trial in whole}
        begun = {trial.user_attrs.get(_FIRST) for trial in whole}
        left = [t for t in whole if not is_answered(t) and t.number not in again and t.number not in self._open]
        if left:
            first = min(left, key=lambda trial: int(trial.user_attrs[_ORDINAL]))
            return dict(first.params), {_AGAIN: first.number}
        for index, node in enumerate(self.space.first if self.kind != ANCHORS else ()):
            if index not in begun:
                return {name: part.value for name, part in node.value.items()}, {_FIRST: index}
        return {}, {}


class _Suggest:
    """Turns dials by Optuna's suggestion."""

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


def point_of(space: Search, told: Told, kind: str) -> Point:
    """The point that a journal tells of."""
    return space.anchor_points()[told.ordinal] if kind == ANCHORS else space.point(Given(told.choices))


def is_answered(trial: Any) -> bool:
    """Whether a point has its answer: the driver may have been stopped after the last word of it, and before its end."""
    ends = {"done": "COMPLETE", "stopped": "PRUNED", "rejected": "PRUNED", "failed": "FAIL"}
    return ends.get(trial.user_attrs.get(_END)) == trial.state.name


def told_of(trial: Any) -> Told:
    said = trial.user_attrs
    return Told(
        ordinal=said[_ORDINAL],
        end=said[_END],
        choices=dict(trial.params),
        values=tuple(trial.values) if said[_END] == "done" else (),
        rungs=tuple(tuple(values) for values in said.get(_RUNGS, ())),
        milliseconds=said.get(_SPEED),
        why=said.get(_WHY, ""),
    )
