"""Memories whose weights learn at test time: TTT, Titans, MIRAS' three, DLA, SWLA, OmegaNet, Atlas.

u_t = sum_{j < c} gamma_{t,j} grad l(M_W; k_{t-j}, v_{t-j}),   W as it was at the start of token t's chunk of b tokens
P_t = theta_t P_{t-1} + u_t,   A_t = alpha_t A_{t-1} - eta_t NS(P_t),   W_t = retention(A_t),   o_t = M_{W_t}(q_t)

They are one recurrence: the parts that a system adds or leaves out are options, and every option works with every system.

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.kernels import select
from recallmap.arch.kernels.monomials import count_monomials
from recallmap.arch.kernels.test_time.learning_rule import (
    DOT,
    HUBER,
    KL,
    L2,
    LP,
    LQ,
    PLAIN,
    HuberLoss,
    KlRetention,
    Loss,
    Momentum,
    Retention,
    Rule,
)
from recallmap.arch.kernels.test_time.network import LayerNorm
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import WriteStrength
from recallmap.arch.parts.heads import HeadsState, ReadOut, check_at_least, check_at_most, check_normed
from recallmap.arch.parts.memory_heads import MemoryHeads, MemoryInputs, first_weights
from recallmap.arch.parts.poly import MOST_DEGREE, PolyFeatures

MOST_STEPS = 100  # of Newton-Schulz; after at most ten every update is orthogonal
LAST_SCALE = 0.1  # of the last matrix at first: a memory that knows little but lets gradients through
# Floats per token that training keeps for each weight where a token has its own matrices, seen on an H200.
KEPT_WEIGHTS = 8  # Memora, 96 wide, two members of 256 sequences of 256 tokens: 72 and 87 GB, before a kernel held them
KEPT_BY_KERNEL = 2  # where one does: four members of MQAR at widths 32 and 48, 2.9 and 3.9 GB each for 2.0 and 3.5
KEPT_STEPS = 2  # Atlas, eight members of MAD's 32 sequences of 128 tokens: 10 GB


@dataclass(frozen=True, kw_only=True)
class _Memory(MemoryHeads, MixerSpec):
    """The common options of memories whose weights learn at test time.

    degree         p of the polynomial features of keys and queries, with learned coefficients; 1: plain keys
    loss           l2, dot, lp (p) or huber (beyond, delta_max)
    retention      l2, lq (q) or kl
    momentum       none, inside (Titans: the rate inside the momentum) or outside (Atlas: behind it)
    newton_schulz  steps that make updates orthogonal (Muon); 0: plain gradient descent
    cross_chunk    let a window reach back over its chunk's start
    gated          hidden units are gelu(x W) * (x G)
    inner_norm     LayerNorm inside the memory, M(x) = (x +) LN(...)
    bias           give all matrices of the memory a bias
    """

    degree: int = 1
    loss: Loss = L2
    retention: Retention = PLAIN
    momentum: Momentum = "none"
    newton_schulz: int = 0
    cross_chunk: bool = True
    gated: bool = False
    inner_norm: bool = False
    bias: bool = False

    state_formula: ClassVar[str] = "H (P (1 + [momentum] + [b > 1]) + (c - 1) (K + V)) + (taps - 1) channels, P weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, degree=self.degree)
        check_at_most(MOST_DEGREE, degree=self.degree)
        check_at_least(0, newton_schulz=self.newton_schulz)
        check_at_most(MOST_STEPS, newton_schulz=self.newton_schulz)
        if self.gated and self.depth < 2:
            raise ValueError("a gated memory needs hidden units; set depth to 2 or more, or gated to false")
        self.rule  # noqa: B018 - it checks itself

    def differs(self) -> tuple[str, ...]:
        return ("made from the paper: we know of no code by its authors", *self.bounded)

    def check(self, width: int) -> None:
        super().check(width)
        if self.inner_norm:
            check_normed("answers", self.sizes(width)[1])

    @property
    def rule(self) -> Rule:
        return Rule(
            loss=self.loss,
            retention=self.retention,
            momentum=self.momentum,
            newton_schulz=self.newton_schulz,
            window=self.window,
            chunk=self.chunk,
            cross_chunk=self.cross_chunk,
            gated=self.gated,
            bias=self.bias,
            residual=self.residual,
        )

    @property
    def overshoots(self) -> bool:
        """False for orthogonal updates, which are as long as the rate, whatever was learned."""
        return self.depth > 1 and not self.newton_schulz

    @property
    def normed(self) -> bool:
        """True with LayerNorm inside."""
        return self.inner_norm

    def matrices(self, width: int) -> list[tuple[int, int]]:
        """The shape (rows, columns) of every matrix of one head's memory."""
        key_dim, value_dim = self.sizes(width)
        first = count_monomials(key_dim, self.degree) if self.degree > 1 else key_dim
        widths = [first, *[self.hidden(width)] * (self.depth - 1), value_dim]
        twice = [2 if self.gated else 1] * (self.depth - 1) + [1]
        return [
            (rows + self.bias, columns)
            for rows, columns, times in zip(widths, widths[1:], twice, strict=False)
            for _ in range(times)
        ]

    def scales(self, width: int) -> list[float]:
        """The initial scale of every matrix, relative to the scale that preserves the size of signals."""
        shapes = self.matrices(width)
        if isinstance(self.retention, KlRetention):  # logits of size 1, or every answer is the same
            return [rows**0.5 for rows, _ in shapes]
        return [1.0] * (len(shapes) - 1) + [LAST_SCALE if self.retention.plain and self.depth > 1 else 1.0]

    def build(self, width: int) -> MixerModule:
        return _MemoryModule(self, width)

    def parameters(self, width: int) -> int:
        more = (self.momentum != "none") + isinstance(self.loss, HuberLoss)
        weights = self.heads * sum(rows * columns for rows, columns in self.matrices(width))
        norm = 2 * self.heads * self.sizes(width)[1] if self.inner_norm else 0
        features = self.degree + 1 if self.degree > 1 else 0
        return self.parameters_around(width) + self.parameters_of_gates(width, more) + weights + norm + features

    def state_size(self, width: int, length: int) -> StateSize:
        weights = sum(rows * columns for rows, columns in self.matrices(width))
        frozen = self.chunk > 1 and not self.rule.independent(self.depth, normed=self.inner_norm)
        copies = 1 + (self.momentum != "none") + frozen
        thresholds = self.heads * (self.window - 1) if isinstance(self.loss, HuberLoss) else 0
        fixed = self.heads * weights * copies + self.window_state(width) + thresholds + self.conv_state(width)
        return StateSize(fixed)

    def kept_floats(self, width: int, length: int) -> float:
        matrices = self.matrices(width)
        weights = self.heads * sum(rows * columns for rows, columns in matrices)
        if not self.retention.plain:
            shapes = [{"key_width": rows, "value_width": columns} for rows, columns in matrices]
            refused = [
                select.why_not("retained", "fused", device="cuda", dtype=torch.float32, sizes=sizes) for sizes in shapes
            ]
            return (KEPT_BY_KERNEL if self.rule.lone and not any(refused) else KEPT_WEIGHTS) * weights
        return KEPT_STEPS * weights if self.newton_schulz else 0.0

    def flops(self, width: int, length: int) -> float:
        matrices = self.matrices(width)
        weights = sum(rows * columns for rows, columns in matrices)
        behind = weights - sum(rows * columns for rows, columns in matrices[: 2 if self.gated else 1])
        gradient = (4 * weights + 2 * behind) * (self.chunk + self.window - 1) / self.chunk
        core = gradient + 5 * weights + (3 * weights if self.momentum != "none" else 0)
        if not self.retention.plain:
            core += 4 * weights
        for rows, columns in matrices:
            small, large = sorted((rows, columns))
            core += self.newton_schulz * (4 * small**2 * large + 2 * small**3)
        if self.degree > 1:
            core += 2 * matrices[0][0]
        more = (self.momentum != "none") + isinstance(self.loss, HuberLoss)
        return self.flops_around(width) + self.flops_of_gates(width, more) + self.heads * core

    def memory(self, width: int) -> Memory:
        """The memory with these options, at the largest learning rate, from initial weights."""
        key_dim, value_dim = self.sizes(width)
        module = _MemoryModule(self, width)
        energy = 1.0 if module.features is None else module.features.energy()

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            module.to(q)
            return kernels.memory(
                q,
                k,
                v,
                weights=tuple(module.weights),
                rule=self.rule,
                eta=write * self.rate / energy / self.target(k, v),
                theta=None if module.theta is None else torch.zeros_like(write),
                delta=None if module.delta is None else torch.full_like(write, torch.inf),
                norm=module.norm(),
                features=module.features,
            )[0]

        return Memory(self.heads, key_dim, value_dim, answer, self.bounds(width))

    def bounds(self, width: int) -> dict[str, int]:
        """Pairs that a head can hold; an order of magnitude where the memory is deep (ATLAS, section 3)."""
        key_dim, value_dim = self.sizes(width)
        if self.depth == 1:
            return {"C(d_k + p, p)": count_monomials(key_dim, self.degree)} if self.degree > 1 else {"d_k": key_dim}
        shapes = [rows * columns for rows, columns in self.matrices(width)]
        most = sum(min(shapes[i:]) for i in range(len(shapes)))
        return {"deep, at least": key_dim * value_dim, "deep, at most": key_dim * value_dim * most}


