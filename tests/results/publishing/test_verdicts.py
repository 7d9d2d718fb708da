"""Verdicts on claims: one comparison against is enough, all are needed to hold one up, and many tests are corrected for."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.results.analysis.measures import Measure
from recallmap.results.publishing.claim_rules import Above, Which
from recallmap.results.publishing.verdicts import Evidence, judge


def evidence(side: Literal["for", "against"], p: float | None, silent: str = "") -> Evidence:
    return Evidence(who="", where="", figures="", side=side, p=p, silent=silent)


SURE, OPEN, FEW, MUTE = (
    evidence("for", 0.001),
    evidence("for", 0.4),
    evidence("for", None),
    evidence("for", 0.001, "both are at the ceiling"),
)
AGAINST = evidence("against", 0.001)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ([SURE, SURE], "reproduced"),
        ([SURE, AGAINST], "not reproduced"),
        ([SURE, OPEN], "not decided"),
        ([SURE, FEW], "not decided"),  # all that can speak are needed
        ([AGAINST, FEW], "not reproduced"),
        ([SURE, MUTE], "reproduced"),
        ([MUTE, MUTE], "cannot speak"),
        ([evidence("against", 0.001, "b failed to train"), FEW], "not decided"),
        ([], "cannot speak"),
    ],
)
def test_the_verdict_of_comparisons(own: list[Evidence], expected: str) -> None:
    assert judge({"a": own})["a"].verdict == expected


def test_comparisons_of_a_claim_are_corrected_by_holm() -> None:
    found = judge({"a": [evidence("against", 0.02), evidence("for", 0.03), evidence("for", 0.9), MUTE]})["a"]
    assert [one.adjusted for one in found.evidence] == [pytest.approx(0.06), pytest.approx(0.06), 0.9, None]
    assert (found.p, found.verdict) == (pytest.approx(0.06), "not decided")


def test_claims_are_corrected_by_benjamini_and_hochberg() -> None:
    claims = {str(n): [evidence("for", 0.04)] for n in range(2)} | {"open": [evidence("for", 0.9)], "few": [FEW]}
    found = judge(claims)
    assert found["0"].adjusted == pytest.approx(0.06)
    assert [one.verdict for one in found.values()] == ["not decided"] * 4
    assert found["few"].p is None  # it was not tested, and does not count
    assert judge({"0": claims["0"], "1": claims["1"]})["0"].verdict == "reproduced"


# What verdicts are worth: claims of four comparisons each, simulated.

A, B = Which(archs=("a",)), Which(archs=("b",))


def measure(arch: str, setting: int, scores: NDArray[np.float64], first: int = 0) -> Measure:
    values = {first + seed: float(score) for seed, score in enumerate(scores)}
    return Measure(
        arch=arch,
        row=arch,
        task="mqar",
        dials={"pairs": setting},
        state_bytes=1,
        state_grows=False,
        metric="accuracy",
        values=values,
        chance=0.1,
        ceiling=1.0,
        chose_none=frozenset(values),
        traceable=frozenset(values),
    )


def one_peak(rng: np.random.Generator, mean: float, spread: float = 0.03) -> NDArray[np.float64]:
    return mean + spread * rng.standard_normal(5)


def two_peaks(rng: np.random.Generator, share: float) -> NDArray[np.float64]:
    return np.where(rng.random(5) < share, 0.95, 0.2) + 0.02 * rng.standard_normal(5)


def decided(ours: list[NDArray[np.float64]], theirs: list[NDArray[np.float64]], paired: bool) -> str:
    found = [measure("a", n, scores) for n, scores in enumerate(ours)]
    found += [measure("b", n, scores, 0 if paired else 5) for n, scores in enumerate(theirs)]
    return judge({"claim": list(Above(better=A, worse=B).weigh(found))})["claim"].verdict


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("share", [0.5, 0.8])
def test_of_ties_with_two_peaks_at_most_one_claim_in_twenty_is_decided(share: float, paired: bool) -> None:
    rng = np.random.default_rng(0)
    verdicts = [
        decided([two_peaks(rng, share) for _ in range(4)], [two_peaks(rng, share) for _ in range(4)], paired)
        for _ in range(100)
    ]
    assert np.mean([verdict != "not decided" for verdict in verdicts]) <= 0.05


@pytest.mark.parametrize(("better", "wrong"), [(0.0, "reproduced"), (0.01, "not reproduced")])
def test_one_claim_in_twenty_is_decided_wrongly_where_sides_have_one_peak(better: float, wrong: str) -> None:
    """Equal sides bear out no claim, and those that differ by the smallest difference of interest speak against none."""
    rng = np.random.default_rng(1)
    found = [decided([one_peak(rng, 0.7 + better)], [one_peak(rng, 0.7)], paired=False) for _ in range(150)]
    assert np.mean([verdict == wrong for verdict in found]) <= 0.05


@pytest.mark.parametrize("paired", [True, False])
def test_fifteen_points_between_seeds_that_spread_by_three_are_found(paired: bool) -> None:
    """As of Mesa and linear attention at 8 pairs in the demo; all of four comparisons must show it."""
    rng = np.random.default_rng(2)
    found = [
        decided([one_peak(rng, 0.92) for _ in range(4)], [one_peak(rng, 0.77) for _ in range(4)], paired)
        for _ in range(50)
    ]
    assert np.mean([verdict == "reproduced" for verdict in found]) >= 0.8


def test_three_points_between_seeds_that_spread_by_one_are_found() -> None:
    """As of Gated DeltaNet and linear attention at 4 pairs in the demo."""
    rng = np.random.default_rng(3)
    found = [decided([one_peak(rng, 0.92, 0.01)], [one_peak(rng, 0.89, 0.01)], paired=False) for _ in range(80)]
    assert np.mean([verdict == "reproduced" for verdict in found]) >= 0.8


def test_seeds_of_which_half_learn_need_more_than_five_to_tell() -> None:
    rng = np.random.default_rng(4)
    found = [decided([two_peaks(rng, 0.9)], [two_peaks(rng, 0.5)], paired=False) for _ in range(80)]
    assert np.mean([verdict == "reproduced" for verdict in found]) <= 0.4
