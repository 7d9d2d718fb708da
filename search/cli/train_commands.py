"""Commands that train: run, and best for the result of a search."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from recallmap.search.cli import completion
from recallmap.search.cli.app import (
    AsJson,
    LedgerPath,
    Records,
    Sets,
    Study,
    app,
    device_of,
    refuse,
    refuse_to_share,
    remedy_of,
    terminal,
    with_note,
    write_text,
)
from recallmap.search.cli.durations import seconds_in
from recallmap.search.cli.next_command import training, words_given
from recallmap.search.cli.parts import part_of
from recallmap.search.cli.streams import complain, say, settle

if TYPE_CHECKING:
    import torch
    from rich.console import Console

    from recallmap.results.record import Record
    from recallmap.search.cli.run_display import Quiet
    from recallmap.search.engines.plan import Plan
    from recallmap.search.study.spec import StudySpec
    from recallmap.search.weights.kept import WeightFolder

MOST_REPEATS = 1000  # of a search, that `best` compares


@app.command()
def run(
    study: Study,
    ledger: LedgerPath = None,
    engine: Annotated[
        str,
        typer.Option(help="Engine that runs trials: inline (this process) or ray.", autocompletion=completion.engines),
    ] = "inline",
    address: Annotated[
        str | None, typer.Option(help="Address of a running Ray cluster: auto or HOST:PORT.  [default: this machine]")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1, ...  [default: cuda where there is one]")
    ] = None,
    part: Annotated[
        str,
        typer.Option(
            metavar="I/N", help="Train only every N-th cohort from the I-th on: for N calls, each with its own ledger."
        ),
    ] = "1/1",
    cohort_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most trials per cohort; trials that share their first phase stay together.  [default: by device]",
        ),
    ] = None,
    most: Annotated[int | None, typer.Option(min=1, hidden=True)] = None,
    cohorts_per_gpu: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Cohorts that train at once on a GPU.  [default: 3 where NVIDIA's MPS is installed, else 1; on a cluster 1]",
        ),
    ] = None,
    abreast: Annotated[int | None, typer.Option(min=1, max=1000, hidden=True)] = None,
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=10_000,
            help="After the grid, train seeds 0..N-1 of the best setting of each architecture on each task setting.",
        ),
    ] = 0,
    limit: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="Stop after a time, such as 90s, 9m or 1h30m. Cohorts are saved, the same command resumes; exit code 124.",
        ),
    ] = None,
    known: Annotated[
        list[Path],
        typer.Option(
            metavar="RECORDS",
            help="Count trials as trained that have records elsewhere: in a ledger, a .jsonl file or a folder. The ledger "
            "gets copies of those that the study asks for.",
        ),
    ] = [],  # noqa: B006
    known_untraceable: Annotated[
        bool, typer.Option("--known-untraceable", help="Accept records for --known that name no clean commit.")
    ] = False,
    keep_weights: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the weights of each trained trial in DIR/KEY, with its architecture: those of the checkpoint that "
            "validation chose. recallmap.load(DIR/KEY) gives the model back.",
        ),
    ] = None,
    log: Annotated[
        list[str],
        typer.Option(
            metavar="NAME:TARGET",
            help="Log trials, curves and scores to tensorboard:DIR, wandb:PROJECT or mlflow:URI as well.",
        ),
    ] = [],  # noqa: B006
    sets: Sets = [],  # noqa: B006  typer copies it
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost, and train nothing.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each event, and nothing else, on stdout.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only failures and the last lines.")] = False,
) -> None:
    """Train what the ledger lacks. The same command again resumes where it was stopped. Each run ends with a line on where
    the time went."""
    began = monotonic()  # before libraries are imported, which takes seconds
    from recallmap.search import codec
    from recallmap.search.training.time_limit import NEVER, TimeIsUp, TimeLimit

    end_by = NEVER if limit is None else TimeLimit.of(seconds_in(limit, "--for"), began)
    from recallmap.search.cli import sources
    from recallmap.search.cli.run_display import End
    from recallmap.search.cli.unfinished import saved_of
    from recallmap.search.engines.driver import EngineError
    from recallmap.search.engines.listeners.audience import listening
    from recallmap.search.engines.stopping import OUT_OF_TIME, stoppable
    from recallmap.search.space.search_space import Search
    from recallmap.search.study.dropped import dropped
    from recallmap.search.study.spec import MOST_POINTS

    if as_json and (quiet or dry_run):
        refuse(f"--json prints the events of a run, got {'--quiet' if quiet else '--dry-run'}, too; leave one out")
    cohort_size = _renamed("--cohort-size", cohort_size, "--most", most)
    cohorts_per_gpu = _renamed("--cohorts-per-gpu", cohorts_per_gpu, "--abreast", abreast)
    where = _engine(engine, address, device, cohorts_per_gpu)
    share = part_of(part)
    spec = codec.read_study(study, overrides=sets)
    if isinstance(spec.space, Search) and share != (1, 1):
        refuse(
            "--part: a search cannot be split into parts, because its next points depend on all results; leave it out"
        )
    if isinstance(spec.space, Search) and seeds:
        refuse("--seeds: a search sets its own seeds; set space.over.trial.seed instead")
    if spec.extend and share != (1, 1):
        refuse(
            "--part: only a whole grid shows its edges; add --set extend=false, merge the parts, then run without --part"
        )
    if spec.race is not None and share != (1, 1):
        refuse("--part: only a whole grid is raced, because the best of all decide who goes on; leave it out")
    if seeds and share != (1, 1):
        refuse("--seeds: only a whole grid has a winner; merge its parts, then use --seeds without --part")
    if seeds and seeds * len(spec.trials()) > MOST_POINTS:
        refuse(
            f"--seeds must be at most {MOST_POINTS // len(spec.trials()):,} for a grid of {len(spec.trials()):,} trials, got "
            f"{seeds:,}"
        )
    path = ledger or sources.default_ledger(spec)
    if path.suffix == ".jsonl":
        refuse(
            f"--ledger: got {path}, a file of records, expected a ledger; make one with: recallmap merge {path} -o NAME.sqlite"
        )
    elsewhere = sources.known(known, untraceable=known_untraceable, say=complain)
    console = terminal()
    rejected = () if isinstance(spec.space, Search) else spec.rejected()
    without = [f"not trained: {trial.name} on {trial.task.kind} has {why}" for trial, why in rejected]
    if dry_run:
        for line in (*dropped(spec), *without):
            say(line)
        _say_plan(console, spec, path, device_of(device), share, cohort_size, seeds, elsewhere)
        return
    display = _display(console, spec, path, as_json=as_json, quiet=quiet)
    for line in without:
        display.note(line)
    weights = None if keep_weights is None else _weights_in(keep_weights)
    with (
        listening(log, spec.name, say=complain) as audience,
        stoppable(end_by) as stop,
        display,
    ):
        try:
            plan = where(
                spec,
                path,
                report=display,
                part=share,
                cohort_size=cohort_size,
                seeds=seeds,
                known=elsewhere,
                limit=end_by,
                weights=weights,
                listeners=audience,
            )
        except BrokenPipeError:
            raise  # of who reads what is printed, no cluster's
        except ConnectionError as error:
            refuse(f"--address: {error}")
        except (KeyboardInterrupt, EngineError) as error:
            status, why, code = "stopped", "", stop.code
            if isinstance(error, TimeIsUp):
                status, why, code = "out of time", ": time is up", OUT_OF_TIME
            elif isinstance(error, EngineError):
                status, why, code = "failed", f": {error}", 1
            under_way = display.last.under_way if display.last is not None else ()
            saved = saved_of(spec, path, (trial for work in under_way for trial in work.specs))
            settle()  # a terminal that was closed
            with suppress(OSError):
                display.close()
                display.end(End(status=status, code=code, ledger=path, next=_same_command(), why=why, saved=saved))
            raise typer.Exit(code) from None
    for line in () if weights is None else weights.lacking(plan.trials, plan.known):
        display.note(line)
    given = words_given(ledger, sets)
    verb = "best" if isinstance(spec.space, Search) else "table"
    last = display.last
    code = int(
        last is not None and bool(last.failed or (isinstance(spec.space, Search) and not last.known + last.done))
    )
    then = f"recallmap {verb} {shlex.join([str(path)] if seeds else [study, *given])}"
    display.end(End(status="finished", code=code, ledger=path, next=then))
    if code:
        raise typer.Exit(code)


@app.command()
def best(
    study: Study,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A .yaml file for the architecture of the winner.")
    ] = None,
    point: Annotated[str | None, typer.Option(help="A point instead of the winner, such as 'tpe 12'.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The name of the architecture that -o writes.  [default: STUDY_POINT]")
    ] = None,
    repeats: Annotated[
        str | None,
        typer.Option(
            metavar="N|FIRST-LAST",
            help="Compare the samplers instead, over the searches with the seeds 0 to N-1, or FIRST to LAST.",
        ),
    ] = None,
    ledger: Records = None,
    sets: Sets = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Print the front of a search. The progress of its samplers and the importance of parameters follow; -o writes the
    architecture of the winner."""
    from recallmap.search import codec
    from recallmap.search.cli import sources
    from recallmap.search.cli.json_text import document
    from recallmap.search.proposers import found_architecture, search_results, state_limits, what_repeats
    from recallmap.search.proposers.journal import Journal

    spec = codec.read_study(study, overrides=sets)
    path = ledger or sources.default_ledger(spec)
    if repeats is not None:
        if output is not None or point is not None or name is not None:
            refuse("best: --repeats compares samplers and writes no winner; leave -o, --point and --name out")
        _say_comparison(study, sets, repeats, sources.journal_at(path), as_json)
        return
    if name is not None and output is None:
        refuse("best: --name names the architecture that -o writes; add -o FILE")
    records = with_note(sources.of_study(spec, study, ledger)).records
    try:
        found = search_results.findings_of(spec, records, Journal(sources.journal_at(path)))
    except ValueError as error:  # a goal that nothing scores
        refuse(f"best: {error}")
    if not found.candidates:
        refuse(f"{path}: {sources.untrained(spec, path, training(study, ledger, sets))}")
    try:
        one = search_results.winner(found, point)
        text = found_architecture.arch_document(found, one, output.parent, name) if output is not None else ""
    except ValueError as error:
        refuse(f"best: {error}")
    limits, repeated = state_limits.within_limits(found), what_repeats.repeated_in(found)
    if as_json:
        more = {
            "limits": state_limits.data_of(limits),
            "repeats": None if repeated is None else what_repeats.data_of(repeated),
        }
        say(document({**search_results.data_of(found), **more, "winner": one.name}))
    else:
        shown = terminal()
        shown.print(search_results.front_table(found))
        if repeated is not None and repeated.letters:
            shown.say(f"letters: {repeated.legend}")
        if limits:
            shown.print(state_limits.table_of(found, limits))
        shown.say("")
        for line in search_results.lines_of(found):
            shown.say(line)
        if repeated is not None and repeated.why:
            shown.say(f"what repeats: not estimated: {repeated.why}")
        elif repeated is not None:
            shown.print(what_repeats.table_of(repeated))
    if output is not None:
        write_text(output, text)
        tell = complain if as_json else say
        tell(f"{output}: the architecture of {one.name}; next: recallmap cost {shlex.quote(str(output))}")


