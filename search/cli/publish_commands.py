"""Commands that show or keep records: table, dashboard, export, merge, report."""

from __future__ import annotations

import os
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from recallmap.results.analysis.labels import counted
from recallmap.search.cli.app import (
    MANY_RECORDS,
    AsJson,
    Only,
    Records,
    Sets,
    Source,
    app,
    records_of,
    refuse,
    remedy_of,
)
from recallmap.search.cli.streams import complain, say, width

LOOK_AGAIN = 15  # seconds after which a watched page reloads


class Form(StrEnum):
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    html = "html"


@app.command()
def table(
    source: Source,
    form: Annotated[Form, typer.Option("--format")] = Form.markdown,
    beside: Annotated[str | None, typer.Option(help="Published figures to compare with, such as mesanet.")] = None,
    by: Annotated[
        str | None,
        typer.Option(help="Break scores down by a part or an option: depth, length, window, cg_steps, ..."),
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="Show MAD tasks by setting too, not only their mean.")
    ] = False,
    cell: Annotated[
        bool,
        typer.Option(
            "--one-cell",
            help="Choose hyper-parameters once a task, by the mean over its settings, not once a setting.",
        ),
    ] = False,
    only: Only = [],  # noqa: B006
    ledger: Records = None,
    sets: Sets = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Print tables of scores. Other scores, scores by part, and costs follow; --beside compares with published figures."""
    from dataclasses import replace

    from recallmap.results.analysis.published_figures import Published
    from recallmap.results.analysis.selection import one_cell
    from recallmap.results.ledger import unswept
    from recallmap.results.score_tables.breakdowns import all_tables, tables_by
    from recallmap.results.score_tables.notes import ONE_CELL
    from recallmap.results.score_tables.rendering import render
    from recallmap.search import codec
    from recallmap.search.cli.json_text import document

    if as_json and form is not Form.markdown:
        refuse(f"table: got --json and --format {form.value}, expected one of them; leave one out")
    theirs = Published.from_dict(codec.read_published(beside)) if beside else None
    records = records_of(source, ledger, sets, only, curves=False).records
    try:
        with unswept():
            records = one_cell(records) if cell else records
            tables = tables_by(records, by) if by is not None else all_tables(records, theirs, settings=settings)
        if cell:
            tables = [replace(own, notes=(*own.notes, ONE_CELL)) for own in tables]
        text = document(tables) if as_json else render(tables, form.value, width=width())
    except ValueError as error:  # hyper-parameters that cannot be chosen, or an unknown option
        refuse(str(error))
    say(text, end="" if text.endswith("\n") else "\n")


@app.command()
def dashboard(
    source: Source,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("recallmap.html"),
    watch: Annotated[bool, typer.Option("--watch", help="Write the page again when the ledger changes.")] = False,
    probe: Annotated[bool, typer.Option(help="Probe the capacity of the memories, untrained.")] = True,
    beside: Annotated[
        str | None, typer.Option(help="Published figures to compare with in tables, such as mesanet.")
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(help="The heading of the page.  [default: the study or the records]", show_default=False),
    ] = None,
    only: Only = [],  # noqa: B006
    ledger: Records = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Write one page that works offline. It shows front, capacity, heat map, scores by part and option, learning, progress,
    tables and YAML."""
    from recallmap.results.analysis.published_figures import Published
    from recallmap.results.page import thinning
    from recallmap.results.page.dashboard import write_page
    from recallmap.results.score_tables.scores import table_of
    from recallmap.search import codec
    from recallmap.search.cli import page_context
    from recallmap.search.cli.page_context import Details

    theirs = Published.from_dict(codec.read_published(beside)) if beside else None
    seen: set[tuple[str, str]] | None = None
    while True:
        found = records_of(source, ledger, sets, only, patient=watch)
        now: set[tuple[str, str]] = {(record.key, record.status) for record in found.records}
        if now != seen:
            seen = now
            if len(found.records) >= MANY_RECORDS:
                complain(f"making the page of {len(found.records):,} records")
            try:
                tables, details = table_of(found.records, theirs, settings=True), Details(found.records)
                rows = thinning.names(details, tables)
                write_page(
                    output,
                    found.records,
                    title=title or found.title,
                    tables=tables,
                    beside=page_context.sources(),
                    probed=page_context.probed(found.records, only=rows, say=complain) if probe else [],
                    details=details,
                    searched=page_context.searched(source, sets, ledger, found.records),
                    validity=page_context.agreements(found.records),
                    again=LOOK_AGAIN if watch else 0,
                )
            except OSError as error:
                refuse(f"{output}: cannot be written: {remedy_of(error)}")
            except UnicodeEncodeError:
                raise
            except ValueError as error:  # hyper-parameters that cannot be chosen
                refuse(str(error))
            say(f"{output}: {counted(len(found.records), 'record')}", flush=True)
        if not watch:
            return
        time.sleep(2)


