"""Parts of architectures whose code came from outside, as their records tell: nothing here executes or looks for that code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def said_of(leaves: Mapping[str, Any]) -> list[str]:
    """What defined each part from outside, and whether the size of its state is unknown, a phrase each. `leaves` are parameters
    by dotted path (see `leaves_of`)."""
    defined: dict[str, dict[str, None]] = {}
    unknown: dict[str, None] = {}
    for at, kind in _parts(leaves):
        code, of = leaves.get(f"{at}code"), leaves.get(f"{at}of")
        name = f"{kind} {of}" if of is not None else f"{kind}"
        if code is not None:
            defined.setdefault(code, {})[name] = None
        if _is_unknown(leaves, at):
            unknown[name] = None
    said = [f"{code} defines {', '.join(names)}" for code, names in defined.items()]
    return said + [f"the state of {name} is unknown, so that it is on no front" for name in unknown]


def has_unknown_state(leaves: Mapping[str, Any]) -> bool:
    """True where the state of a part is unknown, so that its size is a bound of ours and not its own."""
    return any(_is_unknown(leaves, at) for at, _ in _parts(leaves))


def _parts(leaves: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(path.removesuffix("kind"), kind) for path, kind in leaves.items() if path.endswith(".kind")]


def _is_unknown(leaves: Mapping[str, Any], at: str) -> bool:
    return leaves.get(f"{at}kind") == "module" and leaves.get(f"{at}state") == "unknown"
