"""A claim stands, falls, stays open or cannot be spoken on by what the records' fresh seeds allow."""

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
    OnAverage,
    Rises,
    Rule,
    Which,
)
from recallmap.results.publishing.claims import Claim
from recallmap.results.publishing.verdicts import Evidence, judge
from recallmap.results.record import Record

Make = Callable[..., Record]
A, B = Which(archs=("a",)), Which(archs=("b",))


def weigh(rule: Rule, records: Sequence[Record]) -> list[Evidence]:
    return list(rule.weigh([m for m in measures(records) if m.values]))


def verdict(rule: Rule, records: Sequence[Record]) -> str:
    return judge({"claim": weigh(rule, records)})["claim"].verdict


def seeds(make: Make, arch: str, scores: Sequence[float], **rest: Any) -> list[Record]:
    return [make(arch=arch, seed=n, score=score, **rest) for n, score in enumerate(scores)]


def near(score: float, count: int = 5) -> list[float]:
    return [score + n / 1000 for n in range(count)]


def around(score: float, count: int = 5) -> list[float]:
    """The same in another order, so that differences seed by seed vary."""
    return [near(score, count)[3 * n % count] for n in range(count)]


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (near(0.9), around(0.5), "reproduced"),
        (near(0.5), around(0.9), "not reproduced"),
        (near(0.505), around(0.5), "not reproduced"),  # better by less than a point
        ([0.4, 0.9, 0.7, 0.5, 0.8], [0.8, 0.5, 0.6, 0.8, 0.6], "not decided"),
        (near(0.9, 4), around(0.5, 4), "not decided"),  # four seeds each
        (near(0.9), around(0.5, 4), "not decided"),
        ([0.9] * 5, [0.5] * 5, "not decided"),  # five pairs that do not vary have a p value of 0.06
        ([0.9] * 6, [0.5] * 6, "reproduced"),
    ],
)
def test_better_is_decided_by_five_seeds_of_each(
    make: Make, ours: list[float], theirs: list[float], expected: str
) -> None:
    assert verdict(Above(better=A, worse=B), seeds(make, "a", ours) + seeds(make, "b", theirs)) == expected


@pytest.mark.parametrize(
    ("ours", "no_worse", "expected"),
    [
        (near(0.5), False, "reproduced"),
        (near(0.6), False, "not reproduced"),
        (near(0.6), True, "reproduced"),
        (near(0.4), True, "not reproduced"),
        ([0.4, 0.6, 0.5, 0.45, 0.55], False, "not decided"),
    ],
)
def test_equal_is_decided_by_a_margin(make: Make, ours: list[float], no_worse: bool, expected: str) -> None:
    rule = Above(better=A, worse=B, margin=0.02, no_worse=no_worse)
    theirs = around(0.5)
    assert verdict(rule, seeds(make, "a", ours) + seeds(make, "b", theirs)) == expected


def test_a_claim_may_name_its_smallest_difference_of_interest(make: Make) -> None:
    records = seeds(make, "a", near(0.54)) + seeds(make, "b", around(0.5))
    assert verdict(Above(better=A, worse=B), records) == "reproduced"
    (one,) = weigh(Above(better=A, worse=B, smallest=0.05), records)
    assert (one.side, (one.p or 1) < 0.05) in (("for", True), ("against", True))
    assert verdict(Above(better=B, worse=A, smallest=0.05), records) == "not reproduced"


def test_seeds_that_chose_hyper_parameters_decide_nothing(make: Make) -> None:
    def searched(arch: str, scores: Sequence[float], tried: int) -> list[Record]:
        own = seeds(make, arch, scores, training={"lr": 1e-3})
        rates = (1e-4, 1e-2)
        return own + [r for lr in rates for r in seeds(make, arch, [0.2] * tried, training={"lr": lr})]

    fresh = searched("a", near(0.9, 6), 1) + searched("b", near(0.5, 6)[::-1], 1)
    assert verdict(Above(better=A, worse=B), fresh) == "reproduced"
    (one,) = weigh(Above(better=A, worse=B), searched("a", near(0.9, 6), 2) + searched("b", near(0.5, 6), 1))
    assert one.p is None
    assert one.figures.endswith("; 4 and 5 fresh seeds, 5 are needed")


