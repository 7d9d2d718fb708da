"""The studies that ship: every budget of theirs is right, and the smallest runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from results.ledger import Ledger
from search import codec, engine, typed

SEARCHED = ("mqar_capacity", "hybrid_search", "statex", "cg_steps", "omega_window")


@pytest.mark.parametrize("name", codec.builtin("study"))
def test_every_budget_is_right(name: str) -> None:
    for budget in codec.read_study(name).budgets.value:
        codec.read_study(name, overrides=[f"budget={budget}"])


@pytest.mark.parametrize("name", SEARCHED)
def test_there_is_a_budget_for_gpus_and_one_that_runs_here(name: str, tmp_path: Path) -> None:
    assert {"smoke", "paper"} <= set(codec.read_study(name).budgets.value)
    plan = engine.run(codec.read_study(name, overrides=["budget=smoke"]), tmp_path / "smoke.sqlite", device="cpu")
    with Ledger(tmp_path / "smoke.sqlite") as ledger:
        found = ledger.records()
    assert len(found) == len(plan.trials) > 0
    assert set(found["status"]) == {"done"}


def test_the_capacity_study_holds_every_mixer() -> None:
    from arch.mixers import Mixer

    trials = codec.read_study("mqar_capacity").trials()
    assert {t.arch.stack[1].mixer.kind for t in trials} == set(typed.kinds_of(Mixer))  # type: ignore[union-attr]


def test_mad_begins_with_small_weights() -> None:
    """As mad-lab did: from large ones memorization is learned by heart."""
    assert {trial.arch.init for trial in codec.read_study("mad").trials()} == {"normal"}  # type: ignore[union-attr]
