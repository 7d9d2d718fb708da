"""The studies that ship: what they ask, and that the smallest runs. Every budget of them is read in test_cli."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from recallmap.arch.mixers import Mixer
from recallmap.arch.stack import count
from recallmap.results.ledger import Ledger
from recallmap.search import codec
from recallmap.search.documents import type_hints
from recallmap.search.engines import inline
from recallmap.search.space.search_space import Search

SEARCHED = (
    "mqar_capacity",
    "hybrid_search",
    "statex",
    "cg_steps",
    "omega_window",
    "one_shot",
    "memory_parts",
    "beyond_recall",
)


@pytest.mark.parametrize("name", SEARCHED)
def test_there_is_a_budget_for_gpus_and_one_that_runs_here(name: str, tmp_path: Path) -> None:
    assert {"smoke", "paper"} <= set(codec.read_study(name).budgets.value)
    plan = inline.run(codec.read_study(name, overrides=["budget=smoke"]), tmp_path / "smoke.sqlite", device="cpu")
    with Ledger(tmp_path / "smoke.sqlite") as ledger:
        found = ledger.records()
    assert len(found) == len(plan.trials) > 0
    assert set(found["status"]) == {"done"}


def test_the_capacity_study_holds_every_mixer() -> None:
    trials = codec.read_study("mqar_capacity").trials()
    assert {t.arch.stack[1].mixer.kind for t in trials} == set(type_hints.kinds_of(Mixer))  # type: ignore[union-attr]


def test_the_wide_search_has_all_families_and_anchors_of_its_size() -> None:
    wide = codec.read_study("hybrid_search", overrides=["budget=wide"])
    assert isinstance(wide.space, Search)
    met = {str(value) for choices, _ in wide.space.corners() for value in choices.values()}
    assert {"kda", "delta_product", "gla", "mamba2", "mamba3", "ttt_linear", "titans", "omeganet"} <= met
    kinds = {trial.task.kind for trial in wide.expanded(wide.space.anchor_points()[0])}  # type: ignore[union-attr]
    assert kinds == {"mqar", "selective_copying", "compression", "group_word"}
    for anchor in wide.space.anchor_points():
        assert not any(wide.constraints.broken_by(trial) for trial in wide.expanded(anchor))
    assert wide.constraints.parameters == 132_000
    assert wide.constraints.least_parameters == 108_000


def test_the_transfer_study_asks_what_the_search_asked_and_more_under_seeds_and_at_sizes_that_it_had_not() -> None:
    wide, transfer = codec.read_study("hybrid_search", overrides=["budget=wide"]), codec.read_study("hybrid_transfer")
    assert isinstance(wide.space, Search)
    searched, trials = wide.expanded(wide.space.anchor_points()[0]), transfer.trials()
    asked = {trial.task for trial in searched}
    assert asked < {trial.task for trial in trials}
    assert {t.task.kind for t in trials} - {task.kind for task in asked} == {
        "fuzzy_in_context_recall",
        "hops",
        "needle",
        "regbench",
    }
    assert {trial.seed for trial in trials}.isdisjoint(trial.seed for trial in searched)
    assert len({trial.seed for trial in trials}) == 5
    longer = {trial.task: trial.tests[0] for trial in trials if trial.task in asked and trial.tests}
    assert {task.kind for task in asked - longer.keys()} == {"compression"}
    assert all(replace(test, length=task.length) == task for task, test in longer.items())
    assert {test.length / task.length for task, test in longer.items()} == {4}
    rates = sorted({trial.training.lr for trial in trials})
    assert all(later / rate == pytest.approx(10**0.25, rel=0.07) for rate, later in itertools.pairwise(rates))
    counts = Counter(trial.arch.name for trial in trials)  # type: ignore[union-attr]
    assert set(counts.values()) == {250, 125}


def test_what_the_transfer_study_trains_on_further_tasks_it_trains_at_twice_its_width_and_depth() -> None:
    trials = codec.read_study("hybrid_transfer").trials()
    further = {trial.arch.name for trial in trials if trial.task.kind == "hops"}  # type: ignore[union-attr]
    sizes: dict[str, set[tuple[int, int]]] = {}
    for trial in trials:
        sizes.setdefault(trial.arch.name, set()).add((trial.arch.width, count(trial.arch.stack)))  # type: ignore[union-attr]
    assert len(further) == 8
    assert {name for name, own in sizes.items() if len(own) > 1} == further
    for small, large in (sorted(sizes[name]) for name in further):
        assert (2 * small[0], 2 * small[1]) == large


def test_the_transfer_study_runs_here(tmp_path: Path) -> None:
    plan = inline.run(
        codec.read_study("hybrid_transfer", overrides=["budget=smoke"]), tmp_path / "a.sqlite", device="cpu"
    )
    with Ledger(tmp_path / "a.sqlite") as ledger:
        records = ledger.all()
    assert len(records) == len(plan.trials) > 0
    assert {record.status for record in records} == {"done"}


def test_mad_begins_with_small_weights() -> None:
    """As mad-lab did: from large ones memorization is learned by heart."""
    assert {trial.arch.init for trial in codec.read_study("mad").trials()} == {"normal"}  # type: ignore[union-attr]


def test_delta_rules_stand_beside_zoologys_figures_as_zoology_has_them() -> None:
    trials = codec.read_study("mqar_zoology").trials()
    mixers = [trial.arch.stack[1].mixer for trial in trials]  # type: ignore[union-attr]
    delta = [mixer for mixer in mixers if mixer.kind == "deltanet"]
    gated = [mixer for mixer in mixers if mixer.kind == "gated_deltanet"]
    assert {(m.heads, m.scale, m.out_gate) for m in delta} == {(2, "key_dim", False)}
    assert {(m.heads, m.scale, m.out_gate) for m in gated} == {(2, "key_dim", True)}
    assert (len(delta), len(gated)) == (16, 28)
    assert {mixer.kind for mixer in mixers} == set(type_hints.kinds_of(Mixer))


@pytest.mark.parametrize("kind", ["deltanet", "gated_deltanet"])
def test_write_strengths_up_to_one_and_two_are_compared_with_all_else_alike(kind: str) -> None:
    for budget in ((), ("budget=mini",), ("budget=paper",)):
        trials = codec.read_study("state_tracking", overrides=budget).trials()
        mixers = {trial.arch.stack[0].blocks[0].mixer for trial in trials if trial.arch.name == kind}  # type: ignore[union-attr]
        assert {m.beta_max for m in mixers} in ({1, 2}, set())
        assert len({replace(m, beta_max=1) for m in mixers}) == bool(mixers)