def test_seeds_that_all_tried_everything_decide_by_what_the_others_chose(make: Make) -> None:
    def searched(arch: str, scores: Sequence[float]) -> list[Record]:
        rates = {1e-4: 0.05, 1e-3: 0.0, 1e-2: 0.05}
        return [
            r for lr, less in rates.items() for r in seeds(make, arch, [s - less for s in scores], training={"lr": lr})
        ]

    (one,) = weigh(Above(better=A, worse=B), searched("a", near(0.9)) + searched("b", around(0.5)))
    assert (one.p or 1) < 0.05
    assert one.figures.endswith(", seed by seed, each by what the other seeds chose")
    (each,) = weigh(Each(which=A, least=0.8), searched("a", near(0.9)))
    assert (each.p, each.side) == (1.0, "for")  # five such seeds tell as much as one
    both = [replace(r, task=t, key=f"{t}{r.key}") for t in ("mqar", "needle") for r in searched("a", near(0.9))]
    theirs = [replace(r, task=t, key=f"{t}{r.key}") for t in ("mqar", "needle") for r in seeds(make, "b", around(0.5))]
    rule = OnAverage(over=Average(columns=(("mqar",), ("needle",))), rule=Above(better=A, worse=B))
    (mean,) = weigh(rule, both + theirs)
    assert mean.figures.endswith(", seed by seed, each by what the other seeds chose")


def test_seeds_that_no_commit_explains_decide_nothing(make: Make) -> None:
    records = seeds(make, "a", near(0.9)) + seeds(make, "b", near(0.5), commit="c0ffee0+")
    (one,) = weigh(Above(better=A, worse=B), records)
    assert one.verdict == "not decided"
    assert one.figures.endswith("; 5 and 0 fresh seeds, 5 are needed (0 and 5 are untraceable)")


def test_where_seeds_have_two_peaks_the_number_that_learned_stands_beside_the_mean(make: Make) -> None:
    (one,) = weigh(
        Above(better=A, worse=B), seeds(make, "a", near(0.98)) + seeds(make, "b", [0.26, 0.97, 0.3, 0.98, 0.27])
    )
    assert one.figures.endswith("; learned: 5 of 5 against 2 of 5 seeds (Fisher p 0.167)")
    assert one.verdict == "not decided"


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        (0.995, 0.992, "both are at the ceiling"),
        (0.9, 0.26, "b failed to train"),
        (0.25, 0.9, "a failed to train"),
        (0.995, 0.8, ""),  # the ceiling of one side alone says something
    ],
)
@pytest.mark.parametrize("margin", [None, 0.02])
def test_what_cannot_speak_says_why(make: Make, ours: float, theirs: float, reason: str, margin: float | None) -> None:
    (one,) = weigh(
        Above(better=A, worse=B, margin=margin), seeds(make, "a", [ours] * 6) + seeds(make, "b", [theirs] * 6)
    )
    assert one.silent == reason
    assert (one.verdict == "cannot speak") == bool(reason)


def test_a_model_at_the_ceiling_speaks_where_the_setting_tells_others_apart(make: Make) -> None:
    rule = Above(better=A, worse=Which(archs=("b", "c")))
    alike = seeds(make, "a", [0.995] * 8) + seeds(make, "b", [0.992] * 8)
    assert verdict(rule, alike + seeds(make, "c", [0.993] * 8)) == "cannot speak"
    assert verdict(rule, alike + seeds(make, "c", [0.5] * 8)) == "not reproduced"  # c falls behind, and b does not


@pytest.mark.parametrize("margin", [None, 0.02])
def test_what_neither_has_learned_tells_them_not_apart(make: Make, margin: float | None) -> None:
    def of(arch: str, score: float) -> list[Record]:  # trained well on four pairs, tested on other ones
        test = {"task": "mqar", "setting": "pairs=8", "length": 64, "chance": 0.125, "ceiling": 1.0}
        spec = {"kind": "mqar", "vocab": 256, "length": 64, "pairs": 8}
        return [
            make(arch=arch, seed=n, score=0.9, test_specs=[spec], tests=[{**test, "scores": {"accuracy": score}}])
            for n in range(6)
        ]

    rule = Above(better=replace(A, at={"pairs": 8}), worse=replace(B, at={"pairs": 8}), margin=margin)
    (one,) = weigh(rule, of("a", 0.2) + of("b", 0.13))
    assert one.silent == "both are near chance"
    (one,) = weigh(rule, of("a", 0.3) + of("b", 0.13))
    assert one.silent == ""


