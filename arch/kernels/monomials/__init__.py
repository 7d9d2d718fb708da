"""The op behind polynomial features: every monomial up to a degree.

phi(x)_m = sqrt(|m|! / m!) rho_|m| x^m over multi-indices |m| <= p, so that phi(x) . phi(y) = sum_i rho_i^2 (x . y)^i
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.monomials.recurrent import count_monomials
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision, promoted

__all__ = ["count_monomials", "monomials", "monomials_step"]

OP = "monomials"


def monomials(
    x: Tensor,
    roots: Tensor,
    *,
    initial_state: tuple[()] | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, tuple[()] | None]:
    """Features [..., F] in the dtype of `x`, and with `return_state` the empty state: vectors know nothing of each other.

    x               [..., K], of at least one variable: all vectors at once
    roots           rho [p + 1], by ascending degree
    initial_state   has no meaning here, nor has `chunk`
    implementation  "auto", or one of `select.implementations("monomials")`

    By ascending degree, of one degree by the first variable, then by what it is multiplied with in that order. Computes in
    fp32, fp64 where an input is. Differentiable in x and roots. Raises ValueError on shapes that do not fit and on an
    implementation that cannot serve. Behrouz et al. 2025 (ATLAS, section 3.1), with learned coefficients.
    """
    if x.ndim < 1 or roots.ndim != 1 or not len(roots):
        raise ValueError(f"{OP}: x must be [..., K] and roots [p + 1], got {list(x.shape)} and {list(roots.shape)}")
    expect(OP, "x", x, tuple(x.shape))
    expect(OP, "roots", roots, tuple(roots.shape))
    check_positive(OP, "chunk", chunk)
    width, degree = x.shape[-1], len(roots) - 1
    check_positive(OP, "K", width)
    name = select.choose(
        OP,
        device=x.device,
        dtype=promoted(x, roots),
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes={"key_width": width, "degree": degree},
    )
    if x.numel() == 0:
        name = "chunked"  # there is nothing to launch, or to stack
    with full_precision(x.device):
        y: Tensor = select.load(OP, name)(x, roots)
        return y, () if return_state else None


def monomials_step(state: tuple[()] | None, x: Tensor, roots: Tensor) -> tuple[Tensor, tuple[()]]:
    """One token's vectors [B, H, K], and the state that there is not."""
    return monomials(x, roots)[0], ()
