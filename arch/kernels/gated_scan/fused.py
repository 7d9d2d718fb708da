"""The gated scan on chip: one launch each way, with the gates made anew on the way back. Tiles are those of triton_tiles.scan.

h_t = u_t + m_t e_t x_t,   u_t = a_t h_{t-1},   a_t = e^{g_t},   g_t = -8 p_t softplus(L),   m_t = sqrt(1 - a_t^2)
p_t = sigmoid(r_t),   e_t = sigmoid(i_t),   and m_1 = 1 where no token was ahead
d_t = do_t + a_{t+1} d_{t+1},   dx_t = d_t m_t e_t,   de_t = d_t m_t x_t,   dg_t = d_t u_t - d_t e_t x_t a_t^2 / m_t

B batch, P groups of members (rates [P, C]), T time, C channels, N tiles, S segments, L tokens of a segment; a program has BC
channels
"""

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.gated_scan.recurrent import STEEPEST, STRENGTH
from recallmap.arch.kernels.op_interface.custom_op import opaque
from recallmap.arch.kernels.triton_tiles.scan import Tiles, load_segments, pass_on, store_tokens, tiles_for

_STRENGTH = tl.constexpr(STRENGTH)
_LEAST = tl.constexpr(0.25 / STEEPEST**2)  # under the root, where slopes are taken


@triton.jit
def _strength(rate_C):  # type: ignore[no-untyped-def]
    """8 softplus(L); ln(1 + z) by its series in z / (2 + z), which keeps the digits of a small z."""
    z = tl.exp(-tl.abs(rate_C))
    s = z / (2 + z)
    square = s * s
    series = 1.0 / 15
    for k in tl.static_range(6, -1, -1):
        series = series * square + 1.0 / (2 * k + 1)
    return _STRENGTH * (tl.maximum(rate_C, 0.0) + 2 * s * series)


@triton.jit
def _space(g, a):  # type: ignore[no-untyped-def]
    """1 - a^2; near a = 1 by its series, which keeps the digits."""
    y = 2 * g
    series = 1 / 5040 + y * (1 / 40320)  # of (e^y - 1) / y
    series = 1 / 120 + y * (1 / 720 + y * series)
    series = 1 / 6 + y * (1 / 24 + y * series)
    series = 1 + y * (1 / 2 + y * series)
    return tl.where(y > -0.5, -y * series, 1 - a * a)


@triton.jit
def _gates(r, i, x, t_S, T, strength_C, FIRST: tl.constexpr):  # type: ignore[no-untyped-def]
    """p, a, 1 - a^2, m, e and m e x of a token a segment; outside it fades and brings nothing."""
    p = tl.where((t_S < T)[:, None], tl.sigmoid(r), 0.0)
    g = -p * strength_C[None, :]
    a = tl.exp(g)
    space = _space(g, a)
    m = tl.sqrt(space)
    if FIRST:
        m = tl.where((t_S == 0)[:, None], 1.0, m)
    e = tl.sigmoid(i)
    return p, a, space, m, e, m * e * x


