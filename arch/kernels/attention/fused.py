"""Causal softmax attention on chip: scores live in registers, keys that a block of queries cannot see are not loaded.

p_tj = exp(s_tj - L_t),   s = scale q k^T,   L_t = ln sum_j e^{s_tj}
dv = p^T do,   ds = p * (do v^T - d),   d_t = sum_j p_tj (do v^T)_tj = do_t . o_t,   dq = scale ds k,   dk = scale ds^T q

A gate that forgets adds C_t - C_j to s_tj. C is kept as the sum of two fp32 numbers, whose differences have all digits. The
softmax does not see C_t, so that only dC_j = -sum_t ds_tj is left. Where d_t comes from an o in 16 bits, sum_j ds_tj is not
quite zero; dC_t has that slip, too, without which the errors of all later tokens would add up.

Query t of T is key t + S - T of the S keys: those of the state are ahead. Where all keys fit one block, one launch gives all
three derivatives; otherwise one gives dq, block of queries by block, and one dk and dv, block of keys by block. The passes
over keys hold scores as [keys, queries], so that no product has to be turned around. L is kept in units of ln 2.

B batch, T time, S keys, H heads, G heads of q and k (H or 1), K key width, V value width
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.attention.state import AttentionState, finish, start, sums
from recallmap.arch.kernels.op_interface.custom_op import dense, opaque, packed, padded
from recallmap.arch.kernels.op_interface.input_checks import promoted

WIDEST = 256
KEYS_AT_ONCE = 128  # of the backward pass in one launch
RUN_TIME = ("T", "S", "H", "window", "prefix")


@triton.jit
def _rows(at, row, stride, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """[rows, PADDED], zeros outside."""
    column = tl.arange(0, PADDED)
    inside = (row < rows)[:, None]
    if PADDED != WIDTH:
        inside = inside & (column < WIDTH)[None, :]
    return tl.load(at + row[:, None] * stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def _put(at, row, stride, rows, x, WIDTH: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.arange(0, PADDED)
    inside = (row < rows)[:, None]
    if PADDED != WIDTH:
        inside = inside & (column < WIDTH)[None, :]
    tl.store(at + row[:, None] * stride + column[None, :], x.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _fade(scores, sums_at, query, key, S, FADES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Scores, and what the gates between a key and a query add to them."""
    if FADES:
        of_query, of_key = (
            tl.load(sums_at + query, mask=query < S, other=0.0),
            tl.load(sums_at + key, mask=key < S, other=0.0),
        )
        rest_of_query = tl.load(sums_at + S + query, mask=query < S, other=0.0)
        rest_of_key = tl.load(sums_at + S + key, mask=key < S, other=0.0)
        scores = scores + ((of_query - of_key) + (rest_of_query - rest_of_key))
    return scores


