"""The op of rotary positions: pairs of channels turn by an angle.

y_i = x_i cos(a_i) - x_(i+K/2) sin(a_i),   y_(i+K/2) = x_(i+K/2) cos(a_i) + x_i sin(a_i),   i < K/2
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision
from recallmap.arch.kernels.rotary.recurrent import step as rotary_step

__all__ = ["rotary", "rotary_step"]

OP = "rotary"


def rotary(
    x: Tensor,
    *,
    angle: Tensor,
    learned: bool = True,
    initial_state: tuple[()] | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, tuple[()] | None]:
    """Outputs [B, T, H, K] in the dtype of `x`, and with `return_state` the empty state: tokens know nothing of each other.

    x               [B, T, H, K], K even
    angle           [B or 1, T, H or 1, K/2] in radians; 1 where all sequences, or all heads, turn alike
    learned         False: angles have no derivative
    initial_state   has no meaning here, nor has `chunk`
    implementation  "auto", or one of `select.implementations("rotary")`

    Computes in fp32, fp64 where an input is, and rounds once. Differentiable in x and, where it is learned, in angle. Raises
    ValueError on shapes that do not fit and on an implementation that cannot serve. Su et al. 2021 (arXiv:2104.09864), in
    Llama's halves.
    """
    if x.ndim != 4 or x.shape[-1] % 2:
        raise ValueError(f"{OP}: x must be [batch, time, heads, an even width], got shape {list(x.shape)}")
    batch, time, heads, width = x.shape
    expect(OP, "x", x, tuple(x.shape))
    forms = [(b, time, h, width // 2) for b in (batch, 1) for h in (heads, 1)]
    expect(OP, "angle", angle, *forms)
    check_positive(OP, "chunk", chunk)
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": width, "value_width": width}
    name = select.choose(
        OP, device=x.device, dtype=x.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    final = () if return_state else None
    if time == 0:
        return x, final
    with full_precision(x.device):
        y: Tensor = select.load(OP, name)(x, angle=angle if learned else angle.detach(), learned=learned)
        return y, final