@pytest.mark.parametrize(("whole", "silent"), [(0.05, "both are near chance"), (0.5, "")])
def test_where_hardly_a_sequence_is_right_throughout_a_claim_on_these_cannot_speak(
    make: Make, whole: float, silent: str
) -> None:
    records = seeds(make, "a", around(0.9)) + seeds(make, "b", around(0.5))
    for record in records:
        record.scores["exact_match"] = whole if record.arch == "a" else 0.0
    (one,) = weigh(Above(better=A, worse=B, score="exact_match"), records)
    assert one.silent == silent


def test_a_better_side_that_also_failed_cannot_speak(make: Make) -> None:
    records = seeds(make, "a", near(0.9)) + seeds(make, "b", around(0.5))
    for arch, silent in (("a", "of a the mean lacks seeds that failed (1)"), ("b", "")):
        failed = make(arch=arch, seed=9, score=None, error="loss is nan")
        (one,) = weigh(Above(better=A, worse=B), [*records, failed])
        assert one.silent == silent
        elsewhere = make(arch=arch, seed=9, score=None, error="loss is nan", training={"lr": 1.0})
        (one,) = weigh(Above(better=A, worse=B), [*records, elsewhere])
        assert "failed" not in one.silent  # the failure of another rate says nothing


@pytest.mark.parametrize(("best", "silent"), [("a", False), ("b", True)])
def test_a_side_that_loses_at_the_edge_of_its_grid_cannot_speak(make: Make, best: str, silent: bool) -> None:
    records = [
        r
        for arch, score in (("a", 0.9), ("b", 0.6))
        for lr in (1e-4, 1e-3, 1e-2)
        for r in seeds(make, arch, [score - 0.1 * (lr != (1e-2 if arch == best else 1e-3))], training={"lr": lr})
    ]
    (one,) = weigh(Above(better=A, worse=B), records)
    assert one.silent == ("b is best at the grid's edge, the highest learning rate" if silent else "")


@pytest.mark.parametrize(("ours", "silent"), [(0.9, True), (0.4, False)])
def test_a_side_that_loses_under_worse_hyper_parameters_than_it_has_cannot_speak(
    make: Make, ours: float, silent: bool
) -> None:
    most = [make(arch="b", training={"lr": 1e-3}, seed=s, score=0.6) for s in range(12)]
    better = [make(arch="b", training={"lr": lr}, seed=s, score=0.7) for lr in (1e-4, 1e-2) for s in range(6)]
    (one,) = weigh(Above(better=A, worse=B), [*seeds(make, "a", [ours] * 6), *most, *better])
    why = "b has most seeds under hyper-parameters that are worse than others by the 6 that have both"
    assert one.silent == (why if silent else "")


def test_what_was_trained_well_and_fails_beyond_has_not_failed_to_train(make: Make) -> None:
    def tested(arch: str, beyond: float) -> list[Record]:
        test = {"task": "parity", "setting": "length=80", "length": 80, "chance": 0.5, "ceiling": 1.0}
        return [
            make(
                arch=arch,
                task="parity",
                seed=seed,
                score=0.9,
                chance=0.5,
                test_specs=[{"kind": "parity", "length": 80}],
                tests=[{**test, "scores": {"accuracy": beyond + seed / 1000}}],
            )
            for seed in range(5)
        ]

    rule = Above(better=replace(A, at={"length": 80}), worse=replace(B, at={"length": 80}))
    (one,) = weigh(rule, tested("a", 0.9) + tested("b", 0.5))
    assert (one.silent, one.side) == ("", "for")


