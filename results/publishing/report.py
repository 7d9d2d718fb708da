"""The report of all kept records: the verdict on each claim with its comparisons, and the tables of every record file.

It holds no dates, so that the same records and claims give the same text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from recallmap.results.analysis.comparison import told
from recallmap.results.analysis.labels import counted, devices_of
from recallmap.results.analysis.measures import Measure, measures
from recallmap.results.analysis.natural_order import by_number
from recallmap.results.analysis.published_figures import Published
from recallmap.results.analysis.selection import one_cell
from recallmap.results.analysis.validity import by_task, validity
from recallmap.results.atomic_write import write_whole
from recallmap.results.escape import markdown as escaped
from recallmap.results.publishing.claims import Claim
from recallmap.results.publishing.readme_tables import BY_TASK, OF_COSTS, Excerpt, asked_for, filled
from recallmap.results.publishing.standing_table import standing_table
from recallmap.results.publishing.validity_table import primary_table, task_table
from recallmap.results.publishing.verdicts import Evidence, Judgement, Verdict, judge
from recallmap.results.record import Record, unique
from recallmap.results.score_tables.breakdowns import further_tables
from recallmap.results.score_tables.columns import tables_about
from recallmap.results.score_tables.costs import cost_tables
from recallmap.results.score_tables.rendering import markdown
from recallmap.results.score_tables.scores import Group, grouped, tables_of
from recallmap.results.score_tables.table import MAD, Table

SIDES: Mapping[Verdict, str] = {
    "reproduced": "for",
    "not reproduced": "against",
    "not decided": "undecided",
    "cannot speak": "cannot speak",
}

KEPT = "results/records"  # of a checkout

FOLDER = "tables"  # next to the report, with one file for every record file

VALIDITY, VALIDITY_BY_TASK, STANDING = (
    "validity",
    "validity-by-task",
    "standing",
)  # tables that documents ask for as they do for excerpts, and that are made whole

_HEAD = """# What the records say

Made by `recallmap report` from @; do not edit, train and make it anew.

* **Reproduced**: every comparison that can speak is for the claim.
* **Not reproduced**: a comparison is against it.
* **Not decided**: more seeds would help.
* **Cannot speak**: more seeds would not help. All sides of a setting are at the ceiling, both are near chance, a side failed to
  train, the better side failed with some seeds, the worse side was best at the edge of its grid of learning rates, or has most
  seeds under hyper-parameters that are worse than others by five seeds or more that have both, the claim is about another
  regime, or no record speaks of it yet.

A comparison needs five fresh seeds on each side: seeds that chose hyper-parameters are left out, and those that no commit
explains. Where every seed tried all hyper-parameters, each is scored under those that the other seeds chose. The interval of
the difference and p then allow for the seeds' dependence (the variance of a mean over n of them counts 1 + sqrt(n) times). It
compares seed by seed where both sides have five seeds in common (paired t test), else by Welch's t test. For a claim of
"better" the means must differ by the smallest difference of interest, one point where a claim does not say otherwise, and the
difference must be above 0. A difference surely below the smallest one is against it. A claim of "equal" is decided by
two one-sided tests against its margin. A claim about every seed needs all of them, six at least; it is not reproduced where by
a binomial test fewer than half of all seeds would do. All p values are two-sided. They are adjusted by Holm's correction
within a claim, and the claim's by Benjamini and Hochberg's across claims; below 0.05 decides.

Brackets after a mean hold the 95 % interval of scores that are bounded by chance and ceiling. It holds whatever their
distribution, and is wide at few seeds: five that learned leave room for a sixth that does not. Where seeds have two peaks, the
number that learned stands beside it. Hyper-parameters and checkpoints are chosen on validation, scores are of test.
"""

_COSTS = """## Costs

Hours of training and compiling, as each trial's share of its cohort's; where cohorts shared a device, each counts all of its
time, so that the device was busy for less. Steps are those of all trials together. [README.md](README.md) has mad-lab and
Zoology beside recallmap.
"""


_UNTRACEABLE = """## Not traceable, to be retrained

