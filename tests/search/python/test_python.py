"""The functions of the root: specs by name and keyword, running, records as frames, the page's figures."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import recallmap as rm
from recallmap.arch.mixers import GatedDeltaNet
from recallmap.results.page import drawing
from recallmap.results.page.drawing import Views
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli import beginnings
from recallmap.search.documents import content_key, outside

ROOT = Path(__file__).parents[3]
TINY: dict[str, Any] = {"steps": 4, "batch": 4, "evaluations": 2, "data": {"validation": 4, "test": 4}}


@pytest.fixture(scope="module")
def task() -> Any:
    return rm.task("mqar", vocab=32, length=16, pairs=2)


@pytest.fixture(scope="module")
def trained(task: Any) -> list[Record]:
    arch = rm.arch("conv_attention", width=16)
    archs = [rm.arch(GatedDeltaNet(heads=heads), width=16, name=f"delta{heads}") for heads in (1, 2)]
    return rm.run([rm.trial(task, one, seed=seed, **TINY) for one in (*archs, arch) for seed in (0, 1)], device="cpu")


@pytest.fixture(scope="module")
def demo() -> Any:
    return rm.records("demo")


# The root. ------------------------------------------------------------------------------------------


def test_the_root_imports_nothing_heavy_and_has_each_name_that_it_lists() -> None:
    code = (
        "import sys, recallmap as rm\n"
        "heavy = {'torch', 'numpy', 'pandas', 'plotly', 'optuna', 'yaml', 'typer'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert all(getattr(rm, name).__doc__ for name in rm.__all__)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_type_checkers_see_the_names_that_the_root_has() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    (seen,) = (node.body for node in tree.body if isinstance(node, ast.If))
    places = {}
    for node in seen:
        assert isinstance(node, ast.ImportFrom)
        for name in node.names:
            places[name.asname] = f"{node.module}.{name.name}".removeprefix("recallmap.")
    assert places == {name: ".".join(filter(None, place)) for name, place in rm._PLACES.items()}


def test_a_name_that_there_is_not_says_which_there_are() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'tsk'; it has arch, IGNORE, Batch, "):
        rm.tsk


def test_arch_is_a_package_and_a_function_whatever_was_imported_first() -> None:
    import recallmap.arch as package

    assert package is rm.arch
    assert package.__file__ == str(Path(rm.__file__ or "") / ".." / "arch" / "__init__.py").replace(
        "__init__.py/../", ""
    )
    assert rm.arch("mesa") == codec.read_arch("mesa")


# Specs. ---------------------------------------------------------------------------------------------


def test_a_spec_by_name_and_keywords_is_that_of_a_document() -> None:
    assert rm.task("mqar", pairs=8) == codec.read_task({"kind": "mqar", "pairs": 8})
    assert rm.task(rm.task("mqar", pairs=8), length=128) == codec.read_task("mqar", overrides=["pairs=8", "length=128"])
    wide = rm.arch("samba", width=64, **{"stack[0].blocks[0].mixer.expand": 1})
    again = codec.plain(codec.read_arch("samba")) | {"width": 64}
    again["stack"][0]["blocks"][0]["mixer"]["expand"] = 1
    assert wide == codec.read_arch(again) == rm.arch(wide)
    changed = rm.study("demo", {"trial.training.batch": 7}, budget="smoke")
    assert changed == codec.read_study("demo", overrides=["budget=smoke", "trial.training.batch=7"])


def test_a_trial_is_that_of_a_document(task: Any) -> None:
    trial = rm.trial(task=task, arch="mesa", seed=3, tests=[rm.task(task, pairs=4)], **TINY)
    data = {"kind": "trial", "task": codec.plain(task), "arch": codec.plain(codec.read_arch("mesa")), "seed": 3}
    data |= {"training": {name: TINY[name] for name in ("steps", "batch", "evaluations")}, "data": TINY["data"]}
    data["tests"] = [codec.plain(rm.task(task, pairs=4))]
    assert trial == codec.from_plain(rm.TrialSpec, data)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: rm.task("mqar", pair=8), r"^task: pair: unknown key, .*\(did you mean 'pairs'\?\)$"),
        (lambda: rm.task("mqarr"), r"^task: unknown kind 'mqarr'.*\(did you mean 'mqar'\?\)$"),
        (lambda: rm.arch("mesa", widht=64), r"^arch: widht: unknown key, .*\(did you mean 'width'\?\)$"),
        (lambda: rm.arch("gla", heads=3), r"heads: .*\(did you mean 'stack\[0\]\.blocks\[0\]\.mixer\.heads'\?\)$"),
        (lambda: rm.arch("mesaa"), r"^mesaa: no built-in arch .*\(did you mean 'mesa'\?\)$"),
        (lambda: rm.arch(GatedDeltaNet(heads=3), width=16), "^arch: block 0 .*take one of 1, 2, 4, 8, 16 heads"),
        (lambda: rm.arch(GatedDeltaNet(), widht=16), r"^arch: widht: unknown key, .*\(did you mean 'width'\?\)$"),
        (lambda: rm.trial("mqar", "mesa", stesp=9), r"^training: stesp: unknown key, .*\(did you mean 'steps'\?\)$"),
        (lambda: rm.trial("mqar", "mesa", epochs=9), "^trial: epochs needs a fixed training set: set data.train"),
        (lambda: rm.study("demo", {"trial.training.stesp": 9}), r"^changes: trial\.training\.stesp: unknown key"),
        (lambda: rm.run([]), "^run: got an empty list, expected a study, or a list of trials"),
        (lambda: rm.run([3]), "^run: got a list with int in it, expected a study, or a list of trials"),
        (lambda: rm.run("demo", device="cuda:99"), "^device: got 'cuda:99', which cannot be used here"),
        (lambda: rm.run("demo", ledger="a.jsonl"), "^ledger: got a.jsonl, a file of records, expected a ledger"),
        (lambda: rm.records("damo"), r"^damo: no such file, and no records of this name .*\(did you mean 'demo'\?\)"),
    ],
)  # fmt: skip
def test_a_slip_is_told_with_what_was_meant(made: Any, said: str) -> None:
    with pytest.raises(rm.SpecError, match=said):
        made()


def test_a_trial_tells_the_faults_of_all_its_parts() -> None:
    with pytest.raises(rm.SpecError) as told:
        rm.trial("mqarr", "mesaa", steps="many", data={"tets": 3}, tests=["paritty"])
    assert [fault.place.source for fault in told.value.faults] == ["task", "task", "mesaa", "training", "data"]


def test_a_model_has_the_weights_of_its_seed_and_decodes_what_it_reads() -> None:
    import torch

    model, tokens = rm.model("mesa", vocab=16, seed=1), torch.arange(12).view(2, 6)
    same = codec.read_arch("mesa").build(vocab=16, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    logits, state = [], None
    for t in range(6):
        one, state = model.step(tokens[:, t], state)
        logits.append(one)
    torch.testing.assert_close(torch.stack(logits, 1), model(tokens), rtol=1e-4, atol=1e-4)


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Path]:
    """A file with a task of one's own."""
    yield beginnings.write("task", "parrot", tmp_path)[0]
    outside.forget()


