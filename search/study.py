"""A named question: a base trial, what of it varies, what is best, what is not worth training."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

from results.choose import flatten
from results.record import Record
from search import codec, propose, typed
from search.document import Fault, Node, Patch, Place, SpecError, fault, patched
from search.online import OnlineTrial
from search.phased import PhasedTrial
from search.single import TrialSpec
from search.space import Choices, Given, Grid, Point, Search, Space, words_of

Trial = TrialSpec | PhasedTrial | OnlineTrial
Split = Literal["validation", "test"]

MOST_FAULTS = 100  # different ones, after which no more are looked for
MOST_POINTS = 100_000  # of a grid: beyond it, somebody slipped

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


STATIC = ("parameters", "state_bytes", "state_floats", "flops_per_token")  # figures known before training
SPEED = "milliseconds"  # of a forward pass over a batch, measured when nothing else runs


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A score, or a figure, and which way is better. Where a point is several trials it is their mean.

    score  a score's name, parameters, state_bytes, state_floats, flops_per_token, or milliseconds (measured after
           training, one architecture after the other)
    task   of trials on this task alone; null: of all
    """

    score: str
    direction: Literal["maximise", "minimise"]
    task: str | None = None

    def __post_init__(self) -> None:
        if self.score in ("seconds", "compile_seconds"):
            raise ValueError(
                f"score {self.score} is timed while other trials train beside and tells nothing: use {SPEED}"
            )

    @property
    def name(self) -> str:
        return self.score if self.task is None else f"{self.score} on {self.task}"

    def of(self, records: Sequence[Record], milliseconds: float | None, *, split: Split = "validation") -> float:
        """The mean over the records of a point. Raises ValueError where there is no such figure."""
        if self.score == SPEED:
            if milliseconds is None:
                raise ValueError(f"{SPEED} were not measured")
            return milliseconds
        meant = [record for record in records if self.task in (None, record.task)]
        if not meant:
            raise ValueError(f"no trial on the task {self.task}")
        return sum(self._figure(record, split) for record in meant) / len(meant)

    def _figure(self, record: Record, split: Split) -> float:
        if self.score in STATIC:
            return float(getattr(record, self.score))
        scores = record.validation if split == "validation" else record.scores
        if self.score not in scores:
            known = ", ".join(name for name in scores if "/" not in name)
            raise ValueError(f"{record.task} has no {split} score '{self.score}', has {known or 'none'}")
        return scores[self.score]


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """What a trial may cost at most; one that costs more is not trained. None: whatever."""

    parameters: int | None = None
    state_bytes: int | None = None
    flops_per_token: float | None = None

    def __post_init__(self) -> None:
        for f in fields(self):
            most = getattr(self, f.name)
            if most is not None and most < 1:
                raise ValueError(f"{f.name} must be at least 1 or null, got {most}")

    @property
    def limits(self) -> dict[str, float]:
        """Those that are set."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def broken_by(self, spec: Trial) -> str:
        """Why a trial is not trained, "" where it may be."""
        return ", ".join(
            f"{name} {getattr(spec.price(), name):,} (at most {self.limits[name]:,})" for name in self.excess(spec)
        )

    def excess(self, spec: Trial) -> dict[str, float]:
        """By how much of itself each limit is passed, of those that are."""
        found = {name: getattr(spec.price(), name) / most - 1 for name, most in self.limits.items()}
        return {name: over for name, over in found.items() if over > 0}


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """A study. The base trial stays a document, for the space patches it before it is read.

    budgets  by name, patches (path: value) of the study; `budget` names the one that is laid over it
    only     what the trials of a grid must say to be meant, such as {task: mqar, arch: {name: mesa, width: [64, 128]}}:
             of a list any; a name or a kind stands for what has it
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

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name must be letters, digits and _ - . (it names the ledger's file), got {self.name!r}")
        if not self.goals:
            raise ValueError("goals must hold at least one goal, got none")
        rungs = self.space.rungs if isinstance(self.space, Search) else None
        if rungs is not None and rungs.kind == "asha" and len(self.goals) > 1:
            raise ValueError(
                f"space has rungs of kind asha and {len(self.goals)} goals: asha ranks points by one figure as they come, "
                "and what it stops would enter the front as if it were trained; use kind: halving, or one goal"
            )
        if not isinstance(self.trial.value, dict):
            raise fault(self.trial.place, "trial", "may come a mapping: task, arch, training, ...")
        if not isinstance(self.budgets.value, dict):
            raise fault(self.budgets.place, "budgets", "may come a mapping of budgets by name")
        if not isinstance(self.only.value, dict):
            raise fault(self.only.place, "only", "may come a mapping, such as {arch: mesa, seed: [0, 1]}")

    def check(self, document: Node) -> None:
        """Read every trial of a grid, every corner of a search, whose goals must be known. Raises SpecError with all that is
        wrong, where the `document` that the study was read from has it."""
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
        """How many trials there are; of a search, at most."""
        if not isinstance(self.space, Search):
            return len(self.trials())
        rungs = len(self.space.rungs.values) if self.space.rungs else 0
        on_rungs = rungs * self.space.points * len(self.space.kinds)
        return (self.space.most_points + on_rungs) * len(self.space.each)

    def expanded(self, point: Point) -> tuple[Trial, ...]:
        """The trials of a point of a search: one for each of what it is trained over. An architecture whose blocks are a
        word over an alphabet has the word in its name. Raises SpecError."""
        arch = self.trial.get("arch")
        named = arch.get("name") if arch is not None else None
        words = words_of(point)
        if words and named is not None and not any(patch.path == "trial.arch.name" for patch in point):
            name = "_".join([str(named.value), *words])
            point = (*point, Patch("trial.arch.name", Node(name, named.place, text=name), named.place))
        each = self.space.each if isinstance(self.space, Search) else ((),)
        return tuple(self._reading.trial((*point, *patches)) for patches in each)

    def address(self, kind: str) -> str:
        """The name of a search in its journal: another question is another search."""
        if not isinstance(self.space, Search):
            raise TypeError(f"{self.name} is a grid, which keeps no journal")
        said: dict[str, Any] = {name: codec.plain(getattr(self, name)) for name in ("trial", "goals", "constraints")}
        free = {"kind", "points", "beside", *(() if kind == propose.ANCHORS else ("anchors",))}
        said["space"] = {name: value for name, value in codec.plain(self.space).items() if name not in free}
        return f"{self.name}/{self.budget or 'whole'}/{kind}/{codec.key(said)[:8]}"

    @cached_property
    def _reading(self) -> _Reading:
        return _Reading(self.trial)

    @cached_property
    def _judged(self) -> tuple[tuple[Trial, str], ...]:
        if isinstance(self.space, Search):
            raise TypeError(f"{self.name} is a search, which has no list of trials before it has run")
        specs: dict[str, Trial] = {}
        faulty: list[tuple[Point, Fault]] = []
        different: set[Fault] = set()
        points = propose.count(self.space)
        if points > MOST_POINTS:
            raise fault(self.trial.place, "space", f"has {points:,} points, may come at most {MOST_POINTS:,}")
        for number, point in enumerate(propose.grid(self.space), start=1):
            try:
                spec = self._reading.trial(point)
                specs.setdefault(codec.key(spec), spec)
            except SpecError as error:
                faulty += [(point, f) for f in error.faults]
                different.update(error.faults)
                if len(different) > MOST_FAULTS:
                    raise SpecError(_at_their_axes(self.trial, faulty, number)) from None
        if faulty:
            raise SpecError(_at_their_axes(self.trial, faulty, points))
        meant = _meant(list(specs.values()), self.only) if self.only.value else specs.values()
        return tuple((spec, self.constraints.broken_by(spec)) for spec in meant)


def _meant(trials: Sequence[Trial], only: Node) -> list[Trial]:
    """The trials that say all of it. Raises SpecError where none says a part of it, or none all."""
    said = [dict(flatten(typed.plain(trial, whole=True))) for trial in trials]
    wanted = list(_told(only, ""))
    faults = [f for path, node in wanted for f in _unheard(said, path, node, only.place)]
    if faults:
        raise SpecError(faults)
    meant = [t for t, one in zip(trials, said, strict=True) if all(_value(one, p) in _any_of(n) for p, n in wanted)]
    if not meant:
        raise fault(only.place, "only", "no trial says all of it")
    return meant


def _unheard(said: Sequence[Choices], path: str, node: Node, at: Place) -> Iterator[Fault]:
    """What of a wish no trial says."""
    found = [value for one in said if (value := _value(one, path)) is not _NOTHING]
    if not found:
        above, _, name = path.rpartition(".")
        below = f"{above}." if above else ""
        beside = (key.removeprefix(below) for one in said for key in one if key.startswith(below))
        known = list(dict.fromkeys(key.partition(".")[0] for key in beside))
        may = f", may come {typed.either(known)}{typed.guess(name, known)}" if known else ""
        yield Fault(at, f"only.{path}", f"no trial has '{name}' there{may}")
        return
    known = list(dict.fromkeys(map(str, found)))
    for value in _any_of(node):
        if value not in found:
            may = f"may come {typed.either(known)}{typed.guess(str(value), known)}"
            yield Fault(node.place, f"only.{path}", f"no trial says {value}, {may}")


_NOTHING = object()


def _value(said: Choices, path: str) -> Any:
    """What is said at a path, of what has parts its name or kind; _NOTHING where nothing is. A word that another patch
    reaches into is spelled out as a kind, that of an architecture too."""
    places = (path, f"{path}.name", f"{path}.kind", re.sub(r"\.kind$", ".name", path))
    return next((said[place] for place in places if place in said), _NOTHING)


def _told(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Every path of a mapping, as `flatten` writes it, and what is said there."""
    for name, part in node.value.items():
        below = f"{path}.{name}" if path else name
        if isinstance(part.value, dict):
            yield from _told(part, below)
        else:
            yield re.sub(r"\[(\d+)\]", r".\1", below), part


_RECORDED = {name: former for former, name in codec.FORMER["arch"].items()}


def _any_of(node: Node) -> list[Any]:
    """The values that a wish allows; an architecture that was renamed by the name that its records give it."""
    values = node.plain() if isinstance(node.value, tuple) else [node.plain()]
    return [_RECORDED.get(value, value) if isinstance(value, str) else value for value in values]


def _corners_of(study: StudySpec, space: Search) -> list[Trial]:
    """What a search may ask, all of which can be built: every corner that is not excluded, the points to try first, and the
    anchors. One corner is read with all that it is trained over, the others with the first of it. Raises SpecError."""
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
        raise SpecError(_at_their_axes(study.trial, told, len(corners)))
    for value in space.rungs.values if space.rungs else ():
        lower = _on_rung(study, space, corners[0][1], value)
        if not lower.steps < specs[0].steps:
            said = (
                f"rung {value} takes {lower.steps} steps and the whole budget {specs[0].steps}: a rung must be cheaper"
            )
            raise fault(study.trial.place, "space.rungs.values", said)
    return specs


def _goals_astray(goals: Sequence[Goal], specs: Sequence[Trial], document: Node) -> Iterator[Fault]:
    """What is wrong with goals that ask for a task, or for a figure of it, that these trials do not have."""
    said = document.get("goals")
    tasks = {spec.task.kind: spec for spec in specs}
    for number, goal in enumerate(goals):

        def wrong(key: str, message: str, number: int = number) -> Fault:
            part = said.value[number].get(key) if said is not None else None
            return Fault(document.place if part is None else part.place, f"goals[{number}].{key}", message)

        if goal.task is not None and goal.task not in tasks:
            may = f"may come {typed.either(sorted(tasks))}{typed.guess(goal.task, list(tasks))}"
            yield wrong("task", f"no trial is on the task '{goal.task}', {may}")
        elif goal.score == SPEED and not all(isinstance(spec, TrialSpec) for spec in specs):
            yield wrong("score", f"{SPEED} can be measured of trials of kind 'trial' alone")
        elif goal.score not in (*STATIC, SPEED):
            for kind, spec in tasks.items():
                known = [*spec.task.score_names(), "loss", *STATIC, SPEED]
                if goal.task in (None, kind) and goal.score.partition("/")[0] not in known:
                    guess = typed.guess(goal.score, known)
                    yield wrong("score", f"{kind} has no score '{goal.score}', may come {typed.either(known)}{guess}")


def _on_rung(study: StudySpec, space: Search, point: Point, value: int) -> Trial:
    try:
        return study.expanded(space.on_rung(point, value))[0]
    except SpecError as error:
        raise SpecError(Fault(f.place, f.path, f"{f.message} (on the rung {value})") for f in error.faults) from error


def _with_corner(f: Fault, choices: Choices) -> Fault:
    """The fault with what the corners that have it agree in."""
    if not choices:
        return f
    where = ", ".join(f"{name}={value}" for name, value in list(choices.items())[:4])
    return Fault(f.place, f.path, f"{f.message} (at the corner {where}; turn the dial otherwise, or space.exclude it)")


def _plain_values(node: Node) -> Choices:
    return {name: part.value for name, part in node.value.items()}


class _Reading:
    """Reads the trials of one study. Parts that they share are read once."""

    def __init__(self, base: Node) -> None:
        self.archs: dict[tuple[str, str], Node] = {}
        self.memo: typed.Memo = {}
        self.openers = dict.fromkeys(codec.openers(), self.open_arch)
        whole = Node({"trial": opened(base, self.open_arch)}, base.place, {"trial": base.place})
        self.walk: list[tuple[Patch | None, Node, tuple[Fault, ...]]] = [(None, whole, ())]

    def trial(self, point: Point) -> Trial:
        node, found = self._laid(point)
        trial, faults = node.value["trial"], list(found)
        try:
            sort = Trial if "kind" in trial else TrialSpec
            spec: Trial = typed.read(sort, trial, openers=self.openers, memo=self.memo)
        except SpecError as error:
            faults += [Fault(f.place, _of_trial(f.path), f.message) for f in error.faults]
        if faults:
            raise SpecError(faults)
        return spec

    def _laid(self, point: Point) -> tuple[Node, tuple[Fault, ...]]:
        """The trial with the patches of a point laid over it, and what is wrong with them. The points of a grid differ in their
        last patches first: what was laid for the point before is taken from there, so that its parts are read once."""
        same = 0
        while same < min(len(point), len(self.walk) - 1) and self.walk[same + 1][0] is point[same]:
            same += 1
        del self.walk[same + 1 :]
        for patch in point[same:]:
            _, node, faults = self.walk[-1]
            try:
                node = patched(node, patch)
            except SpecError as error:
                faults = (*faults, *error.faults)
            node = node.with_key("trial", opened(node.value["trial"], self.open_arch), node.keys["trial"])
            self.walk.append((patch, node, faults))
        return self.walk[-1][1:]

    def open_arch(self, node: Node) -> Node:
        named = (node.place.source, node.value)
        if named not in self.archs:
            self.archs[named] = codec.open_arch(node)
        return self.archs[named]


def opened(trial: Node, open_arch: typed.Opener) -> Node:
    """The trial with its architecture written out, so that a patch can reach inside. One that cannot be opened stays a
    name: reading the trial finds that out again, and says it beside all else that is wrong."""
    arch = trial.get("arch")
    if arch is None or not isinstance(arch.value, str):
        return trial
    try:
        return trial.with_key("arch", open_arch(arch), trial.keys["arch"])
    except SpecError:
        return trial


def _at_their_axes(base: Node, faulty: Sequence[tuple[Point, Fault]], points: int) -> Iterator[Fault]:
    """A fault that stands in the base, but that only some points suffer, is moved to the axis that brought it."""
    suffering = Counter(f for _, f in faulty)
    places = set(_places(base))
    for point, f in faulty:
        guilty = [p.value.place for p in point if is_within(p.path, f.path) or p.path == "trial"]
        is_axis = guilty and f.place in places and suffering[f] < points
        yield Fault(guilty[-1], f.path, f.message) if is_axis else f


def _places(node: Node) -> Iterator[Place]:
    yield node.place
    parts = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, tuple) else ()
    for part in parts:
        yield from _places(part)


def _of_trial(path: str) -> str:
    return f"trial.{path}" if path else "trial"


def is_within(path: str, whole: str) -> bool:
    """Whether a path is that of a part of what is at another, or of all of it."""
    return path == whole or path.startswith((f"{whole}.", f"{whole}["))
