"""The kernel delta rule by triangular solves: (I + write * kappa(K, K)) U = V over the tokens at hand.

The errors of all tokens are solved for at once, as in the delta rule's chunks, with kappa in place of dot products.
A deep memory goes chunk by chunk.
"""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.test_time.dual_form import Learned, Tokens, learn_piece, over_time
from recallmap.arch.kernels.test_time.learning_rule import Rule


def chunked(learned: Learned, tokens: Tokens, rule: Rule, position: int, chunk: int | None) -> tuple[Tensor, Learned]:
    """Read-outs y [B, H, T, V] and what is known behind the last token."""
    return over_time(learned, tokens, rule, None, position, chunk, learn_piece)
