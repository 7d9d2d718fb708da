"""Corners of a search space: points that hold every end of every parameter."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from recallmap.search.documents import type_hints
from recallmap.search.space.parameters import Choices, FloatDial, IntDial, Scalar, same_label

S = TypeVar("S", bound=Scalar)


class Given:
    """Gives parameters known values. One without a value, or with an impossible one, is set to its first end: see `wrong`."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self.met: set[str] = set()
        self.wrong: dict[str, str] = {}

    def choice(self, name: str, options: tuple[Scalar, ...]) -> Scalar:
        value = self._of(name, options[0])
        found = next((o for o in options if same_label(o, value)), None)
        if found is None and not any(o is None and value is None for o in options):
            self.wrong[name] = f"got {value!r}, expected {type_hints.either([str(o) for o in options])}"
            return options[0]
        return found

    def whole(self, name: str, dial: IntDial) -> int:
        low, high = dial.int
        value = self._of(name, low)
        if type(value) is not int or not low <= value <= high or (value - low) % dial.step:
            by = f" in steps of {dial.step}" if dial.step > 1 else ""
            self.wrong[name] = f"got {value!r}, expected a whole number from {low} to {high}{by}"
            return low
        return value

    def real(self, name: str, dial: FloatDial) -> float:
        low, high = dial.float
        value = self._of(name, low)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            self.wrong[name] = f"got {value!r}, expected a number from {low} to {high}"
            return low
        return float(value)

    def _of(self, name: str, default: Scalar) -> Any:
        self.met.add(name)
        return self.values.get(name, default)


class _Walk(ABC):
    """Sets each parameter to one of its ends."""

    def __init__(self) -> None:
        self.turns: list[tuple[int, int]] = []  # which end, of how many
        self.choices: Choices = {}

    @abstractmethod
    def _end(self, name: str, count: int) -> int:
        """The index of the end to choose, of so many."""

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


class Scripted(_Walk):
    """Chooses the ends that a script lists, then first ends."""

    def __init__(self, script: Sequence[int]) -> None:
        super().__init__()
        self.script = script

    def _end(self, name: str, count: int) -> int:
        return self.script[len(self.turns)] if len(self.turns) < len(self.script) else 0


class Rarest(_Walk):
    """Chooses the end that was chosen least often so far."""

    def __init__(self, taken: Counter[tuple[str, int]], rng: random.Random) -> None:
        super().__init__()
        self.taken = taken
        self.rng = rng

    def _end(self, name: str, count: int) -> int:
        index = min(range(count), key=lambda i: (self.taken[name, i], self.rng.random()))
        self.taken[name, index] += 1
        return index
