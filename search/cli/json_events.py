"""A run as lines of JSON, one an event: `run --json`. docs/terminal.md lists the events and their fields, which stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recallmap.results.analysis.labels import flatten
from recallmap.results.record import Record
from recallmap.search.cli.json_text import line
from recallmap.search.cli.pace import Pace
from recallmap.search.cli.run_display import End, Names, Quiet
from recallmap.search.cli.streams import complain, say
from recallmap.search.cli.trial_lines import has_not_learned
from recallmap.search.documents import content_key
from recallmap.search.engines.plan import Report, Work
from recallmap.search.engines.time_spent import TimeSpent
from recallmap.search.study.differences import values_of, values_of_blocks

OF_TIME = {  # figures of the account of time, and their names in JSON
    "wall s": "wall_s",
    "trials an hour": "trials_per_hour",
    "points an hour": "points_per_hour",
    "mean cohort size": "mean_cohort_size",
    "cohorts at once": "cohorts_at_once",
    "GPU busy": "gpu_busy",
}


class Events(Quiet):
    """Every report as events on stdout: began, cohort, progress, trial, note, end."""

    def __init__(self, names: Names, study: str, ledger: str) -> None:
        super().__init__(names)
        self.study, self.ledger = study, ledger
        self.pace = Pace()

    def __call__(self, report: Report) -> None:
        first, self.last = self.last is None, report
        self.pace.hear(report)
        if first:
            self._began(report)
        for note in report.notes:
            self.note(note)
        if report.begun is not None:
            self._cohort(report.begun)
        for record in report.records:
            self._trial(record, report.cohort)
        if report.progress is not None:
            self._progress(report)

    def note(self, text: str) -> None:
        _tell("note", text=text)

    def end(self, end: End) -> None:
        last = self.last
        counts = {
            name: getattr(last, name) if last is not None else 0 for name in ("trials", "known", "done", "failed")
        }
        spent = _spent(last.time) if last is not None and last.time.cohorts else None
        saved = [{"trials": one.trials, "step": one.step, "steps": one.steps} for one in end.saved]
        whole = {"exit_code": end.code, **counts, "saved": saved, "ledger": str(end.ledger), "next": end.next}
        _tell("end", status=end.status, **whole, time=spent)
        if end.status != "finished":
            complain("\n".join(end.lines(last)))

    def _began(self, report: Report) -> None:
        searched = {"points": report.points or None, "cohorts": None if report.points else report.cohorts}
        counts = {"trials": report.trials, "known": report.known}
        _tell("began", study=self.study, ledger=self.ledger, **counts, **searched)

    def _cohort(self, work: Work) -> None:
        _tell(
            "cohort",
            cohort=work.number,
            trials=len(work.specs),
            archs=list(dict.fromkeys(spec.name for spec in work.specs)),
            tasks=list(dict.fromkeys(spec.task.kind for spec in work.specs)),
            keys=[content_key.key(spec) for spec in work.specs],
        )

    def _progress(self, report: Report) -> None:
        progress = report.progress
        assert progress is not None
        counts = {"done": report.done, "failed": report.failed, "running": self.pace.running(report)}
        _tell(
            "progress",
            cohort=report.cohort,
            step=progress.step,
            steps=progress.steps,
            resumed=progress.resumed,
            loss=progress.loss,
            best=progress.best,
            left_s=self.pace.left(report.cohort),
            run_left_s=report.eta,
            **counts,
            gpu_busy=report.time.busy.mean,
        )

    def _trial(self, record: Record, cohort: int) -> None:
        training = record.spec.get("training") or record.spec.get("arch", {})  # an online learner has its own
        _tell(
            "trial",
            status=record.status,
            key=record.key,
            cohort=cohort,
            arch=record.arch,
            task=record.task,
            setting=record.setting,
            seed=record.seed,
            lr=training.get("lr"),
            weight_decay=training.get("weight_decay"),
            varies=_varied(record, self.names),
            metric=record.metric,
            score=record.scores.get(record.metric),
            chance=record.chance,
            ceiling=record.ceiling,
            learned=None if record.status != "done" else not has_not_learned(record),
            scores=record.scores,
            validation=record.validation,
            parameters=record.parameters,
            state_bytes=record.state_bytes,
            steps=record.steps,
            seconds=record.seconds,
            error=record.error,
        )


def _tell(event: str, **fields: Any) -> None:
    say(line({"event": event, **fields}), flush=True)


def _varied(record: Record, names: Names) -> dict[str, Any]:
    """What varies in the study, by the shortest unique end of its path; in blocks by letter, such as m.mixer.heads."""
    leaves = dict(flatten(record.spec))
    blocks = values_of_blocks(leaves, record.arch, names.alphabets)
    inside = {f"{letter}.{path}": value for letter, own in blocks.items() for path, value in own.items()}
    return inside | values_of(leaves, names.paths)


def _spent(time: TimeSpent) -> Mapping[str, Any]:
    return {OF_TIME.get(name, name): figure for name, figure in time.figures().items()} | {"phases_s": time.seconds()}
