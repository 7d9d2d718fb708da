"""A memory's network and its gradient, written out: every matrix W adds inputs^T signals to its gradient.

y = h_L W_L,   h_{l+1} = gelu(h_l W_l), or gelu(h_l W_l) * (h_l G_l),   M = y or LayerNorm(y)

x [..., N tokens, width]; matrices [..., rows, columns]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.test_time.learning_rule import Rule

Product = Callable[[int, Tensor], Tensor]  # index of a matrix, h -> h W

NORM_EPS = 1e-6


class Trace(NamedTuple):
    """inputs: what each matrix multiplied; hidden: of each hidden layer, what it bent and what gated it."""

    inputs: tuple[Tensor, ...]
    hidden: tuple[tuple[Tensor, Tensor | None], ...]


class LayerNorm(NamedTuple):
    """The norm inside a memory, [H, V] each. It is learned with the model, never at test time."""

    weight: Tensor
    bias: Tensor

    def forward(self, y_BHNV: Tensor) -> Tensor:
        return self._standard(y_BHNV)[0] * self.weight[:, None] + self.bias[:, None]

    def backward(self, signal_BHNV: Tensor, y_BHNV: Tensor) -> Tensor:
        standard, scale = self._standard(y_BHNV)
        signal = signal_BHNV * self.weight[:, None]
        along = (signal * standard).mean(-1, keepdim=True)
        return scale * (signal - signal.mean(-1, keepdim=True) - standard * along)

    @staticmethod
    def _standard(y: Tensor) -> tuple[Tensor, Tensor]:
        centred = y - y.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt()
        return centred * scale, scale


def forward(x: Tensor, product: Product, matrices: int, rule: Rule) -> tuple[Tensor, Trace]:
    """y, and what `backward` needs."""
    width = 2 if rule.gated else 1
    inputs: list[Tensor] = []
    hidden = []
    for first in range(0, matrices - 1, width):
        x = with_one(x, rule)
        inputs += [x] * width
        bent, gate = product(first, x), product(first + 1, x) if rule.gated else None
        hidden.append((bent, gate))
        x = F.gelu(bent) if gate is None else F.gelu(bent) * gate
    x = with_one(x, rule)
    return product(matrices - 1, x), Trace((*inputs, x), tuple(hidden))


def backward(signal: Tensor, product_back: Product, trace: Trace, rule: Rule) -> tuple[Tensor, ...]:
    """The signal behind every matrix, from that behind the last one. `product_back(i, d)` is d W_i^T."""
    matrices, width = len(trace.inputs), 2 if rule.gated else 1
    signals = [signal]
    for layer in range(len(trace.hidden) - 1, -1, -1):
        bent, gate = trace.hidden[layer]
        first = (layer + 1) * width
        back = sum(product_back(i, signals[i - first]) for i in range(first, min(first + width, matrices)))
        assert isinstance(back, Tensor)
        if rule.bias:
            back = back[..., :-1]
        here = [bent_back(back, bent)] if gate is None else [bent_back(back * gate, bent), back * F.gelu(bent)]
        signals = here + signals
    return tuple(signals)


def bent_back(signal: Tensor, x: Tensor) -> Tensor:
    """signal * gelu'(x), of the exact GELU."""
    y: Tensor = torch.ops.aten.gelu_backward(signal, x)
    return y


def learn(answer: Tensor, value: Tensor, threshold: Tensor | None, norm: LayerNorm | None, rule: Rule) -> Tensor:
    """The loss' derivative by y [..., N, V]."""
    if norm is None:
        return rule.loss.gradient(answer, value, threshold)
    return norm.backward(rule.loss.gradient(norm.forward(answer), value, threshold), answer)


def with_one(x: Tensor, rule: Rule) -> Tensor:
    """x, with a constant 1 behind it where the matrices have a bias."""
    return torch.cat([x, torch.ones_like(x[..., :1])], -1) if rule.bias else x
