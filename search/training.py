"""Train one cohort: trials of equal shape, stacked into one model whose every parameter has a leading member axis.

N members, P parameters of one member, S sequences of a pool, B batch, T time, Q positions read out, V vocabulary
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, vmap

from arch.backbone import Backbone
from search.feed import EvaluationSet, Feed, Pool

if TYPE_CHECKING:
    from search.trial import Schedule, TrialSpec

TOKENS_AT_ONCE = 2**17  # of all members together in one evaluation pass; bounds the memory of the logits


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A report from within a cohort. `accuracy` holds the last validation score of each member (NaN before the first)."""

    step: int
    steps: int
    members: int
    loss: float
    accuracy: tuple[float, ...]


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
    seconds: float = 0.0
    weights: dict[str, Tensor] = field(default_factory=dict)  # of the checkpoint that validation chose


class Stacked:
    """N models of one architecture as one function of one matrix: row n of `flat` [N, P] holds member n's parameters.

    On a GPU all members are one call under vmap. On a CPU a small model already fills a core, and stacked tensors leave its
    cache: there the members are shared out among threads, `at_once` of them a call, each thread on one core.
    """

    def __init__(self, models: Sequence[Backbone], device: torch.device, at_once: int | None = None) -> None:
        self.base = models[0].to(device)
        self.names = [name for name, _ in self.base.named_parameters()]
        self.shapes = [p.shape for p in self.base.parameters()]
        self.sizes = [p.numel() for p in self.base.parameters()]
        self.flat = torch.stack([torch.cat([p.detach().reshape(-1) for p in m.parameters()]) for m in models]).to(device)
        self.at_once = at_once or (1 if device.type == "cpu" else len(models))
        self.crew = Crew(self.base, torch.get_num_threads()) if device.type == "cpu" and len(models) > 1 else None

    def parameters(self, flat_NP: Tensor) -> dict[str, Tensor]:
        """Views of `flat_NP` by parameter name, [N, ...] each."""
        pieces = flat_NP.split(self.sizes, dim=1)
        return {
            name: piece.view(-1, *shape) for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def logits(self, base: Backbone, flat_NP: Tensor, inputs_NBT: Tensor, at_NBQ: Tensor | None) -> Tensor:
        """[N, B, Q, V]: every member's answers to its own inputs. `base` lends its form, not its parameters."""
        parameters = self.parameters(flat_NP)
        if len(flat_NP) == 1:  # the same numbers without the cost of vmap
            alone = {name: value[0] for name, value in parameters.items()}
            at_BQ = None if at_NBQ is None else at_NBQ[0]
            return functional_call(base, alone, (inputs_NBT[0],), {"at": at_BQ})[None]

        def member(own: dict[str, Tensor], inputs_BT: Tensor, at_BQ: Tensor | None) -> Tensor:
            return functional_call(base, own, (inputs_BT,), {"at": at_BQ})

        return vmap(member, in_dims=(0, 0, None if at_NBQ is None else 0))(parameters, inputs_NBT, at_NBQ)

    def over_members(self, work: Callable[..., tuple[Tensor, ...]], *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """`work(base, *tensors)` for `at_once` members at a time, its results put together again along N."""
        count = next(len(t) for t in tensors if t is not None)
        parts = [
            [None if t is None else t[start : start + self.at_once] for t in tensors]
            for start in range(0, count, self.at_once)
        ]
        if len(parts) == 1 or self.crew is None:
            results = [work(self.base, *part) for part in parts]
        else:
            results = self.crew.map(work, parts)
        return results[0] if len(results) == 1 else tuple(torch.cat(column) for column in zip(*results, strict=True))


class Crew:
    """Threads of one core each, each with a model of its own to lend (functional_call swaps parameters in place)."""

    def __init__(self, base: Backbone, threads: int) -> None:
        self.spare = SimpleQueue[Backbone]()
        for _ in range(threads):
            self.spare.put(copy.deepcopy(base))
        self.cores = threads
        self.threads = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))

    def dismiss(self) -> None:
        """End the threads and give the caller's its cores back (MKL counts them for the whole process)."""
        self.threads.shutdown(cancel_futures=True)
        torch.set_num_threads(self.cores)

    def map(self, work: Callable[..., tuple[Tensor, ...]], parts: Sequence[Sequence[Tensor | None]]) -> list[Any]:
        """`work(base, *part)` for every part, in order."""
        grad = torch.is_grad_enabled()

        def one(part: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
            base = self.spare.get()
            try:
                with torch.set_grad_enabled(grad):  # a thread does not inherit the mode
                    return work(base, *part)
            finally:
                self.spare.put(base)

        return list(self.threads.map(one, parts))


class AdamW:
    """Decoupled weight decay Adam on [N, P], with a learning rate and a decay per member (Loshchilov & Hutter 2019)."""

    def __init__(self, specs: Sequence[TrialSpec], flat_NP: Tensor) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32, device=flat_NP.device)[:, None]

        self.decay = column([s.training.weight_decay for s in specs])
        self.beta1 = column([s.training.betas[0] for s in specs])
        self.beta2 = column([s.training.betas[1] for s in specs])
        self.eps = column([s.training.eps for s in specs])
        self.clip = column([math.inf if s.training.clip is None else s.training.clip for s in specs])
        self.first, self.second = torch.zeros_like(flat_NP), torch.zeros_like(flat_NP)
        self.power1, self.power2 = torch.ones_like(self.beta1), torch.ones_like(self.beta2)

    @torch.no_grad()
    def step(self, flat_NP: Tensor, gradient_NP: Tensor, rate_N1: Tensor) -> None:
        norm_N1 = torch.linalg.vector_norm(gradient_NP, dim=1, keepdim=True)
        gradient_NP = gradient_NP * (self.clip / (norm_N1 + 1e-6)).clamp(max=1.0)
        self.power1.mul_(self.beta1)
        self.power2.mul_(self.beta2)
        self.first.lerp_(gradient_NP, 1 - self.beta1)
        self.second.mul_(self.beta2).addcmul_(gradient_NP, gradient_NP * (1 - self.beta2))
        spread_NP = (self.second / (1 - self.power2)).sqrt_().add_(self.eps)
        flat_NP.mul_(1 - rate_N1 * self.decay).sub_(self.first / spread_NP * (rate_N1 / (1 - self.power1)))

    def keep(self, index: Tensor) -> None:
        """Go on with these members alone."""
        for name, value in vars(self).items():
            setattr(self, name, value[index])


