"""The cost of a spec before it is built: parameters, state, operations."""

from __future__ import annotations

from dataclasses import dataclass

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.stack import flatten

BYTES_PER_FLOAT = 4  # states are carried in float32


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of an architecture: parameters; floats and bytes of state after `length` tokens of one sequence, and the floats
    that still grow there; floating-point operations per token, forward, at the mean context of `length` tokens."""

    parameters: int
    state_floats: int
    state_bytes: int
    growing_floats: int
    flops_per_token: float
    length: int

    @property
    def state_grows(self) -> bool:
        return self.growing_floats > 0


def cost(spec: BackboneSpec, *, vocab: int, length: int) -> Cost:
    """The cost by the formulas of mixers; nothing is built, however large it is."""
    if length < 1:
        raise ValueError(f"length must be at least 1, got {length}")
    if vocab < 1:
        raise ValueError(f"vocab must be at least 1, got {vocab}")
    blocks = list(flatten(spec.stack))
    state = sum((block.state_size(spec.width, length) for block in blocks), start=StateSize(0))
    return Cost(
        parameters=spec.parameters(vocab),
        state_floats=state.total,
        state_bytes=BYTES_PER_FLOAT * state.total,
        growing_floats=state.growing,
        flops_per_token=sum(block.flops(spec.width, length) for block in blocks) + 2 * spec.width * vocab,
        length=length,
    )
