"""The page's tools in a browser: its address, the legend of many, copies of figures, equal state, two side by side."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from recallmap.results.page.architecture_section import Detail
from recallmap.results.page.dashboard import write_page
from recallmap.results.record import Record
from recallmap.results.score_tables.scores import table_of
from recallmap.results.score_tables.table import MAD

Make = Callable[..., Record]
Browser = Any  # of conftest.py

REFUSED = (
    "Object.defineProperty(navigator, 'clipboard', { configurable: true,"
    " value: { writeText: async () => { throw new Error('no') } } })"
)
TAKEN = (
    "window.taken = []; Object.defineProperty(navigator, 'clipboard', { configurable: true,"
    " value: { writeText: async (text) => { taken.push(text) } } })"
)
PRESS = (
    "[...document.querySelectorAll('#' + arguments[0] + ' .choices button')]"
    ".find((one) => one.textContent.includes(arguments[1])).click()"
)


def type_in(browser: Browser, field: str, text: str, event: str = "input") -> None:
    browser.run(
        "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
        "field.dispatchEvent(new Event(arguments[2]))",
        field,
        text,
        event,
    )


def choose(browser: Browser, select: str, label: str) -> None:
    browser.run(
        "const select = document.getElementById(arguments[0]);"
        "select.value = [...select.options].find((one) => one.textContent === arguments[1]).value;"
        "select.dispatchEvent(new Event('change'))",
        select,
        label,
    )


@pytest.fixture(scope="module")
def pair(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two architectures of equal state and a small one, on two settings, with three seeds and their documents."""
    records = [
        make(
            arch=arch,
            dials={"pairs": pairs},
            seed=seed,
            score=score - pairs / 100 + seed / 1000,
            state_bytes=state,
            parameters=parameters,
            flops_per_token=2e6,
            curve={"step": [10, 20], "validation_accuracy": [0.1, score]},
        )
        for arch, score, state, parameters in (
            ("mesa", 0.9, 2000, 400),
            ("gla", 0.5, 1800, 100),
            ("=hawk", 0.4, 100, 100),
        )
        for pairs in (4, 8)
        for seed in range(3)
    ]
    yaml = {
        "mesa": "name: mesa\nwidth: 32\nstack:\n- kind: block\n  mixer: {kind: mesa, heads: 8, conv: true}\n",
        "gla": "name: gla\nwidth: 32\nstack:\n- kind: block\n  mixer:\n    kind: gla\n    heads: 8\n    conv: true\n",
    }
    details = {name: Detail(yaml=text, mixers={}) for name, text in yaml.items()}
    row = {"mixer": "mesa", "keys": "gaussian", "passes": 1, "chance": 0.25, "state_floats": 16, "load": 0.25}
    probed = [{**row, "arch": "mesa", "pairs": p, "recall": 1.0, "error": 0.1, "bounds": {"d_k": 16}} for p in (4, 8)]
    path = tmp_path_factory.mktemp("pair") / "page.html"
    write_page(path, records, title="Two", tables=table_of(records), details=details, probed=probed)
    return path


