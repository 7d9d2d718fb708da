"""The live display of a run at a terminal: counts of trials, a bar for each cohort under way, and the best trial so far."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from recallmap.results.analysis.labels import counted
from recallmap.results.escape import one_line
from recallmap.results.record import Record
from recallmap.search.cli.pace import Pace, best_of
from recallmap.search.cli.run_display import Lines, Names
from recallmap.search.cli.trial_lines import duration, few_words, number_of_best
from recallmap.search.engines.plan import Report, Work

BARS = 8  # cohorts that have one at once, where the terminal is high enough

AROUND = 4  # lines of the terminal that bars leave free

SHORTEST, LONGEST = 8, 30  # columns of a bar

REFRESHED = 4  # times a second

Row = tuple[str, float | None, list[str]]  # its name, the share that is done, words from the most important one on


def is_lively(console: Console) -> bool:
    """True for a terminal on which a display can be drawn over and over."""
    unknown = os.name == "posix" and not os.environ.get("TERM")
    return console.is_terminal and not console.is_dumb_terminal and not unknown


class LiveDisplay(Lines):
    """Plain lines about trials, and below them a display that is drawn anew and cleared at the end, also after Ctrl-C."""

    def __init__(self, names: Names, console: Console) -> None:
        super().__init__(names, console)
        self.pace = Pace()
        self.best: Record | None = None
        self.live = Live(
            console=console,
            get_renderable=self.picture,
            transient=True,
            refresh_per_second=REFRESHED,
            auto_refresh=True,
        )

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def close(self) -> None:
        with suppress(OSError):  # a terminal that was closed has nothing to clear
            self.live.stop()

    def __call__(self, report: Report) -> None:
        self.pace.hear(report)
        for record in report.records:
            self.best = best_of(self.best, record)
        super().__call__(report)

    def progress(self, report: Report) -> None:
        """The display shows it."""

    def picture(self) -> RenderableType:
        """The display for the terminal as wide and as high as it is now."""
        report = self.last
        if report is None:
            return Text("")
        wide, high = max(1, self.console.width - len("^C")), self.console.height  # its echo begins no other line
        shown = report.under_way[: max(1, min(BARS, high - AROUND))]
        rows = [self._trials(report), *map(self._cohort, shown)]
        more = len(report.under_way) - len(shown)
        below = [f"and {counted(more, 'more cohort')}"] if more else []
        busy = report.time.busy.mean
        last = [] if busy is None else [f"GPU busy {busy:.0%}"]
        last += [] if self.best is None else [f"best so far {number_of_best(self.best)}"]
        below += ["  ".join(last)] if last else []
        return Group(grid(rows, wide), *(cut(line, wide) for line in below))

    def _trials(self, report: Report) -> Row:
        done = report.known + report.done
        running = self.pace.running(report)
        words = [f"{done}/{report.trials}"]
        words += [f"{report.failed} failed"] if report.failed else []
        words += [] if report.eta is None else [f"{duration(report.eta)} left"]
        words += [f"{running} running"] if running else []
        share = (done + report.failed) / report.trials if report.trials else None
        return "trials", share, words

    def _cohort(self, work: Work) -> Row:
        progress, left = self.pace.progress.get(work.number), self.pace.left(work.number)
        about = few_words(work)
        if progress is None:
            return f"cohort {work.number}", None, ["begins", about]
        words = [f"{progress.step}/{progress.steps}"]
        words += [] if math.isnan(progress.loss) else [f"loss {progress.loss:.3f}"]
        words += [] if progress.best is None else [f"best {progress.best:.3f}"]
        words += [] if left is None else [f"{duration(left)} left"]
        return f"cohort {work.number}", progress.step / max(1, progress.steps), [*words, about]


def grid(rows: Sequence[Row], wide: int) -> Table:
    """Rows of a name, a bar and words, no wider than the terminal: words that do not fit are left out from the last one on,
    then the bars."""
    names = max(cell_len(name) for name, _, _ in rows)
    bar = SHORTEST if wide - names - 2 >= 2 * SHORTEST else 0
    said = [_fitting(words, wide - names - 1 - (bar + 1 if bar else 0)) for _, _, words in rows]
    if bar:
        bar = max(SHORTEST, min(LONGEST, wide - names - 2 - max(map(cell_len, said))))
    table = Table.grid(padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, width=names, overflow="crop")
    if bar:
        table.add_column(no_wrap=True, width=bar)
    table.add_column(no_wrap=True, overflow="crop")
    for (name, share, _), words in zip(rows, said, strict=True):
        drawn = [ProgressBar(total=1.0, completed=min(1.0, share or 0.0), width=bar)] if bar else []
        table.add_row(Text(name), *drawn, Text(words))
    return table


def cut(line: str, wide: int) -> Text:
    """One line, no wider than the terminal."""
    text = Text(one_line(line), no_wrap=True, overflow="ellipsis")
    text.truncate(wide, overflow="ellipsis")
    return text


def _fitting(words: Sequence[str], room: int) -> str:
    said = one_line(words[0])
    for word in map(one_line, words[1:]):
        if cell_len(said) + 2 + cell_len(word) > room:
            break
        said = f"{said}  {word}"
    return said
