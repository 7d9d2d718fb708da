"""Hyper-parameters are chosen on validation and reported on test, and what failed is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from recallmap.results.analysis.labels import row_names
from recallmap.results.analysis.measures import answers, measures
from recallmap.results.analysis.selection import choose_hyperparameters, one_cell
from recallmap.results.record import Record
from recallmap.results.score_tables.scores import table_of

Make = Callable[..., Record]


def test_validation_chooses_and_test_is_reported(make: Make) -> None:
    records = [
        make(training={"lr": 1e-3}, score=0.9, validation=0.5),
        make(training={"lr": 1e-4}, score=0.6, validation=0.7),
    ]
    (choice,) = choose_hyperparameters(records)
    assert choice.trials == (records[1],)
    assert choice.candidates == 2
    assert measures(records)[0].values == {0: 0.6}


def test_seeds_are_averaged_before_the_choice(make: Make) -> None:
    lucky = [make(training={"lr": 1e-3}, seed=s, score=v) for s, v in enumerate((1.0, 0.2, 0.2))]
    steady = [make(training={"lr": 1e-4}, seed=s, score=0.6) for s in range(3)]
    (choice,) = choose_hyperparameters(lucky + steady)
    assert list(choice.trials) == steady


def test_seeds_that_only_the_chosen_hyper_parameters_have_are_fresh(make: Make) -> None:
    chosen = [make(training={"lr": 1e-3}, seed=s, score=0.9) for s in range(4)]
    other = [make(training={"lr": 1e-4}, score=0.2), make(training={"lr": 1e-4}, seed=1, error="diverged")]
    (choice,) = choose_hyperparameters(chosen + other)
    assert choice.fresh == {2, 3}  # a seed that failed elsewhere took part in the choice
    (alone,) = choose_hyperparameters(chosen)
    assert alone.fresh == {0, 1, 2, 3}
    (measure,) = measures([*chosen[:3], replace(chosen[3], commit=None), *other])
    assert list(measure.fresh) == [2]  # and one that no commit explains decides nothing


def test_where_every_seed_tried_all_each_is_judged_under_what_the_others_choose(make: Make) -> None:
    steady = [make(training={"lr": 1e-4}, seed=s, score=0.6, validation=0.6) for s in range(3)]
    lucky = [make(training={"lr": 1e-3}, seed=s, score=v, validation=v) for s, v in enumerate((1.0, 0.5, 0.5))]
    (choice,) = choose_hyperparameters(steady + lucky)
    assert list(choice.trials) == lucky  # by its one seed of 1.0
    assert choice.held_out == (steady[0], *lucky[1:])  # but not where that seed has no say
    (measure,) = measures(steady + lucky)
    assert (measure.fresh, measure.dependent) == ({0: 0.6, 1: 0.5, 2: 0.5}, True)
    assert measure.of("loss").fresh == pytest.approx({0: 0.4, 1: 0.5, 2: 0.5})
    (lost,) = measures([replace(steady[0], commit=None), *steady[1:], *lucky])
    assert list(lost.fresh) == [1, 2]


@pytest.mark.parametrize("at_once", [1, 2**20])
def test_the_others_choose_as_they_would_by_themselves(
    make: Make, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many seeds there are, with failures and ties among them."""
    monkeypatch.setattr("recallmap.results.analysis.selection.AT_ONCE", at_once)
    rng = np.random.default_rng(4)
    trials = [
        make(
            training={"lr": lr},
            seed=s,
            score=round(rng.normal(0.5, 0.1), 1),
            error="lost" if rng.random() < 0.1 else None,
        )
        for lr in (1e-4, 3e-4, 1e-3)
        for s in range(8)
    ]
    (choice,) = choose_hyperparameters(trials)
    expected = []
    for seed in range(8):
        (others,) = choose_hyperparameters([r for r in trials if r.seed != seed])
        lr = others.trials[0].spec["training"]["lr"]
        expected += [r for r in trials if r.seed == seed and r.spec["training"]["lr"] == lr and r.score is not None]
    assert list(choice.held_out) == expected
    assert len({r.spec["training"]["lr"] for r in expected}) > 1