@triton.jit(do_not_specialize=["T", "per_group"])
def _gated_scan_forward_kernel(  # type: ignore[no-untyped-def]
    x, r, i, rate, initial, h, final, ahead, T, C, per_group,
    S: tl.constexpr, L: tl.constexpr, BC: tl.constexpr, FINAL: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    FIRST: tl.constexpr = initial is None
    blocks = tl.cdiv(C, BC)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    at = b * T * C
    x, r, i, h = x + at, r + at, i + at, h + at
    tiles = tl.cdiv(T, S * L)
    strength_C = _strength(tl.load(rate + b // per_group * C + c, mask=c < C, other=0.0).to(tl.float32))
    state_C = tl.zeros([BC], tl.float32)
    if initial is not None:
        state_C = tl.load(initial + b * C + c, mask=c < C, other=0.0)
    for n in range(0, tiles):
        if AHEAD:
            tl.store(ahead + (b * tiles + n) * C + c, state_C, mask=c < C)
        t_S = (n * S + tl.arange(0, S)) * L
        r_LSC, i_LSC, x_LSC = (
            load_segments(r, t_S, c, T, C, L),
            load_segments(i, t_S, c, T, C, L),
            load_segments(x, t_S, c, T, C, L),
        )
        _, whole_SC, _, _, _, brought_SC = _gates(r_LSC[0], i_LSC[0], x_LSC[0], t_S, T, strength_C, FIRST)
        a_LSC, taken_LSC = (whole_SC,), (brought_SC,)
        for j in tl.static_range(1, L):
            _, a_SC, _, _, _, taken_SC = _gates(r_LSC[j], i_LSC[j], x_LSC[j], t_S + j, T, strength_C, FIRST)
            a_LSC += (a_SC,)  # type: ignore[assignment]
            taken_LSC += (taken_SC,)  # type: ignore[assignment]
            whole_SC *= a_SC
            brought_SC = brought_SC * a_SC + taken_SC
        h_SC, state_C = pass_on(whole_SC, brought_SC, state_C, S, False)
        for j in tl.static_range(L):
            h_SC = h_SC * a_LSC[j] + taken_LSC[j]
            store_tokens(h, t_S + j, c, T, C, h_SC)
    if FINAL:  # tokens past the end have left it as it is
        tl.store(final + b * C + c, state_C, mask=c < C)


@triton.jit(do_not_specialize=["T", "per_group"])
def _gated_scan_backward_kernel(  # type: ignore[no-untyped-def]
    do, dfinal, x, r, i, rate, initial, ahead, dx, dr, di, drate, dinitial, T, C, per_group,
    S: tl.constexpr, L: tl.constexpr, BC: tl.constexpr, FINAL: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    FIRST: tl.constexpr = initial is None
    blocks = tl.cdiv(C, BC)
    b = (tl.program_id(0) // blocks).to(tl.int64)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    at = b * T * C
    do, x, r, i, dx, dr, di = do + at, x + at, r + at, i + at, dx + at, dr + at, di + at
    tiles = tl.cdiv(T, S * L)
    rate_C = tl.load(rate + b // per_group * C + c, mask=c < C, other=0.0).to(tl.float32)
    strength_C = _strength(rate_C)
    behind_C = tl.zeros([BC], tl.float32)  # a d of the first token behind the tile
    if FINAL:
        behind_C = tl.load(dfinal + b * C + c, mask=c < C, other=0.0)
    state_C = tl.zeros([BC], tl.float32)
    if initial is not None:
        state_C = tl.load(initial + b * C + c, mask=c < C, other=0.0)
    dstrength_SC = tl.zeros([S, BC], tl.float32)
    for done in range(0, tiles):
        n = tiles - 1 - done
        if AHEAD:
            state_C = tl.load(ahead + (b * tiles + n) * C + c, mask=c < C, other=0.0)
        t_S = (n * S + tl.arange(0, S)) * L
        r_LSC, i_LSC, x_LSC = (
            load_segments(r, t_S, c, T, C, L),
            load_segments(i, t_S, c, T, C, L),
            load_segments(x, t_S, c, T, C, L),
        )
        do_LSC = load_segments(do, t_S, c, T, C, L)
        _, whole_SC, _, _, _, brought_SC = _gates(r_LSC[0], i_LSC[0], x_LSC[0], t_S, T, strength_C, FIRST)
        a_LSC, taken_LSC = (whole_SC,), (brought_SC,)
        for j in tl.static_range(1, L):
            _, a_SC, _, _, _, taken_SC = _gates(r_LSC[j], i_LSC[j], x_LSC[j], t_S + j, T, strength_C, FIRST)
            a_LSC += (a_SC,)  # type: ignore[assignment]
            taken_LSC += (taken_SC,)  # type: ignore[assignment]
            whole_SC *= a_SC
            brought_SC = brought_SC * a_SC + taken_SC
        back_SC = a_LSC[L - 1] * do_LSC[L - 1]
        for j in tl.static_range(L - 2, -1, -1):
            back_SC = (back_SC + do_LSC[j]) * a_LSC[j]
        h_SC, _ = pass_on(whole_SC, brought_SC, state_C, S, False)
        w_SC, behind_C = pass_on(whole_SC, back_SC, behind_C, S, True)
        u_LSC = (a_LSC[0] * h_SC,)
        for j in tl.static_range(1, L):
            u_LSC += (a_LSC[j] * (u_LSC[j - 1] + taken_LSC[j - 1]),)  # type: ignore[assignment]
        for j in tl.static_range(L - 1, -1, -1):
            d_SC = do_LSC[j] + w_SC
            w_SC = a_LSC[j] * d_SC
            p_SC, a_SC, space_SC, m_SC, e_SC, _ = _gates(
                r_LSC[j], i_LSC[j], x_LSC[j], t_S + j, T, strength_C, FIRST
            )  # fmt: skip
            by_root_SC = d_SC * e_SC * x_LSC[j] * tl.rsqrt(tl.maximum(space_SC, _LEAST))
            if FIRST:
                by_root_SC = tl.where((t_S + j == 0)[:, None], 0.0, by_root_SC)
            dg_SC = d_SC * u_LSC[j] - by_root_SC * a_SC * a_SC
            dstrength_SC -= dg_SC * p_SC
            store_tokens(dx, t_S + j, c, T, C, d_SC * m_SC * e_SC)
            store_tokens(di, t_S + j, c, T, C, d_SC * m_SC * x_LSC[j] * e_SC * (1 - e_SC))
            store_tokens(dr, t_S + j, c, T, C, -dg_SC * strength_C[None, :] * p_SC * (1 - p_SC))
    drate_C = tl.sum(dstrength_SC, 0) * _STRENGTH * tl.sigmoid(rate_C)
    tl.store(drate + b * C + c, drate_C, mask=c < C)
    if initial is not None:
        tl.store(dinitial + b * C + c, behind_C, mask=c < C)


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call (fp64); None where it serves."""
    return "computes in fp32 at most, got fp64" if dtype == torch.float64 else None


def _table(batch: int, time: int, channels: int) -> Tiles:
    return tiles_for(batch, time, channels)


def _forward(
    x: Tensor, r: Tensor, i: Tensor, rate: Tensor, initial: Tensor | None, final: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """h [B, T, C]; the last state [B, C] where it is asked for; where there is more than one tile, the states ahead of each."""
    x, r, i, rate = x.contiguous(), r.contiguous(), i.contiguous(), rate.contiguous()
    initial = None if initial is None else initial.contiguous()
    h, state, ahead = _outputs(x, r, i, rate, initial, final)
    (batch, time, channels), tiles = x.shape, _table(*x.shape)
    _gated_scan_forward_kernel[(batch * triton.cdiv(channels, tiles.channels),)](
        x, r, i, rate, initial, h, state, ahead, time, channels, batch // len(rate),
        **tiles.launched(), FINAL=final, AHEAD=time > tiles.tokens,
    )  # fmt: skip
    return h, state, ahead


def _outputs(
    x: Tensor, r: Tensor, i: Tensor, rate: Tensor, initial: Tensor | None, final: bool
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, time, channels), tokens = x.shape, _table(*x.shape).tokens
    many = time > tokens
    return (
        x.new_empty(x.shape),
        x.new_empty(batch, channels if final else 0, dtype=torch.float32),
        x.new_empty(batch, triton.cdiv(time, tokens) if many else 0, channels, dtype=torch.float32),
    )


def _backward(
    do: Tensor,
    dfinal: Tensor,
    x: Tensor,
    r: Tensor,
    i: Tensor,
    rate: Tensor,
    initial: Tensor | None,
    final: bool,
    ahead: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    do, dfinal, x, r, i = do.contiguous(), dfinal.contiguous(), x.contiguous(), r.contiguous(), i.contiguous()
    rate, initial = rate.contiguous(), None if initial is None else initial.contiguous()
    dx, dr, di, _, dinitial = _gradients(do, dfinal, x, r, i, rate, initial, final, ahead)
    (batch, time, channels), tiles = x.shape, _table(*x.shape)
    drate = rate.new_empty(batch, channels, dtype=torch.float32)
    _gated_scan_backward_kernel[(batch * triton.cdiv(channels, tiles.channels),)](
        do, dfinal, x, r, i, rate, initial, ahead, dx, dr, di, drate, dinitial, time, channels, batch // len(rate),
        **tiles.launched(), FINAL=final, AHEAD=time > tiles.tokens,
    )  # fmt: skip
    return dx, dr, di, drate.view(len(rate), -1, channels).sum(1).to(rate.dtype), dinitial


def _gradients(
    do: Tensor,
    dfinal: Tensor,
    x: Tensor,
    r: Tensor,
    i: Tensor,
    rate: Tensor,
    initial: Tensor | None,
    final: bool,
    ahead: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape),
        r.new_empty(r.shape),
        i.new_empty(i.shape),
        rate.new_empty(rate.shape),
        x.new_empty(x.shape[0]) if initial is None else initial.new_empty(initial.shape),
    )


_gated_scan = opaque("gated_scan", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=2)


def fused(
    x: Tensor,
    *,
    r: Tensor,
    i: Tensor,
    rate: Tensor,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence; `chunk` has no meaning here. States are fp32."""
    batch, time, *channels = x.shape
    x_BTC, r_BTC, i_BTC = (part.reshape(batch, time, -1) for part in (x, r, i))
    initial = None if initial_state is None else initial_state.reshape(batch, -1).float()
    h, final, _ = _gated_scan(x_BTC, r_BTC, i_BTC, rate.reshape(1, -1), initial, return_state)
    return h.reshape(x.shape), final.reshape(batch, *channels) if return_state else None
