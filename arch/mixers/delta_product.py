"""DeltaProduct: a token follows the delta rule several times, under a key of its own each, and is read once.

S <- a_t S_{t-1};   for j = 1..n:  S <- S + b_tj k_tj^T (v_tj - k_tj S);   S_t = S,   o_t = s q_t S_t

B batch, T time, D model width, H heads, N steps a token, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SoftplusDecay, WriteStrength
from recallmap.arch.parts.heads import HeadsState, QueryKeyValue, ReadOut, ScaledHeads, check_at_least

RATES = (1e-4, 16.0)  # of decay, before training


@dataclass(frozen=True, kw_only=True)
class DeltaProduct(ScaledHeads, MixerSpec):
    """DeltaProduct and, with a decay, Gated DeltaProduct. It computes n tokens of DeltaNet for one of its own, and reads only
    the last of them: n = 1 is DeltaNet and Gated DeltaNet.

    The zoo's `delta_product` and `gated_delta_product` are flash-linear-attention's layer but for its heads, which are 6 with
    keys of 256 channels and values of 512: one map and one convolution of 4 taps with SiLU for q and all k and v, along
    tokens and never along steps, q and k of norm 1, write strengths up to 2 without a bias, a decay a token and not one a step,
    a norm and a SiLU gate behind. `scale` "key_dim" is its code's.

    steps     delta steps a token, n: so many keys, values and write strengths; the state's size does not depend on it, that of
              the convolution does
    decay     "softplus", a = exp(-exp(A) softplus(x W + b)) ahead of the first step; "none", 1
    beta_max  write strengths lie in (0, beta_max); only with 2 are transitions mirrors, of which n make a rotation
    """

    kind: Literal["delta_product"] = "delta_product"
    heads: int = 4
    conv_v: bool = True
    out_norm: Literal["head", "shared", "none"] = "shared"
    out_gate: bool = True
    scale: Literal["one", "key_dim"] = "key_dim"
    steps: int = 2
    decay: Literal["softplus", "none"] = "softplus"
    beta_max: Literal[1, 2] = 2

    equation: ClassVar[str] = "S_t = a_t prod_j (I - b_tj k_tj^T k_tj) S_{t-1} + what n steps write,  o_t = s q_t S_t"
    state_formula: ClassVar[str] = "H K V + (taps - 1) H ((1 + n) K + n V)"
    source: ClassVar[str] = "Siems et al. 2025 (DeltaProduct)"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, steps=self.steps)
        if self.beta_max not in (1, 2):
            raise ValueError(f"beta_max must be 1 or 2 (negative eigenvalues), got {self.beta_max}")

    @property
    def writes(self) -> int:
        return self.steps

    def differs(self) -> tuple[str, ...]:
        narrow = self.key_dim is None and self.value_dim is None
        return (
            *self.unscaled,
            *(("values as wide as keys, in the published layer twice as wide",) if narrow else ()),
            *(("write strengths up to 1, in the published layer up to 2",) if self.beta_max == 1 else ()),
        )

    def build(self, width: int) -> MixerModule:
        return _DeltaProduct(self, width)

    def parameters(self, width: int) -> int:
        decay = SoftplusDecay.count(width, self.heads) if self.decay == "softplus" else 0
        write = WriteStrength.count(width, self.steps * self.heads, bias=False)
        return self.parameters_around(width) + decay + write

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim, value_dim = self.sizes(width)
        return StateSize(self.heads * key_dim * value_dim + self.conv_state(width))

    def flops(self, width: int, length: int) -> float:
        key_dim, value_dim = self.sizes(width)
        gated = self.decay == "softplus"
        maps = 2 * width * (self.steps + gated)
        return self.flops_around(width) + self.heads * (maps + (4 * self.steps + 2 + gated) * key_dim * value_dim)

    def memory(self, width: int) -> Memory:
        """The memory, written by the first step of a token while the others rest, and read with scale 1: the norm of a head,
        which the probe leaves out, undoes another scale."""
        key_dim, value_dim = self.sizes(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.delta(q, k, v, beta=write)[0]

        return Memory(self.heads, key_dim, value_dim, answer, {"d_k": key_dim})


class _DeltaProduct(MixerModule):
    def __init__(self, spec: DeltaProduct, width: int) -> None:
        super().__init__()
        self.steps = spec.steps
        self.qkv = QueryKeyValue(spec, width, qk_norm=True)  # longer keys would make the recurrence blow up
        self.decay = SoftplusDecay(width, spec.heads, rates=RATES) if spec.decay == "softplus" else None
        self.write = WriteStrength(width, spec.steps * spec.heads, bias=False, most=spec.beta_max)
        self.scale = spec.read_scale(width)
        self.read = ReadOut(spec, width)
        self.out = nn.Linear(spec.heads * spec.sizes(width)[1], width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        later = self.steps - 1
        q_BTHK, k_BTCK, v_BTCV, conv = self.qkv(x_BTD, state.conv)  # C = N H, the heads of a step next to each other
        log_decay = None if self.decay is None else self.decay(x_BTD)
        o_BSHV, memory = kernels.delta(  # S = T N: a token's steps, one after the other
            F.pad(q_BTHK[:, :, None], (0, 0, 0, 0, later, 0)).flatten(1, 2),
            self._by_step(k_BTCK),
            self._by_step(v_BTCV),
            log_decay=None if log_decay is None else F.pad(log_decay[:, :, None], (0, 0, 0, later)).flatten(1, 2),
            beta=self._by_step(self.write(x_BTD)),
            scale=self.scale,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.read(o_BSHV[:, later :: self.steps], x_BTD)), HeadsState(conv, memory)

    def _by_step(self, x_BTC: Tensor) -> Tensor:
        """[B, T, N H, ...] as [B, T N, H, ...]."""
        return x_BTC.unflatten(2, (self.steps, -1)).flatten(1, 2)
