"""Launches of Newton-Schulz' kernels, forward and backward, as one custom op."""

from typing import Any

import triton
from torch import Tensor

from recallmap.arch.kernels.newton_schulz.fused.in_registers import (
    newton_schulz_backward_kernel,
    newton_schulz_forward_kernel,
)
from recallmap.arch.kernels.newton_schulz.fused.in_scratch import (
    newton_schulz_tiled_backward_kernel,
    newton_schulz_tiled_forward_kernel,
)
from recallmap.arch.kernels.newton_schulz.fused.long_matrices import (
    newton_schulz_long_backward_kernel,
    newton_schulz_long_forward_kernel,
)
from recallmap.arch.kernels.newton_schulz.fused.plan import SCRATCH, Form, form_for
from recallmap.arch.kernels.op_interface.custom_op import matrices, opaque, padded, scratch
from recallmap.arch.kernels.triton_tiles.packed_matrices import block_of


def _forward(x: Tensor, steps: int) -> tuple[Tensor]:
    x, where = _layout(x)
    (y,) = _outputs(x, steps)
    form, sizes = _sizes(x)
    if form.tile is None and form.block is None:
        tiles = triton.cdiv(matrices(x), sizes["RP"] // sizes["OWN"])
        newton_schulz_forward_kernel[tiles,](x, y, *where, steps, matrices(x), **sizes, **form.options())
        return (y,)
    if form.tile is None:
        newton_schulz_long_forward_kernel[matrices(x),](x, y, *where, steps, **sizes, **form.options())
        return (y,)
    squares, others = sizes["RP"] ** 2, sizes["RP"] * sizes["CP"]
    room, programs = scratch(x, 3 * squares + 2 * others, SCRATCH)
    newton_schulz_tiled_forward_kernel[programs,](x, y, room, *where, steps, matrices(x), **sizes, **form.options())
    return (y,)


def _outputs(x: Tensor, steps: int) -> tuple[Tensor]:
    return (x.new_empty(x.shape),)


def _backward(dy: Tensor, x: Tensor, steps: int) -> tuple[Tensor]:
    dy, (x, where) = dy.contiguous(), _layout(x)
    (dx,) = _gradients(dy, x, steps)
    form, sizes = _sizes(x)
    squares, others = sizes["RP"] ** 2, sizes["RP"] * sizes["CP"]
    if form.block is not None:
        kernel, floats = newton_schulz_long_backward_kernel, 2 * steps * squares
    elif form.tile is None:
        kernel, floats = newton_schulz_backward_kernel, steps * others
    else:
        kernel, floats = newton_schulz_tiled_backward_kernel, 5 * squares + (2 + steps) * others
    room, programs = scratch(x, floats, SCRATCH)
    kernel[programs,](dy, x, dx, room, *where, steps, matrices(x), **sizes, **form.options())
    return (dx,)


def _gradients(dy: Tensor, x: Tensor, steps: int) -> tuple[Tensor]:
    return (x.new_empty(x.shape),)


def _layout(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """x, copied where it must be, and how many matrices lie at equal distances; the distances of such groups, of matrices in
    one, and of rows and columns in the wide form of a matrix."""
    groups: list[tuple[int, int]] = []
    for size, stride in zip(x.shape[:-2], x.stride()[:-2], strict=True):
        if size > 1 and groups and groups[-1][1] == size * stride:
            groups[-1] = (groups[-1][0] * size, stride)
        elif size > 1:
            groups.append((size, stride))
    if len(groups) > 2:
        return _layout(x.contiguous())
    (_, outer), (size, inner) = [(1, 0), (1, 0), *groups][-2:]
    row, column = x.stride()[-2:]
    return x, (size, outer, inner, *((column, row) if x.shape[-2] > x.shape[-1] else (row, column)))


def _sizes(x: Tensor) -> tuple[Form, dict[str, Any]]:
    rows, columns = sorted(x.shape[-2:])
    tall = x.shape[-2] > x.shape[-1]
    form = form_for(padded(rows), padded(columns))
    sizes = {"R": rows, "C": columns, "RP": padded(rows), "CP": padded(columns), "TALL": tall}
    if form.tile is None and form.block is None:
        sizes["OWN"] = min(block_of(columns), sizes["RP"])
    return form, sizes


newton_schulz_op = opaque(
    "newton_schulz", _forward, _backward, outputs=_outputs, gradients=_gradients, differentiable=1
)
