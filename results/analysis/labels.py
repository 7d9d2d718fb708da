"""Labels that tell records apart: which parameters differ between them; and how devices and numbers are said."""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from recallmap.results.plain_data.shared_parts import Memo
from recallmap.results.record import Record

MOST_DIALS = 4  # in a name

ALWAYS_TOLD = ("length", "pairs")  # options that a short name of a setting has wherever they differ

_JSON = json.JSONEncoder(sort_keys=True, default=str)  # one for all calls: building one is slow

# As records have it, and keep it: a device is told from others by its text.
_ONE_THREAD = re.compile(r"^cpu, 1 threads\b")

ordered = json.JSONEncoder(default=str).encode  # keys as they come


def row_names(records: Iterable[Record]) -> dict[str, str]:
    """A name for every architecture, by key of record: its own, and where several share it, the parameters that differ. Where
    these are more than MOST_DIALS, as few of them as tell the architectures apart."""
    by_name: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    known: dict[str, str] = {}
    of_arch: dict[int, tuple[Any, str]] = {}  # with the architecture, so that nothing else gets its place in memory

    def canonical_leaves(spec: Mapping[str, Any]) -> str:
        arch, phases = spec.get("arch"), spec.get("phases")
        if arch is not None and not phases and id(arch) in of_arch:
            return of_arch[id(arch)][1]
        trained = trained_text(spec)
        if trained not in known:
            known[trained] = canonical_text(leaves_of_text(trained))
        if arch is not None and not phases:
            of_arch[id(arch)] = arch, known[trained]
        return known[trained]

    variant = Memo(canonical_leaves)
    for record in records:
        by_name[record.arch][variant(record.spec)].append(record.key)
    names = {}
    for name, variants in by_name.items():
        leaves = [json.loads(spec) for spec in variants]
        shown = differing(leaves)
        if max(len(words(leaf, shown)) for leaf in leaves) > MOST_DIALS:
            leaves = [{"blocks": _blocks(leaf)} | leaf for leaf in leaves]  # first of those that tell as many apart
            shown = telling(leaves, ["blocks", *shown])
        labels = [" ".join([name, *words(leaf, shown, "=")]) for leaf in leaves]
        uses = Counter(labels)
        for number, (label, keys) in enumerate(zip(labels, variants.values(), strict=True), start=1):
            final = label if uses[label] == 1 else f"{label} #{number}"
            names.update(dict.fromkeys(keys, final))
    return names


def _blocks(leaves: Mapping[str, Any]) -> int:
    """The number of blocks with a mixer of an architecture, those of a repeated part as often as it is repeated."""
    times = {path.removesuffix("times"): number for path, number in leaves.items() if path.endswith(".times")}
    found = [path for path in leaves if path.endswith(".mixer.kind")]
    return sum(math.prod(number for part, number in times.items() if path.startswith(part)) for path in found)


def leaves_of(record: Record) -> Mapping[str, Any]:
    """The parameters of what was trained, by dotted path: those of its architecture, and of its phases' expansions."""
    return leaves_of_text(trained_text(record.spec))


def trained_text(spec: Mapping[str, Any]) -> str:
    """The architecture of a trial and its expansions as JSON, which many trials share."""
    expansions = [phase.get("expand") for phase in spec.get("phases", [])]
    return ordered([spec.get("arch", {}), expansions])


@functools.lru_cache(maxsize=1024)
def leaves_of_text(trained: str) -> Mapping[str, Any]:
    arch, expansions = json.loads(trained)
    return dict(flatten(arch)) | dict(flatten(expansions, "expand"))


