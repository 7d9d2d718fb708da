"""Values of the base trial that no trial has, because an axis replaces the whole mapping in which they are written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, NamedTuple

from recallmap.results.analysis.labels import counted
from recallmap.search.documents import built_in, type_hints
from recallmap.search.documents.nodes import TAGS, Node, SpecError, is_another, spelled_out
from recallmap.search.space import grid
from recallmap.search.space.axis_values import Point
from recallmap.search.space.search_space import Search
from recallmap.search.study.reading import TrialReader
from recallmap.search.study.spec import StudySpec

NOUNS = {"arch": "architecture"}  # of what is replaced, where its key is no word


class _Drop(NamedTuple):
    """A value of the base, its place as keys of a trial, and what replaced the mapping that held it."""

    keys: tuple[str | int, ...]
    value: Node
    by: Node


def dropped(study: StudySpec) -> list[str]:
    """A line for each value that is written in the base trial, but that no trial has: `trial.arch.width: 32 is written, and no
    trial has it: {name: b} replaces the whole architecture, whose width is 128`.

    Only values beside the name or the kind that was replaced count, and only where what replaces them has such a value and
    does not write it. Of a search, the corners and the anchors are looked at."""
    points, reader = _points(study), TrialReader(study.trial)
    base = reader.document(())
    patches = {id(patch): patch for point in points for patch in point}
    drops = (drop for patch in patches.values() for drop in _drops(base, _alone(reader, (patch,))))
    suspects = {drop.keys: drop for drop in drops if drop.value.place.source == study.trial.place.source}
    by: dict[tuple[str | int, ...], dict[str, None]] = {keys: {} for keys in suspects}
    instead: dict[tuple[str | int, ...], dict[str, None]] = {keys: {} for keys in suspects}
    for point in points:
        if not by:
            break
        trial, here = reader.trial(point), {drop.keys: drop for drop in _drops(base, reader.document(point))}
        for keys in list(by):
            found = _value(trial, keys)
            if found == suspects[keys].value.value:
                del by[keys]
            elif keys in here and found is not None:
                by[keys][_tag(here[keys].by)] = None
                instead[keys][json.dumps(type_hints.plain(found))] = None
    return [_line(suspects[keys], list(tags), list(instead[keys])) for keys, tags in by.items() if tags]


def _points(study: StudySpec) -> Sequence[Point]:
    space = study.space
    if not isinstance(space, Search):
        return list(grid.grid(space))
    corners = [(*point, *patches) for _, point in space.corners() for patches in space.each[:1]]
    return [*corners, *((*point, *patches) for point in space.anchor_points() for patches in space.each[:1])]


def _alone(reader: TrialReader, point: Point) -> Node | None:
    try:
        return reader.document(point)
    except SpecError:  # it leads into what another axis brings
        return None


def _drops(base: Node, laid: Node | None, keys: tuple[str | int, ...] = ()) -> Iterator[_Drop]:
    """The scalars of mappings of the base that others have replaced, which do not write them."""
    if laid is None or laid is base:
        return
    laid = spelled_out(laid) if isinstance(base.value, dict) else laid
    if isinstance(base.value, dict) and isinstance(laid.value, dict):
        if is_another(base, laid):
            for key, part in base.value.items():
                is_scalar = key not in TAGS and not isinstance(part.value, dict | tuple)
                if is_scalar and (key not in laid or laid.value[key].place.source in _zoo()):
                    yield _Drop((*keys, key), part, laid)
            return
        for key, part in base.value.items():
            yield from _drops(part, laid.get(key), (*keys, key))
    elif isinstance(base.value, tuple) and isinstance(laid.value, tuple) and base.place == laid.place:
        for index, (part, other) in enumerate(zip(base.value, laid.value, strict=True)):
            yield from _drops(part, other, (*keys, index))


@cache
def _zoo() -> frozenset[str]:
    """The files of the zoo, whose values nobody wrote into a study."""
    return frozenset(map(str, built_in.builtin("arch").values()))


def _value(spec: Any, keys: Sequence[str | int]) -> Any:
    """The option at a place of a trial; None where it has no such place."""
    for key in keys:
        if isinstance(key, str):
            options = [f.name for f in fields(spec) if f.init] if is_dataclass(spec) else []
            spec = getattr(spec, key) if key in options else None
        else:
            spec = spec[key] if isinstance(spec, tuple) and key < len(spec) else None
    return spec


def _tag(node: Node) -> str:
    return next(f"{{{tag}: {node.value[tag].value}}}" for tag in TAGS if tag in node)


def _line(drop: _Drop, by: Sequence[str], instead: Sequence[str]) -> str:
    path = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in drop.keys)
    *_, whole, key = ["trial", *map(str, drop.keys)]
    more = f" and {counted(len(by) - 1, 'other')} replace" if len(by) > 1 else " replaces"
    return (
        f"trial{path}: {drop.value.text} is written, and no trial has it: {by[0]}{more} the whole "
        f"{NOUNS.get(whole, whole)}, whose {key} is {type_hints.either(list(instead))}"
    )
