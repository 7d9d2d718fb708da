"""A named question: a base trial, what of it varies, what is best, what is not worth training."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal

from search import codec, propose, typed
from search.document import Fault, Node, Patch, Place, SpecError, fault, patched
from search.online import OnlineTrial
from search.phased import PhasedTrial
from search.space import Grid, Space
from search.trial import TrialSpec

Trial = TrialSpec | PhasedTrial | OnlineTrial

MOST_POINTS = 100_000  # of a grid: beyond it, somebody slipped

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A score, or a figure of a record such as state_bytes, and which way is better."""

    score: str
    direction: Literal["maximise", "minimise"]


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

    def broken_by(self, spec: Trial) -> str:
        """Why a trial is not trained, "" where it may be."""
        limits = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        if not limits:
            return ""
        price = spec.price()
        over = [
            f"{n} {getattr(price, n):,} (at most {most:,})" for n, most in limits.items() if getattr(price, n) > most
        ]
        return ", ".join(over)


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """A study. The base trial stays a document, for the space patches it before it is read.

    budgets  by name, patches (path: value) of the study; `budget` names the one that is laid over it
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

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name must be letters, digits and _ - . (it names the ledger's file), got {self.name!r}")
        if not self.goals:
            raise ValueError("goals must hold at least one goal, got none")
        if not isinstance(self.trial.value, dict):
            raise fault(self.trial.place, "trial", "may come a mapping: task, arch, training, ...")
        if not isinstance(self.budgets.value, dict):
            raise fault(self.budgets.place, "budgets", "may come a mapping of budgets by name")

    def trials(self) -> tuple[Trial, ...]:
        """The trials within the constraints, in the order of the space, none twice. Raises SpecError."""
        return tuple(spec for spec, why in self._judged if not why)

    def rejected(self) -> tuple[tuple[Trial, str], ...]:
        """The trials that break a constraint, and which."""
        return tuple((spec, why) for spec, why in self._judged if why)

    @cached_property
    def _judged(self) -> tuple[tuple[Trial, str], ...]:
        specs: dict[str, Trial] = {}
        faulty: list[tuple[propose.Point, Fault]] = []
        reading = _Reading(self.trial)
        points = propose.count(self.space)
        if points > MOST_POINTS:
            raise fault(self.trial.place, "space", f"has {points:,} points, may come at most {MOST_POINTS:,}")
        for point in propose.grid(self.space):
            try:
                spec = reading.trial(point)
                specs.setdefault(codec.key(spec), spec)
            except SpecError as error:
                faulty += [(point, f) for f in error.faults]
        if faulty:
            raise SpecError(_at_their_axes(self.trial, faulty, points))
        return tuple((spec, self.constraints.broken_by(spec)) for spec in specs.values())


class _Reading:
    """Reads the trials of one study. Parts that they share are read once."""

    def __init__(self, base: Node) -> None:
        self.archs: dict[tuple[str, str], Node] = {}
        self.memo: typed.Memo = {}
        self.openers = dict.fromkeys(codec.openers(), self.open_arch)
        self.base = _opened(base, self.open_arch)

    def trial(self, point: propose.Point) -> Trial:
        node = Node({"trial": self.base}, self.base.place, {"trial": self.base.place})
        faults: list[Fault] = []
        for patch in point:
            try:
                node = patched(node, patch)
            except SpecError as error:
                faults += error.faults
            node = node.with_key("trial", _opened(node.value["trial"], self.open_arch), node.keys["trial"])
        trial = node.value["trial"]
        try:
            sort = Trial if "kind" in trial else TrialSpec
            spec: Trial = typed.read(sort, trial, openers=self.openers, memo=self.memo)
        except SpecError as error:
            faults += [Fault(f.place, _of_trial(f.path), f.message) for f in error.faults]
        if faults:
            raise SpecError(faults)
        return spec

    def open_arch(self, node: Node) -> Node:
        named = (node.place.source, node.value)
        if named not in self.archs:
            self.archs[named] = codec.open_arch(node)
        return self.archs[named]


def _opened(trial: Node, open_arch: typed.Opener) -> Node:
    """The trial with its architecture written out, so that a patch can reach inside. One that cannot be opened stays a
    name: reading the trial finds that out again, and says it beside all else that is wrong."""
    arch = trial.get("arch")
    if arch is None or not isinstance(arch.value, str):
        return trial
    try:
        return trial.with_key("arch", open_arch(arch), trial.keys["arch"])
    except SpecError:
        return trial


def _at_their_axes(base: Node, faulty: Sequence[tuple[propose.Point, Fault]], points: int) -> Iterator[Fault]:
    """A fault that stands in the base, but that only some points suffer, is moved to the axis that brought it."""
    suffering = Counter(f for _, f in faulty)
    places = set(_places(base))
    for point, f in faulty:
        guilty = [p.value.place for p in point if _is_within(p.path, f.path) or p.path == "trial"]
        is_axis = guilty and f.place in places and suffering[f] < points
        yield Fault(guilty[-1], f.path, f.message) if is_axis else f


def _places(node: Node) -> Iterator[Place]:
    yield node.place
    parts = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, tuple) else ()
    for part in parts:
        yield from _places(part)


def _of_trial(path: str) -> str:
    return f"trial.{path}" if path else "trial"


def with_budget(study: Node, overrides: Sequence[Patch]) -> Node:
    """The study's document with its budget laid over it, and over that what the command line says. Raises SpecError."""
    choice = [patch for patch in overrides if patch.path == "budget"]
    for patch in choice:
        study = patched(study, patch)
    patches = [*_chosen_budget(study), *(patch for patch in overrides if patch not in choice)]
    study = _with_arch(study)
    for patch in patches:
        study = _with_arch(patched(study, patch))
    lost = [
        (patch, axis)
        for patch in patches
        for axis in _axes(study.get("space"))
        if axis != "trial" and _is_within(patch.path, axis)
    ]
    if lost:
        why = "the space varies {axis}, so this would be lost: set space.axes.{axis} instead"
        raise SpecError(Fault(patch.at, patch.path, why.format(axis=axis)) for patch, axis in lost)
    return study


