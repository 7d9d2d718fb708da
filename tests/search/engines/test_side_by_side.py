"""Cohorts that train at once in one process: the same records as one after another, and one owner of the ledger."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from recallmap.results.ledger import Ledger
from recallmap.search import codec
from recallmap.search.engines import inline, side_by_side
from recallmap.search.engines.driver import Driver, EngineError
from recallmap.search.engines.plan import Report
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import checkpoints, device_time, devices, run_cohort
from recallmap.search.training.devices import DeviceLost
from recallmap.search.training.time_limit import NEVER, TimeIsUp, TimeLimit
from recallmap.search.trials import memory_needs

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
    "points": 4,
    "generation": 2,
    "over": {"trial.seed": [0, 1]},
    "dials": {"trial.arch.stack[0].mixer.heads": {"choice": [1, 2, 4]}},
}


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


@pytest.mark.parametrize("of", [study, search], ids=["grid", "search"])
def test_records_are_those_of_one_cohort_after_another(of: Any, tmp_path: Path) -> None:
    run(of(), tmp_path / "one.sqlite", 1)
    run(of(), tmp_path / "three.sqlite", 3)
    assert figures(tmp_path / "three.sqlite") == figures(tmp_path / "one.sqlite")
    assert not checkpoints.checkpoint_folder(tmp_path / "three.sqlite").exists()


def test_as_many_train_at_once_as_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, follow = threading.Barrier(3, timeout=60), run_cohort.follow_cohort

    def together(specs: Any, **where: Any) -> Any:
        meeting.wait()  # all three are under way, or this fails
        return (yield from follow(specs, **where))

    monkeypatch.setattr(run_cohort, "follow_cohort", together)
    last: list[Report] = []
    run(study(), tmp_path / "a.sqlite", 3, report=last.append)
    assert {status for _, status, *_ in figures(tmp_path / "a.sqlite")} == {"done"}
    assert last[-1].time.figures()["cohorts at once"] is not None


def test_where_memory_is_short_cohorts_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, under_way, follow = 0, [0], run_cohort.follow_cohort

    def counted(specs: Any, **where: Any) -> Any:
        nonlocal most
        under_way[0] += 1
        most = max(most, under_way[0])
        time.sleep(0.02)
        try:
            return (yield from follow(specs, **where))
        finally:
            under_way[0] -= 1

    largest = max(spec.bytes for spec in study().trials())
    monkeypatch.setattr(run_cohort, "follow_cohort", counted)
    monkeypatch.setattr(side_by_side.memory_needs, "held_by", lambda _: 2.2 * largest / side_by_side.FULL)
    monkeypatch.setattr(memory_needs, "check_room", lambda *_: None)
    run(study(), tmp_path / "a.sqlite", 3)
    assert most == 1
    assert len(figures(tmp_path / "a.sqlite")) == 9


def test_stopped_under_way_all_cohorts_are_saved_and_the_same_call_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "cut.sqlite"

    def stop(report: Report) -> None:
        if report.progress is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study(), path, 3, report=stop)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("cohort ")]
    run(study(), tmp_path / "whole.sqlite", 1)
    done = len(figures(path))
    assert done < 9
    run(study(), path, 3)
    assert figures(path) == figures(tmp_path / "whole.sqlite")


def test_a_run_whose_time_is_up_goes_on_to_the_same_records(tmp_path: Path) -> None:
    path, cuts = tmp_path / "cut.sqlite", 0
    while True:
        try:
            run(study(), path, 2, limit=TimeLimit.of(0.3) if cuts < 3 else NEVER)
            break
        except TimeIsUp:
            cuts += 1
    assert cuts
    run(study(), tmp_path / "whole.sqlite", 1)
    assert figures(path) == figures(tmp_path / "whole.sqlite")


def test_a_trial_that_raises_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = run_cohort.follow_cohort

    def fragile(specs: Any, **where: Any) -> Any:
        if any(spec.seed == 1 and spec.arch.stack[0].mixer.kind == "mesa" for spec in specs):
            raise RuntimeError("out of memory, say")
        return follow(specs, **where)

    monkeypatch.setattr(run_cohort, "follow_cohort", fragile)
    run(study(), tmp_path / "a.sqlite", 3)
    assert sorted(status for _, status, *_ in figures(tmp_path / "a.sqlite")) == ["done"] * 8 + ["failed"]


def test_a_device_that_is_lost_ends_the_run_and_not_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(specs: Any, **where: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    def lost(device: torch.device) -> None:
        raise DeviceLost(f"{device} is lost to this process: an illegal memory access was encountered")

    path = tmp_path / "a.sqlite"
    for at_once in (1, 3):
        with monkeypatch.context() as broken:
            broken.setattr(run_cohort, "follow_cohort", faulty)
            broken.setattr(run_cohort, "check_alive", lost)
            with pytest.raises(EngineError, match="cpu is lost to this process"):
                run(study(), path, at_once)
        assert figures(path) == []
    run(study(), path, 3)
    assert len(figures(path)) == 9


def test_an_error_of_the_ledger_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Driver, *_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(Driver, "keep", full)
    with pytest.raises(OSError, match="the disk is full"):
        run(study(), tmp_path / "a.sqlite", 3)


def test_models_that_are_built_at_once_have_the_weights_of_their_seeds() -> None:
    spec = study().trials()[0].arch

    def weights(seed: int) -> float:
        return float(sum(p.detach().double().sum() for p in spec.build(vocab=64, seed=seed).parameters()))

    alone = [weights(seed) for seed in range(16)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(weights, range(16))) == alone


def test_cohorts_that_share_a_device_share_its_time() -> None:
    wall = [0.0]
    clock = device_time.DeviceTime(lambda: wall[0])
    wall[0] = 1.0
    assert clock.now() == 1.0
    with clock.shared():
        wall[0] = 3.0
        assert clock.now() == 3.0  # one alone has all of it
        with clock.shared():
            wall[0] = 7.0
        assert clock.now() == 5.0
        wall[0] = 8.0
    assert clock.now() == 6.0


def test_peak_memory_is_nobodys_where_cohorts_share_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 10)
    assert devices.peak_bytes(torch.device("cuda")) == 10
    with device_time.sharing():
        assert devices.peak_bytes(torch.device("cuda")) is None


@pytest.mark.gpu
def test_on_a_gpu_cohorts_on_streams_of_their_own_learn_as_one_after_another(tmp_path: Path) -> None:
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


@pytest.mark.gpu
def test_on_a_gpu_a_kernel_that_faults_ends_the_run_and_the_same_call_goes_on(tmp_path: Path) -> None:
    """In processes of their own: the fault takes the whole process's GPU."""
    code = """
import sys, torch
from pathlib import Path
from recallmap.search.engines import inline
from recallmap.search.engines.driver import EngineError
from recallmap.search.training import run_cohort
from tests_side_by_side import study
follow = run_cohort.follow_cohort
def fault(specs, **where):
    if any(spec.arch.stack[0].mixer.kind == "mesa" for spec in specs):
        torch.zeros(4, device="cuda")[torch.tensor([2**20], device="cuda")].sum().item()
    return follow(specs, **where)
if sys.argv[1] == "faulty":
    run_cohort.follow_cohort = fault
try:
    inline.run(study(), Path(sys.argv[2]), device="cuda", cohorts_per_gpu=3, cohort_size=3)
except EngineError as error:
    print("lost", error)
    sys.exit(3)
"""
    (tmp_path / "tests_side_by_side.py").write_text(Path(__file__).read_text(encoding="utf-8"))
    path = tmp_path / "a.sqlite"
    ends = [
        subprocess.run([sys.executable, "-c", code, how, str(path)], cwd=tmp_path, capture_output=True, text=True)
        for how in ("faulty", "whole")
    ]
    assert [end.returncode for end in ends] == [3, 0], ends
    assert ends[0].stdout.startswith("lost cuda")
    assert {status for _, status, *_ in figures(path)} == {"done"}
    assert len(figures(path)) == 9