def test_where_some_seeds_did_not_try_all_or_there_is_no_choice_nothing_is_held_out(make: Make) -> None:
    trials = [make(training={"lr": lr}, seed=s) for lr in (1e-4, 1e-3) for s in range(3)]
    assert choose_hyperparameters(trials[:-1])[0].held_out == ()
    assert choose_hyperparameters(trials[:3])[0].held_out == ()
    assert choose_hyperparameters(trials[::3])[0].held_out == ()  # one seed alone


def test_a_seed_that_failed_under_what_the_others_choose_has_no_score(make: Make) -> None:
    good = [make(training={"lr": 1e-3}, seed=s, score=0.9, error="diverged" if s == 2 else None) for s in range(3)]
    poor = [make(training={"lr": 1e-4}, seed=s, score=0.4, error="diverged" if s == 1 else None) for s in range(3)]
    (choice,) = choose_hyperparameters(good + poor)
    assert [(r.seed, r.score) for r in choice.held_out] == [(0, 0.9)]


@pytest.mark.parametrize(("rates", "edge"), [((1e-4, 1e-3), "highest"), ((1e-3, 1e-2), "lowest"), ((1e-3,), "")])
def test_a_choice_knows_whether_its_rate_is_at_the_edge_of_what_was_tried(
    make: Make, rates: tuple[float, ...], edge: str
) -> None:
    (choice,) = choose_hyperparameters([make(training={"lr": lr}, score=0.5 + (lr == 1e-3) / 4) for lr in rates])
    assert choice.edge == edge


@pytest.mark.parametrize(("common", "other", "surpassed"), [(5, 0.8, 5), (4, 0.8, 0), (5, 0.7, 0), (5, 0.6, 0)])
def test_a_choice_knows_of_seeds_that_find_others_better(make: Make, common: int, other: float, surpassed: int) -> None:
    """Most seeds were given to what three seeds chose, and then others were tried again."""
    most = [make(training={"lr": 1e-3}, seed=s, score=0.7) for s in range(8)]
    (choice,) = choose_hyperparameters(
        [*most, *(make(training={"lr": 1e-4}, seed=s, score=other) for s in range(common))]
    )
    assert choice.trials == tuple(most)
    assert choice.surpassed == surpassed


def test_where_scores_tie_the_lower_loss_wins_in_whatever_order_trials_come(make: Make) -> None:
    surer, doubtful = (
        replace(make(training={"lr": lr}), validation={"accuracy": 1.0, "loss": loss})
        for lr, loss in ((1e-3, 0.004), (4e-3, 0.009))
    )
    for records in ([surer, doubtful], [doubtful, surer]):
        (choice,) = choose_hyperparameters(records)
        assert choice.trials == (surer,)


def test_what_ties_in_all_is_chosen_alike_in_whatever_order_trials_come(make: Make) -> None:
    records = [make(training={"lr": lr}) for lr in (1e-3, 2e-3, 4e-3)]
    assert choose_hyperparameters(records)[0].trials == choose_hyperparameters(records[::-1])[0].trials


def test_a_lucky_survivor_does_not_win(make: Make) -> None:
    survivor = [make(training={"lr": 1e-2}, seed=0, score=0.99), make(training={"lr": 1e-2}, seed=1, error="diverged")]
    steady = [make(training={"lr": 1e-3}, seed=s, score=0.6) for s in range(2)]
    (choice,) = choose_hyperparameters(survivor + steady)
    assert list(choice.trials) == steady
    assert choice.failed == (survivor[1],)


def test_a_trial_whose_score_is_not_finite_counts_as_failed(make: Make) -> None:
    records = [make(score=float("nan")), make(seed=1, score=0.5)]
    (choice,) = choose_hyperparameters(records)
    assert choice.trials == (records[1],)
    assert choice.failed == (records[0],)


