"""Where trials run: train what the ledger lacks, keep each record the moment it exists."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from results.ledger import Ledger
from results.record import Record
from search import codec
from search.cohort import default_device, follow_cohort, pack, record_of, room
from search.study import StudySpec, Trial
from search.training import Outcome, Progress


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where a study stands. `records` are those just finished; `progress` comes from within the running cohort."""

    trials: int
    known: int  # trials the ledger had before
    done: int
    failed: int
    cohort: int  # number of the running cohort, from 1
    cohorts: int
    seconds: float
    eta: float | None  # seconds to the end; None before there is anything to go by
    progress: Progress | None = None
    records: tuple[Record, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a study would train: its trials, those the ledger lacks, and their cohorts (indices into `missing`)."""

    trials: tuple[Trial, ...]
    missing: tuple[Trial, ...]
    cohorts: tuple[tuple[int, ...], ...]


def plan(study: StudySpec, finished: set[str], *, most: int) -> Plan:
    """Which trials are to train, and together with which."""
    trials = study.trials()
    missing = tuple(t for t in trials if codec.key(t) not in finished)
    return Plan(trials=trials, missing=missing, cohorts=tuple(tuple(c) for c in pack(missing, most)))


def run(
    study: StudySpec,
    ledger_path: Path,
    *,
    report: Callable[[Report], None] = lambda _: None,
    device: str | None = None,
    most: int | None = None,
) -> Plan:
    """The inline engine: train here, one cohort after another. What is finished is in the ledger; interrupted, the same
    call goes on. Failed trials are tried again. Raises LedgerError where the ledger cannot be written."""
    where = torch.device(device or default_device())
    with Ledger(ledger_path) as ledger:
        work = plan(study, ledger.keys(), most=most or room(where))
        clock = _Clock(work)
        report(clock.report())
        for number, cohort in enumerate(work.cohorts, start=1):
            specs = [work.missing[i] for i in cohort]

            def tell(progress: Progress, number: int = number) -> None:
                report(clock.report(cohort=number, progress=progress))

            records = _train(specs, study.name, where, tell)
            for record in records:
                ledger.add(record)
            clock.finish(specs, records)
            report(clock.report(cohort=number, records=tuple(records)))
    return work


def _train(
    specs: Sequence[Trial], study: str, device: torch.device, report: Callable[[Progress], None]
) -> list[Record]:
    """The records of a cohort. One that dies is halved and tried again, so that only the trial at fault fails."""
    try:
        steps = follow_cohort(specs, study=study, device=device)
        while True:
            report(next(steps))
    except StopIteration as end:
        return end.value
    except Exception as error:  # whatever a trial does, the study goes on and its record says why
        if len(specs) > 1:
            half = len(specs) // 2
            return [r for part in (specs[:half], specs[half:]) for r in _train(part, study, device, report)]
        outcome = Outcome(error=f"{type(error).__name__}: {error}")
        return [record_of(specs[0], outcome, study=study, device=device, members=1, implementation={})]


class _Clock:
    """Counts trials and estimates what is left from the work (steps x operations) done so far."""

    def __init__(self, work: Plan) -> None:
        self.work = work
        self.began = time.perf_counter()
        self.done = self.failed = 0
        self.total = sum(t.effort for t in work.missing)
        self.spent = 0.0

    def finish(self, specs: Sequence[Trial], records: Sequence[Record]) -> None:
        self.failed += sum(r.status == "failed" for r in records)
        self.done += sum(r.status == "done" for r in records)
        self.spent += sum(s.effort for s in specs)

    def report(self, *, cohort: int = 0, progress: Progress | None = None, records: tuple[Record, ...] = ()) -> Report:
        seconds = time.perf_counter() - self.began
        spent = self.spent
        if progress is not None:
            specs = [self.work.missing[i] for i in self.work.cohorts[cohort - 1]]
            spent += sum(s.effort for s in specs) * progress.step / progress.steps
        return Report(
            trials=len(self.work.trials),
            known=len(self.work.trials) - len(self.work.missing),
            done=self.done,
            failed=self.failed,
            cohort=cohort,
            cohorts=len(self.work.cohorts),
            seconds=seconds,
            eta=seconds * (self.total / spent - 1) if spent else None,
            progress=progress,
            records=records,
        )
