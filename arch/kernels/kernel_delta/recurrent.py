"""The kernel delta rule, token by token.

o_t = sum_{j <= t} kappa(q_t, k_j) B_t[j],   B_t = alpha_t B_{t-1}, and for t - c < i <= t
B_t[i] += eta_t gamma_{t,t-i} (v_i - sum_j kappa(k_i, k_j) B_{t-1}[j])
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.test_time.dual_form import Learned, Tokens
from recallmap.arch.kernels.test_time.implicit_features import by_token
from recallmap.arch.kernels.test_time.learning_rule import Rule


def recurrent(learned: Learned, tokens: Tokens, rule: Rule, position: int, chunk: int | None) -> tuple[Tensor, Learned]:
    """Read-outs y [B, H, T, V] and what is known behind the last token; `chunk` has no meaning here."""
    return by_token(learned, tokens, rule, position)
