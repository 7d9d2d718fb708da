"""Log-linear attention: Mamba-2 that reads each of its past's halves, quarters, ... by a weight of its own.

o_t = sum_l c_tl q_t S_t^l + d v_t,   S_t^l the decayed sum of step_s k_s^T v_s over the 2^(l-1) tokens of a level

B batch, T time, D model width, H heads, L levels, K key width, V value width, C channels
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SoftplusDecay
from recallmap.arch.parts.heads import HeadsState, check_at_least, head_size
from recallmap.arch.parts.norm import RMSNorm
from recallmap.arch.parts.precision import widen
from recallmap.arch.parts.short_conv import ShortConv

RATES = (1.0, 16.0)  # of decay, before training
MOST_LEVELS = 63


@dataclass(frozen=True, kw_only=True)
class LogLinear(MixerSpec):
    """Log-linear Mamba-2: the block of Mamba-2 (Dao and Gu), where all heads share q and k, with weights for what is read by
    how far back it lies. The form on top of Gated DeltaNet is not here.

    heads               number of heads side by side
    short_conv          taps of the causal convolution, the token's own included; 0: none
    key_dim, value_dim  channels of one head; None: width / heads. Mamba-2 has value_dim = 2 width / heads
    levels              L, at least 2: of more than 2^(L-1) tokens the last takes the rest. All are held and
                        counted, empty ones, too
    """

    kind: Literal["log_linear"] = "log_linear"
    heads: int = 4
    key_dim: int | None = None
    value_dim: int | None = None
    short_conv: int = 4
    levels: int = 15

    equation: ClassVar[str] = (
        "S_t^l = a_t S_{t-1}^l, merged as a binary counter carries,  o_t = sum_l c_tl q_t S_t^l + D v_t"
    )
    state_formula: ClassVar[str] = "(L - 1) H K V + (taps - 1) (2 K + H V), L levels"
    source: ClassVar[str] = "Guo et al. 2025 (Log-Linear Attention, arXiv:2506.04761)"

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, key_dim=self.key_dim, value_dim=self.value_dim)
        check_at_least(0, short_conv=self.short_conv)
        if not 2 <= self.levels <= MOST_LEVELS:
            raise ValueError(f"levels must be at least 2 and at most {MOST_LEVELS}, got {self.levels}")

    def differs(self) -> tuple[str, ...]:
        return (
            "the norm ahead of the map back is Mamba-2's over all heads",
            "all levels are held, theirs those in use",
        )

    def check(self, width: int) -> None:
        self.sizes(width)

    def sizes(self, width: int) -> tuple[int, int]:
        """(K, V) in a model of `width`."""
        key_dim = head_size(width, self.heads, self.key_dim, "key_dim")
        return key_dim, head_size(width, self.heads, self.value_dim, "value_dim")

    def columns(self, width: int) -> list[int]:
        """Of the one map: gate; values, keys and queries; levels."""
        key_dim, value_dim = self.sizes(width)
        inner = self.heads * value_dim
        return [inner, inner + 2 * key_dim, self.heads * self.levels]

    def build(self, width: int) -> MixerModule:
        return _LogLinear(self, width)

    def parameters(self, width: int) -> int:
        inner, convolved, weights = self.columns(width)
        conv = (self.short_conv + 1) * convolved if self.short_conv else 0
        maps = width * (2 * inner + convolved + weights)
        return maps + weights + conv + SoftplusDecay.count(width, self.heads) + self.heads + inner

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        conv = max(self.short_conv - 1, 0) * self.columns(width)[1]
        return StateSize((self.levels - 1) * self.heads * key_dim * value_dim + conv)

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        inner, convolved, weights = self.columns(width)
        matrices = width * (2 * inner + convolved + weights + self.heads)
        filled = min(length.bit_length(), self.levels - 1) / 2  # on average
        core = self.heads * key_dim * value_dim * (4 + 3 * filled)
        return 2 * matrices + 2 * self.short_conv * convolved + core + 2 * inner

    def memory(self, width: int) -> Memory:
        """The memory with all levels alike, which is Mamba-2's: all heads are one with wider values."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.gated_linear(q, k, v, beta=write)[0]

        return Memory(1, key_dim, self.heads * value_dim, answer, {"d_k": key_dim})


class _LogLinear(MixerModule):
    def __init__(self, spec: LogLinear, width: int) -> None:
        super().__init__()
        self.heads, self.columns = spec.heads, spec.columns(width)
        self.key_dim, value_dim = spec.sizes(width)
        inner = spec.heads * value_dim
        self.linear = nn.Linear(width, sum(self.columns), bias=False)
        self.weight = nn.Parameter(torch.ones(spec.heads, spec.levels))
        self.conv = ShortConv(self.columns[1], spec.short_conv, bias=True) if spec.short_conv else None
        self.decay = SoftplusDecay(width, spec.heads, rates=RATES)
        self.skip = nn.Parameter(torch.ones(spec.heads))
        self.norm = RMSNorm(inner)
        self.out = nn.Linear(inner, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        conv, memory = state or HeadsState()
        gate_BTC, vkq_BTC, raw_BTC = self.linear(x_BTD).split(self.columns, dim=-1)
        if self.conv is None:
            vkq_BTC = F.silu(vkq_BTC)
        else:
            vkq_BTC, conv = self.conv(vkq_BTC, conv, activation="silu")
        inner = self.columns[0]
        v_BTC, k_BTK, q_BTK = vkq_BTC.split([inner, self.key_dim, self.key_dim], dim=-1)
        v_BTHV = v_BTC.unflatten(-1, (self.heads, -1))
        step_BTH = self.decay.step(x_BTD)
        o_BTHV, memory = kernels.log_linear(
            q_BTK[:, :, None],
            k_BTK[:, :, None],
            v_BTHV,
            levels=F.softplus(self.weight * widen(raw_BTC).unflatten(-1, (self.heads, -1))),
            log_decay=self.decay.fade(step_BTH),
            beta=step_BTH,
            initial_state=memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        o_BTC = (o_BTHV + self.skip[:, None].to(v_BTHV.dtype) * v_BTHV).flatten(-2)
        return self.out(self.norm(o_BTC * F.silu(gate_BTC))), HeadsState(conv, memory)
