"""A memory that learns at test time by matrix products over chunks.

Gradient descent goes by test_time.dual_form, in which no token has weight matrices of its own. Retentions that are no
plain decay need those matrices; they are then made for all tokens of a chunk at once, but where a kernel holds them one by one
(retained). So are the steps of Newton-Schulz where that costs less than what spares them: they lie in what the chunk's inputs
and the momentum ahead of it span,
    P_t = sum_i push_{t,i} x_i^T d_i + slowed_t p,   NS(P_t) = P_t Q_t
so that a token needs no more than a Q_t of as many rows as columns (spanned_newton_schulz), and what it reads of their sum no
more than its coefficients (spanned_sum). Where it costs more, kernels make the P_t (spanned) and read the sum of their steps.

B batch, H heads, N tokens of a piece, M tokens that their windows see, R rows, C columns and F = R C entries of a
matrix, S = M + C vectors
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.memory.sequence import MemoryInputs, learn_sequence
from recallmap.arch.kernels.memory.state import MemoryState
from recallmap.arch.kernels.newton_schulz import newton_schulz
from recallmap.arch.kernels.retained import retained
from recallmap.arch.kernels.spanned import spanned
from recallmap.arch.kernels.spanned_newton_schulz import spanned_newton_schulz
from recallmap.arch.kernels.spanned_sum import spanned_sum
from recallmap.arch.kernels.test_time.dual_form import Learned, Matrix, Tokens, gradients, learn_piece, over_time
from recallmap.arch.kernels.test_time.influence import Influence
from recallmap.arch.kernels.test_time.learning_rule import Retention, Rule
from recallmap.arch.kernels.test_time.network import LayerNorm, forward

WIDEST_SQUARE = 32  # columns of a matrix whose steps are not made: with 64 that was no faster, on a CPU


def chunked(x: MemoryInputs) -> tuple[Tensor, MemoryState | None]:
    """The whole sequence; `chunk` says how many tokens go at once where more than the rule's own chunk can."""
    return learn_sequence(x, _learn_by_chunks)


def _learn_by_chunks(
    learned: Learned[Matrix], tokens: Tokens, rule: Rule, norm: LayerNorm | None, position: int, chunk: int | None
) -> tuple[Tensor, Learned[Matrix]]:
    """Read-outs y [B, H, T, V] and what is known behind the last token."""
    within = materialise_piece if rule.materialised else learn_piece
    return over_time(learned, tokens, rule, norm, position, chunk, within)


def materialise_piece(
    learned: Learned[Matrix], tokens: Tokens, weight: Influence, rule: Rule, norm: LayerNorm | None
) -> tuple[Tensor, Learned[Matrix]]:
    """Tokens within one chunk, with a matrix for every token: its weights, or its step."""
    reference = tuple(Matrix(rule.retention.weights(m.weights)) for m in learned.reference)
    inputs, signals = gradients(reference, tokens, rule, norm)
    reads, maps, momentum = [], [], []
    for index, (x, d) in enumerate(zip(inputs, signals, strict=True)):
        a_BHRC = learned.maps[index].weights
        p_BHRC = None if learned.momentum is None else learned.momentum[index]
        pushed = _Sums(weight.push, x, d, weight.slowed, p_BHRC)
        reads.append(_reader(a_BHRC, pushed, weight, tokens, rule))

    def product(index: int, h_BHNR: Tensor) -> Tensor:
        y_BHNC, behind_BHRC, p_BHRC = reads[index](h_BHNR)
        maps.append(Matrix(behind_BHRC))
        if p_BHRC is not None:
            momentum.append(p_BHRC)
        return y_BHNC

    y, _ = forward(tokens.q, product, len(reads), rule)
    return y, learned._replace(maps=tuple(maps), momentum=tuple(momentum) or None)


# The reads of tokens from a matrix that learns, h [B, H, N, R] -> [B, H, N, C], and after the last token the matrix
# [B, H, R, C] and its momentum.

_Reading = tuple[Tensor, Tensor, Tensor | None]
_Read = Callable[[Tensor], _Reading]


