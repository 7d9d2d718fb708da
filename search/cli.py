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
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from search.document import SpecError

# What is slow to import (torch, pandas, plotly, yaml, rich tables) is imported by the verb that needs it, so that
# `recallmap --help` answers at once.
if TYPE_CHECKING:
    from rich.console import Console

    from results.record import Record
    from search.engine import Plan
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

Sets = Annotated[list[str], typer.Option("--set", metavar="PATH=VALUE", help="Lay a value over the study, such as trial.seed=1.")]
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
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...  [default: cuda where there is one]")] = None,
    sets: Sets = [],  # noqa: B006  typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be trained, and what it costs.")] = False,
) -> None:
    """Train what the ledger lacks. The same command again goes on where it was stopped."""
    from search import codec
    from search.live import Live

    where = _engine(engine, address)
    spec = codec.read_study(study, overrides=sets)
    path = ledger or _default_ledger(spec)
    console = _console()
    for trial, why in spec.rejected():
        console.print(f"not trained: {trial.arch.name} on {trial.task.kind} has {why}", markup=False)
    if dry_run:
        _say_plan(console, spec, path, device)
        return
    with Live(console) as live:
        try:
            where(spec, path, report=live, device=device)
        except KeyboardInterrupt:
            kept = f"{live.last.known + live.last.done} of {live.last.trials} trials are in" if live.last else "nothing is in"
            _say_to_stderr(f"\nstopped; {kept} {path}. To go on:\n  {_same_command()}")
            raise typer.Exit(130) from None
    if live.last is None:
        return
    end = live.last
    console.print(
        f"{end.known} known, {end.done} done, {end.failed} failed, in {path}\nnext: recallmap table {shlex.quote(study)}",
        markup=False,
        soft_wrap=True,
    )
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
    records = _records(source, ledger, sets)
    try:
        text = render(table_of(records, theirs), form.value)
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

    seen: list[str] | None = None
    while True:
        records = _records(source, ledger, sets, patient=watch)
        if seen != (seen := [r.key + r.status for r in records]):
            write_page(records, output)
            print(f"{output}: {len(records)} records")
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
    file: Annotated[str | None, typer.Argument(help="A task, architecture, study or suite: a file or a built-in name.")] = None,
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
    dials: Annotated[list[str] | None, typer.Argument(metavar="[DIAL=VALUE]...", help="Such as length=32 pairs=4.")] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many sequences.")] = 2,
    split: Annotated[Part, typer.Option()] = Part.test,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Print a few sequences: roles of tokens coloured, what is asked where, and where its answer stands."""
    from search import codec, preview as pages

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


# What verbs share. -----------------------------------------------------------------------------------------------------


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


def _records(source: str, ledger: Path | None, sets: list[str], *, patient: bool = False) -> list[Record]:
    """The records of a ledger, of a file of records, or of those trials of a study that its ledger has."""
    from results.ledger import Ledger
    from results.record import read_records

    path = Path(source)
    if path.suffix == ".jsonl" or path.is_dir():
        try:
            return read_records(path)
        except (OSError, ValueError) as error:
            refuse(f"{source}: {error}")
    if path.suffix in (".sqlite", ".db"):
        with Ledger.open(path) as held:
            return held.all()
    from search import codec

    study = codec.read_study(source, overrides=sets)
    path = ledger or _default_ledger(study)
    if patient and not path.exists():
        return []
    keys = {codec.key(trial) for trial in study.trials()}
    with Ledger.open(path) as held:
        records = [record for record in held.all() if record.key in keys]
    if len(records) < len(keys):
        _say_to_stderr(f"{path} has {len(records)} of the {len(keys)} trials of {study.name}")
    return records


def _say_plan(console: Console, study: StudySpec, path: Path, device: str | None) -> None:
    """What `run` would train."""
    from results.ledger import Ledger
    from search.engine import default_device, plan, room
    from search.listing import plan_of

    import torch

    finished = Ledger(path).keys()
    work: Plan = plan(study, finished, most=room(torch.device(device or default_device())))
    console.print(plan_of(work))
    known = len(work.trials) - len(work.missing)
    console.print(f"{len(work.trials)} trials, {known} known in {path}, {len(work.missing)} to train in {len(work.cohorts)} cohorts")
