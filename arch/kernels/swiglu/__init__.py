"""The op between the two maps of a gated MLP: SwiGLU.

y_t = SiLU(g_t) * v_t,   [g_t, v_t] = x_t
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision
from recallmap.arch.kernels.swiglu.recurrent import step as swiglu_step

__all__ = ["swiglu", "swiglu_step"]

OP = "swiglu"


def swiglu(
    x: Tensor,
    *,
    initial_state: tuple[()] | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, tuple[()] | None]:
    """Outputs [B, T, H, V] in the dtype of `x`, and with `return_state` the empty state: tokens know nothing of each other.

    x               [B, T, H, 2V]: V gates ahead of their SiLU, then V values
    initial_state   has no meaning here, nor has `chunk`
    implementation  "auto", or one of `select.implementations("swiglu")`

    Computes in fp32, fp64 where x is, and rounds once. Differentiable in x. Raises ValueError on shapes that do not fit and on
    an implementation that cannot serve. Shazeer 2020 (arXiv:2002.05202).
    """
    if x.ndim != 4 or x.shape[-1] % 2:
        raise ValueError(f"{OP}: x must be [batch, time, heads, 2 * width], got shape {list(x.shape)}")
    batch, time, heads, both = x.shape
    expect(OP, "x", x, tuple(x.shape))
    check_positive(OP, "chunk", chunk)
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": both, "value_width": both // 2}
    name = select.choose(
        OP, device=x.device, dtype=x.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    final = () if return_state else None
    if time == 0:
        return x[..., : both // 2], final
    with full_precision(x.device):
        y: Tensor = select.load(OP, name)(x)
        return y, final
