"""Feature maps in place of the exponential of attention: features whose dot product is a kernel of q and k.

K key width, F features
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.monomials import count_monomials, monomials
from recallmap.arch.parts.precision import widen

FeatureMap = Literal["identity", "elu_plus_one", "relu", "square", "taylor"]

SIGNED: tuple[FeatureMap, ...] = ("identity",)  # their kernel can be negative: a sum of it is no normaliser


def count_features(feature_map: FeatureMap, key_dim: int) -> int:
    """The width F of the features of a key of width K."""
    return count_monomials(key_dim, 2) if feature_map == "taylor" else key_dim


def features(feature_map: FeatureMap, x: Tensor) -> Tensor:
    """Features [..., K] -> [..., F]. Taylor's have phi(q) . phi(k) = 1 + q.k/sqrt(K) + (q.k/sqrt(K))^2 / 2 (Based)."""
    match feature_map:
        case "identity":
            return x
        case "elu_plus_one":
            return F.elu(x) + 1
        case "relu":
            return F.relu(x)
        case "square":
            return x.square()
        case "taylor":
            return _taylor(x)


def _taylor(x: Tensor) -> Tensor:
    once = widen(x.new_ones(2))
    return monomials(x * x.shape[-1] ** -0.25, torch.cat([once, once[:1] * 2**-0.5]))[0]  # roots 1 / sqrt(i!)
