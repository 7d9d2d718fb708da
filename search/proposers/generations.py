"""A running search: the trials that its points need next, and the reports to its samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from recallmap.results.analysis.pareto import front
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.documents.nodes import SpecError
from recallmap.search.documents.numbers import written
from recallmap.search.proposers.journal import Journal
from recallmap.search.proposers.proposer import Answer, Asked, Proposer, Told, point_of
from recallmap.search.space.axis_values import Point
from recallmap.search.space.parameters import Choices, words_of
from recallmap.search.space.search_space import ANCHORS, Search
from recallmap.search.study.differences import alphabets_of, said_blocks
from recallmap.search.study.goals import SPEED
from recallmap.search.study.inner_grid import judged
from recallmap.search.study.spec import StudySpec
from recallmap.search.trials import Trial

MOST_ASKED = 50  # points asked for in vain for one that may be trained, before an arm gives up

Book = Mapping[str, Record]  # finished trials, by key


@dataclass(kw_only=True)
class _Open:
    """A point without an answer yet. `steps` are its trials on each rung, the whole budget last."""

    asked: Asked
    steps: list[tuple[Trial, ...]] = field(default_factory=list)
    keys: list[tuple[str, ...]] = field(default_factory=list)
    step: int = 0
    rungs: tuple[tuple[float, ...], ...] = ()
    answer: Answer | None = None


class Inquiry:
    """All arms of a study, generation by generation, each at its own pace. The caller trains the trials that are `wanted` and
    asks again. An arm hears nothing while its generation trains, so that the order in which trials end does not matter; while
    its last ones train, the next generation of another keeps the workers busy."""

    def __init__(self, study: StudySpec, journal: Journal, measure: Callable[[Trial], float]) -> None:
        if not isinstance(study.space, Search):
            raise TypeError(f"{study.name} has a grid, which needs no sampler")
        maximise = [goal.direction == "maximise" for goal in study.goals]
        self.measures = any(goal.score == SPEED for goal in study.goals)
        self.arms = [
            _Arm(study, study.space, journal.proposer(study.address(label), study.space, label, maximise), measure)
            for label in study.space.arms
        ]

    def wanted(self, book: Book, *, busy: bool = False) -> tuple[Trial, ...] | None:
        """Trials that must be in the book before an arm hears more, each once; none where every arm waits for some that it has
        named already. None: every point has its answer.

        busy  whether trials are under way, beside which no speed is measured
        """
        if busy and self.measures:
            return ()
        parts = [arm.wanted(book) for arm in self.arms]
        if all(part is None for part in parts):
            return None
        return tuple({content_key.key(trial): trial for part in parts for trial in part or ()}.values())

    def met(self) -> dict[str, Trial]:
        """Trials by key that points reached since the last call, on every rung, trained or not. The first call
        includes those of the points in the journal."""
        return {key: trial for arm in self.arms for key, trial in arm.met_since().items()}

    def heard(self) -> list[str]:
        """A line for each point reported since the last call."""
        return [line for arm in self.arms for line in arm.heard()]

    @property
    def answered(self) -> float:
        """The share of points that have their answer."""
        return sum(arm.counted for arm in self.arms) / sum(arm.total for arm in self.arms)

    @property
    def under_way(self) -> float:
        """The share of points that were asked for and have no answer yet."""
        waiting = sum(one.answer is None for arm in self.arms for one in arm.open)
        return waiting / sum(arm.total for arm in self.arms)


class _Arm:
    """The points of one sampler, or the anchors."""

    def __init__(self, study: StudySpec, space: Search, proposer: Proposer, measure: Callable[[Trial], float]) -> None:
        self.study = study
        self.space = space
        self.proposer = proposer
        self.measure = measure
        self.label = proposer.arm
        self.rungs = space.rungs if self.label != ANCHORS else None
        self.total = len(space.anchors) if self.label == ANCHORS else space.points
        self.open: list[_Open] = []
        self.named: set[str] = set()  # trials of these that were wanted already
        self.met = {content_key.key(trial): trial for one in proposer.told for trial in self._trained(one)}
        self.said = len(proposer.told)
        self.notes: list[str] = []
        self.gave_up = False
        self.alphabets = alphabets_of(study)

    @property
    def counted(self) -> int:
        """Points that have their answer, of `total`."""
        if self.gave_up:
            return self.total
        return min(self.total, self.proposer.asked - len(self.open) if self.label == ANCHORS else self.proposer.counted)

    def wanted(self, book: Book) -> tuple[Trial, ...] | None:
        """See Inquiry.wanted."""
        while True:
            if not self.open:
                self._ask_generation()
            if not self.open:
                return None
            asked = {
                key: trial
                for one in self.open
                if one.answer is None
                for trial, key in zip(one.steps[one.step], one.keys[one.step], strict=True)
            }
            self.met |= asked
            if missing := {key: trial for key, trial in asked.items() if key not in book}:
                new = tuple(trial for key, trial in missing.items() if key not in self.named)
                self.named.update(missing)
                return new
            self._climb(book)
            if all(one.answer is not None for one in self.open):
                self._tell()

    def met_since(self) -> dict[str, Trial]:
        """See Inquiry.met."""
        met, self.met = self.met, {}
        return met

    def heard(self) -> list[str]:
        told = self.proposer.told[self.said :]
        self.said = len(self.proposer.told)
        notes, self.notes = self.notes, []
        return [*(self._line(one) for one in told), *notes]

    def _line(self, told: Told) -> str:
        named = f"{self.label} {told.ordinal}"
        if told.end == "rejected":
            return f"{named}: not trained: {told.why}"
        if told.end != "done":
            return f"{named}: {told.end}: {told.why}"
        figures = "  ".join(f"{g.name} {written(v)}" for g, v in zip(self.study.goals, told.values, strict=True))
        return f"{named}: {figures}  {self._chosen(told)}".rstrip()

    def _chosen(self, told: Told) -> str:
        """What was chosen: blocks by letter, as in the lines of trials, then the other parameters. An anchor has its name."""
        point = point_of(self.space, told, self.label)
        if self.label == ANCHORS:
            return self.study.expanded(point)[0].name
        words = words_of(point)
        ordered = list(zip(self.alphabets, words, strict=True)) if words else []
        blocks = [
            f"{a.end}={word} {' '.join(said_blocks(a.choices(told.choices, word)))}".rstrip() for a, word in ordered
        ]
        rest = {name: v for name, v in told.choices.items() if not any(a.holds(name) for a, _ in ordered)}
        return " ".join([*blocks, *([said_choices(rest)] if rest else [])])

    def _ask_generation(self) -> None:
        """Ask until the generation is full of points that may be trained. Nothing is reported meanwhile."""
        counted = self.proposer.counted
        if self.label == ANCHORS:
            wanted = most = self.total - self.proposer.asked
        else:
            wanted = min(self.total, (counted // self.space.generation + 1) * self.space.generation) - counted
            most = max(wanted, 1) * MOST_ASKED
        if self.gave_up or wanted < 1:
            return
        may_train = 0
        for _ in range(most):
            one = self._judged(self.proposer.ask())
            self.open.append(one)
            may_train += one.answer is None
            if may_train == wanted and self.label != ANCHORS:
                return
        if self.label != ANCHORS:
            self.gave_up = True
            self.notes.append(
                f"{self.label} gave up: of {most} points {may_train} may be trained; widen the constraints"
            )

    def _judged(self, asked: Asked) -> _Open:
        """The point with its trials, or with the reason why it is not trained."""
        if self.space.is_excluded(asked.choices):
            return _Open(asked=asked, answer=Answer(end="rejected", why="the space excludes it", over={"exclude": 1.0}))
        try:
            steps = self._steps(asked.point)
        except SpecError as error:
            why = f"{error.faults[0].path}: {error.faults[0].message}"
            return _Open(asked=asked, answer=Answer(end="rejected", why=why, over={"builds": 1.0}))
        over: dict[str, float] = {}
        whole = steps[-1]
        for trial in whole:
            for name, excess in self.study.constraints.excess(trial).items():
                over[name] = max(excess, over.get(name, 0.0))
        if over:
            why = next(broken for trial in whole if (broken := self.study.constraints.broken_by(trial)))
            return _Open(asked=asked, answer=Answer(end="rejected", why=why, over=over))
        return _Open(asked=asked, steps=steps, keys=[tuple(content_key.key(t) for t in trials) for trials in steps])

    def _steps(self, point: Point) -> list[tuple[Trial, ...]]:
        """The trials of a point on each rung, the whole budget last. Raises SpecError."""
        values = self.rungs.values if self.rungs else ()
        budgets = [point, *(self.space.on_rung(point, value) for value in values)]
        whole, *lower = (self.study.expanded(budget) for budget in budgets)
        return [*lower, whole]

    def _trained(self, told: Told) -> list[Trial]:
        """The trials on every rung that a point reached before it had its answer."""
        if told.end == "rejected":
            return []
        reached = len(told.rungs) + (told.end != "stopped")  # rungs with values, and the whole budget
        return [trial for trials in self._steps(point_of(self.space, told, self.label))[:reached] for trial in trials]

    def _climb(self, book: Book) -> None:
        """Answer the points that are on the whole budget, and let the best of the others on to the next rung."""
        going = [one for one in self.open if one.answer is None]
        for one in going:
            one.answer = self._failed(one, book)
        going = [one for one in going if one.answer is None]
        if not going:
            return
        step = going[0].step  # all climb together
        if step == len(going[0].steps) - 1:
            for one in going:
                one.answer = self._done(one, book)
            return
        for one in going:
            one.rungs = (*one.rungs, self._values(one, book, None))
        kept = self._kept(going, step)
        for one in going:
            if one in kept:
                one.step += 1
            else:
                one.answer = Answer(end="stopped", rungs=one.rungs, why=f"behind on rung {step + 1}")

    def _kept(self, going: Sequence[_Open], step: int) -> list[_Open]:
        """The share that continues, by fronts; within a front by the first goal."""
        rungs = self.rungs
        if rungs is None:
            raise TypeError("a study without rungs has nothing to keep on one")
        told = [told for told in self.proposer.told if told.end != "rejected"]
        if rungs.kind == "halving":  # this generation: an interrupted driver may have reported a part of it
            told = told[len(told) // self.space.generation * self.space.generation :]
        pool = [one.rungs[step] for one in going] + [one.rungs[step] for one in told if len(one.rungs) > step]
        maximise = [goal.direction == "maximise" for goal in self.study.goals]
        best = set(ranked(pool, maximise)[: max(1, round(rungs.keep * len(pool)))])
        return [one for index, one in enumerate(going) if index in best]

    def _failed(self, one: _Open, book: Book) -> Answer | None:
        try:
            records = judged(self.space, [book[key] for key in one.keys[one.step]])
            broken = next((r for r in records if r.status == "failed"), None)
            if broken is not None:
                return Answer(end="failed", rungs=one.rungs, why=f"{broken.task} seed {broken.seed}: {broken.error}")
            self._values(one, book, 0.0)
        except ValueError as error:
            return Answer(end="failed", rungs=one.rungs, why=str(error))
        return None

    def _done(self, one: _Open, book: Book) -> Answer:
        wants_speed = any(goal.score == SPEED for goal in self.study.goals)
        speed = self.measure(one.steps[-1][0]) if wants_speed else None
        return Answer(end="done", values=self._values(one, book, speed), rungs=one.rungs, milliseconds=speed)

    def _values(self, one: _Open, book: Book, speed: float | None) -> tuple[float, ...]:
        """Values of the goals. Speed is not measured on a rung, where it is the same for every budget."""
        records = judged(self.space, [book[key] for key in one.keys[one.step]])
        return tuple(goal.of(records, 0.0 if speed is None else speed) for goal in self.study.goals)

    def _tell(self) -> None:
        for one in self.open:
            if one.answer is None:
                raise RuntimeError(f"point {one.asked.ordinal} has no answer yet")
            self.proposer.tell(one.asked, one.answer)
        self.open, self.named = [], set()


def ranked(values: Sequence[Sequence[float]], maximise: Sequence[bool]) -> list[int]:
    """Indices from best to worst: front after front, within a front by the first goal, then by place."""
    left, order = list(range(len(values))), []
    while left:
        on = front([values[i] for i in left], maximise)
        best = [index for index, is_on in zip(left, on, strict=True) if is_on]
        order += sorted(best, key=lambda i: (-values[i][0] if maximise[0] else values[i][0], i))
        left = [index for index in left if index not in best]
    return order


def said_choices(choices: Choices) -> str:
    """`training.lr=0.003 stack[1].mixer=mesa`: paths without the prefixes that most of them share."""
    return " ".join(f"{name.removeprefix('trial.').removeprefix('arch.')}={written(v)}" for name, v in choices.items())


def told_points(study: StudySpec, journal: Journal) -> dict[str, tuple[Told, ...]]:
    """The reported points of this study, by label of the arm."""
    if not isinstance(study.space, Search):
        return {}
    return {label: journal.told(study.address(label)) for label in study.space.arms}
