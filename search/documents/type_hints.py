"""Conversion between specs and documents by the type hints of frozen dataclasses; nothing here names a spec.

A hint may be a dataclass, a union of dataclasses told apart by `kind`, Literal, int, float, bool, str, None,
tuple[T, ...], tuple[A, B], Mapping[str, T], Node (a part that is read later), and unions and nestings of these.

A field that is later than the first records of its spec has the metadata {"later": True}, and the default that those
records meant. `plain` leaves that default out, so that their keys stay.

A field with the metadata {"inline": True} holds one of several specs, whose own fields stand in the document beside those
of the spec that has it: `{kind: tpe, startup: 20, points: 64}`. Its `kind` is then the kind of the whole. A spec has at most
one such field. A field with the metadata {"brief": True} is a tuple of specs; one that is nothing but its kind is written
as the kind alone.
"""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from json.encoder import encode_basestring_ascii
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from recallmap.search.documents.nodes import MAX_DEPTH, Fault, Node, Place, SpecError, cut, fault
from recallmap.search.documents.slips import deeper, got, text_advice

MOST_CHOICES, LONGEST_CHOICE = 40, 60  # that a message names, and characters of one

LARGEST = 2**63 - 1  # whole numbers beyond it survive neither the ledger nor a seed

Opener = Callable[[Node], Node]  # turns text that stands for a whole document into that document

_CANONICAL = "_canonical"  # where a spec keeps its canonical text

_JOINED: dict[frozenset[Any], list[type]] = {}  # specs from outside, by the members of the union that they have joined

_KEYS = re.compile(r"\[\d{1,9}\]|[^.\[\]]+")  # of a path

_BAD: Any = object()  # stands for a part that has faults


def read(
    hint: Any,
    node: Node,
    *,
    openers: Mapping[type, Opener] | None = None,
    stand_ins: Sequence[str] = ("a name", "a path"),
    memo: Memo | None = None,
    also: Sequence[str] = (),
) -> Any:
    """Read `node` as a value of type `hint`. Raises SpecError with every fault.

    stand_ins  names in messages for the text that an opener takes
    memo       parts already read; give the same to several reads of documents that share nodes
    also       further keys that the document may have, and that were taken out of it before
    """
    reader = _Reader(openers or {}, {} if memo is None else memo, stand_ins, also)
    value = reader.read(hint, node, "")
    if reader.faults:
        raise SpecError(reader.faults)
    return value


def plain(value: Any, hint: Any = Any, *, whole: bool = False) -> Any:
    """`value` as dicts, lists and scalars, with every field; whole numbers in float fields become floats.

    whole  include the defaults of later fields
    """
    if isinstance(value, Node):
        return value.plain()
    if is_dataclass(value):
        return _plain_spec(value, whole)
    members = members_of(hint)
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Real):
        return _number(value, members)
    if isinstance(value, tuple | list):
        parts = next((get_args(m) for m in members if get_origin(m) in (tuple, list)), ())
        each = parts if len(parts) == len(value) and ... not in parts else (parts[:1] or (Any,)) * len(value)
        return [plain(part, h, whole=whole) for part, h in zip(value, each, strict=True)]
    if isinstance(value, Mapping):
        inner = next((get_args(m)[1] for m in members if _is_mapping(m)), Any)
        return {str(key): plain(part, inner, whole=whole) for key, part in value.items()}
    raise TypeError(
        f"a spec holds {type(value).__name__} {value!r}, expected numbers, text, tuples, mappings and specs"
    )


def _number(value: Any, members: tuple[Any, ...]) -> int | float:
    if isinstance(value, float) or not isinstance(value, numbers.Integral):
        return float(value) + 0.0  # -0.0 says the same as 0.0
    return float(value) if float in members and int not in members else int(value)


