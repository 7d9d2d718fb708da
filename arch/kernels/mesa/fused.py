"""Mesa: states pass from chunk to chunk, and every chunk of tokens solves on its own, all its rows together.

x_t (f_t kk_0 + sum_s w_ts k_s^T k_s + diag(lam)) = q_t,    o_t = scale (f_t x_t kv_0 + sum_s w_ts (x_t . k_s) v_s),    s <= t
with the state kk_0, kv_0 ahead of the chunk, f_t the decay from the chunk's start to t and w_ts that from s to t times beta_s.
Backward: e_t solves the same system for the derivative by x_t, and what the residual q - x A depends on takes it up.

There is a kernel for the states and another for solving, and backward three: to solve, for the states' derivatives, and for
what the chunks write.

B batch, T time, H heads, G heads of q and k (H or 1), N chunks, C tokens a chunk, K key width, V value width
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from arch.kernels.mesa.conjugate import DRIFTED, FRESH, Solver
from arch.kernels.mesa.state import MesaState
from arch.kernels.op_interface.custom_op import opaque, padded
from arch.kernels.op_interface.input_checks import promoted

WIDEST_KEY, WIDEST_VALUE = 128, 256
ROUNDING = 0.01 * torch.finfo(torch.float32).eps  # a residual that fell below it carries no information
SPLIT_ROUNDING = 0.1 * 2**-16  # nor one below it where products keep 16 bits
MOST_STATE_COLUMNS = 64
STAGES = 2  # of the walks over states
_FRESH, _DRIFTED = tl.constexpr(FRESH), tl.constexpr(DRIFTED**2)


class Plan(NamedTuple):
    """How kernels are cut.

    precision  of products of fp32: "ieee"; "tf32x3", three tensor-core products that keep 21 bits; "split", for bf16 inputs
               only, where an fp32 factor becomes two bf16 numbers that keep 16 bits: keys and values lose nothing by it
    """

    chunk: int
    columns: int  # of values at a time
    precision: str
    num_warps: int
    more_warps: int  # where most lies in registers

    @property
    def state_columns(self) -> int:
        """Of a state, that one program of states has."""
        return min(MOST_STATE_COLUMNS, self.columns)


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """What these kernels cannot do."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    if sizes.get("key_width", 1) > WIDEST_KEY or sizes.get("value_width", 1) > WIDEST_VALUE:
        return f"takes keys up to {WIDEST_KEY} and values up to {WIDEST_VALUE} wide"
    if differentiable and sizes.get("unroll"):
        return "does not unroll the gradient of the solver's steps"
    return None


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lam: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    solver: Solver,
    scale: float,
    initial_state: MesaState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, MesaState | None, Tensor]:
    """The whole sequence, and the solver's steps [B, T, H]; `chunk` has no meaning here."""
    dtype = promoted(q, k, v)
    kk, kv = initial_state or (None, None)
    ratio = max(solver.tolerance or 0.0, SPLIT_ROUNDING if dtype == torch.bfloat16 else ROUNDING)
    o, final_kk, final_kv, _, taken, _, _ = _mesa(
        q.to(dtype),
        k.to(dtype),
        v.to(dtype),
        lam[None],
        log_decay,
        beta,
        None if sign is None else sign.detach(),
        kk,
        kv,
        solver.steps,
        ratio**2,
        solver.x0,
        float(scale),
        return_state,
    )
    return o.to(v.dtype), MesaState(final_kk, final_kv) if return_state else None, taken.detach()


def _table(key_width: int, value_width: int, dtype: torch.dtype) -> Plan:
    """Narrow keys have small states: chunks are then as short as tensor cores take, which spares products of tokens."""
    precision = "split" if dtype == torch.bfloat16 else "ieee" if padded(key_width) == 16 else "tf32x3"
    widest = max(padded(key_width), padded(value_width))
    width, columns = padded(key_width), min(64, widest)
    if width <= 32:
        return Plan(16, columns, precision, 1, 1)
    if width == 128:  # 64 rows do not fit registers, nor fp32 factors of them shared memory
        return Plan(32, min(128, padded(value_width)) if precision == "split" else columns, precision, 8, 8)
    return Plan(64, columns, precision, 4, 8)


# The kernels. All content is [B, T, H, D], states are [B, H, N, K, K or V], and one program has one head of one sequence.


@triton.jit
def _rounded(x):  # type: ignore[no-untyped-def]
    """x to the nearest number that bf16 has, still in fp32: bit arithmetic, as a conversion there and back takes far longer."""
    return ((x.to(tl.int32, bitcast=True) + 0x8000) & -0x10000).to(tl.float32, bitcast=True)


