"""The inline engine as a specification: nothing twice, nothing lost, every failure told."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli.run_display import Names, Quiet, kept_of
from recallmap.search.cli.trial_lines import line_of, note_of
from recallmap.search.engines import inline, trial_sources
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.plan import Report
from recallmap.search.engines.trial_sources import Further
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import run_cohort
from recallmap.search.training.outcome import Progress
from recallmap.search.trials import Trial

TINY = {
    "name": "tiny",
    "trial": {
        "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "linear_attention", "heads": 2}}],
        },
        "training": {"steps": 6, "batch": 8, "evaluations": 2},
        "data": {"validation": 16, "test": 16},
    },
    "space": {"kind": "grid", "axes": {"trial.training.lr": [1e-3, 1e-2], "trial.seed": [0, 1, 2]}},
}


def study(**trial: object) -> object:
    return codec.read_study(TINY | {"trial": TINY["trial"] | trial})


def test_the_same_study_again_trains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    first = inline.run(study(), path)
    assert (len(first.trials), len(first.missing)) == (6, 6)
    before = Ledger(path).records()
    again = inline.run(study(), path)
    assert len(again.missing) == 0
    assert Ledger(path).records().equals(before)


@pytest.mark.parametrize(("places", "steps"), [(1, [2, 9, 4]), (2, [9, 9, 4, 2])])
def test_a_grids_longest_cohorts_go_first_where_several_train_at_once_and_in_halves_where_they_are_more_than_a_share(
    places: int, steps: list[int], tmp_path: Path
) -> None:
    axes = {"trial.training.steps": [2, 9, 4], "trial.seed": [0, 1]}
    grid = codec.read_study(TINY | {"space": {"kind": "grid", "axes": axes}})
    with Ledger(tmp_path / "tiny.sqlite") as ledger:
        driver = Driver(grid, ledger, cohort_size=2, where="cpu", places=places)
        assert [work.specs[0].steps for work in iter(driver.next, None)] == steps


@pytest.mark.parametrize(
    ("lengths", "seeds", "asked", "at_once"),
    [([16, 8], [0, 1], None, 5), ([16], [0], None, 1), ([16, 8], [0, 1], 1, 1), ([16], [0], 2, 2)],
)
def test_cohorts_share_a_gpu_where_there_are_several(
    lengths: list[int],
    seeds: list[int],
    asked: int | None,
    at_once: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    met = [1]
    monkeypatch.setattr(inline, "cohorts_at_once", lambda device: 5)
    monkeypatch.setattr(inline.side_by_side, "train_all", lambda driver, where, folder, count: met.append(count))
    monkeypatch.setattr(inline, "_train_all", lambda *_: None)
    spaces = {"axes": {"trial.task.length": lengths, "trial.seed": seeds}}
    inline.run(
        codec.read_study(TINY | {"space": {"kind": "grid"} | spaces}), tmp_path / "a.sqlite", cohorts_per_gpu=asked
    )
    assert met[-1] == at_once


def test_a_wider_study_trains_only_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    inline.run(study(), path, cohort_size=4)
    wider = codec.read_study(
        TINY | {"space": {"kind": "grid", "axes": {"trial.training.lr": [1e-3, 1e-2, 1e-1], "trial.seed": [0, 1, 2]}}}
    )
    assert len(inline.run(wider, path).missing) == 3
    assert len(Ledger(path).records()) == 9


def test_a_trial_that_raises_fails_alone_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = run_cohort.follow_cohort

    def fragile(specs, **where):  # type: ignore[no-untyped-def]
        if any(s.seed == 1 and s.training.lr == 1e-2 for s in specs):
            raise RuntimeError("out of memory, say")
        return follow(specs, **where)

    monkeypatch.setattr("recallmap.search.training.run_cohort.follow_cohort", fragile)
    path = tmp_path / "tiny.sqlite"
    reports: list[Report] = []
    inline.run(study(), path, report=reports.append)
    records = Ledger(path).records()
    failed = records[records.status == "failed"]
    assert len(records) == 6
    assert failed.error.tolist() == ["RuntimeError: out of memory, say"]
    assert (reports[-1].done, reports[-1].failed) == (5, 1)
    monkeypatch.undo()
    assert len(inline.run(study(), path).missing) == 1
    assert set(Ledger(path).records().status) == {"done"}


def test_a_cohort_that_is_halved_has_let_go_of_its_memory_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = run_cohort.follow_cohort
    held: list[weakref.ref[torch.Tensor]] = []

    def large(specs, **where):  # type: ignore[no-untyped-def]
        assert all(memory() is None for memory in held)
        memory = torch.zeros(1)
        held.append(weakref.ref(memory))
        if len(specs) > 1:
            raise RuntimeError("out of memory, say")
        return (yield from follow(specs, **where))

    monkeypatch.setattr("recallmap.search.training.run_cohort.follow_cohort", large)
    records = run_cohort.train(study().trials()[:4], "tiny", torch.device("cpu"), lambda _: None)
    assert [(r.status, r.cohort) for r in records] == [("done", 1)] * 4
    assert len(held) == 7
    assert all(line_of(r).endswith("  its cohort was halved: RuntimeError: out of memory, say") for r in records)


def test_progress_ends_at_the_end(tmp_path: Path) -> None:
    reports: list[Report] = []
    inline.run(study(), tmp_path / "tiny.sqlite", report=reports.append, cohort_size=3)
    assert [r.cohorts for r in reports] == [2] * len(reports)
    assert sum(len(r.records) for r in reports) == 6
    assert reports[0].eta is None
    assert reports[-1].eta == pytest.approx(0.0)
    assert any(r.progress and r.progress.step == 3 for r in reports)


@pytest.mark.parametrize(
    ("device", "compiled", "told"),
    [
        ("NVIDIA H200", "yes", ""),
        ("NVIDIA H200", "no: Data-dependent branching", "  not compiled: Data-dependent branching"),
        ("NVIDIA H200", "in part: more than 1,500", "  compiled in part: more than 1,500"),
        ("NVIDIA H200", "not worth it: 12 steps", ""),
        ("cpu, 1 threads", "no: on a CPU", ""),
    ],
)
def test_a_trial_that_a_gpu_trained_uncompiled_says_why(device: str, compiled: str, told: str) -> None:
    (record,) = run_cohort.train(study().trials()[:1], "tiny", torch.device("cpu"), lambda _: None)
    told_of = {"device": device, "seconds": 2, "implementation": {"compiled step": compiled}}
    line = line_of(replace(record, scores={"accuracy": 0.9}, **told_of))
    assert line.endswith(f")  2.0 s{told}")


@pytest.mark.parametrize(
    ("loss", "accuracy", "told"),
    [
        (0.25, (0.5, math.nan), "cohort 2 of 3  step 5/9  loss 0.250  best 0.500  40 s left"),
        (math.nan, (math.nan, math.nan), "cohort 2 of 3  step 5/9  40 s left"),
    ],
    ids=["under way", "nothing known yet"],
)
def test_the_running_cohort_tells_what_it_knows(loss: float, accuracy: tuple[float, ...], told: str) -> None:
    progress = Progress(step=5, steps=9, members=2, loss=loss, accuracy=accuracy)
    counts = {"trials": 6, "known": 0, "done": 2, "failed": 0, "cohort": 2, "cohorts": 3}
    assert note_of(Report(**counts, seconds=20.0, eta=40.0, progress=progress)) == told


def test_killed_anywhere_it_loses_at_most_the_cohort_in_hand(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    code = (
        "from tests_engine import study; from recallmap.search.engines import inline; "
        f"inline.run(study(), {str(path)!r}, cohort_size=1)"
    )
    here = Path(__file__)
    script = tmp_path / "tests_engine.py"
    script.write_text(here.read_text(encoding="utf-8"), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and len(_records(path)) >= 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = _records(path)
    assert len(finished) >= 2
    again = inline.run(study(), path, cohort_size=1)
    assert len(again.missing) == 6 - len(finished)
    assert _records(path)[: len(finished)] == finished


def _records(path: Path) -> list[tuple[str, str]]:
    try:
        frame = Ledger.open(path).records()
    except Exception:  # the writer has not made the table yet
        return []
    return list(zip(frame.key, frame.created, strict=True))


def test_parts_of_a_grid_are_the_grid(tmp_path: Path) -> None:
    whole = {codec.key(t) for t in study().trials()}
    parts = [inline.run(study(), tmp_path / f"{i}.sqlite", cohort_size=1, part=(i, 4)) for i in (1, 2, 3, 4)]
    assert [len(part.trials) for part in parts] == [2, 2, 1, 1]
    assert {codec.key(t) for part in parts for t in part.trials} == whole
    again = inline.run(study(), tmp_path / "2.sqlite", cohort_size=1, part=(2, 4))
    assert (again.trials, again.missing) == (parts[1].trials, ())


# Further seeds of the best settings. ------------------------------------------------------------------


def rates(**axes: list[int]) -> StudySpec:
    """Two learning rates, one seed."""
    return codec.read_study(
        TINY | {"space": {"kind": "grid", "axes": {"trial.training.lr": [1e-3, 1e-2], "trial.seed": [0], **axes}}}
    )


def book(*scored: tuple[Trial, float | None]) -> dict[str, Record]:
    """What is trained: validation says one thing and test the contrary; no score is a failure."""
    records = []
    for trial, score in scored:
        record = run_cohort.failed(trial, "diverged", study="tiny", device=torch.device("cpu"))
        if score is not None:
            accuracy, test = {"accuracy": score}, {"accuracy": 1 - score}
            record = replace(record, status="done", error=None, scores=test, validation=accuracy)
        records.append(record)
    return {record.key: record for record in records}


def said(trials: tuple[Trial, ...]) -> list[tuple[int, float, int]]:
    """Pairs, learning rate, seed."""
    plain = [codec.plain(trial) for trial in trials]
    return [(spec["task"]["pairs"], spec["training"]["lr"], spec["seed"]) for spec in plain]


def test_what_won_gets_further_seeds_after_the_grid_and_the_same_again_trains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    reports: list[Report] = []
    plan = inline.run(rates(), path, seeds=3, report=reports.append)
    assert [t.seed for t in plan.missing] == [0, 0, 1, 2]
    assert [r.trials for r in reports if r.records] == [2, 4]
    assert [note for r in reports for note in r.notes] == ["2 further trials: seeds 0..2 of the best settings"]
    assert reports[-1].eta == pytest.approx(0.0)
    records = Ledger(path).all()
    winner = max((r for r in records if r.seed == 0), key=lambda r: r.validation["accuracy"])
    assert {r.spec["training"]["lr"] for r in records if r.seed > 0} == {winner.spec["training"]["lr"]}

    again = inline.run(rates(), path, seeds=3)
    assert (again.trials, again.missing) == (plan.trials, ())
    assert [t.seed for t in inline.run(rates(), path, seeds=4).missing] == [3]
    assert len(inline.run(rates(), path).trials) == 2


def test_who_won_is_said_by_validation_of_the_grid_alone() -> None:
    slow, fast = grid = rates().trials()
    known = book((slow, 0.4), (fast, 0.6))
    chosen = trial_sources.further(grid, 3, known).chosen
    assert said(chosen) == [(2, 1e-2, 1), (2, 1e-2, 2)]
    known |= book(*((trial, 0.0) for trial in chosen))
    found = trial_sources.further(grid, 3, known)
    assert (found.chosen, found.missing(known)) == (chosen, [])
    assert said(trial_sources.further(rates(**{"trial.seed": [1]}).trials(), 2, {}).open[0]) == [(2, 1e-3, 0)]


def test_a_failure_is_an_answer_and_where_all_failed_nobody_won() -> None:
    slow, fast = grid = rates().trials()
    assert said(trial_sources.further(grid, 2, book((slow, 0.4), (fast, None))).chosen) == [(2, 1e-3, 1)]
    assert trial_sources.further(grid, 2, book((slow, None), (fast, None))) == Further(chosen=(), open=())


def test_a_setting_that_is_not_trained_whole_has_no_winner_yet() -> None:
    grid = rates(**{"trial.task.pairs": [1, 2]}).trials()
    assert said(grid) == [(1, 1e-3, 0), (2, 1e-3, 0), (1, 1e-2, 0), (2, 1e-2, 0)]
    known = book(*zip(grid[:3], (0.1, 0.2, 0.3), strict=True))
    found = trial_sources.further(grid, 2, known)
    assert (said(found.chosen), [len(trials) for trials in found.open]) == ([(1, 1e-2, 1)], [1])
    assert len(found.missing(known)) == 2


def test_further_seeds_ask_the_ledger_for_every_record_once(tmp_path: Path) -> None:
    counts = []
    for lengths in (2, 4, 8):
        grid = rates(**{"trial.task.length": [16 + 2 * n for n in range(lengths)], "trial.seed": [0, 1]})
        path = tmp_path / f"{lengths}.sqlite"
        with Ledger(path) as ledger:
            ledger.merge(book(*((trial, trial.training.lr) for trial in grid.trials())).values())
            asked: list[str] = []
            assert ledger._db is not None
            ledger._db.set_trace_callback(asked.append)
            Driver(grid, ledger, seeds=4, where="cpu")
            ledger._db.set_trace_callback(None)
        counts.append(len([question for question in asked if "FROM records" in question]))
    assert counts == [8, 16, 32]  # as many as there are trials


def test_a_part_of_a_grid_has_no_winner(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a search, nor a part"):
        inline.run(rates(), tmp_path / "tiny.sqlite", part=(1, 2), seeds=2)


def test_stopped_in_the_last_phase_of_a_cohort_what_was_through_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    end = [{}, {"expand": {"heads": "merge", "count": 1}}]
    short = {"task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 4}}
    arch = {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": {"kind": "gla", "heads": 2}}]}
    phased = codec.read_study(
        TINY
        | {
            "trial": TINY["trial"] | {"kind": "phased", "phases": [short, {}], "arch": arch},
            "space": {"kind": "grid", "axes": {"trial.phases[1]": end}},
        }
    )

    live = Quiet(Names())

    def stop(report: Report) -> None:
        live(report)
        if report.progress is not None and report.progress.ended:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inline.run(phased, path, report=stop)
    assert kept_of(live.last) == "1 of 2 trials are"
    (kept,) = Ledger(path).all()
    assert (kept.status, kept.arch) == ("done", "tiny")
    assert [trial.name for trial in inline.run(phased, path).missing] == ["tiny_merged_1of1 reinitialise"]
