"""Walks of a state, and of its derivative, along time, by a program a head and block of value channels."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.delta.fused.tiles import (
    add_dot,
    dot,
    grow_state,
    in_blocks,
    load_columns,
    load_rows,
    load_square,
    load_square_transposed,
    out_of_blocks,
    store_rows,
)


@triton.jit(do_not_specialize=["T", "H"])
def delta_forward_walk_kernel(
    q, k, v, b, scores, erased, wanted, initial, o, written, states, final,
    q_strides, k_strides, v_strides, b_strides, erased_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, KEEP: tl.constexpr, END: tl.constexpr,
    PRECISION: tl.constexpr, CHAIN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs and states of one head, a block of value channels."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    if PAIR:
        v += at_b * v_strides[0] + at_h * v_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    KINDS: tl.constexpr = 4 if PAIR else 2
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    SPLIT: tl.constexpr = CHAIN != "ieee" and KP > 32
    chunks = tl.cdiv(T, C)
    scores += head * chunks * (KINDS * C * C + TAIL)
    states += head * chunks * (K * V)
    erased += at_b * erased_strides[0] + at_h * erased_strides[2]
    wanted += (at_b * T * H + at_h) * V
    o += (at_b * T * H + at_h) * V
    written += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    state = tl.zeros((KP, VB), tl.float32)
    if START:
        state = tl.load(initial + head * (K * V) + place, mask=inside, other=0.0)
    state = in_blocks(state, SPLIT)
    for n in tl.range(0, chunks, num_stages=STAGES):
        t = n * C + tl.arange(0, C)
        pairs = scores + n * (KINDS * C * C + TAIL)
        fades = pairs + KINDS * C * C + tl.arange(0, C)
        ahead = out_of_blocks(state, SPLIT)
        if KEEP:
            tl.store(states + n * (K * V) + place, ahead.to(states.dtype.element_ty), mask=inside)
        e_CV = load_rows(wanted, H * V, t, T, w, V) - dot(
            load_rows(erased, erased_strides[1], t, T, d, K), ahead, CHAIN
        )
        if KEEP:
            store_rows(written, H * V, t, T, w, V, e_CV)

        k_KC = load_columns(k, k_strides[1], t, T, d, K)
        if PAIR:
            c_KC = load_columns(b, b_strides[1], t, T, d, K)
            v_CV = load_rows(v, v_strides[1], t, T, w, V)
        else:
            c_KC = k_KC
        if GATE == 1 or (WRITE and GATE == 0):
            to_end = tl.load(fades + 2 * C)[None, :]
            c_KC *= to_end
            if PAIR:
                k_KC *= to_end
        if GATE == 1:
            state *= tl.load(pairs + KINDS * C * C + 4 * C - 1)
        if GATE == 2:
            state *= in_blocks(tl.load(pairs + KINDS * C * C + d)[:, None], SPLIT)
        state = grow_state(state, c_KC, e_CV, SPLIT, CHAIN)
        if PAIR:
            state = grow_state(state, k_KC, v_CV, SPLIT, CHAIN)

        q_CK = load_rows(q, q_strides[1], t, T, d, K)
        if GATE == 1:
            q_CK *= tl.load(fades)[:, None]
        if GATE == 0:
            q_CK *= scale
        o_CV = dot(q_CK, ahead, PRECISION)
        o_CV = add_dot(o_CV, load_square(pairs + C * C, None, C), e_CV, PRECISION)
        if PAIR:
            o_CV = add_dot(o_CV, load_square(pairs + 2 * C * C, None, C), v_CV, PRECISION)
        store_rows(o, H * V, t, T, w, V, o_CV)
    if END:
        tl.store(final + head * (K * V) + place, out_of_blocks(state, SPLIT), mask=inside)


@triton.jit(do_not_specialize=["T", "H"])
def delta_backward_walk_kernel(
    q, k, b, scores, erased, d_o, d_final, d_v, z, d_states, d_initial,
    q_strides, k_strides, b_strides, erased_strides, d_o_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, PRECISION: tl.constexpr,
    CHAIN: tl.constexpr, SOLVE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Derivatives by values and states of one head, a block of value channels; time runs backward."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    d_o += at_b * d_o_strides[0] + at_h * d_o_strides[2]
    if PAIR:
        b += at_b * b_strides[0] + at_h * b_strides[2]
    KINDS: tl.constexpr = 4 if PAIR else 2
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    SPLIT: tl.constexpr = CHAIN != "ieee" and KP > 32
    chunks = tl.cdiv(T, C)
    scores += head * chunks * (KINDS * C * C + TAIL)
    d_states += head * chunks * (K * V)
    erased += at_b * erased_strides[0] + at_h * erased_strides[2]
    d_v += (at_b * T * H + at_h) * V
    if PAIR:
        z += (at_b * T * H + at_h) * V
    d, w = tl.arange(0, KP), tl.program_id(1) * VB + tl.arange(0, VB)
    place = d[:, None] * V + w[None, :]
    inside = (d[:, None] < K) & (w[None, :] < V)
    d_state = tl.zeros((KP, VB), tl.float32)
    if END:
        d_state = tl.load(d_final + head * (K * V) + place, mask=inside, other=0.0)
    d_state = in_blocks(d_state, SPLIT)
    for back in tl.range(0, chunks, num_stages=STAGES):
        n = chunks - 1 - back
        t = n * C + tl.arange(0, C)
        pairs = scores + n * (KINDS * C * C + TAIL)
        fades = pairs + KINDS * C * C + tl.arange(0, C)
        behind = out_of_blocks(d_state, SPLIT)
        tl.store(d_states + n * (K * V) + place, behind.to(d_states.dtype.element_ty), mask=inside)
        d_o_CV = load_rows(d_o, d_o_strides[1], t, T, w, V)
        k_CK = load_rows(k, k_strides[1], t, T, d, K)
        if PAIR:
            c_CK = load_rows(b, b_strides[1], t, T, d, K)
        else:
            c_CK = k_CK
        if GATE == 1 or (WRITE and GATE == 0):
            to_end = tl.load(fades + 2 * C)[:, None]
            c_CK *= to_end
            k_CK *= to_end
        q_KC = load_columns(q, q_strides[1], t, T, d, K)
        if GATE == 1:
            q_KC *= tl.load(fades)[None, :]
            d_state *= tl.load(pairs + KINDS * C * C + 4 * C - 1)
        if GATE == 0:
            q_KC *= scale
        if GATE == 2:
            d_state *= in_blocks(tl.load(pairs + KINDS * C * C + d)[:, None], SPLIT)

        d_e_CV = dot(load_square_transposed(pairs + C * C, None, C), d_o_CV, PRECISION)
        d_e_CV = add_dot(d_e_CV, c_CK, behind, CHAIN)
        d_state = grow_state(d_state, q_KC, d_o_CV, SPLIT, PRECISION)
        d_state = grow_state(d_state, -load_columns(erased, erased_strides[1], t, T, d, K), d_e_CV, SPLIT, CHAIN)
        z_CV = dot(load_square_transposed(pairs, None, C), d_e_CV, SOLVE)
        if PAIR:
            d_v_CV = dot(load_square_transposed(pairs + 2 * C * C, None, C), d_o_CV, PRECISION)
            d_v_CV = add_dot(d_v_CV, k_CK, behind, PRECISION)
            d_v_CV -= dot(load_square_transposed(pairs + 3 * C * C, None, C), z_CV, PRECISION)
            store_rows(z, H * V, t, T, w, V, z_CV)
            store_rows(d_v, H * V, t, T, w, V, d_v_CV)
        else:
            store_rows(d_v, H * V, t, T, w, V, z_CV)
    if START:
        tl.store(d_initial + head * (K * V) + place, out_of_blocks(d_state, SPLIT), mask=inside)
