"""The selective scan on chip: one launch each way, where a program walks a block of channels through time, states in registers.

h_t = a_t * h_{t-1} + x_t k_t,   x_t = s_t v_t,   o_t = q_t . h_t,   a_t = e^{-s_t A} or 1 - s_t k_t^2
g_t = do_t q_t + a_{t+1} * g_{t+1},   dq_t = sum_V do_t h_t,   dx_t = g_t . k_t,   da_t = g_t * h_{t-1}

Numbers of a tile of L tokens are loaded all at once. The way back makes the states of a tile anew, from the one ahead of it,
which the way forth has left. Channels share keys and queries, so every program has but a part of dk and dq: torch sums them up.

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
def _decay(s_V, k_N, rate_VN, most, RATES: tl.constexpr):  # type: ignore[no-untyped-def]
    """[BV, N]; rates in units of -ln 2. Nobody tells whether what fades by less than e^-30 is bounded there."""
    if RATES:
        a_VN = tl.exp2(s_V[:, None] * rate_VN)
    else:
        a_VN = 1 - tl.minimum(s_V[:, None] * (k_N * k_N)[None, :], most)
    return a_VN


@triton.jit(do_not_specialize=["T", "H", "per_group"])
def _selective_scan_forward_kernel(  # type: ignore[no-untyped-def]
    q, k, v, step, rate, initial, o, final, ahead, T, H, V, per_group, most,
    N: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr, L: tl.constexpr, RATES: tl.constexpr, FINAL: tl.constexpr,
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
        rate_VN = tl.load(rate + (b // per_group * H + h) * V * N + entry_VN, mask=some_VN, other=0.0)
        rate_VN = rate_VN.to(tl.float32) * -1.4426950408889634
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
            a_VN = _decay(s_LV[i], k_LN[i], rate_VN, most, RATES)
            state_VN = a_VN * state_VN + (s_LV[i] * v_LV[i])[:, None] * k_LN[i][None, :]
            o_V = tl.sum(state_VN * q_LN[i][None, :], 1)
            tl.store(o + (t + i) * H * V + c, o_V.to(o.dtype.element_ty), mask=some_V & (t + i < T))
        q_LN, k_LN, v_LV, s_LV = q2, k2, v2, s2
    if FINAL:
        tl.store(final + states + entry_VN, state_VN, mask=some_VN)


@triton.jit(do_not_specialize=["T", "H", "per_group"])
def _selective_scan_backward_kernel(  # type: ignore[no-untyped-def]
    do, dfinal, q, k, v, step, rate, ahead, dq, dk, dv, dstep, drate, dinitial, T, H, V, per_group, most,
    N: tl.constexpr, BN: tl.constexpr, BV: tl.constexpr, L: tl.constexpr, RATES: tl.constexpr, FINAL: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(V, BV)
    block = tl.program_id(0) % blocks
    h = tl.program_id(0) // blocks % H
    b = (tl.program_id(0) // blocks // H).to(tl.int64)
    c, n = block * BV + tl.arange(0, BV), tl.arange(0, BN)
    some_V, some_N = c < V, n < N
    entry_VN, some_VN = c[:, None] * N + n[None, :], some_V[:, None] & some_N[None, :]
    keys = b * T * H + h
    q, k = q + keys * N, k + keys * N
    dq, dk = dq + (keys * blocks + block) * N, dk + (keys * blocks + block) * N
    do, v, step, dv, dstep = do + keys * V, v + keys * V, step + keys * V, dv + keys * V, dstep + keys * V
    states = (b * H + h) * V * N
    tiles = tl.cdiv(T, L)
    ahead += (b * H + h) * tiles * V * N
    rate_VN = tl.zeros([BV, BN], tl.float32)
    if RATES:
        rate_VN = tl.load(rate + (b // per_group * H + h) * V * N + entry_VN, mask=some_VN, other=0.0)
        rate_VN = rate_VN.to(tl.float32) * -1.4426950408889634
    if FINAL:
        g_VN = tl.load(dfinal + states + entry_VN, mask=some_VN, other=0.0).to(tl.float32)
    else:
        g_VN = _zeros(ahead, entry_VN, T)
    drate_VN = tl.zeros([BV, BN], tl.float32)
    HALF: tl.constexpr = L // 2
    for done in range(0, tiles):
        tile = tiles - 1 - done
        t = tile * L
        state_VN = tl.load(ahead + tile * V * N + entry_VN, mask=some_VN, other=0.0)
        k_LN, s_LV = _load(k, t, T, H * N, n, some_N, L), _load(step, t, T, H * V, c, some_V, L)
        v_LV = _load(v, t, T, H * V, c, some_V, L)
        q_LN, do_LV = _load(q, t + HALF, T, H * N, n, some_N, HALF), _load(do, t + HALF, T, H * V, c, some_V, HALF)
        h_LVN = (state_VN,)
        a_LVN = (_decay(s_LV[0], k_LN[0], rate_VN, most, RATES),)
        for i in tl.static_range(L):
            if i > 0:
                a_LVN += (_decay(s_LV[i], k_LN[i], rate_VN, most, RATES),)  # type: ignore[assignment]
            h_LVN += (a_LVN[i] * h_LVN[i] + (s_LV[i] * v_LV[i])[:, None] * k_LN[i][None, :],)  # type: ignore
        for i in tl.static_range(L - 1, -1, -1):
            if i == L - 2:  # no sooner, for registers are scarce
                q2_LN, do2_LV = _load(q, t, T, H * N, n, some_N, HALF), _load(do, t, T, H * V, c, some_V, HALF)
            if i == HALF - 1:
                q_LN, do_LV = q2_LN, do2_LV
            k_N, s_V, v_V, do_V = k_LN[i], s_LV[i], v_LV[i], do_LV[i % HALF]
            there = t + i < T
            dq_N = tl.sum(do_V[:, None] * h_LVN[i + 1], 0)
            tl.store(dq + (t + i) * H * blocks * N + n, dq_N, mask=some_N & there)
            g_VN += do_V[:, None] * q_LN[i % HALF][None, :]
            dx_V = tl.sum(g_VN * k_N[None, :], 1)
            dk_VN = g_VN * (s_V * v_V)[:, None]
            da_VN = g_VN * h_LVN[i]
            g_VN *= a_LVN[i]
            if RATES:
                fading_VN = da_VN * a_LVN[i]  # by -s A
                drate_VN -= fading_VN * s_V[:, None]
                ds_V = tl.sum(fading_VN * rate_VN, 1) * 0.6931471805599453
            else:
                square_N = k_N * k_N
                erased_VN = tl.where(s_V[:, None] * square_N[None, :] <= most, da_VN, 0.0)  # by -s k^2
                ds_V = -tl.sum(erased_VN * square_N[None, :], 1)
                dk_VN -= 2 * erased_VN * s_V[:, None] * k_N[None, :]
            ds_V += dx_V * v_V
            tl.store(dk + (t + i) * H * blocks * N + n, tl.sum(dk_VN, 0), mask=some_N & there)
            tl.store(dv + (t + i) * H * V + c, (dx_V * s_V).to(dv.dtype.element_ty), mask=some_V & there)
            tl.store(dstep + (t + i) * H * V + c, ds_V.to(dstep.dtype.element_ty), mask=some_V & there)
    if RATES:
        tl.store(drate + states + entry_VN, drate_VN, mask=some_VN)
    if dinitial is not None:
        tl.store(dinitial + states + entry_VN, g_VN, mask=some_VN)


class Tiles(NamedTuple):
    """Channels and warps of a program each way; tokens of a tile, which both ways share."""

    forward_channels: int
    forward_warps: int
    backward_channels: int
    backward_warps: int
    tokens: int


def _table(width: int, rates: bool) -> Tiles:
    """Four numbers of the state a thread where eight warps can hold them, one warp where that holds eight channels. Twice as
    many on the way back with rates, which takes fewer registers then without."""
    padded = _padded(width)
    channels = max(8, 128 // padded)
    warps = min(8, channels * padded // 128)
    return Tiles(channels, warps, channels * (2 if rates and padded < WIDEST else 1), warps, 8)


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
    (batch, time, heads, channels), table = v.shape, _table(q.shape[-1], rate is not None)
    _selective_scan_forward_kernel[(batch * heads * triton.cdiv(channels, table.forward_channels),)](
        q, k, v, step, rate, initial, o, last, ahead, time, heads, channels, *_constants(batch, rate),
        **_form(q, rate, final), BV=table.forward_channels, num_warps=table.forward_warps,
    )  # fmt: skip
    return o, last, ahead


def _outputs(
    q: Tensor, k: Tensor, v: Tensor, step: Tensor, rate: Tensor | None, initial: Tensor | None, final: bool
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, time, heads, channels), width = v.shape, q.shape[-1]
    tiles = triton.cdiv(time, _table(width, rate is not None).tokens)
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
    (batch, time, heads, channels), width, table = v.shape, q.shape[-1], _table(q.shape[-1], rate is not None)
    blocks = triton.cdiv(channels, table.backward_channels)
    dq, dk = (v.new_empty(batch, time, heads, blocks, width, dtype=torch.float32) for _ in "qk")
    by_rate = None if rate is None else v.new_empty(batch, heads, channels, width, dtype=torch.float32)
    _selective_scan_backward_kernel[(batch * heads * blocks,)](
        do, dfinal, q, k, v, step, rate, ahead, dq, dk, dv, dstep, by_rate, None if initial is None else dinitial,
        time, heads, channels, *_constants(batch, rate),
        **_form(q, rate, final), BV=table.backward_channels, num_warps=table.backward_warps,
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
    sizes = {"N": width, "BN": _padded(width), "L": _table(width, rate is not None).tokens, "num_stages": 1}
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
