"""How a memory learns at test time, as data: the loss that a token brings, what is kept, and the step that is taken.

u_t = sum_{j < c} gamma_{t,j} grad l(M_W; k_{t-j}, v_{t-j}),   W as it was at the start of the chunk of b tokens
inside     P_t = theta_t P_{t-1} + eta_t u_t,   A_t = alpha_t A_{t-1} - P_t                  (Titans' order)
outside    P_t = theta_t P_{t-1} + u_t,         A_t = alpha_t A_{t-1} - eta_t NS(P_t)        (Atlas' order)
W_t = retention(A_t),   o_t = M_{W_t}(q_t)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class L2Loss:
    """|M(k) - v|^2 / 2"""

    kind: Literal["l2"] = "l2"
    of_error: ClassVar[bool] = True

    def gradient(self, answer: Tensor, value: Tensor, threshold: Tensor | None) -> Tensor:
        return answer - value


@dataclass(frozen=True, kw_only=True)
class DotLoss:
    """-<M(k), v>: what is learned never depends on what is known."""

    kind: Literal["dot"] = "dot"
    of_error: ClassVar[bool] = False

    def gradient(self, answer: Tensor, value: Tensor, threshold: Tensor | None) -> Tensor:
        return -value


@dataclass(frozen=True, kw_only=True)
class LpLoss:
    """|M(k) - v|_p^p / p, with sign(e) smoothed to tanh(sharpness e) and |e| to sqrt(e^2 + eps) (MIRAS, Moneta).

    At p = 2 the gradient is e itself, and there is nothing to smooth.
    """

    kind: Literal["lp"] = "lp"
    p: float = 3.0
    sharpness: float = 10.0
    eps: float = 1e-6
    of_error: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.p < 1:
            raise ValueError(f"p of the loss must be at least 1, got {self.p}")
        if self.sharpness <= 0 or self.eps <= 0:
            raise ValueError(f"sharpness and eps must be positive, got {self.sharpness} and {self.eps}")

    def gradient(self, answer: Tensor, value: Tensor, threshold: Tensor | None) -> Tensor:
        error = answer - value
        if self.p == 2:
            return error
        return torch.tanh(self.sharpness * error) * (error.square() + self.eps).pow((self.p - 1) / 2)


@dataclass(frozen=True, kw_only=True)
class HuberLoss:
    """|e|^2 / 2 up to |e| = delta, linear in e beyond (MIRAS, Yaad).

    beyond     "sign": delta sign(e), as printed, by which values have no derivative; "norm": delta e / |e|, which is continuous
    delta_max  the largest delta that a mixer gives; None: the root of the value width, about as long as answers are behind a
               LayerNorm. With 1, and such answers, no error is within
    """

    kind: Literal["huber"] = "huber"
    beyond: Literal["sign", "norm"] = "sign"
    delta_max: float | None = None
    of_error: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.delta_max is not None and self.delta_max <= 0:
            raise ValueError(f"delta_max must be positive or null (the root of the value width), got {self.delta_max}")

    def gradient(self, answer: Tensor, value: Tensor, threshold: Tensor | None) -> Tensor:
        assert threshold is not None
        error, limit = answer - value, threshold[..., None]
        norm = error.square().sum(-1, keepdim=True).clamp(min=1e-30).sqrt()
        if self.beyond == "norm":
            # With a threshold of 0, as in the padding of a window, nothing is left.
            return error * (limit / norm).clamp(max=1)
        return torch.where(norm <= limit, error, limit * error.sign())


Loss = L2Loss | DotLoss | LpLoss | HuberLoss
L2, DOT, LP, HUBER = L2Loss(), DotLoss(), LpLoss(), HuberLoss()


@dataclass(frozen=True, kw_only=True)
class L2Retention:
    """W = A: weights decay by alpha."""

    kind: Literal["l2"] = "l2"

    @property
    def plain(self) -> bool:
        return True

    def weights(self, a: Tensor) -> Tensor:
        return a


@dataclass(frozen=True, kw_only=True)
class LqRetention:
    """W = A / |A|_q^(q-2), one norm a matrix, as MIRAS prints it for Moneta; it is W = A at q = 2.

    mirror  take the gradient of |A|_q^2 / 2, sign(A) |A|^(q-1) / |A|_q^(q-2), which the printed form is not
    """

    kind: Literal["lq"] = "lq"
    q: float = 4.0
    mirror: bool = False

    def __post_init__(self) -> None:
        if self.q <= 1:
            raise ValueError(f"q of the retention must be above 1, got {self.q}")

    @property
    def plain(self) -> bool:
        return self.q == 2

    def weights(self, a: Tensor) -> Tensor:
        if self.plain:
            return a
        size = a.abs()
        power = size.pow(self.q).sum((-2, -1), keepdim=True).clamp(min=1e-30)
        shape = a.sign() * size.pow(self.q - 1) if self.mirror else a
        return shape / power.pow((self.q - 2) / self.q)


@dataclass(frozen=True, kw_only=True)
class KlRetention:
    """W = scale * softmax(A) over the fan-in (MIRAS, Memora): A holds logits, and W = softmax(alpha ln W - eta u)."""

    kind: Literal["kl"] = "kl"
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"scale of the retention must be positive, got {self.scale}")

    @property
    def plain(self) -> bool:
        return False

    def weights(self, a: Tensor) -> Tensor:
        return self.scale * a.softmax(-2)


Retention = L2Retention | LqRetention | KlRetention
PLAIN, LQ, KL = L2Retention(), LqRetention(), KlRetention()

Momentum = Literal["none", "inside", "outside"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How a memory learns and what it is made of.

    momentum       "inside": the learning rate is inside the momentum (Titans); "outside": behind it (Atlas)
    newton_schulz  steps that make the update orthogonal (Muon); 0: plain gradient descent
    window         c, tokens whose losses each step descends
    chunk          b, gradients are taken at the weights of the start of each chunk of b tokens, counted from token 0
    cross_chunk    whether a window reaches back over its chunk's start
    gated          hidden units are gelu(x W) * (x G); the matrices then are W, G of each hidden layer and the last W
    bias           every matrix has one more row, for a constant input 1
    residual       M(x) = x + ...
    """

    loss: Loss = L2
    retention: Retention = PLAIN
    momentum: Momentum = "none"
    newton_schulz: int = 0
    window: int = 1
    chunk: int = 1
    cross_chunk: bool = True
    gated: bool = False
    bias: bool = False
    residual: bool = False

    def __post_init__(self) -> None:
        if self.window < 1 or self.chunk < 1:
            raise ValueError(f"window and chunk must be at least 1, got {self.window} and {self.chunk}")
        if self.newton_schulz < 0:
            raise ValueError(f"newton_schulz must be 0 (off) or a number of steps, got {self.newton_schulz}")
        if self.newton_schulz and self.momentum == "inside":
            raise ValueError(
                "newton_schulz undoes every factor in front of the gradient, so a learning rate inside the momentum has "
                "no effect; set momentum to 'outside' or 'none'"
            )

    @property
    def materialised(self) -> bool:
        """True where every token needs its own matrices, weights or step, and not only their products with vectors."""
        return self.newton_schulz > 0 or not self.retention.plain

    @property
    def lone(self) -> bool:
        """True where every token takes the step of its own gradient, and of no other."""
        return self.window == 1 and self.momentum == "none" and not self.newton_schulz

    def affine(self, matrices: int, *, normed: bool) -> bool:
        """True where a gradient is an affine function of the weights, so that many chunks can be solved for at once."""
        return matrices == 1 and not normed and not self.materialised and isinstance(self.loss, L2Loss | DotLoss)

    def independent(self, matrices: int, *, normed: bool) -> bool:
        """True where gradients do not depend on the weights, so that chunks make no difference."""
        return self.affine(matrices, normed=normed) and isinstance(self.loss, DotLoss)
