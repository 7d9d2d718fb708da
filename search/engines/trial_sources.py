"""Sources of trials: a grid, raced or whole, what lies beyond its edges and the further seeds of its winners, or a search."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recallmap.results import record_files
from recallmap.results.analysis.labels import counted
from recallmap.results.analysis.selection import choose_hyperparameters
from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.engines.grid_extension import OCTAVES, beyond
from recallmap.search.engines.grid_race import GridRace
from recallmap.search.proposers.generations import Book, Inquiry, told_points
from recallmap.search.proposers.journal import Journal, journal_of
from recallmap.search.proposers.proposer import point_of
from recallmap.search.space.search_space import Search
from recallmap.search.study.race import Race
from recallmap.search.study.spec import StudySpec
from recallmap.search.trials import Trial


@dataclass(frozen=True, kw_only=True)
class Further:
    """Further seeds of the hyper-parameters that won a grid, for each architecture on each setting. Validation chooses,
    among the trials of the grid alone, so that further seeds do not change the choice.

    chosen  further seeds of the winners, where the grid is trained
    open    where it is not, so that nothing has won yet: the most further seeds for each architecture on each setting
    """

    chosen: tuple[Trial, ...]
    open: tuple[tuple[Trial, ...], ...]

    def missing(self, book: Book) -> list[Trial]:
        """The trials to train; an upper bound while some are open."""
        every = [*self.chosen, *(trial for trials in self.open for trial in trials)]
        return [trial for trial in every if content_key.key(trial) not in book]


def further(grid: Sequence[Trial], seeds: int, book: Book) -> Further:
    """The further seeds after a grid. Raises ValueError where there is a choice and no score to make it by."""
    own = {content_key.key(trial): trial for trial in grid}
    rivals: dict[str, list[str]] = defaultdict(list)
    for key, trial in own.items():
        shared = {name: part for name, part in content_key.plain(trial).items() if name not in ("training", "seed")}
        rivals[content_key.key(shared)].append(key)
    whole = [keys for keys in rivals.values() if all(key in book for key in keys)]
    half = [keys for keys in rivals.values() if not all(key in book for key in keys)]

    def reseeded(key: str) -> tuple[Trial, ...]:
        trials = [replace(own[key], seed=seed) for seed in range(seeds)]
        return tuple(trial for trial in trials if content_key.key(trial) not in own)

    choices = choose_hyperparameters(book[key] for keys in whole for key in keys)
    return Further(
        chosen=tuple(trial for choice in choices if choice.trials for trial in reseeded(choice.trials[0].key)),
        open=tuple(max(map(reseeded, keys), key=len) for keys in half),
    )


def most_further(study: StudySpec, seeds: int, ledger: Ledger, known: Mapping[str, Record] | None = None) -> int:
    """The most further trials that there are to train after the grid."""
    book = LedgerBook(ledger, known)
    return len(further(study.trials(), seeds, book).missing(book))


def extension_of(study: StudySpec, ledger: Ledger, known: Mapping[str, Record] | None = None) -> str:
    """A line on the trials beyond the edges of the grid that a run would train, as far as the ledger tells."""
    book = LedgerBook(ledger, known)
    missing = [trial for trial in beyond(study.trials(), book) if content_key.key(trial) not in book]
    then = f"{counted(len(missing), 'trial')} by the records so far, and more " if missing else ""
    return (
        f"then {then}where the best learning rate is at the edge of the grid: an octave further at a time, at most {OCTAVES} "
        "octaves"
    )


def race_of(study: StudySpec, race: Race) -> str:
    """A line on the trials of a grid that a race trains."""
    raced = GridRace(study.trials(), race)
    others = f"those of {raced.most:,} others" if race.most is None else f"{raced.most:,} others at most"
    best = "" if race.most is None else f", and among its best {race.most}"
    return (
        f"raced: {counted(len(raced.first), 'trial')} with all hyper-parameters, then {others} whose "
        f"hyper-parameters are within {race.within:g} of the best of their architecture on the task{best}"
    )


def trials_of(study: StudySpec, ledger_path: Path) -> tuple[Trial, ...]:
    """The trials of a study so far: all of a grid and beyond its edges, or those of the points in a search's journal."""
    if not isinstance(study.space, Search):
        known = record_files.read(ledger_path, patient=True, curves=False) if study.extend else []
        return (*study.trials(), *beyond(study.trials(), {record.key: record for record in known}))
    told = told_points(study, Journal(journal_of(ledger_path)))
    points = [point_of(study.space, one, kind) for kind, many in told.items() for one in many if one.end == "done"]
    found = {content_key.key(trial): trial for point in points for trial in study.expanded(point)}
    return tuple(found.values())


