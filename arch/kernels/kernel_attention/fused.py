"""Kernel attention on chip, where the kernel is exponential and the memory linear: weights and scores live in registers.

o_t = sum_j w_tj e_tj v_j,   e = exp(scale q k^T),   w_tj = sum_i [j + i <= t] exp(G_t - G_{j+i}) b_ji
dw = (do v^T) * e,   ds = scale dw * w,   dq = ds k,   dk = ds^T q,   dv = (w * e)^T do
b_ji = eta_{j+i} gamma_{j+i,i},   db_ji = sum_t [j + i <= t] dw_tj exp(G_t - G_{j+i})

G are the logs of alpha, summed up in fp64 and subtracted as pairs of fp32. Programs take a block of queries, back to the first
key, or a block of keys, on to the last query; the latter hold scores as [keys, queries], so that no product is turned around.

B batch, T time, M = c - 1 + T keys, of which those ahead lie in the first token's window, H heads, K key width, V value width
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import opaque, padded
from recallmap.arch.kernels.test_time.dual_form import Learned, Tokens
from recallmap.arch.kernels.test_time.implicit_features import Expansion, Exponential
from recallmap.arch.kernels.test_time.influence import LEAST
from recallmap.arch.kernels.test_time.learning_rule import Rule

WIDEST = 256
LONGEST = 8  # window: its terms are summed up one by one, for every pair of tokens
PRECISION = "ieee"  # of products; inputs are fp32
RUN_TIME = ("T",)


@triton.jit
def _rows(at, row, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    """[rows, PADDED], zeros outside."""
    column = tl.arange(0, PADDED)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    return tl.load(at + row[:, None] * WIDTH + column[None, :], mask=inside, other=0.0)


@triton.jit
def _put(at, row, rows, x, WIDTH: tl.constexpr, PADDED: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.arange(0, PADDED)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    tl.store(at + row[:, None] * WIDTH + column[None, :], x, mask=inside)


@triton.jit
def _sums(at, t, inside):  # type: ignore[no-untyped-def]
    """G as two numbers of fp32."""
    whole = tl.load(at + t, mask=inside, other=0.0)
    high = whole.to(tl.float32)
    return high, (whole - high.to(tl.float64)).to(tl.float32)


@triton.jit
def _fade(t, high_t, low_t, key, G, T, AGO: tl.constexpr, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """exp(G_t - G_s) of the token s to which `key` is AGO tokens ago, 0 where there is no s or t is ahead of it; and the same
    without s = t, where nothing depends on G."""
    s = key - (C - 1) + AGO
    high_s, low_s = _sums(G, s, (s >= 0) & (s < T))
    seen = (s >= 0) & (s <= t) & (t < T)
    since = tl.where(seen, (high_t - high_s) + (low_t - low_s), 0.0)
    fade = tl.where(seen, tl.exp(since), 0.0)
    return fade, tl.where(s < t, fade, 0.0)


@triton.jit
def _weights(t, high_t, low_t, key, G, b, T, C: tl.constexpr):  # type: ignore[no-untyped-def]
    """w of tokens, a column, and keys, a row; and what of it depends on G."""
    M = T + C - 1
    b_s = tl.load(b + key, mask=key < M, other=0.0)
    w, faded = _fade(t, high_t, low_t, key, G, T, 0, C)
    w, faded = w * b_s, faded * b_s
    for i in tl.static_range(1, C):
        b_s = tl.load(b + i * M + key, mask=key < M, other=0.0)
        now, later = _fade(t, high_t, low_t, key, G, T, i, C)
        w, faded = w + now * b_s, faded + later * b_s
    return w, faded


@triton.jit(do_not_specialize=RUN_TIME)
def _kernel_attention_forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, G, b, o, T, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    M = T + C - 1
    sequences = tl.num_programs(0) // tl.cdiv(T, BT)
    first = (tl.cdiv(T, BT) - 1 - tl.program_id(0) // sequences) * BT  # those with most keys go first
    at = (tl.program_id(0) % sequences).to(tl.int64)
    q, k, v, o, G, b = q + at * T * K, k + at * M * K, v + at * M * V, o + at * T * V, G + at * T, b + at * M * C
    t = first + tl.arange(0, BT)
    q_TK = _rows(q, t, T, K, BK)
    high_T, low_T = _sums(G, t, t < T)
    o_TV = tl.zeros([BT, BV], tl.float32)
    for begin in range(0, tl.minimum(first + BT + C - 1, M), BS):
        key = begin + tl.arange(0, BS)
        e_TS = tl.exp(tl.dot(q_TK, tl.trans(_rows(k, key, M, K, BK)), input_precision=PRECISION) * scale)
        w_TS, _ = _weights(t[:, None], high_T[:, None], low_T[:, None], key[None, :], G, b, T, C)
        o_TV = tl.dot(w_TS * e_TS, _rows(v, key, M, V, BV), o_TV, input_precision=PRECISION)
    _put(o, t, T, o_TV, V, BV)


@triton.jit(do_not_specialize=RUN_TIME)
def _kernel_attention_backward_queries_kernel(  # type: ignore[no-untyped-def]
    do, q, k, v, G, b, dq, dG, T, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, and what each token's own G takes."""
    M = T + C - 1
    sequences = tl.num_programs(0) // tl.cdiv(T, BT)
    first = (tl.cdiv(T, BT) - 1 - tl.program_id(0) // sequences) * BT
    at = (tl.program_id(0) % sequences).to(tl.int64)
    q, k, v, do, G, b = q + at * T * K, k + at * M * K, v + at * M * V, do + at * T * V, G + at * T, b + at * M * C
    t = first + tl.arange(0, BT)
    q_TK, do_TV = _rows(q, t, T, K, BK), _rows(do, t, T, V, BV)
    high_T, low_T = _sums(G, t, t < T)
    dq_TK = tl.zeros([BT, BK], tl.float32)
    dG_T = tl.zeros([BT], tl.float32)
    for begin in range(0, tl.minimum(first + BT + C - 1, M), BS):
        key = begin + tl.arange(0, BS)
        k_SK = _rows(k, key, M, K, BK)
        e_TS = tl.exp(tl.dot(q_TK, tl.trans(k_SK), input_precision=PRECISION) * scale)
        w_TS, faded_TS = _weights(t[:, None], high_T[:, None], low_T[:, None], key[None, :], G, b, T, C)
        dw_TS = tl.dot(do_TV, tl.trans(_rows(v, key, M, V, BV)), input_precision=PRECISION) * e_TS
        dq_TK = tl.dot(dw_TS * w_TS, k_SK, dq_TK, input_precision=PRECISION)
        dG_T += tl.sum(dw_TS * faded_TS, 1)
    _put(dq + at * T * K, t, T, dq_TK * scale, K, BK)
    tl.store(dG + at * T + t, dG_T, mask=t < T)


@triton.jit(do_not_specialize=RUN_TIME)
def _kernel_attention_backward_keys_kernel(  # type: ignore[no-untyped-def]
    do, q, k, v, G, b, dk, dv, db, moved, T, scale,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
    C: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    M = T + C - 1
    sequences = tl.num_programs(0) // tl.cdiv(M, BS)
    first = tl.program_id(0) // sequences * BS
    at = (tl.program_id(0) % sequences).to(tl.int64)
    q, k, v, do, G, b = q + at * T * K, k + at * M * K, v + at * M * V, do + at * T * V, G + at * T, b + at * M * C
    key = first + tl.arange(0, BS)
    k_SK, v_SV = _rows(k, key, M, K, BK), _rows(v, key, M, V, BV)
    dk_SK, dv_SV = tl.zeros([BS, BK], tl.float32), tl.zeros([BS, BV], tl.float32)
    zero_S = tl.zeros([BS], tl.float32)
    db_CS, moved_CS = (zero_S,), (zero_S,)
    for _ in tl.static_range(1, C):
        db_CS += (zero_S,)  # type: ignore[assignment]
        moved_CS += (zero_S,)  # type: ignore[assignment]
    for begin in range(tl.maximum(first - C + 1, 0) // BT * BT, T, BT):
        t = begin + tl.arange(0, BT)
        q_TK, do_TV = _rows(q, t, T, K, BK), _rows(do, t, T, V, BV)
        high_T, low_T = _sums(G, t, t < T)
        e_ST = tl.exp(tl.dot(k_SK, tl.trans(q_TK), input_precision=PRECISION) * scale)
        dw_ST = tl.dot(v_SV, tl.trans(do_TV), input_precision=PRECISION) * e_ST
        w_ST = tl.zeros([BS, BT], tl.float32)
        all_CS, later_CS = db_CS, moved_CS
        for i in tl.static_range(C):
            fade_ST, later_ST = _fade(t[None, :], high_T[None, :], low_T[None, :], key[:, None], G, T, i, C)
            w_ST += fade_ST * tl.load(b + i * M + key, mask=key < M, other=0.0)[:, None]
            all_S = all_CS[i] + tl.sum(dw_ST * fade_ST, 1)
            later_S = later_CS[i] + tl.sum(dw_ST * later_ST, 1)
            if i == 0:
                db_CS, moved_CS = (all_S,), (later_S,)
            else:
                db_CS += (all_S,)  # type: ignore[assignment]
                moved_CS += (later_S,)  # type: ignore[assignment]
        dv_SV = tl.dot(w_ST * e_ST, do_TV, dv_SV, input_precision=PRECISION)
        dk_SK = tl.dot(w_ST * dw_ST, q_TK, dk_SK, input_precision=PRECISION)
    _put(dk + at * M * K, key, M, dk_SK * scale, K, BK)
    _put(dv + at * M * V, key, M, dv_SV, V, BV)
    for i in tl.static_range(C):
        tl.store(db + at * M * C + i * M + key, db_CS[i], mask=key < M)
        tl.store(moved + at * M * C + i * M + key, moved_CS[i], mask=key < M)


def _table(width: int) -> tuple[int, int]:
    """Tokens of a block, and warps."""
    return (32, 4) if width <= 32 else (32, 8) if width <= 128 else (16, 8)


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call (fp64, other kernels, deep memories, long windows, wide heads); None where it serves."""
    if dtype == torch.float64:
        return "computes in fp32 at most, got fp64"
    if not sizes.get("exponential", 1):
        return "knows the exponential kernel alone"
    if sizes.get("matrices", 1) > 1:
        return "serves linear memories, without anchors"
    if sizes.get("window", 1) > LONGEST:
        return f"sums up windows of at most {LONGEST} tokens, got {sizes['window']}"
    width = max(sizes.get("key_width", 1), sizes.get("value_width", 1))
    return f"holds heads of at most {WIDEST} channels, got {width}" if width > WIDEST else None


def _launched(q: Tensor, v: Tensor, b: Tensor) -> dict[str, Any]:
    key_width, value_width = q.shape[-1], v.shape[-1]
    tokens, warps = _table(max(key_width, value_width))
    sizes = {"K": key_width, "V": value_width, "BK": padded(key_width), "BV": padded(value_width), "C": b.shape[2]}
    return sizes | {"BT": tokens, "BS": tokens, "num_warps": warps, "num_stages": 1, "PRECISION": PRECISION}


def _forward(q: Tensor, k: Tensor, v: Tensor, G: Tensor, b: Tensor, scale: float) -> tuple[Tensor]:
    """o [B, H, T, V] of q [B, H, T, K], k, v [B, H, M, ...], G [B, H, T] in fp64, b [B, H, c, M]."""
    q, k, v, G, b = (x.contiguous() for x in (q, k, v, G, b))
    (o,) = _outputs(q, k, v, G, b, scale)
    form = _launched(q, v, b)
    time = q.shape[2]
    _kernel_attention_forward_kernel[(triton.cdiv(time, form["BT"]) * q.shape[0] * q.shape[1],)](
        q, k, v, G, b, o, time, scale, **form
    )
    return (o,)


def _outputs(q: Tensor, k: Tensor, v: Tensor, G: Tensor, b: Tensor, scale: float) -> tuple[Tensor]:
    return (v.new_empty(*q.shape[:3], v.shape[-1]),)


def _backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, G: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    do, q, k, v, G, b = (x.contiguous() for x in (do, q, k, v, G, b))
    dq, dk, dv, _, db = _gradients(do, q, k, v, G, b, scale)
    form = _launched(q, v, b)
    (time, window), sequences = (q.shape[2], b.shape[2]), q.shape[0] * q.shape[1]
    own, moved = q.new_empty(G.shape), torch.empty_like(db)  # dG_t, and by b what -dG_s takes of later tokens
    _kernel_attention_backward_queries_kernel[(triton.cdiv(time, form["BT"]) * sequences,)](
        do, q, k, v, G, b, dq, own, time, scale, **form
    )
    _kernel_attention_backward_keys_kernel[(triton.cdiv(k.shape[2], form["BS"]) * sequences,)](
        do, q, k, v, G, b, dk, dv, db, moved, time, scale, **form
    )
    moved = moved * b
    for i in range(window):
        own = own - moved[:, :, i, window - 1 - i : window - 1 - i + time]
    return dq, dk, dv, own.to(G.dtype), db


def _gradients(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, G: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, dG, db = (x.new_empty(x.shape) for x in (q, k, v, G, b))
    return dq, dk, dv, dG, db


_kernel_attention = opaque(
    "kernel_attention", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1
)


def fused(learned: Learned, tokens: Tokens, rule: Rule, position: int, chunk: int | None) -> tuple[Tensor, Learned]:
    """Read-outs y [B, H, T, V] and what is known behind the last token; `chunk` has no meaning here."""
    (store,) = learned.maps
    assert isinstance(store, Expansion)
    assert isinstance(store.kernel, Exponential)
    time, window = tokens.gamma.shape[-2:]
    q, k, v, alpha, eta, gamma = (
        x.float() for x in (tokens.q, tokens.k, tokens.v, tokens.alpha, tokens.eta, tokens.gamma)
    )
    G = alpha.clamp(min=LEAST).log().cumsum(-1, dtype=torch.float64)
    brought = (eta[..., None] * gamma).unbind(-1)
    b = torch.stack([F.pad(x, (window - 1 - i, i)) for i, x in enumerate(brought)], 2)
    (y,) = _kernel_attention(q, k, v, G, b, store.kernel.scale)
    if store.points.shape[2]:
        y = y + G.exp().float()[..., None] * store.product(q)
    since = torch.stack([G[..., -1:] - F.pad(G, (window - 1 - i, i)) for i in range(window)], 2)
    write = (since.exp().float() * b).sum(2)
    after = store.after(G[..., -1].exp().float(), k, -write[..., None] * v, time)
    return y, Learned((after,), None, (after,))
