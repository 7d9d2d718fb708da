"""The command line: `recallmap`."""

from __future__ import annotations

import gc
from importlib import import_module

from recallmap.search.cli.app import app
from recallmap.search.cli.streams import made_ready

for _commands in (
    "train_commands",
    "compile_command",
    "publish_commands",
    "validity_command",
    "extend_command",
    "inspect_commands",
    "law_commands",
):  # in the order of the help
    import_module(f"recallmap.search.cli.{_commands}")


def main() -> None:
    """Run the console script."""
    with made_ready():
        try:
            app()
        finally:  # the process ends: Python's last looks for garbage free nothing, and with torch they take 0.3 s
            gc.freeze()
