"""Where trials run: a driver asks what to train and keeps every record the moment it exists; engines only train."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from results.choose import choose_hyperparameters
from results.ledger import Ledger, LedgerError
from results.record import Record
from search import codec, foreign
from search.cohort import Room, at_most, default_device, follow_cohort, pack, record_of, room
from search.document import SpecError
from search.inquiry import Book, Inquiry, told_points
from search.propose import Journal, point_of
from search.single import TrialSpec
from search.space import Search
from search.speed import milliseconds
from search.study import StudySpec, Trial
from search.training import Outcome, Progress
from search.typed import counted
from search.unfinished import Shelf, kept_on


class EngineError(Exception):
    """What an engine trains with is gone, and no trial is at fault; the message says what. The same study again goes on."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Where a study stands. `records` are those just finished; `progress` comes from within the running cohort."""

    trials: int  # of a search that is under way: about; of a grid so far: further seeds come after it
    known: int  # trials the ledger had before this call, of those that came up so far
    done: int  # of this call, as is `failed`
    failed: int
    cohort: int  # number of the running cohort, from 1
    cohorts: int  # of a search: so far
    seconds: float
    eta: float | None  # seconds to the end; None before there is anything to go by
    progress: Progress | None = None
    records: tuple[Record, ...] = ()
    points: int = 0  # of a search, all proposers together; 0 for a grid
    notes: tuple[str, ...] = ()  # lines about points that just had their answer, or about further seeds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a study would train: its trials, those the ledger lacks, and their cohorts (indices into `missing`)."""

    trials: tuple[Trial, ...]
    missing: tuple[Trial, ...]
    cohorts: tuple[tuple[int, ...], ...]


def plan(study: StudySpec, finished: set[str], *, room: Room, part: tuple[int, int] = (1, 1)) -> Plan:
    """Which trials of a grid, or of a part of it, are to train, and together with which."""
    trials = _share_of(study.trials(), room, part)
    missing = tuple(t for t in trials if codec.key(t) not in finished)
    return Plan(trials=trials, missing=missing, cohorts=tuple(tuple(c) for c in pack(missing, room)))


def _share_of(trials: Sequence[Trial], room: Room, part: tuple[int, int]) -> tuple[Trial, ...]:
    """Every n-th cohort of the trials, from the i-th on, in the order in which they were given."""
    number, parts = part
    cohorts = pack(trials, room)[number - 1 :: parts] if parts > 1 else [range(len(trials))]
    return tuple(trials[i] for i in sorted(i for cohort in cohorts for i in cohort))


@dataclass(frozen=True, kw_only=True)
class Further:
    """The first seeds, beyond those of a grid, of the hyper-parameters that won on it: for each architecture on each
    setting, on validation, among the trials of the grid alone, so that further seeds do not change what won.

    chosen  of what won, where all of the grid is trained
    open    where not, so that nothing has won yet: for each architecture on each setting the most that there can be
    """

    chosen: tuple[Trial, ...]
    open: tuple[tuple[Trial, ...], ...]

    def missing(self, book: Book) -> list[Trial]:
        """Those that are to train; at most, while some are open."""
        every = [*self.chosen, *(trial for trials in self.open for trial in trials)]
        return [trial for trial in every if codec.key(trial) not in book]


def further(grid: Sequence[Trial], seeds: int, book: Book) -> Further:
    """What comes after a grid. Raises ValueError where there is a choice and no score to make it by."""
    own = {codec.key(trial): trial for trial in grid}
    rivals: dict[str, list[str]] = defaultdict(list)
    for key, trial in own.items():
        shared = {name: part for name, part in codec.plain(trial).items() if name not in ("training", "seed")}
        rivals[codec.key(shared)].append(key)
    whole = [keys for keys in rivals.values() if all(key in book for key in keys)]
    half = [keys for keys in rivals.values() if not all(key in book for key in keys)]

    def reseeded(key: str) -> tuple[Trial, ...]:
        trials = [replace(own[key], seed=seed) for seed in range(seeds)]
        return tuple(trial for trial in trials if codec.key(trial) not in own)

    choices = choose_hyperparameters(book[key] for keys in whole for key in keys)
    return Further(
        chosen=tuple(trial for choice in choices if choice.trials for trial in reseeded(choice.trials[0].key)),
        open=tuple(max(map(reseeded, keys), key=len) for keys in half),
    )


