"""The linear scan on chip: one launch each way, where a program walks a block of channels through time, tile by tile.

h_t = u_t + x_t,   u_t = a_t h_{t-1},   a_t = e^{g_t}
dx_t = do_t + w_{t+1},   w_t = a_t dx_t,   dg_t = dx_t u_t

A tile is S segments of L tokens. All of its numbers are loaded first. Threads then run through their segments twice, all side
by side: from zero, for what a segment makes of the state ahead of it, and from that state, once a scan over the segments has
told it. The way back makes h anew from x, from the fp32 states ahead of the tiles: not from the outputs, which 16 bits have
rounded.

B batch, T time, C channels, N tiles, S segments, L tokens of a segment; a program has BC channels
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import opaque
from recallmap.arch.kernels.triton_tiles.scan import load_segments, pass_on, store_tokens, tiles_for


@triton.jit
def _decays(log_a, L: tl.constexpr):  # type: ignore[no-untyped-def]
    """The decays of tokens, and that of the whole segment."""
    a = (tl.exp(log_a[0]),)
    whole = a[0]
    for i in tl.static_range(1, L):
        a += (tl.exp(log_a[i]),)  # type: ignore[assignment]
        whole *= a[i]
    return a, whole


@triton.jit(do_not_specialize=["T"])
def _linear_scan_forward_kernel(  # type: ignore[no-untyped-def]
    x, log_a, initial, h, final, ahead, T, C,
    S: tl.constexpr, L: tl.constexpr, BC: tl.constexpr,
    INITIAL: tl.constexpr, FINAL: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(C, BC)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    x, log_a, h = x + b * T * C, log_a + b * T * C, h + b * T * C
    tiles = tl.cdiv(T, S * L)
    state_C = tl.zeros([BC], tl.float32)
    if INITIAL:
        state_C = tl.load(initial + b * C + c, mask=c < C, other=0.0)
    for n in range(0, tiles):
        if AHEAD:
            tl.store(ahead + (b * tiles + n) * C + c, state_C, mask=c < C)
        t_S = (n * S + tl.arange(0, S)) * L
        log_a_LSC, x_LSC = load_segments(log_a, t_S, c, T, C, L), load_segments(x, t_S, c, T, C, L)
        a_LSC, whole_SC = _decays(log_a_LSC, L)
        brought_SC = x_LSC[0]
        for i in tl.static_range(1, L):
            brought_SC = brought_SC * a_LSC[i] + x_LSC[i]
        h_SC, state_C = pass_on(whole_SC, brought_SC, state_C, S, False)
        for i in tl.static_range(L):
            h_SC = h_SC * a_LSC[i] + x_LSC[i]
            store_tokens(h, t_S + i, c, T, C, h_SC)
    if FINAL:  # tokens past the end have left it as it is
        tl.store(final + b * C + c, state_C, mask=c < C)


@triton.jit(do_not_specialize=["T"])
def _linear_scan_backward_kernel(  # type: ignore[no-untyped-def]
    do, dfinal, x, log_a, initial, ahead, dx, dlog_a, dinitial, T, C,
    S: tl.constexpr, L: tl.constexpr, BC: tl.constexpr,
    INITIAL: tl.constexpr, FINAL: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(C, BC)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    at = b * T * C
    do, x, log_a, dx, dlog_a = do + at, x + at, log_a + at, dx + at, dlog_a + at
    tiles = tl.cdiv(T, S * L)
    behind_C = tl.zeros([BC], tl.float32)  # w of the first token behind the tile
    if FINAL:
        behind_C = tl.load(dfinal + b * C + c, mask=c < C, other=0.0)
    state_C = tl.zeros([BC], tl.float32)
    if INITIAL:
        state_C = tl.load(initial + b * C + c, mask=c < C, other=0.0)
    for done in range(0, tiles):
        n = tiles - 1 - done
        if AHEAD:
            state_C = tl.load(ahead + (b * tiles + n) * C + c, mask=c < C, other=0.0)
        t_S = (n * S + tl.arange(0, S)) * L
        log_a_LSC, x_LSC = load_segments(log_a, t_S, c, T, C, L), load_segments(x, t_S, c, T, C, L)
        do_LSC = load_segments(do, t_S, c, T, C, L)
        a_LSC, whole_SC = _decays(log_a_LSC, L)
        brought_SC, back_SC = x_LSC[0], a_LSC[L - 1] * do_LSC[L - 1]
        for i in tl.static_range(1, L):
            brought_SC = brought_SC * a_LSC[i] + x_LSC[i]
            back_SC = (back_SC + do_LSC[L - 1 - i]) * a_LSC[L - 1 - i]
        h_SC, _ = pass_on(whole_SC, brought_SC, state_C, S, False)
        w_SC, behind_C = pass_on(whole_SC, back_SC, behind_C, S, True)
        u_LSC = (a_LSC[0] * h_SC,)
        for i in tl.static_range(1, L):
            u_LSC += (a_LSC[i] * (u_LSC[i - 1] + x_LSC[i - 1]),)  # type: ignore[assignment]
        for i in tl.static_range(L):
            dx_SC = do_LSC[L - 1 - i] + w_SC
            w_SC = a_LSC[L - 1 - i] * dx_SC
            store_tokens(dx, t_S + L - 1 - i, c, T, C, dx_SC)
            store_tokens(dlog_a, t_S + L - 1 - i, c, T, C, dx_SC * u_LSC[L - 1 - i])
    if INITIAL:
        tl.store(dinitial + b * C + c, behind_C, mask=c < C)


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call (fp64); None where it serves."""
    return "computes in fp32 at most, got fp64" if dtype == torch.float64 else None


