"""Test-time learning over a piece of a sequence by matrix products, without a weight matrix for every token.

With g_i = x_i^T d_i the gradients that a piece's tokens bring (network.py) and their weights of influence.py, a token's read is
    h W_t = kept_t h A_0 - moved_t h P_0 - sum_i write_{t,i} (h . x_i) d_i
so the first matrix need not exist: products h A_0 and h . x_i may be those of a feature map that is never computed.

B batch, H heads, T tokens of the sequence, N tokens of a piece, M = c - 1 + N tokens that their windows see,
S sights of a token from a chunk, D width of inputs, V value width
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, repeat
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.recurrence.triangular_solve import solve_unit_lower
from recallmap.arch.kernels.test_time.influence import Influence, band, chunks_of, influence
from recallmap.arch.kernels.test_time.learning_rule import Rule
from recallmap.arch.kernels.test_time.network import LayerNorm, Product, backward, forward, learn, with_one

SIGHTS = 64  # of one triangular solve
FREE_TOKENS = 256  # of one piece where gradients do not depend on the weights
TOGETHER = 1024  # tokens whose influence on each other, within their pieces, is made at once


class Tokens(NamedTuple):
    """The inputs of a memory: all [B, H, ...]. Keys, values and thresholds begin with the c - 1 tokens of the window."""

    q: Tensor  # [B, H, T, D]
    k: Tensor  # [B, H, c - 1 + T, D]
    v: Tensor  # [B, H, c - 1 + T, V]
    threshold: Tensor | None  # [B, H, c - 1 + T]
    alpha: Tensor  # [B, H, T]
    eta: Tensor  # [B, H, T]
    theta: Tensor | None  # [B, H, T]
    gamma: Tensor  # [B, H, T, c]

    def split(self, counts: Sequence[int]) -> Iterator[Tokens]:
        """Pieces of so many tokens each, with those that their windows see. Taken apart at once: the derivative of a slice is
        as long as the sequence."""
        past, counts = self.k.shape[2] - self.q.shape[2], list(counts)

        def now(x: Tensor | None) -> Sequence[Any]:
            return [None] * len(counts) if x is None else x.split(counts, 2)

        def seen(x: Tensor | None) -> Sequence[Any]:
            if x is None:
                return [None] * len(counts)
            pieces = list(x.split([past + counts[0], *counts[1:]], 2))
            for i in range(1, len(pieces) if past else 1):
                pieces[i] = torch.cat([pieces[i - 1][:, :, -past:], pieces[i]], 2)
            return pieces

        fields = (now(self.q), seen(self.k), seen(self.v), seen(self.threshold))
        return map(Tokens, *fields, *map(now, (self.alpha, self.eta, self.theta, self.gamma)))


class Store(Protocol):
    """A linear map that takes in gradients."""

    def product(self, x: Tensor) -> Tensor:
        """x W [B, H, N, columns]."""

    def back(self, d: Tensor) -> Tensor:
        """d W^T."""

    def gram(self, x: Tensor, keys: Tensor) -> Tensor:
        """x . keys [B, H, N, M], in the space that W maps from."""

    def after(self, kept: Tensor, keys: Tensor, change: Tensor, fresh: int) -> Store:
        """kept [B, H] W - keys^T change, where the last `fresh` of the keys are new."""


class Matrix(NamedTuple):
    """A map that is a matrix [B, H, rows, columns]."""

    weights: Tensor

    def product(self, x: Tensor) -> Tensor:
        return x @ self.weights

    def back(self, d: Tensor) -> Tensor:
        return d @ self.weights.mT

    def gram(self, x: Tensor, keys: Tensor) -> Tensor:
        return x @ keys.mT

    def after(self, kept: Tensor, keys: Tensor, change: Tensor, fresh: int) -> Matrix:
        return Matrix(kept[..., None, None] * self.weights - keys.mT @ change)


Map = TypeVar("Map", bound=Store)


class Learned(NamedTuple, Generic[Map]):
    """The learned state of a memory: its maps, their momentum, and the maps at the chunk's start."""

    maps: tuple[Map, ...]
    momentum: tuple[Tensor, ...] | None
    reference: tuple[Map, ...]


