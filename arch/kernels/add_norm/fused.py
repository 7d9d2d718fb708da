"""The sum and its norm, one launch forward and one backward, and a sum: each input is read once.

s = x + a,   n = r s * w,  r = (mean(s^2) + eps)^{-1/2}
u = dn * w,  dx = ds + r (u - r s mean(r s * u)) = da,   dw = sum of dn * r s

A program takes a block of rows (the heads of all tokens of a group of sequences), all their channels. Backward adds up dw over
a piece of a group's rows; the pieces of a group are summed behind it, always in the same order.

G groups of members (weights [G, V]), R rows of a group, V width
"""

# mypy: disable-error-code="no-untyped-def"
# Kernels have no types that Python could tell.

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

from recallmap.arch.kernels.op_interface.custom_op import opaque
from recallmap.arch.kernels.op_interface.input_checks import promoted

WIDEST = 1024
TILE, BACKWARD_TILE = 2048, 1024  # entries of a block
MOST_ROWS = 32
PROGRAMS = 2048  # into which backward cuts rows, where there are fewer groups
WARPS = 4


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    width = sizes.get("value_width", 1)
    return f"holds heads up to {WIDEST} wide, got {width}" if width > WIDEST else None


def fused(x: Tensor, added: Tensor, *, weight: Tensor, eps: float, output: torch.dtype) -> tuple[Tensor, Tensor]:
    """The whole sequence."""
    total, norm = _add_norm(x, added, weight[None], eps, output)
    return total, norm


def _form(width: int, tile: int) -> dict[str, int]:
    """The constants of compilation: ROWS rows of WIDTH channels, powers of two both."""
    whole = triton.next_power_of_2(width)
    rows = max(1, min(MOST_ROWS, tile // whole))
    return {"V": width, "ROWS": rows, "WIDTH": whole, "num_warps": WARPS, "num_stages": 1}


@triton.jit
def _load(x, at, there):
    return tl.load(x + at, mask=there, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "blocks"])
def _add_norm_forward_kernel(
    x, added, weight, total, norm, rows, blocks, eps, V: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    group, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    row, channel = block * ROWS + tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
    there = (row < rows) & (channel < V)
    at = (group * rows + row) * V + channel
    s = (_load(x, at, there) + _load(added, at, there)).to(total.dtype.element_ty)
    tl.store(total + at, s, mask=there)
    s = s.to(tl.float32)
    w = _load(weight, group * V + channel, channel < V)
    n = s * tl.rsqrt(tl.sum(s * s, 1, keep_dims=True) / V + eps) * w
    tl.store(norm + at, n.to(norm.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows", "pieces", "length"])
def _add_norm_backward_kernel(
    d_total, d_norm, weight, total, dx, d_added, d_weight, rows, pieces, length, eps,
    V: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Derivatives of a piece of `length` rows, and its part in the one by the weight."""
    group, piece = (tl.program_id(0) // pieces).to(tl.int64), tl.program_id(0) % pieces
    channel = tl.arange(0, WIDTH)[None, :]
    w = _load(weight, group * V + channel, channel < V)
    # One sum for every row of the block: the rows are added up in the end alone.
    dw = tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(piece * length, tl.minimum(piece * length + length, rows), ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        there = (row < rows) & (channel < V)
        at = (group * rows + row) * V + channel
        s, dn = _load(total, at, there), _load(d_norm, at, there)
        r = tl.rsqrt(tl.sum(s * s, 1, keep_dims=True) / V + eps)
        n = s * r
        dw += dn * n
        u = dn * w
        d = r * (u - n * (tl.sum(n * u, 1, keep_dims=True) / V))
        if d_total is not None:
            d += _load(d_total, at, there)
        tl.store(dx + at, d.to(dx.dtype.element_ty), mask=there)
        tl.store(d_added + at, d.to(d_added.dtype.element_ty), mask=there)
    tl.store(d_weight + tl.program_id(0) * V + channel, tl.sum(dw, 0, keep_dims=True), mask=channel < V)


def _forward(x: Tensor, added: Tensor, weight: Tensor, eps: float, output: torch.dtype) -> tuple[Tensor, Tensor]:
    x, added, weight = x.contiguous(), added.contiguous(), weight.contiguous()
    total, norm = _outputs(x, added, weight, eps, output)
    groups, width = weight.shape
    rows, form = x.numel() // (groups * width), _form(width, TILE)
    blocks = triton.cdiv(rows, form["ROWS"])
    _add_norm_forward_kernel[(groups * blocks,)](x, added, weight, total, norm, rows, blocks, eps, **form)
    return total, norm


def _outputs(x: Tensor, added: Tensor, weight: Tensor, eps: float, output: torch.dtype) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=promoted(x, added)), x.new_empty(x.shape, dtype=output)


def _backward(
    d_total: Tensor | None,
    d_norm: Tensor,
    x: Tensor,
    added: Tensor,
    weight: Tensor,
    eps: float,
    output: torch.dtype,
    total: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    d_total = None if d_total is None else d_total.contiguous()
    d_norm, weight, total = d_norm.contiguous(), weight.contiguous(), total.contiguous()
    dx, d_added, _ = _gradients(d_total, d_norm, x, added, weight, eps, output, total)
    groups, width = weight.shape
    rows, form = total.numel() // (groups * width), _form(width, BACKWARD_TILE)
    blocks = triton.cdiv(rows, form["ROWS"])
    length = form["ROWS"] * triton.cdiv(blocks, min(blocks, triton.cdiv(PROGRAMS, groups)))
    pieces = triton.cdiv(rows, length)
    d_weight = total.new_empty(groups, pieces, width, dtype=torch.float32)
    _add_norm_backward_kernel[(groups * pieces,)](
        d_total, d_norm, weight, total, dx, d_added, d_weight, rows, pieces, length, eps, **form
    )
    return dx, d_added, d_weight.sum(1).to(weight.dtype)


def _gradients(
    d_total: Tensor | None,
    d_norm: Tensor,
    x: Tensor,
    added: Tensor,
    weight: Tensor,
    eps: float,
    output: torch.dtype,
    total: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        total.new_empty(total.shape, dtype=x.dtype),
        total.new_empty(total.shape, dtype=added.dtype),
        weight.new_empty(weight.shape),
    )


_add_norm = opaque(
    "add_norm",
    _forward,
    _backward,
    outputs=_outputs,
    gradients=_gradients,
    differentiable=2,
    unread=(0, 1),
    reread=(0,),
)