def _forward(x: Tensor, log_a: Tensor, initial: Tensor | None, final: bool) -> tuple[Tensor, Tensor, Tensor]:
    """h [B, T, C]; the last state [B, C] where it is asked for; where there is more than one tile, the states ahead of each."""
    x, log_a = x.contiguous(), log_a.contiguous()
    initial = None if initial is None else initial.contiguous()
    h, state, ahead = _outputs(x, log_a, initial, final)
    (batch, time, channels), tiles = x.shape, tiles_for(*x.shape)
    _linear_scan_forward_kernel[(batch * triton.cdiv(channels, tiles.channels),)](
        x, log_a, x if initial is None else initial, h, state, ahead, time, channels,
        **tiles.launched(), INITIAL=initial is not None, FINAL=final, AHEAD=time > tiles.tokens,
    )  # fmt: skip
    return h, state, ahead


def _outputs(x: Tensor, log_a: Tensor, initial: Tensor | None, final: bool) -> tuple[Tensor, Tensor, Tensor]:
    (batch, time, channels), tokens = x.shape, tiles_for(*x.shape).tokens
    many = time > tokens
    return (
        x.new_empty(x.shape),
        x.new_empty(batch, channels if final else 0, dtype=torch.float32),
        x.new_empty(batch, triton.cdiv(time, tokens) if many else 0, channels, dtype=torch.float32),
    )


def _backward(
    do: Tensor, dfinal: Tensor, x: Tensor, log_a: Tensor, initial: Tensor | None, final: bool, ahead: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    do, dfinal, x, log_a = do.contiguous(), dfinal.contiguous(), x.contiguous(), log_a.contiguous()
    initial = None if initial is None else initial.contiguous()
    dx, dlog_a, dinitial = _gradients(do, dfinal, x, log_a, initial, final, ahead)
    (batch, time, channels), tiles = x.shape, tiles_for(*x.shape)
    _linear_scan_backward_kernel[(batch * triton.cdiv(channels, tiles.channels),)](
        do, dfinal, x, log_a, x if initial is None else initial, ahead, dx, dlog_a, dinitial, time, channels,
        **tiles.launched(), INITIAL=initial is not None, FINAL=final, AHEAD=time > tiles.tokens,
    )  # fmt: skip
    return dx, dlog_a, dinitial


def _gradients(
    do: Tensor, dfinal: Tensor, x: Tensor, log_a: Tensor, initial: Tensor | None, final: bool, ahead: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape),
        log_a.new_empty(log_a.shape),
        x.new_empty(x.shape[0], 0) if initial is None else initial.new_empty(initial.shape),
    )


_linear_scan = opaque("linear_scan", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=2)


def fused(
    x: Tensor, *, log_a: Tensor, initial_state: Tensor | None, return_state: bool, chunk: int | None
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence; `chunk` has no meaning here. Log decays and states are fp32."""
    batch, time, *channels = x.shape
    width = math.prod(channels)
    initial = None if initial_state is None else initial_state.reshape(batch, width).float()
    h, final, _ = _linear_scan(x.reshape(batch, time, width), log_a.reshape(batch, time, width), initial, return_state)
    return h.reshape(x.shape), final.reshape(batch, *channels) if return_state else None
