"""Conjugate gradients for many small symmetric positive definite systems at once, and the gradient of their solutions.

Rows are systems: x A = rhs for every row of x [..., K], each with its own A. No row decides what another does, and nothing
branches on data: a finished row takes steps of length zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from recallmap.arch.kernels.mesa import chebyshev

Start = Literal["diag", "q", "zero"]
Gradient = Literal["implicit", "unroll"]
Operator = tuple[Tensor, ...]

FRESH = 8  # steps from one residual made anew to the next: the first is large, and all others keep its rounding
DRIFTED = 0.3  # of a residual's length: farther off the one made anew, directions begin anew with it


class System:
    """How to multiply by A and how to read its diagonal, from the tensors that make it up.

    multiply     (x [..., K], *operator) -> x A
    diagonal     (*operator) -> diag(A), broadcastable to [..., K]
    regulariser  (*operator) -> its part lam of A, broadcastable to [..., K]
    """

    def __init__(
        self, multiply: Callable[..., Tensor], diagonal: Callable[..., Tensor], regulariser: Callable[..., Tensor]
    ) -> None:
        self.multiply, self.diagonal, self.regulariser = multiply, diagonal, regulariser
        self.implicit = _implicit(self)


class Solver(NamedTuple):
    """`steps` at most; fewer for a row whose residual falls to `tolerance` times its first one; `x0` is where it starts. With
    `ridge`, which lam is of the norm, it is Chebyshev's iteration: all steps, from where its polynomial begins."""

    steps: int
    tolerance: float | None
    x0: Start
    gradient: Gradient
    ridge: float | None = None

    def __call__(self, system: System, rhs: Tensor, *operator: Tensor) -> tuple[Tensor, Tensor]:
        """Solutions [..., K] and the steps that every row took [...].

        The gradient "unroll" is that of these very steps. "implicit" is that of the solution they approach, by a second solve
        of the same kind; for few steps it differs.
        """
        how = (self.steps, self.tolerance, self.x0, self.ridge)
        if self.gradient == "unroll":
            return approach(system, rhs, operator, *how)
        with torch.no_grad():
            x, taken = approach(system, rhs, operator, *how)
        x = x.detach()  # of no steps from x0 = q it is rhs itself
        residual = rhs - system.multiply(x, *operator)
        if rhs.is_cuda and not torch.compiler.is_compiling():
            # Dynamo under vmap takes tensors for constants and would drop the backward; opaque to it, all is well.
            torch.compiler.allow_in_graph(system.implicit)
        solution: Tensor = system.implicit.apply(x, residual, *how, *operator)
        return solution, taken


def approach(
    system: System,
    rhs: Tensor,
    operator: Operator,
    steps: int,
    tolerance: float | None,
    x0: Start,
    ridge: float | None,
) -> tuple[Tensor, Tensor]:
    """The solutions and the steps that every row took, by Chebyshev's iteration or by conjugate gradients."""
    if ridge is None:
        return iterate(system, rhs, operator, steps, tolerance, x0)
    x = chebyshev.iterate(lambda x: system.multiply(x, *operator), rhs, system.regulariser(*operator), ridge, steps)
    return x, torch.full_like(x[..., 0], steps)


def iterate(
    system: System, rhs: Tensor, operator: Operator, steps: int, tolerance: float | None, x0: Start
) -> tuple[Tensor, Tensor]:
    """The method itself (Hestenes and Stiefel 1952). From the query, whose residual may be many times as long as the query, the
    residual is made anew every few steps (van der Vorst and Ye 2000), which changes nothing but its rounding. Where that is all
    there is left of it, it is no longer orthogonal to the last direction, and to go on with that would lead away from the
    solution."""
    if x0 == "zero":
        x, r = torch.zeros_like(rhs), rhs
    else:
        x = rhs / system.diagonal(*operator) if x0 == "diag" else rhs
        r = rhs - system.multiply(x, *operator)
    p, square = r, _dot(r, r)
    # Below its own rounding a residual carries no information, and in the end it would leave the range of normal numbers.
    enough = square * max(tolerance or 0.0, 0.01 * torch.finfo(rhs.dtype).eps) ** 2
    taken = torch.zeros_like(square)
    for step in range(steps):
        image = system.multiply(p, *operator)
        curvature = _dot(p, image)
        active = (square > enough) & (curvature > 0)
        length = _ratio(square, curvature, active)
        x = torch.addcmul(x, length, p)
        r = torch.addcmul(r, length, image, value=-1)
        onward = active
        if x0 == "q" and step % FRESH == FRESH - 1:
            fresh = torch.where(active, rhs - system.multiply(x, *operator), r)
            onward = active & (_dot(fresh - r, fresh - r) <= DRIFTED**2 * _dot(r, r))
            r = fresh
        following = _dot(r, r)
        p = torch.addcmul(r, _ratio(following, square, onward), p)
        square = following
        taken = taken + active
    return x, taken.squeeze(-1)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum(-1, keepdim=True)


def _ratio(above: Tensor, below: Tensor, active: Tensor) -> Tensor:
    """above / below where active, 0 elsewhere; its gradient is finite everywhere."""
    return torch.where(active, above, torch.zeros_like(above)) / torch.where(active, below, torch.ones_like(below))


def _implicit(system: System) -> Any:
    """x as a function of its residual rhs - x A: the derivative of the solution is that of the residual, solved once more.

    All dependence on rhs and on A comes in through the residual, which is ordinary arithmetic on a constant x.
    """

    class Implicit(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(
            x: Tensor,
            residual: Tensor,
            steps: int,
            tolerance: float | None,
            x0: Start,
            ridge: float | None,
            *operator: Tensor,
        ) -> Tensor:
            return x.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            _, _, *ctx.how = inputs[:6]
            ctx.save_for_backward(*inputs[6:])

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
            operator = ctx.saved_tensors
            solved, _ = approach(system, gradients[0], operator, *ctx.how)
            return None, solved, *(None for _ in range(4 + len(operator)))

    return Implicit