@pytest.mark.parametrize(("mixed", "silent"), [(True, ""), (False, "b failed to train")])
def test_who_learned_one_setting_of_a_mix_has_not_failed_to_train(make: Make, mixed: bool, silent: str) -> None:
    easy = {"kind": "parity", "length": 20}

    def trained(arch: str, hard: float) -> list[Record]:
        test = {"task": "parity", "setting": "length=20", "length": 20, "chance": 0.5, "ceiling": 1.0}
        records = [
            make(
                arch=arch,
                task="parity",
                seed=seed,
                score=hard,
                chance=0.5,
                test_specs=[easy],
                tests=[{**test, "scores": {"accuracy": 0.8 + seed / 1000}}],
            )
            for seed in range(5)
        ]
        for record in records:
            record.spec["mix"] = [{"task": easy if mixed else {**easy, "length": 30}, "examples": 100}]
        return records

    rule = Above(better=replace(A, at={"length": 40}), worse=replace(B, at={"length": 40}))
    (one,) = weigh(rule, trained("a", 0.9) + trained("b", 0.5))
    assert one.silent == silent


def test_a_loss_is_better_where_it_is_smaller(make: Make) -> None:
    theirs = around(0.5)
    records = seeds(make, "a", near(0.9)) + seeds(make, "b", theirs)  # the loss is 1 - score
    assert verdict(Above(better=A, worse=B, score="loss"), records) == "reproduced"
    assert verdict(Above(better=B, worse=A, score="loss"), records) == "not reproduced"


def test_seeds_in_common_are_compared_with_themselves(make: Make) -> None:
    ours, theirs = [0.11, 0.32, 0.53, 0.74, 0.95], [0.09, 0.295, 0.515, 0.72, 0.93]
    rule = Above(better=A, worse=B)  # seeds differ by far more than a and b do within a seed
    (one,) = weigh(rule, seeds(make, "a", ours) + seeds(make, "b", theirs))
    assert one.figures.endswith(", difference +0.020 in [+0.016, +0.024], seed by seed")  # 2.776 * 0.0035 / sqrt(5)
    others = [make(arch="b", seed=9 + n, score=score) for n, score in enumerate(theirs)]
    (two,) = weigh(rule, seeds(make, "a", ours) + others)
    assert (two.figures.endswith("seed by seed"), (two.p or 0) > 0.5) == (False, True)
    (three,) = weigh(rule, seeds(make, "a", [*ours, 0.0]) + seeds(make, "b", theirs))  # the sixth is on one side alone
    assert three == one


def test_one_training_tested_with_other_dials_is_one_setting(make: Make) -> None:
    def tested(arch: str, scores: Sequence[float], trained: int) -> list[Record]:
        phases = [{"training": {"steps": 5}, "dials": {"cg_steps": trained}}, {"training": {"steps": 0}}]
        return [replace(record, spec=record.spec | {"phases": phases}) for record in seeds(make, arch, scores)]

    ours, theirs = near(0.9), near(0.5)
    at = {"training.trained_cg_steps": 30}
    rule = Above(better=replace(A, at=at), worse=replace(B, at=at))
    assert len(weigh(rule, tested("a", ours, 30) + tested("b", theirs, 30))) == 1
    assert weigh(rule, tested("a", ours, 30) + tested("b", theirs, 20)) == []


def test_a_difference_of_less_than_its_digits_is_still_one(make: Make) -> None:
    ours = seeds(make, "a", [0.5] * 5)
    (some,) = weigh(
        Above(better=A, worse=B, smallest=0), ours + seeds(make, "b", [0.49998 + n * 1e-6 for n in range(5)])
    )
    assert ", difference +1.8e-05 in [+1.6e-05, +2.0e-05], seed by seed" in some.figures
    assert (some.side, (some.p or 1) < 0.05) == ("for", True)


