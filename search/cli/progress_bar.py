"""The progress of a running study: a bar with an estimate on a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from recallmap.results.analysis.labels import flatten
from recallmap.results.escape import one_line
from recallmap.results.record import Record
from recallmap.search.documents.type_hints import counted
from recallmap.search.engines.plan import Report
from recallmap.search.study.differences import values_of

EVERY = 30.0  # seconds between two plain lines from within a cohort


class Live:
    """A display that is called with every report of the engine. As a context it clears its bar when the study ends or is
    stopped.

    paths  paths of a trial's spec that tell it apart from others of its study, see `paths_of`
    """

    def __init__(self, console: Console, paths: Sequence[str] = ()) -> None:
        self.console = console
        self.paths = paths
        self.last: Report | None = None
        self.said = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self.bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.trials = self.bar.add_task("trials", note="", total=None)

    def __enter__(self) -> Live:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # a terminal that was closed has no bar to clear
            self.bar.stop()

    @property
    def kept(self) -> str:
        """The part of the study that the ledger has, in words."""
        return f"{self.last.known + self.last.done} of {self.last.trials} trials are" if self.last else "nothing is"

    def __call__(self, report: Report) -> None:
        first, self.last = self.last is None, report
        if first:
            self.console.print(opening_of(report))
        for note in report.notes:
            self.console.print(note, markup=False, soft_wrap=True)
        for record in report.records:
            self.console.print(line_of(record, self.paths), markup=False, soft_wrap=True)
        note = note_of(report)
        done = report.known + report.done + report.failed
        self.bar.update(self.trials, completed=done, total=report.trials, note=note)
        if not self.console.is_terminal and report.progress and time.monotonic() - self.said > EVERY:
            self.said = time.monotonic()
            self.console.print(f"{done} of {report.trials} trials  {note}", markup=False, soft_wrap=True)


def opening_of(report: Report) -> str:
    """The first line: the trials to train."""
    if report.points:
        return f"{counted(report.points, 'point')}, about {counted(report.trials, 'trial')}"
    known = f", {report.known} known" if report.known else ""
    train = f"{report.trials - report.known} to train in {counted(report.cohorts, 'cohort')}"
    return f"{counted(report.trials, 'trial')}{known}, {train}"


def line_of(record: Record, paths: Sequence[str] = ()) -> str:
    """The line of one finished trial, with its values at these paths of its spec."""
    training = record.spec.get("training") or record.spec.get("arch", {})  # an online learner has its own
    own = [f"{name}={_short(value)}" for name, value in values_of(dict(flatten(record.spec)), paths).items()]
    name = "  ".join([record.arch, f"{record.task} {record.setting}".rstrip(), *([" ".join(own)] if own else [])])
    hyper = f"lr {training.get('lr', '?')}  decay {training.get('weight_decay', '?')}  seed {record.seed}"
    if record.status == "failed":
        return one_line(f"FAILED  {name}  {hyper}: {record.error}")
    score = record.scores.get(record.metric, math.nan)
    compiled, _, why = record.implementation.get("compiled step", "yes").partition(": ")
    how = {"no": "not compiled", "in part": "compiled in part"}.get(compiled)
    notes = f"  {how}: {why}" if how and not record.device.startswith("cpu") else ""
    died = record.implementation.get("halved", "").partition("\n")[0]
    notes += f"  its cohort was halved: {died}" if died else ""
    return one_line(
        f"{name}  {hyper}  {record.metric} {score:.4f} (chance {record.chance:.3g})  {record.seconds:.1f} s{notes}"
    )


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.lower() if isinstance(value, bool) else text


def note_of(report: Report) -> str:
    """The running cohort, and the time that is left."""
    many = "" if report.points else f" of {report.cohorts}"
    words = [f"cohort {report.cohort}{many}"] if report.cohort else []
    if report.progress:
        p = report.progress
        best = max((a for a in p.accuracy if not math.isnan(a)), default=None)
        words += [f"step {p.step}/{p.steps}"]
        words += [] if math.isnan(p.loss) else [f"loss {p.loss:.3f}"]
        words += [] if best is None else [f"best {best:.3f}"]
    return "  ".join([*words, *([] if report.eta is None else [f"{duration(report.eta)} left"])])


def duration(seconds: float) -> str:
    """40 s, 3 min, 1 h 5 min, 2 d 3 h."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
