"""The inline engine: train in this process, one cohort after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.listeners.audience import Audience
from recallmap.search.engines.plan import Plan, Report, Work
from recallmap.search.engines.time_spent import TimeSpent
from recallmap.search.measurement import gpu_busy
from recallmap.search.sequences.drawn_ahead import drawing_ahead, workers_for
from recallmap.search.study.spec import StudySpec
from recallmap.search.training.checkpoints import CheckpointFolder, checkpoint_folder, checkpointing
from recallmap.search.training.devices import default_device
from recallmap.search.training.outcome import Progress
from recallmap.search.training.phase_clock import timing
from recallmap.search.training.run_cohort import RESUMED, train
from recallmap.search.training.time_limit import NEVER, TimeIsUp, TimeLimit
from recallmap.search.weights.kept import WeightFolder


def run(
    study: StudySpec,
    ledger_path: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    device: str | None = None,
    cohort_size: int | None = None,
    part: tuple[int, int] = (1, 1),
    seeds: int = 0,
    known: Mapping[str, Record] | None = None,
    limit: TimeLimit = NEVER,
    weights: WeightFolder | None = None,
    listeners: Audience | None = None,
) -> Plan:
    """Train in this process, one cohort after another. Finished trials are in the ledger. After an interruption the same
    call resumes, inside a cohort where that takes minutes. Failed trials are tried again. `cohort_size`, `part`, `seeds`,
    `known`, `weights` and `listeners` are those of `Driver`. Raises LedgerError where the ledger cannot be written, TimeIsUp at
    the limit, after the cohort in training was saved."""
    where = torch.device(device or default_device())
    with (
        timing() as clock,
        gpu_busy.sampled(gpu_busy.reader([where])) as busy,
        Ledger(ledger_path) as ledger,
        checkpointing(CheckpointFolder(checkpoint_folder(ledger_path))) as checkpoints,
        drawing_ahead(workers_for(where.type)),
    ):
        checkpoints.limited(limit)
        checkpoints.tidy(ledger.keys())
        driver = Driver(
            study,
            ledger,
            report=report,
            cohort_size=cohort_size,
            where=where,
            part=part,
            seeds=seeds,
            saved=checkpoints.saved(),
            known=known,
            limit=limit,
            time=TimeSpent(clock=clock, busy=busy),
            weights=weights,
            listeners=listeners,
        )
        while (work := driver.next()) is not None:

            def tell(progress: Progress, work: Work = work) -> None:
                driver.progress(work, progress)
                if limit.is_up and not all(isinstance(spec, RESUMED) for spec in work.specs):
                    raise TimeIsUp

            checkpoints.owners = [content_key.key(spec) for spec in work.specs]
            driver.keep(work, train(work.specs, study.name, where, tell, weights=weights is not None))
            checkpoints.clear()
        if driver.out_of_time:
            raise TimeIsUp
    return driver.plan
