"""A raced grid trains all hyper-parameters on some settings of a task, and on the others those near the best alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from recallmap.results.analysis.selection import one_cell
from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.documents.nodes import SpecError
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.plan import Report
from recallmap.search.study.race import Race
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import run_cohort
from recallmap.search.trials.single import TrialSpec

PAIRS = [1, 2, 3, 4, 5]
RATES = [1e-3, 2e-3, 4e-3]

TINY = {
    "name": "tiny",
    "race": {"settings": 3, "within": 0.05},
    "trial": {
        "task": {"kind": "mqar", "vocab": 32, "length": 32, "pairs": 2},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "linear_attention", "heads": 1}}],
        },
        "training": {"steps": 4, "batch": 8, "evaluations": 1},
    },
    "space": {"kind": "grid", "axes": {"trial.task.pairs": PAIRS, "trial.training.lr": RATES}},
}


def study(*changes: str) -> StudySpec:
    found: StudySpec = codec.read_study(TINY, overrides=changes)
    return found


def record(trial: TrialSpec, scores: dict[float, float | None]) -> Record:
    """What the trial leaves where a learning rate has such a score, or diverges."""
    failed = run_cohort.failed(trial, "diverged", study="tiny", device=torch.device("cpu"))
    score = scores[trial.training.lr]
    if score is None:
        return failed
    found = {"accuracy": score}
    return replace(failed, status="done", error=None, scores=found, validation=found)


def trained(
    spec: StudySpec, path: Path, scores: dict[float, float | None], *, most: int = 1000
) -> tuple[list[tuple[int, float]], list[str]]:
    """The pairs and rates of what a run trains, of so many trials at most, and its notes."""
    reports: list[Report] = []
    found: list[tuple[int, float]] = []
    with Ledger(path) as ledger:
        driver = Driver(spec, ledger, where="cpu", cohort_size=1, report=reports.append)
        while len(found) < most and (work := driver.next()) is not None:
            driver.keep(work, [record(trial, scores) for trial in work.specs])
            found += [(trial.task.pairs, trial.training.lr) for trial in work.specs]
    return found, [note for report in reports for note in report.notes]


def test_all_race_on_settings_evenly_spaced_and_those_near_the_best_go_on(tmp_path: Path) -> None:
    found, notes = trained(study(), tmp_path / "tiny.sqlite", {1e-3: 0.80, 2e-3: 0.84, 4e-3: 0.78})
    assert found[:9] == [(pairs, rate) for pairs in (1, 3, 5) for rate in RATES]
    assert sorted(found[9:]) == [(2, 1e-3), (2, 2e-3), (4, 1e-3), (4, 2e-3)]
    assert notes == ["4 trials of hyper-parameters that are still in the race"]


@pytest.mark.parametrize(
    ("scores", "left"),
    [
        ({1e-3: 0.5, 2e-3: 0.5, 4e-3: 0.5}, RATES),  # a draw
        ({1e-3: 0.9, 2e-3: None, 4e-3: 0.2}, [1e-3]),  # who fails is out, who is behind, too
        ({1e-3: None, 2e-3: None, 4e-3: None}, []),  # and nobody goes on where all fail
    ],
)
def test_a_race_ends_for_those_who_fail_or_fall_behind(
    scores: dict[float, float | None], left: list[float], tmp_path: Path
) -> None:
    found, _ = trained(study(), tmp_path / "tiny.sqlite", scores)
    assert sorted(found[9:]) == [(pairs, rate) for pairs in (2, 4) for rate in left]


@pytest.mark.parametrize(
    ("most", "scores", "left"),
    [
        (2, {1e-3: 0.80, 2e-3: 0.81, 4e-3: 0.82}, [2e-3, 4e-3]),
        (1, {1e-3: 0.80, 2e-3: 0.82, 4e-3: 0.82}, [2e-3]),  # of equals the first in the grid
        (3, {1e-3: 0.70, 2e-3: 0.82, 4e-3: 0.82}, [2e-3, 4e-3]),  # who is behind stays out
    ],
)
def test_at_most_so_many_go_on(most: int, scores: dict[float, float | None], left: list[float], tmp_path: Path) -> None:
    found, _ = trained(study(f"race.most={most}"), tmp_path / "tiny.sqlite", scores)
    assert sorted(found[9:]) == [(pairs, rate) for pairs in (2, 4) for rate in left]


def test_it_resumes_anywhere_and_once_done_it_trains_nothing(tmp_path: Path) -> None:
    path, scores = tmp_path / "tiny.sqlite", {1e-3: 0.80, 2e-3: 0.84, 4e-3: 0.78}
    whole, _ = trained(study(), tmp_path / "whole.sqlite", scores)
    parts: list[tuple[int, float]] = []
    while part := trained(study(), path, scores, most=2)[0]:
        parts += part
    assert sorted(parts) == sorted(whole)
    assert len(set(parts)) == len(parts) == 13


def test_each_architecture_goes_on_by_itself_while_others_still_race(tmp_path: Path) -> None:
    spec = study(
        "space.axes={trial.arch.width: [16, 32], trial.task.pairs: [1, 2, 3, 4, 5], trial.training.lr: [1e-3]}"
    )
    widths: list[tuple[int, int]] = []
    with Ledger(tmp_path / "tiny.sqlite") as ledger:
        driver = Driver(spec, ledger, where="cpu", cohort_size=1)
        out = [work for _ in range(6) if (work := driver.next()) is not None]
        assert driver.next() is None, "nobody goes on before the race"
        for work in out:
            if work.specs[0].arch.width == 16:
                driver.keep(work, [record(trial, {1e-3: 0.9}) for trial in work.specs])
        while (work := driver.next()) is not None:
            widths += [(trial.arch.width, trial.task.pairs) for trial in work.specs]
        assert not driver.finished
    assert widths == [(16, 2), (16, 4)]


def test_the_one_cell_of_a_task_is_the_same_raced_or_whole(tmp_path: Path) -> None:
    scores: dict[float, float | None] = {1e-3: 0.80, 2e-3: 0.84, 4e-3: 0.78}
    chosen = []
    for spec in (study(), study("race=null")):
        path = tmp_path / f"{spec.race is None}.sqlite"
        trained(spec, path, scores)
        chosen.append(sorted((r.setting, r.spec["training"]["lr"]) for r in one_cell(Ledger(path).all())))
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 5


def test_settings_lie_evenly_from_the_first_to_the_last() -> None:
    assert [sorted(Race(settings=3).raced(count)) for count in (1, 2, 3, 6, 11)] == [
        [0],
        [0, 1],
        [0, 1, 2],
        [0, 2, 5],
        [0, 5, 10],
    ]
    assert sorted(Race(settings=1).raced(5)) == [0]


def test_a_dry_run_says_how_many_race(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(TINY))
    result = CliRunner().invoke(app, ["run", str(file), "--dry-run", "--ledger", str(tmp_path / "none.sqlite")])
    said = " ".join(result.output.split())
    assert (
        "raced: 9 trials with all hyper-parameters, then those of 6 others whose hyper-parameters are within 0.05"
        in said
    )
    capped = ["--set", "race.most=2", "--ledger", str(tmp_path / "none.sqlite")]
    said = " ".join(CliRunner().invoke(app, ["run", str(file), "--dry-run", *capped]).output.split())
    assert "then 4 others at most whose hyper-parameters are within 0.05" in said
    assert "and among its best 2" in said


def test_a_part_and_a_search_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(TINY))
    result = CliRunner().invoke(app, ["run", str(file), "--part", "1/2", "--ledger", str(tmp_path / "none.sqlite")])
    assert result.exit_code == 2
    assert "only a whole grid is raced" in " ".join(result.output.split())
    with pytest.raises(SpecError, match="race is for a grid"):
        study("space={kind: random, dials: {trial.training.lr: {choice: [1e-3, 2e-3]}}}")
    for wrong in ("race={settings: 0}", "race={within: -1}", "race={most: 0}"):
        with pytest.raises(SpecError, match="must be at least"):
            study(wrong)
