"""Mamba-2, and the baseline that MesaNet calls so: outer products that fade by a scalar of the token.

S_t = e^{g_t} S_{t-1} + beta_t k_t^T v_t,   o_t = q_t S_t (+ D v_t)

B batch, T time, D model width, H heads, K key width, V value width, C channels
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Channels, Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SigmoidDecay, SignedDecay, SoftplusDecay
from recallmap.arch.parts.heads import Heads, HeadsState, QueryKeyValue, ReadOut, merge_heads
from recallmap.arch.parts.norm import RMSNorm
from recallmap.arch.parts.short_conv import ShortConv

RATES = (1.0, 16.0)  # of decay, before training
MESANET = "MesaNet's baseline of that name, which is no state-space model; Mamba-2 itself is mamba2_shared_qk"


@dataclass(frozen=True, kw_only=True)
class Mamba2(MixerSpec):
    """Mamba-2 and a baseline of that name. By default it is not Mamba-2, but the baseline that MesaNet calls so (zoo
    `mamba2_mesanet`), which is no state-space model. Mamba-2 as Dao and Gu define it is `form` "shared_qk" (zoo
    `mamba2_shared_qk`).

    heads       number of heads side by side
    short_conv  taps of the causal convolution, the token's own included; 0: none
    form  "mesanet": every head with its own q and k, all tokens written alike (beta = 1);
          "shared_qk": the state-space model of Dao and Gu, where all heads share q and k, and one step size
          sets both what a token keeps (g = -step * A) and how strongly it is written (beta = step)
    key_dim, value_dim  channels of one head; None: width / heads. Dao and Gu have value_dim = 2 width / heads
    signed_decay  a decay in (-1, 1) in place of (0, 1), for parity (only "mesanet")
    """

    kind: Literal["mamba2"] = "mamba2"
    form: Literal["mesanet", "shared_qk"] = "mesanet"
    heads: int = 8
    key_dim: int | None = None
    value_dim: int | None = None
    short_conv: int = 4
    signed_decay: bool = False

    equation: ClassVar[str] = "S_t = exp(g_t) S_{t-1} + beta_t k_t^T v_t,  o_t = q_t S_t (+ D v_t)"
    state_formula: ClassVar[str] = "H K V + (taps - 1) (2 H K, or 2 K + H V with shared q and k)"
    source: ClassVar[str] = "Dao and Gu 2024 (Mamba-2); form mesanet: von Oswald et al. 2025, table 1"

    def __post_init__(self) -> None:
        self.around()  # checks its options
        if self.signed_decay and self.form != "mesanet":
            raise ValueError(f"signed_decay needs form 'mesanet', got {self.form!r}; a step size has no sign")

    def differs(self) -> tuple[str, ...]:
        return (MESANET,) if self.form == "mesanet" else ()

    def around(self) -> Heads:
        return Heads(heads=self.heads, key_dim=self.key_dim, value_dim=self.value_dim, short_conv=self.short_conv)

    def check(self, width: int) -> None:
        self.around().check(width)

    def build(self, width: int) -> MixerModule:
        return _Mesanet(self, width) if self.form == "mesanet" else _SharedQK(self, width)

    def parameters(self, width: int) -> int:
        around = self.around()
        if self.form == "mesanet":
            return around.parameters_around(width) + SigmoidDecay.count(width, self.heads)  # as many as SignedDecay has
        key_dim, value_dim = around.sizes(width)
        inner = self.heads * value_dim
        convolved = inner + 2 * key_dim
        conv = (self.short_conv + 1) * convolved if self.short_conv else 0
        decay = SoftplusDecay.count(width, self.heads)
        return width * (inner + convolved) + conv + decay + self.heads + inner + inner * width

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.around().sizes(width)
        matrix = self.heads * key_dim * value_dim
        if self.form == "mesanet":
            return StateSize(matrix + self.around().conv_state(width))
        return StateSize(matrix + max(self.short_conv - 1, 0) * (2 * key_dim + self.heads * value_dim))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.around().sizes(width)
        core = 5 * self.heads * key_dim * value_dim
        if self.form == "mesanet":
            return self.around().flops_around(width) + 2 * width * self.heads + core
        inner = self.heads * value_dim
        matrices = width * (3 * inner + 2 * key_dim + self.heads)
        return 2 * matrices + 2 * self.short_conv * (inner + 2 * key_dim) + core + 2 * inner

    def memory(self, width: int) -> Memory:
        key_dim, value_dim = self.around().sizes(width)
        shared = self.form == "shared_qk"  # then all heads are one memory with wider values

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.gated_linear(q, k, v, beta=write)[0]

        heads, value_dim = (1, self.heads * value_dim) if shared else (self.heads, value_dim)
        return Memory(heads, key_dim, value_dim, answer, {"d_k": key_dim})

    def merged(self, width: int) -> Mamba2 | None:
        one = merge_heads(self.around(), width) if self.form == "mesanet" else None
        return None if one is None else replace(self, heads=1, key_dim=one.key_dim, value_dim=one.value_dim)

    def widened(self, width: int, factor: int) -> Mamba2 | None:
        if factor < 2:
            raise ValueError(f"factor must be at least 2, got {factor}")
        return replace(self, key_dim=factor * self.around().sizes(width)[0]) if self.form == "shared_qk" else None

    def key_channels(self, width: int) -> Channels | None:
        if self.form != "shared_qk":
            return None
        key_dim, value_dim = self.around().sizes(width)
        inner = self.heads * value_dim
        first = {"linear.weight": 2 * inner} | ({"conv.weight": inner, "conv.bias": inner} if self.short_conv else {})
        return Channels(
            keys={name: range(at, at + key_dim) for name, at in first.items()},
            queries={name: range(at + key_dim, at + 2 * key_dim) for name, at in first.items()},
            muting=frozenset({"linear.weight", "conv.bias"}),
            anew=frozenset({"linear.weight", "decay.log_rate", "decay.bias"}),
        )


class _Mesanet(MixerModule):
    def __init__(self, spec: Mamba2, width: int) -> None:
        super().__init__()
        around = spec.around()
        self.qkv = QueryKeyValue(around, width, qk_norm=True)
        self.signed = spec.signed_decay
        self.decay: nn.Module = (SignedDecay if spec.signed_decay else SigmoidDecay)(width, spec.heads)
        self.read = ReadOut(around, width)
        self.out = nn.Linear(spec.heads * around.sizes(width)[1], width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        log_decay_BTH, sign_BTH = self.decay(x_BTD) if self.signed else (self.decay(x_BTD), None)
        o_BTHV, memory = kernels.gated_linear(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            log_decay=log_decay_BTH,
            sign=sign_BTH,
            scale=1.0,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)


class _SharedQK(MixerModule):
    """The Mamba-2 block: [gate, v, k, q] = x W;  y = RMSNorm(o * SiLU(gate)) W_o over all heads at once."""

    def __init__(self, spec: Mamba2, width: int) -> None:
        super().__init__()
        self.key_dim, value_dim = spec.around().sizes(width)
        self.heads, inner = spec.heads, spec.heads * value_dim
        self.columns = [inner, inner + 2 * self.key_dim]
        self.linear = nn.Linear(width, sum(self.columns), bias=False)
        self.conv = ShortConv(self.columns[1], spec.short_conv, bias=True) if spec.short_conv else None
        self.decay = SoftplusDecay(width, spec.heads, rates=RATES)
        self.skip = nn.Parameter(torch.ones(spec.heads))
        self.norm = RMSNorm(inner)
        self.out = nn.Linear(inner, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        conv, memory = state or HeadsState()
        gate_BTC, vkq_BTC = self.linear(x_BTD).split(self.columns, dim=-1)
        if self.conv is None:
            vkq_BTC = F.silu(vkq_BTC)
        else:
            vkq_BTC, conv = self.conv(vkq_BTC, conv, activation="silu")
        v_BTC, k_BTK, q_BTK = vkq_BTC.split([self.columns[0], self.key_dim, self.key_dim], dim=-1)
        v_BTHV = v_BTC.unflatten(-1, (self.heads, -1))
        step_BTH = self.decay.step(x_BTD)
        o_BTHV, memory = kernels.gated_linear(
            q_BTK[:, :, None],
            k_BTK[:, :, None],
            v_BTHV,
            log_decay=self.decay.fade(step_BTH),
            beta=step_BTH,
            scale=1.0,
            initial_state=memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        o_BTC = (o_BTHV + self.skip[:, None].to(v_BTHV.dtype) * v_BTHV).flatten(-2)
        return self.out(self.norm(o_BTC * F.silu(gate_BTC))), HeadsState(conv, memory)
