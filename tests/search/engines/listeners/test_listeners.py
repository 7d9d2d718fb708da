"""Listeners: what they are told, that they cannot harm a run, and the real libraries where these are installed."""

from __future__ import annotations

import ast
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import recallmap as rm
from recallmap.arch.mixers import LinearAttention
from recallmap.results.record import Record
from recallmap.search.cli.app import app
from recallmap.search.engines import inline
from recallmap.search.engines.listeners import LISTENERS, audience
from recallmap.search.engines.listeners.audience import Audience, listening
from recallmap.search.engines.listeners.listener import Followed, figures_of
from recallmap.search.engines.plan import Report
from recallmap.search.python.running import run
from recallmap.search.training import checkpoints
from recallmap.search.trial import Data, Training
from recallmap.search.trials.phased import Phase, PhasedTrial

TINY: dict[str, Any] = {"steps": 6, "batch": 4, "evaluations": 3, "data": {"validation": 8, "test": 8}}


TASK = rm.task("mqar", vocab=32, length=16, pairs=2)
ARCH = rm.arch(LinearAttention(heads=2), width=16, name="tiny/net")


def trial(**options: Any) -> Any:
    return rm.trial(TASK, ARCH, **(TINY | options))


class Diary(rm.Listener):
    """Writes down all that it is told; raises in the method of this name."""

    def __init__(self, raises: str = "") -> None:
        self.raises = raises
        self.lines: list[tuple[Any, ...]] = []

    def told(self, what: str, *of: Any) -> None:
        self.lines.append((what, *of))
        if what == self.raises:
            raise ConnectionError("nobody answers\nat all")

    def open(self, study: str) -> None:
        self.told("open", study)

    def begin(self, trial: Followed) -> None:
        self.told("begin", trial)

    def point(self, trial: Followed, step: int, values: Mapping[str, float]) -> None:
        self.told("point", trial, step, values)

    def end(self, trial: Followed, record: Record) -> None:
        self.told("end", trial, record)

    def close(self) -> None:
        self.told("close")

    def of(self, what: str) -> list[tuple[Any, ...]]:
        return [line[1:] for line in self.lines if line[0] == what]


def points_of(diary: Diary, record: Record) -> list[tuple[int, float, float, float]]:
    names = ("train/loss", "validation/loss", "validation/accuracy")
    return [(step, *(values[n] for n in names)) for one, step, values in diary.of("point") if one.key == record.key]


def curve_of(record: Record) -> list[tuple[Any, ...]]:
    return list(zip(*(record.curve[name] for name in ("step", *audience.CURVE)), strict=True))


# What they are told. ------------------------------------------------------------------------------


def test_a_listener_is_told_of_each_trial_its_curve_and_its_record() -> None:
    diary = Diary()
    records = run([trial(seed=0), trial(seed=1, stop_at=-1.0)], device="cpu", log=[diary])
    assert [line[0] for line in diary.lines[:3]] == ["open", "begin", "begin"]
    assert diary.lines[0][1] == "python"
    assert diary.lines[-1] == ("close",)
    begun = {one.key: one for (one,) in diary.of("begin")}
    assert {one.key: record for one, record in diary.of("end")} == {record.key: record for record in records}
    for record in records:
        assert points_of(diary, record) == curve_of(record)
        assert begun[record.key].name == f"tiny_net-mqar-seed{record.seed}-{record.key[:12]}"
        assert begun[record.key].parameters["training.lr"] == 1e-3
        assert begun[record.key].parameters["arch.width"] == 16


def test_points_come_while_a_trial_trains() -> None:
    diary = Diary()
    seen = []

    def report(told: Report) -> None:
        if told.progress is not None:
            seen.append([step for _, step, _ in diary.of("point")])

    run(trial(), device="cpu", log=[diary], report=report)
    assert seen == [[2], [2, 4], [2, 4, 6]]


