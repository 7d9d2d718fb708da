"""The verbs: look at what there is, train what a ledger lacks, show what was found."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from results.escape import one_line
from search.document import SpecError
from search.streams import complain, made_ready, say, width

# What is slow to import (torch, pandas, plotly, yaml, rich tables) is imported by the verb that needs it, so that
# `recallmap --help` answers at once.
if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from search.engine import Plan
    from search.sources import Found
    from search.study import StudySpec


class What(StrEnum):
    tasks = "tasks"
    mixers = "mixers"
    archs = "archs"
    differences = "differences"
    suites = "suites"
    studies = "studies"


MANY_RECORDS = 5000  # of which a page takes seconds to make
LOOK_AGAIN = 15  # seconds between looks for news of a page that is watched


class Schema(StrEnum):
    task = "task"
    arch = "arch"
    study = "study"


class Form(StrEnum):
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    html = "html"


class Precision(StrEnum):
    float32 = "float32"
    bfloat16 = "bfloat16"
    float64 = "float64"


class KeySort(StrEnum):
    gaussian = "gaussian"
    orthonormal = "orthonormal"
    correlated = "correlated"
    quantised = "quantised"


class Part(StrEnum):
    train = "train"
    validation = "validation"
    test = "test"


class Verbs(TyperGroup):
    """Turns what a user did wrong into lines on stderr and exit code 2. A traceback is a bug of ours."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SpecError as error:
            refuse(*map(str, error.faults))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except OSError as error:
            from results.write import FULL, remedy

            if error.filename is None and error.errno not in FULL:  # of an output stream, see `made_ready`
                raise
            refuse(
                f"{error.filename or 'a file'}: cannot be written: {remedy(error)}"
                if error.errno in FULL
                else f"{error.filename}: {error.strerror}"
            )
        except UnicodeEncodeError as error:
            said = error.object[max(0, error.start - 40) : error.end]
            refuse(f"half of a surrogate pair cannot be written to a file: '{said}'; mend the record that says it")
        except Exception as error:
            if _is_ledger_error(error):
                refuse(str(error))
            raise


app = typer.Typer(
    cls=Verbs,
    name="recallmap",
    help="Maps the memory capacity of sequence models against their recall on synthetic tasks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Sets = Annotated[
    list[str], typer.Option("--set", metavar="PATH=VALUE", help="Lay a value over the study, such as trial.seed=1.")
]
LedgerPath = Annotated[Path | None, typer.Option("--ledger", help="The ledger's file.  [default: runs/NAME.sqlite]")]
Source = Annotated[
    str,
    typer.Argument(metavar="STUDY|RECORDS", help="A study; or a ledger, a .jsonl of records, or a folder of these."),
]
Records = Annotated[
    Path | None,
    typer.Option("--ledger", help="Where a study's records are, as RECORDS may be.  [default: runs/NAME.sqlite]"),
]
Only = Annotated[
    list[str],
    typer.Option(
        "--only",
        metavar="KEY=VALUE",
        help="Records that say so alone, such as arch=mesa, pairs=4 or lr=1e-3; of one key given twice, either value.",
    ),
]


def main() -> None:
    """The door of the console script."""
    with made_ready():
        app()


def _say_version(wanted: bool) -> None:
    if wanted:
        from search.origin import summary

        say(summary())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version, and what it runs on."),
    ] = False,
) -> None:
    """Comes before a verb."""


