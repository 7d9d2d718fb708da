"""Many matrices in the span of the same few outer products, and of what stood ahead of them.

P_t = sum_s x_{t,s} u_s^T d_s + slowed_t P_0 = U^T diag(x_t) D + slowed_t P_0
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision, promoted

__all__ = ["spanned", "spanned_step"]

OP = "spanned"


def spanned(
    x: Tensor,
    d: Tensor,
    u: Tensor,
    *,
    slowed: Tensor | None = None,
    p: Tensor | None = None,
    initial_state: tuple[()] | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, tuple[()] | None]:
    """P [B, T, H, R, C] in the dtype of `x`, and with `return_state` the empty state: matrices know nothing of each other.

    x               [B, T, H, S]: how much of each outer product is in a token's matrix
    d               D [B, H, S, C], of all tokens
    u               U [B, H, S, R], likewise
    slowed, p       [B, T, H] and P_0 [B, H, R, C]; None, both: there is no P_0
    initial_state   has no meaning here, nor has `chunk`
    implementation  "auto", or one of `select.implementations("spanned")`

    Computes in fp32, fp64 where an input is. Differentiable in all inputs. Raises ValueError on shapes that do not fit, where
    one of `slowed` and `p` is given alone, and on an implementation that cannot serve. Behrouz et al. 2025 (ATLAS, section 5):
    the momenta within a chunk.
    """
    if not x.ndim == d.ndim == u.ndim == 4:
        told = "x must be [B, T, H, S], d [B, H, S, C] and u [B, H, S, R]"
        raise ValueError(f"{OP}: {told}, got {list(x.shape)}, {list(d.shape)} and {list(u.shape)}")
    batch, time, heads, vectors = x.shape
    rows, columns = u.shape[-1], d.shape[-1]
    expect(OP, "d", d, (batch, heads, vectors, columns))
    expect(OP, "u", u, (batch, heads, vectors, rows))
    if (slowed is None) != (p is None):
        raise ValueError(f"{OP}: slowed and p are given together, or neither is")
    expect(OP, "slowed", slowed, (batch, time, heads))
    expect(OP, "p", p, (batch, heads, rows, columns))
    check_positive(OP, "chunk", chunk)
    name = select.choose(
        OP,
        device=x.device,
        dtype=promoted(x, d, u, slowed, p),
        wanted=implementation,
        differentiable=torch.is_grad_enabled(),
        sizes={"vectors": vectors, "key_width": rows, "value_width": columns},
    )
    if 0 in (batch, time, heads, rows, vectors, columns):
        name = "chunked"  # there is nothing to launch, or to stack
    with full_precision(x.device):
        y: Tensor = select.load(OP, name)(x, d, u, slowed=slowed, p=p)
        return y, () if return_state else None


def spanned_step(
    state: tuple[()] | None,
    x: Tensor,
    d: Tensor,
    u: Tensor,
    *,
    slowed: Tensor | None = None,
    p: Tensor | None = None,
) -> tuple[Tensor, tuple[()]]:
    """One token: x [B, H, S], slowed [B, H] -> P [B, H, R, C], and the state that there is not."""
    return spanned(x[:, None], d, u, slowed=None if slowed is None else slowed[:, None], p=p)[0][:, 0], ()
