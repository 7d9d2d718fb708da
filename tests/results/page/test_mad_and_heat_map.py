"""MAD on the page: by setting and by task, and the heat map, whose rows and columns can be told apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recallmap.results.page.dashboard import write_page
from recallmap.results.record import Record
from recallmap.results.score_tables.scores import table_of

Make = Callable[..., Record]
Browser = Any  # of conftest.py


@pytest.fixture(scope="module")
def mad(study: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MAD alone, one of its tasks in two settings."""
    records = [r for r in study if r.task != "mqar"]
    longer = [replace(r, key=r.key[::-1], spec=_longer(r.spec)) for r in records if r.task == "selective_copying"]
    path = tmp_path_factory.mktemp("mad") / "page.html"
    write_page(path, [*records, *longer], title="MAD", tables=table_of([*records, *longer], settings=True))
    return path


def _longer(spec: dict[str, Any]) -> dict[str, Any]:
    training = {**spec.get("training", {}), "steps": 9000, "batch": 96, "dtype": "float64"}
    return {**spec, "task": {**spec["task"], "length": 512, "vocab": 48}, "training": training}


def test_mad_is_shown_by_setting_first_and_by_task_on_demand(browser: Browser, mad: Path) -> None:
    browser.show(mad)
    options = "return [...document.querySelectorAll('#table option')].map((o) => o.textContent)"
    assert browser.run(options)[:2] == ["MAD, every setting", "MAD"]
    shown = (
        "const heat = document.getElementById('heat');"
        "return [heat.data[0].x.length, heat.layout.annotations.map((one) => one.text)]"
    )
    names = ("in-context recall", "fuzzy recall", "noisy recall", "selective copying", "compression", "memorization")
    columns, titles = browser.run(shown)
    assert columns == 7
    assert [title.strip("<b>/…")[:4] for title in titles] == [name[:4] for name in names]
    browser.run("const t = document.getElementById('table'); t.value = 1; t.dispatchEvent(new Event('change'))")
    browser.wait("return document.getElementById('heat').layout.annotations.length === 0")
    assert browser.run(shown)[0] == 7  # six tasks and their mean


def test_a_mean_over_some_settings_has_a_star_and_says_so(
    browser: Browser, study: list[Record], tmp_path: Path
) -> None:
    records = [r for r in study if r.task != "mqar"]
    lacking = records[0].arch
    own = [r for r in records if r.task == "selective_copying" and r.arch != lacking]
    records += [replace(r, key=r.key[::-1], spec=_longer(r.spec)) for r in own]
    path = tmp_path / "page.html"
    write_page(path, records, title="MAD", tables=table_of(records, settings=True))
    browser.show(path)
    browser.run("const t = document.getElementById('table'); t.value = 1; t.dispatchEvent(new Event('change'))")
    browser.wait("return document.getElementById('heat').layout.annotations.length === 0")
    shown, told = browser.run(
        "const [heat, text] = document.getElementById('heat').data;"
        "const starred = text.text.map((one, i) => [one, text.y[i], text.x[i]]).filter(([one]) => one.endsWith('*'));"
        "return [starred.length, starred.map(([, row, column]) => heat.customdata[row][column])]"
    )
    assert shown == 1
    assert f"<b>{lacking}" in told[0]
    assert "over some settings of the column only" in told[0]


@pytest.mark.parametrize("width", [390, 1300])
def test_headings_of_the_heat_map_are_over_its_columns_names(width: int, browser: Browser, mad: Path) -> None:
    browser.show(mad, width=width)
    ends = (
        "const box = (list) => [...document.querySelectorAll(list)].map((one) => one.getBoundingClientRect());"
        "return [Math.max(...box('#heat .annotation-text').map((b) => b.bottom)),"
        " Math.min(...box('#heat .xtick text').map((b) => b.top))]"
    )
    above, below = browser.run(ends)
    assert above <= below


@pytest.mark.parametrize("width", [390, 1300])
def test_what_differs_at_the_end_of_a_long_name_is_told_apart_on_the_heat_map(
    width: int, browser: Browser, make: Make, tmp_path: Path
) -> None:
    names = ("inner_norm", "key_dim", "learned_start", "residual", "window")
    dials = [dict(zip(names, values, strict=True)) for values in itertools.product((1, 2), repeat=len(names))]
    pairs = [100_000 + more for more in range(4)]
    records = [make(arch_dials=d, dials={"length": 10 * p, "pairs": p}, state_bytes=1000) for d in dials for p in pairs]
    write_page(tmp_path / "page.html", records, title="R", tables=table_of(records))
    browser.show(tmp_path / "page.html", width=width)
    shown = (
        "const rows = [...document.querySelectorAll('#heat .ytick text')].map((one) => [one.textContent,"
        " one.getBoundingClientRect()]).sort((a, b) => a[1].top - b[1].top);"
        "return rows.map(([text, box]) => [text, box.left - document.getElementById('heat').getBoundingClientRect().left,"
        " box.top, box.bottom])"
    )
    rows = browser.run(shown)
    assert len({text for text, *_ in rows}) == len(dials)
    assert all(left >= 0 for _, left, *_ in rows)
    assert all(bottom <= top for (*_, bottom), (_, _, top, _) in itertools.pairwise(rows))
    columns = browser.run("return [...document.querySelectorAll('#heat .xtick text')].map((one) => one.textContent)")
    assert len(set(columns)) == len(columns) == len(pairs) + 1  # and their mean


def test_what_is_hidden_on_a_mean_over_tasks_is_said(browser: Browser, mad: Path) -> None:
    browser.show(mad)
    seen = "return ['hint', 'learning', 'progress'].map((id) => document.getElementById(id).checkVisibility())"
    assert browser.run(seen) == [True, False, False]
    browser.run("const v = document.getElementById('view'); v.value = 1; v.dispatchEvent(new Event('change'))")
    browser.wait("return document.getElementById('curves').data !== undefined")
    assert browser.run(seen) == [False, True, True]
