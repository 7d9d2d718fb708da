"""The inline engine: train in this process, or several cohorts at once in processes of this machine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.engines import side_by_side
from recallmap.search.engines.driver import Driver, EngineError
from recallmap.search.engines.gpu_sharing import cohorts_at_once
from recallmap.search.engines.listeners.audience import Audience
from recallmap.search.engines.plan import Plan, Report, Work
from recallmap.search.engines.time_spent import TimeSpent
from recallmap.search.measurement import gpu_busy
from recallmap.search.sequences.drawn_ahead import drawing_ahead, workers_for
from recallmap.search.study.spec import StudySpec
from recallmap.search.training.checkpoints import CheckpointFolder, checkpoint_folder, checkpointing
from recallmap.search.training.devices import DeviceLost, default_device
from recallmap.search.training.kernels_ahead import ask_for_kernels, await_kernels, compiling_ahead
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
    cohorts_per_gpu: int | None = None,
    part: tuple[int, int] = (1, 1),
    seeds: int = 0,
    known: Mapping[str, Record] | None = None,
    limit: TimeLimit = NEVER,
    weights: WeightFolder | None = None,
    listeners: Audience | None = None,
) -> Plan:
    """Train in this process, or `cohorts_per_gpu` cohorts at once, each in a process of its own. None: three on a GPU whose
    kernels can run side by side, where there are more cohorts than one; else one. Finished trials are in the ledger. After an
    interruption the same call resumes, inside a cohort where that takes minutes. Failed trials are tried again. `cohort_size`,
    `part`, `seeds`, `known`, `weights` and `listeners` are those of `Driver`.

    Raises LedgerError where the ledger or weights cannot be written, TimeIsUp at the limit, after the cohorts in training were
    saved, EngineError where the GPU fails for all of them.
    """
    where = torch.device(device or default_device())
    with (
        timing() as clock,
        gpu_busy.sampled(gpu_busy.reader([where])) as busy,
        Ledger(ledger_path) as ledger,
        checkpointing(CheckpointFolder(checkpoint_folder(ledger_path))) as checkpoints,
        drawing_ahead(workers_for(where.type)),
        compiling_ahead(where, workers_for(where.type)),
        _unsearched(),
    ):
        checkpoints.limited(limit)
        checkpoints.tidy(ledger.keys())
        at_once = cohorts_per_gpu or cohorts_at_once(where)
        driver = Driver(
            study,
            ledger,
            report=report,
            cohort_size=cohort_size,
            where=where,
            places=at_once,
            part=part,
            seeds=seeds,
            saved=checkpoints.saved(),
            known=known,
            limit=limit,
            time=TimeSpent(clock=clock, busy=busy),
            weights=weights,
            listeners=listeners,
        )
        try:
            if at_once > 1 and (cohorts_per_gpu or not driver.is_one_cohort):
                side_by_side.train_all(driver, where, checkpoints.folder, at_once)
            else:
                _train_all(driver, where, checkpoints)
        except DeviceLost as error:
            raise EngineError(str(error)) from error
        if driver.out_of_time:
            raise TimeIsUp
    return driver.plan


@contextmanager
def _unsearched() -> Iterator[None]:
    """Keep Python from searching what is loaded for garbage, which takes 0.1 s every other small trial."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _train_all(driver: Driver, where: torch.device, checkpoints: CheckpointFolder) -> None:
    """Train all that the driver gives, one cohort after another."""
    while (work := driver.next()) is not None:
        for each in (work, *driver.waiting):
            ask_for_kernels(each.specs)
        await_kernels(work.specs)

        def tell(progress: Progress, work: Work = work) -> None:
            driver.progress(work, progress)
            if driver.limit.is_up and not all(isinstance(spec, RESUMED) for spec in work.specs):
                raise TimeIsUp

        checkpoints.owners = [content_key.key(spec) for spec in work.specs]
        records = train(work.specs, driver.study.name, where, tell, weights=driver.weights is not None)
        driver.keep(work, records)
        checkpoints.clear()
