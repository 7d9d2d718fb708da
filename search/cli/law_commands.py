"""Commands for parts of one's own: new, verify."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from recallmap.search.cli import completion
from recallmap.search.cli.app import app, terminal
from recallmap.search.cli.streams import say


class Part(StrEnum):
    mixer = "mixer"
    task = "task"


@app.command()
def verify(
    source: Annotated[
        str,
        typer.Argument(
            metavar="KIND|FILE",
            help="A mixer, a task or a sampler by its kind, an architecture, a YAML file, or a Python file of your own, "
            "which is executed.",
            autocompletion=completion.parts,
        ),
    ],
) -> None:
    """Run the laws that ship with recallmap on a part. The table says which hold, and what to do where one does not."""
    from recallmap.search.cli.listings import verdicts_of
    from recallmap.search.cli.verification import checked

    console, broken = terminal(), 0
    for found in checked(source):
        say(found.summary, flush=True)
        console.print(verdicts_of(found.verdicts))
        broken += found.broken
    if broken:
        raise typer.Exit(1)


@app.command()
def new(
    part: Annotated[Part, typer.Argument()],
    name: Annotated[str, typer.Argument(help="The name of its kind, such as fade.")],
    folder: Annotated[Path, typer.Option("-o", "--output", help="The folder to write to.")] = Path("."),
) -> None:
    """Write a mixer or a task to begin with. my_NAME.py keeps all laws, and my_NAME.yaml is a study of it."""
    from recallmap.search.cli.beginnings import write

    code, study = write(part.value, name, folder)
    say(f"{code}: the {part.value} {name}; next: recallmap verify {code}")
    say(f"{study}: a study of it; next: recallmap run {study}")
