"""Derivatives by queries, keys and gates, a program a chunk, once the walks have left states and their derivatives."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.delta.fused.decay_factors import (
    cumulative_sums,
    fades_to_end,
    level_fades,
    pair_fades,
    pairs_of_level,
)
from recallmap.arch.kernels.delta.fused.tiles import (
    add_dot,
    dot,
    dot_right,
    load_columns,
    load_gates,
    load_rows,
    load_square,
    load_square_transposed,
    size_of_pairs,
    store_columns,
    store_rows,
)


@triton.jit
def _gradients_by_values(
    k, scores, d_states, d_o, d_e, z, d_v, k_stride, d_o_stride, t, T, H,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, KB: tl.constexpr, VP: tl.constexpr,
    VB: tl.constexpr, PAIR: tl.constexpr, GATE: tl.constexpr, PRECISION: tl.constexpr, APPLY: tl.constexpr,
):  # fmt: skip
    """Leave Z, of derivatives by E, and with a and b derivatives by values, which k writes with its decays to the chunk's end
    and q and r see and hear."""
    inverse = load_square(scores, None, C)
    for start in range(0, VP, VB):
        w = start + tl.arange(0, VB)
        z_VC = dot_right(load_columns(d_e, H * V, t, T, w, V), inverse, APPLY)
        store_columns(z, H * V, t, T, w, V, z_VC)
        if PAIR:
            d_v_VC = dot(load_columns(d_o, d_o_stride, t, T, w, V), load_square(scores + 2 * C * C, None, C), PRECISION)
            d_v_VC -= dot(z_VC, load_square(scores + 3 * C * C, None, C), PRECISION)
            for first in range(0, KP, KB):
                d = first + tl.arange(0, KB)
                inside = (w[:, None] < V) & (d[None, :] < K)
                d_s_VK = tl.load(d_states + w[:, None] * K + d[None, :], mask=inside, other=0.0).to(tl.float32)
                k_KC = load_columns(k, k_stride, t, T, d, K)
                if GATE == 1:
                    k_KC *= tl.load(scores + 4 * C * C + 2 * C + tl.arange(0, C))[None, :]
                d_v_VC = add_dot(d_v_VC, d_s_VK, k_KC, PRECISION)
            store_columns(d_v, H * V, t, T, w, V, d_v_VC)


@triton.jit
def _pair_gradients(
    v, written, d_o, z, v_stride, d_o_stride, t, T, H, scale,
    V: tl.constexpr, C: tl.constexpr, VP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Products that derivatives by a chunk's pairs are made of [C, C], and those by the pairs (t, t) of reads and sees [C]."""
    d_erases = tl.zeros((C, C), tl.float32)
    d_reads = tl.zeros((C, C), tl.float32)
    d_sees = tl.zeros((C, C), tl.float32)
    d_hears = tl.zeros((C, C), tl.float32)
    d_reads_own = tl.zeros((C,), tl.float32)
    d_sees_own = tl.zeros((C,), tl.float32)
    for start in range(0, VP, VB):
        w = start + tl.arange(0, VB)
        d_o_CV = load_rows(d_o, d_o_stride, t, T, w, V)
        z_CV = load_rows(z, H * V, t, T, w, V)
        e_VC = load_columns(written, H * V, t, T, w, V)
        d_reads = add_dot(d_reads, d_o_CV, e_VC, PRECISION)
        d_erases = add_dot(d_erases, z_CV, e_VC, PRECISION)
        d_reads_own += tl.sum(d_o_CV * load_rows(written, H * V, t, T, w, V), 1) * scale
        if PAIR:
            v_VC = load_columns(v, v_stride, t, T, w, V)
            d_sees = add_dot(d_sees, d_o_CV, v_VC, PRECISION)
            d_hears = add_dot(d_hears, z_CV, v_VC, PRECISION)
            d_sees_own += tl.sum(d_o_CV * load_rows(v, v_stride, t, T, w, V), 1) * scale
    return d_erases, d_reads, d_sees, d_hears, d_reads_own, d_sees_own


