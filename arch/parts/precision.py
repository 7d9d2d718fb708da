"""Higher precision where 16 bits are too few: statistics, gates and angles are computed in float32 at least."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """Return x if it is float32 or wider, otherwise x in float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
