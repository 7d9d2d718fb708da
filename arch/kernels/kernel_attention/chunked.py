"""Kernel attention by matrix products: O = (W * kappa(Q, K)) V over the tokens at hand, plus what the points before them hold.

W = L diag(eta) Gamma, where L are products of retentions and Gamma the windows. A deep memory goes chunk by chunk.
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.test_time.dual_form import Learned, Tokens, learn_piece, over_time
from recallmap.arch.kernels.test_time.learning_rule import Rule


def chunked(learned: Learned, tokens: Tokens, rule: Rule, position: int, chunk: int | None) -> tuple[Tensor, Learned]:
    """Read-outs y [B, H, T, V] and what is known behind the last token."""
    return over_time(learned, tokens, rule, None, position, chunk, learn_piece)
