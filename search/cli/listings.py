"""Tables of all tasks, mixers, architectures, suites, studies and samplers, and of plans and measurements."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.table import Table

from recallmap.results.analysis import outside_code
from recallmap.results.analysis.labels import flatten
from recallmap.search.cli import catalogue
from recallmap.search.documents import type_hints

if TYPE_CHECKING:
    from recallmap.arch.laws import Verdict as OfModule
    from recallmap.search.engines.plan import Plan
    from recallmap.search.engines.pricing import Rates
    from recallmap.synth.laws import Verdict as OfTask


def tasks() -> Table:
    """Every task with its default options, and the scores of guessing (chance) and of an oracle (ceiling)."""
    table = _table("task", "options and their defaults", "T", "ids", "chance", "ceiling", "metric")
    for row in catalogue.tasks():
        bounds = f"{row['chance']:.4g}", f"{row['ceiling']:.4g}"
        table.add_row(row["task"], _options(row), str(row["length"]), str(row["vocab"]), *bounds, row["metric"])
    return table


def mixers() -> Table:
    """Every mixer with its recurrence, its state, its source, and its default differences from the source."""
    table = _table("mixer", "equation", "state (floats)", "source", "differs", "options and their defaults")
    for row in catalogue.mixers():
        facts = (str(row[name]) for name in ("equation", "state_floats", "source"))
        table.add_row(row["mixer"], *facts, "; ".join(row["differs"]), _options(row))
    return table


def differences() -> Table:
    """Every architecture of the zoo, and the differences of its mixers from those published under their names."""
    table = _table("arch", "about", "differs from what was published")
    for row in catalogue.differences():
        by_mixer = {kind: "; ".join(phrases) for kind, phrases in row["differs"].items()}
        said = [f"{kind}: {phrases}" if len(by_mixer) > 1 else phrases for kind, phrases in by_mixer.items() if phrases]
        table.add_row(row["arch"], row["about"], "; ".join(said) or "in nothing that we know of")
    return table


def archs() -> Table:
    """Every architecture of the zoo, with its blocks and its cost for 64 token ids at length 128."""
    table = _table("arch", "width", "blocks", "parameters", "state bytes", "grows", "about")
    for row in catalogue.archs():
        figures = f"{row['parameters']:,}", f"{row['state_bytes']:,}", "yes" if row["state_grows"] else ""
        table.add_row(row["arch"], str(row["width"]), row["blocks"], *figures, row["about"])
    table.caption = "parameters for 64 token ids, state bytes after 128 tokens"
    return table


def timings(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of a bench; values that all of them share are given once, below the table."""
    names = dict.fromkeys(name for row in rows for name in row)
    same = {n: rows[0][n] for n in names if len(rows) > 1 and all(n in r and r[n] == rows[0].get(n) for r in rows)}
    columns = [name for name in names if name not in same]
    table = _table(*columns)
    for row in rows:
        cells = (row.get(name, "") for name in columns)
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    table.caption = ", ".join(f"{name} {value}" for name, value in same.items())
    return table


def suites() -> Table:
    """Every published suite with its tiers."""
    table = _table("suite", "tiers (settings)", "about")
    for row in catalogue.suites():
        counts = ", ".join(f"{tier} ({count})" for tier, count in row["tiers"].items())
        table.add_row(row["suite"], counts, row["about"])
    return table


def studies() -> Table:
    """Every study that comes with the package."""
    table = _table("study", "trials", "budgets", "about")
    for row in catalogue.studies():
        trials = f"faulty: {row['fault']}" if row["fault"] else str(row["trials"])
        table.add_row(row["study"], trials, ", ".join(row["budgets"]), row["about"])
    return table


def samplers() -> Table:
    """Every sampler of a search with its parameters at their defaults."""
    table = _table("sampler", "source", "goals", "options and their defaults")
    for row in catalogue.samplers():
        goals = "one or several" if row["several_goals"] else "one"
        table.add_row(row["sampler"], row["source"], goals, _options(row))
    return table


