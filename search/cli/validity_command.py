"""The command validity: do synthetic scores order architectures as published language models do?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from recallmap.search.cli.app import AsJson, app, refuse
from recallmap.search.cli.streams import say


@app.command()
def validity(
    records: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of .jsonl files of records, or one of them, or a ledger.  [default: the records kept with "
            "recallmap]",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the order of architectures on synthetic tasks with that of published language models."""
    import json
    from dataclasses import asdict

    from recallmap.results import record_files
    from recallmap.results.analysis.measures import measures
    from recallmap.results.analysis.validity import by_task, unseen
    from recallmap.results.analysis.validity import validity as compared
    from recallmap.results.publishing.validity_table import text_of
    from recallmap.search import codec
    from recallmap.search.cli import page_context

    here = Path("results/records")  # of a checkout
    try:
        whole = record_files.read(records or (here if here.is_dir() else record_files.kept()))
        measured = [m for m in measures(whole) if m.values]
        language = codec.read_language()
        found = compared(language, measured, page_context.sources())
        tasks = by_task(language, measured)
        left = unseen(language, measured, "MAD", "recall")
    except ValueError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{records}: cannot be read: {error.strerror}")
    say(json.dumps([asdict(one) for one in [*found, *tasks]], indent=2) if as_json else text_of(found, left, tasks))
