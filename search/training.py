"""Train one cohort: trials of equal shape, stacked into one model whose every parameter has a leading member axis.

N members, P parameters of one member, S sequences of a pool, B batch, T time, Q positions read out, V vocabulary
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arch.backbone import Backbone
from search.adamw import AdamW, learning_rate
from search.feed import EvaluationSet, Feed, Pool
from search.gauges import gauges
from search.recorded import MOST, Operations, Recorded, compiled, forget_compiled
from search.stacked import Stacked
from search.unfinished import Place, place_of

if TYPE_CHECKING:
    from search.single import TrialSpec

TOKENS_AT_ONCE = 2**17  # of all members together in one evaluation pass; bounds the memory of the logits
# Seconds that the compiler takes for a step, and that a compiled one saves: of each, and of what it computes (a spec's effort).
COMPILING, SAVED_A_STEP, SAVED_OF_EFFORT = 20.0, 5e-4, 8e-13


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A report from within a cohort. `loss` is the members' mean over the steps since the last report; `accuracy` holds the
    last validation score of each (NaN before the first); `ended` what is known of members that are through since the last
    report, by member."""

    step: int
    steps: int
    members: int
    loss: float
    accuracy: tuple[float, ...]
    ended: Mapping[int, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class Outcome:
    """What training leaves of one member."""

    error: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    tests: list[dict[str, float]] = field(default_factory=list)
    curve: dict[str, list[float]] = field(default_factory=dict)
    published_choice: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    selected_step: int = 0
    seconds: float = 0.0  # the member's share of the cohort's wall time: who is through takes no more of it
    compile_seconds: float = 0.0  # likewise, of compiling and recording; not in `seconds`
    compiled: str = "no: on a CPU"  # whether the optimizer step was compiled, and why not
    weights: dict[str, Tensor] = field(default_factory=dict)  # of the checkpoint that validation chose


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
        # Behind what may fail on a spec: it shares out threads until it is closed.
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
        self.recorded = Recorded(self) if device.type == "cuda" else None
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
        """From now on take losses, of batches of this shape, and optimizer steps by one compiled function each: "yes", or why
        losses are not."""
        if self.saved < COMPILING:
            return f"not worth it: {self.steps:,} steps"
        if self.whole is None:
            self.whole, self.optimize = compiled(self.member_losses, backend), compiled(self.optimizer.step, backend)
        # With a gradient, as in training: where none is asked for, another implementation of an op may serve.
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
        """Train on `after` so many steps: how many have been taken, and the losses [N] of the last. Where none is to be
        taken, once what the members begin with, and no losses."""
        if self.steps == 0:
            yield 0, torch.full((len(self.specs),), math.nan)
        for step, (pool, rows_NB) in enumerate(self.feed.after(after), after + 1):
            yield step, self.train_step(pool, rows_NB)

    def train_step(self, pool: Pool, rows_NB: Tensor) -> Tensor:
        """One optimizer step of every member; its losses [N], not yet brought to the host."""
        batch = pool.batch(rows_NB)
        return self.recorded(*batch) if self.recorded else self.update(*batch)

    def update(self, *batch: Tensor | None) -> Tensor:
        """The step itself. Everything that outlasts it is written in place, so that a GPU can replay it."""
        loss_N, gradient_NP = self.model.over_members(self.gradient, self.model.flat, *batch)
        self.bad_step.copy_(torch.where((self.bad_step < 0) & ~loss_N.isfinite(), self.clock, self.bad_step))
        self.optimize(self.model.flat, gradient_NP, self.rates.index_select(0, self.clock)[0])
        self.clock.add_(1)
        return loss_N

    def rows(self) -> list[Tensor]:
        """All that a step writes of each member, [N, ...]."""
        return [self.model.flat, self.bad_step, *self.optimizer.memory()]

    def memory(self) -> list[Tensor]:
        """All that a step writes."""
        return [*self.rows(), self.clock]

    def close(self) -> None:
        """Give back what the cohort holds beyond memory."""
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
        if self.recorded:
            self.recorded.forget()

    def better_fewer(self, going: int, taken: int, left: int, seconds: float) -> bool:
        """Whether to take the `left` steps with `going` of the members alone, after steps `taken` in so many seconds. On a GPU
        they have to be recorded anew: where twice as long as recording took so far is less than what they save, if a step
        takes as long as it has members."""
        if not 0 < going < len(self.members):
            return False
        if self.recorded is None:
            return True
        step = (seconds - self.recorded.seconds) / taken
        return left * step * (1 - going / len(self.members)) > 2 * self.recorded.seconds

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


def train(
    specs: Sequence[TrialSpec],
    device: torch.device,
    *,
    at_once: int | None = None,
    starts: Sequence[Mapping[str, Tensor]] | None = None,
) -> Generator[Progress, None, list[Outcome]]:
    """Train trials of equal shape together (see search.cohort.shape), `at_once` of them a call of the stacked model.
    `starts` are the weights that each begins with, by name; None: those of a new model.

    Yields a Progress at every evaluation and returns an Outcome for every spec, in order. A member whose loss stops being
    finite fails alone."""
    cohort = Cohort(specs, device, at_once, starts)
    try:
        return (yield from _train(cohort))
    finally:
        cohort.close()


def _train(cohort: Cohort) -> Generator[Progress, None, list[Outcome]]:
    started = time.perf_counter()
    specs, device = cohort.specs, cohort.device
    outcomes = [Outcome() for _ in specs]
    keepers = [_Keeper(spec) for spec in specs]
    validation = EvaluationSet([(s.task, s.seed, s.data.validation) for s in specs], "validation", device)
    published = [s.task.protocol != "repaired" for s in specs]
    test = EvaluationSet([(s.task, s.seed, s.data.test) for s in specs], "test", device)
    stops = evaluation_steps(cohort.steps, specs[0].training.evaluations)
    chosen_NP = cohort.model.flat.clone()

    place = place_of(specs, cohort.model.flat)
    known = _take_up(place, cohort, outcomes, keepers, chosen_NP)
    begin = known or 0
    going = [m for m, (o, k) in enumerate(zip(outcomes, keepers, strict=True)) if o.error is None and not k.satisfied]
    if known == cohort.steps:
        going = []
    ended = [m for m in range(len(specs)) if m not in going]
    _report(cohort, outcomes, keepers, chosen_NP, test, ended)
    spent = _Spent(cohort, started)
    since, total_N = begin, torch.zeros(())  # the losses of all steps since an evaluation
    for step, loss_N in cohort.trained(begin) if going else ():
        total_N = total_N + loss_N
        if step not in stops:
            continue
        loss, bad = (total_N / max(step - since, 1)).cpu().numpy(), cohort.bad_step.cpu().numpy()
        since, total_N = step, torch.zeros(())
        flat_NP = cohort.model.flat
        scores = cohort.evaluate(flat_NP, validation.of(cohort.members))
        on_test = cohort.evaluate(flat_NP, test.of(cohort.members)) if any(published) else [{}] * len(cohort.members)
        on = []  # members that train on
        for position, member in enumerate(cohort.members):
            if member not in going:
                continue  # still carried along: a smaller cohort would cost more than it saves
            outcome, keeper = outcomes[member], keepers[member]
            outcome.steps = step
            if bad[position] >= 0 or not math.isfinite(scores[position]["loss"]):
                when = bad[position] + 1 if bad[position] >= 0 else step
                outcome.error = f"diverged: the loss was not finite at step {when} of {cohort.steps}"
                continue
            if keeper.see(step, float(loss[position]), scores[position], on_test[position]):
                chosen_NP[member] = flat_NP[position]
            if not keeper.satisfied and step < cohort.steps:
                on.append(member)
        through = [m for m in going if m not in on]
        _report(cohort, outcomes, keepers, chosen_NP, test, through)
        spent.share([outcomes[m] for m in going])
        ended, going = [*ended, *through], on
        if cohort.better_fewer(len(going), step - begin, cohort.steps - step, time.perf_counter() - started):
            cohort.keep([position for position, member in enumerate(cohort.members) if member in going])
        if place is not None and place.due:
            _lay_down(place, cohort, outcomes, keepers, chosen_NP, step)
        yield Progress(
            step=step,
            steps=cohort.steps,
            members=len(specs),
            loss=float(np.mean(loss)),
            accuracy=tuple(k.last for k in keepers),
            ended={m: outcomes[m] for m in ended},
        )
        ended = []
        if not going:
            break
    return outcomes


class _Spent:
    """Whose the time is that a cohort takes: of those that train, to equal parts."""

    def __init__(self, cohort: Cohort, started: float) -> None:
        self.cohort, self.until = cohort, started
        self.preparing = 0.0  # seconds of compiling and recording that were shared out

    def share(self, outcomes: Sequence[Outcome]) -> None:
        """Share what passed since the last call among these."""
        now = time.perf_counter()
        recorded = self.cohort.recorded
        preparing = recorded.seconds - self.preparing if recorded else 0.0
        for outcome in outcomes:
            outcome.seconds += (now - self.until - preparing) / len(outcomes)
            outcome.compile_seconds += preparing / len(outcomes)
            outcome.compiled = recorded.compiled if recorded else outcome.compiled
        self.until, self.preparing = now, self.preparing + preparing


TOLD = ("error", "steps", "seconds", "compile_seconds", "compiled")  # of an outcome, before its test


def _lay_down(
    place: Place, cohort: Cohort, outcomes: list[Outcome], keepers: list[_Keeper], chosen_NP: Tensor, step: int
) -> None:
    rows = {f"row {number}": tensor for number, tensor in enumerate(cohort.rows())}
    said = {
        "step": step,
        "members": cohort.members,
        "columns": cohort.feed.columns,
        "outcomes": [{name: getattr(outcome, name) for name in TOLD} for outcome in outcomes],
        "keepers": [keeper.known() for keeper in keepers],
    }
    place.lay_down(rows | {"chosen": chosen_NP}, said)


def _take_up(
    place: Place | None, cohort: Cohort, outcomes: list[Outcome], keepers: list[_Keeper], chosen_NP: Tensor
) -> int | None:
    """Go on from where these trials were laid down: the steps taken so far; None where they were not."""
    found = None if place is None else place.take_up()
    if found is None:
        return None
    tensors, said, which = found  # which of the trials laid down each of these is: there may have been more
    for outcome, keeper, place_in in zip(outcomes, keepers, which, strict=True):
        vars(outcome).update(said["outcomes"][place_in])
        vars(keeper).update(said["keepers"][place_in])
    kept = [member for member, place_in in enumerate(which) if place_in in said["members"]]
    if kept and kept != cohort.members:
        cohort.keep(kept)
    rows = torch.tensor([said["members"].index(which[member]) for member in kept], dtype=torch.int64)
    for number, tensor in enumerate(cohort.rows() if kept else ()):
        tensor.copy_(tensors[f"row {number}"][rows])
    cohort.clock.fill_(said["step"])
    cohort.feed.columns = said.get("columns", cohort.feed.columns)  # files of earlier versions do not tell
    chosen_NP.copy_(tensors["chosen"][torch.tensor(which)])
    return int(said["step"])


def _report(
    cohort: Cohort,
    outcomes: list[Outcome],
    keepers: list[_Keeper],
    chosen_NP: Tensor,
    test: EvaluationSet,
    through: Sequence[int],
) -> None:
    """Test the chosen checkpoints of those of these members that did not fail."""
    done = [member for member in through if outcomes[member].error is None]
    if not done:
        return
    flat_NP = chosen_NP[torch.tensor(done, device=cohort.device)]
    tested = test.of(done)
    scores = cohort.evaluate(flat_NP, tested)
    further = [
        cohort.evaluate(
            flat_NP,
            EvaluationSet(
                [(cohort.specs[m].tests[i], cohort.specs[m].seed, cohort.specs[m].data.test) for m in done],
                "test",
                cohort.device,
            ),
        )
        for i in range(len(cohort.specs[0].tests))
    ]
    parameters = cohort.model.parameters(flat_NP)
    for position, member in enumerate(done):
        outcome, keeper = outcomes[member], keepers[member]
        own = {name: value[position] for name, value in parameters.items()}
        inputs_ST = tested.pool.inputs[tested.owner[position]]
        further_figures = gauges(cohort.model.base, own, inputs_ST, TOKENS_AT_ONCE // inputs_ST.shape[1])
        outcome.scores, outcome.validation = scores[position] | further_figures, keeper.best
        outcome.tests = [one[position] for one in further]
        outcome.curve, outcome.selected_step = keeper.curve, keeper.best_step
        outcome.published_choice = keeper.published
        outcome.weights = {name: value.cpu() for name, value in own.items()}


class _Keeper:
    """What validation says of one member so far."""

    def __init__(self, spec: TrialSpec) -> None:
        self.metric = spec.task.metric
        self.protocol = spec.task.protocol
        self.stop_at = spec.training.stop_at
        self.best: dict[str, float] = {}
        self.best_step = 0
        self.last = math.nan
        self.satisfied = False
        self.published: dict[str, float] = {}
        self.curve: dict[str, list[float]] = {
            "step": [],
            "train_loss": [],
            "validation_loss": [],
            "validation_accuracy": [],
        }

    def known(self) -> dict[str, Any]:
        """All that evaluations have told."""
        names = ("best", "best_step", "last", "satisfied", "published", "curve")
        return {name: getattr(self, name) for name in names}

    def see(self, step: int, loss: float, scores: dict[str, float], on_test: dict[str, float]) -> bool:
        """Take an evaluation in; True where none was better so far (ties: the lower validation loss, then the later)."""
        self.last = scores[self.metric]
        for name, value in zip(self.curve, (step, loss, scores["loss"], self.last), strict=True):
            self.curve[name].append(value)
        if self.protocol == "mad-lab" and (not self.published or on_test["loss"] < self.published["loss"]):
            self.published = on_test  # the checkpoint of lowest test perplexity, as mad-lab reports
        elif self.protocol == "zoology":
            self.published = on_test  # the last evaluation, as Zoology's summaries do
        self.satisfied = self.stop_at is not None and self.last > self.stop_at
        rank = (scores[self.metric], -scores["loss"])
        if self.best and rank < (self.best[self.metric], -self.best["loss"]):
            return False
        self.best, self.best_step = scores, step
        return True


def evaluation_steps(steps: int, evaluations: int) -> set[int]:
    """Numbers of steps after which validation is looked at: evenly spread, the last step always among them."""
    return {math.ceil(steps * (i + 1) / evaluations) for i in range(evaluations)}


def begin_afresh(device: torch.device) -> None:
    """Give back the memory of earlier cohorts, whose parts hold each other; from now on `peak_bytes` tells of what comes."""
    if device.type == "cuda":
        forget_compiled()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most device memory that was held since `begin_afresh`, where the device tells."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
