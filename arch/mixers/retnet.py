"""RetNet: outer products that fade by a constant of the head; q and k are turned by their positions.

S_t = (1 - 2^(-5-h)) S_{t-1} + k_t^T v_t,   o_t = q_t S_t / sqrt(K)   for head h = 0, 1, ...

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.heads import Heads, QueryKeyValue, ReadOut, head_size, merge_heads
from recallmap.arch.parts.precision import widen
from recallmap.arch.parts.rotary import rotate


@dataclass(frozen=True, kw_only=True)
class RetNet(Heads, MixerSpec):
    """Retention.

    key_dim    channels of a head's q and k, an even number; None: width / heads
    value_dim  None: 2 key_dim
    """

    kind: Literal["retnet"] = "retnet"
    short_conv: int = 0
    activation: Literal["silu", "identity"] = "identity"
    out_norm: Literal["head", "shared", "none"] = "shared"
    out_gate: bool = True

    equation: ClassVar[str] = "S_t = (1 - 2^(-5-h)) S_{t-1} + k_t^T v_t,  o_t = q_t S_t / sqrt(K),  q, k rotated"
    state_formula: ClassVar[str] = "H K V + (taps - 1) channels"
    source: ClassVar[str] = "Sun et al. 2023 (RetNet), eq. 5 to 8"

    def differs(self) -> tuple[str, ...]:
        return (
            "without the paper's three normalisations and the amplitudes of xPos, as in flash-linear-attention; "
            "the norm of a head undoes the former up to its eps",
        )

    def check(self, width: int) -> None:
        key_dim, _ = self.sizes(width)
        if key_dim % 2:
            raise ValueError(f"retnet turns pairs of channels: key_dim must be even, got {key_dim}")

    def sizes(self, width: int) -> tuple[int, int]:
        key_dim = head_size(width, self.heads, self.key_dim, "key_dim")
        return key_dim, 2 * key_dim if self.value_dim is None else self.value_dim

    def build(self, width: int) -> MixerModule:
        return _RetNet(self, width)

    def parameters(self, width: int) -> int:
        return self.parameters_around(width)

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * value_dim + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        return self.flops_around(width) + 5 * self.heads * key_dim * value_dim

    def memory(self, width: int) -> Memory:
        """The memory without positions; with every pair that is written the earlier ones fade, as they always do here."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.gated_linear(q, k, v, beta=write, log_decay=write * fade(self.heads, v), scale=1.0)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})

    def merged(self, width: int) -> RetNet | None:
        return merge_heads(self, width)


class _State(NamedTuple):
    conv: Tensor | None = None
    memory: Tensor | None = None
    position: int = 0


class _RetNet(MixerModule):
    def __init__(self, spec: RetNet, width: int) -> None:
        super().__init__()
        self.heads = spec.heads
        self.key_dim, value_dim = spec.sizes(width)
        self.qkv = QueryKeyValue(spec, width, qk_norm=False)
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or _State()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        position_T = torch.arange(x_BTD.shape[1], device=x_BTD.device) + state.position
        o_BTHV, memory = kernels.gated_linear(
            rotate(q_BTHK, position_T),
            rotate(k_BTHK, position_T),
            v_BTHV,
            log_decay=fade(self.heads, x_BTD),
            scale=self.key_dim**-0.5,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), _State(conv, memory, state.position + x_BTD.shape[1])


def fade(heads: int, x: Tensor) -> Tensor:
    """The log decays [H] of every model, on the device and in the precision of `x`."""
    head_H = torch.arange(heads, device=x.device, dtype=widen(x[:0]).dtype)
    return torch.log1p(-torch.exp2(-5 - head_H))
