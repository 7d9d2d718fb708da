"""Cohorts that train at once, in a process each: the same records as one after another, and one owner of the ledger."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recallmap.results.ledger import Ledger
from recallmap.search import codec
from recallmap.search.documents import outside
from recallmap.search.engines import cohort_process, inline, side_by_side
from recallmap.search.engines.driver import Driver, EngineError
from recallmap.search.engines.plan import Report
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import checkpoints, device_time, run_cohort
from recallmap.search.training.devices import DeviceLost
from recallmap.search.training.time_limit import TimeLimit
from recallmap.search.workers.pool import Program

STUDY: dict[str, Any] = {
    "name": "story",
    "trial": {
        "task": {"kind": "mqar", "vocab": 16, "length": 12, "pairs": 2},
        "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": "linear_attention"}]},
        "training": {"steps": 12, "batch": 4, "evaluations": 3, "lr": 3e-3},
        "data": {"validation": 16, "test": 16},
    },
    "space": {
        "kind": "grid",
        "axes": {
            "trial.arch.stack": [
                [{"kind": "block", "mixer": {"kind": kind, "heads": 2}}] for kind in ("gla", "deltanet", "mesa")
            ],
            "trial.seed": [0, 1, 2],
        },
    },
}
SEARCH = {
    "kind": "tpe",
    "points": 3,
    "generation": 2,
    "over": {"trial.seed": [0, 1]},
    "dials": {"trial.arch.stack[0].mixer.heads": {"choice": [1, 2, 4]}},
}

# A mixer from outside. It ends processes that are not the driver's, or faults the GPU where it trains.
HOSTILE = """
import os, signal
from dataclasses import dataclass
from typing import ClassVar, Literal
import torch
from recallmap.arch.mixers.linear_attention import LinearAttention

