"""The JSON schema of a spec, so that an editor knows the keys, kinds and defaults while one writes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import MISSING, is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Node

_SIMPLE = {int: "integer", float: "number", bool: "boolean", str: "string", NoneType: "null"}


def of(hint: Any, *, named: Collection[type] = ()) -> dict[str, Any]:
    """The schema of all documents that `type_hints.read` takes for `hint`.

    named  specs that a name may stand for inside the document
    """
    defs: dict[str, Any] = {}
    top = _schema(hint, defs)
    for spec in defs.values():
        for name, part in spec["properties"].items():
            if any(part == {"$ref": f"#/$defs/{known.__name__}"} for known in named):
                spec["properties"][name] = {"anyOf": [part, {"type": "string"}]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **top, "$defs": defs}


def _schema(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    members = type_hints.members_of(hint)
    choices = [_member(member, defs) for member in members if member is not int or float not in members]
    alone = type_hints.kinds_of(hint)
    if len(set(alone.values())) > 1:
        choices = [{**c, "required": ["kind"]} if "$ref" in c else c for c in choices]
    if alone:
        choices.append({"enum": list(alone)})
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _member(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    if hint is Node:
        return {}
    if is_dataclass(hint) and isinstance(hint, type):
        if hint.__name__ not in defs:
            defs[hint.__name__] = {}  # taken before it is filled: a spec may hold itself
            defs[hint.__name__] = _object(hint, defs)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    inner = get_args(hint)
    if get_origin(hint) is not tuple:
        return {"type": "object", "additionalProperties": _schema(inner[1], defs)}
    if ... in inner:
        return {"type": "array", "items": _schema(inner[0], defs)}
    items = [_schema(part, defs) for part in inner]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _object(spec: type, defs: dict[str, Any]) -> dict[str, Any]:
    hints, dials = type_hints.hints_of(spec), type_hints.dials(spec)
    properties = {f.name: _schema(hints[f.name], defs) for f in dials}
    for f in dials:
        if f.default is not MISSING:
            properties[f.name] = {**properties[f.name], "default": type_hints.plain(f.default, hints[f.name])}
    required = [f.name for f in dials if f.default is MISSING and f.default_factory is MISSING]
    return {
        "description": (spec.__doc__ or "").strip().split("\n")[0],
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
