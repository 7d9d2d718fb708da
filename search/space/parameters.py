"""Parameters that a search varies: choices, whole numbers, real numbers, sequences of blocks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeAlias

from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Fault, Node, SpecError, fault
from recallmap.search.documents.type_hints import Memo
from recallmap.search.space.axis_values import NOWHERE, Point, begin_with_trial, is_of_trial, written_out
from recallmap.search.space.word_patterns import beginnings, check_pattern, is_short_run

Scalar = bool | int | float | str | None

Whole: TypeAlias = int  # where a field has the name of the type

Real: TypeAlias = float

Choices = dict[str, Scalar]  # what was chosen, by the name of the parameter

MOST_DIALS = 256  # of a search, as they are written

LONGEST_WORD = 64  # blocks whose order a search may choose


# Parameters. -------------------------------------------------------------------------------------------


class Chooser(Protocol):
    """Gives parameters their values: a sampler, a record of its choices, or a walk through corners."""

    def choice(self, name: str, options: tuple[Scalar, ...]) -> Scalar: ...

    def whole(self, name: str, dial: IntDial) -> int: ...

    def real(self, name: str, dial: FloatDial) -> float: ...


@dataclass(frozen=True, kw_only=True)
class ChoiceDial:
    """One of a list. An option may hold parameters of its own, which exist only where it is chosen."""

    choice: Node

    def __post_init__(self) -> None:
        if not isinstance(self.choice.value, tuple) or not self.choice.value:
            raise fault(self.choice.place, "choice", "expected a list of at least one option")
        self.options  # noqa: B018 - it checks itself

    @cached_property
    def options(self) -> tuple[Node, ...]:
        """The list with {every: mixer} written out."""
        return tuple(one for option in self.choice.value for one in written_out(option))

    @cached_property
    def labels(self) -> tuple[Scalar, ...]:
        """Labels of the options: scalars themselves, a mapping's name or kind, else its text."""
        plain = [_label(option) for option in self.options]
        seen: Counter[Scalar] = Counter()
        labels: list[Scalar] = []
        for label in plain:
            key = repr(label)  # True and 1 are two options
            seen[key] += 1
            labels.append(label if seen[key] == 1 else f"{label} #{seen[key]}")
        return tuple(labels)

    def turned(self, name: str, by: Turner) -> Node:
        label = by.chooser.choice(name, self.labels)
        index = next(i for i, known in enumerate(self.labels) if same_label(known, label))
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

    def turned(self, name: str, by: Turner) -> Node:
        return _node(by.chooser.whole(name, self))


@dataclass(frozen=True, kw_only=True)
class FloatDial:
    """A number of [low, high], both included."""

    float: tuple[Real, Real]
    log: bool = False

    def __post_init__(self) -> None:
        _check_range(self.float, self.log)

    def turned(self, name: str, by: Turner) -> Node:
        return _node(by.chooser.real(name, self))


@dataclass(frozen=True, kw_only=True)
class SequenceDial:
    """A list of blocks in an order that varies: words over an alphabet.

    sequence  the block of each letter; parameters within it belong to the letter, wherever it stands
    length    of the word: a number, or [least, most]
    pattern   a regular expression that the whole word matches ("(ma)+", "[^a]*a?[^a]*")
    repeat    how often a letter may stand in a row
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
        check_pattern(self.pattern or "")
        empty = [n for n in range(low, high + 1) if not self.nexts("", n)]
        if empty:
            raise ValueError(f"length {empty[0]} leaves no word within pattern and repeat; widen them or narrow length")

    @property
    def lengths(self) -> tuple[int, int]:
        return self.length if isinstance(self.length, tuple) else (self.length, self.length)

    def turned(self, name: str, by: Turner) -> Node:
        low, high = self.lengths
        length = low if low == high else by.chooser.whole(f"{name}.length", IntDial(int=(low, high)))
        word = ""
        while len(word) < length:
            letters = self.nexts(word, length)
            here = f"{name}[{len(word)}]"
            # Where not every letter may stand it is another parameter: the options of one never change.
            named = here if len(letters) == len(self.sequence) else f"{here} of {''.join(letters)}"
            word += letters[0] if len(letters) == 1 else str(by.chooser.choice(named, letters))
        blocks = {letter: by.turned(self.sequence[letter], f"{name}.{letter}") for letter in sorted(set(word))}
        return Node(tuple(blocks[letter] for letter in word), next(iter(blocks.values())).place, text=word)

    def nexts(self, word: str, length: int) -> tuple[str, ...]:
        """Letters that may follow so that a word of this length can still be made."""
        alphabet = "".join(self.sequence)
        if self.pattern is not None:
            begun = beginnings(alphabet, self.lengths, self.pattern, self.repeat)[length]
            return tuple(letter for letter in alphabet if word + letter in begun)
        if self.repeat is not None and len(alphabet) == 1 and length > self.repeat:
            return ()
        return tuple(letter for letter in alphabet if is_short_run(word + letter, self.repeat))


Dial = ChoiceDial | IntDial | FloatDial | SequenceDial

DIALS: dict[str, type] = {"choice": ChoiceDial, "int": IntDial, "float": FloatDial, "sequence": SequenceDial}


@dataclass(frozen=True)
class Turner:
    """Gives the parameters of a document their values. Those that were read once are kept in the memo."""

    chooser: Chooser
    memo: Memo

    def turned(self, node: Node, name: str) -> Node:
        """The document with values in place of its parameters."""
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
    """The words of the sequences of a point."""
    return tuple(p.value.text for p in point if isinstance(p.value.value, tuple) and p.value.text)


def dial_of(node: Node, memo: Memo | None = None) -> Dial | None:
    """The parameter that a mapping describes, by the key choice, int, float or sequence. Raises SpecError on a faulty one."""
    if not isinstance(node.value, dict):
        return None
    sort = next((spec for key, spec in DIALS.items() if key in node.value), None)
    dial: Dial | None = None if sort is None else type_hints.read(sort, node, memo=memo)
    return dial


def parameter_faults(dials: Node) -> Iterator[Fault]:
    if not isinstance(dials.value, dict) or not dials.value:
        yield Fault(dials.place, "dials", "expected a mapping of at least one parameter by path")
        return
    count = 0
    for path, node in dials.value.items():
        if not is_of_trial(path):
            yield Fault(dials.keys[path], f"dials.{path}", begin_with_trial("a parameter", path))
        found, faults = _walked(node, f"dials.{path}")
        yield from faults
        count += found
        if not found and not faults:
            may = type_hints.either([f"{{{key}: ...}}" for key in DIALS])
            yield Fault(node.place, f"dials.{path}", f"nothing varies here, expected {may}")
    if count > MOST_DIALS:
        yield Fault(dials.place, "dials", f"holds {count:,} parameters, expected at most {MOST_DIALS}")


def _walked(node: Node, path: str) -> tuple[int, list[Fault]]:
    """The number of parameters in a document, and their faults."""
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


def same_label(one: Any, other: Any) -> bool:
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
    return Node(value, NOWHERE, text=str(value))


def _check_range(ends: tuple[float, float], log: bool) -> None:
    name = "int" if all(isinstance(end, int) for end in ends) else "float"
    if ends[0] > ends[1]:
        raise ValueError(f"{name} must be [low, high] with low at most high, got {list(ends)}")
    if log and ends[0] <= 0:
        raise ValueError(f"{name} must be positive where log is true, got {list(ends)}")
