"""MesaNet's claim about parity, at the size of the study's `cpu` budget: trained on 16 bits, asked for 64."""

from __future__ import annotations

from collections import defaultdict

import pytest

from results.choose import row_names
from results.record import Record
from search import codec
from search.cohort import at_most, pack, run_cohort

TURNS_OVER = ("mesa signed_decay=true", "gla signed_decay=true", "deltanet beta_max=2")
FADES = ("mesa signed_decay=false", "gla signed_decay=false", "deltanet beta_max=1")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[Record]]:
    """The trials of every architecture, one a seed."""
    trials = codec.read_study("parity", overrides=["budget=cpu"]).trials()
    records = [r for cohort in pack(trials, at_most(2)) for r in run_cohort([trials[i] for i in cohort], device="cpu")]
    names, found = row_names(records), defaultdict(list)
    for record in records:
        found[names[record.key]].append(record)
    return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize("row", TURNS_OVER)
def test_what_may_turn_over_follows_parity_to_four_times_the_length(rows: dict[str, list[Record]], row: str) -> None:
    for record in rows[row]:
        at_16, (at_32, at_64) = record.scores["accuracy"], (test["scores"]["accuracy"] for test in record.tests)
        assert at_16 > 0.99
        assert at_32 > 0.95
        assert at_64 > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("row", FADES)
def test_what_only_fades_loses_it_beyond_the_trained_length(rows: dict[str, list[Record]], row: str) -> None:
    for record in rows[row]:
        at_64 = record.tests[-1]["scores"]["accuracy"]
        assert 0.5 < at_64 < 0.7
