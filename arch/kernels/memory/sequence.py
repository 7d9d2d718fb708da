"""One call of the op: the inputs of every implementation, and the reads and answers of those that learn maps from tokens.

B batch, T time, H heads, c window, K key width, V value width
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.memory.state import MemoryState
from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.test_time.dual_form import Learned, Matrix, Tokens
from recallmap.arch.kernels.test_time.learning_rule import Rule
from recallmap.arch.kernels.test_time.network import LayerNorm

Features = Callable[[Tensor], Tensor]
Learn = Callable[[Learned[Matrix], Tokens, Rule, LayerNorm | None, int, int | None], tuple[Tensor, Learned[Matrix]]]


class MemoryInputs(NamedTuple):
    """The arguments of `memory`, checked, with at least one token; the state in the precision that is computed in."""

    q: Tensor
    k: Tensor
    v: Tensor
    weights: tuple[Tensor, ...]
    rule: Rule
    eta: Tensor | None
    alpha: Tensor | None
    theta: Tensor | None
    gamma: Tensor | None
    delta: Tensor | None
    norm: LayerNorm | None
    features: Features | None
    initial_state: MemoryState | None
    return_state: bool
    chunk: int | None

    @property
    def dtype(self) -> torch.dtype:
        """The precision of states."""
        return working_dtype(self.q, self.k, self.v, self.eta, self.alpha, self.theta, self.gamma, self.delta)

    def between(self, start: int, end: int) -> MemoryInputs:
        """The tokens from `start` up to `end`."""

        def part(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[:, start:end]

        q, k, v = (x[:, start:end] for x in (self.q, self.k, self.v))
        eta, alpha, theta, gamma, delta = map(part, (self.eta, self.alpha, self.theta, self.gamma, self.delta))
        return self._replace(q=q, k=k, v=v, eta=eta, alpha=alpha, theta=theta, gamma=gamma, delta=delta)


def learn_sequence(x: MemoryInputs, learn: Learn) -> tuple[Tensor, MemoryState | None]:
    """Outputs [B, T, H, V] in the dtype of v, and where asked for the state behind the last token.

    learn  (what is known, tokens, rule, norm, position of the first token, chunk) -> read-outs [B, H, T, V], what is then known
    """
    rule, dtype, (batch, time, heads, _) = x.rule, x.dtype, x.v.shape
    state, norm = x.initial_state or first_state(x), widened(x.norm, dtype)

    def wide(given: Tensor) -> Tensor:
        return given.to(dtype).transpose(1, 2)

    ones = torch.ones(batch, heads, time, dtype=dtype, device=x.v.device)
    keys = torch.cat([state.keys, wide(x.k)], 2)
    values = torch.cat([state.values, wide(x.v)], 2)
    deltas = None if x.delta is None or state.delta is None else torch.cat([state.delta, wide(x.delta)], 2)
    shifted = rule.residual and rule.loss.of_error  # |x + y - v| is |y - (v - x)|
    tokens = Tokens(
        q=featured(wide(x.q), x.features),
        k=featured(keys, x.features),
        v=values - keys if shifted else values,
        threshold=deltas,
        alpha=ones if x.alpha is None else wide(x.alpha),
        eta=ones if x.eta is None else wide(x.eta),
        theta=None if x.theta is None else wide(x.theta),
        gamma=ones[..., None].expand(-1, -1, -1, rule.window) if x.gamma is None else wide(x.gamma),
    )
    known = Learned(
        tuple(map(Matrix, state.weights)), state.momentum, tuple(map(Matrix, state.reference or state.weights))
    )
    y, known = learn(known, tokens, rule, norm, state.position, x.chunk)
    o = answer(y, wide(x.q), rule, norm).transpose(1, 2).to(x.v.dtype)
    if not x.return_state:
        return o, None
    return o, MemoryState(
        weights=tuple(m.weights for m in known.maps),
        momentum=known.momentum,
        reference=None if state.reference is None else tuple(m.weights for m in known.reference),
        position=state.position + time,
        keys=keys[:, :, time:],
        values=values[:, :, time:],
        delta=None if deltas is None else deltas[:, :, time:],
    )


def first_state(x: MemoryInputs) -> MemoryState:
    """The state ahead of the first token."""
    rule, batch, dtype = x.rule, len(x.v), x.dtype
    first = tuple(w.to(dtype).expand(batch, -1, -1, -1) for w in x.weights)
    frozen = rule.chunk > 1 and not rule.independent(len(x.weights), normed=x.norm is not None)

    def nothing(given: Tensor) -> Tensor:
        shape = (batch, given.shape[2], rule.window - 1, *given.shape[3:])
        return torch.zeros(shape, dtype=dtype, device=given.device)

    return MemoryState(
        weights=first,
        momentum=None if rule.momentum == "none" else tuple(map(torch.zeros_like, first)),
        reference=first if frozen else None,
        position=0,
        keys=nothing(x.k),
        values=nothing(x.v),
        delta=None if x.delta is None else nothing(x.delta),
    )


def featured(x: Tensor, features: Features | None) -> Tensor:
    """The features of keys or queries, or these themselves."""
    return x if features is None else features(x)


def widened(norm: LayerNorm | None, dtype: torch.dtype) -> LayerNorm | None:
    """The norm in the precision that is computed in."""
    return None if norm is None else LayerNorm(norm.weight.to(dtype), norm.bias.to(dtype))


def answer(y_BHTV: Tensor, q_BHTK: Tensor, rule: Rule, norm: LayerNorm | None) -> Tensor:
    """M(q) of the network's y."""
    normed = y_BHTV if norm is None else norm.forward(y_BHTV)
    return q_BHTK + normed if rule.residual else normed
