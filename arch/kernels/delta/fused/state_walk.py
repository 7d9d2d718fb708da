"""Walks of a state, and of its derivative, along time, by a program a head and block of value channels.

Tiles have values for rows and tokens or keys for columns, so that a product has as many rows as the block has channels.
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.delta.fused.read_out import add_reads_within, faded_queries
from recallmap.arch.kernels.delta.fused.tiles import (
    add_dot,
    dot,
    dot_right,
    load_columns,
    load_rows,
    load_square,
    reads_of,
    size_of_pairs,
    store_columns,
)


@triton.jit(do_not_specialize=["T", "H"])
def delta_forward_walk_kernel(
    q, k, v, b, scores, erased, wanted, initial, o, written, states, final,
    q_strides, k_strides, v_strides, b_strides, erased_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, KEEP: tl.constexpr, END: tl.constexpr,
    APART: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr, STATE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """States of one head, a block of value channels, and outputs unless APART. Where products with the state are of bf16, keys
    stay as they are, and what they write fades."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    if PAIR:
        v += at_b * v_strides[0] + at_h * v_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    PAIRS: tl.constexpr = size_of_pairs(C, PAIR, PRECISION)
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    chunks = tl.cdiv(T, C)
    scores += head * chunks * (PAIRS + TAIL)
    states += head * chunks * (K * V)
    erased += at_b * erased_strides[0] + at_h * erased_strides[2]
    wanted += (at_b * T * H + at_h) * V
    o += (at_b * T * H + at_h) * V
    written += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    place, place_outside = w[:, None] * K + d[None, :], w[:, None] + d[None, :] * V
    inside = (w[:, None] < V) & (d[None, :] < K)
    state_VK = tl.zeros((VB, KP), tl.float32)
    if START:
        state_VK = tl.load(initial + head * (K * V) + place_outside, mask=inside, other=0.0)
    FADE_WRITES: tl.constexpr = STATE == "bf16" and not PAIR and (GATE == 1 or (WRITE and GATE == 0))
    over = 1.0
    if GATE == 1:
        over = tl.load(scores + PAIRS + 4 * C - 1)
    for n in tl.range(0, chunks, num_stages=STAGES):
        t = n * C + tl.arange(0, C)
        pairs = scores + n * (PAIRS + TAIL)
        fades = pairs + PAIRS + tl.arange(0, C)
        ahead_VK = state_VK
        if KEEP:
            tl.store(states + n * (K * V) + place, ahead_VK.to(states.dtype.element_ty), mask=inside)
        e_VC = load_columns(wanted, H * V, t, T, w, V) - dot(
            ahead_VK, load_columns(erased, erased_strides[1], t, T, d, K), STATE
        )
        if KEEP:
            store_columns(written, H * V, t, T, w, V, e_VC)

        k_CK = load_rows(k, k_strides[1], t, T, d, K)
        if PAIR:
            c_CK = load_rows(b, b_strides[1], t, T, d, K)
            v_VC = load_columns(v, v_strides[1], t, T, w, V)
        else:
            c_CK = k_CK
            v_VC = e_VC
        write_VC = e_VC
        if FADE_WRITES:
            write_VC *= tl.load(fades + 2 * C)[None, :]
        elif GATE == 1 or (WRITE and GATE == 0):
            to_end = tl.load(fades + 2 * C)[:, None]
            c_CK *= to_end
            if PAIR:
                k_CK *= to_end
        if GATE == 1:
            state_VK *= over
            over = tl.load(pairs + PAIRS + TAIL + PAIRS + 4 * C - 1, mask=n + 1 < chunks, other=1.0)
        if GATE == 2:
            state_VK *= tl.load(pairs + PAIRS + d)[None, :]
        state_VK = add_dot(state_VK, write_VC, c_CK, STATE)
        if PAIR:
            state_VK = add_dot(state_VK, v_VC, k_CK, STATE)

        if not APART:
            o_VC = dot(ahead_VK, faded_queries(q, q_strides[1], fades, t, T, d, K, scale, GATE), PRECISION)
            o_VC = add_reads_within(o_VC, e_VC, v_VC, pairs, C, PAIR, False, PRECISION)
            store_columns(o, H * V, t, T, w, V, o_VC)
    if END:
        tl.store(final + head * (K * V) + place_outside, state_VK, mask=inside)


