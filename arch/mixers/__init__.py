"""Mixer: every way to move information along time. The registry of mixers is this type."""

from __future__ import annotations

from arch.mixers.attention import Attention
from arch.mixers.base_conv import BaseConv
from arch.mixers.deltanet import DeltaNet
from arch.mixers.gated_deltanet import GatedDeltaNet
from arch.mixers.gla import GatedLinearAttention
from arch.mixers.hawk import Hawk
from arch.mixers.hgrn2 import HGRN2
from arch.mixers.kernel_memory import DeepTransformer, Dot, Swdt
from arch.mixers.linear_attention import LinearAttention
from arch.mixers.longhorn import Longhorn
from arch.mixers.mamba1 import Mamba1
from arch.mixers.mamba2 import Mamba2
from arch.mixers.memory import (
    Atlas,
    AtlasPp,
    Dla,
    Memora,
    Moneta,
    OmegaNet,
    Swla,
    Titans,
    TitansMinus,
    TttLinear,
    TttMlp,
    Yaad,
)
from arch.mixers.mesa import Mesa
from arch.mixers.mesa_rls import MesaRls
from arch.mixers.mlstm import MLSTM
from arch.mixers.polysketch import PolySketchFormer
from arch.mixers.retnet import RetNet
from arch.mixers.rwkv7 import Rwkv7

Mixer = (
    Atlas
    | AtlasPp
    | Attention
    | BaseConv
    | DeepTransformer
    | DeltaNet
    | Dla
    | Dot
    | GatedDeltaNet
    | GatedLinearAttention
    | HGRN2
    | Hawk
    | LinearAttention
    | Longhorn
    | MLSTM
    | Mamba1
    | Mamba2
    | Memora
    | Mesa
    | MesaRls
    | Moneta
    | OmegaNet
    | PolySketchFormer
    | RetNet
    | Rwkv7
    | Swdt
    | Swla
    | Titans
    | TitansMinus
    | TttLinear
    | TttMlp
    | Yaad
)
