"""A memory that learns at test time, token by token: what every other implementation must agree with.

u_t = sum_{j < min(c, t)} gamma_{t,j} grad l(M_W; k_{t-j}, v_{t-j}),   W as it was at the start of token t's chunk of b tokens
inside     P_t = theta_t P_{t-1} + eta_t u_t,   A_t = alpha_t A_{t-1} - P_t
outside    P_t = theta_t P_{t-1} + u_t,         A_t = alpha_t A_{t-1} - eta_t NS(P_t)
W_t = retention(A_t),   y_t = M_{W_t}(q_t)

Every matrix of a memory learns by itself; lists hold one entry a matrix.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.memory.sequence import MemoryInputs, learn_sequence
from recallmap.arch.kernels.memory.state import MemoryState
from recallmap.arch.kernels.newton_schulz import newton_schulz
from recallmap.arch.kernels.test_time.dual_form import Learned, Matrix, Tokens
from recallmap.arch.kernels.test_time.learning_rule import Rule
from recallmap.arch.kernels.test_time.network import LayerNorm, Product, backward, forward, learn


def recurrent(x: MemoryInputs) -> tuple[Tensor, MemoryState | None]:
    """The whole sequence; `chunk` has no meaning here."""
    return learn_sequence(x, _learn_by_token)


def _learn_by_token(
    learned: Learned[Matrix], tokens: Tokens, rule: Rule, norm: LayerNorm | None, position: int, chunk: int | None
) -> tuple[Tensor, Learned[Matrix]]:
    """Read-outs y [B, H, T, V] and what is known behind the last token."""
    stored = [m.weights for m in learned.maps]
    reference = [m.weights for m in learned.reference]
    momentum = list(learned.momentum or ())
    outputs = []
    for t, now in enumerate(tokens.split([1] * tokens.q.shape[2])):
        if (position + t) % rule.chunk == 0:
            reference = stored
        alpha, eta = now.alpha[..., None], now.eta[..., None]
        steps = _gradients([rule.retention.weights(a) for a in reference], now, rule, norm, position + t)
        if now.theta is not None:
            theta = now.theta[..., None]
            steps = [eta * u for u in steps] if rule.momentum == "inside" else steps
            momentum = steps = [theta * p + u for p, u in zip(momentum, steps, strict=True)]
        if rule.newton_schulz:
            steps = [newton_schulz(p, steps=rule.newton_schulz, implementation="recurrent")[0] for p in steps]
        rate = 1 if rule.momentum == "inside" else eta
        stored = [alpha * a - rate * step for a, step in zip(stored, steps, strict=True)]
        weights = [rule.retention.weights(a) for a in stored]
        outputs.append(forward(now.q, _times(weights), len(weights), rule)[0])
    if (position + tokens.q.shape[2]) % rule.chunk == 0:
        reference = stored
    return torch.cat(outputs, 2), Learned(
        tuple(map(Matrix, stored)), tuple(momentum) or None, tuple(map(Matrix, reference))
    )


def _gradients(weights: list[Tensor], now: Tokens, rule: Rule, norm: LayerNorm | None, position: int) -> list[Tensor]:
    """u of one token, a gradient for every matrix."""
    in_chunk = rule.window if rule.cross_chunk else position % rule.chunk + 1
    seen = min(rule.window, in_chunk, position + 1)
    k, v = now.k[:, :, -seen:], now.v[:, :, -seen:]
    threshold = None if now.threshold is None else now.threshold[:, :, -seen:]
    gamma = now.gamma[:, :, 0, :seen].flip(-1)[..., None]
    answer, trace = forward(k, _times(weights), len(weights), rule)
    signals = backward(learn(answer, v, threshold, norm, rule), lambda i, d: d @ weights[i].mT, trace, rule)
    return [x.mT @ (gamma * d) for x, d in zip(trace.inputs, signals, strict=True)]


def _times(weights: list[Tensor]) -> Product:
    return lambda i, x: x @ weights[i]
