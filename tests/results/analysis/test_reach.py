"""How far beyond its training a model still answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from recallmap.results.analysis.measures import measures
from recallmap.results.analysis.reach import reaches
from recallmap.results.record import Record
from recallmap.results.score_tables.breakdowns import further_tables

Make = Callable[..., Record]


@pytest.fixture
def tested(make: Make) -> Callable[..., Record]:
    """A record of parity at 40 bits, chance a half, with tests at other lengths."""

    def record(seed: int, trained: float, scores: Mapping[int, float], arch: str = "mesa", **rest: Any) -> Record:
        specs = [{"kind": "parity", "protocol": "repaired", "length": length} for length in scores]
        tests = [
            {"task": "parity", "setting": f"length={length}", "length": length, "chance": 0.5, "ceiling": 1.0}
            | {"scores": {"accuracy": score}}
            for length, score in scores.items()
        ]
        made = make(
            arch=arch, task="parity", seed=seed, score=trained, chance=0.5, ceiling=1.0, test_specs=specs, **rest
        )
        return replace(made, tests=tests)

    return record


def test_a_seed_reaches_the_last_length_before_the_first_at_which_it_is_not_above_midway(tested: Any) -> None:
    """Midway between a half and one is .75. What is shorter than in training does not count."""
    scores = [{20: 0.5, 64: 0.9, 128: 0.76}, {20: 0.9, 64: 0.74, 128: 0.99}, {20: 0.9, 64: 0.9, 128: 0.75}]
    records = [tested(seed, 0.9, own) for seed, own in enumerate(scores)]
    records.append(tested(3, 0.6, {20: 0.5, 64: 0.9, 128: 0.9}))
    (found,) = reaches(measures(records))
    assert (found.option, found.trained, found.tested) == ("length", 40, (64, 128))
    assert found.of == {0: 128, 1: 40, 2: 64, 3: 0}


def test_the_table_says_the_median_and_the_worst_seed(tested: Any) -> None:
    records = [tested(seed, 0.9, {64: score, 128: 0.5}) for seed, score in enumerate((0.9, 0.9, 0.6))]
    records += [tested(seed, 0.6, {64: 0.5, 128: 0.5}, arch="gla") for seed in range(3)]
    table = next(table for table in further_tables(records) if "reach" in table.title)
    assert table.title == "parity, reach in length from 40 to 128"
    assert {line.labels[0]: [cell.mean for cell in line.cells] for line in table.lines} == {
        "mesa": [64, 40],
        "gla": [0, 0],
    }
    assert "trained at 40, tested at 64, 128" in table.notes[0]


def test_settings_that_were_trained_or_tested_otherwise_have_tables_of_their_own(tested: Any) -> None:
    records = [tested(0, 0.9, {64: 0.9}), tested(0, 0.9, {64: 0.9}, arch="gla", training={"steps": 2000})]
    records.append(tested(0, 0.9, {64: 0.9, 128: 0.9}, arch="deltanet"))
    titles = [table.title for table in further_tables(records) if "reach" in table.title]
    assert titles == [
        "parity, steps 1000, reach in length from 40 to 64",
        "parity, steps 2000, reach in length from 40 to 64",
        "parity, steps 1000, reach in length from 40 to 128",
    ]


def test_tests_that_differ_in_two_parameters_or_in_none_have_no_reach(tested: Any, make: Make) -> None:
    both = tested(0, 0.9, {64: 0.9})
    both.spec["tests"][0]["labels"] = "final"
    both.spec["task"]["labels"] = "all"
    assert reaches(measures([both])) == []
    assert reaches(measures([make(task="parity")])) == []
