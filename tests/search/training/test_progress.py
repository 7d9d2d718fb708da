"""What a cohort tells while it trains: at evaluations, on a CPU between them, and where it is resumed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import Attention
from recallmap.search.training import loop
from recallmap.search.training.checkpoints import CheckpointFolder, checkpointing
from recallmap.search.training.outcome import Progress
from recallmap.search.training.run_cohort import follow_cohort, run_cohort
from recallmap.search.training.time_limit import TimeIsUp, TimeLimit
from recallmap.search.trial import Data, Training, TrialSpec
from recallmap.synth.tasks import Mqar

ARCH = BackboneSpec(name="tiny", width=16, stack=(Block(mixer=Attention(heads=2)),))
SPECS = [
    TrialSpec(
        task=Mqar(vocab=32, length=16, pairs=2),
        arch=ARCH,
        training=Training(steps=6, batch=8, evaluations=2),
        data=Data(validation=32, test=48),
        seed=seed,
    )
    for seed in (0, 1)
]


def told() -> list[Progress]:
    return list(follow_cohort(SPECS, device="cpu"))


def test_between_evaluations_a_cohort_on_a_cpu_tells_its_step_and_trains_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every few seconds; here at every step. The figures are those of the last evaluation."""
    seldom, records = told(), run_cohort(SPECS, device="cpu")
    monkeypatch.setattr(loop, "SIGN", 0.0)
    often = told()
    assert [one.step for one in seldom] == [3, 6]
    assert [one.step for one in often] == [1, 2, 3, 4, 5, 6]
    assert math.isnan(often[0].loss)
    assert often[0].best is None
    assert [(one.loss, one.best) for one in often[2:5]] == [(seldom[0].loss, seldom[0].best)] * 3
    assert [bool(one.points) for one in often] == [False, False, True, False, False, True]
    for one, other in zip(records, run_cohort(SPECS, device="cpu"), strict=True):
        assert (one.scores, one.curve) == (other.scores, other.curve)


def test_a_resumed_cohort_first_tells_the_step_from_which_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(one.resumed for one in told())
    with checkpointing(CheckpointFolder(tmp_path)) as folder:
        asked = iter([False, False, False, False, True])
        monkeypatch.setattr(TimeLimit, "is_up_on", lambda self, device: next(asked))
        with pytest.raises(TimeIsUp):
            told()
        monkeypatch.setattr(TimeLimit, "is_up_on", lambda self, device: False)
        first, *rest = told()
    assert folder.saved()
    assert (first.step, first.steps, first.resumed, math.isnan(first.loss)) == (5, 6, True, True)
    assert first.best is not None  # of the evaluation before it was saved
    assert [(one.step, one.resumed) for one in rest] == [(6, False)]
