"""The table of all tasks: a row a kind, every cell filled, as Markdown."""

from __future__ import annotations

from pathlib import Path

from recallmap.search.cli import task_table
from recallmap.search.cli.task_table import COLUMNS
from recallmap.search.documents.type_hints import kinds_of
from recallmap.synth.tasks import Task


def test_every_task_has_a_row_with_its_source_bounds_and_speed() -> None:
    rows = list(task_table.rows(count=8, times=1))
    assert [row[0] for row in rows] == sorted(kinds_of(Task))
    for row in rows:
        said = dict(zip(COLUMNS, row, strict=True))
        assert all(said.values())
        assert float(said["chance"]) < float(said["ceiling"])
        assert said["protocol"].split(", ")[0] == "repaired"
        assert int(said["sequences/s"].replace(",", "")) > 0


def test_the_readme_of_synth_has_the_row_of_every_task_but_for_its_speed() -> None:
    """Where this fails: recallmap bench tasks, and copy the table."""
    readme = (Path(__file__).parents[3] / "synth" / "README.md").read_text(encoding="utf-8")
    made = task_table.markdown(task_table.rows(count=8, times=1))
    assert [row.rsplit("|", 2)[0] for row in readme.splitlines() if row.startswith("|")] == [
        row.rsplit("|", 2)[0] for row in made
    ]


def test_the_table_is_markdown() -> None:
    head, rule, row = task_table.markdown(
        iter([("mqar", "a paper", "repaired", "accuracy", "0.25", "1", "64", "9,000")])
    )
    assert {line.count("|") for line in (head, rule, row)} == {len(COLUMNS) + 1}
    assert set(rule) <= set("|-: ")
