"""How much the gradient of every token still weighs in the memory of a later one: window, momentum and decay multiplied out.

A_t = kept_t A_0 - moved_t P_0 - sum_i write_{t,i} g_i,    P_t = slowed_t P_0 + sum_i push_{t,i} g_i
where g_i is the gradient that token i brings and A_0, P_0 stand ahead of the first token.

N tokens, M = c - 1 + N tokens that their windows see, c window, b chunk
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.recurrence.decay import pair_decays, running_sums
from recallmap.arch.kernels.test_time.learning_rule import Momentum

LEAST = 1e-30  # of a factor whose logarithm is summed


class Influence(NamedTuple):
    """kept, moved, slowed [..., N]; write, push [..., N, M (or S)]. Without momentum P is what a token's window brings.

    rate [..., N, N] is what P_s, taken as it is, weighs in A_t; log_decay [..., N] the logarithm of what a token keeps of A.
    """

    kept: Tensor
    write: Tensor
    push: Tensor
    rate: Tensor
    log_decay: Tensor
    moved: Tensor | None = None
    slowed: Tensor | None = None


def influence(alpha: Tensor, eta: Tensor, theta: Tensor | None, band: Tensor, order: Momentum) -> Influence:
    """alpha, eta, theta [..., N]; band [..., N, M], or [..., N, S] where a token counts once for every chunk that sees it."""
    log_decay, fade, kept = _products(alpha)
    rate = fade * eta[..., None, :]
    if theta is None:
        return Influence(kept, rate @ band, band, rate, log_decay)
    _, slow, slowed = _products(theta)
    if order == "inside":
        push = (slow * eta[..., None, :]) @ band
        return Influence(kept, fade @ push, push, fade, log_decay, _apply(fade, slowed), slowed)
    push = slow @ band
    return Influence(kept, rate @ push, push, rate, log_decay, _apply(rate, slowed), slowed)


def band(gamma: Tensor, *, position: int, chunk: int, cross_chunk: bool) -> Tensor:
    """[..., P, N, c] weights of the tokens 0, 1, ... c - 1 ago, in P pieces one behind the other -> [..., P, N, M], zero where
    there is no such token.

    position   of the first of the P N tokens in the whole sequence
    """
    pieces, tokens, window = gamma.shape[-3:]
    seen = tokens + window - 1
    laid = F.pad(gamma.flip(-1), (0, tokens)).flatten(-2)[..., : tokens * seen].unflatten(-1, (tokens, seen))
    start = torch.arange(position, position + pieces * tokens, tokens, device=gamma.device)[:, None]
    now = start + torch.arange(tokens, device=gamma.device)
    first = torch.zeros_like(now) if cross_chunk else now - now % chunk
    that = start + torch.arange(1 - window, tokens, device=gamma.device)
    return laid * (that[:, None] >= first[..., None]).to(gamma.dtype)


class Chunks(NamedTuple):
    """N tokens in chunks of b, each of whose windows see b + c - 1 tokens: S sights of a token from a chunk.

    token [S]    which of the M tokens is seen
    seen [N, S]  1 where the sight belongs to the token's own chunk
    ahead [S]    how many of the N tokens came before the chunk
    """

    token: Tensor
    seen: Tensor
    ahead: Tensor


def chunks_of(tokens: int, chunk: int, window: int, like: Tensor) -> Chunks:
    """`tokens` is a multiple of `chunk`."""
    count, sight = tokens // chunk, chunk + window - 1
    start = torch.arange(count, device=like.device) * chunk
    token = (start[:, None] + torch.arange(sight, device=like.device)).flatten()
    ahead = start.repeat_interleave(sight)
    now = torch.arange(tokens, device=like.device)
    return Chunks(token, (now[:, None] - now[:, None] % chunk == ahead).to(like.dtype), ahead)


def _products(factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithms of factors [..., N], their products over s < r <= t [..., t, s], and over all up to t [..., t]."""
    log = factor.clamp(min=LEAST).log()
    return log, pair_decays(log), running_sums(log).exp()


def _apply(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None]).squeeze(-1)