@pytest.mark.parametrize(
    "other",
    [
        {"arch": "gla"},
        {"task": "parity"},
        {"dials": {"pairs": 8}},
        {"arch_dials": {"width": 64}},
        {"data": {"train": 800}},
        {"protocol": "zoology"},
        {"training": {"steps": 4000}},  # reads more: another setting, no better hyper-parameter
        {"training": {"dtype": "float32"}},
        {"training": {"implementation": "chunked"}},
        {"training": {"batch": 256}},
    ],
    ids=str,
)
def test_only_training_values_compete(other: dict[str, object], make: Make) -> None:
    assert len(choose_hyperparameters([make(), make(**other)])) == 2


def test_of_many_dials_that_differ_a_name_has_as_few_as_tell_apart(make: Make) -> None:
    around = {"heads": 8, "short_conv": 4, "activation": "silu", "out_norm": "head", "x0": "diag"}
    records = [
        make(arch_dials={"width": 64}),
        make(arch_dials={"width": 64, **around}),
        make(arch_dials={"width": 32, **around}),
    ]
    assert [*row_names(records).values()] == [
        "mesa width=64",
        "mesa width=64 activation=silu",
        "mesa width=32 activation=silu",
    ]


def test_stacks_written_in_two_ways_are_told_apart_by_their_number_of_blocks(make: Make) -> None:
    block = {"kind": "block", "mixer": {"kind": "mesa", "heads": 2, "bias": False}, "mlp": None}
    repeated = {"kind": "repeat", "times": 2, "blocks": [{"kind": "repeat", "times": 2, "blocks": [block]}, block]}
    stacks = [[block], [block, block], [repeated]]
    records = [make(arch_dials={"stack": stack}) for stack in stacks]
    assert [*row_names(records).values()] == ["mesa blocks=1", "mesa blocks=2", "mesa blocks=6"]


def test_where_epochs_are_counted_batches_of_any_size_compete(make: Make) -> None:
    records = [make(training={"steps": None, "epochs": 50, "batch": batch}) for batch in (32, 64)]
    assert len(choose_hyperparameters(records)) == 1


def test_a_published_protocol_chooses_on_what_it_reports(make: Make) -> None:
    records = [
        make(training={"lr": 1e-3}, score=0.6, validation=0.9, protocol="mad-lab", published_choice={"accuracy": 0.7}),
        make(training={"lr": 1e-4}, score=0.5, validation=0.1, protocol="mad-lab", published_choice={"accuracy": 0.8}),
    ]
    assert [m.values for m in measures(records, on="test")] == [{0: 0.8}]
    assert [m.values for m in measures(records, on="validation")] == [{0: 0.6}]


def test_a_choice_on_test_is_made_by_the_seeds_that_all_have(make: Make) -> None:
    chosen = [make(training={"lr": 1e-3}, seed=s, score=0.6, validation=0.9) for s in range(3)]
    rival = make(training={"lr": 1e-4}, score=0.8, validation=0.1)
    lost = make(training={"lr": 1e-2}, error="diverged")
    assert measures([*chosen, rival, lost], on="test")[0].values == {0: 0.8}
    assert measures([*chosen, rival, lost])[0].values == {0: 0.6, 1: 0.6, 2: 0.6}


def test_a_choice_without_a_score_to_choose_by_is_an_error(make: Make) -> None:
    records = [replace(make(training={"lr": lr}), validation={}) for lr in (1e-3, 1e-4)]
    with pytest.raises(ValueError, match=r"differ in hyper-parameters, but .* has no validation score 'accuracy'"):
        choose_hyperparameters(records)
    assert len(choose_hyperparameters(records[:1])) == 1  # nothing to choose


def further(length: int, score: float, **rest: object) -> dict[str, object]:
    return {
        "task": "mqar",
        "setting": f"length={length}",
        "length": length,
        "chance": 0.1,
        "ceiling": 1.0,
        "scores": {"accuracy": score},
        **rest,
    }


