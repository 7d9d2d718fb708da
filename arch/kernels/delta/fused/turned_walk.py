"""The walk of a state along time with tokens and keys for rows, in bf16, by a program a head and block of value channels.

Both products of a chunk have 64 rows or more then, of tokens and of keys, however few channels of values a program has: what
Hopper's wider products ask for.
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.delta.fused.tiles import add_dot, dot, load_columns, load_rows, store_rows


@triton.jit(do_not_specialize=["T", "H"])
def delta_turned_walk_kernel(
    k, v, b, scores, erased, wanted, initial, written, states, final,
    k_strides, v_strides, b_strides, erased_strides, T, H,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, START: tl.constexpr, END: tl.constexpr, PRECISION: tl.constexpr,
    CHAIN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """States and E of one head, a block of value channels. Keys stay as they are, and what they write fades; with a and b
    decays go by channel."""
    head = tl.program_id(0).to(tl.int64)
    at_b, at_h = head // H, head % H
    k += at_b * k_strides[0] + at_h * k_strides[2]
    if PAIR:
        v += at_b * v_strides[0] + at_h * v_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    KINDS: tl.constexpr = 4 if PAIR else 2
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    SIZE: tl.constexpr = KINDS * C * C + TAIL
    chunks = tl.cdiv(T, C)
    scores += head * chunks * SIZE + KINDS * C * C
    states += head * chunks * (K * V)
    erased += at_b * erased_strides[0] + at_h * erased_strides[2]
    wanted += (at_b * T * H + at_h) * V
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
        tl.store(states + n * (K * V) + place, ahead_KV, mask=inside)
        r_CK = load_rows(erased, erased_strides[1], t, T, d, K)
        e_CV = load_rows(wanted, H * V, t, T, w, V) - dot(r_CK, ahead_KV, "bf16")
        store_rows(written, H * V, t, T, w, V, e_CV)
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