@triton.jit
def _faded_by_head(
    d_erases, d_reads, d_sees, d_hears, high, low, g_C, C: tl.constexpr, PAIR: tl.constexpr
):  # fmt: skip
    """Times the fades of their pairs."""
    fade = pair_fades(high, low, tl.zeros_like(g_C), C)
    d_reads *= fade
    if PAIR:
        d_sees *= fade
        fade = pair_fades(high, low, g_C, C)
        d_hears *= fade
    d_erases *= fade
    return d_erases, d_reads, d_sees, d_hears


@triton.jit
def _leave_pair_gradients(d_pairs, d_erases, d_reads, d_sees, d_hears, C: tl.constexpr, PAIR: tl.constexpr):
    """Left in memory and read again, also the other way around: there are too many for registers."""
    i = tl.arange(0, C)
    place = i[:, None] * C + i[None, :]
    tl.store(d_pairs + place, d_erases)
    tl.store(d_pairs + C * C + place, d_reads)
    if PAIR:
        tl.store(d_pairs + 2 * C * C + place, d_sees)
        tl.store(d_pairs + 3 * C * C + place, d_hears)
    tl.debug_barrier()


@triton.jit
def _gradients_through_states(
    v, states, d_states, written, d_o, z, v_stride, d_o_stride, t, d, T, H,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KB: tl.constexpr, VP: tl.constexpr, VB: tl.constexpr,
    PAIR: tl.constexpr, GATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Derivatives by q, r, columns and k [C, KB] through the states ahead and behind, and these states' product [KB]."""
    d_q_CK = tl.zeros((C, KB), tl.float32)
    d_r_CK = tl.zeros((C, KB), tl.float32)
    d_c_CK = tl.zeros((C, KB), tl.float32)
    d_k_CK = tl.zeros((C, KB), tl.float32)
    kept_K = tl.zeros((KB,), tl.float32)
    for first in range(0, VP, VB):
        w = first + tl.arange(0, VB)
        inside = (w[:, None] < V) & (d[None, :] < K)
        s_VK = tl.load(states + w[:, None] * K + d[None, :], mask=inside, other=0.0).to(tl.float32)
        d_s_VK = tl.load(d_states + w[:, None] * K + d[None, :], mask=inside, other=0.0).to(tl.float32)
        d_o_CV = load_rows(d_o, d_o_stride, t, T, w, V)
        e_CV = load_rows(written, H * V, t, T, w, V)
        z_CV = load_rows(z, H * V, t, T, w, V)
        d_q_CK = add_dot(d_q_CK, d_o_CV, s_VK, PRECISION)
        d_r_CK = add_dot(d_r_CK, z_CV, s_VK, PRECISION)
        d_c_CK = add_dot(d_c_CK, e_CV, d_s_VK, PRECISION)
        if PAIR:
            v_CV = load_rows(v, v_stride, t, T, w, V)
            d_k_CK = add_dot(d_k_CK, v_CV, d_s_VK, PRECISION)
        if GATE > 0:
            kept_K += tl.sum(s_VK * d_s_VK, 0)
    return d_q_CK, d_r_CK, d_c_CK, d_k_CK, kept_K


@triton.jit
def _gradients_through_pairs(
    d_q_CK, d_r_CK, d_c_CK, d_k_CK, q_CK, r_CK, c_CK, k_CK, d_pairs, C: tl.constexpr, PAIR: tl.constexpr,
    INTRA: tl.constexpr,
):  # fmt: skip
    """Derivatives by q, r, columns and k through pairs that fade by head, or not at all, added to the ones given."""
    d_q_CK = add_dot(d_q_CK, load_square(d_pairs + C * C, None, C), c_CK, INTRA)
    d_r_CK = add_dot(d_r_CK, load_square(d_pairs, None, C), c_CK, INTRA)
    d_c_CK = add_dot(d_c_CK, load_square_transposed(d_pairs + C * C, None, C), q_CK, INTRA)
    d_c_CK = add_dot(d_c_CK, load_square_transposed(d_pairs, None, C), r_CK, INTRA)
    if PAIR:
        d_q_CK = add_dot(d_q_CK, load_square(d_pairs + 2 * C * C, None, C), k_CK, INTRA)
        d_r_CK = add_dot(d_r_CK, load_square(d_pairs + 3 * C * C, None, C), k_CK, INTRA)
        d_k_CK = add_dot(d_k_CK, load_square_transposed(d_pairs + 2 * C * C, None, C), q_CK, INTRA)
        d_k_CK = add_dot(d_k_CK, load_square_transposed(d_pairs + 3 * C * C, None, C), r_CK, INTRA)
    return d_q_CK, d_r_CK, d_c_CK, d_k_CK


@triton.jit
def _gradients_through_held_pairs(
    d_q_CK, d_r_CK, d_c_CK, q_CK, r_CK, c_CK, d_erases, d_reads, INTRA: tl.constexpr
):  # fmt: skip
    """The same of pairs in registers, without a and b."""
    d_q_CK = add_dot(d_q_CK, d_reads, c_CK, INTRA)
    d_r_CK = add_dot(d_r_CK, d_erases, c_CK, INTRA)
    d_c_CK = add_dot(d_c_CK, tl.trans(d_reads), q_CK, INTRA)
    d_c_CK = add_dot(d_c_CK, tl.trans(d_erases), r_CK, INTRA)
    return d_q_CK, d_r_CK, d_c_CK


@triton.jit
def _gradients_through_levels(
    d_q_CK, d_r_CK, d_c_CK, d_k_CK, q_CK, r_CK, c_CK, k_CK, g_CK, until_CK, d_pairs,
    C: tl.constexpr, LEVELS: tl.constexpr, PAIR: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Derivatives by q, r, columns and k through pairs that fade by channel, added to the ones given."""
    for level in tl.range(0, LEVELS, loop_unroll_factor=UNROLL):
        now = pairs_of_level(level, C, CHAIN == "ieee", False)
        now_turned = pairs_of_level(level, C, CHAIN == "ieee", True)
        row, read, column = level_fades(g_CK, until_CK, level, C, CHAIN == "ieee", PAIR)
        c_faded = c_CK * column
        to_q = dot(load_square(d_pairs + C * C, now, C), c_faded, PRECISION)
        to_r = dot(load_square(d_pairs, now, C), c_faded, PRECISION)
        if PAIR:
            k_faded = k_CK * column
            to_q = add_dot(to_q, load_square(d_pairs + 2 * C * C, now, C), k_faded, PRECISION)
            to_r = add_dot(to_r, load_square(d_pairs + 3 * C * C, now, C), k_faded, PRECISION)
        d_q_CK += to_q * row
        d_r_CK += to_r * read
        q_faded, r_faded = q_CK * row, r_CK * read
        to_c = dot(load_square_transposed(d_pairs + C * C, now_turned, C), q_faded, PRECISION)
        to_c = add_dot(to_c, load_square_transposed(d_pairs, now_turned, C), r_faded, PRECISION)
        d_c_CK += to_c * column
        if PAIR:
            to_k = dot(load_square_transposed(d_pairs + 2 * C * C, now_turned, C), q_faded, PRECISION)
            to_k = add_dot(to_k, load_square_transposed(d_pairs + 3 * C * C, now_turned, C), r_faded, PRECISION)
            d_k_CK += to_k * column
    return d_q_CK, d_r_CK, d_c_CK, d_k_CK


@triton.jit(do_not_specialize=["T", "H"])
def delta_gradient_kernel(
    q, k, v, a, b, g, beta, states, d_states, written, d_o, z, d_pairs, d_q, d_k, d_a, d_b, d_g, d_beta,
    scores, faded_k, d_e, d_v,
    q_strides, k_strides, v_strides, a_strides, b_strides, g_strides, beta_strides, d_o_strides, faded_k_strides,
    T, H, scale, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, KP: tl.constexpr,
    KB: tl.constexpr, VP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr, GATE: tl.constexpr, WRITE: tl.constexpr,
    APART: tl.constexpr, HOLD: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr, APPLY: tl.constexpr,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """Derivatives by q, k, a, b and the gates of one chunk of one head. Where APART, Z and derivatives by values are made here,
    of those by E. Where HOLD, derivatives by pairs stay in registers."""
    head, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    d_o += at_b * d_o_strides[0] + at_h * d_o_strides[2]
    own_head = at_b * T * H + at_h
    written, z = written + own_head * V, z + own_head * V
    d_q, d_k = d_q + own_head * K, d_k + own_head * K
    if PAIR:
        v += at_b * v_strides[0] + at_h * v_strides[2]
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
        d_a, d_b = d_a + own_head * K, d_b + own_head * K
    if GATE > 0:
        g += at_b * g_strides[0] + at_h * g_strides[2]
        d_g += own_head * K if GATE == 2 else own_head
    states += (head * tl.num_programs(1) + n) * (K * V)
    d_states += (head * tl.num_programs(1) + n) * (K * V)
    KINDS: tl.constexpr = 4 if PAIR else 2
    if not HOLD:
        d_pairs += (head * tl.num_programs(1) + n) * (KINDS * C * C)
    t = n * C + tl.arange(0, C)
    if APART:
        scores += (head * tl.num_programs(1) + n) * (size_of_pairs(C, PAIR, PRECISION) + (KP if GATE == 2 else 4 * C))
        if PAIR:
            faded_k += at_b * faded_k_strides[0] + at_h * faded_k_strides[2]
            d_v += own_head * V
        _gradients_by_values(
            faded_k, scores, d_states, d_o, d_e + own_head * V, z, d_v, faded_k_strides[1], d_o_strides[1], t, T, H,
            K, V, C, KP, KB, VP, VB, PAIR, GATE, PRECISION, APPLY,
        )  # fmt: skip
        tl.debug_barrier()

    d_erases, d_reads, d_sees, d_hears, d_reads_own, d_sees_own = _pair_gradients(
        v, written, d_o, z, v_strides[1], d_o_strides[1], t, T, H, scale, V, C, VP, VB, PAIR, PRECISION
    )
    d_erases, d_reads, d_sees, d_hears = -d_erases, d_reads * scale, d_sees * scale, -d_hears
    if GATE == 1:
        g_C = load_gates(g, g_strides[1], t, T)
        high, low = cumulative_sums(g_C, CHAIN == "ieee")
        to_token = tl.exp(high)[:, None]
        to_read = tl.exp(tl.minimum(high - g_C, 0.0) if PAIR else high)[:, None]
        to_end = fades_to_end(g_C)[:, None]
        over = tl.exp(tl.sum(g_C, 0))
        d_erases, d_reads, d_sees, d_hears = _faded_by_head(d_erases, d_reads, d_sees, d_hears, high, low, g_C, C, PAIR)
    below = tl.arange(0, C)[:, None] > tl.arange(0, C)[None, :]
    d_erases, d_reads = tl.where(below, d_erases, 0.0), tl.where(below, d_reads, 0.0)
    if PAIR:
        d_sees, d_hears = tl.where(below, d_sees, 0.0), tl.where(below, d_hears, 0.0)
    if not HOLD:
        _leave_pair_gradients(d_pairs, d_erases, d_reads, d_sees, d_hears, C, PAIR)
    if WRITE:
        beta_C = load_gates(beta + at_b * beta_strides[0] + at_h * beta_strides[2], beta_strides[1], t, T)
    d_beta_C = tl.zeros((C,), tl.float32)
    d_until_C = tl.zeros((C,), tl.float32)
    d_before_C = tl.zeros((C,), tl.float32)
    d_over = 0.0

    for start in range(0, KP, KB):
        d = start + tl.arange(0, KB)
        d_q_CK, d_r_CK, d_c_CK, d_k_CK, kept_K = _gradients_through_states(
            v, states, d_states, written, d_o, z, v_strides[1], d_o_strides[1], t, d, T, H,
            K, V, C, KB, VP, VB, PAIR, GATE, PRECISION,
        )  # fmt: skip
        d_q_CK *= scale
        d_r_CK = -d_r_CK
        q_CK = load_rows(q, q_strides[1], t, T, d, K)
        k_CK = load_rows(k, k_strides[1], t, T, d, K)
        if PAIR:
            r_CK = load_rows(a, a_strides[1], t, T, d, K)
            c_CK = load_rows(b, b_strides[1], t, T, d, K)
        else:
            r_CK, c_CK = k_CK, k_CK
        if WRITE:
            c_CK *= beta_C[:, None]
        if GATE == 1:
            d_q_CK *= to_token
            d_r_CK *= to_read
            d_c_CK *= to_end
            d_k_CK *= to_end
        if GATE == 2:
            g_CK = load_rows(g, g_strides[1], t, T, d, K)
            until = tl.cumsum(g_CK, 0)
            d_q_CK *= tl.exp(until)
            d_r_CK *= tl.exp(tl.minimum(until - g_CK, 0.0) if PAIR else until)
            to_end_CK = tl.exp(tl.minimum(tl.cumsum(g_CK, 0, reverse=True) - g_CK, 0.0))
            d_c_CK *= to_end_CK
            d_k_CK *= to_end_CK
            over_K = tl.exp(tl.sum(g_CK, 0))
        if GATE == 1:
            d_over += over * tl.sum(kept_K, 0) + tl.sum(c_CK * d_c_CK)
            if PAIR:
                d_over += tl.sum(k_CK * d_k_CK)
        if GATE == 2:
            d_over_K = over_K * kept_K + tl.sum(c_CK * d_c_CK, 0)
            if PAIR:
                d_over_K += tl.sum(k_CK * d_k_CK, 0)

        if GATE < 2:
            # A fade's derivative is a difference between the two tokens of a pair.
            INTRA: tl.constexpr = CHAIN if GATE == 1 else PRECISION
            if HOLD:
                d_q_CK, d_r_CK, d_c_CK = _gradients_through_held_pairs(
                    d_q_CK, d_r_CK, d_c_CK, q_CK, r_CK, c_CK, d_erases, d_reads, INTRA
                )
            else:
                d_q_CK, d_r_CK, d_c_CK, d_k_CK = _gradients_through_pairs(
                    d_q_CK, d_r_CK, d_c_CK, d_k_CK, q_CK, r_CK, c_CK, k_CK, d_pairs, C, PAIR, INTRA
                )
        else:
            d_q_CK, d_r_CK, d_c_CK, d_k_CK = _gradients_through_levels(
                d_q_CK, d_r_CK, d_c_CK, d_k_CK, q_CK, r_CK, c_CK, k_CK, g_CK, until, d_pairs,
                C, LEVELS, PAIR, PRECISION, CHAIN, UNROLL,
            )  # fmt: skip

        # A pair (t, t) does not fade: it comes after the derivatives of the fades.
        if GATE > 0:
            d_read_CK = r_CK * d_r_CK
            d_until_CK = q_CK * d_q_CK + d_read_CK - c_CK * d_c_CK
            if PAIR:
                d_until_CK -= k_CK * d_k_CK
            if GATE == 1:
                d_until_C += tl.sum(d_until_CK, 1)
                if PAIR:
                    d_before_C += tl.sum(d_read_CK, 1)
            else:
                d_g_CK = tl.cumsum(d_until_CK, 0, reverse=True) + d_over_K[None, :]
                if PAIR:
                    d_g_CK -= d_read_CK
                store_rows(d_g, H * K, t, T, d, K, d_g_CK)
        d_q_CK += d_reads_own[:, None] * c_CK
        d_c_CK += d_reads_own[:, None] * q_CK
        if PAIR:
            d_q_CK += d_sees_own[:, None] * k_CK
            d_k_CK += d_sees_own[:, None] * q_CK
            store_rows(d_a, H * K, t, T, d, K, d_r_CK)
            store_rows(d_b, H * K, t, T, d, K, d_c_CK)
        elif WRITE:
            d_beta_C += tl.sum(k_CK * d_c_CK, 1)
            d_k_CK = d_r_CK + beta_C[:, None] * d_c_CK
        else:
            d_k_CK = d_r_CK + d_c_CK
        store_rows(d_q, H * K, t, T, d, K, d_q_CK)
        store_rows(d_k, H * K, t, T, d, K, d_k_CK)
    if GATE == 1:
        tl.store(d_g + t * H, tl.cumsum(d_until_C, 0, reverse=True) + d_over - d_before_C, mask=t < T)
    if WRITE:
        tl.store(d_beta + own_head + t * H, d_beta_C, mask=t < T)
