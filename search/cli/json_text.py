"""JSON for programs: what `--json` prints. Numbers are not rounded, and one that is not finite is null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any


def line(value: Any) -> str:
    """One line."""
    return json.dumps(_plain(value), allow_nan=False)


def document(value: Any) -> str:
    """A document that people can read, too."""
    return json.dumps(_plain(value), allow_nan=False, indent=1)


def _plain(value: Any) -> Any:
    """Plain data of mappings, sequences, numbers and dataclasses; anything else as text."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return list(map(_plain, value)) if isinstance(value, Sequence) else str(value)
