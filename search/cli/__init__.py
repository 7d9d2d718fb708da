"""The door of the command line: `recallmap`, with the commands in the order of its help."""

from __future__ import annotations

from search.cli.app import app
from search.cli.streams import made_ready


def main() -> None:
    """The door of the console script."""
    with made_ready():
        app()