@triton.jit
def _high(x):  # type: ignore[no-untyped-def]
    return _rounded(x).to(tl.bfloat16)


@triton.jit
def _low(x):  # type: ignore[no-untyped-def]
    """What bf16 loses of x."""
    return (x - _rounded(x)).to(tl.bfloat16)


@triton.jit
def _dot(x, y, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """x @ y in fp32; the smallest terms are summed first."""
    if PRECISION != "split":
        product = tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision=PRECISION)
    elif x.dtype == tl.float32 and y.dtype == tl.float32:
        product = _dot_halves(x, _high(y), _low(y), PRECISION)
    elif x.dtype == tl.float32:
        product = tl.dot(_high(x), y, tl.dot(_low(x), y))
    elif y.dtype == tl.float32:
        product = tl.dot(x, _high(y), tl.dot(x, _low(y)))
    else:
        product = tl.dot(x, y)
    return product


@triton.jit
def _halves(y, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """What `_dot_halves` wants to be given of y: all of it at once unless products are split."""
    high, low = y, y
    if PRECISION == "split":
        high, low = _high(y), _low(y)
    return high, low


@triton.jit
def _dot_halves(x, high, low, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    if PRECISION == "split":
        product = tl.dot(_high(x), high, tl.dot(_high(x), low, tl.dot(_low(x), high)))
    else:
        product = _dot(x, high, PRECISION)
    return product


@triton.jit
def _rough_dot(x, y, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """x @ y to the digits of the inputs: for what only sums them, and never goes into a solve."""
    if PRECISION == "split":
        product = tl.dot(x.to(tl.bfloat16), y.to(tl.bfloat16))
    else:
        product = _dot(x, y, PRECISION)
    return product


@triton.jit
def _load(pointer, rows, columns, row_stride, column_stride, row_count, column_count):  # type: ignore[no-untyped-def]
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    return tl.load(pointer + rows[:, None] * row_stride + columns[None, :] * column_stride, mask=mask, other=0.0)


@triton.jit
def _store(pointer, x, rows, columns, row_stride, column_stride, row_count, column_count):  # type: ignore[no-untyped-def]
    mask = (rows < row_count)[:, None] & (columns < column_count)[None, :]
    places = pointer + rows[:, None] * row_stride + columns[None, :] * column_stride
    tl.store(places, x.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _signs(sign, at, there):  # type: ignore[no-untyped-def]
    """The product of the chunk's signs up to each token, and of all."""
    negative = (tl.load(sign + at, mask=there, other=1.0) < 0).to(tl.int32)
    return (1 - 2 * (tl.cumsum(negative, 0) % 2)).to(tl.float32), (1 - 2 * (tl.sum(negative, 0) % 2)).to(tl.float32)


@triton.jit
def _fade(log_decay, sign, at, there, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """The factors from the chunk's start to behind each token [C], and over all of it."""
    fade, over = tl.full((C,), 1.0, tl.float32), tl.full((), 1.0, tl.float32)
    if log_decay is not None:
        g = tl.load(log_decay + at, mask=there, other=0.0)
        fade, over = tl.exp(tl.cumsum(g, 0)), tl.exp(tl.sum(g, 0))
    if sign is not None:
        turned, all_turned = _signs(sign, at, there)
        fade, over = fade * turned, over * all_turned
    return fade, over


@triton.jit
def _to_end(log_decay, sign, at, there, H, count, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """The factors from behind each token to the chunk's end [C], of which `count` tokens are there."""
    factor = tl.full((C,), 1.0, tl.float32)
    if log_decay is not None:
        following = tl.arange(0, C) + 1
        g = tl.load(log_decay + at + H, mask=(following < C) & (following < count), other=0.0)
        factor = tl.exp(tl.cumsum(g, 0, reverse=True))
    if sign is not None:
        turned, all_turned = _signs(sign, at, there)
        factor = factor * turned * all_turned
    return factor


@triton.jit
def _pairs(  # type: ignore[no-untyped-def]
    log_decay, sign, at, there, C: tl.constexpr, TIME: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The factors from token s to token t, 0 for s > t; t runs along axis TIME.

    Exponents sum their own decays only, but for 16 bits, where differences of sums have digits enough.
    """
    rows, columns = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    ahead = rows - columns if TIME == 0 else columns - rows
    pairs = (ahead >= 0).to(tl.float32)
    if log_decay is not None:
        g = tl.load(log_decay + at, mask=there, other=0.0)
        if PRECISION == "split":
            sums = tl.cumsum(g, 0)
            apart = tl.expand_dims(sums, 1 - TIME) - tl.expand_dims(sums, TIME)
        else:
            apart = tl.cumsum(tl.where(ahead > 0, tl.expand_dims(g, 1 - TIME), 0.0), TIME)
        pairs = tl.where(ahead >= 0, tl.exp(tl.where(ahead > 0, apart, 0.0)), 0.0)
    if sign is not None:
        turned, _ = _signs(sign, at, there)
        pairs = pairs * turned[:, None] * turned[None, :]
    return pairs


@triton.jit
def _writes(beta, at, there, C: tl.constexpr):  # type: ignore[no-untyped-def]
    write = tl.full((C,), 1.0, tl.float32)
    if beta is not None:
        write = tl.load(beta + at, mask=there, other=0.0)
    return write


@triton.jit
def _multiply(  # type: ignore[no-untyped-def]
    x, k, kT, weights, fade, lam, kk_high, kk_low, AHEAD: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """x A, of one chunk or of many."""
    image = _dot(_dot(x, kT, PRECISION) * weights, k, PRECISION) + x * lam
    if AHEAD:
        image += tl.expand_dims(fade, -1) * _dot_halves(x, kk_high, kk_low, PRECISION)
    return image


@triton.jit
def _start(rhs, k, weights, fade, lam, diagonal, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """q / diag A; where the solver starts needs no more digits than the inputs have."""
    square_k = k.to(tl.float32) * k.to(tl.float32)
    return rhs / (_rough_dot(weights, square_k, PRECISION) + tl.expand_dims(fade, -1) * diagonal + lam)


@triton.jit
def _solve(  # type: ignore[no-untyped-def]
    rhs, k, kT, weights, fade, lam, diagonal, kk_high, kk_low, steps, enough,
    X0: tl.constexpr, AHEAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Conjugate gradients for all rows, as `conjugate.iterate` takes them, and the number of steps each row took.

    A finished row takes steps of length zero: where all have finished, the loop may end and nothing changes. Of a stack of
    chunks all warps must be asked, which only every other step is worth.
    """
    COLUMNS: tl.constexpr = len(rhs.shape) - 1
    x, r = tl.zeros_like(rhs), rhs
    if X0 != "zero":
        x = rhs
        if X0 == "diag":
            x = _start(rhs, k, weights, fade, lam, diagonal, PRECISION)
        r = rhs - _multiply(x, k, kT, weights, fade, lam, kk_high, kk_low, AHEAD, PRECISION)
    p = r
    square = tl.sum(r * r, COLUMNS)
    enough = square * enough
    taken = tl.zeros_like(square)
    step = 0
    busy = (step < steps) & (tl.max((square > enough).to(tl.int32)) > 0)
    while busy:
        for _ in tl.static_range(COLUMNS):
            image = _multiply(p, k, kT, weights, fade, lam, kk_high, kk_low, AHEAD, PRECISION)
            curvature = tl.sum(p * image, COLUMNS)
            active = (square > enough) & (curvature > 0) & (step < steps)
            length = tl.expand_dims(tl.where(active, square, 0.0) / tl.where(active, curvature, 1.0), -1)
            x += length * p
            r -= length * image
            onward = active
            if X0 == "q":
                if step % _FRESH == _FRESH - 1:
                    image = _multiply(x, k, kT, weights, fade, lam, kk_high, kk_low, AHEAD, PRECISION)
                    drift = tl.where(tl.expand_dims(active, -1), rhs - image - r, 0.0)
                    onward = active & (tl.sum(drift * drift, COLUMNS) <= tl.sum(r * r, COLUMNS) * _DRIFTED)
                    r += drift
            following = tl.sum(r * r, COLUMNS)
            p = r + tl.expand_dims(tl.where(onward, following, 0.0) / tl.where(onward, square, 1.0), -1) * p
            square = following
            taken += active.to(tl.float32)
            step += 1
        busy = (step < steps) & (tl.max((square > enough).to(tl.int32)) > 0)
    return x, taken


@triton.jit(do_not_specialize=["T", "H", "G", "N"])
def _states_kernel(  # type: ignore[no-untyped-def]
    k, v, log_decay, beta, sign, initial_kk, initial_kv, ahead_kk, ahead_kv, final_kk, final_kv, T, H, G, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """States ahead of the chunks and behind the last: a program has BC columns of kk or of kv, and walks the chunks."""
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    blocks_of_kk = tl.cdiv(K, BC)
    of_kk = tl.program_id(1) < blocks_of_kk
    i, j = tl.arange(0, BK), tl.program_id(1) * BC + tl.arange(0, BC)
    if tl.program_id(1) >= blocks_of_kk:
        j -= blocks_of_kk * BC
    k += (b * T * G + h % G) * K
    v += (b * T * H + h) * V
    state = tl.zeros((BK, BC), tl.float32)
    if initial_kk is not None:
        if of_kk:
            state = _load(initial_kk + sequence * K * K, i, j, K, 1, K, K)
        else:
            state = _load(initial_kv + sequence * K * V, i, j, V, 1, K, V)
    for n in range(N):
        if of_kk:
            _store(ahead_kk + (sequence * N + n) * K * K, state, i, j, K, 1, K, K)
        else:
            _store(ahead_kv + (sequence * N + n) * K * V, state, i, j, V, 1, K, V)
        t = n * C + tl.arange(0, C)
        at, there = b * T * H + h + t * H, t < T
        _, over = _fade(log_decay, sign, at, there, C)
        write = _to_end(log_decay, sign, at, there, H, T - n * C, C) * _writes(beta, at, there, C)
        written = _load(k, i, t, 1, G * K, K, T).to(tl.float32) * write[None, :]
        content = _load(k, t, j, G * K, 1, T, K) if of_kk else _load(v, t, j, H * V, 1, T, V)
        state = state * over + _dot(written, content, PRECISION)
    if final_kk is not None:
        if of_kk:
            _store(final_kk + sequence * K * K, state, i, j, K, 1, K, K)
        else:
            _store(final_kv + sequence * K * V, state, i, j, V, 1, K, V)


@triton.jit(do_not_specialize=["T", "H", "G", "N", "members", "steps"])
def _forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, lam, log_decay, beta, sign, ahead_kk, ahead_kv, o, solution, taken, T, H, G, N, members, steps, enough, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, X0: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Solve for the queries of one chunk and read the state with the solutions."""
    AHEAD: tl.constexpr = ahead_kk is not None
    sequence, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = sequence // H, sequence % H
    i, t = tl.arange(0, BK), n * C + tl.arange(0, C)
    at, there = b * T * H + h + t * H, t < T
    shared = (b * T * G + h % G) * K
    k_ = _load(k + shared, t, i, G * K, 1, T, K)
    kT = _load(k + shared, i, t, 1, G * K, K, T)
    lam_ = tl.load(lam + ((b // members) * H + h) * K + i, mask=i < K, other=1.0)
    weights = _pairs(log_decay, sign, at, there, C, 0, PRECISION) * _writes(beta, at, there, C)[None, :]
    fade, _ = _fade(log_decay, sign, at, there, C)
    diagonal, kk_high, kk_low = lam_, kT, kT
    if AHEAD:
        kk = ahead_kk + (sequence * N + n) * K * K
        diagonal = tl.load(kk + i * (K + 1), mask=i < K, other=0.0)
        kk_high, kk_low = _halves(_load(kk, i, i, K, 1, K, K), PRECISION)
    else:
        diagonal = tl.zeros_like(lam_)
    rhs = _load(q + shared, t, i, G * K, 1, T, K).to(tl.float32)
    x, used = _solve(
        rhs,
        k_,
        kT,
        weights,
        fade,
        lam_[None, :],
        diagonal[None, :],
        kk_high,
        kk_low,
        steps,
        enough,
        X0,
        AHEAD,
        PRECISION,
    )
    _store(solution + (b * T * H + h) * K, x, t, i, H * K, 1, T, K)
    tl.store(taken + at, used, mask=there)
    scores = _dot(x, kT, PRECISION) * weights
    for first in range(0, V, BC):
        j = first + tl.arange(0, BC)
        read = _rough_dot(scores, _load(v + (b * T * H + h) * V, t, j, H * V, 1, T, V), PRECISION)
        if AHEAD:
            kv = _load(ahead_kv + (sequence * N + n) * K * V, i, j, V, 1, K, V)
            read += fade[:, None] * _dot(x, kv, PRECISION)
        _store(o + (b * T * H + h) * V, read * scale, t, j, H * V, 1, T, V)


@triton.jit(do_not_specialize=["T", "H", "G", "N", "members", "steps"])
def _adjoint_kernel(  # type: ignore[no-untyped-def]
    d_o, k, v, lam, log_decay, beta, sign, ahead_kk, ahead_kv, solution, adjoint, d_q, d_lam, d_fade,
    T, H, G, N, members, steps, enough, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, X0: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Solve for the derivatives by the solutions of one chunk: `adjoint`, which is d_q too; d_fade is f_t df_t."""
    AHEAD: tl.constexpr = ahead_kk is not None
    sequence, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = sequence // H, sequence % H
    i, t = tl.arange(0, BK), n * C + tl.arange(0, C)
    at, there = b * T * H + h + t * H, t < T
    shared, own = (b * T * G + h % G) * K, (b * T * H + h) * K
    k_ = _load(k + shared, t, i, G * K, 1, T, K)
    kT = _load(k + shared, i, t, 1, G * K, K, T)
    lam_ = tl.load(lam + ((b // members) * H + h) * K + i, mask=i < K, other=1.0)
    weights = _pairs(log_decay, sign, at, there, C, 0, PRECISION) * _writes(beta, at, there, C)[None, :]
    fade, _ = _fade(log_decay, sign, at, there, C)

    scores = tl.zeros((C, C), tl.float32)
    read = tl.zeros((C, BK), tl.float32)
    for first in range(0, V, BC):
        j = first + tl.arange(0, BC)
        d_o_ = _load(d_o + (b * T * H + h) * V, t, j, H * V, 1, T, V)
        scores += _dot(d_o_, _load(v + (b * T * H + h) * V, j, t, 1, H * V, V, T), PRECISION)
        if AHEAD:
            kvT = _load(ahead_kv + (sequence * N + n) * K * V, j, i, 1, V, V, K)
            read += _dot(d_o_, kvT, PRECISION)
    rhs = scale * _dot(scores * weights, k_, PRECISION)
    diagonal, kk_high, kk_low = tl.zeros_like(lam_), kT, kT
    by_fade = tl.zeros((C,), tl.float32)
    if AHEAD:
        read = scale * fade[:, None] * read
        rhs += read
        by_fade = tl.sum(read * _load(solution + own, t, i, H * K, 1, T, K), 1)
        kk = ahead_kk + (sequence * N + n) * K * K
        diagonal = tl.load(kk + i * (K + 1), mask=i < K, other=0.0)
        kk_high, kk_low = _halves(_load(kk, i, i, K, 1, K, K), PRECISION)
    e, _ = _solve(
        rhs,
        k_,
        kT,
        weights,
        fade,
        lam_[None, :],
        diagonal[None, :],
        kk_high,
        kk_low,
        steps,
        enough,
        X0,
        AHEAD,
        PRECISION,
    )
    x = _load(solution + own, t, i, H * K, 1, T, K)
    _store(adjoint + own, e, t, i, H * K, 1, T, K)
    _store(d_q + own, e, t, i, H * K, 1, T, K)
    tl.store(d_lam + (sequence * N + n) * K + i, -tl.sum(x * e, 0), mask=i < K)
    if d_fade is not None:
        if AHEAD:
            by_fade -= fade * tl.sum(_dot_halves(x, kk_high, kk_low, PRECISION) * e, 1)
        tl.store(d_fade + at, by_fade, mask=there)


@triton.jit
def _leave(  # type: ignore[no-untyped-def]
    d_state, ahead_kk, ahead_kv, behind_kk, behind_kv, d_over, over, place, of_kk, i, j, K: tl.constexpr, V: tl.constexpr
):  # fmt: skip
    """Put down the derivative by the state behind a chunk, and what it says of the decay over the chunk."""
    if of_kk:
        ahead = _load(ahead_kk + place * K * K, i, j, K, 1, K, K)
        _store(behind_kk + place * K * K, d_state, i, j, K, 1, K, K)
    else:
        ahead = _load(ahead_kv + place * K * V, i, j, V, 1, K, V)
        _store(behind_kv + place * K * V, d_state, i, j, V, 1, K, V)
    if d_over is not None:
        by_over = over * tl.sum(tl.sum(d_state * ahead, 1), 0)
        tl.store(d_over + place * tl.num_programs(1) + tl.program_id(1), by_over)


@triton.jit(do_not_specialize=["T", "H", "N"])
def _behind_kernel(  # type: ignore[no-untyped-def]
    d_o, log_decay, sign, ahead_kk, ahead_kv, solution, adjoint, d_final_kk, d_final_kv,
    behind_kk, behind_kv, d_initial_kk, d_initial_kv, d_over, T, H, N, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Derivatives by the states behind the chunks and by the first: `_states_kernel` backward."""
    sequence = tl.program_id(0).to(tl.int64)
    b, h = sequence // H, sequence % H
    blocks_of_kk = tl.cdiv(K, BC)
    of_kk = tl.program_id(1) < blocks_of_kk
    i, j = tl.arange(0, BK), tl.program_id(1) * BC + tl.arange(0, BC)
    if tl.program_id(1) >= blocks_of_kk:
        j -= blocks_of_kk * BC
    own = (b * T * H + h) * K
    d_state = tl.zeros((BK, BC), tl.float32)
    if d_final_kk is not None:
        if of_kk:
            d_state = _load(d_final_kk + sequence * K * K, i, j, K, 1, K, K)
        else:
            d_state = _load(d_final_kv + sequence * K * V, i, j, V, 1, K, V)
    for back in range(N):
        n = N - 1 - back
        t = n * C + tl.arange(0, C)
        at, there = b * T * H + h + t * H, t < T
        fade, over = _fade(log_decay, sign, at, there, C)
        place = sequence * N + n
        _leave(d_state, ahead_kk, ahead_kv, behind_kk, behind_kv, d_over, over, place, of_kk, i, j, K, V)
        if of_kk:
            content = -_load(adjoint + own, t, j, H * K, 1, T, K)
        else:
            content = scale * _load(d_o + (b * T * H + h) * V, t, j, H * V, 1, T, V).to(tl.float32)
        readers = _load(solution + own, i, t, 1, H * K, K, T) * fade[None, :]
        d_state = d_state * over + _dot(readers, content, PRECISION)
    if d_initial_kk is not None:
        if of_kk:
            _store(d_initial_kk + sequence * K * K, d_state, i, j, K, 1, K, K)
        else:
            _store(d_initial_kv + sequence * K * V, d_state, i, j, V, 1, K, V)


@triton.jit(do_not_specialize=["T", "H", "G", "N"])
def _backward_kernel(  # type: ignore[no-untyped-def]
    d_o, k, v, log_decay, beta, sign, solution, adjoint, behind_kk, behind_kv, d_fade, d_over,
    d_k, d_v, d_log_decay, d_beta, T, H, G, N, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, C: tl.constexpr, BLOCKS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Derivatives by what one chunk writes, from those by the state behind it and from the chunk's own readers.

    Scores are [s, t]: what is written at s and read at t.
    """
    BEHIND: tl.constexpr = behind_kk is not None
    sequence, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = sequence // H, sequence % H
    place = sequence * N + n
    i, t = tl.arange(0, BK), n * C + tl.arange(0, C)
    at, there = b * T * H + h + t * H, t < T
    own = (b * T * H + h) * K
    k_ = _load(k + (b * T * G + h % G) * K, t, i, G * K, 1, T, K)
    write = _writes(beta, at, there, C)
    pairs = _pairs(log_decay, sign, at, there, C, 1, PRECISION)
    weights = pairs * write[:, None]
    to_end = _to_end(log_decay, sign, at, there, H, T - n * C, C)

    by_k = _dot(k_, _load(solution + own, i, t, 1, H * K, K, T), PRECISION)
    values = tl.zeros((C, C), tl.float32)
    behind = tl.zeros((C, BK), tl.float32)
    by_end = tl.zeros((C,), tl.float32)
    for first in range(0, V, BC):
        j = first + tl.arange(0, BC)
        v_ = _load(v + (b * T * H + h) * V, t, j, H * V, 1, T, V)
        values += scale * _dot(v_, _load(d_o + (b * T * H + h) * V, j, t, 1, H * V, V, T), PRECISION)
        by_v = scale * _rough_dot(weights * by_k, _load(d_o + (b * T * H + h) * V, t, j, H * V, 1, T, V), PRECISION)
        if BEHIND:
            state = behind_kv + place * K * V
            behind += _dot(v_, _load(state, j, i, 1, V, V, K), PRECISION)
            through = _dot(k_, _load(state, i, j, V, 1, K, V), PRECISION)
            by_end += tl.sum(through * v_.to(tl.float32), 1)
            by_v += (write * to_end)[:, None] * through
        _store(d_v + (b * T * H + h) * V, by_v, t, j, H * V, 1, T, V)
    values -= _dot(k_, _load(adjoint + own, i, t, 1, H * K, K, T), PRECISION)

    by_key = _rough_dot(weights * values, _load(solution + own, t, i, H * K, 1, T, K), PRECISION)
    by_key -= _rough_dot(weights * by_k, _load(adjoint + own, t, i, H * K, 1, T, K), PRECISION)
    if BEHIND:
        state = behind_kk + place * K * K
        twice = _load(state, i, i, K, 1, K, K) + _load(state, i, i, 1, K, K, K)
        through = _dot(k_, twice, PRECISION)
        by_end += 0.5 * tl.sum(through * k_.to(tl.float32), 1)
        by_key += (write * to_end)[:, None] * (through + behind)
        by_end *= to_end
    _store(d_k + own, by_key, t, i, H * K, 1, T, K)

    by_pair = pairs * by_k * values
    if d_beta is not None:
        tl.store(d_beta + at, tl.sum(by_pair, 1) + by_end, mask=there)
    if d_log_decay is not None:
        s_, t_ = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
        later = tl.cumsum(by_pair * write[:, None], 1, reverse=True)
        by_decay = tl.sum(tl.where(s_ < t_, later + (by_end * write)[:, None], 0.0), 0)
        fading = tl.load(d_fade + at, mask=there, other=0.0)
        by_decay += tl.sum(tl.where(s_ >= t_, fading[:, None], 0.0), 0)
        if d_over is not None:
            for block in range(BLOCKS):
                by_decay += tl.load(d_over + place * BLOCKS + block)
        tl.store(d_log_decay + at, by_decay, mask=there)


# The launchers, and the op of them.


class Cut(NamedTuple):
    """What every kernel is told: counts, and constants of its compilation; and the programs that one state takes."""

    counts: dict[str, int]
    widths: dict[str, int | str]
    blocks: int
    plan: Plan

    def of_states(self) -> dict[str, int | str]:
        return self.widths | {"BC": self.plan.state_columns, "num_stages": STAGES}


def _cut(k: Tensor, v: Tensor) -> Cut:
    (_, time, _, key_width), (heads, value_width) = k.shape, v.shape[2:]
    plan = _table(key_width, value_width, k.dtype)
    counts = {"T": time, "H": heads, "N": -(-time // plan.chunk)}
    widths: dict[str, int | str] = {"K": key_width, "V": value_width, "BK": padded(key_width), "BC": plan.columns}
    widths |= {"C": plan.chunk, "PRECISION": plan.precision, "num_warps": plan.num_warps, "num_stages": 1}
    blocks = -(-key_width // plan.state_columns) + -(-value_width // plan.state_columns)
    return Cut(counts, widths, blocks, plan)


def _passes(chunks: int, kk: Tensor | None, return_state: bool) -> bool:
    """Whether there is any state to pass on."""
    return chunks > 1 or kk is not None or return_state


def _full(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.float().contiguous()


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    kk: Tensor | None,
    kv: Tensor | None,
    steps: int,
    enough: float,
    x0: str,
    scale: float,
    return_state: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """o, final kk and kv; then for backward solutions, steps taken, and kk and kv ahead of every chunk."""
    cut = _cut(k, v)
    results = _results(q, k, v, lam, log_decay, beta, sign, kk, kv, steps, enough, x0, scale, return_state)
    o, final_kk, final_kv, solution, taken, *ahead = results
    batch, heads, chunks = v.shape[0], v.shape[2], cut.counts["N"]
    gates = [_full(x) for x in (log_decay, beta, sign)]
    how = {"members": batch // lam.shape[0], "steps": steps, "enough": enough, "scale": scale, "X0": x0}
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    past: list[Tensor | None] = [None, None]
    if _passes(chunks, kk, return_state):
        past = [*ahead]
        ends = [final_kk, final_kv] if return_state else [None, None]
        states = [_full(kk), _full(kv), *past, *ends]
        _states_kernel[(batch * heads, cut.blocks)](
            k, v, *gates, *states, **cut.counts, G=k.shape[2], **cut.of_states()
        )
    given = [q, k, v, _full(lam), *gates, *past]
    grid = (batch * heads, chunks)
    _forward_kernel[grid](*given, o, solution, taken, **cut.counts, G=k.shape[2], **how, **cut.widths)
    return results


def _results(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    kk: Tensor | None,
    kv: Tensor | None,
    steps: int,
    enough: float,
    x0: str,
    scale: float,
    return_state: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What `_forward` gives, with nothing in it."""
    batch, time, heads, value_width = v.shape
    key_width, cut = k.shape[-1], _cut(k, v)
    chunks = cut.counts["N"]
    passes = _passes(chunks, kk, return_state)

    def new(*shape: int, there: bool = True) -> Tensor:
        return torch.empty((batch, *shape) if there else (batch, 0), dtype=torch.float32, device=v.device)

    return (
        torch.empty(v.shape, dtype=v.dtype, device=v.device),
        new(heads, key_width, key_width, there=return_state),
        new(heads, key_width, value_width, there=return_state),
        new(time, heads, key_width),
        new(time, heads),
        new(heads, chunks, key_width, key_width, there=passes),
        new(heads, chunks, key_width, value_width, there=passes),
    )


def _launch_backward(
    cut: Cut,
    counts: dict[str, int | float],
    how: dict[str, int | float | str],
    inputs: list[Tensor],
    gates: list[Tensor | None],
    past: list[Tensor | None],
    solution: Tensor,
    d_last: list[Tensor | None],
    behind: list[Tensor | None],
    found: list[Tensor | None],
    d_first: list[Tensor | None],
) -> None:
    """The three launches, which leave their derivatives in `found` and `d_first`."""
    d_o, k, v = (x.contiguous() for x in inputs[:3])
    batch, heads, chunks, shared = v.shape[0], v.shape[2], cut.counts["N"], k.shape[2]
    d_q, d_k, d_v, d_lam, d_log_decay, d_beta = found
    adjoint = torch.empty_like(solution)
    d_fade = None if d_log_decay is None else torch.empty_like(d_log_decay)
    d_over = None if d_fade is None or behind[0] is None else d_fade.new_empty(batch, heads, chunks, cut.blocks)
    grid = (batch * heads, chunks)
    given = [d_o, k, v, _full(inputs[3]), *gates, *past, solution]
    _adjoint_kernel[grid](*given, adjoint, d_q, d_lam, d_fade, **counts, **how, G=shared, **cut.widths)
    if behind[0] is not None:
        given = [d_o, gates[0], gates[2], *past, solution, adjoint, *d_last]
        _behind_kernel[(batch * heads, cut.blocks)](*given, *behind, *d_first, d_over, **counts, **cut.of_states())
    given = [d_o, k, v, *gates, solution, adjoint, *behind, d_fade, d_over]
    widths = cut.widths | {"BLOCKS": cut.blocks, "num_warps": cut.plan.more_warps}
    _backward_kernel[grid](*given, d_k, d_v, d_log_decay, d_beta, **counts, G=shared, **widths)


def _backward(
    d_o: Tensor,
    d_final_kk: Tensor,
    d_final_kv: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    kk: Tensor | None,
    kv: Tensor | None,
    steps: int,
    enough: float,
    x0: str,
    scale: float,
    return_state: bool,
    solution: Tensor,
    taken: Tensor,
    ahead_kk: Tensor,
    ahead_kv: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The derivatives by q, k, v, lam, log_decay, beta, sign, kk and kv."""
    cut = _cut(k, v)
    (batch, time, heads, _), (groups, _, key_width), chunks = v.shape, lam.shape, cut.counts["N"]
    passes, shared = _passes(chunks, kk, return_state), k.shape[2] != heads
    counts: dict[str, int | float] = cut.counts | {"scale": scale}

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty((batch, *shape), dtype=dtype, device=v.device)

    def new_where(there: bool, *shape: int) -> Tensor | None:
        return new(*shape) if there else None

    # What heads share takes the sum over them, before it is rounded.
    d_q, d_k = (new(time, heads, key_width, dtype=torch.float32 if shared else k.dtype) for _ in range(2))
    d_v, d_beta = new(*v.shape[1:], dtype=v.dtype), new_where(beta is not None, time, heads)
    d_log_decay = new_where(log_decay is not None, time, heads)
    d_first = [None if x is None else new(*x.shape[1:]) for x in (kk, kv)]
    d_last = [x.contiguous() if return_state else None for x in (d_final_kk, d_final_kv)]
    behind = [new_where(passes, *x.shape[1:]) for x in (ahead_kk, ahead_kv)]
    d_lam = new(heads, chunks, key_width)
    gates = [_full(x) for x in (log_decay, beta, sign)]
    how: dict[str, int | float | str] = {"members": batch // groups, "steps": steps, "enough": enough, "X0": x0}
    found = [d_q, d_k, d_v, d_lam, d_log_decay, d_beta]
    past: list[Tensor | None] = [ahead_kk, ahead_kv] if passes else [None, None]
    _launch_backward(cut, counts, how, [d_o, k, v, lam], gates, past, solution, d_last, behind, found, d_first)
    if shared:
        d_q, d_k = (x.sum(2, keepdim=True).to(k.dtype) for x in (d_q, d_k))
    by_group = d_lam.unflatten(0, (groups, batch // groups)).sum((1, 3))
    d_sign = None if sign is None else torch.zeros_like(sign, memory_format=torch.contiguous_format)
    derivatives = (d_q, d_k, d_v, by_group, d_log_decay, d_beta, d_sign, *d_first)
    return tuple(  # type: ignore[return-value]
        v.new_empty(0) if x is None or derivative is None else derivative.to(x.dtype)
        for x, derivative in zip((q, k, v, lam, log_decay, beta, sign, kk, kv), derivatives, strict=True)
    )


def _derivatives(
    d_o: Tensor, d_final_kk: Tensor, d_final_kv: Tensor, *inputs: Tensor | float | str | None
) -> tuple[Tensor, ...]:
    """What `_backward` gives, with nothing in it."""
    return tuple(
        torch.empty(x.shape, dtype=x.dtype, device=d_o.device) if isinstance(x, Tensor) else d_o.new_empty(0)
        for x in inputs[:9]
    )


_mesa = opaque("mesa", _forward, _backward, outputs=_results, gradients=_derivatives, differentiable=3)
