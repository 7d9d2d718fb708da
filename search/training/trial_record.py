"""The record of a finished trial: its scores, costs, device, versions and commit."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import TypeVar

import torch

from recallmap.arch.cost import Cost
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.training.devices import peak_bytes
from recallmap.search.training.origin import commit, device_name, versions
from recallmap.search.training.outcome import Outcome
from recallmap.search.training.phase_clock import phase
from recallmap.search.trials import Trial
from recallmap.search.trials.geometry import setting

Figure = TypeVar("Figure")

EXAMINED = 2**30  # most bytes of sequences that are drawn for the chance of a failed trial

NO_COST = Cost(parameters=0, state_floats=0, state_bytes=0, growing_floats=0, flops_per_token=0.0, length=0)


@phase("writing")
def record_of(
    spec: Trial,
    outcome: Outcome,
    *,
    study: str,
    device: torch.device,
    members: int,
    implementation: dict[str, str],
) -> Record:
    """The record of one trial, also of one that failed, whatever the reason."""
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
            **({"references": lines} if (lines := task.references()) else {}),
            "scores": scores,
        }
        for task, scores in zip(spec.tests, outcome.tests, strict=False)
    ]
    return Record(
        key=content_key.key(spec),
        study=study,
        status="done" if outcome.error is None else "failed",
        error=outcome.error,
        spec=content_key.plain(spec),
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
    """A figure of a trial; `otherwise` where a failed trial has none."""
    try:
        return figure()
    except Exception:
        if not failed:
            raise
        return otherwise