def test_a_file_of_one_s_own_is_used_by_name_and_its_records_know_its_code(echo: Path) -> None:
    with pytest.raises(rm.SpecError, match="unknown kind 'parrot'"):
        rm.task("parrot")
    rm.use(str(echo))
    (record,) = rm.run(rm.trial("parrot", rm.arch("gla", width=16), **TINY), device="cpu")
    assert record.status == "done"
    assert record.spec["task"]["code"].startswith("my_parrot.py+")
    with pytest.raises(rm.SpecError, match=r"nowhere\.py: "):
        rm.use("nowhere.py")


# Running. -------------------------------------------------------------------------------------------


def test_a_list_of_trials_gives_a_record_each_in_its_order(trained: list[Record]) -> None:
    assert [(record.arch, record.seed) for record in trained] == [
        (arch, seed) for arch in ("delta1", "delta2", "conv_attention") for seed in (0, 1)
    ]
    assert {record.status for record in trained} == {"done"}
    assert {record.cohort for record in trained} == {2}


def test_a_ledger_answers_without_training(task: Any, tmp_path: Path) -> None:
    trials = [rm.trial(task, "gla", seed=seed, **TINY) for seed in (0, 1)]
    first = rm.run(trials[:1], ledger=tmp_path / "a.sqlite", device="cpu")
    reports: list[Any] = []
    both = rm.run([*trials, trials[1]], ledger=tmp_path / "a.sqlite", device="cpu", report=reports.append)
    assert both[0] == first[0]
    assert [record.key for record in both] == [content_key.key(trial) for trial in trials]
    assert (reports[-1].known, reports[-1].done) == (1, 1)


