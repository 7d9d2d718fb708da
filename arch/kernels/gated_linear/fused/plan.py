"""The cut of the work: one walk, segments of time or chunks side by side, tokens a chunk, blocks and warps."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.gated_linear.fused.decay_factors import NEAR
from recallmap.arch.kernels.op_interface.custom_op import padded


class Inputs(NamedTuple):
    """Inputs of the custom op. `keep` asks for the states ahead of the chunks, which the derivative reads."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    beta: Tensor | None
    sign: Tensor | None
    initial: Tensor | None
    scale: float
    return_state: bool
    keep: bool = True


class Tiles(NamedTuple):
    """A program's block of the state, its warps, and how many chunks' loads are in flight."""

    key_block: int
    value_block: int
    warps: int
    stages: int


class Prepared(NamedTuple):
    """Key channels at a time, warps, and blocks of channels whose loads are in flight."""

    key_block: int
    warps: int
    stages: int


class Outputs(NamedTuple):
    """A program's columns of outputs, its warps and loads in flight. `walked`: it walks a segment with the state in
    registers; otherwise it has one chunk, whose state another kernel wrote."""

    value_block: int
    warps: int
    stages: int
    walked: bool


class Plan(NamedTuple):
    """The partition of the work.

    walk                          one program per sequence, one launch each way; all else below is then of no account, but
                                  for chunk, value_block, outputs and warps_backward
    chunk                         tokens
    value_block, warps_backward   columns of values at a time and warps, of the derivative
    outputs                       of forward
    carry, carry_back             of the kernel that writes the states ahead of chunks, and the derivatives by those behind
    totals                        of the kernel that sums what whole segments add to the state
    segments, segments_back       pieces of time walked side by side, forward and backward; 1: no totals
    prepared, prepared_back       of the kernel that fades queries and keys, and forward makes scores, ahead of all others,
                                  where log decays go by key channel; None: each kernel does so itself
    """

    walk: bool
    chunk: int
    value_block: int
    warps_backward: int
    outputs: Outputs
    carry: Tiles
    carry_back: Tiles
    totals: Tiles
    segments: int = 1
    segments_back: int = 1
    prepared: Prepared | None = None
    prepared_back: Prepared | None = None


class Wide(NamedTuple):
    """What a sweep found for a kind of wide heads: fields of `Plan` that differ, and how many programs, by sequences, blocks of
    values and segments, keep a GPU busy, forward and backward; 0: no segments."""

    changes: dict[str, Any]
    programs: int = 0
    programs_back: int = 0


# By gate and width of heads whose keys and values are equally wide, in 16 bits. Without an entry, each chunk's outputs have a
# program of their own, and one walk a sequence holds the states. Measured in bf16 on an H100 and an H200, forward and backward:
# batch 4, time 2048, 8 heads of 128; batch 1, time 8192, 16 heads of 128; batch 64, time 256, 2 heads of 64.
_TILES = Tiles(64, 64, 4, 3)
WIDE: dict[tuple[str, int], Wide] = {
    ("none", 64): Wide({"chunk": 128, "outputs": Outputs(64, 4, 3, True), "carry_back": _TILES}),
    ("none", 128): Wide(
        {"outputs": Outputs(128, 8, 3, True), "totals": Tiles(128, 64, 4, 3), "carry_back": _TILES}, 128, 256
    ),
    ("head", 128): Wide(
        {"outputs": Outputs(64, 4, 1, True), "totals": Tiles(64, 128, 4, 3), "carry_back": _TILES}, 256, 256
    ),
    ("channel", 128): Wide(
        {
            "prepared": Prepared(32, 1, 3),
            "outputs": Outputs(64, 4, 3, True),
            "totals": _TILES,
            "carry": _TILES,
            "prepared_back": Prepared(64, 2, 1),
            "carry_back": _TILES,
        },
        256,
        256,
    ),
}