def most_further(study: StudySpec, seeds: int, ledger: Ledger) -> int:
    """How many further trials there are to train after the grid, at most."""
    book = _Book(ledger)
    return len(further(study.trials(), seeds, book).missing(book))


@dataclass(frozen=True, kw_only=True)
class Work:
    """A cohort to train now: trials of equal shape. `number` counts the cohorts of a call, from 1."""

    number: int
    specs: tuple[Trial, ...]


class Driver:
    """Asks, keeps, tells. Only the driver touches the ledger and the journal of a search; an engine trains what `next`
    gives and hands the records to `keep`, in any order. Several works may be out at once.

    most   members of a cohort at most; None: as cohort.room says
    where  the device that the driver itself has
    on     the kind of device that cohorts train on; None: as `where`
    part   (i, n): every n-th cohort, from the i-th on; n calls with ledgers of their own train the whole grid
    seeds  after the whole grid, so many seeds of what won on it; see `Further`
    laid   keys of trials that were interrupted together: each of these is a cohort of its own, to go on where it was
    """

    def __init__(
        self,
        study: StudySpec,
        ledger: Ledger,
        *,
        report: Callable[[Report], None] = lambda _: None,
        most: int | None = None,
        where: torch.device | str | None = None,
        on: str | None = None,
        part: tuple[int, int] = (1, 1),
        seeds: int = 0,
        laid: Sequence[frozenset[str]] = (),
    ) -> None:
        if isinstance(study.space, Search) and part != (1, 1):
            raise ValueError("a search is not shared out: what it asks next depends on all that was answered")
        if seeds and (isinstance(study.space, Search) or part != (1, 1)):
            raise ValueError("further seeds are of what won on a whole grid: not of a search, nor of a part")
        self.part = part
        self.laid = laid
        self.study = study
        self.ledger = ledger
        self.where = torch.device(where or default_device())
        self.room = room(torch.device(on) if on else self.where) if most is None else at_most(most)
        self.plan = Plan(trials=(), missing=(), cohorts=())
        self._planned: set[str] = set()
        self._report = report
        self._book = _Book(ledger)
        self._source = _source_of(study, ledger.path, self._measure, seeds)
        self._waiting: deque[Work] = deque()
        self._out: dict[int, Work] = {}
        self._ended = False
        self._clock = _Clock(study, self._source, self._book)
        if isinstance(self._source, Inquiry):
            self._meet()
            # A point may have its answer in the journal, and its records in a ledger that is gone.
            self._take(trials_of(study, ledger.path))
        else:
            self._refill()
            self._ended = self._ended or not seeds  # without them all is known before the first cohort
        report(self._clock.report(self.plan))

    @property
    def finished(self) -> bool:
        """Whether nothing more will come: all is trained and kept."""
        return self._ended and not self._waiting and not self._out

    def next(self) -> Work | None:
        """A cohort to train now. None: nothing now, because all is done or because what comes next depends on what is
        out: ask again after the next `keep`."""
        if not self._waiting and not self._out:
            self._refill()
        if not self._waiting:
            return None
        work = self._waiting.popleft()
        self._out[work.number] = work
        return work

    def _refill(self) -> None:
        """Ask for trials until some must be trained, or none will come."""
        while not self._waiting and not self._ended:
            wanted = self._source.wanted(self._book)
            self._meet()
            notes = self._source.heard()
            if wanted is None:
                self._ended = True
            else:
                self._take(wanted)
            if notes:
                self._report(self._clock.report(self.plan, notes=tuple(notes)))

    def _meet(self) -> None:
        """Plan, as known, what points came to and the ledger had before this call: nobody wants it."""
        met = self._source.met().items() if isinstance(self._source, Inquiry) else ()
        known = {key: trial for key, trial in met if key in self._book.done and key not in self._planned}
        self._planned.update(known)
        self.plan = replace(self.plan, trials=(*self.plan.trials, *known.values()))

    def _take(self, wanted: Sequence[Trial]) -> None:
        """Plan what of it is ours and not in the ledger."""
        wanted = _share_of(wanted, self.room, self.part)
        new = {key: trial for trial in wanted if (key := codec.key(trial)) not in self._planned}
        missing = [trial for trial in wanted if codec.key(trial) not in self._book]
        foreign.check(missing, self.where)
        self._planned.update(new)
        first = len(self.plan.missing)
        cohorts = [tuple(first + index for index in cohort) for cohort in pack(missing, self.room, self.laid)]
        number = len(self.plan.cohorts)
        self.plan = Plan(
            trials=(*self.plan.trials, *new.values()),
            missing=self.plan.missing + tuple(missing),
            cohorts=(*self.plan.cohorts, *cohorts),
        )
        for cohort in cohorts:
            number += 1
            self._waiting.append(Work(number=number, specs=tuple(self.plan.missing[i] for i in cohort)))
        self._clock.begin(missing)

    def _measure(self, spec: Trial) -> float:
        """Milliseconds of a forward pass. It is asked for when no work is out."""
        if not isinstance(spec, TrialSpec):
            raise TypeError(f"a trial of kind {spec.kind} has no forward pass to measure")
        return milliseconds(spec, self.where)

    def progress(self, work: Work, progress: Progress) -> None:
        """Say how far a work is, and keep what is through. Raises LedgerError where it cannot be written."""
        for record in progress.ended.values():
            self._add(record)
        self._report(self._clock.report(self.plan, work, progress=progress))

    def keep(self, work: Work, records: Sequence[Record]) -> None:
        """Take the records of a work, one for each of its specs, in order. Raises LedgerError where they cannot be
        written."""
        if len(records) != len(work.specs):
            raise ValueError(f"work {work.number} has {len(work.specs)} trials, got {len(records)} records")
        for record in records:
            self._add(record)
        del self._out[work.number]
        self._clock.finish(work)
        self._report(self._clock.report(self.plan, work, records=tuple(records)))

    def _add(self, record: Record) -> None:
        self.ledger.add(record)
        self._book.add(record)


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

            shelf.owners = [codec.key(spec) for spec in work.specs]
            driver.keep(work, train(work.specs, study.name, where, tell))
            shelf.clear()
    return driver.plan


