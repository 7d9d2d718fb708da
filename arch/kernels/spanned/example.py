"""Random inputs for the bench and the laws."""

from __future__ import annotations

from typing import Any

import torch

VARIANTS = ("atlas", "alone")
WINDOW = 4  # so many more vectors than a width of the matrices


def example(
    variant: str, generator: torch.Generator, *, batch: int, time: int, heads: int, key_width: int, value_width: int
) -> dict[str, Any]:
    """Arguments of `spanned` in fp64: matrices key_width by value_width; "alone": nothing stood ahead of them."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(batch, *shape, generator=generator, dtype=torch.float64)

    vectors = key_width + WINDOW
    given = {
        "x": drawn(time, heads, vectors),
        "d": drawn(heads, vectors, value_width),
        "u": drawn(heads, vectors, key_width),
    }
    if variant == "alone":
        return given
    return given | {"slowed": drawn(time, heads).sigmoid(), "p": drawn(heads, key_width, value_width)}
