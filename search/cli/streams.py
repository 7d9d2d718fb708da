"""Robust stdout and stderr: they may be closed, full, cut off by `head`, or have an encoding that lacks our characters."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import shutil
import sys
from collections.abc import Iterator

from recallmap.results.escape import PLAINER, visible

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EPIPE)  # a stream that takes no more

NARROWEST = 20  # columns of the narrowest layout


def width() -> int | None:
    """Columns of stdout, as COLUMNS or the terminal says; None for a file or a pipe."""
    if "COLUMNS" not in os.environ and not sys.stdout.isatty():
        return None
    return min(max(shutil.get_terminal_size().columns, NARROWEST), 10_000)


def say(text: str, *, end: str = "\n", flush: bool = False) -> None:
    """Print on stdout, without anything that acts on a terminal."""
    print(visible(text), end=end, flush=flush)


def complain(text: str) -> None:
    """Print on stderr, without anything that acts on a terminal."""
    print(visible(text), file=sys.stderr)


@contextlib.contextmanager
def made_ready() -> Iterator[None]:
    """Make both streams writable in this context: a closed one leads nowhere, and characters that one cannot encode become
    ASCII. The process exits with a reason where the reader of stdout has left or the disk is full."""
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the rest that is written at exit must not fail again
        if error.errno == errno.EPIPE:  # the reader has seen enough
            sys.exit(1)
        complain(f"the output cannot be written: {error.strerror}; free some space, or write elsewhere")
        sys.exit(2)


def settle() -> None:
    """Let streams whose terminal was closed lead nowhere from here on: what is written when the process ends would fail there,
    and change its exit code."""
    for number in (1, 2):
        look = select.poll()
        look.register(number, select.POLLOUT)
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in look.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _open_all_three() -> None:
    """Open closed streams. Otherwise the first file that is opened, perhaps a ledger, would take a stream's number and be
    written over."""
    while (lowest := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(lowest)
