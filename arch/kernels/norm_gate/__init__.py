"""The op behind most memories: RMSNorm of every head, and the output gate.

n_t = x_t / sqrt(mean(x_t^2) + eps),    y_t = n_t * w, or n_t * w * act(g_t),    act = SiLU or sigmoid
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from recallmap.arch.kernels import select
from recallmap.arch.kernels.norm_gate.recurrent import step as norm_gate_step
from recallmap.arch.kernels.op_interface.input_checks import check_positive, expect, full_precision

__all__ = ["GateActivation", "norm_gate", "norm_gate_step"]

OP = "norm_gate"
GateActivation = Literal["silu", "sigmoid"]


def norm_gate(
    x: Tensor,
    *,
    weight: Tensor,
    gate: Tensor | None = None,
    activation: GateActivation = "silu",
    eps: float = 1e-5,
    output: torch.dtype | None = None,
    initial_state: tuple[()] | None = None,
    return_state: bool = False,
    implementation: str = "auto",
    chunk: int | None = None,
) -> tuple[Tensor, tuple[()] | None]:
    """Outputs [B, T, H, V] in `output`, and with `return_state` the empty state: tokens know nothing of each other.

    x               [B, T, H, V]
    weight          [H, V]; [1, V] or [V] where all heads share it
    gate            [B, T, H, V], ahead of its activation; None: no gate
    activation      of the gate: "silu" or "sigmoid"
    eps             beneath the root
    output          dtype of the outputs; None: that of `x`
    initial_state   has no meaning here, nor has `chunk`
    implementation  "auto", or one of `select.implementations("norm_gate")`

    Computes in fp32, fp64 where an input is, and rounds once. Differentiable in x, weight and gate. Raises ValueError on shapes
    that do not fit and on an implementation that cannot serve. Zhang & Sennrich 2019 (arXiv:1910.07467).
    """
    if x.ndim != 4:
        raise ValueError(f"{OP}: x must be [batch, time, heads, width], got shape {list(x.shape)}")
    batch, time, heads, width = x.shape
    expect(OP, "x", x, tuple(x.shape))
    expect(OP, "weight", weight, (heads, width), (1, width), (width,))
    expect(OP, "gate", gate, tuple(x.shape))
    check_positive(OP, "chunk", chunk)
    if activation not in get_args(GateActivation):
        raise ValueError(f"{OP}: activation must be one of {', '.join(get_args(GateActivation))}; got {activation!r}")
    sizes = {"batch": batch, "time": time, "heads": heads, "key_width": width, "value_width": width}
    name = select.choose(
        OP, device=x.device, dtype=x.dtype, wanted=implementation, differentiable=torch.is_grad_enabled(), sizes=sizes
    )
    final = () if return_state else None
    if time == 0:
        return x.to(output or x.dtype), final
    with full_precision(x.device):
        y: Tensor = select.load(OP, name)(
            x, weight=weight.reshape(-1, width), gate=gate, activation=activation, eps=eps, output=output or x.dtype
        )
        return y, final
