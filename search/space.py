"""Which paths of a trial may vary, over what; how the points of a space are proposed is another room's work.

A point is a list of patches of the base trial. A grid writes its values out; a search has dials, and whoever proposes
turns them (`Chooser`): the same walk serves a proposer, a record of what it chose, and the check of all corners.
"""

from __future__ import annotations

import json
import math
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib.util import find_spec
from itertools import product
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from search import codec, typed
from search.document import Fault, Node, Patch, Place, SpecError, fault

_NOWHERE = Place("space")

Point = tuple[Patch, ...]
Scalar = bool | int | float | str | None
S = TypeVar("S", bound=Scalar)
Whole: TypeAlias = int  # where a field has the name of the type
Real: TypeAlias = float
Choices = dict[str, Scalar]  # what was chosen, by the name of the dial

MOST_CORNERS = 200  # that are read before a search; beyond it a sample that holds every end of every dial
MOST_DIALS = 256  # of a search, as they are written
MOST_ASKED = 100_000  # points of a search, points of a generation, and trials of a point
LONGEST_WORD = 64  # blocks whose order a search may choose
MOST_SEQUENCES = 100_000  # that a pattern is tried on


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of the values of its axes; the first axis varies slowest. No axes: one point, the base trial.

    axes  a list of values by path (`trial.training.lr`, `trial.arch.stack[0].mixer.heads`, `trial` itself). A mapping
          is laid over what stands there, key by key; a mapping of another kind or name replaces it.
          {suite: mad, tier: smoke}, alone or in the list, stands for the settings of that tier. {every: mixer} in it
          stands for every mixer there is; {every: mixer, as: ...} for a document with its kind wherever "*" stands,
          and {every: mixer, as: ..., having: {heads: 2}} gives these dials to mappings of that kind, if it has them. Some
          mixers alone: {every: [gla, mesa]}, or {every: mixer, but: [atlas]}.
    """

    kind: Literal["grid"] = "grid"
    axes: Node = field(default_factory=lambda: Node({}, _NOWHERE))

    def __post_init__(self) -> None:
        faults = _axis_faults(self.axes, "axes")
        if faults:
            raise SpecError(faults)

    def axis(self, path: str) -> tuple[Patch, ...]:
        """The choices of one axis."""
        at = self.axes.keys[path]
        return tuple(Patch(path, value, at) for value in axis_values(path, self.axes.value[path]))

    def count(self) -> int:
        """How many points there are."""
        return math.prod(len(self.axis(path)) for path in self.axes.value)

    def points(self) -> Iterator[Point]:
        """Every point, in order."""
        return product(*(self.axis(path) for path in self.axes.value))


@dataclass(frozen=True, kw_only=True)
class Union:
    """The points of several spaces, one space after the other."""

    kind: Literal["union"] = "union"
    spaces: tuple[Grid | Union, ...]

    def __post_init__(self) -> None:
        if not self.spaces:
            raise ValueError("spaces must hold at least one space, got none")


# Dials. -------------------------------------------------------------------------------------------


class Chooser(Protocol):
    """Turns dials: a proposer, a record of its choices, or a walk through corners."""

    def choice(self, name: str, options: tuple[Scalar, ...]) -> Scalar: ...

    def whole(self, name: str, dial: IntDial) -> int: ...

    def real(self, name: str, dial: FloatDial) -> float: ...


@dataclass(frozen=True, kw_only=True)
class ChoiceDial:
    """One of a list. An option may hold dials of its own, which exist only where it is chosen."""

    choice: Node

    def __post_init__(self) -> None:
        if not isinstance(self.choice.value, tuple) or not self.choice.value:
            raise fault(self.choice.place, "choice", "may come a list of at least one option")
        self.options  # noqa: B018 - it checks itself

    @cached_property
    def options(self) -> tuple[Node, ...]:
        """The list with {every: mixer} written out."""
        return tuple(one for option in self.choice.value for one in _written_out(option))

    @cached_property
    def labels(self) -> tuple[Scalar, ...]:
        """What tells the options apart: scalars themselves, a mapping's name or kind, else what it says."""
        plain = [_label(option) for option in self.options]
        seen: Counter[Scalar] = Counter()
        labels: list[Scalar] = []
        for label in plain:
            key = repr(label)  # True and 1 are two options
            seen[key] += 1
            labels.append(label if seen[key] == 1 else f"{label} #{seen[key]}")
        return tuple(labels)

    def turned(self, name: str, by: _Turner) -> Node:
        label = by.chooser.choice(name, self.labels)
        index = next(i for i, known in enumerate(self.labels) if _same(known, label))
        return by.turned(self.options[index], f"{name}.{label}")


