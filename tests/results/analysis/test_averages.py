"""The interquartile mean of scaled scores is decided by no single task."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from recallmap.results.analysis.averages import interquartile_mean, scaled_scores
from recallmap.results.analysis.measures import measures
from recallmap.results.record import Record

Make = Callable[..., Record]


def test_scores_are_scaled_from_chance_to_the_ceiling_and_each_task_counts_once(make: Make) -> None:
    records = [make(task="compression", seed=s, score=0.55, chance=0.1) for s in range(2)]
    records += [
        make(task="memorization", seed=s, score=v, dials={"vocab": n}, chance=0.2)
        for s in range(2)
        for n, v in ((64, 0.2), (128, 1.0))
    ]
    lone = make(task="memorization", seed=2, score=0.9, dials={"vocab": 64}, chance=0.2)
    found = scaled_scores(measures([*records, lone]))
    assert found == {"compression": pytest.approx([0.5, 0.5]), "memorization": pytest.approx([0.5, 0.5])}


def test_it_is_the_mean_of_the_middle_half() -> None:
    value, interval = interquartile_mean([[0.0, 0.0], [0.4, 0.6], [0.6, 0.4], [1.0, 1.0]])
    assert (value, interval) == (pytest.approx(0.5), None)  # two seeds have no interval


def test_its_interval_draws_seeds_within_tasks() -> None:
    equal, apart = [0.5] * 5, [0.1, 0.2, 0.3, 0.4, 0.5]
    assert interquartile_mean([equal, equal])[1] is None
    value, interval = interquartile_mean([apart, apart])
    low, high = interval or (0.0, 0.0)
    assert 0.1 < low < value < high < 0.5
