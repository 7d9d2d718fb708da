"""Mamba-3: outer products of the last two tokens that fade by a scalar, with keys turned by angles that the tokens choose.

phi_t = phi_{t-1} + D_t theta_t;   q~, k~ = q, k turned by phi_t
S_t = a_t S_{t-1} + (1 - l_t) D_t a_t k~_{t-1}^T v_{t-1} + l_t D_t k~_t^T v_t,   y_t = (q~_t S_t + d v_t) * SiLU(z_t)

The write that the next token will make of this one is made at once, by the op of Mamba-2, and what is read of it too early is
taken off again. Of R keys a token (MIMO), each is a place in the op's sequence, and so is each further query.

B batch, T time, D model width, H heads, K key width, V value width, R rank, A angles
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.kernels.norm_gate import norm_gate
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import LEAST_LOG_DECAY, inverse_softplus
from recallmap.arch.parts.heads import check_at_least, head_size
from recallmap.arch.parts.norm import RMSNorm
from recallmap.arch.parts.precision import widen
from recallmap.arch.parts.rotary import turn

LEAST_RATE = 1e-4  # of decay


@dataclass(frozen=True, kw_only=True)
class Mamba3(MixerSpec):
    """Mamba-3, as flash-linear-attention's layer has it, which calls its authors' kernels. What people know from Mamba-2 is
    not there: no convolution, no norm ahead of the map back, and a rate of decay that each token chooses. Keys and queries
    have an RMSNorm and a bias that begins at 1, and no length of 1.

    heads          number of heads side by side
    key_dim        channels of a key, of which all heads share the maps; the paper has 128
    value_dim      channels of a head's value; None: 2 width / heads
    rank           keys, values and queries of a token and head; 1: SISO, more: MIMO
    rope_fraction  of the key channels that turn, in pairs of neighbours
    trapezoid      the share l of a write that a token makes itself: "learned", of the token; "half"; "none", all of it, as
                   in Mamba-2
    key_bias       a bias a head and channel on keys and queries
    out_norm       RMSNorm of each head's output ahead of its gate
    """

    kind: Literal["mamba3"] = "mamba3"
    heads: int = 8
    key_dim: int = 64
    value_dim: int | None = None
    rank: int = 1
    rope_fraction: float = 0.5
    trapezoid: Literal["learned", "half", "none"] = "learned"
    key_bias: bool = True
    out_norm: bool = False

    equation: ClassVar[str] = (
        "S_t = a_t (S_{t-1} + (1 - l_t) D_t k~_{t-1}^T v_{t-1}) + l_t D_t k~_t^T v_t,  o_t = q~_t S_t + d v_t"
    )
    state_formula: ClassVar[str] = "H (K V + R K + V + angles)"
    source: ClassVar[str] = "Lahoti et al. 2026 (Mamba-3, arXiv:2603.15569)"

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, key_dim=self.key_dim, value_dim=self.value_dim, rank=self.rank)
        if not 0 <= self.rope_fraction <= 1:
            raise ValueError(f"rope_fraction must lie between 0 and 1, got {self.rope_fraction}")

    def differs(self) -> tuple[str, ...]:
        lacking = {
            "angles": self.angles == 0,
            "the learned trapezoid": self.trapezoid != "learned",
            "the bias of keys and queries": not self.key_bias,
        }
        return tuple(f"without {what}" for what, without in lacking.items() if without)

    def check(self, width: int) -> None:
        self.sizes(width)

    def sizes(self, width: int) -> tuple[int, int]:
        """(K, V) in a model of `width`."""
        given = self.value_dim
        return self.key_dim, 2 * head_size(width, self.heads, None, "value_dim") if given is None else given

    @property
    def angles(self) -> int:
        """The number A of pairs of channels that turn."""
        return int(self.key_dim * self.rope_fraction) // 2

    def columns(self, width: int) -> list[int]:
        """Of the one map: z, x, keys, queries, step, rate, share, angles."""
        inner, keys = self.heads * self.sizes(width)[1], self.rank * self.key_dim
        share = self.heads if self.trapezoid == "learned" else 0
        return [inner, inner, keys, keys, self.heads, self.heads, share, self.angles]

    def build(self, width: int) -> MixerModule:
        return _Mamba3(self, width)

    def parameters(self, width: int) -> int:
        inner = self.heads * self.sizes(width)[1]
        bias = 2 * self.heads * self.rank * self.key_dim if self.key_bias else 0
        maps = 3 * self.rank * inner if self.rank > 1 else 0
        norms = 2 * self.key_dim + (inner if self.out_norm else 0)
        return width * (sum(self.columns(width)) + inner) + 2 * self.heads + bias + maps + norms

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * (key_dim * value_dim + self.rank * key_dim + value_dim + self.angles))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        matrices = width * (sum(self.columns(width)) + self.heads * value_dim)
        return 2 * matrices + self.heads * key_dim * value_dim * (4 * self.rank + 1)

    def memory(self, width: int) -> Memory:
        """The memory without angles, each token written by itself alone; all heads are one memory with wider values."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.gated_linear(q, k, v, beta=write)[0]

        return Memory(1, key_dim, self.heads * value_dim, answer, {"d_k": key_dim})


