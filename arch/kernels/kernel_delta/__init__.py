"""The op of Dot: a memory over implicit features that learns by the squared error, a delta rule of attention.

o_t = sum_{j <= t} kappa(q_t, k_j) B_t[j],   B_t = alpha_t B_{t-1}, and for t - c < i <= t
B_t[i] += eta_t gamma_{t,t-i} (v_i - sum_j kappa(k_i, k_j) B_{t-1}[j])
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from recallmap.arch.kernels.test_time.implicit_features import (
    Anchors,
    Exponential,
    Kernel,
    KernelState,
    hidden_rule,
    read,
    remember,
    step,
)
from recallmap.arch.kernels.test_time.learning_rule import L2

__all__ = ["kernel_delta", "kernel_delta_read", "kernel_delta_step"]

OP = "kernel_delta"


def kernel_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: Kernel = Exponential(),  # noqa: B008 - immutable
    alpha: Tensor | None = None,
    eta: Tensor | None = None,
    gamma: Tensor | None = None,
    window: int = 1,
    gradient_chunk: int = 1,
    anchors: Anchors | None = None,
    residual: bool = False,
    initial_state: KernelState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, KernelState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state behind the last token.

    q, k, v         [B, T, H, K] and [B, T, H, V]
    kernel          kappa, `Exponential` or `Polynomial`; the memory is stable while eta kappa(k, k) sum(gamma) < 2
    alpha, eta      retention and learning rate [B, T, H]; None: 1
    gamma           window weights [B, T, H, window], gamma[..., j] of the token j ago; None: 1
    gradient_chunk  b, errors are those at the start of each chunk of b tokens
    anchors         a deep memory in place of the linear one: M(x) = gelu(sum_m kappa(x, p_m) A_m) ... W
    residual        M(x) = x + ...
    chunk           tokens at once; None: by what was fastest

    Everything else is as in `gated_linear`. Behrouz et al. 2025 (ATLAS), section 4.
    """
    return remember(
        OP,
        hidden_rule(L2, window, gradient_chunk, residual),
        q,
        k,
        v,
        kernel=kernel,
        alpha=alpha,
        eta=eta,
        gamma=gamma,
        anchors=anchors,
        initial_state=initial_state,
        return_state=return_state,
        implementation=implementation,
        chunk=chunk,
    )


def kernel_delta_step(
    state: KernelState | None, q: Tensor, k: Tensor, v: Tensor, **arguments: Any
) -> tuple[Tensor, KernelState]:
    """One token: outputs [B, H, V] and the next state. Shapes and arguments are those of `kernel_delta`, without T."""
    return step(kernel_delta, state, q, k, v, arguments)


def kernel_delta_read(state: KernelState, q: Tensor, *, kernel: Kernel, residual: bool = False) -> Tensor:
    """The answers [B, T, H, V] of an unchanged memory to q [B, T, H, K]: nothing is learned."""
    return read(state, q, kernel, hidden_rule(L2, 1, 1, residual))
