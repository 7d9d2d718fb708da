"""Blocks in order: the language of hybrids, the same in YAML and in Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from arch.block import Block
from arch.combine import Context, Gate, Layer


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """`blocks` in order, `times` over. May hold further repeats."""

    kind: Literal["repeat"] = "repeat"
    times: int
    blocks: tuple[Block | Gate | Layer | Context | Repeat, ...]

    def __post_init__(self) -> None:
        if self.times < 1:
            raise ValueError(f"times must be at least 1, got {self.times}")
        if not self.blocks:
            raise ValueError("blocks must hold at least one block, got none")


Layered = Block | Gate | Layer | Context | Repeat


def flatten(stack: tuple[Layered, ...]) -> Iterator[Block | Gate | Layer | Context]:
    """The blocks of a stack in the order in which a token meets them."""
    for part in stack:
        if isinstance(part, Repeat):
            for _ in range(part.times):
                yield from flatten(part.blocks)
        else:
            yield part
