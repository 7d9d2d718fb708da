"""FoX, the Forgetting Transformer: softmax attention in which what lies farther back weighs less, as forget gates say.

o_t = sum_j softmax_j(q_t . k_j / sqrt(K) + sum_{r=j+1..t} log f_r) v_j over j <= t;   f_t = sigmoid(x_t W + b), one a head

B batch, T time, D model width, H heads, K channels of a head
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.kernels.attention import AttentionState
from recallmap.arch.kernels.norm_gate import norm_gate
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SigmoidDecay
from recallmap.arch.parts.heads import check_at_least, head_size
from recallmap.arch.parts.norm import RMSNorm
from recallmap.arch.parts.precision import widen

SHARPEST = 1e4  # of the probe: scores that leave all weight to the best key


@dataclass(frozen=True, kw_only=True)
class Fox(MixerSpec):
    """The Forgetting Transformer, by default its LLaMA form; no form has positions besides its gates. The zoo's `fox_pro` has
    the Pro form, with all four last options on. Gates begin at 1/2, so that a head first looks one or two tokens back.

    flash-linear-attention's layer of this name has options for norm and output gate, too, and no shift of keys and values; the
    shift here is that of the authors' code.

    heads     number of heads side by side
    head_dim  channels of one head; None: width / heads
    gate      "full": of the token; "bias": a learned constant a head; "fixed": a constant. Both begin as ALiBi's slopes, and
              the fixed ones are ALiBi
    qk_norm   RMSNorm of each head's queries and keys
    shift     keys and values lean on those of the token before, ahead of that norm, by a share a head and token
    out_norm  RMSNorm of each head's output
    out_gate  the output times sigmoid(x W_g)
    """

    kind: Literal["fox"] = "fox"
    heads: int = 8
    head_dim: int | None = None
    gate: Literal["full", "bias", "fixed"] = "full"
    qk_norm: bool = False
    shift: bool = False
    out_norm: bool = False
    out_gate: bool = False

    equation: ClassVar[str] = "o_t = sum_j softmax_j(q_t . k_j / sqrt(K) + sum_{r=j+1..t} log f_r) v_j"
    state_formula: ClassVar[str] = "t H (2 K + 1), and 2 H K with shift"
    source: ClassVar[str] = "Lin et al. 2025 (Forgetting Transformer); constant gates: Press et al. 2022 (ALiBi)"

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, head_dim=self.head_dim)

    def differs(self) -> tuple[str, ...]:
        said = [] if self.gate == "full" else ["constant forget gates, theirs are of the token"]
        parts = (self.qk_norm, self.shift, self.out_norm, self.out_gate)
        if any(parts) and not all(parts):
            said.append("some parts of the Pro form without the others")
        return tuple(said)

    def check(self, width: int) -> None:
        self.size(width)

    def size(self, width: int) -> int:
        """The number K of channels in a model of `width`."""
        return head_size(width, self.heads, self.head_dim, "head_dim")

    def build(self, width: int) -> MixerModule:
        return _Fox(self, width)

    def parameters(self, width: int) -> int:
        channels = self.heads * self.size(width)
        gate = {"full": SigmoidDecay.count(width, self.heads), "bias": self.heads, "fixed": 0}[self.gate]
        norms = channels * (2 * self.qk_norm + self.out_norm)
        return width * channels * (4 + self.out_gate) + gate + norms + self.shift * 2 * width * self.heads

    def state_size(self, width: int, length: int) -> StateSize:
        channels = self.heads * self.size(width)
        return StateSize(2 * channels * self.shift, growing=length * (2 * channels + self.heads))

    def flops(self, width: int, length: int) -> float:
        channels, seen = self.heads * self.size(width), (length + 1) / 2
        columns = channels * (4 + self.out_gate) + self.heads * (2 * self.shift + (self.gate == "full"))
        return 2 * width * columns + (4 * channels + 2 * self.heads) * seen

    def memory(self, width: int) -> Memory:
        """The memory with gates that keep all, as sharp as queries can make it."""
        head_dim = self.size(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.attention(q, k, v, log_decay=v.new_zeros(self.heads), scale=SHARPEST)[0]

        return Memory(self.heads, head_dim, head_dim, answer, {})


class _State(NamedTuple):
    last: tuple[Tensor, Tensor] | None = None  # key and value of the token before, [B, 1, H, K], ahead of the shift
    memory: AttentionState | None = None


class _Fox(MixerModule):
    def __init__(self, spec: Fox, width: int) -> None:
        super().__init__()
        heads, head_dim = spec.heads, spec.size(width)
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * heads * head_dim, bias=False)
        self.decay = SigmoidDecay(width, heads, first=0.5) if spec.gate == "full" else None
        self.rate = nn.Parameter(slopes(heads).log()) if spec.gate == "bias" else None
        self.shift = nn.Linear(width, 2 * heads, bias=False) if spec.shift else None
        self.q_norm, self.k_norm = (RMSNorm(heads, head_dim) if spec.qk_norm else None for _ in range(2))
        self.out_norm = RMSNorm(heads, head_dim) if spec.out_norm else None
        self.gate = nn.Linear(width, heads * head_dim, bias=False) if spec.out_gate else None
        self.out = nn.Linear(heads * head_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or _State()
        q_BTHK, k_BTHK, v_BTHK = self.qkv(x_BTD).unflatten(-1, (3, self.heads, -1)).unbind(2)
        last = None
        if self.shift is not None:
            share_BTHK = torch.sigmoid(widen(self.shift(x_BTD)))[..., None]
            before = (None, None) if state.last is None else state.last
            last = (k_BTHK[:, -1:], v_BTHK[:, -1:])
            k_BTHK, v_BTHK = (
                leaning(part, one, share)
                for part, one, share in zip((k_BTHK, v_BTHK), before, share_BTHK.chunk(2, dim=-2), strict=True)
            )
        if self.q_norm is not None and self.k_norm is not None:
            q_BTHK, k_BTHK = (
                norm_gate(part, weight=norm.weight, eps=norm.eps)[0]
                for part, norm in ((q_BTHK, self.q_norm), (k_BTHK, self.k_norm))
            )
        o_BTHK, memory = kernels.attention(
            q_BTHK,
            k_BTHK,
            v_BTHK,
            log_decay=self.log_decay(x_BTD),
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHK, x_BTD)), _State(last, memory)

    def log_decay(self, x_BTD: Tensor) -> Tensor:
        """Log forget gates [B, T, H], or the constant ones [H]."""
        if self.decay is not None:
            gates: Tensor = self.decay(x_BTD)
            return gates
        if self.rate is not None:
            return -widen(self.rate).exp()
        return -slopes(self.heads).to(x_BTD.device, widen(x_BTD[:0]).dtype)

    def read(self, o_BTHK: Tensor, x_BTD: Tensor) -> Tensor:
        """Norm and gate of the output, heads joined [B, T, H K]."""
        gate_BTHK = None if self.gate is None else self.gate(x_BTD).unflatten(-1, o_BTHK.shape[-2:])
        if self.out_norm is not None:
            o_BTHK, _ = norm_gate(
                o_BTHK, weight=self.out_norm.weight, gate=gate_BTHK, activation="sigmoid", eps=self.out_norm.eps
            )
        elif gate_BTHK is not None:
            o_BTHK = o_BTHK * torch.sigmoid(gate_BTHK)
        return o_BTHK.flatten(-2)


def slopes(heads: int) -> Tensor:
    """ALiBi's slopes [H], 2^(-8 h / H) for heads h = 1 ... H."""
    return torch.exp2(-8 * torch.arange(1, heads + 1) / heads)


def leaning(x_BTHK: Tensor, before_B1HK: Tensor | None, share_BTH1: Tensor) -> Tensor:
    """x_t + share_t (x_{t-1} - x_t); the token before the first one is 0."""
    first = torch.zeros_like(x_BTHK[:, :1]) if before_B1HK is None else before_B1HK
    shifted = torch.cat((first, x_BTHK[:, :-1]), 1)
    return x_BTHK + share_BTH1.to(x_BTHK.dtype) * (shifted - x_BTHK)