@dataclass(frozen=True, kw_only=True)
class IntDial:
    """A whole number of [low, high], both included."""

    int: tuple[Whole, Whole]
    step: Whole = 1
    log: bool = False

    def __post_init__(self) -> None:
        _check_range(self.int, self.log)
        if self.step < 1:
            raise ValueError(f"step must be at least 1, got {self.step}")
        if self.log and self.step != 1:
            raise ValueError("step must be 1 where log is true; leave one of them out")
        if (self.int[1] - self.int[0]) % self.step:
            raise ValueError(f"step {self.step} does not lead from {self.int[0]} to {self.int[1]}")

    def turned(self, name: str, by: _Turner) -> Node:
        return _node(by.chooser.whole(name, self))


@dataclass(frozen=True, kw_only=True)
class FloatDial:
    """A number of [low, high], both included."""

    float: tuple[Real, Real]
    log: bool = False

    def __post_init__(self) -> None:
        _check_range(self.float, self.log)

    def turned(self, name: str, by: _Turner) -> Node:
        return _node(by.chooser.real(name, self))


@dataclass(frozen=True, kw_only=True)
class SequenceDial:
    """A list of blocks in an order that varies: words over an alphabet.

    sequence  what each letter stands for, by letter; dials within belong to the letter, wherever it comes
    length    of the word: a number, or [least, most]
    pattern   a regular expression that the whole word matches ("(ma)+", "[^a]*a?[^a]*")
    repeat    how often a letter may come in a row
    """

    sequence: Mapping[str, Node]
    length: int | tuple[int, int]
    pattern: str | None = None
    repeat: int | None = None

    def __post_init__(self) -> None:
        wrong = [letter for letter in self.sequence if len(letter) != 1]
        if wrong or not self.sequence:
            raise ValueError(f"sequence must name blocks by one letter each, got {wrong[0] if wrong else 'none'!r}")
        low, high = self.lengths
        if not 1 <= low <= high <= LONGEST_WORD:
            said = list(self.length) if isinstance(self.length, tuple) else self.length
            raise ValueError(
                f"length must be at least 1 and [least, most], at most {LONGEST_WORD}, got {said}: repeat a short stack "
                "with {kind: repeat, times: n}"
            )
        if self.repeat is not None and self.repeat < 1:
            raise ValueError(f"repeat must be at least 1 or null, got {self.repeat}")
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            raise ValueError(f"pattern is no regular expression: {error}") from None
        empty = [n for n in range(low, high + 1) if not self.nexts("", n)]
        if empty:
            raise ValueError(f"length {empty[0]} leaves no word within pattern and repeat; widen them or narrow length")

    @property
    def lengths(self) -> tuple[int, int]:
        return self.length if isinstance(self.length, tuple) else (self.length, self.length)

    def turned(self, name: str, by: _Turner) -> Node:
        low, high = self.lengths
        length = low if low == high else by.chooser.whole(f"{name}.length", IntDial(int=(low, high)))
        word = ""
        while len(word) < length:
            letters = self.nexts(word, length)
            here = f"{name}[{len(word)}]"
            # Where not every letter may stand it is another dial: the options of a dial never change.
            named = here if len(letters) == len(self.sequence) else f"{here} of {''.join(letters)}"
            word += letters[0] if len(letters) == 1 else str(by.chooser.choice(named, letters))
        blocks = {letter: by.turned(self.sequence[letter], f"{name}.{letter}") for letter in sorted(set(word))}
        return Node(tuple(blocks[letter] for letter in word), next(iter(blocks.values())).place, text=word)

    def nexts(self, word: str, length: int) -> tuple[str, ...]:
        """Letters that may follow so that a word of this length can still be made."""
        alphabet = "".join(self.sequence)
        if self.pattern is not None:
            beginnings = _beginnings(alphabet, length, self.pattern, self.repeat)
            return tuple(letter for letter in alphabet if word + letter in beginnings)
        if self.repeat is not None and len(alphabet) == 1 and length > self.repeat:
            return ()
        return tuple(letter for letter in alphabet if _is_short_run(word + letter, self.repeat))