@app.command()
def run(
    study: Annotated[str, typer.Argument(help="A study: a built-in name or a file.")],
    ledger: LedgerPath = None,
    engine: Annotated[str, typer.Option(help="Where trials run: inline (this process), or ray.")] = "inline",
    address: Annotated[
        str | None, typer.Option(help="Of a running Ray cluster: auto or HOST:PORT.  [default: this machine]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...  [default: cuda where there is one]")
    ] = None,
    part: Annotated[
        str,
        typer.Option(metavar="I/N", help="Every N-th cohort alone, from the I-th on: for N calls, each with a ledger."),
    ] = "1/1",
    most: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Trials in a cohort at most; a family whose first phase is learnt once stays whole.  [default: by device]",
        ),
    ] = None,
    abreast: Annotated[
        int, typer.Option(min=1, max=1000, help="Of ray: cohorts that share a GPU; one trains, others compile.")
    ] = 1,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=10_000,
            help="After the grid: seeds 0..N-1 of what won, by architecture and setting.",
        ),
    ] = 0,
    sets: Sets = [],  # noqa: B006  typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and what it costs.")] = False,
) -> None:
    """Train what the ledger lacks. The same command again goes on where it was stopped."""
    from search import codec, sources
    from search.apart import paths_of
    from search.engine import EngineError
    from search.live import Live
    from search.space import Search
    from search.stopping import stoppable
    from search.study import MOST_POINTS

    where = _engine(engine, address, device, abreast)
    share = _part(part)
    spec = codec.read_study(study, overrides=sets)
    if isinstance(spec.space, Search) and share != (1, 1):
        refuse("--part: a search is not shared out, what it asks next depends on all that was answered")
    if isinstance(spec.space, Search) and seeds:
        refuse("--seeds: a search says itself over which seeds it trains, set space.over.trial.seed instead")
    if seeds and share != (1, 1):
        refuse("--seeds: what won is known of a whole grid alone; merge its parts, then take --seeds without --part")
    if seeds and seeds * len(spec.trials()) > MOST_POINTS:
        refuse(
            f"--seeds: at most {MOST_POINTS // len(spec.trials()):,} of a grid of {len(spec.trials()):,}, got {seeds:,}"
        )
    path = ledger or sources.default_ledger(spec)
    if path.suffix == ".jsonl":
        refuse(
            f"--ledger: {path} is a file of records, trials are kept in a ledger: recallmap merge {path} -o NAME.sqlite"
        )
    console = _console()
    for trial, why in () if isinstance(spec.space, Search) else spec.rejected():
        console.print(f"not trained: {trial.name} on {trial.task.kind} has {why}")
    if dry_run:
        _say_plan(console, spec, path, _device(device), share, most, seeds)
        return
    with stoppable() as stop, Live(console, paths_of(spec)) as live:
        try:
            where(spec, path, report=live, part=share, most=most, seeds=seeds)
        except ConnectionError as error:
            refuse(f"--address: {error}")
        except (KeyboardInterrupt, EngineError) as error:
            why = f": {error}" if isinstance(error, EngineError) else ""
            with suppress(OSError):  # a terminal that was closed
                complain(f"\nstopped{why}; {live.kept} in {path}. To go on:\n  {_same_command()}")
            raise typer.Exit(1 if why else stop.code) from None
    if live.last is None:
        return
    end = live.last
    say(f"{end.known} known, {end.done} done, {end.failed} failed, in {path}")
    given = _given(ledger, sets)
    verb = "best" if isinstance(spec.space, Search) else "table"
    say(f"next: recallmap {verb} {shlex.join([str(path)] if seeds else [study, *given])}")
    if end.failed or (isinstance(spec.space, Search) and not end.known + end.done):
        raise typer.Exit(1)


@app.command()
def table(
    source: Source,
    form: Annotated[Form, typer.Option("--format")] = Form.markdown,
    beside: Annotated[str | None, typer.Option(help="Published figures to set beside, such as mesanet.")] = None,
    by: Annotated[
        str | None, typer.Option(help="Cut by a part or a dial instead: depth, length, window, cg_steps, ...")
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="Tasks of MAD by setting too, never only the mean.")
    ] = False,
    only: Only = [],  # noqa: B006
    ledger: Records = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Print score tables, beside published figures with differences where asked; then other scores, parts, and costs."""
    from results.further import further_tables, tables_by
    from results.published import Published
    from results.render import render
    from results.tables import table_of
    from search import codec

    theirs = Published.from_dict(codec.read_published(beside)) if beside else None
    records = _found(source, ledger, sets, only, curves=False).records
    try:
        if by is not None:
            tables = tables_by(records, by)
        else:
            tables = table_of(records, theirs, settings=settings) + further_tables(records)
        text = render(tables, form.value, width=width())
    except ValueError as error:  # hyper-parameters that cannot be chosen, or a dial that there is not
        refuse(str(error))
    say(text, end="" if text.endswith("\n") else "\n")


@app.command()
def best(
    study: Annotated[str, typer.Argument(help="A study: a built-in name or a file.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A .yaml file for the winner's architecture.")
    ] = None,
    point: Annotated[str | None, typer.Option(help="Another point than the winner, such as 'tpe 12'.")] = None,
    ledger: Records = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Print the front of a study, what its proposers gained and which dials decide; write the winner's architecture."""
    from search import codec, findings, sources
    from search.propose import Journal

    spec = codec.read_study(study, overrides=sets)
    path = ledger or sources.default_ledger(spec)
    given = _given(ledger, sets)
    records = _told(sources.of_study(spec, study, ledger)).records
    try:
        found = findings.findings_of(spec, records, Journal(sources.journal_at(path)))
    except ValueError as error:  # a goal that nothing scores
        refuse(f"best: {error}")
    if not found.candidates:
        refuse(
            f"{path}: no point of {spec.name} is trained to its end yet: recallmap run {shlex.join([study, *given])}"
        )
    try:
        one = findings.winner(found, point)
        text = findings.arch_document(found, one) if output is not None else ""
    except ValueError as error:
        refuse(f"best: {error}")
    _console().print(findings.front_table(found))
    for line in findings.lines_of(found):
        say(line)
    if output is not None:
        _write(output, text)
        say(f"{output}: the architecture of {one.name}; next: recallmap cost {shlex.join([str(output)])}")


