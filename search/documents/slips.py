"""Words for what a document holds, and corrections where a slip of the pen is likely."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from recallmap.search.documents.nodes import Node


def got(node: Node) -> str:
    """What a part of a document is, in words."""
    value = node.value
    if value is None:
        return "nothing" if node.text in ("", "None") else "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | tuple):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, str):
        return f"text {short(value)}"
    return f"the number {node.text or value}"


def text_advice(members: tuple[Any, ...], text: str) -> str:
    """A correction of text where one of these types is expected, or nothing."""
    truth = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
    if bool in members and text.lower() in truth:
        return f" (write {truth[text.lower()]})"
    return number_advice(text) if int in members or float in members else ""


def number_advice(text: str) -> str:
    digits = text.replace("_", "").replace(",", "")
    if re.fullmatch(r"[-+]?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", digits, re.ASCII):
        return " (write it without quotes)" if digits == text else f" (write {digits})"
    return ""


def short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def deeper(key: str, parts: Mapping[str, Any]) -> str:
    """` (did you mean 'trial.training.steps'?)` where exactly one place below these parts of a document, which are read or
    not, has this key; or nothing."""
    found = list(dict.fromkeys(path for name, part in parts.items() for path in _places(key, part, name)))
    return f" (did you mean '{found[0]}'?)" if len(found) == 1 else ""


def _places(key: str, part: Any, path: str) -> Iterator[str]:
    """The paths below a part at which a key stands. Axes and budgets have paths of the whole document as their keys."""
    part = part.value if isinstance(part, Node) else part
    if is_dataclass(part) and not isinstance(part, type):
        part = {f.name: getattr(part, f.name) for f in fields(part) if f.init}
    if isinstance(part, Mapping):
        for name, inside in part.items():
            if name == key or name.endswith(f".{key}"):
                yield f"{path}.{name}" if name == key else name
            yield from _places(key, inside, f"{path}.{name}")
    elif isinstance(part, tuple):
        for index, inside in enumerate(part):
            yield from _places(key, inside, f"{path}[{index}]")
