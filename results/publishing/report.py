"""The report of all kept records: the verdict on each claim with its comparisons, and the tables of every record file.

It holds no dates, so that the same records and claims give the same text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from recallmap.results.analysis.measures import Measure, measures
from recallmap.results.analysis.natural_order import by_number
from recallmap.results.analysis.published_figures import Published
from recallmap.results.atomic_write import write_whole
from recallmap.results.escape import markdown as escaped
from recallmap.results.publishing.claim_rules import Evidence, verdict_of
from recallmap.results.publishing.claims import Claim
from recallmap.results.publishing.readme_tables import Excerpt, filled
from recallmap.results.record import Record
from recallmap.results.score_tables.breakdowns import further_tables
from recallmap.results.score_tables.rendering import markdown
from recallmap.results.score_tables.scores import table_of
from recallmap.results.score_tables.table import Table

SIDES = {"reproduced": "for", "not reproduced": "against", "not decided": "undecided"}

FOLDER = "tables"  # next to the report, with one file for every record file

_HEAD = """# What the records say

Made by `recallmap report` from the files of `results/records`; do not edit, train and make it anew. A claim is
**reproduced** if every comparison that the records allow bears it out, **not reproduced** if one is decided against it, and
**not decided** where records are missing or too few. A comparison is decided by the 95 % t interval of the difference of
means over two seeds or more of each, with a common variance; where the trials of a seed went on from the same weights
(StateX), by that of the differences seed by seed. Hyper-parameters and checkpoints are chosen on validation, scores are of
test.
"""

_COSTS = """## Costs

Hours of training and compiling, as each trial's share of its cohort's; where cohorts shared a device, each counts all of its
time, so that the device was busy for less. Steps are those of all trials together. On an H100 mad-lab trains 2.4 trials an
hour, 53 steps a second (in-context recall, 200 epochs of batch 32; measured by hand before).
"""


class Judged(NamedTuple):
    """A claim and the comparisons that bear on it, by record file."""

    claim: Claim
    by_file: Mapping[str, Sequence[Evidence]]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The text of the report, the texts of the tables by record file, and the score tables as data."""

    text: str
    tables: dict[str, str]
    scores: dict[str, list[Table]]

    def write(self, path: Path, *, fill: Path | None = None, excerpts: Mapping[str, Excerpt] | None = None) -> None:
        """Write the report, beside it a folder with one file of tables for every record file, and make the excerpts of the
        document `fill` anew. Raises OSError, and ValueError with nothing written where `filled` does."""
        files = {} if fill is None else {fill: filled(fill.read_text(encoding="utf-8"), self.scores, excerpts or {})}
        files |= {path: self.text} | {path.parent / FOLDER / f"{name}.md": text for name, text in self.tables.items()}
        for file, text in files.items():
            write_whole(file, text)


def report(
    files: Mapping[str, Sequence[Record]], claims: Mapping[str, Claim], sources: Sequence[Published] = ()
) -> Report:
    """Judge claims by record files, both by name, and compare the files' tables with published sources. A claim compares
    trials of one file only, because these were trained alike.

    Raises ValueError where hyper-parameters cannot be chosen.
    """
    found = {name: [m for m in measures(own) if m.values] for name, own in files.items()}
    judged = {
        title: Judged(claim, {name: evidence for name, own in found.items() if (evidence := _weighed(claim, own))})
        for title, claim in claims.items()
    }
    scores = {name: _scores(own, sources) for name, own in files.items()}
    tables = {name: _tables(name, own, scores[name]) for name, own in files.items()}
    listed = [f"* [{name}]({FOLDER}/{name}.md): {_about(own)}" for name, own in files.items()]
    parts = [
        _HEAD,
        _summary(judged),
        *(_section(title, one) for title, one in judged.items() if one.by_file),
        _costs(files),
        "## Tables\n",
        "\n".join(listed),
        "",
    ]
    return Report(text="\n".join(parts), tables=tables, scores=scores)


