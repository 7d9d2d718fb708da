"""The driver between a study and an engine: it plans cohorts and keeps every record at once; engines only train."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.engines import pricing
from recallmap.search.engines.listeners.audience import Audience
from recallmap.search.engines.plan import Plan, Report, Work, share_of
from recallmap.search.engines.time_spent import TimeSpent
from recallmap.search.engines.trial_sources import GridSource, LedgerBook, source_of, trials_of
from recallmap.search.measurement.forward_latency import milliseconds
from recallmap.search.proposers.generations import Inquiry
from recallmap.search.space.search_space import Search
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import foreign
from recallmap.search.training.devices import default_device
from recallmap.search.training.outcome import Progress
from recallmap.search.training.packing import at_most, fewest, pack, room, shared_out
from recallmap.search.training.phase_clock import phase
from recallmap.search.training.run_cohort import RESUMED
from recallmap.search.training.time_limit import NEVER, TimeLimit
from recallmap.search.trials import Trial
from recallmap.search.trials.single import TrialSpec
from recallmap.search.weights.kept import WeightFolder

SEEN = 32  # waiting cohorts that an engine may prepare for

LEAST = 1e-9  # share of a run by which the time that is left can be told


class EngineError(Exception):
    """An engine has failed, not a trial; the message says what failed. The same study again resumes."""


class Driver:
    """The one owner of the ledger and of a search's journal. An engine trains what `next` gives and hands the records to
    `keep`, in any order. Several works may be out at once.

    cohort_size  most members of a cohort; None: as `packing.room` says
    where        the device that the driver itself has
    on           the kind of device that cohorts train on; None: as `where`
    places       cohorts that train at once. Where several, a grid's longest come first, and what is longer than a place's share
                 of the grid is halved, so that none is alone at the end
    part         (i, n): every n-th cohort from the i-th on; n calls with a ledger each train the whole grid
    seeds        after the whole grid, so many seeds of its best settings; see `Further`
    saved        keys of trials that were interrupted together: each set is a cohort of its own, and is resumed
    known        records from elsewhere, by key: their trials count as trained, and are copied into the ledger when asked for
    limit        of the run: once it is up no cohort begins; before, none that can neither be saved nor end in time
    saves        True where the engine saves cohorts in the middle of training
    time         the account of the run's time
    weights      the folder in which weights of trials are kept; None: they are not
    listeners    who is told of trials
    """

    def __init__(
        self,
        study: StudySpec,
        ledger: Ledger,
        *,
        report: Callable[[Report], None] = lambda _: None,
        cohort_size: int | None = None,
        where: torch.device | str | None = None,
        on: str | None = None,
        places: int = 1,
        part: tuple[int, int] = (1, 1),
        seeds: int = 0,
        saved: Sequence[frozenset[str]] = (),
        known: Mapping[str, Record] | None = None,
        limit: TimeLimit = NEVER,
        saves: bool = True,
        time: TimeSpent | None = None,
        weights: WeightFolder | None = None,
        listeners: Audience | None = None,
    ) -> None:
        if isinstance(study.space, Search) and part != (1, 1):
            raise ValueError("a search cannot be split into parts: its next points depend on all results")
        if seeds and (isinstance(study.space, Search) or part != (1, 1)):
            raise ValueError("further seeds need a whole grid: not a search, nor a part")
        if study.extend and part != (1, 1):
            raise ValueError("only a whole grid is extended, not a part")
        if study.race is not None and part != (1, 1):
            raise ValueError("only a whole grid is raced, not a part")
        self.part = part
        self.places = 1 if isinstance(study.space, Search) else places
        self.saved = saved
        self.study = study
        self.ledger = ledger
        self.where = torch.device(where or default_device())
        trains = torch.device(on) if on else self.where
        self.room, self.fewest = room(trains) if cohort_size is None else at_most(cohort_size), fewest(trains)
        self.plan = Plan(trials=(), missing=(), cohorts=())
        self._planned: set[str] = set()
        self._given: set[str] = set()  # those of them that were not in the ledger: they wait, are out, or have ended
        self._report = report
        self._book = LedgerBook(ledger, known)
        self.limit, self.saves = limit, saves
        self.time = time or TimeSpent()
        self.weights, self.listeners = weights, listeners or Audience()
        with phase("proposing"):
            self._source = source_of(study, ledger.path, self._measure, seeds)
        self._waiting: deque[Work] = deque()
        self._put_off: list[Work] = []  # for want of time
        self._out: dict[int, Work] = {}
        self._ended = False
        self._clock = _Clock(study, self._source, self._book, self.time)
        if isinstance(self._source, Inquiry):
            self._meet()
            # A point may have its answer in the journal, and its records in a ledger that is gone.
            self._take(trials_of(study, ledger.path))
        else:
            self._refill()
            # Without these the plan is complete before the first cohort.
            self._ended = self._ended or not (seeds or study.extend or study.race is not None)
        self._tell()

    @property
    def finished(self) -> bool:
        """True when all is trained and kept."""
        return self._ended and not self._waiting and not self._out and not self._put_off

    @property
    def is_one_cohort(self) -> bool:
        """True where no second cohort will come."""
        return self._ended and len(self._waiting) < 2

    @property
    def out_of_time(self) -> bool:
        """True where no further cohort begins in this call, though not all is trained: time is up, or too short for any."""
        return not self.finished and (self.limit.is_up or (bool(self._put_off) and not self._waiting))

    @property
    def waiting(self) -> tuple[Work, ...]:
        """The first of the cohorts that will train next."""
        return tuple(islice(self._waiting, SEEN))

    def next(self) -> Work | None:
        """A cohort to train now. None where all is done, where time is up, or where the next depends on works that are out:
        then ask again after the next `keep`."""
        if self.limit.is_up:
            return None
        if not self._waiting and not self._put_off:
            self._refill()
        while self._waiting:
            work = self._waiting.popleft()
            if not self._fits(work):
                self._put_off.append(work)
                continue
            self._out[work.number] = work
            self.time.begin(len(work.specs))
            self.listeners.begin(work.specs)
            self._tell(work, begun=work)
            return work
        return None

    def _fits(self, work: Work) -> bool:
        """False for a work that can neither be saved nor, by the rates of earlier records, end in time."""
        if not self.limit.is_set or (self.saves and all(isinstance(spec, RESUMED) for spec in work.specs)):
            return True
        needed = pricing.seconds_of(work.specs, pricing.rates_on(self.where, self.ledger))
        return needed is None or needed <= self.limit.left

    @phase("proposing")
    def _refill(self) -> None:
        """Ask for trials until some must be trained, or none will come, or none before works that are out have ended."""
        while not self._waiting and not self._ended:
            wanted = self._source.wanted(self._book, busy=bool(self._out))
            self._meet()
            notes = self._source.heard()
            if wanted is None:
                self._ended = True
            elif wanted:
                self._take(wanted)
            if notes:
                self._tell(notes=tuple(notes))
            if self._out:
                return

    def _meet(self) -> None:
        """Plan, as known, trials of points that the ledger had before this call: they are not trained."""
        met = self._source.met().items() if isinstance(self._source, Inquiry) else ()
        self._book.adopt(key for key, _ in met)
        known = {key: trial for key, trial in met if key in self._book.done and key not in self._planned}
        self._planned.update(known)
        self.plan = replace(self.plan, trials=(*self.plan.trials, *known.values()))

    def _take(self, wanted: Sequence[Trial]) -> None:
        """Plan the trials that are in our part and not in the ledger."""
        wanted = share_of(wanted, self.room, self.part)
        self._book.adopt(map(content_key.key, wanted))
        new = {key: trial for trial in wanted if (key := content_key.key(trial)) not in self._planned}
        lacking = {key: trial for trial in wanted if (key := content_key.key(trial)) not in self._book}
        missing = [trial for key, trial in lacking.items() if key not in self._given]
        foreign.check(missing, self.where)
        self._planned.update(new)
        self._given.update(lacking)
        first = len(self.plan.missing)
        packed = shared_out(missing, pack(missing, self.room, self.saved), self.places, self.fewest, self.saved)
        cohorts = [tuple(first + index for index in cohort) for cohort in packed]
        number = len(self.plan.cohorts)
        self.plan = Plan(
            trials=(*self.plan.trials, *new.values()),
            missing=self.plan.missing + tuple(missing),
            cohorts=(*self.plan.cohorts, *cohorts),
        )
        works = [
            Work(number=number, specs=tuple(self.plan.missing[i] for i in cohort))
            for number, cohort in enumerate(cohorts, number + 1)
        ]
        if self.places > 1:
            works.sort(key=lambda work: sum(spec.effort for spec in work.specs), reverse=True)
        self._waiting += works
        self._clock.begin(works)

    @phase("evaluating")
    def _measure(self, spec: Trial) -> float:
        """Milliseconds of a forward pass, measured when no work is out."""
        if not isinstance(spec, TrialSpec):
            raise TypeError(f"a trial of kind {spec.kind} has no forward pass to measure")
        return milliseconds(spec, self.where)

    def progress(self, work: Work, progress: Progress) -> None:
        """Report how far a work is, and keep its finished trials: their weights first, so that no record lacks them. Raises
        LedgerError where they cannot be written."""
        for record in progress.ended.values():
            self._keep_weights(work, record, progress.weights)
            self._add(record)
        self.listeners.points(progress.step, progress.points)
        for record in progress.ended.values():
            self.listeners.end(record)
        self._tell(work, progress=progress, notes=self.listeners.heard())

    def keep(self, work: Work, records: Sequence[Record]) -> None:
        """Take the records of a work, one for each of its specs, in order. Raises LedgerError where they cannot be
        written."""
        if len(records) != len(work.specs):
            raise ValueError(f"work {work.number} has {len(work.specs)} trials, got {len(records)} records")
        for record in records:
            self._add(record)
        for record in records:
            self.listeners.end(record)
        del self._out[work.number]
        self._clock.finish(work)
        self._tell(work, records=tuple(records), notes=self.listeners.heard())

    def _tell(self, work: Work | None = None, **news: Any) -> None:
        """Report the state of the run, with news of a work."""
        self._report(self._clock.report(self.plan, work, under_way=tuple(self._out.values()), **news))

    @phase("writing")
    def _keep_weights(self, work: Work, record: Record, weights: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Keep the weights that a record is of, unless its trial has a better one: a cohort may die after a member ended."""
        if self.weights is not None and record.key in weights and not self._book.has_new(record.key):
            trial = next(spec for spec in work.specs if content_key.key(spec) == record.key)
            self.weights.keep(trial, record, weights[record.key])

    @phase("writing")
    def _add(self, record: Record) -> None:
        self.ledger.add(record)
        self._book.add(record)


