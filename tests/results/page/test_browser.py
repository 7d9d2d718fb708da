"""The page in a browser: what is shown is what the ledger has, and a click finds a trial everywhere."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recallmap.results.analysis.published_figures import Column, Published, PublishedTable, Row
from recallmap.results.ledger import Ledger
from recallmap.results.page.architecture_section import Detail
from recallmap.results.page.dashboard import write_page
from recallmap.results.record import Record
from recallmap.results.score_tables.scores import table_of

Make = Callable[..., Record]
Browser = Any  # of conftest.py

# Pixels of a point of the first figure, and the trial that it is.
WHERE = """
const [name, number] = arguments, figure = document.getElementById("state");
figure.scrollIntoView({ block: "center" });
const trace = figure.data.find((one) => one.meta === "trials" && one.name === name);
const { xaxis, yaxis, _size } = figure._fullLayout, box = figure.getBoundingClientRect();
const x = box.x + _size.l + xaxis.c2p(trace.x[number]), y = box.y + _size.t + yaxis.c2p(trace.y[number]);
return [x, y, trace.customdata[number][0]];
"""

COUNTS = """
return [...document.querySelectorAll("#view option")].map((option, i) => {
  const select = document.getElementById("view");
  select.value = i;
  select.dispatchEvent(new Event("change"));
  const traces = document.getElementById("state").data.filter((one) => one.meta === "trials");
  const points = traces.reduce((sum, one) => sum + one.x.length, 0);
  return [option.textContent, points, document.querySelectorAll("#trials tbody tr").length];
}).filter(([, points]) => points);
"""


@pytest.fixture(scope="module")
def ledger(study: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ledger") / "study.sqlite"
    with Ledger(path) as ledger:
        ledger.merge(study)
    return path


@pytest.fixture(scope="module")
def page(ledger: Path) -> Path:
    path = ledger.with_name("page.html")
    records = Ledger.open(ledger).all()
    write_page(path, records, title="A study", tables=table_of(records))
    return path


def apart(make: Make, **rest: Any) -> list[Record]:
    """Trials far enough apart to be clicked."""
    rates = [{"lr": 1e-3}, {"lr": 1e-4}]
    return [
        make(
            arch=arch,
            score=score + n / 10,
            state_bytes=state,
            training=rates[n],
            curve={"step": [10, 20], "validation_accuracy": [0.1, score]},
            **rest,
        )
        for arch, score, state in (("mesa", 0.7, 60_000), ("gla", 0.3, 1000))
        for n in range(2)
    ]


@pytest.fixture
def few(make: Make, tmp_path: Path) -> Path:
    records = apart(make)
    write_page(tmp_path / "page.html", records, title="Few", tables=table_of(records))
    return tmp_path / "page.html"


@pytest.mark.parametrize(("dark", "width"), [(False, 1280), (True, 1280), (False, 390)], ids=["light", "dark", "phone"])
def test_a_page_is_quiet_and_has_as_many_points_as_finished_rows_in_the_ledger(
    browser: Browser, page: Path, ledger: Path, dark: bool, width: int
) -> None:
    browser.show(page, dark=dark, width=width)
    counts = browser.run(COUNTS)
    assert sum(points for _, points, _ in counts) == len(Ledger.open(ledger).keys())
    assert all(points == rows for _, points, rows in counts)
    assert len(counts) == 9
    assert browser.messages() == []
    assert browser.requests() == [page.as_uri()]
    assert browser.run("return performance.getEntriesByType('resource').length") == 0


def test_a_page_opens_with_its_first_figure_and_draws_others_when_they_come_near(browser: Browser, rich: Path) -> None:
    browser.show(rich, whole=False)
    drawn = "return [...document.querySelectorAll('.js-plotly-plot')].map((one) => one.closest('section').id)"
    assert "recall" in browser.run(drawn)
    assert "progress" not in browser.run(drawn)
    browser.run("document.getElementById('learning').scrollIntoView()")
    browser.wait(f"{drawn}.includes('learning')")
    browser.run("document.querySelector('#contents li:last-child button').click()")
    browser.wait(f"{drawn}.includes('progress')")
    top = "return Math.round(document.querySelector('main > section:last-child').getBoundingClientRect().bottom - innerHeight)"
    browser.wait(f"{top} <= 100")
    assert browser.messages() == []


def test_nothing_invites_to_share(browser: Browser, page: Path) -> None:
    browser.show(page)
    buttons = browser.run("return [...document.querySelectorAll('.modebar-btn')].map((b) => b.dataset.title)")
    assert buttons
    assert not [b for b in buttons if "hare" in b or "loud" in b or "plotly" in b.lower()]


def test_dark_and_light_are_drawn_in_their_own_colours(browser: Browser, page: Path) -> None:
    look = (
        "const style = getComputedStyle(document.body);"
        "return [style.backgroundColor, document.getElementById('state')._fullLayout.font.color,"
        " document.getElementById('state').data.find((t) => t.meta === 'means').marker.color]"
    )
    browser.show(page)
    light = browser.run(look)
    browser.show(page, dark=True)
    dark = browser.run(look)
    assert [a == b for a, b in zip(light, dark, strict=True)] == [False, False, False]
    scheme = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)  # and when the reader changes their mind
    browser.wait(f"{look.replace('return [', 'return JSON.stringify([')}) === JSON.stringify({json.dumps(light)})")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_never_wider_than_the_window(browser: Browser, page: Path, width: int) -> None:
    browser.show(page, width=width)
    assert browser.run("return document.documentElement.scrollWidth") <= width


def picked(browser: Browser) -> list[int]:
    return list(browser.run("return [...now.picked]"))


def highlighted(browser: Browser) -> dict[str, Any]:
    return dict(
        browser.run(
            """
            const curves = document.getElementById("curves").data.filter((one) => one.meta === "picked");
            return {
              curves: curves.map((one) => [one.name, one.customdata[0][0]]),
              trials: [...document.querySelectorAll("#trials tr.picked")].map((line) => Number(line.dataset.trial)),
              rows: [...document.querySelectorAll("#tables tr.picked th")].map((cell) => cell.textContent),
              ring: document.getElementById("state").data.at(-1).x.length,
              words: document.getElementById("picked").textContent,
            };"""
        )
    )


def test_a_click_on_a_point_finds_its_curve_and_its_rows(browser: Browser, few: Path) -> None:
    browser.show(few)
    x, y, trial = browser.run(WHERE, "mesa", 0)  # not of the chosen learning rate
    browser.click(x, y)
    browser.wait("return now.picked.size > 0")
    browser.wait("return document.getElementById('curves').data.some((one) => one.meta === 'picked')")
    assert picked(browser) == [trial]
    assert highlighted(browser) == {
        "curves": [["mesa", trial]],
        "trials": [trial],
        "rows": [],  # the score table rests on the other learning rate
        "ring": 1,
        "words": "Picked: mesa, seed 0: test 70.0 %Clear",
    }
    browser.key("Escape")
    browser.wait("return now.picked.size === 0")
    assert highlighted(browser) == {"curves": [], "trials": [], "rows": [], "ring": 0, "words": ""}


def test_a_row_of_the_score_table_finds_its_trials(browser: Browser, few: Path) -> None:
    browser.show(few)
    browser.run("document.querySelector('#tables tr[data-line=\"1\"]').focus()")
    browser.key("Enter")
    browser.wait("return now.picked.size > 0")
    found = highlighted(browser)
    assert found["rows"] == ["gla"]
    assert found["curves"] == [["gla", found["trials"][0]]]


def test_a_row_of_the_trials_finds_its_point(browser: Browser, few: Path) -> None:
    browser.show(few)
    browser.run("document.querySelector('#trials tbody tr').click()")
    browser.wait("return now.picked.size > 0")
    found = highlighted(browser)
    assert (found["rows"], found["ring"]) == (["mesa"], 1)
    assert found["words"] == "Picked: mesa, seed 0: test 80.0 %Clear"


def test_a_cell_of_the_heat_map_finds_its_trials(browser: Browser, few: Path) -> None:
    browser.show(few)
    x, y = browser.run(
        "const figure = document.getElementById('heat'); figure.scrollIntoView({ block: 'center' });"
        "const { xaxis, yaxis, _size } = figure._fullLayout, box = figure.getBoundingClientRect();"
        "return [box.x + _size.l + xaxis.c2p(0), box.y + _size.t + yaxis.c2p(1) + 10]"
    )
    browser.click(x, y)
    browser.wait("return now.picked.size > 0")
    assert highlighted(browser)["rows"] == ["gla"]


def test_tables_are_sorted_from_their_headings_with_the_keyboard(browser: Browser, page: Path) -> None:
    browser.show(page)
    order = "return [...document.querySelectorAll('#tables table')[0].tBodies[0].rows].map((line) => line.cells[0].textContent)"
    press = "document.querySelectorAll('#tables table')[0].querySelectorAll('thead button')[arguments[0]].focus()"
    first = browser.run(order)
    browser.run(press, 0)
    browser.key("Enter")
    assert browser.run(order) == sorted(first)
    browser.key("Enter")
    assert browser.run(order) == sorted(first, reverse=True)
    assert browser.run("return document.querySelector('#tables th').getAttribute('aria-sort')") == "descending"
    browser.run(press, 9)  # the mean, best first
    browser.key("Enter")
    assert browser.run(order) == first


def test_a_click_in_the_legend_hides_an_architecture_everywhere(browser: Browser, few: Path) -> None:
    browser.show(few)
    browser.run("document.querySelector('#legend button').click()")
    browser.wait("return document.getElementById('state').data.every((one) => one.name !== 'gla')")
    assert browser.run("return document.getElementById('curves').data.map((one) => one.name)") == ["mesa"]
    assert browser.run("return document.querySelectorAll('#trials tbody tr').length") == 2


def test_the_front_goes_through_those_that_are_shown(browser: Browser, few: Path) -> None:
    browser.show(few)
    front = "return document.getElementById('state').data.find((t) => t.meta === 'front').y.length - 1"
    assert browser.run(front) == 2
    browser.run("document.querySelectorAll('#legend button')[0].click()")
    browser.wait(f"{front.replace('return', 'return 1 ===')}")


def test_an_unknown_state_is_drawn_and_on_no_front(browser: Browser, make: Make, tmp_path: Path) -> None:
    vague = {"kind": "module", "of": "my:Layer", "state": "unknown", "code": "my.py+12"}
    stack = {"stack": [{"kind": "block", "mixer": vague}]}
    records = [make(arch="mesa", score=0.5, state_bytes=60_000), make(arch="gla", score=0.3, state_bytes=1000)]
    records.append(make(arch="vague", score=0.9, state_bytes=500, arch_dials=stack))
    write_page(tmp_path / "page.html", records, title="Vague", tables=table_of(records))
    browser.show(tmp_path / "page.html")
    drawn = "return document.getElementById('state').data.filter((t) => t.meta === '{}').flatMap((t) => t.{})"
    assert browser.run(drawn.format("front", "y"))[:2] == [0.3, 0.5]
    (text,) = (text for text in browser.run(drawn.format("means", "text")) if "vague" in text)
    assert "state unknown, drawn at the tokens read again, 500 B" in text
    assert "on no front" in text


def test_sizes_and_rates_are_sorted_as_numbers(browser: Browser, few: Path) -> None:
    browser.show(few)
    order = "return arguments[0].sort(natural)"
    assert browser.run(order, ["1.4 MB", "5.12 kB", "512 B", "1–4 kB"]) == ["512 B", "1–4 kB", "5.12 kB", "1.4 MB"]
    assert browser.run(order, ["lr 0.001", "lr 0.0005", "lr 1e-05"]) == ["lr 1e-05", "lr 0.0005", "lr 0.001"]


def test_a_choice_of_one_is_not_offered(browser: Browser, few: Path) -> None:
    browser.show(few)
    seen = "return [...document.querySelectorAll('select')].map((one) => one.checkVisibility())"
    assert browser.run(seen) == [False] * 4


def test_a_state_that_grows_is_told_apart(browser: Browser, make: Make, tmp_path: Path) -> None:
    records = [make(), make(arch="attention", state_grows=True, length=64)]
    write_page(tmp_path / "page.html", records, title="Growing", tables=table_of(records))
    browser.show(tmp_path / "page.html")
    symbols = (
        "const means = document.getElementById('state').data.filter((one) => one.meta === 'means');"
        "return Object.fromEntries(means.map((one) => [one.name, one.marker.symbol]))"
    )
    assert browser.run(symbols) == {"mesa": "circle", "attention": "diamond"}
    legend = browser.run("return [...document.querySelectorAll('#legend button')].map((b) => b.textContent)")
    assert legend == ["◆attentiongrows; here after 64 tokens", "●mesa"]


def test_lines_join_what_differs_in_its_size_alone(browser: Browser, make: Make, tmp_path: Path) -> None:
    records = [
        make(arch_dials={"width": width, "beyond": beyond}, state_bytes=10 * width, score=score)
        for width, beyond, score in ((32, "norm", 0.4), (64, "sign", 0.1), (96, "norm", 0.8))
    ]
    write_page(tmp_path / "page.html", records, title="Sizes", tables=table_of(records))
    browser.show(tmp_path / "page.html")
    paths = browser.run(
        "const lines = document.getElementById('state').data.filter((one) => one.meta === 'path');"
        "return lines.map((one) => [[...one.x], [...one.y]])"
    )
    assert paths == [[[320, 960], [0.4, 0.8]]]


@pytest.fixture(scope="module")
def rich(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs, windows and seeds that vary, beside a paper and the probe."""
    records = [
        make(
            arch_dials={"window": w},
            dials={"pairs": p},
            seed=s,
            score=min(1.0, w / p + s / 100),
            state_bytes=1000 * w,
            curve={"step": [10, 20], "validation_accuracy": [0.1, 0.5]},
        )
        for w in (2, 4)
        for p in (4, 8)
        for s in range(5)
    ]
    paper = PublishedTable(
        about="mqar",
        where="Table 1",
        columns=(Column(name="one", tasks=("mqar",), dials={"pairs": 4}),),
        rows=(Row(arch="mesa", dials={"window": 2}, values=(0.75,)),),
    )
    row = {"mixer": "mesa", "keys": "gaussian", "passes": 1, "chance": 0.25, "state_floats": 16, "load": 0.25}
    probed = [
        {**row, "arch": "mesa window=4", "pairs": p, "recall": 1.0, "error": 0.1, "bounds": {"d_k": 16}} for p in (4, 8)
    ]
    details = {"mesa window=4": Detail(yaml="name: mesa\n", mixers={"mesa": ("2 d_k", "S = k v^T")})}
    path = tmp_path_factory.mktemp("rich") / "page.html"
    paper_of = Published(name="p", source="A paper", tables=(paper,))
    write_page(path, records, title="R", tables=table_of(records), beside=[paper_of], probed=probed, details=details)
    return path


