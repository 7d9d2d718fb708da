"""Newton-Schulz, all matrices at once; its backward pass goes through the steps again."""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.newton_schulz.recurrent import orthogonal
from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.op_interface.recompute import recomputed


def chunked(x: Tensor, *, steps: int) -> Tensor:
    """All matrices [..., rows, columns]."""
    return recomputed(orthogonal, x.to(working_dtype(x)), steps).to(x.dtype)