def over_time(
    learned: Learned,
    tokens: Tokens,
    rule: Rule,
    norm: LayerNorm | None,
    position: int,
    chunk: int | None,
    within: Callable[[Learned, Tokens, Influence, Rule, LayerNorm | None], tuple[Tensor, Learned]],
) -> tuple[Tensor, Learned]:
    """Read-outs y [B, H, T, V] and what is known behind the last token.

    position  of the first token in the whole sequence
    chunk     tokens at once where more than a chunk's can be; None: by what was fastest
    within    does a piece that lies in one chunk
    """
    normed = norm is not None
    free = rule.independent(len(learned.maps), normed=normed)
    many = rule.affine(len(learned.maps), normed=normed)
    outputs = []
    counts = list(cut(tokens.q.shape[2], rule, position, chunk, free=free, many=many))
    weights = weights_of(tokens, counts, rule, position, free=free)
    for count, piece, weight in zip(counts, tokens.split(counts), weights, strict=True):
        if position % rule.chunk == 0:
            learned = learned._replace(reference=learned.maps)
        if solved(count, rule, free=free):
            y, learned = solve_pieces(learned, piece, weight, rule)
        else:
            y, learned = within(learned, piece, weight, rule, norm)
        outputs.append(y)
        position += count
    if position % rule.chunk == 0:
        learned = learned._replace(reference=learned.maps)
    return torch.cat(outputs, 2), learned


