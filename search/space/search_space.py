"""Search spaces: which paths of a trial may vary, and over which values.

A point is a list of patches of the base trial. A grid lists its values. A search has parameters, and a `Chooser` gives each a
value: a sampler, the journal of what it chose, or the check of all corners.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Fault, Node, Patch, Place, SpecError
from recallmap.search.documents.type_hints import Memo
from recallmap.search.samplers import Sampler
from recallmap.search.samplers.random import Random
from recallmap.search.space.axis_values import NOWHERE, Point, axis_faults, begin_with_trial, is_of_trial
from recallmap.search.space.corners import Given, Rarest, Scripted
from recallmap.search.space.grid import Grid, Union
from recallmap.search.space.parameters import Choices, Chooser, Scalar, Turner, parameter_faults, same_label

ANCHORS = "anchors"  # the arm of the architectures to compare with

# Options of training: values of these are better or worse, and their trials train together.
INNER = {"lr", "weight_decay", "betas", "eps", "clip", "schedule"}

MOST_CORNERS = 200  # that are read before a search; beyond it a sample that holds every end of every parameter

MOST_ASKED = 100_000  # points of a search, points of a generation, and trials of a point

# Searches. ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Rungs:
    """Smaller budgets first: a point that looks poor on one is not trained on the next. Samplers learn from whole budgets only.

    path    what a rung sets
    values  at the rungs below the whole budget, rising
    keep    the share of points that goes on from each rung, at least one
    kind    halving: of the points of a generation; asha: of all points so far (one goal only)
    """

    kind: Literal["halving", "asha"] = "halving"
    path: str = "trial.training.steps"
    values: tuple[int, ...]
    keep: float = 0.5

    def __post_init__(self) -> None:
        if not self.values or list(self.values) != sorted(set(self.values)) or self.values[0] < 1:
            raise ValueError(f"values must be whole numbers that rise from 1 or more, got {list(self.values)}")
        if not 0 < self.keep < 1:
            raise ValueError(f"keep must lie between 0 and 1, got {self.keep}")


@dataclass(frozen=True, kw_only=True)
class Search:
    """Points that a sampler proposes, generation after generation.

    sampler     proposes; a document writes its kind and its parameters beside the fields below
    dials       what varies, by path: {choice: [...]}, {int: [low, high]}, {float: [low, high]}, {sequence: {...}}, or a
                mapping or list that holds such parameters
    over        axes as of a grid (tasks, seeds); a point is trained on all of them, and its goals are means
    within      axes of training, such as {trial.training.lr: [1e-3, 3e-3]}: a point is trained with every combination on all of
                `over`, and judged on each task with the one that validation chose over its seeds
    points      how many to try; those that break a constraint do not count
    generation  points that are proposed together and reported together, in order
    seed        seed of all samplers
    first       points of the space to try first, values by name of the parameter
    anchors     architectures to train for comparison: names, paths, or patches by path of the trial
    beside      further samplers that get as many points, for comparison
    exclude     combinations to leave out, by name of the parameter: a value, a list of values, or {least, most}
    rungs       smaller budgets first
    """

    sampler: Sampler = field(metadata={"inline": True})
    dials: Node
    over: Node = field(default_factory=lambda: Node({}, NOWHERE))
    within: Node | None = field(default=None, metadata={"later": True})
    points: int = 64
    generation: int = 16
    seed: int = 0
    first: tuple[Node, ...] = ()
    anchors: tuple[Node, ...] = ()
    beside: tuple[Sampler, ...] = field(default=(), metadata={"brief": True})
    exclude: tuple[Node, ...] = ()
    rungs: Rungs | None = None

    def __post_init__(self) -> None:
        for name, least in (("points", 1), ("generation", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
            if getattr(self, name) > MOST_ASKED and name != "seed":
                raise ValueError(f"{name} must be at most {MOST_ASKED:,}, got {getattr(self, name):,}")
        for sampler in self.samplers:
            sampler.check(self.generation)
        if len(set(self.samplers)) < len(self.samplers):
            labels = ", ".join(sampler.label for sampler in self.samplers)
            raise ValueError(f"beside must list other samplers, each once, got {labels}")
        faults = [*parameter_faults(self.dials), *axis_faults(self.over, "over")]
        if self.within is not None:
            faults += axis_faults(self.within, "within") or self._within_faults(self.within)
        if not faults and (each := Grid(axes=self.over).count() * self.inner) > MOST_ASKED:
            faults.append(
                Fault(self.over.place, "over", f"makes {each:,} trials of a point, expected at most {MOST_ASKED:,}")
            )
        if not faults:
            faults += [*self._first_faults(), *self._exclude_faults(), *self._anchor_faults()]
        if faults:
            raise SpecError(faults)

    @property
    def samplers(self) -> tuple[Sampler, ...]:
        """All samplers, in order."""
        return (self.sampler, *self.beside)

    @property
    def arms(self) -> dict[str, Sampler]:
        """Samplers by label, each with points of its own. The anchors come first where there are any: they are listed, so their
        sampler draws nothing."""
        anchors: dict[str, Sampler] = {ANCHORS: Random()} if self.anchors else {}
        return anchors | {sampler.label: sampler for sampler in self.samplers}

    @property
    def most_points(self) -> int:
        """Points of all samplers, and anchors."""
        return self.points * len(self.samplers) + len(self.anchors)

    @cached_property
    def each(self) -> tuple[Point, ...]:
        """Patches of all trials of a point: all of `within` for the first of `over`, then for the next."""
        outer = tuple(Grid(axes=self.over).points())
        if self.within is None:
            return outer
        inner = tuple(Grid(axes=self.within).points())
        return tuple((*patches, *more) for patches in outer for more in inner)

    @property
    def inner(self) -> int:
        """Combinations of `within`."""
        return 1 if self.within is None else Grid(axes=self.within).count()

    def point(self, chooser: Chooser) -> Point:
        """The point whose values the chooser gives."""
        turner = Turner(chooser, self._memo)
        return tuple(
            Patch(path, turner.turned(node, path), self.dials.keys[path]) for path, node in self.dials.value.items()
        )

    @cached_property
    def _memo(self) -> Memo:
        return {}

    def on_rung(self, point: Point, value: int) -> Point:
        """The point on a budget below the whole one."""
        if self.rungs is None:
            raise TypeError("a space without rungs has no budget below the whole one")
        place = Place("space.rungs")
        return (*point, Patch(self.rungs.path, type_hints.node_of(value, place), place))

    def anchor_points(self) -> tuple[Point, ...]:
        return tuple(_anchor(node) for node in self.anchors)

    def is_excluded(self, choices: Choices) -> bool:
        """Say whether `exclude` leaves these choices out."""
        return any(
            all(name in choices and _admits(said, choices[name]) for name, said in rule.value.items())
            for rule in self.exclude
        )

    def corners(self) -> Iterator[tuple[Choices, Point]]:
        """Points at the ends of all parameters that are not excluded: all where they are few, else a sample with every end of
        every parameter."""
        few = len(self._first_corners) <= MOST_CORNERS
        for choices, point in self._first_corners if few else self._sampled_corners:
            if not self.is_excluded(choices):
                yield choices, point

    @cached_property
    def _first_corners(self) -> tuple[tuple[Choices, Point], ...]:
        """All corners where they are few, else one more than that."""
        return tuple(self._every_corner(MOST_CORNERS + 1))

    @cached_property
    def _sampled_corners(self) -> tuple[tuple[Choices, Point], ...]:
        return tuple(self._some_corners(MOST_CORNERS))

    def _every_corner(self, most: int) -> Iterator[tuple[Choices, Point]]:
        script: list[int] = []
        for _ in range(most):
            walk = Scripted(script)
            yield walk.choices, self.point(walk)
            while walk.turns and walk.turns[-1][0] + 1 == walk.turns[-1][1]:
                walk.turns.pop()
            if not walk.turns:
                return
            script = [index for index, _ in walk.turns]
            script[-1] += 1

    def _some_corners(self, count: int) -> Iterator[tuple[Choices, Point]]:
        taken: Counter[tuple[str, int]] = Counter()
        rng = random.Random(0)
        for _ in range(count):
            walk = Rarest(taken, rng)
            yield walk.choices, self.point(walk)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all parameters that the corners meet."""
        met: dict[str, None] = {}
        more = self._sampled_corners if len(self._first_corners) > MOST_CORNERS else ()
        for choices, _ in (*self._first_corners[:MOST_CORNERS], *more):
            met.update(dict.fromkeys(choices))
        return tuple(met)

    def _within_faults(self, within: Node) -> Iterator[Fault]:
        for path in within.value:
            name = path.removeprefix("trial.training.").partition(".")[0]
            if not path.startswith("trial.training.") or name not in INNER:
                known = [f"trial.training.{name}" for name in sorted(INNER)]
                why = (
                    "decides what is computed, so that its values are other questions or cannot train together: vary it in "
                    f"dials or over. Expected {type_hints.either(known)}{type_hints.guess(path, known)}"
                )
                yield Fault(within.keys[path], f"within.{path}", f"{path} {why}")
            elif path in self.dials.value or path in self.over.value:
                other = "dials" if path in self.dials.value else "over"
                yield Fault(within.keys[path], f"within.{path}", f"{path} varies in {other}, too; leave one out")

    def _first_faults(self) -> Iterator[Fault]:
        for index, node in enumerate(self.first):
            path = f"first[{index}]"
            if not isinstance(node.value, dict):
                yield Fault(node.place, path, "expected a mapping, a value by name of a parameter")
                continue
            said = Given({name: part.value for name, part in node.value.items()})
            self.point(said)
            for name in node.value:
                if name not in said.met:
                    yield Fault(node.keys[name], f"{path}.{name}", self._unknown(name))
                elif name in said.wrong:
                    yield Fault(node.value[name].place, f"{path}.{name}", said.wrong[name])

    def _exclude_faults(self) -> Iterator[Fault]:
        for index, rule in enumerate(self.exclude):
            path = f"exclude[{index}]"
            if not isinstance(rule.value, dict) or not rule.value:
                yield Fault(rule.place, path, "expected a mapping, values to exclude by name of a parameter")
                continue
            for name, said in rule.value.items():
                if name not in self.names:
                    yield Fault(rule.keys[name], f"{path}.{name}", self._unknown(name))
                elif isinstance(said.value, dict) and not set(said.value) <= {"least", "most"}:
                    yield Fault(said.place, f"{path}.{name}", "expected a value, a list of values, or {least, most}")
                elif isinstance(said.value, dict):
                    for bound, end in said.value.items():
                        if isinstance(end.value, bool) or not isinstance(end.value, int | float):
                            yield Fault(end.place, f"{path}.{name}.{bound}", f"expected a number, got {end.text}")

    def _anchor_faults(self) -> Iterator[Fault]:
        for index, node in enumerate(self.anchors):
            if not isinstance(node.value, str | dict):
                yield Fault(node.place, f"anchors[{index}]", "expected a name, a path, or a mapping by path of a trial")
                continue
            for patch in _anchor(node):
                if not is_of_trial(patch.path):
                    yield Fault(patch.at, f"anchors[{index}].{patch.path}", begin_with_trial("a patch", patch.path))

    def _unknown(self, name: str) -> str:
        known = list(self.names)
        few = type_hints.either(known) if len(known) <= 12 else f"{', '.join(known[:12])}, ..."
        return f"no parameter '{name}', expected {few}{type_hints.guess(name, known)}"


Space = Grid | Union | Search


def _anchor(node: Node) -> Point:
    if isinstance(node.value, str):
        return (Patch("trial.arch", node, node.place),)
    return tuple(Patch(path, part, node.keys[path]) for path, part in node.value.items())


def _admits(said: Node, value: Scalar) -> bool:
    if isinstance(said.value, tuple):
        return any(same_label(one.value, value) for one in said.value)
    if isinstance(said.value, dict):
        least, most = said.get("least"), said.get("most")
        return isinstance(value, int | float) and (
            (least is None or value >= least.value) and (most is None or value <= most.value)
        )
    return same_label(said.value, value)