class _Clock:
    """Counts of trials and the time left: by the share of points that have results, and of those that have none yet by the
    effort (steps x operations) done."""

    def __init__(self, study: StudySpec, source: Inquiry | GridSource, book: LedgerBook, spent: TimeSpent) -> None:
        self.source = source
        self.time = spent
        self.book = book
        self.most = study.most_trials
        self.points = study.space.most_points if isinstance(study.space, Search) else 0
        self.began = time.perf_counter()
        self.first = source.answered
        self.found = 0.0  # the share that earlier calls had spent on cohorts that are resumed
        self.batches: list[_Batch] = []  # of which some works have not ended, or whose points have no results yet
        self.under_way: dict[int, float] = {}  # effort by number of a work that is out

    def begin(self, works: Sequence[Work]) -> None:
        """Count works that were planned together."""
        efforts = {work.number: sum(spec.effort for spec in work.specs) for work in works}
        self.batches = [*(batch for batch in self.batches if batch.left), _Batch(efforts)]

    def finish(self, work: Work) -> None:
        self.under_way.pop(work.number, None)
        for batch in self.batches:
            batch.finish(work.number)

    def report(
        self,
        plan: Plan,
        work: Work | None = None,
        *,
        progress: Progress | None = None,
        **news: Any,
    ) -> Report:
        seconds = time.perf_counter() - self.began
        total = sum(batch.total for batch in self.batches)
        if work is not None and progress is not None:
            effort = sum(s.effort for s in work.specs) * progress.step / max(1, progress.steps)
            if progress.resumed and total:
                self.found += self.source.under_way * (effort - self.under_way.get(work.number, 0.0)) / total
            self.under_way[work.number] = effort
        spent = sum(batch.spent for batch in self.batches) + sum(self.under_way.values())
        share = self.source.answered + (self.source.under_way * spent / total if total else 0.0)
        gained = share - self.first - self.found
        asked = self.source.answered + self.source.under_way
        done, failed = self.book.ended("done"), self.book.ended("failed")
        self.time.trials, self.time.failed = done + failed, failed
        self.time.points = round((self.source.answered - self.first) * self.points)
        return Report(
            trials=len(plan.trials) + (round((1 - asked) * self.most) if self.points else 0),
            known=len(plan.trials) - len(plan.missing),
            done=done,
            failed=failed,
            cohort=work.number if work else 0,
            cohorts=len(plan.cohorts),
            seconds=seconds,
            eta=seconds * (1 - share) / gained if gained > LEAST else None,
            progress=progress,
            points=self.points,
            time=self.time,
            **news,
        )


class _Batch:
    """Works that were planned together: the effort of those that are left, by number, of all, and of those that have ended."""

    def __init__(self, efforts: dict[int, float]) -> None:
        self.left = efforts
        self.total, self.spent = sum(efforts.values()), 0.0

    def finish(self, number: int) -> None:
        self.spent += self.left.pop(number, 0.0)
