"""The plan of a study, and the reports of an engine that executes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.engines.time_spent import TimeSpent
from recallmap.search.study.spec import StudySpec
from recallmap.search.training.outcome import Progress
from recallmap.search.training.packing import Room, pack
from recallmap.search.trials import Trial


@dataclass(frozen=True, kw_only=True)
class Work:
    """A cohort to train now: trials of equal shape. `number` counts the cohorts of a call, from 1."""

    number: int
    specs: tuple[Trial, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The state of a running study. `records` are those just finished; `progress` comes from within a cohort under way.

    begun      the cohort whose training begins, or is resumed, where the report tells of one
    under_way  all cohorts that train now, with the one that begins and without those that have ended
    """

    trials: int  # for a running search an estimate; for a grid without its further seeds
    known: int  # trials of the plan so far that the ledger had before this call
    done: int  # in this call, as is `failed`
    failed: int
    cohort: int  # number of the running cohort, from 1
    cohorts: int  # for a search: so far
    seconds: float
    eta: float | None  # seconds to the end; None before there is anything to go by
    progress: Progress | None = None
    records: tuple[Record, ...] = ()
    points: int = 0  # of a search, all proposers together; 0 for a grid
    notes: tuple[str, ...] = ()  # lines about points that just got their results, or about further seeds
    begun: Work | None = None
    under_way: tuple[Work, ...] = ()
    time: TimeSpent = field(default_factory=TimeSpent)  # where it went; it goes on until the run ends


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The trials of a study, those that the ledger lacks, and their cohorts (indices into `missing`)."""

    trials: tuple[Trial, ...]
    missing: tuple[Trial, ...]
    cohorts: tuple[tuple[int, ...], ...]

    @property
    def known(self) -> list[Trial]:
        """The trials that the ledger had."""
        missing = set(map(content_key.key, self.missing))
        return [trial for trial in self.trials if content_key.key(trial) not in missing]


def plan(study: StudySpec, finished: set[str], *, room: Room, part: tuple[int, int] = (1, 1)) -> Plan:
    """The plan of a grid, or of a part of it: the trials to train, and their cohorts."""
    trials = share_of(study.trials(), room, part)
    missing = tuple(t for t in trials if content_key.key(t) not in finished)
    return Plan(trials=trials, missing=missing, cohorts=tuple(tuple(c) for c in pack(missing, room)))


def share_of(trials: Sequence[Trial], room: Room, part: tuple[int, int]) -> tuple[Trial, ...]:
    """Every n-th cohort of the trials from the i-th on, in the given order."""
    number, parts = part
    cohorts = pack(trials, room)[number - 1 :: parts] if parts > 1 else [range(len(trials))]
    return tuple(trials[i] for i in sorted(i for cohort in cohorts for i in cohort))
