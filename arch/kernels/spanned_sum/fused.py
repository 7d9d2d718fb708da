"""Steps in a span in one launch forward and one backward: a program walks the tokens of a head, with W in registers.

dW_t = q_t^T dy_t + e^{g_{t+1}} dW_{t+1},   dq_t = dy_t W_t^T,   dg_t = e^{g_t} <dW_t, W_{t-1}>
With Z_t = diag(x_t) dW_t:   dx_t = dW_t . D F_t,   dF_t = D^T Z_t,   dD = sum_t Z_t F_t^T

Forward keeps every W_t where backward will want them: dq and dg need them, and they cannot be made again from their end, where
they have faded.

B batch, T time, H heads, S vectors, SP their power of two, C columns, CP their power of two
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import opaque, packed, padded
from recallmap.arch.kernels.spanned_newton_schulz.fused import why_not as makes_none
from recallmap.arch.kernels.triton_tiles.token_matrices import load_vector, matrix_places, times

NARROW = 1024  # numbers of W that one warp holds


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call, also by the kernels that make the factors; None where they serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    return makes_none(device=device, dtype=dtype, differentiable=differentiable, sizes=sizes)


def fused(
    q: Tensor,
    x: Tensor,
    factor: Tensor,
    d: Tensor,
    *,
    log_decay: Tensor,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence; `chunk` has no meaning here."""
    initial = None if initial_state is None else initial_state.float()
    keep = torch.is_grad_enabled()
    y, final, _ = _spanned_sum(q, x, factor.float(), d.float(), log_decay.float(), initial, keep)
    return y, final if return_state else None