def _plain_spec(value: Any, whole: bool) -> dict[str, Any]:
    spec: Any = type(value)
    hints = hints_of(spec)
    said: dict[str, Any] = {}
    for f in dials(spec):
        part = getattr(value, f.name)
        if not whole and f.metadata.get("later") and part == f.default:
            continue
        data = plain(part, hints[f.name], whole=whole)
        if f.metadata.get("inline"):
            said |= data
        elif f.metadata.get("brief"):
            said[f.name] = [one["kind"] if set(one) == {"kind"} else one for one in data]
        else:
            said[f.name] = data
    return said


def canonical(value: Any, hint: Any = Any) -> str:
    """`plain` as JSON with sorted keys and no spaces. A spec keeps its own: trials of a study share most of their parts."""
    if isinstance(value, Node) or not (is_dataclass(value) and not isinstance(value, type)):
        return _canonical_of_data(value, hint)
    known: str | None = value.__dict__.get(_CANONICAL)
    if known is None and _is_rearranged(type(value)):
        known = _canonical_of_data(plain(value), Any)
    elif known is None:
        said = ((key, getattr(value, name), hint, left_out) for name, key, hint, left_out in _by_name(type(value)))
        parts = [f"{key}:{canonical(part, hint)}" for key, part, hint, left_out in said if part != left_out]
        known = f"{{{','.join(parts)}}}"
    if _CANONICAL not in value.__dict__:
        object.__setattr__(value, _CANONICAL, known)  # it is frozen, so that this stays true
    return known


def _canonical_of_data(value: Any, hint: Any) -> str:
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if type(value) in (int, float) and math.isfinite(value):  # as below, without its detours: most parts are numbers
        return repr(_number(value, members_of(hint)))
    if isinstance(value, tuple) and all(is_dataclass(part) for part in value):
        return f"[{','.join([canonical(part) for part in value])}]"
    return json.dumps(plain(value, hint), sort_keys=True, separators=(",", ":"), allow_nan=False)


@cache
def _is_rearranged(spec: Any) -> bool:
    """Whether a document says a field of it elsewhere, or otherwise, than the spec does."""
    return any(f.metadata.get("inline") or f.metadata.get("brief") for f in dials(spec))


@cache
def _by_name(spec: Any) -> tuple[tuple[str, str, Any, Any], ...]:
    """Name, name as JSON, type, and the value that is left out (a later field's default) of every field that a document may
    set, in the order of names."""
    hints = hints_of(spec)
    return tuple(
        (f.name, json.dumps(f.name), hints[f.name], f.default if f.metadata.get("later") else _BAD)
        for f in sorted(dials(spec), key=lambda f: f.name)
    )


def node_of(value: Any, place: Place, depth: int = 0) -> Node:
    """Plain Python data (specs too) as a document. Raises SpecError on what no document can hold."""
    if depth > MAX_DEPTH:
        raise fault(place, "", f"deeper than {MAX_DEPTH} levels")
    if is_dataclass(value) and not isinstance(value, type):
        value = plain(value)
    if isinstance(value, Mapping):
        bad = next((k for k in value if not isinstance(k, str)), None)
        if bad is not None:
            raise fault(place, "", f"got the key {bad!r}, expected text")
        parts = {k: node_of(v, place, depth + 1) for k, v in value.items()}
        return Node(parts, place, dict.fromkeys(parts, place))
    if isinstance(value, list | tuple):
        return Node(tuple(node_of(v, place, depth + 1) for v in value), place)
    if value is None or isinstance(value, str | bool):
        return Node(value, place, text=str(value))
    if isinstance(value, numbers.Integral):
        return Node(int(value), place, text=str(value) if abs(int(value)) <= LARGEST else "")
    if isinstance(value, numbers.Real):
        return Node(float(value), place, text=str(value))
    raise fault(place, "", f"got {type(value).__name__}, expected text, a number, a truth value, a list or a mapping")


@cache
def hints_of(spec: type) -> dict[str, Any]:
    """The type of every field, by name."""
    return get_type_hints(spec)


