"""The selective scan on chip: one launch each way, where a program walks a block of channels through time, states in registers.

h_t = a_t * h_{t-1} + x_t k_t,   x_t = s_t v_t,   o_t = q_t . h_t,   a_t = e^{-s_t A} or 1 - s_t k_t^2
g_t = do_t q_t + a_{t+1} * g_{t+1},   dq_t = sum_V do_t h_t,   dx_t = g_t . k_t,   da_t = g_t * h_{t-1}

Numbers of a tile of L tokens are loaded all at once. The way back makes the states of a tile anew, from the one ahead of it,
which the way forth has left. Channels share keys and queries. A thread adds up what its own bring to dk and dq, a program its
threads once a tile, because they wait for each other there, and torch the programs.

B batch, P groups of members (rates [P, H, V, N]), T time, H heads, V channels of a head, N state width, M tiles of L tokens;
a program has BV channels of a head
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import opaque, packed
from recallmap.arch.kernels.selective_scan.recurrent import MOST_ERASED

WIDEST = 256
TOKENS = 8  # of a tile


@triton.jit
def _load(at, t, T, stride, column, inside, L: tl.constexpr):  # type: ignore[no-untyped-def]
    """L times [columns] in fp32: one token after the other. Zeros outside, which fade and bring nothing."""
    x = (tl.load(at + t * stride + column, mask=inside & (t < T), other=0.0).to(tl.float32),)
    for i in tl.static_range(1, L):
        x += (tl.load(at + (t + i) * stride + column, mask=inside & (t + i < T), other=0.0).to(tl.float32),)  # type: ignore[assignment]
    return x


@triton.jit
def _zeros(at, entry_VN, T):  # type: ignore[no-untyped-def]
    """As if loaded: what is loaded decides how threads share states, some neighbours of one channel each."""
    return tl.load(at + entry_VN, mask=entry_VN < tl.minimum(T, 0), other=0.0)


@triton.jit
def _decay(s_V, k_XN, rate_VN, most, RATES: tl.constexpr):  # type: ignore[no-untyped-def]
    """[BV, N]; keys in one row or as many, rates in units of -ln 2. Nobody tells whether what
    fades by less than e^-30 is bounded there."""
    if RATES:
        a_VN = tl.exp2(s_V[:, None] * rate_VN)
    else:
        a_VN = 1 - tl.minimum(s_V[:, None] * (k_XN * k_XN), most)
    return a_VN


@triton.jit(do_not_specialize=["T", "H", "per_group"])
def _selective_scan_forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, step, rate, initial, o, final, ahead, T, H, V, per_group, most,
    N: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr, L: tl.constexpr, RATES: tl.constexpr, FINAL: tl.constexpr,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(V, BV)
    h = tl.program_id(0) // blocks % H
    b = (tl.program_id(0) // blocks // H).to(tl.int64)
    c, n = tl.program_id(0) % blocks * BV + tl.arange(0, BV), tl.arange(0, BN)
    some_V, some_N = c < V, n < N
    entry_VN, some_VN = c[:, None] * N + n[None, :], some_V[:, None] & some_N[None, :]
    keys = b * T * H + h
    q, k, v, step, o = q + keys * N, k + keys * N, v + keys * V, step + keys * V, o + keys * V
    states = (b * H + h) * V * N
    tiles = tl.cdiv(T, L)
    ahead += (b * H + h) * tiles * V * N
    rate_VN = tl.zeros([BV, BN], tl.float32)
    if RATES:
        rate_VN = _rates(rate + (b // per_group * H + h) * V * N + entry_VN, some_VN)
    if initial is not None:
        state_VN = tl.load(initial + states + entry_VN, mask=some_VN, other=0.0).to(tl.float32)
    else:
        state_VN = _zeros(ahead, entry_VN, T)
    q_LN, k_LN = _load(q, 0, T, H * N, n, some_N, L), _load(k, 0, T, H * N, n, some_N, L)
    v_LV, s_LV = _load(v, 0, T, H * V, c, some_V, L), _load(step, 0, T, H * V, c, some_V, L)
    for tile in range(0, tiles):
        t = tile * L
        tl.store(ahead + tile * V * N + entry_VN, state_VN, mask=some_VN)
        q2, k2 = _load(q, t + L, T, H * N, n, some_N, L), _load(k, t + L, T, H * N, n, some_N, L)
        v2, s2 = _load(v, t + L, T, H * V, c, some_V, L), _load(step, t + L, T, H * V, c, some_V, L)
        for i in tl.static_range(L):
            a_VN = _decay(s_LV[i], k_LN[i][None, :], rate_VN, most, RATES)
            state_VN = a_VN * state_VN + (s_LV[i] * v_LV[i])[:, None] * k_LN[i][None, :]
            o_V = tl.sum(state_VN * q_LN[i][None, :], 1)
            if not AT_ONCE:
                tl.store(o + (t + i) * H * V + c, o_V.to(o.dtype.element_ty), mask=some_V & (t + i < T))
            elif i == 0:
                o_LV = (o_V,)
            else:
                o_LV += (o_V,)  # type: ignore[assignment]
        if AT_ONCE:
            _store_tokens(o, o_LV, t, T, H * V, c, some_V, L)
        q_LN, k_LN, v_LV, s_LV = q2, k2, v2, s2
    if FINAL:
        tl.store(final + states + entry_VN, state_VN, mask=some_VN)


@triton.jit
def _joined(x):  # type: ignore[no-untyped-def]
    """Eight tiles side by side, along axes of two behind their own."""
    even, odd = tl.join(tl.join(x[0], x[4]), tl.join(x[2], x[6])), tl.join(tl.join(x[1], x[5]), tl.join(x[3], x[7]))
    return tl.join(even, odd)


@triton.jit
def _store_tokens(at, x_LC, t, T, stride, c, some_C, L: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store vectors [C] of eight tokens at once: where threads hand on what they hold, they wait for each other."""
    t_L = t + tl.arange(0, L)
    x_CL = tl.reshape(_joined(x_LC), (x_LC[0].shape[0], L)).to(at.dtype.element_ty)
    tl.store(at + t_L[None, :] * stride + c[:, None], x_CL, mask=some_C[:, None] & (t_L < T)[None, :])


