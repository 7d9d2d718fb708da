"""The walk of the gates alone: all that chunks side by side have to know of them.

[B, H, T] or [B, H, N], all of one head; b and M are powers of 2 relative to the start of their chunk, in fp64 beside fp32.

T time, H heads, N chunks, S tokens a chunk
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mlstm.fused.gates import LN2, LOG2E, NEVER, forget, larger, least_normaliser
from recallmap.arch.kernels.mlstm.fused.tiles import head_of


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_gates_kernel(
    i, f, m_first, b_, top_, before_, write_, floor_, kept_, made_by_, m_last, i_strides, f_strides, T, H, N,
    BN: tl.constexpr, BS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """b, M, e^(m - M), e^(b - M_end) and the least normaliser of tokens; e^(m - M_end) of chunks; the last m, and its maker.

    made_by  the token that the last m comes from, -1 where it comes from the first m
    BN       chunks at a time. Sums over them are in fp64: they are differences of large numbers.
    """
    sequence = tl.program_id(0).to(tl.int64)
    i, f = head_of(i, i_strides, sequence, H), head_of(f, f_strides, sequence, H)
    b_, top_ = b_ + sequence * T, top_ + sequence * T
    before_, write_, floor_ = before_ + sequence * T, write_ + sequence * T, floor_ + sequence * T
    wide: tl.constexpr = tl.float64 if EXACT else tl.float32
    at = tl.arange(0, BN)
    m = tl.full([], 0.0, tl.float64)
    if FIRST:
        m = tl.load(m_first + sequence).to(tl.float64) * LOG2E
    made_by = tl.full([], -1, tl.int32)
    for block in range(tl.cdiv(N, BN)):
        c = block * BN + at
        t = c[:, None] * BS + tl.arange(0, BS)[None, :]
        there = t < T
        log_decay, _ = forget(tl.load(f + t * f_strides[1], mask=there, other=0.0).to(tl.float32))
        g = tl.where(there, log_decay, 0.0).to(wide) * LOG2E
        until = tl.cumsum(g, 1)
        b = tl.load(i + t * i_strides[1], mask=there, other=NEVER).to(wide) * LOG2E - until
        largest = tl.max(b, 1)
        first = tl.min(tl.where(b == largest[:, None], t, T), 1)
        whole = tl.sum(g, 1).to(tl.float64)
        until_chunk = tl.cumsum(whole, 0) - whole
        peak = largest.to(tl.float64) - until_chunk  # relative to the start of the block
        before = tl.max(tl.where(at[None, :] < at[:, None], peak[None, :], m), 1) + until_chunk
        end = tl.maximum(before, largest.to(tl.float64))
        if LAST:  # of the m that is handed out
            handed_out = ((whole + end) * LN2).to(tl.float32).to(tl.float64) * LOG2E - whole
            end = tl.where(c == N - 1, handed_out, end)
        highest = tl.max(peak, 0)
        made_by = tl.where(highest > m, tl.min(tl.where(peak == highest, first, T), 0), made_by)
        m = tl.sum(tl.where(c == tl.minimum(block * BN + BN, N) - 1, whole + end, 0.0), 0)

        top = tl.maximum(tl.associative_scan(b, 1, larger), before[:, None].to(wide))
        tl.store(b_ + t, b, mask=there)
        tl.store(top_ + t, top, mask=there)
        tl.store(before_ + t, tl.exp2((before[:, None] - top).to(tl.float32)), mask=there)
        tl.store(write_ + t, tl.exp2((b - end[:, None]).to(tl.float32)), mask=there)
        tl.store(floor_ + t, least_normaliser(((until + top) * LN2).to(tl.float32)), mask=there)
        tl.store(kept_ + sequence * N + c, tl.exp2((before - end).to(tl.float32)), mask=c < N)
    tl.store(made_by_ + sequence, made_by)
    if LAST:
        tl.store(m_last + sequence, (m * LN2).to(tl.float32))