def _say_comparison(study: str, sets: Sequence[str], repeats: str, journal: Path, as_json: bool) -> None:
    from recallmap.search import codec
    from recallmap.search.cli.json_text import document
    from recallmap.search.proposers import sampler_comparison
    from recallmap.search.proposers.journal import Journal

    seeds = _seeds_of(repeats)
    try:
        each = [codec.read_study(study, overrides=[*sets, f"space.seed={seed}"]) for seed in seeds]
        found = sampler_comparison.standings(each, Journal(journal))
    except ValueError as error:
        refuse(f"best: {error}")
    if as_json:
        say(document(list(sampler_comparison.data_of(found))))
    else:
        terminal().print(sampler_comparison.table_of(found))


def _seeds_of(repeats: str) -> range:
    """The seeds that `N` or `FIRST-LAST` stands for."""
    asked = re.fullmatch(r"(?:(\d{1,9})-)?(\d{1,9})", repeats)
    first, last = (int(asked[1] or 0), int(asked[2]) - (not asked[1])) if asked else (0, 0)
    if not asked or not 2 <= last - first + 1 <= MOST_REPEATS:
        refuse(
            f"--repeats must be from 2 to {MOST_REPEATS}, or the first and the last of so many seeds, such as 5-14, got "
            f"{repeats[:60]}"
        )
    return range(first, last + 1)


