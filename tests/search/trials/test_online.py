"""Online learners as trials: the same engine, ledger and table as the trials of trained mixers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from recallmap.results.ledger import Ledger
from recallmap.results.score_tables.scores import table_of
from recallmap.search import codec
from recallmap.search.engines import inline
from recallmap.search.engines.plan import Report
from recallmap.search.training.online import WINDOWS, follow
from recallmap.search.training.packing import at_most, pack
from recallmap.search.training.run_cohort import run_cohort
from recallmap.search.trials.online import OnlineTrial
from recallmap.search.trials.online_learner import Learner
from recallmap.synth.tasks.learnability import Learnability

TASK = Learnability(width=16, length=160)


def test_a_trial_is_online_where_it_says_so() -> None:
    trial = codec.from_plain(
        OnlineTrial, {"kind": "online", "task": {"kind": "learnability", "width": 16, "length": 160}}
    )
    assert trial == OnlineTrial(task=TASK)
    assert codec.from_plain(OnlineTrial, codec.plain(trial)) == trial
    with pytest.raises(ValueError, match="unknown key"):
        codec.from_plain(OnlineTrial, {"kind": "online", "task": {"kind": "learnability"}, "training": {"steps": 1}})


def test_trials_of_models_need_not_say_what_they_are() -> None:
    study = codec.read_study("learnability", overrides=["budget=smoke"])
    assert {trial.kind for trial in study.trials()} == {"trial"}


def test_a_record_holds_the_curve_that_the_learner_ran() -> None:
    spec = OnlineTrial(task=TASK, arch=Learner(hidden=3, lr=1e-2), seed=4)
    (record,) = run_cohort([spec], device="cpu")
    steps = follow(Learner(hidden=3, lr=1e-2), [(TASK, 4)])
    while True:
        try:
            next(steps)
        except StopIteration as end:
            (losses,) = end.value
            break
    assert record.status == "done"
    assert (record.arch, record.task, record.metric) == ("mlp 3x1", "learnability", "explained")
    assert record.scores["explained"] == pytest.approx(1 - losses.mean(), abs=1e-5)
    assert record.scores["explained/position=16-64"] == pytest.approx(1 - losses[16:64].mean(), abs=1e-5)
    assert len(record.curve["step"]) == WINDOWS
    assert record.curve["step"][-1] == record.steps == TASK.length
    assert np.average(record.curve["validation_loss"], weights=np.diff([0, *record.curve["step"]])) == pytest.approx(
        losses.mean(), abs=1e-5
    )


def test_the_state_of_a_learner_is_its_weights_and_their_moments() -> None:
    weights = 16 * 32 + 32 + 32 * 32 + 32 + 32 * 16 + 16
    for optimizer, copies in (("adamw", 3), ("rmsprop", 2), ("sgd", 1)):
        spec = OnlineTrial(task=TASK, arch=Learner(expand=2, optimizer=optimizer))  # type: ignore[arg-type]
        assert (spec.price().parameters, spec.price().state_floats) == (weights, copies * weights)


def test_mappings_and_seeds_learn_as_one_stack_and_learners_apart() -> None:
    mappings = [Learnability(width=16, length=160, mapping=mapping) for mapping in ("low_rank", "mlp")]
    same = [OnlineTrial(task=task, seed=seed) for task in mappings for seed in (0, 1)]
    assert pack([*same, OnlineTrial(task=TASK, arch=Learner(expand=4))], at_most(8)) == [[0, 1, 2, 3], [4]]


def test_a_learner_that_diverges_fails_alone_and_says_when() -> None:
    (record,) = run_cohort([OnlineTrial(task=TASK, arch=Learner(optimizer="sgd", lr=1e6))], device="cpu")
    assert record.status == "failed"
    assert "not finite at step" in (record.error or "")


def test_a_study_of_learners_from_plan_to_table(tmp_path: Path) -> None:
    study = codec.read_study(
        "learnability_panels", overrides=["budget=smoke", "trial.task.length=64", "trial.task.width=8"]
    )
    path = tmp_path / "panels.sqlite"
    reports: list[Report] = []
    plan = inline.run(study, path, report=reports.append, device="cpu")
    assert len(plan.missing) == 40
    assert (reports[-1].done, reports[-1].failed) == (40, 0)
    assert any(report.progress and not math.isnan(report.progress.loss) for report in reports)
    (table,) = table_of(Ledger.open(path).all())
    measured = [line.labels[0] for line in table.lines if line.kind == "measured"]
    assert sorted(measured) == ["mlp 2x1", "mlp 2x4", "mlp 3x1", "mlp 3x4"]
    assert len(inline.run(study, path, device="cpu").missing) == 0