TRACES = "return Object.fromEntries(document.getElementById(arguments[0]).data.filter((t) => t.meta === arguments[1])"


def test_the_front_has_its_band_and_published_points_are_outlined(browser: Browser, rich: Path) -> None:
    browser.show(rich)
    marks = "const marks = document.getElementById('state').data.find((t) => t.meta === 'published');"
    assert browser.run(f"{marks} return [marks.x, marks.y, marks.marker.symbol]") == [[2000], [0.75], ["circle-open"]]
    band = "const [low, high] = document.getElementById('state').data.filter((t) => t.meta === 'band');"
    low, high = browser.run(f"{band} return [low.y, high.y]")
    assert len(low) == len(high) == 3
    assert all(a <= b for a, b in zip(low, high, strict=True))
    assert browser.run(f"{band} return [low.fill, high.fill]") == ["none", "tonexty"]


def test_what_is_held_stands_beside_the_probe_and_theory(browser: Browser, rich: Path) -> None:
    browser.show(rich)
    held = {
        meta: browser.run(f"{TRACES}.map((t) => [t.name, t.x.map((x, i) => [x, t.y[i]])]))", "held", meta)
        for meta in ("trained", "trained90", "probed", "bound")
    }
    assert held == {
        "trained": {"mesa": [[2000, 2], [4000, 4]]},  # at half of the fewest stands what holds not even those
        "trained90": {"mesa": [[2000, 2], [4000, 4]]},
        "probed": {"mesa": [[4000, 8]]},
        "bound": {"mesa": [[4000, 16]]},
    }


