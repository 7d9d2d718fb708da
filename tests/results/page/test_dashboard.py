"""The page holds every trial, stays small, lets nothing in or out, and says in words what it shows."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from recallmap.results.analysis.labels import row_names
from recallmap.results.analysis.published_figures import Column, Published, PublishedTable, Row
from recallmap.results.page import figure_data
from recallmap.results.page.architecture_section import Detail
from recallmap.results.page.compression import unpacked
from recallmap.results.page.dashboard import MOST_UNFOLDED, page, write_page
from recallmap.results.page.figure_data import figures, hyper_names
from recallmap.results.page.probe_section import section
from recallmap.results.record import SHORT, Record
from recallmap.results.score_tables.scores import table_of

Make = Callable[..., Record]

MEGABYTE = 1_000_000


class Reader(HTMLParser):
    """Scripts, addresses and visible words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.words: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif self.inside != "style":
            self.words.append(data)


def read(records: list[Record]) -> Reader:
    return Reader(page(records, title="A study", tables=table_of(records)))


@pytest.fixture(scope="module")
def whole(study: list[Record]) -> Reader:
    return read(study)


def carried(reader: Reader) -> list[str]:
    """What the page unpacks: its data, plotly, and the other scripts."""
    return [unpacked(text) for traits, text in reader.scripts if traits.get("type") == "application/zlib"]


def data_of(reader: Reader) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(carried(reader)[0])
    for view in data["views"]:
        view["trials"] = data["lists"][view["trials"]]
    return data


def test_every_finished_trial_is_in_one_setting_and_every_failed_one_is_listed(
    study: list[Record], whole: Reader
) -> None:
    data = data_of(whole)
    done = {r.key[:SHORT]: r for r in study if r.status == "done"}
    settings = [view for view in data["views"] if not view.get("meansOnly")]
    shown = [trial for view in settings for trial in view["trials"]]
    assert sorted(data["trials"]["key"][trial] for trial in shown) == sorted(done)
    for view in settings:
        for trial, score, state in zip(view["trials"], view["scores"], view["states"], strict=True):
            record = done[data["trials"]["key"][trial]]
            assert score == round(1_000_000 * (record.score or 0))
            assert state == record.state_bytes
    failed = [r for r in study if r.status == "failed"]
    assert "".join(whole.words).count("diverged: the loss was not finite at step 312 of 1000") == len(failed) + 1


