"""Log-linear attention by tiles of scores, as attention has them: a level is a weight for every tile, or a mask in one.

o_t = sum_{s <= t} c_{t, |t xor s|} e^{G_t - G_s} a_ts v_s,   a = q k^T
da_ts = c e^{G_t - G_s} (do_t . v_s),   dq = da k,   dk = da^T q,   dv_s = sum_t c e^{G_t - G_s} a_ts do_t
dc_tl = sum_{s: |t xor s| = l} e^{G_t - G_s} a_ts (do_t . v_s),   dG_t = sum_s a_ts da_ts - sum_s a_st da_st

Tiles begin where their number of tokens, 2^c, divides the number of tokens ahead: then two of them, n and m, are c + |n xor m|
apart with all their tokens. G are sums of log decays in fp64, subtracted as pairs of fp32. Programs take a tile of queries,
back to the first key, or a tile of keys, on to the last query; the latter hold scores as [keys, queries], so that no product
is turned around. One launch forward, two backward. Work grows as the square of the length, as attention's does. States are
PyTorch's, and made only for whoever asks for them.

B batch, T time, H heads, L levels, M = L - 1 buckets, K key width, V value width; BT, BK, BV, BL tiles
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.log_linear.state import LogLinearState, start
from recallmap.arch.kernels.op_interface.custom_op import opaque, padded
from recallmap.arch.kernels.op_interface.input_checks import promoted

WIDEST = 256
RUN_TIME = ("T", "lead", "ahead")


@triton.jit
def _rows(at, row, rows, WIDTH: tl.constexpr, PADDED: tl.constexpr, DOT: tl.constexpr):
    """[rows, PADDED], zeros outside."""
    column = tl.arange(0, PADDED)
    inside = ((row >= 0) & (row < rows))[:, None] & (column < WIDTH)[None, :]
    return tl.load(at + row[:, None] * WIDTH + column[None, :], mask=inside, other=0.0).to(DOT)


@triton.jit
def _put(at, row, rows, x, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    column = tl.arange(0, PADDED)
    inside = ((row >= 0) & (row < rows))[:, None] & (column < WIDTH)[None, :]
    tl.store(at + row[:, None] * WIDTH + column[None, :], x.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _sums(G, t, T):
    """G as two numbers of fp32."""
    whole = tl.load(G + t, mask=(t >= 0) & (t < T), other=0.0)
    high = whole.to(tl.float32)
    return high, (whole - high.to(tl.float64)).to(tl.float32)


@triton.jit
def _fade(G, t, s, T):
    """exp(G_t - G_s), 0 where s is behind t; one of t and s is a column, the other a row."""
    seen = (s >= 0) & (s <= t) & (t < T)
    fade = seen.to(tl.float32)
    if G is not None:
        high_t, low_t = _sums(G, t, T)
        high_s, low_s = _sums(G, s, T)
        fade = tl.where(seen, tl.exp(tl.where(seen, (high_t - high_s) + (low_t - low_s), 0.0)), 0.0)
    return fade


@triton.jit
def _digits(x, MOST: tl.constexpr):
    """The number of binary digits of x, MOST where there are more."""
    found = (x > 0).to(tl.int32)
    for i in tl.static_range(1, MOST):
        found += ((x >> i) > 0).to(tl.int32)
    return found


@triton.jit
def _apart(n, m, ahead, L: tl.constexpr, LOG: tl.constexpr):
    """The level of two tiles that are not one."""
    return tl.minimum(LOG + _digits((ahead + n) ^ (ahead + m), L), L - 1)


@triton.jit
def _inside(row, column, L: tl.constexpr, LOG: tl.constexpr):
    """The levels of pairs in a tile."""
    return tl.minimum(_digits(row ^ column, LOG), L - 1)


@triton.jit
def _level(levels, t, T, level, L: tl.constexpr):
    return tl.load(levels + t * L + level, mask=(t >= 0) & (t < T), other=0.0)


@triton.jit
def _weights(levels, t, T, at, L: tl.constexpr, LOG: tl.constexpr):
    """c of the pairs in a tile whose levels are `at`; t is a column or a row."""
    weights = tl.zeros(at.shape, tl.float32)
    for level in tl.static_range(LOG + 1):
        if level < L:
            weights = tl.where(at == level, _level(levels, t, T, level, L), weights)
    return weights


@triton.jit
def _mixed(x, y, PRECISION: tl.constexpr):
    """x @ y in fp32, or to 21 bits by three products of tf32 where inputs have 16. Scores are not normalised, nor are values
    with write strengths, and their sums cancel: rounded to the 11 bits of tf32, they cost an output more than its own 8."""
    return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision=PRECISION)


@triton.jit(do_not_specialize=RUN_TIME)
def _log_linear_forward_kernel(
    q, k, v, G, levels, o, T, lead, ahead, K: tl.constexpr, V: tl.constexpr, L: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, BL: tl.constexpr, BT: tl.constexpr, LOG: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(T + lead, BT)
    sequences = tl.num_programs(0) // tiles
    n = tiles - 1 - tl.program_id(0) // sequences  # those with most keys go first
    at = (tl.program_id(0) % sequences).to(tl.int64) * T
    q, k, v, o, levels = q + at * K, k + at * K, v + at * V, o + at * V, levels + at * L
    if G is not None:
        G += at
    i = tl.arange(0, BT)
    t = n * BT - lead + i
    q_TK = _rows(q, t, T, K, BK, DOT)
    o_TV = tl.zeros([BT, BV], tl.float32)
    for m in range(0, n):
        s = m * BT - lead + i
        a_TS = tl.dot(q_TK, tl.trans(_rows(k, s, T, K, BK, DOT)), input_precision="ieee")
        weights = _fade(G, t[:, None], s[None, :], T) * _level(levels, t, T, _apart(n, m, ahead, L, LOG), L)[:, None]
        o_TV += _mixed(a_TS * weights, _rows(v, s, T, V, BV, tl.float32), PRECISION)
    a_TS = tl.dot(q_TK, tl.trans(_rows(k, t, T, K, BK, DOT)), input_precision="ieee")
    weights = _weights(levels, t[:, None], T, _inside(i[:, None], i[None, :], L, LOG), L, LOG)
    weights = weights * _fade(G, t[:, None], t[None, :], T)
    o_TV += _mixed(a_TS * weights, _rows(v, t, T, V, BV, tl.float32), PRECISION)
    _put(o, t, T, o_TV, V, BV)


@triton.jit(do_not_specialize=RUN_TIME)
def _log_linear_backward_queries_kernel(
    do, q, k, v, G, levels, dq, d_levels, dG, T, lead, ahead, K: tl.constexpr, V: tl.constexpr, L: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, BL: tl.constexpr, BT: tl.constexpr, LOG: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dq, the derivatives by levels, and what each token's own G takes."""
    tiles = tl.cdiv(T + lead, BT)
    sequences = tl.num_programs(0) // tiles
    n = tiles - 1 - tl.program_id(0) // sequences
    at = (tl.program_id(0) % sequences).to(tl.int64) * T
    q, k, v, do, levels = q + at * K, k + at * K, v + at * V, do + at * V, levels + at * L
    if G is not None:
        G += at
    i, level_L = tl.arange(0, BT), tl.arange(0, BL)
    t = n * BT - lead + i
    q_TK, do_TV = _rows(q, t, T, K, BK, DOT), _rows(do, t, T, V, BV, DOT)
    dq_TK, d_TL, dG_T = tl.zeros([BT, BK], tl.float32), tl.zeros([BT, BL], tl.float32), tl.zeros([BT], tl.float32)
    for m in range(0, n):
        s = m * BT - lead + i
        k_SK, level = _rows(k, s, T, K, BK, DOT), _apart(n, m, ahead, L, LOG)
        a_TS = tl.dot(q_TK, tl.trans(k_SK), input_precision="ieee")
        dw_TS = _mixed(do_TV, tl.trans(_rows(v, s, T, V, BV, tl.float32)), PRECISION)
        dw_TS = dw_TS * _fade(G, t[:, None], s[None, :], T)
        c_T, d_T = _level(levels, t, T, level, L), tl.sum(dw_TS * a_TS, 1)
        dq_TK += _mixed(dw_TS * c_T[:, None], k_SK, PRECISION)
        d_TL += tl.where(level_L[None, :] == level, d_T[:, None], 0.0)
        dG_T += c_T * d_T
    k_TK, at_TT = _rows(k, t, T, K, BK, DOT), _inside(i[:, None], i[None, :], L, LOG)
    a_TS = tl.dot(q_TK, tl.trans(k_TK), input_precision="ieee")
    dw_TS = _mixed(do_TV, tl.trans(_rows(v, t, T, V, BV, tl.float32)), PRECISION)
    dw_TS = dw_TS * _fade(G, t[:, None], t[None, :], T)
    weights, d_TS = _weights(levels, t[:, None], T, at_TT, L, LOG), dw_TS * a_TS
    dq_TK += _mixed(dw_TS * weights, k_TK, PRECISION)
    for level in tl.static_range(LOG + 1):
        if level < L:
            d_T = tl.sum(tl.where(at_TT == level, d_TS, 0.0), 1)
            d_TL += tl.where(level_L[None, :] == level, d_T[:, None], 0.0)
    _put(dq + at * K, t, T, dq_TK, K, BK)
    _put(d_levels + at * L, t, T, d_TL, L, BL)
    if G is not None:  # the pair of a token with itself does not fade
        dG_T += tl.sum(tl.where(i[:, None] > i[None, :], weights * d_TS, 0.0), 1)
        tl.store(dG + at + t, dG_T, mask=(t >= 0) & (t < T))


