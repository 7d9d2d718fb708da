"""Mesa: states pass from chunk to chunk, and every chunk of tokens solves on its own, all its rows together.

x_t (f_t kk_0 + sum_s w_ts k_s^T k_s + diag(lam)) = q_t,    o_t = scale (f_t x_t kv_0 + sum_s w_ts (x_t . k_s) v_s),    s <= t
with the state kk_0, kv_0 ahead of the chunk, f_t the decay from the chunk's start to t and w_ts that from s to t times beta_s.
Backward: e_t solves the same system for the derivative by x_t, and what the residual q - x A depends on takes it up.

Where lam is a share of |kk_t|, which kernels of other ops make: with r_t = k_t kk_t k_t^T, that gated linear attention reads,
|kk_t|^2 = e^{2 g_t} |kk_{t-1}|^2 + 2 beta_t r_t - beta_t^2 |k_t|^4

There is a kernel for the states and another for solving, and backward three: to solve, for the states' derivatives, and for
what the chunks write.

B batch, T time, H heads, G heads of q and k (H or 1), N chunks, C tokens a chunk, K key width, V value width
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from recallmap.arch.kernels.gated_linear.fused.launch import gated_linear_op
from recallmap.arch.kernels.gated_linear.fused.plan import Inputs as Linear
from recallmap.arch.kernels.linear_scan.fused import fused as linear_scan
from recallmap.arch.kernels.mesa.chebyshev import length
from recallmap.arch.kernels.mesa.conjugate import Solver
from recallmap.arch.kernels.mesa.fused.launch import mesa_op
from recallmap.arch.kernels.mesa.fused.plan import Inputs
from recallmap.arch.kernels.mesa.state import MesaState
from recallmap.arch.kernels.op_interface.first_call import together
from recallmap.arch.kernels.op_interface.input_checks import promoted

WIDEST_KEY, WIDEST_VALUE = 128, 256
ROUNDING = 0.01 * torch.finfo(torch.float32).eps  # a residual that fell below it carries no information
SPLIT_ROUNDING = 0.1 * 2**-16  # nor one below it where products keep 16 bits


def why_not(*, device: torch.device, dtype: torch.dtype, differentiable: bool, sizes: Mapping[str, int]) -> str | None:
    """The reason not to serve a call; None where these kernels serve."""
    if dtype == torch.float64:
        return "computes in fp32 at most"
    if sizes.get("key_width", 1) > WIDEST_KEY or sizes.get("value_width", 1) > WIDEST_VALUE:
        return f"takes keys up to {WIDEST_KEY} and values up to {WIDEST_VALUE} wide"
    if differentiable and sizes.get("unroll"):
        return "does not unroll the gradient of the solver's steps"
    return None


@together
def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lam: Tensor | None,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    alpha: Tensor | None,
    solver: Solver,
    scale: float,
    initial_state: MesaState | None,
    return_state: bool,
    chunk: int | None,
) -> tuple[Tensor, MesaState | None, Tensor]:
    """The whole sequence, and the solver's steps [B, T, H]; `chunk` has no meaning here."""
    dtype = promoted(q, k, v)
    kk, kv = initial_state or (None, None)
    if solver.ridge is not None:  # keys learn by it, too: both derivatives are summed ahead of rounding
        dtype = torch.float32
        k = k.float()
        lam = solver.ridge * length(_square(k, log_decay, beta, kk, v.shape[2]))
    else:
        assert lam is not None
        lam = lam[None]
    ratio = max(solver.tolerance or 0.0, SPLIT_ROUNDING if dtype == torch.bfloat16 else ROUNDING)
    results = mesa_op(
        *Inputs(
            q=q.to(dtype),
            k=k.to(dtype),
            v=v.to(dtype),
            lam=lam,
            log_decay=log_decay,
            beta=beta,
            sign=None if sign is None else sign.detach(),
            kk=kk,
            kv=kv,
            steps=solver.steps,
            enough=ratio**2,
            ridge=solver.ridge,
            x0=solver.x0,
            scale=float(scale),
            return_state=return_state,
            keep=torch.is_grad_enabled(),
        )
    )
    o, final_kk, final_kv, _, taken, *_ = results
    if alpha is not None:  # what reads is q + alpha (x - q): by q it is gated linear attention
        plain, *_ = gated_linear_op(
            *Linear(q.to(dtype), k.to(dtype), v.to(dtype), log_decay, beta, None, kv, float(scale), False)
        )
        o = plain + alpha.to(torch.float32)[..., None] * (o - plain)
    return o.to(v.dtype), MesaState(final_kk, final_kv) if return_state else None, taken.detach()


def _square(k: Tensor, log_decay: Tensor | None, beta: Tensor | None, kk: Tensor | None, heads: int) -> Tensor:
    """|kk_t|^2 of every token [B, T, H]."""
    values = k.expand(-1, -1, heads, -1)
    read, *_ = gated_linear_op(*Linear(k, k, values, log_decay, beta, None, kk, 1.0, False))
    through = (read * values).sum(-1)
    write = torch.ones_like(through) if beta is None else beta.float()
    added = write * (2 * through - write * values.square().sum(-1).square())
    fade = torch.zeros_like(added) if log_decay is None else 2 * log_decay.float()
    first = None if kk is None else kk.square().sum((-2, -1))
    squares: Tensor = linear_scan(added, log_a=fade, initial_state=first, return_state=False, chunk=None)[0]
    return squares