def test_a_study_gives_the_records_of_all_its_trials(task: Any) -> None:
    base = {"task": codec.plain(task), "arch": "gla", "training": {"steps": 2, "batch": 4}, "data": TINY["data"]}
    study = {"name": "two", "trial": base, "space": {"kind": "grid", "axes": {"trial.seed": [0, 1]}}}
    found = rm.run(study, device="cpu")
    assert [record.key for record in found] == [content_key.key(trial) for trial in rm.study(study).trials()]


def test_a_search_gives_the_records_of_its_points(task: Any) -> None:
    base = {"task": codec.plain(task), "arch": "gla", "training": {"steps": 2, "batch": 4}, "data": TINY["data"]}
    dials = {"trial.training.lr": {"float": [1e-3, 1e-1], "log": True}}
    found = rm.run(
        {"name": "few", "trial": base, "space": {"kind": "random", "points": 3, "dials": dials}}, device="cpu"
    )
    assert len({record.spec["training"]["lr"] for record in found}) == 3


# Frames. --------------------------------------------------------------------------------------------


def test_a_frame_has_the_label_of_tables_and_a_short_column_for_what_varies(trained: list[Record]) -> None:
    df = rm.records(trained[:4])
    assert list(df.label) == ["delta1", "delta1", "delta2", "delta2"]
    assert list(df["mixer.heads"]) == [1, 1, 2, 2]
    assert "mixer.kind" not in df
    assert list(df["arch.stack.0.mixer.heads"]) == [1, 1, 2, 2]
    assert "mixer.heads" not in rm.records(trained[:2])


def test_sources_of_all_sorts_make_one_frame(trained: list[Record], tmp_path: Path) -> None:
    with rm.Ledger(tmp_path / "a.sqlite") as ledger:
        ledger.merge(trained[:2])
    (tmp_path / "b.jsonl").write_text("", encoding="utf-8")
    df = rm.records(tmp_path / "a.sqlite", str(tmp_path), trained[1:3], "demo")
    assert len(df) == 3 + len(rm.records("demo"))


def test_no_source_and_an_empty_one_make_a_frame_without_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("", encoding="utf-8")
    for df in (rm.records(), rm.records(tmp_path / "a.jsonl")):
        assert df.empty
        assert {"label", "key", "arch"} <= set(df)


def test_rows_that_are_selected_sorted_and_joined_keep_their_records(demo: Any) -> None:
    mesa = demo[(demo.arch == "mesa") & (demo.task == "mqar")].sort_values("seed").reset_index(drop=True)
    joined = pd.concat([mesa, demo.query("arch == 'attention' and task == 'mqar'")])
    assert set(rm.front(mesa).arch) == {"mesa"}
    assert set(rm.front(joined).arch) == {"mesa", "attention"}
    assert "| mesa" in rm.table(mesa)
    assert "attention" not in rm.table(mesa)


def test_a_frame_without_its_records_is_refused_with_a_remedy(demo: Any) -> None:
    for bare in (pd.DataFrame(demo), demo.drop(columns="key")):
        with pytest.raises(rm.SpecError, match=r"does not know its records, expected rows of recallmap\.records"):
            rm.table(bare)


def test_records_without_a_score_have_no_front() -> None:
    with pytest.raises(rm.SpecError, match="none of 0 records has a score; train some with"):
        rm.front([])


def test_no_row_of_a_front_is_beaten_by_another(demo: Any) -> None:
    front = rm.front(demo, "mqar: pairs 8")
    assert set(front.setting) == {"mqar: pairs 8"}
    assert 1 < len(front) < demo[demo.task == "mqar"].label.nunique()
    by_size = front.sort_values("state_bytes")
    assert by_size.score.is_monotonic_increasing
    every = demo[(demo.task == "mqar") & (demo["task.pairs"] == 8)].groupby("label")
    best, least = every.accuracy.mean(), every.state_bytes.max()
    for row in front.itertuples():
        assert row.score == pytest.approx(best[row.label], abs=1e-6)
        assert not ((best > row.score + 1e-6) & (least <= row.state_bytes)).any()
    assert set(rm.front(demo).setting) > {"mqar: pairs 8", "mqar: pairs 4"}