@triton.jit(do_not_specialize=RUN_TIME)
def _log_linear_backward_keys_kernel(
    do, q, k, v, G, levels, dk, dv, dG, T, lead, ahead, K: tl.constexpr, V: tl.constexpr, L: tl.constexpr,
    BK: tl.constexpr, BV: tl.constexpr, BL: tl.constexpr, BT: tl.constexpr, LOG: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """dk, dv, and what later tokens take of each token's G."""
    tiles = tl.cdiv(T + lead, BT)
    sequences = tl.num_programs(0) // tiles
    m = tl.program_id(0) // sequences
    at = (tl.program_id(0) % sequences).to(tl.int64) * T
    q, k, v, do, levels = q + at * K, k + at * K, v + at * V, do + at * V, levels + at * L
    if G is not None:
        G += at
    i = tl.arange(0, BT)
    s = m * BT - lead + i
    k_SK, v_SV = _rows(k, s, T, K, BK, DOT), _rows(v, s, T, V, BV, tl.float32)
    q_SK, do_SV = _rows(q, s, T, K, BK, DOT), _rows(do, s, T, V, BV, DOT)
    w_ST = _weights(levels, s[None, :], T, _inside(i[:, None], i[None, :], L, LOG), L, LOG)
    w_ST = w_ST * _fade(G, s[None, :], s[:, None], T)
    a_ST = w_ST * tl.dot(k_SK, tl.trans(q_SK), input_precision="ieee")
    dw_ST = _mixed(v_SV, tl.trans(do_SV), PRECISION)
    dv_SV = _mixed(a_ST, do_SV, PRECISION)
    dk_SK = _mixed(w_ST * dw_ST, q_SK, PRECISION)
    dG_S = tl.sum(tl.where(i[:, None] < i[None, :], a_ST * dw_ST, 0.0), 1)
    for n in range(m + 1, tiles):
        t = n * BT - lead + i
        q_TK, do_TV = _rows(q, t, T, K, BK, DOT), _rows(do, t, T, V, BV, DOT)
        w_ST = _fade(G, t[None, :], s[:, None], T) * _level(levels, t, T, _apart(n, m, ahead, L, LOG), L)[None, :]
        a_ST = w_ST * tl.dot(k_SK, tl.trans(q_TK), input_precision="ieee")
        dw_ST = _mixed(v_SV, tl.trans(do_TV), PRECISION)
        dv_SV += _mixed(a_ST, do_TV, PRECISION)
        dk_SK += _mixed(w_ST * dw_ST, q_TK, PRECISION)
        dG_S += tl.sum(a_ST * dw_ST, 1)
    _put(dk + at * K, s, T, dk_SK, K, BK)
    _put(dv + at * V, s, T, dv_SV, V, BV)
    if G is not None:
        tl.store(dG + at + s, dG_S, mask=(s >= 0) & (s < T))


_DOTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _launched(q: Tensor, v: Tensor, levels: Tensor, position: int) -> tuple[int, tuple[int, int, int], dict[str, Any]]:
    """Programs, counts and constants: tiles of 32 tokens, which Hopper's wider products do not serve."""
    batch, heads, time, value_width = v.shape
    key_width, many = q.shape[-1], levels.shape[-1]
    widest = max(key_width, value_width)
    tokens = 32 if widest <= 128 else 16
    lead = position % tokens
    widths = {"K": key_width, "V": value_width, "L": many, "BK": padded(key_width), "BV": padded(value_width)}
    tile = {"BL": padded(many), "BT": tokens, "LOG": tokens.bit_length() - 1, "DOT": _DOTS[q.dtype]}
    tile["PRECISION"] = "ieee" if q.dtype == torch.float32 else "tf32x3"
    form = widths | tile | {"num_warps": 4 if widest <= 32 else 8, "num_stages": 1}
    return batch * heads * triton.cdiv(time + lead, tokens), (time, lead, position // tokens), form


def _forward(q: Tensor, k: Tensor, v: Tensor, G: Tensor | None, levels: Tensor, position: int) -> tuple[Tensor]:
    """o [B, H, T, V] in fp32 of q, k [B, H, T, K] in one type, v and levels [B, H, T, L] in fp32, and G [B, H, T] in fp64."""
    q, k, v, levels = (x.contiguous() for x in (q, k, v, levels))
    G = None if G is None else G.contiguous()
    (o,) = _outputs(q, k, v, G, levels, position)
    programs, counts, form = _launched(q, v, levels, position)
    _log_linear_forward_kernel[(programs,)](q, k, v, G, levels, o, *counts, **form)
    return (o,)


def _outputs(q: Tensor, k: Tensor, v: Tensor, G: Tensor | None, levels: Tensor, position: int) -> tuple[Tensor]:
    return (v.new_empty(v.shape, dtype=torch.float32),)


def _backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, G: Tensor | None, levels: Tensor, position: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    do, q, k, v, levels = (x.contiguous() for x in (do, q, k, v, levels))
    G = None if G is None else G.contiguous()
    dq, dk, dv, dG, d_levels = _gradients(do, q, k, v, G, levels, position)
    programs, counts, form = _launched(q, v, levels, position)
    taken, given = (None if G is None else levels.new_empty(G.shape) for _ in range(2))
    _log_linear_backward_queries_kernel[(programs,)](do, q, k, v, G, levels, dq, d_levels, taken, *counts, **form)
    _log_linear_backward_keys_kernel[(programs,)](do, q, k, v, G, levels, dk, dv, given, *counts, **form)
    if taken is not None and given is not None:
        dG = (taken - given).to(dG.dtype)
    return dq, dk, dv, dG, d_levels


def _gradients(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, G: Tensor | None, levels: Tensor, position: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, d_levels = (x.new_empty(x.shape) for x in (q, k, v, levels))
    return dq, dk, dv, v.new_empty(len(v), 0) if G is None else G.new_empty(G.shape), d_levels


_log_linear = opaque("log_linear", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1)


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    levels: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    initial_state: LogLinearState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, LogLinearState | None]:
    """The whole sequence. `chunk` has no meaning here."""
    kind, heads = promoted(q, k, v), v.shape[2]
    values = v.float() * scale if beta is None else v.float() * (scale * beta.float())[..., None]
    q, k = (x.expand(-1, -1, heads, -1).to(kind).transpose(1, 2) for x in (q, k))
    values, levels = values.transpose(1, 2), levels.float().transpose(1, 2)
    G_BHT = None if log_decay is None else log_decay.double().cumsum(1).mT
    time, position = v.shape[1], 0 if initial_state is None else initial_state.time
    (o_BHTV,) = _log_linear(q, k, values, G_BHT, levels, position)
    if initial_state is not None:
        o_BHTV = o_BHTV + scale * _read(initial_state, q.float(), G_BHT, levels)
    o = o_BHTV.transpose(1, 2).to(v.dtype)
    if not return_state:
        return o, None
    written = v.float() if beta is None else v.float() * beta.float()[..., None]
    shape = (*q.shape[:2], levels.shape[-1] - 1, q.shape[-1], v.shape[-1])
    begin = start(initial_state, shape, q.float())
    buckets = _behind(begin, k.float(), written.transpose(1, 2), G_BHT)
    return o, LogLinearState(buckets, position + time)


def _place(bucket: int, position: int, number: int, many: int) -> int:
    """Where, of `many` buckets, lies behind `number` tokens what lay in `bucket` behind `position` of them: counting on has
    carried it as far as the highest digit that changed."""
    return max(bucket, min((position ^ number).bit_length(), many) - 1)


def _read(state: LogLinearState, q_BHTK: Tensor, G_BHT: Tensor | None, levels_BHTL: Tensor) -> Tensor:
    """What tokens read of what the state holds [B, H, T, V]."""
    many = state.buckets.shape[2]
    read = [
        [1 + _place(bucket, state.time, number, many) for bucket in range(many)]
        for number in range(state.time, state.time + q_BHTK.shape[2])
    ]
    at_TM = torch.tensor(read, device=q_BHTK.device)
    weights_BHTM = levels_BHTL.gather(-1, at_TM.expand(*levels_BHTL.shape[:-1], many))
    if G_BHT is not None:
        weights_BHTM = weights_BHTM * G_BHT.exp().float()[..., None]
    read_BHMTV = q_BHTK[:, :, None] @ state.buckets.float()
    return (weights_BHTM.mT[..., None] * read_BHMTV).sum(2)


def _behind(state: LogLinearState, k_BHTK: Tensor, v_BHTV: Tensor, G_BHT: Tensor | None) -> Tensor:
    """The buckets [B, H, M, K, V] behind the last token, with what the state held and what was written."""
    time, many = k_BHTK.shape[2], state.buckets.shape[2]
    end = state.time + time
    moved = [_place(bucket, state.time, end, many) for bucket in range(many)]
    of_tokens = [_place(0, number, end, many) for number in range(state.time, end)]
    held = state.buckets.float()
    if G_BHT is not None:
        held = held * G_BHT[..., -1].exp().float()[..., None, None, None]
        k_BHTK = k_BHTK * (G_BHT[..., -1:] - G_BHT).exp().float()[..., None]
    buckets = []
    for bucket in range(many):
        before = [held[:, :, other] for other, place in enumerate(moved) if place == bucket]
        content = torch.stack(before).sum(0) if before else torch.zeros_like(held[:, :, 0])
        if bucket in of_tokens:
            first = of_tokens.index(bucket)
            here = slice(first, first + of_tokens.count(bucket))
            content = content + k_BHTK[:, :, here].mT @ v_BHTV[:, :, here]
        buckets.append(content)
    return torch.stack(buckets, 2)


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where this implementation serves."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    for name in ("key_width", "value_width"):
        if sizes.get(name, 1) > WIDEST:
            return f"takes widths up to {WIDEST}, got {name} {sizes[name]}"
    return None
