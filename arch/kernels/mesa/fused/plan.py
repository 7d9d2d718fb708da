"""The cut of the work: tokens a chunk, value columns a block, the precision of products, warps."""

from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import padded


class Plan(NamedTuple):
    """How kernels are cut.

    columns    of values at a time, and in the adjoint
    precision  of products of fp32: "ieee"; "tf32x3", three tensor-core products that keep 21 bits; "split", for bf16 inputs
               only, where an fp32 factor becomes two bf16 numbers that keep 16 bits: keys and values lose nothing by it
    rows, state_columns  of a state that one program of a walk has
    saves      states are saved for backward, which else makes them anew: they are what takes memory
    groups     of sequences that take turns, where gradients are asked for, so that states of one group are there at a time
    """

    chunk: int
    columns: int
    adjoint_columns: int
    precision: str
    num_warps: int
    gradient_warps: int
    rows: int
    state_columns: int
    walk_warps: int
    walk_stages: int = 2
    saves: bool = True
    groups: int = 1

    @property
    def kept(self) -> torch.dtype:
        """Of states, each half for itself, and of derivatives by them, which no solve needs."""
        return torch.bfloat16 if self.precision == "split" else torch.float32


def plan_for(key_width: int, value_width: int, dtype: torch.dtype) -> Plan:
    """Narrow keys have small states: chunks are then as short as tensor cores take, which spares products of tokens."""
    precision = "split" if dtype == torch.bfloat16 else "ieee" if padded(key_width) == 16 else "tf32x3"
    widest = max(padded(key_width), padded(value_width))
    width, columns = padded(key_width), min(64, widest)
    if width <= 32:
        return Plan(16, columns, columns, precision, 1, 1, width, columns, 1, saves=precision != "split")
    if width <= 64:
        return Plan(64, columns, columns, precision, 4, 4 if precision == "split" else 8, width, columns, 4)
    if precision != "split":  # fp32 factors of 64 rows do not fit shared memory
        return Plan(32, columns, columns, precision, 8, 8, width, columns, 8)
    return Plan(32, min(128, padded(value_width)), columns, precision, 4, 4, 64, 64, 4, 3, saves=False, groups=2)


ENOUGH = 256  # programs of a walk, to keep a GPU busy


def segments_for(programs: int, chunks: int) -> int:
    """How many segments of a sequence are walked side by side. They cost a launch, so that it must be worth it."""
    segments = 1
    if programs < ENOUGH:
        while programs * segments < 2 * ENOUGH and chunks // (2 * segments) >= 8:
            segments *= 2
    return segments


class Inputs(NamedTuple):
    """Inputs of the custom op: content in one dtype; lam [groups, H, K], or [B, T, H] with `ridge`; the first state; the
    solver; whether a last state is wanted; whether gradients may be asked for."""

    q: Tensor
    k: Tensor
    v: Tensor
    lam: Tensor
    log_decay: Tensor | None
    beta: Tensor | None
    sign: Tensor | None
    kk: Tensor | None
    kv: Tensor | None
    steps: int
    enough: float
    ridge: float | None
    x0: str
    scale: float
    return_state: bool
    keep: bool

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return self[:9]


class Cut(NamedTuple):
    """The arguments of every kernel: counts and constants of compilation; programs a state; segments of chunks, and chunks
    of one; groups of sequences by their first and their number."""

    counts: dict[str, int]
    widths: dict[str, int | str]
    blocks: int
    segments: int
    length: int
    plan: Plan
    groups: tuple[tuple[int, int], ...]

    def of_states(self) -> dict[str, int | str]:
        plan = self.plan
        return {name: width for name, width in self.widths.items() if name != "BK"} | {
            "BR": plan.rows, "BC": plan.state_columns, "num_warps": plan.walk_warps, "num_stages": plan.walk_stages
        }  # fmt: skip


def cut_for(x: Inputs) -> Cut:
    """The cut of one call."""
    (batch, time, _, key_width), (heads, value_width) = x.k.shape, x.v.shape[2:]
    plan = plan_for(key_width, value_width, x.k.dtype)
    chunks = -(-time // plan.chunk)
    counts = {"T": time, "H": heads, "N": chunks}
    widths: dict[str, int | str] = {"K": key_width, "V": value_width, "BK": padded(key_width), "BC": plan.columns}
    widths |= {"C": plan.chunk, "PRECISION": plan.precision, "num_warps": plan.num_warps, "num_stages": 1}
    blocks = -(-key_width // plan.state_columns) + -(-value_width // plan.state_columns)
    blocks *= -(-key_width // plan.rows)
    most = max(1, -(-batch * heads // (plan.groups if x.keep else 1)))
    groups = tuple((start, min(most, batch * heads - start)) for start in range(0, batch * heads, most))
    segments = segments_for(most * blocks, chunks)
    length = -(-chunks // segments)
    return Cut(counts, widths, blocks, -(-chunks // length), length, plan, groups)


def passes(x: Inputs, chunks: int) -> bool:
    """True where there is any state to pass on."""
    return chunks > 1 or x.kk is not None or x.return_state
