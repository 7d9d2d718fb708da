"""Comba: a delta rule that corrects what the memory held before it faded, read less the token's own key.

S_t = a_t S_{t-1} - beta_t k_t^T (p_t S_{t-1}) + beta_t k_t^T v_t,   p_t = b k_t,   o_t = s (q_t - d k_t) S_t

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SoftplusDecay, WriteStrength
from recallmap.arch.parts.heads import HeadsState, QueryKeyValue, ReadOut, ScaledHeads

RATES = (1e-4, 16.0)  # of decay, before training


@dataclass(frozen=True, kw_only=True)
class Comba(ScaledHeads, MixerSpec):
    """Comba: Gated DeltaNet with two learned scalars a head and a sigmoid output gate, in its projections, convolutions, norms
    and first values. What is corrected has not faded, so that along a key the transition is a - beta b, which can be negative
    with beta below 1. Flash-linear-attention's kernels give p the length 1 again and take d k off q ahead of their norms; here,
    as in the paper, keys and queries have length 1 first. `scale` is its code's, 1 / sqrt(K).

    correction  the first value of d, 0.02 in the paper's small models
    """

    kind: Literal["comba"] = "comba"
    conv_v: bool = True
    out_norm: Literal["head", "shared", "none"] = "shared"
    out_gate: bool = True
    scale: Literal["one", "key_dim"] = "key_dim"
    correction: float = 1.0

    equation: ClassVar[str] = (
        "S_t = a_t S_{t-1} - beta_t k_t^T (b k_t S_{t-1}) + beta_t k_t^T v_t,  o_t = s (q_t - d k_t) S_t"
    )
    state_formula: ClassVar[str] = "H K V + (taps - 1) channels"
    source: ClassVar[str] = "Hu et al. 2025 (Comba), arXiv 2506.02475"

    def differs(self) -> tuple[str, ...]:
        narrow = self.key_dim is None and self.value_dim is None
        return (
            *self.unscaled,
            *(("values as wide as keys, in the published layer twice as wide",) if narrow else ()),
            "p = b k and q - d k of keys and queries of length 1, as in the paper; flash-linear-attention's kernels give p the "
            "length 1 again and take d k off ahead of the norms",
        )

    def build(self, width: int) -> MixerModule:
        return _Comba(self, width)

    def parameters(self, width: int) -> int:
        gates = SoftplusDecay.count(width, self.heads) + WriteStrength.count(width, self.heads, bias=False)
        return self.parameters_around(width) + gates + 2 * self.heads

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * value_dim + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        return self.flops_around(width) + self.heads * (4 * width + 7 * key_dim * value_dim)

    def memory(self, width: int) -> Memory:
        """The memory with b = 1, d = 0 and scale 1."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            written = write[..., None] * k
            return kernels.delta(q, written, v, a=k, b=written)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})


class _Comba(MixerModule):
    def __init__(self, spec: Comba, width: int) -> None:
        super().__init__()
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)  # longer keys would make the recurrence blow up
        self.decay = SoftplusDecay(width, spec.heads, rates=RATES)
        self.write = WriteStrength(width, spec.heads, bias=False)
        self.erased = nn.Parameter(torch.ones(spec.heads, 1))  # b = sigmoid(erased)
        self.correction = nn.Parameter(torch.full((spec.heads, 1), spec.correction))  # d
        self.scale = spec.read_scale(width)
        self.read = ReadOut(spec, width, activation="sigmoid")
        self.out = nn.Linear(spec.heads * spec.sizes(width)[1], width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        written_BTHK = (self.write(x_BTD)[..., None] * k_BTHK).to(k_BTHK.dtype)
        o_BTHV, memory = kernels.delta(
            q_BTHK - self.correction.to(q_BTHK.dtype) * k_BTHK,
            written_BTHK,
            v_BTHV,
            log_decay=self.decay(x_BTD),
            a=torch.sigmoid(self.erased).to(k_BTHK.dtype) * k_BTHK,
            b=written_BTHK,
            scale=self.scale,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)
