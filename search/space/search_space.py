"""Which paths of a trial may vary, over what; how the points of a space are proposed is another room's work.

A point is a list of patches of the base trial. A grid writes its values out; a search has dials, and whoever proposes
turns them (`Chooser`): the same walk serves a proposer, a record of what it chose, and the check of all corners.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Literal

from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Fault, Node, Patch, Place, SpecError
from recallmap.search.documents.type_hints import Memo
from recallmap.search.space.axis_values import NOWHERE, Point, axis_faults, begin_with_trial, is_of_trial
from recallmap.search.space.corners import Given, Rarest, Scripted
from recallmap.search.space.grid import Grid, Union
from recallmap.search.space.parameters import Choices, Chooser, Scalar, Turner, parameter_faults, same_label

ANCHORS = "anchors"  # who proposes architectures to compare with

MOST_CORNERS = 200  # that are read before a search; beyond it a sample that holds every end of every dial

MOST_ASKED = 100_000  # points of a search, points of a generation, and trials of a point

# Searches. ----------------------------------------------------------------------------------------

Proposing = Literal["random", "tpe", "nsga2", "nsga3", "gp"]


@dataclass(frozen=True, kw_only=True)
class Rungs:
    """Points that look poor on a small budget are not trained on the whole one. A proposer is told whole budgets only.

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
    """Points that a proposer chooses, generation after generation.

    kind        who proposes
    dials       what varies, by path: {choice: [...]}, {int: [low, high]}, {float: [low, high]}, {sequence: {...}}, or a
                mapping or list that holds such dials
    over        axes as of a grid (tasks, seeds); a point is trained on all of them, and its goals are means
    points      how many are tried; those that break a constraint do not count
    generation  points that are asked for together and told together, in order
    first       points of the space to try first, values by name of the dial
    anchors     architectures that are trained beside, to compare with: names, paths, or patches by path of the trial
    beside      further proposers that get as many points, to compare with
    exclude     combinations that may not come, by name of the dial: a value, a list of values, or {least, most}
    """

    kind: Proposing
    dials: Node
    over: Node = field(default_factory=lambda: Node({}, NOWHERE))
    points: int = 64
    generation: int = 16
    seed: int = 0
    first: tuple[Node, ...] = ()
    anchors: tuple[Node, ...] = ()
    beside: tuple[Proposing, ...] = ()
    exclude: tuple[Node, ...] = ()
    rungs: Rungs | None = None

    def __post_init__(self) -> None:
        for name, least in (("points", 1), ("generation", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
            if getattr(self, name) > MOST_ASKED and name != "seed":
                raise ValueError(f"{name} must be at most {MOST_ASKED:,}, got {getattr(self, name):,}")
        for kind in self.kinds:
            if kind == "gp" and find_spec("scipy") is None:
                raise ValueError(
                    f"{'kind' if kind == self.kind else 'beside'} gp needs scipy, which is not installed: install it with "
                    "pip install 'recallmap[gp]', or choose tpe"
                )
        if self.generation < 2 and {"nsga2", "nsga3"} & set(self.kinds):
            raise ValueError("generation must be at least 2 for nsga2 and nsga3, which breed from pairs, got 1")
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"beside must name other proposers, each once, got {', '.join(self.kinds)}")
        faults = [*parameter_faults(self.dials), *axis_faults(self.over, "over")]
        if not faults and (each := Grid(axes=self.over).count()) > MOST_ASKED:
            faults.append(
                Fault(self.over.place, "over", f"makes {each:,} trials of a point, at most {MOST_ASKED:,} may be")
            )
        if not faults:
            faults += [*self._first_faults(), *self._exclude_faults(), *self._anchor_faults()]
        if faults:
            raise SpecError(faults)

    @property
    def kinds(self) -> tuple[Proposing, ...]:
        """Of all proposers."""
        return (self.kind, *self.beside)

    @property
    def most_points(self) -> int:
        """Of all proposers and anchors."""
        return self.points * len(self.kinds) + len(self.anchors)

    @cached_property
    def each(self) -> tuple[Point, ...]:
        """What a point is trained over."""
        return tuple(Grid(axes=self.over).points())

    def point(self, chooser: Chooser) -> Point:
        """The point that the chooser turns the dials to."""
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
        """Whether a stated combination forbids these choices."""
        return any(
            all(name in choices and _admits(said, choices[name]) for name, said in rule.value.items())
            for rule in self.exclude
        )

    def corners(self) -> Iterator[tuple[Choices, Point]]:
        """Points at the ends of all dials that are not excluded: all of them where they are few, else a sample in which
        every end of every dial comes."""
        few = list(self._every_corner(MOST_CORNERS + 1))
        for choices, point in few if len(few) <= MOST_CORNERS else self._some_corners(MOST_CORNERS):
            if not self.is_excluded(choices):
                yield choices, point

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
        """Of all dials that the corners meet."""
        met: dict[str, None] = {}
        for choices, _ in [*self._every_corner(MOST_CORNERS), *self._some_corners(MOST_CORNERS)]:
            met.update(dict.fromkeys(choices))
        return tuple(met)

    def _first_faults(self) -> Iterator[Fault]:
        for index, node in enumerate(self.first):
            path = f"first[{index}]"
            if not isinstance(node.value, dict):
                yield Fault(node.place, path, "may come a mapping, a value by name of a dial")
                continue
            said = Given({name: part.value for name, part in node.value.items()})
            self.point(said)
            for name in node.value:
                if name not in said.met:
                    yield Fault(node.keys[name], f"{path}.{name}", self._no_dial(name))
                elif name in said.wrong:
                    yield Fault(node.value[name].place, f"{path}.{name}", said.wrong[name])

    def _exclude_faults(self) -> Iterator[Fault]:
        for index, rule in enumerate(self.exclude):
            path = f"exclude[{index}]"
            if not isinstance(rule.value, dict) or not rule.value:
                yield Fault(rule.place, path, "may come a mapping, what is excluded by name of a dial")
                continue
            for name, said in rule.value.items():
                if name not in self.names:
                    yield Fault(rule.keys[name], f"{path}.{name}", self._no_dial(name))
                elif isinstance(said.value, dict) and not set(said.value) <= {"least", "most"}:
                    yield Fault(said.place, f"{path}.{name}", "may come a value, a list of values, or {least, most}")
                elif isinstance(said.value, dict):
                    for bound, end in said.value.items():
                        if isinstance(end.value, bool) or not isinstance(end.value, int | float):
                            yield Fault(end.place, f"{path}.{name}.{bound}", f"may come a number, came {end.text}")

    def _anchor_faults(self) -> Iterator[Fault]:
        for index, node in enumerate(self.anchors):
            if not isinstance(node.value, str | dict):
                yield Fault(node.place, f"anchors[{index}]", "may come a name, a path, or a mapping by path of a trial")
                continue
            for patch in _anchor(node):
                if not is_of_trial(patch.path):
                    yield Fault(patch.at, f"anchors[{index}].{patch.path}", begin_with_trial("a patch", patch.path))

    def _no_dial(self, name: str) -> str:
        known = list(self.names)
        few = type_hints.either(known) if len(known) <= 12 else f"{', '.join(known[:12])}, ..."
        return f"no dial '{name}', may come {few}{type_hints.guess(name, known)}"


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
