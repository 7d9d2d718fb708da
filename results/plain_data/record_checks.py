"""Checks of data from elsewhere by type hints: all faults at once, each with its place.

A hint may be str, int, float, bool, None, Any (plain data, as in JSON), Literal, unions of these, Mapping[str, T],
Sequence[T], a TypedDict (whose names are optional unless they are Required), and Annotated, whose last part counts: Least,
Loose, or another hint.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

LARGEST = 2**63 - 1  # whole numbers beyond it survive neither a ledger nor a table

HUGE = 1e150  # figures beyond it have no finite square, and so no mean with an interval

DEEPEST = 32  # levels of lists and mappings

MOST_TOLD = 8  # faults of one record; the others are counted

Faults = list[tuple[str, str]]  # the place inside, and what is expected there

Check = Callable[[Any], Faults | None]  # None: no faults


@dataclass(frozen=True)
class Least:
    """The least that a number may be."""

    value: int


@dataclass(frozen=True)
class Loose:
    """Mark a number that need not be finite; one that is not is left out."""


def told(faults: Faults) -> str:
    """All faults in one line."""
    lines = [f"{path.lstrip('.')} {said}".lstrip() for path, said in faults[:MOST_TOLD]]
    return "; ".join([*lines, *([f"and {len(faults) - MOST_TOLD} more"] if len(faults) > MOST_TOLD else [])])


@cache
def check_of(hint: Any) -> Check:
    """The check of a hint, made once for data by the million."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Required, NotRequired):
        return check_of(parts[0])
    if origin is Annotated:
        kind, last = parts[0], parts[-1]
        return _number(kind, last) if isinstance(last, Least | Loose) else check_of(last)
    if is_typeddict(hint):
        return _shape(hint)
    if origin in (Union, UnionType):
        return _either(parts)
    if origin is Literal:
        said = " or ".join(f"'{part}'" for part in parts)
        return lambda value: None if isinstance(value, str) and value in parts else _wrong(said, value)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(parts[1])
    if origin is not None and issubclass(origin, Sequence):
        return _list(parts[0])
    if hint in (int, float):
        return _number(hint, None)
    simple: dict[Any, Check] = {str: _text, bool: _truth, NoneType: _nothing, Any: _plain}
    return simple[hint]


def _easy(hint: Any) -> frozenset[type]:
    """The types whose every value is sound, so that many values need no look each."""
    if get_origin(hint) in (Union, UnionType):
        return frozenset[type]().union(*map(_easy, get_args(hint)))
    loose = get_origin(hint) is Annotated and isinstance(get_args(hint)[-1], Loose)
    return frozenset({float} if loose else {hint} if hint in (bool, NoneType) else ())


def _wrong(said: str, value: Any) -> Faults:
    return [("", f"must be {said}, got {_short(value)}")]


def _short(value: Any) -> str:
    if isinstance(value, dict | list):
        what = "mapping" if isinstance(value, dict) else "list"
        return f"a {what} of {len(value)}" if value else f"an empty {what}"
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _text(value: Any) -> Faults | None:
    if not isinstance(value, str):
        return _wrong("text", value)
    if value.isascii():
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return _wrong("text that UTF-8 can hold", value)
    return None


def _truth(value: Any) -> Faults | None:
    return None if isinstance(value, bool) else _wrong("true or false", value)


def _nothing(value: Any) -> Faults | None:
    return None if value is None else _wrong("null", value)


def _number(kind: type, bound: Least | Loose | None) -> Check:
    least = bound.value if isinstance(bound, Least) else None
    low, high = -LARGEST if least is None else least, LARGEST
    wide: Any = numbers.Integral if kind is int else numbers.Real
    said = "a whole number" if kind is int else "a number"
    said += f" of at least {least}" if least is not None else ""

    def check(value: Any) -> Faults | None:
        one: Any = value
        if type(value) is kind and low <= one <= high:
            return None
        if isinstance(value, bool) or not isinstance(value, wide):
            return _wrong(said, value)
        if isinstance(value, int):
            if abs(value) > LARGEST:
                return _wrong(f"{said} {'of' if least is None else 'and'} at most {LARGEST}", value)
        elif not isinstance(bound, Loose) and not -HUGE <= value <= HUGE:
            return _wrong(f"{said} that is finite" + (f", at most {HUGE:g}" if math.isfinite(value) else ""), value)
        return None if least is None or value >= least else _wrong(said, value)

    return check


def _either(hints: Sequence[Any]) -> Check:
    """The check of a union; its faults are those of the first member that is not null."""
    first, *others = [check_of(hint) for hint in sorted(hints, key=lambda hint: hint is NoneType)]
    null = " or null" if NoneType in hints else ""

    def check(value: Any) -> Faults | None:
        found = first(value)
        if found is None or any(other(value) is None for other in others):
            return None
        return [(path, said if path else said.replace(", got", f"{null}, got", 1)) for path, said in found]

    return check


def _mapping(hint: Any) -> Check:
    inner, easy = check_of(hint), _easy(hint)

    def check(value: Any) -> Faults | None:
        if not isinstance(value, dict):
            return _wrong("a mapping", value)
        kinds = set(map(type, value.values()))
        words = hint is str and kinds.union(map(type, value)) == {str} and all(map(str.isascii, value.values()))
        if (kinds <= easy or words) and all(map(str.isascii, value)):
            return None
        return _all(value.items(), lambda _, one: inner(one))

    return check


def _list(hint: Any) -> Check:
    inner, easy = check_of(hint), _easy(hint)

    def check(value: Any) -> Faults | None:
        if not isinstance(value, list | tuple):
            return _wrong("a list", value)
        kinds = set(map(type, value))
        if kinds <= easy or (kinds == {int} and not inner(min(value)) and not inner(max(value))):
            return None
        return _all(enumerate(value), lambda _, one: inner(one))

    return check


def _shape(hint: Any) -> Check:
    """The check of a mapping by its known names; its other values must be plain data."""
    hints = get_type_hints(hint, include_extras=True)
    checks = {name: check_of(one) for name, one in hints.items()}
    needed = {name for name, one in hints.items() if get_origin(one) is Required}

    def check(value: Any) -> Faults | None:
        if not isinstance(value, dict):
            return _wrong("a mapping", value)
        found: Faults = [(f".{name}", "is missing") for name in sorted(needed - value.keys())]
        found += _all(value.items(), lambda name, one: checks.get(name, _plain)(one)) or ()
        return found or None

    return check


def _plain(value: Any, depth: int = 0) -> Faults | None:
    """The check of plain data: text, finite numbers, true, false, null, and lists and mappings of these."""
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int | float):
        return check_of(float)(value)
    if not isinstance(value, dict | list | tuple):
        return _wrong("text, a number, true, false, null, a list or a mapping", value)
    if depth == DEEPEST:
        return [("", f"must be at most {DEEPEST} levels deep, is deeper")]
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    return _all(parts, lambda _, one: _plain(one, depth + 1))


def _all(parts: Iterable[tuple[Any, Any]], inner: Callable[[Any, Any], Faults | None]) -> Faults | None:
    """The faults of the parts of a mapping, each with its name, or of a list, each with its number."""
    found: Faults = []
    for name, one in parts:
        path = None
        if type(name) is not int and (wrong := _text(name)):
            path = f".{name!a}"
            found += [(path, f"has a name that {said}") for _, said in wrong]
        if wrong := inner(name, one):
            path = path or (f"[{name}]" if type(name) is int else f".{name}")
            found += [(f"{path}{below}", said) for below, said in wrong]
    return found or None
