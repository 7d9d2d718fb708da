"""Pairs of a chunk's tokens, a program a chunk: inverses, and their products with r and with V."""

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
    sums_behind,
    sums_until,
)
from recallmap.arch.kernels.delta.fused.tiles import (
    add_dot,
    dot,
    load_gates,
    load_rows,
    load_square,
    reads_of,
    size_of_pairs,
    store_rows,
    store_square,
)
from recallmap.arch.kernels.delta.fused.triangular_inverse import invert_in_memory, invert_unit_lower


@triton.jit
def _to_read(g_CK, until_CK, PAIR: tl.constexpr):
    """Fades [C, K] from the chunk's start of what reads before it writes, by channel."""
    return tl.exp(tl.minimum(until_CK - g_CK, 0.0) if PAIR else until_CK)


@triton.jit
def _store_faded(
    erased, over, q_CK, c_CK, k_CK, g_CK, until_CK, strength, scale, t, T, H, d, K: tl.constexpr, C: tl.constexpr,
    PAIR: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Leave behind the rows `erased` queries with decays by channel from the chunk's start, columns, and keys of a pair, with
    those to its end; and in `over` the decays over the chunk."""
    to_end = tl.exp(sums_behind(g_CK, C, SUMS))
    store_rows(erased + T * H * K, H * K, t, T, d, K, q_CK * tl.exp(until_CK) * scale)
    if PAIR:
        store_rows(erased + 3 * T * H * K, H * K, t, T, d, K, k_CK * to_end)
    else:
        c_CK *= strength[:, None]
    store_rows(erased + 2 * T * H * K, H * K, t, T, d, K, c_CK * to_end)
    tl.store(over, tl.exp(tl.sum(g_CK, 0)))


@triton.jit
def _add_faded_pairs(
    erases, reads, hears, sees, q_CK, r_CK, c_CK, k_CK, g_CK, until_CK, C: tl.constexpr, LEVELS: tl.constexpr,
    PAIR: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr, UNROLL: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Products [C, C] of a block of key channels, with the decays between two tokens, added to the ones given."""
    for level in tl.range(0, LEVELS, loop_unroll_factor=UNROLL):
        now = pairs_of_level(level, C, CHAIN == "ieee", False)
        row, read, column = level_fades(g_CK, until_CK, level, C, CHAIN == "ieee", PAIR, SUMS)
        q_faded = q_CK * row
        r_faded = r_CK * read
        c_faded = tl.trans(c_CK * column)
        if PAIR:
            k_faded = tl.trans(k_CK * column)
            sees += tl.where(now, dot(q_faded, k_faded, PRECISION), 0.0)
            hears += tl.where(now, dot(r_faded, k_faded, PRECISION), 0.0)
        reads += tl.where(now, dot(q_faded, c_faded, PRECISION), 0.0)
        erases += tl.where(now, dot(r_faded, c_faded, CHAIN), 0.0)
    return erases, reads, hears, sees


@triton.jit(do_not_specialize=["T", "H"])
def delta_pairs_kernel(
    q, k, v, a, b, g, beta, scores, erased, wanted, q_strides, k_strides, v_strides, a_strides, b_strides, g_strides,
    beta_strides, T, H, scale, K: tl.constexpr, V: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
    KP: tl.constexpr, KB: tl.constexpr, VP: tl.constexpr, VB: tl.constexpr, PAIR: tl.constexpr, GATE: tl.constexpr,
    WRITE: tl.constexpr, PRECISION: tl.constexpr, CHAIN: tl.constexpr, SOLVE: tl.constexpr, APPLY: tl.constexpr,
    IN_MEMORY: tl.constexpr, EARLY: tl.constexpr, UNROLL: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """(I + A)^-1, X, with a and b also W and P, and (I + A)^-1 times r and times V or -P V, of one chunk of one head;
    behind that times r, where decays go by channel, what walks and gradients take of q, c and k with their fades. Where EARLY,
    values, and where ROWS also q and k, come ahead of all products, and decays by channel are summed up once.

    The last chunk comes first: so what a walk asks for first was written last, and is near."""
    head, n = tl.program_id(0).to(tl.int64), tl.num_programs(1) - 1 - tl.program_id(1)
    at_b, at_h = head // H, head % H
    q += at_b * q_strides[0] + at_h * q_strides[2]
    k += at_b * k_strides[0] + at_h * k_strides[2]
    v += at_b * v_strides[0] + at_h * v_strides[2]
    erased += (at_b * (T * H) * ((4 if PAIR else 3) if GATE == 2 else 1) + at_h) * K
    wanted += (at_b * T * H + at_h) * V
    if PAIR:
        a += at_b * a_strides[0] + at_h * a_strides[2]
        b += at_b * b_strides[0] + at_h * b_strides[2]
    if GATE > 0:
        g += at_b * g_strides[0] + at_h * g_strides[2]
    PAIRS: tl.constexpr = size_of_pairs(C, PAIR, PRECISION)
    TAIL: tl.constexpr = KP if GATE == 2 else 4 * C
    scores += (head * tl.num_programs(1) + n) * (PAIRS + TAIL)
    i = tl.arange(0, C)
    t = n * C + i

    erases = tl.zeros((C, C), tl.float32)
    reads = tl.zeros((C, C), tl.float32)
    hears = tl.zeros((C, C), tl.float32)
    sees = tl.zeros((C, C), tl.float32)
    strength = tl.full((C,), 1.0, tl.float32)
    if WRITE:
        strength = load_gates(beta + at_b * beta_strides[0] + at_h * beta_strides[2], beta_strides[1], t, T)
    ROWS: tl.constexpr = EARLY and GATE < 2 and not PAIR and KB == KP
    if ROWS:
        early_k = load_rows(k, k_strides[1], t, T, tl.arange(0, KP), K)
        early_q = load_rows(q, q_strides[1], t, T, tl.arange(0, KP), K)
    if EARLY:
        early_v = load_rows(v, v_strides[1], t, T, tl.arange(0, VP), V)
    for start in range(0, KP, KB):
        d = start + tl.arange(0, KB)
        if ROWS:
            q_CK, k_CK = early_q, early_k
        else:
            q_CK = load_rows(q, q_strides[1], t, T, d, K)
            k_CK = load_rows(k, k_strides[1], t, T, d, K)
        if PAIR:
            r_CK = load_rows(a, a_strides[1], t, T, d, K)
            c_CK = load_rows(b, b_strides[1], t, T, d, K)
        else:
            r_CK = k_CK
            c_CK = k_CK
        if GATE < 2:
            c_KC = tl.trans(c_CK)
            reads = add_dot(reads, q_CK, c_KC, PRECISION)
            erases = add_dot(erases, r_CK, c_KC, PRECISION)
            if PAIR:
                k_KC = tl.trans(k_CK)
                sees = add_dot(sees, q_CK, k_KC, PRECISION)
                hears = add_dot(hears, r_CK, k_KC, PRECISION)
        else:
            g_CK = load_rows(g, g_strides[1], t, T, d, K)
            own = i[:, None] == i[None, :]
            until = sums_until(g_CK, C, SUMS)
            if EARLY:
                _store_faded(
                    erased, scores + PAIRS + d, q_CK, c_CK, k_CK, g_CK, until, strength, scale, t, T, H, d, K, C,
                    PAIR, SUMS,
                )  # fmt: skip
                store_rows(erased, H * K, t, T, d, K, r_CK * _to_read(g_CK, until, PAIR))
            reads += tl.where(own, tl.sum(q_CK * c_CK, 1)[:, None], 0.0)
            if PAIR:
                sees += tl.where(own, tl.sum(q_CK * k_CK, 1)[:, None], 0.0)
            erases, reads, hears, sees = _add_faded_pairs(
                erases, reads, hears, sees, q_CK, r_CK, c_CK, k_CK, g_CK, until,
                C, LEVELS, PAIR, PRECISION, CHAIN, UNROLL, SUMS,
            )  # fmt: skip

    if WRITE:
        reads *= strength[None, :]
        erases *= strength[None, :]
    fades = scores + PAIRS + i
    if GATE == 1:
        g_C = load_gates(g, g_strides[1], t, T)
        high, low = cumulative_sums(g_C, CHAIN == "ieee")
        fade = pair_fades(high, low, tl.zeros_like(g_C), C)
        reads *= fade
        tl.store(fades, tl.exp(high) * scale)
        if PAIR:
            fade_before = pair_fades(high, low, g_C, C)
            sees *= fade
            hears *= fade_before
            erases *= fade_before
            to_read = tl.exp(tl.minimum(high - g_C, 0.0))
        else:
            erases *= fade
            to_read = tl.exp(high)
        strength *= fades_to_end(g_C)
        tl.store(fades + 3 * C, tl.exp(high))
    if GATE == 1 or (WRITE and GATE == 0):
        tl.store(fades + 2 * C, strength)
    place = i[:, None] * C + i[None, :]
    until_now, before_now = i[:, None] >= i[None, :], i[:, None] > i[None, :]
    store_square(reads_of(scores, C, PAIR, PRECISION), tl.where(until_now, reads * scale, 0.0), C)
    if PAIR:
        store_square(scores + 2 * C * C, tl.where(until_now, sees * scale, 0.0), C)
        hears = tl.where(before_now, hears, 0.0)
        store_square(scores + 3 * C * C, hears, C)
    erases = tl.where(before_now, erases, 0.0)
    if IN_MEMORY:
        tl.store(scores + place, erases)
        invert_in_memory(scores, C, SOLVE)
        inverse = load_square(scores, None, C)
    else:
        inverse = invert_unit_lower(erases, C, SOLVE)
        tl.store(scores + place, inverse)
    for start in range(0, VP, VB):
        w = start + tl.arange(0, VB)
        if EARLY:
            v_CV = early_v
        else:
            v_CV = load_rows(v, v_strides[1], t, T, w, V)
        if PAIR:
            v_CV = -dot(hears, v_CV, CHAIN)
        store_rows(wanted, H * V, t, T, w, V, dot(inverse, v_CV, APPLY))
    # In 16 bits rows stay as they are, and what reads them fades.
    FADE_INVERSE: tl.constexpr = GATE == 1 and (APPLY == "bf16" or APPLY == "bf16x2")
    if FADE_INVERSE:
        inverse *= to_read[None, :]
    if EARLY and GATE == 2:
        tl.debug_barrier()
    for start in range(0, KP, KB):
        d = start + tl.arange(0, KB)
        if EARLY and GATE == 2:
            r_CK = load_rows(erased, H * K, t, T, d, K)
        elif PAIR:
            r_CK = load_rows(a, a_strides[1], t, T, d, K)
        elif ROWS:
            r_CK = early_k
        else:
            r_CK = load_rows(k, k_strides[1], t, T, d, K)
        if GATE == 1 and not FADE_INVERSE:
            r_CK *= to_read[:, None]
        if GATE == 2 and not EARLY:
            g_CK = load_rows(g, g_strides[1], t, T, d, K)
            until = sums_until(g_CK, C, SUMS)
            r_CK *= _to_read(g_CK, until, PAIR)
            k_CK = load_rows(k, k_strides[1], t, T, d, K)
            q_CK = load_rows(q, q_strides[1], t, T, d, K)
            c_CK = k_CK
            if PAIR:
                c_CK = load_rows(b, b_strides[1], t, T, d, K)
            _store_faded(
                erased, scores + PAIRS + d, q_CK, c_CK, k_CK, g_CK, until, strength, scale, t, T, H, d, K, C,
                PAIR, SUMS,
            )  # fmt: skip
        store_rows(erased, H * K, t, T, d, K, dot(inverse, r_CK, APPLY))