class _MemoryModule(MixerModule):
    def __init__(self, spec: _Memory, width: int) -> None:
        super().__init__()
        self.rule = spec.rule
        value_dim = spec.sizes(width)[1]
        self.inputs = MemoryInputs(spec, width)
        self.theta = WriteStrength(width, spec.heads, bias=True) if spec.momentum != "none" else None
        self.delta = None
        if isinstance(spec.loss, HuberLoss):
            self.delta = WriteStrength(width, spec.heads, bias=True, most=spec.loss.delta_max or value_dim**0.5)
        self.features = PolyFeatures(spec.degree) if spec.degree > 1 else None
        self.weights = nn.ParameterList(
            first_weights(spec.heads, *shape, scale)
            for shape, scale in zip(spec.matrices(width), spec.scales(width), strict=True)
        )
        self.norm_weight = nn.Parameter(torch.ones(spec.heads, value_dim)) if spec.inner_norm else None
        self.norm_bias = nn.Parameter(torch.zeros(spec.heads, value_dim)) if spec.inner_norm else None
        self.output = ReadOut(spec, width, activation="sigmoid")
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        energy = 1.0 if self.features is None else self.features.energy()
        given, conv = self.inputs(x_BTD, state.conv, energy)
        theta_BTH = None if self.theta is None else self.theta(x_BTD)
        eta_BTH = given.eta
        if theta_BTH is not None and not self.rule.newton_schulz:
            eta_BTH = eta_BTH * (1 - theta_BTH)  # momentum repeats a step 1 / (1 - theta) times
        o_BTHV, memory = kernels.memory(
            given.q,
            given.k,
            given.v,
            weights=tuple(self.weights),
            rule=self.rule,
            eta=eta_BTH,
            alpha=given.alpha,
            theta=theta_BTH,
            gamma=given.gamma,
            delta=None if self.delta is None else self.delta(x_BTD),
            norm=self.norm(),
            features=self.features,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.output(o_BTHV, x_BTD)), HeadsState(conv, memory)

    def read(self, x_BTD: Tensor, state: State, cache: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The answer of the memory of `state` to x, without learning; `cache` is the convolution's state from earlier
        reads."""
        q_BTHK, cache = self.inputs.queries(x_BTD, cache)
        o_BTHV = kernels.memory_read(state.memory, q_BTHK, rule=self.rule, norm=self.norm(), features=self.features)
        return self.out(self.output(o_BTHV, x_BTD)), cache

    def norm(self) -> LayerNorm | None:
        if self.norm_weight is None or self.norm_bias is None:
            return None
        return LayerNorm(self.norm_weight, self.norm_bias)


_UNLIKE_TTT = (
    "no factor 1 / i for the i-th token of a chunk",
    "q and k share no map, have length 1 and no rotary positions",
    "an RMSNorm of each head and a sigmoid for a gate, theirs a LayerNorm over all and a GELU",
)


@dataclass(frozen=True, kw_only=True)
class TttLinear(_Memory):
    """A linear memory with LayerNorm inside, learning in chunks; nothing fades."""

    kind: Literal["ttt_linear"] = "ttt_linear"
    depth: int = 1
    inner_norm: bool = True
    bias: bool = True
    forget: bool = False

    equation: ClassVar[str] = "W_t = W_{t-1} - eta_t grad |k_t + LN(k_t W + b) - v_t|^2 / 2 at the chunk's start"
    source: ClassVar[str] = "Sun et al. 2024 (TTT), eq. 1 and 7"

    def differs(self) -> tuple[str, ...]:
        return (*_UNLIKE_TTT, *self.bounded)


@dataclass(frozen=True, kw_only=True)
class TttMlp(_Memory):
    """As TTT-Linear with a memory of two matrices."""

    kind: Literal["ttt_mlp"] = "ttt_mlp"
    inner_norm: bool = True
    bias: bool = True
    forget: bool = False

    equation: ClassVar[str] = (
        "W_t = W_{t-1} - eta_t grad |k_t + LN(gelu(k_t W_1) W_2) - v_t|^2 / 2 at the chunk's start"
    )
    source: ClassVar[str] = "Sun et al. 2024 (TTT), section 2.7"

    def differs(self) -> tuple[str, ...]:
        return (*_UNLIKE_TTT, *self.bounded)


@dataclass(frozen=True, kw_only=True)
class Titans(_Memory):
    """A deep memory that learns with momentum (surprise) and forgets."""

    kind: Literal["titans"] = "titans"
    momentum: Momentum = "inside"

    equation: ClassVar[str] = "P_t = theta_t P_{t-1} + eta_t grad l,  W_t = alpha_t W_{t-1} - P_t,  o_t = M_{W_t}(q_t)"
    source: ClassVar[str] = "Behrouz et al. 2025 (Titans), eq. 8-14"

    def differs(self) -> tuple[str, ...]:
        ours = ["the form of the output gate", *(["the skip in M(x) = x + ..."] if self.residual else [])]
        return (*super().differs(), f"{' and '.join(ours)} {'is' if len(ours) == 1 else 'are'} ours")


@dataclass(frozen=True, kw_only=True)
class TitansMinus(_Memory):
    """Titans without momentum (Titans--)."""

    kind: Literal["titans_minus"] = "titans_minus"

    equation: ClassVar[str] = "W_t = alpha_t W_{t-1} - eta_t grad l(W; k_t, v_t),  o_t = M_{W_t}(q_t)"
    source: ClassVar[str] = "Behrouz et al. 2025 (MIRAS), section 5"


@dataclass(frozen=True, kw_only=True)
class Moneta(_Memory):
    """An lp loss and an lq retention: far errors count more, and weights stay on an lq sphere."""

    kind: Literal["moneta"] = "moneta"
    loss: Loss = LP
    retention: Retention = LQ

    equation: ClassVar[str] = "A_t = alpha_t A_{t-1} - eta_t grad |M(k_t) - v_t|_p^p / p,  W_t = A_t / |A_t|_q^(q-2)"
    source: ClassVar[str] = "Behrouz et al. 2025 (MIRAS), Moneta"


@dataclass(frozen=True, kw_only=True)
class Yaad(_Memory):
    """A Huber loss whose threshold every token sets: outliers do not overwrite."""

    kind: Literal["yaad"] = "yaad"
    loss: Loss = HUBER

    equation: ClassVar[str] = "W_t = alpha_t W_{t-1} - eta_t grad huber_{delta_t}(M(k_t) - v_t)"
    source: ClassVar[str] = "Behrouz et al. 2025 (MIRAS), Yaad"


@dataclass(frozen=True, kw_only=True)
class Memora(_Memory):
    """Weights that are a distribution over the fan-in, kept by KL divergence."""

    kind: Literal["memora"] = "memora"
    heads: int = (
        2  # its answers differ little from channel to channel: over few, LayerNorm would blow up rounding errors
    )
    retention: Retention = KL
    inner_norm: bool = True

    equation: ClassVar[str] = "W_t = softmax(alpha_t ln W_{t-1} - eta_t grad l(W; k_t, v_t))"
    source: ClassVar[str] = "Behrouz et al. 2025 (MIRAS), Memora"


@dataclass(frozen=True, kw_only=True)
class Dla(_Memory):
    """Deep linear attention: the dot loss in a deep memory over polynomial features."""

    kind: Literal["dla"] = "dla"
    degree: int = 2
    loss: Loss = DOT

    equation: ClassVar[str] = "W_t = alpha_t W_{t-1} + eta_t grad <M_W(phi(k_t)), v_t>"
    source: ClassVar[str] = "Behrouz et al. 2025 (ATLAS), section 3"


@dataclass(frozen=True, kw_only=True)
class Swla(_Memory):
    """Sliding window linear attention: each step takes in the dot losses of the last c tokens."""

    kind: Literal["swla"] = "swla"
    degree: int = 2
    window: int = 4
    loss: Loss = DOT

    equation: ClassVar[str] = "W_t = alpha_t W_{t-1} + eta_t sum_{j<c} gamma_{t,j} grad <M_W(phi(k_{t-j})), v_{t-j}>"
    source: ClassVar[str] = "Behrouz et al. 2025 (ATLAS), section 3"


@dataclass(frozen=True, kw_only=True)
class OmegaNet(_Memory):
    """The Omega rule: each step descends the errors of the last c tokens."""

    kind: Literal["omeganet"] = "omeganet"
    degree: int = 2
    window: int = 4

    equation: ClassVar[str] = (
        "W_t = alpha_t W_{t-1} - eta_t sum_{j<c} gamma_{t,j} grad |M(phi(k_{t-j})) - v_{t-j}|^2 / 2"
    )
    source: ClassVar[str] = "Behrouz et al. 2025 (ATLAS), eq. 9"


@dataclass(frozen=True, kw_only=True)
class Atlas(_Memory):
    """The Omega rule with momentum whose updates Newton-Schulz makes orthogonal (Muon)."""

    kind: Literal["atlas"] = "atlas"
    degree: int = 2
    window: int = 4
    momentum: Momentum = "outside"
    newton_schulz: int = 5

    equation: ClassVar[str] = "P_t = theta_t P_{t-1} + grad of the window,  W_t = alpha_t W_{t-1} - eta_t NS5(P_t)"
    source: ClassVar[str] = "Behrouz et al. 2025 (ATLAS), section 5"


@dataclass(frozen=True, kw_only=True)
class AtlasPp(_Memory):
    """Atlas with a gated memory (Atlas++)."""

    kind: Literal["atlas_pp"] = "atlas_pp"
    degree: int = 2
    window: int = 4
    momentum: Momentum = "outside"
    newton_schulz: int = 5
    gated: bool = True

    equation: ClassVar[str] = "as Atlas, M(x) = x + (gelu(x W_1) * (x W_3)) W_2"
    source: ClassVar[str] = "Behrouz et al. 2025 (ATLAS), section 5"