@dataclass(frozen=True, kw_only=True)
class Hostile(LinearAttention):
    kind: Literal["hostile"] = "hostile"
    how: Literal["dies", "dies once", "faults"] = "dies"

    def build(self, *args, **rest):
        first = self.how == "dies once" and not os.path.exists(os.environ["DIED"])
        if str(os.getpid()) != os.environ["DRIVER"] and (self.how == "dies" or first):
            open(os.environ["DIED"], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        module = super().build(*args, **rest)
        if self.how == "faults":
            module.register_forward_pre_hook(fault)
        return module

def fault(module, inputs):
    if inputs[0].is_cuda and inputs[0].shape[-2] == 12:  # as many tokens as in training, and in no check before it
        torch.zeros(4, device="cuda")[torch.tensor([2**20], device="cuda")].sum().item()
"""


def study(**more: Any) -> StudySpec:
    return codec.read_study(STUDY | more)


def search() -> StudySpec:
    return study(space=SEARCH, goals=[{"score": "accuracy", "direction": "maximise"}])


def figures(path: Path) -> list[tuple[Any, ...]]:
    """All that training tells of a record, by key."""
    with Ledger.open(path) as ledger:
        return sorted(
            (r.key, r.status, str(r.scores), str(r.curve), r.steps, str(r.implementation), r.cohort)
            for r in ledger.all()
        )


def run(of: StudySpec, path: Path, at_once: int, **rest: Any) -> None:
    inline.run(of, path, device="cpu", cohorts_per_gpu=at_once, cohort_size=2, **rest)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    """The figures of the study, one cohort after another."""
    path = tmp_path_factory.mktemp("whole") / "one.sqlite"
    run(study(), path, 1)
    return figures(path)


def test_records_are_those_of_one_cohort_after_another(tmp_path: Path, whole: list[tuple[Any, ...]]) -> None:
    path, last = tmp_path / "two.sqlite", []
    run(study(), path, 2, report=last.append)
    assert figures(path) == whole
    assert not checkpoints.checkpoint_folder(path).exists()
    assert last[-1].time.figures()["cohorts at once"] is not None


def test_a_search_proposes_and_finds_what_it_does_one_cohort_after_another(tmp_path: Path) -> None:
    run(search(), tmp_path / "one.sqlite", 1)
    run(search(), tmp_path / "two.sqlite", 2)
    assert figures(tmp_path / "two.sqlite") == figures(tmp_path / "one.sqlite")


def test_stopped_under_way_all_cohorts_are_saved_and_the_same_call_goes_on(
    tmp_path: Path, whole: list[tuple[Any, ...]]
) -> None:
    path = tmp_path / "cut.sqlite"

    def stop(report: Report) -> None:
        if report.progress is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study(), path, 2, report=stop)
    assert len(figures(path)) < 9
    run(study(), path, 1)
    assert figures(path) == whole
    assert not checkpoints.checkpoint_folder(path).exists()


def test_a_trial_that_kills_its_process_fails_alone(tmp_path: Path, hostile: Callable[..., StudySpec]) -> None:
    path = tmp_path / "a.sqlite"
    run(hostile("dies once", "dies"), path, 2)
    said = "the worker died 2 times: its process was ended by SIGKILL"
    assert ends(path) == {"sound": None, "dies once": None, "dies": said}  # each alone, once it died beside another


def ends(path: Path) -> dict[str, str | None]:
    """The errors of trials, by what is wrong with their mixers."""
    with Ledger.open(path) as ledger:
        return {r.spec["arch"]["stack"][0]["mixer"].get("how", "sound"): r.error for r in ledger.all()}


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., StudySpec]]:
    """A study of a trial that trains and of some that do not."""
    monkeypatch.setenv("DRIVER", str(os.getpid()))
    monkeypatch.setenv("DIED", str(tmp_path / "died"))
    (tmp_path / "hostile.py").write_text(HOSTILE)
    outside.use([str(tmp_path / "hostile.py")])

    def made(*how: str) -> StudySpec:
        mixers = ({"kind": "gla", "heads": 2}, *({"kind": "hostile", "heads": 2, "how": one} for one in how))
        return study(
            space={"kind": "grid", "axes": {"trial.arch.stack": [[{"kind": "block", "mixer": m}] for m in mixers]}}
        )

    yield made
    outside.forget()


def test_where_memory_is_short_cohorts_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bench alone, whose seats train at once what they are given, and tell it when they are asked."""
    most = 0

    class Seat(side_by_side._Seat):
        def begin(self, cohort: Any) -> None:
            nonlocal most
            most = max(most, len(bench.busy))
            self.told.put((self, ("done", run_cohort.train(cohort.specs, "", torch.device("cpu"), lambda _: None), {})))

    largest = max(spec.bytes for spec in study().trials())
    monkeypatch.setattr(side_by_side, "_Seat", Seat)
    for members, at_once in ((2.2, 1), (3.2, 2)):
        monkeypatch.setattr(
            side_by_side.memory_needs, "held_by", lambda _, room=members * largest: room / side_by_side.FULL
        )
        with Ledger(tmp_path / f"{members}.sqlite") as ledger:
            most = 0
            driver = Driver(study(), ledger, cohort_size=2, where="cpu")
            bench = side_by_side._Bench(driver, torch.device("cpu"), tmp_path / "folder", 3, {})
            bench.train()
            assert (most, len(ledger)) == (at_once, 9)


def test_a_device_that_answers_no_process_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.sqlite"
    with Ledger(path) as ledger:
        driver = Driver(study(), ledger, cohort_size=2, where="cpu")
        with pytest.raises(EngineError, match="meta does not answer: "):
            side_by_side.train_all(driver, torch.device("meta"), tmp_path / "folder", 1)
        monkeypatch.setattr(cohort_process, "__name__", "recallmap.there_is_none")
        with pytest.raises(EngineError, match="a process for cohorts ended with code 1: ModuleNotFoundError"):
            side_by_side.train_all(driver, torch.device("cpu"), tmp_path / "folder", 1)
    assert figures(path) == []


def test_an_error_in_a_process_and_one_of_the_ledger_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Driver, *_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Driver, "keep", full)
    with pytest.raises(OSError, match="the disk is full"):
        run(study(), tmp_path / "a.sqlite", 2)
    hearing = [thread for thread in threading.enumerate() if thread.name.startswith("cohort ")]
    for thread in hearing:  # it hears, a moment after the run, that its process is gone
        thread.join(60)
    assert not [thread for thread in hearing if thread.is_alive()]