def test_a_table_is_that_of_the_command_and_is_shown_as_it_is(demo: Any) -> None:
    from typer.testing import CliRunner

    from recallmap.search.cli.app import app

    found = CliRunner(env={"COLUMNS": None}).invoke(app, ["table", str(ROOT / "results/records/demo.jsonl")]).output
    assert str(rm.table(demo)).strip() == found.strip()
    assert repr(rm.table(demo)) == rm.table(demo)._repr_markdown_() == str(rm.table(demo))


# Figures. -------------------------------------------------------------------------------------------


def traces(figure: Any, meta: str) -> list[Any]:
    return [trace for trace in figure.data if trace.meta == meta]


def test_the_figure_of_a_front_has_the_page_s_points(demo: Any) -> None:
    figure = rm.figure(demo, "front", setting="mqar: pairs 8")
    shown = Views.of(list(demo.records.values()))
    (view,) = (view for view in shown.views if view["label"] == "mqar: pairs 8")
    drawn = {(x, y) for trace in traces(figure, "means") for x, y in zip(trace.x, trace.y, strict=True)}
    assert drawn == {(mean["state"], mean["mean"]) for mean in view["means"]}
    assert sum(len(trace.x) for trace in traces(figure, "trials")) == len(view["trials"])
    (line,) = traces(figure, "front")
    front = rm.front(demo, "mqar: pairs 8").sort_values("state_bytes")
    assert set(zip(front.state_bytes, front.score, strict=True)) == set(zip(line.x[:-1], line.y[:-1], strict=True))
    assert [(a.text.split(" ")[0], a.y) for a in figure.layout.annotations] == [
        ("chance", view["chance"]),
        ("ceiling", view["ceiling"]),
    ]


def test_a_learning_figure_has_a_line_for_each_seed(trained: list[Record]) -> None:
    figure = rm.figure(trained, "learning")
    assert [list(trace.x) for trace in figure.data] == [list(record.curve["step"]) for record in by_state(trained)]
    assert sum(trace.showlegend for trace in figure.data) == 3


def by_state(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (record.state_bytes, -mean(records, record.arch), record.seed))


def mean(records: list[Record], arch: str) -> float:
    own = [record.score or 0.0 for record in records if record.arch == arch]
    return sum(own) / len(own)


def test_published_figures_are_outlined_marks() -> None:
    figure = rm.figure(rm.records("mad_normal"), "front", beside="mesanet")
    (marks,) = traces(figure, "published")
    assert len(marks.x) > 0
    assert all(symbol.endswith("-open") for symbol in marks.marker.symbol)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ("frontt", {}, r"^figure: got 'frontt', expected front or learning \(did you mean 'front'\?\)$"),
        ("front", {"setting": "mqar: pears 8"}, r"^setting: got 'mqar: pears 8', expected .*mqar: pairs 8"),
        ("learning", {"setting": "MAD"}, "^setting: got 'MAD: mean over .*choose one of its tasks"),
    ],
)
def test_a_figure_that_there_is_not_is_refused(given: Any, options: Any, said: str, demo: Any) -> None:
    with pytest.raises(ValueError, match=said):
        rm.figure(demo, given, **options)


def test_names_of_records_are_text_to_plotly(trained: list[Record]) -> None:
    from dataclasses import replace

    named = [replace(record, arch="<b>%{x}") for record in trained]
    names = {trace.name for trace in traces(rm.figure(named), "means")}
    assert names == {"&lt;b&gt;&#37;{x}"}


def test_marks_and_colours_are_those_of_the_page_s_script() -> None:
    script = (ROOT / "results/page/assets/figures.js").read_text(encoding="utf-8")
    for name, ours in (("FIXED", drawing.FIXED), ("GROWING", drawing.GROWING)):
        (theirs,) = re.findall(rf"const {name} = \[(.*?)\];", script)
        assert tuple(re.findall(r'"([\w-]+)"', theirs)) == ours
    assert re.findall(r"COLOURS = (\d+)", script) == [str(drawing.COLOURS)]


# The probe. -----------------------------------------------------------------------------------------


def test_the_probe_gives_a_row_for_each_number_of_pairs() -> None:
    found = rm.probe(rm.arch("mesa", width=32), pairs=[2, 4])
    assert list(found.pairs) == [2, 4]
    assert (found.recall == 1).all()
