"""A whole sequence in one program: it walks the chunks with the state in registers, and does all else on the way.

Forward leaves the inverses, E and the states ahead of the chunks to backward. Symbols are those of `fused/__init__.py`.
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.delta.fused.decay_factors import cumulative_sums, fades_to_end, level_fades, pair_fades
from recallmap.arch.kernels.delta.fused.tiles import (
    add_dot,
    dot,
    grow_state,
    in_blocks,
    load_gates,
    load_rows,
    out_of_blocks,
    store_rows,
)
from recallmap.arch.kernels.delta.fused.triangular_inverse import invert_unit_lower


@triton.jit(do_not_specialize=["T", "H"])
def delta_whole_forward_kernel(
    q, k, v, a, b, g, beta, initial, o, final, inverses, written, states,
    q_strides, k_strides, v_strides, a_strides, b_strides, g_strides, beta_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, KEEP: tl.constexpr, END: tl.constexpr,
    PRECISION: tl.constexpr, CHAIN: tl.constexpr, SOLVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs of one head."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    v += at_b * v_strides[0] + at_h * v_strides[2]
    if PAIR:
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    if GATE > 0:
        g += at_b * g_strides[0] + at_h * g_strides[2]
    if WRITE:
        beta += at_b * beta_strides[0] + at_h * beta_strides[2]
    chunks = tl.cdiv(T, C)
    inverses += head * chunks * (C * C)
    states += head * chunks * (K * V)
    o += (at_b * T * H + at_h) * V
    written += (at_b * T * H + at_h) * V
    i, d, w = tl.arange(0, C), tl.arange(0, KP), tl.arange(0, VP)
    square = i[:, None] * C + i[None, :]
    until_now, before_now = i[:, None] >= i[None, :], i[:, None] > i[None, :]
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    SPLIT: tl.constexpr = CHAIN != "ieee" and KP > 32
    state = tl.zeros((KP, VP), tl.float32)
    if START:
        state = tl.load(initial + head * (K * V) + place, mask=inside, other=0.0)
    state = in_blocks(state, SPLIT)
    for n in tl.range(0, chunks, num_stages=STAGES):
        t = n * C + i
        q_CK = load_rows(q, q_strides[1], t, T, d, K)
        k_CK = load_rows(k, k_strides[1], t, T, d, K)
        v_CV = load_rows(v, v_strides[1], t, T, w, V)
        if PAIR:
            r_CK = load_rows(a, a_strides[1], t, T, d, K)
            c_CK = load_rows(b, b_strides[1], t, T, d, K)
        else:
            r_CK = k_CK
            c_CK = k_CK
        ahead = out_of_blocks(state, SPLIT)
        if KEEP:
            tl.store(states + n * (K * V) + place, ahead.to(states.dtype.element_ty), mask=inside)

        # Pairs of tokens
        if GATE < 2:
            c_KC = tl.trans(c_CK)
            reads = dot(q_CK, c_KC, PRECISION)
            erases = dot(r_CK, c_KC, PRECISION)
            if PAIR:
                k_KC = tl.trans(k_CK)
                sees = dot(q_CK, k_KC, PRECISION)
                hears = dot(r_CK, k_KC, PRECISION)
        else:
            g_CK = load_rows(g, g_strides[1], t, T, d, K)
            until = tl.cumsum(g_CK, 0)
            row, read, column = level_fades(g_CK, until, 0, C, False, PAIR)
            c_KC = tl.trans(c_CK * column)
            reads = dot(q_CK * row, c_KC, PRECISION)
            erases = dot(r_CK * read, c_KC, CHAIN)
            if PAIR:
                k_KC = tl.trans(k_CK * column)
                sees = dot(q_CK * row, k_KC, PRECISION)
                hears = dot(r_CK * read, k_KC, PRECISION)
        strength = tl.full((C,), 1.0, tl.float32)
        if WRITE:
            strength = load_gates(beta, beta_strides[1], t, T)
            reads *= strength[None, :]
            erases *= strength[None, :]
        if GATE == 1:
            g_C = load_gates(g, g_strides[1], t, T)
            high, low = cumulative_sums(g_C, CHAIN == "ieee")
            fade = pair_fades(high, low, tl.zeros_like(g_C), C)
            reads *= fade
            if PAIR:
                sees *= fade
                fade = pair_fades(high, low, g_C, C)
                hears *= fade
                r_CK *= tl.exp(tl.minimum(high - g_C, 0.0))[:, None]
            else:
                r_CK *= tl.exp(high)[:, None]
            erases *= fade
            q_CK *= tl.exp(high)[:, None]
            to_end = fades_to_end(g_C)
            strength *= to_end
            if PAIR:
                k_CK *= to_end[:, None]
        if GATE == 2:
            q_CK *= tl.exp(until)
            r_CK *= tl.exp(tl.minimum(until - g_CK, 0.0) if PAIR else until)
            to_end_CK = tl.exp(tl.minimum(tl.sum(g_CK, 0)[None, :] - until, 0.0))
            c_CK *= to_end_CK
            k_CK *= to_end_CK
        if GATE == 1 or WRITE:
            c_CK *= strength[:, None]
        inverse = invert_unit_lower(tl.where(before_now, erases, 0.0), C, SOLVE)

        # writes, reads
        if PAIR:
            wanted = -dot(tl.where(before_now, hears, 0.0), v_CV, CHAIN) - dot(r_CK, ahead, CHAIN)
        else:
            wanted = v_CV - dot(r_CK, ahead, CHAIN)
        e_CV = dot(inverse, wanted, SOLVE)
        if KEEP:
            tl.store(inverses + n * (C * C) + square, inverse.to(inverses.dtype.element_ty))
            store_rows(written, H * V, t, T, w, V, e_CV)
        o_CV = dot(q_CK, ahead, PRECISION)
        o_CV = add_dot(o_CV, tl.where(until_now, reads, 0.0), e_CV, PRECISION)
        if PAIR:
            o_CV = add_dot(o_CV, tl.where(until_now, sees, 0.0), v_CV, PRECISION)
        store_rows(o, H * V, t, T, w, V, o_CV * scale)
        if GATE == 1:
            state *= tl.exp(tl.sum(g_C, 0))
        if GATE == 2:
            state *= in_blocks(tl.exp(tl.sum(tl.trans(g_CK), 1))[:, None], SPLIT)
        state = grow_state(state, tl.trans(c_CK), e_CV, SPLIT, CHAIN)
        if PAIR:
            state = grow_state(state, tl.trans(k_CK), v_CV, SPLIT, CHAIN)
    if END:
        tl.store(final + head * (K * V) + place, out_of_blocks(state, SPLIT), mask=inside)


@triton.jit
def _gradients_by_values(
    k_faded, q_pair, r_pair, k_pair, behind, d_o_CV, z_CV, until_now, before_now, fade, fade_read, scale,
    GATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The derivative by values of a and b [C, V], which k writes and q and r read."""
    k_KC = tl.trans(k_pair)
    sees = dot(q_pair, k_KC, PRECISION)
    hears = dot(r_pair, k_KC, PRECISION)
    if GATE == 1:
        sees *= fade
        hears *= fade_read
    d_v_CV = dot(k_faded, behind, PRECISION)
    d_v_CV = add_dot(d_v_CV, tl.trans(tl.where(until_now, sees * scale, 0.0)), d_o_CV, PRECISION)
    d_v_CV -= dot(tl.trans(tl.where(before_now, hears, 0.0)), z_CV, PRECISION)
    return d_v_CV


