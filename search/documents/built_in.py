"""Documents that ship with recallmap, by name, and files of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Fault, Node, Place, SpecError, fault
from recallmap.search.documents.type_hints import Opener, guess
from recallmap.search.documents.yaml_text import MAX_BYTES, parse

Source = str | os.PathLike[str] | Mapping[str, Any]

S = TypeVar("S")

# The folders of documents that come with the package: what -> (package, folder).
BUILT_IN = {
    "arch": ("arch", "zoo"),
    "study": ("search", "studies"),
    "suite": ("synth", "suites"),
    "published": ("results", "published"),
    "language": ("results", "published/language"),
    "publishing": ("results", "publishing"),
}

# Former names, by which documents are still found. An architecture keeps its former one in `name`, because that is part of
# the key of its records.
FORMER = {"arch": {"gla": "gla_mesanet", "mamba2": "mamba2_mesanet"}}


def from_plain(spec: type[S], data: Mapping[str, Any]) -> S:
    """The spec that `plain` made `data` from. Raises SpecError."""
    result: S = type_hints.read(spec, type_hints.node_of(data, Place(spec.__name__)), openers=openers())
    return result


def builtin(what: str) -> dict[str, Traversable]:
    """The documents of a sort ("arch", "study", "suite", "published", "publishing") that come with the package, by name."""
    package, folder = BUILT_IN[what]
    place = resources.files(f"recallmap.{package}") / folder
    found = sorted(place.iterdir(), key=lambda f: f.name) if place.is_dir() else []
    return {f.name.removesuffix(".yaml"): f for f in found if f.name.endswith(".yaml")}


def named(what: str) -> dict[str, Traversable]:
    """As `builtin`, and by their former names too."""
    known = builtin(what)
    return known | {former: known[name] for former, name in FORMER.get(what, {}).items()}


def about(what: str, name: str) -> str:
    """The first line of a built-in document, where that is a comment."""
    first = builtin(what)[name].read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


# From a source to a document. ---------------------------------------------------------------------

# Keys that only one sort of document has.
TELLING = {"trial": "study", "stack": "arch", "tiers": "suite", "kind": "task"}


def sort_of(node: Node) -> str:
    """The sort of a document: study, arch, suite or task; "" for none of them."""
    return next((what for key, what in TELLING.items() if key in node), "")


def one(what: str) -> str:
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"


def document(source: Source, what: str) -> Node:
    """The document that a path, a built-in name or a mapping stands for. Raises SpecError."""
    node = _any_document(source, what)
    found = sort_of(node)
    if what in TELLING.values() and found not in ("", what):
        key = next(key for key, sort in TELLING.items() if sort == found)
        raise fault(node.keys[key], "", f"got the key '{key}' of {one(found)}, expected {one(what)}")
    return node


def _any_document(source: Source, what: str) -> Node:
    if isinstance(source, Mapping):
        return type_hints.node_of(source, Place("mapping"))
    text = os.fspath(source)
    known = named(what) if what in BUILT_IN else {}
    if isinstance(source, str) and text in known:
        return _whole(_built_in(known[text].read_bytes(), str(known[text])))
    path = Path(text)
    if os.path.isfile(path) and (other := _other_sort(path)):
        raise fault(Place(text), "", f"{other}, expected {one(what)} in YAML")
    if not os.path.exists(path) and not is_path(source):
        if what == "arch" and _is_mixer(text):
            how = f"{{name: {text}, stack: [{{kind: block, mixer: {text}}}]}}"
            raise fault(Place(text), "", f"is a mixer, expected an architecture: write one around it, such as {how}")
        may = f"expected a file or {type_hints.either(list(known))}" if known else "expected a file"
        sort = {"published": "published source", "publishing": "claims or excerpts"}.get(what, what)
        raise fault(Place(text), "", f"no built-in {sort} and no file, {may}{guess(text, list(known))}")
    return _read_file(path, list(known))


@lru_cache(maxsize=256)
def _built_in(data: bytes, source: str) -> Node:
    """A document that comes with the package, parsed once, because it is named again and again."""
    return parse(data, source)


def settings_of(suite: Node, tier: str) -> tuple[Node, ...]:
    """The settings of a tier of a suite, each with its place. Raises SpecError."""
    tiers = suite.get("tiers")
    if tiers is None or not isinstance(tiers.value, dict):
        raise fault(suite.place, "", "key 'tiers' is missing, expected a mapping of settings by tier")
    settings = tiers.get(tier)
    if settings is None:
        meant = guess(tier, list(tiers.value))
        raise fault(tiers.place, "tiers", f"no tier '{tier}', expected {type_hints.either(list(tiers.value))}{meant}")
    if not isinstance(settings.value, tuple) or not all(isinstance(s.value, dict) for s in settings.value):
        raise fault(settings.place, f"tiers.{tier}", "expected a list of mappings, each a patch of a trial")
    return settings.value


def openers() -> dict[type, Opener]:
    """Functions that open a document which text stands for: `arch: mesa` in a trial."""
    from recallmap.arch.backbone import BackboneSpec

    return {BackboneSpec: open_arch}


def open_arch(node: Node) -> Node:
    """The architecture that `node` names."""
    return open_named(node, "arch")


def open_named(node: Node, what: str) -> Node:
    """The document that `node` names: a built-in one, or a path seen from the folder of the naming file."""
    text = node.value
    here = Path(node.place.source).parent if node.place.line else Path()
    try:
        return document(here / text if is_path(text) else text, what)
    except SpecError as error:
        named = (f if f.place.line else Fault(node.place, "", f"'{text}': {f.message}") for f in error.faults)
        raise SpecError(named) from error


def _other_sort(path: Path) -> str:
    """What a file is that is no document, by the ending of its name, and what to do with it; "" for all others."""
    from recallmap.results.record_files import SUFFIXES

    name = quote(str(path))
    if path.suffix == ".py":
        return f"is a Python file (recallmap verify {name} tries what it defines, and --use {name} names it to any command)"
    return f"holds records (recallmap table {name} shows them)" if path.suffix in SUFFIXES else ""


def _is_mixer(text: str) -> bool:
    from recallmap.arch.mixers import Mixer

    return text in type_hints.kinds_of(Mixer)


def is_path(source: Source) -> bool:
    """True where a source means a file, whether it exists or not."""
    return not isinstance(source, str) or source.endswith((".yaml", ".yml")) or "/" in source or os.sep in source


def _read_file(path: Path, known: list[str]) -> Node:
    place = Place(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        close = guess(path.stem, known) or (f" (did you mean '{path.stem}'?)" if path.stem in known else "")
        raise fault(place, "", f"no such file{close}") from None
    except OSError as error:
        raise fault(place, "", f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # a path with a null byte in it
        raise fault(Place(repr(str(path))), "", f"cannot be read: {error}") from None
    return _whole(parse(data, str(path)))


def _whole(node: Node) -> Node:
    if isinstance(node.value, dict):
        return node
    got = "a list" if isinstance(node.value, tuple) else f"{node.text[:60]!r}"
    advice = " (a space must follow a ':')" if ":" in node.text else ""
    raise fault(node.place, "", f"got {got}, expected a mapping{advice}")
