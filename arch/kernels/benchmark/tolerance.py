"""The tolerance of an implementation against `recurrent` in fp64 on the same, already rounded inputs.

Measured: T 512, width 64, fp32 1e-7 to 1e-5, tf32 2e-4 to 3e-2, bf16 2e-3 to 2e-2; rounding outputs to bf16 alone costs 1.1e-3.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Of = Literal["output", "gradient", "gate_gradient"]
Case = Literal["random", "repeated"]


class Row(NamedTuple):
    """Relative errors; None: must not be used. The bf16 gradients are those of q, k, v, and of gates and constants."""

    fp64: float
    fp32: float
    tf32: float | None
    bf16: float
    bf16_gradient: float
    bf16_gate_gradient: float


_ATTENTION = Row(1e-11, 1e-5, 2e-3, 5e-3, 1e-2, 2e-2)
_DELTA = Row(1e-10, 1e-5, 3e-3, 1e-2, 2e-2, 4e-2)
_DELTA_REPEATED = Row(1e-9, 5e-5, 1e-2, 5e-2, 1e-1, 1e-1)

# "repeated" keys: beta at least 0.99 or 1.9 for the deltas, decay at least 0.9975 for mesa, whose lam is at least 0.25
TABLE: dict[str, dict[Case, Row]] = {
    "attention": {"random": _ATTENTION},
    "gated_linear": {"random": _ATTENTION},
    "kernel_attention": {"random": _ATTENTION},
    "path": {"random": _ATTENTION, "repeated": _DELTA_REPEATED},
    "slots": {"random": _ATTENTION},
    "log_linear": {"random": _ATTENTION},
    "mlstm": {"random": Row(1e-11, 2e-5, 3e-3, 8e-3, 2e-2, 3e-2)},
    "delta": {"random": _DELTA, "repeated": _DELTA_REPEATED},
    "kernel_delta": {"random": _DELTA, "repeated": _DELTA_REPEATED},
    "mesa": {
        "random": Row(1e-10, 2e-5, None, 1e-2, 2e-2, 4e-2),
        "repeated": Row(1e-8, 2e-4, None, 2e-2, 5e-2, 5e-2),
    },
    "linear_scan": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "gated_scan": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "selective_scan": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "short_conv": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "add_norm": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "norm_gate": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "rotary": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "swiglu": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "monomials": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "newton_schulz": {"random": Row(1e-10, 5e-5, None, 5e-3, 1e-2, 1e-2)},
    "spanned": {"random": Row(1e-12, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "spanned_newton_schulz": {"random": Row(1e-10, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "retained": {"random": Row(1e-10, 2e-5, None, 5e-3, 1e-2, 1e-2)},
    "spanned_sum": {"random": Row(1e-10, 1e-5, None, 5e-3, 1e-2, 1e-2)},
    "memory": {"random": Row(1e-10, 2e-5, 2e-3, 1e-2, 3e-2, 3e-2)},
    "memory_newton_schulz": {"random": Row(1e-8, 5e-4, 2e-2, 2e-2, 1e-1, 1e-1)},
}


def tolerance(op: str, dtype: torch.dtype, *, of: Of = "output", case: Case = "random", tf32: bool = False) -> float:
    """The relative error allowed to `op` in `dtype`; fp16 counts as bf16.

    Raises ValueError where the table has no such op, or forbids tf32.
    """
    if op not in TABLE:
        raise ValueError(f"no tolerance is known for {op!r}; there are {', '.join(TABLE)}")
    row = TABLE[op].get(case, TABLE[op]["random"])
    if dtype == torch.float64:
        return row.fp64
    if dtype == torch.float32:
        allowed = row.tf32 if tf32 else row.fp32
        if allowed is None:
            raise ValueError(f"{op!r} must not compute in tf32; use ieee fp32 products")
        return allowed
    return {"output": row.bf16, "gradient": row.bf16_gradient, "gate_gradient": row.bf16_gate_gradient}[of]


def attainable(reference: Tensor, dtype: torch.dtype, per: tuple[int, ...]) -> float:
    """The error of the reference itself in `dtype`. In 16 bits the worst of very many sequences may exceed the tolerance where
    large results are few; no implementation is nearer."""
    return error(reference.to(dtype), reference, per)


def error(x: Tensor, reference: Tensor, per: tuple[int, ...]) -> float:
    """The worst over `per` (the axes of sequence and head) of the relative Frobenius error, and of a tenth of the largest
    single error in units of the reference's root mean square: what a tolerance bounds. NaN counts as infinite."""
    if x.numel() == reference.numel() == 0:
        return 0.0
    others = tuple(axis for axis in range(x.ndim) if axis not in {p % x.ndim for p in per})
    difference = x.detach().double() - reference.detach().double()
    size = reference.detach().double().square().mean(others).sqrt()
    frobenius = difference.square().mean(others).sqrt()
    largest = difference.abs().amax(others) / 10
    worst = torch.maximum(frobenius, largest)
    relative = torch.where(worst == 0, worst, worst / size)  # 0 for 0 is exact
    return float(relative.nan_to_num(nan=torch.inf, posinf=torch.inf).max())
