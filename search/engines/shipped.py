"""A cohort that travels to another process, and is trained where it arrives."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from recallmap.results.record import Record
from recallmap.search.documents import content_key, outside
from recallmap.search.engines.plan import Work
from recallmap.search.sequences.drawn_ahead import drawing_ahead, workers_for
from recallmap.search.training import run_cohort
from recallmap.search.training.checkpoints import CheckpointFolder, checkpointing
from recallmap.search.training.outcome import Progress
from recallmap.search.training.phase_clock import timing
from recallmap.search.training.time_limit import NEVER, TimeIsUp, TimeLimit
from recallmap.search.trials import Trial

Trained = tuple[list[Record] | None, dict[str, float]]  # records, None where they are saved instead; seconds by phase

MARK = "RECALLMAP_FOLDER"  # variable that names the folder in which processes of ours keep files; they are known by it


@dataclass(frozen=True)
class ShippedCohort:
    """The data that travels to a process: members [start, stop) of a work."""

    work: Work
    start: int
    stop: int
    study: str
    device: str
    share: float = 1.0  # of a GPU
    drawers: int | None = None  # processes that draw sequences for it; None: its share of the cores where it trains
    turn: int = 1
    alone: bool = False  # no other cohort may train beside it
    folder: Path | None = None  # of checkpoints; None: a process on another machine has none
    limit: TimeLimit = NEVER  # of the run
    weights: bool = False  # True: those of trials that end come back with their records

    def __repr__(self) -> str:
        return f"{self.work.number}-{self.start}"

    def __reduce__(self) -> Any:
        """The code from outside travels with it, and is loaded before its specs are."""
        whole = {one.name: getattr(self, one.name) for one in fields(self)}
        return _arrived, (outside.shipped(), pickle.dumps(whole))

    @property
    def specs(self) -> tuple[Trial, ...]:
        return self.work.specs[self.start : self.stop]

    @property
    def bytes(self) -> float:
        """Memory that it needs, by arithmetic."""
        return sum(spec.bytes for spec in self.specs)

    def halves(self) -> tuple[ShippedCohort, ShippedCohort]:
        middle = (self.start + self.stop) // 2
        return replace(self, stop=middle), replace(self, start=middle)


def _arrived(sources: tuple[outside.Source, ...], whole: bytes) -> ShippedCohort:
    """The cohort that travelled. Its files of code go with the folder of these processes."""
    outside.arrive(sources, folder=os.environ.get(MARK))
    return ShippedCohort(**pickle.loads(whole))


def train(cohort: ShippedCohort, tell: Callable[[Progress], None]) -> Trained:
    """Train a cohort here: its records, None where it is saved because time is up, and its seconds by phase. Raises what
    `run_cohort.train` raises."""

    def told(progress: Progress) -> None:
        tell(progress)
        if cohort.limit.is_up and not all(isinstance(spec, run_cohort.RESUMED) for spec in cohort.specs):
            raise TimeIsUp

    gc.collect()
    gc.freeze()  # what is left is there to stay: to search it for garbage takes 0.3 s, and the cohort does so as it begins
    records: list[Record] | None = None
    kind = torch.device(cohort.device).type
    workers = workers_for(kind, cohort.share) if cohort.drawers is None else cohort.drawers
    with timing() as clock, contextlib.suppress(TimeIsUp), saving(cohort), drawing_ahead(workers, lasting=True):
        where = torch.device(cohort.device)
        records = run_cohort.train(cohort.specs, cohort.study, where, told, weights=cohort.weights)
    return records, clock.seconds()


@contextlib.contextmanager
def saving(cohort: ShippedCohort) -> Iterator[None]:
    """Save this cohort in its folder while it trains, and remove its checkpoint when it has finished."""
    if cohort.folder is None:
        yield
        return
    with checkpointing(CheckpointFolder(cohort.folder)) as own:
        own.shared = True
        own.limited(cohort.limit)
        own.owners = [content_key.key(spec) for spec in cohort.specs]
        yield
        own.clear()
