"""Commands that look without training: check, list, preview, cost, bench, probe."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from recallmap.search.cli import completion
from recallmap.search.cli.app import (
    AsJson,
    Precision,
    Sets,
    app,
    device_of,
    refuse,
    refuse_to_share,
    remedy_of,
    terminal,
    write_rows,
)
from recallmap.search.cli.durations import seconds_in
from recallmap.search.cli.parts import part_of
from recallmap.search.cli.streams import complain, say


class What(StrEnum):
    tasks = "tasks"
    mixers = "mixers"
    archs = "archs"
    differences = "differences"
    suites = "suites"
    studies = "studies"
    samplers = "samplers"


class Schema(StrEnum):
    task = "task"
    arch = "arch"
    study = "study"


class KeySort(StrEnum):
    gaussian = "gaussian"
    orthonormal = "orthonormal"
    correlated = "correlated"
    quantised = "quantised"


class Part(StrEnum):
    train = "train"
    validation = "validation"
    test = "test"


@app.command()
def check(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A task, architecture, study or suite: a file or a built-in name.", autocompletion=completion.parts
        ),
    ] = None,
    schema: Annotated[Schema | None, typer.Option(help="Print the JSON schema for editors instead.")] = None,
    no_execute: Annotated[
        bool, typer.Option("--no-execute", help="Only say which code the file would execute, and execute none.")
    ] = False,
) -> None:
    """Check a file: print all its faults, or a summary."""
    from recallmap.search import codec

    if schema is not None:
        import json

        say(json.dumps(codec.schema(schema.value), indent=2))
        return
    if file is None:
        refuse("check: got neither a file nor --schema, expected a FILE, or --schema task|arch|study")
    from recallmap.search.cli.file_summary import check as summary
    from recallmap.search.cli.file_summary import code_of

    if no_execute:
        say(f"would execute {', '.join(code_of(file)) or 'no code from outside'}")
        return
    say(f"ok: {summary(file)}")
    for line in lines_of_outside():
        say(line)


def lines_of_outside() -> list[str]:
    """What was executed of the user's own code, and what it defined."""
    from recallmap.search.documents import outside

    return [*(f"executed {one.summary}" for one in outside.loaded()), *outside.broken()]