def test_scores_by_option_are_chosen_and_clicked(browser: Browser, rich: Path) -> None:
    browser.show(rich)
    assert browser.run("return [...document.querySelectorAll('#cut option')].map((o) => o.value)") == [
        "accuracy by pairs",
        "accuracy by window",
    ]
    browser.run(
        "const cut = document.getElementById('cut'); cut.value = 'accuracy by window';"
        "cut.dispatchEvent(new Event('change'))"
    )
    browser.wait("return document.getElementById('cutplot').layout.xaxis.title.text === 'window'")
    x, y, trials = browser.run(
        "const figure = document.getElementById('cutplot'); figure.scrollIntoView({ block: 'center' });"
        "const trace = figure.data.find((t) => t.meta === 'cut');"
        "const { xaxis, yaxis, _size } = figure._fullLayout, box = figure.getBoundingClientRect();"
        "return [box.x + _size.l + xaxis.c2p(0), box.y + _size.t + yaxis.c2p(trace.y[0]), trace.customdata[0]]"
    )
    browser.click(x, y)
    browser.wait("return now.picked.size > 0")
    assert picked(browser) == trials
    assert highlighted(browser)["rows"] == ["mesa window=2"]


def test_the_architecture_of_what_is_picked_is_a_press_away(browser: Browser, rich: Path) -> None:
    browser.show(rich)
    browser.run("document.querySelector('#tables tr[data-line=\"1\"]').click()")
    browser.wait("return now.picked.size > 0")
    browser.run(
        "[...document.querySelectorAll('#picked button')].find((b) => b.textContent === 'Architecture').click()"
    )
    assert browser.run(
        "return [document.querySelector('details[data-row]').open, document.activeElement.textContent]"
    ) == [
        True,
        "mesa window=4",
    ]


