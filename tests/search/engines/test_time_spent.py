"""Where the time of a run goes: every moment is in one phase, and the shares are of the whole."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.engines import inline
from recallmap.search.engines.plan import Report
from recallmap.search.engines.time_spent import TimeSpent, percents
from recallmap.search.measurement.gpu_busy import BusyShare, reader, sampled
from recallmap.search.study.spec import StudySpec
from recallmap.search.training.cuda_graph import CapturedStep
from recallmap.search.training.phase_clock import OTHER, PHASES, PhaseClock, phase, timing

STUDY: dict[str, Any] = {
    "name": "story",
    "trial": {
        "task": {"kind": "mqar", "vocab": 16, "length": 12, "pairs": 2},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "gated_deltanet", "heads": 2}}],
        },
        "training": {"steps": 4, "batch": 4, "evaluations": 2, "lr": 3e-3},
        "data": {"validation": 16, "test": 16},
    },
    "space": {"kind": "grid", "axes": {"trial.seed": [0, 1, 2]}},
}
SEARCH: dict[str, Any] = {
    "space": {"kind": "random", "points": 3, "dials": {"trial.training.lr": {"float": [1e-4, 1e-2], "log": True}}},
    "goals": [{"score": "accuracy", "direction": "maximise"}],
}


class Seconds:
    """A clock that is set by hand, or goes on by a step whenever it is read."""

    def __init__(self, step: float = 0.0) -> None:
        self.time, self.step = 0.0, step

    def __call__(self) -> float:
        self.time += self.step
        return self.time


def test_a_phase_counts_its_own_time_without_that_of_the_phases_inside() -> None:
    now = Seconds()
    with timing(PhaseClock(now)) as clock:
        now.time += 1
        with phase("training"):
            now.time += 2
            with phase("drawing"):
                now.time += 4
            with phase("drawing"), phase("writing"):
                now.time += 8
            now.time += 16
        now.time += 32
    found = {name: spent for name, spent in clock.seconds().items() if spent}
    assert found == {"training": 18, "drawing": 4, "writing": 8, OTHER: 33}
    assert sum(found.values()) == now.time


def test_a_phase_that_raises_ends() -> None:
    now = Seconds()

    @phase("building")
    def build() -> None:
        now.time += 3
        raise KeyError

    with timing(PhaseClock(now)) as clock:
        with pytest.raises(KeyError):
            build()
        now.time += 5
        assert clock.open == [OTHER]
    assert (clock.seconds()["building"], clock.seconds()[OTHER]) == (3, 5)


def test_without_a_clock_and_in_other_threads_nothing_is_timed() -> None:
    with phase("drawing"):
        pass
    now = Seconds()

    def draw() -> None:
        with phase("drawing"):
            now.time += 7

    with timing(PhaseClock(now)) as clock:
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
    assert clock.seconds() == dict.fromkeys(PHASES, 0.0) | {OTHER: 7.0}


def study(**more: Any) -> StudySpec:
    return codec.read_study(STUDY | more)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Report]:
    """Reports of runs whose clock goes on by a second whenever it is read."""
    monkeypatch.setattr(PhaseClock.__init__, "__defaults__", (Seconds(1.0),))
    return []


@pytest.mark.parametrize("searched", [False, True], ids=["grid", "search"])
def test_every_phase_of_a_run_is_counted_and_all_are_the_whole(
    searched: bool, told: list[Report], tmp_path: Path
) -> None:
    inline.run(study(**SEARCH if searched else {}), tmp_path / "a.sqlite", device="cpu", report=told.append)
    spent = told[-1].time
    seconds, shares = spent.seconds(), spent.shares()
    assert set(seconds) == {*PHASES, OTHER}
    assert {name for name, one in seconds.items() if not one} == {"compiling", "capturing"}  # on a CPU nothing is
    assert sum(shares.values()) == pytest.approx(1)
    assert sum(percents(shares).values()) == 100
    assert (spent.trials, spent.cohorts, spent.members) == (3, *((1, 3) if not searched else (spent.cohorts, 3)))
    assert spent.points == (3 if searched else 0)
    figures = spent.figures()
    assert figures["trials an hour"] == pytest.approx(3 * 3600 / spent.wall, rel=0.05)
    assert (figures["points an hour"] is None) == (not searched)
    assert (figures["GPU busy"], figures["cohorts at once"]) == (None, None)


def test_compiling_is_no_part_of_the_capture_that_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    now = Seconds()

    class Step:
        device = torch.device("cpu")
        bad_step = torch.zeros(1)

        def memory(self) -> list[torch.Tensor]:
            now.time += 1
            return []

        def compile(self, batch: object) -> str:
            now.time += 2
            raise KeyboardInterrupt

    with timing(PhaseClock(now)) as clock, pytest.raises(KeyboardInterrupt):
        CapturedStep(Step())(torch.zeros(1))  # type: ignore[arg-type]
    assert (clock.seconds()["capturing"], clock.seconds()["compiling"]) == (1, 2)


def test_the_time_of_workers_counts_and_not_that_of_the_driver_who_waits() -> None:
    now = Seconds()
    spent = TimeSpent(clock=PhaseClock(now))
    with timing(spent.clock):
        now.time += 90
        with phase("proposing"):
            now.time += 10
    spent.add({"training": 100.0, "drawing": 60.0, OTHER: 10.0})
    spent.add({"training": 20.0})
    assert {name: one for name, one in spent.seconds().items() if one} == {
        "training": 120,
        "drawing": 60,
        "proposing": 10,
        OTHER: 10,
    }
    assert spent.figures()["cohorts at once"] == pytest.approx(1.9)


def test_a_clock_that_was_stopped_tells_the_same_again() -> None:
    spent = TimeSpent(clock=PhaseClock(Seconds(1.0)))
    assert spent.seconds() != spent.seconds()
    spent.clock.stop()
    assert spent.rows() == spent.rows()
    assert spent.seconds()[OTHER] == spent.wall


def test_the_line_of_a_run() -> None:
    now = Seconds()
    spent = TimeSpent(clock=PhaseClock(now), trials=63, points=16)
    with timing(spent.clock):
        now.time += 13
        with phase("training"):
            now.time += 170.9
        with phase("evaluating"):
            now.time += 146.1
    spent.begin(1)
    spent.begin(2)
    for share in (0.2, 0.7):
        spent.busy.add(share)
    assert spent.line() == (
        "time: 330 s: training 52%, evaluating 44%, other 4%; 687 trials an hour, 175 points an hour; 1.5 trials a cohort; "
        "GPU busy 45%"
    )
    spent.failed = 3
    assert "; 687 trials an hour, 175 points an hour, 3 of 63 failed; 1.5 trials a cohort; " in spent.line()
    spent.members = spent.cohorts
    assert "; 1 trial a cohort; " in spent.line()


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, {"a": 34, "b": 33, "c": 33}),
        ({"a": 0.996, "b": 0.002, "c": 0.002}, {"a": 100, "b": 0, "c": 0}),
        ({"a": 0.0, "b": 1.0}, {"a": 0, "b": 100}),
    ],
)
def test_percents_add_up(shares: dict[str, float], expected: dict[str, int]) -> None:
    assert percents(shares) == expected


# The GPU. --------------------------------------------------------------------------------------------


def test_a_gpus_busy_share_is_a_mean_of_samples() -> None:
    found, enough = iter([0.0, 1.0, 0.5, 0.7]), threading.Event()

    def read() -> float:
        try:
            return next(found)
        except StopIteration:
            enough.set()
            raise OSError from None

    with sampled(read, every=0.0) as busy:
        assert enough.wait(60)
    assert busy.mean == pytest.approx(0.55)
    assert BusyShare().mean is None


def test_a_cpu_has_no_busy_share() -> None:
    assert reader([torch.device("cpu")]) is None
    assert reader([]) is None
    with sampled(None) as busy:
        assert threading.active_count() >= 1
    assert busy.mean is None


@pytest.mark.gpu
def test_a_gpu_that_multiplies_is_busy() -> None:
    device = torch.device("cuda")
    x = torch.randn(8192, 8192, device=device)
    with sampled(reader([device])) as busy:
        while busy.samples < 12:
            for _ in range(10):
                x @ x
            torch.cuda.synchronize()
    assert busy.mean is not None
    assert busy.mean > 0.5


# The command line. -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.yaml").write_text(codec.dump(study()), encoding="utf-8")
    (tmp_path / "search.yaml").write_text(json.dumps(STUDY | SEARCH), encoding="utf-8")
    return tmp_path


def out(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_a_run_says_where_its_time_went_unless_it_trained_nothing(folder: Path) -> None:
    lines = out("run", "story.yaml", "--device", "cpu").splitlines()
    assert re.fullmatch(r"time: \d+ s: (\w+ \d+%(, |; ))+[\d,]+ trials an hour; 3 trials a cohort", lines[-3])
    assert sum(map(int, re.findall(r"(\d+)%", lines[-3]))) == 100
    assert lines[-2:] == ["0 known, 3 done, 0 failed, in runs/story.sqlite", "next: recallmap table story.yaml"]
    assert "time:" not in out("run", "story.yaml", "--device", "cpu")
    assert " points an hour; " in out("run", "search.yaml", "--ledger", "search.sqlite", "--device", "cpu")


def test_the_bench_of_a_study_keeps_its_figures_and_nothing_else(folder: Path) -> None:
    said = out("bench", "study", "story.yaml", "--for", "60s", "--device", "cpu", "-o", "rows.jsonl")
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows] == [*PHASES, OTHER]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert {(row["study"], row["trials"], row["cohorts"], row["mean cohort size"]) for row in rows} == {
        ("story", 3, 1, 3.0)
    }
    own = re.findall(r"(?m)^ (\w+) +\S+ +(\d+%) *$", said)
    assert [phase for phase, _ in own] == [*PHASES, OTHER]
    assert {(phase, share) for phase, share in own if share != "0%"} == set(re.findall(r"(\w+) (\d+%)", said))
    assert said.splitlines()[-1].startswith("time: ")
    assert sorted(path.name for path in folder.iterdir()) == ["rows.jsonl", "search.yaml", "story.yaml"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("study",), "bench study: got no study, expected a built-in name or a file"),
        (("study", "nosuch"), "nosuch: no built-in study and no file"),
        (("step", "story.yaml"), "bench step: got a second word, 'story.yaml', expected none"),
        (("step", "--cohorts-per-gpu", "2"), "bench step: got --cohorts-per-gpu, which is for bench study STUDY alone"),
        (
            ("study", "story.yaml", "--cohorts-per-gpu", "2", "--device", "cpu"),
            "--cohorts-per-gpu must be 1 on a CPU, where --engine inline trains one cohort after another; got 2; leave it out",
        ),
    ],
)
def test_a_bench_says_what_it_wants(folder: Path, words: tuple[str, ...], told: str) -> None:
    result = CliRunner().invoke(app, ["bench", *words])
    assert result.exit_code == 2
    assert result.stderr.startswith(told)