def _weighed(claim: Claim, found: Sequence[Measure]) -> list[Evidence]:
    evidence = claim.rule.weigh([m for m in found if not claim.tasks or m.task in claim.tasks])
    return sorted(evidence, key=lambda one: (by_number(one.where), by_number(one.who)))


def _summary(judged: Mapping[str, Judged]) -> str:
    lines = ["| claim | source | verdict | comparisons |", "| --- | --- | --- | --- |"]
    for name, (claim, by_file) in judged.items():
        evidence = [one for own in by_file.values() for one in own]
        counts = Counter(SIDES[one.verdict] for one in evidence)
        said = [f"{counts[side]} {side}" for side in SIDES.values() if counts[side]]
        text = f"[{claim.text}](#{name})" if evidence else claim.text
        lines.append(
            f"| {text} | {claim.source} | **{verdict_of(evidence)}** | {', '.join(said) or 'no records yet'} |"
        )
    return "\n".join([*lines, ""])


def _section(title: str, judged: Judged) -> str:
    claim, by_file = judged
    verdict = verdict_of([one for own in by_file.values() for one in own])
    lines = [f"## {title}\n", f"{claim.text} ({claim.source}): **{verdict}**.\n"]
    lines += ["| who | where | figures | records | |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {escaped(one.who)} | {escaped(one.where)} | {one.figures} | [{name}]({FOLDER}/{name}.md) | {one.verdict} |"
        for name, own in by_file.items()
        for one in own
    ]
    return "\n".join([*lines, "", *([f"{claim.remark}\n"] if claim.remark else [])])


def _costs(files: Mapping[str, Sequence[Record]]) -> str:
    """The hours that the trials of every file took, by device, and how fast they went."""
    lines = [_COSTS, "| records | device | trials | hours | trials an hour | optimizer steps a second |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, own in files.items():
        by_device: dict[str, list[Record]] = {}
        for record in own:
            by_device.setdefault(record.device.partition(",")[0] or "unknown", []).append(record)
        for device, records in by_device.items():
            seconds = sum((r.seconds or 0) + (r.compile_seconds or 0) for r in records)
            steps = sum(r.steps or 0 for r in records)
            if seconds:
                rates = f"{3600 * len(records) / seconds:,.0f} | {steps / seconds:,.0f}"
                lines.append(f"| {name} | {escaped(device)} | {len(records)} | {seconds / 3600:.2f} | {rates} |")
    return "\n".join([*lines, ""])


def _scores(records: Sequence[Record], sources: Sequence[Published]) -> list[Table]:
    """The score tables of one file: one for every source with a figure to compare, and one without where no source has."""
    compared = [table for source in sources for table in table_of(records, source) if _compares(table)]
    titles = {table.title for table in compared}
    return [*compared, *(table for table in table_of(records) if table.title not in titles)]


def _tables(name: str, records: Sequence[Record], scores: Sequence[Table]) -> str:
    head = f"# {name}\n\nMade by `recallmap report` from `results/records/{name}.jsonl`: {_about(records)}.\n"
    return "\n".join([head, *(markdown(table) for table in [*scores, *further_tables(records)])])


def _compares(table: Table) -> bool:
    return any(cell.published is not None for line in table.lines for cell in line.cells)


def _about(records: Sequence[Record]) -> str:
    tasks = escaped(", ".join(sorted({r.task for r in records})))
    failed = sum(r.score is None for r in records)
    devices = escaped(", ".join(sorted({r.device for r in records if r.device}))) or "unknown"
    versions = escaped(", ".join(sorted({str(r.spec.get("version", "?")) for r in records})))
    return (
        f"{len(records)} trials of {len({r.arch for r in records})} architectures on {tasks}"
        f"{f', {failed} of them failed' if failed else ''}; device {devices}, training protocol {versions}"
    )