@lru_cache(maxsize=64)
def _beginnings(alphabet: str, length: int, pattern: str, repeat: int | None) -> frozenset[str]:
    """How the words of one length may begin."""
    if len(alphabet) ** length > MOST_SEQUENCES:
        raise ValueError(
            f"pattern would be tried on {len(alphabet)}^{length} words, may come at most {MOST_SEQUENCES:,}: shorten "
            "length, or repeat a short stack with {kind: repeat, times: n}"
        )
    words = [""]
    for _ in range(length):
        words = [word + letter for word in words for letter in alphabet if _is_short_run(word + letter, repeat)]
    whole = re.compile(pattern)
    return frozenset(word[:n] for word in words if whole.fullmatch(word) for n in range(1, length + 1))


def _is_short_run(word: str, most: int | None) -> bool:
    """Whether no letter comes more than `most` times in a row at the end of a word."""
    return most is None or len(word) <= most or len(set(word[-most - 1 :])) > 1


Dial = ChoiceDial | IntDial | FloatDial | SequenceDial
DIALS: dict[str, type] = {"choice": ChoiceDial, "int": IntDial, "float": FloatDial, "sequence": SequenceDial}


@dataclass(frozen=True)
class _Turner:
    """Turns the dials of a document. Dials that were read once are kept in the memo."""

    chooser: Chooser
    memo: typed.Memo

    def turned(self, node: Node, name: str) -> Node:
        """The document with values where its dials were."""
        dial = dial_of(node, self.memo)
        if dial is not None:
            value = dial.turned(name, self)
            return value if isinstance(value.value, dict | tuple) else replace(value, place=node.place)
        if isinstance(node.value, dict):
            parts = {key: self.turned(part, f"{name}.{key}") for key, part in node.value.items()}
            return Node(parts, node.place, node.keys)
        if isinstance(node.value, tuple):
            return Node(tuple(self.turned(part, f"{name}[{i}]") for i, part in enumerate(node.value)), node.place)
        return node


def words_of(point: Point) -> tuple[str, ...]:
    """The words that sequences of a point were turned to."""
    return tuple(p.value.text for p in point if isinstance(p.value.value, tuple) and p.value.text)


def dial_of(node: Node, memo: typed.Memo | None = None) -> Dial | None:
    """The dial that a mapping is: one with the key choice, int, float or sequence. Raises SpecError on a faulty one."""
    sort = next((spec for key, spec in DIALS.items() if key in node), None)
    dial: Dial | None = None if sort is None else typed.read(sort, node, memo=memo)
    return dial


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
    over: Node = field(default_factory=lambda: Node({}, _NOWHERE))
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
        faults = [*_dial_faults(self.dials), *_axis_faults(self.over, "over")]
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
        turner = _Turner(chooser, self._memo)
        return tuple(
            Patch(path, turner.turned(node, path), self.dials.keys[path]) for path, node in self.dials.value.items()
        )

    @cached_property
    def _memo(self) -> typed.Memo:
        return {}

    def on_rung(self, point: Point, value: int) -> Point:
        """The point on a budget below the whole one."""
        if self.rungs is None:
            raise TypeError("a space without rungs has no budget below the whole one")
        place = Place("space.rungs")
        return (*point, Patch(self.rungs.path, typed.node_of(value, place), place))

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
            walk = _Scripted(script)
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
            walk = _Rarest(taken, rng)
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
                if not _is_of_trial(patch.path):
                    yield Fault(patch.at, f"anchors[{index}].{patch.path}", _begin_with_trial("a patch", patch.path))

    def _no_dial(self, name: str) -> str:
        known = list(self.names)
        few = typed.either(known) if len(known) <= 12 else f"{', '.join(known[:12])}, ..."
        return f"no dial '{name}', may come {few}{typed.guess(name, known)}"


