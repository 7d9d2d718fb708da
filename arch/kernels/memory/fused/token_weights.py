"""The weights that every token's gradient has at every later token of its chunk: test_time.influence in one launch.

A program has one chunk of one head. T time, H heads, N chunks of C tokens, S tokens that a chunk sees
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.memory.fused.plan import Cut
from recallmap.arch.kernels.memory.fused.tiles import load, load_vector, store
from recallmap.arch.kernels.op_interface.custom_op import opaque, packed, padded
from recallmap.arch.kernels.test_time.influence import LEAST


@triton.jit
def _products(factor, least, C: tl.constexpr):
    """Products of factors [C] over s < r <= t [t, s], and over all up to t. Each exponent sums its own logarithms only."""
    log = tl.log(tl.maximum(factor, least))
    ahead = tl.arange(0, C)[:, None] - tl.arange(0, C)[None, :]
    pairs = tl.where(ahead >= 0, tl.exp(tl.cumsum(tl.where(ahead > 0, log[:, None], 0.0), 0)), 0.0)
    return pairs, tl.exp(tl.cumsum(log, 0))


@triton.jit
def _products_backward(d_pairs, d_all, pairs, products, factor, least, C: tl.constexpr):
    """The derivative by the factors [C]."""
    ahead = tl.arange(0, C)[:, None] - tl.arange(0, C)[None, :]
    later = tl.cumsum(tl.where(ahead > 0, d_pairs * pairs, 0.0), 0, reverse=True)
    d_log = tl.sum(tl.where(ahead > 0, later, 0.0), 1) + tl.cumsum(d_all * products, 0, reverse=True)
    return tl.where(factor >= least, d_log / tl.maximum(factor, least), 0.0)


@triton.jit
def _band(
    gamma, t, s, at, first_token, count, C: tl.constexpr, PAST: tl.constexpr, SIGHT: tl.constexpr, CROSS: tl.constexpr
):  # fmt: skip
    """Window weights [C, S] of the tokens that are there, their places in gamma, and which of those places there are."""
    B: tl.constexpr = SIGHT - PAST
    token = s // SIGHT * B + s % SIGHT
    ago = t[:, None] + PAST - token[None, :]
    placed = (ago >= 0) & (ago <= PAST) & (t[:, None] // B == s[None, :] // SIGHT) & (t < count)[:, None]
    allowed = placed & (first_token + token - PAST >= 0)[None, :]
    if not CROSS:
        allowed = allowed & (s % SIGHT >= PAST)[None, :]
    places = at[:, None] * (PAST + 1) + ago
    band = allowed.to(tl.float32)
    if gamma is not None:
        band = tl.load(gamma + places, mask=allowed, other=0.0).to(tl.float32)
    return band, places, placed, allowed


@triton.jit
def _gate(gate, at, there):
    value = there.to(tl.float32)
    if gate is not None:
        value = tl.load(gate + at, mask=there, other=0.0).to(tl.float32)
    return value


@triton.jit(do_not_specialize=["T", "H", "N", "position"])
def _memory_weights_kernel(
    eta, alpha, theta, gamma, kept, write, moved, push, slowed, T, H, N, position, least,
    C: tl.constexpr, S: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
    PAST: tl.constexpr, SIGHT: tl.constexpr, CROSS: tl.constexpr, INSIDE: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0).to(tl.int64)
    n, sequence = chunk % N, chunk // N
    t, s = tl.arange(0, BC), tl.arange(0, BS)
    count = tl.minimum(C, T - n * C)
    there = t < count
    at = (sequence // H * T + n * C + t) * H + sequence % H
    band, _, _, _ = _band(gamma, t, s, at, position + n * C, count, C, PAST, SIGHT, CROSS)
    rate = _gate(eta, at, there)
    factor = tl.where(there, _gate(alpha, at, there), 1.0)
    fade, keep = _products(factor, least, BC)
    if theta is None:
        writes = tl.dot(fade * rate[None, :], band, input_precision="ieee")
    else:
        slow, slows = _products(tl.where(there, _gate(theta, at, there), 1.0), least, BC)
        if INSIDE:
            slow = slow * rate[None, :]
        else:
            fade = fade * rate[None, :]
        pushes = tl.dot(slow, band, input_precision="ieee")
        writes = tl.dot(fade, pushes, input_precision="ieee")
        tl.store(moved + chunk * C + t, tl.sum(fade * slows[None, :], 1), mask=there)
        last = (t == count - 1).to(tl.float32)
        tl.store(push + chunk * S + s, tl.sum(pushes * last[:, None], 0), mask=s < S)
        tl.store(slowed + chunk, tl.sum(slows * last, 0))
    tl.store(kept + chunk * C + t, keep, mask=t < C)
    store(write + chunk * C * S, writes, t, s, S, 1, C, S, False)


@triton.jit(do_not_specialize=["T", "H", "N", "position"])
def _memory_weights_backward_kernel(
    d_kept, d_write, d_moved, d_push, d_slowed, eta, alpha, theta, gamma, d_eta, d_alpha, d_theta, d_gamma,
    T, H, N, position, least,
    C: tl.constexpr, S: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
    PAST: tl.constexpr, SIGHT: tl.constexpr, CROSS: tl.constexpr, INSIDE: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0).to(tl.int64)
    n, sequence = chunk % N, chunk // N
    t, s = tl.arange(0, BC), tl.arange(0, BS)
    count = tl.minimum(C, T - n * C)
    there = t < count
    at = (sequence // H * T + n * C + t) * H + sequence % H
    band, places, placed, allowed = _band(gamma, t, s, at, position + n * C, count, C, PAST, SIGHT, CROSS)
    rate = _gate(eta, at, there)
    factor = tl.where(there, _gate(alpha, at, there), 1.0)
    fade, keep = _products(factor, least, BC)
    d_keep = load_vector(d_kept + chunk * C, t, count)
    d_writes = load(d_write + chunk * C * S, t, s, S, 1, count, S)
    if theta is None:
        d_fade = tl.dot(d_writes, tl.trans(band), input_precision="ieee")
        d_band = tl.dot(tl.trans(fade * rate[None, :]), d_writes, input_precision="ieee")
        d_rate = tl.sum(d_fade * fade, 0)
        d_fade = d_fade * rate[None, :]
    else:
        slow_factor = tl.where(there, _gate(theta, at, there), 1.0)
        slow, slows = _products(slow_factor, least, BC)
        last = (t == count - 1).to(tl.float32)
        d_moves = load_vector(d_moved + chunk * C, t, count)
        fades, slower = fade, slow
        if INSIDE:
            slower = slow * rate[None, :]
        else:
            fades = fade * rate[None, :]
        pushes = tl.dot(slower, band, input_precision="ieee")
        d_pushes = tl.dot(tl.trans(fades), d_writes, input_precision="ieee")
        d_pushes += last[:, None] * load_vector(d_push + chunk * S, s, S)[None, :]
        d_fade = tl.dot(d_writes, tl.trans(pushes), input_precision="ieee") + d_moves[:, None] * slows[None, :]
        d_slow = tl.dot(d_pushes, tl.trans(band), input_precision="ieee")
        d_slows = tl.sum(fades * d_moves[:, None], 0) + last * tl.load(d_slowed + chunk)
        d_band = tl.dot(tl.trans(slower), d_pushes, input_precision="ieee")
        if INSIDE:
            d_rate = tl.sum(d_slow * slow, 0)
            d_slow = d_slow * rate[None, :]
        else:
            d_rate = tl.sum(d_fade * fade, 0)
            d_fade = d_fade * rate[None, :]
        d_factor = _products_backward(d_slow, d_slows, slow, slows, slow_factor, least, BC)
        tl.store(d_theta + at, d_factor.to(d_theta.dtype.element_ty), mask=there)
    if eta is not None:
        tl.store(d_eta + at, d_rate.to(d_eta.dtype.element_ty), mask=there)
    if alpha is not None:
        d_factor = _products_backward(d_fade, d_keep, fade, keep, factor, least, BC)
        tl.store(d_alpha + at, d_factor.to(d_alpha.dtype.element_ty), mask=there)
    if gamma is not None:
        tl.store(d_gamma + places, tl.where(allowed, d_band, 0.0).to(d_gamma.dtype.element_ty), mask=placed)


# The weights that the walks of memories read.


@triton.jit
def load_weights(kept, write, chunk, t, m, count, C: tl.constexpr, S: tl.constexpr):
    """Weights of sights in tokens [C, S], and in the chunk's last one [S]; what tokens keep [C], and the last one."""
    last = count - 1
    weights = load(write + chunk * C * S, t, m, S, 1, count, S)
    change = load_vector(write + (chunk * C + last) * S, m, S)
    keep = load_vector(kept + chunk * C, t, count)
    return weights, change, keep, tl.load(kept + chunk * C + last)