@triton.jit(do_not_specialize=["T", "H"])
def _spanned_sum_forward_kernel(
    q, x, factor, d, log_decay, initial, y, final, kept, T, H,
    S: tl.constexpr, SP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """kept [B, T, H, S, C]: every W."""
    head = tl.program_id(0).to(tl.int64)
    n = (head // H) * T * H + head % H  # of the first token
    s, c = tl.arange(0, SP), tl.arange(0, CP)
    wide, wide_there = matrix_places(s, c, S, C)
    square, square_there = matrix_places(c, c, C, C)
    d_sc = tl.load(d + head * (S * C) + wide, mask=wide_there, other=0.0)
    w = tl.zeros([SP, CP], tl.float32)
    if initial is not None:
        w = tl.load(initial + head * (S * C) + wide, mask=wide_there, other=0.0)
    for _ in range(T):
        by = tl.load(factor + n * (C * C) + square, mask=square_there, other=0.0)
        taken = load_vector(x + n * S, s, S)[:, None] * times(d_sc, by)
        w = w * tl.exp(tl.load(log_decay + n)) + taken
        if KEEP:
            tl.store(kept + n * (S * C) + wide, w, mask=wide_there)
        read = tl.sum(load_vector(q + n * S, s, S)[:, None] * w, 0)
        tl.store(y + n * C + c, read.to(y.dtype.element_ty), mask=c < C)
        n += H
    tl.store(final + head * (S * C) + wide, w, mask=wide_there)


@triton.jit(do_not_specialize=["T", "H"])
def _spanned_sum_backward_kernel(
    dy, dfinal, q, x, factor, d, log_decay, initial, kept, dq, dx, dfactor, dd, dlog_decay, dinitial, T, H,
    S: tl.constexpr, SP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    n = (head // H) * T * H + head % H + (T - 1) * H  # of the last token
    s, c = tl.arange(0, SP), tl.arange(0, CP)
    wide, wide_there = matrix_places(s, c, S, C)
    square, square_there = matrix_places(c, c, C, C)
    d_sc = tl.load(d + head * (S * C) + wide, mask=wide_there, other=0.0)
    start = tl.zeros([SP, CP], tl.float32)
    if initial is not None:
        start = tl.load(initial + head * (S * C) + wide, mask=wide_there, other=0.0)
    dw = tl.load(dfinal + head * (S * C) + wide, mask=wide_there, other=0.0)
    sum_d = tl.zeros([SP, CP], tl.float32)
    w = tl.load(kept + n * (S * C) + wide, mask=wide_there, other=0.0)
    for back in range(T):
        earlier = wide_there & (back + 1 < T)
        before = tl.load(kept + (n - H) * (S * C) + wide, mask=earlier, other=0.0)
        before = tl.where(back + 1 < T, before, start)
        read = load_vector(dy + n * C, c, C)
        dw += load_vector(q + n * S, s, S)[:, None] * read[None, :]
        tl.store(dq + n * S + s, tl.sum(w * read[None, :], 1).to(dq.dtype.element_ty), mask=s < S)
        fade = tl.exp(tl.load(log_decay + n))
        tl.store(dlog_decay + n, tl.sum(dw * before) * fade)
        by = tl.load(factor + n * (C * C) + square, mask=square_there, other=0.0)
        tl.store(dx + n * S + s, tl.sum(dw * times(d_sc, by), 1).to(dx.dtype.element_ty), mask=s < S)
        z = load_vector(x + n * S, s, S)[:, None] * dw
        sum_d += times(z, tl.trans(by))
        tl.store(dfactor + n * (C * C) + square, times(tl.trans(d_sc), z), mask=square_there)
        dw *= fade
        w = before
        n -= H
    tl.store(dd + head * (S * C) + wide, sum_d, mask=wide_there)
    if initial is not None:
        tl.store(dinitial + head * (S * C) + wide, dw, mask=wide_there)


def _forward(
    q: Tensor, x: Tensor, factor: Tensor, d: Tensor, log_decay: Tensor, initial: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last W, and every W where they are to be kept."""
    y, final, kept = _outputs(q, x, factor, d, log_decay, initial, keep)
    batch, time, heads, _ = x.shape
    _spanned_sum_forward_kernel[(batch * heads,)](
        packed(q), packed(x), packed(factor), packed(d), packed(log_decay), packed(initial), y, final, kept, time, heads,
        **_sizes(d), KEEP=keep,
    )  # fmt: skip
    return y, final, kept


def _outputs(
    q: Tensor, x: Tensor, factor: Tensor, d: Tensor, log_decay: Tensor, initial: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    sizes = d.shape[-2:]
    y = x.new_empty(*x.shape[:3], d.shape[-1])
    kept = x.shape[:3] if keep else (x.shape[0], 0, x.shape[2])
    return y, d.new_empty(d.shape), d.new_empty(*kept, *sizes)


def _backward(
    dy: Tensor,
    dfinal: Tensor,
    q: Tensor,
    x: Tensor,
    factor: Tensor,
    d: Tensor,
    log_decay: Tensor,
    initial: Tensor | None,
    keep: bool,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    results = _gradients(dy, dfinal, q, x, factor, d, log_decay, initial, keep, kept)
    batch, time, heads, _ = x.shape
    given = (packed(t) for t in (dy, dfinal, q, x, factor, d, log_decay, initial, kept))
    _spanned_sum_backward_kernel[(batch * heads,)](*given, *results, time, heads, **_sizes(d))
    return results


def _gradients(
    dy: Tensor,
    dfinal: Tensor,
    q: Tensor,
    x: Tensor,
    factor: Tensor,
    d: Tensor,
    log_decay: Tensor,
    initial: Tensor | None,
    keep: bool,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    first = d.new_empty(d.shape[0], 0) if initial is None else d.new_empty(d.shape)
    by_q, by_x, by_factor, by_d, by_decay = (t.new_empty(t.shape) for t in (q, x, factor, d, log_decay))
    return by_q, by_x, by_factor, by_d, by_decay, first


def _sizes(d: Tensor) -> dict[str, Any]:
    vectors, columns = d.shape[-2:]
    rows, width = padded(vectors), padded(columns)
    warps, stages = (1, 2) if rows * width <= NARROW else (4, 1)
    return {"S": vectors, "SP": rows, "C": columns, "CP": width, "num_warps": warps, "num_stages": stages}


_spanned_sum = opaque("spanned_sum", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=2)
