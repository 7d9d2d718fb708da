"""YAML <-> specs, strictly: whatever is wrong comes all at once, each fault with its place and what may stand there.

YAML's traps are closed. Numbers are decimal (`1e-3` is one; `012`, `0x10`, `1_000`, `1:30` and dates are none), only
true and false are truth values, only `null`, `~` and nothing are null, all else is text. Duplicate keys, anchors,
aliases, merge keys, tags, tabs and second documents are refused.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from search import typed
from search.document import MAX_DEPTH, Fault, Node, Patch, Place, SpecError, fault, patched
from search.typed import guess

if TYPE_CHECKING:
    from arch.backbone import BackboneSpec
    from search.study import StudySpec
    from synth.tasks import Task

MAX_BYTES = 256 * 1024
MAX_DIGITS = 40  # of a number as written

Source = str | os.PathLike[str] | Mapping[str, Any]
S = TypeVar("S")

# Where the documents that come with the package lie: what -> (package, folder).
BUILT_IN = {
    "arch": ("arch", "zoo"),
    "study": ("search", "studies"),
    "suite": ("synth", "suites"),
    "published": ("results", "published"),
}
# Names that documents had before, by which they are still found: an architecture gives itself its former one in `name`, for
# that is a part of the key of its records.
FORMER = {"arch": {"gla": "gla_mesanet", "mamba2": "mamba2_mesanet"}}


# Doors. -------------------------------------------------------------------------------------------


def read_task(source: Source, *, overrides: Sequence[str] = ()) -> Task:
    """A task from a file, a mapping, or its kind alone, with `dial=value` laid over it. Raises SpecError."""
    node = task_document(source)
    for text in overrides:
        node = patched(node, override(text, door="dial", like="length=32"))
    task: Task = typed.read(_hint("task"), node)
    return task


def read_arch(source: Source) -> BackboneSpec:
    """An architecture from a file, a name of the zoo, or a mapping. Raises SpecError."""
    arch: BackboneSpec = typed.read(_hint("arch"), document(source, "arch"))
    return arch


def read_study(source: Source, *, overrides: Sequence[str] = ()) -> StudySpec:
    """A study from a file, a built-in name, or a mapping, with `path=value` laid over it. Raises SpecError.

    Every trial of the study is read too (of a search: every corner), so that whatever is wrong with one is known before
    any is trained.
    """
    from search import overlay

    chosen = overlay.with_budget(document(source, "study"), [override(text) for text in overrides])
    spec: StudySpec = typed.read(_hint("study"), chosen)
    spec.check(chosen)
    return spec


def from_plain(spec: type[S], data: Mapping[str, Any]) -> S:
    """The spec that `plain` made `data` from. Raises SpecError."""
    result: S = typed.read(spec, typed.node_of(data, Place(spec.__name__)), openers=openers())
    return result


def plain(spec: Any) -> dict[str, Any]:
    """The spec as dicts, lists and scalars: every field, but the defaults of those that came after records were kept."""
    data: dict[str, Any] = typed.plain(spec)
    return data


def dump(spec: Any) -> str:
    """The spec as YAML that reads back equal, every field said."""
    return yaml.dump(
        typed.plain(spec, whole=True),
        Dumper=_Writer,
        sort_keys=False,
        default_flow_style=None,
        width=110,
        allow_unicode=True,
    )


def canonical(spec: Any) -> str:
    """The one JSON text of all specs that mean the same."""
    return typed.canonical(spec)


def key(spec: Any) -> str:
    """sha256 of the canonical text: the address of a trial's record."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()


def read_suite(name: str, tier: str) -> list[dict[str, Any]]:
    """The settings of a published suite as patches of a trial. Raises SpecError."""
    return [setting.plain() for setting in settings_of(document(name, "suite"), tier)]


def read_published(name: str) -> dict[str, Any]:
    """Published figures with their sources. Raises SpecError."""
    data: dict[str, Any] = document(name, "published").plain()
    return data


def schema(what: str) -> dict[str, Any]:
    """The JSON schema of a task, an arch, a trial or a study, for editors."""
    from search import schema as schemas

    found = schemas.of(_hint(what), named=openers() if what in ("trial", "study") else ())
    if what == "trial":  # without a kind it is that of a model, trained once
        plain, *others = (spec.__name__ for spec in typed.members_of(_hint("trial")))
        told = [{"$ref": f"#/$defs/{name}", "required": ["kind"]} for name in others]
        found["anyOf"] = [{"$ref": f"#/$defs/{plain}"}, *told]
    if what == "study":  # its base trial may leave to the space whatever that varies
        whole = schema("trial")
        for spec in typed.members_of(_hint("trial")):
            whole["$defs"][spec.__name__]["required"] = []
        found["$defs"] = {**whole["$defs"], **found["$defs"]}
        found["$defs"]["StudySpec"]["properties"]["trial"] = {"anyOf": whole["anyOf"]}
    return found