def test_rows_are_filtered_by_words_in_all_tables(browser: Browser, rich: Path) -> None:
    browser.show(rich)
    browser.run(
        "const field = document.querySelector('.filter'); field.value = 'Window=4 0.001';"
        "field.dispatchEvent(new Event('input'))"
    )
    shown = "return [...document.querySelectorAll('#trials tbody tr')].map((line) => line.cells[0].textContent)"
    assert browser.run(shown) == ["mesa window=4"] * 5
    browser.run(
        "const field = document.querySelector('.filter'); field.value = 'window=4';"
        "field.dispatchEvent(new Event('input'))"
    )
    rows = "return [...document.querySelectorAll('#tables tr[data-line]')].map((line) => line.checkVisibility())"
    assert browser.run(rows) == [False, True]
    assert browser.run("return document.querySelectorAll('.filter')[1].value") == "window=4"


def test_progress_ends_at_what_the_front_dominates(browser: Browser, rich: Path) -> None:
    browser.show(rich)
    volume = browser.run("return document.getElementById('progressplot').data[0].y")
    assert volume == sorted(volume)
    assert 0 < volume[-1] <= 1
    assert browser.run("return document.querySelector('#dials th').textContent") == "window"


def test_what_is_picked_is_framed_in_the_heat_map_and_dark_among_the_held(browser: Browser, rich: Path) -> None:
    browser.show(rich)
    framed = "return document.getElementById('heat').layout.shapes.filter((s) => s.name === 'picked').map((s) => s.y0 + 0.44)"
    tints = (
        "return document.getElementById('held').data.find((t) => t.meta === 'trained').marker.color"
        ".map((tint) => tint === ink('ink'))"
    )
    assert (browser.run(framed), browser.run(tints)) == ([], [False, False])
    browser.run("document.querySelector('#tables tr[data-line=\"1\"]').click()")
    browser.wait(f"return (() => {{ {framed} }})().length > 0")
    assert browser.run(framed) == pytest.approx([1, 1])  # two settings, of the second row
    assert browser.run(tints) == [False, True]


