"""The live state of one cohort: trials of equal shape, stacked into one model with a leading member axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from recallmap.arch.backbone import Backbone
from recallmap.search.training import foreign
from recallmap.search.training.adamw import AdamW, learning_rate
from recallmap.search.training.batches import EvaluationSet, Feed
from recallmap.search.training.cuda_graph import MOST, CapturedStep, Operations, compiled
from recallmap.search.training.phase_clock import phase
from recallmap.search.training.stacked_model import Stacked
from recallmap.search.trials.pools import Pool

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec

TOKENS_AT_ONCE = 2**17  # of all members together in one evaluation pass; bounds the memory of the logits

# Seconds that the compiler takes for a step, and that a compiled step saves: each, and by the spec's effort.
COMPILING, SAVED_A_STEP, SAVED_OF_EFFORT = 20.0, 5e-4, 8e-13


def losses(logits_NBQV: Tensor, targets_NBQ: Tensor, weight_NBQ: Tensor) -> Tensor:
    """[N]: each member's mean cross entropy over its scored positions (weight 0 elsewhere), or, for vectors, its mean
    relative squared error."""
    if targets_NBQ.dim() == logits_NBQV.dim():
        error = (logits_NBQV.float() - targets_NBQ).square().sum(-1) / targets_NBQ.square().sum(-1)
    else:
        error = F.cross_entropy(
            logits_NBQV.float().flatten(0, 2), targets_NBQ.clamp(min=0).flatten(), reduction="none"
        ).view(targets_NBQ.shape)
    return (error * weight_NBQ).flatten(1).sum(1) / weight_NBQ.flatten(1).sum(1).clamp(min=1e-9)


class Cohort:
    """The live state of N members in training."""

    def __init__(
        self,
        specs: Sequence[TrialSpec],
        device: torch.device,
        at_once: int | None = None,
        starts: Sequence[Mapping[str, Tensor]] | None = None,
    ) -> None:
        first = specs[0]
        length, vocab = first.task.shape
        self.specs = list(specs)
        self.device = device
        self.members = list(range(len(specs)))  # those still in training, as indices into specs
        models = [
            s.arch.build(vocab=vocab, seed=s.seed, signal=s.task.signal, readout=s.task.readout, length=length).use(
                s.training.implementation
            )
            for s in specs
        ]
        for model, weights in zip(models, starts, strict=True) if starts else ():
            model.load_state_dict(weights)
        self.feed = Feed(specs, device)
        alone = device.type == "cuda" and foreign.why_alone(specs, device)
        at_once = 1 if alone else at_once
        # After all that may fail on a spec: it shares out threads until it is closed.
        self.model = Stacked(models, device, at_once, first.effort / max(1, first.steps))
        self.optimizer = AdamW(specs, self.model.flat)
        self.steps = self.feed.steps
        rates = np.stack([learning_rate(s.training.schedule, s.training.lr, self.steps) for s in specs], axis=1)
        self.rates = torch.tensor(rates, dtype=torch.float32, device=device)[..., None]
        self.bad_step = torch.full((len(specs),), -1, device=device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)  # optimizer steps taken
        self.losses: Callable[..., Tensor] = self.member_losses
        self.whole: Callable[..., Tensor] | None = None  # the same compiled
        self.optimize: Callable[..., None] = self.optimizer.step
        self.captured = CapturedStep(self) if device.type == "cuda" and not alone else None
        self.saved = self.steps * SAVED_A_STEP + sum(s.effort for s in specs) * SAVED_OF_EFFORT  # seconds, if compiled
        self.low_precision = first.training.dtype == "bfloat16"

    def answers(self, base: Backbone, flat_NP: Tensor, inputs_NBT: Tensor, at_NBQ: Tensor | None) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.low_precision):
            return self.model.logits(base, flat_NP, inputs_NBT, at_NBQ).float()

    def member_losses(self, base: Backbone, flat_NP: Tensor, *batch: Any) -> Tensor:
        """[N]; `batch` as Pool.batch gives it."""
        inputs, at, targets, weight = batch
        return losses(self.answers(base, flat_NP, inputs, at), targets, weight)

    def compile(self, batch: Sequence[Tensor | None], backend: str = "inductor") -> str:
        """Compile losses, for batches of this shape, and optimizer steps. Returns "yes", or why losses are not compiled."""
        if self.saved < COMPILING:
            return f"not worth it: {self.steps:,} steps"
        if self.whole is None:
            self.whole, self.optimize = compiled(self.member_losses, backend), compiled(self.optimizer.step, backend)
        # With a gradient, as in training: without one, another implementation of an op may be chosen.
        one = self.model.flat[:1].detach().requires_grad_()
        with Operations() as operations:
            self.member_losses(self.model.base, one, *(None if t is None else t[:1] for t in batch))
        if operations.count > MOST:
            self.losses = self.member_losses
            return f"no: a forward pass is {operations.count:,} operations, more than {MOST:,}"
        self.losses = self.whole
        return "yes"

    def gradient(self, base: Backbone, flat_NP: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [N] and their gradients [N, P]."""
        flat_NP = flat_NP.detach().requires_grad_()
        loss_N = self.losses(base, flat_NP, *batch)
        (gradient_NP,) = torch.autograd.grad(loss_N.sum(), flat_NP)
        return loss_N.detach(), gradient_NP

    def trained(self, after: int) -> Iterator[tuple[int, Tensor]]:
        """Train from step `after` on: yields the number of steps taken and the losses [N] of the last. A cohort without steps
        yields once, with losses of nan."""
        if self.steps == 0:
            yield 0, torch.full((len(self.specs),), math.nan)
        for step, (pool, rows_NB) in enumerate(self.feed.after(after), after + 1):
            yield step, self.train_step(pool, rows_NB)

    def train_step(self, pool: Pool, rows_NB: Tensor) -> Tensor:
        """One optimizer step of every member; its losses [N], not yet brought to the host."""
        batch = pool.batch(rows_NB)
        return self.captured(*batch) if self.captured else self.update(*batch)

    def update(self, *batch: Tensor | None) -> Tensor:
        """Take the step. Everything that outlasts it is written in place, so that a GPU can replay it."""
        loss_N, gradient_NP = self.model.over_members(self.gradient, self.model.flat, *batch)
        self.bad_step.copy_(torch.where((self.bad_step < 0) & ~loss_N.isfinite(), self.clock, self.bad_step))
        self.optimize(self.model.flat, gradient_NP, self.rates.index_select(0, self.clock)[0])
        self.clock.add_(1)
        return loss_N

    def rows(self) -> list[Tensor]:
        """All tensors of members that a step writes, [N, ...] each."""
        return [self.model.flat, self.bad_step, *self.optimizer.memory()]

    def memory(self) -> list[Tensor]:
        """All tensors that a step writes."""
        return [*self.rows(), self.clock]

    def close(self) -> None:
        """End the cohort's threads."""
        if self.model.crew is not None:
            self.model.crew.dismiss()

    def keep(self, positions: list[int]) -> None:
        """Go on with the members at these positions alone."""
        index = torch.tensor(positions, device=self.device)
        self.members = [self.members[i] for i in positions]
        self.model.flat = self.model.flat[index]
        self.optimizer.keep(index)
        self.rates, self.bad_step = self.rates[:, index], self.bad_step[index]
        self.feed.keep(positions)
        if self.captured:
            self.captured.forget()

    def better_fewer(self, going: int, taken: int, left: int, seconds: float) -> bool:
        """True where the `left` steps are faster with the `going` members alone, after steps `taken` in so many seconds. On a
        GPU they are captured anew, which must save twice the time of the captures so far. A step's time is taken to grow
        with its members."""
        if not 0 < going < len(self.members):
            return False
        if self.captured is None:
            return True
        step = (seconds - self.captured.seconds) / taken
        return left * step * (1 - going / len(self.members)) > 2 * self.captured.seconds

    @phase("evaluating")
    @torch.no_grad()
    def evaluate(self, flat_NP: Tensor, tests: EvaluationSet) -> list[dict[str, float]]:
        """Scores of every member on its own sequences of a split."""
        count, length = tests.pool.inputs.shape[1:3]
        at_once = max(1, TOKENS_AT_ONCE // (len(flat_NP) * length))
        predictions, probabilities, loss = [], [], []
        for start in range(0, count, at_once):
            rows = torch.arange(start, min(start + at_once, count), device=self.device).expand(len(flat_NP), -1)
            inputs, at, targets, weight = tests.pool.batch(rows)
            (logits,) = self.model.over_members(lambda *given: (self.answers(*given),), flat_NP, inputs, at)
            vectors = targets.dim() == logits.dim()
            predictions.append((logits if vectors else logits.argmax(-1)).cpu().numpy())
            if tests.wants_probabilities:
                probabilities.append(logits.softmax(-1).cpu().numpy())
            scored = weight.flatten(1).sum(1)
            loss.append(torch.stack([losses(logits, targets, weight) * scored, scored]).cpu().numpy())
        total = np.stack(loss).sum(axis=0, dtype=np.float64)
        answers = np.concatenate(predictions, axis=1)
        shares = np.concatenate(probabilities, axis=1) if probabilities else [None] * len(flat_NP)
        return [
            tests.score(member, answers[member], shares[member]) | {"loss": float(total[0, member] / total[1, member])}
            for member in range(len(flat_NP))
        ]
