"""Channel mixers, which work at each position by itself.

B batch, T time, D model width, F inner width
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch.kernels.select import fuses
from recallmap.arch.kernels.swiglu import swiglu
from recallmap.arch.parts.heads import check_expansion


@dataclass(frozen=True, kw_only=True)
class MlpSpec(ABC):
    """A channel mixer as data. `inner` is its hidden width in a model of `width`."""

    kind: str

    joinable: ClassVar[bool] = True  # others may define more of its family

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """x [B, T, D] -> y [B, T, D], each position by itself."""

    def parameters(self, width: int) -> int:
        """The number of learned parameters: as many as `build` makes. Ours compute it by arithmetic; this one counts those of
        a module without memory."""
        with torch.device("meta"):
            return sum(value.numel() for value in self.build(width).parameters())

    @abstractmethod
    def flops(self, width: int) -> float:
        """Floating-point operations per token, forward."""


@dataclass(frozen=True, kw_only=True)
class SwiGLU(MlpSpec):
    """Two branches of width expand * D, SiLU on one, product, down-projection (MesaNet: expand 3)."""

    kind: Literal["swiglu"] = "swiglu"
    expand: float = 3

    def __post_init__(self) -> None:
        check_expansion(expand=self.expand)

    def build(self, width: int) -> nn.Module:
        return _SwiGLU(width, _inner(self.expand, width))

    def parameters(self, width: int) -> int:
        return 3 * width * _inner(self.expand, width)

    def flops(self, width: int) -> float:
        return 6 * width * _inner(self.expand, width)


@dataclass(frozen=True, kw_only=True)
class Mlp2(MlpSpec):
    """Two linear maps with an activation between."""

    kind: Literal["mlp"] = "mlp"
    expand: float = 4
    activation: Literal["gelu", "relu", "silu"] = "gelu"

    def __post_init__(self) -> None:
        check_expansion(expand=self.expand)

    def build(self, width: int) -> nn.Module:
        return _Mlp2(width, _inner(self.expand, width), self.activation)

    def parameters(self, width: int) -> int:
        return (2 * width + 1) * _inner(self.expand, width) + width

    def flops(self, width: int) -> float:
        return 4 * width * _inner(self.expand, width)


@dataclass(frozen=True, kw_only=True)
class Identity(MlpSpec):
    """The identity on its (normalised) input, which Zoology's sweeps have in place of an MLP. It differs from no MLP."""

    kind: Literal["identity"] = "identity"

    def build(self, width: int) -> nn.Module:
        return nn.Identity()

    def parameters(self, width: int) -> int:
        return 0

    def flops(self, width: int) -> float:
        return 0.0


Mlp = SwiGLU | Mlp2 | Identity


class _SwiGLU(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_and_value = nn.Linear(width, 2 * inner, bias=False)
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        both_BTF2 = self.gate_and_value(x_BTD)
        if fuses(both_BTF2):
            return self.out(swiglu(both_BTF2[:, :, None])[0].squeeze(2))
        gate_BTF, value_BTF = both_BTF2.chunk(2, dim=-1)
        return self.out(F.silu(gate_BTF) * value_BTF)


class _Mlp2(nn.Module):
    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self.inner = nn.Linear(width, inner)
        self.out = nn.Linear(inner, width)
        self.activation = getattr(F, activation)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.out(self.activation(self.inner(x_BTD)))


def _inner(expand: float, width: int) -> int:
    """Channels between the maps, one at least."""
    return max(1, round(expand * width))
