"""The map, the page of all committed records: it is small, it opens, and what documents link to is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recallmap.search.cli.app import app

Browser = Any  # of conftest.py

ROOT = Path(__file__).parents[3]
MOST_BYTES = 6_000_000
DOCUMENTS = ("README.md", "docs/read-the-map.md", "results/README.md")


def permalinks() -> Iterator[str]:
    """What documents link to in the map, behind its #."""
    for document in DOCUMENTS:
        text = (ROOT / document).read_text(encoding="utf-8")
        yield from re.findall(r"\]\([\w./]*\bmap\.html#([^)\s]+)\)", text)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The map, by the command of `make map`, in another place."""
    target = re.search(r"^map:.*\n\t\$\(BIN\)/recallmap (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert target is not None
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', target[1])]
    path = tmp_path_factory.mktemp("map") / "map.html"
    words[words.index("--output") + 1] = str(path)
    words[words.index("results/records")] = str(ROOT / "results/records")
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    return path


def test_the_map_is_small_and_opens_with_the_most_architectures(browser: Browser, made: Path) -> None:
    assert made.stat().st_size < MOST_BYTES
    browser.show(made)
    assert browser.messages() == []
    assert browser.requests() == [made.as_uri()]
    counts = browser.run("return views.map((view) => new Set(view.means.map(({ arch }) => arch)).size)")
    assert counts[browser.run("return now.view")] == max(counts) > 30
    assert browser.run("return document.querySelectorAll('#overview a').length") > 100


@pytest.mark.parametrize("address", sorted(set(permalinks())))
def test_a_link_into_the_map_leads_there(address: str, browser: Browser, made: Path) -> None:
    browser.driver.get("about:blank")  # a change of the address alone would not load the page anew
    browser.driver.get(f"{made.as_uri()}#{address}")
    browser.wait("return document.body.dataset.ready === 'true'")
    note = "const note = document.getElementById('unfitting'); return note.hidden ? '' : note.textContent"
    assert browser.run(note) == ""
    where = "return document.getElementById(new URLSearchParams(location.hash.slice(1)).get('at')).getBoundingClientRect().top"
    assert 0 <= browser.run(where) < 100