def test_each_figure_has_its_key(browser: Browser, few: Path, rich: Path) -> None:
    browser.show(few)
    words = "return [...document.querySelectorAll(`#${arguments[0]} li`)].map((one) => one.textContent)"
    assert browser.run(words, "curvekey") == ["● ── gla", "● ── mesa"]
    browser.run("document.querySelector('#legend button').click()")
    browser.wait("return document.querySelectorAll('#curvekey li').length === 1")
    browser.show(rich)
    assert browser.run(words, "heldkey") == ["● mesa"]


def test_a_name_keeps_off_the_front_where_there_is_room(browser: Browser, make: Make, tmp_path: Path) -> None:
    """The front runs above the mark of the larger gla, where its name would stand first."""
    records = [
        make(arch="gla", arch_dials={"width": 32}, state_bytes=4600, score=0.9),
        make(arch="gla", arch_dials={"width": 33}, state_bytes=4900, score=0.88),
        make(arch="mesa", state_bytes=12_800, score=0.97),
    ]
    write_page(tmp_path / "page.html", records, title="Names", tables=table_of(records))
    browser.show(tmp_path / "page.html")
    name, front = browser.run(
        "const figure = document.getElementById('state'), { yaxis, _size } = figure._fullLayout;"
        "const text = [...figure.querySelectorAll('text')].find((one) => one.textContent.trim() === 'gla');"
        "const { top, bottom } = text.getBoundingClientRect();"
        "return [[top, bottom], figure.getBoundingClientRect().y + _size.t + yaxis.c2p(0.9)]"
    )
    assert not name[0] < front < name[1]