def cut(tokens: int, rule: Rule, position: int, chunk: int | None, *, free: bool, many: bool) -> Iterator[int]:
    """The length of each piece: what lies in one chunk, or whole chunks where `many` can be solved for at once, or
    any tokens where gradients are `free` of the weights."""
    b = rule.chunk
    at_once = max(1, chunk // b if chunk else SIGHTS // (b + rule.window - 1)) * b
    start = 0
    while start < tokens:
        inside, left = (position + start) % b, tokens - start
        whole = left - left % b
        if free:
            count = min(chunk or FREE_TOKENS, left)
        elif many and inside == 0 and whole:
            count = min(at_once, whole)
        else:
            count = min(b - inside, left)
        yield count
        start += count


def solved(count: int, rule: Rule, *, free: bool) -> bool:
    """True where a piece of so many tokens is more than a chunk, and the errors of its chunks are solved for."""
    return count > rule.chunk and not free


def learn_piece(
    learned: Learned, tokens: Tokens, weight: Influence, rule: Rule, norm: LayerNorm | None
) -> tuple[Tensor, Learned]:
    """Tokens within one chunk."""
    inputs, signals = gradients(learned.reference, tokens, rule, norm)
    y, _ = forward(tokens.q, _read(learned, weight, inputs, signals), len(learned.maps), rule)
    changes = tuple(weight.write[..., -1, :, None] * d for d in signals)
    pushes = tuple(weight.push[..., -1, :, None] * d for d in signals)
    return y, _after(learned, weight, inputs, changes, pushes)


def solve_pieces(learned: Learned, tokens: Tokens, weight: Influence, rule: Rule) -> tuple[Tensor, Learned]:
    """Many whole chunks of a linear memory: one triangular solve gives the errors of all of them."""
    (store,) = learned.maps
    count, seen = tokens.q.shape[2], tokens.k.shape[2]
    sights = chunks_of(count, rule.chunk, rule.window, tokens.q)
    k = with_one(tokens.k, rule)
    k_S, v_S = k[:, :, sights.token], tokens.v[:, :, sights.token]

    def ahead(x: Tensor, first: float) -> Tensor:
        """x [B, H, N, ...] just ahead of every sight's chunk."""
        before = F.pad(x[:, :, :-1], (0, 0) * (x.ndim - 3) + (1, 0), value=first)
        return before[:, :, sights.ahead]

    known = ahead(weight.kept, 1.0)[..., None] * store.product(k_S)
    if learned.momentum is not None and weight.moved is not None:
        known = known - ahead(weight.moved, 0.0)[..., None] * (k_S @ learned.momentum[0])
    coupling_SS = ahead(weight.write, 0.0) * store.gram(k_S, k_S)
    error_S = solve_unit_lower(coupling_SS, known - v_S)
    y, _ = forward(tokens.q, _read(learned, weight, (k_S,), (error_S,)), 1, rule)

    of_token = (torch.arange(seen, device=k.device)[:, None] == sights.token).to(k.dtype)
    changes = (of_token @ (weight.write[..., -1, :, None] * error_S),)
    pushes = (of_token @ (weight.push[..., -1, :, None] * error_S),)
    return y, _after(learned, weight, (k,), changes, pushes)


def gradients(
    reference: tuple[Store, ...], tokens: Tokens, rule: Rule, norm: LayerNorm | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs and signals of every map, of all tokens that the windows see, at the reference."""
    answer, trace = forward(tokens.k, lambda i, x: reference[i].product(x), len(reference), rule)
    signal = learn(answer, tokens.v, tokens.threshold, norm, rule)
    return trace.inputs, backward(signal, lambda i, d: reference[i].back(d), trace, rule)


def weights_of(tokens: Tokens, counts: Sequence[int], rule: Rule, position: int, *, free: bool) -> Iterator[Influence]:
    """The weight of every token's gradient at every later token of its piece. Many pieces of equal length are computed at
    once, because on a GPU their small operations would take most of the time."""
    alike = [
        (count, many) for count, same in groupby(counts) for many in _parts(len(list(same)), TOGETHER // count or 1)
    ]

    def apart(x: Tensor) -> Iterator[Tensor]:
        stretches = x.split([count * many for count, many in alike], 2)
        return (x.unflatten(2, (many, -1)) for x, (_, many) in zip(stretches, alike, strict=True))

    thetas = repeat(None, len(alike)) if tokens.theta is None else apart(tokens.theta)
    gates = zip(alike, apart(tokens.alpha), apart(tokens.eta), thetas, apart(tokens.gamma), strict=True)
    for (count, many), alpha, eta, theta, gamma in gates:
        bands = band(gamma, position=position, chunk=rule.chunk, cross_chunk=rule.cross_chunk)
        if solved(count, rule, free=free):
            sights = chunks_of(count, rule.chunk, rule.window, tokens.q)
            bands = bands[..., sights.token] * sights.seen
        together = influence(alpha, eta, theta, bands, rule.momentum)
        yield from map(Influence, *(repeat(None, many) if x is None else x.unbind(2) for x in together))
        position += count * many


def _parts(count: int, most: int) -> Iterator[int]:
    """`count` in parts of `most`, and what is left."""
    return (min(most, count - start) for start in range(0, count, most))


def _read(learned: Learned, weight: Influence, inputs: tuple[Tensor, ...], signals: tuple[Tensor, ...]) -> Product:
    def product(index: int, h: Tensor) -> Tensor:
        store = learned.maps[index]
        y = weight.kept[..., None] * store.product(h)
        y = y - (weight.write * store.gram(h, inputs[index])) @ signals[index]
        if learned.momentum is None or weight.moved is None:
            return y
        return y - weight.moved[..., None] * (h @ learned.momentum[index])

    return product


def _after(
    learned: Learned,
    weight: Influence,
    inputs: tuple[Tensor, ...],
    changes: tuple[Tensor, ...],
    pushes: tuple[Tensor, ...],
) -> Learned:
    """changes, pushes: what the tokens' signals add to maps and momentum behind the last token of a piece."""
    kept, fresh = weight.kept[..., -1], weight.kept.shape[-1]
    maps = tuple(s.after(kept, x, d, fresh) for s, x, d in zip(learned.maps, inputs, changes, strict=True))
    if learned.momentum is None or weight.moved is None or weight.slowed is None:
        return learned._replace(maps=maps)
    moved, slowed = weight.moved[..., -1, None, None], weight.slowed[..., -1, None, None]
    maps = tuple(
        Matrix(s.weights - moved * p) for s, p in zip(maps, learned.momentum, strict=True) if isinstance(s, Matrix)
    )
    momentum = tuple(slowed * p + x.mT @ d for p, x, d in zip(learned.momentum, inputs, pushes, strict=True))
    return learned._replace(maps=maps, momentum=momentum)
