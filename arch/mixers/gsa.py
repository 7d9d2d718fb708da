"""Gated slot attention: softmax attention over a fixed number of slots, which forget as much as they take in.

X_t = diag(a_t) X_{t-1} + (1 - a_t)^T k_t,   Y_t = diag(a_t) Y_{t-1} + (1 - a_t)^T v_t,   o_t = softmax(q_t X_t^T) Y_t

B batch, T time, D model width, H heads, M slots, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import LEAST_LOG_DECAY
from recallmap.arch.parts.heads import check_at_least, head_size
from recallmap.arch.parts.norm import RMSNorm
from recallmap.arch.parts.precision import widen

TEMPERATURE = 8.0  # of the gates


@dataclass(frozen=True, kw_only=True)
class Gsa(MixerSpec):
    """Gated slot attention as its authors' layer in flash-linear-attention has it by default: SiLU on queries, keys and
    values, no convolution, no length of 1, no output gate, and one norm over all heads behind another SiLU. Their options of
    a convolution, of other feature maps and of shared keys and values are not here.

    heads               number of heads side by side
    key_dim, value_dim  channels of one head; None: width / heads
    slots               the number M of a head; None: as many as a key has channels
    """

    kind: Literal["gsa"] = "gsa"
    heads: int = 4
    key_dim: int | None = None
    value_dim: int | None = None
    slots: int | None = None

    equation: ClassVar[str] = (
        "X_t = diag(a_t) X_{t-1} + (1 - a_t)^T k_t,  Y_t = diag(a_t) Y_{t-1} + (1 - a_t)^T v_t,  o_t = softmax(q_t X_t^T) Y_t"
    )
    state_formula: ClassVar[str] = "H M (K + V), M slots"
    source: ClassVar[str] = "Zhang et al. 2024 (Gated Slot Attention, arXiv:2409.07146)"

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, key_dim=self.key_dim, value_dim=self.value_dim, slots=self.slots)

    def differs(self) -> tuple[str, ...]:
        return ()

    def check(self, width: int) -> None:
        self.sizes(width)

    def sizes(self, width: int) -> tuple[int, int, int]:
        """(K, V, M) in a model of `width`."""
        key_dim = head_size(width, self.heads, self.key_dim, "key_dim")
        value_dim = head_size(width, self.heads, self.value_dim, "value_dim")
        return key_dim, value_dim, key_dim if self.slots is None else self.slots

    def columns(self, width: int) -> list[int]:
        """Of the one map: queries, keys, values, gates."""
        key_dim, value_dim, slots = self.sizes(width)
        return [self.heads * size for size in (key_dim, key_dim, value_dim, slots)]

    def build(self, width: int) -> MixerModule:
        return _Gsa(self, width)

    def parameters(self, width: int) -> int:
        inner = self.heads * self.sizes(width)[1]
        return width * (sum(self.columns(width)) + inner) + inner

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim, slots = self.sizes(width)
        return StateSize(self.heads * slots * (key_dim + value_dim))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim, slots = self.sizes(width)
        matrices = width * (sum(self.columns(width)) + self.heads * value_dim)
        return 2 * matrices + 5 * self.heads * slots * (key_dim + value_dim + 1)


class _Gsa(MixerModule):
    def __init__(self, spec: Gsa, width: int) -> None:
        super().__init__()
        self.heads, self.columns = spec.heads, spec.columns(width)
        inner = spec.heads * spec.sizes(width)[1]
        self.linear = nn.Linear(width, sum(self.columns), bias=False)
        self.norm = RMSNorm(inner)
        self.out = nn.Linear(inner, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        *qkv, gate_BTHM = (
            part.unflatten(-1, (self.heads, -1)) for part in self.linear(x_BTD).split(self.columns, dim=-1)
        )
        q_BTHK, k_BTHK, v_BTHV = (F.silu(part) for part in qkv)
        log_decay_BTHM = (F.logsigmoid(widen(gate_BTHM)) / TEMPERATURE).clamp(min=LEAST_LOG_DECAY)
        o_BTHV, memory = kernels.slots(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            write=-torch.expm1(log_decay_BTHM),
            log_decay=log_decay_BTHM,
            initial_state=state,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.norm(F.silu(o_BTHV.flatten(-2)))), memory
