"""The cut of the work: which kernels serve, tokens a chunk, blocks of channels, warps and stages, and in which precision."""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from recallmap.arch.kernels.delta.fused.tiles import size_of_pairs
from recallmap.arch.kernels.op_interface.custom_op import padded

NO_GATE, HEAD_GATE, CHANNEL_GATE = 0, 1, 2


class Blocks(NamedTuple):
    """Tokens a chunk; channels of values a walk, of keys a step of pairs and of gradients; warps of each; stages of a walk.
    Where outputs are made apart: channels of values a program has of them, of keys a step, and warps. The rest holds for wide
    heads, and is off by default.

    back_block, back_warps, back_stages  those of the walk backward; 0: as forward
    gradient_values, gradient_stages     channels of values a step of gradients, and stages of its loads
    lossy      whether, in bf16, walks keep 8 bits of the state, and products of the inverse 16 bits of it, which is made with
               tf32 of small blocks in memory; otherwise these products have the precision of the chain. With 8 bits of the
               inverse results lose too many digits where keys repeat. Chunks of 64 are always made of blocks in memory
    early      whether pairs load what they need ahead of all products
    unroll, gradient_unroll  levels of fades by channel that are compiled as one, of pairs and of gradients
    sums       whether pairs sum up log decays by channel by products
    wide       whether outputs are products of 64 rows
    apart      whether outputs are made apart from the walk
    turned     whether walks have tokens and keys for rows, not values, where they are lossy and outputs are made apart
    reading    channels of values and stages of turned walks that make outputs, where nothing is kept for backward; not with a
               and b, nor with decays by channel. None: no walks do
    pair_registers  most registers of a thread of pairs, so that more programs fit
    """

    chunk: int
    value_block: int
    pair_block: int
    gradient_block: int
    pair_warps: int
    walk_warps: int
    gradient_warps: int
    stages: int
    output_block: int = 32
    output_step: int = 64
    output_warps: int = 4
    back_block: int = 0
    back_warps: int = 0
    back_stages: int = 0
    gradient_values: int = 32
    gradient_stages: int = 1
    lossy: bool = False
    early: bool = False
    sums: bool = False
    unroll: int = 1
    gradient_unroll: int = 1
    wide: bool = False
    apart: bool = True
    turned: bool = False
    reading: tuple[int, int] | None = None
    pair_registers: int | None = None


