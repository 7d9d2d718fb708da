"""A matrix read through its retention in one launch forward and one backward: a program walks the tokens of a head, with A in
registers.

dA_t = q_t^T dy_t through the retention + e^{g_{t+1}} dA_{t+1},   dg_t = e^{g_t} <dA_t, A_{t-1}>
dk_t = dA_t v_t^T,   dv_t = k_t dA_t
softmax P over rows, W = s P:           dA = W (q dy - 1 (dy y / s))
W = B / |A|_q^(q-2), B = A:             dA = dB / n - (q - 2) <dB, B> |A|^(q-1) sign(A) / (|A|_q^q n),   n = |A|_q^(q-2)
   or B = sign(A) |A|^(q-1) (mirror):   of the first term (q - 1) |A|^(q-2)

Forward keeps every A_t where backward will want them: they cannot be made again from their end, where they have faded.

B batch, T time, H heads, R rows, RP their power of two, C columns, CP their power of two
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
from recallmap.arch.kernels.test_time.learning_rule import KlRetention, L2Retention, Retention
from recallmap.arch.kernels.triton_tiles.token_matrices import load_vector, matrix_places

MOST = 4096  # numbers of a matrix that fits into registers, rows and columns each a power of two
BY_A_WARP = 1024, 512  # numbers of a matrix that one warp holds, forward and backward, which holds four such matrices
MADE_BY_PRODUCTS = range(2, 9)  # exponents
LEAST = tl.constexpr(1e-30)  # of the sum that a norm is the root of


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    rows, columns = sizes.get("key_width", 1), sizes.get("value_width", 1)
    if padded(rows) * padded(columns) <= MOST:
        return None
    return (
        f"holds matrices that fit into {MOST:,} numbers, rows and columns each a power of two; got {rows} x {columns}"
    )


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    retention: Retention,
    log_decay: Tensor,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence; `chunk` has no meaning here."""
    initial = None if initial_state is None else initial_state.float()
    form, number = _said(retention)
    y, final, _ = _retained(q, k, v, log_decay.float(), initial, form, number, torch.is_grad_enabled())
    return y, final if return_state else None


def _said(retention: Retention) -> tuple[str, float]:
    """A retention as its form and its one number: the scale, or q."""
    if isinstance(retention, KlRetention):
        return "softmax", retention.scale
    if isinstance(retention, L2Retention) or retention.plain:
        return "norm", 2.0
    return "mirror" if retention.mirror else "norm", retention.q


@triton.jit
def _power(x, exponent, WHOLE: tl.constexpr):
    """x^exponent of x >= 0, 0 where x is; by products where the exponent is WHOLE: a GPU's exponential is right to 22 bits."""
    if WHOLE > 0:
        power = x
        for _ in tl.static_range(WHOLE - 1):
            power *= x
    else:
        power = tl.where(x > 0, tl.exp(exponent * tl.log(tl.maximum(x, 1e-37))), 0.0)
    return power


@triton.jit
def _weights(a, there, number, WHOLE: tl.constexpr, FORM: tl.constexpr):
    """The weights from A, and for norms their divisor and the sum that they are the root of."""
    divisor, total = 1.0, 1.0
    if FORM == "softmax":
        largest = tl.max(tl.where(there, a, float("-inf")), 0)
        e = tl.exp(tl.where(there, a - largest[None, :], float("-inf")))
        weights = number * e / tl.maximum(tl.sum(e, 0), LEAST)[None, :]
    else:
        size = tl.abs(a)
        total = tl.sum(_power(size, number, WHOLE))
        if WHOLE == 4:
            divisor = tl.sqrt_rn(tl.maximum(total, LEAST))
        else:
            divisor = tl.exp((number - 2) / number * tl.log(tl.maximum(total, LEAST)))
        kept = a
        if FORM == "mirror":
            kept = tl.where(a < 0, -1.0, 1.0) * _power(size, number - 1, WHOLE - 1)
        weights = kept / divisor
    return weights, divisor, total


@triton.jit
def _through(dw, a, weights, divisor, total, number, WHOLE: tl.constexpr, FORM: tl.constexpr):
    """The derivative by A, of that by what is kept of it."""
    if FORM == "softmax":
        da = weights * (dw - (tl.sum(weights * dw, 0) / number)[None, :])
    else:
        size = tl.abs(a)
        rising = _power(size, number - 1, WHOLE - 1)
        share = tl.where(total > LEAST, (number - 2) * tl.sum(dw * weights) / tl.maximum(total, LEAST), 0.0)
        da = dw / divisor
        if FORM == "mirror":
            da = da * (number - 1) * _power(size, number - 2, WHOLE - 2)
        da -= share * rising * tl.where(a < 0, -1.0, 1.0)
    return da


