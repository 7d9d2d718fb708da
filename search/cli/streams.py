"""Stdout and stderr as they are found: closed, full, cut off by `head`, or with an encoding that lacks half of our signs."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
from collections.abc import Iterator

from recallmap.results.escape import PLAINER, visible

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)  # of a stream that takes no more

NARROWEST = 20  # columns that anything is laid out for


def width() -> int | None:
    """Columns of stdout, as COLUMNS or the terminal says; None for a file or a pipe."""
    if "COLUMNS" not in os.environ and not sys.stdout.isatty():
        return None
    return min(max(shutil.get_terminal_size().columns, NARROWEST), 10_000)


def say(text: str, *, end: str = "\n", flush: bool = False) -> None:
    """On stdout, with nothing in it that acts on a terminal."""
    print(visible(text), end=end, flush=flush)


def complain(text: str) -> None:
    """On stderr, with nothing in it that acts on a terminal."""
    print(visible(text), file=sys.stderr)


@contextlib.contextmanager
def made_ready() -> Iterator[None]:
    """Both streams can be written to within it: one that is closed leads nowhere, and what one cannot encode is told in ASCII.
    Where the reader of stdout has left, or the disk is full, the process exits, and says why."""
    _open_all_three()
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - it stays open
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINER)
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in FULL:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left to write at exit must not fail again
        if error.errno == errno.EPIPE:  # who reads has seen enough
            sys.exit(1)
        complain(f"the output cannot be written: {error.strerror}; free some space, or write elsewhere")
        sys.exit(2)


def _open_all_three() -> None:
    """A stream that was closed would else be the first file that is opened, and a ledger be written over."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(lowest)
