"""The op of Mesa: every token reads with the exact solution of a regularised least-squares problem over the past.

kk_t = D_t kk_{t-1} + beta_t k_t^T k_t,    kv_t = D_t kv_{t-1} + beta_t k_t^T v_t,    D_t = sign_t e^{g_t}
o_t = scale x_t kv_t,   x_t (kk_t + diag(lam)) = q_t by conjugate gradients, or with lam = ridge |kk_t| by Chebyshev's iteration
"""

from __future__ import annotations

from typing import Any, get_args

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.mesa.conjugate import Gradient, Solver, Start
from recallmap.arch.kernels.mesa.recurrent import step as mesa_step
from recallmap.arch.kernels.mesa.state import MesaState, start
from recallmap.arch.kernels.op_interface.input_checks import (
    check_positive,
    check_qkv,
    everywhere,
    expect,
    full_precision,
)

__all__ = ["MesaState", "mesa", "mesa_step", "mesa_steps_taken"]

OP = "mesa"


def mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lam: Tensor | None = None,
    ridge: float | None = None,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    sign: Tensor | None = None,
    alpha: Tensor | None = None,
    steps: int = 30,
    tolerance: float | None = None,
    x0: Start = "diag",
    gradient: Gradient = "implicit",
    scale: float | None = None,
    initial_state: MesaState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, MesaState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state behind the last token.

    q, k            [B, T, H, K], or [B, T, 1, K] where all heads share them
    v               [B, T, H, V]
    lam             the regulariser, > 0 (floor and softplus done): [H, K]; None: `ridge` says it
    ridge           the regulariser as a share, > 0, of the Frobenius norm of kk_t. Then the solver is Chebyshev's iteration,
                    whose pace depends on the ridge alone; `tolerance` and `x0` have no meaning for it
    log_decay       ln of the decay, finite and <= 0: [B, T, H], or a constant [H]; None: no decay
    beta            write strength, >= 0: [B, T, H]; None: 1
    sign            +1 or -1 [B, T, H], the sign of the decay multiplier; needs a lam so large that kk + diag(lam) stays
                    positive (49 in MesaNet); no gradient flows into it
    alpha           what reads is q + alpha (x - q), with the solution x: [B, T, H]; None: 1
    steps           of the solver, per token and head
    tolerance       a token whose residual is that much smaller than its first one is finished; None: all take all steps
    x0              where the solver starts: "diag" q / diag(kk + lam), "q" the query, "zero"
    gradient        "implicit": of the solution that the solver approaches; "unroll": of the very steps it took
    scale           of the outputs; None: 1
    initial_state   `MesaState`, kk of which is symmetric; None: zero
    implementation  "auto", or one of `select.implementations("mesa")`
    chunk           tokens a chunk; None: by length

    States and solves are fp32, fp64 where an input is. Differentiable in q, k, v, lam, log_decay, beta, alpha and
    initial_state, through outputs and state, and through the norm that a ridge is a share of. No tokens (T = 0) give no
    outputs and the initial state. Raises ValueError on shapes and sizes that do not fit and on an implementation that cannot
    serve. von Oswald et al. 2025 (arXiv:2506.05233), eq. 5 to 9; ridge and alpha: Peng et al. 2025 (arXiv:2511.21016).
    """
    o, final, _ = _run(
        q,
        k,
        v,
        lam=lam,
        ridge=ridge,
        log_decay=log_decay,
        beta=beta,
        sign=sign,
        alpha=alpha,
        steps=steps,
        tolerance=tolerance,
        x0=x0,
        gradient=gradient,
        scale=scale,
        initial_state=initial_state,
        return_state=return_state,
        implementation=implementation,
        chunk=chunk,
    )
    return o, final


def mesa_steps_taken(q: Tensor, k: Tensor, v: Tensor, **arguments: Any) -> Tensor:
    """The steps [B, T, H] that the solver takes for every token and head; arguments are those of `mesa`."""
    with torch.no_grad():
        taken: Tensor = _run(q, k, v, **arguments)[2]
        return taken


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    lam: Tensor | None = None,
    ridge: float | None = None,
    log_decay: Tensor | None = None,
    beta: Tensor | None = None,
    sign: Tensor | None = None,
    alpha: Tensor | None = None,
    steps: int = 30,
    tolerance: float | None = None,
    x0: Start = "diag",
    gradient: Gradient = "implicit",
    scale: float | None = None,
    initial_state: MesaState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, MesaState | None, Tensor]:
    batch, time, heads, key_width, value_width = check_qkv(OP, q, k, v)
    by_head = (batch, time, heads)
    log_decay = everywhere(log_decay, batch, time)
    expect(OP, "lam", lam, (heads, key_width))
    expect(OP, "log_decay", log_decay, by_head)
    expect(OP, "beta", beta, by_head)
    expect(OP, "sign", sign, by_head)
    expect(OP, "alpha", alpha, by_head)
    if (lam is None) == (ridge is None):
        raise ValueError(f"{OP}: give either lam or ridge, got {'neither' if lam is None else 'both'}")
    if ridge is not None and ridge <= 0:
        raise ValueError(f"{OP}: ridge must be positive, got {ridge}")
    if ridge is not None and sign is not None:
        raise ValueError(f"{OP}: a ridge bounds what has no negative eigenvalues: give lam with signs")
    check_positive(OP, "chunk", chunk)
    if steps < 0:
        raise ValueError(f"{OP}: steps must be at least 0, got {steps}")
    if tolerance is not None and not 0 < tolerance < 1:
        raise ValueError(f"{OP}: tolerance must lie between 0 and 1, or be None for all steps; got {tolerance}")
    for what, value, choices in (("x0", x0, get_args(Start)), ("gradient", gradient, get_args(Gradient))):
        if value not in choices:
            raise ValueError(f"{OP}: {what} must be one of {', '.join(choices)}; got {value!r}")
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": key_width, "value_width": value_width}
    sizes["unroll"] = int(gradient == "unroll")
    name = select.choose(
        OP, device=v.device, dtype=v.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    shape = (batch, heads, key_width, value_width)
    if time == 0:
        return v, start(initial_state, shape, q, k, v) if return_state else None, v.new_zeros(by_head)
    if initial_state is not None:
        kk, kv = start(initial_state, shape, q, k, v)
        # A skew part of kk has no meaning, and unrolled gradients would blow it up.
        initial_state = MesaState((kk + kk.mT) / 2, kv)
    with full_precision(v.device):
        result: tuple[Tensor, MesaState | None, Tensor] = select.load(OP, name)(
            q,
            k,
            v,
            lam=lam,
            log_decay=log_decay,
            beta=beta,
            sign=sign,
            alpha=alpha,
            solver=Solver(steps, tolerance, x0, gradient, ridge),
            scale=1.0 if scale is None else scale,
            initial_state=initial_state,
            return_state=return_state,
            chunk=chunk,
        )
        return result
