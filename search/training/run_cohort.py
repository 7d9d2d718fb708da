"""Train trials of equal shape as one cohort, and give every trial the record it would have alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from recallmap.arch.kernels.select import record_choices
from recallmap.results.ledger import LedgerError
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.documents.nodes import SpecError
from recallmap.search.training import foreign, loop, online, phases
from recallmap.search.training.devices import begin_afresh, check_alive, default_device
from recallmap.search.training.origin import device_name
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.training.phase_clock import phase
from recallmap.search.training.trial_record import record_of
from recallmap.search.trials import Trial, memory_needs
from recallmap.search.trials.online import OnlineTrial
from recallmap.search.trials.phased import PhasedTrial
from recallmap.search.trials.single import TrialSpec

Loop = Callable[[Sequence[Any], torch.device], Generator[Progress, None, list[Outcome]]]

LOOPS: Mapping[
    type, Loop
] = {  # the training loop of each kind of trial: all of one shape together; an Outcome for each, in order
    TrialSpec: loop.train,
    PhasedTrial: phases.train,
    OnlineTrial: online.train,
}

RESUMED = (TrialSpec, PhasedTrial)  # kinds whose loop saves what it has in the middle of training


def run_cohort(specs: Sequence[Trial], *, study: str = "", device: torch.device | str | None = None) -> list[Record]:
    """Train trials of equal shape together; returns a record for each, in order. Raises ValueError where shapes differ,
    SpecError where a kind from outside breaks a law."""
    steps = follow_cohort(specs, study=study, device=device)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def follow_cohort(
    specs: Sequence[Trial], *, study: str = "", device: torch.device | str | None = None, weights: bool = False
) -> Generator[Progress, None, list[Record]]:
    """Train as `run_cohort` does, and yield progress. Trials that `ended` come as records, with their `weights` if these are
    asked for; weights and points are by the key of the record."""
    if len({(s.kind, s.shape) for s in specs}) != 1:
        raise ValueError(
            "trials of different shapes cannot train as one cohort; group them with recallmap.search.training.packing.pack"
        )
    where = torch.device(device or default_device())
    keys = [content_key.key(spec) for spec in specs]
    with phase("building"):
        foreign.check(specs, where)
        name = device_name(where)  # before the members are shared out among threads of one core
        alone = foreign.why_alone(specs, where) if where.type == "cuda" else ""
        one_by_one = {"members": f"one at a time: {alone}"} if alone else {}
        memory_needs.check_room(memory_needs.largest_of([s.needs for s in specs]), len(specs), where)
        begin_afresh(where)
    with record_choices() as chosen:
        steps = LOOPS[type(specs[0])](specs, where)

        def record(member: int, outcome: Outcome) -> Record:
            spec, members = specs[member], len(specs)
            ways = dict(chosen) | one_by_one
            found = record_of(spec, outcome, study=study, device=where, members=members, implementation=ways)
            return replace(found, device=name)

        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                outcomes: list[Outcome] = end.value
                break
            ended = progress.ended.items()
            yield replace(
                progress,
                ended={member: record(member, outcome) for member, outcome in ended},
                weights={keys[member]: outcome.weights for member, outcome in ended if weights and outcome.weights},
                points={keys[member]: point for member, point in progress.points.items()},
            )
    return [record(member, outcome) for member, outcome in enumerate(outcomes)]


def train(
    specs: Sequence[Trial],
    study: str,
    device: torch.device,
    report: Callable[[Progress], None],
    *,
    weights: bool = False,
) -> list[Record]:
    """Train a cohort; returns its records. Reports are as those of `follow_cohort`. A cohort that dies is halved and tried
    again, so that only the trial at fault fails; the records name the reason. Raises LedgerError where its checkpoint cannot
    be written, TimeIsUp once it is saved, DeviceLost where no cohort can go on."""
    try:
        steps = follow_cohort(specs, study=study, device=device, weights=weights)
        while True:
            with phase("training"):
                progress = next(steps)
            report(progress)
    except StopIteration as end:
        return end.value
    except (LedgerError, SpecError):  # no trial's fault; a kind that must not train
        raise
    except Exception as error:  # whatever a trial does, the study goes on and its record says why
        check_alive(device)
        why = f"{type(error).__name__}: {error}"
    # Only out here is the memory of the cohort free again: the error kept it alive.
    if len(specs) == 1:
        return [failed(specs[0], why, study=study, device=device)]
    half = len(specs) // 2
    records = [r for part in (specs[:half], specs[half:]) for r in train(part, study, device, report, weights=weights)]
    return [replace(r, implementation={"halved": why, **r.implementation}) for r in records]


def failed(spec: Trial, why: str, *, study: str, device: torch.device) -> Record:
    """The record of a trial that died."""
    return record_of(spec, Outcome(error=why), study=study, device=device, members=1, implementation={})