@triton.jit
def _gradients_through_states(
    state, behind, d_o_CV, z_CV, e_CV, v_CV, k_CK, c_CK, log_decays, to_token, to_read, to_end, over, scale,
    PAIR: tl.constexpr, GATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Derivatives by q, r, columns and k [C, K] through the states ahead and behind, and by the log decay over the chunk."""
    state_VK, d_state_VK = tl.trans(state), tl.trans(behind)
    d_q_CK = dot(d_o_CV, state_VK, PRECISION) * scale
    d_r_CK = -dot(z_CV, state_VK, PRECISION)
    d_c_CK = dot(e_CV, d_state_VK, PRECISION)
    d_k_CK, d_over = d_c_CK, 0.0
    if PAIR:
        d_k_CK = dot(v_CV, d_state_VK, PRECISION)
    if GATE > 0:
        d_q_CK *= to_token
        d_r_CK *= to_read
        d_c_CK *= to_end
        if PAIR:
            d_k_CK *= to_end
    if GATE == 1:
        d_over = over * tl.sum(state * behind) + tl.sum(c_CK * d_c_CK)
        if PAIR:
            d_over += tl.sum(k_CK * d_k_CK)
    if GATE == 2:
        d_over = tl.sum(state_VK * d_state_VK, 0) * tl.exp(tl.sum(log_decays, 0)) + tl.sum(c_CK * d_c_CK, 0)
        if PAIR:
            d_over += tl.sum(k_CK * d_k_CK, 0)
    return d_q_CK, d_r_CK, d_c_CK, d_k_CK, d_over


@triton.jit
def _gradients_through_pairs(
    d_q_CK, d_r_CK, d_c_CK, d_k_CK, q_pair, r_pair, c_pair, k_pair, d_o_CV, z_CV, e_CV, v_CV, before_now,
    fade, fade_read, row, read, column, scale,
    PAIR: tl.constexpr, GATE: tl.constexpr, PRECISION: tl.constexpr, INTRA: tl.constexpr,
):  # fmt: skip
    """Derivatives by q, r, columns and k through pairs of tokens, added to the ones given."""
    e_VC = tl.trans(e_CV)
    d_reads = tl.where(before_now, dot(d_o_CV, e_VC, PRECISION) * scale, 0.0)
    d_erases = tl.where(before_now, -dot(z_CV, e_VC, PRECISION), 0.0)
    if PAIR:
        v_VC = tl.trans(v_CV)
        d_sees = tl.where(before_now, dot(d_o_CV, v_VC, PRECISION) * scale, 0.0)
        d_hears = tl.where(before_now, -dot(z_CV, v_VC, PRECISION), 0.0)
    if GATE == 1:
        d_reads *= fade
        d_erases *= fade_read
        if PAIR:
            d_sees *= fade
            d_hears *= fade_read
    to_q = dot(d_reads, c_pair, INTRA)
    to_r = dot(d_erases, c_pair, INTRA)
    to_c = dot(tl.trans(d_reads), q_pair, INTRA)
    to_c = add_dot(to_c, tl.trans(d_erases), r_pair, INTRA)
    if PAIR:
        to_q = add_dot(to_q, d_sees, k_pair, INTRA)
        to_r = add_dot(to_r, d_hears, k_pair, INTRA)
        to_k = dot(tl.trans(d_sees), q_pair, INTRA)
        to_k = add_dot(to_k, tl.trans(d_hears), r_pair, INTRA)
        d_k_CK += to_k * column if GATE == 2 else to_k
    if GATE == 2:
        to_q *= row
        to_r *= read
        to_c *= column
    d_q_CK += to_q
    d_r_CK += to_r
    d_c_CK += to_c
    return d_q_CK, d_r_CK, d_c_CK, d_k_CK


@triton.jit
def _store_decay_gradients(
    d_g, q_CK, r_CK, c_CK, k_CK, d_q_CK, d_r_CK, d_c_CK, d_k_CK, d_over, t, T, H, d, K: tl.constexpr,
    PAIR: tl.constexpr, GATE: tl.constexpr,
):  # fmt: skip
    """Store derivatives by log decays, made from those by all that fades."""
    d_read_CK = r_CK * d_r_CK
    d_until_CK = q_CK * d_q_CK + d_read_CK - c_CK * d_c_CK
    if PAIR:
        d_until_CK -= k_CK * d_k_CK
    if GATE == 1:
        d_g_C = tl.cumsum(tl.sum(d_until_CK, 1), 0, reverse=True) + d_over
        if PAIR:
            d_g_C -= tl.sum(d_read_CK, 1)
        tl.store(d_g + t * H, d_g_C, mask=t < T)
    if GATE == 2:
        d_g_CK = tl.cumsum(d_until_CK, 0, reverse=True) + d_over[None, :]
        if PAIR:
            d_g_CK -= d_read_CK
        store_rows(d_g, H * K, t, T, d, K, d_g_CK)


@triton.jit(do_not_specialize=["T", "H"])
def delta_whole_backward_kernel(
    q, k, v, a, b, g, beta, inverses, written, states, d_o, d_final, d_q, d_k, d_v, d_g, d_beta, d_a, d_b, d_initial,
    q_strides, k_strides, v_strides, a_strides, b_strides, g_strides, beta_strides, d_o_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VP: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, PRECISION: tl.constexpr,
    CHAIN: tl.constexpr, SOLVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """All derivatives of one head; time runs backward."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    d_o += at_b * d_o_strides[0] + at_h * d_o_strides[2]
    own_head = at_b * T * H + at_h
    written += own_head * V
    d_q, d_k = d_q + own_head * K, d_k + own_head * K
    d_v += own_head * V
    if PAIR:
        v += at_b * v_strides[0] + at_h * v_strides[2]
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
        d_a, d_b = d_a + own_head * K, d_b + own_head * K
    if GATE > 0:
        g += at_b * g_strides[0] + at_h * g_strides[2]
        d_g += own_head * K if GATE == 2 else own_head
    if WRITE:
        beta += at_b * beta_strides[0] + at_h * beta_strides[2]
        d_beta += own_head
    chunks = tl.cdiv(T, C)
    inverses += head * chunks * (C * C)
    states += head * chunks * (K * V)
    INTRA: tl.constexpr = CHAIN if GATE > 0 else PRECISION
    i, d, w = tl.arange(0, C), tl.arange(0, KP), tl.arange(0, VP)
    square = i[:, None] * C + i[None, :]
    until_now, before_now = i[:, None] >= i[None, :], i[:, None] > i[None, :]
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    SPLIT: tl.constexpr = CHAIN != "ieee" and KP > 32
    d_state = tl.zeros((KP, VP), tl.float32)
    if END:
        d_state = tl.load(d_final + head * (K * V) + place, mask=inside, other=0.0)
    d_state = in_blocks(d_state, SPLIT)
    for back in tl.range(0, chunks, num_stages=STAGES):
        n = chunks - 1 - back
        t = n * C + i
        q_CK = load_rows(q, q_strides[1], t, T, d, K)
        k_CK = load_rows(k, k_strides[1], t, T, d, K)
        d_o_CV = load_rows(d_o, d_o_strides[1], t, T, w, V)
        e_CV = load_rows(written, H * V, t, T, w, V)
        inverse = tl.load(inverses + n * (C * C) + square).to(tl.float32)
        state = tl.load(states + n * (K * V) + place, mask=inside, other=0.0).to(tl.float32)
        if PAIR:
            v_CV = load_rows(v, v_strides[1], t, T, w, V)
            r_CK = load_rows(a, a_strides[1], t, T, d, K)
            c_CK = load_rows(b, b_strides[1], t, T, d, K)
        else:
            r_CK, c_CK = k_CK, k_CK
            v_CV, k_pair = e_CV, k_CK
        if WRITE:
            beta_C = load_gates(beta, beta_strides[1], t, T)
            c_CK *= beta_C[:, None]

        # Fades; what there is not is not used
        to_token, to_read, to_end, over, log_decays = q_CK, q_CK, q_CK, scale, q_CK
        fade, fade_read, row, read, column = inverse, inverse, q_CK, q_CK, q_CK
        if GATE == 1:
            g_C = load_gates(g, g_strides[1], t, T)
            high, low = cumulative_sums(g_C, CHAIN == "ieee")
            to_token = tl.exp(high)[:, None]
            to_read = tl.exp(tl.minimum(high - g_C, 0.0) if PAIR else high)[:, None]
            to_end = fades_to_end(g_C)[:, None]
            over = tl.exp(tl.sum(g_C, 0))
            fade = pair_fades(high, low, tl.zeros_like(g_C), C)
            fade_read = pair_fades(high, low, g_C, C) if PAIR else fade
        if GATE == 2:
            g_CK = load_rows(g, g_strides[1], t, T, d, K)
            until = tl.cumsum(g_CK, 0)
            to_token = tl.exp(until)
            to_read = tl.exp(tl.minimum(until - g_CK, 0.0)) if PAIR else to_token
            to_end = tl.exp(tl.minimum(tl.sum(g_CK, 0)[None, :] - until, 0.0))
            over = tl.exp(tl.sum(tl.trans(g_CK), 1))[:, None]
            row, read, column = level_fades(g_CK, until, 0, C, False, PAIR)
            log_decays = g_CK
        if GATE > 0:
            q_faded, r_faded, c_faded = q_CK * to_token, r_CK * to_read, c_CK * to_end
        else:
            q_faded, r_faded, c_faded = q_CK, r_CK, c_CK
        if GATE == 2:
            q_pair, r_pair, c_pair = q_CK * row, r_CK * read, c_CK * column
        else:
            q_pair, r_pair, c_pair = q_CK, r_CK, c_CK

        # Pairs of tokens as forward had them, and what is written
        reads = dot(q_pair, tl.trans(c_pair), PRECISION)
        if GATE == 1:
            reads *= fade
        reads = tl.where(until_now, reads * scale, 0.0)
        behind = out_of_blocks(d_state, SPLIT)
        d_e_CV = dot(c_faded, behind, CHAIN)
        d_e_CV = add_dot(d_e_CV, tl.trans(reads), d_o_CV, PRECISION)
        z_CV = dot(tl.trans(inverse), d_e_CV, SOLVE)
        if PAIR:
            k_faded = k_CK * to_end if GATE > 0 else k_CK
            k_pair = k_CK * column if GATE == 2 else k_CK
            d_v_CV = _gradients_by_values(
                k_faded, q_pair, r_pair, k_pair, behind, d_o_CV, z_CV, until_now, before_now, fade, fade_read, scale,
                GATE, PRECISION,
            )  # fmt: skip
            store_rows(d_v, H * V, t, T, w, V, d_v_CV)
        else:
            store_rows(d_v, H * V, t, T, w, V, z_CV)

        # Through the states
        d_q_CK, d_r_CK, d_c_CK, d_k_CK, d_over = _gradients_through_states(
            state, behind, d_o_CV, z_CV, e_CV, v_CV, k_CK, c_CK, log_decays, to_token, to_read, to_end, over, scale,
            PAIR, GATE, PRECISION,
        )  # fmt: skip

        # Through the pairs; a pair (t, t) does not fade: it comes after the derivatives of the fades
        d_q_CK, d_r_CK, d_c_CK, d_k_CK = _gradients_through_pairs(
            d_q_CK, d_r_CK, d_c_CK, d_k_CK, q_pair, r_pair, c_pair, k_pair, d_o_CV, z_CV, e_CV, v_CV, before_now,
            fade, fade_read, row, read, column, scale, PAIR, GATE, PRECISION, INTRA,
        )  # fmt: skip
        if GATE > 0:
            _store_decay_gradients(
                d_g, q_CK, r_CK, c_CK, k_CK, d_q_CK, d_r_CK, d_c_CK, d_k_CK, d_over, t, T, H, d, K, PAIR, GATE
            )
        d_own = tl.sum(d_o_CV * e_CV, 1)[:, None] * scale
        d_q_CK += d_own * c_CK
        d_c_CK += d_own * q_CK
        if PAIR:
            d_own = tl.sum(d_o_CV * v_CV, 1)[:, None] * scale
            d_q_CK += d_own * k_CK
            d_k_CK += d_own * q_CK
            store_rows(d_a, H * K, t, T, d, K, d_r_CK)
            store_rows(d_b, H * K, t, T, d, K, d_c_CK)
        elif WRITE:
            tl.store(d_beta + t * H, tl.sum(k_CK * d_c_CK, 1), mask=t < T)
            d_k_CK = d_r_CK + beta_C[:, None] * d_c_CK
        else:
            d_k_CK = d_r_CK + d_c_CK
        store_rows(d_q, H * K, t, T, d, K, d_q_CK)
        store_rows(d_k, H * K, t, T, d, K, d_k_CK)

        if GATE > 0:
            d_state *= in_blocks(over, SPLIT) if GATE == 2 else over
        d_state = grow_state(d_state, tl.trans(q_faded), d_o_CV * scale, SPLIT, PRECISION)
        d_state = grow_state(d_state, -tl.trans(r_faded), z_CV, SPLIT, CHAIN)
    if START:
        tl.store(d_initial + head * (K * V) + place, out_of_blocks(d_state, SPLIT), mask=inside)
