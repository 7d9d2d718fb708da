"""Raven: slots as in gated slot attention, of which a router lets each token change only a few.

w_t = the largest scores of sigmoid(x_t W), shared out to 1, and 0,   g_t = w_t log a_t
X_t = diag(e^{g_t}) X_{t-1} + (1 - e^{g_t})^T k_t,   Y_t alike of v_t,   o_t = softmax(q_t X_t^T) Y_t

B batch, T time, D model width, H heads, M slots, C slots chosen, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SoftplusDecay
from recallmap.arch.parts.heads import check_at_least, head_size
from recallmap.arch.parts.norm import RMSNorm
from recallmap.arch.parts.precision import widen

MOST_CHOSEN = 32  # where none are given
RATES = (1e-4, 16.0)  # of decay, before training
NO_SCORE = 1e-9  # keeps a sum of scores away from 0


@dataclass(frozen=True, kw_only=True)
class Raven(MixerSpec):
    """Raven as its authors' layer in flash-linear-attention has it by default: SiLU and then an RMSNorm, one for all heads,
    on queries and keys, SiLU on values, no convolution, no positions, a decay a head as Mamba-2 makes it, a router of one map
    with sigmoid scores, no output gate, and one norm over all heads behind another SiLU. Scores are fp32 whatever the
    model's type, because a rounded one chooses another slot.

    heads               number of heads side by side
    key_dim, value_dim  channels of one head; None: width / heads
    slots               the number M of a head; None: as many as a key has channels
    chosen              slots that a token changes; None: 32, or all where there are fewer. A single one teaches the router
                        nothing, because its share is 1
    """

    kind: Literal["raven"] = "raven"
    heads: int = 4
    key_dim: int | None = None
    value_dim: int | None = None
    slots: int | None = None
    chosen: int | None = None

    equation: ClassVar[str] = (
        "X_t = diag(e^{g_t}) X_{t-1} + (1 - e^{g_t})^T k_t,  Y_t alike of v_t,  o_t = softmax(q_t X_t^T) Y_t,  "
        "g_t = 0 but for the slots that a router chooses"
    )
    state_formula: ClassVar[str] = "H M (K + V), M slots"
    source: ClassVar[str] = "Afzal and Bick (Raven), as flash-linear-attention 0.6.0 has it"

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, key_dim=self.key_dim, value_dim=self.value_dim)
        check_at_least(1, slots=self.slots, chosen=self.chosen)

    def differs(self) -> tuple[str, ...]:
        return ("no Gumbel noise on the router in training, because members of a cohort draw nothing at random",)

    def check(self, width: int) -> None:
        _, _, slots = self.sizes(width)
        if self.chosen is not None and self.chosen > slots:
            raise ValueError(f"chosen must be at most {slots} (slots), got {self.chosen}; lower it, or raise slots")

    def sizes(self, width: int) -> tuple[int, int, int]:
        """(K, V, M) in a model of `width`."""
        key_dim = head_size(width, self.heads, self.key_dim, "key_dim")
        value_dim = head_size(width, self.heads, self.value_dim, "value_dim")
        return key_dim, value_dim, key_dim if self.slots is None else self.slots

    def changed(self, width: int) -> int:
        """The number C of slots that a token changes."""
        return min(MOST_CHOSEN, self.sizes(width)[2]) if self.chosen is None else self.chosen

    def columns(self, width: int) -> list[int]:
        """Of the one map: queries, keys, values."""
        key_dim, value_dim, _ = self.sizes(width)
        return [self.heads * size for size in (key_dim, key_dim, value_dim)]

    def build(self, width: int) -> MixerModule:
        return _Raven(self, width)

    def parameters(self, width: int) -> int:
        key_dim, value_dim, slots = self.sizes(width)
        inner = self.heads * value_dim
        maps = width * (sum(self.columns(width)) + self.heads * slots + inner)
        return maps + SoftplusDecay.count(width, self.heads) + 2 * key_dim + inner

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim, slots = self.sizes(width)
        return StateSize(self.heads * slots * (key_dim + value_dim))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim, slots = self.sizes(width)
        matrices = width * (sum(self.columns(width)) + self.heads * (slots + value_dim + 1))
        return 2 * matrices + 5 * self.heads * slots * (key_dim + value_dim + 1)


class _Raven(MixerModule):
    def __init__(self, spec: Raven, width: int) -> None:
        super().__init__()
        self.heads, self.columns, self.changed = spec.heads, spec.columns(width), spec.changed(width)
        key_dim, value_dim, slots = spec.sizes(width)
        inner = spec.heads * value_dim
        self.linear = nn.Linear(width, sum(self.columns), bias=False)
        self.router = nn.Linear(width, spec.heads * slots, bias=False)
        self.decay = SoftplusDecay(width, spec.heads, rates=RATES)
        self.query_norm, self.key_norm = RMSNorm(key_dim), RMSNorm(key_dim)
        self.norm = RMSNorm(inner)
        self.out = nn.Linear(inner, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        q_BTHK, k_BTHK, v_BTHV = (
            F.silu(part).unflatten(-1, (self.heads, -1)) for part in self.linear(x_BTD).split(self.columns, dim=-1)
        )
        log_decay_BTHM = self.decay(x_BTD)[..., None] * self.shares(x_BTD)
        o_BTHV, memory = kernels.slots(
            self.query_norm(q_BTHK),
            self.key_norm(k_BTHK),
            v_BTHV,
            write=-torch.expm1(log_decay_BTHM),
            log_decay=log_decay_BTHM,
            initial_state=state,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.norm(F.silu(o_BTHV.flatten(-2)))), memory

    def shares(self, x_BTD: Tensor) -> Tensor:
        """How much of a token's decay each slot takes [B, T, H, M]: they sum up to 1, and all but C are 0."""
        scores = torch.sigmoid(F.linear(widen(x_BTD), widen(self.router.weight))).unflatten(-1, (self.heads, -1))
        chosen_BTHC, at_BTHC = scores.topk(self.changed, dim=-1)
        chosen_BTHC = chosen_BTHC / (chosen_BTHC.sum(-1, keepdim=True) + NO_SCORE)
        return torch.zeros_like(scores).scatter(-1, at_BTHC, chosen_BTHC)
