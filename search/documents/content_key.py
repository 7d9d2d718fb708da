"""Content keys: the sha256 of a spec's canonical JSON."""

from __future__ import annotations

import hashlib
from typing import Any

from recallmap.search.documents import type_hints


def plain(spec: Any) -> dict[str, Any]:
    """The spec as dicts, lists and scalars: every field, without the defaults of fields that are later than the first
    records."""
    data: dict[str, Any] = type_hints.plain(spec)
    return data


def canonical(spec: Any) -> str:
    """The one JSON text of all specs that mean the same."""
    return type_hints.canonical(spec)


def key(spec: Any) -> str:
    """The sha256 of the canonical text: the address of a trial's record."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()