class LedgerBook(Mapping[str, Record]):
    """Records by key: those in the ledger that are done, those known from elsewhere, and all of this call (a failed trial is
    not tried twice)."""

    def __init__(self, ledger: Ledger, known: Mapping[str, Record] | None = None) -> None:
        self.ledger = ledger
        self.known = known or {}
        self.done = ledger.keys()
        self.read: dict[str, Record] = {}
        self.new: dict[str, Record] = {}  # of this call

    def add(self, record: Record) -> None:
        """Take a record of this call. A done one stays, as in the ledger: a cohort may die after a member has finished."""
        earlier = self.read.get(record.key)
        if earlier is None or earlier.status != "done":
            self.read[record.key] = self.new[record.key] = record

    def has_new(self, key: str) -> bool:
        """True where this call has trained the trial, and it did not fail."""
        return key in self.new and self.new[key].status == "done"

    def adopt(self, keys: Iterable[str]) -> None:
        """Copy these records into the ledger, where they are known from elsewhere and not in it."""
        for key in keys:
            if key in self.known and key not in self.done:
                self.ledger.add(self.known[key])
                self.done.add(key)

    def ended(self, status: str) -> int:
        """The number of trials of this call with this status."""
        return sum(record.status == status for record in self.new.values())

    def __contains__(self, key: object) -> bool:
        return key in self.done or key in self.read or key in self.known

    def __getitem__(self, key: str) -> Record:
        if key not in self.read:
            if key not in self.done:
                return self.known[key]
            found = self.ledger.get(key)
            (self.read[key],) = [found] if found is not None else self.ledger.of({key})  # which says what is damaged
        return self.read[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.done | set(self.read) | set(self.known))

    def __len__(self) -> int:
        return len(self.done | set(self.read) | set(self.known))


class GridSource:
    """A grid as a source of trials: all at once, or in a race; then, if they are wanted, those beyond its edges, octave by
    octave, and further seeds of the winners.

    answered, under_way  shares of the effort: of earlier trials, and of those asked for last
    """

    def __init__(self, grid: tuple[Trial, ...], seeds: int, *, extend: bool = False, race: Race | None = None) -> None:
        self.race = None if race is None else GridRace(grid, race)
        self.grid = self.trials = grid if self.race is None else self.race.first
        self.seeds = seeds
        self.extend = extend
        self.begun = self.reseeded = False
        self.notes: list[str] = []
        self.answered, self.under_way = 0.0, 1.0

    def wanted(self, book: Book, *, busy: bool = False) -> tuple[Trial, ...] | None:
        """The grid, then what lies beyond its edges, then further seeds of its winners, then None. Each needs all results of
        what was before: there is none while trials are under way (`busy`). In a race each architecture goes on by itself."""
        if not self.begun:
            self.begun = True
            self.under_way = self._share(book) if self.seeds else 1.0
            return self.grid
        if self.race is not None and (added := self._gone_on(self.race, book)):
            return added
        if busy:
            return ()
        if self.extend and (added := self._beyond(book)):
            return added
        if self.seeds and not self.reseeded:
            self.reseeded = True
            self.answered, self.under_way = self.under_way, 1 - self.under_way
            return self._further(book)
        return None

    def heard(self) -> list[str]:
        """Lines about the further seeds since the last call."""
        notes, self.notes = self.notes, []
        return notes

    def _gone_on(self, race: GridRace, book: Book) -> tuple[Trial, ...]:
        """The trials of the cells that have gone on since."""
        own = set(map(id, self.grid))
        added = tuple(trial for trial in race.going_on(book) if id(trial) not in own)
        if missing := [trial for trial in added if content_key.key(trial) not in book]:
            self.notes.append(f"{counted(len(missing), 'trial')} of hyper-parameters that are still in the race")
        self.grid += added
        self.trials += added
        return added

    def _beyond(self, book: Book) -> tuple[Trial, ...]:
        """The trials beyond the edges of the grid that were not asked for yet."""
        own = set(map(content_key.key, self.trials))
        added = tuple(trial for trial in beyond(self.grid, book) if content_key.key(trial) not in own)
        if missing := [trial for trial in added if content_key.key(trial) not in book]:
            self.notes.append(
                f"{counted(len(missing), 'trial')} beyond the grid: the best learning rate was at its edge"
            )
        self.trials += added
        return added

    def _share(self, book: Book) -> float:
        """The grid's share of the effort that is left."""
        first = sum(trial.effort for trial in self.grid if content_key.key(trial) not in book)
        after = sum(trial.effort for trial in further(self.trials, self.seeds, book).missing(book))
        return first / (first + after) if after else 1.0

    def _further(self, book: Book) -> tuple[Trial, ...]:
        found = further(self.trials, self.seeds, book)
        if missing := found.missing(book):
            self.notes.append(
                f"{counted(len(missing), 'further trial')}: seeds 0..{self.seeds - 1} of the best settings"
            )
        return found.chosen


def source_of(
    study: StudySpec, ledger_path: Path, measure: Callable[[Trial], float], seeds: int
) -> Inquiry | GridSource:
    if isinstance(study.space, Search):
        return Inquiry(study, Journal(journal_of(ledger_path)), measure)
    return GridSource(study.trials(), seeds, extend=study.extend, race=study.race)
