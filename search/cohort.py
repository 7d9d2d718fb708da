"""Group trials by shape, train each group as one model, and give every trial the record it would have alone."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from arch.cost import Cost
from arch.kernels.select import record_choices
from results.record import Record
from search import codec, foreign, memory, online_loop, phases, training
from search.geometry import setting
from search.online import OnlineTrial
from search.origin import commit, device_name, versions
from search.phased import PhasedTrial
from search.single import TrialSpec
from search.study import Trial
from search.training import Outcome, Progress, begin_afresh, peak_bytes

Figure = TypeVar("Figure")

# Of cohorts on a GPU. `recallmap bench step` on an H200: what a member's step costs falls up to about so many tokens.
SATURATING = 2**17  # tokens of all members in one step
FEWEST, MOST = 8, 64  # members
SHARE = 0.25  # of the memory: cohorts may be abreast, and deep memories take more than `bytes` says
EXAMINED = 2**30  # bytes of sequences that are drawn to know the chance of a trial that failed
NO_COST = Cost(parameters=0, state_floats=0, state_bytes=0, growing_floats=0, flops_per_token=0.0, length=0)
SMALL_GPU = 40 * 2**30  # bytes; of a cluster's GPUs, which the driver does not see


Room = Callable[[Trial], int]  # how many trials like this one a cohort has at most


def pack(specs: Sequence[Trial], room: Room, laid: Sequence[frozenset[str]] = ()) -> list[list[int]]:
    """Cohorts of as many members as there is room for, as indices into `specs`, in the order of their first members. A
    family, which learns a first phase once, stays together even where it is larger than that: learnt twice, on a GPU, it is
    not the same to the last digit, and what follows can no longer be compared seed by seed. So do those whose keys are in one
    of `laid`, with no others, for what they have learned lies in one place."""
    keys = [codec.key(spec) for spec in specs] if laid else []
    held = {key: number for number, own in reversed(list(enumerate(laid))) for key in own}
    groups: dict[Hashable, dict[Hashable, list[int]]] = {}
    for index, spec in enumerate(specs):
        together = held.get(keys[index]) if laid else None
        groups.setdefault((spec.kind, spec.shape, together), {}).setdefault(spec.family, []).append(index)
    cohorts: list[list[int]] = []
    for families in groups.values():
        first, *others = families.values()
        most = room(specs[first[0]])
        cohorts.append(first)
        for family in others:
            if len(cohorts[-1]) + len(family) <= most:
                cohorts[-1] = cohorts[-1] + family
            else:
                cohorts.append(family)
    return sorted(sorted(cohort) for cohort in cohorts)


def at_most(members: int) -> Room:
    """The same bound for all. Raises ValueError where it leaves no room at all."""
    if members < 1:
        raise ValueError(f"a cohort needs room for at least 1 member, got {members}")
    return lambda spec: members


def room(device: torch.device) -> Room:
    """How many members a cohort has on this device unless told otherwise: on a GPU as many as make it busy (more would
    cost as much each) and as its memory surely holds; a cohort that does not fit after all is halved by the engine."""
    if device.type != "cuda":
        return at_most(8)
    whole = memory.held_by(device) if torch.cuda.is_available() else SMALL_GPU

    def members(spec: Trial) -> int:
        busy = max(FEWEST, SATURATING * spec.steps // max(1, spec.tokens))
        return max(1, min(busy, MOST, int(whole * SHARE / spec.bytes)))

    return members


Loop = Callable[[Sequence[Any], torch.device], Generator[Progress, None, list[Outcome]]]
LOOPS: Mapping[
    type, Loop
] = {  # how trials of each kind train: all of one shape, together; an Outcome for each, in order
    TrialSpec: training.train,
    PhasedTrial: phases.train,
    OnlineTrial: online_loop.train,
}


def run_cohort(specs: Sequence[Trial], *, study: str = "", device: torch.device | str | None = None) -> list[Record]:
    """Train trials of equal shape together; a record for each, in order. Raises ValueError where shapes differ, SpecError
    where a kind from outside breaks a law."""
    steps = follow_cohort(specs, study=study, device=device)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def follow_cohort(
    specs: Sequence[Trial], *, study: str = "", device: torch.device | str | None = None
) -> Generator[Progress, None, list[Record]]:
    """run_cohort that reports its progress while it goes; who `ended` before the others comes as a record."""
    if len({(s.kind, s.shape) for s in specs}) != 1:
        raise ValueError("trials of different shapes cannot train as one cohort; group them with search.cohort.pack")
    where = torch.device(device or default_device())
    foreign.check(specs, where)
    name = device_name(where)  # before the members are shared out among threads of one core
    memory.check_room(specs[0].needs, len(specs), where)
    begin_afresh(where)
    with record_choices() as chosen:
        steps = LOOPS[type(specs[0])](specs, where)

        def record(member: int, outcome: Outcome) -> Record:
            spec, members = specs[member], len(specs)
            ways = dict(chosen)
            found = record_of(spec, outcome, study=study, device=where, members=members, implementation=ways)
            return replace(found, device=name)

        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                outcomes: list[Outcome] = end.value
                break
            yield replace(progress, ended={m: record(m, outcome) for m, outcome in progress.ended.items()})
    return [record(member, outcome) for member, outcome in enumerate(outcomes)]


def record_of(
    spec: Trial,
    outcome: Outcome,
    *,
    study: str,
    device: torch.device,
    members: int,
    implementation: dict[str, str],
) -> Record:
    """The record of one trial. Of one that failed, whatever the reason, it can be made too."""
    failed = outcome.error is not None
    price = _had(spec.price, NO_COST, failed)
    examined = not failed or spec.task.drawn_bytes(spec.task.exam) < EXAMINED
    further = [
        {
            "task": task.kind,
            "setting": setting(task),
            "length": task.shape[0],
            "state_bytes": spec.price(task.shape[0]).state_bytes,
            "chance": task.chance(),
            "ceiling": task.ceiling(),
            "scores": scores,
        }
        for task, scores in zip(spec.tests, outcome.tests, strict=False)
    ]
    return Record(
        key=codec.key(spec),
        study=study,
        status="done" if outcome.error is None else "failed",
        error=outcome.error,
        spec=codec.plain(spec),
        task=spec.task.kind,
        setting=setting(spec.task),
        protocol=spec.task.protocol,
        arch=spec.name,
        seed=spec.seed,
        metric=spec.task.metric,
        chance=_had(spec.task.chance, 0.0, failed) if examined else 0.0,
        ceiling=_had(spec.task.ceiling, 1.0, failed) if examined else 1.0,
        references=_had(spec.task.references, {}, failed) if examined else {},
        scores=outcome.scores,
        validation=outcome.validation,
        tests=further,
        curve=outcome.curve,
        published_choice=outcome.published_choice,
        parameters=price.parameters,
        state_floats=price.state_floats,
        state_bytes=price.state_bytes,
        state_grows=price.state_grows,
        length=spec.task.shape[0],
        flops_per_token=price.flops_per_token,
        steps=outcome.steps,
        selected_step=outcome.selected_step,
        seconds=outcome.seconds,
        compile_seconds=outcome.compile_seconds,
        peak_bytes=peak_bytes(device),
        cohort=members,
        device=device_name(device),
        implementation=implementation | {"compiled step": outcome.compiled},
        versions=versions(),
        commit=commit(),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _had(figure: Callable[[], Figure], otherwise: Figure, failed: bool) -> Figure:
    """A figure of a trial; of one that failed `otherwise`, where the figure cannot be had."""
    try:
        return figure()
    except Exception:
        if not failed:
            raise
        return otherwise


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