def test_a_run_that_is_stopped_is_over_for_its_cohorts() -> None:
    limit = cohort_process.Stoppable()
    assert not limit.is_up
    limit.stopped.set()
    assert limit.is_up
    assert cohort_process.Stoppable(until=TimeLimit.of(-1.0).until).is_up


def test_an_error_travels_as_itself_or_says_the_same() -> None:
    class Local(Exception):
        """Which pickle does not find."""

    assert repr(cohort_process._that_travels(ValueError("too wide"))) == repr(ValueError("too wide"))
    assert str(cohort_process._that_travels(Local("too wide"))) == "Local: too wide"


def test_a_program_says_how_it_ended() -> None:
    assert Program("recallmap.there_is_none").end().startswith("ended with code 1: ModuleNotFoundError")


def test_a_device_that_is_lost_ends_the_run_and_not_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(specs: Any, **where: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    def lost(device: torch.device) -> None:
        raise DeviceLost(f"{device} is lost to this process: an illegal memory access was encountered")

    path = tmp_path / "a.sqlite"
    monkeypatch.setattr(run_cohort, "follow_cohort", faulty)
    monkeypatch.setattr(run_cohort, "check_alive", lost)
    with pytest.raises(EngineError, match="cpu is lost to this process"):
        run(study(), path, 1)
    assert figures(path) == []


def test_cohorts_that_share_a_device_share_its_time() -> None:
    wall = [0.0]
    clock = device_time.DeviceTime(lambda: wall[0])
    wall[0] = 2.0
    assert clock.now() == 2.0  # one alone has all of it
    clock.share(2)
    wall[0] = 6.0
    assert clock.now() == 4.0
    clock.share(1)
    wall[0] = 7.0
    assert clock.now() == 5.0


@pytest.mark.gpu
@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script_method:DeprecationWarning"
)  # torch's own, when its compiler is imported
def test_on_a_gpu_cohorts_in_processes_of_their_own_learn_as_one_after_another(tmp_path: Path) -> None:
    for at_once in (1, 3):
        path = tmp_path / f"{at_once}.sqlite"
        inline.run(study(), path, device="cuda", cohorts_per_gpu=at_once, cohort_size=3)
    with Ledger.open(tmp_path / "1.sqlite") as one, Ledger.open(tmp_path / "3.sqlite") as three:
        before, after = ({record.key: record for record in ledger.all()} for ledger in (one, three))
    assert len(before) == 9
    assert {key: record.implementation for key, record in after.items()} == {
        key: record.implementation for key, record in before.items()
    }
    for key, record in before.items():
        assert after[key].status == record.status == "done"
        assert after[key].curve["train_loss"] == pytest.approx(record.curve["train_loss"], rel=1e-3)
        assert after[key].peak_bytes is not None


@pytest.mark.gpu
def test_on_a_gpu_a_trial_whose_kernel_faults_fails_alone(tmp_path: Path, hostile: Callable[..., StudySpec]) -> None:
    """The fault takes its process's GPU, and no other's."""
    path = tmp_path / "a.sqlite"
    inline.run(hostile("faults"), path, device="cuda", cohorts_per_gpu=2)
    found = ends(path)
    assert found["sound"] is None
    assert str(found["faults"]).startswith("the worker died 2 times: ")