def _reader(a_BHRC: Tensor, pushed: _Sums, weight: Influence, tokens: Tokens, rule: Rule) -> _Read:
    """A reader of a matrix at the piece's start, moved by the momenta that the piece's tokens push."""
    if _held(pushed, rule):
        return partial(_by_retention, a_BHRC, pushed, weight.log_decay, tokens, rule.retention)
    if not rule.newton_schulz:
        taken_BHNRC = pushed._replace(weight_BHNM=weight.write, kept_BHN=weight.moved).every()
    elif rule.retention.plain and _spared(pushed):
        return partial(_by_span, a_BHRC, pushed, weight, tokens.eta, rule.newton_schulz)
    else:
        step_BHNRC, _ = newton_schulz(pushed.every(), steps=rule.newton_schulz)
        if rule.retention.plain and _summed(step_BHNRC):
            return partial(_by_steps, a_BHRC, pushed, step_BHNRC, weight.log_decay, tokens.eta)
        taken_BHNRC = (weight.rate @ step_BHNRC.flatten(-2)).unflatten(-1, a_BHRC.shape[-2:])
    if rule.retention.plain:
        return partial(_by_taken, a_BHRC, pushed, taken_BHNRC, weight.kept)
    a_BHNRC = weight.kept[..., None, None] * a_BHRC[:, :, None] - taken_BHNRC
    return partial(_by_own, a_BHNRC, pushed, rule.retention.weights(a_BHNRC))


def _by_own(a_BHNRC: Tensor, pushed: _Sums, weights_BHNRC: Tensor, h_BHNR: Tensor) -> _Reading:
    """Every token through the weights that it has."""
    return (h_BHNR[..., None, :] @ weights_BHNRC).squeeze(-2), a_BHNRC[:, :, -1], pushed.last()


def _by_retention(
    a_BHRC: Tensor, pushed: _Sums, log_decay_BHN: Tensor, tokens: Tokens, retention: Retention, h_BHNR: Tensor
) -> _Reading:
    """The same, where each token takes its own step."""
    h, k, v = map(_alone, (h_BHNR, pushed.x_BHMR, -(tokens.eta[..., None] * tokens.gamma) * pushed.d_BHMC))
    g, start = _alone(log_decay_BHN), _as_one(a_BHRC)
    y, a = retained(h, k, v, retention=retention, log_decay=g, initial_state=start, return_state=True)
    assert a is not None
    return _of_heads(y, 2, h_BHNR), _of_heads(a, 1, h_BHNR), pushed.last()


def _alone(x_BHN: Tensor) -> Tensor:
    """Every head a batch entry: [B, H, N, ...] -> [B H, N, 1, ...], as it lies."""
    return x_BHN.flatten(0, 1).unsqueeze(2)


def _as_one(x_BH: Tensor) -> Tensor:
    """The same of what all tokens share: [B, H, ...] -> [B H, 1, ...]."""
    return x_BH.flatten(0, 1).unsqueeze(1)


def _of_heads(x: Tensor, lone: int, like_BH: Tensor) -> Tensor:
    """Either undone: without the `lone` axis, and [B, H, ...] again."""
    return x.squeeze(lone).unflatten(0, like_BH.shape[:2])


def _by_taken(a_BHRC: Tensor, pushed: _Sums, taken_BHNRC: Tensor, kept_BHN: Tensor, h_BHNR: Tensor) -> _Reading:
    """The same, through the weights of the piece's start and what was taken since."""
    y_BHNC = kept_BHN[..., None] * (h_BHNR @ a_BHRC) - (h_BHNR[..., None, :] @ taken_BHNRC).squeeze(-2)
    return y_BHNC, kept_BHN[..., -1, None, None] * a_BHRC - taken_BHNRC[:, :, -1], pushed.last()


def _by_steps(
    a_BHRC: Tensor, pushed: _Sums, step_BHNRC: Tensor, log_decay_BHN: Tensor, eta_BHN: Tensor, h_BHNR: Tensor
) -> _Reading:
    """The same, of square matrices: by a kernel that walks over their steps, as if unit vectors spanned them."""
    start = _as_one(a_BHRC)
    unit = torch.eye(start.shape[-1], dtype=start.dtype, device=start.device).expand_as(start)
    taken, g = _alone((-eta_BHN)[..., None].expand_as(h_BHNR)), _alone(log_decay_BHN)
    y, a = spanned_sum(
        _alone(h_BHNR), taken, _alone(step_BHNRC), unit, log_decay=g, initial_state=start, return_state=True
    )
    assert a is not None
    return _of_heads(y, 2, h_BHNR), _of_heads(a, 1, h_BHNR), pushed.last()


