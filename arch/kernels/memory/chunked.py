"""A memory that learns at test time by matrix products over chunks.

Gradient descent goes by the dual form of dual.py, in which no token has weight matrices of its own. Newton-Schulz and the
retentions that are no plain decay need those matrices; they are then made for all tokens of a chunk at once.

B batch, H heads, N tokens of a piece, M tokens that their windows see, R rows, C columns of a matrix
"""

from __future__ import annotations

from torch import Tensor

from arch.kernels.dual import Learned, Matrix, Tokens, gradients, learn_piece, over_time, weights_of
from arch.kernels.network import LayerNorm, forward
from arch.kernels.newton_schulz import newton_schulz
from arch.kernels.rule import Rule


def chunked(
    learned: Learned[Matrix], tokens: Tokens, rule: Rule, norm: LayerNorm | None, position: int, chunk: int | None
) -> tuple[Tensor, Learned[Matrix]]:
    """Read-outs y [B, H, T, V] and what is known behind the last token.

    chunk  tokens at once where more than the rule's own chunk can be
    """
    within = materialise_piece if rule.materialised else learn_piece
    return over_time(learned, tokens, rule, norm, position, chunk, within)


def materialise_piece(
    learned: Learned[Matrix], tokens: Tokens, rule: Rule, norm: LayerNorm | None, position: int
) -> tuple[Tensor, Learned[Matrix]]:
    """Tokens within one chunk, with weight matrices for every token."""
    weight = weights_of(tokens, rule, position)
    reference = tuple(Matrix(rule.retention.weights(m.weights)) for m in learned.reference)
    inputs, signals = gradients(reference, tokens, rule, norm)
    weights, maps, momentum = [], [], []
    for index, (x, d) in enumerate(zip(inputs, signals, strict=True)):
        a_BHRC = learned.maps[index].weights
        kept = weight.kept[..., None, None] * a_BHRC[:, :, None]
        if rule.newton_schulz:
            step_BHNRC = _outer(weight.push, x, d)
            if learned.momentum is not None and weight.slowed is not None:
                step_BHNRC = step_BHNRC + weight.slowed[..., None, None] * learned.momentum[index][:, :, None]
                momentum.append(step_BHNRC[:, :, -1])
            step_BHNRC, _ = newton_schulz(step_BHNRC, steps=rule.newton_schulz)
            a_BHNRC = kept - (weight.rate @ step_BHNRC.flatten(-2)).unflatten(-1, step_BHNRC.shape[-2:])
        else:
            a_BHNRC = kept - _outer(weight.write, x, d)
            if learned.momentum is not None and weight.moved is not None and weight.slowed is not None:
                p_BHRC = learned.momentum[index]
                a_BHNRC = a_BHNRC - weight.moved[..., None, None] * p_BHRC[:, :, None]
                pushed = _outer(weight.push[..., -1:, :], x, d)[:, :, 0]
                momentum.append(weight.slowed[..., -1, None, None] * p_BHRC + pushed)
        maps.append(Matrix(a_BHNRC[:, :, -1]))
        weights.append(rule.retention.weights(a_BHNRC))
    y, _ = forward(tokens.q, lambda i, h: (h[..., None, :] @ weights[i]).squeeze(-2), len(weights), rule)
    return y, learned._replace(maps=tuple(maps), momentum=tuple(momentum) or None)


def _outer(weight_BHNM: Tensor, x_BHMR: Tensor, d_BHMC: Tensor) -> Tensor:
    """sum_i weight_{t,i} x_i^T d_i: [B, H, N, R, C]."""
    weighted = (weight_BHNM.mT[..., None] * d_BHMC[..., None, :]).flatten(-2)
    return (x_BHMR.mT @ weighted).unflatten(-1, (weight_BHNM.shape[-2], -1)).transpose(2, 3)