@triton.jit
def _load_rows(at, t, T, stride, n, N, c, V, L: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def]
    """L rows in fp32: [1, N], which threads hand on to each other (SHARED); or the same for each channel [C, N], where a thread
    loads what it needs, and waits for none."""
    if SHARED:
        x_LN = _load(at, t, T, stride, n, n < N, L)
        x = (x_LN[0][None, :],)
        for i in tl.static_range(1, L):
            x += (x_LN[i][None, :],)  # type: ignore[assignment]
    else:
        at_CN, some_CN = at + n[None, :] + 0 * c[:, None], (c < V)[:, None] & (n < N)[None, :]
        x = _load(at_CN, t, T, stride, 0, some_CN, L)
    return x


@triton.jit
def _channels_backward(  # type: ignore[no-untyped-def]
    g_CN, drate_CN, dq_LCN, dk_LCN, rate_CN, do, q, k, v, step, dv, dstep, ahead, t, T, key_stride, stride, c, V, n, most,
    N: tl.constexpr, L: tl.constexpr, RATES: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """A tile of some channels: derivatives by the state ahead of it and by rates; and dq and dk of each token, summed up over
    channels where these are all (SUM), or else added to what others have brought."""
    some_C = c < V
    entry_CN, some_CN = c[:, None] * N + n[None, :], some_C[:, None] & (n < N)[None, :]
    h_LCN = (tl.load(ahead + entry_CN, mask=some_CN, other=0.0),)
    s_LC, v_LC = _load(step, t, T, stride, c, some_C, L), _load(v, t, T, stride, c, some_C, L)
    k_LCN = _load_rows(k, t, T, key_stride, n, N, c, V, L, SUM)
    q_LCN, do_LC = _load_rows(q, t, T, key_stride, n, N, c, V, L, SUM), _load(do, t, T, stride, c, some_C, L)
    for i in tl.static_range(L):
        a_CN = _decay(s_LC[i], k_LCN[i], rate_CN, most, RATES)
        h_LCN += (a_CN * h_LCN[i] + (s_LC[i] * v_LC[i])[:, None] * k_LCN[i],)  # type: ignore[assignment]
    new_dq = (_brought(dq_LCN[0], do_LC[0][:, None] * h_LCN[1], SUM),)  # type: ignore[misc]
    for i in tl.static_range(1, L):
        new_dq += (_brought(dq_LCN[i], do_LC[i][:, None] * h_LCN[i + 1], SUM),)  # type: ignore[assignment]
    last = tl.sum(g_CN, 1)  # behind all tokens of a tuple, and of no use
    new_dk, dx_LC, ds_LC = (new_dq[0],), (last,), (last,)
    for i in tl.static_range(L - 1, -1, -1):
        s_C, v_C, k_CN = s_LC[i], v_LC[i], k_LCN[i]
        g_CN += do_LC[i][:, None] * q_LCN[i]
        dx_C = tl.sum(g_CN * k_CN, 1)
        dk_CN = g_CN * (s_C * v_C)[:, None]
        da_CN = g_CN * h_LCN[i]
        a_CN = _decay(s_C, k_CN, rate_CN, most, RATES)
        g_CN *= a_CN
        if RATES:
            fading_CN = da_CN * a_CN  # by -s A
            drate_CN -= fading_CN * s_C[:, None]
            ds_C = tl.sum(fading_CN * rate_CN, 1) * 0.6931471805599453
        else:
            square_CN = k_CN * k_CN
            erased_CN = tl.where(s_C[:, None] * square_CN <= most, da_CN, 0.0)  # by -s k^2
            ds_C = -tl.sum(erased_CN * square_CN, 1)
            dk_CN -= 2 * erased_CN * s_C[:, None] * k_CN
        # Triton knows no stars.
        new_dk = (_brought(dk_LCN[i], dk_CN, SUM),) + new_dk  # type: ignore[assignment] # noqa: RUF005
        dx_LC = (dx_C * s_C,) + dx_LC  # type: ignore[assignment] # noqa: RUF005
        ds_LC = (ds_C + dx_C * v_C,) + ds_LC  # type: ignore[assignment] # noqa: RUF005
    _store_tokens(dv, dx_LC, t, T, stride, c, some_C, L)
    _store_tokens(dstep, ds_LC, t, T, stride, c, some_C, L)
    return g_CN, drate_CN, new_dq, _first(new_dk, L)


@triton.jit
def _brought(before_CN, x_CN, SUM: tl.constexpr):  # type: ignore[no-untyped-def]
    """[N] or [C, N]."""
    if SUM:
        x = tl.sum(x_CN, 0)
    else:
        x = before_CN + x_CN
    return x


@triton.jit
def _first(x, L: tl.constexpr):  # type: ignore[no-untyped-def]
    y = (x[0],)
    for i in tl.static_range(1, L):
        y += (x[i],)  # type: ignore[assignment]
    return y


@triton.jit
def _sums_over_channels(x_LCN, L: tl.constexpr):  # type: ignore[no-untyped-def]
    """L vectors [N], one after the other: sums of several tokens at once are bank conflicts in shared memory."""
    y = (tl.sum(x_LCN[0], 0),)
    for i in tl.static_range(1, L):
        y += (tl.sum(x_LCN[i], 0),)  # type: ignore[assignment]
    return y


@triton.jit(do_not_specialize=["T", "H", "per_group"])
def _selective_scan_backward_kernel(  # type: ignore[no-untyped-def]
    do, dfinal, q, k, v, step, rate, ahead, dq, dk, dv, dstep, drate, dinitial, T, H, V, per_group, most,
    N: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr, PARTS: tl.constexpr, L: tl.constexpr, RATES: tl.constexpr,
    FINAL: tl.constexpr,
):  # fmt: skip
    """A program has PARTS times BV channels. Where there are several parts, a tile goes through one after the other, and
    derivatives by states and rates lie in memory from tile to tile."""
    blocks = tl.cdiv(V, BV * PARTS)
    block = tl.program_id(0) % blocks
    h = tl.program_id(0) // blocks % H
    b = (tl.program_id(0) // blocks // H).to(tl.int64)
    n, some_N = tl.arange(0, BN), tl.arange(0, BN) < N
    keys = b * T * H + h
    q, k = q + keys * N, k + keys * N
    dq, dk = dq + (keys * blocks + block) * N, dk + (keys * blocks + block) * N
    do, v, step, dv, dstep = do + keys * V, v + keys * V, step + keys * V, dv + keys * V, dstep + keys * V
    states = (b * H + h) * V * N
    tiles = tl.cdiv(T, L)
    ahead += (b * H + h) * tiles * V * N
    rates = (b // per_group * H + h) * V * N
    entry_CN, some_CN = _entries(block * PARTS, n, V, BV, N)
    zeros_CN = _zeros(ahead, entry_CN, T)
    rate_CN, g_CN, drate_CN = zeros_CN, zeros_CN, zeros_CN
    if PARTS == 1:
        if RATES:
            rate_CN = _rates(rate + rates + entry_CN, some_CN)
        if FINAL:
            g_CN = tl.load(dfinal + states + entry_CN, mask=some_CN, other=0.0).to(tl.float32)
    elif FINAL:
        for part in range(PARTS):
            entry_CN, some_CN = _entries(block * PARTS + part, n, V, BV, N)
            x_CN = tl.load(dfinal + states + entry_CN, mask=some_CN, other=0.0)
            tl.store(dinitial + states + entry_CN, x_CN.to(tl.float32), mask=some_CN)
    for done in range(0, tiles):
        tile = tiles - 1 - done
        t = tile * L
        none = tl.sum(zeros_CN, 0) if PARTS == 1 else zeros_CN
        dqs = (none,)
        for _ in tl.static_range(1, L):
            dqs += (none,)  # type: ignore[assignment]
        dks = dqs
        for part in range(PARTS):
            c = (block * PARTS + part) * BV + tl.arange(0, BV)
            if PARTS > 1:
                tl.debug_barrier()  # what other threads may have stored is read here
                entry_CN, some_CN = _entries(block * PARTS + part, n, V, BV, N)
                g_CN = tl.load(dinitial + states + entry_CN, mask=some_CN & (FINAL | (done > 0)), other=0.0)
                if RATES:
                    rate_CN = _rates(rate + rates + entry_CN, some_CN)
                    drate_CN = tl.load(drate + states + entry_CN, mask=some_CN & (done > 0), other=0.0)
            g_CN, drate_CN, dqs, dks = _channels_backward(
                g_CN, drate_CN, dqs, dks, rate_CN, do, q, k, v, step, dv, dstep, ahead + tile * V * N, t, T, H * N, H * V,
                c, V, n, most, N, L, RATES, PARTS == 1,
            )  # fmt: skip
            if PARTS > 1:
                tl.store(dinitial + states + entry_CN, g_CN, mask=some_CN)
                if RATES:
                    tl.store(drate + states + entry_CN, drate_CN, mask=some_CN)
        if PARTS > 1:
            dqs, dks = _sums_over_channels(dqs, L), _sums_over_channels(dks, L)
        _store_tokens(dq, dqs, t, T, H * blocks * N, n, some_N, L)
        _store_tokens(dk, dks, t, T, H * blocks * N, n, some_N, L)
    if PARTS == 1:
        if RATES:
            tl.store(drate + states + entry_CN, drate_CN, mask=some_CN)
        if dinitial is not None:
            tl.store(dinitial + states + entry_CN, g_CN, mask=some_CN)


@triton.jit
def _entries(part, n, V, BV: tl.constexpr, N: tl.constexpr):  # type: ignore[no-untyped-def]
    """Places of the numbers [C, N] of a part of the channels, and which there are."""
    c = part * BV + tl.arange(0, BV)
    return c[:, None] * N + n[None, :], (c < V)[:, None] & (n < N)[None, :]


@triton.jit
def _rates(at_CN, some_CN):  # type: ignore[no-untyped-def]
    """In units of -ln 2."""
    return tl.load(at_CN, mask=some_CN, other=0.0).to(tl.float32) * -1.4426950408889634


class Tiles(NamedTuple):
    """Channels and warps of a program forward; backward channels at a time, how many times, and warps."""

    forward_channels: int
    forward_warps: int
    backward_channels: int
    backward_parts: int
    backward_warps: int


def _tiles_for(width: int, channels: int, heads: int) -> Tiles:
    """Of `channels` a head, in so many heads of all sequences. Four numbers of the state a thread where eight warps can hold
    them, one warp where that holds eight channels. Backward, narrow states take one part of as many channels as leave enough
    warps, wide ones two warps and as many parts."""
    padded = _padded(width)
    forward = max(8, 128 // padded)
    warps = min(8, forward * padded // 128)
    if padded <= 16:
        abreast = 128 // padded * (2 if heads * channels * padded >= 2**17 else 1)
        return Tiles(forward, warps, abreast, 1, 1)
    abreast = max(1, 256 // padded)
    blocks = triton.cdiv(channels, abreast)
    return Tiles(forward, warps, abreast, max(1, min(4, blocks, heads * blocks // 256)), 2)


def _tiles_of(q: Tensor, v: Tensor) -> Tiles:
    return _tiles_for(q.shape[-1], v.shape[-1], v.shape[0] * v.shape[2])


def _padded(width: int) -> int:
    return max(4, 1 << (width - 1).bit_length())


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call (fp64, states of more than 256 numbers a channel); None where it serves."""
    if dtype == torch.float64:
        return "computes in fp32 at most, got fp64"
    width = sizes.get("key_width", 1)
    return f"holds states of at most {WIDEST} numbers a channel, got {width}" if width > WIDEST else None


def _forward(
    q: Tensor, k: Tensor, v: Tensor, step: Tensor, rate: Tensor | None, initial: Tensor | None, final: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """o [B, T, H, V]; the last state [B, H, V, N] where it is asked for; and those ahead of every tile [B, H, M, V, N]."""
    q, k, v, step = q.contiguous(), k.contiguous(), v.contiguous(), step.contiguous()
    rate, initial = packed(rate), packed(initial)
    o, last, ahead = _outputs(q, k, v, step, rate, initial, final)
    (batch, time, heads, channels), table = v.shape, _tiles_of(q, v)
    _selective_scan_forward_kernel[(batch * heads * triton.cdiv(channels, table.forward_channels),)](
        q, k, v, step, rate, initial, o, last, ahead, time, heads, channels, *_constants(batch, rate),
        **_form(q, rate, final), BV=table.forward_channels, AT_ONCE=table.forward_warps > 1,
        num_warps=table.forward_warps,
    )  # fmt: skip
    return o, last, ahead


def _outputs(
    q: Tensor, k: Tensor, v: Tensor, step: Tensor, rate: Tensor | None, initial: Tensor | None, final: bool
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, time, heads, channels), width = v.shape, q.shape[-1]
    tiles = triton.cdiv(time, TOKENS)
    return (
        v.new_empty(v.shape),
        v.new_empty(batch, heads if final else 0, channels, width, dtype=torch.float32),
        v.new_empty(batch, heads, tiles, channels, width, dtype=torch.float32),
    )


def _backward(
    do: Tensor,
    dfinal: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: Tensor,
    rate: Tensor | None,
    initial: Tensor | None,
    final: bool,
    ahead: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    do, dfinal, q, k = do.contiguous(), dfinal.contiguous(), q.contiguous(), k.contiguous()
    v, step, rate = v.contiguous(), step.contiguous(), packed(rate)
    _, _, dv, dstep, drate, dinitial = _gradients(do, dfinal, q, k, v, step, rate, initial, final, ahead)
    (batch, time, heads, channels), width, table = v.shape, q.shape[-1], _tiles_of(q, v)
    blocks = triton.cdiv(channels, table.backward_channels * table.backward_parts)
    dq, dk = (v.new_empty(batch, time, heads, blocks, width, dtype=torch.float32) for _ in "qk")
    by_rate = None if rate is None else v.new_empty(batch, heads, channels, width, dtype=torch.float32)
    by_state = None if initial is None else dinitial
    if by_state is None and table.backward_parts > 1:
        by_state = v.new_empty(batch, heads, channels, width, dtype=torch.float32)
    _selective_scan_backward_kernel[(batch * heads * blocks,)](
        do, dfinal, q, k, v, step, rate, ahead, dq, dk, dv, dstep, by_rate, by_state,
        time, heads, channels, *_constants(batch, rate),
        **_form(q, rate, final), BV=table.backward_channels, PARTS=table.backward_parts,
        num_warps=table.backward_warps,
    )  # fmt: skip
    if rate is not None and by_rate is not None:
        drate = by_rate.view(rate.shape[0], -1, *rate.shape[1:]).sum(1).to(rate.dtype)
    return dq.sum(3).to(q.dtype), dk.sum(3).to(k.dtype), dv, dstep, drate, dinitial


def _gradients(
    do: Tensor,
    dfinal: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: Tensor,
    rate: Tensor | None,
    initial: Tensor | None,
    final: bool,
    ahead: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
        step.new_empty(step.shape),
        v.new_empty(v.shape[0]) if rate is None else rate.new_empty(rate.shape),
        v.new_empty(v.shape[0]) if initial is None else initial.new_empty(initial.shape),
    )


def _constants(batch: int, rate: Tensor | None) -> tuple[int, float]:
    """Sequences a group of rates, and the most that may be erased."""
    return batch // (1 if rate is None else len(rate)), MOST_ERASED


def _form(q: Tensor, rate: Tensor | None, final: bool) -> dict[str, int]:
    """The constants of compilation."""
    width = q.shape[-1]
    sizes = {"N": width, "BN": _padded(width), "L": TOKENS, "num_stages": 1}
    return sizes | {"RATES": rate is not None, "FINAL": final}


_selective_scan = opaque(
    "selective_scan", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=2
)


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    step: Tensor,
    rate: Tensor | None,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence; `chunk` has no meaning here. Steps, rates and states are fp32."""
    batch, time, heads, channels = v.shape
    groups, width = q.shape[2:]  # where all heads share their keys, all channels are those of one
    form = (batch, time, groups, heads * channels // groups)
    o, final, _ = _selective_scan(
        q,
        k,
        v.reshape(form),
        step.reshape(form).float(),
        None if rate is None else rate.reshape(1, *form[2:], width).float(),
        None if initial_state is None else initial_state.reshape(batch, *form[2:], width).float(),
        return_state,
    )
    return o.reshape(v.shape), final.reshape(batch, heads, channels, width) if return_state else None
