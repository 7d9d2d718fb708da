"""Figures that mixers report of themselves end up in the record."""

from __future__ import annotations

import pytest
import torch

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import BaseConv, Mesa, Mixer
from recallmap.search.training.mixer_statistics import gauges
from recallmap.search.trial import Data, Training, TrialSpec, run_trial
from recallmap.synth.tasks import Mqar

TOKENS = torch.randint(11, (6, 12), generator=torch.Generator().manual_seed(0))


def figures(*mixers: Mixer, at_once: int = 6) -> dict[str, float]:
    spec = BackboneSpec(name="tiny", width=8, stack=tuple(Block(mixer=mixer) for mixer in mixers))
    model = spec.build(vocab=11)
    return gauges(model, dict(model.named_parameters()), TOKENS, at_once)


def test_a_solver_of_fixed_steps_takes_them_all() -> None:
    assert figures(BaseConv(), Mesa(heads=2, cg_steps=1)) == {
        "cg_steps": 1.0,
        "cg_steps/block=1/head=0": 1.0,
        "cg_steps/block=1/head=1": 1.0,
    }


def test_a_tolerance_saves_steps() -> None:
    loose, tight = (figures(Mesa(heads=2, key_dim=8, tolerance=t)) for t in (1e-1, 1e-4))
    assert 0 < loose["cg_steps"] < tight["cg_steps"] < 30
    assert loose["cg_steps"] == pytest.approx((loose["cg_steps/block=0/head=0"] + loose["cg_steps/block=0/head=1"]) / 2)


def test_how_many_sequences_a_pass_takes_makes_no_difference() -> None:
    assert figures(Mesa(heads=2, tolerance=1e-2), at_once=4) == pytest.approx(figures(Mesa(heads=2, tolerance=1e-2)))


def test_who_has_no_figure_reports_none() -> None:
    assert figures(BaseConv()) == {}


def test_the_record_has_the_steps_beside_the_scores() -> None:
    arch = BackboneSpec(name="tiny", width=8, stack=(Block(mixer=Mesa(heads=2, tolerance=1e-2)),))
    training = Training(steps=2, batch=4, evaluations=1)
    data = Data(validation=4, test=8)
    record = run_trial(TrialSpec(task=Mqar(vocab=32, length=16, pairs=2), arch=arch, training=training, data=data))
    assert 0 < record.scores["cg_steps"] < 30
    assert {"accuracy", "cg_steps/block=0/head=1"} <= set(record.scores)
