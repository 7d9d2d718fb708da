"""The delta rule by matrix products over chunks of tokens.

Within a chunk with state S_0 ahead of it, tokens depend on each other only through what they read before they write. Those
reads solve one unit lower triangular system whose right-hand side is linear in S_0:

beta   (I + tril_-(beta K K^T)) U = beta (V - K S_0),    O = Q S_0 + (Q K^T) U,                 S_C = S_0 + K^T U
a, b   (I + A B^T) R = A S_0 + (A K^T) V,                O = Q S_0 + (Q K^T) V - (Q B^T) R,     S_C = S_0 + K^T V - B^T R

with every product faded as `recurrence.decay` has it. (Q K^T in O fades too; Yang et al. 2025 print a plain mask there,
which is right without decay only.) So outputs and the next state are affine in S_0, the coefficients of all chunks come from
batched products, and one small product a chunk carries the state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.recurrence.chunks import chunk_for, decay_of, merge, signs, split
from recallmap.arch.kernels.recurrence.decay import Decay
from recallmap.arch.kernels.recurrence.triangular_solve import solve_unit_lower


class Affine(NamedTuple):
    """The map of a chunk on the state S before it: outputs `out + reads S`, next state `gain + turn S`."""

    out_BHNCV: Tensor
    reads_BHNCK: Tensor
    gain_BHNKV: Tensor
    turn_BHNKK: Tensor


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    sign: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` is a number of tokens; it must be a power of two where log decays are vectors."""
    dtype = working_dtype(q, k, v, log_decay, beta, a, b, initial_state)
    time = v.shape[1]
    chunk = chunk or chunk_for(time, q.shape[-1], log_decay)
    turned = signs(sign)
    values = v.to(dtype)
    if turned is not None:
        values = values * turned.to(dtype)[..., None]
        b = None if b is None or sign is None else b.to(dtype) * sign.to(dtype)[..., None]

    q, k, v_ = (split(x, chunk, dtype) for x in (q, k, values))
    decay = decay_of(log_decay, chunk, dtype)
    initial = None if initial_state is None else initial_state.to(dtype)
    carried = return_state or initial is not None or v_.shape[2] > 1
    if a is not None and b is not None:
        o, affine = _by_pair(q, k, v_, split(a, chunk, dtype), split(b, chunk, dtype), decay, carried)
    else:
        o, affine = _by_beta(q, k, v_, None if beta is None else split(beta, chunk, dtype)[..., None], decay, carried)
    final = None
    if affine is not None:
        ahead, final = _carry(affine, initial)
        o = o if ahead is None else o + affine.reads_BHNCK @ ahead
    if scale != 1:
        o = o * scale
    if turned is not None:
        o = o * split(turned, chunk, dtype)[..., None]
        final = None if final is None else final * turned[:, -1].to(dtype)[..., None, None]
    return merge(o, time, v.dtype), final if return_state else None


def _by_beta(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, decay: Decay, carried: bool
) -> tuple[Tensor, Affine | None]:
    mixing = decay.scores(k, k)
    weights = decay.scores(q, k)
    wanted = torch.cat((v, _by_head(decay.to_token(k), v)), -1) if carried else v
    if beta is not None:
        mixing, wanted = mixing * beta, wanted * beta
    solved = solve_unit_lower(mixing, wanted)
    if not carried:
        return weights @ solved, None
    own, lost = solved.split((v.shape[-1], k.shape[-1]), -1)
    kept = decay.to_end(k).mT
    return _affine(q, weights @ own, weights @ lost, kept @ own, kept @ lost, decay)


def _by_pair(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, decay: Decay, carried: bool
) -> tuple[Tensor, Affine | None]:
    wanted = decay.scores_before(a, k) @ v
    if carried:
        wanted = torch.cat((wanted, _by_head(decay.before_token(a), v)), -1)
    solved = solve_unit_lower(decay.scores_before(a, b), wanted)
    weights = decay.scores(q, b)
    own, lost = solved.split((v.shape[-1], solved.shape[-1] - v.shape[-1]), -1)
    out = decay.scores(q, k) @ v - weights @ own
    if not carried:
        return out, None
    erased = decay.to_end(b).mT
    return _affine(q, out, weights @ lost, decay.to_end(k).mT @ v - erased @ own, erased @ lost, decay)


def _affine(
    q: Tensor, out: Tensor, unread: Tensor, gain: Tensor, erased: Tensor, decay: Decay
) -> tuple[Tensor, Affine]:
    unit = torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    factor = decay.over_chunk()
    turn = (unit if factor is None else unit * factor) - erased
    return out, Affine(out, decay.to_token(q) - unread, gain, turn)


def _carry(affine: Affine, initial: Tensor | None) -> tuple[Tensor | None, Tensor]:
    """States [B, H, N, K, V] ahead of every chunk, None for zero, and [B, H, K, V] behind the last."""
    turns, gains = affine.turn_BHNKK.unbind(2), affine.gain_BHNKV.unbind(2)
    state = gains[0] if initial is None else gains[0] + turns[0] @ initial
    ahead = [torch.zeros_like(gains[0]) if initial is None else initial]
    for turn, gain in zip(turns[1:], gains[1:], strict=True):
        ahead.append(state)
        state = gain + turn @ state
    if len(ahead) == 1 and initial is None:
        return None, state
    return torch.stack(ahead, 2), state


def _by_head(x: Tensor, like: Tensor) -> Tensor:
    """One that all heads share [B, 1, N, C, K] as one a head."""
    return x.expand(-1, like.shape[1], -1, -1, -1)