@app.command()
def export(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .parquet, .csv or .jsonl file; with --hf a folder.")
    ],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY|RECORDS",
            help="A study; or a ledger, a .jsonl of records, or a folder of these.",
            show_default=False,
        ),
    ] = None,
    hf: Annotated[
        Path | None,
        typer.Option(
            "--hf",
            metavar="DIR/KEY",
            help="Write this model, which run --keep-weights kept, as a folder for transformers instead.",
        ),
    ] = None,
    only: Only = [],  # noqa: B006
    ledger: Records = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Write records for other programs. The file has one row per record, and one column per figure and option. With --hf write
    a trained model for transformers."""
    if hf is not None:
        if source is not None or only or ledger or sets:
            refuse(f"export: --hf takes a model alone, got records as well; leave {source or 'their options'} out")
        _export_model(hf, output)
        return
    if source is None:
        refuse("export: got neither records nor a model, expected a STUDY, RECORDS, or --hf DIR/KEY")
    from recallmap.results.ledger import Ledger
    from recallmap.results.ledger import export as write
    from recallmap.results.record_files import is_ledger

    if not (only or ledger or sets) and is_ledger(Path(source)):  # it may be larger than memory
        with Ledger.open(source) as held:
            held.export(output)
            say(f"{output}: {counted(len(held), 'record')}")
        return
    records = records_of(source, ledger, sets, only).records
    write(records, output)
    say(f"{output}: {counted(len(records), 'record')}")


def _export_model(folder: Path, output: Path) -> None:
    from recallmap.search.weights import hugging_face

    try:
        names = hugging_face.export(folder, output)
    except OSError as error:
        refuse(f"{output}: cannot be written: {remedy_of(error)}")
    say(f"{output}: {', '.join(names)}")


@app.command()
def merge(
    sources: Annotated[
        list[str], typer.Argument(metavar="RECORDS...", help="Ledgers, .jsonl files of records, or folders of these.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="A .sqlite ledger, made or added to, or a .jsonl file.")
    ],
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Leave out and count lines that are no records and records that are damaged."),
    ] = False,
    untraceable: Annotated[
        bool, typer.Option("--untraceable", help="Take records that name no clean commit into results/records, too.")
    ] = False,
) -> None:
    """Merge records of several places. A trial counts once, done before failed. A bad record stops the merge."""
    from recallmap.results.ledger import Ledger
    from recallmap.results.record_files import SUFFIXES, files
    from recallmap.search.cli.sources import each, merge_lines
    from recallmap.search.documents.type_hints import either

    if output.suffix not in SUFFIXES:
        refuse(f"--output: got {output}, expected a name that ends in {either(list(SUFFIXES))}")
    places = [file for source in sources for file in files(Path(source))]
    try:
        if output.suffix == ".jsonl":
            count, new = merge_lines(places, output, skip_bad=skip_bad, untraceable=untraceable, say=complain)
        else:
            made = not os.path.exists(output)
            try:
                with Ledger(output) as ledger:
                    new = ledger.merge(*(each(place, skip_bad=skip_bad, say=complain) for place in places))
                    count = len(ledger)
            except BaseException:
                if made:
                    output.unlink(missing_ok=True)
                raise
    except OSError as error:
        refuse(f"{output}: cannot be written: {remedy_of(error)}")
    say(f"{output}: {counted(count, 'record')}, {new} of them new")


@app.command()
def report(
    records: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of .jsonl files of records, or one of them, or a ledger.  [default: the records kept with "
            "recallmap]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The report to write.")] = Path("results/REPORT.md"),
    fill: Annotated[
        Path | None, typer.Option(help="A document whose marked excerpts are made anew, such as README.md.")
    ] = None,
) -> None:
    """Judge published claims by the records. Writes the verdicts, and the tables of every record file."""
    from recallmap.results import record_files
    from recallmap.results.publishing.report import KEPT
    from recallmap.results.publishing.report import report as made
    from recallmap.search import codec
    from recallmap.search.cli import page_context

    if fill is not None and not os.path.isfile(fill):
        refuse(f"--fill: got {fill}, which is no file; expected a document such as README.md")
    here = Path(KEPT)
    try:
        claims, excerpts = codec.read_claims(), codec.read_excerpts()
        files = record_files.by_file(records or (here if here.is_dir() else record_files.kept()))
        paths = {name: str(file) for name, file in record_files.named(records).items()} if records else None
        found = made(
            files, claims, page_context.sources(), codec.read_language(), place=str(records or KEPT), paths=paths
        )
        found.write(output, fill=fill, excerpts=excerpts)
    except ValueError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{output}: cannot be written: {remedy_of(error)}")
    say(f"{output}: from {counted(len(found.tables), 'file')} of records")
