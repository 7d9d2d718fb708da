"""Newton-Schulz of spanned matrices, a tile a program, in registers and in fp64.

Q' = B Q,   A' = B A B,   B = a I + b A + c A^2

Q is a polynomial of A, which is symmetric, and the derivative of such a one is its own adjoint. So the derivative by A is what
becomes of Q where A changes by dQ made symmetric, and goes through the steps beside them, forward:
    b' = b E + c (A E + E A),   R' = b' Q + B R,   E' = b' A B + B E B + B A b',   E = dQ, R = 0 at first, dA = R in the end
By the square, P^T P = Z^T G Z with Z = diag(x) D and G = U^T U:
    dZ = 2 G Z dA,   dx = dZ . D,   dD = sum_t x dZ,   dG = sum_t Z dA Z^T,   dU = U (dG + dG^T)

Forward one launch makes G, and one goes through the steps and keeps every P^T P. Backward one gives every token's Z dA; two
more sum over tokens, BS vectors a program, always in the same order, so that sums are the same every time; the last goes on to
U. A tile holds as many narrow matrices as it has room for, those of a head's neighbouring tokens.

T tokens, H heads, R rows, S vectors, C columns, CP their power of two, W columns of a tile; BS vectors, BR rows, BT tokens at
once
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.newton_schulz.recurrent import CUBIC, EPS, LEAST, LINEAR, QUINTIC
from recallmap.arch.kernels.op_interface.custom_op import opaque, packed, padded
from recallmap.arch.kernels.triton_tiles.packed_matrices import apart, block_of, block_sums, in_own_block

WIDEST = 32  # columns
MOST_VECTORS = 64
ACROSS = 32  # columns of tokens side by side

_LINEAR, _CUBIC, _QUINTIC = tl.constexpr(LINEAR), tl.constexpr(CUBIC), tl.constexpr(QUINTIC)
_EPS, _LEAST = tl.constexpr(EPS), tl.constexpr(LEAST)
BS = tl.constexpr(16)
BR = tl.constexpr(32)
ALONE = {"num_warps": 1, "num_stages": 1}  # of programs of one block


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    vectors, columns = sizes.get("key_width", 1), sizes.get("value_width", 1)
    if columns > WIDEST:
        return f"takes matrices of at most {WIDEST} columns, got {columns}"
    return f"takes at most {MOST_VECTORS} vectors, got {vectors}" if vectors > MOST_VECTORS else None


def fused(x: Tensor, d: Tensor, u: Tensor, *, steps: int) -> Tensor:
    """x [B, T, H, S], d [B, H, S, C], u [B, H, R, S] -> [B, T, H, C, C].

    Inputs of half precision go in as fp32: Triton 3.6 has no tensor core product in fp64 of numbers that were read in 16 bits.
    """
    wide = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (x, d, u))
    y, _, _ = _spanned_newton_schulz(*wide, steps, torch.is_grad_enabled())
    return y.to(x.dtype)


@triton.jit
def _times(x, y):
    return tl.dot(x, y, out_dtype=tl.float64)


@triton.jit
def _places(T, H, C: tl.constexpr, CP: tl.constexpr, W: tl.constexpr):
    """The head of a program's tile, the number of its matrix (with several, that of each column, [1, W]), and for every
    column its channel and a mask of those that exist."""
    parts = tl.cdiv(T, W // CP)
    pid = tl.program_id(0)
    head, token = pid // (parts * H) * H + pid % H, pid // H % parts * (W // CP)
    column = tl.arange(0, W)
    channel = column % CP
    there = channel < C
    if CP < W:
        token += (column // CP)[None, :]
        there &= pid // H % parts * (W // CP) + column // CP < T
        token = tl.minimum(token, T - 1)
    return head, (head // H).to(tl.int64) * T * H + token * H + head % H, channel, there


@triton.jit
def _square_places(n, channel, there, C: tl.constexpr, CP: tl.constexpr, W: tl.constexpr):
    """Where the entries of a tile's matrices are, one behind the other, and which there are."""
    entries = (channel < C)[:, None] & there[None, :]
    if CP < W:
        entries &= in_own_block(CP, W)
    return n * (C * C) + channel[:, None] * C + channel[None, :], entries


