"""The notebooks: each answers one question, in cells that run from top to bottom without Jupyter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from plotly.graph_objects import Figure

FOLDER = Path(__file__).parents[2] / "results" / "notebooks"
BOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 200_000


def book(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def executed(name: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> dict[str, Any]:
    """The names of a notebook after all its cells."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "notebook"}
    cells = book(FOLDER / f"{name}.ipynb")["cells"]
    for number, cell in enumerate(cells, start=1):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
    return names


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_opens_with_its_question_and_is_kept_without_outputs(path: Path) -> None:
    found = book(path)
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    assert path.stat().st_size <= MOST_BYTES
    first = "".join(found["cells"][0]["source"]).splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith("?")
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in found["cells"])


def test_each_notebook_has_a_story_below() -> None:
    assert [path.stem for path in BOOKS] == [
        "capacity_against_theory",
        "front_of_shipped_records",
        "window_against_memory",
    ]


def test_the_shipped_records_have_a_front_and_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("front_of_shipped_records", monkeypatch, tmp_path)
    assert isinstance(names["figure"], Figure)
    assert len(names["front"]) > 2
    assert names["enough"].score.min() >= 0.9
    assert names["enough"].state_bytes.is_monotonic_increasing


def test_a_memory_recalls_more_than_a_window_of_the_same_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    df = executed("window_against_memory", monkeypatch, tmp_path)["df"]
    assert df.state_bytes.nunique() == 1
    assert df[df.label == "memory"].accuracy.min() > df[df.label == "window"].accuracy.max() + 0.2
    assert not list(tmp_path.iterdir())


def test_theory_predicts_what_the_probe_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = executed("capacity_against_theory", monkeypatch, tmp_path)
    apart: pd.DataFrame = names["apart"]
    assert np.array(apart.drop(index=names["K"])).max() < 0.08
    assert apart["mesa"].idxmax() == names["K"]
    assert names["held"]["mesa"] > names["held"]["deltanet"]