def test_only_the_same_setting_and_the_same_size_of_state_is_compared(make: Make) -> None:
    records = [
        *seeds(make, "a", near(0.9), state_bytes=1000),
        *seeds(make, "b", around(0.5), state_bytes=1050),
        *seeds(make, "b", [0.99, 0.99], state_bytes=9000, arch_dials={"width": 512}),
        *seeds(make, "b", [0.99, 0.99], state_bytes=1050, dials={"pairs": 2}),
    ]
    (one,) = weigh(Above(better=A, worse=B, same_state=0.1), records)
    assert (one.who, one.where, one.side) == (
        "a against b width=128",
        "mqar vocab 256 length 64 pairs 4 steps 1000",
        "for",
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
    assert (one.who, one.side) == ("a init=normal against b", "for")


def test_what_was_trained_for_longer_is_compared_with_its_like(make: Make) -> None:
    short, long = ({"training": {"steps": steps}} for steps in (1000, 4000))
    records = seeds(make, "a", near(0.4), **short) + seeds(make, "b", around(0.5), **short)
    records += seeds(make, "a", near(0.9), **long)
    (one,) = weigh(Above(better=A, worse=B), records)
    assert (one.figures[:5], one.side) == ("0.402", "against")


def test_all_dials_but_those_named_must_agree(make: Make) -> None:
    def of(window: int, heads: int, score: float) -> list[Record]:
        scores = near(score) if window == 1 else around(score)
        return seeds(make, "m", scores, arch_dials={"window": window, "heads": heads})

    records = of(1, 1, 0.5) + of(4, 1, 0.7) + of(1, 2, 0.6) + of(4, 2, 0.8)
    rule = Above(better=Which(parameters={"window": (4,)}), worse=Which(parameters={"window": (1,)}), but=("window",))
    assert len(weigh(rule, records)) == 2
    assert len(weigh(Rises(parameter="window"), records)) == 2
    assert verdict(Rises(parameter="window"), records) == "reproduced"


def test_every_seed_must_reach_and_one_that_does_not_leaves_it_open(make: Make) -> None:
    rule = Each(which=A, least=0.9)
    assert verdict(rule, seeds(make, "a", near(0.95, 6))) == "reproduced"
    assert verdict(rule, seeds(make, "a", [*near(0.95, 6), 0.5])) == "not decided"
    assert verdict(rule, seeds(make, "a", near(0.5, 6))) == "not reproduced"
    assert verdict(rule, seeds(make, "a", [*near(0.5, 8), 0.95])) == "not reproduced"  # one of nine
    assert verdict(rule, seeds(make, "a", [*near(0.5, 7), 0.95])) == "not decided"  # one of eight
    assert verdict(rule, seeds(make, "a", [*near(0.95, 9), 0.5])) == "not decided"  # nine of ten are not each
    assert verdict(rule, seeds(make, "a", near(0.95))) == "not decided"  # five seeds are too few: p is two-sided
    assert verdict(rule, seeds(make, "a", near(0.25, 6))) == "cannot speak"  # it failed to train
    failed = [make(arch="a", seed=9, score=None, error="loss is nan")]
    assert verdict(rule, seeds(make, "a", near(0.95, 8)) + failed) == "not decided"
    (one,) = weigh(rule, seeds(make, "a", near(0.95)))
    assert one.figures.endswith("5 of 5 seeds at least 0.9, a share in [0.57, 1.00]")


@pytest.mark.parametrize(("best", "silent"), [(1e-3, False), (1e-2, True)])
def test_who_might_come_above_a_bound_at_another_rate_does_not_stay_below_it(
    make: Make, best: float, silent: bool
) -> None:
    rates = (1e-4, 1e-3, 1e-2)
    records = [r for lr in rates for r in seeds(make, "a", [0.4 + 0.1 * (lr == best)] * 6, training={"lr": lr})]
    (one,) = weigh(Each(which=A, most=0.6), records)
    assert one.silent == ("a is best at the grid's edge, the highest learning rate" if silent else "")


def test_an_average_may_be_of_another_score_and_is_as_ill_chosen_as_its_worst_part(make: Make) -> None:
    def of(arch: str, scores: Sequence[float]) -> list[Record]:
        own = zip(("in_context_recall", "compression"), scores, strict=True)
        return [
            replace(r, scores={**r.scores, "other": r.score})
            for t, s in own
            for r in seeds(make, arch, near(s), task=t)
        ]

    rule = OnAverage(rule=Above(better=A, worse=B), over=Average(columns=(("in_context_recall",), ("compression",))))
    records = of("a", (0.9, 0.4)) + of("b", (0.6, 0.5))
    (one,), (two,) = weigh(rule, records), weigh(replace(rule, rule=replace(rule.rule, score="other")), records)
    assert one.figures.startswith("0.652")
    assert two.figures.startswith("0.652")
    measured = [replace(m, surpassed=6 * (m.task == "compression")) for m in measures(of("b", (0.6, 0.5)))]
    average = rule.over.of(measured)
    assert average
    assert average.surpassed == 6


def test_an_average_is_over_columns_and_over_what_both_have(make: Make) -> None:
    tasks = {"in_context_recall": 0.9, "noisy_in_context_recall": 0.7, "compression": 0.4}
    columns = (("in_context_recall", "noisy_in_context_recall"), ("compression",))

    def of(arch: str, less: float, only: Sequence[str] = tuple(tasks)) -> list[Record]:
        order = near if arch == "a" else around
        return [r for t in only for r in seeds(make, arch, order(tasks[t] - less), task=t)]

    rule = OnAverage(rule=Above(better=A, worse=B), over=Average(columns=columns))
    extra = seeds(make, "a", [0.0, 0.0], task="compression", dials={"vocab": 64})  # b has not met it
    extra += [r for arch in ("a", "b") for r in seeds(make, arch, [0.0, 0.0], task="parity")]  # in none of the columns
    (one,) = weigh(rule, of("a", 0.0) + of("b", 0.2) + extra)
    assert one.figures.startswith("0.602")  # ((0.9 + 0.7) / 2 + 0.4) / 2, and half of 0.004
    assert one.side == "for"
    assert one.where.startswith("mean of 3 tasks")
    assert weigh(rule, of("a", 0.0) + of("b", 0.2, ("compression",))) == []


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
        (lambda: Above(better=A, worse=B, smallest=-0.1), "smallest must be at least 0, got -0.1"),
        (
            lambda: Above(better=A, worse=B, smallest=0.1, margin=0.1),
            "smallest and margin exclude each other, got both",
        ),
        (lambda: Each(which=A), "least or most must be given, got neither"),
        (lambda: Each(which=A, least=0.9, most=0.1), "least must be at most 0.1"),
        (lambda: Average(columns=(("mqar",), ())), "columns must be lists of at least one task"),
        (lambda: Claim(text="No stop", source="a paper", rule=Each(which=A, least=0.9)), "text must be a sentence"),
        (
            lambda: Claim(text="A stop.", source="a paper", rule=Each(which=A, least=0.9), seeds=(9, 5)),
            r"seeds must be the lowest and the highest, got \[9, 5\]",
        ),
        (lambda: Claim(text="A stop.", source="", rule=Each(which=A, least=0.9)), "source must name the paper"),
    ],
)
def test_a_rule_or_claim_that_can_decide_nothing_is_refused(make_rule: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_rule()


def test_settings_may_be_compared_across_one_of_their_parameters(make: Make) -> None:
    def shown(passes: int, scores: Sequence[float], length: int = 64) -> list[Record]:
        return seeds(make, "a", scores, dials={"passes": passes, "length": length})

    rule = Above(better=replace(A, at={"passes": 4}), worse=replace(A, at={"passes": 1}), across=("passes",), but=())
    (one,) = weigh(rule, shown(4, near(0.9)) + shown(1, around(0.5)) + shown(1, around(0.1), length=128))
    assert (one.who, one.verdict) == ("a passes 4 against a passes 1", "not decided")
    assert ("passes" in one.where, one.side, (one.p or 1) < 0.001) == (False, "for", True)
    assert not weigh(replace(rule, across=()), shown(4, near(0.9)) + shown(1, around(0.5)))


def test_what_a_part_loses_is_a_score_less_another(make: Make) -> None:
    def parts(arch: str, far: Sequence[float]) -> list[Record]:
        own = seeds(make, arch, [0.5] * len(far))
        return [
            replace(r, scores={**r.scores, "far": at, "near": at + 0.01 * r.seed})
            for r, at in zip(own, far, strict=True)
        ]

    rule = Above(better=A, worse=B, score="near", minus="far")
    (one,) = weigh(rule, parts("a", near(0.9)) + parts("b", around(0.5)))
    assert "difference +0.000" in one.figures
    assert not weigh(rule, seeds(make, "a", near(0.9)) + seeds(make, "b", near(0.5)))  # without the scores
    with pytest.raises(ValueError, match="minus needs a score to be taken from, got none"):
        Above(better=A, worse=B, minus="far")
