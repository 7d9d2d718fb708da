"""The cut of the work: tokens a chunk, value columns a block, the precision of products, warps."""

from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import padded

MOST_STATE_COLUMNS = 64
STAGES = 2  # of the walks over states


class Plan(NamedTuple):
    """How kernels are cut.

    columns    of values at a time
    more_warps where most lies in registers
    precision  of products of fp32: "ieee"; "tf32x3", three tensor-core products that keep 21 bits; "split", for bf16 inputs
               only, where an fp32 factor becomes two bf16 numbers that keep 16 bits: keys and values lose nothing by it
    """

    chunk: int
    columns: int
    precision: str
    num_warps: int
    more_warps: int

    @property
    def state_columns(self) -> int:
        """Columns of a state that one program of states has."""
        return min(MOST_STATE_COLUMNS, self.columns)


def plan_for(key_width: int, value_width: int, dtype: torch.dtype) -> Plan:
    """Narrow keys have small states: chunks are then as short as tensor cores take, which spares products of tokens."""
    precision = "split" if dtype == torch.bfloat16 else "ieee" if padded(key_width) == 16 else "tf32x3"
    widest = max(padded(key_width), padded(value_width))
    width, columns = padded(key_width), min(64, widest)
    if width <= 32:
        return Plan(16, columns, precision, 1, 1)
    if width == 128:  # 64 rows do not fit registers, nor fp32 factors of them shared memory
        return Plan(32, min(128, padded(value_width)) if precision == "split" else columns, precision, 8, 8)
    return Plan(64, columns, precision, 4, 8)


class Inputs(NamedTuple):
    """Inputs of the custom op: content in one dtype; lam [groups, H, K], or [B, T, H] with `ridge`; the first state; the
    solver; whether a last state is wanted."""

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

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        return self[:9]


class Cut(NamedTuple):
    """The arguments of every kernel: counts and constants of compilation; and the number of programs per state."""

    counts: dict[str, int]
    widths: dict[str, int | str]
    blocks: int
    plan: Plan

    def of_states(self) -> dict[str, int | str]:
        return self.widths | {"BC": self.plan.state_columns, "num_stages": STAGES}


def cut_for(x: Inputs) -> Cut:
    """The cut of one call."""
    (_, time, _, key_width), (heads, value_width) = x.k.shape, x.v.shape[2:]
    plan = plan_for(key_width, value_width, x.k.dtype)
    counts = {"T": time, "H": heads, "N": -(-time // plan.chunk)}
    widths: dict[str, int | str] = {"K": key_width, "V": value_width, "BK": padded(key_width), "BC": plan.columns}
    widths |= {"C": plan.chunk, "PRECISION": plan.precision, "num_warps": plan.num_warps, "num_stages": 1}
    blocks = -(-key_width // plan.state_columns) + -(-value_width // plan.state_columns)
    return Cut(counts, widths, blocks, plan)


def passes(x: Inputs, chunks: int) -> bool:
    """True where there is any state to pass on."""
    return chunks > 1 or x.kk is not None or x.return_state
