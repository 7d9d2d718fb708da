"""A claim stands, falls or stays open by what the records' intervals allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from recallmap.results.analysis.measures import measures
from recallmap.results.publishing.claim_rules import (
    Above,
    Average,
    Each,
    Evidence,
    OnAverage,
    Rises,
    Rule,
    Which,
    verdict_of,
)
from recallmap.results.publishing.claims import Claim
from recallmap.results.record import Record

Make = Callable[..., Record]
A, B = Which(archs=("a",)), Which(archs=("b",))


def weigh(rule: Rule, records: Sequence[Record]) -> list[Evidence]:
    return list(rule.weigh([m for m in measures(records) if m.values]))


def verdict(rule: Rule, records: Sequence[Record]) -> str:
    return verdict_of(weigh(rule, records))


def seeds(make: Make, arch: str, scores: Sequence[float], **rest: Any) -> list[Record]:
    return [make(arch=arch, seed=n, score=score, **rest) for n, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([0.9, 0.91, 0.92], [0.5, 0.51, 0.52], "reproduced"),
        ([0.5, 0.51, 0.52], [0.9, 0.91, 0.92], "not reproduced"),
        ([0.5, 0.9, 0.7], [0.6, 0.8, 0.6], "not decided"),
        ([0.9], [0.1], "not decided"),  # one seed each has no interval
        ([0.9, 0.9, 0.9], [0.9, 0.9, 0.9], "not reproduced"),  # surely no better
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], "not decided"),  # nothing can be better than the ceiling
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], "not decided"),  # neither has learned anything
    ],
)
def test_better_is_decided_by_the_interval(make: Make, ours: list[float], theirs: list[float], expected: str) -> None:
    assert verdict(Above(better=A, worse=B), seeds(make, "a", ours) + seeds(make, "b", theirs)) == expected


@pytest.mark.parametrize(
    ("ours", "no_worse", "expected"),
    [
        ([0.500, 0.501, 0.502], False, "reproduced"),
        ([0.600, 0.601, 0.602], False, "not reproduced"),
        ([0.600, 0.601, 0.602], True, "reproduced"),
        ([0.400, 0.401, 0.402], True, "not reproduced"),
        ([0.40, 0.50, 0.60], False, "not decided"),
    ],
)
def test_equal_is_decided_by_a_margin(make: Make, ours: list[float], no_worse: bool, expected: str) -> None:
    rule = Above(better=A, worse=B, margin=0.02, no_worse=no_worse)
    assert verdict(rule, seeds(make, "a", ours) + seeds(make, "b", [0.5, 0.501, 0.502])) == expected


def test_a_loss_is_better_where_it_is_smaller(make: Make) -> None:
    records = seeds(make, "a", [0.9, 0.91]) + seeds(make, "b", [0.5, 0.51])  # the loss is 1 - score
    assert verdict(Above(better=A, worse=B, score="loss"), records) == "reproduced"
    assert verdict(Above(better=B, worse=A, score="loss"), records) == "not reproduced"


def phased(make: Make, arch: str, scores: Sequence[float], losses: Sequence[float]) -> list[Record]:
    """Trials in two phases of 5 steps, a loss at the end of each: that of the first tells which weights they went on from."""
    phases = {"phases": [{"training": {"steps": 5}}, {}]}
    return [
        replace(
            record,
            spec=record.spec | phases,
            curve={"step": [5, 10], "train_loss": [loss, score], "validation_loss": [1.0, 1.0]},
        )
        for record, score, loss in zip(seeds(make, arch, scores), scores, losses, strict=True)
    ]


def test_trials_that_went_on_from_the_same_weights_are_compared_seed_by_seed(make: Make) -> None:
    begun, elsewhere = [0.5, 0.6, 0.7], [0.5, 0.6, 0.7000001]
    ours = phased(make, "a", [0.11, 0.52, 0.93], begun)  # seeds differ by far more than a and b do within a seed
    theirs = [0.09, 0.495, 0.915]
    (one,) = weigh(Above(better=A, worse=B), ours + phased(make, "b", theirs, begun))
    assert one.figures.endswith(", difference +0.020 in [+0.008, +0.032], seed by seed")  # 4.3027 * 0.005 / sqrt(3)
    assert one.verdict == "reproduced"
    for others in (phased(make, "b", theirs, elsewhere), seeds(make, "b", theirs)):
        (one,) = weigh(Above(better=A, worse=B), ours + others)
        assert (one.figures.endswith("seed by seed"), one.verdict) == (False, "not decided")
    back = phased(make, "a", [0.11, 0.52, 0.93], begun) + phased(make, "b", theirs, begun)
    assert verdict(Above(better=B, worse=A), back) == "not reproduced"
    assert verdict(Above(better=A, worse=B, score="loss"), back) == "reproduced"


def test_one_training_tested_with_other_dials_is_compared_seed_by_seed(make: Make) -> None:
    def tested(arch: str, scores: Sequence[float], trained: int) -> list[Record]:
        phases = [{"training": {"steps": 5}, "dials": {"cg_steps": trained}}, {"training": {"steps": 0}}]
        return [
            replace(
                record,
                spec=record.spec | {"phases": phases},
                curve={"step": [5, 5], "train_loss": [0.5 + seed, None], "validation_loss": [1.0, score]},
            )
            for seed, (record, score) in enumerate(zip(seeds(make, arch, scores), scores, strict=True))
        ]

    ours, theirs = [0.11, 0.52, 0.93], [0.09, 0.495, 0.915]
    (one,) = weigh(Above(better=A, worse=B), tested("a", ours, 30) + tested("b", theirs, 30))
    assert one.figures.endswith(", difference +0.020 in [+0.008, +0.032], seed by seed")
    at = {"training.trained_cg_steps": 30}
    rule = Above(better=replace(A, at=at), worse=replace(B, at=at))
    assert weigh(rule, tested("a", ours, 30) + tested("b", theirs, 30)) == [one]
    assert weigh(rule, tested("a", ours, 30) + tested("b", theirs, 20)) == []


def test_a_difference_of_less_than_its_digits_is_still_one(make: Make) -> None:
    ours = seeds(make, "a", [0.5, 0.5, 0.5])
    (none,) = weigh(Above(better=A, worse=B), ours + seeds(make, "b", [0.5, 0.5, 0.5]))
    (some,) = weigh(Above(better=A, worse=B), ours + seeds(make, "b", [0.49998, 0.49999, 0.49997]))
    assert ", difference +0.000 in [+0.000, +0.000]" in none.figures
    assert some.figures.endswith(", difference +2.0e-05 in [+4.0e-06, +3.6e-05]")  # 2.7764 * 1e-5 / sqrt(3)
    assert some.verdict == "reproduced"


def test_seeds_that_only_one_side_has_do_not_count_in_pairs(make: Make) -> None:
    both = phased(make, "a", [0.2, 0.9], [0.5, 0.6]) + phased(make, "b", [0.1, 0.801], [0.5, 0.6])
    lone = phased(make, "a", [0.0] * 8, [0.1] * 8)[7:]
    assert weigh(Above(better=A, worse=B), both + lone) == weigh(Above(better=A, worse=B), both)
    assert verdict(Above(better=A, worse=B), both + lone) == "reproduced"


def test_one_seed_in_common_is_no_pair(make: Make) -> None:
    records = phased(make, "a", [0.9, 0.8], [0.5, 0.6]) + phased(make, "b", [0.1], [0.5])
    (one,) = weigh(Above(better=A, worse=B), records)
    assert (one.figures.endswith("seed by seed"), one.figures.startswith("0.850")) == (False, True)


@pytest.mark.parametrize(
    ("more", "margin", "expected"),
    [
        (0.0, None, "not reproduced"),  # surely no better
        (0.125, None, "reproduced"),
        (-0.125, None, "not reproduced"),
        (0.0, 0.02, "reproduced"),
        (0.125, 0.02, "not reproduced"),
    ],
)
def test_differences_that_are_all_equal_decide_as_equal_scores_do(
    make: Make, more: float, margin: float | None, expected: str
) -> None:
    apart = seeds(make, "a", [0.5 + more] * 3) + seeds(make, "b", [0.5] * 3)
    pairs = phased(make, "a", [0.25 + more, 0.75 + more], [1, 2]) + phased(make, "b", [0.25, 0.75], [1, 2])
    assert verdict(Above(better=A, worse=B, margin=margin), apart) == expected
    assert verdict(Above(better=A, worse=B, margin=margin), pairs) == expected


def test_only_the_same_setting_and_the_same_size_of_state_is_compared(make: Make) -> None:
    records = [
        *seeds(make, "a", [0.9, 0.91], state_bytes=1000),
        *seeds(make, "b", [0.5, 0.51], state_bytes=1050),
        *seeds(make, "b", [0.99, 0.99], state_bytes=9000, arch_dials={"width": 512}),
        *seeds(make, "b", [0.99, 0.99], state_bytes=1050, dials={"pairs": 2}),
    ]
    (one,) = weigh(Above(better=A, worse=B, same_state=0.1), records)
    assert (one.who, one.where, one.verdict) == (
        "a against b width=128",
        "mqar vocab 256 length 64 pairs 4 steps 1000",
        "reproduced",
    )


@pytest.mark.parametrize(
    "rule", [Above(better=A, worse=B), OnAverage(rule=Above(better=A, worse=B), over=Average(columns=(("mqar",),)))]
)
def test_what_began_with_other_weights_is_not_compared(make: Make, rule: Rule) -> None:
    small, large = ({"arch_dials": {"init": init}} for init in ("normal", "fan_in"))
    records = [
        *seeds(make, "a", [0.9, 0.91], **small),
        *seeds(make, "a", [0.4, 0.41], **large),
        *seeds(make, "b", [0.5, 0.51], **small),
    ]
    (one,) = weigh(rule, records)
    assert (one.who, one.verdict) == ("a init=normal against b", "reproduced")


def test_what_was_trained_for_longer_is_compared_with_its_like(make: Make) -> None:
    short, long = ({"training": {"steps": steps}} for steps in (1000, 4000))
    records = seeds(make, "a", [0.1, 0.11], **short) + seeds(make, "b", [0.5, 0.51], **short)
    records += seeds(make, "a", [0.9, 0.91], **long)
    (one,) = weigh(Above(better=A, worse=B), records)
    assert (one.figures[:5], one.verdict) == ("0.105", "not reproduced")


def test_all_dials_but_those_named_must_agree(make: Make) -> None:
    def of(window: int, heads: int, score: float) -> list[Record]:
        return seeds(make, "m", [score, score + 0.01], arch_dials={"window": window, "heads": heads})

    records = of(1, 1, 0.5) + of(4, 1, 0.7) + of(1, 2, 0.6) + of(4, 2, 0.8)
    rule = Above(better=Which(parameters={"window": (4,)}), worse=Which(parameters={"window": (1,)}), but=("window",))
    assert len(weigh(rule, records)) == 2
    assert len(weigh(Rises(parameter="window"), records)) == 2
    assert verdict(Rises(parameter="window"), records) == "reproduced"


def test_every_seed_must_reach_and_one_that_does_not_leaves_it_open(make: Make) -> None:
    rule = Each(which=A, least=0.9)
    assert verdict(rule, seeds(make, "a", [0.95, 0.99])) == "reproduced"
    assert verdict(rule, seeds(make, "a", [0.95, 0.5])) == "not decided"
    assert verdict(rule, seeds(make, "a", [0.4, 0.5])) == "not reproduced"


def test_an_average_is_over_columns_and_over_what_both_have(make: Make) -> None:
    tasks = {"in_context_recall": 0.9, "noisy_in_context_recall": 0.7, "compression": 0.4}
    columns = (("in_context_recall", "noisy_in_context_recall"), ("compression",))

    def of(arch: str, less: float, only: Sequence[str] = tuple(tasks)) -> list[Record]:
        return [r for t in only for r in seeds(make, arch, [tasks[t] - less, tasks[t] - less + 0.01], task=t)]

    rule = OnAverage(rule=Above(better=A, worse=B), over=Average(columns=columns))
    extra = seeds(make, "a", [0.0, 0.0], task="compression", dials={"vocab": 64})  # b has not met it
    extra += [r for arch in ("a", "b") for r in seeds(make, arch, [0.0, 0.0], task="parity")]  # in none of the columns
    (one,) = weigh(rule, of("a", 0.0) + of("b", 0.2) + extra)
    assert one.figures.startswith("0.605")  # ((0.9 + 0.7) / 2 + 0.4) / 2, and half of 0.01
    assert one.verdict == "reproduced"
    assert one.where.startswith("mean of 3 tasks")
    assert weigh(rule, of("a", 0.0) + of("b", 0.2, ("compression",))) == []


def test_one_comparison_against_is_enough() -> None:
    def evidence(*verdicts: Any) -> list[Evidence]:
        return [Evidence(who="", where="", figures="", verdict=v) for v in verdicts]

    assert verdict_of(evidence("reproduced", "not reproduced")) == "not reproduced"
    assert verdict_of(evidence("reproduced", "not decided")) == "not decided"
    assert verdict_of(evidence("reproduced", "reproduced")) == "reproduced"
    assert verdict_of([]) == "not decided"


def test_mixers_and_expansions_are_told_by_what_an_architecture_has(make: Make) -> None:
    mesa = {"stack": [{"mixer": {"kind": "mesa", "heads": 4}}, {"mixer": {"kind": "attention"}}]}
    (measure,) = measures([make(arch_dials=mesa)])
    assert Which(has=("mesa",)).holds(measure)
    assert not Which(has=("mesa",), lacks=("attention",)).holds(measure)
    assert Which(grown=False).holds(measure)
    record = make(arch_dials=mesa, seed=1)
    record.spec["phases"] = [{}, {"expand": {"count": 4, "start": "inherit"}}]
    (grown,) = measures([record])
    assert Which(grown=True, parameters={"count": (4,)}).holds(grown)
    assert not Which(grown=False).holds(grown)


@pytest.mark.parametrize(
    ("make_rule", "said"),
    [
        (lambda: Above(better=A, worse=B, margin=-0.1), "margin must be at least 0, got -0.1"),
        (lambda: Above(better=A, worse=B, same_state=-1), "same_state must be at least 0, got -1"),
        (lambda: Above(better=A, worse=B, no_worse=True), "no_worse needs a margin, got none"),
        (lambda: Each(which=A), "least or most must be given, got neither"),
        (lambda: Each(which=A, least=0.9, most=0.1), "least must be at most 0.1"),
        (lambda: Average(columns=(("mqar",), ())), "columns must be lists of at least one task"),
        (lambda: Claim(text="No stop", source="a paper", rule=Each(which=A, least=0.9)), "text must be a sentence"),
        (lambda: Claim(text="A stop.", source="", rule=Each(which=A, least=0.9)), "source must name the paper"),
    ],
)
def test_a_rule_or_claim_that_can_decide_nothing_is_refused(make_rule: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_rule()
