"""Newton-Schulz: a matrix of nearly the same singular vectors whose singular values are all about 1 (Muon).

X <- X / |X|_F,   then five times or so   X <- a X + (b A + c A^2) X,   A = X X^T
"""

from __future__ import annotations

from torch import Tensor

LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
EPS = 1e-7


def newton_schulz(x: Tensor, steps: int = 5) -> Tensor:
    """[..., rows, columns], all matrices at once. Singular values s / |X|_F in [0.005, 1] come to [0.68, 1.16].

    Odd, commutes with transposition, and blind to the scale of x: a learning rate belongs behind it.
    """
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    size = x.square().sum((-2, -1), keepdim=True).clamp(min=1e-30).sqrt()  # a norm has no derivative at 0
    x = x / (size + EPS)
    for _ in range(steps):
        gram = x @ x.mT
        x = LINEAR * x + (CUBIC * gram + QUINTIC * (gram @ gram)) @ x
    return x.mT if tall else x
