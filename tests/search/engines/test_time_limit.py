"""A run that ends at its time: what trains is saved, and the same command goes on to the same records."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.cli.unfinished import saved_of
from recallmap.search.engines import inline, pricing, shipped
from recallmap.search.engines.desk import Desk
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.plan import Report, Work
from recallmap.search.engines.shipped import ShippedCohort
from recallmap.search.engines.stopping import OUT_OF_TIME, is_noticed, stoppable
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import checkpoints, run_cohort
from recallmap.search.training.checkpoints import CheckpointFolder, checkpointing
from recallmap.search.training.time_limit import NEVER, TimeIsUp, TimeLimit
from recallmap.search.trials import Trial

ROOT = Path(__file__).parents[3]
STUDY: dict[str, Any] = {
    "name": "story",
    "trial": {
        "task": {"kind": "mqar", "vocab": 16, "length": 12, "pairs": 2},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "gated_deltanet", "heads": 2}}],
        },
        "training": {"steps": 12, "batch": 4, "evaluations": 3, "lr": 3e-3},
        "data": {"validation": 16, "test": 16},
    },
}
GRID = {"kind": "grid", "axes": {"trial.training.lr": [1e-3, 1e-2], "trial.seed": [0, 1]}}
SEARCH = {
    "kind": "tpe",
    "points": 3,
    "generation": 2,
    "over": {"trial.seed": [0, 1]},
    "dials": {"trial.training.lr": {"float": [1e-4, 1e-2], "log": True}},
}
GOALS = [{"score": "accuracy", "direction": "maximise"}]
LEARNERS = {
    "name": "learners",
    "trial": {"kind": "online", "task": {"kind": "learnability", "width": 8, "length": 64}},
    "space": {"kind": "grid", "axes": {"trial.seed": [0, 1]}},
}


def study(**more: Any) -> StudySpec:
    return codec.read_study(STUDY | {"space": GRID} | more)


def search() -> StudySpec:
    return study(space=SEARCH, goals=GOALS)


@dataclass(frozen=True, kw_only=True)
class After(TimeLimit):
    """A limit that is up after so many steps of training, and then for good."""

    until: float = 1e8
    steps: int
    asked: list[int] = field(default_factory=lambda: [0])

    @property
    def is_up(self) -> bool:
        return self.asked[0] >= self.steps

    def is_up_on(self, device: torch.device) -> bool:
        self.asked[0] += 1
        return self.is_up


def figures(path: Path) -> list[tuple[Any, ...]]:
    """All that training tells of a record, by key."""
    with Ledger.open(path) as ledger:
        return sorted(
            (r.key, r.status, str(r.scores), str(r.validation), str(r.curve), r.steps, r.selected_step)
            for r in ledger.all()
        )


def run(of: StudySpec, path: Path, limit: TimeLimit = NEVER, **rest: Any) -> None:
    inline.run(of, path, device="cpu", limit=limit, **rest)


def unfinished(path: Path) -> list[Path]:
    return list(checkpoints.checkpoint_folder(path).glob("*"))


@pytest.mark.parametrize("steps", [1, 3, 4, 7, 17])
@pytest.mark.parametrize("kind", ["grid", "search", "phases"])
def test_a_run_whose_time_is_up_at_any_step_goes_on_to_the_same_records(kind: str, steps: int, tmp_path: Path) -> None:
    """Before, at and after an evaluation, in the first cohort and in a later one. A phase that has ended is trained again."""
    first = STUDY["trial"]["training"] | {"lr": 1e-3}
    phases = STUDY["trial"] | {"kind": "phased", "phases": [{"training": first}, {}]}
    of = {
        "grid": study,
        "search": search,
        "phases": lambda: study(trial=phases, space={"kind": "grid", "axes": {"trial.seed": [0, 1]}}),
    }[kind]()
    size = 2 if kind == "grid" else None
    whole = _count_steps(lambda: run(of, tmp_path / "whole.sqlite", cohort_size=size))
    path = tmp_path / "cut.sqlite"
    with pytest.raises(TimeIsUp):
        run(of, path, After(steps=steps), cohort_size=size)
    (saved,) = CheckpointFolder(checkpoints.checkpoint_folder(path)).files()
    taken = saved.said["step"] + (12 if steps > 12 and kind != "phases" else 0)  # in the cohort before
    assert taken in (steps, steps + 1, steps - 11)
    assert _count_steps(lambda: run(of, path, cohort_size=size)) == whole - taken
    assert figures(path) == figures(tmp_path / "whole.sqlite")
    assert unfinished(path) == []


def _count_steps(call: Any) -> int:
    from recallmap.search.training.cohort import Cohort

    taken, step = [0], Cohort.train_step

    def counted(self: Cohort, *batch: Any) -> Any:
        taken[0] += 1
        return step(self, *batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cohort, "train_step", counted)
        call()
    return taken[0]


def test_a_run_that_is_cut_again_and_again_ends(tmp_path: Path) -> None:
    path, cuts = tmp_path / "cut.sqlite", 0
    while True:
        try:
            run(search(), path, After(steps=5))
        except TimeIsUp:
            cuts += 1
            continue
        break
    assert cuts > 3
    run(search(), tmp_path / "whole.sqlite")
    assert figures(path) == figures(tmp_path / "whole.sqlite")


def test_no_cohort_begins_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "train", None)
    with pytest.raises(TimeIsUp):
        run(study(), tmp_path / "a.sqlite", After(steps=0))
    with pytest.raises(TimeIsUp):
        run(search(), tmp_path / "b.sqlite", After(steps=0))


def test_a_run_that_is_through_in_its_time_says_nothing(tmp_path: Path) -> None:
    run(study(), tmp_path / "a.sqlite", TimeLimit.of(1e6))
    assert len(figures(tmp_path / "a.sqlite")) == 4
    run(study(), tmp_path / "a.sqlite", After(steps=0))  # all is known
    assert unfinished(tmp_path / "a.sqlite") == []


# What cannot be saved. --------------------------------------------------------------------------------


def _learners_at(rate: float, monkeypatch: pytest.MonkeyPatch) -> StudySpec:
    """A study of online learners, which are not saved while they learn, where operations take so long."""
    rates = pricing.Rates(whole=rate, source="a test") if rate else pricing.Rates(source="a test")
    monkeypatch.setattr(pricing, "rates_on", lambda device, ledger: rates)
    return codec.read_study(LEARNERS)


def test_a_cohort_that_cannot_be_saved_begins_only_where_its_time_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = _learners_at(1.0, monkeypatch)  # operation a second
    with pytest.raises(TimeIsUp):
        run(of, tmp_path / "slow.sqlite", TimeLimit.of(1e3))
    assert figures(tmp_path / "slow.sqlite") == []
    of = _learners_at(1e12, monkeypatch)
    run(of, tmp_path / "fast.sqlite", TimeLimit.of(1e3))
    assert len(figures(tmp_path / "fast.sqlite")) == 2


def test_where_no_rate_is_known_a_cohort_begins_and_stops_at_its_next_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass(frozen=True, kw_only=True)
    class OnceBegun(After):
        @property
        def is_up(self) -> bool:
            self.asked[0] += 1
            return self.asked[0] > self.steps

    of = _learners_at(0.0, monkeypatch)
    with pytest.raises(TimeIsUp):
        run(of, tmp_path / "a.sqlite", OnceBegun(steps=3))
    assert figures(tmp_path / "a.sqlite") == []


def test_a_short_cohort_goes_before_a_long_one_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was put off is not asked for again: its grid has no winner yet."""
    of = codec.read_study(LEARNERS | {"space": {"kind": "grid", "axes": {"trial.task.length": [128, 64]}}})
    _, short = of.trials()
    most = 1.5 * short.stretches[0][1]
    _learners_at(1.0, monkeypatch)
    with Ledger(tmp_path / "a.sqlite") as ledger:
        driver = Driver(of, ledger, where="cpu", limit=TimeLimit.of(most), cohort_size=1, seeds=3)
        work = driver.next()
        assert work is not None
        assert work.specs == (short,)
        assert (driver.next(), driver.out_of_time) == (None, True)
        driver.keep(work, [done(short)])
        assert (driver.next(), driver.finished, driver.out_of_time) == (None, False, True)


