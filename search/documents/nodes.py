"""Documents that know the place of each of their parts, and patches of them, before anything is validated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recallmap.results.escape import one_line

MAX_DEPTH = 32  # levels of nested mappings and lists

LONGEST = 300  # characters of a place, of a path, and a third of those of a message

MOST_TOLD = 1800  # characters of all faults together

TAGS = ("kind", "name")  # keys that say which mapping it is: one of another kind or name replaces the whole

_INDEX = re.compile(r"[0-9]{1,9}")  # of a list

_NO_PATH = "is no path, expected keys and places such as trial.arch.stack[0].mixer.heads"


@dataclass(frozen=True)
class Place:
    """The place of something: `file:line:column`, or the option that brought it where there are no lines."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and where. `path` names it as `stack[1].mixer.window`, "" is the whole document."""

    place: Place
    path: str
    message: str

    def __str__(self) -> str:
        """The fault on one line, whatever text it quotes."""
        parts = (cut(str(self.place)), cut(self.path), cut(self.message, 3 * LONGEST))
        return one_line(": ".join(part for part in parts if part))


def cut(text: str, longest: int = LONGEST) -> str:
    """The text, or its beginning and its end where it is longer."""
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end - 5]} ... {text[-end:]}"


class SpecError(ValueError):
    """All faults of a document, file by file from top to bottom, one a line. `faults` holds all; the message shows as many
    as people can read."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        found = list(dict.fromkeys(faults))
        sources = list(dict.fromkeys(f.place.source for f in found))
        found.sort(key=lambda f: (sources.index(f.place.source), f.place.line, f.place.column))
        self.faults = tuple(found)
        super().__init__("\n".join(_told(found)))


def _told(faults: Sequence[Fault]) -> list[str]:
    """A line each, as many as are short enough together, and the number of further ones."""
    lines: list[str] = []
    left = MOST_TOLD
    for number, line in enumerate(map(str, faults)):
        left -= len(line) + 1
        if lines and left < 0:
            return [*lines, f"... and {len(faults) - number:,} more"]
        lines.append(line)
    return lines


def fault(place: Place, path: str, message: str) -> SpecError:
    """A SpecError of one fault."""
    return SpecError([Fault(place, path, message)])


@dataclass(frozen=True)
class Node:
    """A part of a document. Two nodes are equal when they say the same, whatever their places.

    value  null, a truth value, a number, text, a tuple of nodes, or nodes by key
    keys   for a mapping, the place of each key
    text   a scalar as it was written
    """

    value: Any
    place: Place = field(compare=False)
    keys: Mapping[str, Place] = field(default_factory=dict, compare=False)
    text: str = field(default="", compare=False)

    def __contains__(self, key: str) -> bool:
        return isinstance(self.value, dict) and key in self.value

    def get(self, key: str) -> Node | None:
        return self.value.get(key) if isinstance(self.value, dict) else None

    def plain(self) -> Any:
        """The same as lists, dicts and scalars."""
        if isinstance(self.value, dict):
            return {key: part.plain() for key, part in self.value.items()}
        if isinstance(self.value, tuple):
            return [part.plain() for part in self.value]
        return self.value

    def with_key(self, key: str, part: Node, at: Place) -> Node:
        """This mapping with `part` under `key`; a new key stands at `at`, a known one stays in its order."""
        keys = {**self.keys, key: at}
        return Node({**self.value, key: part}, self.place, keys)


@dataclass(frozen=True)
class Patch:
    """Lay `value` over whatever stands at `path`; `at` is where the patch itself was written."""

    path: str
    value: Node
    at: Place


def patched(node: Node, patch: Patch) -> Node:
    """`node` with the patch laid over it. A mapping on the way that is not there yet is made; a list never grows.

    Raises SpecError where the path leads through something that has no such part.
    """
    if not patch.path or patch.path.endswith("."):
        raise fault(patch.at, patch.path, _NO_PATH)
    return _patched(node, patch.path, patch, walked="")


def merged(base: Node, over: Node) -> Node:
    """Mappings merge key by key; anything else, and a mapping of another `kind` or `name`, replaces `base`."""
    base = spelled_out(base) if isinstance(over.value, dict) else base
    if not (isinstance(base.value, dict) and isinstance(over.value, dict)) or is_another(base, over):
        return over
    result = base
    for key, part in over.value.items():
        known = base.get(key)
        result = result.with_key(key, part if known is None else merged(known, part), over.keys[key])
    return result


def is_another(base: Node, over: Node) -> bool:
    """True for a mapping of another `kind` or `name`, which replaces the whole of `base`."""
    return any(tag in base and tag in over and base.value[tag] != over.value[tag] for tag in TAGS)


def spelled_out(node: Node) -> Node:
    """`parity` where `{kind: parity}` may stand too."""
    return Node({"kind": node}, node.place, {"kind": node.place}) if isinstance(node.value, str) else node


def _patched(node: Node, rest: str, patch: Patch, walked: str) -> Node:
    if not rest:
        return merged(node, patch.value)
    if rest.startswith("["):
        return _patched_item(node, rest, patch, walked)
    node = spelled_out(node)
    if not isinstance(node.value, dict):
        raise fault(patch.at, patch.path, f"{walked or 'the document'} is no mapping and has no '{rest}'")
    key, after = _first_key(node, rest, walked)
    if not key:
        raise fault(patch.at, patch.path, _NO_PATH)
    here = f"{walked}.{key}" if walked else key
    known = node.get(key)
    if known is None and not after:
        return node.with_key(key, patch.value, patch.at)
    part = _patched(known or Node({}, patch.at), after, patch, here)
    return node.with_key(key, part, patch.at if known is None or not after else node.keys[key])


def _patched_item(node: Node, rest: str, patch: Patch, walked: str) -> Node:
    digits, bracket, after = rest[1:].partition("]")
    if not bracket or not _INDEX.fullmatch(digits) or (after and after[0] not in ".["):
        raise fault(patch.at, patch.path, f"'{rest}' is no place in a list, expected [0], [1], ...")
    if not isinstance(node.value, tuple):
        raise fault(patch.at, patch.path, f"{walked} is no list and has no '[{digits}]'")
    index, count = int(digits), len(node.value)
    if index >= count:
        may = f"expected [0] to [{count - 1}]" if count else "it is empty"
        raise fault(patch.at, patch.path, f"{walked} has no [{index}], {may}")
    part = _patched(node.value[index], after.removeprefix("."), patch, f"{walked}[{index}]")
    return Node((*node.value[:index], part, *node.value[index + 1 :]), node.place)


def _leads(axis: Node, after: str) -> bool:
    """True where a path leads on into an axis: to a place in its list, or to the keys that call a suite. Any other path is
    that of a further axis, which varies a part of what this one does."""
    if not after or after.startswith("["):
        return not after or isinstance(axis.value, tuple)
    return after[1:].partition(".")[0] in axis


def _first_key(node: Node, rest: str, walked: str) -> tuple[str, str]:
    """The key that `rest` begins with and what follows. Keys of axes are paths too, so the longest known wins."""
    for key in sorted(node.value, key=len, reverse=True):
        after = rest[len(key) :]
        leads = rest.startswith(key) and (not after or after[0] in ".[")
        if leads and (not walked.endswith(("axes", "over")) or _leads(node.value[key], after)):
            return key, after.removeprefix(".")
    if walked.endswith(("axes", "dials", "over")):
        return rest, ""
    end = min((rest.index(mark) for mark in ".[" if mark in rest), default=len(rest))
    return rest[:end], rest[end:].removeprefix(".")
