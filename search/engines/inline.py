"""The inline engine: train in this process, one cohort after another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from recallmap.results.ledger import Ledger
from recallmap.search.documents import content_key
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.plan import Plan, Report, Work
from recallmap.search.study.spec import StudySpec
from recallmap.search.training.checkpoints import Shelf, kept_on, shelf_of
from recallmap.search.training.devices import default_device
from recallmap.search.training.outcome import Progress
from recallmap.search.training.run_cohort import train


def run(
    study: StudySpec,
    ledger_path: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    device: str | None = None,
    most: int | None = None,
    part: tuple[int, int] = (1, 1),
    seeds: int = 0,
) -> Plan:
    """The inline engine: train here, one cohort after another. What is finished is in the ledger; interrupted, the same
    call goes on, in the middle of a cohort where that takes minutes. Failed trials are tried again. After a whole grid come so
    many `seeds` of what won on it, see Further. Raises LedgerError where the ledger cannot be written."""
    where = torch.device(device or default_device())
    with Ledger(ledger_path) as ledger, kept_on(Shelf(shelf_of(ledger_path))) as shelf:
        shelf.tidy(ledger.keys())
        driver = Driver(study, ledger, report=report, most=most, where=where, part=part, seeds=seeds, laid=shelf.laid())
        while (work := driver.next()) is not None:

            def tell(progress: Progress, work: Work = work) -> None:
                driver.progress(work, progress)

            shelf.owners = [content_key.key(spec) for spec in work.specs]
            driver.keep(work, train(work.specs, study.name, where, tell))
            shelf.clear()
    return driver.plan