def test_points_of_a_trial_in_phases_come_at_its_end() -> None:
    spec = PhasedTrial(
        task=TASK,
        arch=ARCH,
        training=Training(steps=4, batch=4, evaluations=2),
        data=Data(validation=8, test=8),
        phases=(Phase(), Phase()),
    )
    diary = Diary()
    (record,) = run(spec, device="cpu", log=[diary])
    assert [point[0] for point in points_of(diary, record)] == [2, 4, 6, 8]
    assert points_of(diary, record) == curve_of(record)


def test_a_resumed_trial_has_its_whole_curve_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints.CheckpointFolder.__init__, "__defaults__", (0.0,))

    def stopped(told: Report) -> None:
        if told.progress is not None:
            raise KeyboardInterrupt

    first, second = Diary(), Diary()
    with pytest.raises(KeyboardInterrupt):
        run(trial(), ledger=tmp_path / "a.sqlite", device="cpu", log=[first], report=stopped)
    assert [line[0] for line in first.lines] == ["open", "begin", "point", "close"]
    (record,) = run(trial(), ledger=tmp_path / "a.sqlite", device="cpu", log=[second])
    assert sorted(points_of(second, record)) == curve_of(record)


def test_a_failed_trial_ends_with_its_error_and_a_known_one_is_not_told_of(tmp_path: Path) -> None:
    diary = Diary()
    diverging = trial(lr=1e30, clip=None)
    run(trial(), ledger=tmp_path / "a.sqlite", device="cpu")
    run([trial(), diverging], ledger=tmp_path / "a.sqlite", device="cpu", log=[diary])
    assert len(diary.of("begin")) == 1
    ((_, record),) = diary.of("end")
    assert (record.status, record.error[:9]) == ("failed", "diverged:")
    assert all(math.isfinite(value) for _, _, values in diary.of("point") for value in values.values())
    assert "test/accuracy" not in figures_of(record)


def test_figures_of_a_record_are_its_scores_and_its_costs() -> None:
    (record,) = run(trial(tests=[rm.task("mqar", vocab=32, length=16, pairs=4)]), device="cpu")
    figures = figures_of(record)
    assert figures["test/accuracy"] == record.scores["accuracy"]
    assert figures["test 1/accuracy"] == record.tests[0]["scores"]["accuracy"]
    assert figures["chosen/loss"] == record.validation["loss"]
    assert figures["state_bytes"] == record.state_bytes


# They cannot harm a run. --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["begin", "point", "end", "close"])
def test_an_error_in_a_listener_is_told_once_and_loses_nothing(method: str) -> None:
    broken, sound = Diary(method), Diary()
    notes: list[str] = []
    specs = [trial(seed=seed) for seed in range(2)]
    with (
        pytest.warns(UserWarning, match="^Diary 1: ConnectionError: nobody answers; what it logged may not be whole$")
        if method == "close"
        else nullcontext()
    ):
        records = run(specs, device="cpu", log=[broken, sound], report=lambda told: notes.extend(told.notes))
    assert [record.status for record in records] == ["done", "done"]
    assert len(sound.of("end")) == 2
    said = "Diary 1: ConnectionError: nobody answers; the run goes on without it"
    assert notes == ([] if method == "close" else [said])
    assert len(broken.of(method)) == 1
    assert broken.lines[-1] == ("close",)


def test_a_listener_that_cannot_be_opened_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "train", None)
    broken, sound = Diary("open"), Diary()
    with pytest.raises(rm.SpecError, match=r"^log: Diary 2: cannot be opened: ConnectionError: nobody answers$"):
        run(trial(), log=[sound, broken])
    assert sound.lines == [("open", "python"), ("close",)]


def test_the_record_is_in_the_ledger_before_listeners_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"

    class Reader(Diary):
        def end(self, trial: Followed, record: Record) -> None:
            self.lines.append((trial.key in set(rm.records(path).key),))

    reader = Reader()
    run(trial(), ledger=path, device="cpu", log=[reader])
    assert (True,) in reader.lines