@app.command()
def dashboard(
    source: Source,
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("recallmap.html"),
    watch: Annotated[bool, typer.Option("--watch", help="Write the page again whenever the ledger changed.")] = False,
    probe: Annotated[bool, typer.Option(help="Probe, untrained, the memories that were trained.")] = True,
    beside: Annotated[
        str | None, typer.Option(help="Published figures to set beside in tables, such as mesanet.")
    ] = None,
    only: Only = [],  # noqa: B006
    ledger: Records = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Write one offline page: front, capacity, heat map, scores by part and dial, learning, progress, tables, YAML."""
    from results import thinned
    from results.dashboard import write_page
    from results.published import Published
    from results.tables import table_of
    from search import codec, shown

    theirs = Published.from_dict(codec.read_published(beside)) if beside else None
    seen: set[tuple[str, str]] | None = None
    while True:
        found = _found(source, ledger, sets, only, patient=watch)
        now: set[tuple[str, str]] = {(record.key, record.status) for record in found.records}
        if now != seen:
            seen = now
            if len(found.records) >= MANY_RECORDS:
                complain(f"making the page of {len(found.records):,} records")
            try:
                tables, details = table_of(found.records, theirs, settings=True), shown.Details(found.records)
                rows = thinned.names(details, tables)
                write_page(
                    output,
                    found.records,
                    title=found.title,
                    tables=tables,
                    beside=shown.sources(),
                    probed=shown.probed(found.records, only=rows, say=complain) if probe else [],
                    details=details,
                    again=LOOK_AGAIN if watch else 0,
                )
            except OSError as error:
                refuse(f"{output}: cannot be written: {_remedy(error)}")
            except UnicodeEncodeError:
                raise
            except ValueError as error:  # hyper-parameters that cannot be chosen
                refuse(str(error))
            say(f"{output}: {len(found.records)} records", flush=True)
        if not watch:
            return
        time.sleep(2)


@app.command()
def export(
    source: Source,
    output: Annotated[Path, typer.Option("-o", "--output", help="A .parquet, .csv or .jsonl file.")],
    only: Only = [],  # noqa: B006
    ledger: Records = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Write records for other programs: a row a record, a column for every figure and every dial."""
    from results.ledger import Ledger
    from results.ledger import export as write
    from search.sources import is_ledger

    if not (only or ledger or sets) and is_ledger(Path(source)):  # it may be larger than memory
        with Ledger.open(source) as held:
            held.export(output)
            say(f"{output}: {len(held)} records")
        return
    records = _found(source, ledger, sets, only).records
    write(records, output)
    say(f"{output}: {len(records)} records")


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
        typer.Option(
            "--skip-bad", help="Leave out, and count, lines that are no records and records that are damaged."
        ),
    ] = False,
) -> None:
    """Put the records of several places into one: a trial counts once, done before failed. Of bad ones nothing is merged."""
    from results.ledger import Ledger
    from search.sources import SUFFIXES, each, files, merge_lines

    if output.suffix not in SUFFIXES:
        refuse(f"--output: {output} may end in .sqlite or .jsonl")
    places = [file for source in sources for file in files(Path(source))]
    try:
        if output.suffix == ".jsonl":
            count, new = merge_lines(places, output, skip_bad=skip_bad, say=complain)
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
        refuse(f"{output}: cannot be written: {_remedy(error)}")
    say(f"{output}: {count} records, {new} of them new")


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
        Path | None, typer.Option(help="A text whose marked excerpts are made anew, such as README.md.")
    ] = None,
) -> None:
    """Say of every published claim what the kept records make of it, and write the tables of every record file."""
    from results.report import report as made
    from search import shown, sources

    if fill is not None and not os.path.isfile(fill):
        refuse(f"{fill}: is no text to fill")
    here = Path("results/records")  # of a checkout
    try:
        found = made(sources.by_file(records or (here if here.is_dir() else sources.kept())), shown.sources())
        found.write(output, fill)
    except ValueError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{output}: cannot be written: {_remedy(error)}")
    say(f"{output}: from {len(found.tables)} files of records")


