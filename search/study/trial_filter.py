"""The trials of a grid that match `only`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from recallmap.results.analysis.labels import flatten
from recallmap.search.documents import type_hints
from recallmap.search.documents.built_in import FORMER
from recallmap.search.documents.nodes import Fault, Node, Place, SpecError, fault
from recallmap.search.space.parameters import Choices
from recallmap.search.trials import Trial


def filtered(trials: Sequence[Trial], only: Node) -> list[Trial]:
    """The trials that match all of `only`. Raises SpecError where none matches a part of it, or none matches all."""
    said = [dict(flatten(type_hints.plain(trial, whole=True))) for trial in trials]
    wanted = list(_told(only, ""))
    faults = [f for path, node in wanted for f in _unheard(said, path, node, only.place)]
    if faults:
        raise SpecError(faults)
    meant = [t for t, one in zip(trials, said, strict=True) if all(_value(one, p) in _any_of(n) for p, n in wanted)]
    if not meant:
        raise fault(only.place, "only", "no trial matches all of these; leave some out")
    return meant


def _unheard(said: Sequence[Choices], path: str, node: Node, at: Place) -> Iterator[Fault]:
    """Faults of a condition that no trial matches."""
    found = [value for one in said if (value := _value(one, path)) is not _NOTHING]
    if not found:
        above, _, name = path.rpartition(".")
        below = f"{above}." if above else ""
        beside = (key.removeprefix(below) for one in said for key in one if key.startswith(below))
        known = list(dict.fromkeys(key.partition(".")[0] for key in beside))
        may = f", expected {type_hints.either(known)}{type_hints.guess(name, known)}" if known else ""
        yield Fault(at, f"only.{path}", f"no trial has '{name}' there{may}")
        return
    known = list(dict.fromkeys(map(str, found)))
    for value in _any_of(node):
        if value not in found:
            may = f"expected {type_hints.either(known)}{type_hints.guess(str(value), known)}"
            yield Fault(node.place, f"only.{path}", f"no trial has {value}, {may}")


_NOTHING = object()


def _value(said: Choices, path: str) -> Any:
    """The value at a path, or its name or kind where it has parts; _NOTHING where there is none. A word that another patch
    reaches into is spelled out as a kind, that of an architecture too."""
    places = (path, f"{path}.name", f"{path}.kind", re.sub(r"\.kind$", ".name", path))
    return next((said[place] for place in places if place in said), _NOTHING)


def _told(node: Node, path: str) -> Iterator[tuple[str, Node]]:
    """Every path of a mapping, as `flatten` writes it, and its value."""
    for name, part in node.value.items():
        below = f"{path}.{name}" if path else name
        if isinstance(part.value, dict):
            yield from _told(part, below)
        else:
            yield re.sub(r"\[(\d+)\]", r".\1", below), part


_RECORDED = {name: former for former, name in FORMER["arch"].items()}


def _any_of(node: Node) -> list[Any]:
    """The values that a condition allows; a renamed architecture has the name in its records."""
    values = node.plain() if isinstance(node.value, tuple) else [node.plain()]
    return [_RECORDED.get(value, value) if isinstance(value, str) else value for value in values]
