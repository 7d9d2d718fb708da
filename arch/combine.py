"""A memory and an attention in one residual block: side by side, one behind the other, or one in the other's context.

gate     (MAG)  o = norm(attention(z)) * silu(norm(memory(z)))                          z = [persistent; x]
layer    (MAL)  o = attention(norm(memory(z)))                                           z = [persistent; x]
context  (MAC)  y = attention([persistent; h_1, x_1, h_2, x_2, ...]) at the x of one segment,  h = M(x) as it stood ahead
                of the segment,   the memory learns y,   o = norm(y) * silu(norm(memory(y)))

Persistent tokens are learned vectors ahead of the first token. Behrouz et al. 2025 (Titans), section 4. There MAC shows a whole
segment's h to each of its tokens; here a token sees those up to its own, for else the future would reach the past.

B batch, T time, D model width, P persistent tokens, C tokens a segment
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from arch.block import Block, BlockModule
from arch.mixers import Mixer
from arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from arch.mlp import Mlp
from arch.parts.heads import check_at_least
from arch.parts.memory_heads import MemoryHeads
from arch.parts.norm import Norm, RMSNorm


@dataclass(frozen=True, kw_only=True)
class Gate(Block):
    """Both see the tokens; what the memory answers gates what attention answers (MAG)."""