@triton.jit(do_not_specialize=["number", "T", "H"])
def _retained_forward_kernel(
    q, k, v, log_decay, initial, y, final, kept, number, T, H,
    WHOLE: tl.constexpr, FORM: tl.constexpr, KEEP: tl.constexpr,
    R: tl.constexpr, RP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    """kept [B, T, H, R, C]: every A."""
    head = tl.program_id(0).to(tl.int64)
    n = (head // H) * T * H + head % H  # of the first token
    r, c = tl.arange(0, RP), tl.arange(0, CP)
    at, there = matrix_places(r, c, R, C)
    a = tl.zeros([RP, CP], tl.float32)
    if initial is not None:
        a = tl.load(initial + head * (R * C) + at, mask=there, other=0.0)
    for _ in range(T):
        a = (
            a * tl.exp(tl.load(log_decay + n))
            + load_vector(k + n * R, r, R)[:, None] * load_vector(v + n * C, c, C)[None, :]
        )
        if KEEP:
            tl.store(kept + n * (R * C) + at, a, mask=there)
        weights, _, _ = _weights(a, there, number, WHOLE, FORM)
        read = tl.sum(load_vector(q + n * R, r, R)[:, None] * weights, 0)
        tl.store(y + n * C + c, read.to(y.dtype.element_ty), mask=c < C)
        n += H
    tl.store(final + head * (R * C) + at, a, mask=there)


@triton.jit(do_not_specialize=["number", "T", "H"])
def _retained_backward_kernel(
    dy, dfinal, q, k, v, log_decay, initial, kept, dq, dk, dv, dlog_decay, dinitial, number, T, H,
    WHOLE: tl.constexpr, FORM: tl.constexpr,
    R: tl.constexpr, RP: tl.constexpr, C: tl.constexpr, CP: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    n = (head // H) * T * H + head % H + (T - 1) * H  # of the last token
    r, c = tl.arange(0, RP), tl.arange(0, CP)
    at, there = matrix_places(r, c, R, C)
    start = tl.zeros([RP, CP], tl.float32)
    if initial is not None:
        start = tl.load(initial + head * (R * C) + at, mask=there, other=0.0)
    da = tl.load(dfinal + head * (R * C) + at, mask=there, other=0.0)
    a = tl.load(kept + n * (R * C) + at, mask=there, other=0.0)
    for back in range(T):
        before = tl.load(kept + (n - H) * (R * C) + at, mask=there & (back + 1 < T), other=0.0)
        before = tl.where(back + 1 < T, before, start)
        read = load_vector(dy + n * C, c, C)
        weights, divisor, total = _weights(a, there, number, WHOLE, FORM)
        tl.store(dq + n * R + r, tl.sum(weights * read[None, :], 1).to(dq.dtype.element_ty), mask=r < R)
        dw = load_vector(q + n * R, r, R)[:, None] * read[None, :]
        da += _through(dw, a, weights, divisor, total, number, WHOLE, FORM)
        tl.store(
            dk + n * R + r, tl.sum(da * load_vector(v + n * C, c, C)[None, :], 1).to(dk.dtype.element_ty), mask=r < R
        )
        tl.store(
            dv + n * C + c, tl.sum(da * load_vector(k + n * R, r, R)[:, None], 0).to(dv.dtype.element_ty), mask=c < C
        )
        fade = tl.exp(tl.load(log_decay + n))
        tl.store(dlog_decay + n, tl.sum(da * before) * fade)
        da *= fade
        a = before
        n -= H
    if initial is not None:
        tl.store(dinitial + head * (R * C) + at, da, mask=there)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    initial: Tensor | None,
    form: str,
    number: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the last A, and every A where they are to be kept."""
    y, final, kept = _outputs(q, k, v, log_decay, initial, form, number, keep)
    batch, time, heads, _ = v.shape
    _retained_forward_kernel[(batch * heads,)](
        packed(q), packed(k), packed(v), packed(log_decay), packed(initial), y, final, kept, number, time, heads,
        FORM=form, WHOLE=_whole(number), **_sizes(k, v, BY_A_WARP[0]), KEEP=keep,
    )  # fmt: skip
    return y, final, kept


def _outputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    initial: Tensor | None,
    form: str,
    number: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    batch, time, heads, rows = k.shape
    final = log_decay.new_empty(batch, heads, rows, v.shape[-1])
    kept = log_decay.new_empty(batch, time if keep else 0, *final.shape[1:])
    return v.new_empty(v.shape), final, kept


def _backward(
    dy: Tensor,
    dfinal: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    initial: Tensor | None,
    form: str,
    number: float,
    keep: bool,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    results = _gradients(dy, dfinal, q, k, v, log_decay, initial, form, number, keep, kept)
    batch, time, heads, _ = v.shape
    given = (packed(t) for t in (dy, dfinal, q, k, v, log_decay, initial, kept))
    sizes = {"FORM": form, "WHOLE": _whole(number), **_sizes(k, v, BY_A_WARP[1])}
    _retained_backward_kernel[(batch * heads,)](*given, *results, number, time, heads, **sizes)
    return results


def _gradients(
    dy: Tensor,
    dfinal: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    initial: Tensor | None,
    form: str,
    number: float,
    keep: bool,
    kept: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    first = dfinal.new_empty(dfinal.shape[0], 0) if initial is None else dfinal.new_empty(dfinal.shape)
    by_q, by_k, by_v, by_decay = (t.new_empty(t.shape) for t in (q, k, v, log_decay))
    return by_q, by_k, by_v, by_decay, first


def _whole(number: float) -> int:
    """The exponent of a norm as products make it, 0 of others."""
    return int(number) if number in MADE_BY_PRODUCTS else 0


def _sizes(k: Tensor, v: Tensor, by_a_warp: int) -> dict[str, Any]:
    rows, columns = k.shape[-1], v.shape[-1]
    high, wide = padded(rows), padded(columns)
    warps = max(1, high * wide // by_a_warp)
    return {"R": rows, "RP": high, "C": columns, "CP": wide, "num_warps": warps, "num_stages": 1}


_retained = opaque("retained", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=2)