def plan_of(plan: Plan, rates: Rates) -> Table:
    """The plan of a study: a line for each architecture on each task setting, with the smallest and largest figures of its
    trials."""
    from recallmap.search.engines.pricing import priced, said_minutes

    columns = ("arch", "task", "trials", "parameters", "state bytes", "steps", "training FLOPs")
    table = _table(*columns, *(["minutes"] if rates.known else []))
    groups = priced(plan.missing)
    for group in groups:
        prices = [trial.price() for trial in group.trials]
        figures = [p.parameters for p in prices], [p.state_bytes for p in prices], [t.steps for t in group.trials]
        minutes = [said_minutes(group.seconds(rates))] if rates.known else []
        cells = str(len(group.trials)), *map(_span, figures), f"{group.operations:.3g}", *minutes
        table.add_row(group.arch, group.task, *cells)
    table.add_section()
    whole = [said_minutes(sum(group.seconds(rates) for group in groups))] if rates.known else []
    operations = sum(group.operations for group in groups)
    table.add_row("all", "", str(len(plan.missing)), "", "", "", f"{operations:.3g}", *whole)
    table.caption = f"minutes {rates.source}" if rates.known else f"no minutes: {rates.source}"
    return table


def capacities_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The measurements of the probe, a line for each number of pairs."""
    from recallmap.results.page.probe_section import said

    columns = ("arch", "mixer", "keys", "pairs", "load", "error", "recall", "chance", "bounds")
    table = _table(*columns)
    for number, row in enumerate(rows):
        if number and row["pairs"] < rows[number - 1]["pairs"]:
            table.add_section()
        table.add_row(*(said(row[name]) for name in columns))
    table.caption = (
        "load: pairs in all heads over floats of state; error: |o - v| / |v|; recall: nearest value is right"
    )
    return table


def verdicts_of(verdicts: Sequence[OfModule | OfTask]) -> Table:
    """The verdicts of laws, a line each, with what breaks one and what to do."""
    table = _table("law", "holds", "why not")
    for verdict in verdicts:
        said = "-" if verdict.skipped else "yes" if verdict.holds else "NO"
        table.add_row(verdict.law, said, verdict.fault or verdict.skipped)
    return table


class Listing(NamedTuple):
    """What can be listed: its rows of data, and the table of them."""

    rows: Callable[[], list[catalogue.Row]]
    table: Callable[[], Table]


LISTINGS: dict[str, Listing] = {
    "tasks": Listing(catalogue.tasks, tasks),
    "mixers": Listing(catalogue.mixers, mixers),
    "archs": Listing(catalogue.archs, archs),
    "differences": Listing(catalogue.differences, differences),
    "suites": Listing(catalogue.suites, suites),
    "studies": Listing(catalogue.studies, studies),
    "samplers": Listing(catalogue.samplers, samplers),
}


def markdown(table: Table, *left_out: str) -> list[str]:
    """The lines of a table as Markdown, without some of its columns."""
    columns = [column for column in table.columns if column.header not in left_out]
    rows = zip(*([str(cell).replace("|", "\\|") for cell in column.cells] for column in columns), strict=True)
    lines = [[str(column.header) for column in columns], ["---"] * len(columns), *(list(row) for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def has_unknown_state(spec: Any) -> bool:
    """True for an architecture with a torch module whose state is unknown: its size is that of the tokens so far."""
    return outside_code.has_unknown_state(dict(flatten(type_hints.plain(spec))))


def _options(row: Mapping[str, Any]) -> str:
    """Options that must be given, with a ?, then the others with their defaults in YAML."""
    given = [f"{name} {said(value)}" for name, value in row["options"].items()]
    return "  ".join([*(f"{name} ?" for name in row["needed"]), *given])


def said(value: Any) -> str:
    """A value in YAML."""
    data = type_hints.plain(value)
    return data if isinstance(data, str) else json.dumps(data)


def _span(figures: Sequence[int]) -> str:
    """`8-1,024`, or the one figure that all have."""
    least, most = min(figures), max(figures)
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=index == 0, style="bold" if index == 0 else None)
    return table