def train(specs: Sequence[Trial], study: str, device: torch.device, report: Callable[[Progress], None]) -> list[Record]:
    """The records of a cohort. One that dies is halved and tried again, so that only the trial at fault fails; the records say
    that it was, and why. Raises LedgerError where what it learns cannot be kept."""
    try:
        steps = follow_cohort(specs, study=study, device=device)
        while True:
            report(next(steps))
    except StopIteration as end:
        return end.value
    except (LedgerError, SpecError):  # no trial's fault; a kind that must not train
        raise
    except Exception as error:  # whatever a trial does, the study goes on and its record says why
        why = f"{type(error).__name__}: {error}"
    # Only out here is the memory of the cohort free again: the error held on to it.
    if len(specs) == 1:
        return [failed(specs[0], why, study=study, device=device)]
    half = len(specs) // 2
    records = [r for part in (specs[:half], specs[half:]) for r in train(part, study, device, report)]
    return [replace(r, implementation={"halved": why, **r.implementation}) for r in records]


def failed(spec: Trial, why: str, *, study: str, device: torch.device) -> Record:
    """The record of a trial that died."""
    return record_of(spec, Outcome(error=why), study=study, device=device, members=1, implementation={})


def trials_of(study: StudySpec, ledger_path: Path) -> tuple[Trial, ...]:
    """The trials that a study has so far: all of a grid; of a search those of the points that its journal tells of."""
    if not isinstance(study.space, Search):
        return study.trials()
    told = told_points(study, Journal(journal_of(ledger_path)))
    points = [point_of(study.space, one, kind) for kind, many in told.items() for one in many if one.end == "done"]
    found = {codec.key(trial): trial for point in points for trial in study.expanded(point)}
    return tuple(found.values())


def journal_of(ledger_path: Path) -> Path:
    """Where the searches of a ledger keep their points."""
    return ledger_path.with_suffix(".journal")


def shelf_of(ledger_path: Path) -> Path:
    """Where the unfinished cohorts of a ledger lie."""
    return Path(ledger_path).with_suffix(".unfinished")


