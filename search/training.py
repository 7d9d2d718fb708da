"""Train one cohort: trials of equal shape, stacked into one model whose every parameter has a leading member axis.

N members, P parameters of one member, S sequences of a pool, B batch, T time, Q positions read out, V vocabulary
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from arch.backbone import Backbone
from search.adamw import AdamW, learning_rate
from search.feed import EvaluationSet, Feed, Pool
from search.gauges import gauges
from search.recorded import MOST, Operations, Recorded, compiled
from search.stacked import Stacked
from search.unfinished import Place, place_of

if TYPE_CHECKING:
    from search.trial import TrialSpec

TOKENS_AT_ONCE = 2**17  # of all members together in one evaluation pass; bounds the memory of the logits


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A report from within a cohort. `accuracy` holds the last validation score of each member (NaN before the first);
    `ended` what is known of members that are through before the others, by member."""

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
    seconds: float = 0.0  # the member's share of the cohort's wall time
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
        self.model = Stacked(models, device, at_once)
        self.optimizer = AdamW(specs, self.model.flat)
        self.feed = Feed(specs, device)
        self.steps = self.feed.steps
        rates = np.stack([learning_rate(s.training.schedule, s.training.lr, self.steps) for s in specs], axis=1)
        self.rates = torch.tensor(rates, dtype=torch.float32, device=device)[..., None]
        self.bad_step = torch.full((len(specs),), -1, device=device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)  # optimizer steps taken
        self.losses: Callable[..., Tensor] = self.member_losses
        self.whole: Callable[..., Tensor] | None = None  # the same compiled
        self.optimize: Callable[..., None] = self.optimizer.step
        self.recorded = Recorded(self) if device.type == "cuda" else None
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
        if self.whole is None:
            self.whole, self.optimize = compiled(self.member_losses, backend), compiled(self.optimizer.step, backend)
        with torch.no_grad(), Operations() as operations:
            self.member_losses(self.model.base, self.model.flat[:1], *(None if t is None else t[:1] for t in batch))
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

    def memory(self) -> list[Tensor]:
        """All that a step writes."""
        return [self.model.flat, self.bad_step, self.clock, *self.optimizer.memory()]

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
    for step, (pool, rows_NB) in enumerate(cohort.feed.after(known.step) if not known.through else (), known.step):
        loss_N = cohort.train_step(pool, rows_NB)
        if step + 1 not in stops:
            continue
        loss, bad = loss_N.cpu().numpy(), cohort.bad_step.cpu().numpy()
        flat_NP = cohort.model.flat
        scores = cohort.evaluate(flat_NP, validation.of(cohort.members))
        on_test = cohort.evaluate(flat_NP, test.of(cohort.members)) if any(published) else [{}] * len(cohort.members)
        going = []  # positions of members that train on
        for position, member in enumerate(cohort.members):
            outcome, keeper = outcomes[member], keepers[member]
            if outcome.error is not None or keeper.satisfied:
                continue  # still carried along: a smaller cohort would cost more than it saves
            outcome.steps = step + 1
            if bad[position] >= 0 or not math.isfinite(scores[position]["loss"]):
                when = bad[position] + 1 if bad[position] >= 0 else step + 1
                outcome.error = f"diverged: the loss was not finite at step {when} of {cohort.steps}"
                continue
            if keeper.see(step + 1, float(loss[position]), scores[position], on_test[position]):
                chosen_NP[member] = flat_NP[position]
            if not keeper.satisfied:
                going.append(position)
        taken, left = step + 1 - known.step, cohort.steps - step - 1
        if cohort.better_fewer(len(going), taken, left, time.perf_counter() - started):
            cohort.keep(going)
        if place is not None and place.due:
            seconds = known.seconds + time.perf_counter() - started
            so_far = _SoFar(step=step + 1, through=not going, seconds=seconds)
            _lay_down(place, cohort, outcomes, keepers, chosen_NP, so_far)
        accuracy = tuple(k.last for k in keepers)
        yield Progress(
            step=step + 1, steps=cohort.steps, members=len(specs), loss=float(np.mean(loss)), accuracy=accuracy
        )
        if not going:
            break

    _report(cohort, outcomes, keepers, chosen_NP, test)
    preparing = cohort.recorded.seconds if cohort.recorded else 0.0
    for outcome in outcomes:
        outcome.seconds = (known.seconds + time.perf_counter() - started - preparing) / len(specs)
        outcome.compile_seconds = preparing / len(specs)
        outcome.compiled = cohort.recorded.compiled if cohort.recorded else outcome.compiled
    return outcomes


@dataclass(frozen=True, kw_only=True)
class _SoFar:
    """How far a cohort is: optimizer steps, whether it is through, seconds."""

    step: int = 0
    through: bool = False
    seconds: float = 0.0


def _lay_down(
    place: Place, cohort: Cohort, outcomes: list[Outcome], keepers: list[_Keeper], chosen_NP: Tensor, so_far: _SoFar
) -> None:
    tensors = {f"memory {number}": tensor for number, tensor in enumerate(cohort.memory())} | {"chosen": chosen_NP}
    said = asdict(so_far) | {
        "members": cohort.members,
        "outcomes": [{"error": outcome.error, "steps": outcome.steps} for outcome in outcomes],
        "keepers": [keeper.known() for keeper in keepers],
    }
    place.lay_down(tensors, said)


def _take_up(
    place: Place | None, cohort: Cohort, outcomes: list[Outcome], keepers: list[_Keeper], chosen_NP: Tensor
) -> _SoFar:
    """Go on from where these trials were laid down, if they were."""
    found = None if place is None else place.take_up()
    if found is None:
        return _SoFar()
    tensors, said = found
    if said["members"] != cohort.members:
        cohort.keep(said["members"])
    for number, tensor in enumerate(cohort.memory()):
        tensor.copy_(tensors[f"memory {number}"])
    chosen_NP.copy_(tensors["chosen"])
    for outcome, told in zip(outcomes, said["outcomes"], strict=True):
        outcome.error, outcome.steps = told["error"], told["steps"]
    for keeper, told in zip(keepers, said["keepers"], strict=True):
        vars(keeper).update(told)
    return _SoFar(step=said["step"], through=said["through"], seconds=said["seconds"])


def _report(
    cohort: Cohort, outcomes: list[Outcome], keepers: list[_Keeper], chosen_NP: Tensor, test: EvaluationSet
) -> None:
    """Test the chosen checkpoints of the members that did not fail."""
    done = [member for member, outcome in enumerate(outcomes) if outcome.error is None]
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


def peak_bytes(device: torch.device) -> int | None:
    """The most device memory that was held since the process started, where the device tells."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