def done(spec: Trial) -> Record:
    return replace(run_cohort.failed(spec, "", study="story", device=torch.device("cpu")), status="done", error=None)


# In processes of their own. --------------------------------------------------------------------------


def test_the_desk_hands_out_nothing_once_time_is_up_and_takes_back_what_was_saved(tmp_path: Path) -> None:
    limit = After(steps=1)
    with Ledger(tmp_path / "a.sqlite") as ledger:
        driver = Driver(study(), ledger, cohort_size=2, where="cpu", limit=limit)
        desk = Desk(driver, "cpu", folder=tmp_path / "a.unfinished")
        cohort = desk.ask("one")
        assert cohort is not None
        assert (cohort.folder, cohort.limit) == (tmp_path / "a.unfinished", limit)
        limit.asked[0] = 1
        assert desk.ask("two") is None
        assert (desk.finished, driver.finished) == (True, False)
        desk.keep("one", None, {"training": 3.0})
        assert (desk.error, ledger.keys()) == (None, set())
        assert driver.time.seconds()["training"] == 3.0


def test_a_worker_saves_its_cohort_beside_others_and_the_next_resumes_it(tmp_path: Path) -> None:
    specs = study().trials()
    folder = tmp_path / "a.unfinished"
    cohort = ShippedCohort(Work(number=1, specs=specs), 0, 2, "story", "cpu", folder=folder, limit=After(steps=5))
    records, seconds = shipped.train(cohort, lambda _: None)
    assert records is None
    assert seconds["training"] > 0
    assert len(list(folder.iterdir())) == 1
    assert CheckpointFolder(folder).saved() == [frozenset(map(codec.key, cohort.specs))]
    assert _count_steps(lambda: shipped.train(replace(cohort, limit=NEVER), lambda _: None)) == 7
    assert list(folder.iterdir()) == []  # the folder itself stays: another worker may be about to save in it