def test_references_are_never_written_over_each_other(browser: Browser, make: Make, tmp_path: Path) -> None:
    close = {"2-gram": 0.826, "3-gram": 0.932, "4-gram": 0.95, "5-gram": 0.952, "known states": 0.986, "1-gram": 0.49}
    records = [make(references=close, score=0.7), make(references=close, arch="gla", score=0.5, state_bytes=500)]
    write_page(tmp_path / "page.html", records, title="References", tables=[])
    boxes = (
        "return [...document.querySelectorAll('#state .annotation-text')].map((one) => [one.textContent,"
        " one.getBoundingClientRect().top, one.getBoundingClientRect().bottom]).sort((a, b) => a[1] - b[1])"
    )
    for width in (1280, 390):
        browser.show(tmp_path / "page.html", width=width)
        found = browser.run(boxes)
        assert all(a[2] <= b[1] + 1 for a, b in itertools.pairwise(found))
        said = " ".join(text for text, _, _ in found) + " "
        assert (
            browser.run(
                "return Math.max(...[...document.querySelectorAll('#state .annotation-text')]"
                ".map((one) => one.getBoundingClientRect().right))"
            )
            < width
        )
        assert all(f"{name} " in said for name in (*close, "chance", "ceiling"))


def test_curves_of_the_probe_are_legible_on_a_phone(browser: Browser, rich: Path) -> None:
    browser.show(rich, width=390)
    texts = (
        "return [...document.querySelectorAll('#capacity svg text')].map((one) => one.getBoundingClientRect().height)"
    )
    assert min(browser.run(texts)) > 11
    wide = (
        "return [...document.querySelectorAll('#capacity figure')].every((one) => one.scrollWidth <= one.clientWidth)"
    )
    assert browser.run(wide)


