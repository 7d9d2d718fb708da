"""Training in phases: each phase once for all trials that are the same up to it."""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from recallmap.arch.expand import expand_weights
from recallmap.search.training import loop
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.trials.phased import PhasedTrial


def train(specs: Sequence[PhasedTrial], device: torch.device) -> Generator[Progress, None, list[Outcome]]:
    """Train trials that begin with equal shapes; returns an Outcome for every spec, in order. Each phase is trained once
    for all trials that are the same up to it, together with those of its shape. A failed member leaves the others."""
    whole = sum({spec.until(n): spec.parts[n].steps for spec in specs for n in range(len(spec.phases))}.values())
    outcomes: list[Outcome] = [Outcome() for _ in specs]
    before = 0
    for number in range(len(specs[0].phases)):
        alike: dict[Hashable, list[int]] = {}  # trials that are the same up to this phase
        for member, spec in enumerate(specs):
            if outcomes[member].error is None:
                alike.setdefault(spec.until(number), []).append(member)
        together: dict[Hashable, list[list[int]]] = {}
        for members in alike.values():
            spec = specs[members[0]]
            together.setdefault((spec.parts[number].alike, spec.phases[number].expand), []).append(members)
        for cohort in together.values():
            leaders = [members[0] for members in cohort]
            parts = [specs[m].parts[number] for m in leaders]
            starts = [_start(specs[m], number, outcomes[m].weights) for m in leaders] if number else None
            found = yield from _counted(loop.train(parts, device, starts=starts), before, whole)
            before += sum(part.steps for part in parts)
            for members, outcome in zip(cohort, found, strict=True):
                for member in members:
                    own = _shared(outcome, len(members))
                    outcomes[member] = _joined(outcomes[member], own, specs[member], number) if number else own
            if number == len(specs[0].phases) - 1:
                through = {member: outcomes[member] for members in cohort for member in members}
                yield _through(through, before, whole)
    return outcomes


def _through(outcomes: Mapping[int, Outcome], before: int, whole: int) -> Progress:
    """A report of members that have ended their last phase, so that their results are kept if others fail."""
    losses = [outcome.curve["train_loss"][-1] for outcome in outcomes.values() if outcome.curve]
    accuracy = tuple(outcome.curve["validation_accuracy"][-1] for outcome in outcomes.values() if outcome.curve)
    loss = sum(losses) / len(losses) if losses else math.nan
    return Progress(
        step=before, steps=whole, members=len(outcomes), loss=loss, accuracy=accuracy or (math.nan,), ended=outcomes
    )


def _counted(
    steps: Generator[Progress, None, list[Outcome]], before: int, whole: int
) -> Generator[Progress, None, list[Outcome]]:
    """One phase of some members, reported as a part of the steps of all."""
    while True:
        try:
            progress = next(steps)
        except StopIteration as end:
            return end.value
        done = before + progress.step * progress.members
        yield replace(progress, step=done, steps=whole, ended={}, points={})  # a phase's are not those of a trial


def _shared(outcome: Outcome, trials: int) -> Outcome:
    """The outcome of each trial that shared this phase: all that was learned, and its share of the time."""
    seconds, compiling = outcome.seconds / trials, outcome.compile_seconds / trials
    return replace(outcome, seconds=seconds, compile_seconds=compiling)


def _start(spec: PhasedTrial, number: int, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The initial weights of a phase after the first."""
    expansion, seed = spec.phases[number].expand, spec.parts[number].seed
    if expansion is None:
        return weights
    return expand_weights(spec.archs[number - 1], spec.archs[number], weights, mode=expansion.start, seed=seed)


def _joined(earlier: Outcome, later: Outcome, spec: PhasedTrial, number: int) -> Outcome:
    """The outcome of all phases up to this one."""
    before = sum(part.steps for part in spec.parts[:number])
    curve = {
        name: [*earlier.curve[name], *([before + s for s in values] if name == "step" else values)]
        for name, values in later.curve.items()
    }
    return replace(
        later,
        error=None if later.error is None else f"phase {number + 1}: {later.error}",
        curve=curve,
        steps=earlier.steps + later.steps,
        selected_step=before + later.selected_step,
        seconds=earlier.seconds + later.seconds,
        compile_seconds=earlier.compile_seconds + later.compile_seconds,
    )