@triton.jit
def _hide(scores, query, key, window, prefix, BANDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """-inf where the query does not see the key."""
    seen = key <= query
    if BANDED:
        seen = seen & ((key > query - window) | (key < prefix))
    return tl.where(seen, scores, float("-inf"))


@triton.jit
def _span(first, S, window, prefix, BT: tl.constexpr, BS: tl.constexpr, BANDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Blocks of keys that the queries first ... first + BT - 1 see: those below `ahead`, and from `low` to below `high`."""
    high = tl.cdiv(tl.minimum(first + BT, S), BS)
    low = 0
    ahead = 0
    if BANDED:
        low = tl.maximum(first - window + 1, 0) // BS
        ahead = tl.minimum(tl.cdiv(prefix, BS), low)
    return ahead, low, high


@triton.jit
def _absorb(  # type: ignore[no-untyped-def]
    q_TK, k_at, v_at, sums_at, k_t, v_t, begin, query, S, window, prefix, scale, acc_TV, top_T, sum_T,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, MASKED: tl.constexpr, FADES: tl.constexpr,
):  # fmt: skip
    """The running softmax over one more block of keys."""
    key = begin + tl.arange(0, BS)
    k_SK = _rows(k_at, key, k_t, S, K, BK)
    v_SV = _rows(v_at, key, v_t, S, V, BV)
    s_TS = tl.dot(q_TK, tl.trans(k_SK), input_precision="ieee") * scale
    s_TS = _fade(s_TS, sums_at, query[:, None], key[None, :], S, FADES)
    if MASKED:
        s_TS = _hide(s_TS, query[:, None], key[None, :], window, prefix, BANDED)
    higher_T = tl.maximum(top_T, tl.max(s_TS, 1))
    p_TS = tl.exp2(s_TS - higher_T[:, None])
    fade_T = tl.exp2(top_T - higher_T)
    acc_TV = tl.dot(p_TS.to(v_SV.dtype), v_SV, acc_TV * fade_T[:, None], input_precision="ieee")
    return acc_TV, higher_T, sum_T * fade_T + tl.sum(p_TS, 1)


@triton.jit(do_not_specialize=RUN_TIME)
def _attention_forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, sums, o, kept, lse, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, T, S, H, window, prefix, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, LONG: tl.constexpr, FADES: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(T, BT)
    sequences = tl.num_programs(0) // blocks
    block = blocks - 1 - tl.program_id(0) // sequences  # those with most keys go first
    sequence = tl.program_id(0) % sequences
    b, h = (sequence // H).to(tl.int64), sequence % H
    k_at, v_at = k + b * k_b + h * k_h, v + b * v_b + h * v_h
    sums_at = sums
    if FADES:
        sums_at = sums + sequence.to(tl.int64) * 2 * S
    t = block * BT + tl.arange(0, BT)
    first = block * BT + S - T
    query = t + S - T
    q_TK = _rows(q + b * q_b + h * q_h, t, q_t, T, K, BK)

    acc_TV = tl.zeros([BT, BV], tl.float32)
    top_T = tl.full([BT], -1e30, tl.float32)  # finite: a block may hide all its keys from a query
    sum_T = tl.zeros([BT], tl.float32)
    ahead, low, high = _span(first, S, window, prefix, BT, BS, BANDED)
    if LONG:
        edge = tl.minimum((first + 1) // BS, high)  # the blocks below are seen whole by all of these queries
        for i in range(0, edge):
            acc_TV, top_T, sum_T = _absorb(
                q_TK, k_at, v_at, sums_at, k_t, v_t, i * BS, query, S, window, prefix, scale, acc_TV, top_T, sum_T,
                K, V, BK, BV, BS, BANDED, False, FADES,
            )  # fmt: skip
        low = edge
    for i in range(0, ahead + high - low):
        begin = tl.where(i < ahead, i, i - ahead + low) * BS
        acc_TV, top_T, sum_T = _absorb(
            q_TK, k_at, v_at, sums_at, k_t, v_t, begin, query, S, window, prefix, scale, acc_TV, top_T, sum_T,
            K, V, BK, BV, BS, BANDED, True, FADES,
        )  # fmt: skip

    sum_T = tl.where(t < T, sum_T, 1.0)  # past the end a query may see nothing
    acc_TV = acc_TV / sum_T[:, None]
    at = (b * T * H + h) * V
    _put(o + at, t, H * V, T, acc_TV, V, BV)
    if KEEP:
        _put(kept + at, t, H * V, T, acc_TV, V, BV)
    tl.store(lse + sequence.to(tl.int64) * T + t, top_T + tl.log2(sum_T), mask=t < T)


@triton.jit
def _query_step(  # type: ignore[no-untyped-def]
    q_TK, do_TV, lse_T, delta_T, k_at, v_at, sums_at, k_t, v_t, begin, query, S, window, prefix, scale, dq_TK, slip_T,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, MASKED: tl.constexpr, FADES: tl.constexpr,
):  # fmt: skip
    """dq / scale and the sum of ds with what one more block of keys brings."""
    key = begin + tl.arange(0, BS)
    k_SK = _rows(k_at, key, k_t, S, K, BK)
    v_SV = _rows(v_at, key, v_t, S, V, BV)
    s_TS = tl.dot(q_TK, tl.trans(k_SK), input_precision="ieee") * scale
    s_TS = _fade(s_TS, sums_at, query[:, None], key[None, :], S, FADES)
    dp_TS = tl.dot(do_TV, tl.trans(v_SV), input_precision="ieee")
    if MASKED:
        s_TS = _hide(s_TS, query[:, None], key[None, :], window, prefix, BANDED)
    ds_TS = tl.exp2(s_TS - lse_T[:, None]) * (dp_TS - delta_T[:, None])
    if FADES:
        slip_T += tl.sum(ds_TS, 1)
    return tl.dot(ds_TS.to(k_SK.dtype), k_SK, dq_TK, input_precision="ieee"), slip_T


@triton.jit(do_not_specialize=RUN_TIME)
def _attention_backward_queries_kernel(  # type: ignore[no-untyped-def]
    do, q, k, v, sums, o, lse, delta, slip, dq, do_b, do_t, do_h, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    T, S, H, window, prefix, scale, natural,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, LONG: tl.constexpr, FADES: tl.constexpr,
):  # fmt: skip
    """dq, and for the pass over keys d and the sum of ds."""
    blocks = tl.cdiv(T, BT)
    sequences = tl.num_programs(0) // blocks
    block = blocks - 1 - tl.program_id(0) // sequences
    sequence = tl.program_id(0) % sequences
    b, h = (sequence // H).to(tl.int64), sequence % H
    k_at, v_at = k + b * k_b + h * k_h, v + b * v_b + h * v_h
    sums_at = sums
    if FADES:
        sums_at = sums + sequence.to(tl.int64) * 2 * S
    t = block * BT + tl.arange(0, BT)
    first = block * BT + S - T
    query = t + S - T
    row = sequence.to(tl.int64) * T + t
    do_TV = _rows(do + b * do_b + h * do_h, t, do_t, T, V, BV)
    o_TV = _rows(o + (b * T * H + h) * V, t, H * V, T, V, BV)
    delta_T = tl.sum(do_TV.to(tl.float32) * o_TV.to(tl.float32), 1)
    tl.store(delta + row, delta_T, mask=t < T)
    lse_T = tl.load(lse + row, mask=t < T, other=float("inf"))
    q_TK = _rows(q + b * q_b + h * q_h, t, q_t, T, K, BK)

    dq_TK = tl.zeros([BT, BK], tl.float32)
    slip_T = tl.zeros([BT], tl.float32)
    ahead, low, high = _span(first, S, window, prefix, BT, BS, BANDED)
    if LONG:
        edge = tl.minimum((first + 1) // BS, high)
        for i in range(0, edge):
            dq_TK, slip_T = _query_step(
                q_TK, do_TV, lse_T, delta_T, k_at, v_at, sums_at, k_t, v_t, i * BS, query, S, window, prefix, scale,
                dq_TK, slip_T, K, V, BK, BV, BS, BANDED, False, FADES,
            )  # fmt: skip
        low = edge
    for i in range(0, ahead + high - low):
        begin = tl.where(i < ahead, i, i - ahead + low) * BS
        dq_TK, slip_T = _query_step(
            q_TK, do_TV, lse_T, delta_T, k_at, v_at, sums_at, k_t, v_t, begin, query, S, window, prefix, scale, dq_TK,
            slip_T, K, V, BK, BV, BS, BANDED, True, FADES,
        )  # fmt: skip
    _put(dq + (b * T * H + h) * K, t, H * K, T, dq_TK * natural, K, BK)
    if FADES:
        tl.store(slip + row, slip_T, mask=t < T)


@triton.jit
def _key_step(  # type: ignore[no-untyped-def]
    k_SK, v_SV, key, sums_at, do_at, q_at, lse_at, delta_at, dq_at, do_t, q_t, begin, T, S, H, window, prefix, scale,
    natural, dk_SK, dv_SV, dsum_S,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
    BANDED: tl.constexpr, MASKED: tl.constexpr, FADES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """dk / scale, dv and the sum of ds with what one more block of queries brings; WHOLE: these are all keys, and dq is at hand
    too."""
    t = begin + tl.arange(0, BT)
    q_TK = _rows(q_at, t, q_t, T, K, BK)
    do_TV = _rows(do_at, t, do_t, T, V, BV)
    lse_T = tl.load(lse_at + t, mask=t < T, other=float("inf"))
    s_ST = tl.dot(k_SK, tl.trans(q_TK), input_precision="ieee") * scale
    s_ST = _fade(s_ST, sums_at, (t + S - T)[None, :], key[:, None], S, FADES)
    dp_ST = tl.dot(v_SV, tl.trans(do_TV), input_precision="ieee")
    if MASKED:
        s_ST = _hide(s_ST, (t + S - T)[None, :], key[:, None], window, prefix, BANDED)
    p_ST = tl.exp2(s_ST - lse_T[None, :])
    if WHOLE:
        delta_T = tl.sum(p_ST * dp_ST, 0)
    else:
        delta_T = tl.load(delta_at + t, mask=t < T, other=0.0)
    ds_ST = p_ST * (dp_ST - delta_T[None, :])
    if FADES:
        dsum_S += tl.sum(ds_ST, 1)
    ds_ST = ds_ST.to(k_SK.dtype)
    dv_SV = tl.dot(p_ST.to(do_TV.dtype), do_TV, dv_SV, input_precision="ieee")
    dk_SK = tl.dot(ds_ST, q_TK, dk_SK, input_precision="ieee")
    if WHOLE:
        dq_KT = tl.dot(tl.trans(k_SK), ds_ST, input_precision="ieee") * natural
        _put(dq_at, t, H * K, T, tl.trans(dq_KT), K, BK)
    return dk_SK, dv_SV, dsum_S


@triton.jit(do_not_specialize=RUN_TIME)
def _attention_backward_keys_kernel(  # type: ignore[no-untyped-def]
    do, q, k, v, sums, lse, delta, slip, dq, dk, dv, dsums, do_b, do_t, do_h, q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h,
    T, S, H, window, prefix, scale, natural,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    BANDED: tl.constexpr, LONG: tl.constexpr, FADES: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """dk, dv and the derivative by C; WHOLE: dq too."""
    sequences = tl.num_programs(0) // tl.cdiv(S, BS)
    first = tl.program_id(0) // sequences * BS
    sequence = tl.program_id(0) % sequences
    b, h = (sequence // H).to(tl.int64), sequence % H
    do_at, q_at = do + b * do_b + h * do_h, q + b * q_b + h * q_h
    lse_at, delta_at = lse + sequence.to(tl.int64) * T, delta + sequence.to(tl.int64) * T
    dq_at = dq + (b * T * H + h) * K
    sums_at = sums
    if FADES:
        sums_at = sums + sequence.to(tl.int64) * 2 * S
    key = first + tl.arange(0, BS)
    k_SK = _rows(k + b * k_b + h * k_h, key, k_t, S, K, BK)
    v_SV = _rows(v + b * v_b + h * v_h, key, v_t, S, V, BV)

    dk_SK = tl.zeros([BS, BK], tl.float32)
    dv_SV = tl.zeros([BS, BV], tl.float32)
    dsum_S = tl.zeros([BS], tl.float32)
    end = T
    if BANDED:
        end = tl.where(first < prefix, T, tl.minimum(T, first + BS - 1 + window - S + T))
    low, high = tl.maximum(first - S + T, 0) // BT, tl.cdiv(end, BT)
    edge = high
    if LONG:
        edge = tl.minimum(high, tl.cdiv(tl.maximum(first + BS - 1 - S + T, 0), BT))
    for i in range(low, edge):
        dk_SK, dv_SV, dsum_S = _key_step(
            k_SK, v_SV, key, sums_at, do_at, q_at, lse_at, delta_at, dq_at, do_t, q_t, i * BT, T, S, H, window, prefix,
            scale, natural, dk_SK, dv_SV, dsum_S, K, V, BK, BV, BT, BANDED, True, FADES, WHOLE,
        )  # fmt: skip
    if LONG:  # these see all keys of the block
        for i in range(edge, high):
            dk_SK, dv_SV, dsum_S = _key_step(
                k_SK, v_SV, key, sums_at, do_at, q_at, lse_at, delta_at, dq_at, do_t, q_t, i * BT, T, S, H, window, prefix,
                scale, natural, dk_SK, dv_SV, dsum_S, K, V, BK, BV, BT, BANDED, False, FADES, WHOLE,
            )  # fmt: skip
    _put(dk + (b * S * H + h) * K, key, H * K, S, dk_SK * natural, K, BK)
    _put(dv + (b * S * H + h) * V, key, H * V, S, dv_SV, V, BV)
    if FADES:  # in units of ln 2, as C
        if not WHOLE:
            own = key - S + T
            at = slip + sequence.to(tl.int64) * T + own
            dsum_S -= tl.load(at, mask=(own >= 0) & (own < T), other=0.0)
        tl.store(dsums + sequence.to(tl.int64) * 2 * S + key, dsum_S * -0.6931471805599453, mask=key < S)


class Tiles(NamedTuple):
    """One launch: queries and keys of a block, warps, stages of loads under way, registers a thread where bounded."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


def _whole(keys: int, width: int, narrow: bool) -> bool:
    """True where one program holds all derivatives of a sequence. `width` is the wider one, `narrow` 16 bits a number."""
    return keys <= KEYS_AT_ONCE and width <= (64 if narrow else 32)


def _forward_tiles(time: int, keys: int, width: int, narrow: bool) -> Tiles:
    if not narrow:
        best = Tiles(32, 32, 4 if width <= 32 else 8, 1) if width <= 128 else Tiles(16, 32, 8, 1)
    elif width > 128:
        best = Tiles(64, 32, 4, 2)
    elif time <= KEYS_AT_ONCE:
        best = Tiles(64, 64, 4, 1)
    elif width > 64:
        best = Tiles(128, 128, 8, 2)
    else:
        best = Tiles(128, 64, 8, 3) if width > 32 else Tiles(64, 64, 4, 3)
    return _fitting(best, time, keys)


def _backward_tiles(time: int, keys: int, width: int, narrow: bool) -> tuple[Tiles, Tiles]:
    """The tiles of the pass over queries, and of that over keys."""
    if not narrow:
        size = 32 if width <= 128 else 16
        best = Tiles(32, KEYS_AT_ONCE, 8, 1) if _whole(keys, width, narrow) else Tiles(size, size, 8, 1)
        over_queries = over_keys = best
    elif _whole(keys, width, narrow):
        queries, registers = 64 if width <= 16 else 32, 128 if width <= 32 else None
        over_queries = over_keys = Tiles(queries, KEYS_AT_ONCE, 8 if keys > 64 else 4, 1, registers)
    elif width > 128:
        over_queries, over_keys = Tiles(64, 32, 8, 2), Tiles(32, 64, 8, 2)
    elif width > 64:
        over_queries, over_keys = Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 2)
    else:
        over_queries, over_keys = Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 2)
    return _fitting(over_queries, time, keys), _fitting(over_keys, time, keys)