@pytest.fixture(scope="module")
def sixty(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty architectures; the last are the best."""
    records = [
        make(
            arch=f"arch{n:02d}",
            score=n / 70,
            state_bytes=32 * (n + 10),
            curve={"step": [10, 20], "validation_accuracy": [0.1, n / 70]},
        )
        for n in range(60)
    ]
    path = tmp_path_factory.mktemp("sixty") / "page.html"
    write_page(path, records, title="Sixty", tables=table_of(records))
    return path


def fresh(browser: Browser, page: Path) -> None:
    """Show a page as it opens; one that is already there is not loaded again."""
    if browser.driver.current_url.split("#")[0] != page.as_uri():
        return browser.show(page)
    browser.messages()
    browser.requests()
    return browser.run("now.picked = new Set(); history.replaceState(null, '', location.pathname); return goBack()")


# The address


def at(browser: Browser) -> dict[str, list[str]]:
    return parse_qs(browser.run("return location.hash.slice(1)"))


def test_what_is_chosen_is_in_the_address_and_one_can_go_back(browser: Browser, pair: Path) -> None:
    fresh(browser, pair)
    assert browser.run("return location.hash") == ""
    choose(browser, "view", "mqar: pairs 8")
    browser.run("document.querySelectorAll('#legend li')[1].querySelector('button').click()")
    type_in(browser, "find", "mes")
    browser.wait("return location.hash.includes('search')")
    browser.run("Plotly.relayout('state', { 'yaxis.range[0]': 0.25, 'yaxis.range[1]': 0.75 })")
    browser.wait("return now.zoom !== null")
    kept = at(browser)
    assert (kept["view"], kept["hidden"], kept["search"]) == (["mqar: pairs 8"], ["gla"], ["mes"])
    assert kept["y"] == ["0.25 to 0.75"]
    choices = (
        "return [views[now.view].label, [...now.hidden].map((a) => archs[a].name), now.search, now.zoom?.y ?? null,"
        " document.getElementById('view').value, document.getElementById('find').value]"
    )
    whole = browser.run(choices)
    browser.driver.refresh()
    browser.wait("return document.body.dataset.ready === 'true'")
    assert browser.run(choices) == whole == ["mqar: pairs 8", ["gla"], "mes", [0.25, 0.75], "1", "mes"]
    browser.run("history.back()")
    browser.wait("return now.zoom === null")
    browser.run("history.go(-2)")
    browser.wait("return now.hidden.size === 0")
    assert browser.run(choices) == ["mqar: pairs 8", [], "", None, "1", ""]
    browser.run("history.back()")
    browser.wait("return now.view === 0 && document.getElementById('view').value === '0'")
    browser.run("history.forward()")
    browser.wait("return now.view === 1")


def test_an_address_that_does_not_fit_is_kept_as_far_as_it_does_and_a_note_says_so(
    browser: Browser, pair: Path
) -> None:
    foreign = "view=mqar%3A+pairs+8&hidden=gla&hidden=<b>nobody&x=3+to+2&sort=key%ZZ&sort2&at=nowhere"
    fresh(browser, pair)
    assert browser.run("return document.getElementById('unfitting').checkVisibility()") is False
    browser.run("location.hash = arguments[0]", foreign)
    browser.wait("return now.view === 1 && document.getElementById('unfitting').checkVisibility()")
    said = browser.run("return document.getElementById('unfitting').textContent")
    assert "hidden “<b>nobody”" in said
    assert "x “3 to 2”" in said
    assert browser.run("return [[...now.hidden].map((a) => archs[a].name), now.zoom, now.sort.column]") == [
        ["gla"],
        None,
        "test",
    ]
    browser.run("document.getElementById('showall').click()")  # what is written next fits
    assert browser.run("return document.getElementById('unfitting').checkVisibility()") is False
    browser.run("location.hash = 'compare'")  # the section alone, as one writes it by hand
    browser.wait("return document.activeElement.closest('section')?.id === 'compare'")
    assert browser.run("return document.getElementById('unfitting').checkVisibility()") is False
    assert browser.messages() == []


# Copies


def test_each_figure_is_copied_as_a_link_yaml_csv_and_a_picture(browser: Browser, pair: Path) -> None:
    fresh(browser, pair)
    figures = browser.run(
        "return [...document.querySelectorAll('.js-plotly-plot')].map((one) => one.closest('section').id)"
    )
    menus = browser.run("return [...document.querySelectorAll('.menu')].map((one) => one.closest('section').id)")
    assert set(menus) == {*figures, "capacity", "tables", "compare"}
    browser.run("now.pair = ['mesa', 'gla']")
    browser.run(TAKEN)
    for section in menus:
        for choice in ("link", "YAML", "CSV"):
            browser.run(PRESS, section, choice)
    browser.wait(f"return taken.length === {3 * len(menus)}")
    link, yaml, text = browser.run("return taken.slice(0, 3)")
    assert link.startswith(pair.as_uri())
    assert parse_qs(link.split("#")[1]) == {
        "view": ["mqar: pairs 4"],
        "table": ["mqar"],
        "held": ["mqar"],
        "compare": ["mesa", "gla"],
        "at": ["recall"],
    }
    assert "# mesa\nname: mesa\nwidth: 32" in yaml
    assert yaml.count("\n---\n") == 2
    assert "# 1 architecture without a document on this page" in yaml
    rows = list(csv.DictReader(io.StringIO(text)))
    means = {row["architecture"]: row for row in rows if row["kind"] == "mean"}
    assert set(means) == {"mesa", "gla", "'=hawk"}  # no spreadsheet computes a name
    assert float(means["mesa"]["accuracy (share of 1)"]) == pytest.approx(0.861)
    assert means["mesa"]["state (bytes)"] == "2000"
    assert sum(row["kind"] == "trial" for row in rows) == 9
    for copied in browser.run("return taken.filter((_, i) => i % 3 === 2)"):
        lines = list(csv.reader(io.StringIO(copied)))
        assert len(lines) > 1
        assert {len(line) for line in lines} == {len(lines[0])}
    drawings = "document.querySelectorAll('#capacity svg[role=img]')"
    for picture in ("pictureOf('state')", f"pictureBelow([...{drawings}])"):
        assert browser.run(f"return {picture}.then((one) => one.slice(0, 22))") == "data:image/png;base64,"
    browser.run("pick([trials.arch.findIndex((a) => archs[a].name === 'gla')])")
    browser.run(PRESS, "strengths", "YAML")
    browser.wait(f"return taken.length === {3 * len(menus) + 1}")
    assert browser.run("return taken.at(-1)").startswith("# gla\nname: gla")
    assert browser.messages() == []
    assert set(browser.requests()) <= {pair.as_uri()}


def test_where_no_clipboard_is_given_the_text_can_be_selected(browser: Browser, pair: Path) -> None:
    fresh(browser, pair)
    browser.run(REFUSED)
    browser.run("document.querySelector('#recall .menu > button').focus()")
    browser.key("Enter")
    assert browser.run("return document.activeElement.textContent") == "Copy link to this"
    browser.key("ArrowDown")
    browser.key("ArrowDown")
    browser.key("Enter")
    browser.wait("return document.getElementById('copybox').open")
    browser.run("pick([0])")
    box = "const box = document.getElementById('copytext'); return [box.value.slice(0, 17), box.selectionEnd > 99]"
    assert browser.run(box) == ["kind,architecture", True]
    browser.run("document.getElementById('closecopy').click()")
    assert browser.run("return [document.getElementById('copybox').open, now.picked.size]") == [False, 1]


# Two side by side


def test_two_architectures_stand_side_by_side(browser: Browser, pair: Path) -> None:
    fresh(browser, pair)
    type_in(browser, "one", "mesa", "change")
    type_in(browser, "other", "gl", "change")  # a part that one name has
    assert at(browser)["compare"] == ["mesa", "gla"]
    lines = browser.run(
        "return [...document.querySelectorAll('#pairlines tbody tr')].map((line) => [...line.cells].map((c) => c.textContent))"
    )
    assert [line for line in lines if line[0].startswith("−")] == [
        ["− name: mesa", "+ name: gla"],
        ["−     kind: mesa", "+     kind: gla"],
    ]  # however the documents are folded
    cells = (
        "return [...document.querySelectorAll(arguments[0])].map((line) => [...line.cells].map((c) => c.textContent))"
    )
    assert ["parameters", "400", "100", "× 4.00"] in browser.run(cells, "#paircost tbody tr")
    scores = browser.run(cells, "#pairscores tbody tr")
    assert scores[0] == ["mqar: pairs 4", "86.1 % ± 0.2 %", "46.1 % ± 0.2 %", "+40.0 % ± 0.4 %"]
    assert [line[0] for line in scores][:2] == ["mqar: pairs 4", "mqar: pairs 8"]
    browser.run("document.getElementById('swap').click()")
    assert browser.run(cells, "#pairscores tbody tr")[0][3] == "−40.0 % ± 0.4 %"
    type_in(browser, "other", "nobody", "change")
    assert browser.run("return document.getElementById('pair').checkVisibility()") is False
    assert "“nobody”" in browser.run("return document.getElementById('pairmissed').textContent")


# Equal state


DRAWN = (
    "const [trace] = document.getElementById('equalplot').data;"
    "return trace.y.map((y, i) => [document.getElementById('equalplot').layout.yaxis.ticktext[i], trace.x[i]])"
)


def test_architectures_are_compared_at_equal_state(browser: Browser, pair: Path) -> None:
    fresh(browser, pair)
    assert browser.run(DRAWN) == [["mesa", pytest.approx(0.861)], ["gla", pytest.approx(0.461)]]
    browser.run("document.querySelectorAll('#legend li')[2].querySelector('button').click()")
    browser.wait(f"return (() => {{ {DRAWN} }})().length === 1")


# Many architectures


def test_of_sixty_architectures_eight_are_in_colour_and_named(browser: Browser, sixty: Path) -> None:
    browser.show(sixty)
    best = [f"arch{n}" for n in range(52, 60)]
    lit = "return [...lit.keys()].map((a) => archs[a].name).sort()"
    assert browser.run(lit) == best
    assert len(set(browser.run("return [...lit.values()]"))) == 8
    listed = "return [...document.querySelectorAll('#legend li span')].map((one) => one.textContent)"
    assert browser.run(listed) == best
    named = "return document.getElementById('curves').layout.annotations.filter((one) => one.x === 1).map((one) => one.text)"
    assert browser.run(named) == best[::-1]
    means = "document.getElementById('state').data.filter((t) => t.meta === 'means')"
    grey = f"return {means}.filter((t) => t.marker.color === ink('faint')).length"
    assert browser.run(grey) == 52
    browser.run("document.getElementById('unfold').click()")
    assert len(browser.run(listed)) == 60
    type_in(browser, "find", "ARCH0")
    assert browser.run(listed) == [f"arch{n:02d}" for n in range(10)]
    assert browser.run(lit) == [f"arch{n:02d}" for n in range(2, 10)]
    browser.run("document.getElementById('these').click()")
    assert browser.run("return [now.hidden.size, archs.length]") == [50, 60]
    type_in(browser, "find", "")
    browser.run("document.getElementById('shownone').click()")
    assert browser.run("return now.hidden.size") == 60
    assert at(browser)["hide"] == ["all"]
    browser.run("document.getElementById('showall').click()")
    assert browser.run("return now.hidden.size") == 0
    browser.run("document.querySelector('#legend .star').click()")  # of the first listed: from grey to in colour
    assert browser.run("return now.lit.map((a) => archs[a].name)")[-1] == "arch00"
    states = browser.run("return [...document.getElementById('equalstate').options].map((one) => one.value)")
    browser.run(
        "const select = document.getElementById('equalstate'); select.value = arguments[0];"
        "select.dispatchEvent(new Event('change'))",
        states[0],
    )
    assert at(browser)["state"] == [states[0]] == ["320"]
    scores = [score for _, score in browser.run(DRAWN)]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 6  # 320 to 480 bytes
    assert browser.messages() == []


def test_a_double_click_in_the_legend_shows_one_alone_and_another_shows_all(browser: Browser, pair: Path) -> None:
    fresh(browser, pair)
    x, y = browser.run(
        "const item = [...document.querySelectorAll('#legend button')].find((one) => one.textContent.includes('mesa'));"
        "item.scrollIntoView({ block: 'center' }); const box = item.getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]"
    )
    hidden = "return [...now.hidden].map((a) => archs[a].name).sort()"
    for wanted in (["=hawk", "gla"], []):
        for count in (1, 2):
            for kind in ("mousePressed", "mouseReleased"):
                browser.driver.execute_cdp_cmd(
                    "Input.dispatchMouseEvent", {"x": x, "y": y, "button": "left", "clickCount": count, "type": kind}
                )
        assert browser.run(hidden) == wanted
    drawn = "return document.getElementById('heat').data[0].y.length"
    browser.run("document.querySelector('#legend button').click()")
    assert browser.run(drawn) == 2  # the heat map hides it too


# The whole page


def test_contents_lead_to_every_section_that_there_is(browser: Browser, pair: Path) -> None:
    fresh(browser, pair)
    visible = "[...document.querySelectorAll('main > section')].filter((one) => one.checkVisibility())"
    there = f"return {visible}.map((one) => one.id)"
    assert all(browser.run(f"return {visible}.map((one) => one.dataset.name ?? '')"))
    assert browser.run(
        "return [...document.querySelectorAll('#contents button')].map((one) => one.dataset.of)"
    ) == browser.run(there)
    browser.run("[...document.querySelectorAll('#contents button')].at(-1).click()")
    assert browser.run("return document.activeElement.closest('section').id") == browser.run(there)[-1]
    assert (
        browser.run("return document.getElementById('contents').getBoundingClientRect().top") == 0
    )  # it stays in view


def test_means_over_tasks_stay_in_view_and_their_axis_is_where_they_are(
    browser: Browser, make: Make, tmp_path: Path
) -> None:
    scores = {"mesa": 0.42, "gla": 0.38}
    records = [make(arch=arch, task=task, score=score) for arch, score in scores.items() for task in MAD]
    write_page(tmp_path / "page.html", records, title="MAD", tables=table_of(records))
    browser.show(tmp_path / "page.html", width=390)
    low, high = browser.run("return document.getElementById('state').layout.yaxis.range")
    assert 0.3 < low < 0.38 < 0.42 < high < 0.5
    assert "The axis is where the points are; chance is" in browser.run(
        "return document.getElementById('thinned').textContent"
    )
    first = browser.run("return document.getElementById('heat').layout.yaxis.ticktext[0]")
    seen = browser.run(
        "return ['#heatmean > :nth-child(2)', '#tables td.mean'].map((one) => {"
        " const part = document.querySelector(one); return [part.getBoundingClientRect().left < 350, part.textContent] })"
    )
    assert seen == [[True, f"{100 * scores[first]:.1f}"]] * 2
