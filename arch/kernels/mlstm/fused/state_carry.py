"""The walk of the state alone, or of its derivative, by blocks of keys and values."""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mlstm.fused.tiles import head_of, load_tile, load_turned, store_tile


@triton.jit
def _carry_matrix(
    x, y, weights, r, kept, first, states, last, sequence, of_k, of_v, x_stride, y_stride, T, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    GIVEN: tl.constexpr, WANTED: tl.constexpr, REVERSE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A block of C, to which a chunk adds sum_t weights_t r_t x_t^T y_t."""
    if GIVEN:
        C = load_tile(first + sequence * K * V, of_k, K, V, of_v, V)
    else:
        C = tl.zeros([BK, BV], tl.float32)
    for step in tl.range(0, N, num_stages=STAGES):
        c = N - 1 - step if REVERSE else step
        if (step > 0) | GIVEN:
            store_tile(states + c * K * V, C, of_k, K, V, of_v, V)
        t = c * BS + tl.arange(0, BS)
        x_KS, y_SV = load_turned(x, t, T, x_stride, of_k, K), load_tile(y, t, T, y_stride, of_v, V)
        share = tl.load(weights + t, mask=t < T, other=0.0)
        if REVERSE:
            share *= tl.load(r + t, mask=t < T, other=0.0)
        C = tl.dot(x_KS, (y_SV * share[:, None]).to(y_SV.dtype), C * tl.load(kept + c), input_precision="ieee")
    if WANTED:
        store_tile(last + sequence * K * V, C, of_k, K, V, of_v, V)
        if not REVERSE:
            store_tile(states + N * K * V, C, of_k, K, V, of_v, V)


@triton.jit
def _carry_vector(
    x, weights, by_d, kept, first, states, last, sequence, of_k, x_stride, T, N,
    K: tl.constexpr, BK: tl.constexpr, BS: tl.constexpr,
    GIVEN: tl.constexpr, WANTED: tl.constexpr, REVERSE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A block of n, to which a chunk adds sum_t weights_t by_d_t x_t."""
    if GIVEN:
        n = tl.load(first + sequence * K + of_k, mask=of_k < K, other=0.0)
    else:
        n = tl.zeros([BK], tl.float32)
    for step in tl.range(0, N, num_stages=STAGES):
        c = N - 1 - step if REVERSE else step
        if (step > 0) | GIVEN:
            tl.store(states + c * K + of_k, n, mask=of_k < K)
        t = c * BS + tl.arange(0, BS)
        x_KS = load_turned(x, t, T, x_stride, of_k, K)
        share = tl.load(weights + t, mask=t < T, other=0.0)
        if REVERSE:
            share *= tl.load(by_d + t, mask=t < T, other=0.0)
        n = n * tl.load(kept + c) + tl.sum(x_KS.to(tl.float32) * share[None, :], 1)
    if WANTED:
        tl.store(last + sequence * K + of_k, n, mask=of_k < K)
        if not REVERSE:
            tl.store(states + N * K + of_k, n, mask=of_k < K)


@triton.jit(do_not_specialize=["T", "H", "N"])
def mlstm_carry_kernel(
    x, y, weights, r, by_d, kept, C_first, n_first, C_states, n_states, C_last, n_last, x_strides, y_strides, T, H, N,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    GIVEN: tl.constexpr, WANTED: tl.constexpr, REVERSE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """C and n ahead of every chunk; where REVERSE, their derivatives behind it. One more block of values carries n alone.

    x, y       k and v; where REVERSE q and the derivative by o
    weights    e^(b - M_end); where REVERSE e^(m - M), times r for C and times the derivative of d for n
    GIVEN      there is a first state; without it the one ahead of the first chunk is zero, and is not written
    STAGES     of loads; named at the loop, without which only those that products read are ahead of their use
    WANTED     the last state is wanted; forward also behind the states of all chunks
    """
    sequence, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    of_k, of_v = tl.program_id(2) * BK + tl.arange(0, BK), part * BV + tl.arange(0, BV)
    x, y = head_of(x, x_strides, sequence, H), head_of(y, y_strides, sequence, H)
    weights, kept = weights + sequence * T, kept + sequence * N
    if REVERSE:
        r, by_d = r + sequence * T, by_d + sequence * T
        states = sequence * N
    else:
        states = sequence * (N + 1 if WANTED else N)
    if part * BV < V:
        _carry_matrix(
            x, y, weights, r, kept, C_first, C_states + states * K * V, C_last, sequence, of_k, of_v,
            x_strides[1], y_strides[1], T, N, K, V, BK, BV, BS, GIVEN, WANTED, REVERSE, STAGES,
        )  # fmt: skip
    else:
        _carry_vector(
            x, weights, by_d, kept, n_first, n_states + states * K, n_last, sequence, of_k,
            x_strides[1], T, N, K, BK, BS, GIVEN, WANTED, REVERSE, STAGES,
        )  # fmt: skip
