"""The op of TTT, Titans, MIRAS, Omega and Atlas: a memory whose weights learn every token by gradient descent.

u_t = sum_{j < min(c, t)} gamma_{t,j} grad l(M_W; k_{t-j}, v_{t-j}),   W as it was at the start of token t's chunk
W_t from W_{t-1} and u_t by a Rule,   o_t = M_{W_t}(q_t)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.memory.sequence import Features, MemoryInputs, answer, featured, first_state, widened
from recallmap.arch.kernels.memory.state import MemoryState
from recallmap.arch.kernels.op_interface.input_checks import check_positive, check_qkv, expect, full_precision
from recallmap.arch.kernels.test_time.learning_rule import DotLoss, HuberLoss, L2Loss, Rule
from recallmap.arch.kernels.test_time.network import LayerNorm, forward

__all__ = ["MemoryState", "memory", "memory_read", "memory_step"]

OP = "memory"


def memory(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    weights: tuple[Tensor, ...],
    rule: Rule,
    eta: Tensor | None = None,
    alpha: Tensor | None = None,
    theta: Tensor | None = None,
    gamma: Tensor | None = None,
    delta: Tensor | None = None,
    norm: LayerNorm | None = None,
    features: Features | None = None,
    initial_state: MemoryState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, MemoryState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state behind the last token.

    q, k            [B, T, H, K]
    v               [B, T, H, V]
    weights         the memory before the first token: matrices [H, rows, columns], in the order of `Rule.gated`; the first has
                    as many rows as there are features, one more with a bias, and the last has V columns
    eta             inner learning rate [B, T, H]; None: 1
    alpha           retention [B, T, H] in (0, 1], 1 keeps; None: 1
    theta           momentum's decay [B, T, H] in [0, 1); needed where the rule has momentum, and only there
    gamma           window weights [B, T, H, c], gamma[..., j] of the token j ago; None: 1
    delta           threshold of the Huber loss [B, T, H]; needed there, and only there
    norm            LayerNorm inside the memory, M(x) = (x +) LN(y)
    features        phi, [..., K] -> [..., F], of keys and queries; the residual takes the raw ones
    implementation  "auto", or one of `select.implementations("memory")`
    chunk           tokens at once where the rule's own chunks can be joined (linear memories); None: by what was fastest

    The state is fp32, fp64 where q, k, v or a gate is. Differentiable in all floating-point inputs, exactly, through every
    inner step.
    No tokens (T = 0) give no outputs and the initial state. Raises ValueError on inputs that do not fit.
    Sun et al. 2024 (TTT), Behrouz et al. 2025 (Titans, MIRAS, ATLAS).
    """
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    gates = (batch, time, heads)
    for name, gate in (("eta", eta), ("alpha", alpha), ("theta", theta), ("delta", delta)):
        expect(OP, name, gate, gates)
    expect(OP, "gamma", gamma, (*gates, rule.window))
    check_positive(OP, "chunk", chunk)
    _check_rule(rule, weights, heads, theta, delta, key_width, value_width)
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    sizes |= _demands(rule, weights, norm)
    name = select.choose(
        OP, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    with full_precision(v.device):
        inputs = MemoryInputs(
            q, k, v, weights, rule, eta, alpha, theta, gamma, delta, norm, features, initial_state, return_state, chunk
        )
        if initial_state is not None:
            inputs = inputs._replace(initial_state=initial_state.to(inputs.dtype))
        if time == 0:
            return v, inputs.initial_state or first_state(inputs) if return_state else None
        result: tuple[Tensor, MemoryState | None] = select.load(OP, name)(inputs)
        return result


def memory_step(
    state: MemoryState | None, q: Tensor, k: Tensor, v: Tensor, **arguments: Any
) -> tuple[Tensor, MemoryState]:
    """One token: outputs [B, H, V] and the next state. Shapes and arguments are those of `memory`, without T."""
    per_token = ("eta", "alpha", "theta", "gamma", "delta")
    given = {n: x[:, None] if n in per_token and x is not None else x for n, x in arguments.items()}
    o, state = memory(
        q[:, None],
        k[:, None],
        v[:, None],
        initial_state=state,
        return_state=True,
        **{"implementation": "recurrent"} | given,
    )
    assert state is not None
    return o[:, 0], state


def memory_read(
    state: MemoryState,
    q: Tensor,
    *,
    rule: Rule,
    norm: LayerNorm | None = None,
    features: Features | None = None,
) -> Tensor:
    """The answers [B, T, H, V] of an unchanged memory to q [B, T, H, K]: nothing is learned."""
    with full_precision(q.device):
        dtype = state.weights[0].dtype
        weights = [rule.retention.weights(a) for a in state.weights]
        q_BHTK = q.to(dtype).transpose(1, 2)
        y, _ = forward(featured(q_BHTK, features), lambda i, x: x @ weights[i], len(weights), rule)
        return answer(y, q_BHTK, rule, widened(norm, dtype)).transpose(1, 2).to(q.dtype)


def _demands(rule: Rule, weights: tuple[Tensor, ...], norm: LayerNorm | None) -> dict[str, int]:
    """The requirements of a rule on an implementation."""
    free = rule.independent(len(weights), normed=norm is not None)
    return {
        "materialised": int(rule.materialised),
        "bent_loss": int(not isinstance(rule.loss, L2Loss | DotLoss)),
        "gated": int(rule.gated),
        "matrices": len(weights),
        "features": weights[0].shape[1] - rule.bias,
        "seen": rule.window - 1 + (1 if free else rule.chunk),
    }


def _check_rule(
    rule: Rule,
    weights: tuple[Tensor, ...],
    heads: int,
    theta: Tensor | None,
    delta: Tensor | None,
    key_width: int,
    value_width: int,
) -> None:
    if not weights or (rule.gated and len(weights) % 2 == 0):
        counts = "1, 3, 5 ... matrices where hidden units are gated" if rule.gated else "at least one matrix"
        raise ValueError(f"{OP}: weights must be {counts}, got {len(weights)}")
    for number, w in enumerate(weights):
        if w.ndim != 3 or w.shape[0] != heads:
            raise ValueError(f"{OP}: weights[{number}] must be [{heads} heads, rows, columns], got {list(w.shape)}")
    if weights[-1].shape[-1] != value_width:
        raise ValueError(f"{OP}: the last of weights must have {value_width} columns, got {weights[-1].shape[-1]}")
    if rule.residual and key_width != value_width:
        raise ValueError(f"{OP}: a residual needs keys as wide as values, got {key_width} and {value_width}")
    for name, gate, needed in (
        ("theta", theta, rule.momentum != "none"),
        ("delta", delta, isinstance(rule.loss, HuberLoss)),
    ):
        if (gate is not None) != needed:
            raise ValueError(f"{OP}: {name} {'is needed by' if needed else 'has no meaning under'} this rule, {rule}")
