"""A memory that learns at test time by matrix products over chunks.

Gradient descent goes by the dual form of dual.py, in which no token has weight matrices of its own. Retentions that are no
plain decay need those matrices; they are then made for all tokens of a chunk at once. So are the steps of Newton-Schulz where
that costs less than what spares them: they lie in what the chunk's inputs and the momentum ahead of it span,
    P_t = sum_i push_{t,i} x_i^T d_i + slowed_t p,   NS(P_t) = P_t Q_t
so that a token needs no more than a Q_t of as many rows as columns (spanned_newton_schulz).

B batch, H heads, N tokens of a piece, M tokens that their windows see, R rows, C columns of a matrix, S = M + C vectors
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from arch.kernels import select
from arch.kernels.dual import Influence, Learned, Matrix, Tokens, gradients, learn_piece, over_time, weights_of
from arch.kernels.network import LayerNorm, forward
from arch.kernels.newton_schulz import newton_schulz
from arch.kernels.rule import Rule
from arch.kernels.spanned_newton_schulz import spanned_newton_schulz

WIDEST_SQUARE = 32  # columns of a matrix whose steps are not made: with 64 that was no faster, on a CPU


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
            steps = _steps(weight, x, d, p_BHRC, rule.newton_schulz)
            maps.append(Matrix(weight.kept[..., -1, None, None] * a_BHRC - steps.total(weight.rate[..., -1, :])))
            products.append(partial(_stepped, a_BHRC, steps, weight))
            continue
        a_BHNRC = weight.kept[..., None, None] * a_BHRC[:, :, None] - taken_BHNRC
        maps.append(Matrix(a_BHNRC[:, :, -1]))
        products.append(partial(_own, rule.retention.weights(a_BHNRC)))
    y, _ = forward(tokens.q, lambda i, h: products[i](h), len(products), rule)
    return y, learned._replace(maps=tuple(maps), momentum=tuple(momentum) or None)


class _Made(NamedTuple):
    """The steps of all tokens."""

    step_BHNRC: Tensor

    def through(self, h_BHNR: Tensor, rate_BHNN: Tensor) -> Tensor:
        """sum_t rate_{n,t} h_n S_t: [B, H, N, C]."""
        side_by_side_BHRN = self.step_BHNRC.transpose(2, 3).flatten(-2)
        every_BHNNC = (h_BHNR @ side_by_side_BHRN).unflatten(-1, (-1, self.step_BHNRC.shape[-1]))
        return (rate_BHNN[..., None] * every_BHNNC).sum(-2)

    def total(self, rate_BHN: Tensor) -> Tensor:
        """sum_t rate_t S_t: [B, H, R, C]."""
        return (rate_BHN[..., None, None] * self.step_BHNRC).sum(2)


class _Spanned(NamedTuple):
    """The same, of steps P_t Q_t that are never made: P_t = U diag(z_t) D."""

    z_BHNS: Tensor
    d_BHSC: Tensor
    u_BHRS: Tensor
    q_BHNCC: Tensor

    def through(self, h_BHNR: Tensor, rate_BHNN: Tensor) -> Tensor:
        """sum_t rate_{n,t} h_n P_t Q_t: [B, H, N, C]."""
        seen_BHNNS = (h_BHNR @ self.u_BHRS)[:, :, :, None] * self.z_BHNS[:, :, None]
        moved_BHNNC = (seen_BHNNS.flatten(2, 3) @ self.d_BHSC).unflatten(2, seen_BHNNS.shape[2:4])
        return (rate_BHNN[..., None] * moved_BHNNC).flatten(-2) @ self.q_BHNCC.flatten(2, 3)

    def total(self, rate_BHN: Tensor) -> Tensor:
        """sum_t rate_t P_t Q_t: [B, H, R, C]."""
        by_vector_BHSN = (rate_BHN[..., None] * self.z_BHNS).mT @ self.q_BHNCC.flatten(-2)
        by_vector_BHSCC = by_vector_BHSN.unflatten(-1, self.q_BHNCC.shape[-2:])
        return self.u_BHRS @ (self.d_BHSC[..., None, :] @ by_vector_BHSCC).squeeze(-2)


def _steps(weight: Influence, x_BHMR: Tensor, d_BHMC: Tensor, p_BHRC: Tensor | None, steps: int) -> _Made | _Spanned:
    """NS(P_t) of all tokens."""
    if not _spared(x_BHMR, d_BHMC, p_BHRC):
        made_BHNRC, _ = newton_schulz(_outer(weight.push, x_BHMR, d_BHMC, weight.slowed, p_BHRC), steps=steps)
        return _Made(made_BHNRC)
    z_BHNS, d_BHSC, u_BHRS = _factors(weight.push, x_BHMR, d_BHMC, weight.slowed, p_BHRC)
    wide_BHRS = u_BHRS.double()  # a square of singular values keeps half of their digits
    told = (z_BHNS[:, :, :, None], d_BHSC[:, :, None], (wide_BHRS.mT @ wide_BHRS)[:, :, None])  # a head, a batch entry
    q_BHNCC, _ = spanned_newton_schulz(*(t.flatten(0, 1) for t in told), steps=steps)
    return _Spanned(z_BHNS, d_BHSC, u_BHRS, q_BHNCC.squeeze(2).unflatten(0, x_BHMR.shape[:2]))


def _spared(x_BHMR: Tensor, d_BHMC: Tensor, p_BHRC: Tensor | None) -> bool:
    """Whether steps are better not made: on a CPU where fewer vectors span them than they have rows, elsewhere where a kernel
    spares them."""
    vectors, columns = x_BHMR.shape[-2] + (0 if p_BHRC is None else p_BHRC.shape[-1]), d_BHMC.shape[-1]
    if x_BHMR.device.type == "cpu":
        return columns <= WIDEST_SQUARE and vectors < x_BHMR.shape[-1]
    sizes = {"key_width": vectors, "value_width": columns}
    kernel = select.why_not("spanned_newton_schulz", "fused", device=d_BHMC.device, dtype=d_BHMC.dtype, sizes=sizes)
    return kernel is None


def _own(weights_BHNRC: Tensor, h_BHNR: Tensor) -> Tensor:
    """Every token's input through the weights that it has."""
    return (h_BHNR[..., None, :] @ weights_BHNRC).squeeze(-2)


