"""What is read of states and of a chunk's own tokens, a program a chunk and block of value channels, and its derivative."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.delta.fused.tiles import (
    grow_state,
    in_blocks,
    load_columns,
    load_square,
    load_square_transposed,
    out_of_blocks,
    reads_of,
    size_of_pairs,
    store_columns,
)


@triton.jit
def faded_queries(q, stride, fades, t, T, d, K, scale, GATE: tl.constexpr):
    """Scaled queries [D, C] with their decays from the chunk's start, which they hold already where these go by channel."""
    q_KC = load_columns(q, stride, t, T, d, K)
    if GATE == 1:
        q_KC *= tl.load(fades)[None, :]
    if GATE == 0:
        q_KC *= scale
    return q_KC


@triton.jit
def add_reads_within(
    o_VC, e_VC, v_VC, pairs, C: tl.constexpr, PAIR: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Outputs [V, C], in blocks where SPLIT, and what is read of tokens of the same chunk."""
    o_VC = grow_state(
        o_VC, e_VC, load_square_transposed(reads_of(pairs, C, PAIR, PRECISION), None, C), SPLIT, PRECISION
    )
    if PAIR:
        o_VC = grow_state(o_VC, v_VC, load_square_transposed(pairs + 2 * C * C, None, C), SPLIT, PRECISION)
    return o_VC


@triton.jit(do_not_specialize=["T", "H"])
def delta_read_out_kernel(
    q, v, scores, written, states, o, q_strides, v_strides, T, H, scale,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, KB: tl.constexpr, VB: tl.constexpr,
    PAIR: tl.constexpr, GATE: tl.constexpr, WRITE: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Outputs of one chunk of one head, of what the walk left, which left that of the last chunk last: this comes first."""
    head, n = tl.program_id(0).to(tl.int64), tl.num_programs(1) - 1 - tl.program_id(1)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    written += (at_b * T * H + at_h) * V
    o += (at_b * T * H + at_h) * V
    PAIRS: tl.constexpr = size_of_pairs(C, PAIR, PRECISION)
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    SPLIT: tl.constexpr = CHAIN != "ieee" and VB > 32 and not WIDE
    at = head * tl.num_programs(1) + n
    states += at * (K * V)
    pairs = scores + at * (PAIRS + TAIL)
    fades = pairs + PAIRS + tl.arange(0, C)
    t, w = n * C + tl.arange(0, C), tl.program_id(2) * VB + tl.arange(0, VB)
    o_VC = in_blocks(tl.zeros((VB, C), tl.float32), SPLIT)
    for start in tl.range(0, KP, KB, num_stages=2):
        d = start + tl.arange(0, KB)
        inside = (w[:, None] < V) & (d[None, :] < K)
        state_VK = tl.load(states + w[:, None] * K + d[None, :], mask=inside, other=0.0).to(tl.float32)
        q_KC = faded_queries(q, q_strides[1], fades, t, T, d, K, scale, GATE)
        o_VC = grow_state(o_VC, state_VK, q_KC, SPLIT, PRECISION)
    e_VC = load_columns(written, H * V, t, T, w, V)
    v_VC = e_VC
    if PAIR:
        v_VC = load_columns(v + at_b * v_strides[0] + at_h * v_strides[2], v_strides[1], t, T, w, V)
    o_VC = add_reads_within(o_VC, e_VC, v_VC, pairs, C, PAIR, SPLIT, PRECISION)
    store_columns(o, H * V, t, T, w, V, out_of_blocks(o_VC, SPLIT))


@triton.jit(do_not_specialize=["T", "H"])
def delta_read_back_kernel(
    scores, d_o, d_e, d_o_strides, T, H,
    K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, KP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr,
    GATE: tl.constexpr, WRITE: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Derivatives by E of one chunk of one head through outputs of the same chunk."""
    head, n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at_b, at_h = head // H, head % H
    d_o += at_b * d_o_strides[0] + at_h * d_o_strides[2]
    d_e += (at_b * T * H + at_h) * V
    PAIRS: tl.constexpr = size_of_pairs(C, PAIR, PRECISION)
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    SPLIT: tl.constexpr = CHAIN != "ieee" and VB > 32 and not WIDE
    pairs = scores + (head * tl.num_programs(1) + n) * (PAIRS + TAIL)
    t, w = n * C + tl.arange(0, C), tl.program_id(2) * VB + tl.arange(0, VB)
    d_o_VC = load_columns(d_o, d_o_strides[1], t, T, w, V)
    d_e_VC = in_blocks(tl.zeros((VB, C), tl.float32), SPLIT)
    d_e_VC = grow_state(d_e_VC, d_o_VC, load_square(reads_of(pairs, C, PAIR, PRECISION), None, C), SPLIT, PRECISION)
    store_columns(d_e, H * V, t, T, w, V, out_of_blocks(d_e_VC, SPLIT))
