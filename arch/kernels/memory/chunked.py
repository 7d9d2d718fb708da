"""A memory that learns at test time by matrix products over chunks.

Gradient descent goes by the dual form of dual.py, in which no token has weight matrices of its own. Retentions that are no
plain decay need those matrices, and Newton-Schulz those of every token's step; they are then made for all tokens of a chunk at
once. But steps of many rows lie in what the chunk's inputs and the momentum ahead of it span,
    P_t = U Z_t,   NS(P_t) = U Z_t Q_t,   Q_t by P_t^T P_t = Z_t^T (U^T U) Z_t
so that no token needs more than a matrix Z_t Q_t of as many rows as there are vectors in U.

B batch, H heads, N tokens of a piece, M tokens that their windows see, R rows, C columns of a matrix, S = M + C columns of U
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from arch.kernels.dual import Influence, Learned, Matrix, Tokens, gradients, learn_piece, over_time, weights_of
from arch.kernels.gram_newton_schulz import gram_newton_schulz
from arch.kernels.network import LayerNorm, forward
from arch.kernels.newton_schulz import newton_schulz
from arch.kernels.rule import Rule

WIDEST_SQUARE = 32  # columns of a matrix whose steps go by its square: with 64 that was no faster, on a CPU


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
    """Tokens within one chunk, with a matrix for every token: its weights, or its step."""
    weight = weights_of(tokens, rule, position)
    reference = tuple(Matrix(rule.retention.weights(m.weights)) for m in learned.reference)
    inputs, signals = gradients(reference, tokens, rule, norm)
    products, maps, momentum = [], [], []
    for index, (x, d) in enumerate(zip(inputs, signals, strict=True)):
        a_BHRC = learned.maps[index].weights
        p_BHRC = None if learned.momentum is None else learned.momentum[index]
        if p_BHRC is not None and weight.slowed is not None:
            momentum.append(_outer(weight.push[..., -1:, :], x, d, weight.slowed[..., -1:], p_BHRC)[:, :, 0])
        if not rule.newton_schulz:
            taken_BHNRC = _outer(weight.write, x, d, weight.moved, p_BHRC)
        elif not rule.retention.plain:
            step_BHNRC, _ = newton_schulz(_outer(weight.push, x, d, weight.slowed, p_BHRC), steps=rule.newton_schulz)
            taken_BHNRC = (weight.rate @ step_BHNRC.flatten(-2)).unflatten(-1, a_BHRC.shape[-2:])
        else:  # then steps need not be added up but behind the last token
            span_BHRS, step_BHSN = _orthogonal(weight, x, d, p_BHRC, rule.newton_schulz)
            taken = step_BHSN @ _units(weight.rate[..., -1, :], a_BHRC)
            taken = taken if span_BHRS is None else span_BHRS @ taken
            maps.append(Matrix(weight.kept[..., -1, None, None] * a_BHRC - taken))
            products.append(partial(_stepped, a_BHRC, span_BHRS, step_BHSN, weight))
            continue
        a_BHNRC = weight.kept[..., None, None] * a_BHRC[:, :, None] - taken_BHNRC
        maps.append(Matrix(a_BHNRC[:, :, -1]))
        products.append(partial(_own, rule.retention.weights(a_BHNRC)))
    y, _ = forward(tokens.q, lambda i, h: products[i](h), len(products), rule)
    return y, learned._replace(maps=tuple(maps), momentum=tuple(momentum) or None)


def _orthogonal(
    weight: Influence, x_BHMR: Tensor, d_BHMC: Tensor, p_BHRC: Tensor | None, steps: int
) -> tuple[Tensor | None, Tensor]:
    """U [B, H, R, S] and all Z_t Q_t side by side [B, H, S, N C] where U has fewer columns than rows; else none, and all
    NS(P_t) [B, H, R, N C]."""
    apart = (weight.push.shape[-2], d_BHMC.shape[-1])
    span_BHRS, z_BHSN = _factors(weight.push, x_BHMR, d_BHMC, weight.slowed, p_BHRC)
    if span_BHRS.shape[-1] >= span_BHRS.shape[-2] or apart[1] > WIDEST_SQUARE:
        step_BHNRC, _ = newton_schulz((span_BHRS @ z_BHSN).unflatten(-1, apart).transpose(2, 3), steps=steps)
        return None, step_BHNRC.transpose(2, 3).flatten(-2)
    span, z = span_BHRS.double(), z_BHSN.double()  # a square of singular values keeps half of their digits
    seen = (span.mT @ span) @ z
    squares_BHNCC = z.unflatten(-1, apart).permute(0, 1, 3, 4, 2) @ seen.unflatten(-1, apart).transpose(2, 3)
    factor_BHNCC = gram_newton_schulz(squares_BHNCC, steps=steps)[0].to(z_BHSN.dtype)
    return span_BHRS, (z_BHSN.unflatten(-1, apart).transpose(2, 3) @ factor_BHNCC).transpose(2, 3).flatten(-2)


def _own(weights_BHNRC: Tensor, h_BHNR: Tensor) -> Tensor:
    """Every token's input through the weights that it has."""
    return (h_BHNR[..., None, :] @ weights_BHNRC).squeeze(-2)


def _stepped(a_BHRC: Tensor, span_BHRS: Tensor | None, step_BHSN: Tensor, weight: Influence, h_BHNR: Tensor) -> Tensor:
    """The same through what the weights are made of: those of the piece's start and all steps, side by side, up to the
    token."""
    seen = h_BHNR if span_BHRS is None else h_BHNR @ span_BHRS
    through_BHNNC = (seen @ step_BHSN).unflatten(-1, (h_BHNR.shape[-2], -1))
    return weight.kept[..., None] * (h_BHNR @ a_BHRC) - (weight.rate[..., None] * through_BHNNC).sum(-2)


def _outer(
    weight_BHNM: Tensor,
    x_BHMR: Tensor,
    d_BHMC: Tensor,
    kept_BHN: Tensor | None = None,
    p_BHRC: Tensor | None = None,
) -> Tensor:
    """sum_i weight_{t,i} x_i^T d_i + kept_t p: [B, H, N, R, C], by one product of matrices."""
    left, right = _factors(weight_BHNM, x_BHMR, d_BHMC, kept_BHN, p_BHRC)
    return (left @ right).unflatten(-1, (weight_BHNM.shape[-2], -1)).transpose(2, 3)


def _factors(
    weight_BHNM: Tensor, x_BHMR: Tensor, d_BHMC: Tensor, kept_BHN: Tensor | None, p_BHRC: Tensor | None
) -> tuple[Tensor, Tensor]:
    """U [B, H, R, S], x_i and p side by side, and Z [B, H, S, N C] of all tokens with U Z_t = sum_i weight_{t,i} x_i^T d_i +
    kept_t p."""
    left, right = x_BHMR.mT, (weight_BHNM.mT[..., None] * d_BHMC[..., None, :]).flatten(-2)
    if kept_BHN is not None and p_BHRC is not None:
        left, right = torch.cat([left, p_BHRC], -1), torch.cat([right, _units(kept_BHN, p_BHRC).mT], -2)
    return left, right


def _units(weight_BHN: Tensor, like_BHRC: Tensor) -> Tensor:
    """weight_t I, one beneath another: [B, H, N C, C]."""
    unit_CC = torch.eye(like_BHRC.shape[-1], dtype=like_BHRC.dtype, device=like_BHRC.device)
    return (weight_BHN[..., None, None] * unit_CC).flatten(2, 3)
