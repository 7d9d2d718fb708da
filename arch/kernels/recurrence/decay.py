"""How states and scores fade inside a chunk of C tokens: not at all, by a factor a head, or by a factor a key channel.

With g the log decays and G their sum from the chunk's start to a token, that token included, exponents are
    to a token      G_t                to a token, its own decay not yet done    G_t - g_t
    to the end      G_C - G_t          from token s to token t                   G_t - G_s
Every exponent is a sum of log decays, hence <= 0, and keeps its own relative precision: a difference of two long sums would
lose a small decay behind a large one. No exponent of a pair touches the pair (t, t), so gradients of gates carry no
cancelled terms.

B batch, H heads (1 where heads share the tensor), N chunks, C tokens a chunk, K key width, R rows
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def triangle(size: int, like: Tensor, diagonal: int = 0) -> Tensor:
    """Ones on and below a diagonal [C, C]. Multiplying by it is the fastest mask there is on a CPU."""
    return torch.ones(size, size, dtype=like.dtype, device=like.device).tril(diagonal)


def running_sums(g: Tensor) -> Tensor:
    """g_1 + ... + g_t [..., C], by a product: a GPU takes longer to scan rows as short as these."""
    return g @ triangle(g.shape[-1], g).mT


def pair_decays(g: Tensor) -> Tensor:
    """exp(g_{s+1} + ... + g_t) for s <= t, 0 for s > t: [..., C] -> [..., t, s]."""
    size = g.shape[-1]
    strict = triangle(size, g, -1)
    never = torch.full((size, size), -torch.inf, dtype=g.dtype, device=g.device).triu(1)
    until = running_sums(g.double())
    high = until.to(g.dtype)
    exponent = high[..., :, None] - high[..., None, :]
    if g.dtype != torch.float64:
        low = (until - high).to(g.dtype).detach()  # what the sums lose to rounding; as a derivative it is zero
        exponent = exponent + (low[..., :, None] - low[..., None, :])
    return (exponent * strict + never).exp()


def once(make: Callable[[Any], Any]) -> Any:
    """A property that is made when it is first read (functools' own takes a lock, which torch.compile cannot trace)."""
    name = f"_made_{make.__name__}"

    def read(self: Any) -> Any:
        if not hasattr(self, name):
            setattr(self, name, make(self))
        return getattr(self, name)

    return property(read, doc=make.__doc__)


class Decay(ABC):
    """All x are [B, H, N, C, K]; states are [B, H, K, V]."""

    @abstractmethod
    def to_token(self, x: Tensor) -> Tensor:
        """x_t, faded from the chunk's start to behind token t."""

    @abstractmethod
    def before_token(self, x: Tensor) -> Tensor:
        """x_t, faded from the chunk's start to ahead of token t's own decay."""

    @abstractmethod
    def to_end(self, x: Tensor) -> Tensor:
        """x_t, faded from behind token t to the chunk's end."""

    @abstractmethod
    def over_chunk(self) -> Tensor | None:
        """The factor [B, H, N, K or 1, 1] by which a state fades over a whole chunk; None for 1."""

    @abstractmethod
    def scores(self, rows: Tensor, columns: Tensor) -> Tensor:
        """rows_t . columns_s, faded from s to t, for s <= t, 0 above: [B, H, N, C, C]."""

    @abstractmethod
    def scores_before(self, rows: Tensor, columns: Tensor) -> Tensor:
        """rows_t . columns_s, faded from s to ahead of token t's own decay, for s < t, 0 elsewhere: [B, H, N, C, C]."""


class NoDecay(Decay):
    """Nothing fades."""

    def to_token(self, x: Tensor) -> Tensor:
        return x

    def before_token(self, x: Tensor) -> Tensor:
        return x

    def to_end(self, x: Tensor) -> Tensor:
        return x

    def over_chunk(self) -> None:
        return None

    def scores(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows @ columns.mT) * triangle(rows.shape[-2], rows)

    def scores_before(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows @ columns.mT) * triangle(rows.shape[-2], rows, -1)


class HeadDecay(Decay):
    """One factor a head, from log decays [B, H, N, C]."""

    def __init__(self, g_BHNC: Tensor) -> None:
        self.g = g_BHNC

    @once
    def pairs(self) -> Tensor:
        """The factor from token s to token t, 0 for s > t: [B, H, N, t, s]."""
        return pair_decays(self.g)

    def to_token(self, x: Tensor) -> Tensor:
        return x * self.g.cumsum(-1).exp()[..., None]

    def before_token(self, x: Tensor) -> Tensor:
        return x * pad(self.g[..., :-1].cumsum(-1), (1, 0)).exp()[..., None]

    def to_end(self, x: Tensor) -> Tensor:
        return x * pad(self.g[..., 1:].flip(-1).cumsum(-1).flip(-1), (0, 1)).exp()[..., None]

    def over_chunk(self) -> Tensor:
        return self.g.sum(-1).exp()[..., None, None]

    def scores(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows @ columns.mT) * self.pairs

    def scores_before(self, rows: Tensor, columns: Tensor) -> Tensor:
        return (rows @ columns.mT) * pad(self.pairs[..., :-1, :], (0, 0, 1, 0))


class ChannelDecay(Decay):
    """One factor a key channel, from log decays [B, H, N, C, K]; C is a power of two.

    A score of two tokens needs the decay between them in every channel, which is no matrix product. It becomes one where
    the two lie on either side of a border: fade the row from the border to its token, the column from its token to the
    border. A binary tree over the chunk has such a border for every pair, on exactly one of its log2(C) levels; so the
    scores are log2(C) batched products, and no exponent is ever positive.
    """

    def __init__(self, g_BHNCK: Tensor) -> None:
        self.g = g_BHNCK

    def to_token(self, x: Tensor) -> Tensor:
        return x * self.g.cumsum(-2).exp()

    def before_token(self, x: Tensor) -> Tensor:
        return x * pad(self.g[..., :-1, :].cumsum(-2), (0, 0, 1, 0)).exp()

    def to_end(self, x: Tensor) -> Tensor:
        return x * pad(self.g[..., 1:, :].flip(-2).cumsum(-2).flip(-2), (0, 0, 0, 1)).exp()

    def over_chunk(self) -> Tensor:
        return self.g.sum(-2).exp()[..., None]

    def scores(self, rows: Tensor, columns: Tensor) -> Tensor:
        diagonal = (rows * columns).sum(-1).expand(self.g.shape[:-1])
        return self._tree(rows, columns, diagonal, self._row_factors)

    def scores_before(self, rows: Tensor, columns: Tensor) -> Tensor:
        return self._tree(rows, columns, torch.zeros_like(self.g[..., 0]), self._row_factors_before)

    @once
    def _totals(self) -> list[Tensor]:
        """Log decay over every block of 1, 2, 4 ... C tokens: [..., blocks, 1, K]."""
        totals = [self.g.unsqueeze(-2)]
        while totals[-1].shape[-3] > 1:
            first, second = _halves(totals[-1])
            totals.append(first + second)
        return totals

    @once
    def _column_factors(self) -> list[Tensor]:
        """By block size 1, 2, 4 ... C / 2, for tokens of left blocks: to the border behind the block."""
        factors, fade = [], torch.zeros_like(self._totals[0])
        for totals in self._totals[:-1]:
            left, right = _halves(fade)
            factors.append(left.exp())
            fade = torch.cat((left + _halves(totals)[1], right), -2)
        return factors

    @once
    def _row_factors(self) -> list[Tensor]:
        """By block size, for tokens of right blocks: from the border ahead of the block, own decay included."""
        return self._from_border(self._totals[0])

    @once
    def _row_factors_before(self) -> list[Tensor]:
        """The same without the token's own decay."""
        return self._from_border(torch.zeros_like(self._totals[0]))

    def _from_border(self, fade: Tensor) -> list[Tensor]:
        factors = []
        for totals in self._totals[:-1]:
            left, right = _halves(fade)
            factors.append(right.exp())
            fade = torch.cat((left, right + _halves(totals)[0]), -2)
        return factors

    def _tree(self, rows: Tensor, columns: Tensor, diagonal: Tensor, row_factors: list[Tensor]) -> Tensor:
        blocks = diagonal[..., None, None]
        for row_factor, column_factor in zip(row_factors, self._column_factors, strict=True):
            size = row_factor.shape[-2]
            right = _halves(rows.unflatten(-2, (-1, size)))[1] * row_factor
            left = _halves(columns.unflatten(-2, (-1, size)))[0] * column_factor
            first, second = _halves(blocks)
            blocks = torch.cat((pad(first, (0, size)), torch.cat((right @ left.mT, second), -1)), -2)
        return blocks.squeeze(-3)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The left and the right ones of the pairs of blocks along dimension -3."""
    left, right = x.unflatten(-3, (-1, 2)).unbind(-3)
    return left, right