@pytest.mark.slow
def test_a_run_with_ray_ends_at_its_time_and_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "story.yaml").write_text(codec.dump(study()), encoding="utf-8")
    steps: list[int] = []
    for _ in range(2):
        ended = command(tmp_path, "--engine", "ray", "--cohort-size", "2", "--for", "45s")
        assert ended.returncode == OUT_OF_TIME, ended.stderr
        saved = list(CheckpointFolder(tmp_path / "runs/story.unfinished").files())
        assert len(saved) == 2
        steps.append(min(one.said["step"] for one in saved))
    assert 0 < steps[0] < steps[1]


# The command line. -----------------------------------------------------------------------------------


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "story.yaml").write_text(codec.dump(study()), encoding="utf-8")
    return tmp_path


def test_time_is_up_is_said_with_how_to_go_on_and_has_its_exit_code(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeLimit, "of", lambda seconds, began: After(steps=5))
    monkeypatch.setattr("sys.argv", ["recallmap", "run", "story.yaml", "--for", "9m"])
    code, text, errors = call("run", "story.yaml", "--for", "9m", "--device", "cpu")
    assert (code, text) == (OUT_OF_TIME, "4 trials, 4 to train in 1 cohort\n")
    time_line, said, how = errors.splitlines()[1:]
    assert time_line.startswith("time: ")
    saved = "1 cohort is saved at step 5 of 12"
    assert said == f"stopped: time is up; 0 of 4 trials are in runs/story.sqlite; {saved}. To resume:"
    assert how == "  recallmap run story.yaml --for 9m"
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    code, text, errors = call("run", "story.yaml", "--device", "cpu")
    assert (code, errors) == (0, "")
    assert text.splitlines()[1] == "cohort 1 is resumed at step 5 of 12"
    assert "0 known, 4 done, 0 failed" in text


def test_a_resumed_cohort_says_its_step_before_it_trains_on(tmp_path: Path) -> None:
    """And what an earlier call has trained does not shorten the time that is left."""
    with pytest.raises(TimeIsUp):
        run(study(), tmp_path / "a.sqlite", After(steps=5))
    told: list[Report] = []
    run(study(), tmp_path / "a.sqlite", report=told.append)
    first, *rest = [one for one in told if one.progress is not None]
    assert first.progress is not None
    assert (first.progress.resumed, first.progress.step, first.progress.steps, first.eta) == (True, 5, 12, None)
    assert not any(one.progress.resumed for one in rest if one.progress)
    later = next(one for one in rest if one.progress and one.progress.step == 8)
    assert later.eta == pytest.approx(later.seconds * 4 / 3)


