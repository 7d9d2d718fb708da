"""Shared parts of records, held once: a million of them differ in seeds and scores, and in little else."""

from __future__ import annotations

import hashlib
import json
import marshal
import math
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from recallmap.results.plain_data.record_checks import HUGE

T = TypeVar("T")


class Joined(Mapping[str, Any]):
    """A mapping with one entry of its own; the rest, `shared`, belongs to others too. Nobody changes it."""

    __slots__ = ("_name", "_own", "shared")

    def __init__(self, shared: Mapping[str, Any], name: str, own: Any) -> None:
        self.shared, self._name, self._own = shared, name, own

    def __getitem__(self, name: str) -> Any:
        return self._own if name == self._name else self.shared[name]

    def get(self, name: str, default: Any = None) -> Any:  # that of Mapping raises and catches where there is none
        return self._own if name == self._name else self.shared.get(name, default)

    def __iter__(self) -> Iterator[str]:
        yield from self.shared
        yield self._name

    def __len__(self) -> int:
        return len(self.shared) + 1

    def __repr__(self) -> str:
        return repr(dict(self))


class Scores(Mapping[str, float]):
    """Figures by name, eight bytes each; the names are shared with others. Nobody changes it.

    places   where each figure is, counted from `start`
    figures  of these scores, and of others before and behind them
    """

    __slots__ = ("_figures", "_places", "_start")

    def __init__(self, places: dict[str, int], figures: array[float], start: int = 0) -> None:
        self._places, self._figures, self._start = places, figures, start

    def __getitem__(self, name: str) -> float:
        return self._figures[self._start + self._places[name]]

    def get(self, name: str, default: Any = None) -> Any:  # that of Mapping raises and catches where there is none
        place = self._places.get(name)
        return default if place is None else self._figures[self._start + place]

    def of(self, names: Iterable[str]) -> list[float]:
        """The figures of these names."""
        places, figures, start = self._places, self._figures, self._start
        return [figures[start + places[name]] for name in names]

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in their order."""
        return tuple(self._places)

    @property
    def in_order(self) -> array[float]:
        """All figures, in the order of their names."""
        return self._figures[self._start : self._start + len(self._places)]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return repr(dict(self))


class InCommon(NamedTuple):
    """What records of a ledger have in common: fields, the spec without its seed, tests without their scores, and the places
    of figures by name (None where these are not shared)."""

    fields: dict[str, Any]
    spec: Mapping[str, Any]
    tests: list[Mapping[str, Any]]
    figures: list[dict[str, int] | None]


class Memo(Generic[T]):
    """A value that is computed from a spec without its seed, once for all records that share it."""

    def __init__(self, of: Callable[[Mapping[str, Any]], T]) -> None:
        self._of = of
        self._known: dict[int, tuple[Mapping[str, Any], T]] = {}

    def __call__(self, spec: Mapping[str, Any]) -> T:
        shared = spec.shared if isinstance(spec, Joined) else spec
        found = self._known.get(id(shared))
        if found is None:  # it is held, so that nothing else gets its place in memory
            found = self._known[id(shared)] = shared, self._of(shared)
        return found[1]


class Pool:
    """The parts of records that are read one after another. Equal parts become one, so nobody may change them.

    A trial's spec is shared by all that differ only in the seed, and its parts (architecture, task, ...) by all that have
    them. So `record.spec.shared` and its parts can be told apart by identity.

    passing  records are not kept, so that only their specs, tests and mappings of words are shared
    """

    def __init__(self, *, passing: bool = False) -> None:
        self._passing = passing
        self._values: dict[Any, dict[Any, Any]] = {kind: {} for kind in _FEW}
        self._mappings: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self._names: dict[tuple[str, ...], dict[str, int]] = {}
        self._parts: dict[bytes, Any] = {}
        self._specs: dict[bytes, Mapping[str, Any]] = {}
        self._marshalled: dict[bytes, Mapping[str, Any]] = {}
        self._parts_marshalled: dict[bytes, Any] = {}
        self._specs_of_parts: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self._read: dict[bytes, InCommon] = {}
        self._last: tuple[bytes, InCommon] | None = None  # seeds of a trial often follow one another

    def spec(self, spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The shared form of a spec; None where no shared record has it."""
        shared, own = unjoined(spec, "seed")
        address = _address(marshal.dumps(dict(shared), 2))  # it tells 1 from 1.0, and takes a third of the time of JSON
        found = self._marshalled.get(address)
        if found is None and (found := self._specs.get(_address(text_of(shared).encode()))) is not None:
            self._marshalled[address] = found
        return found if found is None or not own else Joined(found, "seed", own["seed"])

    def share(self, data: dict[str, Any]) -> dict[str, Any]:
        """The fields of a sound record, with the parts that it shares with other records."""
        if self._passing:
            found = data | {name: self._words(name, data[name]) for name in _WORDS if name in data}
        else:
            found = self._shared(data)
        if not isinstance(data["spec"], Joined):
            shared, own = unjoined(data["spec"], "seed")
            parts = self._spec(shared)
            found["spec"] = Joined(parts, "seed", own["seed"]) if own else parts
        found["tests"] = [self._test(test) for test in data.get("tests", ())]
        return found

    def read(self, text: bytes) -> InCommon:
        """The shared fields in JSON of a ledger, which was written from sound records. Equal texts are read once."""
        if self._last is not None and self._last[0] == text:
            return self._last[1]
        address = _address(text)
        found = self._read.get(address)
        if found is None:
            data = json.loads(text)
            spec, tests = self._spec_of_parts(data.pop("spec")), data.pop("tests")
            figures = [names and self._places(tuple(names)) for names in data.pop("figures")]
            found = self._read[address] = InCommon(self._shared(data), spec, tests, figures)
        self._last = text, found
        return found

    def own(self, data: dict[str, Any], figures: Iterable[dict[str, int] | None]) -> dict[str, Any]:
        """A trial's own fields in JSON of a ledger. Its `figures` are lists of values, or by name where they share no
        names."""
        for name in _OWN:
            if value := data[name]:
                data[name] = self._values[type(value)].setdefault(value, value)
        data["references"] = self._words("references", data["references"])
        given = list(zip(figures, data["figures"], strict=True))
        every, starts = list[float](), list[int]()
        for places, values in given:
            starts.append(len(every))
            if places:
                every += values
        together = array("d", every)  # one a record: an array of each would be larger than what it holds
        data["figures"] = [
            Scores(places, together, start) if places else values or NOTHING
            for (places, values), start in zip(given, starts, strict=True)
        ]
        return data

    def _shared(self, data: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in data.items():
            if name in FIGURES:
                value = self._scores(value)
            elif name in _WORDS:
                value = self._words(name, value)
            elif name not in _UNLIKE and type(value) in _FEW:
                value = self._value(value)
            found[name] = value
        return found

    def _spec(self, shared: Mapping[str, Any]) -> Mapping[str, Any]:
        parts = {name: self._part(part) for name, part in shared.items()}
        return self._specs.setdefault(_address(text_of(shared).encode()), parts)

    def _spec_of_parts(self, shared: Mapping[str, Any]) -> Mapping[str, Any]:
        """The shared form of a spec, told by the identity of its parts: that takes no text of the whole."""
        parts = {name: self._part(part) for name, part in shared.items()}
        told = (id(part) if type(part) in (dict, list) else (type(part), repr(part)) for part in parts.values())
        return self._specs_of_parts.setdefault((*parts, *told), parts)

    def _part(self, part: Any) -> Any:
        if not isinstance(part, dict | list):
            return self._value(part)
        address = _address(marshal.dumps(part, 2))  # see `spec`
        found = self._parts_marshalled.get(address)
        if found is None:
            found = self._parts_marshalled[address] = self._parts.setdefault(_address(text_of(part).encode()), part)
        return found

    def _words(self, name: str, words: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._mappings.setdefault((name, *words.items()), words)

    def _value(self, value: T) -> T:
        found: T = self._values[type(value)].setdefault(value, value) if value else value  # -0.0 is no 0.0
        return found

    def _test(self, test: Mapping[str, Any]) -> Mapping[str, Any]:
        rest = {name: value for name, value in test.items() if name != "scores"}
        if not set(map(type, rest.values())) <= _FEW:
            return test
        alike = tuple((name, type(value), value) for name, value in rest.items())
        return Joined(self._mappings.setdefault(alike, rest), "scores", self._scores(test["scores"]))

    def _scores(self, scores: Mapping[str, float]) -> Mapping[str, float]:
        if not scores:
            return NOTHING
        if not (are_floats(scores) and are_finite(scores.values())):
            return scores
        return Scores(self._places(tuple(scores)), array("d", scores.values()))

    def _places(self, names: tuple[str, ...]) -> dict[str, int]:
        places = self._names.get(names)
        if places is None:
            places = self._names[names] = {name: place for place, name in enumerate(names)}
        return places


def is_finite(figure: float) -> bool:
    """True for a figure that is a number, is finite, and has a finite square."""
    return -HUGE <= figure <= HUGE


def are_finite(figures: Collection[float]) -> bool:
    """True where `is_finite` is true for each of these floats. There is at least one."""
    return is_finite(min(figures)) and is_finite(max(figures)) and not math.isnan(sum(figures))  # that of a NaN is one


NOTHING = Scores({}, array("d"))

FIGURES = ("scores", "validation", "published_choice")  # fields that are figures by name

_FEW = frozenset({str, int, float, bool, type(None)})

_FLOAT = frozenset({float})

_WORDS = ("implementation", "versions", "references")

_UNLIKE = ("key", "created", "seconds", "compile_seconds", "seed")  # fields whose values few records have in common

_OWN = ("status", "error", "steps", "selected_step", "peak_bytes")


def are_floats(scores: Mapping[str, float]) -> bool:
    """True where all figures are floats, so that eight bytes each hold them as they are written."""
    return type(scores) is Scores or _FLOAT.issuperset(map(type, scores.values()))


def names_of(scores: Mapping[str, float]) -> tuple[str, ...]:
    """The names of figures, in their order."""
    return scores.names if type(scores) is Scores else tuple(scores)


def in_order(scores: Mapping[str, float]) -> Iterable[float]:
    """All figures, in the order of their names."""
    return scores.in_order if type(scores) is Scores else scores.values()


def figures_of(scores: Mapping[str, float], names: Iterable[str]) -> list[float]:
    """The figures of these names."""
    return scores.of(names) if type(scores) is Scores else [scores[name] for name in names]


def unjoined(mapping: Mapping[str, Any], name: str) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """A mapping without one entry, and that entry where it has it."""
    own = {name: mapping[name]} if name in mapping else {}
    if type(mapping) is Joined:  # isinstance of an abstract mapping takes ten times as long
        return mapping.shared, own
    return {other: value for other, value in mapping.items() if other != name}, own


def text_of(data: Any) -> str:
    """Plain data as JSON in one line, keys sorted. Raises TypeError or ValueError on other data."""
    return _JSON.encode(data)


def _mapping(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no plain data")


_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_mapping)


def _address(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()
