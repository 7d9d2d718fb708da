"""Newton-Schulz with a tile a program through all steps; one launch forward and one backward.

X_0 = x / n,  n = |x|_F + eps,    X' = a X + P X,   P = b A + c A^2,   A = X X^T
dX = a dX' + P dX' + (b S + c (S A + A S)) X,   S = dX' X^T + X dX'^T,    dx = dX_0 / n - X_0 <dX_0, X_0> / |x|_F

Tall matrices are read as their transposes. Small matrices stay in registers, of the smallest several in a tile; larger ones
have no room there, and are multiplied in tiles from scratch memory. Backward goes through the steps again and keeps what each
begins with in scratch memory, too. A program uses its own again for every matrix that it takes: all of it stays in the caches.

For a matrix far longer than short, a memory's over many features, only squares of its short side go through the steps:
    X_n = Q_n X_0,   Q' = P Q,   A' = P A P,   dX_0 = Q^T dY + (B + B^T) X_0,   B by A_0, with dQ = dY X_0^T at the last step
for all of these commute. A is made of the data anew every few steps: small singular values lose their digits in it.

N matrices, R rows, C columns (R <= C), RP and CP their powers of two, BM, BN, BK rows, columns and inner columns of a tile,
BC columns at a time of a long matrix"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recallmap.arch.kernels.newton_schulz.fused.launch import newton_schulz_op

WIDEST = 128
WIDEST_FLAT = 1024  # of matrices of 32 rows at most: a memory's, over the quadratic features of up to 43 channels


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    shortest, widest = sorted((sizes.get("heads", 1), sizes.get("value_width", 1)))
    most = WIDEST_FLAT if shortest <= 32 else WIDEST
    return f"holds matrices up to {most} wide, got {widest}" if widest > most else None


def fused(x: Tensor, *, steps: int) -> Tensor:
    """All matrices [..., rows, columns]."""
    (y,) = newton_schulz_op(x[None] if x.ndim == 2 else x, steps)
    return y[0] if x.ndim == 2 else y