def test_a_stopped_run_says_what_is_saved_of_its_own_study(folder: Path) -> None:
    """Of a grid the cohorts of its trials; two studies may share a ledger."""
    path = folder / "runs/story.sqlite"
    with pytest.raises(TimeIsUp):
        run(study(), path, After(steps=5))
    (saved,) = saved_of(study(), path)
    assert (saved.step, saved.steps, saved.trials, saved.in_phase) == (5, 12, 4, False)
    other = study(space=GRID | {"axes": {"trial.seed": [7]}})
    assert saved_of(other, path) == []
    assert saved_of(other, path, study().trials()) == [saved]
    assert saved_of(search(), path) == [saved]  # whose trials no grid names


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("9m", 540), ("1h30m", 5400), ("90", 90), ("1d2h3m4s", 93_784), ("120m", 7200)]
)
def test_a_time_is_said_in_units_or_in_seconds(
    folder: Path, text: str, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def of(length: float, began: float) -> TimeLimit:
        asked.append(length)
        return NEVER

    monkeypatch.setattr(TimeLimit, "of", of)
    assert call("run", "story.yaml", "--for", text, "--dry-run")[0] == 0
    assert asked == [seconds]


@pytest.mark.parametrize(
    "text",
    ["0", "0s", "-5", "-1m", "", "m", "9 m", "9M", "30m1h", "1.5h", "nine minutes", "inf", "nan", "9" * 30, "²s"],
)
@pytest.mark.parametrize("verb", [("run", "story.yaml", "--dry-run"), ("bench", "study", "story.yaml")])
def test_what_is_no_time_is_refused_with_what_is(folder: Path, verb: Sequence[str], text: str) -> None:
    code, said, errors = call(*verb, "--for", text)
    assert (code, said) == (2, "")
    assert errors == f"--for: got {text!r}, expected a time of at least 1s, such as 90s, 9m, 1h30m or 90 (seconds)\n"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer signals")
def test_what_runs_past_its_time_is_broken_off_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compiler that takes minutes. What cleans up is left alone."""
    rung: list[tuple[int, float]] = []
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: rung.append((which, seconds)))
    before = signal.getsignal(signal.SIGALRM)
    with stoppable(TimeLimit.of(100)):
        assert len(rung) == 1
        assert rung[0][1] > 100
        with pytest.raises(TimeIsUp):
            os.kill(os.getpid(), signal.SIGALRM)
    assert rung[-1] == (signal.ITIMER_REAL, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before
    with stoppable(TimeLimit.of(100)):
        is_noticed()
        assert rung[-1] == (signal.ITIMER_REAL, 0.0)
    with stoppable():
        assert rung[-1][1] == 0.0
    assert sum(seconds > 0 for _, seconds in rung) == 2


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A run of the study in this folder, of trials of a million steps, in a process of its own."""
    program = "from recallmap.search.cli import main; main()"
    words = ("run", "story.yaml", "--device", "cpu", "--set", "trial.training.steps=1000000", *words)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=folder, env=env, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_process_ends_at_its_time_with_its_cohort_saved(folder: Path) -> None:
    ended = command(folder, "--for", "20s")
    assert ended.returncode == OUT_OF_TIME, ended.stderr
    assert "Traceback" not in ended.stderr
    (saved,) = CheckpointFolder(folder / "runs/story.unfinished").files()
    step = f"1 cohort is saved at step {saved.said['step']:,} of 1,000,000"
    assert f"stopped: time is up; 0 of 4 trials are in runs/story.sqlite; {step}. To resume:" in ended.stderr
    assert 0 < saved.said["step"] < 1_000_000


def test_a_limit_counts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [10.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    limit = TimeLimit.of(60)
    assert (limit.left, limit.is_up, limit.is_set) == (60, False, True)
    assert TimeLimit.of(60, began=4.0).left == 54
    assert limit.earlier(3).left == 57
    now[0] = 70.0
    assert (limit.left, limit.is_up, limit.is_up_on(torch.device("cpu"))) == (0, True, True)
    assert (NEVER.left, NEVER.is_up, NEVER.is_set) == (math.inf, False, False)


def test_a_limited_cohort_is_saved_more_often(tmp_path: Path) -> None:
    """A phase that ends is not saved for itself, and a run that is broken off loses what was not."""
    with checkpointing(CheckpointFolder(tmp_path)) as own:
        own.limited(TimeLimit.of(60))
        assert own.every == 15.0
        own.limited(NEVER)
        assert own.every == 15.0