def flatten(value: Any, path: str = "", *, empty: bool = False) -> Iterator[tuple[str, Any]]:
    """The leaves of nested plain data, by dotted path. With `empty`, an empty list or mapping is a leaf too, "[]" or "{}"."""
    if isinstance(value, dict | Mapping):
        parts: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    else:
        yield path, value
        return
    if empty and not value and path:
        yield path, "[]" if isinstance(value, list | tuple) else "{}"
    for name, inner in parts:
        at = f"{path}.{name}" if path else str(name)
        if type(inner) in _LEAVES:  # most are: a generator of their own takes five times as long
            yield at, inner
        else:
            yield from flatten(inner, at, empty=empty)


_LEAVES = frozenset({str, int, float, bool, type(None)})


def words(dials: Mapping[str, Any], paths: Iterable[str], link: str = " ") -> list[str]:
    """Parameters as text, such as "length 64": each by the last part of its path, once. Those that are None are left out."""
    said = []
    for path in paths:
        value = dials.get(path)
        if value is not None:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            said.append(f"{path.rsplit('.', 1)[-1]}{link}{text.lower() if isinstance(value, bool) else text}")
    return list(dict.fromkeys(said))


def differing(leaves: Sequence[Mapping[str, Any]]) -> list[str]:
    """The paths whose value is not the same in all, in the order in which they first occur."""
    paths = dict.fromkeys(path for leaf in leaves for path in leaf)
    return [p for p in paths if any(not _alike(leaf.get(p), leaves[0].get(p)) for leaf in leaves)]


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are the same in canonical JSON. Equal values are recognised without JSON: pages compare millions."""
    return (type(one) is type(other) and one == other) or canonical_text(one) == canonical_text(other)


def telling(leaves: Sequence[Mapping[str, Any]], paths: Sequence[str], *, always: Collection[str] = ()) -> list[str]:
    """As few of these paths as still tell apart all that they do, chosen greedily: each leaves the fewest alike. Those of
    `always` are chosen before."""

    said = {path: ["".join(words(leaf, [path])) for leaf in leaves] for path in paths}

    def groups(chosen: Sequence[str]) -> int:
        if not chosen:
            return min(1, len(leaves))
        by_leaf = zip(*(said[path] for path in chosen), strict=True)
        return len({tuple(dict.fromkeys(filter(None, own))) for own in by_leaf})  # as `words` says them

    chosen = [path for path in paths if path in always]
    while groups(chosen) < groups(paths):
        chosen.append(max((p for p in paths if p not in chosen), key=lambda path: groups([*chosen, path])))
    return [path for path in paths if path in chosen]


def canonical_text(value: Any) -> str:
    return _JSON.encode(value)


class TextsOfParts:
    """The `canonical_text` of one mapping with names of text after another, where the text of a part that many share is
    written once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[Any, str]] = {}
        self._words: dict[tuple[str, type, Any], str] = {}

    def __call__(self, mapping: Mapping[str, Any]) -> str:
        known, words, said = self._known, self._words, []
        for name in sorted(mapping):
            part = mapping[name]
            kind = type(part)
            if kind is dict or kind is list:
                found = known.get((name, id(part)))
                if found is None:  # the part is held, so that nothing else gets its place in memory
                    found = known[name, id(part)] = part, f"{canonical_text(name)}: {canonical_text(part)}"
                said.append(found[1])
            elif kind is str or kind is int:
                text = words.get((name, kind, part))
                if text is None:
                    text = words[name, kind, part] = f"{canonical_text(name)}: {canonical_text(part)}"
                said.append(text)
            else:
                said.append(f"{canonical_text(name)}: {canonical_text(part)}")
        return f"{{{', '.join(said)}}}"


def counted(number: int, name: str) -> str:
    """A number and its noun: "1 trial", "1,024 trials"."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def device_label(device: str) -> str:
    """A record's device as people read it: "cpu, 1 thread"."""
    return _ONE_THREAD.sub("cpu, 1 thread", device)


def devices_of(records: Iterable[Record]) -> list[str]:
    """The labels of the devices that trained records, in order; those of unknown devices are left out."""
    return sorted({device_label(record.device) for record in records if record.device})
