"""Checks of an op's inputs, and the precision in which all implementations but fused ones compute.

B batch, T time, H heads of the values and gates, G heads of queries and keys (H, or 1 where all heads share them),
K key width, V value width
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import reduce

import torch
from torch import Tensor


def working_dtype(*tensors: Tensor | None) -> torch.dtype:
    """fp64 where any input is; fp32 otherwise, for bf16 and fp16 too: gates, sums, solves and states need it."""
    return torch.float64 if any(x is not None and x.dtype == torch.float64 for x in tensors) else torch.float32


def promoted(*tensors: Tensor | None) -> torch.dtype:
    """The type that holds all of these, of 16 bits where all are: what a kernel is asked to compute in."""
    return reduce(torch.promote_types, (x.dtype for x in tensors if x is not None))


def expect(op: str, name: str, x: Tensor | None, *shapes: tuple[int, ...]) -> None:
    """Raise ValueError where a floating-point input is there and has none of `shapes`."""
    if x is None:
        return
    if tuple(x.shape) not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in dict.fromkeys(shapes))
        raise ValueError(f"{op}: {name} has shape {list(x.shape)}, must be {wanted}")
    if not x.is_floating_point():
        raise ValueError(f"{op}: {name} must be a floating-point tensor, got {x.dtype}")


def check_qkv(op: str, q_BTGK: Tensor, k_BTGK: Tensor, v_BTHV: Tensor) -> tuple[int, int, int, int, int]:
    """B, T, H, K, V of queries, keys and values [B, T, heads, width].

    Raises ValueError where they do not fit together.
    """
    for name, x in (("q", q_BTGK), ("k", k_BTGK), ("v", v_BTHV)):
        if x.ndim != 4:
            raise ValueError(f"{op}: {name} must be [batch, time, heads, width], got shape {list(x.shape)}")
    batch, time, heads, value_width = v_BTHV.shape
    key_width = q_BTGK.shape[-1]
    alike, shared = (batch, time, heads, key_width), (batch, time, 1, key_width)
    expect(op, "q", q_BTGK, alike, shared)
    expect(op, "k", k_BTGK, tuple(q_BTGK.shape))
    expect(op, "v", v_BTHV, (batch, time, heads, value_width))
    return batch, time, heads, key_width, value_width


def check_positive(op: str, name: str, value: int | None) -> None:
    """Raise ValueError where a size is given and below 1."""
    if value is not None and value < 1:
        raise ValueError(f"{op}: {name} must be at least 1, got {value}")


def everywhere(x: Tensor | None, batch: int, time: int) -> Tensor | None:
    """A learned constant [H] as gates [B, T, H], without a copy; gates as they are."""
    return x.expand(batch, time, -1) if x is not None and x.ndim == 1 else x


def state_or_zero(op: str, state: Tensor | None, shape: tuple[int, ...], *inputs: Tensor | None) -> Tensor:
    """The state in working precision; zeros of `shape` where it is None. Raises ValueError where it has another shape."""
    expect(op, "state", state, shape)
    given = [x for x in (state, *inputs) if x is not None]
    dtype = working_dtype(*given)
    return torch.zeros(shape, dtype=dtype, device=given[0].device) if state is None else state.to(dtype)


def full_precision(device: torch.device) -> AbstractContextManager[None]:
    """Ops opt out of autocast: they choose their precision themselves."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
