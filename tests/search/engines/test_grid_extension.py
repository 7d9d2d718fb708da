"""A grid whose best learning rate is at its edge goes on by itself, an octave at a time, and ends by itself."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.documents.nodes import SpecError
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.grid_extension import beyond
from recallmap.search.engines.plan import Report
from recallmap.search.engines.trial_sources import trials_of
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import run_cohort
from recallmap.search.trials.single import TrialSpec

TINY = {
    "name": "tiny",
    "extend": True,
    "trial": {
        "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
        "arch": {
            "name": "tiny",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "linear_attention", "heads": 1}}],
        },
        "training": {"steps": 4, "batch": 8, "evaluations": 1},
    },
    "space": {"kind": "grid", "axes": {"trial.training.lr": [1e-3, 2e-3], "trial.seed": [0, 1]}},
}


def study(*changes: str) -> StudySpec:
    found: StudySpec = codec.read_study(TINY, overrides=changes)
    return found


def record(trial: TrialSpec, best: float) -> Record:
    """What the trial leaves where the learning rate `best` is best, and one above 0.1 diverges."""
    failed = run_cohort.failed(trial, "diverged", study="tiny", device=torch.device("cpu"))
    if trial.training.lr > 0.1:
        return failed
    scores = {"accuracy": 0.9 - 0.1 * abs(math.log2(trial.training.lr / best))}
    return replace(failed, status="done", error=None, scores=scores, validation=scores)


def trained(
    spec: StudySpec, path: Path, best: float, *, most: int = 1000, seeds: int = 0
) -> tuple[list[str], list[float]]:
    """Notes of a run that stops after so many trials, and the learning rates of what it trained."""
    reports: list[Report] = []
    rates: list[float] = []
    with Ledger(path) as ledger:
        driver = Driver(spec, ledger, where="cpu", cohort_size=1, seeds=seeds, report=reports.append)
        while len(rates) < most and (work := driver.next()) is not None:
            driver.keep(work, [record(trial, best) for trial in work.specs])
            rates += [trial.training.lr for trial in work.specs]
    return [note for report in reports for note in report.notes], rates


@pytest.mark.parametrize(
    ("best", "rates"),
    [
        (8e-3, [4e-3, 8e-3, 1.6e-2]),
        (5e-4, [5e-4, 2.5e-4]),
        (1.0, [4e-3, 8e-3, 1.6e-2, 3.2e-2]),  # four octaves, no more
        (1e-5, [5e-4, 2.5e-4, 1.25e-4, 6.25e-5]),
    ],
)
def test_the_best_setting_is_trained_an_octave_further_for_every_seed_until_it_is_inside(
    best: float, rates: list[float], tmp_path: Path
) -> None:
    notes, found = trained(study(), tmp_path / "tiny.sqlite", best)
    assert found == [1e-3, 1e-3, 2e-3, 2e-3, *(rate for rate in rates for _ in range(2))]
    assert notes == ["2 trials beyond the grid: the best learning rate was at its edge"] * len(rates)


def test_a_rate_that_diverges_or_a_score_at_the_ceiling_ends_it(tmp_path: Path) -> None:
    high = study("space.axes.trial.training.lr=[4e-2,8e-2]")
    assert trained(high, tmp_path / "tiny.sqlite", 0.3)[1][4:] == [0.16, 0.16]
    grid = study().trials()
    solved = {r.key: replace(r, scores={"accuracy": 1.0}) for r in (record(trial, 8e-3) for trial in grid)}  # type: ignore[arg-type]
    assert beyond(grid, solved) == ()
    assert beyond(grid, dict(list(solved.items())[:3])) == ()  # not whole


def test_wherever_it_is_stopped_the_same_again_trains_the_rest_and_then_nothing(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    parts = [trained(study(), path, 8e-3, most=3)[1] for _ in range(5)]
    assert [rate for part in parts for rate in part] == trained(study(), tmp_path / "once.sqlite", 8e-3)[1]
    assert parts[-1] == []
    assert len(trials_of(study(), path)) == len(Ledger(path).all()) == 10
    assert len(trials_of(study("extend=false"), path)) == 4


def test_further_seeds_are_of_what_is_best_beyond_the_grid(tmp_path: Path) -> None:
    assert trained(study(), tmp_path / "tiny.sqlite", 4e-3, seeds=3)[1][4:] == [4e-3, 4e-3, 8e-3, 8e-3, 4e-3]


def test_the_dry_run_says_so_and_neither_a_search_nor_a_part_is_extended(tmp_path: Path) -> None:
    file, path = tmp_path / "tiny.yaml", tmp_path / "tiny.sqlite"
    file.write_text(json.dumps(TINY))

    def said(*words: str) -> str:
        return CliRunner().invoke(app, ["run", str(file), "--ledger", str(path), *words], catch_exceptions=False).output

    line = "where the best learning rate is at the edge of the grid: an octave further at a time, at most 4 octaves"
    assert f"then {line}\n" in said("--dry-run")
    trained(study(), path, 8e-3, most=4)
    assert f"then 2 trials by the records so far, and more {line}\n" in said("--dry-run")
    assert "--part: only a whole grid shows its edges" in said("--part", "1/2")
    with pytest.raises(SpecError, match="extend is for a grid, got a search"):
        codec.read_study("hybrid_search", overrides=["extend=true"])
