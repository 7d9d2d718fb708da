"""Lines about the trials of a running study, for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from recallmap.results.analysis.labels import counted, flatten
from recallmap.results.escape import one_line
from recallmap.results.record import Record
from recallmap.results.score_tables.table import more_is_better
from recallmap.search.documents.numbers import written
from recallmap.search.engines.plan import Report, Work
from recallmap.search.study.differences import Alphabet, said_blocks, values_of, values_of_blocks
from recallmap.search.trials.geometry import few

LONGEST = 160  # letters of a line, where it can be so short

NOT_LEARNED = ": has not learned (try another rate or more steps)"


def opening_of(report: Report) -> str:
    """The first line: the trials to train."""
    if report.points:
        return f"{counted(report.points, 'point')}, about {counted(report.trials, 'trial')}"
    known = f", {report.known} known" if report.known else ""
    train = f"{report.trials - report.known} to train in {counted(report.cohorts, 'cohort')}"
    return f"{counted(report.trials, 'trial')}{known}, {train}"


def legend_of(alphabets: Sequence[Alphabet]) -> list[str]:
    """The line that explains the blocks in the lines of trials; none where no order of blocks is searched for."""
    said = " ".join(one.legend for one in alphabets if one.legend)
    return [f"blocks in lines of trials: {said}"] if said else []


def line_of(record: Record, paths: Sequence[str] = (), alphabets: Sequence[Alphabet] = ()) -> str:
    """The line of one finished trial, with its values at these paths of its spec, and in its blocks of these alphabets."""
    training = record.spec.get("training") or record.spec.get("arch", {})  # an online learner has its own
    leaves = dict(flatten(record.spec))
    own = said_blocks(values_of_blocks(leaves, record.arch, alphabets))
    own += [f"{name}={written(value)}" for name, value in values_of(leaves, paths).items()]
    name = "  ".join([record.arch, f"{record.task} {record.setting}".rstrip(), *([" ".join(own)] if own else [])])
    rate, decay = (written(training.get(name, "?")) for name in ("lr", "weight_decay"))
    hyper = f"lr {rate}  decay {decay}  seed {record.seed}"
    if record.status == "failed":
        return one_line(f"FAILED  {name}  {hyper}: {record.error}")
    score = record.scores.get(record.metric, math.nan)
    compiled, _, why = record.implementation.get("compiled step", "yes").partition(": ")
    how = {"no": "not compiled", "in part": "compiled in part"}.get(compiled)
    notes = f"  {how}: {why}" if how and not record.device.startswith("cpu") else ""
    died = record.implementation.get("halved", "").partition("\n")[0]
    notes += f"  its cohort was halved: {died}" if died else ""
    line = f"{name}  {hyper}  {record.metric} {score:.4f} (chance {record.chance:.3g})"
    rest = f"  {record.seconds:.1f} s{notes}"
    for remark in (NOT_LEARNED, NOT_LEARNED.partition(" (")[0]) if has_not_learned(record) else ("",):
        said = one_line(f"{line}{remark}{rest}")
        if len(said) <= LONGEST:
            break
    return said


def has_not_learned(record: Record) -> bool:
    """True for a trained model that scores no better than guessing does."""
    score = record.scores.get(record.metric)
    if score is None or record.status != "done":
        return False
    return score <= record.chance if more_is_better(record.metric) else score >= record.chance


def number_of_best(record: Record) -> str:
    """The score of the best trial and its name, in few words."""
    return (
        f"{record.metric} {record.scores[record.metric]:.4f}: {record.arch} on {record.task} {record.setting}".rstrip()
    )


def few_words(work: Work) -> str:
    """`8 x mesa on mqar`: the trials of a cohort."""
    archs, tasks = (
        few(list(dict.fromkeys(each))) for each in zip(*((s.name, s.task.kind) for s in work.specs), strict=True)
    )
    return f"{len(work.specs)} x {archs} on {tasks}"


def note_of(report: Report) -> str:
    """The running cohort, and the time that is left."""
    many = "" if report.points else f" of {report.cohorts}"
    words = [f"cohort {report.cohort}{many}"] if report.cohort else []
    if report.progress:
        p = report.progress
        words += [f"step {p.step}/{p.steps}"]
        words += [] if math.isnan(p.loss) else [f"loss {p.loss:.3f}"]
        words += [] if p.best is None else [f"best {p.best:.3f}"]
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