class _State(NamedTuple):
    memory: Tensor  # [B, H, K, V]
    angle: Tensor  # [B, H, A], within 2 pi
    keys: Tensor  # [B, H, R, K] of the last token, turned
    value: Tensor  # [B, H, V] of the last token


class _Mamba3(MixerModule):
    def __init__(self, spec: Mamba3, width: int) -> None:
        super().__init__()
        self.spec = spec
        (key_dim, value_dim), heads, rank = spec.sizes(width), spec.heads, spec.rank
        self.columns = spec.columns(width)
        self.linear = nn.Linear(width, sum(self.columns), bias=False)
        step_H = torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)).exp()
        self.step_bias = nn.Parameter(inverse_softplus(step_H))
        self.k_norm, self.q_norm = RMSNorm(key_dim), RMSNorm(key_dim)
        self.k_bias, self.q_bias = (
            nn.Parameter(torch.ones(heads, rank, key_dim)) if spec.key_bias else None for _ in range(2)
        )
        self.skip = nn.Parameter(torch.ones(heads))
        self.up, self.down, self.gates = (
            nn.Parameter(torch.full((heads, rank, value_dim), first)) if rank > 1 else None
            for first in (1 / rank, 1 / rank, 1.0)
        )
        self.out_norm = RMSNorm(heads, value_dim) if spec.out_norm else None
        self.out = nn.Linear(heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: _State | None, return_state: bool) -> tuple[Tensor, State]:
        parts = self.linear(x_BTD).split(self.columns, dim=-1)
        z_BTHV, v_BTHV = (part.unflatten(-1, (self.spec.heads, -1)) for part in parts[:2])
        step_BTH = F.softplus(widen(parts[4]) + self.step_bias)
        rate_BTH = F.softplus(widen(parts[5])).clamp(min=LEAST_RATE)
        angle_BTHA = self.turned(step_BTH, widen(parts[7]), None if state is None else state.angle)
        k_BTHRK = turn(self.keyed(parts[2], self.k_norm, self.k_bias), angle_BTHA[..., None, :]).to(x_BTD.dtype)
        q_BTHRK = turn(self.keyed(parts[3], self.q_norm, self.q_bias), angle_BTHA[..., None, :]).to(x_BTD.dtype)

        now_BTH, before_BTH = self.shares(step_BTH, parts[6])
        ahead_BTH = F.pad(before_BTH, (0, 0, 0, 1))[:, 1:]  # what the next token will write of this one
        v_BTHRV = v_BTHV[..., None, :] if self.up is None else (v_BTHV[..., None, :] * self.up).to(v_BTHV.dtype)
        o_BTHRV, memory = self.read(
            q_BTHRK,
            k_BTHRK,
            v_BTHRV,
            (-rate_BTH * step_BTH).clamp(min=LEAST_LOG_DECAY),
            now_BTH + ahead_BTH,
            None if state is None else self.caught_up(state, before_BTH[:, 0]),
            return_state,
        )
        early_BTHRV = ((widen(q_BTHRK) @ widen(k_BTHRK).mT) * ahead_BTH[..., None, None]) @ widen(v_BTHRV)
        o_BTHRV = widen(o_BTHRV) - early_BTHRV + self.skip[:, None, None] * widen(v_BTHRV)
        y_BTD = self.out(self.gated(o_BTHRV.to(x_BTD.dtype), z_BTHV).flatten(-2))
        if memory is None:
            return y_BTD, None
        return y_BTD, _State(memory, angle_BTHA[:, -1], k_BTHRK[:, -1], v_BTHV[:, -1])

    def keyed(self, x_BTC: Tensor, norm: nn.Module, bias_HRK: Tensor | None) -> Tensor:
        """Keys or queries [B, T, H, R, K] ahead of their turn."""
        spec = self.spec
        normed_BTRK = norm(x_BTC.unflatten(-1, (spec.rank, spec.key_dim)).flatten(1, 2)).unflatten(1, (-1, spec.rank))
        x_BTHRK = widen(normed_BTRK)[:, :, None]
        return x_BTHRK.expand(-1, -1, spec.heads, -1, -1) if bias_HRK is None else x_BTHRK + bias_HRK

    def turned(self, step_BTH: Tensor, raw_BTA: Tensor, angle_BHA: Tensor | None) -> Tensor:
        """Angles [B, T, H, A] so far, within 2 pi."""
        angle_BTHA = (step_BTH[..., None] * (math.pi * torch.tanh(raw_BTA))[:, :, None]).cumsum(1)
        if angle_BHA is not None:
            angle_BTHA = angle_BTHA + angle_BHA[:, None]
        return torch.remainder(angle_BTHA, 2 * math.pi)

    def shares(self, step_BTH: Tensor, raw_BTH: Tensor) -> tuple[Tensor, Tensor]:
        """The weights [B, T, H] with which a token writes itself, and the token before."""
        if self.spec.trapezoid == "learned":
            share_BTH = torch.sigmoid(widen(raw_BTH))
            return share_BTH * step_BTH, (1 - share_BTH) * step_BTH
        share = 0.5 if self.spec.trapezoid == "half" else 1.0
        return share * step_BTH, (1 - share) * step_BTH

    def caught_up(self, state: _State, before_BH: Tensor) -> Tensor:
        """The memory, with what the first token here writes of the last one."""
        values_BHRV = state.value[..., None, :] if self.up is None else state.value[..., None, :] * self.up
        keys_BHRK = state.keys.to(state.memory.dtype) * before_BH[..., None, None]
        return state.memory + keys_BHRK.mT @ values_BHRV.to(keys_BHRK.dtype)

    def read(
        self,
        q_BTHRK: Tensor,
        k_BTHRK: Tensor,
        v_BTHRV: Tensor,
        log_decay_BTH: Tensor,
        beta_BTH: Tensor,
        memory: Tensor | None,
        return_state: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs [B, T, H, R, V]: of a token's places, the first R write, and the last R read."""
        rank = self.spec.rank

        def places(x: Tensor, ahead: int, behind: int) -> Tensor:
            return F.pad(x.transpose(2, 3), (0, 0, 0, 0, ahead, behind)).flatten(1, 2)

        place_P1 = torch.arange(2 * rank - 1, device=beta_BTH.device)[:, None]
        o_BSHV, final = kernels.gated_linear(
            places(q_BTHRK, rank - 1, 0),
            places(k_BTHRK, 0, rank - 1),
            places(v_BTHRV, 0, rank - 1),
            log_decay=(log_decay_BTH[:, :, None] * (place_P1 == 0)).flatten(1, 2),
            beta=(beta_BTH[:, :, None] * (place_P1 < rank)).flatten(1, 2),
            scale=1.0,
            initial_state=memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return o_BSHV.unflatten(1, (-1, 2 * rank - 1))[:, :, rank - 1 :].transpose(2, 3), final

    def gated(self, o_BTHRV: Tensor, z_BTHV: Tensor) -> Tensor:
        """Norm, gate and sum of the outputs of all ranks: [B, T, H, V]."""
        z_BTHRV = z_BTHV[..., None, :] if self.gates is None else (z_BTHV[..., None, :] * self.gates).to(z_BTHV.dtype)
        if self.out_norm is None:
            y_BTHRV = o_BTHRV * F.silu(z_BTHRV)
        else:
            o_BSHV, z_BSHV = (x.transpose(2, 3).flatten(1, 2) for x in (o_BTHRV, z_BTHRV))
            y_BSHV, _ = norm_gate(o_BSHV, weight=self.out_norm.weight, gate=z_BSHV, eps=self.out_norm.eps)
            y_BTHRV = y_BSHV.unflatten(1, (-1, self.spec.rank)).transpose(2, 3)
        if self.down is None:
            return y_BTHRV.squeeze(-2)
        return (y_BTHRV * self.down).sum(-2).to(z_BTHV.dtype)
