"""The verbs: look at what there is, train what a ledger lacks, show what was found."""

from __future__ import annotations

import importlib
import os
import shlex
import sys
import time
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperGroup

from search.document import SpecError

# What is slow to import (torch, pandas, plotly, yaml, rich tables) is imported by the verb that needs it, so that
# `recallmap --help` answers at once.
if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from results.record import Record
    from search.study import StudySpec

RUNS = Path("runs")  # where ledgers lie unless told otherwise


class What(StrEnum):
    tasks = "tasks"
    mixers = "mixers"
    archs = "archs"
    suites = "suites"
    studies = "studies"


class Schema(StrEnum):
    task = "task"
    arch = "arch"
    study = "study"


class Form(StrEnum):
    markdown = "markdown"
    csv = "csv"
    latex = "latex"


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
            refuse(str(error))
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
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


def main() -> None:
    """The door of the console script."""
    app()


@app.command()
def run(
    study: Annotated[str, typer.Argument(help="A study: a built-in name or a file.")],
    ledger: LedgerPath = None,
    engine: Annotated[str, typer.Option(help="Where trials run: inline is this process.")] = "inline",
    address: Annotated[str | None, typer.Option(help="The cluster, for engines that have one.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...  [default: cuda where there is one]")
    ] = None,
    sets: Sets = [],  # noqa: B006  typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and what it costs.")] = False,
) -> None:
    """Train what the ledger lacks. The same command again goes on where it was stopped."""
    from search import codec
    from search.live import Live

    where = _engine(engine, address)
    spec = codec.read_study(study, overrides=sets)
    path = ledger or _default_ledger(spec)
    chosen = _device(device)
    console = _console()
    for trial, why in spec.rejected():
        console.print(f"not trained: {trial.name} on {trial.task.kind} has {why}", markup=False)
    if dry_run:
        _say_plan(console, spec, path, chosen)
        return
    with Live(console) as live:
        try:
            where(spec, path, report=live, device=str(chosen))
        except KeyboardInterrupt:
            _say_to_stderr(f"\nstopped; {live.kept} in {path}. To go on:\n  {_same_command()}")
            raise typer.Exit(130) from None
    if live.last is None:
        return
    end = live.last
    print(f"{end.known} known, {end.done} done, {end.failed} failed, in {path}")
    given = [*(["--ledger", str(ledger)] if ledger else []), *(word for text in sets for word in ("--set", text))]
    print(f"next: recallmap table {shlex.join([study, *given])}")
    if end.failed:
        raise typer.Exit(1)


