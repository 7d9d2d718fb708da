"""Gated linear attention in one launch forward and one backward, or two and two over long or wide sequences.

Inside a chunk with state S_0 ahead of it, G_t the sum of log decays up to token t, r_t = scale * (signs up to t) and
w_s = beta_s * (signs up to s):
o_t = r_t [(q_t e^{G_t}) S_0 + sum_{s <= t} (q_t . e^{G_t - G_s} k_s) w_s v_s]
S_C = c [e^{G_C} S_0 + sum_s (e^{G_C - G_s} k_s)^T w_s v_s],    c the product of the chunk's signs

A short sequence of narrow heads is walked by one program, chunk after chunk, with the state in registers. Otherwise one kernel
carries the state over the chunks, and another then does all chunks at once. Forward leaves the states ahead of the chunks to
backward, which needs the derivatives by the states behind them and recomputes all else.

For few long sequences `plan.py` can cut time into segments that are walked side by side, from what those before them add up to
(`state_carry.py`). Outputs can come of that walk too, so that without gradients no state of a chunk is ever written. And log
decays by key channel can be taken out of it: one launch fades queries and keys and makes scores (`prepared.py`), and all after
it is products alone.

A log decay by key channel makes a score of two tokens no matrix product. It becomes one where the two lie on either side of a
border: fade the row from the border to its token, the column from its token to the border. A binary tree has such a border
for all pairs but those inside one block of 16 tokens, which are summed one by one. So no exponent is ever positive. For
inputs of 16 bits such a block too is one product, from its middle: decays in it count as at least e^-9.5, which is less than
16 bits round to, so that what grows stays within fp32.
Derivatives of log decays are sums over the pairs of tokens that they stand between: the pair (t, t) stays out, or cancels.

B batch, T time, H heads, K key width, V value width, N chunks, C tokens a chunk; BK, BV the widths, or blocks of them, in
powers of two
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recallmap.arch.kernels.gated_linear.fused.launch import gated_linear_op
from recallmap.arch.kernels.gated_linear.fused.plan import Inputs

WIDEST = 256


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` has no meaning here."""
    o, final, _ = gated_linear_op(
        *Inputs(q, k, v, log_decay, beta, sign, initial_state, scale, return_state, torch.is_grad_enabled())
    )
    return o, final if return_state else None


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where this implementation serves."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    widths = {name: sizes.get(name, 1) for name in ("key_width", "value_width")}
    for name, width in widths.items():
        if width > WIDEST:
            return f"takes widths up to {WIDEST}, got {name} {width}"
    return None
