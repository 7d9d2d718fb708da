"""The op between the sublayers of a residual model: what one adds to the stream, and the RMSNorm that the next one reads.

s_t = x_t + a_t,    n_t = s_t / sqrt(mean(s_t^2) + eps) * w
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.add_norm.recurrent import step as add_norm_step
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision, promoted

__all__ = ["add_norm", "add_norm_step"]

OP = "add_norm"


def add_norm(
    x: Tensor,
    added: Tensor,
    *,
    weight: Tensor,
    eps: float = 1e-5,
    output: torch.dtype | None = None,
    initial_state: tuple[()] | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[tuple[Tensor, Tensor], tuple[()] | None]:
    """Sums in the dtype that holds both inputs, and their norms in `output`, [B, T, H, V] each; with `return_state` the empty
    state: tokens know nothing of each other.

    x               [B, T, H, V], the stream
    added           [B, T, H, V], what a sublayer adds to it
    weight          [V], which all heads share
    eps             beneath the root
    output          dtype of the norms; None: that of `x`
    initial_state   has no meaning here, nor has `chunk`
    implementation  "auto", or one of `select.implementations("add_norm")`

    Computes in fp32, fp64 where an input is; the norm is that of the rounded sum. Differentiable in x, added and weight. Raises
    ValueError on shapes that do not fit and on an implementation that cannot serve. Zhang & Sennrich 2019 (arXiv:1910.07467).
    """
    if x.ndim != 4:
        raise ValueError(f"{OP}: x must be [batch, time, heads, width], got shape {list(x.shape)}")
    batch, time, heads, width = x.shape
    expect(OP, "x", x, tuple(x.shape))
    expect(OP, "added", added, tuple(x.shape))
    expect(OP, "weight", weight, (width,))
    check_positive(OP, "chunk", chunk)
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": width, "value_width": width}
    name = select.choose(
        OP,
        device=x.device,
        dtype=promoted(x, added),
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes=sizes,
    )
    final = () if return_state else None
    if time == 0:
        total = x + added
        return (total, total.to(output or x.dtype)), final
    with full_precision(x.device):
        both: tuple[Tensor, Tensor] = select.load(OP, name)(x, added, weight=weight, eps=eps, output=output or x.dtype)
        return both, final
