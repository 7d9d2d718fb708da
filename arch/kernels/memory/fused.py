"""Test-time learning by gradient descent in one launch forward and one backward: a program walks the chunks of one head.

With W, P a memory and its momentum at a chunk's start, x_i inputs of a matrix, d_i the signals behind it (test_time.network),
    h W_t = kept_t h W - moved_t h P - sum_i write_{t,i} (h . x_i) d_i
    W' = kept W - moved P - sum_i write_i x_i^T d_i,    P' = slowed P + sum_i push_i x_i^T d_i       (of the chunk's last token)
Weights of test_time.influence come from outside, a matrix a chunk, and take their derivatives back there. The last matrix is
taken a block of rows at a time, the one before it by the same hidden units: a linear memory is its own last matrix.
A deep memory of many features holds nothing as wide as those: it walks them in blocks, once for what goes through its first
matrix and once for what comes back, where all hidden units are taken at once. Backward starts every chunk from the memory
that forward left there, and computes the rest again.

B batch, G groups of members (or B), T time, H heads, N chunks of C tokens, S = c - 1 + C tokens that a chunk sees,
D width of q and k, R rows of the last matrix (D, or hidden units), V value width, P floats of a memory and its momentum
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from arch.kernels.memory import MemoryState, memory
from arch.kernels.op_interface.custom_op import opaque, packed, padded
from arch.kernels.test_time.influence import LEAST
from arch.kernels.test_time.learning_rule import DotLoss, Rule
from arch.kernels.test_time.network import NORM_EPS, LayerNorm

WIDEST = 128  # of keys and values
WIDEST_DEEP = 64
WIDEST_FEATURES = 1024  # of a deep memory
WIDEST_WHOLE = 64  # features of a deep memory that are held whole; of more, FEATURES at a time
FEATURES = 32
MOST_SEEN = 32  # tokens of a chunk and its window
SHORT = 16  # sights of a chunk, up to which several are solved for at once
FREE_CHUNK = 16  # where gradients do not depend on the weights, and chunks are ours to choose


class Plan(NamedTuple):
    """How kernels are cut."""

    rows: int  # of the last matrix at a time
    precision: str  # of products, whose factors are fp32
    forward_warps: int
    backward_warps: int
    registers: int | None = None  # of a thread, at most; None leaves it to the compiler


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """What these kernels cannot do."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    if max(sizes.get("key_width", 1), sizes.get("value_width", 1)) > WIDEST:
        return f"takes keys and values up to {WIDEST} wide"
    if sizes.get("materialised"):
        return "needs no weights of single tokens: it has neither Newton-Schulz nor retentions but alpha"
    if sizes.get("bent_loss"):
        return "descends the l2 and the dot loss alone"
    if sizes.get("gated") or sizes.get("matrices", 1) > 2:
        return "takes memories of one or two matrices, without gated hidden units"
    if sizes.get("matrices") == 2 and max(sizes["key_width"], sizes["value_width"]) > WIDEST_DEEP:
        return (
            f"takes deep memories up to {WIDEST_DEEP} wide: wider ones leave the registers, and take minutes to compile"
        )
    if sizes.get("matrices") == 2 and sizes["features"] > WIDEST_FEATURES:
        return f"takes deep memories of at most {WIDEST_FEATURES} features"
    if sizes.get("seen", 1) > MOST_SEEN:
        return f"takes chunks that see at most {MOST_SEEN} tokens, their window's included"
    return None


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    weights: tuple[Tensor, ...],
    rule: Rule,
    eta: Tensor | None,
    alpha: Tensor | None,
    theta: Tensor | None,
    gamma: Tensor | None,
    norm: LayerNorm | None,
    features: Any,
    initial_state: MemoryState | None,
    return_state: bool,
) -> tuple[Tensor, MemoryState | None]:
    """The whole sequence. What does not start with a chunk is left to `chunked` up to the next one."""
    time, position = v.shape[1], 0 if initial_state is None else initial_state.position
    cut, framed = _cut(rule, len(weights), norm), not _free(rule, len(weights), norm)
    first = min(-position % cut.chunk, time) if framed else 0
    last = (
        (time - first) % cut.chunk if framed and return_state else 0
    )  # apart, as a state tells what its chunk began with
    o, state = [], initial_state
    for start, end in ((0, first), (first, time - last), (time - last, time)):
        if start == end:
            continue
        gates = (None if x is None else x[:, start:end] for x in (eta, alpha, theta, gamma))
        given: dict[str, Any] = dict(zip(("eta", "alpha", "theta", "gamma"), gates, strict=True))
        given |= {"weights": weights, "rule": rule, "norm": norm, "features": features, "initial_state": state}
        content = (x[:, start:end] for x in (q, k, v))
        if end == first:
            here, state = memory(*content, **given, return_state=True, implementation="chunked")
        else:
            here, state = _whole_chunks(*content, **given, cut=cut, return_state=return_state)
        o.append(here)
    return o[0] if len(o) == 1 else torch.cat(o, 1), state if return_state else None


def _free(rule: Rule, matrices: int, norm: LayerNorm | None) -> bool:
    """Whether it makes no difference where chunks begin."""
    return rule.independent(matrices, normed=norm is not None) and (rule.cross_chunk or rule.window == 1)


class _Cut(NamedTuple):
    """How a sequence is cut: chunks of `chunk` tokens, each of which sees those and `past` tokens ahead of it. A piece of
    `size` tokens holds whole chunks; what they see, sights, lies side by side."""

    size: int
    chunk: int
    past: int

    @property
    def sights(self) -> int:
        return self.size // self.chunk * (self.chunk + self.past)


def _cut(rule: Rule, matrices: int, norm: LayerNorm | None) -> _Cut:
    """Chunks are ours to choose where gradients do not depend on the weights; short ones are solved for together."""
    past = rule.window - 1
    if _free(rule, matrices, norm):
        size = max(1, min(FREE_CHUNK, MOST_SEEN - past))
        return _Cut(size, size, past)
    sight, normed = rule.chunk + past, norm is not None
    coupled = rule.affine(matrices, normed=normed) and not rule.independent(matrices, normed=normed)
    many = MOST_SEEN // sight if coupled and sight <= SHORT else 1
    return _Cut(many * rule.chunk, rule.chunk, past)


def _whole_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    weights: tuple[Tensor, ...],
    rule: Rule,
    norm: LayerNorm | None,
    features: Any,
    initial_state: MemoryState | None,
    cut: _Cut,
    return_state: bool,
    **gates: Tensor | None,
) -> tuple[Tensor, MemoryState | None]:
    """Tokens that begin with a chunk, of which the last may be shorter."""
    state, past, momentum = initial_state, cut.past, rule.momentum != "none"
    position = 0 if state is None else state.position
    keys = _behind(None if state is None else state.keys, k, past)
    values = _behind(None if state is None else state.values, v, past)
    if state is not None:
        parts = [x.float() for x in (*state.weights, *(state.momentum or ()))]
    else:
        first = [w.float()[None] for w in weights]
        parts = [*first, *map(torch.zeros_like, first)] if momentum else first
    weight = _weights(rule, cut, position, q, **gates)
    o, final, *_ = _memory(
        q if features is None else features(q),
        keys if features is None else features(keys),
        values,
        q if rule.residual else None,
        keys if rule.residual and rule.loss.of_error else None,  # |x + y - v| is |y - (v - x)|
        torch.cat([x.flatten(2) for x in parts], -1),
        None if norm is None else norm.weight[None],
        None if norm is None else norm.bias[None],
        *weight,
        weights[0].shape[-1] if len(weights) > 1 else 0,
        rule.bias,
        isinstance(rule.loss, DotLoss),
        cut.chunk,
    )
    if not return_state:
        return o.to(v.dtype), None
    sizes = [x[0, 0].numel() for x in parts]
    shaped = [x.unflatten(-1, p.shape[2:]) for x, p in zip(final.split(sizes, -1), parts, strict=True)]
    learned = tuple(shaped[: len(weights)])
    began = tuple(p.expand(v.shape[0], -1, -1, -1) for p in parts[: len(weights)])
    frozen = rule.chunk > 1 and not rule.independent(len(weights), normed=norm is not None)
    return o.to(v.dtype), MemoryState(
        weights=learned,
        momentum=tuple(shaped[len(weights) :]) if momentum else None,
        reference=None if not frozen else began if q.shape[1] % cut.chunk else learned,
        position=position + q.shape[1],
        keys=keys[:, q.shape[1] :].float().transpose(1, 2),
        values=values[:, q.shape[1] :].float().transpose(1, 2),
        delta=None,
    )


def _behind(before_BHPD: Tensor | None, x_BTHD: Tensor, past: int) -> Tensor:
    """x with the `past` tokens ahead of it."""
    if not past:
        return x_BTHD
    if before_BHPD is None:
        return F.pad(x_BTHD, (0, 0, 0, 0, past, 0))
    return torch.cat([before_BHPD.transpose(1, 2), x_BTHD], 1)


