"""Linear attention: a sum of outer products that never fades.

S_t = S_{t-1} + phi(k_t)^T v_t,   z_t = z_{t-1} + phi(k_t),   o_t = phi(q_t) S_t / (phi(q_t) . z_t)

B batch, T time, D model width, H heads, F features, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.feature_map import SIGNED, FeatureMap, count_features, features
from recallmap.arch.parts.heads import Heads, HeadsState, QueryKeyValue, ReadOut

EPS = 1e-6  # beside the normaliser, which is 0 where no feature of the query has been written


@dataclass(frozen=True, kw_only=True)
class LinearAttention(Heads, MixerSpec):
    """Linear attention. `feature_map` "taylor" with small keys is Based; "identity" without `normalize` is a plain sum of
    outer products.

    feature_map  what keys and queries pass through
    normalize  divide by the sum of the kernel's weights, as softmax does
    qk_norm    q and k of L2 norm 1
    """

    kind: Literal["linear_attention"] = "linear_attention"
    short_conv: int = 0
    activation: Literal["silu", "identity"] = "identity"
    out_norm: Literal["head", "shared", "none"] = "none"
    qk_norm: bool = False
    feature_map: FeatureMap = "elu_plus_one"
    normalize: bool = True

    equation: ClassVar[str] = "S_t = S_{t-1} + phi(k_t)^T v_t,  o_t = phi(q_t) S_t / (phi(q_t) . z_t)"
    state_formula: ClassVar[str] = "H F (V + 1 with normalize) + (taps - 1) channels"
    source: ClassVar[str] = "Katharopoulos et al. 2020, eq. 16-18; Taylor features: Arora et al. 2024 (Based)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize and self.feature_map in SIGNED:
            raise ValueError(
                f"feature_map {self.feature_map!r} has negative weights, whose sum may vanish; "
                "set normalize to false, or take 'elu_plus_one', 'relu', 'square' or 'taylor'"
            )

    def differs(self) -> tuple[str, ...]:
        if not self.normalize or self.feature_map == "taylor":
            return ()
        return (
            "flash-linear-attention's layer of that name is another: no normaliser, but an RMSNorm and 1 / sqrt(K)",
        )

    def build(self, width: int) -> MixerModule:
        return _LinearAttention(self, width)

    def parameters(self, width: int) -> int:
        return self.parameters_around(width)

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        columns = value_dim + (1 if self.normalize else 0)
        return StateSize(self.heads * count_features(self.feature_map, key_dim) * columns + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        columns = value_dim + (1 if self.normalize else 0)
        core = 4 * count_features(self.feature_map, key_dim) * columns
        return self.flops_around(width) + self.heads * core

    def memory(self, width: int) -> Memory:
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            q, k = (features(self.feature_map, x) for x in (q, k))
            if not self.normalize:
                return kernels.gated_linear(q, k, v, beta=write)[0]
            o = kernels.gated_linear(q, k, torch.cat([v, torch.ones_like(v[..., :1])], dim=-1), beta=write)[0]
            return o[..., :-1] / (o[..., -1:] + EPS)

        bounds = {"features": count_features(self.feature_map, key_dim)}
        return Memory(self.heads, key_dim, value_dim, answer, bounds)


class _LinearAttention(MixerModule):
    def __init__(self, spec: LinearAttention, width: int) -> None:
        super().__init__()
        self.spec = spec
        self.qkv = QueryKeyValue(spec, width, qk_norm=spec.qk_norm)
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * spec.sizes(width)[1], width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        q_BTHF, k_BTHF = (features(self.spec.feature_map, x) for x in (q_BTHK, k_BTHK))
        if self.spec.normalize:  # the normaliser is one more value, always 1
            v_BTHV = torch.cat([v_BTHV, torch.ones_like(v_BTHV[..., :1])], dim=-1)
        o_BTHV, memory = kernels.gated_linear(
            q_BTHF,
            k_BTHF,
            v_BTHV,
            scale=1.0,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        if self.spec.normalize:
            o_BTHV = o_BTHV[..., :-1] / (o_BTHV[..., -1:] + EPS)
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)
