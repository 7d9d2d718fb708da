"""Parts of work on the command line: I/N, every N-th piece from the I-th on."""

from __future__ import annotations

import re

from recallmap.search.cli.app import refuse


def part_of(text: str) -> tuple[int, int]:
    """I and N. Refuses anything else."""
    said = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if said is None or not 1 <= int(said[1]) <= int(said[2]):
        refuse(f"--part: got {text[:60]!r}, expected I/N with I from 1 to N, such as 2/4")
    return int(said[1]), int(said[2])