@triton.jit(do_not_specialize=["T", "H"])
def delta_backward_walk_kernel(
    q, k, b, scores, erased, d_o, d_final, d_v, z, d_e, d_states, d_initial,
    q_strides, k_strides, b_strides, erased_strides, d_o_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, APART: tl.constexpr,
    PRECISION: tl.constexpr, CHAIN: tl.constexpr, STATE: tl.constexpr, SOLVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Derivatives by states of one head, a block of value channels; time runs backward. Where APART also those by E, of which
    d_v holds what comes through outputs of the same chunk; otherwise Z, and those by values."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    d_o += at_b * d_o_strides[0] + at_h * d_o_strides[2]
    if PAIR:
        b += at_b * b_strides[0] + at_h * b_strides[2]
    PAIRS: tl.constexpr = size_of_pairs(C, PAIR, PRECISION)
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    chunks = tl.cdiv(T, C)
    scores += head * chunks * (PAIRS + TAIL)
    d_states += head * chunks * (K * V)
    erased += at_b * erased_strides[0] + at_h * erased_strides[2]
    d_v += (at_b * T * H + at_h) * V
    if APART:
        d_e += (at_b * T * H + at_h) * V
    else:
        z += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    place, place_outside = w[:, None] * K + d[None, :], w[:, None] + d[None, :] * V
    inside = (w[:, None] < V) & (d[None, :] < K)
    d_state_VK = tl.zeros((VB, KP), tl.float32)
    if END:
        d_state_VK = tl.load(d_final + head * (K * V) + place_outside, mask=inside, other=0.0)
    FADE_WRITES: tl.constexpr = STATE == "bf16" and not PAIR and (GATE == 1 or (WRITE and GATE == 0))
    SIZE: tl.constexpr = PAIRS + TAIL
    over = 1.0
    if GATE == 1:
        over = tl.load(scores + (chunks - 1) * SIZE + PAIRS + 4 * C - 1)
    for back in tl.range(0, chunks, num_stages=STAGES):
        n = chunks - 1 - back
        t = n * C + tl.arange(0, C)
        pairs = scores + n * (PAIRS + TAIL)
        fades = pairs + PAIRS + tl.arange(0, C)
        behind_VK = d_state_VK
        tl.store(d_states + n * (K * V) + place, behind_VK.to(d_states.dtype.element_ty), mask=inside)
        d_o_VC = load_columns(d_o, d_o_strides[1], t, T, w, V)
        c_KC = load_columns(b if PAIR else k, b_strides[1] if PAIR else k_strides[1], t, T, d, K)
        if (GATE == 1 or (WRITE and GATE == 0)) and not FADE_WRITES:
            c_KC *= tl.load(fades + 2 * C)[None, :]
        q_CK = load_rows(q, q_strides[1], t, T, d, K)
        read_VC = d_o_VC
        if GATE == 1:
            if FADE_WRITES:
                read_VC *= tl.load(fades)[None, :]
            else:
                q_CK *= tl.load(fades)[:, None]
            d_state_VK *= over
            over = tl.load(pairs - SIZE + PAIRS + 4 * C - 1, mask=n > 0, other=1.0)
        if GATE == 0:
            if FADE_WRITES:
                read_VC *= scale
            else:
                q_CK *= scale
        if GATE == 2:
            d_state_VK *= tl.load(pairs + PAIRS + d)[None, :]

        if APART:
            d_e_VC = load_columns(d_v, H * V, t, T, w, V)
        else:
            d_e_VC = dot(d_o_VC, load_square(reads_of(pairs, C, PAIR, PRECISION), None, C), PRECISION)
        if FADE_WRITES:
            d_e_VC += dot(behind_VK, c_KC, STATE) * tl.load(fades + 2 * C)[None, :]
        else:
            d_e_VC = add_dot(d_e_VC, behind_VK, c_KC, STATE)
        d_state_VK = add_dot(d_state_VK, read_VC, q_CK, PRECISION)
        d_state_VK = add_dot(d_state_VK, -d_e_VC, load_rows(erased, erased_strides[1], t, T, d, K), STATE)
        if APART:
            store_columns(d_e, H * V, t, T, w, V, d_e_VC)
        else:
            z_VC = dot_right(d_e_VC, load_square(pairs, None, C), SOLVE)
            store_columns(z, H * V, t, T, w, V, z_VC)
            if PAIR:
                k_KC = load_columns(k, k_strides[1], t, T, d, K)
                if GATE == 1:
                    k_KC *= tl.load(fades + 2 * C)[None, :]
                d_v_VC = dot(d_o_VC, load_square(pairs + 2 * C * C, None, C), PRECISION)
                d_v_VC = add_dot(d_v_VC, behind_VK, k_KC, PRECISION)
                d_v_VC -= dot(z_VC, load_square(pairs + 3 * C * C, None, C), PRECISION)
                store_columns(d_v, H * V, t, T, w, V, d_v_VC)
    if START:
        tl.store(d_initial + head * (K * V) + place_outside, d_state_VK, mask=inside)
