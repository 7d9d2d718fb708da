"""The desk between the driver and the processes that train its cohorts, each under a name."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from recallmap.results.record import Record
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.shipped import ShippedCohort
from recallmap.search.training import run_cohort
from recallmap.search.training.outcome import Progress
from recallmap.search.training.time_limit import NEVER

TURNS = 2  # rounds of `lives` attempts for a single trial


@dataclass
class Desk:
    """It hands out cohorts under names, and takes back their results. An error here is kept in `error` and ends the study.

    device  as each process names its own
    share   of a GPU for each cohort
    drawers processes that draw sequences for each; None: as many as its share of a GPU has of the cores where it trains
    folder  of checkpoints; None: what trains elsewhere saves nothing
    lives   attempts at a cohort before it is `lost`
    rest    seconds between two rounds of a single trial's attempts
    """

    driver: Driver
    device: str
    share: float = 1.0
    drawers: int | None = None
    folder: Path | None = None
    lives: int = 1
    rest: float = 0.0
    error: BaseException | None = None
    out: dict[str, ShippedCohort] = field(default_factory=dict)
    resting: list[tuple[float, ShippedCohort]] = field(
        default_factory=list
    )  # with the time at which they may go out again
    waiting: deque[ShippedCohort] = field(default_factory=deque)  # to hand out before the driver is asked again
    kept: dict[int, dict[int, Record]] = field(default_factory=dict)  # of works in pieces: records by member

    @property
    def finished(self) -> bool:
        return self.error is not None or self.driver.out_of_time or (self.driver.finished and not self.waiting)

    def prepare(self) -> bool:
        """True where there is a cohort to hand out; asks the driver for one if need be. None is handed out once time is up."""
        if self.driver.limit.is_up:
            return False
        now = time.monotonic()
        self.waiting.extend(cohort for after, cohort in self.resting if after <= now)
        self.resting = [(after, cohort) for after, cohort in self.resting if after > now]
        if not self.waiting and (work := self.driver.next()) is not None:
            name, limit = self.driver.study.name, self.driver.limit if self.folder is not None else NEVER
            cohort = ShippedCohort(
                work, 0, len(work.specs), name, self.device, self.share, folder=self.folder, limit=limit
            )
            self.waiting.append(replace(cohort, weights=self.driver.weights is not None, drawers=self.drawers))
        return bool(self.waiting)

    @property
    def ready(self) -> int:
        """How many cohorts can be handed out now, of the next few."""
        return len(self.waiting) + len(self.driver.waiting) if self.prepare() else 0

    def ask(self, name: str) -> ShippedCohort | None:
        """The cohort to train now under this name; None where there is none now."""
        with self._guarded():
            if self.error is None and self.prepare():
                self.out[name] = self.waiting.popleft()
        return self.out.get(name)

    def progress(self, name: str, progress: Progress) -> None:
        with self._guarded():
            self.driver.progress(self.out[name].work, progress)

    def keep(self, name: str, records: Sequence[Record] | None, seconds: Mapping[str, float] | None = None) -> None:
        """Take back a cohort with its seconds by phase; without records where its process saved it, because time is up."""
        with self._guarded():
            cohort = self.out.pop(name)
            self.driver.time.add(seconds or {})
            if records is not None:
                self._keep(cohort, records)

    def set_apart(self, name: str) -> None:
        """Take back a cohort whose process died beside others, any of which may be at fault: next time it trains alone."""
        with self._guarded():
            self.waiting.appendleft(replace(self.out.pop(name), alone=True))

    def lost(self, name: str, why: str) -> None:
        """Take back a cohort whose process died in each of its lives. It is trained in halves, so that only the trial at fault
        fails."""
        with self._guarded():
            cohort = self.out.pop(name)
            if len(cohort.specs) > 1:
                self.waiting.extendleft(reversed(cohort.halves()))
                return
            if cohort.turn < TURNS:
                self.resting.append((time.monotonic() + self.rest, replace(cohort, turn=cohort.turn + 1)))
                return
            why = f"the worker died {self.lives * TURNS} times: {why}"
            record = run_cohort.failed(cohort.specs[0], why, study=cohort.study, device=torch.device("cpu"))
            self._keep(cohort, [replace(record, device="")])

    def _keep(self, cohort: ShippedCohort, records: Sequence[Record]) -> None:
        work = cohort.work
        kept = self.kept.setdefault(work.number, {})
        kept.update(zip(range(cohort.start, cohort.stop), records, strict=True))
        if len(kept) == len(work.specs):
            del self.kept[work.number]
            self.driver.keep(work, [kept[member] for member in range(len(work.specs))])

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.error = self.error or error
            if not isinstance(error, Exception):
                raise
