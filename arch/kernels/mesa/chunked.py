"""Mesa by matrix products over chunks of tokens: all tokens take each step of conjugate gradients together.

With state ahead of a chunk and w_ts = e^{G_t - G_s} beta_s for s <= t, a query's product with its own kk_t is
x kk_t = e^{G_t} (x kk_0) + sum_s (x . k_s) w_ts k_s, and the read-out kv_t is the same with v_s in the end: no kk_t is formed.
Signs go into w_ts and e^{G_t}.

B batch, T time, H heads, N chunks, C tokens a chunk, K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.mesa.chebyshev import length
from recallmap.arch.kernels.mesa.conjugate import Solver, System
from recallmap.arch.kernels.mesa.state import MesaState
from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.chunks import carry, merge, signs, split
from recallmap.arch.kernels.recurrence.decay import HeadDecay


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lam: Tensor | None,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    alpha: Tensor | None,
    solver: Solver,
    scale: float,
    initial_state: MesaState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, MesaState | None, Tensor]:
    """The whole sequence, and the solver's steps [B, T, H]. `chunk` is a number of tokens."""
    dtype = working_dtype(q, k, v, lam, log_decay, beta, alpha, *(initial_state or ()))
    batch, time, heads, width = v.shape
    chunk = chunk or (time if time <= 64 else 32)
    turned = signs(sign)
    if log_decay is None:
        log_decay = torch.zeros(batch, time, heads, dtype=dtype, device=v.device)

    q, k, v_ = (split(x, chunk, dtype) for x in (q, k, v))
    gates = split(log_decay, chunk, dtype)
    decay = HeadDecay(gates)
    weights, fade = decay.pairs, gates.cumsum(-1).exp()[..., None]
    writes = None if beta is None else split(beta, chunk, dtype)
    if turned is not None:
        turns = split(turned, chunk, dtype)
        weights, fade = weights * turns[..., :, None], fade * turns[..., None]
        writes = turns if writes is None else writes * turns
    if writes is not None:
        weights = weights * writes[..., None, :]

    kkv = torch.cat((k.expand(-1, heads, -1, -1, -1), v_), -1)
    initial = None if initial_state is None else torch.cat(initial_state, -1).to(dtype)
    ahead, final = None, None
    if return_state or initial is not None or v_.shape[2] > 1:
        written = decay.to_end(k if writes is None else k * writes[..., None])
        ahead, final = carry(written.mT @ kkv, decay, initial, last=return_state)
    before: tuple[Tensor, ...] = ()
    if ahead is not None:
        ahead_kk, ahead_kv = ahead.split((q.shape[-1], width), -1)
        before = (fade, ahead_kk)
    if solver.ridge is not None:
        shift = solver.ridge * length(_square(k, weights, *before))
    else:
        assert lam is not None
        shift = lam.to(dtype)[:, None, None]
    q = q.expand(-1, heads, -1, -1, -1)
    solved, taken = solver(CHUNKS, q, k, weights, shift, *before)
    if alpha is not None:
        solved = q + split(alpha, chunk, dtype)[..., None] * (solved - q)
    o = ((solved @ k.mT) * weights) @ v_
    if ahead is not None:
        o = o + fade * (solved @ ahead_kv)
    if scale != 1:
        o = o * scale
    return merge(o, time, v.dtype), _state(final, turned, q.shape[-1], dtype), taken.flatten(2)[..., :time].mT


def _state(final: Tensor | None, turned: Tensor | None, key_width: int, dtype: torch.dtype) -> MesaState | None:
    if final is None:
        return None
    if turned is not None:
        final = final * turned[:, -1].to(dtype)[..., None, None]
    return MesaState(final[..., :key_width], final[..., key_width:])


def _multiply(
    x: Tensor, k: Tensor, weights: Tensor, lam: Tensor, fade: Tensor | None = None, ahead: Tensor | None = None
) -> Tensor:
    inside = torch.addcmul(((x @ k.mT) * weights) @ k, x, lam)
    return inside if fade is None or ahead is None else torch.addcmul(inside, fade, x @ ahead)


def _diagonal(
    k: Tensor, weights: Tensor, lam: Tensor, fade: Tensor | None = None, ahead: Tensor | None = None
) -> Tensor:
    inside = weights @ k.square() + lam
    if fade is None or ahead is None:
        return inside
    return inside + fade * ahead.diagonal(dim1=-2, dim2=-1)[..., None, :]


def _regulariser(k: Tensor, weights: Tensor, lam: Tensor, *before: Tensor) -> Tensor:
    return lam


def _square(k: Tensor, weights: Tensor, fade: Tensor | None = None, ahead: Tensor | None = None) -> Tensor:
    """|kk_t|^2 of every token [..., C, 1], from products of keys."""
    products = (k @ k.mT).square()
    inside = ((weights @ products) * weights).sum(-1, keepdim=True)
    if fade is None or ahead is None:
        return inside
    held = ((k @ ahead) * k).sum(-1, keepdim=True)
    return inside + 2 * fade * (weights @ held) + fade.square() * ahead.square().sum((-2, -1))[..., None, None]


CHUNKS = System(_multiply, _diagonal, _regulariser)
