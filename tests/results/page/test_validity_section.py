"""The page says how far its scores order architectures as papers do, where there are enough architectures to say it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from recallmap.results.analysis.validity import Agreement
from recallmap.results.page.dashboard import page
from recallmap.results.page.validity_section import section
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli import page_context

Make = Callable[..., Record]

MAD = Agreement(
    predictor="MAD",
    outcome="recall",
    architectures=13,
    papers=6,
    correlation=0.5,
    interval=(0.0, 1.0),
    leaving_out=(0.3, 0.7),
    p=0.02,
    adjusted=0.08,
)
STATE = replace(MAD, predictor="state size, where MAD is known", correlation=-0.5, interval=(-1.0, 0.0), adjusted=None)
FEW = Agreement(predictor="needle", outcome="recall", architectures=7, papers=3)


def test_a_forest_has_a_bar_for_every_interval_and_the_table_every_row() -> None:
    made = section([MAD, STATE, FEW])
    assert re.findall(r'<circle cx="([\d.]+)"', made) == ["302.5", "175.5"]  # a half, minus a half, of 112 to 366
    assert "<title>MAD: +0.50 [+0.00, +1.00], 13 architectures, 6 papers</title>" in made
    assert made.count("<figure>") == 1  # of recall alone
    assert made.count("<tr>") == 4
    assert "<li>MAD is not shown to order architectures by recall as papers do (+0.50).</li>" in made
    assert section([FEW]) == section([]) == ""


def test_the_page_has_the_section_where_there_is_a_number(make: Make) -> None:
    records = [make()]
    shown, without = (page(records, title="A page", tables=[], validity=found) for found in ([MAD, STATE], [FEW]))
    assert ('<section id="validity"' in shown, '<section id="validity"' in without) == (True, False)


def test_fewer_than_nine_architectures_are_not_compared_at_all(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(codec, "read_language")  # it takes a while
    assert page_context.agreements([make(arch=f"a{n}") for n in range(8)]) == []
    monkeypatch.undo()
    monkeypatch.delattr(page_context, "measures")
    assert page_context.agreements([make(arch=f"a{n}") for n in range(100)]) == []  # of names that nobody published
