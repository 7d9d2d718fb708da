"""Excerpts: a text's small tables are made of the figures that the tables of the records have."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recallmap.results.publishing.readme_tables import EXCERPTS, Excerpt, filled
from recallmap.results.score_tables.table import Cell, Line, Table

PILLARS = ("synth", "arch", "arch/kernels", "results", "search")
ROOT = Path(__file__).parents[2]
DOCUMENTS = [path for folder in (".", "docs", *PILLARS) for path in sorted((ROOT / folder).glob("*.md"))]


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
            line("gla width=32", Cell(mean=0.5), Cell(mean=0.25, interval=(0.2, 0.3), published=0.5, failed=1)),
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
    every={"records": "mqar", "column": "mean", "of": "score", "row": "gla width={}"},
    across={
        "GLA": {},
        "with its seeds": {"of": "spread"},
        "of A": {"of": "published", "beside": "A"},
        "of B": {"of": "published", "beside": "B"},
        "state": {"of": "state"},
        "4 pairs": {"column": "pairs 4"},
        "Mesa": {"records": "mad", "row": "mesa", "column": "pairs 4"},
        "its state": {"records": "mad", "row": "mesa", "of": "state"},
    },
    down={"32": {"at": "32"}, "64": {"at": "64"}, "128": {"at": "128", "records": "none", "row": "rwkv7"}},
)
MADE = """\
| width | GLA | with its seeds | of A | of B | state | 4 pairs | Mesa | its state |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| 32 | 25.0 †1 | 25.0 ±5.0 †1 | 50.0 | 75.0 | 4 kB | 50.0 | 12.5 | grows |
| 64 | – | – | | | 4 kB | 75.0 | 12.5 | grows |
| 128 | | | | | | | 12.5 | grows |
"""


def test_a_figure_stands_where_its_column_and_row_say_and_blank_where_nothing_was_trained() -> None:
    assert WIDTHS.markdown("widths", TABLES) == MADE


@pytest.mark.parametrize(
    ("wrong", "head"),
    [
        (
            Excerpt(
                corner="", every=WIDTHS.every, across={"GLA": {}, "lost": {"row": "glla"}}, down={"32": {"at": "32"}}
            ),
            "lost",
        ),
        (Excerpt(corner="", every=WIDTHS.every, across={"GLA": {}}, down={"32": {"at": "32"}, "9": {"at": "9"}}), "9"),
        (Excerpt(corner="", every={**WIDTHS.every, "column": "pears"}, across={"GLA": {}}, down=WIDTHS.down), "32"),
    ],
)
def test_a_head_without_a_figure_is_refused(wrong: Excerpt, head: str) -> None:
    with pytest.raises(ValueError, match=f"excerpt wrong: '{head}' has no figure in these records"):
        wrong.markdown("wrong", TABLES)


def test_a_text_keeps_what_stands_around_its_excerpts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXCERPTS, "widths", WIDTHS)
    old, mark = "| one | table |\n| --- | --- |\n| not | ours |\n", "<!-- excerpt: widths -->\n\n"
    text = f"# Title\n\n{old}\n{mark}{old}\nWords.\n\n{old}"
    made = f"# Title\n\n{old}\n{mark}{MADE}\nWords.\n\n{old}"
    assert filled(text, TABLES) == made
    assert filled(made, TABLES) == made
    assert filled("<!-- excerpt: widths -->\n", TABLES) == f"{mark}{MADE}"
    for first in ("<!-- excerpt: widths -->\nWords.\n", f"{mark}Words.\n", f"{mark.strip()}\n{old}Words.\n"):
        assert filled(first, TABLES) == f"{mark}{MADE}\nWords.\n"


def test_an_excerpt_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no excerpt 'widhts', only demo, mad-memorization, mad, "):
        filled("<!-- excerpt: widhts -->\n", TABLES)


def test_every_excerpt_stands_in_one_document_once() -> None:
    texts = [path.read_text(encoding="utf-8") for path in DOCUMENTS]
    assert sorted(name for text in texts for name in re.findall("^<!-- excerpt: (.*) -->$", text, re.M)) == sorted(
        EXCERPTS
    )
