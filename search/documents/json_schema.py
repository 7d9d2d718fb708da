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
    meant = [member for member in members if member is not int or float not in members]
    choices = [choice for member in meant for choice in _choices(member, defs)]
    alone = type_hints.kinds_of(hint)
    if alone and sum("$ref" in choice for choice in choices) > 1:
        choices = [{**c, "required": ["kind"]} if "$ref" in c else c for c in choices]
    if alone:
        choices.append({"enum": list(alone)})
    return choices[0] if len(choices) == 1 else {"anyOf": choices}


def _choices(hint: Any, defs: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of a member of a union: several where a field of it, one of several specs, is written inline."""
    if hint is Node or not (is_dataclass(hint) and isinstance(hint, type)):
        return [_member(hint, defs)]
    inline = type_hints.inline_of(hint)
    inside = type_hints.members_of(type_hints.hints_of(hint)[inline]) if inline else (None,)
    return [_reference(hint, spec, defs) for spec in inside]


def _reference(spec: type, inside: type | None, defs: dict[str, Any]) -> dict[str, Any]:
    name = spec.__name__ if inside is None else f"{spec.__name__}.{inside.__name__}"
    if name not in defs:
        defs[name] = {}  # taken before it is filled: a spec may hold itself
        defs[name] = _object(spec, inside, defs)
    return {"$ref": f"#/$defs/{name}"}


def _member(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    if hint is Node:
        return {}
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


def _object(spec: type, inside: type | None, defs: dict[str, Any]) -> dict[str, Any]:
    parts = [(spec, f) for f in type_hints.dials(spec) if not f.metadata.get("inline")]
    if inside is not None:
        parts = [*((inside, f) for f in type_hints.dials(inside)), *parts]
    properties: dict[str, Any] = {}
    required: list[str] = []
    for owner, f in parts:
        hint = type_hints.hints_of(owner)[f.name]
        properties[f.name] = _schema(hint, defs)
        if f.default is not MISSING:
            properties[f.name] = {**properties[f.name], "default": type_hints.plain(f.default, hint)}
        elif f.default_factory is MISSING:
            required.append(f.name)
    return {
        "description": (spec.__doc__ or "").strip().split("\n")[0],
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
