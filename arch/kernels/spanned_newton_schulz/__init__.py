"""Newton-Schulz of many matrices that lie in the span of the same few vectors, none of which is ever made.

P_t = U diag(x_t) D,   NS(P_t) = P_t Q_t;   A = P_t^T P_t / n^2 = D^T diag(x_t) U^T U diag(x_t) D / n^2,   Q = I / n,
n = |P_t|_F + eps,   then five times or so   Q <- B Q,   A <- B A B,   B = a I + b A + c A^2
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision

__all__ = ["spanned_newton_schulz", "spanned_newton_schulz_step"]

OP = "spanned_newton_schulz"


def spanned_newton_schulz(
    x: Tensor,
    d: Tensor,
    u: Tensor,
    *,
    steps: int = 5,
    initial_state: tuple[()] | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, tuple[()] | None]:
    """Q [B, T, H, C, C] in the dtype of `x`, and with `return_state` the empty state: matrices know nothing of each other.

    x               [B, T, H, S]: how much of each vector is in a token's matrix
    d               D [B, H, S, C], of all tokens
    u               U [B, H, R, S], the vectors
    steps           as those of `newton_schulz`, at least 1
    initial_state   has no meaning here, nor has `chunk`
    implementation  "auto", or one of `select.implementations("spanned_newton_schulz")`

    Computes in fp64: P^T P holds the squares of P's singular values, and of those half the digits that P had. Differentiable
    in x, d and u; of a matrix of zeros Q is finite, and so is its derivative. Raises ValueError on shapes that do not fit and
    on an implementation that cannot serve. Jordan et al. 2024 (Muon), whose steps commute with P^T P; Behrouz et al. 2025
    (ATLAS, section 5), whose momenta within a chunk are such matrices.
    """
    if not x.ndim == d.ndim == u.ndim == 4:
        told = "x must be [B, T, H, S], d [B, H, S, C] and u [B, H, R, S]"
        raise ValueError(f"{OP}: {told}, got {list(x.shape)}, {list(d.shape)} and {list(u.shape)}")
    batch, time, heads, vectors = x.shape
    rows, columns = u.shape[-2], d.shape[-1]
    expect(OP, "d", d, (batch, heads, vectors, columns))
    expect(OP, "u", u, (batch, heads, rows, vectors))
    check_positive(OP, "steps", steps)
    check_positive(OP, "chunk", chunk)
    name = select.choose(
        OP,
        device=x.device,
        dtype=x.dtype,
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes={"key_width": vectors, "value_width": columns},
    )
    if 0 in (batch, time, heads, rows, vectors, columns):
        name = "chunked"  # there is nothing to launch, or to stack
    with full_precision(x.device):
        y: Tensor = select.load(OP, name)(x, d, u, steps=steps)
        return y, () if return_state else None


def spanned_newton_schulz_step(
    state: tuple[()] | None, x: Tensor, d: Tensor, u: Tensor, *, steps: int = 5
) -> tuple[Tensor, tuple[()]]:
    """One token: x [B, H, S] -> Q [B, H, C, C], and the state that there is not."""
    return spanned_newton_schulz(x[:, None], d, u, steps=steps)[0][:, 0], ()
