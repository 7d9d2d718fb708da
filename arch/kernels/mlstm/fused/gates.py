"""Exponential gates of a chunk: what of each token is left at another, relative to the largest, and the derivatives of gates.

T time, H heads, S tokens a chunk
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mlstm.state import LARGEST_EXPONENT

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NEVER = tl.constexpr(-1e30)
LOWEST = tl.constexpr(-1000.0)  # ln of a decay that is nothing in any precision; sums of it still have digits
LIMIT = tl.constexpr(LARGEST_EXPONENT)


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def forget(f):
    """ln sigmoid(f), and its derivative."""
    small = tl.exp(-tl.abs(f))
    u = small / (2.0 + small)  # ln(1 + small) = 2 artanh(u): it keeps the digits of a decay next to 1
    x = u * u
    series = 1.0 + x * (1 / 3 + x * (1 / 5 + x * (1 / 7 + x * (1 / 9 + x * (1 / 11 + x * (1 / 13 + x * (1 / 15)))))))
    slope = tl.where(f > 0, small, 1.0) / (1.0 + small)
    return tl.maximum(tl.minimum(f, 0.0) - 2.0 * u * series, LOWEST), slope


@triton.jit
def _parts(x, EXACT: tl.constexpr):
    """An fp64 vector as fp32, and what that leaves out where it counts."""
    high = x.to(tl.float32)
    return high, (x - high).to(tl.float32) if EXACT else high


@triton.jit
def chunk_gates(i, f, t, T, i_stride, f_stride, m, EXACT: tl.constexpr):
    """b and M [S], powers of 2 in `_parts`; m_t [S]; e^(m - M), e^(b - M_end) [S], e^(m - M_end), m_end; by whom, and slope.

    made_by  the token that the m behind the chunk comes from, -1 where it comes from the m ahead
    slope    [S], the derivative of ln sigmoid(f)
    EXACT: in fp64, because sums over a chunk are differences of large numbers. A token that is not there writes nothing.
    """
    there = t < T
    wide: tl.constexpr = tl.float64 if EXACT else tl.float32
    log_decay, slope = forget(tl.load(f + t * f_stride, mask=there, other=0.0).to(tl.float32))
    g = tl.where(there, log_decay, 0.0).to(wide) * LOG2E
    until = tl.cumsum(g, 0)
    b = tl.load(i + t * i_stride, mask=there, other=NEVER).to(wide) * LOG2E - until
    before = m.to(wide) * LOG2E
    top = tl.maximum(tl.associative_scan(b, 0, larger), before)
    m_t = ((until + top) * LN2).to(tl.float32)
    whole, largest = tl.sum(g, 0), tl.max(b, 0)
    m_end = ((whole + tl.maximum(largest, before)) * LN2).to(tl.float32)
    end = m_end.to(wide) * LOG2E - whole  # of the m that the next chunk really has
    first = tl.min(tl.where(b == largest, t, T), 0)
    made_by = tl.where(before >= largest, -1, first)
    high_b, low_b = _parts(b, EXACT)
    high_top, low_top = _parts(top, EXACT)
    return (
        (high_b, low_b),
        (high_top, low_top),
        m_t,
        tl.exp2((before - top).to(tl.float32)),
        tl.exp2((b - end).to(tl.float32)),
        tl.exp2((before - end).to(tl.float32)),
        m_end,
        made_by,
        slope,
    )


@triton.jit
def load_powers(x, t, T, other, EXACT: tl.constexpr):
    """b or M of tokens in `_parts`, `other` where there is none."""
    return _parts(tl.load(x + t, mask=t < T, other=other), EXACT)


@triton.jit
def store_powers(x, t, T, parts, EXACT: tl.constexpr):
    """What `load_powers` loads."""
    tl.store(x + t, parts[0].to(tl.float64) + parts[1] if EXACT else parts[0], mask=t < T)


@triton.jit
def gates_of_rows(b_, top_, before_, floor_, n, sequence, t, s, of_k, known, T, EXACT: tl.constexpr):
    """What a tile of rows t needs of the gates of its chunk s: powers by s and by t, by t the weight of the state ahead and the
    floor of normalisers, and n of that state."""
    n_K = tl.load(n + of_k, mask=of_k < known, other=0.0)
    before = tl.load(before_ + sequence * T + t, mask=t < T, other=0.0)
    floor = tl.load(floor_ + sequence * T + t, mask=t < T, other=1.0)
    b, top = load_powers(b_ + sequence * T, s, T, NEVER, EXACT), load_powers(top_ + sequence * T, t, T, -NEVER, EXACT)
    return b, top, before, floor, n_K


@triton.jit
def pair_fades(b, top, seen, EXACT: tl.constexpr):
    """e^(b_s - M_t) [t, s] of the pairs that are seen."""
    power = b[0][None, :] - top[0][:, None]
    if EXACT:
        power += b[1][None, :] - top[1][:, None]
    return tl.exp2(tl.where(seen, power, -10000.0))


@triton.jit
def pair_fades_turned(b, top, seen, EXACT: tl.constexpr):
    """e^(b_s - M_t) [s, t]."""
    power = b[0][:, None] - top[0][None, :]
    if EXACT:
        power += b[1][:, None] - top[1][None, :]
    return tl.exp2(tl.where(seen, power, -10000.0))


@triton.jit
def least_normaliser(m_t):
    return tl.exp(tl.minimum(tl.maximum(-m_t, -LIMIT), LIMIT))


@triton.jit
def row_derivatives(d, along, floor, scale):
    """scale times r and times the derivative of d, and what a row gives to G_t, of d and do . N / scale."""
    r = scale / tl.maximum(tl.abs(d), floor)
    live = tl.abs(d) > floor
    by_d = tl.where(live, tl.where(d > 0, -along, along) * r * r, 0.0)
    return r, by_d, tl.where(live, 0.0, along * r)


@triton.jit
def store_gate_derivatives(di, df, t, T, H, slope, made_by, row, column, final, through, mu):
    """Stores them; mu is the derivative of the m behind the chunk.

    A decay counts wherever it lies between two tokens, hence sums from it on of `row - column` and up to it of `final`.
    """
    by_g = tl.cumsum(row - column, 0, reverse=True) + (tl.cumsum(final, 0) - final) + through
    by_g += tl.where(t > made_by, mu, 0.0)
    by_i = column + final + tl.where(t == made_by, mu, 0.0)
    tl.store(df + t * H, by_g * slope, mask=t < T)
    tl.store(di + t * H, by_i, mask=t < T)