def plan_for(sequences: int, time: int, key_width: int, value_width: int, gate: str, exact: bool) -> Plan:
    """Chosen for few spilled registers and short chains. `exact` products of fp32 have no tensor cores."""
    widths, by_channel = (padded(key_width), padded(value_width)), gate == "channel"
    widest = max(widths)
    if exact:
        longest, block = (32, 32) if widest <= 32 else (16, 32)
    elif by_channel:
        longest, block = 32 if widest <= 128 else 16, 64
    else:
        # Hopper's wider products, which chunks of 64 bring in, come out wrong of Triton 3.6 where key and value widths differ.
        longest, block = 64 if widest <= 32 or (widths[0] == widths[1] and widest <= 128) else 32, 64
    # Transposed results of products are operands while one walks: right from mma, not from Hopper's wgmma (from 64 wide on).
    walk = widest <= 32 and (time <= 128 or sequences >= 256)
    if walk and not exact and sequences >= 512:  # the work counts, no more the waiting: all programs fit at once
        longest, forward = (16, 1) if widest <= 16 else (16, 4) if by_channel else (32, 2)
        chunk, backward = longest, forward
    else:
        chunk = min(longest, padded(time))
        forward = (8 if widest > 32 else 4) if by_channel else 8 if widest > 128 else 4
        backward = 8 if widest > (16 if by_channel and exact else 32) else 4
    block = min(block, widths[1])
    stages = 1 if exact else 2  # the next chunk is read ahead
    # Fades by channel cost most of a step.
    tiles = Tiles(min(32 if by_channel else 64, widths[0]), min(64, widths[1]), 4, stages)
    outputs = Outputs(block, forward, stages if walk else 1, walk)
    plan = Plan(walk, chunk, block, backward, outputs, tiles, tiles, tiles)
    if not exact and widths[0] == widths[1] and time > chunk:
        plan = _swept(plan, sequences, time, widths, WIDE.get((gate, widest), Wide({})))
    return plan


def _swept(plan: Plan, sequences: int, time: int, widths: tuple[int, int], found: Wide) -> Plan:
    """The plan with what a sweep found, and as many segments as that asks for, none of fewer than two chunks."""
    plan = plan._replace(**found.changes)
    most = time // (2 * plan.chunk)
    blocks = triton.cdiv(widths[1], plan.outputs.value_block if plan.outputs.walked else plan.carry.value_block)
    blocks_back = triton.cdiv(widths[1], plan.carry_back.value_block)
    return plan._replace(
        segments=max(1, min(found.programs // (sequences * blocks), most)),
        segments_back=max(1, min(found.programs_back // (sequences * blocks_back), most)),
    )


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
    keep: bool
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

    def cut(self, segments: int) -> tuple[int, int]:
        """Chunks a segment, and segments: none is empty."""
        each = triton.cdiv(self.chunks, segments)
        return each, triton.cdiv(self.chunks, each)

    def constants(self, gate: str) -> dict[str, Any]:
        return {"K": self.key_width, "V": self.value_width, "GATE": gate, "DOT": _DOTS[self.dot]}


_DOTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def gate_of(log_decay: Tensor | None) -> str:
    """What log decays go by."""
    return "none" if log_decay is None else "head" if log_decay.ndim == 3 else "channel"


def case_for(x: Inputs) -> Case:
    """The case of one call."""
    batch, time, heads, value_width = x.v.shape
    key_width = x.q.shape[-1]
    alike = x.q.dtype == x.k.dtype == x.v.dtype and x.v.dtype in (torch.bfloat16, torch.float16)
    plan = plan_for(batch * heads, time, key_width, value_width, gate_of(x.log_decay), not alike)
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
        keep=x.keep or plan.walk or not plan.outputs.walked,
        dot=x.v.dtype if alike else torch.float32,
    )


def levels(chunk: int) -> int:
    """The levels of the tree over a chunk's blocks."""
    return (chunk // NEAR.value).bit_length() - 1
