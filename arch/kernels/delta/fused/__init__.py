"""The delta rule: in one launch forward and one backward for short sequences of narrow heads, otherwise in two and two, or in
three and three where heads are wide.

Within a chunk of C tokens with state S ahead of it, one row r reads before one column c writes, and E is what c writes:

beta   r = k, c = beta k     (I + A) E = V - r S                A = tril_-(r c^T)
a, b   r = a, c = b          (I + A) E = -(r S + P V)           P = tril_-(r k^T)
       O = scale q S + X E [+ W V],   S' = D S + c^T E [+ k^T V]     X = scale tril(q c^T), W = scale tril(q k^T)

where q, r, c, k fade between their tokens as `recurrence.decay` has it, and [...] is there with a and b only. Backward,
with dS' behind the chunk and F the derivative by E:

F = X^T dO + c dS',   Z = (I + A)^-T F,   dS = scale q^T dO - r^T Z + D dS',   dA = -Z E^T,   dX = scale dO E^T

In one launch a program walks a whole sequence, chunk after chunk, the state in registers, and does all else on the way. It
leaves the inverses, E and the states ahead of the chunks to backward.

Otherwise the inverse, its products with r and with V, and those of pairs are made by a program a chunk. Then S and dS walk
along time by a program a head and block of value channels; the gradients are a program a chunk again. On the walks O and Z are
made too, with dV of a and b, unless heads are wide. Then walks make E and S, two products a chunk (three with a and b), and F
and dS, three products a chunk. X^T dO comes from programs a chunk ahead of the walk, O, Z and dV from such behind it.

B batch, T time, H heads, N chunks, C tokens a chunk, K key width, V value width; in kernels KB and VB are blocks of them,
KP and VP their powers of two
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recallmap.arch.kernels.delta.fused.launch import delta_rule
from recallmap.arch.kernels.delta.fused.plan import Inputs
from recallmap.arch.kernels.recurrence.chunks import signs

WIDEST = 256


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """Why these kernels cannot serve, None where they can."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    widest = max(sizes.get("key_width", 1), sizes.get("value_width", 1))
    return f"holds heads up to {WIDEST} wide, got {widest}" if widest > WIDEST else None


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    sign: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` has no meaning here: it follows from the widths."""
    turned = signs(sign)
    values = v
    if turned is not None:
        values = v * turned.to(v.dtype)[..., None]
        b = None if b is None or sign is None else b * sign.to(b.dtype)[..., None]
    heads = v.shape[2]
    q, k = q.expand(-1, -1, heads, -1), k.expand(-1, -1, heads, -1)
    a = None if a is None else a.expand(-1, -1, heads, -1)
    b = None if b is None else b.expand(-1, -1, heads, -1)
    log_decay = None if log_decay is None else log_decay.float()
    beta = None if beta is None else beta.float()
    initial = None if initial_state is None else initial_state.float()
    keep = torch.is_grad_enabled()
    o, final, *_ = delta_rule(*Inputs(q, k, values, log_decay, beta, a, b, initial, float(scale), return_state, keep))
    if turned is not None:
        o = o * turned.to(o.dtype)[..., None]
        final = final * turned[:, -1].to(final.dtype)[..., None, None] if return_state else final
    return o, final if return_state else None
