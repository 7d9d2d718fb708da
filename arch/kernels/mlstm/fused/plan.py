"""The cut of a launch: tokens a chunk, value columns a block, warps a program; and who makes the derivatives."""

from typing import NamedTuple

import torch

from recallmap.arch.kernels.op_interface.custom_op import padded

WIDEST_RESIDENT = 64  # beyond it a state and its derivative do not fit the registers of one program
LONGEST_RESIDENT = 256  # tokens that are not worth more than one launch
FEWEST_PROGRAMS = 128  # about one for every multiprocessor
MANY_PROGRAMS = 512  # from where on they share one


class Form(NamedTuple):
    """The partition of a launch: tokens per chunk, value columns per block, warps per program."""

    tokens: int
    columns: int
    warps: int


# By the wider of keys and values. Without tensor cores every thread holds all terms of its sums, so fp32 takes smaller blocks.
_FP32 = {16: Form(32, 16, 4), 32: Form(32, 32, 8), 64: Form(32, 32, 8), 128: Form(16, 32, 8), 256: Form(16, 16, 8)}
_HALF = {16: Form(64, 16, 4), 32: Form(64, 32, 4), 64: Form(64, 64, 4), 128: Form(32, 32, 8), 256: Form(32, 32, 8)}
# Many programs want little work a token, hence short chunks and few warps; few of them want little waiting.
_HALF_OF_MANY = _HALF | {16: Form(32, 16, 1), 32: Form(32, 32, 2)}
# Two warps have no products of Hopper's own kind, which 64 columns beside fewer came out of wrong (Triton 3.6).
_HALF_UNEVEN = {64: Form(32, 64, 2)}


def form_for(K: int, V: int, T: int, programs: int, dtype: torch.dtype) -> Form:
    forms = _FP32 if dtype == torch.float32 else _HALF_OF_MANY if programs >= MANY_PROGRAMS else _HALF
    if dtype != torch.float32 and padded(K) != padded(V):
        forms = forms | _HALF_UNEVEN
    form = forms[max(padded(K), padded(V))]
    return form._replace(tokens=min(form.tokens, padded(T)), columns=min(form.columns, padded(V)))


def resident(K: int, V: int, T: int, programs: int, dtype: torch.dtype) -> bool:
    """True where one program per head makes all derivatives: they fit, and one program per chunk would not be more parallel."""
    widest = WIDEST_RESIDENT // 2 if dtype == torch.float32 else WIDEST_RESIDENT
    return max(K, V) <= widest and (T <= LONGEST_RESIDENT or programs >= FEWEST_PROGRAMS)