class _Sums(NamedTuple):
    """Matrices P_t = sum_i weight_{t,i} x_i^T d_i + kept_t p of all tokens; there is no p without momentum."""

    weight_BHNM: Tensor
    x_BHMR: Tensor
    d_BHMC: Tensor
    kept_BHN: Tensor | None
    p_BHRC: Tensor | None

    def every(self) -> Tensor:
        """All of them [B, H, N, R, C]."""
        weight, x, d, kept, p = self
        if kept is None or p is None:
            every, _ = spanned(_alone(weight), _as_one(d), _as_one(x))
        else:
            every, _ = spanned(_alone(weight), _as_one(d), _as_one(x), slowed=_alone(kept), p=_as_one(p))
        return _of_heads(every, 2, x)

    def last(self) -> Tensor | None:
        """That of the last token [B, H, R, C], which the next piece begins with."""
        weight, x, d, kept, p = self
        if kept is None or p is None:
            return None
        return x.mT @ (weight[:, :, -1, :, None] * d) + kept[:, :, -1, None, None] * p

    def span(self) -> _Span:
        """The factors that span the steps."""
        weight, x, d, kept, p = self
        if kept is None or p is None:
            return _Span(weight, d, x.mT)
        columns = p.shape[-1]
        unit_BHCC = torch.eye(columns, dtype=d.dtype, device=d.device).expand(*d.shape[:2], -1, -1)
        z_BHNS = torch.cat([weight, kept[..., None].expand(-1, -1, -1, columns)], -1)
        return _Span(z_BHNS, torch.cat([d, unit_BHCC], -2), torch.cat([x.mT, p], -1))


class _Span(NamedTuple):
    """Matrices P_t = U diag(z_t) D of all tokens."""

    z_BHNS: Tensor
    d_BHSC: Tensor
    u_BHRS: Tensor


def _by_span(a_BHRC: Tensor, pushed: _Sums, weight: Influence, eta_BHN: Tensor, steps: int, h_BHNR: Tensor) -> _Reading:
    """The same, of steps P_t Q_t that are never made."""
    z_BHNS, d_BHSC, u_BHRS = pushed.span()
    d, u = _as_one(d_BHSC), _as_one(u_BHRS)
    factor, _ = spanned_newton_schulz(_alone(z_BHNS), d, u, steps=steps)
    read, taken = _alone(h_BHNR @ u_BHRS), _alone(-eta_BHN[..., None] * z_BHNS)
    y, w = spanned_sum(read, taken, factor, d, log_decay=_alone(weight.log_decay), return_state=True)
    assert w is not None
    y_BHNC, w_BHSC = _of_heads(y, 2, h_BHNR), _of_heads(w, 1, h_BHNR)
    y_BHNC = torch.addcmul(y_BHNC, weight.kept[..., None], h_BHNR @ a_BHRC)
    kept = weight.kept[..., -1, None, None]
    if pushed.p_BHRC is None:
        return y_BHNC, torch.addcmul(u_BHRS @ w_BHSC, kept, a_BHRC), None
    both_BHSC = torch.cat([w_BHSC, z_BHNS[:, :, -1, :, None] * d_BHSC], -1)  # what is added, and the last momentum
    added_BHRC, p_BHRC = (u_BHRS @ both_BHSC).chunk(2, -1)
    return y_BHNC, torch.addcmul(added_BHRC, kept, a_BHRC), p_BHRC


def _held(sums: _Sums, rule: Rule) -> bool:
    """True where a kernel holds a matrix for every token: each takes its own step, on a GPU."""
    return rule.lone and _on_gpu("retained", sums.d_BHMC, sums.x_BHMR.shape[-1])


def _summed(step_BHNRC: Tensor) -> bool:
    """True where a kernel walks over steps of Newton-Schulz: those of square matrices, on a GPU."""
    rows, columns = step_BHNRC.shape[-2:]
    return rows == columns and _on_gpu("spanned_sum", step_BHNRC, rows)


def _spared(sums: _Sums) -> bool:
    """True where steps are better left as factors: fewer vectors span them than they have rows, on a CPU only for narrow
    matrices, and elsewhere where a kernel spares them."""
    (seen, rows), columns = sums.x_BHMR.shape[-2:], sums.d_BHMC.shape[-1]
    vectors = seen if sums.p_BHRC is None else seen + columns
    if vectors >= rows:
        return False
    if sums.d_BHMC.device.type == "cpu":
        return columns <= WIDEST_SQUARE
    return _on_gpu("spanned_newton_schulz", sums.d_BHMC, vectors)


def _on_gpu(op: str, like: Tensor, rows: int) -> bool:
    """True where a GPU's kernel of the op takes so many rows, or vectors, of this width."""
    if like.device.type == "cpu":
        return False
    sizes = {"key_width": rows, "value_width": like.shape[-1]}
    return select.why_not(op, "fused", device=like.device, dtype=like.dtype, sizes=sizes) is None
