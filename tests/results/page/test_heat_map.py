"""The page's heat maps: MAD by its settings, and every table from chance to ceiling."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from recallmap.results.page.dashboard import page
from recallmap.results.page.figure_data import figures
from recallmap.results.page.heat_map import brief
from recallmap.results.record import Record
from recallmap.results.score_tables.scores import table_of

Make = Callable[..., Record]


def mad(make: Make, seeds: int = 2) -> list[Record]:
    """Two tasks, one of them in two settings."""
    return [
        make(
            arch=arch, task=task, dials=dials, seed=seed, score=score * skill + seed / 10, chance=0.1, state_bytes=state
        )
        for arch, skill, state in (("gla", 0.5, 1000), ("mesa", 1.0, 2000))
        for task, dials, score in (
            ("compression", {"length": 16}, 0.4),
            ("compression", {"length": 32}, 0.2),
            ("selective_copying", {}, 0.8),
        )
        for seed in range(seeds)
    ]


def test_mad_is_a_heat_map_of_every_setting_before_its_means(make: Make) -> None:
    records = mad(make)
    data = figures(records, table_of(records, settings=True))
    assert [data["tables"][n]["title"] for n in data["heats"]] == [
        "MAD, every setting",
        "MAD",
        "compression",  # selective copying has one setting, which is its column in MAD's table
    ]
    heat = data["tables"][data["heats"][0]]
    assert heat["groups"] == [("selective copying", 1), ("compression", 2)]
    assert heat["columns"] == ["selective copying", "compression: length 16", "compression: length 32"]
    assert heat["rows"] == ["gla", "mesa"]
    assert [cell[0] for cell in heat["cells"][1]] == pytest.approx([0.85, 0.45, 0.25])
    assert [len(own) for own in heat["trials"][1]] == [2, 2, 2]
    assert heat["chance"] == [0.1, 0.1, 0.1]


def test_a_cell_over_some_settings_of_its_column_is_marked_and_not_compared(make: Make) -> None:
    """In the tables it has a star."""
    records = [r for r in mad(make) if (r.arch, r.length) != ("gla", 32)]
    data = figures(records, table_of(records, settings=True))
    whole = next(table for table in data["tables"] if table["title"] == "MAD")
    at = whole["columns"].index("compression")
    assert whole["rows"] == ["gla", "mesa"]
    assert whole["partial"] == [[at], []]
    assert whole["cells"][0][at][0] > 0
    assert whole["seen"].startswith("Hardest: compression, 35.0 for the median architecture and 35.0 for the best.")
    assert "differ most on selective copying: from" in whole["seen"]


def test_columns_of_very_many_options_are_named_by_those_that_tell_them_apart() -> None:
    told = "test 512, validation 256, batch 32, length 96"
    columns = [f"length {length}, level {level}, {told}" for length in (96, 192) for level in (1, 2)]
    assert brief([*columns, "mean"]) == [
        *[f"length {length}, level {level}" for length in (96, 192) for level in (1, 2)],
        "mean",
    ]
    few = ["length 96, level 1", "mean"]
    assert brief(few) == few
    parts = [f"recall: length 96, {told}", f"recall: length 128, {told}", "compression"]
    assert brief(parts) == ["recall: length 96", "recall: length 128", "compression"]


def test_tables_of_the_page_keep_their_numbers(make: Make) -> None:
    records = mad(make)
    tables = table_of(records, settings=True)
    shown = re.findall(r'data-table="(\d)".*', page(records, title="A", tables=tables))
    assert shown == [str(n) for n, table in enumerate(tables) if table.title != "selective_copying"]
    assert [table["title"] for table in figures(records, tables)["tables"]][: len(tables)] == [t.title for t in tables]


def test_the_mean_of_mad_has_a_band_over_five_seeds(make: Make) -> None:
    assert figures(mad(make), [])["views"][0]["band"] == []
    view = figures(mad(make, seeds=5), [])["views"][0]
    assert view["label"] == "MAD: mean over 2 tasks"
    assert [state for state, _, _ in view["band"]] == [1000.0, 2000.0]
    for (_, low, high), first in zip(
        view["band"], (0.275, 0.55), strict=True
    ):  # seeds are 0.1 apart, from the first on
        assert first < low < first + 0.2 < high < first + 0.4


def test_the_heat_map_is_the_table_from_chance_to_ceiling(make: Make) -> None:
    records = [make(dials={"pairs": p}, chance=0.2, score=s) for p, s in ((4, 0.6), (8, 0.1))]
    (table,) = figures(records, table_of(records))["tables"]
    assert table["cells"][0][:2] == [[0.6, None, 1, 0.5], [0.1, None, 1, 0.0]]
    assert table["chance"][:2] == [0.2, 0.2]
