"""Reading and writing of YAML text, with YAML's traps closed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import MAX_DEPTH, Fault, Node, Patch, Place, SpecError, fault

MAX_BYTES = 256 * 1024

MAX_DIGITS = 40  # of a number as written


def dump(spec: Any) -> str:
    """The spec as YAML that reads back equal, every field said."""
    return yaml.dump(
        type_hints.plain(spec, whole=True),
        Dumper=_Writer,
        sort_keys=False,
        default_flow_style=None,
        width=110,
        allow_unicode=True,
    )


def override(text: str, *, door: str = "--set", like: str = "trial.training.lr=1e-3") -> Patch:
    """The patch of `path=value` from the command line, its value read by the rules of YAML. Raises SpecError."""
    path, equals, value = text.partition("=")
    place = Place(door)
    if not equals or not path.strip():
        raise fault(place, "", f"got {text!r}, expected path=value such as {like}")
    try:
        node = parse(value.encode(errors="surrogateescape"), door, empty=Node(None, place))
    except SpecError as error:
        raise SpecError(Fault(place, path, f.message) for f in error.faults) from error
    return Patch(path.strip(), _moved(node, place), place)


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

# libyaml is ten times as fast, where PyYAML was built with it. It takes tabs where spaces belong, and of an empty value it says
# that it stands where the next one begins.
_QUICK: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# The parser's words and ours.
_PLAIN_WORDS = {
    "found character '\\t'": "a tab, expected spaces",
    "found character '%'": "text that begins with % needs quotes",
    "found character '@'": "text that begins with @ needs quotes",
    "found character '`'": "text that begins with ` needs quotes",
    "mapping values are not allowed here": "a ':' that is out of place (quote text that holds ': ')",
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
    parser = _Parser(text, source, yaml.SafeLoader if "\t" in text else _QUICK)
    try:
        node = parser.document()
    except SpecError:
        raise
    except (yaml.YAMLError, ValueError, OverflowError):  # the parser in Python has the words for it, and the place
        parser, node = _slowly(text, source)
    if parser.faults:
        raise SpecError(parser.faults)
    if node is None and empty is None:
        raise fault(Place(source, 1, 1), "", "is empty, expected a mapping")
    return node or empty  # type: ignore[return-value]


def _slowly(text: str, source: str) -> tuple[_Parser, Node | None]:
    """The document by YAML's parser in Python. Raises SpecError."""
    parser = _Parser(text, source, yaml.SafeLoader)
    try:
        return parser, parser.document()
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


def _syntax_fault(error: yaml.MarkedYAMLError, source: str) -> Fault:
    problem = str(error.problem or error.context)
    mark = error.problem_mark or error.context_mark
    said = next((ours for theirs, ours in _PLAIN_WORDS.items() if theirs in problem), problem)
    place = Place(source) if mark is None else Place(source, mark.line + 1, mark.column + 1)
    return Fault(place, "", f"is no YAML: {said}")


class _Parser:
    """Parser events to nodes. Faults that leave the structure readable are gathered; others end the parsing."""

    def __init__(self, text: str, source: str, loader: Any) -> None:
        self.source, self.loader = source, loader
        self.events: Iterator[yaml.Event] = yaml.parse(text, Loader=loader)
        self.faults: list[Fault] = []
        self.here = Place(source, 1, 1)  # where the last key or value began

    def document(self) -> Node | None:
        node = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if node is not None:
                    self.refuse(event, "", "a second document starts here, expected one per file")
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
            self.refuse(event, path, f"got the alias *{event.anchor}, expected none; write out what it stands for")
            return Node(None, self.place(event))
        if event.anchor is not None:
            self.refuse(
                event, path, f"got the anchor &{event.anchor}, expected none, as aliases are refused; leave it out"
            )
        if event.tag is not None:
            self.refuse(event, path, f"got the tag {event.tag}, expected none; leave it out")
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
                self.refuse(event, path, "got a list or a mapping as a key, expected text")
            elif event.anchor is not None or event.tag is not None:
                self.refuse(event, here, "got a key with an anchor or a tag, expected text")
            elif not _is_text(name):
                self.refuse(event, path, "holds half of a character (a surrogate), write the character itself")
            elif name == "<<":
                self.refuse(event, path, "got the merge key '<<', expected text; write out what it stands for")
            part = self.node(next(self.events), here, depth + 1)
            if name in parts:
                first = places[name]
                self.refuse(
                    event, here, f"got this key twice, first at line {first.line}, column {first.column}; leave one out"
                )
                continue
            parts[name], places[name] = part, self.place(event)
        return Node(parts, self.place(start), places)

    def scalar(self, event: yaml.ScalarEvent, path: str) -> Node:
        text: str = event.value
        if not text and not event.style and self.loader is not yaml.SafeLoader:
            raise yaml.YAMLError("an empty value, whose place libyaml does not know")
        if not _is_text(text):
            self.refuse(event, path, "holds half of a character (a surrogate), write the character itself")
            return Node(None, self.place(event))
        if event.style or not isinstance(value := plain_scalar(text), str):
            return Node(text if event.style else value, self.place(event), text=text)
        if _NUMBER.fullmatch(text):  # looks like a number, is none: too many digits, or leading zeros
            self.refuse(event, path, f"got {_no_number(text)}")
        return Node(text, self.place(event), text=text)


def _is_text(text: str) -> bool:
    """True for text that can be written to a file."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def plain_scalar(text: str) -> bool | int | float | str | None:
    """The value of unquoted text."""
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
        return f"a number of {len(text)} characters, expected at most {MAX_DIGITS}"
    if _ZEROS.match(text):
        short = re.sub(r"^([-+]?)0+(?=\d)", r"\1", text)
        return f"{text}, which some read as octal: say {short}, or '{text}' if it is text"
    return f"{text}, which is too large for a number"


# From specs to text. ------------------------------------------------------------------------------


class _Writer(yaml.SafeDumper):
    """A YAML writer that quotes all text which a reader, ours or another, could take for something else."""

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