@triton.jit
def load_momentum_weights(
    moved, push, slowed, keep, keep_last, change, chunk, t, m, count, C: tl.constexpr, S: tl.constexpr
):  # fmt: skip
    """The same of momentum: what tokens lose to it [C], and the last one, what is left of it there, and what it takes in [S].
    Without momentum anything of that form."""
    move, move_last, slow_last, shove = keep, keep_last, keep_last, change
    if moved is not None:
        last = count - 1
        move = load_vector(moved + chunk * C, t, count)
        move_last, slow_last = tl.load(moved + chunk * C + last), tl.load(slowed + chunk)
        shove = load_vector(push + chunk * S, m, S)
    return move, move_last, slow_last, shove


@triton.jit
def store_weight_gradients(
    d_kept, d_write, d_moved, d_push, d_slowed, d_weights, by_change, by_shove, by_keep, by_move, by_keep_last, by_move_last,
    by_slow_last, chunk, t, m, count, C: tl.constexpr, S: tl.constexpr, MOMENTUM: tl.constexpr,
):  # fmt: skip
    """Store derivatives by a chunk's weights; those by its last token's come apart."""
    last = count - 1
    d_weights += tl.where(t == last, 1.0, 0.0)[:, None] * by_change[None, :]
    store(d_write + chunk * C * S, d_weights, t, m, S, 1, count, S, False)
    tl.store(d_kept + chunk * C + t, by_keep + tl.where(t == last, by_keep_last, 0.0), mask=t < count)
    if MOMENTUM:
        tl.store(d_moved + chunk * C + t, by_move + tl.where(t == last, by_move_last, 0.0), mask=t < count)
        tl.store(d_push + chunk * S + m, by_shove, mask=m < S)
        tl.store(d_slowed + chunk, by_slow_last)


