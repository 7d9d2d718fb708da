"""Kernel attention, token by token.

o_t = sum_{j <= t} w_{t,j} kappa(q_t, k_j) v_j,   w_{t,j} = alpha_t w_{t-1,j} + eta_t gamma_{t,t-j} for t - c < j <= t
The coefficient of a key is w_{t,j} v_j, because the dot loss' derivative is -v_j.
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.test_time.dual_form import Learned, Tokens
from recallmap.arch.kernels.test_time.implicit_features import by_token
from recallmap.arch.kernels.test_time.learning_rule import Rule


def recurrent(learned: Learned, tokens: Tokens, rule: Rule, position: int, chunk: int | None) -> tuple[Tensor, Learned]:
    """Read-outs y [B, H, T, V] and what is known behind the last token; `chunk` has no meaning here."""
    return by_token(learned, tokens, rule, position)