@app.command()
def table(
    source: Annotated[str, typer.Argument(metavar="STUDY|LEDGER", help="A study, a ledger, or a .jsonl of records.")],
    form: Annotated[Form, typer.Option("--format")] = Form.markdown,
    beside: Annotated[str | None, typer.Option(help="Published figures to set beside, such as mesanet.")] = None,
    ledger: LedgerPath = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Print score tables, beside published figures with differences where asked."""
    from results.published import Published
    from results.render import render
    from results.tables import table_of
    from search import codec

    theirs = Published.from_dict(codec.read_published(beside)) if beside else None
    found = _found(source, ledger, sets)
    try:
        text = render(table_of(found.records, theirs), form.value)
    except ValueError as error:  # hyper-parameters that cannot be chosen
        refuse(str(error))
    print(text, end="" if text.endswith("\n") else "\n")


@app.command()
def dashboard(
    source: Annotated[str, typer.Argument(metavar="STUDY|LEDGER", help="A study, a ledger, or a .jsonl of records.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("recallmap.html"),
    watch: Annotated[bool, typer.Option("--watch", help="Write the page again whenever the ledger changed.")] = False,
    ledger: LedgerPath = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Write one offline page: front, capacity curves, heat map, learning curves, the table."""
    from results.dashboard import write_page
    from results.tables import table_of

    seen: set[tuple[str, str]] | None = None
    while True:
        found = _found(source, ledger, sets, patient=watch)
        now: set[tuple[str, str]] = {(record.key, record.status) for record in found.records}
        if now != seen:
            seen = now
            try:
                write_page(output, found.records, title=found.title, tables=table_of(found.records))
            except OSError as error:
                refuse(f"{output}: cannot be written: {error.strerror or error}")
            except ValueError as error:  # hyper-parameters that cannot be chosen
                refuse(str(error))
            print(f"{output}: {len(found.records)} records", flush=True)
        if not watch:
            return
        time.sleep(2)


@app.command()
def export(
    ledger: Annotated[Path, typer.Argument(help="A ledger's file.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="A .parquet, .csv or .jsonl file.")],
) -> None:
    """Write all records of a ledger for other programs."""
    from results.ledger import Ledger

    with Ledger.open(ledger) as held:
        held.export(output)
        print(f"{output}: {len(held)} records")


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

        print(json.dumps(codec.schema(schema.value), indent=2))
        return
    if file is None:
        refuse("check: may come a FILE, or --schema task|arch|study")
    from search.check import check as summary

    print(f"ok: {summary(file)}")


@app.command(name="list")
def list_(what: Annotated[What, typer.Argument()]) -> None:
    """Show what there is to choose from."""
    from search.listing import TABLES

    _console().print(TABLES[what.value]())


@app.command()
def preview(
    task: Annotated[str, typer.Argument(help="A task: its kind or a file.")],
    dials: Annotated[
        list[str] | None, typer.Argument(metavar="[DIAL=VALUE]...", help="Such as length=32 pairs=4.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many sequences.")] = 2,
    split: Annotated[Part, typer.Option()] = Part.test,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Print a few sequences: roles of tokens coloured, what is asked where, and where its answer stands."""
    from search import codec
    from search import preview as pages

    console = _console()
    spec = codec.read_task(task, overrides=dials or [])
    for line in pages.preview(spec, count=count, split=split.value, seed=seed, width=console.width):
        console.print(line, soft_wrap=True)


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
    print(f"{spec.name}: width {spec.width}, {stack_of(spec.stack)}")
    print(f"parameters       {price.parameters:>16,}   for {vocab} token ids")
    print(f"state            {price.state_bytes:>16,}   bytes after {length} tokens")
    print(f"  fixed          {fixed:>16,}   floats")
    print(f"  growing        {price.growing_floats:>16,}   floats")
    print(f"operations       {price.flops_per_token:>16,.0f}   per token, forward, mean over {length} tokens")


@app.command()
def bench(
    what: Annotated[
        str, typer.Argument(metavar="OP|step|tasks", help="An op; the training step of a cohort; drawing tasks.")
    ],
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shape", metavar="B,T,H,K,V", help="Of an op: batch, time, heads, key and value width."),
    ] = None,
    arch: Annotated[str, typer.Option(help="Of the step: an architecture.")] = "conv_attention",
    task: Annotated[str, typer.Option(help="Of the step: a task.")] = "mqar",
    members: Annotated[int, typer.Option(min=2, help="Of the step: trials in the cohort.")] = 8,
    dtype: Annotated[Precision, typer.Option(help="Of the inputs.")] = Precision.float32,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: cuda where there is one]")] = None,
) -> None:
    """Time implementations of an op, or a cohort's step and its trials one by one, after they agree; or tell of every task
    whence it comes, what it bounds and how fast it is drawn, as Markdown."""
    from search import codec

    if what == "tasks":
        from search import samplers

        for line in samplers.markdown(samplers.rows()):
            print(line, flush=True)
        return
    from search.bench import bench_op, bench_step
    from search.listing import timings

    where = str(_device(device))
    try:
        if what == "step":
            rows = bench_step(
                codec.read_arch(arch), codec.read_task(task), members=members, dtype=dtype.value, device=where
            )
        else:
            rows = bench_op(what, shapes or ["32,64,2,32,32"], dtype=dtype.value, device=where)
    except ValueError as error:
        refuse(f"bench {what}: {error}")
    _console().print(timings(rows))


@app.command()
def probe(
    archs: Annotated[list[str], typer.Argument(metavar="ARCH...", help="Names of the zoo, or files.")],
    pairs: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Pairs a head; give it more than once.  [default: around the bounds]"),
    ] = None,
    keys: Annotated[KeySort, typer.Option(help="How keys lie to each other.")] = KeySort.gaussian,
    passes: Annotated[int, typer.Option(min=1, help="How often the pairs are written over.")] = 1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
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
        refuse(f"{output}: cannot be written: {error.strerror or error}")
    print(f"{output}: {len(rows)} measurements")


def _write_capacities(path: Path, rows: list[dict[str, Any]]) -> None:
    import json

    from results.capacity import write_page
    from results.write import write_whole

    if path.suffix == ".json":
        write_whole(path, json.dumps(rows, indent=1) + "\n")
    else:
        write_page(path, rows, title=f"Capacity of {', '.join(dict.fromkeys(row['arch'] for row in rows))}")


# What verbs share. --------------------------------------------------------------------------------


def refuse(message: str) -> NoReturn:
    """Bad input: say so on stderr, exit code 2."""
    _say_to_stderr(message)
    raise typer.Exit(2)


def _say_to_stderr(message: str) -> None:
    print(message.encode(errors="backslashreplace").decode(), file=sys.stderr)


def _is_ledger_error(error: Exception) -> bool:
    """Without importing the ledger, which a verb that raised one has imported."""
    ledger = sys.modules.get("results.ledger")
    return ledger is not None and isinstance(error, ledger.LedgerError)


def _console() -> Console:
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(highlight=False, width=wide)


def _engine(name: str, address: str | None) -> Any:
    """The run of the engine that is asked for. Engines that are not installed here are not offered."""
    engines = {"inline": "search.engine", "ray": "search.tune"}
    known = [n for n, module in engines.items() if find_spec(module)]
    if name not in known:
        why = "the ray engine is not built in yet" if name == "ray" else f"no engine '{name}'"
        refuse(f"--engine: {why}, may come {' or '.join(known)}")
    if address is not None and name == "inline":
        refuse("--address: the inline engine runs in this process and has no address, leave it out")
    return importlib.import_module(engines[name]).run


def _default_ledger(study: StudySpec) -> Path:
    return RUNS / f"{study.name}.sqlite"


def _same_command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


class Found(NamedTuple):
    """Records, and what they are records of."""

    title: str
    records: list[Record]


def _found(source: str, ledger: Path | None, sets: list[str], *, patient: bool = False) -> Found:
    """The records of a ledger, of a file of records, or of those trials of a study that its ledger has.

    Where there are none that is bad input, unless one is patient and waits for the first.
    """
    from search import codec

    path = Path(source)
    if source in codec.builtin("study"):
        found = _of_study(source, ledger, sets, patient)
    elif path.suffix == ".jsonl" or path.is_dir():
        found = Found(path.stem or source, _kept(path))
    elif path.suffix in (".sqlite", ".db"):
        found = Found(path.stem, _held(path, patient))
    else:
        found = _of_study(source, ledger, sets, patient)
    if not found.records and not patient:
        refuse(f"{source}: there are no records yet, fill it with: recallmap run STUDY")
    return found


def _kept(path: Path) -> list[Record]:
    from results.record import read_records

    try:
        return read_records(path)
    except (OSError, ValueError) as error:
        refuse(f"{path}: {error}")


def _held(path: Path, patient: bool) -> list[Record]:
    from results.ledger import Ledger

    if patient and not path.exists():
        return []
    with Ledger.open(path) as ledger:
        return ledger.all()


def _of_study(source: str, ledger: Path | None, sets: list[str], patient: bool) -> Found:
    from search import codec

    study = codec.read_study(source, overrides=sets)
    path = ledger or _default_ledger(study)
    keys = {codec.key(trial) for trial in study.trials()}
    records = [record for record in _held(path, patient) if record.key in keys]
    if len(records) < len(keys) and not patient:
        _say_to_stderr(f"{path} has {len(records)} of the {len(keys)} trials of {study.name}")
    return Found(study.name, records)


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


def _say_plan(console: Console, study: StudySpec, path: Path, device: torch.device) -> None:
    """What `run` would train."""
    from results.ledger import Ledger
    from search.cohort import room
    from search.engine import plan
    from search.listing import plan_of
    from search.typed import counted

    finished = Ledger(path).keys()
    work = plan(study, finished, most=room(device))
    console.print(plan_of(work))
    known = len(work.trials) - len(work.missing)
    train = f"{len(work.missing)} to train in {counted(len(work.cohorts), 'cohort')}"
    print(f"{counted(len(work.trials), 'trial')}, {known} known in {path}, {train}")
