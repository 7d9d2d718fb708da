"""The short convolution over all tokens at once, as a sum of shifted products: one kernel when compiled."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.short_conv.recurrent import shaped


def chunked(
    x: Tensor,
    *,
    weight: Tensor,
    bias: Tensor | None,
    activation: str,
    unit: bool,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence; `chunk` has no meaning here."""
    dtype = working_dtype(x, weight, bias, initial_state)
    time, past = x.shape[1], weight.shape[-1] - 1
    wide, taps = x.to(dtype), weight.to(dtype).unbind(-1)
    before = F.pad(wide[:, :0], (0, 0, 0, 0, past, 0)) if initial_state is None else initial_state.to(dtype)
    seen = torch.cat([before, wide], 1)
    z = seen[:, past:] * taps[0]
    for ago in range(1, past + 1):
        z = z + seen[:, past - ago : past - ago + time] * taps[ago]
    return shaped(z, bias, activation, unit).to(x.dtype), seen[:, time:] if return_state else None
