"""The solvers in registers, for all rows of a chunk together: conjugate gradients, and Chebyshev's iteration.

C tokens a chunk, K key width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

import triton
import triton.language as tl

from recallmap.arch.kernels.mesa.conjugate import DRIFTED, FRESH
from recallmap.arch.kernels.mesa.fused.tiles import direction, dot, dot_halves, rough_dot, rounded, truncated

_FRESH, _DRIFTED = tl.constexpr(FRESH), tl.constexpr(DRIFTED**2)


@triton.jit
def regulariser(lam, head, at, there, i, K: tl.constexpr, ridge):
    """lam as a row [1, K], which all tokens of a head have; a column [C, 1] where it is a share of each token's norm."""
    if ridge is None:
        return tl.load(lam + head * K + i, mask=i < K, other=1.0).to(tl.float32)[None, :]
    else:
        return tl.load(lam + at, mask=there, other=0.0).to(tl.float32)[:, None]


@triton.jit
def _multiply(
    x, k, kT, weights, fade, lam, kk_high, kk_low, AHEAD: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """x A; where products are split, of x in bf16's numbers."""
    if PRECISION == "split":
        x_ = x.to(tl.bfloat16)
        scores = tl.dot(x_, kT) * weights
        image = x * lam
        if AHEAD:
            image += fade[:, None] * tl.dot(x_, kk_high, tl.dot(x_, kk_low))
        high = truncated(scores)
        image = tl.dot(high.to(tl.bfloat16), k, tl.dot((scores - high).to(tl.bfloat16), k, image))
    else:
        image = dot(dot(x, kT, PRECISION) * weights, k, PRECISION) + x * lam
        if AHEAD:
            image += fade[:, None] * dot_halves(x, kk_high, kk_low, PRECISION)
    return image


@triton.jit
def _multiply_all(
    x, k, kT, weights, fade, lam, kk_high, kk_low, AHEAD: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """x A of any x."""
    image = _multiply(direction(x, PRECISION), k, kT, weights, fade, lam, kk_high, kk_low, AHEAD, PRECISION)
    if PRECISION == "split":
        image += _multiply(rounded(x - rounded(x)), k, kT, weights, fade, lam, kk_high, kk_low, AHEAD, PRECISION)
    return image


@triton.jit
def _start(rhs, k, weights, fade, lam, diagonal, PRECISION: tl.constexpr):
    """q / diag A; where the solver starts needs no more digits than the inputs have."""
    square_k = k.to(tl.float32) * k.to(tl.float32)
    return rhs / (rough_dot(weights, square_k, PRECISION) + fade[:, None] * diagonal + lam)


@triton.jit
def solve(
    rhs, k, kT, weights, fade, lam, diagonal, kk_high, kk_low, steps, enough, ridge,
    X0: tl.constexpr, AHEAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The solutions of all rows and the steps each took: with `ridge`, which lam is of the norm, by Chebyshev's iteration."""
    if ridge is None:
        x, taken = _conjugate(
            rhs, k, kT, weights, fade, lam, diagonal, kk_high, kk_low, steps, enough, X0, AHEAD, PRECISION
        )
    else:
        x = _chebyshev(rhs, k, kT, weights, fade, lam, kk_high, kk_low, steps, ridge, AHEAD, PRECISION)
        taken = tl.zeros_like(fade) + steps
    return x, taken


@triton.jit
def _chebyshev(
    rhs, k, kT, weights, fade, lam, kk_high, kk_low, steps, ridge, AHEAD: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Chebyshev's iteration for all rows, as `chebyshev.iterate` has it; 0 where lam is 0."""
    ends = lam * (2 + 1 / ridge)
    rate = tl.where(ends > 0, 2 / tl.where(ends > 0, ends, 1.0), 0.0)
    square = 1 / ((1 + 2 * ridge) * (1 + 2 * ridge))
    x, before, omega = rate * rhs, tl.zeros_like(rhs), tl.full((), 2.0, tl.float32)
    for _ in range(steps):
        omega = 4 / (4 - square * omega)
        image = _multiply(x, k, kT, weights, fade, lam, kk_high, kk_low, AHEAD, PRECISION)
        following = omega * (x + rate * (rhs - image)) + (1 - omega) * before
        before = x
        x = following
    return x


@triton.jit
def _conjugate(
    rhs, k, kT, weights, fade, lam, diagonal, kk_high, kk_low, steps, enough,
    X0: tl.constexpr, AHEAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Conjugate gradients for all rows, as `conjugate.iterate` takes them, and the number of steps each row took.

    A finished row takes steps of length zero: where all have finished, the loop may end and nothing changes. To ask all warps
    pays only at every other step. Where the solver starts is a step of length one, ahead of the first. So one place multiplies
    by the system: code is shorter, and outside of a loop each warp would multiply all rows in fp32, all of kk in its registers.
    """
    x, r, p, step = tl.zeros_like(rhs), rhs, rhs, 0
    if X0 == "diag":
        p = _start(rhs, k, weights, fade, lam, diagonal, PRECISION)
    if X0 != "q":
        p = direction(p, PRECISION)
    if X0 != "zero":
        step = -1
    square = tl.sum(r * r, 1)
    ends = square * enough
    taken = tl.zeros_like(square)
    busy = step < steps  # whatever the rows are, so that what is no number is seen
    while busy:
        image = _multiply(p, k, kT, weights, fade, lam, kk_high, kk_low, AHEAD, PRECISION)
        curvature = tl.sum(p * image, 1)
        active = (square > ends) & (curvature > 0) & (step >= 0) & (step < steps)
        length = tl.where(active, square, 0.0) / tl.where(active, curvature, 1.0)
        if X0 != "zero":
            length = tl.where(step < 0, 1.0, length)
        x += length[:, None] * p
        r -= length[:, None] * image
        onward = active
        if X0 == "q":
            if step % _FRESH == _FRESH - 1:
                image = _multiply_all(x, k, kT, weights, fade, lam, kk_high, kk_low, AHEAD, PRECISION)
                drift = tl.where(active[:, None], rhs - image - r, 0.0)
                onward = active & (tl.sum(drift * drift, 1) <= tl.sum(r * r, 1) * _DRIFTED)
                r += drift
        following = tl.sum(r * r, 1)
        p = direction(r + (tl.where(onward, following, 0.0) / tl.where(onward, square, 1.0))[:, None] * p, PRECISION)
        if X0 != "zero":
            ends = tl.where(step < 0, following * enough, ends)
        square = following
        taken += active.to(tl.float32)
        step += 1
        busy = step < steps
        if step % 2 == 0:
            busy = busy & (tl.max((square > ends).to(tl.int32)) > 0)
    return x, taken
