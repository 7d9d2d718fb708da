"""PolySketch: linear attention whose features sketch an even power of q . k and never give a negative weight.

S_t = S_{t-1} + phi(k_t)^T v_t,   z_t = z_{t-1} + phi(k_t),   o_t = phi(q_t) S_t / (1 + phi(q_t) . z_t)

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.heads import Heads, HeadsState, QueryKeyValue, ReadOut, check_at_least, check_normed
from recallmap.arch.parts.poly import PolySketch
from recallmap.arch.parts.precision import widen


@dataclass(frozen=True, kw_only=True)
class PolySketchFormer(Heads, MixerSpec):
    """Linear attention with sketched polynomial features.

    degree     the power that is sketched: 2 (exactly), 4, 8 or 16
    sketch     width of the sketch of half the power
    normalize  divide by 1 + the sum of the weights
    """

    kind: Literal["polysketch"] = "polysketch"
    short_conv: int = 0
    activation: Literal["silu", "identity"] = "identity"
    out_norm: Literal["head", "shared", "none"] = "none"
    degree: Literal[2, 4, 8, 16] = 4
    sketch: int = 16
    normalize: bool = True

    equation: ClassVar[str] = "S_t = S_{t-1} + phi(k_t)^T v_t,  o_t = phi(q_t) S_t / (1 + phi(q_t) . z_t)"
    state_formula: ClassVar[str] = "H R^2 (V + 1 with normalize) + (taps - 1) channels"
    source: ClassVar[str] = "Kacham et al. 2024 (PolySketchFormer), without their exact local blocks"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, sketch=self.sketch)
        if self.degree not in (2, 4, 8, 16):
            raise ValueError(f"degree must be 2, 4, 8 or 16, got {self.degree}")

    def differs(self) -> tuple[str, ...]:
        return ("no exact attention within local blocks, which theirs has",)

    def check(self, width: int) -> None:
        super().check(width)
        check_normed("keys", self.sizes(width)[0])

    def features(self, width: int) -> int:
        return PolySketch.count(self.sizes(width)[0], self.degree, self.sketch)

    def build(self, width: int) -> MixerModule:
        return _PolySketchFormer(self, width)

    def parameters(self, width: int) -> int:
        maps = PolySketch.parameters_of(self.sizes(width)[0], self.degree, self.sketch)
        return self.parameters_around(width) + maps

    def state_size(self, width: int, length: int) -> StateSize:
        columns = self.sizes(width)[1] + self.normalize
        return StateSize(self.heads * self.features(width) * columns + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        leaves, rows, sketching = self.degree // 2, key_dim, 0
        while leaves > 1:
            sketching += leaves * 2 * rows * self.sketch
            leaves, rows = leaves // 2, self.sketch
        core = 2 * (sketching + self.features(width)) + 4 * self.features(width) * (value_dim + self.normalize)
        return self.flops_around(width) + self.heads * core

    def memory(self, width: int) -> Memory:
        key_dim, value_dim = self.sizes(width)
        sketch = PolySketch(key_dim, self.degree, self.sketch)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            sketch.to(q)
            q, k = (sketch(_standard(x)) for x in (q, k))
            if not self.normalize:
                return kernels.gated_linear(q, k, v, beta=write)[0]
            o = kernels.gated_linear(q, k, torch.cat([v, torch.ones_like(v[..., :1])], dim=-1), beta=write)[0]
            return o[..., :-1] / (1 + o[..., -1:])

        return Memory(self.heads, key_dim, value_dim, answer, {"features": self.features(width)})


class _PolySketchFormer(MixerModule):
    def __init__(self, spec: PolySketchFormer, width: int) -> None:
        super().__init__()
        self.spec = spec
        key_dim, value_dim = spec.sizes(width)
        self.qkv = QueryKeyValue(spec, width, qk_norm=False)
        self.features = PolySketch(key_dim, spec.degree, spec.sketch)
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        q_BTHF, k_BTHF = (self.features(_standard(x)) for x in (q_BTHK, k_BTHK))
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
            o_BTHV = o_BTHV[..., :-1] / (1 + o_BTHV[..., -1:])
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)


def _standard(x: Tensor) -> Tensor:
    """LayerNorm over a head's channels, then length at most 1, so that powers of q . k stay in reach."""
    wide = widen(x)
    return F.layer_norm(wide, wide.shape[-1:]) * wide.shape[-1] ** -0.5
