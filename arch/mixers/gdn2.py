"""Gated DeltaNet-2: what is erased is gated by key channel, what is written by value channel.

S_t = (I - k_t^T (b_t * k_t)) diag(a_t) S_{t-1} + k_t^T (w_t * v_t),   o_t = s q_t S_t

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import WriteStrength
from recallmap.arch.parts.heads import HeadsState, QueryKeyValue
from recallmap.arch.parts.low_rank_gates import LowRankGates, fading, turned, turned_back


@dataclass(frozen=True, kw_only=True)
class GDN2(LowRankGates, MixerSpec):
    """Gated DeltaNet-2: Kimi Delta Attention with two gates by full-rank maps without a bias in place of its write strength.
    Projections, convolutions, norms, decay, output gate and first values are those of `KDA`. It differs from Gated DeltaNet in
    the decay by channel, the low-rank sigmoid output gate and these two gates. Transitions may lengthen the memory, by at most
    2 / sqrt(3) a token.

    erase   the gate b of what is erased: "channel", sigmoid(x W) by key channel; "scalar", one a head
    write   the gate w of what is written: "channel", sigmoid(x W) by value channel; "scalar", one a head
    """

    kind: Literal["gdn2"] = "gdn2"
    erase: Literal["channel", "scalar"] = "channel"
    write: Literal["channel", "scalar"] = "channel"

    equation: ClassVar[str] = "S_t = (I - k_t^T (b_t * k_t)) diag(a_t) S_{t-1} + k_t^T (w_t * v_t),  o_t = s q_t S_t"
    state_formula: ClassVar[str] = "H K V + (taps - 1) channels"
    source: ClassVar[str] = "Gated DeltaNet-2, arXiv 2605.22791"

    def differs(self) -> tuple[str, ...]:
        scalar = "scalar" in (self.erase, self.write)
        return (*self.unpublished, *(("a gate a head, in the published layer one a channel",) if scalar else ()))

    def build(self, width: int) -> MixerModule:
        return _GDN2(self, width)

    def gates(self, width: int) -> tuple[int, int]:
        """Columns of the maps to b and w."""
        key_dim, value_dim = self.sizes(width)
        erase = key_dim if self.erase == "channel" else 1
        return self.heads * erase, self.heads * (value_dim if self.write == "channel" else 1)

    def parameters(self, width: int) -> int:
        return self.parameters_around(width) + WriteStrength.count(width, sum(self.gates(width)), bias=False)

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * value_dim + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        return self.flops_around(width) + 2 * width * sum(self.gates(width)) + 7 * self.heads * key_dim * value_dim

    def memory(self, width: int) -> Memory:
        """The memory with both gates at `write`, read with scale 1: the norm of a head, which the probe leaves out, undoes
        another scale."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.delta(q, k, write[..., None] * v, a=write[..., None] * k, b=k)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})


class _GDN2(MixerModule):
    def __init__(self, spec: GDN2, width: int) -> None:
        super().__init__()
        self.heads = spec.heads
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)  # longer keys would make the recurrence blow up
        self.decay = spec.build_decay(width)
        self.by_channel = spec.decay != "head"
        erase, write = spec.gates(width)
        self.erase, self.write = WriteStrength(width, erase, bias=False), WriteStrength(width, write, bias=False)
        self.scale = spec.read_scale(width)
        self.read = spec.build_read_out(width)
        self.out = nn.Linear(spec.heads * spec.sizes(width)[1], width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        log_decay, signs_BTHK = fading(self.decay, x_BTD)
        erase, write = (gate(x_BTD).unflatten(-1, (self.heads, -1)) for gate in (self.erase, self.write))
        k_BTHK = turned(k_BTHK, signs_BTHK)
        faded = (log_decay if self.by_channel else log_decay[..., None]).exp()  # what is read off has faded first
        o_BTHV, memory = kernels.delta(
            turned(q_BTHK, signs_BTHK),
            k_BTHK,
            (write * v_BTHV).to(v_BTHV.dtype),
            log_decay=log_decay,
            a=(faded * erase * k_BTHK).to(k_BTHK.dtype),
            b=k_BTHK,
            scale=self.scale,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, turned_back(memory, signs_BTHK))
