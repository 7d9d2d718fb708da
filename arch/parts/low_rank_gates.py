"""The surroundings of Kimi Delta Attention and of what was made of it: a decay and an output gate by low-rank maps.

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from recallmap.arch.kernels.recurrence.chunks import signs
from recallmap.arch.parts.gates import ChannelDecay, SoftplusDecay
from recallmap.arch.parts.heads import ReadOut, ScaledHeads, check_at_least

RATES = (1e-4, 16.0)  # of a decay by head, before training, as in Gated DeltaNet


@dataclass(frozen=True, kw_only=True)
class LowRankGates(ScaledHeads):
    """The common options, by default as published for Kimi Delta Attention.

    conv_v, out_norm, out_gate  as in `Heads`; scale as in `ScaledHeads`
    decay            "softplus", exp(-exp(A) softplus(z)) by key channel; "bounded", exp(-5 sigmoid(exp(A) z)); "signed",
                     2 sigmoid(z) - 1; each with z = x W_1 W_2 + b. "head", one a head, as in Gated DeltaNet
    gate_rank        columns of W_1, for decay and output gate; None: V
    gate_form        the output gate's map: "low_rank", with a bias; "full", W_g without one
    gate_activation  of the output gate
    """

    conv_v: bool = True
    out_norm: Literal["head", "shared", "none"] = "shared"
    out_gate: bool = True
    scale: Literal["one", "key_dim"] = "key_dim"
    decay: Literal["softplus", "bounded", "signed", "head"] = "softplus"
    gate_rank: int | None = None
    gate_form: Literal["low_rank", "full"] = "low_rank"
    gate_activation: Literal["sigmoid", "silu"] = "sigmoid"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, gate_rank=self.gate_rank)

    @property
    def unpublished(self) -> tuple[str, ...]:
        """Differences of these options from the published layer, a phrase each."""
        gate = (self.gate_form, self.gate_activation) if self.out_gate else ("no", "none")
        return (
            *self.unscaled,
            *(("a decay a head, in the published layer one a key channel",) if self.decay == "head" else ()),
            *(("another output gate than the published one",) if gate != ("low_rank", "sigmoid") else ()),
        )

    def rank(self, width: int) -> int:
        """Inner width of the low-rank maps."""
        return self.gate_rank or self.sizes(width)[1]

    def parameters_around(self, width: int) -> int:
        """Those of `Heads`, with the output gate as it is here, and the decay."""
        key_dim, _ = self.sizes(width)
        if self.decay == "head":
            decay = SoftplusDecay.count(width, self.heads)
        else:
            decay = ChannelDecay.count(width, self.heads, key_dim, rank=self.rank(width), form=self.decay)
        return super().parameters_around(width) + self._beyond_full(width, bias=True) + decay

    def flops_around(self, width: int) -> float:
        """Those of `Heads`, with the output gate as it is here, and the map to the decay."""
        key_dim, _ = self.sizes(width)
        decay = width * self.heads if self.decay == "head" else self.rank(width) * (width + self.heads * key_dim)
        return super().flops_around(width) + 2 * (self._beyond_full(width, bias=False) + decay)

    def build_decay(self, width: int) -> nn.Module:
        """The decay, for `fading`."""
        if self.decay == "head":
            return SoftplusDecay(width, self.heads, rates=RATES)
        return ChannelDecay(width, self.heads, self.sizes(width)[0], rank=self.rank(width), form=self.decay)

    def build_read_out(self, width: int) -> ReadOut:
        """Norm and output gate."""
        rank = self.rank(width) if self.gate_form == "low_rank" else None
        return ReadOut(self, width, activation=self.gate_activation, rank=rank)

    def _beyond_full(self, width: int, *, bias: bool) -> int:
        """Weights that the output gate has more than a full one."""
        if not self.out_gate or self.gate_form == "full":
            return 0
        values = self.heads * self.sizes(width)[1]
        return self.rank(width) * (width + values) + bias * values - width * values


def fading(decay: nn.Module, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
    """Log decays [B, T, H, K], or [B, T, H] by head, and of a signed decay the product of all signs so far, [B, T, H, K].

    The memory times these products fades without signs: q and k take the factor, and so does the memory behind the last token.
    """
    made = decay(x_BTD)
    log_decay, sign_BTHK = made if isinstance(made, tuple) else (made, None)
    return log_decay, signs(sign_BTHK)


def turned(x_BTHK: Tensor, signs_BTHK: Tensor | None) -> Tensor:
    """x with the signs, where there are any."""
    return x_BTHK if signs_BTHK is None else x_BTHK * signs_BTHK.to(x_BTHK.dtype)


def turned_back(memory_BHKV: Tensor | None, signs_BTHK: Tensor | None) -> Tensor | None:
    """The memory behind the last token, from that whose keys had the signs."""
    if memory_BHKV is None or signs_BTHK is None:
        return memory_BHKV
    return memory_BHKV * signs_BTHK[:, -1, :, :, None].to(memory_BHKV.dtype)