def learning_rate(schedule: Schedule, peak: float, steps: int) -> NDArray[np.float64]:
    """The rate at each of `steps` optimizer steps."""
    warm = round(schedule.warmup * steps) if isinstance(schedule.warmup, float) else schedule.warmup
    rising = schedule.start + (peak - schedule.start) * np.arange(1, warm + 1) / max(warm, 1)
    along = np.arange(1, steps - warm + 1) / max(steps - warm, 1)
    falling = {
        "constant": np.full(len(along), peak),
        "cosine": schedule.floor + (peak - schedule.floor) * 0.5 * (1 + np.cos(np.pi * along)),
        "linear": schedule.floor + (peak - schedule.floor) * (1 - along),
    }[schedule.kind]
    return np.concatenate([rising, falling])[:steps]


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

    def __init__(self, specs: Sequence[TrialSpec], device: torch.device, at_once: int | None = None) -> None:
        first = specs[0]
        length, vocab = first.task.shape
        self.specs = list(specs)
        self.device = device
        self.members = list(range(len(specs)))  # those still in training, as indices into specs
        self.model = Stacked(
            [
                s.arch.build(
                    vocab=vocab, seed=s.seed, signal=s.task.signal, readout=s.task.readout, length=length
                ).use(s.training.implementation)
                for s in specs
            ],
            device,
            at_once,
        )
        self.optimizer = AdamW(specs, self.model.flat)
        self.feed = Feed(specs, device)
        self.steps = self.feed.steps
        rates = np.stack([learning_rate(s.training.schedule, s.training.lr, self.steps) for s in specs], axis=1)
        self.rates = torch.tensor(rates, dtype=torch.float32, device=device)[..., None]
        self.bad_step = torch.full((len(specs),), -1, device=device)
        self.low_precision = first.training.dtype == "bfloat16"

    def answers(self, base: Backbone, flat_NP: Tensor, inputs_NBT: Tensor, at_NBQ: Tensor | None) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.low_precision):
            return self.model.logits(base, flat_NP, inputs_NBT, at_NBQ).float()

    def gradient(self, base: Backbone, flat_NP: Tensor, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Losses [N] and their gradients [N, P]."""
        inputs, at, targets, weight = batch
        flat_NP = flat_NP.detach().requires_grad_()
        loss_N = losses(self.answers(base, flat_NP, inputs, at), targets, weight)
        (gradient_NP,) = torch.autograd.grad(loss_N.sum(), flat_NP)
        return loss_N.detach(), gradient_NP

    def train_step(self, step: int, pool: Pool, rows_NB: Tensor) -> Tensor:
        """One optimizer step of every member; its losses [N], not yet brought to the host."""
        loss_N, gradient_NP = self.model.over_members(self.gradient, self.model.flat, *pool.batch(rows_NB))
        self.bad_step = torch.where((self.bad_step < 0) & ~loss_N.isfinite(), step, self.bad_step)
        self.optimizer.step(self.model.flat, gradient_NP, self.rates[step])
        return loss_N

    def keep(self, positions: list[int]) -> None:
        """Go on with the members at these positions alone."""
        index = torch.tensor(positions, device=self.device)
        self.members = [self.members[i] for i in positions]
        self.model.flat = self.model.flat[index]
        self.optimizer.keep(index)
        self.rates, self.bad_step = self.rates[:, index], self.bad_step[index]
        self.feed.keep(positions)

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
        total = np.sum(loss, axis=0, dtype=np.float64)
        answers = np.concatenate(predictions, axis=1)
        shares = np.concatenate(probabilities, axis=1) if probabilities else [None] * len(flat_NP)
        return [
            tests.score(member, answers[member], shares[member]) | {"loss": float(total[0, member] / total[1, member])}
            for member in range(len(flat_NP))
        ]


def train(
    specs: Sequence[TrialSpec], device: torch.device, *, at_once: int | None = None
) -> Generator[Progress, None, list[Outcome]]:
    """Train trials of equal shape together (see search.cohort.shape), `at_once` of them a call of the stacked model. Yields a Progress at every evaluation and returns
    an Outcome for every spec, in order. A member whose loss stops being finite fails alone."""
    cohort = Cohort(specs, device, at_once)
    try:
        return (yield from _train(cohort))
    finally:
        if cohort.model.crew is not None:
            cohort.model.crew.dismiss()


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

    loss_N: Tensor | None = None
    for step, (pool, rows_NB) in enumerate(cohort.feed):
        loss_N = cohort.train_step(step, pool, rows_NB)
        if step + 1 not in stops:
            continue
        loss, bad = loss_N.cpu().numpy(), cohort.bad_step.cpu().numpy()
        flat_NP = cohort.model.flat
        scores = cohort.evaluate(flat_NP, validation.of(cohort.members))
        on_test = cohort.evaluate(flat_NP, test.of(cohort.members)) if any(published) else [{}] * len(cohort.members)
        going = []
        for position, member in enumerate(cohort.members):
            outcome, keeper = outcomes[member], keepers[member]
            outcome.steps = step + 1
            outcome.seconds = (time.perf_counter() - started) / len(specs)
            if bad[position] >= 0 or not math.isfinite(scores[position]["loss"]):
                when = bad[position] + 1 if bad[position] >= 0 else step + 1
                outcome.error = f"diverged: the loss was not finite at step {when} of {cohort.steps}"
                continue
            if keeper.see(step + 1, float(loss[position]), scores[position], on_test[position]):
                chosen_NP[member] = flat_NP[position]
            if not keeper.satisfied:
                going.append(position)
        accuracy = tuple(k.last for k in keepers)
        yield Progress(step=step + 1, steps=cohort.steps, members=len(specs), loss=float(np.mean(loss)), accuracy=accuracy)
        if not going:
            break
        if len(going) < len(cohort.members):
            cohort.keep(going)

    _report(cohort, outcomes, keepers, chosen_NP, test)
    for outcome in outcomes:
        outcome.seconds = max(outcome.seconds, (time.perf_counter() - started) / len(specs))
    return outcomes


def _report(
    cohort: Cohort, outcomes: list[Outcome], keepers: list[_Keeper], chosen_NP: Tensor, test: EvaluationSet
) -> None:
    """Test the chosen checkpoints of the members that did not fail."""
    done = [member for member, outcome in enumerate(outcomes) if outcome.error is None]
    if not done:
        return
    flat_NP = chosen_NP[torch.tensor(done, device=cohort.device)]
    scores = cohort.evaluate(flat_NP, test.of(done))
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
        outcome.scores, outcome.validation = scores[position], keeper.best
        outcome.tests = [one[position] for one in further]
        outcome.curve, outcome.selected_step = keeper.curve, keeper.best_step
        outcome.published_choice = keeper.published
        outcome.weights = {name: value[position].cpu() for name, value in parameters.items()}


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

    def see(self, step: int, loss: float, scores: dict[str, float], on_test: dict[str, float]) -> bool:
        """Take an evaluation in; True where it is the best so far (ties: the lower validation loss)."""
        self.last = scores[self.metric]
        for name, value in zip(self.curve, (step, loss, scores["loss"], self.last), strict=True):
            self.curve[name].append(value)
        if self.protocol == "mad-lab" and (not self.published or on_test["loss"] < self.published["loss"]):
            self.published = on_test  # the checkpoint of lowest test perplexity, as mad-lab reports
        elif self.protocol == "zoology":
            self.published = on_test  # the last evaluation, as Zoology's summaries do
        self.satisfied = self.stop_at is not None and self.last > self.stop_at
        rank = (scores[self.metric], -scores["loss"])
        if self.best and rank <= (self.best[self.metric], -self.best["loss"]):
            return False
        self.best, self.best_step = scores, step
        return True


def evaluation_steps(steps: int, evaluations: int) -> set[int]:
    """Numbers of steps after which validation is looked at: evenly spread, the last step always among them."""
    return {math.ceil(steps * (i + 1) / evaluations) for i in range(min(evaluations, steps))}


def peak_bytes(device: torch.device) -> int | None:
    """The most device memory that was held since the process started, where the device tells."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
