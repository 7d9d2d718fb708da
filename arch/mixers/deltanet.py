"""DeltaNet: a token replaces what the memory holds under its key, instead of adding to it.

S_t = S_{t-1} + beta_t k_t^T (v_t - k_t S_{t-1}),   o_t = s q_t S_t

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import WriteStrength
from recallmap.arch.parts.heads import HeadsState, QueryKeyValue, ReadOut, ScaledHeads


@dataclass(frozen=True, kw_only=True)
class DeltaNet(ScaledHeads, MixerSpec):
    """DeltaNet, by default in Gated DeltaNet's surroundings without the decay. The zoo's `deltanet` is the published layer,
    without an output gate and with `scale` "key_dim"; `deltanet_mesanet` is MesaNet's baseline.

    beta_max   write strengths lie in (0, beta_max); 2 lets the transition have negative eigenvalues
    beta_bias  give the write strength a bias
    """

    kind: Literal["deltanet"] = "deltanet"
    conv_v: bool = True
    out_norm: Literal["head", "shared", "none"] = "shared"
    out_gate: bool = True
    beta_max: Literal[1, 2] = 1
    beta_bias: bool = False

    equation: ClassVar[str] = "S_t = (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t,  o_t = s q_t S_t"
    state_formula: ClassVar[str] = "H K V + (taps - 1) channels"
    source: ClassVar[str] = "Yang et al. 2024 (DeltaNet), eq. 3; beta up to 2: Grazzi et al. 2025"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta_max not in (1, 2):
            raise ValueError(f"beta_max must be 1 or 2 (negative eigenvalues), got {self.beta_max}")

    def differs(self) -> tuple[str, ...]:
        if self.mesanet:
            return ("MesaNet's baseline, the zoo's deltanet_mesanet: v not convolved; deltanet is the published layer",)
        return (*self.unscaled, *(("has an output gate, the published layer none",) if self.out_gate else ()))

    def build(self, width: int) -> MixerModule:
        return _DeltaNet(self, width)

    def parameters(self, width: int) -> int:
        return self.parameters_around(width) + WriteStrength.count(width, self.heads, bias=self.beta_bias)

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * value_dim + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        return self.flops_around(width) + self.heads * (2 * width + 6 * key_dim * value_dim)

    def memory(self, width: int) -> Memory:
        """The memory, read with scale 1 as for every mixer here: the norm of a head, which the probe leaves out, undoes
        another scale."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.delta(q, k, v, beta=write)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})


class _DeltaNet(MixerModule):
    def __init__(self, spec: DeltaNet, width: int) -> None:
        super().__init__()
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)  # longer keys would make the recurrence blow up
        self.write = WriteStrength(width, spec.heads, bias=spec.beta_bias, most=spec.beta_max)
        self.scale = spec.read_scale(width)
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * spec.sizes(width)[1], width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        q_BTHK, k_BTHK, v_BTHV, conv = self.qkv(x_BTD, state.conv)
        o_BTHV, memory = kernels.delta(
            q_BTHK,
            k_BTHK,
            v_BTHV,
            beta=self.write(x_BTD),
            scale=self.scale,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BTHV, x_BTD)), HeadsState(conv, memory)
