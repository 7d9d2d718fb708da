"""RWKV-7: a memory that fades channel by channel, forgets under one key and is written under another.

S_t = diag(w_t) S_{t-1} - (a_t * c_t)^T (c_t S_{t-1}) + k_t^T v_t,   o_t = r_t S_t + (sum r_t * k_t * u) v_t

B batch, T time, D model width, H heads, K channels of a head
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Lent, Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.heads import HeadsState, check_at_least, check_normed, head_size
from recallmap.arch.parts.norm import l2_norm
from recallmap.arch.parts.precision import widen

FASTEST = math.exp(-0.5)  # the largest size of a log decay
# The initial share of the previous token in each input, by its use: 1 - (channel / D)^power.
VALUES = "values"  # the name under which they are lent, [B, T, D]
LEANING = {"read": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}


@dataclass(frozen=True, kw_only=True)
class Rwkv7(MixerSpec):
    """RWKV-7. In the published model the first block's values are "lent", those of all later ones "mixed" with them.

    heads                             number of heads side by side
    decay_rank, rate_rank, gate_rank  inner widths of the low-rank maps to the decay, to a and to the output gate
    values      "own" alone; "lent": its own, which later blocks have, too; "mixed": v + n * (u - v) of its own v and those u
                that the first lender lent, n = sigmoid(b + low-rank map of the token)
    value_rank  the inner width of the map to n, of "mixed" alone; theirs is 32, and more above a model width of 797 at K = 64

    Its authors object to comparisons that begin from other weights than RWKV-LM's, as flash-linear-attention's did until its
    pull requests 304 to 493.
    """

    kind: Literal["rwkv7"] = "rwkv7"
    heads: int = 8
    decay_rank: int = 32
    rate_rank: int = 32
    gate_rank: int = 32
    values: Literal["own", "lent", "mixed"] = field(default="own", metadata={"later": True})
    value_rank: int = field(default=32, metadata={"later": True})

    equation: ClassVar[str] = (
        "S_t = diag(w_t) S_{t-1} - (a_t * c_t)^T (c_t S_{t-1}) + k_t^T v_t,  o_t = r_t S_t + (r_t * k_t . u) v_t"
    )
    state_formula: ClassVar[str] = "H K^2 + D"
    source: ClassVar[str] = "Peng et al. 2025 (RWKV-7)"

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads)
        check_at_least(1, decay_rank=self.decay_rank, rate_rank=self.rate_rank, gate_rank=self.gate_rank)
        check_at_least(1, value_rank=self.value_rank)

    def differs(self) -> tuple[str, ...]:
        without = ("no residual from the first block's values",) if self.values == "own" else ()
        return (
            *without,
            "other first values of the decay, of what is forgotten and of the lean on the token before, to which its authors "
            "object in other people's comparisons",
        )

    def lends(self) -> frozenset[str]:
        return frozenset({VALUES} if self.values == "lent" else ())

    def borrows(self) -> frozenset[str]:
        return frozenset({VALUES} if self.values == "mixed" else ())

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
        mixing = width * (2 * self.value_rank + 1) if self.values == "mixed" else 0
        return 4 * width**2 + 2 * width * ranks + vectors * width + mixing

    def state_size(self, width: int, length: int) -> StateSize:
        return StateSize(width * self.size(width) + width)

    def flops(self, width: int, length: int) -> float:
        ranks = self.decay_rank + self.rate_rank + self.gate_rank
        mixing = width * (4 * self.value_rank + 3) if self.values == "mixed" else 0
        return 8 * width**2 + 4 * width * ranks + 7 * width * self.size(width) + mixing

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
        self.heads, self.values, size = spec.heads, spec.values, spec.size(width)
        channel_D = torch.arange(width) / width
        self.lean = nn.Parameter(torch.stack([1 - channel_D**power for power in LEANING.values()]))
        self.read = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.mixing = _Mixing(width, spec.value_rank) if spec.values == "mixed" else None
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
        return self.mix_beside({}, x_BTD, state, return_state)

    def mix_beside(self, lent: Lent, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        shift, memory = state or HeadsState()
        first_B1D = torch.zeros_like(x_BTD[:, :1]) if shift is None else shift[:, None].to(x_BTD.dtype)
        change_BTD = torch.cat([first_B1D, x_BTD[:, :-1]], dim=1) - x_BTD
        lean = dict(zip(LEANING, self.lean.to(x_BTD.dtype), strict=True))
        seen = {name: x_BTD + change_BTD * share for name, share in lean.items()}

        v_BTD = self.value(seen["value"])
        if self.values == "lent":
            lent.setdefault(VALUES, v_BTD)
        if self.mixing is not None:
            if VALUES not in lent:
                raise ValueError(
                    "values 'mixed' are mixed with those of an earlier block, got none; put one before it "
                    "whose values are 'lent'"
                )
            v_BTD = v_BTD + self.mixing(seen["value"]) * (lent[VALUES] - v_BTD)
        r_BTHK, k_BTHK, v_BTHK = (self.by_head(y) for y in (self.read(seen["read"]), self.key(seen["key"]), v_BTD))
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


class _Mixing(nn.Module):
    """The share of the lent values, sigmoid(b + x W_1 W_2) [B, T, D]. W_2 begins small and b falls from 0.73 to 0.33."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Parameter(torch.randn(rank, width) * 0.1 / math.sqrt(rank))
        self.bias = nn.Parameter(torch.linspace(0.73, 0.33, width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.sigmoid(self.down(x_BTD) @ self.up.to(x_BTD.dtype) + self.bias.to(x_BTD.dtype))