def test_settings_that_were_only_tested_on_are_measured_too(make: Make) -> None:
    specs = [{"kind": "mqar", "vocab": 256, "length": n, "pairs": 4} for n in (128, 256)]
    records = [make(seed=s, tests=[further(128, 0.5), further(256, 0.2)], test_specs=specs) for s in range(2)]
    found = measures(records)
    assert [(m.dials["length"], m.tested, m.values) for m in found] == [
        (64, False, {0: 0.5, 1: 0.5}),
        (128, True, {0: 0.5, 1: 0.5}),
        (256, True, {0: 0.2, 1: 0.2}),
    ]


def test_what_was_trained_on_another_setting_is_measured_apart(make: Make) -> None:
    specs = [{"kind": "mqar", "vocab": 256, "length": 256, "pairs": 4}]
    records = [make(dials={"length": n}, tests=[further(256, n / 128)], test_specs=specs) for n in (64, 128)]
    found = [m for m in measures(records) if m.tested]
    assert [(m.dials["length"], m.dials["tests.trained_length"], m.values) for m in found] == [
        (256, 64, {0: 0.5}),
        (256, 128, {0: 1.0}),
    ]
    assert len({m.setting for m in found}) == 2
    (table,) = table_of(records)
    assert table.columns[:4] == tuple(
        f"length {n}, pairs 4, trained_length {m}" for n, m in ((64, 64), (128, 128), (256, 64), (256, 128))
    )


def test_the_setting_trained_on_is_not_counted_twice(make: Make) -> None:
    record = make(tests=[{**further(64, 0.5), "setting": ""}])
    assert len(answers(record)) == 1


def test_a_state_that_grows_is_counted_at_the_length_tested(make: Make) -> None:
    known = answers(make(tests=[further(256, 0.5, state_bytes=4000)]))
    unknown = answers(make(tests=[further(256, 0.5)]))
    assert [(a.state_bytes, a.state_length) for a in known] == [(1000, 64), (4000, 256)]
    assert [(a.state_bytes, a.state_length) for a in unknown] == [(1000, 64), (1000, 64)]


def test_architectures_of_one_name_are_told_apart_by_what_differs(make: Make) -> None:
    blocks = [{"mixer": {"kind": "mesa", "heads": 2}}] * 2
    records = [
        make(arch_dials={"width": 64, "stack": blocks}),
        make(arch_dials={"width": 128, "stack": blocks}, seed=1),
        make(arch="gla"),
    ]
    assert [row_names(records)[r.key] for r in records] == ["mesa width=64", "mesa width=128", "gla"]


def test_amounts_of_data_are_settings_of_their_own(make: Make) -> None:
    """Three of them weigh as much as three lengths do, where one cell is chosen for all."""

    def cell(lr: float, few: float, many: float) -> list[Record]:
        amounts = [make(training={"lr": lr}, score=few, data={"train": train}) for train in (100, 200, 400)]
        return [*amounts, make(training={"lr": lr}, score=many, dials={"pairs": 4})]

    better, worse = cell(1e-2, 0.7, 0.6), cell(1e-3, 0.5, 0.9)
    assert one_cell([*worse, *better]) == better


def test_one_cell_a_task_is_the_best_over_its_settings_and_fails_on_none(make: Make) -> None:
    def cell(lr: float, *scores: float | None, arch: str = "a") -> list[Record]:
        failed = [None if score is not None else "diverged" for score in scores]
        settings = [{"pairs": 4 * 2**n} for n in range(len(scores))]
        rows = zip(settings, scores, failed, strict=True)
        return [make(arch=arch, training={"lr": lr}, dials=d, score=s, error=e) for d, s, e in rows]

    even, uneven, lost = cell(1e-3, 0.7, 0.7), cell(1e-2, 0.9, 0.4), cell(1e-1, 1.0, None)
    assert one_cell([*uneven, *even, *lost]) == even
    assert [c.trials[0] for c in choose_hyperparameters([*uneven, *even])] == [uneven[0], even[1]]  # once a setting
    other = cell(1e-2, 0.9, 0.8, arch="b")
    assert one_cell([*uneven, *even, *other]) == [*even, *other]  # every architecture has its own
