"""The page's section on a search: its front beside random search, and its best points with what changed in each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from recallmap.results.analysis.block_effects import Effect, Repeated
from recallmap.results.page.dashboard import page, write_page
from recallmap.results.page.search_section import MOST_SHOWN, Goal, SearchPoint, SearchView, section
from recallmap.results.record import Record

Make = Callable[..., Record]
Browser = Any  # of conftest.py


def point(sampler: str, place: int, accuracy: float, state: float, *blocks: str, **more: str) -> SearchPoint:
    return SearchPoint(
        name=f"{sampler} {place}",
        sampler=sampler,
        values=(accuracy, state),
        tested=(accuracy - 0.05, state),
        blocks=tuple((kind, "heads=2") for kind in blocks),
        yaml=f"name: {sampler}_{place}\n",
        **more,
    )


POINTS = (
    point("evolution", 0, 0.2, 100, "gla"),
    point("evolution", 1, 0.5, 1000, "gla", "mesa", parent="evolution 0", change="insert m at 1"),
    point("evolution", 2, 0.9, 1000, "gla", "attention", parent="evolution 1", change="change m at 1 to a"),
    point("random", 0, 0.2, 100, "gla"),
    point("random", 1, 0.4, 5000, "attention", "attention"),
    point("anchors", 0, 0.8, 20_000, "mesa"),
)
VIEW = SearchView(
    goals=(Goal(name="accuracy", maximise=True), Goal(name="state_bytes", maximise=False)),
    points=POINTS,
    best=("evolution 2", "evolution 1", "evolution 0", "random 1"),
    volumes={"evolution": [0.1, 0.3, 0.7], "random": [0.1, 0.2]},
    anchors="anchors",
)


def figures(view: SearchView) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg viewBox.*?</svg>", section(view), re.DOTALL)]


def cells(text: str) -> list[list[str]]:
    rows = re.findall(r"<tr><th scope=\"row\".*?(?=</tr>\n<tr><|</tr>\n</tbody)", text, re.DOTALL)
    return [[re.sub(r"<[^>]*>", "", cell) for cell in re.split(r"(?<=</th>|</td>)", row)] for row in rows]


def titles(figure: ElementTree.Element) -> list[str]:
    return [str(title.text) for line in figure.findall("polyline") for title in line.findall("title")]


def test_the_front_over_time_stands_beside_that_of_random_search() -> None:
    progress, fronts = figures(VIEW)
    assert titles(progress) == ["evolution: 0.700 after 3 points", "random: 0.200 after 2 points"]
    assert "stroke-dasharray" in progress.findall("polyline")[1].attrib["style"]
    assert titles(fronts) == [
        "random after 2 points: 2 on the front",
        "evolution after 1 point: 1 on the front",
        "evolution after 2 points: 2 on the front",
        "evolution after 3 points: 2 on the front",
    ]
    heights = [float(pair.split(",")[1]) for pair in progress.findall("polyline")[0].attrib["points"].split()]
    assert heights == sorted(heights, reverse=True)  # SVG counts downwards
    assert "Dominated share: evolution 0.700 after 3 points, random 0.200 after 2 points." in section(VIEW)


def test_a_row_has_the_blocks_the_test_scores_the_parent_with_its_blocks_and_the_yaml() -> None:
    best, child, first, other = cells(section(VIEW))
    assert best[:5] == ["evolution 2", "GA", "0.850", "1,000", "GMchange m at 1 to a (from evolution 1)"]
    assert best[5] == "\nYAMLname: evolution_2\n"
    assert child[4] == "Ginsert m at 1 (from evolution 0)"
    assert (first[4], other[1]) == ("", "AA")


def test_anchors_stand_beside_the_fronts_and_the_best_of_both_within_each_limit_of_state() -> None:
    lines = (("state", "best found", "best anchor", "gain"), ("16 kB", "evolution 2", "mesa", "+0.100"))
    view = replace(VIEW, limits=lines, points=(*POINTS[:-1], replace(POINTS[-1], arch="mesa")))
    _, fronts = figures(view)
    assert [mark.findtext("title") for mark in fronts.findall("path")] == ["anchors 0 (mesa)"]
    assert [text.text for text in fronts.findall("text")][-3:] == ["100", "20,000", "state_bytes, logarithmic"]
    assert "</svg> anchors</span>" in section(view)
    assert [row[:4] for row in cells(section(view).partition("The best 4 of")[0])] == [list(lines[1])]
    assert "Did it beat the anchors?" not in section(VIEW)


def test_the_letters_of_the_study_are_told_where_its_blocks_are() -> None:
    told = Repeated(score="accuracy", letters={"m": ("mesa",), "l": ("gla", "mesa")}, points=5, why="too few")
    text = section(replace(VIEW, repeated=told))
    assert re.findall(r"</abbr> ([^<]*)</span>", text) == ["attention", "gla (l)", "mesa (m, l)"]
    assert "blocks have the letters of the study" in text
    assert "the letters of the study" not in section(VIEW)


def test_blocks_whose_names_begin_alike_have_letters_of_their_own() -> None:
    alike = replace(POINTS[0], blocks=tuple((kind, "") for kind in ("mamba2", "mamba3", "mesa", "mlp", "m", "a")))
    (row,) = cells(section(replace(VIEW, points=(alike,), best=(alike.name,))))
    assert len(set(row[1])) == len(row[1]) == 6


def effect(name: str, value: float, adjusted: float) -> Effect:
    ends = (value - 0.05, value + 0.05)
    return Effect(
        family="place", name=name, points=20, others=30, effect=value, interval=ends, p=adjusted / 9, adjusted=adjusted
    )


def test_what_repeats_is_shown_where_it_holds_or_is_large_and_the_rest_is_a_press_away() -> None:
    effects = (effect("k late", 0.2, 0.001), effect("d early", 0.1, 0.2), effect("m late", 0.01, 0.9))
    told = Repeated(score="accuracy", letters={"k": ("kda", "delta_product")}, points=50, effects=effects)
    text = section(replace(VIEW, repeated=told)).partition("<h3>What repeats?")[2]
    shown, whole = text.split("<details><summary>All 3</summary>")
    assert [row[0] for row in cells(shown)] == ["k late", "d early"]
    assert cells(shown)[0][2:6] == ["20 of 50", "+0.200", "+0.150 to +0.250", "0.001"]
    assert "<b>+0.200</b>" in shown
    assert "<b>+0.100</b>" not in shown
    assert [row[0] for row in cells(whole)] == ["k late", "d early", "m late"]
    assert "k kda or delta_product" in text
    assert "What repeats" not in section(VIEW)
    assert "Not estimated: too few" in section(replace(VIEW, repeated=replace(told, effects=(), why="too few")))


def test_one_goal_has_no_front_and_nothing_found_no_section() -> None:
    one = [replace(p, values=p.values[:1], tested=p.tested[:1]) for p in POINTS]
    alone = replace(VIEW, goals=VIEW.goals[:1], points=tuple(one))
    assert len(figures(alone)) == 1
    assert "Best so far" in section(alone)
    assert "The best so far, on validation. Dashed" in section(alone)
    assert "Second: the front" not in section(alone)
    assert section(None) == section(replace(VIEW, points=())) == ""
    known = replace(VIEW, points=POINTS[-1:], best=("anchors 0",), volumes={})  # the samplers have begun nothing
    assert not figures(known)
    assert "Dashed" not in section(known)
    assert "Done: 1 point." in section(known)


def test_thirty_of_many_are_shown() -> None:
    many = tuple(point("random", place, 0.5, 100 + place, "gla") for place in range(50))
    text = section(replace(VIEW, points=many, best=tuple(one.name for one in many)))
    assert len(cells(text)) == MOST_SHOWN
    assert "The best 30 of 50" in text


def test_no_name_breaks_out_of_the_section() -> None:
    hostile = "<script>'\"&"
    told = replace(POINTS[0], name=hostile, sampler=hostile, blocks=((hostile, hostile),), change=hostile, yaml=hostile)
    goals = (Goal(name=hostile, maximise=True), Goal(name=hostile, maximise=False))
    repeated = Repeated(score=hostile, letters={"<": (hostile,)}, points=50, effects=(effect("< late", 0.2, 0.001),))
    view = SearchView(
        goals=goals, points=(told,), best=(hostile,), volumes={hostile: [0.5]}, anchors="anchors", repeated=repeated
    )
    assert "<script" not in section(view)
    assert figures(view)


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 390)], ids=["light", "dark phone"])
def test_the_page_shows_it_quietly_and_the_architecture_is_a_press_away(
    browser: Browser, make: Make, tmp_path: Path, dark: bool, width: int
) -> None:
    repeated = Repeated(score="accuracy", letters={"k": ("kda",)}, points=50, effects=(effect("k late", 0.2, 0.001),))
    write_page(tmp_path / "page.html", [make()], title="A search", tables=[], searched=replace(VIEW, repeated=repeated))
    browser.show(tmp_path / "page.html", dark=dark, width=width)
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    shown = "const yaml = document.querySelector('#search pre'); return yaml.checkVisibility();"
    assert not browser.run(shown)
    browser.run("document.querySelector('#search summary').click()")
    assert browser.run(shown)
    wide = (
        "const [yaml, table] = ['#search pre', '#search table'].map((one) => document.querySelector(one).clientWidth);"
    )
    assert browser.run(f"{wide} return yaml > 0.9 * table")
    assert browser.messages() == []
    assert (
        browser.run("return [...document.querySelectorAll('#contents button')].map((b) => b.textContent)").count(
            "Search"
        )
        == 1
    )


def test_a_page_of_no_search_has_no_such_section(make: Make) -> None:
    assert 'id="search"' not in page([make()], title="A", tables=[])