def blocks_for(key_width: int, value_width: int, gate: int, paired: bool, dtype: torch.dtype, sequences: int) -> Blocks:
    """Chosen by what compiles for Hopper with few spills; short chunks where a state costs little, for short programs.

    Widths of 33 to 128 are measured in bf16, forward and backward, but for pairs without decays by channel: of 128 on an H100
    and an H200, batch 4, time 2048, 8 heads, and batch 1, time 8192, 16 heads; of 64 on an H200, batch 64, time 256, 2 heads.

    Products of fp32 run on ordinary cores and want more registers.
    """
    widest, by_channel, exact = max(key_width, value_width), gate == CHANNEL_GATE, dtype == torch.float32
    many = paired or by_channel
    if widest <= 16:
        few = 2 if exact else 1
        return Blocks(16, 16, 16, 16, few, few, few, 1 if exact else 3 if many else 4)
    if widest <= 32:
        return Blocks(32, 32, 32, 16 if many else 32, 4, 4, 4, 1 if many or exact else 3)
    if exact:
        chunk, value_block = (32, 32) if widest <= 64 else (32, 16) if widest <= 128 else (16, 16)
        return Blocks(
            chunk, value_block, 32, 16, 4 if chunk == 16 else 8, 8, 4 if chunk == 16 else 8, 1, output_step=32
        )
    width = 64 if widest <= 64 else 128
    # Chunks of 64, turned walks, walks of 64 channels, or gradients by 32 channels of keys and 64 of values bring in Hopper's
    # wider products, of which Triton 3.6 compiles some to wrong results, or to addresses out of bounds (seen on an H100 and an
    # H200; of chunks of 64 by channel the pairs, and none that was right was faster). The table names only what was checked.
    if widest > 128 or (paired and not by_channel):
        gradient_block, stages = 64 if by_channel or not paired else 16, 1 if widest > 128 and many else 2
        pair_block = 32 if by_channel else 64
        return Blocks(32, 32, pair_block, gradient_block, 4, 8 if widest > 128 else 4, 8 if by_channel else 4, stages)
    if dtype != torch.bfloat16 or padded(key_width) != padded(value_width):
        pair_block, warps = (32, 4) if by_channel else (64, 2)
        return Blocks(32, 2048 // width, pair_block, 64, 2, 4, warps, 2, output_block=128, output_warps=2)
    kind, channels = (width, gate, paired), sequences * width
    changes = FEW.get(kind, {}) if channels < 4096 else {}
    changes |= ONE_EACH.get(kind, {}) if 2048 < channels <= 4096 else {}
    return WIDE[kind]._replace(**changes)


# In bf16, where keys and values are equally wide: up to so many channels, with which gate, with a and b or not.
WIDE = {
    (64, NO_GATE, False): Blocks(
        32, 64, 128, 64, 1, 4, 2, 3, output_block=128, back_block=64, back_warps=4, back_stages=4, gradient_values=64,
        early=True, wide=True, apart=False, lossy=True,
    ),
    (64, HEAD_GATE, False): Blocks(
        32, 64, 128, 64, 1, 4, 2, 3, output_block=128, gradient_values=64, early=True, wide=True, apart=False, lossy=True,
    ),
    (64, CHANNEL_GATE, False): Blocks(
        32, 64, 16, 64, 1, 4, 4, 4, output_block=128, gradient_values=64, early=True, sums=True, unroll=2,
        gradient_unroll=2, wide=True, apart=False, lossy=True,
    ),
    (64, CHANNEL_GATE, True): Blocks(
        32, 32, 32, 64, 2, 4, 4, 3, output_block=128, back_block=64, back_warps=4, back_stages=3, gradient_values=64,
        early=True, unroll=2, gradient_unroll=2, wide=True, apart=False, lossy=True,
    ),
    (128, NO_GATE, False): Blocks(
        64, 32, 64, 64, 2, 4, 4, 4, output_block=128, output_step=128, back_stages=3, gradient_values=64, wide=True,
        turned=True, lossy=True,
    ),
    (128, HEAD_GATE, False): Blocks(
        64, 16, 128, 64, 4, 4, 4, 3, output_block=128, back_block=32, gradient_values=64, wide=True, turned=True, lossy=True,
        pair_registers=168,
    ),
    (128, CHANNEL_GATE, False): Blocks(
        32, 32, 32, 64, 2, 4, 4, 4, output_block=128, output_warps=2, gradient_values=64, early=True, unroll=2,
        gradient_unroll=2, turned=True, lossy=True,
    ),
    (128, CHANNEL_GATE, True): Blocks(  # two levels of gradients at a time save 4 % of both ways, and compile 1.3 s longer
        32, 32, 32, 64, 2, 4, 4, 3, output_block=128, output_warps=8, gradient_values=64, early=True, unroll=2,
        wide=True, turned=True, lossy=True,
    ),
}  # fmt: skip

# What differs where walks leave half of a GPU idle.
FEW: dict[tuple[int, int, bool], dict[str, Any]] = {
    (64, NO_GATE, False): {"apart": True},
    (64, HEAD_GATE, False): {"apart": True},
    (64, CHANNEL_GATE, False): {"apart": True},
    (64, CHANNEL_GATE, True): {"apart": True},
    (128, NO_GATE, False): {"value_block": 16, "back_block": 16},
    (128, HEAD_GATE, False): {"stages": 4, "back_block": 16, "back_stages": 3},
    (128, CHANNEL_GATE, False): {"value_block": 16},
    (128, CHANNEL_GATE, True): {"value_block": 16},
}


# What differs where walks of 32 channels are about as many as a GPU has multiprocessors: a walk's time is then as long whether
# it makes outputs or not.
ONE_EACH: dict[tuple[int, int, bool], dict[str, Any]] = {
    (128, NO_GATE, False): {"reading": (32, 3)},
    (128, HEAD_GATE, False): {"reading": (32, 3)},
}


class Walk(NamedTuple):
    """Tokens a chunk, warps and stages, where one program walks a whole sequence."""

    chunk: int
    forward_warps: int
    backward_warps: int
    forward_stages: int
    backward_stages: int


def walk_for(
    key_width: int, value_width: int, gate: int, paired: bool, exact: bool, time: int, sequences: int
) -> Walk | None:
    """None where chunks of long, or wide, or few sequences are better done side by side (seen on an H200). By channel a chunk
    is one block of 16. Pairs without such decays stay here where they can: it loses fewer of their digits."""
    widest, plain, by_channel = max(key_width, value_width), gate == NO_GATE and not paired, gate == CHANNEL_GATE
    few = sequences < (256 if plain and widest > 32 else 512)
    if (exact and (by_channel or widest > 32)) or widest > 64 or (time > 256 and sequences < 1024):
        return None
    if few and (widest > 16 or gate == HEAD_GATE) and (by_channel or not paired):
        return None
    stages = 1 if exact else 2 if by_channel or widest > 16 else 3
    if widest <= 16:
        warps = 2 if few and by_channel else 1
        return Walk(16, warps, warps, stages, stages)
    if widest <= 32:
        return Walk(16, 2, 2, stages, stages)
    if plain:
        return Walk(16, 4, 4, 3, 3)
    return Walk(16, 4, 8 if by_channel else 4, stages, 1 if by_channel else 2)


class Inputs(NamedTuple):
    """Inputs of the custom op: q, k, a and b by head, values with their signs, gates in fp32.

    keep  whether backward will want what forward makes
    """

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor | None
    beta: Tensor | None
    a: Tensor | None
    b: Tensor | None
    initial: Tensor | None
    scale: float
    return_state: bool
    keep: bool


class Plan(NamedTuple):
    """The parameters that all launches of one call share."""

    blocks: Blocks
    walk: Walk | None
    batch: int
    time: int
    heads: int
    key_width: int
    value_width: int
    chunks: int
    flags: dict[str, Any]

    @property
    def programs(self) -> int:
        """Programs of a launch: one a head of a sequence."""
        return self.batch * self.heads

    @property
    def solve(self) -> str:
        """The precision of the inverse. Where it enters further products, chunk by chunk, it keeps 21 bits: three tf32
        products each."""
        chain: str = self.flags["CHAIN"]
        if self.lossy:
            return "tf32"
        return "tf32x3" if chain == "tf32" and self.walk is None else chain

    @property
    def lossy(self) -> bool:
        """Whether products keep as few digits as blocks allow: by chunks, of bf16 that is not frail."""
        return self.walk is None and self.blocks.lossy and bool(self.flags["PRECISION"] == "bf16")

    @property
    def state(self) -> str:
        """The precision of products with the state, where programs of a head walk along time."""
        chain: str = self.flags["CHAIN"]
        return "bf16" if self.lossy else chain

    @property
    def applied(self) -> str:
        """The precision of the inverse's products with rows and values."""
        return "bf16x2" if self.lossy else self.solve

    @property
    def sums(self) -> bool:
        """Whether log decays by channel are summed up by products."""
        return self.lossy and self.blocks.sums

    @property
    def in_memory(self) -> bool:
        """Whether the inverse is made in memory."""
        return self.blocks.chunk == 64 or (self.blocks.lossy and self.blocks.chunk == 32)

    @property
    def apart(self) -> bool:
        """Whether walks leave outputs, and derivatives by values, to programs a chunk, for which E and states are kept: where
        heads are wide. Narrow ones spare the launches."""
        return self.walk is None and max(self.key_width, self.value_width) > 32 and self.blocks.apart

    @property
    def turned(self) -> bool:
        """Whether walks have tokens and keys for rows."""
        return self.blocks.turned and self.lossy and self.apart

    @property
    def reading(self) -> tuple[int, int] | None:
        """Channels of values and stages of a turned walk that makes outputs, None where none does. Widths that are no multiple
        of 16 load a chunk's rows otherwise, and then ptxas 12.8 loses an operand's address (`test_machine_code`)."""
        whole = self.key_width % 16 == 0 and self.value_width % 16 == 0
        return self.blocks.reading if self.turned and whole else None

    @property
    def holds(self) -> bool:
        """Whether derivatives by pairs stay in registers, which they fit where chunks are short and a chunk has few of them:
        what is left in memory is the most that the backward pass takes there."""
        return self.blocks.chunk <= 32 and self.flags["GATE"] != CHANNEL_GATE and not self.flags["PAIR"]

    @property
    def states_shape(self) -> tuple[int, ...]:
        """States ahead of chunks, which walks side by side leave with values for rows."""
        sizes = (self.key_width, self.value_width)
        return self.batch, self.heads, self.chunks, *(sizes[::-1] if self.walk is None else sizes)

    @property
    def erased_shape(self) -> tuple[int, ...]:
        many = self.flags["GATE"] == CHANNEL_GATE
        kinds = (4 if self.flags["PAIR"] else 3) if many else 1
        return self.batch, kinds, self.time, self.heads, self.key_width


def plan_for(x: Inputs) -> Plan:
    """The plan of one call, by widths, length, gates and dtype."""
    batch, time, heads, value_width = x.v.shape
    key_width, log_decay, paired = x.q.shape[-1], x.log_decay, x.a is not None
    gate = NO_GATE if log_decay is None else HEAD_GATE if log_decay.ndim == 3 else CHANNEL_GATE
    exact = x.v.dtype == torch.float32
    blocks = blocks_for(key_width, value_width, gate, paired, x.v.dtype, batch * heads)
    walk = walk_for(key_width, value_width, gate, paired, exact, time, batch * heads)
    chunk = blocks.chunk if walk is None else walk.chunk
    # Erasing and writing of a pair need not cancel: with keys that repeat its state grows, and rounding with it.
    frail = paired and gate != CHANNEL_GATE
    chain = "ieee" if exact else "tf32x3" if frail else "tf32"
    flags = {
        "K": key_width,
        "C": chunk,
        "KP": padded(key_width),
        "PAIR": paired,
        "GATE": gate,
        "WRITE": x.beta is not None,
        "PRECISION": "bf16" if x.v.dtype == torch.bfloat16 and not frail else "tf32" if frail and not exact else chain,
        "CHAIN": chain,
    }
    chunks = triton.cdiv(time, chunk)
    return Plan(blocks, walk, batch, time, heads, key_width, value_width, chunks, flags)


def scores_shape(plan: Plan) -> tuple[int, ...]:
    """The shape of what is kept of chunks' pairs: with the whole sequence in a program the inverse alone."""
    if plan.walk is not None:
        return plan.batch, plan.heads, plan.chunks, plan.walk.chunk**2
    chunk, flags = plan.blocks.chunk, plan.flags
    tail = flags["KP"] if flags["GATE"] == CHANNEL_GATE else 4 * chunk
    return plan.batch, plan.heads, plan.chunks, size_of_pairs(chunk, flags["PAIR"], flags["PRECISION"]) + tail


def pair_gradients_shape(plan: Plan) -> tuple[int, ...]:
    """The shape of a derivative by every pair of tokens of a chunk, and every kind of pairs."""
    kinds = 4 if plan.flags["PAIR"] else 2
    return plan.batch, plan.heads, plan.chunks, kinds * plan.blocks.chunk**2


def levels(plan: Plan) -> dict[str, int]:
    """Rounds in which a chunk's pairs fade by channel: one a border of blocks, or one a block of 16 where not exact."""
    if plan.flags["CHAIN"] == "ieee":
        return {"LEVELS": plan.blocks.chunk.bit_length() - 1}
    return {"LEVELS": plan.blocks.chunk // 16}
