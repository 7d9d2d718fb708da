"""Mixer: every way to move information along time. The registry of mixers is this type."""

from __future__ import annotations

from arch.mixers.attention import Attention
from arch.mixers.base_conv import BaseConv
from arch.mixers.deltanet import DeltaNet
from arch.mixers.gated_deltanet import GatedDeltaNet
from arch.mixers.gla import GatedLinearAttention
from arch.mixers.linear_attention import LinearAttention
from arch.mixers.mamba2 import Mamba2
from arch.mixers.mesa import Mesa

Mixer = Attention | BaseConv | DeltaNet | GatedDeltaNet | GatedLinearAttention | LinearAttention | Mamba2 | Mesa
