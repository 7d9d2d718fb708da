"""The published suites as data: every setting of every tier is a trial, and the tiers hold what was published."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from recallmap.search import codec
from recallmap.search.trial import TrialSpec

BARE = {"task": {}, "arch": codec.plain(codec.read_arch("attention")), "training": {"steps": 1}}
TIERS = [(name, tier) for name in codec.builtin("suite") for tier in codec.document(name, "suite").plain()["tiers"]]
MAD = (  # kind -> settings of the paper
    ("in_context_recall", 11),
    ("fuzzy_in_context_recall", 11),
    ("noisy_in_context_recall", 14),
    ("memorization", 6),
    ("compression", 11),
    ("selective_copying", 13),
)


@cache
def trials(suite: str, tier: str) -> tuple[Any, ...]:
    """The settings of a tier, each laid over a trial that says nothing of its own but what a trial must."""
    return tuple(codec.from_plain(TrialSpec, {**BARE, **setting}) for setting in codec.read_suite(suite, tier))


def settings(suite: str, tier: str) -> set[str]:
    """Settings that differ, as canonical text."""
    return {codec.canonical(trial) for trial in trials(suite, tier)}


@pytest.mark.parametrize(("suite", "tier"), TIERS, ids=lambda part: part)
def test_every_setting_is_a_trial_and_none_comes_twice(suite: str, tier: str) -> None:
    found = trials(suite, tier)
    assert found
    assert len(settings(suite, tier)) == len(found)


@pytest.mark.parametrize(("suite", "tier"), TIERS, ids=lambda part: part)
def test_every_setting_says_all_dials_of_its_tasks(suite: str, tier: str) -> None:
    """It is laid over the task of a trial, which may say others; a protocol only where there are several."""
    for said, trial in zip(codec.read_suite(suite, tier), trials(suite, tier), strict=True):
        told = [said["task"], *(part["task"] for part in said.get("mix", [])), *said.get("tests", [])]
        tasks = [trial.task, *(part.task for part in trial.mix), *trial.tests]
        for dials, task in zip(told, tasks, strict=True):
            assert set(codec.plain(task)) - set(dials) <= {"protocol"}


@pytest.mark.parametrize("suite", codec.builtin("suite"))
def test_the_smallest_tier_comes_first_and_draws_without_end(suite: str) -> None:
    assert next(tier for name, tier in TIERS if name == suite) == "smoke"
    assert {trial.data.train for trial in trials(suite, "smoke")} == {None}
    assert {trial.task.protocol for trial in trials(suite, "smoke")} == {"repaired"}


@pytest.mark.parametrize(("tier", "count"), [("smoke", 6), ("mini", 12), ("baseline", 6), ("paper", 66)])
def test_mad_has_its_settings(tier: str, count: int) -> None:
    assert len(settings("mad", tier)) == count
    assert {trial.data.test for trial in trials("mad", tier)} == {256 if tier == "smoke" else 1280}


def test_mad_paper_varies_each_task_as_published() -> None:
    assert tuple(Counter(trial.task.kind for trial in trials("mad", "paper")).items()) == MAD
    sizes = {trial.data.train for trial in trials("mad", "paper") if trial.task.kind != "memorization"}
    assert sizes == {12800, 6400, 3200, 1600, 800}


@pytest.mark.parametrize("tier", ["baseline", "paper"])
def test_mad_as_published_is_under_its_protocol(tier: str) -> None:
    found = trials("mad", tier)
    assert {trial.task.protocol for trial in found} == {"mad-lab"}
    assert {trial.data.train for trial in found if trial.task.kind == "memorization"} == {256}


def test_mad_baseline_is_the_first_setting_of_each_task() -> None:
    first = {trial.task.kind: trial for trial in reversed(trials("mad", "paper"))}
    assert {trial.task.kind: trial for trial in trials("mad", "baseline")} == first


@pytest.mark.parametrize(("tier", "count"), [("smoke", 1), ("figure2", 4), ("based", 1)])
def test_mqar_has_its_settings(tier: str, count: int) -> None:
    assert len(settings("mqar", tier)) == count
    assert {trial.task.protocol for trial in trials("mqar", tier)} == {"repaired" if tier == "smoke" else "zoology"}


def test_mqar_based_trains_on_a_mix_and_is_tested_beyond_it() -> None:
    (trial,) = trials("mqar", "based")
    assert [(p.task.shape[0], p.task.pairs, p.examples) for p in trial.mix] == [
        (64, 4, 100_000),
        (128, 8, 20_000),
        (256, 16, 20_000),
        (256, 32, 20_000),
        (256, 64, 20_000),
    ]
    assert [task.pairs for task in trial.tests] == [4, 8, 16, 32, 64, 128, 256]
    assert max(task.shape[0] for task in trial.tests) == 1024
    assert {t.protocol for t in (*trial.tests, *(p.task for p in trial.mix))} == {"zoology"}


def test_regbench_paper_is_one_task_at_six_sizes() -> None:
    found = trials("regbench", "paper")
    assert len({trial.task for trial in found}) == 1
    assert [trial.data.train for trial in found] == [1000, 2500, 5000, 10000, 20000, 40000]


def test_parity_of_mesanet_trains_on_40_and_tests_to_256() -> None:
    (trial,) = trials("state_tracking", "mesanet")
    assert (trial.task.kind, trial.task.shape[0], trial.task.labels) == ("parity", 40, "all")
    assert [task.shape[0] for task in trial.tests] == [64, 128, 256]


def test_needle_asks_every_level_at_one_to_eight_times_the_trained_length() -> None:
    (trial,) = trials("needle", "qa")
    assert {(task.level, task.length // trial.task.length) for task in trial.tests} == {
        (level, times) for level in (1, 2, 3) for times in (1, 2, 4, 8)
    }


def test_learnability_has_the_five_mappings_at_each_size() -> None:
    for tier in ("mini", "large"):
        assert len({trial.task.mapping for trial in trials("learnability", tier)}) == 5


def test_the_public_generators_sizes_with_brackets_are_the_suites() -> None:
    """Its least three sizes are raised to one."""
    (task,) = (t.task for t in trials("state_tracking", "unlocking") if getattr(t.task, "brackets", False))
    sizes = task.sizes(np.random.default_rng(0), 20_000, "train")
    assert (sizes == 3).mean() == pytest.approx(3 / 38, abs=0.008)
    assert (sizes.min(), sizes.max()) == (3, 38)
