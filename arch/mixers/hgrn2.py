"""HGRN2: gated linear attention whose key is the share that the gate forgets.

S_t = diag(a_t) S_{t-1} + (1 - a_t)^T v_t,   o_t = q_t S_t / sqrt(K),   a_t = b + (1 - b) sigmoid(x_t W)

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import LEAST_LOG_DECAY
from recallmap.arch.parts.heads import check_at_least, head_size
from recallmap.arch.parts.norm import RMSNorm
from recallmap.arch.parts.precision import widen


@dataclass(frozen=True, kw_only=True)
class HGRN2(MixerSpec):
    """Gated linear attention with tied key and gate.

    heads               number of heads side by side
    key_dim, value_dim  channels of one head; None: width / heads
    lower_bound  b, the least share of itself that a key channel keeps; Qin et al. let it grow from block to block
    """

    kind: Literal["hgrn2"] = "hgrn2"
    heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    lower_bound: float = 0.0

    equation: ClassVar[str] = "S_t = diag(a_t) S_{t-1} + (1 - a_t)^T v_t,  o_t = q_t S_t / sqrt(K)"
    state_formula: ClassVar[str] = "H K V"
    source: ClassVar[str] = "Qin et al. 2024 (HGRN2)"

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, key_dim=self.key_dim, value_dim=self.value_dim)
        if not 0 <= self.lower_bound < 1:
            raise ValueError(f"lower_bound must lie in [0, 1), got {self.lower_bound}")

    def differs(self) -> tuple[str, ...]:
        return ("the lower bound of the decay is one constant, theirs is learned and grows from block to block",)

    def check(self, width: int) -> None:
        self.sizes(width)

    def sizes(self, width: int) -> tuple[int, int]:
        """The widths (K, V) of a head in a model of `width`."""
        return (
            head_size(width, self.heads, self.key_dim, "key_dim"),
            head_size(width, self.heads, self.value_dim, "value_dim"),
        )

    def build(self, width: int) -> MixerModule:
        return _HGRN2(self, width)

    def parameters(self, width: int) -> int:
        key_dim, value_dim = self.sizes(width)
        return width * self.heads * (2 * key_dim + 2 * value_dim) + self.heads * value_dim

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * value_dim)

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        matrices = width * self.heads * (2 * key_dim + 2 * value_dim)
        return 2 * matrices + 5 * self.heads * key_dim * value_dim

    def memory(self, width: int) -> Memory:
        """The memory, with keys without their signs: a write under a key is the share that its channels forget."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            written = k.abs() * write[..., None]
            log_decay = torch.log1p(-written).clamp(min=LEAST_LOG_DECAY)
            return kernels.gated_linear(q.abs(), written, v, log_decay=log_decay, scale=1.0)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})

    def merged(self, width: int) -> HGRN2 | None:
        if self.heads == 1:
            return None
        key_dim, value_dim = self.sizes(width)
        return replace(self, heads=1, key_dim=self.heads * key_dim, value_dim=self.heads * value_dim)


class _HGRN2(MixerModule):
    def __init__(self, spec: HGRN2, width: int) -> None:
        super().__init__()
        self.heads, self.lower_bound = spec.heads, spec.lower_bound
        self.key_dim, value_dim = spec.sizes(width)
        self.columns = [spec.heads * self.key_dim, spec.heads * self.key_dim, spec.heads * value_dim]
        self.linear = nn.Linear(width, sum(self.columns), bias=False)
        self.norm = RMSNorm(spec.heads * value_dim)
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        q_BTHK, gate_BTHK, v_BTHV = (
            part.unflatten(-1, (self.heads, -1)) for part in self.linear(x_BTD).split(self.columns, dim=-1)
        )
        gate_BTHK = widen(gate_BTHK)
        k_BTHK = (1 - self.lower_bound) * torch.sigmoid(-gate_BTHK)
        log_decay_BTHK = torch.log1p(-k_BTHK) if self.lower_bound else F.logsigmoid(gate_BTHK)
        o_BTHV, memory = kernels.gated_linear(
            F.silu(q_BTHK),
            k_BTHK.to(x_BTD.dtype),
            v_BTHV,
            log_decay=log_decay_BTHK.clamp(min=LEAST_LOG_DECAY),
            scale=self.key_dim**-0.5,
            initial_state=state,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.norm(o_BTHV.flatten(-2))), memory
