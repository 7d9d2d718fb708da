"""Train one cohort: trials of equal shape, stacked into one model whose every parameter has a leading member axis.

N members, P parameters of one member, S sequences of a pool, B batch, T time, Q positions read out, V vocabulary
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from recallmap.search.sequences.drawn_ahead import DrawnAhead
from recallmap.search.training.batches import EvaluationSet, evaluated
from recallmap.search.training.best_checkpoint import BestCheckpoint, evaluation_steps
from recallmap.search.training.checkpoints import checkpoint_of
from recallmap.search.training.cohort import TOKENS_AT_ONCE, Cohort
from recallmap.search.training.mixer_statistics import gauges
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.training.phase_clock import phase
from recallmap.search.training.resume import resume, save
from recallmap.search.training.time_limit import TimeIsUp
from recallmap.synth.tasks import Task

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec

_EVALUATED: tuple[Literal["validation"], Literal["test"]] = ("validation", "test")


def train(
    specs: Sequence[TrialSpec],
    device: torch.device,
    *,
    at_once: int | None = None,
    starts: Sequence[Mapping[str, Tensor]] | None = None,
) -> Generator[Progress, None, list[Outcome]]:
    """Train trials of equal shape together (their `shape`), `at_once` of them in a call of the stacked model.
    `starts` are each trial's initial weights by name; None: those of a new model.

    Yields a Progress at every evaluation and returns an Outcome for every spec, in order. A member whose loss stops being
    finite fails alone. Raises TimeIsUp once the cohort is saved, where its checkpoints have a time limit."""
    ahead = DrawnAhead()
    for split in _EVALUATED:
        ahead.ask(evaluated(_asked(specs, split), split))
    with phase("building"):
        cohort = Cohort(specs, device, at_once, starts)
    try:
        return (yield from _train(cohort, ahead))
    finally:
        cohort.close()


def _asked(specs: Sequence[TrialSpec], split: Literal["validation", "test"]) -> list[tuple[Task, int, int]]:
    """The sequences that every trial is evaluated on: task, seed and count."""
    return [(s.task, s.seed, s.data.validation if split == "validation" else s.data.test) for s in specs]


def _train(cohort: Cohort, ahead: DrawnAhead) -> Generator[Progress, None, list[Outcome]]:
    started = time.perf_counter()
    specs, device = cohort.specs, cohort.device
    outcomes = [Outcome() for _ in specs]
    keepers = [BestCheckpoint(spec) for spec in specs]
    validation, test = (EvaluationSet(_asked(specs, split), split, device, ahead) for split in _EVALUATED)
    published = [s.task.protocol != "repaired" for s in specs]
    stops = evaluation_steps(cohort.steps, specs[0].training.evaluations)
    chosen_NP = cohort.model.flat.clone()

    checkpoint = checkpoint_of(specs, cohort.model.flat)
    known = resume(checkpoint, cohort, outcomes, keepers, chosen_NP)
    begin, since, total_N = known or (0, 0, torch.zeros(()))  # losses summed since the last evaluation
    going = [m for m, (o, k) in enumerate(zip(outcomes, keepers, strict=True)) if o.error is None and not k.satisfied]
    if known and begin == cohort.steps:
        going = []
    ended = [m for m in range(len(specs)) if m not in going]
    _report(cohort, outcomes, keepers, chosen_NP, test, ended)
    spent = _Spent(cohort, started)

    def stop_in_time(step: int) -> None:
        if checkpoint is not None and checkpoint.limit.is_up_on(device):
            spent.share([outcomes[m] for m in going])
            save(checkpoint, cohort, outcomes, keepers, chosen_NP, step, since, total_N)
            raise TimeIsUp

    for step, loss_N in cohort.trained(begin) if going else ():
        total_N = total_N + loss_N
        if step not in stops:
            stop_in_time(step)
            continue
        loss, bad = (total_N / max(step - since, 1)).cpu().numpy(), cohort.bad_step.cpu().numpy()
        since, total_N = step, torch.zeros(())
        flat_NP = cohort.model.flat
        scores = cohort.evaluate(flat_NP, validation.of(cohort.members))
        on_test = cohort.evaluate(flat_NP, test.of(cohort.members)) if any(published) else [{}] * len(cohort.members)
        on = []  # members that train on
        for position, member in enumerate(cohort.members):
            if member not in going:
                continue  # it stays in the cohort: a smaller one would cost more than it saves
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
        if checkpoint is not None and checkpoint.due:
            save(checkpoint, cohort, outcomes, keepers, chosen_NP, step, since, total_N)
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
        stop_in_time(step)
    return outcomes


class _Spent:
    """The wall time of a cohort, shared equally among the members that still train."""

    def __init__(self, cohort: Cohort, started: float) -> None:
        self.cohort, self.until = cohort, started
        self.preparing = 0.0  # seconds of compiling and graph capture that were shared out

    def share(self, outcomes: Sequence[Outcome]) -> None:
        """Share what passed since the last call among these."""
        now = time.perf_counter()
        captured = self.cohort.captured
        preparing = captured.seconds - self.preparing if captured else 0.0
        for outcome in outcomes:
            outcome.seconds += (now - self.until - preparing) / len(outcomes)
            outcome.compile_seconds += preparing / len(outcomes)
            outcome.compiled = captured.compiled if captured else outcome.compiled
        self.until, self.preparing = now, self.preparing + preparing


@phase("evaluating")
def _report(
    cohort: Cohort,
    outcomes: list[Outcome],
    keepers: list[BestCheckpoint],
    chosen_NP: Tensor,
    test: EvaluationSet,
    through: Sequence[int],
) -> None:
    """Test the chosen checkpoints of these members, but for those that failed."""
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
