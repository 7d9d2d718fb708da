"""MesaNet's claim about parity, at the size of the study's `cpu` budget: trained on 16 bits, asked for 64."""

from __future__ import annotations

import pytest

from recallmap.results.analysis.labels import row_names
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.training.packing import at_most, pack
from recallmap.search.training.run_cohort import run_cohort

TURNS_OVER = {"mesa": "signed_decay=true", "gla": "signed_decay=true", "deltanet": "beta_max=2"}


@pytest.fixture(scope="module")
def trained() -> dict[str, dict[bool, list[Record]]]:
    """The trials of every mixer, one a seed: those that only fade (of Mesa with a Lambda of 50 and of 1), and those that may
    turn over."""
    trials = codec.read_study("parity", overrides=["budget=cpu"]).trials()
    records = [r for cohort in pack(trials, at_most(3)) for r in run_cohort([trials[i] for i in cohort], device="cpu")]
    names = row_names(records)
    found: dict[str, dict[bool, list[Record]]] = {mixer: {False: [], True: []} for mixer in TURNS_OVER}
    for record in records:
        found[record.arch][TURNS_OVER[record.arch] in names[record.key].split()].append(record)
    return found


def at_64(record: Record) -> float:
    score: float = record.tests[-1]["scores"]["accuracy"]
    return score


@pytest.mark.slow
@pytest.mark.parametrize("mixer", TURNS_OVER)
def test_what_may_turn_over_follows_parity_to_four_times_the_length(
    trained: dict[str, dict[bool, list[Record]]], mixer: str
) -> None:
    for record in trained[mixer][True]:
        assert record.scores["accuracy"] > 0.99
        assert record.tests[0]["scores"]["accuracy"] > 0.95
        assert at_64(record) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("mixer", TURNS_OVER)
def test_what_only_fades_loses_it_beyond_the_trained_length(
    trained: dict[str, dict[bool, list[Record]]], mixer: str
) -> None:
    """In the mean, and every seed."""
    worst, fading = min(map(at_64, trained[mixer][True])), trained[mixer][False]
    assert sum(map(at_64, fading)) / len(fading) < 0.7
    for record in fading:
        assert 0.5 < at_64(record) < min(worst, record.scores["accuracy"]) - 0.15
