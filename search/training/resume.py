"""Saving a cohort in the middle of training, and resuming it."""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.search.training.best_checkpoint import BestCheckpoint
from recallmap.search.training.checkpoints import CohortCheckpoint
from recallmap.search.training.cohort import Cohort
from recallmap.search.training.outcome import Outcome
from recallmap.search.training.phase_clock import phase

SAVED = ("error", "steps", "seconds", "compile_seconds", "compiled")  # fields of an outcome, before its test


@phase("writing")
def save(
    checkpoint: CohortCheckpoint,
    cohort: Cohort,
    outcomes: list[Outcome],
    keepers: list[BestCheckpoint],
    chosen_NP: Tensor,
    step: int,
    since: int,
    total_N: Tensor,
) -> None:
    """Save a cohort after a step. `total_N` are its losses summed since the evaluation after step `since`."""
    rows = {f"row {number}": tensor for number, tensor in enumerate(cohort.rows())}
    said = {
        "step": step,
        "since": since,
        "members": cohort.members,
        "columns": cohort.feed.columns,
        "outcomes": [{name: getattr(outcome, name) for name in SAVED} for outcome in outcomes],
        "keepers": [keeper.known() for keeper in keepers],
    }
    checkpoint.save(rows | {"chosen": chosen_NP, "total": total_N.expand(len(cohort.members))}, said)


def resume(
    checkpoint: CohortCheckpoint | None,
    cohort: Cohort,
    outcomes: list[Outcome],
    keepers: list[BestCheckpoint],
    chosen_NP: Tensor,
) -> tuple[int, int, Tensor] | None:
    """Resume these trials from their checkpoint: the steps taken so far, and the last two as of `save`; None where there is no
    checkpoint."""
    found = None if checkpoint is None else checkpoint.resume()
    if found is None:
        return None
    tensors, said, which = found  # each trial's index in the file, which may hold more trials
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
    cohort.feed.columns = said.get("columns", cohort.feed.columns)  # files of earlier versions have none
    chosen_NP.copy_(tensors["chosen"][torch.tensor(which)])
    total = (
        tensors["total"][rows] if "total" in tensors else torch.zeros(())
    )  # earlier versions saved at evaluations alone
    return int(said["step"]), int(said.get("since", said["step"])), total.to(cohort.device)