def test_listeners_have_the_proxies_of_the_user_whatever_an_engine_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    http, *_, others = audience.PROXIES
    monkeypatch.setenv(http, "http://theirs")
    monkeypatch.delenv(others, raising=False)
    seen = []

    class Looking(Diary):
        def close(self) -> None:
            seen.append((os.environ.get(http), os.environ.get(others)))

    heard = Audience({"looking": Looking()})
    for name in (http, others):
        monkeypatch.setenv(name, "of the engine")
    heard.close()
    assert seen == [("http://theirs", None)]
    assert (os.environ[http], os.environ[others]) == ("of the engine", "of the engine")


# Words on the command line. -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("wandb", "--log: got 'wandb', expected tensorboard:DIR, wandb:PROJECT or mlflow:URI"),
        ("mlflow:", "--log: got 'mlflow:', expected tensorboard:DIR, wandb:PROJECT or mlflow:URI"),
        (
            "tensorbord:runs",
            "--log: got 'tensorbord:runs', expected tensorboard:DIR, wandb:PROJECT or mlflow:URI (did you mean 'tensorboard'?)",
        ),
    ],
)
def test_a_word_that_names_no_listener_is_refused(
    word: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["run", "demo", "--set", "budget=smoke", "--device", "cpu", "--log", word])
    assert (result.exit_code, result.output) == (2, f"{said}\n")
    assert not Path("runs").exists()


@pytest.mark.parametrize("name", LISTENERS)
def test_a_library_that_is_missing_is_named_with_its_remedy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audience, "find_spec", lambda _: None)
    remedy = f"^--log: {name} is not installed; add it with: pip install 'recallmap\\[{name}\\]'$"
    with pytest.raises(rm.SpecError, match=remedy), listening([f"{name}:x"], "tiny", say=print):
        raise AssertionError("it was opened")


def test_a_library_is_imported_only_when_its_listener_is_opened() -> None:
    folder = Path(inline.__file__ or "").parent / "listeners"
    for path in folder.glob("*.py"):
        at_once = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {getattr(node, "module", None) or node.names[0].name for node in at_once}
        assert not {name.split(".")[0] for name in names} & {"torch", *LISTENERS}


# The real libraries. ------------------------------------------------------------------------------

needs = {name: pytest.mark.skipif(find_spec(name) is None, reason=f"needs {name}") for name in LISTENERS}

STUDY = """name: tiny
trial:
  task: {kind: mqar, vocab: 32, length: 16, pairs: 2}
  arch: {name: tiny, width: 16, stack: [{kind: block, mixer: {kind: linear_attention, heads: 2}}]}
  training: {steps: 6, batch: 4, evaluations: 3, clip: null}
  data: {validation: 8, test: 8}
space: {kind: grid, axes: {trial.training.lr: [1e-3, 1e+30]}}
"""


def logged(word: str, tmp_path: Path, **environment: str) -> tuple[Record, Record]:
    """The records of a trial that learned and of one that diverged, in a process of its own."""
    (tmp_path / "tiny.yaml").write_text(STUDY)
    words = ["-m", "recallmap", "run", "tiny.yaml", "--device", "cpu", "--log", word]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr  # one has failed
    assert "goes on without" not in done.stdout + done.stderr
    with rm.Ledger.open(tmp_path / "runs" / "tiny.sqlite") as ledger:
        records = sorted(ledger.all(), key=lambda record: record.status)
    return records[0], records[1]


@pytest.mark.slow
@needs["tensorboard"]
def test_tensorboard_shows_curves_and_scores(tmp_path: Path) -> None:
    done, failed = logged("tensorboard:events", tmp_path)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (tmp_path / "events" / "tiny").glob(f"*{done.key[:12]}")
    seen = EventAccumulator(str(folder))
    seen.Reload()
    losses = [(event.step, event.value) for event in seen.Scalars("validation/loss")]
    wanted = list(zip(done.curve["step"], done.curve["validation_loss"], strict=True))
    assert losses == [(step, pytest.approx(value, rel=1e-6)) for step, value in wanted]
    assert seen.Scalars("test/accuracy")[-1].value == pytest.approx(done.scores["accuracy"])
    assert "_hparams_/session_start_info" in seen.summary_metadata
    (folder,) = (tmp_path / "events" / "tiny").glob(f"*{failed.key[:12]}")
    seen = EventAccumulator(str(folder))
    seen.Reload()
    assert seen.Tensors("error/text_summary")[0].tensor_proto.string_val[0].decode() == failed.error


