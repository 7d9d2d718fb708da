"""What a run shows of itself: nothing but failures, plain lines, or lines of JSON; at a terminal see `live_display`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console

from recallmap.results.record import Record
from recallmap.search.cli.streams import complain, say
from recallmap.search.cli.trial_lines import legend_of, line_of, note_of, opening_of
from recallmap.search.cli.unfinished import at_step, said_saved
from recallmap.search.engines.plan import Report
from recallmap.search.study.differences import Alphabet, alphabets_of, paths_of
from recallmap.search.study.spec import StudySpec
from recallmap.search.training.checkpoints import SavedCohort

EVERY = 60.0  # seconds between two plain lines from within a cohort

FIRST = 10.0  # seconds before the first of them


@dataclass(frozen=True, kw_only=True)
class End:
    """The end of a run.

    status  finished, stopped (by a signal), out of time, or failed (the engine, not a trial)
    code    the exit code of the process
    next    the command to run next, or again
    saved   cohorts that are saved in the middle of training, and are resumed by that command
    """

    status: str
    code: int
    ledger: Path
    next: str
    why: str = ""
    saved: Sequence[SavedCohort] = ()

    def lines(self, last: Report | None) -> list[str]:
        """Lines for people: the time, what the ledger has, and what to do next."""
        spent = [last.time.line()] if last is not None and last.time.cohorts else []
        if self.status != "finished":
            kept = f"{kept_of(last)} in {self.ledger}{self._of_cohorts(last)}"
            return [*spent, f"stopped{self.why}; {kept}. To resume:", f"  {self.next}"]
        if last is None:
            return []
        counts = f"{last.known} known, {last.done} done, {last.failed} failed, in {self.ledger}"
        return [*spent, counts, f"next: {self.next}"]

    def _of_cohorts(self, last: Report | None) -> str:
        """What is saved of unfinished cohorts, or that nothing is."""
        if self.saved:
            return f"; {said_saved(self.saved)}"
        lost = len(last.under_way) if last is not None else 0
        if not lost:
            return ""
        which = "the cohort under way is not saved and begins anew"
        return f"; {which if lost == 1 else f'{lost} cohorts under way are not saved and begin anew'}"


def kept_of(last: Report | None) -> str:
    """The part of the study that the ledger has, in words."""
    return f"{last.known + last.done} of {last.trials} trials are" if last is not None else "nothing is"


@dataclass(frozen=True, kw_only=True)
class Names:
    """What tells the trials of a study apart: see `paths_of` and `alphabets_of`."""

    paths: Sequence[str] = ()
    alphabets: Sequence[Alphabet] = ()

    @classmethod
    def of(cls, study: StudySpec) -> Names:
        return cls(paths=paths_of(study), alphabets=alphabets_of(study))

    def line(self, record: Record) -> str:
        """The line of a finished trial."""
        return line_of(record, self.paths, self.alphabets)


class Quiet:
    """Failures of trials on stderr, and the last lines. It is called with every report of the engine, and is a context while
    the study runs."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.last: Report | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, report: Report) -> None:
        self.last = report
        for record in report.records:
            if record.status == "failed":
                complain(self.names.line(record))

    def close(self) -> None:
        """Clear what is not to stay; once more does no harm."""

    def note(self, text: str) -> None:
        """Take a line about the run that is neither a fault nor a trial."""

    def end(self, end: End) -> None:
        """Show the end: on stdout, or on stderr where the run was broken off."""
        lines = end.lines(self.last)
        if end.status != "finished":
            complain("\n" + "\n".join(lines))
            return
        for line in lines:
            say(line)


class Lines(Quiet):
    """Plain lines: for a file, a pipe, or a terminal that cannot move its cursor."""

    def __init__(self, names: Names, console: Console) -> None:
        super().__init__(names)
        self.console = console
        self.said = monotonic() + FIRST - EVERY

    def __call__(self, report: Report) -> None:
        first, self.last = self.last is None, report
        if first:
            self.note(opening_of(report))
            for line in legend_of(self.names.alphabets):
                self.note(line)
        for note in report.notes:
            self.note(note)
        if report.progress is not None and report.progress.resumed:
            found = report.progress
            self.note(f"cohort {report.cohort} is resumed at step {at_step(found.step, found.steps)}")
        for record in report.records:
            self.note(self.names.line(record))
        self.progress(report)

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def progress(self, report: Report) -> None:
        """Say every few moments how far the run is."""
        if report.progress and monotonic() - self.said >= EVERY:
            self.said = monotonic()
            done = report.known + report.done + report.failed
            self.note(f"{done} of {report.trials} trials  {note_of(report)}")