These trials name no commit, or one with uncommitted changes. Their figures are shown, and no verdict rests on them.
"""


class Judged(NamedTuple):
    """A claim, its verdict, and the record file of each of its comparisons."""

    claim: Claim
    judgement: Judgement
    files: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The text of the report, the texts of the tables by record file, the score tables as data, tables of documents that are no
    excerpt of these, by name, and what tables of one cell of hyper-parameters a task are made of."""

    text: str
    tables: dict[str, str]
    scores: dict[str, list[Table]]
    made_whole: dict[str, str] = field(default_factory=dict)
    files: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    sources: Sequence[Published] = ()

    def fill(self, text: str, excerpts: Mapping[str, Excerpt]) -> str:
        """A document with its tables made anew. Raises as `filled`."""
        asked, tables = asked_for(text, excerpts), dict(self.scores)
        for name, records in self.files.items():
            if f"{name}{BY_TASK}" in asked:
                tables[f"{name}{BY_TASK}"] = _scores(grouped(one_cell(records)), self.sources)
            if f"{name}{OF_COSTS}" in asked:
                tables[f"{name}{OF_COSTS}"] = cost_tables(records)
        return filled(text, tables, excerpts, self.made_whole)

    def write(self, path: Path, *, fill: Path | None = None, excerpts: Mapping[str, Excerpt] | None = None) -> None:
        """Write the report, beside it a folder with one file of tables for every record file, and make the excerpts of the
        document `fill` anew. Raises OSError, and ValueError with nothing written where `filled` does."""
        files = {} if fill is None else {fill: self.fill(fill.read_text(encoding="utf-8"), excerpts or {})}
        files |= {path: self.text} | {path.parent / FOLDER / f"{name}.md": text for name, text in self.tables.items()}
        for file, text in files.items():
            write_whole(file, text)


def report(
    files: Mapping[str, Sequence[Record]],
    claims: Mapping[str, Claim],
    sources: Sequence[Published] = (),
    language: Mapping[str, Any] | None = None,
    *,
    place: str = KEPT,
    paths: Mapping[str, str] | None = None,
) -> Report:
    """Judge claims by record files, both by name, and compare the files' tables with published sources. A claim compares
    trials of one file only, because these were trained alike. With the published figures of language models the table of
    validity is made, too.

    place  where the files were read, a folder or one of them, as the report says it
    paths  of every file, as its tables say it; None: those of the records kept with recallmap

    Raises ValueError where hyper-parameters cannot be chosen.
    """
    found = {name: [m for m in measures(own) if m.values] for name, own in files.items()}
    weighed = {title: _once(claim, found) for title, claim in claims.items()}
    judgements = judge({title: [one for _, one in evidence] for title, evidence in weighed.items()})
    judged = {
        title: Judged(claim, judgements[title], [name for name, _ in weighed[title]]) for title, claim in claims.items()
    }
    groups = {name: grouped(own) for name, own in files.items()}
    scores = {name: _scores(own, sources) for name, own in groups.items()}
    paths = {name: f"{KEPT}/{name}.jsonl" for name in files} if paths is None else paths
    tables = {
        name: _tables(name, paths[name], own, [*scores[name], *further_tables(own, groups[name])])
        for name, own in files.items()
    }
    whence = f"`{place}`" if list(paths.values()) == [place] else f"the files of `{place}`"
    listed = [f"* [{name}]({FOLDER}/{name}.md): {_about(own)}" for name, own in files.items()]
    parts = [
        _HEAD.replace("@", whence, 1),
        _summary(judged),
        *(_section(title, one) for title, one in judged.items() if one.files),
        _untraceable(files),
        _costs(files),
        "## Tables\n",
        "\n".join(listed),
        "",
    ]
    made_whole = {STANDING: standing_table(files, [one.judgement.verdict for one in judged.values()])}
    if language is not None:
        whole = unique(record for own in files.values() for record in own)
        measured = [m for m in measures(whole) if m.values]
        made_whole[VALIDITY] = primary_table(validity(language, measured, sources))
        made_whole[VALIDITY_BY_TASK] = task_table(by_task(language, measured))
    return Report(
        text="\n".join(parts), tables=tables, scores=scores, made_whole=made_whole, files=files, sources=sources
    )


def _once(claim: Claim, found: Mapping[str, Sequence[Measure]]) -> list[tuple[str, Evidence]]:
    """The evidence of all files by name, that of the same trials on the same setting once."""
    seen: set[tuple[frozenset[str], str, str]] = set()
    once = []
    for name, own in found.items():
        for one in _weighed(claim, own):
            same = one.keys, one.where, one.figures
            if same not in seen:
                once.append((name, one))
            seen.add(same)
    return once


def _deciding(measure: Measure, seeds: tuple[int, int] | None) -> Measure:
    """The measure with those of its fresh seeds alone that decide a claim."""
    if seeds is None:
        return measure
    decide = frozenset(range(seeds[0], seeds[1] + 1))
    held_out = {seed: value for seed, value in measure.held_out.items() if seed in decide}
    scores = {seed: own for seed, own in measure.held_out_scores.items() if seed in decide}
    return replace(measure, chose_none=measure.chose_none & decide, held_out=held_out, held_out_scores=scores)