Space = Grid | Union | Search


class Given:
    """Turns dials to given values. One that is not given, or may not come, stands at its first end: see `wrong`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.met: set[str] = set()
        self.wrong: dict[str, str] = {}

    def choice(self, name: str, options: tuple[Scalar, ...]) -> Scalar:
        value = self._of(name, options[0])
        found = next((o for o in options if _same(o, value)), None)
        if found is None and not any(o is None and value is None for o in options):
            self.wrong[name] = f"came {value!r}, may come {typed.either([str(o) for o in options])}"
            return options[0]
        return found

    def whole(self, name: str, dial: IntDial) -> int:
        low, high = dial.int
        value = self._of(name, low)
        if type(value) is not int or not low <= value <= high or (value - low) % dial.step:
            by = f" in steps of {dial.step}" if dial.step > 1 else ""
            self.wrong[name] = f"came {value!r}, may come a whole number from {low} to {high}{by}"
            return low
        return value

    def real(self, name: str, dial: FloatDial) -> float:
        low, high = dial.float
        value = self._of(name, low)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.wrong[name] = f"came {value!r}, may come a number from {low} to {high}"
            return low
        return float(value)

    def _of(self, name: str, default: Scalar) -> Any:
        self.met.add(name)
        return self.values.get(name, default)


class _Walk(ABC):
    """Goes to one end of every dial."""

    def __init__(self) -> None:
        self.turns: list[tuple[int, int]] = []  # which end, of how many
        self.choices: Choices = {}

    @abstractmethod
    def _end(self, name: str, count: int) -> int:
        """Which end of a dial that has so many."""

    def _take(self, name: str, ends: Sequence[S]) -> S:
        index = self._end(name, len(ends))
        self.turns.append((index, len(ends)))
        self.choices[name] = ends[index]
        return ends[index]

    def choice(self, name: str, options: tuple[Scalar, ...]) -> Scalar:
        return self._take(name, options)

    def whole(self, name: str, dial: IntDial) -> int:
        return self._take(name, tuple(dict.fromkeys(dial.int)))

    def real(self, name: str, dial: FloatDial) -> float:
        return self._take(name, tuple(dict.fromkeys(dial.float)))


class _Scripted(_Walk):
    """Goes where a script says, then to first ends."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__()
        self.script = script

    def _end(self, name: str, count: int) -> int:
        return self.script[len(self.turns)] if len(self.turns) < len(self.script) else 0


class _Rarest(_Walk):
    """Goes to the end that came least often so far."""

    def __init__(self, taken: Counter[tuple[str, int]], rng: random.Random) -> None:
        super().__init__()
        self.taken = taken
        self.rng = rng

    def _end(self, name: str, count: int) -> int:
        index = min(range(count), key=lambda i: (self.taken[name, i], self.rng.random()))
        self.taken[name, index] += 1
        return index


def axis_values(path: str, values: Node) -> tuple[Node, ...]:
    """The values of an axis, suites written out. Raises SpecError."""
    if "suite" in values:
        return _suite(path, values)
    if not isinstance(values.value, tuple):
        raise fault(values.place, "", "may come a list of values, or {suite: NAME, tier: TIER} for the axis trial")
    if not values.value:
        raise fault(values.place, "", "an axis must hold at least one value, got none")
    found: list[Node] = []
    for value in values.value:
        found += _suite(path, value) if "suite" in value else _written_out(value)
    wrong = [v for v in found if path == "trial" and not isinstance(v.value, dict)]
    if wrong:
        raise SpecError(Fault(v.place, "", "a value of the axis trial is a mapping such as {seed: 1}") for v in wrong)
    return tuple(found)


