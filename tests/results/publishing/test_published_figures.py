"""The published figures that come with the package are whole, and errors in them are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from recallmap.results.analysis.published_figures import FOLDER, Published, names

FILES = sorted(FOLDER.glob("*.yaml"))


def load(path: Path) -> Published:
    return Published.from_dict(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_file_is_named_for_its_source_and_says_something(path: Path) -> None:
    published = load(path)
    assert published.name == path.stem
    assert published.source
    assert published.tables or published.claims


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_figures_are_fractions(path: Path) -> None:
    for table in load(path).tables:
        for row in table.rows:
            assert all(value is None or 0 <= value <= 1 for value in row.values), row.name


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_a_published_mean_is_the_mean_of_its_row(path: Path) -> None:
    """Which guards against slips of the pen: a wrong figure would not fit its average."""
    for table in load(path).tables:
        at = [i for i, column in enumerate(table.columns) if column.mean and not column.over]
        for row in table.rows:
            parts = [value for i, value in enumerate(row.values) if i not in at and value is not None]
            if at and len(parts) == len(table.columns) - 1:
                assert row.values[at[0]] == pytest.approx(sum(parts) / len(parts), abs=0.001), row.name


def test_all_are_listed() -> None:
    assert names() == [path.stem for path in FILES]
    assert {"mesanet", "atlas", "gated_deltanet", "statex", "zoology", "mad_lab"} <= set(names())


GOOD: dict[str, Any] = {
    "name": "a",
    "source": "A",
    "tables": [
        {
            "about": "mad",
            "where": "Table 1",
            "unit": "percent",
            "columns": [{"name": "recall", "tasks": ["in_context_recall"]}],
            "rows": [{"arch": "mesa", "values": [50]}],
        }
    ],
}


def test_percent_become_fractions() -> None:
    assert Published.from_dict(GOOD).tables[0].rows[0].values == (0.5,)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"unit": "permille"}, "unit must be 'fraction' or 'percent', got 'permille'"),
        ({"rows": [{"arch": "mesa", "values": [50, 60]}]}, "row mesa has 2 values for 1 columns"),
        ({"columns": [{"name": "recall"}]}, "column 'recall' must have either tasks or mean: true, got neither"),
        ({"colour": "red"}, "unknown colour in PublishedTable; it may have about"),
        ({"how": "guessed"}, "got 'guessed'"),
    ],
)
def test_a_slip_in_a_file_is_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Published.from_dict({**GOOD, "tables": [{**GOOD["tables"][0], **change}]})


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="source"):
        Published.from_dict({"name": "a"})