def _fitting(tiles: Tiles, time: int, keys: int) -> Tiles:
    return tiles._replace(queries=min(tiles.queries, padded(time)), keys=min(tiles.keys, padded(keys)))


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call (fp64, heads wider than 256); None where it serves."""
    if dtype == torch.float64:
        return "computes in fp32 at most, got fp64"
    width = max(sizes.get("key_width", 1), sizes.get("value_width", 1))
    return f"holds heads of at most {WIDEST} channels, got {width}" if width > WIDEST else None


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2) if x.shape[2] > 1 else 0


def _widths(q: Tensor, v: Tensor) -> dict[str, Any]:
    key_width, value_width = q.shape[-1], v.shape[-1]
    return {"K": key_width, "V": value_width, "BK": padded(key_width), "BV": padded(value_width)}


def _plan(q: Tensor, v: Tensor) -> tuple[int, int, int, bool]:
    """The sizes that tiles depend on."""
    return q.shape[1], v.shape[1], max(q.shape[-1], v.shape[-1]), q.element_size() == 2


def _at_once(q: Tensor, v: Tensor) -> bool:
    """True where backward is one launch, which needs no o."""
    return _whole(*_plan(q, v)[1:])


def _launched(tiles: Tiles, banded: bool, keys: int, sums: Tensor | None) -> dict[str, Any]:
    sizes = {"BT": tiles.queries, "BS": tiles.keys, "num_warps": tiles.warps, "num_stages": tiles.stages}
    if tiles.registers is not None:
        sizes["maxnreg"] = tiles.registers
    return sizes | {"BANDED": banded, "LONG": not banded and keys > 2 * KEYS_AT_ONCE, "FADES": sums is not None}


def _forward(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None, window: int, prefix: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """o, and for the way back L [B, H, T] and o again where the pass over queries reads it."""
    q, k, v, sums = dense(q), dense(k), dense(v), packed(sums)
    o, lse, kept = _outputs(q, k, v, sums, window, prefix, scale)
    time, keys, heads = q.shape[1], v.shape[1], v.shape[2]
    tiles = _forward_tiles(*_plan(q, v))
    _attention_forward_kernel[(triton.cdiv(time, tiles.queries) * q.shape[0] * heads,)](
        q, k, v, sums, o, kept, lse, *_strides(q), *_strides(k), *_strides(v), time, keys, heads, window, prefix,
        scale / math.log(2), **_widths(q, v), **_launched(tiles, window < keys, keys, sums), KEEP=not _at_once(q, v),
    )  # fmt: skip
    return o, lse, kept


def _outputs(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None, window: int, prefix: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    batch, time, heads, value_width = q.shape[0], q.shape[1], v.shape[2], v.shape[3]
    lse = q.new_empty(batch, heads, time, dtype=torch.float32)
    kept = 0 if _at_once(q, v) else time
    return v.new_empty(batch, time, heads, value_width), lse, v.new_empty(batch, kept, heads, value_width)


def _backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sums: Tensor | None,
    window: int,
    prefix: int,
    scale: float,
    lse: Tensor,
    o: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    do, q, k, v, sums = dense(do), dense(q), dense(k), dense(v), packed(sums)
    time, keys, heads = q.shape[1], v.shape[1], v.shape[2]
    sequences, shared = q.shape[0] * heads, q.shape[2] < heads
    dq, dk, dv, dsums = _gradients(do, q, k, v, sums, window, prefix, scale, lse, o)
    dsums.zero_()  # the rests of C have no derivative of their own
    if shared:  # a part a head, summed up after
        dq, dk = (q.new_empty(*x.shape[:2], heads, x.shape[3], dtype=torch.float32) for x in (dq, dk))
    strides = (*_strides(do), *_strides(q), *_strides(k), *_strides(v))
    sizes = (*strides, time, keys, heads, window, prefix, scale / math.log(2), scale)
    over_queries, over_keys = _backward_tiles(*_plan(q, v))
    whole, delta, slip = _at_once(q, v), lse, lse
    if not whole:
        delta, slip = torch.empty_like(lse), torch.empty_like(lse)
        _attention_backward_queries_kernel[(triton.cdiv(time, over_queries.queries) * sequences,)](
            do, q, k, v, sums, o, lse, delta, slip, dq, *sizes, **_widths(q, v),
            **_launched(over_queries, window < keys, keys, sums),
        )  # fmt: skip
    _attention_backward_keys_kernel[(triton.cdiv(keys, over_keys.keys) * sequences,)](
        do, q, k, v, sums, lse, delta, slip, dq, dk, dv, dsums, *sizes, **_widths(q, v),
        **_launched(over_keys, window < keys, keys, sums), WHOLE=whole,
    )  # fmt: skip
    if shared:
        dq, dk = (x.sum(2, keepdim=True).to(q.dtype) for x in (dq, dk))
    return dq, dk, dv, dsums


def _gradients(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sums: Tensor | None,
    window: int,
    prefix: int,
    scale: float,
    lse: Tensor,
    o: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dsums = q.new_empty(0) if sums is None else sums.new_empty(sums.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsums


_attention = opaque("attention", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    window: int | None,
    prefix: int,
    scale: float,
    initial_state: AttentionState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, AttentionState | None]:
    """The whole sequence; `chunk` has no meaning here. Products take the widest of the dtypes of q, k, v and of a state that is
    handed in, fp32 at most."""
    past = start(
        initial_state, (*k.shape[:1], *k.shape[2:]), (*v.shape[:1], *v.shape[2:]), window, prefix, v, log_decay
    )
    keys, values = (torch.cat(x, 1) if past.position else x[1] for x in ((past.keys, k), (past.values, v)))
    dtype = promoted(q, keys, values)
    dtype = torch.float32 if dtype == torch.float64 else dtype
    held = values.shape[1]
    banded = window is not None and window < held
    sums_BSH = None if log_decay is None else sums(past, log_decay)
    pair_BH2S = None
    if sums_BSH is not None:
        exact_BHS = sums_BSH.mT / math.log(2)
        leading_BHS = exact_BHS.float()
        pair_BH2S = torch.stack((leading_BHS, (exact_BHS - leading_BHS.double()).float()), 2)
    o, *_ = _attention(
        q.to(dtype),
        keys.to(dtype),
        values.to(dtype),
        pair_BH2S,
        window if banded else held,
        prefix if banded else 0,
        scale,
    )
    if not return_state:
        return o.to(v.dtype), None
    return o.to(v.dtype), finish(past, keys, values, log_decay, sums_BSH, window, prefix, torch.float32)