def _axis_faults(axes: Node, called: str) -> list[Fault]:
    if not isinstance(axes.value, dict):
        return [Fault(axes.place, called, "may come a mapping, a list of values by path")]
    faults = []
    for path, values in axes.value.items():
        where = f"{called}.{path}"
        if not _is_of_trial(path):
            faults.append(Fault(axes.keys[path], where, _begin_with_trial("an axis", path)))
        try:
            axis_values(path, values)
        except SpecError as error:
            faults += [f if f.path else Fault(f.place, where, f.message) for f in error.faults]
    return faults


def _dial_faults(dials: Node) -> Iterator[Fault]:
    if not isinstance(dials.value, dict) or not dials.value:
        yield Fault(dials.place, "dials", "may come a mapping of at least one dial by path")
        return
    count = 0
    for path, node in dials.value.items():
        if not _is_of_trial(path):
            yield Fault(dials.keys[path], f"dials.{path}", _begin_with_trial("a dial", path))
        found, faults = _walked(node, f"dials.{path}")
        yield from faults
        count += found
        if not found and not faults:
            may = typed.either([f"{{{key}: ...}}" for key in DIALS])
            yield Fault(node.place, f"dials.{path}", f"nothing varies here, may come {may}")
    if count > MOST_DIALS:
        yield Fault(dials.place, "dials", f"holds {count:,} dials, may come at most {MOST_DIALS}")


def _walked(node: Node, path: str) -> tuple[int, list[Fault]]:
    """How many dials a document holds, and what is wrong with them."""
    found, faults, parts = 0, [], _parts(node)
    if any(key in node for key in DIALS):
        found = 1
        try:
            dial = dial_of(node)
            parts = _parts(dial.choice) if isinstance(dial, ChoiceDial) else parts
            parts = _parts(node.value["sequence"]) if isinstance(dial, SequenceDial) else parts
        except SpecError as error:
            faults = [Fault(f.place, f"{path}.{f.path}" if f.path else path, f.message) for f in error.faults]
            parts = []
    for key, part in parts:
        inner, wrong = _walked(part, f"{path}{key}")
        found += inner
        faults += wrong
    return found, faults


def _parts(node: Node) -> list[tuple[str, Node]]:
    if isinstance(node.value, dict):
        return [(f".{key}", part) for key, part in node.value.items()]
    return [(f"[{i}]", part) for i, part in enumerate(node.value)] if isinstance(node.value, tuple) else []


def _is_of_trial(path: str) -> bool:
    return path == "trial" or path.startswith("trial.")


def _begin_with_trial(what: str, path: str) -> str:
    return f"{what} is a path that begins with trial (did you mean 'trial.{path}'?)"


def _anchor(node: Node) -> Point:
    if isinstance(node.value, str):
        return (Patch("trial.arch", node, node.place),)
    return tuple(Patch(path, part, node.keys[path]) for path, part in node.value.items())


def _admits(said: Node, value: Scalar) -> bool:
    if isinstance(said.value, tuple):
        return any(_same(one.value, value) for one in said.value)
    if isinstance(said.value, dict):
        least, most = said.get("least"), said.get("most")
        return isinstance(value, int | float) and (
            (least is None or value >= least.value) and (most is None or value <= most.value)
        )
    return _same(said.value, value)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _label(option: Node) -> Scalar:
    if not isinstance(option.value, dict | tuple):
        scalar: Scalar = option.value
        return scalar
    for tag in ("name", "kind"):
        named = option.get(tag)
        if named is not None and isinstance(named.value, str):
            return named.value
    return json.dumps(option.plain(), separators=(", ", ": ")).replace('"', "")


def _node(value: float) -> Node:
    return Node(value, _NOWHERE, text=str(value))


def _check_range(ends: tuple[float, float], log: bool) -> None:
    name = "int" if all(isinstance(end, int) for end in ends) else "float"
    if ends[0] > ends[1]:
        raise ValueError(f"{name} must be [low, high] with low at most high, got {list(ends)}")
    if log and ends[0] <= 0:
        raise ValueError(f"{name} must be positive where log is true, got {list(ends)}")


