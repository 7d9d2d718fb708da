"""The op ahead of most memories: a causal convolution of a few taps a channel, its activation, and heads of length 1.

z_t = sum_i w_i * x_{t-i} + b,    a_t = z_t or SiLU(z_t),    y_t = a_t, or a_t / sqrt(|a_t|^2 + eps) by head
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision, state_or_zero
from recallmap.arch.kernels.short_conv.recurrent import step as short_conv_step

__all__ = ["Activation", "short_conv", "short_conv_qkv", "short_conv_step"]

OP = "short_conv"
Activation = Literal["identity", "silu"]


def short_conv(
    x: Tensor,
    *,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: Activation = "identity",
    unit: bool = False,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Outputs [B, T, H, K] in the dtype of `x`, and with `return_state` the last taps - 1 inputs [B, taps - 1, H, K].

    x               [B, T, H, K]
    weight          [H, K, taps]: weight[..., i] belongs to the input i tokens ago
    bias            [H, K]; None: none
    activation      "identity" or "silu"
    unit            whether every head of every token is brought to length 1 (eps 1e-6 beneath the root)
    initial_state   [B, taps - 1, H, K], the inputs before the first token; None: zero
    implementation  "auto", or one of `select.implementations("short_conv")`
    chunk           has no meaning here; every length is one piece

    Sums and norms are fp32, fp64 where an input is. Differentiable in x, weight, bias and initial_state, through outputs and
    state. No tokens (T = 0) give no outputs and the initial state. Raises ValueError on shapes that do not fit and on an
    implementation that cannot serve.
    """
    if x.ndim != 4:
        raise ValueError(f"{OP}: x must be [batch, time, heads, width], got shape {list(x.shape)}")
    batch, time, heads, width = x.shape
    if weight.ndim != 3 or weight.shape[-1] < 1:
        raise ValueError(f"{OP}: weight must be [heads, width, taps], got shape {list(weight.shape)}")
    taps = weight.shape[-1]
    past = (batch, taps - 1, heads, width)
    expect(OP, "x", x, tuple(x.shape))
    expect(OP, "weight", weight, (heads, width, taps))
    expect(OP, "bias", bias, (heads, width))
    expect(OP, "initial_state", initial_state, past)
    check_positive(OP, "chunk", chunk)
    if activation not in get_args(Activation):
        raise ValueError(f"{OP}: activation must be one of {', '.join(get_args(Activation))}; got {activation!r}")
    sizes = {
        "batch": batch,
        "time": time,
        "heads": heads,
        "key_width": width,
        "value_width": width,
        "taps": taps,
        "unit": int(unit),
    }
    name = select.choose(
        OP, device=x.device, dtype=x.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    if time == 0:
        return x, state_or_zero(OP, initial_state, past, x) if return_state else None
    with full_precision(x.device):
        result: tuple[Tensor, Tensor | None] = select.load(OP, name)(
            x,
            weight=weight,
            bias=bias,
            activation=activation,
            unit=unit,
            initial_state=initial_state,
            return_state=return_state,
            chunk=chunk,
        )
        return result


def short_conv_qkv(
    x: Tensor, *, weight: Tensor, heads: int, pairs: int, key_width: int, activation: Activation, unit: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor] | None:
    """Queries, keys and values from what one linear map gives side by side, and the last taps - 1 inputs [B, taps - 1, C]. They
    and the derivative of all are written where they belong, and nothing is cut or put together. None where the kernels cannot
    serve: then call `short_conv` for each part.

    x           [B, T, C'], C' = (heads + pairs) * key_width + pairs * value width
    weight      [C, taps]; the C of C' channels that are convolved are those of queries and keys, or all
    heads       of the queries; `pairs` those of keys and values
    activation  of what is convolved
    unit        whether every head of queries and keys is brought to length 1
    """
    sizes = {"taps": weight.shape[-1], "unit": int(unit), "key_width": key_width}
    if not x.numel() or select.why_not(OP, "fused", device=x.device, dtype=x.dtype, sizes=sizes) is not None:
        return None
    select.load(OP, "fused")  # told to whoever records what serves
    from recallmap.arch.kernels.short_conv.fused import fused_qkv

    with full_precision(x.device):
        return fused_qkv(
            x, weight=weight, heads=heads, pairs=pairs, key_width=key_width, activation=activation, unit=unit
        )