class _Book(Mapping[str, Record]):
    """What is trained: records of the ledger that are done, and all of this call (what failed is not tried twice)."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.done = ledger.keys()
        self.read: dict[str, Record] = {}
        self.new: dict[str, Record] = {}  # of this call

    def add(self, record: Record) -> None:
        """Take a record of this call. A done one stands, as in the ledger: a cohort may die after a member was through."""
        earlier = self.read.get(record.key)
        if earlier is None or earlier.status != "done":
            self.read[record.key] = self.new[record.key] = record

    def ended(self, status: str) -> int:
        """How many trials of this call ended so."""
        return sum(record.status == status for record in self.new.values())

    def __contains__(self, key: object) -> bool:
        return key in self.done or key in self.read

    def __getitem__(self, key: str) -> Record:
        if key not in self.read:
            if key not in self.done:
                raise KeyError(key)
            found = self.ledger.get(key)
            (self.read[key],) = [found] if found is not None else self.ledger.of({key})  # which says what is damaged
        return self.read[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.done | set(self.read))

    def __len__(self) -> int:
        return len(self.done | set(self.read))


class _Listed:
    """A grid as a source of trials: all at once, and after them the further seeds of what won, if any are wanted.

    answered, under_way  shares of the effort: of what was asked before, and of what was asked last
    """

    def __init__(self, grid: tuple[Trial, ...], seeds: int) -> None:
        self.grid = grid
        self.seeds = seeds
        self.asked = 0
        self.notes: list[str] = []
        self.answered, self.under_way = 0.0, 1.0

    def wanted(self, book: Book) -> tuple[Trial, ...] | None:
        """The grid, then what won on it by then, then None."""
        self.asked += 1
        if self.asked == 1:
            self.under_way = self._share(book) if self.seeds else 1.0
            return self.grid
        if self.asked == 2 and self.seeds:
            self.answered, self.under_way = self.under_way, 1 - self.under_way
            return self._further(book)
        return None

    def heard(self) -> list[str]:
        """Lines about the further seeds since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def _share(self, book: Book) -> float:
        """How much of what is left to do is the grid."""
        first = sum(trial.effort for trial in self.grid if codec.key(trial) not in book)
        after = sum(trial.effort for trial in further(self.grid, self.seeds, book).missing(book))
        return first / (first + after) if after else 1.0

    def _further(self, book: Book) -> tuple[Trial, ...]:
        found = further(self.grid, self.seeds, book)
        if missing := found.missing(book):
            self.notes.append(f"{counted(len(missing), 'further trial')}: seeds 0..{self.seeds - 1} of what won")
        return found.chosen


def _source_of(study: StudySpec, ledger_path: Path, measure: Callable[[Trial], float], seeds: int) -> Inquiry | _Listed:
    if isinstance(study.space, Search):
        return Inquiry(study, Journal(journal_of(ledger_path)), measure)
    return _Listed(study.trials(), seeds)


class _Clock:
    """Counts trials and estimates what is left: by the share of points that have their answer, and within a generation
    by the work (steps x operations) done."""

    def __init__(self, study: StudySpec, source: Inquiry | _Listed, book: _Book) -> None:
        self.source = source
        self.book = book
        self.most = study.most_trials
        self.points = study.space.most_points if isinstance(study.space, Search) else 0
        self.began = time.perf_counter()
        self.first = source.answered
        self.total = self.spent = 0.0  # effort of what was last begun
        self.under_way: dict[int, float] = {}  # effort by number of a work that is out

    def begin(self, specs: Sequence[Trial]) -> None:
        self.total, self.spent = sum(s.effort for s in specs), 0.0

    def finish(self, work: Work) -> None:
        self.under_way.pop(work.number, None)
        self.spent += sum(s.effort for s in work.specs)

    def report(
        self,
        plan: Plan,
        work: Work | None = None,
        *,
        progress: Progress | None = None,
        records: tuple[Record, ...] = (),
        notes: tuple[str, ...] = (),
    ) -> Report:
        seconds = time.perf_counter() - self.began
        if work is not None and progress is not None:
            self.under_way[work.number] = sum(s.effort for s in work.specs) * progress.step / max(1, progress.steps)
        spent = self.spent + sum(self.under_way.values())
        share = self.source.answered + (self.source.under_way * spent / self.total if self.total else 0.0)
        gained = share - self.first
        asked = self.source.answered + self.source.under_way
        return Report(
            trials=len(plan.trials) + (round((1 - asked) * self.most) if self.points else 0),
            known=len(plan.trials) - len(plan.missing),
            done=self.book.ended("done"),
            failed=self.book.ended("failed"),
            cohort=work.number if work else 0,
            cohorts=len(plan.cohorts),
            seconds=seconds,
            eta=seconds * (1 - share) / gained if gained > 0 else None,
            progress=progress,
            records=records,
            points=self.points,
            notes=notes,
        )
