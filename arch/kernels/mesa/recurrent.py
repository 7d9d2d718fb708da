"""Mesa, token by token: what every other implementation must agree with.

kk_t = sign_t e^{g_t} kk_{t-1} + beta_t k_t^T k_t,    kv_t = sign_t e^{g_t} kv_{t-1} + beta_t k_t^T v_t
o_t = scale x_t kv_t,   x_t (kk_t + diag(lam)) = q_t by conjugate gradients, or with lam = ridge |kk_t| by Chebyshev's iteration

B batch, T time, H heads, G heads of q and k (H or 1), K key width, V value width
"""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.arch.kernels.mesa.chebyshev import length
from recallmap.arch.kernels.mesa.conjugate import Gradient, Solver, Start, System
from recallmap.arch.kernels.mesa.state import MesaState, start


def step(
    state: MesaState | None,
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
) -> tuple[Tensor, MesaState]:
    """One token: outputs [B, H, V] and the next state.

    The shapes are those of `mesa` without T. State None is zero. Raises ValueError where the state does not fit.
    """
    solver = Solver(steps, tolerance, x0, gradient, ridge)
    gates = (log_decay, beta, sign, alpha)
    o, following, _ = _advance(state, q, k, v, lam, *gates, solver, 1.0 if scale is None else scale)
    return o, following


def recurrent(
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
    """`step` over time, and the solver's steps [B, T, H]; `chunk` has no meaning here."""
    state, outputs, taken = initial_state, [], []
    for t in range(v.shape[1]):
        g, write, turn, share = (None if x is None else x[:, t] for x in (log_decay, beta, sign, alpha))
        o, state, used = _advance(state, q[:, t], k[:, t], v[:, t], lam, g, write, turn, share, solver, scale)
        outputs.append(o)
        taken.append(used)
    return torch.stack(outputs, 1), state if return_state else None, torch.stack(taken, 1)


def _advance(
    state: MesaState | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lam: Tensor | None,
    log_decay: Tensor | None,
    beta: Tensor | None,
    sign: Tensor | None,
    alpha: Tensor | None,
    solver: Solver,
    scale: float,
) -> tuple[Tensor, MesaState, Tensor]:
    kk, kv = start(state, (*v.shape[:2], q.shape[-1], v.shape[-1]), q, k, v, lam, log_decay, beta)
    q, k, v_ = (x.to(kk.dtype) for x in (q, k, v))
    for factor in (None if log_decay is None else log_decay.to(kk.dtype).exp(), sign):
        if factor is not None:
            kk, kv = (x * factor.to(kk.dtype)[..., None, None] for x in (kk, kv))
    write = (k if beta is None else k * beta.to(kk.dtype)[..., None])[..., :, None]
    kk, kv = kk + write * k[..., None, :], kv + write * v_[..., None, :]
    if solver.ridge is not None:
        lam = solver.ridge * length(kk.square().sum((-2, -1)))[..., None]
    assert lam is not None
    q = q.expand(kk.shape[:-1])
    solved, taken = solver(DENSE, q, kk, lam.to(kk.dtype))
    if alpha is not None:
        solved = q + alpha.to(kk.dtype)[..., None] * (solved - q)
    o = scale * (solved[..., None, :] @ kv).squeeze(-2)
    return o.to(v.dtype), MesaState(kk, kv), taken


def _multiply(x: Tensor, kk: Tensor, lam: Tensor) -> Tensor:
    return (x[..., None, :] @ kk).squeeze(-2) + x * lam


def _diagonal(kk: Tensor, lam: Tensor) -> Tensor:
    return kk.diagonal(dim1=-2, dim2=-1) + lam


def _regulariser(kk: Tensor, lam: Tensor) -> Tensor:
    return lam


DENSE = System(_multiply, _diagonal, _regulariser)
