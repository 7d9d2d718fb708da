"""Commands that a message names for the user to call next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def words_given(ledger: Path | None, sets: Sequence[str]) -> list[str]:
    """The options of a command, repeated for the next one."""
    from recallmap.search.documents import outside

    used = [word for name in outside.asked() for word in ("--use", name)]
    return [
        *(["--ledger", str(ledger)] if ledger else []),
        *(word for text in sets for word in ("--set", text)),
        *used,
    ]


def training(study: str, ledger: Path | None, sets: Sequence[str]) -> str:
    """The command that trains a study, or resumes it."""
    return shlex.join(["recallmap", "run", study, *words_given(ledger, sets)])
