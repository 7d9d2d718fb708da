"""Factors of a chunk's tokens: decay from its start, to its end and from token to token, and write strengths.

C tokens a chunk
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl


@triton.jit
def _signs(sign, at, there):
    """The product of the chunk's signs up to each token, and of all."""
    negative = (tl.load(sign + at, mask=there, other=1.0) < 0).to(tl.int32)
    return (1 - 2 * (tl.cumsum(negative, 0) % 2)).to(tl.float32), (1 - 2 * (tl.sum(negative, 0) % 2)).to(tl.float32)


@triton.jit
def fades_from_start(log_decay, sign, at, there, C: tl.constexpr):
    """The factors from the chunk's start to behind each token [C], and over all of it."""
    fade, over = tl.full((C,), 1.0, tl.float32), tl.full((), 1.0, tl.float32)
    if log_decay is not None:
        g = tl.load(log_decay + at, mask=there, other=0.0).to(tl.float32)
        fade, over = tl.exp(tl.cumsum(g, 0)), tl.exp(tl.sum(g, 0))
    if sign is not None:
        turned, all_turned = _signs(sign, at, there)
        fade, over = fade * turned, over * all_turned
    return fade, over


@triton.jit
def fades_to_end(log_decay, sign, at, there, H, count, C: tl.constexpr, PRECISION: tl.constexpr):
    """The factors from behind each token to the chunk's end [C], of which `count` tokens are there.

    Exponents sum the decays that follow, but for 16 bits, where differences of sums have digits enough.
    """
    factor = tl.full((C,), 1.0, tl.float32)
    if log_decay is not None:
        if PRECISION == "split":
            g = tl.load(log_decay + at, mask=there, other=0.0).to(tl.float32)
            factor = tl.exp(tl.sum(g, 0) - tl.cumsum(g, 0))
        else:
            following = tl.arange(0, C) + 1
            g = tl.load(log_decay + at + H, mask=(following < C) & (following < count), other=0.0).to(tl.float32)
            factor = tl.exp(tl.cumsum(g, 0, reverse=True))
    if sign is not None:
        turned, all_turned = _signs(sign, at, there)
        factor = factor * turned * all_turned
    return factor


@triton.jit
def pair_fades(
    log_decay, sign, at, there, C: tl.constexpr, TIME: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """The factors from token s to token t, 0 for s > t; t runs along axis TIME.

    Exponents sum their own decays only, but for 16 bits, where differences of sums have digits enough.
    """
    rows, columns = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    ahead = rows - columns if TIME == 0 else columns - rows
    pairs = (ahead >= 0).to(tl.float32)
    if log_decay is not None:
        g = tl.load(log_decay + at, mask=there, other=0.0).to(tl.float32)
        if PRECISION == "split":
            sums = tl.cumsum(g, 0)
            apart = tl.expand_dims(sums, 1 - TIME) - tl.expand_dims(sums, TIME)
        else:
            apart = tl.cumsum(tl.where(ahead > 0, tl.expand_dims(g, 1 - TIME), 0.0), TIME)
        pairs = tl.where(ahead >= 0, tl.exp(tl.where(ahead > 0, apart, 0.0)), 0.0)
    if sign is not None:
        turned, _ = _signs(sign, at, there)
        pairs = pairs * turned[:, None] * turned[None, :]
    return pairs


@triton.jit
def write_strengths(beta, at, there, C: tl.constexpr):
    write = tl.full((C,), 1.0, tl.float32)
    if beta is not None:
        write = tl.load(beta + at, mask=there, other=0.0).to(tl.float32)
    return write
