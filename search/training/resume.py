"""Saving a cohort in the middle of training, and resuming it."""

from __future__ import annotations

from torch import Tensor

from recallmap.search.training.best_checkpoint import BestCheckpoint
from recallmap.search.training.checkpoints import CohortCheckpoint
from recallmap.search.training.cohort import Cohort
from recallmap.search.training.outcome import Outcome
from recallmap.search.training.padding import together
from recallmap.search.training.phase_clock import phase

SAVED = ("error", "steps", "seconds", "compile_seconds", "compiled")  # fields of an outcome, before its test


@phase("writing")
def save(
    checkpoint: CohortCheckpoint,
    cohort: Cohort,
    outcomes: list[Outcome],
    keepers: list[BestCheckpoint],
    chosen: list[Tensor],
    step: int,
) -> None:
    """Save a cohort after a step."""
    rows = {f"row {number}": tensor for number, tensor in enumerate(cohort.state())}
    said = {
        "step": step,
        "steps": cohort.steps,
        "members": cohort.members,
        "columns": cohort.feed.columns,
        "outcomes": [{name: getattr(outcome, name) for name in SAVED} for outcome in outcomes],
        "keepers": [keeper.known() for keeper in keepers],
    }
    checkpoint.save(rows | {"chosen": together(chosen)}, said)


def resume(
    checkpoint: CohortCheckpoint | None,
    cohort: Cohort,
    outcomes: list[Outcome],
    keepers: list[BestCheckpoint],
    chosen: list[Tensor],
) -> int | None:
    """Resume these trials from their checkpoint: the steps taken so far; None where there is no checkpoint."""
    found = None if checkpoint is None else checkpoint.resume()
    if found is None:
        return None
    tensors, said, which = found  # each trial's index in the file, which may hold more trials
    for outcome, keeper, place_in in zip(outcomes, keepers, which, strict=True):
        vars(outcome).update(said["outcomes"][place_in])
        vars(keeper).update(said["keepers"][place_in])
    kept = [member for member, place_in in enumerate(which) if place_in in said["members"]]
    if kept:
        if kept != cohort.members:
            cohort.keep(kept)
        rows = [said["members"].index(which[member]) for member in kept]
        numbers = range(sum(name.startswith("row ") for name in tensors))
        cohort.restore(int(said["step"]), [[tensors[f"row {number}"][row] for number in numbers] for row in rows])
        # A file of an earlier version has one number for all members, or none.
        if columns := said.get("columns"):
            cohort.feed.columns = [[of[row] if isinstance(of, list) else of for row in rows] for of in columns]
    for member, place_in in enumerate(which):
        chosen[member] = tensors["chosen"][place_in][: len(chosen[member])].to(cohort.device)
    return int(said["step"])
