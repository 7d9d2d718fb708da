"""The union of all mixers, `Mixer`, which is their registry."""

from __future__ import annotations

from recallmap.arch.mixers.attention import Attention
from recallmap.arch.mixers.base_conv import BaseConv
from recallmap.arch.mixers.comba import Comba
from recallmap.arch.mixers.delta_product import DeltaProduct
from recallmap.arch.mixers.deltanet import DeltaNet
from recallmap.arch.mixers.fox import Fox
from recallmap.arch.mixers.gated_deltanet import GatedDeltaNet
from recallmap.arch.mixers.gdn2 import GDN2
from recallmap.arch.mixers.gka import Gka
from recallmap.arch.mixers.gla import GatedLinearAttention
from recallmap.arch.mixers.gsa import Gsa
from recallmap.arch.mixers.hawk import Hawk
from recallmap.arch.mixers.hgrn2 import HGRN2
from recallmap.arch.mixers.kda import KDA
from recallmap.arch.mixers.kernel_memory import DeepTransformer, Dot, Swdt
from recallmap.arch.mixers.linear_attention import LinearAttention
from recallmap.arch.mixers.log_linear import LogLinear
from recallmap.arch.mixers.longhorn import Longhorn
from recallmap.arch.mixers.mamba1 import Mamba1
from recallmap.arch.mixers.mamba2 import Mamba2
from recallmap.arch.mixers.mamba3 import Mamba3
from recallmap.arch.mixers.memory import (
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
from recallmap.arch.mixers.mesa import Mesa
from recallmap.arch.mixers.mesa_rls import MesaRls
from recallmap.arch.mixers.mlstm import MLSTM
from recallmap.arch.mixers.momentum_deltanet import MomentumDeltaNet
from recallmap.arch.mixers.path import Path
from recallmap.arch.mixers.polysketch import PolySketchFormer
from recallmap.arch.mixers.raven import Raven
from recallmap.arch.mixers.retnet import RetNet
from recallmap.arch.mixers.rwkv7 import Rwkv7

Mixer = (
    Atlas
    | AtlasPp
    | Attention
    | BaseConv
    | Comba
    | DeepTransformer
    | DeltaNet
    | DeltaProduct
    | Dla
    | Dot
    | GDN2
    | Fox
    | GatedDeltaNet
    | GatedLinearAttention
    | Gka
    | Gsa
    | HGRN2
    | Hawk
    | KDA
    | LinearAttention
    | LogLinear
    | Longhorn
    | MLSTM
    | Mamba1
    | Mamba2
    | Mamba3
    | Memora
    | Mesa
    | MesaRls
    | MomentumDeltaNet
    | Moneta
    | OmegaNet
    | Path
    | PolySketchFormer
    | Raven
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