def _weighed(claim: Claim, found: Sequence[Measure]) -> list[Evidence]:
    own = [_deciding(m, claim.seeds) for m in found if not claim.tasks or m.task in claim.tasks]
    evidence = claim.rule.weigh(own)
    ordered = sorted(evidence, key=lambda one: (by_number(one.where), by_number(one.who)))
    return [replace(one, silent=f"another regime: {claim.regime}") if claim.regime else one for one in ordered]


def _summary(judged: Mapping[str, Judged]) -> str:
    lines = [
        "| claim | source | verdict | comparisons | p | p, all claims |",
        "| --- | --- | --- | --- | ---: | ---: |",
    ]
    for name, (claim, judgement, files) in judged.items():
        counts = Counter(SIDES[one.verdict] for one in judgement.evidence)
        said = ", ".join(f"{counts[side]} {side}" for side in SIDES.values() if counts[side]) or "no records yet"
        text = f"[{claim.text}](#{name})" if files else claim.text
        figures = f"{told(judgement.p)} | {told(judgement.adjusted)}"
        lines.append(f"| {text} | {claim.source} | **{judgement.verdict}** | {said} | {figures} |")
    verdicts = Counter(one.judgement.verdict for one in judged.values())
    counted = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in SIDES if verdicts[verdict])
    lines += ["", f"Claims: {counted}."] if judged else []
    return "\n".join([*lines, ""])


def _section(title: str, judged: Judged) -> str:
    claim, judgement, files = judged
    lines = [f"## {title}\n", f"{claim.text} ({claim.source}): **{judgement.verdict}**.\n"]
    lines += ["| who | where | figures | p | adjusted | records | |", "| --- | --- | --- | ---: | ---: | --- | --- |"]
    lines += [
        f"| {escaped(one.who)} | {escaped(one.where)} | {one.figures} | {told(one.p)} | {told(one.adjusted)} | "
        f"[{name}]({FOLDER}/{name}.md) | {one.verdict}{f': {escaped(one.silent)}' if one.silent else ''} |"
        for name, one in zip(files, judgement.evidence, strict=True)
    ]
    names = sorted({said for one in judgement.evidence for said in one.remarks})
    lines += [
        "",
        *([f"{claim.remark}\n"] if claim.remark else []),
        *([f"Names. {'; '.join(names)}.\n"] if names else []),
    ]
    return "\n".join(lines)


def _untraceable(files: Mapping[str, Sequence[Record]]) -> str:
    """The record files with trials that no commit explains, which decide no claim."""
    counts = {name: sum(not r.traceable for r in own) for name, own in files.items()}
    lines = [_UNTRACEABLE, "| records | trials | not traceable |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {len(files[name])} | {count} |" for name, count in counts.items() if count]
    return "\n".join([*lines, ""]) if any(counts.values()) else ""


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


def _scores(groups: Sequence[Group], sources: Sequence[Published]) -> list[Table]:
    """The score tables of one file: one for every source with a figure to compare, and one without where no source has."""
    compared = [
        table for source in sources for table in tables_of(_asked_by(source, groups), source) if _compares(table)
    ]
    titles = {table.title for table in compared}
    return [*compared, *(table for table in tables_of(groups) if table.title not in titles)]


def _asked_by(source: Published, groups: Sequence[Group]) -> list[Group]:
    """The groups of which a source may have figures: of its tasks, and all of MAD where it has any of MAD."""
    mad = any(tables_about(source, task) for task in ("mad", *MAD))
    return [group for group in groups if (mad if group.about == "mad" else tables_about(source, group.about))]


def _tables(name: str, path: str, records: Sequence[Record], tables: Sequence[Table]) -> str:
    head = f"# {name}\n\nMade by `recallmap report` from `{path}`: {_about(records)}.\n"
    return "\n".join([head, *map(markdown, tables)])


def _compares(table: Table) -> bool:
    return any(cell.published is not None for line in table.lines for cell in line.cells)


def _about(records: Sequence[Record]) -> str:
    tasks = escaped(", ".join(sorted({r.task for r in records})))
    failed = sum(r.score is None for r in records)
    lost = sum(not r.traceable for r in records)
    devices = escaped(", ".join(devices_of(records))) or "unknown"
    versions = escaped(", ".join(sorted({str(r.spec.get("version", "?")) for r in records})))
    return (
        f"{counted(len(records), 'trial')} of {counted(len({r.arch for r in records}), 'architecture')} on {tasks}"
        f"{f', {failed} of them failed' if failed else ''}"
        f"{f', {lost} of them untraceable' if lost else ''}; device {devices}, training protocol {versions}"
    )
