"""The op of DeepTransformer and SWDT: a memory over implicit features that learns by the dot loss.

o_t = sum_{j <= t} w_{t,j} kappa(q_t, k_j) v_j,   w_{t,j} = alpha_t w_{t-1,j} + eta_t gamma_{t,t-j} for t - c < j <= t
"""

from __future__ import annotations

from typing import Any

import torch
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
from recallmap.arch.kernels.test_time.learning_rule import DOT

__all__ = ["kernel_attention", "kernel_attention_read", "kernel_attention_step"]

OP = "kernel_attention"


def kernel_attention(
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
    normalize: bool = False,
    initial_state: KernelState | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, KernelState | None]:
    """Outputs [B, T, H, V] in the dtype of `v`, and with `return_state` the state behind the last token.

    q, k, v         [B, T, H, K] and [B, T, H, V]
    kernel          kappa, `Exponential` or `Polynomial`
    alpha, eta      retention and learning rate [B, T, H]; None: 1
    gamma           window weights [B, T, H, window], gamma[..., j] of the token j ago; None: 1
    window          c. An old token keeps its weight: this is no window of attention
    anchors         a deep memory in place of the linear one: M(x) = gelu(sum_m kappa(x, p_m) A_m) ... W
    gradient_chunk  b, gradients of a deep memory are taken at the start of each chunk of b tokens
    residual        M(x) = x + ...
    normalize       divide by the sum of the weights: softmax attention where the kernel is exponential. Linear memory only
    chunk           tokens at once; None: by what was fastest

    Everything else is as in `gated_linear`. Behrouz et al. 2025 (ATLAS), section 4.
    """
    rule = hidden_rule(DOT, window, gradient_chunk if anchors else 1, residual)
    if normalize and (anchors is not None or residual):
        raise ValueError(f"{OP}: normalize needs a linear memory without residual; set it to false")
    if normalize:  # the sum of the weights is what they make of a value that is always 1
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    o, state = remember(
        OP,
        rule,
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
    return (_normalized(o) if normalize else o), state


def kernel_attention_step(
    state: KernelState | None, q: Tensor, k: Tensor, v: Tensor, **arguments: Any
) -> tuple[Tensor, KernelState]:
    """One token: outputs [B, H, V] and the next state. Shapes and arguments are those of `kernel_attention`, without T."""
    return step(kernel_attention, state, q, k, v, arguments)


def kernel_attention_read(
    state: KernelState, q: Tensor, *, kernel: Kernel, residual: bool = False, normalize: bool = False
) -> Tensor:
    """The answers [B, T, H, V] of an unchanged memory to q [B, T, H, K]: nothing is learned."""
    o = read(state, q, kernel, hidden_rule(DOT, 1, 1, residual))
    return _normalized(o) if normalize else o


def _normalized(o: Tensor) -> Tensor:
    total = o[..., -1:]
    return o[..., :-1] / (total + (total == 0).to(o.dtype))  # an empty memory answers 0