@triton.jit
def _scaled(x, by, OWN: tl.constexpr, W: tl.constexpr):
    """Each block by its own number, as `block_sums` gives it."""
    return apart(x * by, OWN, W)


@triton.jit
def _product(x, y, CP: tl.constexpr, W: tl.constexpr):
    """The product of the blocks."""
    return apart(_times(x, y), CP, W)


@triton.jit
def _rows(x, d, n, there, channel, first, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, W: tl.constexpr):
    """Rows of diag(x) D, for the x of a tile's tokens and a head's D side by side, BS rows from the first on."""
    row = first + tl.arange(0, BS)
    x_b = tl.load(x + n * S + row[:, None], mask=(row < S)[:, None], other=0.0).to(tl.float64)
    d_there = (row < S)[:, None] & there[None, :]
    return x_b * tl.load(d + row[:, None] * C + channel[None, :], mask=d_there, other=0.0).to(tl.float64)


@triton.jit
def _grams(gram, first, other, S: tl.constexpr):
    """BS rows of a head's G from the first on, and BS columns from the other on."""
    row, column = first + tl.arange(0, BS), other + tl.arange(0, BS)
    there = (row[:, None] < S) & (column[None, :] < S)
    return tl.load(gram + row[:, None] * S + column[None, :], mask=there, other=0.0).to(tl.float64)


@triton.jit
def _vectors(u, first, start, R, S: tl.constexpr):
    """BR rows of a head's U from the first on, of BS vectors from the start on."""
    row, column = first + tl.arange(0, BR), start + tl.arange(0, BS)
    there = (row[:, None] < R) & (column[None, :] < S)
    return tl.load(u + row[:, None] * S + column[None, :], mask=there, other=0.0).to(tl.float64)


