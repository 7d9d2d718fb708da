"""The cut of the work: pieces of a sequence, rows and features at a time, precision and warps."""

from typing import NamedTuple

import torch

from recallmap.arch.kernels.op_interface.custom_op import padded
from recallmap.arch.kernels.test_time.learning_rule import Rule
from recallmap.arch.kernels.test_time.network import LayerNorm

MOST_SEEN = 32  # tokens of a chunk and its window
SHORT = 16  # sights of a chunk, up to which several are solved for at once
FREE_CHUNK = 16  # where gradients do not depend on the weights, and chunks are ours to choose
WIDEST_WHOLE = 64  # features of a deep memory that are held whole; of more, FEATURES at a time
FEATURES = 32


def free_to_cut(rule: Rule, matrices: int, norm: LayerNorm | None) -> bool:
    """True where the starts of chunks make no difference."""
    return rule.independent(matrices, normed=norm is not None) and (rule.cross_chunk or rule.window == 1)


class Cut(NamedTuple):
    """How a sequence is cut: chunks of `chunk` tokens, each of which sees those and `past` tokens ahead of it. A piece of
    `size` tokens holds whole chunks; what they see, sights, lies side by side."""

    size: int
    chunk: int
    past: int

    @property
    def sights(self) -> int:
        return self.size // self.chunk * (self.chunk + self.past)


def cut_for(rule: Rule, matrices: int, norm: LayerNorm | None) -> Cut:
    """Chunks are ours to choose where gradients do not depend on the weights; short ones are solved for together."""
    past = rule.window - 1
    if free_to_cut(rule, matrices, norm):
        size = max(1, min(FREE_CHUNK, MOST_SEEN - past))
        return Cut(size, size, past)
    sight, normed = rule.chunk + past, norm is not None
    coupled = rule.affine(matrices, normed=normed) and not rule.independent(matrices, normed=normed)
    many = MOST_SEEN // sight if coupled and sight <= SHORT else 1
    return Cut(many * rule.chunk, rule.chunk, past)


class Plan(NamedTuple):
    """How kernels are cut.

    rows       of the last matrix at a time, forward and backward
    columns    of it that a program has
    precision  of products, whose factors are fp32
    registers  of a thread, at most; None leaves it to the compiler
    """

    forward_rows: int
    backward_rows: int
    columns: int
    precision: str
    forward_warps: int
    backward_warps: int
    registers: int | None = None


ENOUGH = 128  # programs that keep a GPU busy


def plan_for(
    features: int, rows: int, value_width: int, sights: int, dtype: torch.dtype, programs: int, normed: bool
) -> Plan:
    """`features` is 0 for a linear memory, whose columns learn apart unless it is `normed`: where programs of a head are few,
    each has but some. Products keep to 32 rows at most, which every Triton gets right on Hopper.

    tf32 holds bf16 and fp16 whole, and three products of it what tolerances ask of fp32. "bf16" rounds states and signals too.
    """
    columns = padded(value_width)
    widest = max(padded(features) if features else 0, columns)
    precision = "tf32x3" if dtype == torch.float32 else "tf32"
    # Left to itself, ptxas 12.8 gives the largest deep kernels 32 registers, and spills all that those do not hold.
    registers = 255 if features else None
    if features > WIDEST_WHOLE:
        # With more than 32 the last matrix is learned by its transpose, of V rows.
        most = 64 if padded(value_width) <= 32 else 32
        warps = 2 if padded(value_width) <= 16 else 4
        block = min(padded(rows), most)
        return Plan(block, block, columns, precision, warps, warps, registers)
    while not features and not normed and columns > 16 and programs * -(-value_width // columns) < ENOUGH:
        columns //= 2
    if columns < padded(value_width):
        return Plan(min(padded(rows), 64), 16, columns, precision, 4, 4, 255)
    if widest <= 16 and (features or sights <= 16):
        block = min(padded(rows), 32)
        return Plan(block, block, columns, precision, 1, 2, registers)
    warps = 1 if widest <= 16 else 4 if widest <= 64 else 8
    block = 16 if features or widest > 32 else min(padded(rows), 32)
    return Plan(block, block, columns, precision, warps, max(4, warps), registers)
