"""Write a file whole or not at all: a reader never sees half of it, and a failure leaves what was there."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)


def write_whole(path: Path, content: str | Callable[[Path], None]) -> None:
    """Write text, or whatever `content` puts at the path it is given, beside `path` first and then in its place.

    Makes the folder where there is none. Raises OSError where it cannot be written.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, "is a folder, not a file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    own = hashlib.sha256(os.fsencode(path.name)).hexdigest()[
        :16
    ]  # a name of its own that is no longer than names may be
    draft = path.with_name(f".{own}.{os.getpid()}{path.suffix[:16]}")
    begin(draft)
    try:
        if callable(content):
            content(draft)
        else:
            draft.write_text(content, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def begin(draft: Path) -> None:
    """An empty file that is ours, whatever lay there before: were it a link, what it points to would be written over. Raises
    OSError."""
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))


def remedy(error: OSError) -> str:
    """Why a file cannot be written, and what to do."""
    if error.errno in FULL:
        return "the disk is full; free some space and run the same command again"
    return f"{error.strerror or error}; choose another place"