@app.command(name="list")
def list_(
    what: Annotated[What, typer.Argument()],
    name: Annotated[
        str | None,
        typer.Argument(help="One mixer, task or sampler, to show with its options.", autocompletion=completion.kinds),
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, as in the READMEs.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what comes with recallmap, or show one mixer, task or sampler. It lists tasks, mixers, architectures and their
    differences, suites, studies and samplers."""
    from recallmap.search.cli import kind_page
    from recallmap.search.cli.json_text import document
    from recallmap.search.cli.listings import LISTINGS, markdown
    from recallmap.search.documents import outside

    if as_json and as_markdown:
        refuse("list: got --json and --markdown, expected one of them; leave one out")

    outside.join_installed()
    for line in outside.broken():
        complain(line)
    if name is not None:
        if as_markdown:
            refuse(f"list: got --markdown and {name}, expected one of them; leave one out")
        if as_json:
            say(document(kind_page.row_of(what.value, name)))
        else:
            kind_page.show(what.value, name, terminal())
        return
    if as_json:
        say(document(LISTINGS[what.value].rows()))
        return
    table = LISTINGS[what.value].table()
    if not as_markdown:
        terminal().print(table)
        return
    left_out = ("differs", "options and their defaults", "width", "parameters", "state bytes", "grows")
    say("\n".join(markdown(table, *left_out)))


@app.command()
def preview(
    task: Annotated[str, typer.Argument(help="A task: its kind or a file.", autocompletion=completion.tasks)],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTION=VALUE]...", help="Options of the task, such as length=32 pairs=4."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, max=1000, help="Number of sequences.")] = 2,
    split: Annotated[Part, typer.Option()] = Part.test,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1)] = 0,
) -> None:
    """Print a few sequences of a task. Roles of tokens are in colour, with the questions and the positions of their
    answers."""
    from recallmap.search import codec
    from recallmap.search.cli import task_preview as pages

    console = terminal()
    spec = codec.read_task(task, overrides=options or [])
    for line in pages.preview(spec, count=count, split=split.value, seed=seed, width=console.width):
        console.print(line)


@app.command()
def cost(
    arch: Annotated[
        str, typer.Argument(help="An architecture: a name of the zoo or a file.", autocompletion=completion.archs)
    ],
    length: Annotated[int, typer.Option(min=1, max=2**31, help="Tokens in a sequence.")] = 128,
    vocab: Annotated[int, typer.Option(min=1, max=2**31, help="Number of token ids.")] = 64,
    as_json: AsJson = False,
) -> None:
    """Print the cost of an architecture. That is parameters, state and operations; nothing is trained."""
    from recallmap.arch.cost import cost as cost_of
    from recallmap.search import codec
    from recallmap.search.cli.catalogue import stack_of
    from recallmap.search.cli.json_text import document
    from recallmap.search.cli.listings import has_unknown_state

    spec = codec.read_arch(arch)
    price = cost_of(spec, vocab=vocab, length=length)
    if as_json:
        asked = {
            "arch": spec.name,
            "width": spec.width,
            "blocks": stack_of(spec.stack),
            "vocab": vocab,
            "length": length,
        }
        state = {"state_grows": price.state_grows, "state_unknown": has_unknown_state(spec)}
        figures = ("parameters", "state_bytes", "state_floats", "growing_floats", "flops_per_token")
        say(document({**asked, **{name: getattr(price, name) for name in figures}, **state}))
        return
    fixed = price.state_floats - price.growing_floats
    say(f"{spec.name}: width {spec.width}, {stack_of(spec.stack)}")
    say(f"parameters       {price.parameters:>16,}   for {vocab} token ids")
    say(f"state            {price.state_bytes:>16,}   bytes after {length} tokens")
    say(f"  fixed          {fixed:>16,}   floats")
    say(f"  growing        {price.growing_floats:>16,}   floats")
    if has_unknown_state(spec):
        say("  the state of a module is unknown: counted are the tokens that it reads again")
    say(f"operations       {price.flops_per_token:>16,.0f}   per token, forward, mean over {length} tokens")


@app.command()
def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="OP|kernels|growth|cold|step|profile|study|tasks",
            autocompletion=completion.benches,
            help="An op; kernels: every op against its published kernel; growth: over lengths and widths; cold: first calls, "
            "which compile; step: a cohort's optimizer step; profile: its kernels; study: where the time of a study goes; "
            "tasks: sampling.",
        ),
    ],
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="[STUDY]", help="For study: a built-in name or a file.", autocompletion=completion.studies
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="B,T,H,K,V",
            help="Shape for ops: batch, time, heads, key and value width; or S1, S2, S4, L1, L2.",
        ),
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Kind of inputs of an op.  [default: its first]")] = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="Compare an op with published kernels that are installed, too.")
    ] = False,
    part: Annotated[
        str,
        typer.Option(
            metavar="I/N", help="Every N-th row of kernels, growth or cold from the I-th on: for N GPUs at once."
        ),
    ] = "1/1",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OP[/VARIANT]",
            help="Only such rows of kernels, growth or cold, as in --only delta --only attention/full.",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .jsonl file for the rows.")] = None,
    arch: Annotated[
        str, typer.Option(help="Architecture for step and profile.", autocompletion=completion.archs)
    ] = "conv_attention",
    task: Annotated[str, typer.Option(help="Task for step and profile.", autocompletion=completion.tasks)] = "mqar",
    members: Annotated[int, typer.Option(min=2, max=1024, help="Trials in the cohort for step and profile.")] = 8,
    dtype: Annotated[Precision, typer.Option(help="Precision of the inputs.")] = Precision.float32,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...  [default: cuda where there is one]")] = None,
    limit: Annotated[
        str, typer.Option("--for", metavar="TIME", help="Time for study, such as 90s, 9m or 1h30m.")
    ] = "120s",
    cohorts_per_gpu: Annotated[
        int | None,
        typer.Option(
            "--cohorts-per-gpu",
            min=1,
            help="Cohorts of study that share a GPU.  [default: as in a run]",
            show_default=False,
        ),
    ] = None,
    sets: Sets = [],  # noqa: B006
) -> None:
    """Time ops, training steps and tasks. Implementations of an op, or a cohort and its trials one by one, are timed once
    their results agree. A study trains for a while, and its records are not kept. For tasks, print each task's source,
    chance, ceiling and sampling speed as Markdown."""
    from recallmap.search import codec
    from recallmap.search.documents import type_hints

    if what not in (known := completion.benches("")):
        refuse(f"bench: got {what[:60]!r}, expected one of {', '.join(known)}{type_hints.guess(what, known)}")
    if study is not None and what != "study":
        refuse(
            f"bench {what}: got a second word, {study[:60]!r}, expected none; a study is timed with: bench study STUDY"
        )
    if cohorts_per_gpu is not None and what != "study":
        refuse(f"bench {what}: got --cohorts-per-gpu, which is for bench study STUDY alone; leave it out")

    share = part_of(part)
    many = ("kernels", "growth", "cold")  # ops, row by row
    if share != (1, 1) and what not in many:
        refuse(f"bench {what}: got --part {part}, which is for bench kernels, growth and cold; leave it out")
    if only and what not in many:
        refuse(f"bench {what}: got --only {only[0][:60]}, which is for bench kernels, growth and cold; leave it out")

    if what == "tasks":
        from recallmap.search.cli import task_table

        for line in task_table.markdown(task_table.rows()):
            say(line, flush=True)
        return
    from recallmap.search.cli.listings import timings

    if what == "study":
        from recallmap.search.cli import study_bench

        if study is None:
            refuse("bench study: got no study, expected a built-in name or a file, such as: bench study demo --for 60s")
        seconds = seconds_in(limit, "--for")
        spec = codec.read_study(study, overrides=sets)
        here = device_of(device)
        refuse_to_share(here, cohorts_per_gpu, "leave it out")
        rows, line = study_bench.rows(spec, device=str(here), seconds=seconds, cohorts_per_gpu=cohorts_per_gpu)
        write_rows(output, rows)
        terminal().print(timings(study_bench.shown(rows)))
        say(line)
        return
    from recallmap.search.measurement.benchmarks import bench_cold, bench_growth, bench_kernels, bench_op, bench_step

    where = str(device_of(device))
    chosen: dict[str, Any] = {"dtype": dtype.value, "device": where, "part": share, "only": only or ()}
    try:
        if what in many:
            rows = []
            for row in (
                bench_kernels(shapes or ["S1", "S2", "S4", "L1", "L2"], **chosen)
                if what == "kernels"
                else bench_cold(shapes or ["S1", "S4", "L1"], **chosen)
                if what == "cold"
                else bench_growth(**chosen)
            ):
                rows.append(row)
                write_rows(output, rows)  # row by row: it takes minutes
                say(" ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
        elif what in ("step", "profile"):
            from recallmap.search.measurement.step_profile import step_profile

            measure = bench_step if what == "step" else step_profile
            rows = measure(
                codec.read_arch(arch), codec.read_task(task), members=members, dtype=dtype.value, device=where
            )
        else:
            sizes = shapes or ["32,64,2,32,32"]
            rows = bench_op(what, sizes, dtype=dtype.value, device=where, variant=variant, beside=beside)
    except ValueError as error:
        refuse(f"bench {what}: {error}")
    write_rows(output, rows)
    terminal().print(timings(rows))


@app.command()
def probe(
    archs: Annotated[
        list[str],
        typer.Argument(metavar="ARCH...", help="Names of the zoo, or files.", autocompletion=completion.archs),
    ],
    pairs: Annotated[
        list[int] | None,
        typer.Option(min=1, max=2**16, help="Pairs per head; give it more than once.  [default: around the bounds]"),
    ] = None,
    keys: Annotated[KeySort, typer.Option(help="Distribution of keys.")] = KeySort.gaussian,
    passes: Annotated[int, typer.Option(min=1, max=1000, help="Times that the pairs are written.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1)] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="A .html page or .json rows to write.")] = None,
) -> None:
    """Measure the capacity of memories. That is the number of key-value pairs that a mixer holds, without training."""
    from recallmap.search import codec
    from recallmap.search.cli.listings import capacities_of
    from recallmap.search.measurement.capacity_probe import probe as measured

    if output is not None and output.suffix not in (".html", ".json"):
        refuse(f"--output: got {output}, expected a name that ends in .html or .json")
    rows: list[dict[str, Any]] = []
    for arch in archs:
        try:
            rows += measured(codec.read_arch(arch), pairs=pairs, keys=keys.value, passes=passes, seed=seed)
        except ValueError as error:
            refuse(str(error))
    terminal().print(capacities_of(rows))
    if output is None:
        return
    try:
        _write_capacities(output, rows)
    except OSError as error:
        refuse(f"{output}: cannot be written: {remedy_of(error)}")
    say(f"{output}: {len(rows)} measurements")


def _write_capacities(path: Path, rows: list[dict[str, Any]]) -> None:
    import json

    from recallmap.results.atomic_write import write_whole
    from recallmap.results.page.probe_section import write_page

    if path.suffix == ".json":
        write_whole(path, json.dumps(rows, indent=1) + "\n")
    else:
        write_page(path, rows, title=f"Capacity of {', '.join(dict.fromkeys(row['arch'] for row in rows))}")
