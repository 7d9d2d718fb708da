"""Processes that a killed driver has left, found by a mark and by nothing else.

A mark is an environment variable that they start with and that their own processes inherit. Only Linux shows it; elsewhere
no process is found, and none is ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

PROC = Path("/proc")


@contextlib.contextmanager
def marking(name: str, value: str) -> Iterator[None]:
    """The processes that are started in this context have this variable, which marks them."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def marked(name: str, value: str) -> list[int]:
    """Processes that carry the mark and still run."""
    return [number for number in _numbers() if _carries(number, f"{name}={value}")]


def children(name: str, value: str) -> Mapping[int, str]:
    """Programs, by process, of the marked processes that this process started itself."""
    own = {}
    for number in marked(name, value):
        with contextlib.suppress(OSError):  # it has just ended
            program, _, rest = (PROC / str(number) / "stat").read_text().rpartition(")")
            if int(rest.split()[1]) == os.getpid():
                own[number] = program.partition("(")[2]
    return own


def how_it_ended(child: int) -> str | None:
    """How a process that this one started has ended; None while it runs. Others may still wait for it."""
    try:
        found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return "ended"
    if found is None:
        return None
    if found.si_code == os.CLD_EXITED:
        return f"ended with code {found.si_status}"
    return f"was ended by {signal.Signals(found.si_status).name}"


def end_marked(name: str, value: str, seconds: float = 5.0) -> None:
    """End the processes that carry the mark, and wait at most so many seconds for each."""
    while held := [
        handle for number in marked(name, value) if (handle := _held(number, f"{name}={value}")) is not None
    ]:
        gone = True
        for handle in held:
            try:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                gone &= bool(select.select([handle], [], [], seconds)[0])
            except ProcessLookupError:
                pass
            finally:
                os.close(handle)
        if not gone:  # it waits for a disk that does not answer, say
            return


def _held(number: int, mark: str) -> int | None:
    """A handle of the process. Its mark is read again once we hold it, because the number may by then be reused."""
    try:
        handle = os.pidfd_open(number)
    except OSError:
        return None
    if _carries(number, mark):
        return handle
    os.close(handle)
    return None


def _carries(number: int, mark: str) -> bool:
    try:
        return mark.encode() in (PROC / str(number) / "environ").read_bytes().split(b"\0")
    except OSError:  # somebody else's, or gone
        return False


def _numbers() -> list[int]:
    try:
        return [int(entry) for entry in os.listdir(PROC) if entry.isdecimal() and int(entry) != os.getpid()]
    except OSError:
        return []
