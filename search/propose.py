"""Proposers: which points of a space to try, and in which order. The only door to Optuna.

A search asks a generation, trains it, and tells it in the order of asking, so that the same seed gives the same study.
What was asked and told lies in a journal that Optuna's own tools open. A driver that was stopped leaves points without
an answer; the next one takes each up again under a new number, so that none is lost and the order stays.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from results.ledger import LedgerError
from search.space import Choices, FloatDial, Given, Grid, IntDial, Point, Scalar, Search, Union

End = Literal["done", "stopped", "rejected", "failed"]

ANCHORS = "anchors"  # who proposes architectures to compare with

STARTUP = 10  # points that tpe draws at random before it has a model; no more than a generation

# Of a point in the journal: its place in the order of asking; how it ended, and why; the point it takes up again; its
# place among those to try first; its validation score by rung; the milliseconds measured.
_ORDINAL, _END, _WHY, _AGAIN, _FIRST, _RUNGS, _SPEED = "point", "end", "why", "again", "first", "rungs", "milliseconds"


def count(space: Grid | Union) -> int:
    """How many points `grid` gives."""
    if isinstance(space, Grid):
        return space.count()
    return sum(count(part) for part in space.spaces)


def grid(space: Grid | Union) -> Iterator[Point]:
    """Every point, in the order in which the space is written."""
    if isinstance(space, Grid):
        yield from space.points()
        return
    for part in space.spaces:
        yield from grid(part)


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


class Journal:
    """The points of all searches that share a ledger, in a file beside it. Reading it changes nothing, and raises LedgerError
    where it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def proposer(self, name: str, space: Search, kind: str, maximise: Sequence[bool]) -> Proposer:
        """The proposer of a search that the caller drives alone; it goes on where the one before was stopped."""
        import optuna

        if self.path.is_symlink():
            raise LedgerError(
                f"{self.path} is a symbolic link, it must be a file that recallmap makes beside the ledger; remove the link, "
                "or put the ledger itself where it points to"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _mend(self.path)
        directions = ["maximize" if more else "minimize" for more in maximise]
        study = optuna.create_study(
            study_name=name, storage=self._storage(), directions=directions, load_if_exists=True
        )
        return Proposer(study, space, kind)

    def told(self, name: str) -> tuple[Told, ...]:
        """The points of a search that have their answer, in the order of asking."""
        study = self._study(name)
        trials = () if study is None else study.get_trials(deepcopy=False)
        return tuple(_told(trial) for trial in trials if _is_answered(trial))

    def names(self) -> tuple[str, ...]:
        """Of all searches in it."""
        import optuna

        if not self.path.exists():
            return ()
        return tuple(optuna.get_all_study_names(self._storage()))

    def importances(self, name: str) -> dict[str, float]:
        """How much each dial decides whether a point is among the best tenth, shares of 1, most first (PED-ANOVA, Watanabe
        et al. 2023). Empty with fewer than four points done, or without dials."""
        import optuna
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

        study = self._study(name)
        done = [] if study is None else study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
        if study is None or len(done) < 4 or not any(trial.params for trial in done):
            return {}
        # At least two points on the better side, or it has nothing to compare.
        evaluator = PedAnovaImportanceEvaluator(target_quantile=min(0.5, max(0.1, 2 / len(done))))
        with warnings.catch_warnings():  # that a dial which hardly any point has is weighed roughly
            warnings.filterwarnings("ignore", message="Some regimes for parameter", category=UserWarning)
            return dict(get_param_importances(study, evaluator=evaluator))

    def _study(self, name: str) -> Any:
        import optuna

        if name not in self.names():
            return None
        return optuna.load_study(study_name=name, storage=self._storage())

    def _storage(self) -> Any:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            return JournalStorage(JournalFileBackend(str(self.path)))
        except ValueError as error:
            after = "what was trained is in the ledger, and the search asks the same again"
            raise LedgerError(
                f"{self.path}: line {_damaged(self.path)} is damaged; move the file away: {after}"
            ) from error


class Proposer:
    """Asks and tells one search. Points come in the order of asking, and are told in it."""

    def __init__(self, study: Any, space: Search, kind: str) -> None:
        self.study = study
        self.space = space
        self.kind = kind
        self._fail_what_was_left()
        self.told = [_told(trial) for trial in self._trials() if _is_answered(trial)]
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
        self.study.sampler = base = _sampler(self.kind, self.space, ordinal)
        trial = self.study.ask()
        for name, value in said.items():
            trial.set_user_attr(name, value)
        if self.kind in ("nsga2", "nsga3"):
            self._join_generation(trial.number)
            self.study.sampler = base = _sampler(self.kind, self.space, ordinal)
        if fixed:
            self.study.sampler = _fixing(fixed, base)
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
        left = [t for t in whole if not _is_answered(t) and t.number not in again and t.number not in self._open]
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


def _sampler(kind: str, space: Search, ordinal: int) -> Any:
    """A sampler for one point: seeded by its place, so that a study that was stopped goes on as if it was not."""
    from optuna import samplers
    from optuna.exceptions import ExperimentalWarning

    seed = int(np.random.SeedSequence((space.seed, ordinal)).generate_state(1)[0])
    if kind == "tpe":
        return samplers.TPESampler(seed=seed, n_startup_trials=min(STARTUP, space.generation))
    if kind == "nsga2":
        return samplers.NSGAIISampler(population_size=space.generation, seed=seed)
    if kind == "nsga3":
        with warnings.catch_warnings():  # its interface may change: here is all that depends on it
            warnings.simplefilter("ignore", ExperimentalWarning)
            return samplers.NSGAIIISampler(population_size=space.generation, seed=seed)
    if kind == "gp":
        return samplers.GPSampler(seed=seed)
    return samplers.RandomSampler(seed=seed)


def _fixing(values: Choices, base: Any) -> Any:
    """A sampler that gives these values, and leaves the others to the base."""
    from optuna import samplers
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return samplers.PartialFixedSampler(values, base)


def _is_answered(trial: Any) -> bool:
    """Whether a point has its answer: the driver may have been stopped after the last word of it, and before its end."""
    ends = {"done": "COMPLETE", "stopped": "PRUNED", "rejected": "PRUNED", "failed": "FAIL"}
    return ends.get(trial.user_attrs.get(_END)) == trial.state.name


def _told(trial: Any) -> Told:
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


def _damaged(path: Path) -> int:
    """The number of the first line that is not JSON."""
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)
        except ValueError:
            return number
    return len(lines)


def _mend(path: Path) -> None:
    """Remove what a killed driver may leave: half a last line, and its lock. The ledger's lock keeps other drivers out."""
    lock = Path(f"{path}.lock")
    if lock.is_symlink() or lock.exists():
        lock.unlink()
    if not path.exists():
        return
    with path.open("rb+") as file:
        data = file.read()
        if not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)
            os.fsync(file.fileno())
