"""Excerpts: a text's small tables are made of the figures that the tables of the records have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recallmap.results.publishing.readme_tables import Excerpt, Place, asked_for, filled
from recallmap.results.score_tables.costs import HOURS
from recallmap.results.score_tables.table import Cell, Line, Table


def table(title: str, *lines: Line, beside: str = "") -> Table:
    return Table(
        title=title,
        corner=("architecture", "state", "seeds"),
        columns=("pairs 4", "mean"),
        lines=lines,
        units=("percent", "percent"),
        beside=beside,
    )


def line(row: str, *cells: Cell, state: str = "4 kB") -> Line:
    return Line(labels=(row, state, "3"), cells=cells)


TABLES = {
    "mqar": [
        table(
            "beside one paper",
            line(
                "gla width=32",
                Cell(mean=0.5),
                Cell(mean=0.25, interval=(0.2, 0.3), spread=(0.2, 0.31), edge="highest", published=0.5, failed=1),
            ),
            line("gla width=64", Cell(mean=0.75), Cell()),
            Line(labels=("mesa width=32", "", ""), cells=(Cell(mean=0.9), Cell(mean=0.9)), kind="published"),
            beside="Paper A",
        ),
        table("beside another", line("gla width=32", Cell(), Cell(mean=0.25, published=0.75)), beside="Paper B"),
        table("chosen on test", line("gla width=32", Cell(mean=0.99), Cell(mean=0.99))),
    ],
    "mad": [table("mad", line("mesa", Cell(mean=0.125), Cell(mean=1.0), state="1–4 kB, grows"))],
}
WIDTHS = Excerpt(
    corner="width",
    every=Place(records="mqar", column="mean", of="score", row="gla width={}"),
    across={
        "GLA": Place(),
        "with its seeds": Place(of="spread"),
        "of A": Place(of="published", source="A"),
        "of B": Place(of="published", source="B"),
        "state": Place(of="state"),
        "4 pairs": Place(column="pairs 4"),
        "Mesa": Place(records="mad", row="mesa", column="pairs 4"),
        "its state": Place(records="mad", row="mesa", of="state"),
    },
    down={"32": Place(at=32), "64": Place(at="64"), "128": Place(at=128, records="none", row="rwkv7")},
)
MADE = """\
| width | GLA | with its seeds | of A | of B | state | 4 pairs | Mesa | its state |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| 32 | 25.0↑ †1 | 25.0↑ (20.0–31.0) †1 | 50.0 | 75.0 | 4 kB | 50.0 | 12.5 | grows |
| 64 | – | – | | | 4 kB | 75.0 | 12.5 | grows |
| 128 | | | | | | | 12.5 | grows |
"""


def test_a_figure_stands_where_its_column_and_row_say_and_blank_where_nothing_was_trained() -> None:
    assert WIDTHS.markdown("widths", TABLES) == MADE


def test_a_figure_may_be_of_a_table_by_its_title_of_one_cell_a_task_or_a_difference() -> None:
    by_task = {"mqar, one cell a task": [table("cells", line("gla width=32", Cell(), Cell(mean=0.2, published=0.25)))]}
    one = Excerpt(
        every=Place(records="mqar", column="mean", of="score", row="gla width=32"),
        across={"GLA": Place()},
        down={
            "as published": Place(title="on test"),
            "one cell": Place(cell="task"),
            "difference": Place(cell="task", of="difference"),
        },
    )
    made = "| | GLA |\n| --- | ---: |\n| as published | 99.0 |\n| one cell | 20.0 |\n| difference | −5.0 |\n"
    assert one.markdown("one", TABLES | by_task) == made
    assert asked_for("<!-- excerpt: one -->\n<!-- excerpt: validity -->\n", {"one": one, "other": WIDTHS}) == {
        "mqar",
        "mqar, one cell a task",
    }


def test_hours_are_those_of_a_row_on_a_task() -> None:
    lines = tuple(
        Line(labels=("gla width=32", task, "3"), cells=(Cell(mean=hours),))
        for task, hours in (("mqar", 0.5), ("mad", 1.25))
    )
    costs = Table(title="Cost", corner=("row", "task", "trials"), columns=(HOURS,), lines=lines, units=("hours",))
    one = Excerpt(
        every=Place(records="mqar", row="gla width=32"),
        across={"score": Place(of="score", column="mean", title="on test"), "hours": Place(of="hours", column="mad")},
        down={"GLA": Place()},
    )
    made = "| | score | hours |\n| --- | ---: | ---: |\n| GLA | 99.0 | 1.25 |\n"
    assert one.markdown("one", TABLES | {"mqar, costs": [costs]}) == made
    assert asked_for("<!-- excerpt: one -->\n", {"one": one}) == {"mqar", "mqar, costs"}


@pytest.mark.parametrize(
    ("wrong", "head"),
    [
        (replace(WIDTHS, across={"GLA": Place(), "lost": Place(row="glla")}, down={"32": Place(at=32)}), "lost"),
        (replace(WIDTHS, across={"GLA": Place()}, down={"32": Place(at=32), "9": Place(at=9)}), "9"),
        (replace(WIDTHS, every=replace(WIDTHS.every, column="pears"), across={"GLA": Place()}), "32"),
    ],
)
def test_a_head_without_a_figure_is_refused(wrong: Excerpt, head: str) -> None:
    with pytest.raises(ValueError, match=f"excerpt wrong: '{head}' has no figure in these records"):
        wrong.markdown("wrong", TABLES)


def test_an_excerpt_whose_figures_have_no_whole_place_is_refused() -> None:
    with pytest.raises(
        ValueError, match="every must give row and of where neither head does, got none for row '8' and"
    ):
        Excerpt(every=Place(records="mqar", column="mean"), across={"GLA": Place()}, down={"8": Place(at=8)})
    with pytest.raises(ValueError, match="down must have at least one head, got none"):
        replace(WIDTHS, down={})


def test_a_text_keeps_what_stands_around_its_excerpts() -> None:
    excerpts = {"widths": WIDTHS}
    old, mark = "| one | table |\n| --- | --- |\n| not | ours |\n", "<!-- excerpt: widths -->\n\n"
    text = f"# Title\n\n{old}\n{mark}{old}\nWords.\n\n{old}"
    made = f"# Title\n\n{old}\n{mark}{MADE}\nWords.\n\n{old}"
    assert filled(text, TABLES, excerpts) == made
    assert filled(made, TABLES, excerpts) == made
    assert filled("<!-- excerpt: widths -->\n", TABLES, excerpts) == f"{mark}{MADE}"
    for first in ("<!-- excerpt: widths -->\nWords.\n", f"{mark}Words.\n", f"{mark.strip()}\n{old}Words.\n"):
        assert filled(first, TABLES, excerpts) == f"{mark}{MADE}\nWords.\n"


def test_a_table_that_is_made_whole_stands_as_it_is() -> None:
    made = "<!-- excerpt: odd -->\n\n| a |\n| --- |\n| 1 |\n\nWords.\n"
    assert filled(made.replace("1", "0"), TABLES, {}, {"odd": "| a |\n| --- |\n| 1 |\n"}) == made


def test_an_excerpt_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no excerpt 'widhts', only widths"):
        filled("<!-- excerpt: widhts -->\n", TABLES, {"widths": WIDTHS})