@triton.jit(do_not_specialize=["R"])
def _spanned_newton_schulz_square_kernel(u, gram, R, S: tl.constexpr):
    """A head's G, BS rows by BS columns."""
    blocks = tl.cdiv(S, BS)
    head, block = (tl.program_id(0) // (blocks * blocks)).to(tl.int64), tl.program_id(0) % (blocks * blocks)
    own, other = block // blocks * BS, block % blocks * BS
    u += head * R * S
    total = tl.zeros([BS, BS], tl.float64)
    for first in range(0, R, BR):
        total += _times(tl.trans(_vectors(u, first, own, R, S)), _vectors(u, first, other, R, S))
    row, column = own + tl.arange(0, BS), other + tl.arange(0, BS)
    there = (row[:, None] < S) & (column[None, :] < S)
    tl.store(gram + head * (S * S) + row[:, None] * S + column[None, :], total, mask=there)


@triton.jit(do_not_specialize=["R"])
def _spanned_newton_schulz_vectors_kernel(u, dgram, du, R, S: tl.constexpr):
    """dU of a head, BR rows by BS vectors."""
    blocks, parts = tl.cdiv(S, BS), tl.cdiv(R, BR)
    head, part = (tl.program_id(0) // (blocks * parts)).to(tl.int64), tl.program_id(0) % (blocks * parts)
    own, first = part % blocks * BS, part // blocks * BR
    u += head * R * S
    dgram += head * (S * S)
    total = tl.zeros([BR, BS], tl.float64)
    for other in range(0, S, BS):
        slope = _grams(dgram, other, own, S) + tl.trans(_grams(dgram, own, other, S))
        total += _times(_vectors(u, first, other, R, S), slope)
    row, column = first + tl.arange(0, BR), own + tl.arange(0, BS)
    there = (row[:, None] < R) & (column[None, :] < S)
    to = du + head * R * S + row[:, None] * S + column[None, :]
    tl.store(to, total.to(du.dtype.element_ty), mask=there)


@triton.jit
def _square(
    x, d, gram, n, there, channel, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """P^T P of a tile's matrices, by a head's D and G."""
    square = tl.zeros([W, W], tl.float64)
    for first in range(0, S, BS):
        seen = tl.zeros([BS, W], tl.float64)
        for other in range(0, S, BS):
            seen += _times(_grams(gram, first, other, S), _rows(x, d, n, there, channel, other, S, C, CP, W))
        square += _times(tl.trans(_rows(x, d, n, there, channel, first, S, C, CP, W)), seen)
    return apart((square + tl.trans(square)) * 0.5, CP, W)


@triton.jit
def _begun(square, CP: tl.constexpr, W: tl.constexpr):
    """A tile of 1 and 0, the trace of every block and its root."""
    unit = tl.where(tl.arange(0, W)[:, None] == tl.arange(0, W)[None, :], 1.0, 0.0).to(tl.float64)
    trace = block_sums(square * unit, CP, W)
    return unit, trace, tl.sqrt(tl.maximum(trace, _LEAST))


@triton.jit
def _by(gram, unit, CP: tl.constexpr, W: tl.constexpr):
    return unit * _LINEAR + gram * _CUBIC + _product(gram, gram, CP, W) * _QUINTIC


@triton.jit(do_not_specialize=["steps", "T", "H"])
def _spanned_newton_schulz_forward_kernel(
    x, d, gram, y, kept, steps, T, H,
    S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, W: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """kept [N, C, C]: every P^T P, in fp64."""
    head, n, channel, there = _places(T, H, C, CP, W)
    head = head.to(tl.int64)
    square = _square(x, d + head * (S * C), gram + head * (S * S), n, there, channel, S, C, CP, W)
    unit, _trace, size = _begun(square, CP, W)
    places, entries = _square_places(n, channel, there, C, CP, W)
    if KEEP:
        tl.store(kept + places, square, mask=entries)
    shrunk = 1.0 / (size + _EPS)
    square, factor = _scaled(square, shrunk * shrunk, CP, W), _scaled(unit, shrunk, CP, W)
    for step in range(steps):
        by = _by(square, unit, CP, W)
        factor = _product(by, factor, CP, W)
        if step + 1 < steps:
            square = _product(_product(by, square, CP, W), by, CP, W)
    tl.store(y + places, factor.to(y.dtype.element_ty), mask=entries)


@triton.jit(do_not_specialize=["steps", "T", "H"])
def _spanned_newton_schulz_squares_kernel(
    dy, x, d, kept, z_da, steps, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, W: tl.constexpr
):  # fmt: skip
    """Z dA of every matrix, [N, S, C] in fp64."""
    head, n, channel, there = _places(T, H, C, CP, W)
    places, entries = _square_places(n, channel, there, C, CP, W)
    given = tl.load(kept + places, mask=entries, other=0.0)
    unit, trace, size = _begun(given, CP, W)
    shrunk = 1.0 / (size + _EPS)
    by_y = tl.load(dy + places, mask=entries, other=0.0).to(tl.float64)
    square, factor = _scaled(given, shrunk * shrunk, CP, W), unit
    d_square, d_factor = _scaled(by_y + tl.trans(by_y), 0.5 * shrunk, CP, W), unit * 0.0
    for step in range(steps):
        by = _by(square, unit, CP, W)
        turn = _product(d_square, square, CP, W)
        d_by = d_square * _CUBIC + (turn + tl.trans(turn)) * _QUINTIC
        d_factor = _product(d_by, factor, CP, W) + _product(by, d_factor, CP, W)
        factor = _product(by, factor, CP, W)
        if step + 1 < steps:
            half = _product(by, square, CP, W)
            turn = _product(d_by, half, CP, W)
            d_square = turn + tl.trans(turn) + _product(_product(by, d_square, CP, W), by, CP, W)
            square = _product(half, by, CP, W)
    d_shrunk = block_sums(by_y * factor, CP, W) + 2.0 * shrunk * block_sums(d_factor * given, CP, W)
    d_trace = tl.where(trace >= _LEAST, -0.5 * d_shrunk * shrunk * shrunk / size, 0.0)
    da = _scaled(d_factor, shrunk * shrunk, CP, W) + _scaled(unit, d_trace, CP, W)
    d += head.to(tl.int64) * (S * C)
    for first in range(0, S, BS):
        z = _rows(x, d, n, there, channel, first, S, C, CP, W)
        if CP < W:
            # A value that is not finite makes its own dA nan, and must meet no other's 0. (z - z may be a rounding error.)
            z = tl.where(tl.abs(z) < float("inf"), z, 0.0)
        vector = first + tl.arange(0, BS)
        in_z = (vector < S)[:, None] & there[None, :]
        to = z_da + n * (S * C) + vector[:, None] * C + channel[None, :]
        tl.store(to, _times(z, da), mask=in_z)


@triton.jit
def _side_by_side(at, rows, first, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, BT: tl.constexpr):
    """BT tokens' [S, C] side by side, the token's part of a place and the row's, and which places there are."""
    token, column = first + tl.arange(0, BT * CP) // CP, tl.arange(0, BT * CP) % CP
    there = (rows < S)[:, None] & ((token < T) & (column < C))[None, :]
    return (at + token * H)[None, :], rows[:, None], column[None, :], there


@triton.jit(do_not_specialize=["T", "H"])
def _spanned_newton_schulz_grams_kernel(
    x, d, z_da, dgram, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, BT: tl.constexpr
):  # fmt: skip
    """dG by Z dA of every token, BS rows of a head by BS columns."""
    blocks = tl.cdiv(S, BS)
    head, block = tl.program_id(0) // (blocks * blocks), tl.program_id(0) % (blocks * blocks)
    own, other = block // blocks * BS + tl.arange(0, BS), block % blocks * BS + tl.arange(0, BS)
    n = (head // H).to(tl.int64) * T * H + head % H  # of the first token
    d += head.to(tl.int64) * (S * C)
    total = tl.zeros([BS, BS], tl.float64)
    for first in range(0, T, BT):
        at, row, column, there = _side_by_side(n, other, first, T, H, S, C, CP, BT)
        z = tl.load(x + at * S + row, mask=there, other=0.0).to(tl.float64)
        z *= tl.load(d + row * C + column, mask=there, other=0.0).to(tl.float64)
        at, row, column, there = _side_by_side(n, own, first, T, H, S, C, CP, BT)
        total += _times(tl.load(z_da + at * (S * C) + row * C + column, mask=there, other=0.0), tl.trans(z))
    there = (own < S)[:, None] & (other < S)[None, :]
    to = dgram + head.to(tl.int64) * (S * S) + own[:, None] * S + other[None, :]
    tl.store(to, total, mask=there)


@triton.jit(do_not_specialize=["T", "H"])
def _spanned_newton_schulz_sums_kernel(
    x, d, gram, z_da, dx, dd, T, H, S: tl.constexpr, C: tl.constexpr, CP: tl.constexpr, BT: tl.constexpr
):  # fmt: skip
    """dx and dD by Z dA of every token, BS vectors of a head."""
    blocks = tl.cdiv(S, BS)
    head, start = tl.program_id(0) // blocks, tl.program_id(0) % blocks * BS
    n = (head // H).to(tl.int64) * T * H + head % H  # of the first token
    d += head.to(tl.int64) * (S * C)
    gram += head.to(tl.int64) * (S * S)
    own = start + tl.arange(0, BS)
    sum_d = tl.zeros([BS, CP], tl.float64)
    for first in range(0, T, BT):
        dz = tl.zeros([BS, BT * CP], tl.float64)
        for other in range(0, S, BS):
            at, row, column, there = _side_by_side(n, other + tl.arange(0, BS), first, T, H, S, C, CP, BT)
            other_z_da = tl.load(z_da + at * (S * C) + row * C + column, mask=there, other=0.0)
            dz += _times(_grams(gram, start, other, S), other_z_da)
        dz *= 2.0
        at, row, column, there = _side_by_side(n, own, first, T, H, S, C, CP, BT)
        d_b = tl.load(d + row * C + column, mask=there, other=0.0).to(tl.float64)
        x_b = tl.load(x + at * S + row, mask=there, other=0.0).to(tl.float64)
        token = first + tl.arange(0, BT)
        by_token = tl.sum(tl.reshape(dz * d_b, [BS, BT, CP]), 2)
        there = (own < S)[:, None] & (token < T)[None, :]
        tl.store(dx + (n + token * H)[None, :] * S + own[:, None], by_token.to(dx.dtype.element_ty), mask=there)
        sum_d += tl.sum(tl.reshape(dz * x_b, [BS, BT, CP]), 1)
    column = tl.arange(0, CP)
    there = (own < S)[:, None] & (column < C)[None, :]
    to = dd + head.to(tl.int64) * (S * C) + own[:, None] * C + column[None, :]
    tl.store(to, sum_d.to(dd.dtype.element_ty), mask=there)


def _forward(x: Tensor, d: Tensor, u: Tensor, steps: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Q, U^T U, and every P^T P where they are to be kept."""
    y, gram, kept = _outputs(x, d, u, steps, keep)
    (batch, time, heads, _), (rows, vectors) = x.shape, u.shape[-2:]
    blocks = triton.cdiv(vectors, BS.value)
    _spanned_newton_schulz_square_kernel[batch * heads * blocks**2,](packed(u), gram, rows, vectors, **ALONE)
    given = packed(x), packed(d), gram, y, kept
    tiles, sizes = _tiles(x, d)
    _spanned_newton_schulz_forward_kernel[tiles,](*given, steps, time, heads, **sizes, KEEP=keep)
    return y, gram, kept


def _outputs(x: Tensor, d: Tensor, u: Tensor, steps: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    vectors, columns = d.shape[-2:]
    gram = u.new_empty(*u.shape[:2], vectors, vectors, dtype=torch.float64)
    y = x.new_empty(*x.shape[:3], columns, columns)
    kept = y.shape if keep else (y.shape[0], 0, *y.shape[2:])
    return y, gram, y.new_empty(kept, dtype=torch.float64)


def _backward(
    dy: Tensor, x: Tensor, d: Tensor, u: Tensor, steps: int, keep: bool, gram: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dd, du = _gradients(dy, x, d, u, steps, keep, gram, kept)
    (batch, time, heads, vectors), rows = x.shape, u.shape[-2]
    tiles, sizes = _tiles(x, d)
    x, d, gram = x.contiguous(), d.contiguous(), gram.contiguous()
    z_da = x.new_empty(x.shape[:3].numel(), *d.shape[-2:], dtype=torch.float64)
    dgram = torch.empty_like(gram)
    _spanned_newton_schulz_squares_kernel[tiles,](packed(dy), x, d, packed(kept), z_da, steps, time, heads, **sizes)
    blocks, across = triton.cdiv(vectors, BS.value), {n: size for n, size in sizes.items() if n != "W"}
    across["BT"] = ACROSS // across["CP"]
    # Programs of one head are neighbours: they read the same.
    _spanned_newton_schulz_sums_kernel[batch * heads * blocks,](x, d, gram, z_da, dx, dd, time, heads, **across)
    _spanned_newton_schulz_grams_kernel[batch * heads * blocks**2,](x, d, z_da, dgram, time, heads, **across)
    _spanned_newton_schulz_vectors_kernel[batch * heads * blocks * triton.cdiv(rows, BR.value),](
        packed(u), dgram, du, rows, vectors, **ALONE
    )
    return dx, dd, du


def _gradients(
    dy: Tensor, x: Tensor, d: Tensor, u: Tensor, steps: int, keep: bool, gram: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), d.new_empty(d.shape), u.new_empty(u.shape)


def _tiles(x: Tensor, d: Tensor) -> tuple[int, dict[str, Any]]:
    """How many tiles hold all matrices, and their sizes."""
    (batch, time, heads, vectors), columns = x.shape, d.shape[-1]
    width = padded(columns)
    own = block_of(columns)
    sizes = {"S": vectors, "C": columns, "CP": own, "W": width, "num_warps": 1 if width <= 16 else 4, "num_stages": 1}
    return batch * heads * triton.cdiv(time, width // own), sizes


_spanned_newton_schulz = opaque(
    "spanned_newton_schulz", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1
)