def test_nothing_is_loaded_from_anywhere(whole: Reader) -> None:
    addresses = [a for a in whole.attributes if a[1] in ("src", "href", "srcset", "action", "data", "ping")]
    assert addresses  # of the overview, which leads to places of the page itself
    assert all((tag, name, str(value)[0]) == ("a", "href", "#") for tag, name, value in addresses)


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else(whole: Reader) -> None:
    (policy,) = (value for _, name, value in whole.attributes if name == "content" and value and "default-src" in value)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    running = [text for traits, text in whole.scripts if not traits.get("type")] + carried(whole)[1:]
    hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in running}
    assert set(rules.pop("script-src").split()) == hashes
    assert rules == {
        "default-src": "'none'",
        "style-src": "'unsafe-inline'",
        "img-src": "data: blob:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_the_page_is_no_more_than_plotly_and_its_data(study: list[Record]) -> None:
    assert len(page(study, title="A study", tables=table_of(study)).encode()) < 2.3 * MEGABYTE


def test_a_curve_has_at_most_sixty_points_and_keeps_its_ends(make: Make) -> None:
    steps = list(range(1, 1001))
    record = make(curve={"step": steps, "validation_accuracy": [s / 1000 for s in steps]})
    data = figures([record], [])
    (clock, values) = data["trials"]["curve"][0]
    assert len(values) == len(data["clocks"][clock]) == 60
    assert (data["clocks"][clock][0], data["clocks"][clock][-1]) == (1, 1000)
    assert (values[0], values[-1]) == (1, 1000)


def test_very_many_trials_share_the_room_for_curves(make: Make) -> None:
    curve = {"step": list(range(60)), "validation_accuracy": [0.5] * 60}
    data = figures([make(seed=s, curve=curve) for s in range(3000)], [])
    assert sum(len(values) for _, values in data["trials"]["curve"]) == 3000 * 20


def test_a_curve_of_losses_alone_is_none(make: Make) -> None:
    record = make(curve={"step": [1, 2], "validation_loss": [0.5, 0.4]})
    assert figures([record], [])["trials"]["curve"] == [None]


def test_the_curves_of_very_many_trials_still_rise(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_data, "ALL_POINTS", 10)
    curve = {"step": list(range(60)), "validation_accuracy": [n / 60 for n in range(60)]}
    data = figures([make(seed=s, curve=curve) for s in range(10)], [])
    assert {len(values) for _, values in data["trials"]["curve"]} == {5}


def test_a_failure_without_words_is_one_all_the_same(make: Make) -> None:
    words = "".join(read([make(error=" \n", seed=s) for s in range(2)]).words)
    assert "2 × its score was not a finite number" in words


def test_the_front_is_drawn_through_the_means(make: Make) -> None:
    sizes = {"small": (1000, 0.5), "worse": (2000, 0.4), "large": (3000, 0.9)}
    records = [make(arch=a, state_bytes=b, score=s, seed=n) for a, (b, s) in sizes.items() for n in range(2)]
    (view,) = figures(records, [])["views"]
    assert [(m["state"], m["mean"], m["share"]) for m in view["means"]] == [
        (1000, 0.5, 1),
        (2000, 0.4, 0),
        (3000, 0.9, 1),
    ]


def test_settings_that_were_only_tested_on_have_views_and_a_mean(make: Make) -> None:
    def test(length: int, score: float) -> dict[str, Any]:
        named = {"task": "mqar", "setting": f"length={length}", "length": length, "state_bytes": length}
        return {**named, "chance": 0.1, "ceiling": 1.0, "scores": {"accuracy": score}}

    specs = [{"kind": "mqar", "vocab": 256, "pairs": 4, "length": n} for n in (128, 256)]
    records = [make(seed=s, score=0.9, tests=[test(128, 0.6), test(256, 0.3)], test_specs=specs) for s in range(2)]
    views = {v["label"]: v for v in figures(records, [])["views"]}
    assert list(views) == [f"mqar: {x}" for x in ("mean over 3 settings", "length 64", "length 128", "length 256")]
    assert views["mqar: mean over 3 settings"]["scores"] == [600_000, 600_000]
    assert views["mqar: mean over 3 settings"]["chance"] == pytest.approx((0.25 + 0.1 + 0.1) / 3)
    assert [v["length"] for v in views.values()] == [256, 64, 128, 256]
    assert [v["states"] for v in views.values()] == [[1000, 1000], [1000, 1000], [128, 128], [256, 256]]


def test_a_mean_over_settings_is_of_trials_that_were_tested_on_the_same_ones(make: Make) -> None:
    def tested(vocab: int, arch: str) -> Record:
        specs = [{"kind": "mqar", "vocab": vocab, "pairs": 4, "length": 128}]
        told = {"task": "mqar", "setting": "length=128", "length": 128, "chance": 0.1, "ceiling": 1.0}
        return make(arch=arch, dials={"vocab": vocab}, tests=[told | {"scores": {"accuracy": 0.2}}], test_specs=specs)

    records = [tested(vocab, arch) for vocab in (64, 256) for arch in ("gla", "mesa")]
    means = [view for view in figures(records, [])["views"] if ": mean over" in view["label"]]
    assert [(view["label"], len(view["means"])) for view in means] == [
        ("mqar: mean over 2 settings, vocab 64", 2),
        ("mqar: mean over 2 settings, vocab 256", 2),
    ]


def test_the_page_opens_with_the_first_setting_unless_another_has_more_than_twice_its_architectures(make: Make) -> None:
    def opened(**archs: str) -> str:
        data = figures([make(arch=arch, task=task) for task, own in archs.items() for arch in own], [])
        return str(data["views"][data["first"]]["label"])

    assert opened(parity="a", mqar="ab") == "parity"
    assert opened(parity="a", mqar="abc", needle="ab", regbench="bcd") == "mqar"


def test_a_setting_of_many_options_is_named_by_few_and_told_in_full(make: Make) -> None:
    dials: list[dict[str, Any]] = [{"length": 64, "pairs": 4, "vocab": 64}, {"length": 128, "pairs": 4, "vocab": 256}]
    trainings = [{"steps": 500, "batch": 32, "dtype": "float32"}, {"steps": 700, "batch": 64, "dtype": "bfloat16"}]
    records = [make(dials=d, training=t) for d, t in zip(dials, trainings, strict=True)]
    views = figures(records, [])["views"]
    assert [view["label"] for view in views] == ["mqar: length 64", "mqar: length 128"]
    assert views[0]["setting"] == "mqar: vocab 64, length 64, steps 500, batch 32, dtype float32"
    assert "setting" not in figures(records[:1], [])["views"][0]


def test_trials_are_named_by_the_hyper_parameters_that_differ_within_their_task(make: Make) -> None:
    records = [make(training={"lr": lr, "steps": 500}) for lr in (1e-3, 3e-4)]
    records += [make(task="parity", training={"steps": steps}) for steps in (700, 900)]
    assert hyper_names(records) == ["lr 0.001", "lr 0.0003", "lr 0.001, steps 700", "lr 0.001, steps 900"]


def test_very_many_tables_are_folded(make: Make) -> None:
    records = [make(protocol=f"p{n}") for n in range(MOST_UNFOLDED + 1)]
    few, many = (page(own, title="A", tables=table_of(own)) for own in (records[:-1], records))
    folded = re.findall(r"<details><summary>(mqar, [^<]*)</summary>\n<figure class=\"table\">", many)
    assert folded[0] == "mqar, protocol p0, one seed: 1 row, 1 column"
    assert len(folded) == MOST_UNFOLDED + 1
    assert "<details><summary>mqar" not in few


def test_an_architecture_has_one_name_on_the_whole_page(make: Make) -> None:
    wide, slim = {"arch_dials": {"width": 64}}, {"arch_dials": {"width": 32}}
    data = figures([make(**wide), make(**slim), make(task="parity", **wide)], [])
    names = {(view["label"], data["rows"][m["row"]]) for view in data["views"] for m in view["means"]}
    assert names == {("mqar", "mesa width=64"), ("mqar", "mesa width=32"), ("parity", "mesa width=64")}


def test_references_of_a_setting_are_lines_too(make: Make) -> None:
    further = {
        "task": "mqar",
        "setting": "pairs=8",
        "length": 64,
        "chance": 0.1,
        "ceiling": 1.0,
        "references": {"3-gram": 0.3},
        "scores": {"accuracy": 0.2},
    }
    views = figures([make(references={"3-gram": 0.4}, tests=[further])], [])["views"]
    assert [(v["references"], v["own"]["references"]) for v in views] == [
        ({}, {"3-gram": 0.4}),
        ({"3-gram": 0.4}, {"3-gram": 0.4}),
        ({"3-gram": 0.3}, {"3-gram": 0.4}),
    ]


def paper(about: str, columns: Sequence[Column], **values: tuple[float, ...]) -> Published:
    """One table, of these values by architecture."""
    rows = tuple(Row(arch=arch, values=own) for arch, own in values.items())
    table = PublishedTable(about=about, where="Table 1", columns=tuple(columns), rows=rows)
    return Published(name="a_paper", source="A paper", tables=(table,))


def test_published_figures_are_drawn_at_our_state(make: Make) -> None:
    told = paper("mqar", [Column(name="one", tasks=("mqar",), dials={"pairs": 4})], mesa=(0.75,), hawk=(0.5,))
    easy, hard = figures([make(), make(dials={"pairs": 8})], [], beside=[told])["views"]
    assert easy["published"] == [{"name": "mesa", "source": "A paper", "state": 1000, "score": 0.75}]
    assert hard["published"] == []


def test_a_published_mean_over_what_trials_were_tested_on_is_drawn_at_our_largest_state(make: Make) -> None:
    mean_of_both = Column(name="mean", mean=True, over=({"length": 64}, {"length": 128}))
    longer = {"kind": "mqar", "protocol": "repaired", "vocab": 256, "length": 128, "pairs": 4}
    told = {"task": "mqar", "setting": "length=128", "length": 128, "state_bytes": 3000, "chance": 0.1, "ceiling": 1.0}
    tests = [told | {"scores": {"accuracy": 0.5}}]
    mean, *single = figures(
        [make(tests=tests, test_specs=[longer])], [], beside=[paper("mqar", [mean_of_both], mesa=(0.75,))]
    )["views"]
    assert mean["published"] == [{"name": "mesa", "source": "A paper", "state": 3000, "score": 0.75}]
    assert [view["published"] for view in single] == [[], []]


def test_the_mean_of_mad_is_a_view_with_published_averages(make: Make) -> None:
    columns = [
        Column(name="copying", tasks=("selective_copying",)),
        Column(name="compression", tasks=("compression",)),
        Column(name="average", mean=True),
    ]
    scores = {"selective_copying": 0.8, "compression": 0.4}
    records = [make(task=task, score=score) for task, score in scores.items()]
    records += [make(arch="gla", task="compression", score=0.3)]  # not on all tasks, so without a mean
    told = paper("mad", columns, mesa=(0.9, 0.5, 0.7))
    more = figures([*records, make(task="memorization")], [], beside=[told])["views"][0]
    assert (more["label"], more["published"]) == ("MAD: mean over 3 tasks", [])  # the published one is not over three
    view = figures(records, [], beside=[told])["views"][0]
    assert view["label"] == "MAD: mean over 2 tasks"
    assert [m["count"] for m in view["means"]] == [1]
    assert [(m["mean"], m["trials"]) for m in view["means"]] == [(pytest.approx(0.6), [0, 1])]
    assert [mark["score"] for mark in view["published"]] == [0.7]


def test_the_band_of_the_front_needs_five_seeds_of_each(make: Make) -> None:
    sizes = ((1000, "a"), (2000, "b"))
    found = [
        make(arch=a, state_bytes=b, score=b / 4000 + 0.1 * (seed > 1), seed=seed) for b, a in sizes for seed in range(5)
    ]
    assert figures(found[:-1], [])["views"][0]["band"] == []
    (view,) = figures(found, [])["views"]
    assert [(state, low, high) for state, low, high in view["band"]] == [
        (1000.0, pytest.approx(0.27), pytest.approx(0.35)),
        (2000.0, pytest.approx(0.52), pytest.approx(0.6)),
    ]


def test_a_setting_is_cut_by_part_and_by_dial(make: Make) -> None:
    records = [make(arch_dials={"window": w}, dials={"pairs": p}, score=w / 8) for w in (1, 4) for p in (4, 8)]
    records[0].scores.update({f"accuracy/depth={d}": 0.5 for d in (0, 100)})
    cuts = figures(records, [])["views"][0]["cuts"]
    assert [cut["label"] for cut in cuts] == ["accuracy by depth", "accuracy by pairs", "accuracy by window"]
    assert cuts[2]["lines"] == [
        {
            "name": "mesa",
            "arch": 0,
            "at": [0, 1],
            "y": [0.125, 0.5],
            "half": [None, None],
            "states": [1000, 1000],
            "trials": [[0], [2]],
        }
    ]
    assert cuts[1]["chance"] == [0.25, 0.125]


def test_what_memories_hold_is_drawn_with_the_probe(make: Make) -> None:
    records = [make(dials={"pairs": p}, score=1.0 if p < 8 else 0.95) for p in (2, 4, 8)]
    probed = [{"arch": "mesa", "mixer": "mesa", "pairs": 4, "recall": 1.0, "bounds": {"d_k": 16}}]
    (held,) = figures(records, [], probed=probed)["held"]
    assert "by the probe below" not in page(records, title="A", tables=[])
    (line,) = held["lines"]
    assert (line["trained"], line["probed"], line["bounds"]) == ([4, 8], [4, 4], [("d_k", 16)])
    assert held["seen"] == "Most pairs at 99 % with a state of fixed size: 4, mesa with 1 kB."


def test_architectures_are_a_click_away(make: Make) -> None:
    detail = Detail(yaml="name: <mesa>\n", mixers={"mesa": ("2 d_k", "S = a S + k v^T")})
    text = page([make(flops_per_token=2e6)], title="A", tables=[], details={"mesa": detail, "other": detail})
    assert text.count("<details data-row=") == 1
    assert '<pre tabindex="0">name: &lt;mesa&gt;\n</pre>' in text
    assert "<dd>state 2 d_k floats<br>S = a S + k v^T</dd>" in text
    assert '<dt data-cost>operations a token, forward</dt><dd data-value="2000000">2,000,000</dd>' in text


def test_variants_of_one_of_many_architectures_are_folded_under_its_name(make: Make) -> None:
    records = [make(arch=arch, arch_dials={"width": w}) for arch in ("mesa", "gla") for w in range(8, 17)]
    detail = Detail(yaml="name: a\n", mixers={})
    names = set(row_names(records).values())
    assert len(names) == 18
    groups = r"<details><summary>(.*?)</summary>"
    text = page(records, title="A", tables=[], details=dict.fromkeys(names, detail))
    assert re.findall(groups, text) == ["gla: 9 variants", "mesa: 9 variants"]
    few = [name for name in names if name.startswith("gla")]
    text = page(records, title="A", tables=[], details=dict.fromkeys(few, detail))
    assert re.findall(groups, text) == []


def test_settings_stand_in_the_order_of_their_dials(make: Make) -> None:
    views = figures([make(dials={"pairs": p}) for p in (16, 4, 8)], [])["views"]
    assert [view["label"] for view in views] == ["mqar: pairs 4", "mqar: pairs 8", "mqar: pairs 16"]


def test_settings_that_differ_in_what_is_trained_on_are_counted(make: Make) -> None:
    text = page([make(data={"train": n}) for n in (1000, 2500)], title="A", tables=[])
    assert "2 trials of 1 architecture on 2 settings of 1 task." in text


def test_settings_that_trials_are_only_tested_on_are_told_apart(make: Make) -> None:
    tests = [{"task": "mqar", "setting": f"K{n}", "chance": 0.1, "ceiling": 1.0, "scores": {}} for n in (8, 16)]
    text = page([make(tests=tests)], title="A", tables=[])
    assert "1 trial of 1 architecture on 1 setting of 1 task, tested on 2 more." in text


def test_the_mean_over_settings_is_cut_by_what_tells_them_apart_and_by_part(make: Make) -> None:
    def test(length: int, score: float) -> dict[str, Any]:
        named = {"task": "parity", "setting": f"length={length}", "length": length, "chance": 0.5, "ceiling": 1.0}
        return {**named, "scores": {"accuracy": score} | {f"accuracy/depth={d}": score - d / 10 for d in (0, 1)}}

    specs = [{"kind": "parity", "length": n} for n in (80, 160)]
    records = [
        make(arch=a, task="parity", score=None, tests=[test(80, s), test(160, s - 0.2)], test_specs=specs, chance=0.5)
        for a, s in (("a", 0.8), ("b", 0.7))
    ]
    for record in records:
        record.scores.update({"accuracy": 0.9, "accuracy/depth=0": 0.9, "accuracy/depth=1": 0.9})
    mean = next(v for v in figures(records, [])["views"] if "mean" in v["label"])
    cuts = {cut["label"]: cut for cut in mean["cuts"]}
    assert list(cuts) == ["accuracy by depth", "accuracy by length"]
    assert cuts["accuracy by length"]["x"] == ("40", "80", "160")
    assert [line["name"] for line in cuts["accuracy by length"]["lines"]] == ["a", "b"]
    assert cuts["accuracy by length"]["lines"][0]["y"] == pytest.approx([0.9, 0.8, 0.6])
    assert cuts["accuracy by depth"]["lines"][0]["y"] == pytest.approx([2.3 / 3, 2.1 / 3], abs=1e-4)


def test_tasks_of_a_setting_each_need_no_name_above_their_column(make: Make) -> None:
    kinds = ("compression", "in_context_recall", "noisy_in_context_recall")
    records = [make(task=kind, score=0.5, chance=0.1) for kind in kinds]
    columns = [Column(name="compression", tasks=kinds[:1]), Column(name="recall", tasks=kinds[1:])]
    data = figures(records, table_of(records, paper("mad", columns, mesa=(0.4, 0.9)), settings=True))
    heat = data["tables"][data["heats"][0]]
    assert heat["title"] == "MAD, every setting"  # which tells recalls apart that the paper has in one column
    assert sorted(heat["columns"]) == ["compression", "in-context recall", "noisy recall"]
    assert "groups" not in heat


def test_figures_of_the_page_read_as_in_its_tables(make: Make) -> None:
    """55.4497 is 55.4, and not, rounded twice, 55.5."""
    records = [make(score=0.554497, dials={"pairs": n}) for n in (4, 8)]
    data = figures(records, table_of(records))
    view = data["views"][0]
    trial = view["scores"][0] / 1e6
    points = [trial, data["tables"][0]["cells"][0][0][0], view["means"][0]["mean"], view["cuts"][0]["lines"][0]["y"][0]]
    assert [f"{100 * point:.1f}" for point in points] == ["55.4"] * 4


def test_what_is_held_at_ninety_percent_is_said_where_nothing_is_at_ninety_nine(make: Make) -> None:
    records = [make(dials={"pairs": p}, score=0.95) for p in (2, 4)]
    assert figures(records, [])["held"][0]["seen"] == (
        "None with a state of fixed size holds the fewest pairs that were tried at 99 %. "
        "Most pairs at 90 % with a state of fixed size: 4 or more, mesa with 1 kB."
    )


def test_curves_of_the_probe_have_the_colour_of_their_architecture() -> None:
    row = {"mixer": "m", "keys": "gaussian", "passes": 1, "chance": 0.5, "state_floats": 1, "load": 0.5, "bounds": {}}
    rows = [{**row, "arch": "b c", "pairs": p, "recall": 1.0, "error": 0.1} for p in (2, 4)]
    rows += [{**row, "arch": "b width=2", "pairs": p, "recall": 1.0, "error": 0.1} for p in (2, 4)]
    legend = section(rows, ["a", "b", "b c"]).split("<figure>")[0]
    assert re.findall(r"var\(--c(\d)\).*?</svg> ([^<]*)<", legend) == [("2", "b c"), ("1", "b width=2")]


def test_of_many_curves_the_one_of_each_mixer_that_recalls_most_is_drawn() -> None:
    row = {"keys": "gaussian", "passes": 1, "chance": 0.5, "state_floats": 1, "load": 0.5, "bounds": {}}
    rows = [
        {
            **row,
            "arch": f"{mixer} width={2**n}" if n else mixer,
            "mixer": mixer,
            "pairs": p,
            "recall": 0.9 - abs(n - 3) / 100,
            "error": 0.1,
        }
        for mixer, many in (("mesa", 20), ("gla", 10))
        for n in range(many)
        for p in (2, 4)
    ]
    legend, figure, *_ = section(rows).split("<figure>")
    assert re.findall(r"</svg> ([^<]*)<", legend) == ["gla (10)", "mesa (20)"]
    assert len(set(re.findall(r'<polyline [^>]*style="([^"]*)"', figure))) == 2
    assert re.findall(r"<title>([^<]*)<", figure) == ["gla width=8", "mesa width=8"]
    assert section(rows).count("<td>mesa</td><td>gaussian</td>") == 40  # the table has all
    assert len(re.findall(r"</svg> [^<]*<", section(rows[:20]).split("<figure>")[0])) == 10


@pytest.mark.parametrize(("records", "refresh"), [(0, True), (1, False)])
def test_a_page_that_is_watched_looks_for_news(records: int, refresh: bool, make: Make) -> None:
    text = page([make(seed=n) for n in range(records)], title="A", tables=[], again=15)
    assert ('http-equiv="refresh" content="15"' in text) == refresh
    assert [json.loads(data)["again"] for data in carried(Reader(text))[:1]] == [15] * (not refresh)
    assert 'http-equiv="refresh"' not in page([], title="A", tables=[])


# What is said in words


def seen(records: list[Record]) -> str:
    return str(figures(records, [])["views"][0]["seen"])


def test_the_sentence_names_the_best_of_fixed_state_and_the_cheapest_near_it(make: Make) -> None:
    records = [
        make(arch="attention", score=1.0, state_bytes=100_000, state_grows=True),
        make(arch="large", score=0.95, state_bytes=40_000),
        make(arch="thrifty", score=0.92, state_bytes=10_000),
        make(arch="weak", score=0.5, state_bytes=1000),
    ]
    assert seen(records) == (
        "Most recall: attention, 100.0 % with 100 kB of state, which grows with length. "
        "With a state of fixed size: large, 95.0 % with 40 kB. "
        "Within 5 points of that with the least state: thrifty, 92.0 % with 10 kB."
    )
    assert seen(records[1::2]) == (
        "Most recall: large, 95.0 % with 40 kB of state. None with less state comes within 5 points of that."
    )
    assert seen(records[1:2]) == "Most recall: large, 95.0 % with 40 kB of state."


def test_of_those_that_read_the_same_the_sentence_names_the_smaller(make: Make) -> None:
    records = [
        make(arch=a, score=s, state_bytes=b)
        for a, s, b in (("x", 0.99999, 2000), ("y", 0.9998, 1000), ("z", 0.99, 1000))
    ]
    assert (
        seen(records)
        == "Most recall: y, 100.0 % with 1 kB of state. None with less state comes within 5 points of that."
    )


def test_the_sentence_on_learning_names_the_first_and_those_who_never(make: Make) -> None:
    def learner(arch: str, scores: list[float]) -> Record:
        return make(arch=arch, score=scores[-1], curve={"step": [100, 200, 300], "validation_accuracy": scores})

    records = [learner("quick", [0.3, 0.9, 0.9]), learner("slow", [0.3, 0.4, 0.9]), learner("never", [0.3, 0.3, 0.3])]
    assert figures(records, [])["views"][0]["learnt"] == (
        "First half-way from chance to ceiling: quick, after 200 steps (median over seeds). Not half-way by the end: never."
    )


def test_a_seed_that_never_learns_is_the_slowest(make: Make) -> None:
    def learner(arch: str, seed: int, at: int) -> Record:
        scores = [0.9 if step >= at else 0.3 for step in (100, 200, 300)]
        return make(arch=arch, seed=seed, score=0.5, curve={"step": [100, 200, 300], "validation_accuracy": scores})

    records = [learner("mixed", seed, at) for seed, at in enumerate((100, 300, 999))]
    records += [learner("rare", seed, at) for seed, at in enumerate((100, 999, 999))]
    assert figures(records, [])["views"][0]["learnt"] == (
        "First half-way from chance to ceiling: mixed, after 300 steps (median over seeds)."
    )


# At the edges


def test_no_trials_make_a_page_that_says_so() -> None:
    reader = read([])
    assert "There are no trials here yet: nothing has been trained." in reader.words
    assert reader.scripts == []


def test_nothing_but_failures_still_makes_a_page(make: Make) -> None:
    reader = read([make(error="Traceback:\n  somewhere\nOutOfMemory: no room", seed=s) for s in range(2)])
    words = "".join(reader.words)
    assert reader.scripts == []
    assert "2 × OutOfMemory: no room" in words
    assert "Traceback" not in words


def test_very_many_failures_are_counted_and_some_listed(make: Make) -> None:
    words = "".join(read([make(error="lost", seed=s) for s in range(300)]).words)
    assert "300 × lost" in words
    assert "The first 200 of 300 are listed." in words


@pytest.mark.parametrize(
    "name", ["</script><script>alert(1)</script>", "<!--<script>", "a\u2028b", "$title ${x} $$", "&amp;"]
)
def test_no_name_breaks_out_of_the_page(name: str, make: Make) -> None:
    reader = read(
        [make(arch=name, curve={"step": [1], "validation_accuracy": [0.5]}), make(arch=name, seed=1, error=name)]
    )
    assert len(reader.scripts) == 4
    assert data_of(reader)["archs"][0]["name"] == name


def test_a_page_is_replaced_whole_or_not_at_all(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "pages" / "page.html"
    write_page(path, [], title="First", tables=[])
    first = path.read_text()

    def full(self: Path, *_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_page(path, [], title="Second", tables=[])
    assert path.read_text() == first
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]


def test_titles_are_text(make: Make) -> None:
    assert re.search(r"<title>a &lt;b&gt; c</title>", page([], title="a <b> c", tables=[]))