def _with_arch(study: Node) -> Node:
    trial = study.get("trial")
    return study if trial is None else study.with_key("trial", _opened(trial, codec.open_arch), study.keys["trial"])


def _chosen_budget(study: Node) -> tuple[Patch, ...]:
    budget, budgets = study.get("budget"), study.get("budgets")
    if budget is None or budget.value is None:
        return ()
    known = list(budgets.value) if budgets is not None and isinstance(budgets.value, dict) else []
    if not isinstance(budget.value, str) or budgets is None or budget.value not in known:
        may = f"may come {typed.either(known)}" if known else "the study has no budgets"
        raise fault(budget.place, "budget", f"no budget '{budget.text}', {may}{typed.guess(budget.text, known)}")
    patches = budgets.value[budget.value]
    if not isinstance(patches.value, dict):
        raise fault(patches.place, f"budgets.{budget.value}", "may come a mapping, a value by path of the study")
    return tuple(Patch(path, value, patches.keys[path]) for path, value in patches.value.items())


def _axes(space: Node | None) -> tuple[str, ...]:
    """The paths that a space varies, read before the space is."""
    if space is None:
        return ()
    axes, spaces = space.get("axes"), space.get("spaces")
    own = tuple(axes.value) if axes is not None and isinstance(axes.value, dict) else ()
    inner = spaces.value if spaces is not None and isinstance(spaces.value, tuple) else ()
    return own + tuple(path for part in inner for path in _axes(part))


def _is_within(path: str, whole: str) -> bool:
    return path == whole or path.startswith((f"{whole}.", f"{whole}["))