def _stepped(a_BHRC: Tensor, steps: _Made | _Spanned, weight: Influence, h_BHNR: Tensor) -> Tensor:
    """The same through what the weights are made of: those of the piece's start, and all steps up to the token."""
    return weight.kept[..., None] * (h_BHNR @ a_BHRC) - steps.through(h_BHNR, weight.rate)


def _outer(
    weight_BHNM: Tensor,
    x_BHMR: Tensor,
    d_BHMC: Tensor,
    kept_BHN: Tensor | None = None,
    p_BHRC: Tensor | None = None,
) -> Tensor:
    """sum_i weight_{t,i} x_i^T d_i + kept_t p: [B, H, N, R, C], by one product of matrices."""
    z_BHNS, d_BHSC, u_BHRS = _factors(weight_BHNM, x_BHMR, d_BHMC, kept_BHN, p_BHRC)
    side_by_side_BHSN = (z_BHNS.mT[..., None] * d_BHSC[..., None, :]).flatten(-2)
    return (u_BHRS @ side_by_side_BHSN).unflatten(-1, (z_BHNS.shape[-2], -1)).transpose(2, 3)


def _factors(
    weight_BHNM: Tensor, x_BHMR: Tensor, d_BHMC: Tensor, kept_BHN: Tensor | None, p_BHRC: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """z [B, H, N, S], D [B, H, S, C] and U [B, H, R, S], with U diag(z_t) D = sum_i weight_{t,i} x_i^T d_i + kept_t p."""
    if kept_BHN is None or p_BHRC is None:
        return weight_BHNM, d_BHMC, x_BHMR.mT
    columns = p_BHRC.shape[-1]
    unit_BHCC = torch.eye(columns, dtype=d_BHMC.dtype, device=d_BHMC.device).expand(*d_BHMC.shape[:2], -1, -1)
    z_BHNS = torch.cat([weight_BHNM, kept_BHN[..., None].expand(-1, -1, -1, columns)], -1)
    return z_BHNS, torch.cat([d_BHMC, unit_BHCC], -2), torch.cat([x_BHMR.mT, p_BHRC], -1)
