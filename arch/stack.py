"""Stacks of blocks in order, the same in YAML and in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from recallmap.arch.block import Block
from recallmap.arch.combine import Context, Gate, Layer

MOST_BLOCKS = 10_000  # of a stack, repeats written out


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """`blocks` in order, `times` over. May hold further repeats."""

    kind: Literal["repeat"] = "repeat"
    times: int
    blocks: tuple[Block | Gate | Layer | Context | Repeat, ...]

    def __post_init__(self) -> None:
        if not 1 <= self.times <= MOST_BLOCKS:
            raise ValueError(f"times must be at least 1 and at most {MOST_BLOCKS:,}, got {self.times:,}")
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


def count(stack: tuple[Layered, ...]) -> int:
    """The number of blocks that `flatten` gives, by arithmetic."""
    return sum(part.times * count(part.blocks) if isinstance(part, Repeat) else 1 for part in stack)


def firsts(stack: tuple[Layered, ...]) -> Mapping[Block | Gate | Layer | Context, int]:
    """Every different block once, with its first index among those of `flatten`."""
    found: dict[Block | Gate | Layer | Context, int] = {}
    number = 0
    for part in stack:
        if isinstance(part, Repeat):
            for block, within in firsts(part.blocks).items():
                found.setdefault(block, number + within)
            number += part.times * count(part.blocks)
        else:
            found.setdefault(part, number)
            number += 1
    return found