def _renamed(name: str, value: int | None, old_name: str, old_value: int | None) -> int | None:
    """Merge an option with its old name, which is accepted and not shown."""
    if None not in (value, old_value) and value != old_value:
        refuse(
            f"{name} and {old_name} are one option and must agree, got {value} and {old_value}; leave {old_name} out"
        )
    return old_value if value is None else value


def _weights_in(folder: Path) -> WeightFolder:
    """A folder for weights, in which something can be written."""
    from recallmap.search.weights.kept import WeightFolder

    weights = WeightFolder(folder)
    try:
        weights.make_ready()
    except OSError as error:
        refuse(f"--keep-weights: {folder} cannot be written in: {remedy_of(error)}")
    return weights


def _engine(name: str, address: str | None, device: str | None, cohorts_per_gpu: int | None) -> Callable[..., Plan]:
    """The `run` of the engine that is asked for, with its device set."""
    if name not in ("inline", "ray"):
        refuse(f"--engine: no engine '{name}', expected inline or ray")
    if name == "inline":
        if address is not None:
            refuse("--address: the inline engine runs in this process and has no address; leave it out")
        here = device_of(device)
        refuse_to_share(here, cohorts_per_gpu, "use --engine ray, or several calls with --part")
        from recallmap.search.engines import inline

        return partial(inline.run, device=str(here), cohorts_per_gpu=cohorts_per_gpu)
    if find_spec("ray") is None:
        refuse("--engine: ray is not installed; add it with: pip install 'recallmap[ray]'")
    if device not in (None, "cpu", "cuda"):
        refuse(f"--device: got {device}, expected cpu or cuda, as ray chooses the GPU of every cohort")
    if address is None:
        device_of(device)
    from recallmap.search.engines import ray_workers

    return partial(ray_workers.run, device=device, address=address, cohorts_per_gpu=cohorts_per_gpu)