def _written_out(said: Node) -> tuple[Node, ...]:
    """What {every: mixer} stands for; anything else stands for itself."""
    if "every" not in said:
        return (said,)
    from arch.mixers import Mixer

    unknown = [key for key in said.value if key not in ("every", "but", "as", "having")]
    if unknown:
        raise fault(said.keys[unknown[0]], "", f"unknown key '{unknown[0]}', may come every, but, as, having")
    specs = typed.kinds_of(Mixer)
    every = said.value["every"]
    kinds = sorted(specs) if every.value == "mixer" else _kinds_said(every, specs, "'mixer', or a list of mixers")
    if "but" in said:
        left_out = _kinds_said(said.value["but"], specs, "a list of mixers")
        kinds = [kind for kind in kinds if kind not in left_out]
    if not kinds:
        raise fault(said.place, "", "no mixer is left, may come at least one")
    form, having = said.get("as"), _dials_to_have(said, [specs[kind] for kind in kinds])
    return tuple(
        _kind_alone(kind, said.place) if form is None else _filled(form, kind, _known_to(specs[kind], having))
        for kind in kinds
    )


def _kinds_said(said: Node, specs: Mapping[str, type], wanted: str) -> list[str]:
    """A list of mixers."""
    if not isinstance(said.value, tuple):
        raise fault(said.place, "", f"came {json.dumps(said.plain())}, may come {wanted}")
    for one in said.value:
        if not isinstance(one.value, str) or one.value not in specs:
            raise fault(one.place, "", f"no mixer {json.dumps(one.plain())}{typed.guess(one.text, list(specs))}")
    return [one.value for one in said.value]


def _dials_to_have(said: Node, specs: Sequence[type]) -> Node:
    having = said.get("having") or Node({}, said.place, {})
    if "having" in said and "as" not in said:
        raise fault(said.keys["having"], "", "'having' needs 'as', which says where the dials go")
    if not isinstance(having.value, dict):
        raise fault(
            having.place, "", f"came {json.dumps(having.plain())}, may come dials of mixers, such as {{heads: 2}}"
        )
    names = sorted({dial.name for spec in specs for dial in typed.dials(spec)} - {"kind"})
    for name in having.value:
        if name not in names:
            raise fault(having.keys[name], "", f"no mixer has a dial '{name}'{typed.guess(name, names)}")
    return having


def _known_to(spec: type, having: Node) -> Node:
    """The dials that this mixer has."""
    own = {dial.name for dial in typed.dials(spec)}
    return Node({name: dial for name, dial in having.value.items() if name in own}, having.place, having.keys)


def _kind_alone(kind: str, place: Place) -> Node:
    return Node({"kind": Node(kind, place, text=kind)}, place, {"kind": place})


def _filled(form: Node, kind: str, having: Node) -> Node:
    """The document with a kind wherever "*" stands, and with these dials where it is the kind of a mapping."""
    if isinstance(form.value, dict):
        filled = {key: _filled(part, kind, having) for key, part in form.value.items()}
        if form.get("kind") is not None and form.value["kind"].value == "*":
            return Node({**having.value, **filled}, form.place, {**having.keys, **form.keys})
        return Node(filled, form.place, form.keys)
    if isinstance(form.value, tuple):
        return Node(tuple(_filled(part, kind, having) for part in form.value), form.place)
    if isinstance(form.value, str) and "*" in form.value:
        whole = form.value.replace("*", kind)
        return Node(whole, form.place, text=whole)
    return form


def _suite(path: str, said: Node) -> tuple[Node, ...]:
    if path != "trial":
        raise fault(said.place, "", "a suite says whole settings: put it under the axis trial")
    unknown = [key for key in said.value if key not in ("suite", "tier")]
    if unknown:
        raise fault(said.keys[unknown[0]], "", f"unknown key '{unknown[0]}', may come suite, tier")
    name, tier = said.get("suite"), said.get("tier")
    if name is None or tier is None or not isinstance(name.value, str) or not isinstance(tier.value, str):
        raise fault(said.place, "", "may come {suite: NAME, tier: TIER}, both text")
    return codec.settings_of(codec.open_named(name, "suite"), tier.value)