@cache
def dials(spec: type) -> tuple[Field[Any], ...]:
    """The fields of a spec that a document may set, `kind` first."""
    said = (f for f in fields(spec) if f.init)
    return tuple(sorted(said, key=lambda f: f.name != "kind"))


def needed(spec: type) -> list[str]:
    """The names that a document of this spec must set."""
    return [f.name for f in dials(spec) if f.default is MISSING and f.default_factory is MISSING]


@cache
def inline_of(spec: type) -> str | None:
    """The name of the field whose own fields are written inline, if there is one."""
    return next((f.name for f in dials(spec) if f.metadata.get("inline")), None)


@cache
def names_of(spec: type, kind: str) -> tuple[str, ...]:
    """The names that a document of this kind may set, `kind` first where it has one."""
    own, inline = [f.name for f in dials(spec)], inline_of(spec)
    if inline is None:
        return tuple(own)
    chosen = kinds_of(hints_of(spec)[inline]).get(kind)
    inside = names_of(chosen, kind) if chosen else ("kind",)
    return (*inside, *(name for name in own if name != inline))


@cache
def members_of(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, flat, and the specs that have joined it; a hint that is no union is its own only
    alternative."""
    own = _own_members(hint)
    joined = (spec for union, specs in _JOINED.items() if union <= set(own) for spec in specs)
    return tuple(dict.fromkeys((*own, *joined)))


def _own_members(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Annotated:
        return _own_members(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return tuple(dict.fromkeys(m for part in get_args(hint) for m in _own_members(part)))
    return (hint,)


def join(union: Any, spec: type) -> None:
    """Add a spec from outside to a union, for this process: it may stand wherever every member of the union may."""
    _JOINED.setdefault(frozenset(_own_members(union)), []).append(spec)
    _forget_members()


def _is_joinable(spec: type) -> bool:
    """True for a spec of a family of which others may define more, see `search.documents.outside`."""
    inline = inline_of(spec)
    inside = () if inline is None else kinds_of(hints_of(spec)[inline]).values()
    return bool(getattr(spec, "joinable", False)) or any(map(_is_joinable, inside))


def leave(spec: type) -> None:
    """Take a spec out of the union that it has joined."""
    for specs in _JOINED.values():
        specs[:] = [other for other in specs if other is not spec]
    _forget_members()


def _forget_members() -> None:
    for known in (members_of, kinds_of, names_of):
        known.cache_clear()


@cache
def kinds_of(hint: Any) -> dict[str, type]:
    """The dataclasses of a union by the `kind` that chooses them; one class may serve several kinds."""
    return {
        kind: member
        for member in members_of(hint)
        if is_dataclass(member) and isinstance(member, type)
        for kind in _kinds_of_spec(member)
    }


def _kinds_of_spec(spec: type) -> tuple[str, ...]:
    hints, inline = hints_of(spec), inline_of(spec)
    if inline is not None:
        return tuple(kinds_of(hints[inline]))
    return get_args(hints["kind"]) if "kind" in hints else ()


def either(choices: list[str]) -> str:
    """`a, b or c`; only the first where there are very many."""
    shown = [cut(choice, LONGEST_CHOICE) for choice in choices[:MOST_CHOICES]]
    if len(choices) > MOST_CHOICES:
        return f"{', '.join(shown)}, ... ({len(choices):,} in all)"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}"


def guess(word: str, known: list[str]) -> str:
    """` (did you mean 'window'?)`, or nothing."""
    close = get_close_matches(word, known, n=1) or get_close_matches(word.lower(), known, n=1)
    return f" (did you mean '{close[0]}'?)" if close and close[0] != word else ""


def word(hint: Any) -> str:
    """A type in words, such as `a whole number`."""
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}
    if hint in simple:
        return simple[hint]
    if get_origin(hint) is Literal:
        return either([f"'{choice}'" if isinstance(choice, str) else str(choice) for choice in get_args(hint)])
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        return "a list" if ... in parts else f"a list of {len(parts)}"
    return "a mapping"


def _is_mapping(hint: Any) -> bool:
    return isinstance(get_origin(hint), type) and issubclass(get_origin(hint), Mapping)


# By hint and identity of the node, or by spec, keys and identity of their parts. The node is kept, so that these stay unique.
Memo = dict[tuple[Any, ...], tuple[Node, Any]]


class _Reader:
    """One reading: its faults so far, and the parts already read."""

    def __init__(
        self, openers: Mapping[type, Opener], memo: Memo, stand_ins: Sequence[str], also: Sequence[str]
    ) -> None:
        self.openers = openers
        self.also = also
        self.stand_ins = stand_ins
        self.memo = memo
        self.faults: list[Fault] = []

    def refuse(self, place: Place, path: str, message: str) -> Any:
        self.faults.append(Fault(place, path, message))
        return _BAD

    def words(self, hint: Any) -> str:
        """The expected values, in words."""
        members = members_of(hint)
        choices = [w for m in members for w in [*(self.stand_ins if m in self.openers else ()), word(m)]]
        return either(list(dict.fromkeys(choices)))

    def read(self, hint: Any, node: Node, path: str) -> Any:
        known = self.memo.get((hint, id(node)))
        if known is not None:
            return known[1]
        before = len(self.faults)
        value = self._read(hint, node, path)
        if len(self.faults) == before:
            self.memo[hint, id(node)] = (node, value)
        return value

    def _read(self, hint: Any, node: Node, path: str) -> Any:
        members = members_of(hint)
        if Node in members and not (node.value is None and NoneType in members):
            return node
        if isinstance(node.value, dict):
            return self._mapping(hint, node, path)
        if isinstance(node.value, tuple):
            return self._list(hint, node, path)
        value = _scalar(members, node.value)
        if value is not _BAD:
            return value
        if isinstance(node.value, str):
            return self._text(hint, node, path)
        return self.refuse(node.place, path, f"got {got(node)}, expected {self.words(hint)}{_advice(members, node)}")

    def _text(self, hint: Any, node: Node, path: str) -> Any:
        """Read text where another type is expected: the name of a document, or a kind for a mapping of nothing but its
        kind."""
        members = members_of(hint)
        for member in members:
            if member in self.openers:
                try:
                    return self.read(member, self.openers[member](node), path)
                except SpecError as error:
                    return self._take(error, path)
        kinds = kinds_of(hint)
        if kinds and (str not in members):
            if node.value in kinds:
                return self._dataclass(kinds[node.value], _kind_alone(node), path)
            if not any(get_origin(m) is Literal for m in members):
                return self._unknown_kind(kinds, node, path)
        said = [c for m in members if get_origin(m) is Literal for c in get_args(m) if isinstance(c, str)]
        hint_words = guess(node.value, said) or _advice(members, node)
        return self.refuse(node.place, path, f"got {got(node)}, expected {self.words(hint)}{hint_words}")

    def _list(self, hint: Any, node: Node, path: str) -> Any:
        tuples = [m for m in members_of(hint) if get_origin(m) is tuple]
        if not tuples:
            return self.refuse(node.place, path, f"got a list, expected {self.words(hint)}")
        parts = next((get_args(m) for m in tuples if ... in get_args(m) or len(get_args(m)) == len(node.value)), None)
        if parts is None:
            return self.refuse(node.place, path, f"got a list of {len(node.value)}, expected {self.words(hint)}")
        each = (parts[0],) * len(node.value) if ... in parts else parts
        items = [self.read(h, item, f"{path}[{i}]") for i, (h, item) in enumerate(zip(each, node.value, strict=True))]
        return _BAD if _BAD in items else tuple(items)

    def _mapping(self, hint: Any, node: Node, path: str) -> Any:
        members = members_of(hint)
        kinds = kinds_of(hint)
        if "kind" in node and kinds:
            named = node.value["kind"]
            if isinstance(named.value, str) and named.value in kinds:
                return self._dataclass(kinds[named.value], node, path)
            return self._unknown_kind(kinds, named, f"{path}.kind" if path else "kind")
        specs = [m for m in members if is_dataclass(m) and isinstance(m, type)]
        if len(specs) == 1:
            return self._dataclass(specs[0], node, path)
        if kinds:
            fitting = [k for k, spec in kinds.items() if set(node.value) <= set(names_of(spec, k))]
            meant = f" (did you mean '{fitting[0]}'?)" if len(fitting) == 1 else _kind_as_key(kinds, node)
            return self.refuse(node.place, path, f"key 'kind' is missing, expected {_quoted(kinds)}{meant}")
        mappings = [m for m in members if _is_mapping(m)]
        if not mappings:
            return self.refuse(node.place, path, f"got a mapping, expected {self.words(hint)}")
        inner = get_args(mappings[0])[1]
        parts = {key: self.read(inner, part, _join(path, key)) for key, part in node.value.items()}
        return _BAD if _BAD in parts.values() else parts

    def _unknown_kind(self, kinds: Mapping[str, type], node: Node, path: str) -> Any:
        if not isinstance(node.value, str):
            return self.refuse(node.place, path, f"got {got(node)}, expected {_quoted(kinds)}")
        meant = guess(node.value, list(kinds))
        own = ", or one of your own, by --use FILE or uses: [FILE]" if any(map(_is_joinable, kinds.values())) else ""
        return self.refuse(node.place, path, f"unknown kind '{node.value}', expected {_quoted(kinds)}{own}{meant}")

    def _dataclass(self, spec: type, node: Node, path: str) -> Any:
        own = (
            spec,
            *node.value,
            *map(id, node.value.values()),
        )  # a patch may have brought the same parts together before
        if own in self.memo:
            return self.memo[own][1]
        value = self._made(spec, node, path)
        if value is not _BAD:
            self.memo[own] = (node, value)
        return value

    def _made(self, spec: type, node: Node, path: str) -> Any:
        hints, known = hints_of(spec), {f.name: f for f in dials(spec)}
        before = len(self.faults)
        values = {}
        names = names_of(spec, _kind_said(node))
        inline = inline_of(spec)
        if inline is not None:
            del known[inline]
            inside = Node(
                {k: part for k, part in node.value.items() if k in names and k not in known}, node.place, node.keys
            )
            values[inline] = self.read(hints[inline], inside, path)
        for key, part in node.value.items():
            if key in known:
                values[key] = self.read(hints[key], part, _join(path, key))
        for key in (key for key in node.value if key not in known and key not in names):
            whole = names if path else (*names, *self.also)
            may = ", ".join(name for name in whole if name != "kind") or "nothing besides kind"
            below = {_join(path, name): part for name, part in values.items()}
            meant = deeper(key, below) or guess(key, list(whole))
            self.refuse(node.keys[key], _join(path, key), f"unknown key, expected {may}{meant}")
        for name in needed(spec):
            if name in known and name not in node.value:
                self.refuse(node.place, path, f"key '{name}' is missing, expected {self.words(hints[name])}")
        if len(self.faults) > before:
            return _BAD
        try:
            return spec(**values)
        except SpecError as error:
            return self._take(error, path)
        except ValueError as error:
            return self._blame(node, path, str(error))

    def _take(self, error: SpecError, path: str) -> Any:
        """The faults that a part found in itself, with their paths as seen from the whole."""
        self.faults += [Fault(f.place, _join(path, f.path), f.message) for f in error.faults]
        return _BAD

    def _blame(self, node: Node, path: str, message: str) -> Any:
        """Place the fault of a spec that refuses itself. Its message names the option first, as in "heads must be at least 1,
        got 0", with a path where the option is that of a part. The fault is put at the deepest part of that path which the
        document has."""
        option = message.split(maxsplit=1)[0].rstrip(":,") if message else ""
        walked, part = "", node
        for key in _KEYS.findall(option):
            index = int(key[1:-1]) if key.startswith("[") else 0
            inside = part.value[index : index + 1] if key.startswith("[") and isinstance(part.value, tuple) else ()
            below = part.get(key) if not key.startswith("[") else next(iter(inside), None)
            if below is None:
                break
            walked, part = _join(walked, key), below
        return self.refuse(part.place, _join(path, walked), message)


def _scalar(members: tuple[Any, ...], value: Any) -> Any:
    """`value` as one of the members, or _BAD. A whole number may stand for a float, never the reverse."""
    for member in members:
        if get_origin(member) is Literal and any(c == value and type(c) is type(value) for c in get_args(member)):
            return value
    if (
        type(value) in members
        and type(value) is not int
        and not (isinstance(value, float) and not math.isfinite(value))
    ):
        return value
    if type(value) is int and abs(value) <= LARGEST:
        return value if int in members else float(value) if float in members else _BAD
    return _BAD


def _advice(members: tuple[Any, ...], node: Node) -> str:
    """A correction, where a slip of the pen is likely."""
    value, text = node.value, node.text
    if value is None or isinstance(value, dict | tuple):
        return ""
    items = [get_args(m)[0] for m in members if get_origin(m) is tuple]
    if items:
        fits = any(type(value) in members_of(item) or value in kinds_of(item) for item in items)
        return f" (write [{text}])" if fits else ""
    if isinstance(value, str):
        return text_advice(members, value)
    if str in members:
        return f" (write '{text or str(value).lower()}')"
    if isinstance(value, float) and not math.isfinite(value):
        return " that is finite"
    if isinstance(value, float) and int in members and value.is_integer():
        return f" (write {int(value)})"
    wants_number = int in members or float in members
    return f" between -{LARGEST} and {LARGEST}" if wants_number and not isinstance(value, bool | float) else ""


def _kind_said(node: Node) -> str:
    kind = node.get("kind")
    return kind.value if kind is not None and isinstance(kind.value, str) else ""


def _kind_as_key(kinds: Mapping[str, type], node: Node) -> str:
    """How a mapping is written whose kind was given as a key: ` (did you mean '{kind: repeat, times: 2, blocks: [...]}'?)` for
    `{repeat: 2}`; or nothing."""
    kind = next((key for key in node.value if key in kinds), None)
    if kind is None:
        return ""
    spec, part = kinds[kind], node.value[kind]
    names, hints = [name for name in names_of(spec, kind) if name != "kind"], hints_of(spec)
    inside = part.value if isinstance(part.value, dict) else {}
    said = {name: _shown(other) for name, other in {**node.value, **inside}.items() if name in names}
    open_ = [name for name in needed(spec) if name in names and name not in said]
    if part.value is not None and not isinstance(part.value, dict):
        said |= {name: _shown(part) for name in [n for n in open_ if _may_be(hints[n], part.value)][:1]}
    said |= {name: "[...]" if _may_be(hints[name], ()) else "..." for name in open_ if name not in said}
    written = ", ".join([f"kind: {kind}", *(f"{name}: {said[name]}" for name in names if name in said)])
    return f" (did you mean '{{{written}}}'?)"


def _may_be(hint: Any, value: Any) -> bool:
    """Whether a scalar, a list or the name of a kind may stand for a value of this type."""
    members = members_of(hint)
    if isinstance(value, tuple):
        return any(get_origin(member) is tuple for member in members)
    return _scalar(members, value) is not _BAD or (isinstance(value, str) and value in kinds_of(hint))


def _shown(node: Node) -> str:
    """A part of a document in few characters."""
    if isinstance(node.value, dict | tuple):
        return "{...}" if isinstance(node.value, dict) else "[...]"
    return cut(node.text or json.dumps(node.value), LONGEST_CHOICE)


def _kind_alone(node: Node) -> Node:
    return Node({"kind": node}, node.place, {"kind": node.place})


def _quoted(kinds: Mapping[str, type]) -> str:
    return either([f"'{kind}'" for kind in kinds])


def _join(path: str, part: str) -> str:
    return f"{path}.{part}" if path and part and not part.startswith("[") else path + part
