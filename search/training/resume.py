"""Saving a cohort in the middle of training, and resuming it."""

from __future__ import annotations

import torch
from torch import Tensor

from recallmap.search.training.best_checkpoint import BestCheckpoint
from recallmap.search.training.checkpoints import CohortCheckpoint
from recallmap.search.training.cohort import Cohort
from recallmap.search.training.outcome import Outcome

SAVED = ("error", "steps", "seconds", "compile_seconds", "compiled")  # fields of an outcome, before its test


def save(
    checkpoint: CohortCheckpoint,
    cohort: Cohort,
    outcomes: list[Outcome],
    keepers: list[BestCheckpoint],
    chosen_NP: Tensor,
    step: int,
) -> None:
    rows = {f"row {number}": tensor for number, tensor in enumerate(cohort.rows())}
    said = {
        "step": step,
        "members": cohort.members,
        "columns": cohort.feed.columns,
        "outcomes": [{name: getattr(outcome, name) for name in SAVED} for outcome in outcomes],
        "keepers": [keeper.known() for keeper in keepers],
    }
    checkpoint.save(rows | {"chosen": chosen_NP}, said)


def resume(
    checkpoint: CohortCheckpoint | None,
    cohort: Cohort,
    outcomes: list[Outcome],
    keepers: list[BestCheckpoint],
    chosen_NP: Tensor,
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
    if kept and kept != cohort.members:
        cohort.keep(kept)
    rows = torch.tensor([said["members"].index(which[member]) for member in kept], dtype=torch.int64)
    for number, tensor in enumerate(cohort.rows() if kept else ()):
        tensor.copy_(tensors[f"row {number}"][rows])
    cohort.clock.fill_(said["step"])
    cohort.feed.columns = said.get("columns", cohort.feed.columns)  # files of earlier versions have none
    chosen_NP.copy_(tensors["chosen"][torch.tensor(which)])
    return int(said["step"])
