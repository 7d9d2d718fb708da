"""The table of all tasks: a row a kind, every cell filled, as Markdown."""

from __future__ import annotations

from search import samplers
from search.typed import kinds_of
from synth.tasks import Task


def test_every_task_has_a_row_with_its_source_bounds_and_speed() -> None:
    rows = list(samplers.rows(count=8, times=1))
    assert [row[0] for row in rows] == sorted(kinds_of(Task))
    for row in rows:
        said = dict(zip(samplers.COLUMNS, row, strict=True))
        assert all(said.values())
        assert float(said["chance"]) < float(said["ceiling"])
        assert said["protocol"].split(", ")[0] == "repaired"
        assert int(said["sequences/s"].replace(",", "")) > 0


def test_the_table_is_markdown() -> None:
    head, rule, row = samplers.markdown(iter([("mqar", "a paper", "repaired", "accuracy", "0.25", "1", "64", "9,000")]))
    assert {line.count("|") for line in (head, rule, row)} == {len(samplers.COLUMNS) + 1}
    assert set(rule) <= set("|-: ")
