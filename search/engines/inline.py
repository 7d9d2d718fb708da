"""The inline engine: train in this process, one cohort after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from recallmap.results.ledger import Ledger
from recallmap.search.documents import content_key
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.plan import Plan, Report, Work
from recallmap.search.sequences.drawn_ahead import drawing_ahead, workers_for
from recallmap.search.study.spec import StudySpec
from recallmap.search.training.checkpoints import CheckpointFolder, checkpoint_folder, checkpointing
from recallmap.search.training.devices import default_device
from recallmap.search.training.outcome import Progress
from recallmap.search.training.run_cohort import train


def run(
    study: StudySpec,
    ledger_path: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    device: str | None = None,
    cohort_size: int | None = None,
    part: tuple[int, int] = (1, 1),
    seeds: int = 0,
) -> Plan:
    """Train in this process, one cohort after another. Finished trials are in the ledger. After an interruption the same
    call resumes, inside a cohort where that takes minutes. Failed trials are tried again. `cohort_size`, `part` and
    `seeds` are those of `Driver`. Raises LedgerError where the ledger cannot be written."""
    where = torch.device(device or default_device())
    with (
        Ledger(ledger_path) as ledger,
        checkpointing(CheckpointFolder(checkpoint_folder(ledger_path))) as checkpoints,
        drawing_ahead(workers_for(where.type)),
    ):
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
        )
        while (work := driver.next()) is not None:

            def tell(progress: Progress, work: Work = work) -> None:
                driver.progress(work, progress)

            checkpoints.owners = [content_key.key(spec) for spec in work.specs]
            driver.keep(work, train(work.specs, study.name, where, tell))
            checkpoints.clear()
    return driver.plan
