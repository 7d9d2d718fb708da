"""The overview of the page: each task and each architecture leads to where it is drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from recallmap.results.page.dashboard import write_page
from recallmap.results.page.figure_data import figures
from recallmap.results.page.overview_section import section
from recallmap.results.record import Record
from recallmap.results.score_tables.scores import table_of

Make = Callable[..., Record]
Browser = Any  # of conftest.py


def many(make: Make) -> list[Record]:
    """Four tasks; one architecture was trained on one of them alone, in one of its two settings."""
    tasks = ("parity", "mqar", "regbench", "needle")
    records = [make(task=task, arch=arch) for task in tasks for arch in ("gla", "mesa")]
    return [*records, make(dials={"pairs": 8}, arch="mesa"), make(dials={"pairs": 8}, arch="hawk & co")]


def test_the_overview_counts_and_leads_to_the_figures_of_tasks_and_architectures(make: Make) -> None:
    data = figures(many(make), [])
    tasks, archs = section(data["views"], data["archs"]).split("<details>")
    link = r'<a href="#([^"]*)">(.*?) <small>(\d+)</small>'

    def links(text: str) -> list[tuple[dict[str, list[str]], str, int]]:
        return [(parse_qs(unescape(at)), unescape(name), int(n)) for at, name, n in re.findall(link, text)]

    assert links(tasks) == [
        ({"view": ["mqar: pairs 4"]}, "mqar", 3),
        *[({"view": [task]}, task, 2) for task in ("parity", "regbench", "needle")],
    ]
    assert links(archs) == [
        ({"view": ["parity"], "star": ["gla"]}, "gla", 4),
        ({"view": ["mqar: pairs 8"], "star": ["hawk & co"]}, "hawk & co", 1),
        ({"view": ["parity"], "star": ["mesa"]}, "mesa", 4),
    ]


def test_a_page_of_few_tasks_has_no_overview(make: Make) -> None:
    data = figures([make(task=task) for task in ("parity", "mqar", "regbench")], [])
    assert section(data["views"], data["archs"]) == ""


def test_a_press_on_an_architecture_shows_it_in_colour(browser: Browser, make: Make, tmp_path: Path) -> None:
    records = many(make)
    write_page(tmp_path / "page.html", records, title="Many", tables=table_of(records))
    browser.show(tmp_path / "page.html")
    browser.run("[...document.querySelectorAll('#overview details a')][1].click()")
    browser.wait("return now.lit.length > 0")
    chosen = "return [views[now.view].label, now.lit.map((a) => archs[a].name)]"
    assert browser.run(chosen) == ["mqar: pairs 8", ["hawk & co"]]
    assert browser.run("return document.getElementById('unfitting').hidden")
    assert browser.messages() == []
