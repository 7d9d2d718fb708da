"""Members whose tensors are stacked: one call of the model takes the optimizer step of all of them.

N members, P parameters of one member, B batch, Q positions read out, V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.backbone import Backbone
from recallmap.arch.kernels.cross_entropy import cross_entropy
from recallmap.arch.kernels.select import fuses
from recallmap.search.training.adamw import AdamW, learning_rate
from recallmap.search.training.cuda_graph import MOST, CapturedStep, Operations, compiled
from recallmap.search.training.padding import row_of
from recallmap.search.training.recorded_step import RecordedStep, pays
from recallmap.search.training.stacked_model import Stacked
from recallmap.search.trials.pools import Pool

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec

# Seconds that the compiler takes for a step, and that a compiled step saves: each, and by the spec's effort.
COMPILING, SAVED_A_STEP, SAVED_OF_EFFORT = 20.0, 5e-4, 8e-13

# The least squared length of an answer that an error is relative to. A number in tens of millions is 0 in fp32, and a task that
# weighs errors by its square (regression) would ask for infinity times 0.
NEXT_TO_0 = 1e-30


def losses(logits_NBQV: Tensor, targets_NBQ: Tensor, weight_NBQ: Tensor) -> Tensor:
    """[N]: each member's mean cross entropy over its scored positions (weight 0 elsewhere), or, for vectors, its mean
    relative squared error."""
    return averaged(errors(logits_NBQV, targets_NBQ), weight_NBQ)


def averaged(error_NBQ: Tensor, weight_NBQ: Tensor) -> Tensor:
    """[N]: each member's mean error over its scored positions."""
    return (error_NBQ * weight_NBQ).flatten(1).sum(1) / weight_NBQ.flatten(1).sum(1).clamp(min=1e-9)


def errors(logits_NBQV: Tensor, targets_NBQ: Tensor) -> Tensor:
    """[N, B, Q]: the cross entropy at every position, or, for vectors, the relative squared error."""
    if targets_NBQ.dim() == logits_NBQV.dim():
        error = (logits_NBQV.float() - targets_NBQ).square().sum(-1) / targets_NBQ.square().sum(-1).clamp(min=NEXT_TO_0)
    else:
        error = F.cross_entropy(
            logits_NBQV.float().flatten(0, 2), targets_NBQ.clamp(min=0).flatten(), reduction="none"
        ).view(targets_NBQ.shape)
    return error


def training_losses(
    model: Stacked,
    low_precision: bool,
    flat_NP: Tensor,
    inputs_NBT: Tensor,
    at_NBQ: Tensor | None,
    targets_NBQ: Tensor,
    weight_NBQ: Tensor,
) -> Tensor:
    """`losses` of `answers`; on a GPU, and not under the compiler, cross entropy in one pass over logits as they come."""
    if targets_NBQ.dim() != 3 or not fuses(flat_NP):  # vectors, or parts
        return losses(answers(model, low_precision, flat_NP, inputs_NBT, at_NBQ), targets_NBQ, weight_NBQ)
    with torch.autocast(inputs_NBT.device.type, torch.bfloat16, enabled=low_precision):
        logits_NBQV = model.unmasked(flat_NP, inputs_NBT, at_NBQ)
    counts_N = model.layout.counts[: len(flat_NP)]
    error_NR = cross_entropy(logits_NBQV.flatten(1, 2), targets_NBQ.flatten(1), counts_N)
    return averaged(error_NR.view(targets_NBQ.shape), weight_NBQ)