def builtin(what: str) -> dict[str, Traversable]:
    """The documents of a sort ("arch", "study", "suite", "published") that come with the package, by name."""
    package, folder = BUILT_IN[what]
    place = resources.files(package) / folder
    found = sorted(place.iterdir(), key=lambda f: f.name) if place.is_dir() else []
    return {f.name.removesuffix(".yaml"): f for f in found if f.name.endswith(".yaml")}


def named(what: str) -> dict[str, Traversable]:
    """As `builtin`, and by their former names too."""
    known = builtin(what)
    return known | {former: known[name] for former, name in FORMER.get(what, {}).items()}


def about(what: str, name: str) -> str:
    """What a built-in document says of itself: its first line, where that is a comment."""
    first = builtin(what)[name].read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


# From a source to a document. ---------------------------------------------------------------------

# Keys that only one sort of document has.
TELLING = {"trial": "study", "stack": "arch", "tiers": "suite", "kind": "task"}


def sort_of(node: Node) -> str:
    """Whether a document is a study, an arch, a suite or a task; "" for none of them."""
    return next((what for key, what in TELLING.items() if key in node), "")


def one(what: str) -> str:
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"


def document(source: Source, what: str) -> Node:
    """The document that a path, a built-in name or a mapping stands for. Raises SpecError."""
    node = _any_document(source, what)
    found = sort_of(node)
    if what in TELLING.values() and found not in ("", what):
        key = next(key for key, sort in TELLING.items() if sort == found)
        raise fault(node.keys[key], "", f"the key '{key}' belongs to {one(found)}, here may come {one(what)}")
    return node


def _any_document(source: Source, what: str) -> Node:
    if isinstance(source, Mapping):
        return typed.node_of(source, Place("mapping"))
    text = os.fspath(source)
    known = named(what) if what in BUILT_IN else {}
    if isinstance(source, str) and text in known:
        return _whole(_built_in(known[text].read_bytes(), str(known[text])))
    path = Path(text)
    if not os.path.exists(path) and not _is_path(source):
        may = f"may come a file or {typed.either(list(known))}" if known else "may come a file"
        sort = "published source" if what == "published" else what
        raise fault(Place(text), "", f"no built-in {sort} and no file, {may}{guess(text, list(known))}")
    return _read_file(path, list(known))


@lru_cache(maxsize=256)
def _built_in(data: bytes, source: str) -> Node:
    """What comes with the package is named again and again: it is parsed once."""
    return parse(data, source)


def task_document(source: Source) -> Node:
    """As `document`; a kind alone stands for that task with its dials at their defaults."""
    kinds = list(typed.kinds_of(_hint("task")))
    if isinstance(source, str) and (source in kinds or not (_is_path(source) or os.path.exists(source))):
        return Node(source, Place("task"), text=source)
    return document(source, "task")


def settings_of(suite: Node, tier: str) -> tuple[Node, ...]:
    """The settings of a tier of a suite, each where it stands. Raises SpecError."""
    tiers = suite.get("tiers")
    if tiers is None or not isinstance(tiers.value, dict):
        raise fault(suite.place, "", "key 'tiers' is missing, may come a mapping of settings by tier")
    settings = tiers.get(tier)
    if settings is None:
        meant = guess(tier, list(tiers.value))
        raise fault(tiers.place, "tiers", f"no tier '{tier}', may come {typed.either(list(tiers.value))}{meant}")
    if not isinstance(settings.value, tuple) or not all(isinstance(s.value, dict) for s in settings.value):
        raise fault(settings.place, f"tiers.{tier}", "may come a list of mappings, each a patch of a trial")
    return settings.value


def openers() -> dict[type, typed.Opener]:
    """How text stands for a whole document: `arch: mesa` in a trial."""
    from arch.backbone import BackboneSpec

    return {BackboneSpec: open_arch}


def open_arch(node: Node) -> Node:
    """The architecture that `node` names."""
    return open_named(node, "arch")


def open_named(node: Node, what: str) -> Node:
    """The document that `node` names: a built-in one, or a path seen from the folder of the naming file."""
    text = node.value
    here = Path(node.place.source).parent if node.place.line else Path()
    try:
        return document(here / text if _is_path(text) else text, what)
    except SpecError as error:
        named = (f if f.place.line else Fault(node.place, "", f"'{text}': {f.message}") for f in error.faults)
        raise SpecError(named) from error


