"""The lock of the one driver that writes a ledger."""

from __future__ import annotations

import datetime
import errno
import os
import socket
import stat
import weakref
from pathlib import Path

from recallmap.results.atomic_write import FULL, remedy


class LedgerError(Exception):
    """The ledger cannot be used; the message says why and what to do."""


def lock(path: Path, owner: object) -> weakref.finalize[..., object]:
    """Lock a side file of the ledger at `path`. The lock ends with the process, with `owner`, or when the returned function is
    called. Raises LedgerError where another driver holds it, or where it cannot be held."""
    import fcntl  # not on every system; reading needs none of it

    real = path.resolve()
    side = real.with_name(f"{real.name}.lock")
    while True:
        handle = _open(side, path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(handle, 200).decode(errors="replace") or "another process"
            os.close(handle)
            raise LedgerError(
                f"{path} is being written by {holder}; wait for it to end, or use another ledger"
            ) from error
        try:
            if _is_at(handle, side):
                refuse_names(path)
                _sign(handle)
                return weakref.finalize(owner, _let_go, side, handle, os.getpid())
        except (OSError, LedgerError) as error:
            _let_go(side, handle, os.getpid())
            if isinstance(error, LedgerError):
                raise
            raise LedgerError(f"cannot write beside {path}: {remedy(error)}") from error
        os.close(handle)  # the holder before us removed the file between our open and our lock


def writer_of(path: Path) -> str:
    """The driver that writes the ledger at `path` now, such as `process 7 on host since 2026-01-31 12:00:00+01:00`; empty where
    nobody does, or where this system does not tell. The side file of a driver that was killed is nobody's."""
    real = path.resolve()
    try:
        import fcntl

        handle = os.open(real.with_name(f"{real.name}.lock"), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (ImportError, OSError):
        return ""
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until it is closed, at once
        return ""
    except BlockingIOError:
        return os.read(handle, 200).decode(errors="replace") or "another process"
    finally:
        os.close(handle)


def _open(side: Path, path: Path) -> int:
    """Open the side file, and make it where there is none. No link is followed, because its target is not ours."""
    try:
        handle = os.open(side, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise LedgerError(
                f"{side} is a symbolic link, it must be a file that recallmap makes beside the ledger; remove the link"
            ) from error
        if error.errno in FULL:
            raise LedgerError(f"cannot write beside {path}: {remedy(error)}") from error
        raise LedgerError(
            f"cannot write beside {path}: {error.strerror}; make its folder writable, or copy the ledger"
        ) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise LedgerError(f"{side} is no plain file, it must be one that recallmap makes beside the ledger; remove it")
    return handle


def _is_at(handle: int, side: Path) -> bool:
    try:
        found = os.lstat(side)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), found)


def refuse_names(path: Path) -> None:
    """Raise LedgerError where the file has a second name. Its lock and side files would be others, and two drivers would
    write at once."""
    names = path.stat().st_nlink if path.exists() else 1
    if names > 1:
        raise LedgerError(
            f"{path} is one of {names} names (hard links) of the same file, it must be the only one to be written: another "
            f"driver could write by the other name; remove the other names, or write to a copy: cp {path} COPY.sqlite"
        )


def _sign(handle: int) -> None:
    now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {socket.gethostname()} since {now}".encode())


def _let_go(side: Path, handle: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a forked child, which has the handle but not the right
        side.unlink(missing_ok=True)  # while the lock is ours, so that nobody else's file is removed
    os.close(handle)