def entries_of(data: bytes, block: int = 2**15, head: int = 7) -> Iterator[bytes]:
    """The entries of wandb's file: a log as LevelDB's, in blocks, with a head of its own."""
    place, parts = head, b""
    while place < len(data):
        if block - place % block < head:
            place += block - place % block
        size, kind = struct.unpack_from("<HB", data, place + 4)
        parts += data[place + head : place + head + size]
        place += head + size
        if kind in (1, 4):  # the whole of an entry, or its last part
            yield parts
            parts = b""


@pytest.mark.slow
@needs["wandb"]
def test_wandb_offline_keeps_runs_and_contacts_nobody(tmp_path: Path) -> None:
    nowhere = dict.fromkeys(audience.PROXIES[:3], "http://127.0.0.1:9")
    done, failed = logged("wandb:maps", tmp_path, WANDB_MODE="offline", **nowhere)
    from wandb.proto import wandb_internal_pb2

    def read(record: Record) -> list[Any]:
        (file,) = (tmp_path / "wandb").glob(f"offline-run-*-{record.key[:32]}/*.wandb")
        return [wandb_internal_pb2.Record.FromString(data) for data in entries_of(file.read_bytes())]

    entries = read(done)
    (begun, *_) = [one.run for one in entries if one.WhichOneof("record_type") == "run"]
    assert (begun.project, begun.run_group, begun.display_name[-12:]) == ("maps", "tiny", done.key[:12])
    steps = [
        item.value_json
        for one in entries
        if one.WhichOneof("record_type") == "history"
        for item in one.history.item
        if "step" in (item.key, *item.nested_key)
    ]
    assert [step for step in steps if step in ("2", "4", "6")] == ["2", "4", "6"]
    ends = [one.exit.exit_code for one in (*entries, *read(failed)) if one.WhichOneof("record_type") == "exit"]
    assert ends == [0, 1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of libraries that MLflow imports
@needs["mlflow"]
def test_mlflow_has_a_run_for_each_trial(tmp_path: Path) -> None:
    done, failed = logged("mlflow:sqlite:///mlflow.db", tmp_path)
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    runs = {
        one.data.tags["recallmap.key"]: one
        for one in client.search_runs([client.get_experiment_by_name("tiny").experiment_id])
    }
    assert {key: one.info.status for key, one in runs.items()} == {done.key: "FINISHED", failed.key: "FAILED"}
    one = runs[done.key]
    assert one.data.metrics["test/accuracy"] == done.scores["accuracy"]
    assert one.data.params["training.lr"] == "0.001"
    history = client.get_metric_history(one.info.run_id, "validation/loss")
    assert [(point.step, point.value) for point in history] == list(
        zip(done.curve["step"], done.curve["validation_loss"], strict=True)
    )
    assert runs[failed.key].data.tags["error"] == failed.error


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of libraries that MLflow imports
@needs["mlflow"]
def test_a_trial_that_is_resumed_goes_on_in_its_run_of_mlflow(tmp_path: Path) -> None:
    from mlflow import MlflowClient

    store = f"sqlite:///{tmp_path}/mlflow.db"
    client = MlflowClient(tracking_uri=store)

    def stopped(told: Report) -> None:
        if told.progress is not None:
            raise KeyboardInterrupt

    def runs() -> list[Any]:
        return list(client.search_runs([client.get_experiment_by_name("python").experiment_id]))

    with pytest.raises(KeyboardInterrupt):
        run(trial(), ledger=tmp_path / "a.sqlite", device="cpu", log=[f"mlflow:{store}"], report=stopped)
    (one,) = runs()
    assert one.info.status == "KILLED"
    (record,) = run(trial(), ledger=tmp_path / "a.sqlite", device="cpu", log=[f"mlflow:{store}"])
    (again,) = runs()
    assert (again.info.run_id, again.info.status) == (one.info.run_id, "FINISHED")
    assert again.data.metrics["test/accuracy"] == record.scores["accuracy"]
