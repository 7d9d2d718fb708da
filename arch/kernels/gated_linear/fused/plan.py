"""The cut of the work: one walk or chunks side by side, tokens a chunk, blocks and warps."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.gated_linear.fused.decay_factors import NEAR
from recallmap.arch.kernels.op_interface.custom_op import padded


class Inputs(NamedTuple):
    """Inputs of the custom op."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    beta: Tensor | None
    sign: Tensor | None
    initial: Tensor | None
    scale: float
    return_state: bool


class Plan(NamedTuple):
    """The partition of the work: one program per sequence (walk) or per chunk; tokens per chunk; warps per program."""

    walk: bool
    chunk: int
    value_block: int
    warps_forward: int
    warps_backward: int


def plan_for(sequences: int, time: int, key_width: int, value_width: int, by_channel: bool, exact: bool) -> Plan:
    """Chosen for few spilled registers and short chains. `exact` products of fp32 have no tensor cores."""
    widest = max(padded(key_width), padded(value_width))
    if exact:
        longest, block = (32, 32) if widest <= 32 else (16, 32)
    elif by_channel:
        longest, block = 32 if widest <= 128 else 16, 64
    else:
        # Hopper's wider products, which chunks of 64 bring in, come out wrong of Triton 3.6 where key and value widths differ.
        even = padded(key_width) == padded(value_width)
        longest, block = 64 if widest <= 32 or (even and widest <= 128) else 32, 64
    # Transposed results of products are operands while one walks: right from mma, not from Hopper's wgmma (from 64 wide on).
    walk = widest <= 32 and (time <= 128 or sequences >= 256)
    if walk and not exact and sequences >= 512:  # the work counts, no more the waiting: all programs fit at once
        longest, warps = (16, 1) if widest <= 16 else (16, 4) if by_channel else (32, 2)
        return Plan(walk, longest, min(block, padded(value_width)), warps, warps)
    chunk, block = min(longest, padded(time)), min(block, padded(value_width))
    if by_channel:
        return Plan(walk, chunk, block, 8 if widest > 32 else 4, 8 if widest > (16 if exact else 32) else 4)
    return Plan(walk, chunk, block, 8 if widest > 128 else 4, 8 if widest > 32 else 4)


class Case(NamedTuple):
    """The parameters that launchers and the shapes of their results share."""

    batch: int
    time: int
    heads: int
    key_width: int
    value_width: int
    plan: Plan
    ahead: bool
    behind: bool
    dot: torch.dtype

    @property
    def chunks(self) -> int:
        return triton.cdiv(self.time, self.plan.chunk)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.batch, self.heads, self.key_width, self.value_width)

    def chunk_states(self, like: Tensor) -> Tensor:
        """Ahead of chunks, or behind them: a single one keeps all its digits."""
        batch, heads, *widths = self.state_shape
        dtype = torch.float32 if self.chunks == 1 else self.dot
        return like.new_empty((batch, heads, self.chunks, *widths), dtype=dtype)

    def constants(self, log_decay: Tensor | None, *, walk: bool) -> dict[str, Any]:
        gate = "none" if log_decay is None else "head" if log_decay.ndim == 3 else "channel"
        return {
            "K": self.key_width,
            "V": self.value_width,
            "C": self.plan.chunk,
            "GATE": gate,
            "DOT": _DOTS[self.dot],
            "num_stages": 2 if walk and self.dot != torch.float32 else 1,  # the next chunk is read ahead
        }


_DOTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def case_for(x: Inputs) -> Case:
    """The case of one call."""
    batch, time, heads, value_width = x.v.shape
    key_width = x.q.shape[-1]
    by_channel = x.log_decay is not None and x.log_decay.ndim == 4
    alike = x.q.dtype == x.k.dtype == x.v.dtype and x.v.dtype in (torch.bfloat16, torch.float16)
    plan = plan_for(batch * heads, time, key_width, value_width, by_channel, not alike)
    several = time > plan.chunk
    return Case(
        batch=batch,
        time=time,
        heads=heads,
        key_width=key_width,
        value_width=value_width,
        plan=plan,
        ahead=several or x.initial is not None,
        behind=several or x.return_state,
        dot=x.v.dtype if alike else torch.float32,
    )


def levels(chunk: int) -> int:
    """The levels of the tree over a chunk's blocks."""
    return (chunk // NEAR.value).bit_length() - 1
