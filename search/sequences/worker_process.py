"""A process that draws sequences for the one that started it. It imports synth and numpy alone."""

from __future__ import annotations

from recallmap.search.sequences.request import Source
from recallmap.search.workers.process import serve

KEPT = 32  # streams between two requests


def main() -> None:
    """Draw what is asked for, until nobody listens."""
    source = Source(KEPT)
    serve(lambda request: source.answer(request).narrow())