class Lane:
    """The live state of N members that one call of the model trains. `steps` are those of the cohort; a member with fewer
    stands still after its own. `captured` False: a GPU runs each step anew."""

    def __init__(
        self,
        specs: Sequence[TrialSpec],
        models: Sequence[Backbone],
        device: torch.device,
        steps: int,
        *,
        captured: bool = True,
    ) -> None:
        first = specs[0]
        self.device, self.steps = device, steps
        self.base = models[0].to(device)
        self.model = Stacked(self.base, [s.task.shape[1] for s in specs], device)
        self.flat = self.model.layout.padded([row_of(model) for model in models])
        self.optimizer = AdamW(specs, self.flat)
        rates = np.zeros((steps, len(specs)))
        for column, spec in zip(rates.T, specs, strict=True):
            column[: spec.steps] = learning_rate(spec.training.schedule, spec.training.lr, spec.steps)
        self.rates = torch.tensor(rates, dtype=torch.float32, device=device)[..., None]
        self.bad_step = torch.full((len(specs),), -1, device=device)
        self.loss_sum = torch.zeros(len(specs), device=device)  # of the steps since a member's last evaluation
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)  # optimizer steps taken
        self.losses: Callable[..., Tensor] = self.member_losses
        self.whole: Callable[..., Tensor] | None = None  # the same compiled
        self.optimize: Callable[..., None] = self.optimizer.step
        self.captured = CapturedStep(self) if device.type == "cuda" and captured else None
        self.recorded = RecordedStep(self) if pays(specs, device) else None
        self.saved = self.steps * SAVED_A_STEP + sum(s.effort for s in specs) * SAVED_OF_EFFORT  # seconds, if compiled
        self.low_precision = first.training.dtype == "bfloat16"

    def member_losses(self, flat_NP: Tensor, *batch: Any) -> Tensor:
        """[N]; `batch` as Pool.batch gives it."""
        inputs, at, targets, weight = batch
        return training_losses(self.model, self.low_precision, flat_NP, inputs, at, targets, weight)

    def compile(self, batch: Sequence[Tensor | None], backend: str = "inductor") -> str:
        """Compile losses, for batches of this shape, and optimizer steps. Returns "yes", or why losses are not compiled."""
        if self.saved < COMPILING:
            return f"not worth it: {self.steps:,} steps"
        if self.whole is None:
            self.whole, self.optimize = compiled(self.member_losses, backend), compiled(self.optimizer.step, backend)
        # With a gradient, as in training: without one, another implementation of an op may be chosen.
        one = self.flat[:1].detach().requires_grad_()
        with Operations() as operations:
            self.member_losses(one, *(None if t is None else t[:1] for t in batch))
        if operations.count > MOST:
            self.losses = self.member_losses
            return f"no: a forward pass is {operations.count:,} operations, more than {MOST:,}"
        self.losses = self.whole
        return "yes"

    def gradient(self, flat_NP: Tensor, *batch: Tensor | None) -> tuple[Tensor, Tensor]:
        """Losses [N] and their gradients [N, P]."""
        flat_NP = flat_NP.detach().requires_grad_()
        loss_N = self.losses(flat_NP, *batch)
        (gradient_NP,) = torch.autograd.grad(loss_N.sum(), flat_NP)
        return loss_N.detach(), gradient_NP

    def train_step(self, pool: Pool, rows_NB: Tensor) -> Tensor:
        """One optimizer step of every member; its losses [N], not yet brought to the host."""
        batch = pool.batch(rows_NB)
        loss_N = (self.captured or self.recorded or self.update)(*batch)
        self.loss_sum.add_(loss_N)
        return loss_N

    def update(self, *batch: Tensor | None) -> Tensor:
        """Take the step. Everything that outlasts it is written in place, so that a GPU can replay it."""
        loss_N, gradient_NP = self.gradient(self.flat, *batch)
        self.bad_step.copy_(torch.where((self.bad_step < 0) & ~loss_N.isfinite(), self.clock, self.bad_step))
        self.optimize(self.flat, gradient_NP, self.rates.index_select(0, self.clock)[0])
        self.clock.add_(1)
        return loss_N

    def memory(self) -> list[Tensor]:
        """All tensors that `update` writes."""
        return [self.flat, self.bad_step, *self.optimizer.memory(), self.clock]

    def weights(self, position: int) -> Tensor:
        """A member's own parameters in a row; a view where nothing is padded."""
        return self.model.layout.own(self.flat[position], position)

    def member(self, position: int) -> list[Tensor]:
        """All that steps have written for one member, as it would be alone."""
        return [self._own(tensor, position) for tensor in self._rows()]

    def put(self, position: int, values: Sequence[Tensor]) -> None:
        """The inverse of `member`. Values may have zeros behind them, and the last ones may be left out."""
        for tensor, value in zip(self._rows(), values, strict=False):
            own = self._own(tensor, position)
            value = value.to(self.device)[: len(own)] if own.dim() else value.to(self.device)
            wide = tensor.shape[1:] == self.flat.shape[1:]
            tensor[position] = self.model.layout.of([position]).padded([value])[0] if wide else value

    def keep(self, positions: list[int]) -> None:
        """Go on with the members at these positions alone."""
        index = torch.tensor(positions, device=self.device)
        self.model.layout = self.model.layout.of(positions)
        self.flat = self.flat[index]
        self.optimizer.keep(index)
        self.rates, self.bad_step, self.loss_sum = self.rates[:, index], self.bad_step[index], self.loss_sum[index]
        for known in (self.captured, self.recorded):
            if known:
                known.forget()

    def _rows(self) -> list[Tensor]:
        """All tensors of members that steps write, [N, ...] each, in the order in which they are saved."""
        return [self.flat, self.bad_step, *self.optimizer.memory(), self.loss_sum]

    def _own(self, tensor: Tensor, position: int) -> Tensor:
        wide = tensor.shape[1:] == self.flat.shape[1:]
        return self.model.layout.own(tensor[position], position) if wide else tensor[position]


def answers(model: Stacked, low_precision: bool, flat_NP: Tensor, inputs_NBT: Tensor, at_NBQ: Tensor | None) -> Tensor:
    """[N, B, Q, V] in float32, from a forward pass in bfloat16 where the precision is low."""
    with torch.autocast(inputs_NBT.device.type, torch.bfloat16, enabled=low_precision):
        return model.logits(flat_NP, inputs_NBT, at_NBQ).float()