def override(text: str, *, door: str = "--set", like: str = "trial.training.lr=1e-3") -> Patch:
    """The patch that `path=value` of the command line says, the value by the rules of YAML. Raises SpecError."""
    path, equals, value = text.partition("=")
    place = Place(door)
    if not equals or not path.strip():
        raise fault(place, "", f"came {text!r}, may come path=value such as {like}")
    try:
        node = parse(value.encode(errors="surrogateescape"), door, empty=Node(None, place))
    except SpecError as error:
        raise SpecError(Fault(place, path, f.message) for f in error.faults) from error
    return Patch(path.strip(), _moved(node, place), place)


def _hint(what: str) -> Any:
    """The type of a document. torch comes with all but tasks, hence no import before it is asked for."""
    if what == "task":
        from synth.tasks import Task

        return Task
    if what == "arch":
        from arch.backbone import BackboneSpec

        return BackboneSpec
    if what == "trial":
        from search.study import Trial

        return Trial
    if what == "study":
        from search.study import StudySpec

        return StudySpec
    raise ValueError(f"what must be task, arch, trial or study, got '{what}'")


def _is_path(source: Source) -> bool:
    """Whether a source means a file, there or not."""
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
    came = "a list" if isinstance(node.value, tuple) else f"{node.text[:60]!r}"
    advice = " (a space must follow a ':')" if ":" in node.text else ""
    raise fault(node.place, "", f"came {came}, may come a mapping{advice}")


def _moved(node: Node, place: Place) -> Node:
    """The same document as if all of it stood at `place`."""
    if isinstance(node.value, dict):
        return Node({k: _moved(n, place) for k, n in node.value.items()}, place, dict.fromkeys(node.keys, place))
    if isinstance(node.value, tuple):
        return Node(tuple(_moved(n, place) for n in node.value), place)
    return Node(node.value, place, text=node.text)


# From text to a document. -------------------------------------------------------------------------

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)
_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
_ZEROS = re.compile(r"[-+]?0\d", re.ASCII)

# The parser's words and ours.
_PLAIN_WORDS = {
    "found character '\\t'": "a tab, may come spaces",
    "found character '%'": "text that begins with % needs quotes",
    "found character '@'": "text that begins with @ needs quotes",
    "found character '`'": "text that begins with ` needs quotes",
    "mapping values are not allowed here": "a ':' where none may come (quote text that holds ': ')",
    "could not find expected ':'": "a key without ':', or a line that is indented wrongly",
    "expected <block end>": "does not line up with what stands above",
    "expected ',' or ']'": "a '[' above is not closed, or a ',' is missing",
    "expected ',' or '}'": "a '{' above is not closed, or a ',' is missing",
    "found unexpected end of stream": "a quote above is not closed",
    "expected the node content": "a value is missing",
    "sequence entries are not allowed here": "a '-' where no list may begin",
    "expected '<document start>'": "text after the end of the document",
}


def parse(data: bytes, source: str, *, empty: Node | None = None) -> Node:
    """The one document that `data` holds; `empty` is what stands for none. Raises SpecError."""
    if len(data) > MAX_BYTES:
        raise fault(Place(source, 1, 1), "", f"larger than {MAX_BYTES // 1024} KiB, which no document of ours is")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - before.rfind(b"\n")
        place = Place(source, before.count(b"\n") + 1, column)
        raise fault(place, "", f"byte 0x{data[error.start]:02x} is not UTF-8, save the file as UTF-8") from None
    parser = _Parser(text, source)
    try:
        node = parser.document()
    except yaml.reader.ReaderError as error:
        before_text = text[: error.position]
        place = Place(source, before_text.count("\n") + 1, error.position - before_text.rfind("\n"))
        raise fault(place, "", f"character {ord(text[error.position]):#x} may not stand in YAML") from None
    except yaml.MarkedYAMLError as error:
        raise SpecError([*parser.faults, _syntax_fault(error, source)]) from None
    except (ValueError, OverflowError) as error:  # of a character or a version by a number that there is not
        if isinstance(error, SpecError):
            raise
        raise SpecError([*parser.faults, Fault(parser.here, "", "is no YAML: a number that is too large")]) from None
    if parser.faults:
        raise SpecError(parser.faults)
    if node is None and empty is None:
        raise fault(Place(source, 1, 1), "", "is empty, may come a mapping")
    return node or empty  # type: ignore[return-value]


def _syntax_fault(error: yaml.MarkedYAMLError, source: str) -> Fault:
    problem = str(error.problem or error.context)
    mark = error.problem_mark or error.context_mark
    said = next((ours for theirs, ours in _PLAIN_WORDS.items() if theirs in problem), problem)
    place = Place(source) if mark is None else Place(source, mark.line + 1, mark.column + 1)
    return Fault(place, "", f"is no YAML: {said}")