# By keyboard

FOCUS = "const at = document.activeElement; return at.dataset.trial ?? at.dataset.line ?? at.textContent"


def test_a_table_is_one_stop_and_arrows_go_through_its_rows(browser: Browser, page: Path) -> None:
    browser.show(page)
    stops = "return document.querySelectorAll(`#${arguments[0]} tr[tabindex='0']`).length"
    assert browser.run("return document.querySelectorAll('#tables table').length") == browser.run(stops, "tables")
    assert browser.run(stops, "trials") == 1
    browser.run("document.querySelector('#tables tr[tabindex=\"0\"]').focus()")
    seen = []
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "End", "ArrowDown", "Home"):
        browser.key(key)
        seen.append(browser.run(FOCUS))
    assert seen == ["1", "2", "1", "5", "5", "0"]
    assert browser.run(stops, "trials") == 1


def test_what_is_pressed_by_key_keeps_the_keyboard(browser: Browser, few: Path) -> None:
    browser.show(few)
    browser.run("document.querySelector('#trials tr[tabindex=\"0\"]').focus()")
    browser.key("ArrowDown")
    trial = browser.run(FOCUS)
    browser.key("Enter")
    browser.wait("return now.picked.size > 0")
    assert (browser.run(FOCUS), picked(browser)) == (trial, [int(trial)])
    browser.key("ArrowUp")
    assert browser.run(FOCUS) != trial
    browser.run("document.querySelectorAll('#legend button')[1].focus()")
    browser.key("Enter")
    browser.wait("return now.hidden.size > 0")
    assert browser.run(FOCUS) == "●mesa"


def test_a_filter_leaves_a_row_to_enter_a_table_by(browser: Browser, few: Path) -> None:
    browser.show(few)
    browser.run(
        "const field = document.querySelector('.filter'); field.value = 'gla';field.dispatchEvent(new Event('input'))"
    )
    entered = "return [...document.querySelectorAll('tr[tabindex=\"0\"]')].map((line) => line.checkVisibility())"
    assert browser.run(entered) == [True, True]


# While the study runs


def test_a_watched_page_takes_up_what_is_new_and_keeps_what_is_chosen(
    browser: Browser, make: Make, tmp_path: Path
) -> None:
    path, first = tmp_path / "page.html", [r for p in (4, 8) for r in apart(make, dials={"pairs": p})]

    def write(records: list[Record]) -> None:
        write_page(path, records, title="Running", tables=table_of(records), again=1)

    write(first)
    browser.show(path)
    browser.run("const v = document.getElementById('view'); v.value = 1; v.dispatchEvent(new Event('change'))")
    browser.run("document.querySelector('#legend button').click()")
    write([*first, make(arch="new", dials={"pairs": 8}, score=0.6)])
    browser.wait("return document.body.dataset.ready === 'true' && archs.length === 3")
    assert browser.run("return views[now.view].label") == "mqar: pairs 8"
    assert browser.run("return [...now.hidden].map((a) => archs[a].name)") == ["gla"]
    assert browser.run("return document.getElementById('view').value") == "1"


def test_a_watched_page_stays_while_something_is_picked(browser: Browser, make: Make, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", apart(make), title="Running", tables=[], again=1)
    browser.show(tmp_path / "page.html")
    browser.run("pick([0]); lookAgain()")
    assert browser.run("return [now.picked.size, location.hash]") == [1, ""]


def test_a_page_without_trials_opens(browser: Browser, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", [], title="None", tables=[])
    browser.driver.get((tmp_path / "page.html").as_uri())
    assert "nothing has been trained" in browser.run("return document.body.textContent")
