"""Memories over features that are never computed: what the ops kernel_attention and kernel_delta have in common.

phi(x) . phi(y) = kappa(x, y). A map from features is kept as W = sum_m phi(p_m)^T A_m over the points p_m that it has learned
at, so that phi(x) W = sum_m kappa(x, p_m) A_m; a gradient phi(k)^T d is one more point k with the coefficient d.

B batch, T time, H heads, P points, K key width, V value width, C columns, N tokens of a piece, M tokens that windows see
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.op_interface.input_checks import (
    check_positive,
    check_qkv,
    expect,
    full_precision,
    working_dtype,
)
from recallmap.arch.kernels.test_time.dual_form import Learned, Matrix, Store, Tokens
from recallmap.arch.kernels.test_time.learning_rule import PLAIN, Loss, Rule
from recallmap.arch.kernels.test_time.network import Product, backward, forward, learn


class Kernel(Protocol):
    """kappa of every x [..., N, K] with every y [..., P, K]: [..., N, P]."""

    def __call__(self, x: Tensor, y: Tensor) -> Tensor: ...


class Exponential(NamedTuple):
    """exp(scale x . y): features of every degree. Keep x and y short, norms of 1 will do."""

    scale: float = 1.0

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.scale * (x @ y.mT)).exp()


class Polynomial(NamedTuple):
    """sum_i a_i (x . y)^i with coefficients a [p + 1], which must not be negative for kernel_delta to be stable."""

    coefficients: Tensor

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        dot = x @ y.mT
        highest, *rest = self.coefficients.to(dot.dtype).flip(0).unbind(0)
        total = highest.expand_as(dot)
        for a in rest:
            total = total * dot + a
        return total


class Expansion(NamedTuple):
    """A map from features, by points [B, H, P, K] and coefficients [B, H, P, C]; the youngest points come last."""

    points: Tensor
    coefficients: Tensor
    kernel: Kernel

    def product(self, x: Tensor) -> Tensor:
        return self.kernel(x, self.points) @ self.coefficients

    def back(self, d: Tensor) -> Tensor:
        raise AssertionError("nothing is learned ahead of the features")

    def gram(self, x: Tensor, keys: Tensor) -> Tensor:
        return self.kernel(x, keys)

    def after(self, kept: Tensor, keys: Tensor, change: Tensor, fresh: int) -> Expansion:
        past = keys.shape[2] - fresh
        count = self.points.shape[2]
        known = min(past, count)  # a window that reaches back over the first token changes nothing there
        parts = [kept[..., None, None] * self.coefficients]
        if known:
            old, seen = parts[0].split([count - known, known], 2)
            parts = [old, seen - change[:, :, past - known : past]]
        return self._replace(
            points=torch.cat([self.points, keys[:, :, past:]], 2),
            coefficients=torch.cat([*parts, -change[:, :, past:]], 2),
        )


class Anchors(NamedTuple):
    """A deep memory before the first token, all with leading H.

    points, coefficients  [H, A, K] and [H, A, hidden]: the first map; there may be none (A = 0)
    weights               the further matrices [H, rows, columns]
    """

    points: Tensor
    coefficients: Tensor
    weights: tuple[Tensor, ...]


class KernelState(NamedTuple):
    """The state of a memory over implicit features; it grows with every token.

    points        [B, H, P, K], anchors and keys
    coefficients  theirs [B, H, P, C]
    weights       the further matrices of a deep memory
    reference     coefficients and matrices at the start of the chunk; None where every token is a chunk or it makes no
                  difference
    position      tokens seen
    values        the last c - 1 values [B, H, c - 1, V]
    """

    points: Tensor
    coefficients: Tensor
    weights: tuple[Tensor, ...]
    reference: tuple[Tensor, tuple[Tensor, ...]] | None
    position: int
    values: Tensor


def hidden_rule(loss: Loss, window: int, chunk: int, residual: bool) -> Rule:
    """The rule of a memory over implicit features: plain gradient descent."""
    # A compiler needs loss and retention by name.
    return Rule(loss=loss, retention=PLAIN, window=window, chunk=chunk, residual=residual)


def remember(
    op: str,
    rule: Rule,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: Kernel,
    alpha: Tensor | None,
    eta: Tensor | None,
    gamma: Tensor | None,
    anchors: Anchors | None,
    initial_state: KernelState | None,
    return_state: bool,
    implementation: str,
    chunk: int | None,
) -> tuple[Tensor, KernelState | None]:
    """The door of both ops: check, lay out, let an implementation do it."""
    batch, time, heads, key_width, value_width = check_qkv(op, q, k, v)
    for name, gate in (("alpha", alpha), ("eta", eta)):
        expect(op, name, gate, (batch, time, heads))
    expect(op, "gamma", gamma, (batch, time, heads, rule.window))
    check_positive(op, "chunk", chunk)
    if anchors is not None:
        _check_anchors(op, anchors, heads, key_width, value_width)
    if rule.residual and key_width != value_width:
        raise ValueError(f"{op}: a residual needs keys as wide as values, got {key_width} and {value_width}")
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    sizes |= {"window": rule.window, "exponential": int(isinstance(kernel, Exponential))}
    sizes |= {"matrices": 1 if anchors is None else 1 + len(anchors.weights)}
    name = select.choose(
        op, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    dtype = working_dtype(q, k, v, alpha, eta, gamma)
    with full_precision(v.device):
        state = initial_state or _first_state(rule, anchors, k, v, dtype)
        if time == 0:
            return v, state if return_state else None

        def wide(x: Tensor) -> Tensor:
            return x.to(dtype).transpose(1, 2)

        ones = torch.ones(batch, heads, time, dtype=dtype, device=v.device)
        keys = torch.cat([_last(state.points, rule.window - 1), wide(k)], 2)
        values = torch.cat([state.values, wide(v)], 2)
        shifted = rule.residual and rule.loss.of_error  # |x + y - v| is |y - (v - x)|
        tokens = Tokens(
            q=wide(q),
            k=keys,
            v=values - keys if shifted else values,
            threshold=None,
            alpha=ones if alpha is None else wide(alpha),
            eta=ones if eta is None else wide(eta),
            theta=None,
            gamma=ones[..., None].expand(-1, -1, -1, rule.window) if gamma is None else wide(gamma),
        )
        y, learned = select.load(op, name)(_learned(state, kernel), tokens, rule, state.position, chunk)
        o = tokens.q + y if rule.residual else y
        final = _state_of(learned, state, values[:, :, time:], time) if return_state else None
        return o.transpose(1, 2).to(v.dtype), final


def read(state: KernelState, q: Tensor, kernel: Kernel, rule: Rule) -> Tensor:
    """The answers [B, T, H, V] of an unchanged memory to q [B, T, H, K]: nothing is learned."""
    with full_precision(q.device):
        q_BHTK = q.to(state.points.dtype).transpose(1, 2)
        maps = _learned(state, kernel).maps
        y, _ = forward(q_BHTK, _product(maps), len(maps), rule)
        return (q_BHTK + y if rule.residual else y).transpose(1, 2).to(q.dtype)


Op = Callable[..., tuple[Tensor, KernelState | None]]


def step(
    op: Op, state: KernelState | None, q: Tensor, k: Tensor, v: Tensor, arguments: Mapping[str, Any]
) -> tuple[Tensor, KernelState]:
    """One token of `op`: outputs [B, H, V] and the next state."""
    gates = {n: x[:, None] if n in ("alpha", "eta", "gamma") and x is not None else x for n, x in arguments.items()}
    given = {"implementation": "recurrent", **gates}
    o, state = op(q[:, None], k[:, None], v[:, None], initial_state=state, return_state=True, **given)
    assert state is not None
    return o[:, 0], state


def by_token(learned: Learned, tokens: Tokens, rule: Rule, position: int) -> tuple[Tensor, Learned]:
    """Token by token, as the equations of the two ops have it: what every other implementation must agree with.

    For every token i in the window of token t, with d_i the loss' derivative behind a map at the chunk's start:
    A_i <- alpha_t A_i - eta_t gamma_{t,t-i} d_i,   all other coefficients fade,   W <- alpha_t W - eta_t gamma h_i^T d_i
    """
    maps, reference = learned.maps, learned.reference
    outputs = []
    for t, now in enumerate(tokens.split([1] * tokens.q.shape[2])):
        if (position + t) % rule.chunk == 0:
            reference = maps
        seen = min(rule.window, position + t + 1)
        k, v = now.k[:, :, -seen:], now.v[:, :, -seen:]
        answer, trace = forward(k, _product(reference), len(maps), rule)
        signals = backward(learn(answer, v, None, None, rule), _back(reference), trace, rule)
        strength = now.eta * now.gamma[:, :, 0, :seen].flip(-1)
        maps = tuple(
            m.after(now.alpha[..., 0], x, strength[..., None] * d, 1)
            for m, x, d in zip(maps, trace.inputs, signals, strict=True)
        )
        outputs.append(forward(now.q, _product(maps), len(maps), rule)[0])
    if (position + tokens.q.shape[2]) % rule.chunk == 0:
        reference = maps
    return torch.cat(outputs, 2), Learned(maps, None, reference)


def _product(maps: tuple[Store, ...]) -> Product:
    return lambda i, x: maps[i].product(x)


def _back(maps: tuple[Store, ...]) -> Product:
    return lambda i, d: maps[i].back(d)


def _learned(state: KernelState, kernel: Kernel) -> Learned[Any]:
    def maps(coefficients: Tensor, weights: tuple[Tensor, ...]) -> tuple[Store, ...]:
        points = state.points[:, :, : coefficients.shape[2]]
        return (Expansion(points, coefficients, kernel), *map(Matrix, weights))

    now = maps(state.coefficients, state.weights)
    return Learned(now, None, now if state.reference is None else maps(*state.reference))


def _state_of(learned: Learned[Any], before: KernelState, values: Tensor, time: int) -> KernelState:
    first, *rest = learned.maps
    reference = None
    if before.reference is not None:
        then, *others = learned.reference
        reference = (then.coefficients, tuple(m.weights for m in others))
    weights = tuple(m.weights for m in rest)
    return KernelState(first.points, first.coefficients, weights, reference, before.position + time, values)


def _first_state(rule: Rule, anchors: Anchors | None, k: Tensor, v: Tensor, dtype: torch.dtype) -> KernelState:
    batch, _, heads, value_width = v.shape

    def everywhere(x: Tensor) -> Tensor:
        return x.to(dtype).expand(batch, *x.shape)

    def nothing(count: int, width: int) -> Tensor:
        return torch.zeros(batch, heads, count, width, dtype=dtype, device=v.device)

    points, coefficients = nothing(0, k.shape[-1]), nothing(0, value_width)
    weights: tuple[Tensor, ...] = ()
    if anchors is not None:
        points, coefficients = everywhere(anchors.points), everywhere(anchors.coefficients)
        weights = tuple(map(everywhere, anchors.weights))
    frozen = rule.chunk > 1 and not rule.independent(1 + len(weights), normed=False)
    return KernelState(
        points=points,
        coefficients=coefficients,
        weights=weights,
        reference=(coefficients, weights) if frozen else None,
        position=0,
        values=nothing(rule.window - 1, value_width),
    )


def _check_anchors(op: str, anchors: Anchors, heads: int, key_width: int, value_width: int) -> None:
    count, hidden = anchors.points.shape[1], anchors.coefficients.shape[-1]
    expect(op, "anchors.points", anchors.points, (heads, count, key_width))
    expect(op, "anchors.coefficients", anchors.coefficients, (heads, count, hidden))
    if not anchors.weights:
        raise ValueError(f"{op}: anchors belong to a deep memory; give its further matrices, or no anchors")
    last = anchors.weights[-1].shape[-1]
    if last != value_width:
        raise ValueError(f"{op}: the last of anchors.weights must have {value_width} columns, got {last}")


def _last(points: Tensor, count: int) -> Tensor:
    """The `count` youngest points, with zeros where there are not as many."""
    known = min(count, points.shape[2])
    return F.pad(points[:, :, points.shape[2] - known :], (0, 0, count - known, 0))