def _display(console: Console, study: StudySpec, path: Path, *, as_json: bool, quiet: bool) -> Quiet:
    """What shows the run: lines of JSON, next to nothing, a live display at a terminal, or plain lines."""
    from recallmap.search.cli.run_display import Lines, Names, Quiet

    names = Names.of(study)
    if as_json:
        from recallmap.search.cli.json_events import Events

        return Events(names, study.name, str(path))
    if quiet:
        return Quiet(names)
    from recallmap.search.cli.live_display import LiveDisplay, is_lively

    return LiveDisplay(names, console) if is_lively(console) else Lines(names, console)


def _same_command() -> str:
    name = Path(sys.argv[0]).name
    return shlex.join([*(["python", "-m", "recallmap"] if name == "__main__.py" else [name]), *sys.argv[1:]])


def _say_plan(
    console: Console,
    study: StudySpec,
    path: Path,
    device: torch.device,
    part: tuple[int, int],
    cohort_size: int | None,
    seeds: int,
    elsewhere: Mapping[str, Record],
) -> None:
    """Print the trials that `run` would train, and their cost."""
    from recallmap.results.analysis.labels import counted
    from recallmap.results.ledger import Ledger
    from recallmap.search.cli.cohort_listing import cohorts_of
    from recallmap.search.cli.file_summary import outlook_of, some_corners
    from recallmap.search.cli.listings import plan_of
    from recallmap.search.engines import pricing
    from recallmap.search.engines.plan import plan
    from recallmap.search.engines.trial_sources import extension_of, most_further, race_of
    from recallmap.search.space.search_space import Search
    from recallmap.search.training.packing import at_most, room

    ledger = Ledger(path)
    rates = pricing.rates_or_guess(device, ledger)
    if isinstance(study.space, Search):
        allowed = [trials for trials in some_corners(study) if not study.constraints.broken_by(trials[0])]
        for line in [*outlook_of(study), *pricing.outlook(allowed, study.space.most_points, rates)]:
            say(line)
        return
    space = at_most(cohort_size) if cohort_size else room(device)
    work = plan(study, ledger.keys() | elsewhere.keys(), room=space, part=part)
    console.print(plan_of(work, rates))
    for line in cohorts_of(work, space):
        say(line)
    if too_large := pricing.too_large(work.missing, device):
        say(too_large)
    known = len(work.trials) - len(work.missing)
    train = f"{len(work.missing)} to train in {counted(len(work.cohorts), 'cohort')}"
    where = f"{path} and --known" if elsewhere else path
    say(f"{counted(len(work.trials), 'trial')}, {known} known in {where}, {train}")
    if study.race is not None:
        say(race_of(study, study.race))
    if study.extend:
        say(extension_of(study, ledger, elsewhere))
    if seeds:
        more = counted(most_further(study, seeds, ledger, elsewhere), "further trial")
        say(f"then at most {more}: seeds 0..{seeds - 1} of the best settings")