def _weights(
    rule: Rule,
    cut: _Cut,
    position: int,
    q: Tensor,
    *,
    eta: Tensor | None,
    alpha: Tensor | None,
    theta: Tensor | None,
    gamma: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """kept, moved [B, H, N, C]; write [B, H, N, C, S]; push [B, H, N, S] and slowed [B, H, N] of every piece's last token.

    moved, push and slowed are None without momentum.
    """
    rate = q.new_ones(q.shape[:3], dtype=torch.float32) if eta is None else eta
    ahead = min(position, cut.past)  # tokens there are ahead, as far as windows reach
    kept, write, *more = _weigh(rate, alpha, theta, gamma, *cut, ahead, rule.cross_chunk, rule.momentum == "inside")
    moved, push, slowed = more if theta is not None else (None, None, None)
    return kept, write, moved, push, slowed


def _table(features: int, rows: int, value_width: int, sights: int, dtype: torch.dtype) -> Plan:
    """`features` is 0 for a linear memory. Products keep to 32 rows at most, which every Triton gets right on Hopper.

    tf32 holds bf16 and fp16 whole, and three products of it what tolerances ask of fp32. "bf16" rounds states and signals too.
    """
    widest = max(padded(features) if features else 0, padded(value_width))
    precision = "tf32x3" if dtype == torch.float32 else "tf32"
    if features > WIDEST_WHOLE:
        # Of more than 32 the last matrix is learned by its transpose, of V rows.
        most = 64 if padded(value_width) <= 32 else 32
        # Left to itself, ptxas 12.8 gives the largest of these kernels 32 registers, and spills all that those do not hold.
        warps = 2 if padded(value_width) <= 16 else 4
        return Plan(min(padded(rows), most), precision, warps, warps, 255)
    if widest <= 16 and (features or sights <= 16):
        return Plan(min(padded(rows), 32), precision, 1, 2)
    warps = 1 if widest <= 16 else 4 if widest <= 64 else 8
    return Plan(16 if features or widest > 32 else min(padded(rows), 32), precision, warps, max(4, warps))


# The kernels. Content is [B, T, H, D], a memory [B, H, P] with its matrices flat, one after another, and then its momentum.


@triton.jit
def _load(pointer, rows, columns, row_stride, column_stride, row_count, column_count):  # type: ignore[no-untyped-def]
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    places = pointer + rows[:, None] * row_stride + columns[None, :] * column_stride
    return tl.load(places, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _store(pointer, x, rows, columns, row_stride, column_stride, row_count, column_count, ADD: tl.constexpr):  # type: ignore[no-untyped-def]
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    places = pointer + rows[:, None] * row_stride + columns[None, :] * column_stride
    if ADD:
        x += tl.load(places, mask=mask, other=0.0).to(tl.float32)
    tl.store(places, x.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _vector(pointer, at, count):  # type: ignore[no-untyped-def]
    return tl.load(pointer + at, mask=at < count, other=0.0).to(tl.float32)


# The weights that every token's gradient has at every later token of its chunk. One program has one chunk of one head.


@triton.jit
def _products(factor, least, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """Products of factors [C] over s < r <= t [t, s], and over all up to t. Each exponent sums its own logarithms only."""
    log = tl.log(tl.maximum(factor, least))
    ahead = tl.arange(0, C)[:, None] - tl.arange(0, C)[None, :]
    pairs = tl.where(ahead >= 0, tl.exp(tl.cumsum(tl.where(ahead > 0, log[:, None], 0.0), 0)), 0.0)
    return pairs, tl.exp(tl.cumsum(log, 0))


@triton.jit
def _products_backward(d_pairs, d_all, pairs, products, factor, least, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """The derivative by the factors [C]."""
    ahead = tl.arange(0, C)[:, None] - tl.arange(0, C)[None, :]
    later = tl.cumsum(tl.where(ahead > 0, d_pairs * pairs, 0.0), 0, reverse=True)
    d_log = tl.sum(tl.where(ahead > 0, later, 0.0), 1) + tl.cumsum(d_all * products, 0, reverse=True)
    return tl.where(factor >= least, d_log / tl.maximum(factor, least), 0.0)


@triton.jit
def _band(  # type: ignore[no-untyped-def]
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
def _gate(gate, at, there):  # type: ignore[no-untyped-def]
    value = there.to(tl.float32)
    if gate is not None:
        value = tl.load(gate + at, mask=there, other=0.0).to(tl.float32)
    return value


@triton.jit(do_not_specialize=["T", "H", "N", "position"])
def _weights_kernel(  # type: ignore[no-untyped-def]
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
    _store(write + chunk * C * S, writes, t, s, S, 1, C, S, False)


@triton.jit(do_not_specialize=["T", "H", "N", "position"])
def _weights_backward_kernel(  # type: ignore[no-untyped-def]
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
    d_keep = _vector(d_kept + chunk * C, t, count)
    d_writes = _load(d_write + chunk * C * S, t, s, S, 1, count, S)
    if theta is None:
        d_fade = tl.dot(d_writes, tl.trans(band), input_precision="ieee")
        d_band = tl.dot(tl.trans(fade * rate[None, :]), d_writes, input_precision="ieee")
        d_rate = tl.sum(d_fade * fade, 0)
        d_fade = d_fade * rate[None, :]
    else:
        slow_factor = tl.where(there, _gate(theta, at, there), 1.0)
        slow, slows = _products(slow_factor, least, BC)
        last = (t == count - 1).to(tl.float32)
        d_moves = _vector(d_moved + chunk * C, t, count)
        fades, slower = fade, slow
        if INSIDE:
            slower = slow * rate[None, :]
        else:
            fades = fade * rate[None, :]
        pushes = tl.dot(slower, band, input_precision="ieee")
        d_pushes = tl.dot(tl.trans(fades), d_writes, input_precision="ieee")
        d_pushes += last[:, None] * _vector(d_push + chunk * S, s, S)[None, :]
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


# The memory itself. One program has one head, and walks its pieces.


@triton.jit
def _dot(x, y, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    if PRECISION == "bf16":
        product = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16))
    else:
        product = tl.dot(x, y, input_precision=PRECISION)
    return product


@triton.jit
def _outer(x, y, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """x^T y, where one of both has 32 columns at most."""
    if x.shape[1] > 32:
        product = tl.trans(_dot(tl.trans(y), x, PRECISION))
    else:
        product = _dot(tl.trans(x), y, PRECISION)
    return product


@triton.jit
def _gelu(x):  # type: ignore[no-untyped-def]
    return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _slope(x):  # type: ignore[no-untyped-def]
    """The derivative of the exact GELU."""
    return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _bend(x):  # type: ignore[no-untyped-def]
    """The derivative of that."""
    return (2 - x * x) * 0.3989422804014327 * tl.exp(-0.5 * x * x)


@triton.jit
def _standard(y, there, eps, V: tl.constexpr):  # type: ignore[no-untyped-def]
    """y with mean 0 and deviation 1 over its columns, and the factor that made it so."""
    centred = tl.where(there, y - tl.sum(y, 1)[:, None] / V, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 1) / V + eps)
    return centred * scale[:, None], scale[:, None]


@triton.jit
def _standard_backward(d, standard, scale, there, V: tl.constexpr):  # type: ignore[no-untyped-def]
    d = d - tl.sum(d, 1)[:, None] / V - standard * (tl.sum(d * standard, 1)[:, None] / V)
    return tl.where(there, scale * d, 0.0)


@triton.jit
def _signal(y, target, weight, bias, there, eps, V: tl.constexpr, NORM: tl.constexpr, DOT: tl.constexpr):  # type: ignore[no-untyped-def]
    """The loss' derivative by y."""
    error = -target
    if NORM:
        standard, scale = _standard(y, there, eps, V)
        if not DOT:
            error += standard * weight[None, :] + bias[None, :]
        error = _standard_backward(error * weight[None, :], standard, scale, there, V)
    elif not DOT:
        error += y
    return error


@triton.jit
def _signal_backward(  # type: ignore[no-untyped-def]
    d, y, target, weight, bias, there, eps, V: tl.constexpr, NORM: tl.constexpr, DOT: tl.constexpr
):  # fmt: skip
    """From the derivative by the signal those by y, target, weight and bias."""
    d_y, d_error = d, d
    d_weight, d_bias = tl.zeros_like(weight), tl.zeros_like(weight)
    if NORM:
        standard, scale = _standard(y, there, eps, V)
        error = -target
        if not DOT:
            error += standard * weight[None, :] + bias[None, :]
        by_weight = error * weight[None, :]
        signal = _standard_backward(by_weight, standard, scale, there, V)
        # The signal is made from the error by a symmetric map, so the same map leads back.
        d_by_weight = _standard_backward(d, standard, scale, there, V)
        along, d_along = tl.sum(by_weight * standard, 1)[:, None] / V, tl.sum(d * standard, 1)[:, None] / V
        d_standard = -scale * (d * along + by_weight * d_along)
        d_error = d_by_weight * weight[None, :]
        d_weight = tl.sum(d_by_weight * error, 0)
        if not DOT:
            d_standard += d_error * weight[None, :]
            d_weight += tl.sum(d_error * standard, 0)
            d_bias = tl.sum(d_error, 0)
        d_y = _standard_backward(d_standard, standard, scale, there, V)
        d_y -= scale * standard * (tl.sum(d * signal, 1)[:, None] / V)
    return d_y, -d_error, d_weight, d_bias


@triton.jit
def _hidden(  # type: ignore[no-untyped-def]
    here, k, k_, m, i, j, seen, stride, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, DEEP: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Inputs [S, rows] of a block of the last matrix, what was bent to make them, and the first matrix' columns [rows, D]
    where those are held whole."""
    if DEEP:
        if D <= BD:
            first = _load(here, j, i, 1, R, R, D)
            bent = _dot(k_, tl.trans(first), PRECISION)
        else:
            bent = tl.zeros((m.shape[0], j.shape[0]), tl.float32)
            for start in range(0, D, BD):
                keys = _load(k, m, start + i, stride, 1, seen, D)
                bent += _dot(keys, _load(here, start + i, j, R, 1, D, R), PRECISION)
            first = bent
        if BIAS:
            bent += _vector(here + D * R, j, R)[None, :]
        h = _gelu(bent)
    else:
        h = _load(k, m, j, stride, 1, seen, D)
        first, bent = h, h
    return h, bent, first


@triton.jit
def _answer(  # type: ignore[no-untyped-def]
    here, held, own, k, k_, m, i, c, seen, stride, rows, D: tl.constexpr, R: tl.constexpr, V: tl.constexpr,
    BD: tl.constexpr, BR: tl.constexpr, FIRST: tl.constexpr, DEEP: tl.constexpr, BIAS: tl.constexpr, HELD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """What the memory of the chunk's start answers to the keys [S, V]; its last matrix may be held."""
    y = tl.zeros((m.shape[0], c.shape[0]), tl.float32) + own[None, :]
    for start in range(0, R if R <= BR else rows, BR):
        j = start + tl.arange(0, BR)
        h, _, _ = _hidden(here, k, k_, m, i, j, seen, stride, D, R, BD, DEEP, BIAS, PRECISION)
        w = held
        if not HELD:
            w = _load(here + FIRST, j, c, V, 1, R, V)
        y += _dot(h, w, PRECISION)
    return y


# Features in blocks i: matrices [features, hidden units] as they lie in memory, k and q [tokens, features] from there too.


@triton.jit
def _through(  # type: ignore[no-untyped-def]
    q, k, here, d_memory, t, m, i, j, count, seen, stride, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr,
    HALF: tl.constexpr, BIAS: tl.constexpr, MOMENTUM: tl.constexpr, ANSWER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What keys [S] and queries [C] make of columns j of the first matrix, its momentum and the derivatives by both:
    k W (in the digits of ANSWER, its row of biases with it), q W, q P, k dW, k dP; and q k^T."""
    bent, asked = tl.zeros((m.shape[0], j.shape[0]), tl.float32), tl.zeros((t.shape[0], j.shape[0]), tl.float32)
    asked_p, taken, taken_p = asked, bent, bent
    pairs = tl.zeros((t.shape[0], m.shape[0]), tl.float32) + BIAS
    for start in range(0, D, BD):
        at = start + i
        keys, queries = _load(k, m, at, stride, 1, seen, D), _load(q, t, at, stride, 1, count, D)
        first = _load(here, at, j, R, 1, D, R)
        bent += _dot(keys, first, ANSWER)
        asked += _dot(queries, first, PRECISION)
        pairs += _dot(queries, tl.trans(keys), PRECISION)
        if MOMENTUM:
            asked_p += _dot(queries, _load(here + HALF, at, j, R, 1, D, R), PRECISION)
        if d_memory is not None:
            taken += _dot(keys, _load(d_memory, at, j, R, 1, D, R), PRECISION)
            if MOMENTUM:
                taken_p += _dot(keys, _load(d_memory + HALF, at, j, R, 1, D, R), PRECISION)
    if BIAS:
        bent += _vector(here + D * R, j, R)[None, :]
    return bent, asked, asked_p, taken, taken_p, pairs


@triton.jit
def _learn(  # type: ignore[no-untyped-def]
    k, here, following, changed, pushed, keep_last, move_last, slow_last, m, i, j, seen, stride,
    D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, HALF: tl.constexpr, MOMENTUM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Columns j of the next first matrix and its momentum, by signals [S, rows] as they weigh in either."""
    for start in range(0, D, BD):
        at = start + i
        keys = _load(k, m, at, stride, 1, seen, D)
        new = keep_last * _load(here, at, j, R, 1, D, R) - _dot(tl.trans(keys), changed, PRECISION)
        if MOMENTUM:
            p = _load(here + HALF, at, j, R, 1, D, R)
            new -= move_last * p
            new_p = slow_last * p + _dot(tl.trans(keys), pushed, PRECISION)
            _store(following + HALF, new_p, at, j, R, 1, D, R, False)
        _store(following, new, at, j, R, 1, D, R, False)


@triton.jit
def _learn_backward(  # type: ignore[no-untyped-def]
    q, k, here, d_q, d_k, d_memory, changed, pushed, d_bent, d_kept_asked, d_moved_asked, d_pairs,
    keep_last, move_last, slow_last, t, m, i, j, count, seen, stride,
    D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr, PAST: tl.constexpr, HALF: tl.constexpr, MOMENTUM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The derivatives by keys and queries, and by columns j of the first matrix and its momentum, from those by what went
    through it and by q k^T. What is returned are the derivatives by keep_last, move_last and slow_last."""
    PART: tl.constexpr = j.shape[0] < R  # tokens take up what several blocks of hidden units give
    by_keep, by_move, by_slow = 0.0, 0.0, 0.0
    for start in range(0, D, BD):
        at = start + i
        keys, queries = _load(k, m, at, stride, 1, seen, D), _load(q, t, at, stride, 1, count, D)
        first, d_first = _load(here, at, j, R, 1, D, R), _load(d_memory, at, j, R, 1, D, R)
        by_query = _dot(d_kept_asked, tl.trans(first), PRECISION) + _dot(d_pairs, keys, PRECISION)
        by_key = _dot(d_bent, tl.trans(first), PRECISION) - _dot(changed, tl.trans(d_first), PRECISION)
        by_key += _dot(tl.trans(d_pairs), queries, PRECISION)
        by_keep += tl.sum(d_first * first)
        new = keep_last * d_first + _dot(tl.trans(queries), d_kept_asked, PRECISION)
        new += _dot(tl.trans(keys), d_bent, PRECISION)
        if MOMENTUM:
            p, d_p = _load(here + HALF, at, j, R, 1, D, R), _load(d_memory + HALF, at, j, R, 1, D, R)
            by_query -= _dot(d_moved_asked, tl.trans(p), PRECISION)
            by_key += _dot(pushed, tl.trans(d_p), PRECISION)
            by_move -= tl.sum(d_first * p)
            by_slow += tl.sum(d_p * p)
            new_p = slow_last * d_p - move_last * d_first - _dot(tl.trans(queries), d_moved_asked, PRECISION)
            _store(d_memory + HALF, new_p, at, j, R, 1, D, R, False)
        _store(d_memory, new, at, j, R, 1, D, R, False)
        _store(d_q, by_query, t, at, stride, 1, count, D, PART)
        _store(d_k, by_key, m, at, stride, 1, seen, D, PART or PAST > 0)
    if PART:
        tl.debug_barrier()  # the next block adds to what other threads have written
    return by_keep, by_move, by_slow


@triton.jit
def _bend_backward(  # type: ignore[no-untyped-def]
    k, here, d_k, d_memory, d_bent, m, i, j, seen, stride, D: tl.constexpr, R: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """What a further derivative by k W adds to those by keys and by columns j of the first matrix."""
    for start in range(0, D, BD):
        at = start + i
        first = _load(here, at, j, R, 1, D, R)
        _store(d_k, _dot(d_bent, tl.trans(first), PRECISION), m, at, stride, 1, seen, D, True)
        keys = _load(k, m, at, stride, 1, seen, D)
        _store(d_memory, _dot(tl.trans(keys), d_bent, PRECISION), at, j, R, 1, D, R, True)
    tl.debug_barrier()  # the next block adds to what other threads have written


@triton.jit
def _take_up(pointer, x, m, columns, seen_at, stride, seen, width, SOLVE: tl.constexpr, ADD: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add what sights bring to the tokens that they see."""
    if SOLVE:  # several chunks may see the same token
        x = tl.dot((m[:, None] == seen_at[None, :]).to(tl.float32), x, input_precision="ieee")
    _store(pointer, x, m, columns, stride, 1, seen, width, ADD)


@triton.jit(do_not_specialize=["T", "H", "N"])
def _inverse_kernel(  # type: ignore[no-untyped-def]
    k, write, inverse, T, H, N, D: tl.constexpr, C: tl.constexpr, S: tl.constexpr, CHUNK: tl.constexpr,
    PAST: tl.constexpr, BR: tl.constexpr, BS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """(I + L)^-1 of one piece by forward substitution, L what errors of earlier chunks weigh in those of later ones."""
    chunk = tl.program_id(0).to(tl.int64)
    n, sequence = chunk % N, chunk // N
    m, row = tl.arange(0, BS), tl.arange(0, BS)[:, None]
    seen = PAST + tl.minimum(C, T - n * C)
    seen_at = tl.where(m < S, m // (CHUNK + PAST) * CHUNK + m % (CHUNK + PAST), C + PAST)
    ahead = m // (CHUNK + PAST) * CHUNK - 1  # the last token before the chunk of a sight
    k += ((sequence // H * (T + PAST) + n * C) * H + sequence % H) * D
    squares = tl.zeros((BS, BS), tl.float32) + BIAS
    for start in range(0, D, BR):
        j = start + tl.arange(0, BR)
        x = _load(k, seen_at, j, H * D, 1, seen, D)
        squares += tl.dot(x, _load(k, j, seen_at, 1, H * D, D, seen), input_precision="ieee")
    earlier = _load(write + chunk * C * S, m, tl.maximum(ahead, 0), 1, S, S, seen - PAST)  # [of, at]
    earlier = tl.where((ahead >= 0)[None, :], earlier, 0.0) * squares
    solved = (row == m[None, :]).to(tl.float32)
    for at in range(1, S):
        of_row = tl.sum(tl.where(m[None, :] == at, earlier, 0.0), 1)
        solved -= tl.where(row == at, tl.sum(of_row[:, None] * solved, 0)[None, :], 0.0)
    _store(inverse + chunk * S * S, solved, m, m, S, 1, S, S, False)


@triton.jit(do_not_specialize=["T", "H", "N", "per_group", "per_norm", "rows"])
def _forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, q_skip, k_skip, memory, norm_weight, norm_bias, kept, write, moved, push, slowed, o, final, states, answer,
    inverse, T, H, N, per_group, per_norm, rows, eps,
    D: tl.constexpr, R: tl.constexpr, V: tl.constexpr, C: tl.constexpr, S: tl.constexpr, CHUNK: tl.constexpr,
    PAST: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
    DEEP: tl.constexpr, BIAS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    NORM: tl.constexpr = norm_weight is not None
    # The norm magnifies what it is given where that is small, and what comes of it goes into the memory.
    ANSWER: tl.constexpr = "tf32x3" if NORM and PRECISION == "tf32" else PRECISION
    MOMENTUM: tl.constexpr = moved is not None
    FIRST: tl.constexpr = (D + BIAS) * R if DEEP else 0
    HALF: tl.constexpr = FIRST + (R + BIAS) * V
    P: tl.constexpr = 2 * HALF if MOMENTUM else HALF
    SOLVE: tl.constexpr = C != CHUNK
    HELD: tl.constexpr = not DEEP and R <= BR  # in registers from chunk to chunk
    WHOLE: tl.constexpr = DEEP and D <= BD  # features, held for a chunk
    ONCE: tl.constexpr = DEEP and D > BD and R <= BR  # what goes through the first matrix is made ahead of all else
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    t, m, i, c = tl.arange(0, BC), tl.arange(0, BS), tl.arange(0, BD), tl.arange(0, BV)
    there = (c < V)[None, :]
    seen_at = tl.where(m < S, m // (CHUNK + PAST) * CHUNK + m % (CHUNK + PAST), C + PAST)
    ahead = m // (CHUNK + PAST) * CHUNK - 1  # the last token before the chunk of a sight
    here = memory + (b // per_group * H + h) * P
    weight, bias = tl.zeros((BV,), tl.float32), tl.zeros((BV,), tl.float32)
    if NORM:
        weight = _vector(norm_weight + (b // per_norm * H + h) * V, c, V)
        bias = _vector(norm_bias + (b // per_norm * H + h) * V, c, V)
    held = tl.zeros((BR, BV), tl.float32)
    own = tl.zeros((BV,), tl.float32)
    held_p, own_p = held, own
    if HELD:
        held = _load(here + FIRST, tl.arange(0, BR), c, V, 1, R, V)
        if MOMENTUM:
            held_p = _load(here + HALF + FIRST, tl.arange(0, BR), c, V, 1, R, V)
    if BIAS:
        own = _vector(here + FIRST + R * V, c, V)
        if MOMENTUM:
            own_p = _vector(here + HALF + FIRST + R * V, c, V)
    for n in range(N):
        count = tl.minimum(C, T - n * C)
        seen, last = PAST + count, count - 1
        tokens = (b * T + n * C) * H + h
        keys = (b * (T + PAST) + n * C) * H + h
        chunk = sequence * N + n
        following = final + sequence * P
        if n + 1 < N:
            following = states + (sequence * (N - 1) + n) * P
        target = _load(v + keys * V, seen_at, c, H * V, 1, seen, V)
        if k_skip is not None:
            target -= _load(k_skip + keys * V, seen_at, c, H * V, 1, seen, V)
        weights = _load(write + chunk * C * S, t, m, S, 1, count, S)
        change = _vector(write + (chunk * C + last) * S, m, S)
        keep = _vector(kept + chunk * C, t, count)
        keep_last = tl.load(kept + chunk * C + last)
        move_last, slow_last = keep_last, keep_last
        k_, q_ = weights, weights
        if WHOLE:
            k_ = _load(k + keys * D, seen_at, i, H * D, 1, seen, D)
            q_ = _load(q + tokens * D, t, i, H * D, 1, count, D)
        if MOMENTUM:
            move = _vector(moved + chunk * C, t, count)
            move_last, slow_last = tl.load(moved + chunk * C + last), tl.load(slowed + chunk)
            shove = _vector(push + chunk * S, m, S)
        if ONCE:
            bent, asked, asked_p, _, _, pairs = _through(
                q + tokens * D, k + keys * D, here, None, t, seen_at, i, tl.arange(0, BR), count, seen, H * D,
                D, R, BD, HALF, BIAS, MOMENTUM, ANSWER, PRECISION,
            )  # fmt: skip
            y = own[None, :] + _dot(_gelu(bent), _load(here + FIRST, tl.arange(0, BR), c, V, 1, R, V), ANSWER)
        else:
            y = _answer(
                here, held, own, k + keys * D, k_, seen_at, i, c, seen, H * D, rows, D, R, V, BD, BR, FIRST, DEEP, BIAS,
                HELD, ANSWER,
            )  # fmt: skip
        if SOLVE:
            keep_ahead = tl.load(kept + chunk * C + ahead, mask=(ahead >= 0) & (ahead < count), other=1.0)
            y = keep_ahead[:, None] * y
            if MOMENTUM:
                move_ahead = tl.load(moved + chunk * C + ahead, mask=(ahead >= 0) & (ahead < count), other=0.0)
                alone_p = _answer(
                    here + HALF, held_p, own_p, k + keys * D, k_, seen_at, i, c, seen, H * D, rows, D, R, V, BD, BR, FIRST,
                    DEEP, BIAS, HELD, ANSWER,
                )  # fmt: skip
                y -= move_ahead[:, None] * alone_p
        signal = _signal(y, target, weight, bias, there, eps, V, NORM, DOT)
        if SOLVE:
            signal = tl.dot(_load(inverse + chunk * S * S, m, m, S, 1, S, S), signal, input_precision="ieee")
        changed = change[:, None] * signal
        if MOMENTUM:
            pushed = shove[:, None] * signal
        if WHOLE:
            pairs = _dot(q_, tl.trans(k_), PRECISION) + BIAS
        read = tl.zeros((BC, BV), tl.float32)
        gram = tl.zeros((BC, BS), tl.float32)
        for start in range(0, R if R <= BR else rows, BR):
            j = start + tl.arange(0, BR)
            if DEEP and not WHOLE:
                if not ONCE:
                    bent, asked, asked_p, _, _, pairs = _through(
                        q + tokens * D, k + keys * D, here, None, t, seen_at, i, j, count, seen, H * D,
                        D, R, BD, HALF, BIAS, MOMENTUM, PRECISION, PRECISION,
                    )  # fmt: skip
                x = _gelu(bent)
            else:
                x, bent, first = _hidden(
                    here, k + keys * D, k_, seen_at, i, j, seen, H * D, D, R, BD, DEEP, BIAS, PRECISION
                )
            w, p = held, held_p
            if not HELD:
                w = _load(here + FIRST, j, c, V, 1, R, V)
                if MOMENTUM:
                    p = _load(here + HALF + FIRST, j, c, V, 1, R, V)
            if DEEP:
                d = _dot(signal, tl.trans(w), PRECISION) * _slope(bent)
                changed_d = change[:, None] * d
                pushed_d = changed_d
                if MOMENTUM:
                    pushed_d = shove[:, None] * d
                if WHOLE:
                    asked = _dot(q_, tl.trans(first), PRECISION)
                    new = keep_last * first - _dot(tl.trans(changed_d), k_, PRECISION)
                    if MOMENTUM:
                        p_first = _load(here + HALF, j, i, 1, R, R, D)
                        asked_p = _dot(q_, tl.trans(p_first), PRECISION)
                        new -= move_last * p_first
                        new_p = slow_last * p_first + _dot(tl.trans(pushed_d), k_, PRECISION)
                        _store(following + HALF, new_p, j, i, 1, R, R, D, False)
                    _store(following, new, j, i, 1, R, R, D, False)
                else:
                    _learn(
                        k + keys * D, here, following, changed_d, pushed_d, keep_last, move_last, slow_last, seen_at, i, j,
                        seen, H * D, D, R, BD, HALF, MOMENTUM, PRECISION,
                    )  # fmt: skip
                if BIAS:
                    row = _vector(here + D * R, j, R)
                    asked += row[None, :]
                    new_row = keep_last * row - tl.sum(changed_d, 0)
                    if MOMENTUM:
                        p_row = _vector(here + HALF + D * R, j, R)
                        asked_p += p_row[None, :]
                        new_row -= move_last * p_row
                        new_p_row = slow_last * p_row + tl.sum(pushed_d, 0)
                        tl.store(following + HALF + D * R + j, new_p_row, mask=j < R)
                    tl.store(following + D * R + j, new_row, mask=j < R)
                asked = keep[:, None] * asked - _dot(weights * pairs, d, PRECISION)
                if MOMENTUM:
                    asked -= move[:, None] * asked_p
                z = _gelu(asked)
            else:
                z = _load(q + tokens * D, t, j, H * D, 1, count, D)
            gram += _dot(z, tl.trans(x), PRECISION)
            read += keep[:, None] * _dot(z, w, PRECISION)
            new_w = keep_last * w - _outer(x, changed, PRECISION)
            if MOMENTUM:
                read -= move[:, None] * _dot(z, p, PRECISION)
                new_w -= move_last * p
                new_p_w = slow_last * p + _outer(x, pushed, PRECISION)
                _store(following + HALF + FIRST, new_p_w, j, c, V, 1, R, V, False)
                if HELD:
                    held_p = new_p_w
            _store(following + FIRST, new_w, j, c, V, 1, R, V, False)
            if HELD:
                held = new_w
        if BIAS:
            read += keep[:, None] * own[None, :]
            own = keep_last * own - tl.sum(changed, 0)
            if MOMENTUM:
                read -= move[:, None] * own_p[None, :]
                own -= move_last * own_p
                own_p = slow_last * own_p + tl.sum(pushed, 0)
                tl.store(following + HALF + FIRST + R * V + c, own_p, mask=c < V)
            tl.store(following + FIRST + R * V + c, own, mask=c < V)
        read -= _dot(weights * (gram + BIAS), signal, PRECISION)
        if NORM:
            _store(answer + tokens * V, read, t, c, H * V, 1, count, V, False)
            standard, _ = _standard(read, there, eps, V)
            read = standard * weight[None, :] + bias[None, :]
        if q_skip is not None:
            read += _load(q_skip + tokens * V, t, c, H * V, 1, count, V)
        _store(o + tokens * V, read, t, c, H * V, 1, count, V, False)
        here = following
        if not HELD:
            tl.debug_barrier()  # the next chunk reads what other threads have written


@triton.jit(do_not_specialize=["T", "H", "N", "per_group", "per_norm", "rows"])
def _backward_kernel(  # type: ignore[no-untyped-def]
    d_o, q, k, v, k_skip, memory, norm_weight, norm_bias, kept, write, moved, push, slowed, states, answer, inverse,
    d_q, d_k, d_v, d_memory, d_weight, d_bias, d_kept, d_write, d_moved, d_push, d_slowed,
    T, H, N, per_group, per_norm, rows, eps,
    D: tl.constexpr, R: tl.constexpr, V: tl.constexpr, C: tl.constexpr, S: tl.constexpr, CHUNK: tl.constexpr,
    PAST: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
    DEEP: tl.constexpr, BIAS: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d_memory holds the derivative by the memory behind a chunk, and then by the one ahead of it."""
    NORM: tl.constexpr = norm_weight is not None
    # The norm magnifies what it is given where that is small, and what comes of it goes into the memory.
    ANSWER: tl.constexpr = "tf32x3" if NORM and PRECISION == "tf32" else PRECISION
    MOMENTUM: tl.constexpr = moved is not None
    FIRST: tl.constexpr = (D + BIAS) * R if DEEP else 0
    HALF: tl.constexpr = FIRST + (R + BIAS) * V
    P: tl.constexpr = 2 * HALF if MOMENTUM else HALF
    SOLVE: tl.constexpr = C != CHUNK
    HELD: tl.constexpr = not DEEP and R <= BR  # in registers from chunk to chunk
    WHOLE: tl.constexpr = DEEP and D <= BD  # features, held for a chunk
    ONCE: tl.constexpr = DEEP and D > BD and R <= BR  # what goes through the first matrix is made ahead of all else
    LEARNS: tl.constexpr = NORM or not DOT  # what is learned depends on what is known
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    t, m, i, c = tl.arange(0, BC), tl.arange(0, BS), tl.arange(0, BD), tl.arange(0, BV)
    there = (c < V)[None, :]
    seen_at = tl.where(m < S, m // (CHUNK + PAST) * CHUNK + m % (CHUNK + PAST), C + PAST)
    ahead = m // (CHUNK + PAST) * CHUNK - 1  # the last token before the chunk of a sight
    d_memory += sequence * P
    weight, bias = tl.zeros((BV,), tl.float32), tl.zeros((BV,), tl.float32)
    all_d_weight, all_d_bias = weight, bias
    if NORM:
        weight = _vector(norm_weight + (b // per_norm * H + h) * V, c, V)
        bias = _vector(norm_bias + (b // per_norm * H + h) * V, c, V)
    held_d = tl.zeros((BR, BV), tl.float32)
    d_own = tl.zeros((BV,), tl.float32)
    own, own_p, d_own_p, held_d_p = d_own, d_own, d_own, held_d
    if HELD:
        held_d = _load(d_memory + FIRST, tl.arange(0, BR), c, V, 1, R, V)
        if MOMENTUM:
            held_d_p = _load(d_memory + HALF + FIRST, tl.arange(0, BR), c, V, 1, R, V)
    if BIAS:
        d_own = _vector(d_memory + FIRST + R * V, c, V)
        if MOMENTUM:
            d_own_p = _vector(d_memory + HALF + FIRST + R * V, c, V)
    for back in range(N):
        n = N - 1 - back
        count = tl.minimum(C, T - n * C)
        seen, last = PAST + count, count - 1
        tokens = (b * T + n * C) * H + h
        keys = (b * (T + PAST) + n * C) * H + h
        chunk = sequence * N + n
        here = memory + (b // per_group * H + h) * P
        if n > 0:
            here = states + (sequence * (N - 1) + n - 1) * P
        target = _load(v + keys * V, seen_at, c, H * V, 1, seen, V)
        if k_skip is not None:
            target -= _load(k_skip + keys * V, seen_at, c, H * V, 1, seen, V)
        weights = _load(write + chunk * C * S, t, m, S, 1, count, S)
        change = _vector(write + (chunk * C + last) * S, m, S)
        keep = _vector(kept + chunk * C, t, count)
        keep_last = tl.load(kept + chunk * C + last)
        move_last, slow_last = keep_last, keep_last
        k_, q_ = weights, weights
        if WHOLE:
            k_ = _load(k + keys * D, seen_at, i, H * D, 1, seen, D)
            q_ = _load(q + tokens * D, t, i, H * D, 1, count, D)
        if MOMENTUM:
            move = _vector(moved + chunk * C, t, count)
            move_last, slow_last = tl.load(moved + chunk * C + last), tl.load(slowed + chunk)
            shove = _vector(push + chunk * S, m, S)
        held = tl.zeros((BR, BV), tl.float32)
        held_p, held_d_x = held, tl.zeros((BS, BR), tl.float32)
        if HELD:
            held = _load(here + FIRST, tl.arange(0, BR), c, V, 1, R, V)
            if MOMENTUM:
                held_p = _load(here + HALF + FIRST, tl.arange(0, BR), c, V, 1, R, V)
        if BIAS:
            own = _vector(here + FIRST + R * V, c, V)
            if MOMENTUM:
                own_p = _vector(here + HALF + FIRST + R * V, c, V)
        y = tl.zeros((BS, BV), tl.float32)
        if ONCE:
            bent, asked_w, asked_p, taken_d, taken_d_p, pairs = _through(
                q + tokens * D, k + keys * D, here, d_memory, t, seen_at, i, tl.arange(0, BR), count, seen, H * D,
                D, R, BD, HALF, BIAS, MOMENTUM, ANSWER, PRECISION,
            )  # fmt: skip
            y = own[None, :] + _dot(_gelu(bent), _load(here + FIRST, tl.arange(0, BR), c, V, 1, R, V), ANSWER)
        elif LEARNS:
            y = _answer(
                here, held, own, k + keys * D, k_, seen_at, i, c, seen, H * D, rows, D, R, V, BD, BR, FIRST, DEEP, BIAS,
                HELD, ANSWER,
            )  # fmt: skip
        if SOLVE:
            keep_ahead = tl.load(kept + chunk * C + ahead, mask=(ahead >= 0) & (ahead < count), other=1.0)
            alone = y
            y = keep_ahead[:, None] * y
            if MOMENTUM:
                move_ahead = tl.load(moved + chunk * C + ahead, mask=(ahead >= 0) & (ahead < count), other=0.0)
                alone_p = _answer(
                    here + HALF, held_p, own_p, k + keys * D, k_, seen_at, i, c, seen, H * D, rows, D, R, V, BD, BR, FIRST,
                    DEEP, BIAS, HELD, ANSWER,
                )  # fmt: skip
                y -= move_ahead[:, None] * alone_p
        signal = _signal(y, target, weight, bias, there, eps, V, NORM, DOT)
        if SOLVE:
            signal = tl.dot(_load(inverse + chunk * S * S, m, m, S, 1, S, S), signal, input_precision="ieee")
        changed = change[:, None] * signal
        if MOMENTUM:
            pushed = shove[:, None] * signal

        d_read = _load(d_o + tokens * V, t, c, H * V, 1, count, V)
        if NORM:
            read = _load(answer + tokens * V, t, c, H * V, 1, count, V)
            standard, scale = _standard(read, there, eps, V)
            all_d_weight += tl.sum(d_read * standard, 0)
            all_d_bias += tl.sum(d_read, 0)
            d_read = _standard_backward(d_read * weight[None, :], standard, scale, there, V)
        d_kept_read = keep[:, None] * d_read
        if MOMENTUM:
            d_moved_read = move[:, None] * d_read
        d_scores = -_dot(d_read, tl.trans(signal), PRECISION)
        d_gram = d_scores * weights
        gram = tl.zeros((BC, BS), tl.float32)
        d_signal = tl.zeros((BS, BV), tl.float32)
        taken, taken_p = tl.zeros((BS, BV), tl.float32), tl.zeros((BS, BV), tl.float32)
        by_keep, by_move = tl.zeros((BC,), tl.float32), tl.zeros((BC,), tl.float32)
        by_change, by_shove = tl.zeros((BS,), tl.float32), tl.zeros((BS,), tl.float32)
        by_keep_last, by_move_last, by_slow_last = 0.0, 0.0, 0.0
        if DEEP:
            d_pairs = tl.zeros((BC, BS), tl.float32)
            if WHOLE:
                pairs = _dot(q_, tl.trans(k_), PRECISION) + BIAS
                d_q_, d_k_ = tl.zeros((BC, BD), tl.float32), tl.zeros((BS, BD), tl.float32)
            elif ONCE:  # kept for the end, when all there is to be learned of them is known
                d_kept_asked, changed_d = tl.zeros((BC, BR), tl.float32), tl.zeros((BS, BR), tl.float32)
                d_moved_asked, pushed_d, d_bent = d_kept_asked, changed_d, changed_d
            else:
                pairs = d_pairs
        for start in range(0, R if R <= BR else rows, BR):
            j = start + tl.arange(0, BR)
            if DEEP and not WHOLE:
                if not ONCE:
                    bent, asked_w, asked_p, taken_d, taken_d_p, pairs = _through(
                        q + tokens * D, k + keys * D, here, d_memory, t, seen_at, i, j, count, seen, H * D,
                        D, R, BD, HALF, BIAS, MOMENTUM, PRECISION, PRECISION,
                    )  # fmt: skip
                x = _gelu(bent)
            else:
                x, bent, first = _hidden(
                    here, k + keys * D, k_, seen_at, i, j, seen, H * D, D, R, BD, DEEP, BIAS, PRECISION
                )
            w, d_w, p, d_p = held, held_d, held_p, held_d_p
            if not HELD:
                w, d_w = _load(here + FIRST, j, c, V, 1, R, V), _load(d_memory + FIRST, j, c, V, 1, R, V)
                if MOMENTUM:
                    p = _load(here + HALF + FIRST, j, c, V, 1, R, V)
                    d_p = _load(d_memory + HALF + FIRST, j, c, V, 1, R, V)
            d_z = _dot(d_read, tl.trans(w), PRECISION)
            if MOMENTUM:
                d_z_p = _dot(d_read, tl.trans(p), PRECISION)
            if DEEP:
                before = _dot(signal, tl.trans(w), PRECISION)
                slope = _slope(bent)
                d = before * slope
                scores = pairs * weights
                if WHOLE:
                    asked_w = _dot(q_, tl.trans(first), PRECISION)
                if BIAS:
                    row, d_row = _vector(here + D * R, j, R), _vector(d_memory + D * R, j, R)
                    asked_w += row[None, :]
                asked = keep[:, None] * asked_w - _dot(scores, d, PRECISION)
                if MOMENTUM:
                    if WHOLE:
                        p_first = _load(here + HALF, j, i, 1, R, R, D)
                        asked_p = _dot(q_, tl.trans(p_first), PRECISION)
                    if BIAS:
                        p_row, d_p_row = _vector(here + HALF + D * R, j, R), _vector(d_memory + HALF + D * R, j, R)
                        asked_p += p_row[None, :]
                    asked -= move[:, None] * asked_p
                z = _gelu(asked)
            else:
                z = _load(q + tokens * D, t, j, H * D, 1, count, D)

            # Of the last matrix.
            gram += _dot(z, tl.trans(x), PRECISION)
            by_keep += tl.sum(d_z * z, 1)
            d_z = keep[:, None] * d_z + _dot(d_gram, x, PRECISION)
            d_x = _dot(tl.trans(d_gram), z, PRECISION)
            d_x -= _dot(changed, tl.trans(d_w), PRECISION)
            taken += _dot(x, d_w, PRECISION)
            by_keep_last += tl.sum(d_w * w)
            new_d_w = keep_last * d_w + _outer(z, d_kept_read, PRECISION)
            if MOMENTUM:
                by_move -= tl.sum(d_z_p * z, 1)
                d_z -= move[:, None] * d_z_p
                d_x += _dot(pushed, tl.trans(d_p), PRECISION)
                taken_p += _dot(x, d_p, PRECISION)
                by_move_last -= tl.sum(d_w * p)
                by_slow_last += tl.sum(d_p * p)
                new_d_p = slow_last * d_p - move_last * d_w
                new_d_p -= _outer(z, d_moved_read, PRECISION)
                if HELD:
                    held_d_p = new_d_p
                else:
                    _store(d_memory + HALF + FIRST, new_d_p, j, c, V, 1, R, V, False)

            if DEEP:  # and of the first
                d_asked = d_z * _slope(asked)
                d_kept_asked, changed_d = keep[:, None] * d_asked, change[:, None] * d
                d_moved_asked, pushed_d = d_kept_asked, changed_d
                by_keep += tl.sum(d_asked * asked_w, 1)
                more_d_pairs = -_dot(d_asked, tl.trans(d), PRECISION)
                d_pairs += more_d_pairs
                if WHOLE:
                    d_first = _load(d_memory, j, i, 1, R, R, D)
                    d_q_ += _dot(d_kept_asked, first, PRECISION)
                    d_k_ -= _dot(changed_d, d_first, PRECISION)
                    taken_d = _dot(k_, tl.trans(d_first), PRECISION)
                    by_keep_last += tl.sum(d_first * first)
                    new_d_first = keep_last * d_first + _dot(tl.trans(d_kept_asked), q_, PRECISION)
                if BIAS:
                    taken_d += d_row[None, :]
                    by_keep_last += tl.sum(d_row * row)
                    new_d_row = keep_last * d_row + tl.sum(d_kept_asked, 0)
                by_change -= tl.sum(taken_d * d, 1)
                d_d = -change[:, None] * taken_d - _dot(tl.trans(scores), d_asked, PRECISION)
                if MOMENTUM:
                    d_moved_asked, pushed_d = move[:, None] * d_asked, shove[:, None] * d
                    by_move -= tl.sum(d_asked * asked_p, 1)
                    if WHOLE:
                        d_p_first = _load(d_memory + HALF, j, i, 1, R, R, D)
                        d_q_ -= _dot(d_moved_asked, p_first, PRECISION)
                        d_k_ += _dot(pushed_d, d_p_first, PRECISION)
                        taken_d_p = _dot(k_, tl.trans(d_p_first), PRECISION)
                        by_move_last -= tl.sum(d_first * p_first)
                        by_slow_last += tl.sum(d_p_first * p_first)
                        new_d_p_first = slow_last * d_p_first - move_last * d_first
                        new_d_p_first -= _dot(tl.trans(d_moved_asked), q_, PRECISION)
                        _store(d_memory + HALF, new_d_p_first, j, i, 1, R, R, D, False)
                    if BIAS:
                        taken_d_p += d_p_row[None, :]
                        by_move_last -= tl.sum(d_row * p_row)
                        by_slow_last += tl.sum(d_p_row * p_row)
                        new_d_p_row = slow_last * d_p_row - move_last * d_row - tl.sum(d_moved_asked, 0)
                        tl.store(d_memory + HALF + D * R + j, new_d_p_row, mask=j < R)
                    by_shove += tl.sum(taken_d_p * d, 1)
                    d_d += shove[:, None] * taken_d_p
                d_before = d_d * slope
                d_signal += _dot(d_before, w, PRECISION)
                new_d_w += _outer(d_before, signal, PRECISION)
                d_bent = d_d * before * _bend(bent) + d_x * slope
                if BIAS:
                    tl.store(d_memory + D * R + j, new_d_row + tl.sum(d_bent, 0), mask=j < R)
                if WHOLE:
                    d_k_ += _dot(d_bent, first, PRECISION)
                    new_d_first += _dot(tl.trans(d_bent), k_, PRECISION)
                    _store(d_memory, new_d_first, j, i, 1, R, R, D, False)
                elif not ONCE:
                    more_keep, more_move, more_slow = _learn_backward(
                        q + tokens * D, k + keys * D, here, d_q + tokens * D, d_k + keys * D, d_memory,
                        changed_d, pushed_d, d_bent, d_kept_asked, d_moved_asked, more_d_pairs * weights,
                        keep_last, move_last, slow_last, t, seen_at, i, j, count, seen, H * D,
                        D, R, BD, PAST, HALF, MOMENTUM, PRECISION,
                    )  # fmt: skip
                    by_keep_last += more_keep
                    by_move_last += more_move
                    by_slow_last += more_slow
            else:
                _store(d_q + tokens * D, d_z, t, j, H * D, 1, count, D, False)
                if HELD:
                    held_d_x = d_x
                else:
                    _take_up(d_k + keys * D, d_x, m, j, seen_at, H * D, seen, D, SOLVE, True)
            if HELD:
                held_d = new_d_w
            else:
                _store(d_memory + FIRST, new_d_w, j, c, V, 1, R, V, False)

        if BIAS:
            by_keep += tl.sum(d_read * own[None, :], 1)
            taken += d_own[None, :]
            by_keep_last += tl.sum(d_own * own)
            if MOMENTUM:
                by_move -= tl.sum(d_read * own_p[None, :], 1)
                taken_p += d_own_p[None, :]
                by_move_last -= tl.sum(d_own * own_p)
                by_slow_last += tl.sum(d_own_p * own_p)
                d_own_p = slow_last * d_own_p - move_last * d_own - tl.sum(d_moved_read, 0)
            d_own = keep_last * d_own + tl.sum(d_kept_read, 0)
        by_change -= tl.sum(taken * signal, 1)
        d_signal -= change[:, None] * taken
        d_signal -= _dot(tl.trans(weights * (gram + BIAS)), d_read, PRECISION)
        d_weights = d_scores * (gram + BIAS)
        if MOMENTUM:
            by_shove += tl.sum(taken_p * signal, 1)
            d_signal += shove[:, None] * taken_p
        if DEEP:
            d_weights += d_pairs * pairs
            d_pairs = d_pairs * weights
            if WHOLE:
                d_q_ += _dot(d_pairs, k_, PRECISION)
                d_k_ += _dot(tl.trans(d_pairs), q_, PRECISION)
        if SOLVE:
            solved = _load(inverse + chunk * S * S, m, m, 1, S, S, S)
            d_signal = tl.dot(solved, d_signal, input_precision="ieee")
            d_coupling = -tl.dot(d_signal, tl.trans(signal), input_precision="ieee")
            coupling = _load(write + chunk * C * S, tl.maximum(ahead, 0), m, S, 1, count, S)
            coupling = tl.where((ahead >= 0)[:, None], coupling, 0.0)
            d_squares = d_coupling * coupling
            squares = tl.zeros((BS, BS), tl.float32)
        d_y, d_target, d_weight_, d_bias_ = _signal_backward(
            d_signal, y, target, weight, bias, there, eps, V, NORM, DOT
        )
        all_d_weight += d_weight_
        all_d_bias += d_bias_
        if LEARNS:
            if not HELD:
                tl.debug_barrier()  # what other threads have written of d_memory and d_k is read here
            if SOLVE:
                at_ahead = (t[:, None] == ahead[None, :]).to(tl.float32)
                by_keep += tl.sum(at_ahead * tl.sum(d_y * alone, 1)[None, :], 1)
                if MOMENTUM:
                    by_move -= tl.sum(at_ahead * tl.sum(d_y * alone_p, 1)[None, :], 1)
                    d_y_p = move_ahead[:, None] * d_y
                    if BIAS:
                        d_own_p -= tl.sum(d_y_p, 0)
                d_y = keep_ahead[:, None] * d_y
            if BIAS:
                d_own += tl.sum(d_y, 0)
            for start in range(0, R if R <= BR else rows, BR):
                j = start + tl.arange(0, BR)
                if ONCE:
                    x = _gelu(bent)
                else:
                    x, bent, first = _hidden(
                        here, k + keys * D, k_, seen_at, i, j, seen, H * D, D, R, BD, DEEP, BIAS, PRECISION
                    )
                w, p = held, held_p
                if not HELD:
                    w = _load(here + FIRST, j, c, V, 1, R, V)
                d_x = _dot(d_y, tl.trans(w), PRECISION)
                d_w = _outer(x, d_y, PRECISION)
                if HELD:
                    held_d += d_w
                else:
                    _store(d_memory + FIRST, d_w, j, c, V, 1, R, V, True)
                if SOLVE:
                    d_x += _dot(d_squares + tl.trans(d_squares), x, PRECISION)
                    squares += _dot(x, tl.trans(x), PRECISION)
                    if MOMENTUM:
                        if not HELD:
                            p = _load(here + HALF + FIRST, j, c, V, 1, R, V)
                        d_x -= _dot(d_y_p, tl.trans(p), PRECISION)
                        d_p = -_outer(x, d_y_p, PRECISION)
                        if HELD:
                            held_d_p += d_p
                        else:
                            _store(d_memory + HALF + FIRST, d_p, j, c, V, 1, R, V, True)
                if DEEP:
                    more_d_bent = d_x * _slope(bent)
                    if WHOLE:
                        d_k_ += _dot(more_d_bent, first, PRECISION)
                        d_first = _dot(tl.trans(more_d_bent), k_, PRECISION)
                        _store(d_memory, d_first, j, i, 1, R, R, D, True)
                    elif ONCE:
                        d_bent += more_d_bent
                    else:
                        _bend_backward(
                            k + keys * D, here, d_k + keys * D, d_memory, more_d_bent, seen_at, i, j, seen, H * D,
                            D, R, BD, PRECISION,
                        )  # fmt: skip
                    if BIAS:
                        d_row = _vector(d_memory + D * R, j, R) + tl.sum(more_d_bent, 0)
                        tl.store(d_memory + D * R + j, d_row, mask=j < R)
                else:
                    if HELD:
                        held_d_x += d_x
                    else:
                        _take_up(d_k + keys * D, d_x, m, j, seen_at, H * D, seen, D, SOLVE, True)
            if SOLVE:
                d_weights += tl.dot(at_ahead, d_coupling * (squares + BIAS), input_precision="ieee")
        if HELD:
            _take_up(d_k + keys * D, held_d_x, m, tl.arange(0, BR), seen_at, H * D, seen, D, SOLVE, PAST > 0)
        if WHOLE:
            _store(d_q + tokens * D, d_q_, t, i, H * D, 1, count, D, False)
            _store(d_k + keys * D, d_k_, m, i, H * D, 1, seen, D, PAST > 0)
        elif ONCE:
            more_keep, more_move, more_slow = _learn_backward(
                q + tokens * D, k + keys * D, here, d_q + tokens * D, d_k + keys * D, d_memory,
                changed_d, pushed_d, d_bent, d_kept_asked, d_moved_asked, d_pairs,
                keep_last, move_last, slow_last, t, seen_at, i, tl.arange(0, BR), count, seen, H * D,
                D, R, BD, PAST, HALF, MOMENTUM, PRECISION,
            )  # fmt: skip
            by_keep_last += more_keep
            by_move_last += more_move
            by_slow_last += more_slow
        _take_up(d_v + keys * V, d_target, m, c, seen_at, H * V, seen, V, SOLVE, PAST > 0)
        d_weights += tl.where(t == last, 1.0, 0.0)[:, None] * by_change[None, :]
        _store(d_write + chunk * C * S, d_weights, t, m, S, 1, count, S, False)
        tl.store(d_kept + chunk * C + t, by_keep + tl.where(t == last, by_keep_last, 0.0), mask=t < count)
        if MOMENTUM:
            tl.store(d_moved + chunk * C + t, by_move + tl.where(t == last, by_move_last, 0.0), mask=t < count)
            tl.store(d_push + chunk * S + m, by_shove, mask=m < S)
            tl.store(d_slowed + chunk, by_slow_last)
        if PAST > 0 or not HELD:
            tl.debug_barrier()  # the next chunk reads what other threads have written
    if HELD:
        _store(d_memory + FIRST, held_d, tl.arange(0, BR), c, V, 1, R, V, False)
        if MOMENTUM:
            _store(d_memory + HALF + FIRST, held_d_p, tl.arange(0, BR), c, V, 1, R, V, False)
    if BIAS:
        tl.store(d_memory + FIRST + R * V + c, d_own, mask=c < V)
        if MOMENTUM:
            tl.store(d_memory + HALF + FIRST + R * V + c, d_own_p, mask=c < V)
    if NORM:
        tl.store(d_weight + sequence * V + c, all_d_weight, mask=c < V)
        tl.store(d_bias + sequence * V + c, all_d_bias, mask=c < V)


def _cut_for_weights(cut: _Cut, cross_chunk: bool, inside: bool) -> dict[str, Any]:
    return {
        "C": cut.size,
        "S": cut.sights,
        "BC": padded(cut.size),
        "BS": padded(cut.sights),
        "PAST": cut.past,
        "SIGHT": cut.chunk + cut.past,
        "CROSS": cross_chunk,
        "INSIDE": inside,
        "num_warps": 1,
        "num_stages": 1,
    }


def _weigh_forward(
    eta: Tensor,
    alpha: Tensor | None,
    theta: Tensor | None,
    gamma: Tensor | None,
    size: int,
    chunk: int,
    past: int,
    position: int,
    cross_chunk: bool,
    inside: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    results = _weigh_outputs(eta, alpha, theta, gamma, size, chunk, past, position, cross_chunk, inside)
    (batch, time, heads), chunks = eta.shape, results[0].shape[2]
    _weights_kernel[(batch * heads * chunks,)](
        *_contiguous(eta, alpha, theta, gamma), *results, time, heads, chunks, position, LEAST,
        **_cut_for_weights(_Cut(size, chunk, past), cross_chunk, inside),
    )  # fmt: skip
    return results


def _weigh_outputs(
    eta: Tensor,
    alpha: Tensor | None,
    theta: Tensor | None,
    gamma: Tensor | None,
    size: int,
    chunk: int,
    past: int,
    position: int,
    cross_chunk: bool,
    inside: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, time, heads = eta.shape
    chunks, sights = -(-time // size), _Cut(size, chunk, past).sights
    shapes: list[tuple[int, ...]] = [
        (chunks, size),
        (chunks, size, sights),
        (chunks, size),
        (chunks, sights),
        (chunks,),
    ]
    if theta is None:
        shapes[2:] = [(0,)] * 3
    kept, write, moved, push, slowed = (
        torch.empty(batch, heads, *shape, dtype=torch.float32, device=eta.device) for shape in shapes
    )
    return kept, write, moved, push, slowed


def _weigh_backward(
    d_kept: Tensor,
    d_write: Tensor,
    d_moved: Tensor,
    d_push: Tensor,
    d_slowed: Tensor,
    eta: Tensor,
    alpha: Tensor | None,
    theta: Tensor | None,
    gamma: Tensor | None,
    size: int,
    chunk: int,
    past: int,
    position: int,
    cross_chunk: bool,
    inside: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    gates = (eta, alpha, theta, gamma)
    found = _weigh_gradients(
        d_kept, d_write, d_moved, d_push, d_slowed, *gates, size, chunk, past, position, cross_chunk, inside
    )
    (batch, time, heads), chunks = eta.shape, d_write.shape[2]
    given = _contiguous(d_kept, d_write, d_moved, d_push, d_slowed, *gates)
    _weights_backward_kernel[(batch * heads * chunks,)](
        *given, *found, time, heads, chunks, position, LEAST,
        **_cut_for_weights(_Cut(size, chunk, past), cross_chunk, inside),
    )  # fmt: skip
    return found


def _weigh_gradients(
    d_kept: Tensor,
    d_write: Tensor,
    d_moved: Tensor,
    d_push: Tensor,
    d_slowed: Tensor,
    eta: Tensor,
    alpha: Tensor | None,
    theta: Tensor | None,
    gamma: Tensor | None,
    size: int,
    chunk: int,
    past: int,
    position: int,
    cross_chunk: bool,
    inside: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    more = (eta.new_empty(len(eta)) if x is None else x.new_empty(x.shape) for x in (alpha, theta, gamma))
    d_alpha, d_theta, d_gamma = more
    return eta.new_empty(eta.shape), d_alpha, d_theta, d_gamma


_weigh = opaque(
    "memory_weights",
    _weigh_forward,
    _weigh_backward,
    outputs=_weigh_outputs,
    gradients=_weigh_gradients,
    differentiable=5,
)


def _sizes(
    q: Tensor, v: Tensor, write: Tensor, hidden: int, bias: bool, dot: bool, chunk: int, dtype: torch.dtype
) -> dict[str, Any]:
    """What kernels are compiled for, and how they are cut."""
    features, value_width, (size, seen) = q.shape[-1], v.shape[-1], write.shape[-2:]
    rows = hidden or features
    plan = _table(features if hidden else 0, rows, value_width, seen, dtype)
    return {
        "D": features,
        "R": rows,
        "V": value_width,
        "C": size,
        "S": seen,
        "CHUNK": chunk,
        "PAST": seen // (size // chunk) - chunk,
        "BD": 16 if not hidden else padded(features) if features <= WIDEST_WHOLE else FEATURES,
        "BR": plan.rows,
        "BV": padded(value_width),
        "BC": padded(size),
        "BS": padded(seen),
        "DEEP": hidden > 0,
        "BIAS": int(bias),
        "DOT": dot,
        "PRECISION": plan.precision,
    }


def _lowest(*tensors: Tensor | None) -> torch.dtype:
    """fp32 where any content is."""
    return torch.float32 if any(x is not None and x.dtype == torch.float32 for x in tensors) else torch.bfloat16


def _contiguous(*tensors: Tensor | None) -> list[Tensor | None]:
    return [packed(x) for x in tensors]


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_skip: Tensor | None,
    k_skip: Tensor | None,
    memory: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    kept: Tensor,
    write: Tensor,
    moved: Tensor | None,
    push: Tensor | None,
    slowed: Tensor | None,
    hidden: int,
    bias: bool,
    dot: bool,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = (q, k, v, q_skip, k_skip, memory, norm_weight, norm_bias, kept, write, moved, push, slowed)
    o, final, states, answer, inverse = _outputs(*inputs, hidden, bias, dot, chunk)
    (batch, time, heads, _), chunks = q.shape, write.shape[2]
    sizes = _sizes(q, v, write, hidden, bias, dot, chunk, _lowest(q, k, v))
    plan = _table(q.shape[-1] if hidden else 0, sizes["R"], v.shape[-1], sizes["S"], _lowest(q, k, v))
    per_norm = 1 if norm_weight is None else batch // len(norm_weight)
    contiguous = _contiguous(*inputs)
    if sizes["C"] != chunk:
        names = ("D", "C", "S", "CHUNK", "PAST", "BR", "BS", "BIAS")
        _inverse_kernel[(batch * heads * chunks,)](
            contiguous[1], contiguous[9], inverse, time, heads, chunks, **{name: sizes[name] for name in names},
            num_warps=1, num_stages=1,
        )  # fmt: skip
    _forward_kernel[(batch * heads,)](
        *contiguous, o, final, states, answer, inverse, time, heads, chunks, batch // len(memory), per_norm, sizes["R"],
        NORM_EPS, **sizes, num_warps=plan.forward_warps, num_stages=1, maxnreg=plan.registers,
    )  # fmt: skip
    return o, final, states, answer, inverse


def _outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_skip: Tensor | None,
    k_skip: Tensor | None,
    memory: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    kept: Tensor,
    write: Tensor,
    moved: Tensor | None,
    push: Tensor | None,
    slowed: Tensor | None,
    hidden: int,
    bias: bool,
    dot: bool,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, heads, chunks = write.shape[:3]
    shape = (batch, q.shape[1], heads, v.shape[-1])
    answer = (batch, 0) if norm_weight is None else shape
    return (
        v.new_empty(shape),
        memory.new_empty(batch, heads, memory.shape[-1]),
        memory.new_empty(batch, heads, chunks - 1, memory.shape[-1]),
        memory.new_empty(answer),
        memory.new_empty(batch, heads, chunks if write.shape[3] != chunk else 0, write.shape[4], write.shape[4]),
    )


def _backward(
    d_o: Tensor,
    d_final: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_skip: Tensor | None,
    k_skip: Tensor | None,
    memory: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    kept: Tensor,
    write: Tensor,
    moved: Tensor | None,
    push: Tensor | None,
    slowed: Tensor | None,
    hidden: int,
    bias: bool,
    dot: bool,
    chunk: int,
    states: Tensor,
    answer: Tensor,
    inverse: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = (q, k, v, q_skip, k_skip, memory, norm_weight, norm_bias, kept, write, moved, push, slowed)
    (batch, time, heads, _), chunks, groups = q.shape, write.shape[2], len(memory)
    sizes = _sizes(q, v, write, hidden, bias, dot, chunk, _lowest(q, k, v))
    plan = _table(q.shape[-1] if hidden else 0, sizes["R"], v.shape[-1], sizes["S"], _lowest(q, k, v))
    per_norm = 1 if norm_weight is None else batch // len(norm_weight)
    # Tokens of a window take up what several chunks give; keys of a linear memory what several blocks of rows do, keys and
    # queries of a deep one, where its features are not held whole, what several blocks of hidden units do.
    window, blocks = sizes["PAST"] > 0, sizes["R"] > sizes["BR"] and not (hidden and sizes["D"] <= sizes["BD"])
    d_q, d_k, d_v = _taking_up(q, blocks and hidden > 0), _taking_up(k, window or blocks), _taking_up(v, window)
    d_memory = d_final.clone(memory_format=torch.contiguous_format)
    d_weight, d_bias = (memory.new_empty(batch, heads, v.shape[-1]) for _ in range(2))
    d_kept, d_write = torch.empty_like(kept), torch.empty_like(write)
    d_moved, d_push, d_slowed = (None if x is None else torch.empty_like(x) for x in (moved, push, slowed))
    q_, k_, v_, _, *rest = _contiguous(*inputs)
    _backward_kernel[(batch * heads,)](
        d_o.contiguous(), q_, k_, v_, *rest, states, answer, inverse,
        d_q, d_k, d_v, d_memory, d_weight, d_bias, d_kept, d_write, d_moved, d_push, d_slowed,
        time, heads, chunks, batch // groups, per_norm, sizes["R"], NORM_EPS,
        **sizes, num_warps=plan.backward_warps, num_stages=1, maxnreg=plan.registers,
    )  # fmt: skip
    d_q_skip = q.new_empty(batch) if q_skip is None else d_o.to(q_skip.dtype, copy=True).contiguous()
    d_k_skip = k.new_empty(batch) if k_skip is None else d_v.neg().to(k_skip.dtype)
    d_norm, d_norm_bias = (
        q.new_empty(batch) if x is None else _by_group(d, x) for d, x in ((d_weight, norm_weight), (d_bias, norm_bias))
    )
    d_moves, d_pushes, d_slows = (q.new_empty(batch) if x is None else x for x in (d_moved, d_push, d_slowed))
    d_first = _by_group(d_memory, memory)
    d_q, d_k, d_v = d_q.to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype)
    return d_q, d_k, d_v, d_q_skip, d_k_skip, d_first, d_norm, d_norm_bias, d_kept, d_write, d_moves, d_pushes, d_slows


def _taking_up(x: Tensor, several: bool) -> Tensor:
    """Room for the derivative by x, which may have to take up several parts."""
    return torch.zeros(x.shape, dtype=torch.float32, device=x.device) if several else x.new_empty(x.shape)


def _by_group(d: Tensor, learned: Tensor) -> Tensor:
    """The sum over the sequences of each group."""
    return (d.unflatten(0, (len(learned), -1)).sum(1) if len(d) > len(learned) else d).to(learned.dtype)


def _gradients(
    d_o: Tensor,
    d_final: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_skip: Tensor | None,
    k_skip: Tensor | None,
    memory: Tensor,
    norm_weight: Tensor | None,
    norm_bias: Tensor | None,
    kept: Tensor,
    write: Tensor,
    moved: Tensor | None,
    push: Tensor | None,
    slowed: Tensor | None,
    hidden: int,
    bias: bool,
    dot: bool,
    chunk: int,
    states: Tensor,
    answer: Tensor,
    inverse: Tensor,
) -> tuple[Tensor, ...]:
    tensors = (q, k, v, q_skip, k_skip, memory, norm_weight, norm_bias, kept, write, moved, push, slowed)
    return tuple(q.new_empty(len(q)) if x is None else x.new_empty(x.shape) for x in tensors)


_memory = opaque("memory", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=2)
