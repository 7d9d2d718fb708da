"""The console that tables, colours and progress bars are shown on, as wide as it is."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from recallmap.results.escape import one_line, visible
from recallmap.search.cli.streams import width

WIDE = 160  # columns where their number is unknown

TALLEST = 6  # lines of a row; a taller one is easier to read below its name


class Terminal(Console):
    """A console on which foreign text cannot move the cursor or change colours: only rich itself may. A table never breaks a
    word or a number: one that is too wide is laid out anew, see `fitted`."""

    def __init__(self) -> None:
        asked = (
            "COLUMNS" in os.environ or not sys.stdout.isatty()
        )  # else rich follows the terminal, also when it changes
        wide, high = (width() or WIDE, shutil.get_terminal_size().lines) if asked else (None, None)
        super().__init__(highlight=False, width=wide, height=high, markup=False, emoji=False)  # [b > 1] is no style

    def print(self, *objects: Any, **rest: Any) -> None:
        super().print(*(fitted(o, self.width) if isinstance(o, Table) else o for o in objects), **rest)

    def say(self, line: str, *, hang: int = 2) -> None:
        """Print a line of text, broken between words where it is too wide; what goes on stands `hang` columns in."""
        self.print(*_wrapped(line, self.width, hang=hang), sep="\n")

    def render_str(self, text: str, **rest: Any) -> Text:
        """Make text harmless before it is measured, so that columns still line up."""
        return super().render_str(visible(text), **rest)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            acts = segment.control or segment.text.isprintable()
            yield segment if acts else Segment(visible(segment.text), segment.style)


def fitted(table: Table, wide: int) -> Table | Group:
    """The table with columns as wide as its words need. Where these do not fit, or rows would be tall, each row is its first
    cell, and the other cells below it. The caption is as wide as the terminal, whatever its table is."""
    said, table.caption = str(table.caption or ""), None
    return Group(_laid_out(table, wide), *_wrapped(said, wide)) if said else _laid_out(table, wide)


def _laid_out(table: Table, wide: int) -> Table | Group:
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    least = [
        max(cell_len(word) for text in (str(column.header), *own, "") for word in (text.split() or [""]))
        if not column.no_wrap
        else max(cell_len(text) for text in (str(column.header), *own))
        for column, own in zip(table.columns, cells, strict=True)
    ]
    most = [max(map(cell_len, (str(c.header), *own))) for c, own in zip(table.columns, cells, strict=True)]
    _, right, _, left = table.padding
    room = wide - len(cells) * (left + right + 1) - 1  # a column has its padding and a stroke, the table one more
    if sum(most) <= room:
        return table
    widths = _shared(least, most, room)
    if sum(least) > room or any(
        len(textwrap.wrap(text, own)) > TALLEST for column, own in zip(cells, widths, strict=True) for text in column
    ):
        return Group(*_stacked(table, cells, wide))
    for column, own in zip(table.columns, widths, strict=True):
        column.width = own
    return table


def _shared(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Widths of columns: each has what it needs, and the rest goes to the narrowest."""
    cap = next((c for c in range(max(most), 0, -1) if sum(map(_within(c), least, most)) <= room), 1)
    return list(map(_within(cap), least, most))


def _within(cap: int) -> Any:
    return lambda low, high: max(low, min(high, cap))


def _stacked(table: Table, cells: Sequence[Sequence[str]], wide: int) -> Iterator[Text]:
    names = [str(column.header) for column in table.columns]
    for row in zip(*cells, strict=True):
        yield Text(one_line(row[0]), style="bold")
        line = ""
        for name, text in zip(names[1:], row[1:], strict=True):
            if not text:
                continue
            said = f"{name}: {one_line(text)}"
            if line and cell_len(line) + 3 + cell_len(said) <= wide:
                line = f"{line}   {said}"
                continue
            yield from _wrapped(line, wide, hang=4)
            line = f"  {said}"
        yield from _wrapped(line, wide, hang=4)
    yield Text("")


def _wrapped(line: str, wide: int, *, hang: int = 0) -> Iterator[Text]:
    for part in textwrap.wrap(line, wide, subsequent_indent=" " * hang, break_on_hyphens=False):
        yield Text(part)
