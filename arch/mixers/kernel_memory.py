"""Memories over features that are never computed: DeepTransformer, SWDT and Dot. Their state grows with length.

linear   o_t = sum_j kappa(q_t, k_j) B_t[j]
deep     o_t = q_t + gelu(sum_m kappa(q_t, p_m) A_t[m]) W_t over learned anchors and keys p_m
kappa(x, y) = exp(scale x . y), or a polynomial of x . y with learned coefficients

B batch, T time, D model width, H heads, K key width, V value width
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.kernels.monomials import count_monomials
from recallmap.arch.kernels.test_time.implicit_features import Anchors, Exponential, Kernel, Polynomial
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.heads import HeadsState, ReadOut, check_at_least, check_at_most
from recallmap.arch.parts.memory_heads import MemoryHeads, MemoryInputs, first_weights
from recallmap.arch.parts.poly import MOST_DEGREE, PolyFeatures

KEPT_SCORES = 9  # floats for every token that a token reads; 5 to 9 at 256 tokens on an H200
STEEPEST = 40  # scale of the exponent: its gradients are squares of e^40
LAST_SCALE = 0.1  # of the last matrix at first: a memory that knows little but lets gradients through


@dataclass(frozen=True, kw_only=True)
class _KernelMemory(MemoryHeads, MixerSpec):
    """The common options of memories over implicit features.

    kernel     "exponential", or "polynomial" up to `degree`
    scale      scale of the exponent, and the initial divisor of anchors
    degree     degree of the polynomial
    anchors    learned points at which a deep memory knows something before the first token
    """

    kernel: Literal["exponential", "polynomial"] = "exponential"
    scale: float = 1.0
    degree: int = 2
    anchors: int = 16

    follows: ClassVar[bool]  # True where a write depends on what is known already
    state_formula: ClassVar[str] = "T H (K + V), or T H (K + hidden (1 + [b > 1])) + H P; window and taps as elsewhere"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, degree=self.degree)
        check_at_most(MOST_DEGREE, degree=self.degree)
        check_at_least(0, anchors=self.anchors)
        if not 0 < self.scale <= STEEPEST:
            raise ValueError(
                f"scale must be positive and at most {STEEPEST}, whose exponential floats still hold; got {self.scale}"
            )

    @property
    @abstractmethod
    def op(self) -> Callable[..., Any]: ...

    @property
    @abstractmethod
    def answer(self) -> Callable[..., Tensor]:
        """The op's read-out of an unchanged state."""

    @property
    def frozen(self) -> bool:
        """True where the state holds a copy of the memory at the chunk's start."""
        return self.chunk > 1 and (self.depth > 1 or self.follows)

    def further(self, width: int) -> list[tuple[int, int]]:
        """The shape (rows, columns) of every matrix after the first map of one head's memory."""
        widths = [*[self.hidden(width)] * (self.depth - 1), self.sizes(width)[1]]
        return list(pairwise(widths))

    def values(self, width: int) -> int:
        """Columns of the op's values."""
        return self.sizes(width)[1]

    def columns(self, width: int) -> int:
        """The scale of the first map."""
        return self.hidden(width) if self.depth > 1 else self.values(width)

    def first_coefficients(self, width: int) -> Tensor:
        """Values [H, A, hidden] of the anchors, such that keys of length 1 bend the hidden units by about 1. They sum to zero,
        because a part that kappa gives to every key would make all keys look the same."""
        a = torch.randn(self.heads, self.anchors, self.hidden(width))
        a = a - a.mean(1, keepdim=True) if self.anchors > 1 else a
        return a * (self.sizes(width)[0] / self.anchors) ** 0.5 / self.scale

    def differs(self) -> tuple[str, ...]:
        anchors = ("a deep memory begins with learned anchors",) if self.depth > 1 and self.anchors else ()
        return ("made from the paper: we know of no code by its authors", *self.bounded, *anchors)

    def build(self, width: int) -> MixerModule:
        return _KernelMemoryModule(self, width)

    def parameters(self, width: int) -> int:
        further = self.further(width)
        weights = self.heads * sum(rows * columns for rows, columns in further)
        known = self.heads * self.anchors * (self.sizes(width)[0] + self.hidden(width)) if further else 0
        polynomial = self.degree + 1 if self.kernel == "polynomial" else 0
        return self.parameters_around(width) + self.parameters_of_gates(width) + weights + known + polynomial

    def state_size(self, width: int, length: int) -> StateSize:
        key_dim = self.sizes(width)[0]
        columns, copies = self.columns(width), 1 + self.frozen
        anchors = self.anchors if self.depth > 1 else 0
        weights = sum(rows * cols for rows, cols in self.further(width))
        at_rest = length - length % self.chunk if self.frozen else 0  # tokens that the copy knows
        fixed = anchors * (key_dim + copies * columns) + copies * weights + (self.window - 1) * self.values(width)
        growing = length * (key_dim + columns) + at_rest * columns
        return StateSize(self.heads * fixed + self.conv_state(width), growing=self.heads * growing)

    def kept_floats(self, width: int, length: int) -> float:
        return KEPT_SCORES * self.heads * length

    def flops(self, width: int, length: int) -> float:
        key_dim = self.sizes(width)[0]
        seen = (length + 1) / 2 + (self.anchors if self.depth > 1 else 0)
        passes = 2 if self.depth > 1 or self.follows else 1
        gradient = 1 + (self.window - 1) / self.chunk
        weights = sum(rows * cols for rows, cols in self.further(width))
        core = 2 * seen * (key_dim + self.columns(width)) * (1 + (passes - 1) * gradient)
        core += weights * (5 + 6 * gradient)
        return self.flops_around(width) + self.flops_of_gates(width) + self.heads * core

    def memory(self, width: int) -> Memory:
        """The memory with these options, at the largest learning rate, from initial weights."""
        key_dim, value_dim = self.sizes(width)
        module = _KernelMemoryModule(self, width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            kernel, energy = module.to(q).learned_kernel()
            anchors = module.learned_anchors(key_dim)
            o: Tensor = self.op(
                q,
                k,
                v,
                kernel=kernel,
                eta=write * self.rate / energy / self.target(k, v),
                window=self.window,
                gradient_chunk=self.chunk,
                anchors=anchors,
                residual=self.residual,
            )[0]
            return o

        polynomial = {"C(d_k + p, p)": count_monomials(key_dim, self.degree)}
        return Memory(self.heads, key_dim, value_dim, answer, polynomial if self.kernel == "polynomial" else {})


class _KernelMemoryModule(MixerModule):
    def __init__(self, spec: _KernelMemory, width: int) -> None:
        super().__init__()
        self.spec = spec
        key_dim, value_dim = spec.sizes(width)
        self.inputs = MemoryInputs(spec, width)
        self.polynomial = PolyFeatures(spec.degree) if spec.kernel == "polynomial" else None
        further = spec.further(width)
        known = further and spec.anchors
        self.points = nn.Parameter(torch.randn(spec.heads, spec.anchors, key_dim)) if known else None
        self.coefficients = nn.Parameter(spec.first_coefficients(width)) if known else None
        self.weights = nn.ParameterList(
            first_weights(spec.heads, *shape, LAST_SCALE if number == len(further) else 1.0)
            for number, shape in enumerate(further, start=1)
        )
        self.output = ReadOut(spec, width, activation="sigmoid")
        self.out = nn.Linear(spec.heads * value_dim, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or HeadsState()
        kernel, energy = self.learned_kernel()
        given, conv = self.inputs(x_BTD, state.conv, energy)
        o_BTHV, memory = self.spec.op(
            given.q,
            given.k,
            given.v,
            kernel=kernel,
            alpha=given.alpha,
            eta=given.eta,
            gamma=given.gamma,
            window=self.spec.window,
            gradient_chunk=self.spec.chunk,
            anchors=self.learned_anchors(given.k.shape[-1]),
            residual=self.spec.residual,
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(self.output(o_BTHV, x_BTD)), HeadsState(conv, memory)

    def read(self, x_BTD: Tensor, state: State, cache: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The answer of the memory of `state` to x, without learning; `cache` is the convolution's state from earlier
        reads."""
        q_BTHK, cache = self.inputs.queries(x_BTD, cache)
        o_BTHV = self.spec.answer(state.memory, q_BTHK, kernel=self.learned_kernel()[0], residual=self.spec.residual)
        return self.out(self.output(o_BTHV, x_BTD)), cache

    def learned_kernel(self) -> tuple[Kernel, Tensor | float]:
        """The kernel kappa, and kappa(k, k) of a key of length 1."""
        if self.polynomial is None:
            return Exponential(self.spec.scale), math.exp(self.spec.scale)
        return Polynomial(self.polynomial.coefficients()), self.polynomial.energy()

    def learned_anchors(self, key_dim: int) -> Anchors | None:
        if self.spec.depth == 1:
            return None
        weights = tuple(self.weights)
        if self.points is None or self.coefficients is None:
            nothing = weights[0].new_zeros(self.spec.heads, 0, 1)
            return Anchors(nothing.expand(-1, -1, key_dim), nothing.expand(-1, -1, weights[0].shape[-2]), weights)
        return Anchors(F.normalize(self.points, dim=-1), self.coefficients, weights)


@dataclass(frozen=True, kw_only=True)
class _KernelAttention(_KernelMemory):
    """The dot loss in a memory over all powers of the key.

    normalize  divide by the sum of the weights, which makes the linear memory softmax attention
    """

    normalize: bool = False

    follows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize and (self.depth > 1 or self.residual):
            raise ValueError("normalize needs a linear memory without residual; set depth to 1 and residual to false")
        if self.normalize and self.kernel == "polynomial":
            raise ValueError(
                "normalize divides by a sum of weights, which those of a polynomial can cancel; set kernel to exponential"
            )

    @property
    def op(self) -> Callable[..., Any]:
        return partial(kernels.kernel_attention, normalize=self.normalize)

    @property
    def answer(self) -> Callable[..., Tensor]:
        return partial(kernels.kernel_attention_read, normalize=self.normalize)

    def values(self, width: int) -> int:
        return self.sizes(width)[1] + self.normalize


@dataclass(frozen=True, kw_only=True)
class DeepTransformer(_KernelAttention):
    """The dot loss in a deep memory over all powers of the key; with depth 1 unnormalised attention. Nothing fades."""

    kind: Literal["deep_transformer"] = "deep_transformer"
    forget: bool = False

    equation: ClassVar[str] = "W_t = W_{t-1} + eta_t grad <M_W(phi*(k_t)), v_t>,  phi*(x) . phi*(y) = exp(x . y)"
    source: ClassVar[str] = "Behrouz et al. 2025 (ATLAS), section 4"


@dataclass(frozen=True, kw_only=True)
class Swdt(_KernelAttention):
    """DeepTransformer whose steps take in the last c tokens each, and which forgets (sliding window deep transformer)."""

    kind: Literal["swdt"] = "swdt"
    window: int = 4

    equation: ClassVar[str] = "W_t = alpha_t W_{t-1} + eta_t sum_{j<c} gamma_{t,j} grad <M_W(phi*(k_{t-j})), v_{t-j}>"
    source: ClassVar[str] = "Behrouz et al. 2025 (ATLAS), section 4"


@dataclass(frozen=True, kw_only=True)
class Dot(_KernelMemory):
    """The Omega rule over all powers of the key: attention that writes only what it does not know yet."""

    kind: Literal["dot"] = "dot"
    window: int = 4

    follows: ClassVar[bool] = True
    equation: ClassVar[str] = (
        "W_t = alpha_t W_{t-1} - eta_t sum_{j<c} gamma_{t,j} grad |M(phi*(k_{t-j})) - v_{t-j}|^2 / 2"
    )
    source: ClassVar[str] = "Behrouz et al. 2025 (ATLAS), section 4"

    @property
    def op(self) -> Callable[..., Any]:
        return kernels.kernel_delta

    @property
    def answer(self) -> Callable[..., Tensor]:
        return kernels.kernel_delta_read