@app.command()
def check(
    file: Annotated[
        str | None, typer.Argument(help="A task, architecture, study or suite: a file or a built-in name.")
    ] = None,
    schema: Annotated[Schema | None, typer.Option(help="Print the JSON schema for editors instead.")] = None,
) -> None:
    """Say all that is wrong with a file, or what it holds."""
    from search import codec

    if schema is not None:
        import json

        say(json.dumps(codec.schema(schema.value), indent=2))
        return
    if file is None:
        refuse("check: may come a FILE, or --schema task|arch|study")
    from search.check import check as summary

    say(f"ok: {summary(file)}")


@app.command(name="list")
def list_(
    what: Annotated[What, typer.Argument()],
    as_markdown: Annotated[bool, typer.Option("--markdown", help="As the tables of the README.")] = False,
) -> None:
    """Show what there is to choose from."""
    from search.listing import TABLES, markdown

    table = TABLES[what.value]()
    if not as_markdown:
        _console().print(table)
        return
    left_out = ("differs", "dials and their defaults", "width", "parameters", "state bytes", "grows")
    say("\n".join(markdown(table, *left_out)))


@app.command()
def preview(
    task: Annotated[str, typer.Argument(help="A task: its kind or a file.")],
    dials: Annotated[
        list[str] | None, typer.Argument(metavar="[DIAL=VALUE]...", help="Such as length=32 pairs=4.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many sequences.")] = 2,
    split: Annotated[Part, typer.Option()] = Part.test,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1)] = 0,
) -> None:
    """Print a few sequences: roles of tokens coloured, what is asked where, and where its answer stands."""
    from search import codec
    from search import preview as pages

    console = _console()
    spec = codec.read_task(task, overrides=dials or [])
    for line in pages.preview(spec, count=count, split=split.value, seed=seed, width=console.width):
        console.print(line)


@app.command()
def cost(
    arch: Annotated[str, typer.Argument(help="An architecture: a name of the zoo or a file.")],
    length: Annotated[int, typer.Option(min=1, max=2**31, help="Tokens of a sequence.")] = 128,
    vocab: Annotated[int, typer.Option(min=1, max=2**31, help="Token ids.")] = 64,
) -> None:
    """Print parameters, state and operations before anything is trained."""
    from arch.cost import cost as cost_of
    from search import codec
    from search.listing import stack_of

    spec = codec.read_arch(arch)
    price = cost_of(spec, vocab=vocab, length=length)
    fixed = price.state_floats - price.growing_floats
    say(f"{spec.name}: width {spec.width}, {stack_of(spec.stack)}")
    say(f"parameters       {price.parameters:>16,}   for {vocab} token ids")
    say(f"state            {price.state_bytes:>16,}   bytes after {length} tokens")
    say(f"  fixed          {fixed:>16,}   floats")
    say(f"  growing        {price.growing_floats:>16,}   floats")
    say(f"operations       {price.flops_per_token:>16,.0f}   per token, forward, mean over {length} tokens")


