"""Tables fit where they are read, and lose nothing there that says anything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recallmap.results.record import Record
from recallmap.results.score_tables.costs import cost_tables
from recallmap.results.score_tables.rendering import markdown
from recallmap.results.score_tables.scores import table_of
from recallmap.results.score_tables.table import Cell, Line, Table, size

Make = Callable[..., Record]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1000, "1 kB"),
        (34304, "34.3 kB"),
        (999_600, "1 MB"),
        (1_050_112, "1.05 MB"),
        (2_500_000_000, "2.5 GB"),
    ],
)
def test_sizes_are_in_units_of_a_thousand(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("count", [15, 60])
def test_a_table_on_a_terminal_is_no_wider_than_it_and_loses_nothing(count: int, width: int, make: Make) -> None:
    records = [
        make(arch=f"conv_{n % 5}", arch_dials={"heads": n % 3}, dials={"pairs": 2 ** (n % 7)}, seed=n, score=n / 97)
        for n in range(count)
    ]
    (table,) = table_of(records)
    whole, narrow = markdown(table), markdown(table, width=width)
    assert max(map(len, whole.splitlines())) > width
    assert max(map(len, narrow.splitlines())) <= width

    def cells(text: str) -> dict[str, set[str]]:
        """What stands in the row of each architecture, whatever piece it is in."""
        found: dict[str, set[str]] = {}
        for line in text.splitlines():
            if line.startswith("|"):
                first, *rest = (word.strip() for word in line.strip("|").split(" | "))
                found.setdefault(first.rstrip("-"), set()).update(word for word in rest if word.strip("-:"))
        return found

    assert cells(narrow) == cells(whole)
    assert " ".join(narrow.split("- Accuracy")[1].split()) == " ".join(whole.split("- Accuracy")[1].split())


def test_in_pieces_published_figures_stand_where_there_are_any() -> None:
    columns = ("a setting of some length", "the mean over the settings")
    line = Line(labels=("gla", "1 kB", "1"), cells=(Cell(mean=0.5, seeds=1), Cell(mean=0.5, seeds=1, published=0.25)))
    corner = ("architecture", "state", "seeds")
    table = Table(title="copying", corner=corner, columns=columns, lines=(line,), units=("percent", "percent"))
    labels, setting, mean = markdown(table, width=45).split("\n\n")[1:4]
    assert [text.count("↳") for text in (labels, setting, mean)] == [0, 0, 2]


def test_a_name_that_leaves_no_room_for_a_figure_goes_on_below_itself() -> None:
    line = Line(labels=("gated_deltanet init=mesanet soft_cap=30", "1 kB"), cells=(Cell(mean=0.5, seeds=1),))
    corner, columns = ("architecture", "state"), ("operations a token",)
    table = Table(title="copying", corner=corner, columns=columns, lines=(line,), units=("percent",))
    assert "init=mesanet soft_cap=30 |" in markdown(table, width=70)
    assert markdown(table, width=45).split("\n\n")[2].splitlines()[2:] == [
        "| gated_deltanet |               50.0 |",
        "|   init=mesanet |                    |",
        "|   soft_cap=30  |                    |",
    ]


def test_a_terminal_leaves_out_times_and_sizes_that_are_0_or_unknown_in_every_row_and_says_which(make: Make) -> None:
    idle, busy = [make(arch="gla"), make(compile_seconds=0.0)], make(arch="gla", seed=1, compile_seconds=2.0)
    (table,) = cost_tables(idle)
    left_out = "- Left out, because 0 or unknown in every row: compiling, peak memory.\n"
    assert left_out in markdown(table, width=1000)
    assert "compiling |" not in markdown(table, width=1000)
    assert "| compiling | peak memory |" in markdown(table)  # a file is whole
    assert "Left out" not in markdown(table)
    (table,) = cost_tables([*idle, busy])
    assert "| compiling |" in markdown(table, width=1000)
