"""Normalisations over the last axis; their statistics are float32 at least, whatever the input."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from recallmap.arch.kernels.add_norm import add_norm
from recallmap.arch.kernels.norm_gate import norm_gate
from recallmap.arch.kernels.select import fuses
from recallmap.arch.parts.precision import widen

Norm = Literal["rms", "layer"]


def build_norm(norm: Norm, width: int) -> nn.Module:
    """The norm before a mixer, an mlp or the head."""
    return RMSNorm(width) if norm == "rms" else nn.LayerNorm(width)


def count_norm(norm: Norm, width: int) -> int:
    """Parameters of `build_norm`."""
    return width if norm == "rms" else 2 * width


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis of x [..., *shape]; a weight for every entry of `shape`."""

    def __init__(self, *shape: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3 and self.weight.ndim == 1 and fuses(x):
            return norm_gate(x[:, :, None], weight=self.weight[None], eps=self.eps, output=read_in(x))[0].squeeze(2)
        wide = widen(x)
        scale = (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (wide * scale * self.weight).to(x.dtype)


def norm_of_sum(norm: nn.Module, x_BTD: Tensor, added_BTD: Tensor | None) -> tuple[Tensor, Tensor]:
    """x + added (x where nothing is added), and its norm."""
    if added_BTD is None:
        return x_BTD, norm(x_BTD)
    if isinstance(norm, RMSNorm) and x_BTD.shape == added_BTD.shape and fuses(x_BTD):
        dtype = read_in(x_BTD)
        (total, normed), _ = add_norm(
            x_BTD[:, :, None], added_BTD[:, :, None], weight=norm.weight, eps=norm.eps, output=dtype
        )
        return total.squeeze(2), normed.squeeze(2)
    total_BTD = x_BTD + added_BTD
    return total_BTD, norm(total_BTD)


def read_in(x: Tensor) -> torch.dtype:
    """The dtype of a norm of x. What reads it rounds it to that of autocast: so it is written in it, and not rounded again by
    each of them."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x / sqrt(sum(x^2) + eps) over the last axis."""
    wide = widen(x)
    return (wide * (wide.square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)  # kernels, too, add eps inside
