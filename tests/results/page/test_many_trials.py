"""Pages of very many trials: every trial is in a mark and can be reached, and page and figures stay small."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recallmap.results.analysis import labels
from recallmap.results.analysis import measures as measuring
from recallmap.results.analysis.breakdown import by_dials, by_settings
from recallmap.results.analysis.labels import differing
from recallmap.results.analysis.measures import answers, measures
from recallmap.results.page import thinning
from recallmap.results.page.architecture_section import Detail
from recallmap.results.page.dashboard import packed, page, write_page
from recallmap.results.page.figure_data import figures
from recallmap.results.page.thinning import MOST_LINES, MOST_MEANS, MOST_ROWS, MOST_VALUES
from recallmap.results.record import Record
from recallmap.results.score_tables.scores import table_of

Make = Callable[..., Record]
Browser = Any  # of conftest.py

MEGABYTE = 1_000_000
MANY = 1500  # of page/figures.js
SKILLS = {f"arch{n}": 0.1 + 0.08 * n for n in range(11)}


def crowd(make: Make, count: int, **rest: Any) -> list[Record]:
    """Trials of one setting: eleven architectures, four learning rates, and seeds."""
    rng = np.random.default_rng(0)
    records = []
    for number in range(count):
        arch, skill = list(SKILLS.items())[number % len(SKILLS)]
        score = float(np.clip(skill + rng.normal(0, 0.05), 0, 1))
        records.append(
            make(
                arch=arch,
                seed=number // 44,
                training={"lr": (1e-4, 3e-4, 1e-3, 3e-3)[number // 11 % 4]},
                score=score,
                validation=score,
                state_bytes=1000 * 2 ** (number % len(SKILLS)),
                created=f"2026-01-01T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}+00:00",
                curve={"step": [250, 500, 750, 1000], "validation_accuracy": [0.1, score / 2, score / 1.5, score]},
                **rest,
            )
        )
    return records


def searched(make: Make, count: int) -> list[Record]:
    """Trials of a search: every one has an architecture of its own."""
    rng = np.random.default_rng(0)
    return [
        make(
            arch=f"arch{n % 4}",
            arch_dials={"width": 8 + n, "window": int(rng.integers(1, 9))},
            training={"lr": float(10 ** rng.uniform(-4, -2))},
            score=float(rng.uniform(0.2, 1)),
            state_bytes=int(1000 * 2 ** rng.uniform(0, 8)),
            curve={"step": [10, 20], "validation_accuracy": [0.1, 0.5]},
        )
        for n in range(count)
    ]


# What the page's data holds


def test_a_page_of_very_many_architectures_shows_the_best_and_says_so(make: Make) -> None:
    records = searched(make, 2000)
    names = set(labels.row_names(records).values())
    details = {row: Detail(yaml="name: a\n" * 100, mixers={}) for row in names}
    text = page(records, title="A search", tables=table_of(records), details=details)
    assert len(names) == 2000
    assert len(text.encode()) < 9 * MEGABYTE
    assert text.count("<details data-row=") == text.count("data-line=") == MOST_ROWS
    assert "The best 200 of 2,000 architectures by the last column" in text
    assert "Here are those of the tables above, 200 of 2,000." in text


def test_the_rows_that_a_table_keeps_are_its_best_in_their_order(make: Make) -> None:
    (table,) = table_of(searched(make, 300))
    short = thinning.rows(table)
    kept = [line.cells[-1].mean or 0.0 for line in short.lines if line.kind == "measured"]
    every = [line.cells[-1].mean or 0.0 for line in table.lines if line.kind == "measured"]
    assert sorted(kept) == sorted(every)[-MOST_ROWS:]
    assert [line for line in table.lines if line in short.lines] == list(short.lines)
    assert [line for line in short.lines if line.kind != "measured"] == [x for x in table.lines if x.kind != "measured"]
    assert thinning.rows(table_of(searched(make, 20))[0]) == table_of(searched(make, 20))[0]


def test_the_rows_that_a_table_of_losses_keeps_are_the_lowest(make: Make) -> None:
    records = [make(arch=f"a{n}", score=0.5, metric="mse") for n in range(300)]
    for n, record in enumerate(records):
        record.scores["mse"] = record.validation["mse"] = (n * 7 % 300) / 100
    short = thinning.rows(table_of(records)[0])
    kept = [line.cells[-1].mean for line in short.lines if line.kind == "measured"]
    assert max(mean for mean in kept if mean is not None) == pytest.approx(1.99)


def test_of_very_many_means_the_front_and_the_best_of_each_architecture_are_kept(make: Make) -> None:
    records = searched(make, 1000)
    (view,) = figures(records, [])["views"]
    assert (len(view["means"]), view["of"]) == (MOST_MEANS, 1000)
    assert {mean["arch"] for mean in view["means"]} == {0, 1, 2, 3}
    best, front = -1.0, []
    for record in sorted(records, key=lambda r: (r.state_bytes, -(r.score or 0))):
        if (record.score or 0) > best:
            best = record.score or 0
            front.append((record.state_bytes, round(best, 6)))
    assert set(front) <= {(mean["state"], mean["mean"]) for mean in view["means"]}
    assert len(view["trials"]) == 1000  # each is still a small mark


def test_foremost_are_the_best_of_every_family_first() -> None:
    items = [("a", 9), ("a", 8), ("a", 7), ("b", 1), ("c", 5), ("c", 6)]
    of: dict[str, Any] = {"family": lambda one: one[0], "worth": lambda one: one[1]}
    assert thinning.foremost(items, 3, **of) == [("a", 9), ("b", 1), ("c", 6)]
    assert thinning.foremost(items, 4, **of) == [("a", 9), ("a", 8), ("b", 1), ("c", 6)]
    assert thinning.foremost(items, 6, **of) == items


def test_very_many_curves_are_means_with_their_intervals(make: Make) -> None:
    def learner(arch: str, seed: int, end: float) -> Record:
        return make(arch=arch, seed=seed, score=end, curve={"step": [10, 20], "validation_accuracy": [0.0, end]})

    records = [learner("a", seed, 0.4 + 0.2 * (seed % 2)) for seed in range(400)]
    records += [make(arch="a", seed=400, score=0.5, curve={"step": [10], "validation_accuracy": [0.0]})]  # pruned
    data = figures(records, [])
    (curve,) = data["curves"]
    assert data["views"][0]["curves"] == [[0, 0, 0]]
    assert (curve["steps"], curve["mean"], curve["count"]) == ([10, 20], [0.0, 0.5], 400)
    assert curve["half"] == [0.0, pytest.approx(1.966 * 0.1 / 20, abs=5e-4)]
    assert "curves" not in figures(records[:300], [])["views"][0]


def test_figures_have_no_more_lines_and_values_than_can_be_read(make: Make) -> None:
    records = [make(arch=f"a{n}", dials={"pairs": p}, score=n / 200) for n in range(150) for p in (4, 8)]
    cut = figures(records, [])["views"][0]["cuts"][0]
    assert (len(cut["lines"]), cut["of"]) == (MOST_LINES, 150)
    assert min(line["y"][0] for line in cut["lines"]) == 0.25  # the best
    wide = figures([make(arch_dials={"window": n}, score=n / 200) for n in range(1, 200)], [])["views"][0]["cuts"][0]
    assert len(wide["x"]) <= MOST_VALUES
    assert wide["x"][0] == "1-20"
    assert sum(len(own) for own in wide["lines"][0]["trials"]) == 199


def test_what_parts_of_the_data_share_is_written_once(make: Make) -> None:
    records = [make(arch=a, dials={"pairs": p}, seed=s, score=0.5) for a in "ab" for p in (4, 8, 16) for s in range(4)]
    data = figures(records, table_of(records))
    whole = packed(data)

    def unpacked(trials: Any) -> Any:
        return [unpacked(own) for own in trials] if isinstance(trials, list) else list(whole["lists"][trials])

    for ours, theirs in zip(data["views"], whole["views"], strict=True):
        assert unpacked(theirs["trials"]) == ours["trials"]
        assert [unpacked(mean["trials"]) for mean in theirs["means"]] == [mean["trials"] for mean in ours["means"]]
        for number, cut in zip(theirs["cuts"], ours["cuts"], strict=True):
            assert [unpacked(x["trials"]) for x in whole["cuts"][number]["lines"]] == [
                x["trials"] for x in cut["lines"]
            ]
    assert [unpacked(table["trials"]) for table in whole["tables"]] == [table["trials"] for table in data["tables"]]
    assert len(whole["lists"]) == len(set(whole["lists"]))
    assert len(whole["cuts"]) == 1  # by pairs, from wherever one looks
    assert [view["cuts"] for view in whole["views"]] == [[0], [0], [0]]


# How often it is asked


def test_what_a_setting_asks_is_found_once_for_all_trials_of_one_question(make: Make) -> None:
    records = [make(arch=f"a{n % 7}", seed=n, dials={"pairs": p}) for n in range(30) for p in (4, 8)]
    measuring._asked.cache_clear()
    labels.leaves_of_text.cache_clear()
    figures(records, table_of(records))
    assert measuring._asked.cache_info().misses == 2
    assert labels.leaves_of_text.cache_info().misses == 7


def test_settings_on_one_line_share_its_cut(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    from recallmap.results.page import breakdown_figures

    original = breakdown_figures.by_setting

    def counted(measures: Any, dial: str, *rest: Any) -> Any:
        made.append(dial)
        return original(measures, dial, *rest)

    monkeypatch.setattr("recallmap.results.page.breakdown_figures.by_setting", counted)
    pairs = range(4, 24)
    views = figures([make(arch=a, dials={"pairs": p}) for a in "ab" for p in pairs], [])["views"]
    assert made == ["pairs"]
    assert len({id(cut) for view in views for cut in view["cuts"]}) == 1


def test_settings_are_cut_as_if_each_were_alone(make: Make) -> None:
    dials = [{"pairs": p, "length": n} for p, n in itertools.product((4, 8), (64, 128))]
    found = measures([make(arch=a, dials=d) for a in "ab" for d in dials])
    cuts = by_settings(found, found[0].dials)
    assert {cut.by: cut.values for cut in cuts} == {"length": ("64", "128"), "pairs": ("4", "8")}
    assert all(len(strand.cells) == 2 for cut in cuts for strand in cut.strands)


def test_dials_differ_where_they_read_differently() -> None:
    one: Sequence[dict[str, Any]] = [{"a": 1, "b": 1, "c": True, "d": float("nan"), "e": None}]
    assert differing([*one, {"a": 1, "b": 1.0, "c": 1, "d": float("nan")}]) == ["b", "c"]
    assert differing([{}, {"a": None}]) == []


def test_an_architecture_without_a_part_stands_on_every_line_that_is_otherwise_alike(make: Make) -> None:
    def arch(width: int, more: int | None) -> Record:
        return make(arch_dials={"width": width, "memory": None if more is None else {"slots": more}}, score=0.5)

    found = measures([arch(width, more) for width in (8, 16) for more in (None, 2, 4)])
    cuts = {cut.by: cut for cut in by_dials(found)}
    assert cuts["slots"].values == ("none", "2", "4")
    assert [len(strand.cells) for strand in cuts["slots"].strands] == [3, 3]


def test_the_trials_of_a_question_keep_their_own_answers(make: Make) -> None:
    def tested(score: float) -> Record:
        told = {"task": "mqar", "setting": "length=128", "length": 128, "chance": 0.1, "ceiling": 1.0}
        specs = [{"kind": "mqar", "vocab": 256, "length": 128, "pairs": 4}]
        return make(score=score, tests=[told | {"scores": {"accuracy": score / 2}}], test_specs=specs)

    one, other = answers(tested(0.8)), answers(tested(0.6))
    assert [answer.score for answer in one + other] == [0.8, 0.4, 0.6, 0.3]
    assert [answer.setting for answer in one] == [answer.setting for answer in other]
    assert one[0].setting != one[1].setting


# In a browser

MARKS = """
const figure = document.getElementById("state"), of = (meta) => figure.data.filter((one) => one.meta === meta);
const figures = [...document.querySelectorAll(".js-plotly-plot")];
const drawn = [...figure.querySelectorAll(".scatterlayer .point")].filter((one) => one.getBBox().width > 0);
return {
  kinds: [...new Set(figures.flatMap((one) => one.data.map(({ type }) => type)))].sort(),
  drawn: drawn.length,
  cells: of("cells").flatMap((one) => one.customdata.map((list) => list.length)),
  alone: of("trials").reduce((sum, one) => sum + one.x.length, 0),
  note: document.getElementById("thinned").textContent,
  nodes: document.getElementsByTagName("*").length,
};
"""


@pytest.fixture(scope="module")
def crowded(make: Make, tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = crowd(make, 1600)
    path = tmp_path_factory.mktemp("crowded") / "page.html"
    write_page(path, records, title="Many", tables=table_of(records))
    return path


@pytest.mark.parametrize("count", [1600, 10_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_every_one_of_many_trials_is_in_a_mark_that_is_drawn(
    count: int, browser: Browser, make: Make, tmp_path: Path
) -> None:
    records = crowd(make, count)
    write_page(tmp_path / "page.html", records, title="Many", tables=table_of(records))
    browser.show(tmp_path / "page.html")
    found = browser.run(MARKS)
    assert browser.messages() == []  # the page's policy forbids what WebGL needs
    assert found["kinds"] == ["heatmap", "scatter"]
    assert sum(found["cells"]) == count
    assert len(found["cells"]) <= MANY
    assert found["drawn"] == len(found["cells"]) + len(SKILLS)  # and a mean of every architecture
    assert re.match(f"{count:,} trials in {len(found['cells']):,} small marks", found["note"])
    assert found["nodes"] < 10_000
    assert (tmp_path / "page.html").stat().st_size < (6 + count / 5000) * MEGABYTE


def test_fewer_trials_have_a_mark_each(browser: Browser, make: Make, tmp_path: Path) -> None:
    records = crowd(make, 400)
    write_page(tmp_path / "page.html", records, title="Some", tables=table_of(records))
    browser.show(tmp_path / "page.html")
    found = browser.run(MARKS)
    assert (found["alone"], found["drawn"], found["note"]) == (400, 400 + len(SKILLS), "")


# Pixels of a mark of a few trials in the first figure, away from the large ones, and which trials these are.
SMALL = """
const figure = document.getElementById("state"), found = [];
figure.scrollIntoView({ block: "center" });
for (const trace of figure.data.filter((one) => one.meta === "cells")) {
  const mean = figure.data.find((one) => one.meta === "means" && one.name === trace.name).y[0];
  trace.customdata.forEach((list, i) => {
    if (list.length > 1 && Math.abs(trace.y[i] - mean) > 0.06) found.push([trace.x[i], trace.y[i], list]);
  });
}
const [x, y, list] = found.sort((a, b) => a[2].length - b[2].length)[0];
const { xaxis, yaxis, _size } = figure._fullLayout, box = figure.getBoundingClientRect();
return [box.x + _size.l + xaxis.d2p(x), box.y + _size.t + yaxis.d2p(y), list];
"""


def test_a_mark_of_many_trials_gives_them_when_it_is_pressed(browser: Browser, crowded: Path) -> None:
    browser.show(crowded)
    x, y, trials = browser.run(SMALL)
    browser.click(x, y)
    browser.wait("return now.picked.size > 0")
    assert len(trials) > 1
    assert browser.run("return [...now.picked]") == trials
    ring = (
        "const ring = document.getElementById('state').data.at(-1);"
        "return [ring.customdata.map(([trial]) => trial), ring.text.map((text) => text.split(', ').at(-1))]"
    )
    ringed, keys = browser.run(ring)
    assert ringed == trials
    assert keys == browser.run("return arguments[0].map((trial) => trials.key[trial])", trials)
    rows = browser.run(
        "return [...document.querySelectorAll('#trials tr.picked')].map((line) => Number(line.dataset.trial))"
    )
    assert sorted(rows) == sorted(trials)
    drawn = browser.run("return document.getElementById('curves').data.filter((t) => t.meta === 'picked').length")
    assert drawn > 0


def test_single_trials_are_drawn_where_one_zooms_in(browser: Browser, crowded: Path) -> None:
    browser.show(crowded)
    near = {"xaxis.range[0]": 2.9, "xaxis.range[1]": 3.1, "yaxis.range[0]": 0, "yaxis.range[1]": 1}
    browser.run("Plotly.relayout('state', arguments[0])", near)
    browser.wait("return document.getElementById('state').data.some((one) => one.meta === 'trials')")
    found = browser.run(MARKS)
    assert (found["cells"], found["alone"]) == ([], 1600 // len(SKILLS) + 1)
    browser.run("pick([views[0].trials[0]])")
    assert browser.run("return document.getElementById('state').layout.xaxis.range") == [2.9, 3.1]
    browser.run("document.getElementById('state').emit('plotly_doubleclick')")
    browser.wait("return document.getElementById('state').data.some((one) => one.meta === 'cells')")
    assert sum(browser.run(MARKS)["cells"]) == 1600


def test_hiding_architectures_leaves_room_for_single_trials(browser: Browser, crowded: Path) -> None:
    browser.show(crowded)
    browser.run("document.querySelectorAll('#legend button')[0].click()")
    browser.wait("return document.getElementById('state').data.some((one) => one.meta === 'trials')")
    assert browser.run(MARKS)["alone"] == 1600 - (1600 // len(SKILLS) + 1)


def test_very_many_curves_are_drawn_as_means_and_say_so(browser: Browser, crowded: Path) -> None:
    browser.show(crowded)
    counts = (
        "const { data } = document.getElementById('curves');"
        "return ['curves', 'spread'].map((meta) => data.filter((one) => one.meta === meta).length)"
    )
    assert browser.run(counts) == [len(SKILLS), len(SKILLS)]
    assert "Lines are means over seeds" in browser.run("return document.getElementById('curvesmeant').textContent")


def test_the_table_of_trials_grows_by_tens(browser: Browser, crowded: Path) -> None:
    browser.show(crowded)
    sizes = []
    for _ in range(3):
        lines = browser.run("return document.querySelectorAll('#trials tbody tr').length")
        sizes.append(
            (
                lines,
                browser.run("const more = document.getElementById('more'); return more.hidden ? '' : more.textContent"),
            )
        )
        browser.run("document.getElementById('more').click()")
    assert sizes == [(100, "Show 1,000 of 1,600 trials"), (1000, "Show all 1,600 trials"), (1600, "")]


def test_a_search_of_very_many_architectures_opens(browser: Browser, make: Make, tmp_path: Path) -> None:
    records = searched(make, 1600)
    write_page(tmp_path / "page.html", records, title="A search", tables=table_of(records))
    browser.show(tmp_path / "page.html")
    found = browser.run(MARKS)
    assert browser.messages() == []
    assert sum(found["cells"]) == 1600
    assert found["drawn"] <= MANY + MOST_MEANS
    assert "Large: the best of each architecture, 250 of 1,600." in found["note"]
    assert found["nodes"] < 15_000
    assert browser.run("return document.getElementById('heat').data[0].y.length") == MOST_ROWS