# The launches.


class WeightInputs(NamedTuple):
    """Gates [B, T, H], gamma [B, T, H, c]; how the sequence is cut; tokens ahead of it, as far as windows reach; whether
    windows reach over a chunk's start; whether the learning rate is inside the momentum."""

    eta: Tensor
    alpha: Tensor | None
    theta: Tensor | None
    gamma: Tensor | None
    size: int
    chunk: int
    past: int
    ahead: int
    cross_chunk: bool
    inside: bool

    @property
    def gates(self) -> list[Tensor | None]:
        return [packed(x) for x in (self.eta, self.alpha, self.theta, self.gamma)]

    def constants(self) -> dict[str, Any]:
        """Constants that kernels are compiled for."""
        cut = Cut(self.size, self.chunk, self.past)
        sizes = {"C": cut.size, "S": cut.sights, "BC": padded(cut.size), "BS": padded(cut.sights), "PAST": cut.past}
        flags = {"SIGHT": cut.chunk + cut.past, "CROSS": self.cross_chunk, "INSIDE": self.inside}
        return {**sizes, **flags, "num_warps": 1, "num_stages": 1}


class TokenWeights(NamedTuple):
    """kept, moved [B, H, N, C]; write [B, H, N, C, S]; push [B, H, N, S] and slowed [B, H, N] of every piece's last token. The
    last three are empty without momentum."""

    kept: Tensor
    write: Tensor
    moved: Tensor
    push: Tensor
    slowed: Tensor


def _forward(x: WeightInputs) -> TokenWeights:
    results = _empty_results(x)
    (batch, time, heads), chunks = x.eta.shape, results.kept.shape[2]
    _memory_weights_kernel[(batch * heads * chunks,)](
        *x.gates, *results, time, heads, chunks, x.ahead, LEAST, **x.constants()
    )
    return results


def _empty_results(x: WeightInputs) -> TokenWeights:
    batch, time, heads = x.eta.shape
    chunks, sights = -(-time // x.size), Cut(x.size, x.chunk, x.past).sights
    shapes: list[tuple[int, ...]] = [(chunks, x.size), (chunks, x.size, sights)]
    shapes += [(0,)] * 3 if x.theta is None else [(chunks, x.size), (chunks, sights), (chunks,)]
    return TokenWeights(
        *(torch.empty(batch, heads, *shape, dtype=torch.float32, device=x.eta.device) for shape in shapes)
    )


def _backward(derivatives: tuple[Tensor, ...], x: WeightInputs, rest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    found = _empty_gradients(derivatives, x, rest)
    (batch, time, heads), chunks = x.eta.shape, derivatives[1].shape[2]
    _memory_weights_backward_kernel[(batch * heads * chunks,)](
        *map(packed, derivatives), *x.gates, *found, time, heads, chunks, x.ahead, LEAST, **x.constants()
    )
    return found


def _empty_gradients(derivatives: tuple[Tensor, ...], x: WeightInputs, rest: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    gates = (x.eta, x.alpha, x.theta, x.gamma)
    return tuple(x.eta.new_empty(len(x.eta)) if gate is None else gate.new_empty(gate.shape) for gate in gates)


token_weights = opaque(
    "memory_weights",
    _forward,
    _backward,
    outputs=_empty_results,
    gradients=_empty_gradients,
    differentiable=5,
    inputs=WeightInputs,
    results=TokenWeights,
)