class _Parser:
    """Parser events to nodes. Faults that leave the structure readable are gathered; others end the parsing."""

    def __init__(self, text: str, source: str) -> None:
        self.source = source
        self.events: Iterator[yaml.Event] = yaml.parse(text, Loader=yaml.SafeLoader)
        self.faults: list[Fault] = []
        self.here = Place(source, 1, 1)  # where the last key or value began

    def document(self) -> Node | None:
        node = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if node is not None:
                    self.refuse(event, "", "a second document starts here, may come one a file")
                    return node
                node = self.node(next(self.events), "", 0)
        return node

    def place(self, event: yaml.Event) -> Place:
        mark: Any = event.start_mark
        return Place(self.source, mark.line + 1, mark.column + 1)

    def refuse(self, event: yaml.Event, path: str, message: str) -> None:
        self.faults.append(Fault(self.place(event), path, message))

    def node(self, event: Any, path: str, depth: int) -> Node:
        self.here = self.place(event)
        if depth > MAX_DEPTH:
            raise SpecError([*self.faults, Fault(self.place(event), "", f"deeper than {MAX_DEPTH} levels")])
        if isinstance(event, yaml.AliasEvent):
            self.refuse(event, path, f"came the alias *{event.anchor}, write out what it stands for")
            return Node(None, self.place(event))
        if event.anchor is not None:
            self.refuse(event, path, f"came the anchor &{event.anchor}, aliases may not come, so leave it out")
        if event.tag is not None:
            self.refuse(event, path, f"came the tag {event.tag}, may come no tags")
        if isinstance(event, yaml.ScalarEvent):
            return self.scalar(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.sequence(event, path, depth)
        return self.mapping(event, path, depth)

    def sequence(self, start: yaml.Event, path: str, depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.node(event, f"{path}[{len(items)}]", depth + 1))
        return Node(tuple(items), self.place(start))

    def mapping(self, start: yaml.Event, path: str, depth: int) -> Node:
        parts: dict[str, Node] = {}
        places: dict[str, Place] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            self.here = self.place(event)
            name = event.value if isinstance(event, yaml.ScalarEvent) else ""
            here = f"{path}.{name}" if path else name
            if not isinstance(event, yaml.ScalarEvent):
                self.node(event, here, depth + 1)
                self.refuse(event, path, "came a list or a mapping as a key, may come text")
            elif event.anchor is not None or event.tag is not None:
                self.refuse(event, here, "came a key with an anchor or a tag, may come text")
            elif not _is_text(name):
                self.refuse(event, path, "holds half of a character (a surrogate), write the character itself")
            elif name == "<<":
                self.refuse(event, path, "came the merge key '<<', write out what it stands for")
            part = self.node(next(self.events), here, depth + 1)
            if name in parts:
                first = places[name]
                self.refuse(event, here, f"came twice, first at line {first.line}, column {first.column}")
                continue
            parts[name], places[name] = part, self.place(event)
        return Node(parts, self.place(start), places)

    def scalar(self, event: yaml.ScalarEvent, path: str) -> Node:
        text: str = event.value
        if not _is_text(text):
            self.refuse(event, path, "holds half of a character (a surrogate), write the character itself")
            return Node(None, self.place(event))
        if event.style is not None or not isinstance(value := plain_scalar(text), str):
            return Node(text if event.style is not None else value, self.place(event), text=text)
        if _NUMBER.fullmatch(text):  # looks like a number, is none: too many digits, or leading zeros
            self.refuse(event, path, f"came {_no_number(text)}")
        return Node(text, self.place(event), text=text)


def _is_text(text: str) -> bool:
    """Whether it can be written to a file."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def plain_scalar(text: str) -> bool | int | float | str | None:
    """What unquoted text says."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if len(text) > MAX_DIGITS or _ZEROS.match(text) or not _NUMBER.fullmatch(text):
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if math.isfinite(float(text)) else text


def _no_number(text: str) -> str:
    """Why what looks like a number is none, and what to write."""
    if len(text) > MAX_DIGITS:
        return f"a number of {len(text)} characters, may come at most {MAX_DIGITS}"
    if _ZEROS.match(text):
        short = re.sub(r"^([-+]?)0+(?=\d)", r"\1", text)
        return f"{text}, which some read as octal: say {short}, or '{text}' if it is text"
    return f"{text}, which is too large for a number"


# From specs to text. ------------------------------------------------------------------------------


class _Writer(yaml.SafeDumper):
    """Quotes all text that a reader of YAML, ours or another, could take for something else."""

    def resolve(self, kind: type, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            said = plain_scalar(value)
            if isinstance(said, float):
                return "tag:yaml.org,2002:float"
            if isinstance(said, str) and _NUMBER.fullmatch(value):
                return "tag:recallmap,no-number"
        return super().resolve(kind, value, implicit)

    def ignore_aliases(self, data: Any) -> bool:
        return True
