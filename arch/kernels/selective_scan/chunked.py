"""The selective scan by way of a linear scan over all numbers of the state, which lie in memory for all tokens."""

from __future__ import annotations

from torch import Tensor

from recallmap.arch.kernels.linear_scan.chunked import chunked as scan
from recallmap.arch.kernels.op_interface.input_checks import working_dtype
from recallmap.arch.kernels.selective_scan.recurrent import log_decay


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    step: Tensor,
    rate: Tensor | None,
    initial_state: Tensor | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, Tensor | None]:
    """The whole sequence. `chunk` is a number of tokens."""
    dtype = working_dtype(q, k, v, step, rate, initial_state)
    q_BTGN, k_BTGN, v_BTHV, step_BTHV = (x.to(dtype) for x in (q, k, v, step))
    h_BTHVN, final = scan(
        (step_BTHV * v_BTHV)[..., None] * k_BTGN[..., None, :],
        log_a=log_decay(k_BTGN, step_BTHV, rate),
        initial_state=initial_state,
        return_state=return_state,
        chunk=chunk,
    )
    return (h_BTHVN @ q_BTGN[..., None]).squeeze(-1).to(v.dtype), final
