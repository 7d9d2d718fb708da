"""Train one cohort: trials of equal shape, each to its own last step and evaluated after steps of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from recallmap.search.sequences.drawn_ahead import DrawnAhead
from recallmap.search.training import device_time
from recallmap.search.training.batches import Asked, EvaluationSet, evaluated
from recallmap.search.training.best_checkpoint import BestCheckpoint, evaluation_steps
from recallmap.search.training.checkpoints import checkpoint_of
from recallmap.search.training.cohort import TOKENS_AT_ONCE, Cohort
from recallmap.search.training.mixer_statistics import gauges
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.training.phase_clock import phase
from recallmap.search.training.resume import resume, save
from recallmap.search.training.time_limit import TimeIsUp

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec

SIGN = 5.0  # seconds without a report after which the next step on a CPU makes one; a GPU is behind the loop

_EVALUATED: tuple[Literal["validation"], Literal["test"]] = ("validation", "test")


def train(
    specs: Sequence[TrialSpec],
    device: torch.device,
    *,
    at_once: int | None = None,
    starts: Sequence[Mapping[str, Tensor]] | None = None,
) -> Generator[Progress, None, list[Outcome]]:
    """Train trials of equal shape together (their `shape`), `at_once` of them in a lane; None: as `Cohort` says.
    `starts` are each trial's initial weights by name; None: those of a new model.

    Yields a Progress where the cohort is resumed, wherever some are evaluated, and on a CPU after every SIGN seconds between.
    Returns an Outcome for every spec, in order. A member whose loss stops being finite fails alone. Raises TimeIsUp once the
    cohort is saved, where its checkpoints have a time limit."""
    ahead = DrawnAhead()
    for split in _EVALUATED:
        ahead.ask(list(evaluated(_asked(specs, split).values(), split).values()))
    with phase("building"):
        cohort = Cohort(specs, device, at_once, starts)
    try:
        return (yield from _train(cohort, ahead))
    finally:
        cohort.close()


def _train(cohort: Cohort, ahead: DrawnAhead) -> Generator[Progress, None, list[Outcome]]:
    started = device_time.now()
    specs = cohort.specs
    outcomes = [Outcome() for _ in specs]
    keepers = [BestCheckpoint(spec) for spec in specs]
    validation, test = (cohort.evaluation_set(split, _asked(specs, split), ahead) for split in _EVALUATED)
    stops = [evaluation_steps(spec.steps, spec.training.evaluations) for spec in specs]
    chosen = [row.clone() for row in cohort.weights(cohort.members)]  # each member's own parameters

    checkpoint = checkpoint_of(specs, chosen)
    known = resume(checkpoint, cohort, outcomes, keepers, chosen)
    begin = known or 0
    going = [m for m, (o, k) in enumerate(zip(outcomes, keepers, strict=True)) if o.error is None and not k.satisfied]
    if known is not None:
        going = [m for m in going if known < specs[m].steps]
    ended = [m for m in range(len(specs)) if m not in going]
    _report(cohort, outcomes, keepers, chosen, test, ended)
    spent = _Spent(cohort, started)
    since = [max((stop for stop in of if stop <= begin), default=0) for of in stops]  # the last evaluation of each

    def stop_in_time(step: int) -> None:
        if checkpoint is not None and checkpoint.limit.is_up_on(cohort.device):
            spent.share([outcomes[m] for m in going])
            save(checkpoint, cohort, outcomes, keepers, chosen, step)
            raise TimeIsUp

    def progress(step: int, ended: Sequence[int] = (), evaluated: Sequence[int] = (), **more: Any) -> Progress:
        return Progress(
            step=step,
            steps=cohort.steps,
            members=len(specs),
            loss=float(np.mean(loss)) if loss else math.nan,
            accuracy=tuple(k.last for k in keepers),
            ended={m: outcomes[m] for m in ended},
            points={m: keepers[m].newest for m in evaluated},
            **more,
        )

    loss: list[float] = []
    if known is not None:
        yield progress(begin, ended, resumed=True)
        ended = []
    told = time.monotonic()
    for step, _ in cohort.trained(begin) if going else ():
        due = [m for m in going if step in stops[m]]
        if not due:
            stop_in_time(step)
            if cohort.device.type == "cpu" and time.monotonic() - told >= SIGN:
                yield progress(step)
                told = time.monotonic()
            continue
        loss = cohort.mean_losses({m: step - since[m] for m in due})
        rows, bad = cohort.weights(due), cohort.bad_steps(due)
        scores = cohort.evaluate(due, rows, validation)
        published = [m for m in due if specs[m].task.protocol != "repaired"]
        on_test = dict(zip(published, cohort.evaluate(published, cohort.weights(published), test), strict=True))
        on = []  # members of these that train on
        for position, member in enumerate(due):
            outcome, keeper = outcomes[member], keepers[member]
            outcome.steps = since[member] = step
            if bad[position] >= 0 or not math.isfinite(scores[position]["loss"]):
                when = bad[position] + 1 if bad[position] >= 0 else step
                outcome.error = f"diverged: the loss was not finite at step {when} of {specs[member].steps}"
                continue
            if keeper.see(step, loss[position], scores[position], on_test.get(member, {})):
                chosen[member] = rows[position].clone()
            if not keeper.satisfied and step < specs[member].steps:
                on.append(member)
        through = [m for m in due if m not in on]
        _report(cohort, outcomes, keepers, chosen, test, through)
        spent.share([outcomes[m] for m in going])
        # A member that is through stays in its lane where a smaller one would cost more than it saves.
        ended, going = [*ended, *through], [m for m in going if m not in through]
        left = max((specs[m].steps for m in going), default=step) - step
        if cohort.better_fewer(len(going), step - begin, left, device_time.now() - started):
            cohort.keep([position for position, member in enumerate(cohort.members) if member in going])
        if checkpoint is not None and checkpoint.due:
            save(checkpoint, cohort, outcomes, keepers, chosen, step)
        yield progress(step, ended, [m for m in due if outcomes[m].error is None])
        ended, told = [], time.monotonic()
        if not going:
            break
        stop_in_time(step)
    return outcomes


def _asked(specs: Sequence[TrialSpec], split: Literal["validation", "test"]) -> dict[int, Asked]:
    """The sequences that each member is evaluated on."""
    return {member: Asked(spec.task, spec.seed, getattr(spec.data, split)) for member, spec in enumerate(specs)}


class _Spent:
    """The device time of a cohort, shared equally among the members that still train."""

    def __init__(self, cohort: Cohort, started: float) -> None:
        self.cohort, self.until = cohort, started
        self.preparing = 0.0  # seconds of compiling and graph capture that were shared out

    def share(self, outcomes: Sequence[Outcome]) -> None:
        """Share what passed since the last call among these."""
        now = device_time.now()
        captured = self.cohort.captured
        preparing = sum(one.seconds for one in captured) - self.preparing
        for outcome in outcomes:
            outcome.seconds += (now - self.until - preparing) / len(outcomes)
            outcome.compile_seconds += preparing / len(outcomes)
            outcome.compiled = captured[0].compiled if captured else outcome.compiled
        self.until, self.preparing = now, self.preparing + preparing


@phase("evaluating")
def _report(
    cohort: Cohort,
    outcomes: list[Outcome],
    keepers: list[BestCheckpoint],
    chosen: list[Tensor],
    test: EvaluationSet,
    through: Sequence[int],
) -> None:
    """Test the chosen checkpoints of these members, but for those that failed."""
    done = [member for member in through if outcomes[member].error is None]
    if not done:
        return
    rows = [chosen[member] for member in done]
    scores = cohort.evaluate(done, rows, test, standard_errors=True)
    further = _further(cohort, {member: chosen[member] for member in done})
    for position, member in enumerate(done):
        outcome, keeper = outcomes[member], keepers[member]
        own = cohort.parameters(member, rows[position])
        inputs_ST = test.inputs(member)
        further_figures = gauges(cohort.base_of(member), own, inputs_ST, TOKENS_AT_ONCE // inputs_ST.shape[1])
        outcome.scores, outcome.validation = scores[position] | further_figures, keeper.best
        outcome.tests = further[member]
        outcome.curve, outcome.selected_step = keeper.curve, keeper.best_step
        outcome.published_choice = keeper.published
        whole = cohort.base_of(member).state_dict()  # for what is no parameter, which modules from outside may have
        outcome.weights = {name: own[name].cpu() if name in own else whole[name].cpu().clone() for name in whole}


def _further(cohort: Cohort, chosen: Mapping[int, Tensor]) -> dict[int, list[dict[str, float]]]:
    """Scores of these members on their further tests, those of one length together."""
    scores: dict[int, list[dict[str, float]]] = {member: [] for member in chosen}
    for number in range(max(len(cohort.specs[member].tests) for member in chosen)):
        by_length: dict[int, dict[int, Asked]] = {}
        for member in chosen:
            spec = cohort.specs[member]
            for task in spec.tests[number : number + 1]:
                by_length.setdefault(task.shape[0], {})[member] = Asked(task, spec.seed, spec.data.test)
        for asked in by_length.values():
            rows = [chosen[member] for member in asked]
            tests = cohort.evaluation_set("test", asked)
            found = cohort.evaluate(list(asked), rows, tests, standard_errors=True)
            for member, of_member in zip(asked, found, strict=True):
                scores[member].append(of_member)
    return scores
