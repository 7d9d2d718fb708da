"""Walks of a state, and of its derivative, along time with tokens and keys for rows, in bf16, by a program a head and block of
value channels.

Hopper's wider products ask for 64 rows. A program has all keys, and all tokens of a chunk, of which there are 64 but for decays
by channel, however few channels of values it walks with. So walks of a few channels can be many, side by side.
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.delta.fused.tiles import (
    add_dot,
    dot,
    load_columns,
    load_rows,
    load_square,
    reads_of,
    size_of_pairs,
    store_rows,
)


@triton.jit(do_not_specialize=["T", "H"])
def delta_turned_walk_kernel(
    q, k, v, b, scores, erased, wanted, initial, o, written, states, final,
    q_strides, k_strides, v_strides, b_strides, erased_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, APART: tl.constexpr,
    PRECISION: tl.constexpr, CHAIN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """States and E of one head, a block of value channels, where APART, and otherwise outputs, with the roundings of programs a
    chunk. Keys stay as they are, and what they write fades; with a and b decays go by channel."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    if PAIR:
        v += at_b * v_strides[0] + at_h * v_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    PAIRS: tl.constexpr = size_of_pairs(C, PAIR, PRECISION)
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    SIZE: tl.constexpr = PAIRS + TAIL
    chunks = tl.cdiv(T, C)
    scores += head * chunks * SIZE + PAIRS
    states += head * chunks * (K * V)
    erased += at_b * erased_strides[0] + at_h * erased_strides[2]
    wanted += (at_b * T * H + at_h) * V
    o += (at_b * T * H + at_h) * V
    written += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    # States are kept as walks with values for rows leave them: neighbours are keys, of which a program has all.
    place, place_outside = d[:, None] + w[None, :] * K, d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    state_KV = tl.zeros((KP, VB), tl.float32)
    if START:
        state_KV = tl.load(initial + head * (K * V) + place_outside, mask=inside, other=0.0)
    over = 1.0
    if GATE == 1:
        over = tl.load(scores + 4 * C - 1)
    for n in tl.range(0, chunks, num_stages=STAGES):
        t = n * C + tl.arange(0, C)
        fades = scores + n * SIZE
        ahead_KV = state_KV.to(tl.bfloat16)
        if APART:
            tl.store(states + n * (K * V) + place, ahead_KV, mask=inside)
        r_CK = load_rows(erased, erased_strides[1], t, T, d, K)
        e_CV = load_rows(wanted, H * V, t, T, w, V) - dot(r_CK, ahead_KV, "bf16")
        if APART:
            store_rows(written, H * V, t, T, w, V, e_CV)
        else:
            q_CK = load_rows(q, q_strides[1], t, T, d, K)
            if GATE == 1:
                q_CK *= tl.load(fades + tl.arange(0, C))[:, None]
            else:
                q_CK *= scale
            reads = load_square(reads_of(fades - PAIRS, C, PAIR, PRECISION), None, C)
            o_CV = add_dot(dot(q_CK, ahead_KV, "bf16"), reads, e_CV, "bf16")
            store_rows(o, H * V, t, T, w, V, o_CV)
        if GATE == 1:
            state_KV *= over
            over = tl.load(fades + SIZE + 4 * C - 1, mask=n + 1 < chunks, other=1.0)
        if GATE == 2:
            state_KV *= tl.load(fades + d)[:, None]
        if PAIR:
            state_KV = add_dot(state_KV, load_columns(b, b_strides[1], t, T, d, K), e_CV, "bf16")
            v_CV = load_rows(v, v_strides[1], t, T, w, V)
            state_KV = add_dot(state_KV, load_columns(k, k_strides[1], t, T, d, K), v_CV, "bf16")
        else:
            if GATE == 1 or (WRITE and GATE == 0):
                e_CV *= tl.load(fades + 2 * C + tl.arange(0, C))[:, None]
            state_KV = add_dot(state_KV, load_columns(k, k_strides[1], t, T, d, K), e_CV, "bf16")
    if END:
        tl.store(final + head * (K * V) + place_outside, state_KV, mask=inside)


@triton.jit(do_not_specialize=["T", "H"])
def delta_turned_back_walk_kernel(
    q, k, b, scores, erased, d_o, d_final, d_v, d_e, d_states, d_initial,
    q_strides, k_strides, b_strides, erased_strides, d_o_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, PRECISION: tl.constexpr,
    CHAIN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Derivatives by states and by E of one head, a block of value channels; time runs backward. d_v holds what comes through
    outputs of the same chunk."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    d_o += at_b * d_o_strides[0] + at_h * d_o_strides[2]
    if PAIR:
        c, c_stride = b + at_b * b_strides[0] + at_h * b_strides[2], b_strides[1]
    else:
        c, c_stride = k + at_b * k_strides[0] + at_h * k_strides[2], k_strides[1]
    PAIRS: tl.constexpr = size_of_pairs(C, PAIR, PRECISION)
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    SIZE: tl.constexpr = PAIRS + TAIL
    chunks = tl.cdiv(T, C)
    scores += head * chunks * SIZE + PAIRS
    d_states += head * chunks * (K * V)
    erased += at_b * erased_strides[0] + at_h * erased_strides[2]
    d_v += (at_b * T * H + at_h) * V
    d_e += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    place, place_outside = d[:, None] + w[None, :] * K, d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    d_state_KV = tl.zeros((KP, VB), tl.float32)
    if END:
        d_state_KV = tl.load(d_final + head * (K * V) + place_outside, mask=inside, other=0.0)
    over = 1.0
    if GATE == 1:
        over = tl.load(scores + (chunks - 1) * SIZE + 4 * C - 1)
    for back in tl.range(0, chunks, num_stages=STAGES):
        n = chunks - 1 - back
        t = n * C + tl.arange(0, C)
        fades = scores + n * SIZE
        behind_KV = d_state_KV.to(tl.bfloat16)
        tl.store(d_states + n * (K * V) + place, behind_KV, mask=inside)
        d_e_CV = dot(load_rows(c, c_stride, t, T, d, K), behind_KV, "bf16")
        if GATE == 1 or (WRITE and GATE == 0):
            d_e_CV *= tl.load(fades + 2 * C + tl.arange(0, C))[:, None]
        d_e_CV += load_rows(d_v, H * V, t, T, w, V)
        store_rows(d_e, H * V, t, T, w, V, d_e_CV)
        read_CV = load_rows(d_o, d_o_strides[1], t, T, w, V)
        if GATE == 0:
            read_CV *= scale
        if GATE == 1:
            read_CV *= tl.load(fades + tl.arange(0, C))[:, None]
            d_state_KV *= over
            over = tl.load(fades - SIZE + 4 * C - 1, mask=n > 0, other=1.0)
        if GATE == 2:
            d_state_KV *= tl.load(fades + d)[:, None]
        d_state_KV = add_dot(d_state_KV, load_columns(q, q_strides[1], t, T, d, K), read_CV, "bf16")
        d_state_KV = add_dot(d_state_KV, load_columns(erased, erased_strides[1], t, T, d, K), -d_e_CV, "bf16")
    if START:
        tl.store(d_initial + head * (K * V) + place_outside, d_state_KV, mask=inside)
