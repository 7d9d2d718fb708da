"""The shape of a table: lines, cells, units, and the format of figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recallmap.results.analysis.confidence import Interval
from recallmap.results.analysis.selection import Edge

MAD = {  # the six tasks of MAD, in the order of its paper
    "in_context_recall": "in-context recall",
    "fuzzy_in_context_recall": "fuzzy recall",
    "noisy_in_context_recall": "noisy recall",
    "selective_copying": "selective copying",
    "compression": "compression",
    "memorization": "memorization",
}

SHOUTED = {"cg": "CG", "tvd": "TVD"}  # words that are always in capitals

# Last words of scores of which less is better.
_LESS = ("loss", "nats", "perplexity", "tvd", "distance", "error", "mse", "rmse", "mae", "steps")

UNKNOWN = "unknown"  # the label of a state whose size no one knows

Unit = Literal["percent", "score", "count", "bytes", "seconds", "hours"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure of a table, a fraction unless the task's metric is none.

    mean       over seeds, and over the settings of the column, for the seeds that all settings have if there are two;
               None where there is nothing to show
    interval   95 % interval of the mean over seeds; None for fewer than three
    spread     lowest and highest seed; None for fewer than two
    deviation  standard deviation over seeds; None for fewer than two
    sampling   standard error of the mean from the test sequences alone; None where a record does not say it
    learned    number of seeds that learned, where their scores have two peaks
    edge       whether the highest or the lowest learning rate that was tried is the best, behind any setting below the ceiling
    published  the published figure
    alike      True where the published figure averages as many settings; otherwise no difference is shown
    failed     failed trials behind the cell, under any hyper-parameters
    not_above  "§1" where the mean does not lie above the first reference line of its table, without the number where the
               table has one such line; of several lines the lowest; "" above all
    mark       "best" of its column; "partial" where settings of the column are missing
    keys       of the records that the mean rests on
    """

    mean: float | None = None
    seeds: int = 0
    interval: Interval | None = None
    spread: tuple[float, float] | None = None
    deviation: float | None = None
    sampling: float | None = None
    learned: int | None = None
    edge: Edge = ""
    published: float | None = None
    alike: bool = True
    chance: float | None = None
    ceiling: float | None = None
    failed: int = 0
    not_above: str = ""
    settings: int = 0
    mark: Literal["", "best", "partial"] = ""
    keys: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Our figure minus the published one, where they have the same settings."""
        if self.mean is None or self.published is None or not self.alike or self.mark == "partial":
            return None
        return self.mean - self.published

    @property
    def outside(self) -> bool:
        """True where the published figure lies outside our interval; False without an interval."""
        return self.interval is not None and self.difference is not None and not self._holds(self.published or 0.0)

    def _holds(self, value: float) -> bool:
        low, high = self.interval or (value, value)
        return low - 1e-9 <= value <= high + 1e-9


@dataclass(frozen=True, kw_only=True)
class State:
    """The bytes of an architecture's state, from the lowest to the highest over the settings of a line, and whether any grows
    with the sequence. Its text is "1–4 kB, grows"."""

    lowest: int
    highest: int
    grows: bool

    def __str__(self) -> str:
        (low, unit), (high, same) = size(self.lowest).split(), size(self.highest).split()
        text = f"{high} {same}" if low == high else f"{low}{'' if unit == same else f' {unit}'}–{high} {same}"
        return text + (", grows" if self.grows else "")


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row of a table: `labels` under the headings of `Table.corner`, then a cell a column.

    kind    "reference" is the score of a rule that is simpler than what the task asks for
    remark  the model that the architecture really is, where its name promises another (see `namesakes`)
    state   of the architecture; None where it is unknown, and on a line of none
    """

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    kind: Literal["measured", "published", "chance", "ceiling", "reference"] = "measured"
    remark: str = ""
    state: State | None = None


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table as plain data.

    units    units of the columns; those in percent hold fractions
    mean_at  the column that averages the others, if one does
    beside   the published source
    protocol the task's protocol, "" for tables of several
    """

    title: str
    corner: tuple[str, ...]
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    units: tuple[Unit, ...]
    mean_at: int | None = None
    beside: str = ""
    protocol: str = ""

    @property
    def heading(self) -> str:
        """The title, and whether all figures are of one seed."""
        seeds = max((cell.seeds for line in self.lines if line.kind == "measured" for cell in line.cells), default=0)
        return f"{self.title}, one seed" if seeds == 1 else self.title

    @property
    def percent(self) -> bool:
        """True where figures are fractions, to be shown as percent."""
        return self.units[0] == "percent"


def size(count: int) -> str:
    """A number of bytes in units of 1000: 512 B, 34.3 kB, 1.05 MB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= 0.9995 * scale:  # from there on it reads as 1 of the unit
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def in_few_digits(value: float) -> str:
    """A score with three decimals, 35,840 for 35840.0, three digits of what is smaller or between."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3f}" if 0.01 <= value <= 1 else f"{value:.3g}"


def is_share(metric: str) -> bool:
    """True for a metric that is a share, to be shown as percent."""
    return "accuracy" in metric or metric.startswith(("exact_match", "legal"))


def more_is_better(metric: str) -> bool:
    """False for losses, distances and counts of steps, which are better where they are small; True for the rest, such as the
    headline of every task."""
    return metric.partition("/")[0].rpartition("_")[2] not in _LESS


def is_count(metric: str) -> bool:
    """True for a score that counts steps spent, where neither many nor few are good in themselves."""
    return metric.endswith("_steps")


def unit_of(metric: str) -> Unit:
    return "percent" if is_share(metric) else "score"


def readable(name: str) -> str:
    """The name of an option or a score in words: CG steps for cg_steps."""
    return " ".join(SHOUTED.get(word, word) for word in name.split("_"))


def protocol_of(protocol: str) -> str:
    return "" if protocol == "repaired" else f", protocol {protocol}"
