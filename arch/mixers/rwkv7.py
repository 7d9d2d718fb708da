"""RWKV-7: a memory that fades channel by channel, forgets under one key and is written under another.

S_t = diag(w_t) S_{t-1} - (a_t * c_t)^T (c_t S_{t-1}) + k_t^T v_t,   o_t = r_t S_t + (sum r_t * k_t * u) v_t

B batch, T time, D model width, H heads, K channels of a head
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.heads import HeadsState, check_at_least, check_normed, head_size
from recallmap.arch.parts.norm import l2_norm
from recallmap.arch.parts.precision import widen

FASTEST = math.exp(-0.5)  # the largest size of a log decay
# The initial share of the previous token in each input, by its use: 1 - (channel / D)^power.
LEANING = {"read": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}


@dataclass(frozen=True, kw_only=True)
class Rwkv7(MixerSpec):
    """RWKV-7 without the residual from the first block's values, because a mixer knows no other block.

    decay_rank, rate_rank, gate_rank  inner widths of the low-rank maps to the decay, to a and to the output gate
    """

    kind: Literal["rwkv7"] = "rwkv7"
    heads: int = 8
    decay_rank: int = 32
    rate_rank: int = 32
    gate_rank: int = 32

    equation: ClassVar[str] = (
        "S_t = diag(w_t) S_{t-1} - (a_t * c_t)^T (c_t S_{t-1}) + k_t^T v_t,  o_t = r_t S_t + (r_t * k_t . u) v_t"
    )
    state_formula: ClassVar[str] = "H K^2 + D"
    source: ClassVar[str] = "Peng et al. 2025 (RWKV-7)"

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads)
        check_at_least(1, decay_rank=self.decay_rank, rate_rank=self.rate_rank, gate_rank=self.gate_rank)

    def differs(self) -> tuple[str, ...]:
        return (
            "no residual from the first block's values",
            "other first values of the decay, of what is forgotten and of the lean on the token before",
        )

    def check(self, width: int) -> None:
        check_normed("outputs", self.size(width))

    def size(self, width: int) -> int:
        """The number K of channels in a model of `width`."""
        return head_size(width, self.heads, None, "another width")

    def build(self, width: int) -> MixerModule:
        return _Rwkv7(self, width)

    def parameters(self, width: int) -> int:
        ranks = self.decay_rank + self.rate_rank + self.gate_rank
        vectors = len(LEANING) + 2 + 2 + 3  # leanings, biases of decay and rate, forgotten and written, bonus and norm
        return 4 * width**2 + 2 * width * ranks + vectors * width

    def state_size(self, width: int, length: int) -> StateSize:
        return StateSize(width * self.size(width) + width)

    def flops(self, width: int, length: int) -> float:
        ranks = self.decay_rank + self.rate_rank + self.gate_rank
        return 8 * width**2 + 4 * width * ranks + 7 * width * self.size(width)

    def memory(self, width: int) -> Memory:
        """The memory, which forgets under the key that is written."""
        size = self.size(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            written = write[..., None] * k
            return kernels.delta(q, written, v, a=k, b=written)[0]

        return Memory(self.heads, size, size, answer, {"d_k": size})


class _Rwkv7(MixerModule):
    def __init__(self, spec: Rwkv7, width: int) -> None:
        super().__init__()
        self.heads, size = spec.heads, spec.size(width)
        channel_D = torch.arange(width) / width
        self.lean = nn.Parameter(torch.stack([1 - channel_D**power for power in LEANING.values()]))
        self.read = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.decay = _LowRank(width, spec.decay_rank, nn.Tanh(), -6.5 + 5 * channel_D**0.85)
        self.rate = _LowRank(width, spec.rate_rank, nn.Identity(), torch.zeros(width))
        self.gate = _LowRank(width, spec.gate_rank, nn.Sigmoid(), None)
        self.forgotten = nn.Parameter(torch.full((width,), 0.85))  # from the key to what is forgotten
        self.written = nn.Parameter(torch.ones(width))  # how much of a scales what is written
        self.bonus = nn.Parameter(torch.zeros(self.heads, size))
        self.norm_weight = nn.Parameter(torch.ones(self.heads, size))
        self.norm_bias = nn.Parameter(torch.zeros(self.heads, size))
        self.out = nn.Linear(width, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        shift, memory = state or HeadsState()
        first_B1D = torch.zeros_like(x_BTD[:, :1]) if shift is None else shift[:, None].to(x_BTD.dtype)
        change_BTD = torch.cat([first_B1D, x_BTD[:, :-1]], dim=1) - x_BTD
        lean = dict(zip(LEANING, self.lean.to(x_BTD.dtype), strict=True))
        seen = {name: x_BTD + change_BTD * share for name, share in lean.items()}

        r_BTHK, k_BTHK, v_BTHK = (
            self.by_head(m(seen[n])) for n, m in (("read", self.read), ("key", self.key), ("value", self.value))
        )
        a_BTHK = self.by_head(torch.sigmoid(widen(self.rate(seen["rate"]))))
        wide_BTHK = widen(k_BTHK)
        forgotten_BTHK = l2_norm(wide_BTHK * self.by_head(self.forgotten))
        k_BTHK = wide_BTHK * (1 + (a_BTHK - 1) * self.by_head(self.written))
        o_BTHK, memory = kernels.delta(
            r_BTHK,
            k_BTHK.to(x_BTD.dtype),
            v_BTHK,
            log_decay=self.by_head(-FASTEST * torch.sigmoid(widen(self.decay(seen["decay"])))),
            a=forgotten_BTHK.to(x_BTD.dtype),
            b=(a_BTHK * forgotten_BTHK).to(x_BTD.dtype),
            scale=1.0,
            initial_state=memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        y_BTHK = self.norm(o_BTHK) + (widen(r_BTHK) * k_BTHK * self.bonus).sum(-1, keepdim=True) * v_BTHK
        y_BTD = y_BTHK.flatten(-2).to(x_BTD.dtype) * self.gate(seen["gate"])
        return self.out(y_BTD), HeadsState(x_BTD[:, -1], memory)

    def by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1))

    def norm(self, o_BTHK: Tensor) -> Tensor:
        size = o_BTHK.shape[-1]
        return F.layer_norm(widen(o_BTHK), (size,), eps=size * 1e-5) * self.norm_weight + self.norm_bias


class _LowRank(nn.Module):
    """A low-rank map x [B, T, D] -> act(x W_1) W_2 + b."""

    def __init__(self, width: int, rank: int, activation: nn.Module, bias: Tensor | None) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.activation = activation
        self.up = nn.Linear(rank, width, bias=False)
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_BTD = self.up(self.activation(self.down(x_BTD)))
        return y_BTD if self.bias is None else y_BTD + self.bias