@app.command()
def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="OP|kernels|growth|step|tasks",
            help="An op; every op beside its published kernel, or over lengths and widths; a cohort's step; drawing tasks.",
        ),
    ],
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", metavar="B,T,H,K,V", help="Of an op: batch, time, heads, key and value width; or S1, S2, S4, L1."
        ),
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Of an op: the kind of inputs.  [default: its first]")] = None,
    beside: Annotated[bool, typer.Option("--beside", help="Of an op: beside other people's kernels, too.")] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .jsonl file for the rows.")] = None,
    arch: Annotated[str, typer.Option(help="Of the step: an architecture.")] = "conv_attention",
    task: Annotated[str, typer.Option(help="Of the step: a task.")] = "mqar",
    members: Annotated[int, typer.Option(min=2, max=1024, help="Of the step: trials in the cohort.")] = 8,
    dtype: Annotated[Precision, typer.Option(help="Of the inputs.")] = Precision.float32,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: cuda where there is one]")] = None,
) -> None:
    """Time implementations of an op, or a cohort's step and its trials one by one, after they agree; or tell of every task
    whence it comes, what it bounds and how fast it is drawn, as Markdown."""
    from search import codec

    if what == "tasks":
        from search import samplers

        for line in samplers.markdown(samplers.rows()):
            say(line, flush=True)
        return
    from search.bench import bench_growth, bench_kernels, bench_op, bench_step
    from search.listing import timings

    where = str(_device(device))
    try:
        if what in ("kernels", "growth"):
            rows = []
            for row in (
                bench_kernels(shapes or ["S1", "S2", "S4", "L1"], dtype=dtype.value, device=where)
                if what == "kernels"
                else bench_growth(dtype=dtype.value, device=where)
            ):
                rows.append(row)
                _keep(output, rows)  # row by row: it takes minutes
                say(" ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
        elif what == "step":
            rows = bench_step(
                codec.read_arch(arch), codec.read_task(task), members=members, dtype=dtype.value, device=where
            )
        else:
            sizes = shapes or ["32,64,2,32,32"]
            rows = bench_op(what, sizes, dtype=dtype.value, device=where, variant=variant, beside=beside)
    except ValueError as error:
        refuse(f"bench {what}: {error}")
    _keep(output, rows)
    _console().print(timings(rows))


@app.command()
def probe(
    archs: Annotated[list[str], typer.Argument(metavar="ARCH...", help="Names of the zoo, or files.")],
    pairs: Annotated[
        list[int] | None,
        typer.Option(min=1, max=2**16, help="Pairs a head; give it more than once.  [default: around the bounds]"),
    ] = None,
    keys: Annotated[KeySort, typer.Option(help="How keys lie to each other.")] = KeySort.gaussian,
    passes: Annotated[int, typer.Option(min=1, max=1000, help="How often the pairs are written over.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1)] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .html page or .json rows to write.")] = None,
) -> None:
    """Measure, without training, how many key-value pairs the memory of each mixer holds."""
    from search import codec
    from search.listing import capacities_of
    from search.probe import probe as measured

    if output is not None and output.suffix not in (".html", ".json"):
        refuse(f"--output: {output} may end in .html or .json")
    rows: list[dict[str, Any]] = []
    for arch in archs:
        try:
            rows += measured(codec.read_arch(arch), pairs=pairs, keys=keys.value, passes=passes, seed=seed)
        except ValueError as error:
            refuse(str(error))
    _console().print(capacities_of(rows))
    if output is None:
        return
    try:
        _write_capacities(output, rows)
    except OSError as error:
        refuse(f"{output}: cannot be written: {_remedy(error)}")
    say(f"{output}: {len(rows)} measurements")


def _write_capacities(path: Path, rows: list[dict[str, Any]]) -> None:
    import json

    from results.capacity import write_page
    from results.write import write_whole

    if path.suffix == ".json":
        write_whole(path, json.dumps(rows, indent=1) + "\n")
    else:
        write_page(path, rows, title=f"Capacity of {', '.join(dict.fromkeys(row['arch'] for row in rows))}")


# What verbs share. --------------------------------------------------------------------------------


def refuse(*lines: str) -> NoReturn:
    """Bad input: say so on stderr, exit code 2."""
    for line in lines:
        complain(one_line(line))
    raise typer.Exit(2)


def _remedy(error: OSError) -> str:
    from results.write import remedy

    return remedy(error)


def _is_ledger_error(error: Exception) -> bool:
    """Without importing the ledger, which a verb that raised one has imported."""
    ledger = sys.modules.get("results.ledger")
    return ledger is not None and isinstance(error, ledger.LedgerError)


def _console() -> Console:
    from search.terminal import Terminal

    return Terminal()


def _part(text: str) -> tuple[int, int]:
    said = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if said is None or not 1 <= int(said[1]) <= int(said[2]):
        refuse(f"--part: may come I/N with I from 1 to N, such as 2/4; got {text[:60]!r}")
    return int(said[1]), int(said[2])


def _engine(name: str, address: str | None, device: str | None, abreast: int) -> Callable[..., Plan]:
    """The run of the engine that is asked for, told where to train."""
    if name not in ("inline", "ray"):
        refuse(f"--engine: no engine '{name}', may come inline or ray")
    if name == "inline":
        if address is not None:
            refuse("--address: the inline engine runs in this process and has no address, leave it out")
        if abreast > 1:
            refuse("--abreast: the inline engine trains one cohort after another; take --engine ray, or --part")
        from search import engine

        return partial(engine.run, device=str(_device(device)))
    if find_spec("ray") is None:
        refuse("--engine: ray is not installed, add it with: pip install 'recallmap[ray]'")
    if device not in (None, "cpu", "cuda"):
        refuse(f"--device: {device} is for the inline engine; ray gives every cohort its own, may come cpu or cuda")
    if address is None:
        _device(device)
    from search import tune

    return partial(tune.run, device=device, address=address, abreast=abreast)


def _keep(path: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a .jsonl file, if there is one to write."""
    import json

    if path is not None:
        _write(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def _write(path: Path, text: str) -> None:
    from results.write import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        refuse(f"{path}: cannot be written: {_remedy(error)}")


def _same_command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _found(
    source: str,
    ledger: Path | None,
    sets: Sequence[str],
    only: Sequence[str],
    *,
    patient: bool = False,
    curves: bool = True,
) -> Found:
    """The records that a verb is to show. What there is to say of them is said."""
    from search import sources

    found = _told(sources.found(source, ledger, sets, patient=patient, curves=curves))
    return found._replace(records=sources.only(found.records, only)) if only else found


def _told(found: Found) -> Found:
    if found.note:
        complain(one_line(found.note))
    return found


def _given(ledger: Path | None, sets: Sequence[str]) -> list[str]:
    """The words of a command that say these, for the next one."""
    return [*(["--ledger", str(ledger)] if ledger else []), *(word for text in sets for word in ("--set", text))]


def _device(name: str | None) -> torch.device:
    """The device that is asked for, if this machine has it."""
    import torch

    from search.cohort import default_device

    try:
        device = torch.device(name or default_device())
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        why = reason if len(reason) < 80 else "no such device"
        refuse(f"--device: {name} cannot be used here ({why}), may come cpu, cuda, cuda:1, ...")
    return device


def _say_plan(
    console: Console,
    study: StudySpec,
    path: Path,
    device: torch.device,
    part: tuple[int, int],
    most: int | None,
    seeds: int,
) -> None:
    """What `run` would train."""
    from results.ledger import Ledger
    from search import pricing
    from search.check import outlook_of, some_corners
    from search.cohort import at_most, room
    from search.engine import most_further, plan
    from search.listing import plan_of
    from search.space import Search
    from search.typed import counted

    ledger = Ledger(path)
    rates = pricing.rates_on(device, ledger)
    if isinstance(study.space, Search):
        allowed = [trials for trials in some_corners(study) if not study.constraints.broken_by(trials[0])]
        for line in [*outlook_of(study), *pricing.outlook(allowed, study.space.most_points, rates)]:
            say(line)
        return
    work = plan(study, ledger.keys(), room=at_most(most) if most else room(device), part=part)
    console.print(plan_of(work, rates))
    if too_large := pricing.too_large(work.missing, device):
        say(too_large)
    known = len(work.trials) - len(work.missing)
    train = f"{len(work.missing)} to train in {counted(len(work.cohorts), 'cohort')}"
    say(f"{counted(len(work.trials), 'trial')}, {known} known in {path}, {train}")
    if seeds:
        more = counted(most_further(study, seeds, ledger), "further trial")
        say(f"then at most {more}: seeds 0..{seeds - 1} of what won")
