"""Gates: their sums C ahead of the passes over scores, what they add to a score, and their derivatives behind the passes.

C is summed up in fp64 and kept as two numbers of fp32 in units of ln 2, a leading one and the rest, so that C_t - C_j has all
its digits whatever is ahead of both. Where all keys of a tile are ahead of a reference r and no query is, C_t - C_j is
(C_t - C_r) + (C_r - C_j): neither is positive, so that fp32 keeps the digits of both, and a score takes one addition.
The rest of C_t is left out of all scores of query t, and of L_t: it cancels.

B batch, T time, P tokens ahead of them, S = P + T keys, H heads
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.attention.fused.plan import gate_tiles

LOG2E = tl.constexpr(1.4426950408889634)
RUN_TIME = ("T", "P", "H")


@triton.jit
def load_sums(sums_at, token, S, INSIDE: tl.constexpr):
    """C of tokens, in its two parts; 0 behind the last. INSIDE: all of these tokens are there."""
    return load_leading(sums_at, token, S, INSIDE), load_leading(sums_at + S, token, S, INSIDE)


@triton.jit
def load_leading(sums_at, token, S, INSIDE: tl.constexpr):
    return tl.load(sums_at + token) if INSIDE else tl.load(sums_at + token, mask=token < S, other=0.0)


@triton.jit
def between(leading, rest, leading_behind, rest_behind):
    """C less another C, from the parts of both."""
    return (leading - leading_behind) + (rest - rest_behind)


@triton.jit
def without_rest(leading, leading_behind, rest_behind):
    """The leading part of C less another C."""
    return (leading - leading_behind) - rest_behind


@triton.jit
def scores(q_TK, k_SK, sums_at, key, S, scale, leading, rest, MASKED: tl.constexpr, FADES: tl.constexpr):
    """Of a tile of queries, with what has faded since its keys. leading: of C of the queries; not MASKED, leading and rest are
    C of the first of them, and scores lack what there is between it and a query."""
    s_TS = tl.dot(q_TK, tl.trans(k_SK), input_precision="ieee") * scale
    if FADES:
        leading_S, rest_S = load_sums(sums_at, key, S, not MASKED)
        if MASKED:
            s_TS += without_rest(leading[:, None], leading_S[None, :], rest_S[None, :])
        else:
            s_TS += between(leading, rest, leading_S, rest_S)[None, :]
    return s_TS


@triton.jit(do_not_specialize=RUN_TIME)
def attention_gate_sums_kernel(log_decay, fades, sums, g_b, g_t, g_h, f_b, f_p, f_h, T, P, H, BT: tl.constexpr):
    """C of a head's keys: of those ahead less what has faded of them, of the tokens the sum of the gates up to them."""
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    S = P + T
    sums_at = sums + tl.program_id(0).to(tl.int64) * 2 * S
    log_decay += b * g_b + h * g_h
    fades += b * f_b + h * f_h
    for begin in range(0, P, BT):
        p = begin + tl.arange(0, BT)
        exact = tl.load(fades + p * f_p, mask=p < P, other=0.0).to(tl.float64) * -LOG2E
        leading = exact.to(tl.float32)
        tl.store(sums_at + p, leading, mask=p < P)
        tl.store(sums_at + S + p, (exact - leading.to(tl.float64)).to(tl.float32), mask=p < P)
    before = tl.zeros([1], tl.float64)
    for begin in range(0, T, BT):
        t = begin + tl.arange(0, BT)
        g = tl.load(log_decay + t * g_t, mask=t < T, other=0.0).to(tl.float64) * LOG2E
        exact = before + tl.cumsum(g, 0)
        before += tl.sum(g, 0)
        leading = exact.to(tl.float32)
        tl.store(sums_at + P + t, leading, mask=t < T)
        tl.store(sums_at + S + P + t, (exact - leading.to(tl.float64)).to(tl.float32), mask=t < T)


@triton.jit(do_not_specialize=RUN_TIME)
def attention_gate_gradients_kernel(dsums, d_log_decay, d_fades, T, P, H, BT: tl.constexpr):
    """By a gate the sum of dC from its token on; by what has faded of a key ahead -dC."""
    b, h = (tl.program_id(0) // H).to(tl.int64), tl.program_id(0) % H
    dsums += tl.program_id(0).to(tl.int64) * (P + T)
    d_log_decay += b * T * H + h
    d_fades += b * P * H + h
    for begin in range(0, P, BT):
        p = begin + tl.arange(0, BT)
        faded = -tl.load(dsums + p, mask=p < P, other=0.0)
        tl.store(d_fades + p * H, faded.to(d_fades.dtype.element_ty), mask=p < P)
    behind = tl.zeros([1], tl.float64)
    for begin in range(0, T, BT):
        t = T - 1 - begin - tl.arange(0, BT)
        d = tl.load(dsums + P + t, mask=t >= 0, other=0.0).to(tl.float64)
        total = behind + tl.cumsum(d, 0)
        behind += tl.sum(d, 0)
        tl.store(d_log_decay + t * H, total.to(d_log_decay.dtype.element_ty), mask=t >= 0)


def gate_sums(log_decay: Tensor, fades: Tensor, sums: Tensor) -> None:
    """C to sums [B, H, 2, S], from log_decay [B, T, H] and what has faded of the keys ahead, [B, P, H]."""
    (batch, time, heads), ahead = log_decay.shape, fades.shape[1]
    tokens, warps = gate_tiles(time)
    attention_gate_sums_kernel[(batch * heads,)](
        log_decay, fades, sums, *log_decay.stride(), *fades.stride(), time, ahead, heads, BT=tokens, num_warps=warps,
    )  # fmt: skip


def gate_gradients(dsums: Tensor, d_log_decay: Tensor, d_fades: Tensor) -> None:
    """The derivatives to d_log_decay [B, T, H] and d_fades [B, P, H], from those by C [B, H, S]."""
    (batch, time, heads), ahead = d_log_decay.shape, d_fades.shape[1]
    tokens, warps = gate_tiles(time)
    attention_gate_gradients_kernel[(batch * heads,)](
        dsums, d_log_decay, d_fades, time, ahead, heads, BT=tokens, num_warps=warps
    )
