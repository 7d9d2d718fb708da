"""The console that tables, colours and progress bars are shown on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from results.escape import visible

WIDE = 160  # columns where nobody says how many there are


class Terminal(Console):
    """A console for tables, colours and bars. Text of others cannot move its cursor or paint it: only rich itself may."""

    def __init__(self) -> None:
        wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE
        super().__init__(highlight=False, width=wide, markup=False, emoji=False)  # [b > 1] is no style, :b: no picture

    def render_str(self, text: str, **rest: Any) -> Text:
        """Text is made harmless before it is measured, so that columns still line up."""
        return super().render_str(visible(text), **rest)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            acts = segment.control or segment.text.isprintable()
            yield segment if acts else Segment(visible(segment.text), segment.style)
