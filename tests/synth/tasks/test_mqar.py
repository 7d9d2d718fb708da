"""Multi-query associative recall."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.search.documents.type_hints import plain
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Mqar

Draw = Callable[..., Batch]

REPAIRED = Mqar()
ZOOLOGY = Mqar(protocol="zoology")
FULL = Mqar(length=256, pairs=64)  # as many queries as slots


def queries(batch: Batch, pairs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions [n, pairs] of the queries in order, and which pair each asks for."""
    at = np.nonzero(batch.targets != IGNORE)[1].reshape(-1, pairs)
    asked = np.take_along_axis(batch.inputs, at, axis=1)
    return at, (asked[:, :, None] == batch.inputs[:, None, 0 : 2 * pairs : 2]).argmax(axis=2)


@pytest.mark.parametrize("task", [REPAIRED, ZOOLOGY, FULL])
def test_pairs_come_first_and_every_key_is_asked_once(task: Mqar, draw: Draw) -> None:
    batch = draw(task, count=500)
    context = 2 * task.pairs
    keys, values = batch.inputs[:, 0:context:2], batch.inputs[:, 1:context:2]
    roles = task.roles()
    assert np.isin(keys, roles.of("key")).all()
    assert np.isin(values, roles.of("value")).all()
    assert all(len(set(row)) == task.pairs for row in [*keys.tolist(), *values.tolist()])
    at, pair = queries(batch, task.pairs)
    assert (np.sort(pair, axis=1) == np.arange(task.pairs)).all()
    assert (at % 2 == 0).all()
    assert at.min() >= context
    assert at.max() <= task.length - 2
    assert (np.take_along_axis(batch.targets, at, axis=1) == np.take_along_axis(values, pair, axis=1)).all()


def test_without_fillers_the_rest_is_blank(draw: Draw) -> None:
    task = replace(REPAIRED, fillers=False)
    batch = draw(task)
    rest = batch.inputs[:, 8:][batch.targets[:, 8:] == IGNORE]
    assert set(rest.tolist()) == {0}
    assert task.roles().name_of(0) == "blank"


def test_queries_prefer_early_slots_by_a_power_law(draw: Draw) -> None:
    task = replace(ZOOLOGY, length=32, pairs=2, power=0.01)  # 14 slots
    first = draw(task, count=40_000)
    at, pair = queries(first, 2)
    slot_of_pair_0 = (np.where(pair[:, 0] == 0, at[:, 0], at[:, 1]) - 4) // 2
    weights = np.arange(1, 15) ** -0.99
    expected = weights / weights.sum()
    seen = np.bincount(slot_of_pair_0, minlength=14) / 40_000
    assert seen == pytest.approx(expected, abs=4 * np.sqrt(0.3 * 0.7 / 40_000))


def test_power_one_is_uniform(draw: Draw) -> None:
    at, _ = queries(draw(replace(REPAIRED, power=1.0), count=20_000), 4)
    seen = np.bincount((at.ravel() - 8) // 2, minlength=28) / 80_000
    assert seen == pytest.approx(np.full(28, 1 / 28), abs=0.004)


def test_where_queries_fill_all_slots_their_distance_is_half_the_length(draw: Draw) -> None:
    batch = draw(FULL, count=300)
    sources = FULL.sources(batch)
    found = sources >= 0
    assert found.sum() == 300 * 64
    assert (np.broadcast_to(np.arange(256), found.shape) - sources + 1)[found].mean() == pytest.approx(128, abs=1e-9)


@pytest.mark.parametrize(
    ("length", "pairs", "published", "near"), [(64, 4, 0.28403, 0.008), (1024, 256, 0.0082, 0.001)]
)
def test_order_gives_pairs_away_under_zoology_alone(
    length: int, pairs: int, published: float, near: float, draw: Draw
) -> None:
    """The n-th query asks for the n-th pair: 0.28403 by enumeration of all draws of 4 of 28 slots, 0.0082 as seen."""

    def shortcut(protocol: Any) -> float:
        batch = draw(Mqar(protocol=protocol, length=length, pairs=pairs), count=10_000 if pairs == 4 else 400)
        return float((queries(batch, pairs)[1] == np.arange(pairs)).mean())

    assert shortcut("zoology") == pytest.approx(published, abs=near)
    assert shortcut("repaired") == pytest.approx(1 / pairs, abs=near)


def test_fillers_repeat_asked_keys_under_zoology_alone(draw: Draw) -> None:
    def share(protocol: Any) -> float:
        batch = draw(Mqar(protocol=protocol, length=1024, pairs=256), count=100)
        inputs, filler = batch.inputs, batch.targets == IGNORE
        filler[:, :512] = False
        own = [np.isin(inputs[i][filler[i]], inputs[i, 0:512:2]) for i in range(100)]
        return float(np.concatenate(own).mean())

    assert share("zoology") == pytest.approx(256 / 8192, abs=0.004)
    assert share("repaired") == 0


def test_repaired_fillers_are_uniform_over_all_other_tokens(draw: Draw) -> None:
    batch = draw(Mqar(vocab=16, length=32, pairs=3), count=20_000)
    context, fillers = batch.inputs[:, 0:6:2], batch.inputs[:, 7::2]
    for key in range(1, 8):
        absent = ~(context == key).any(axis=1)
        seen = np.bincount(fillers[absent].ravel(), minlength=16) / fillers[absent].size
        assert seen[key] == pytest.approx(1 / 13, abs=0.003)
    assert (fillers == 0).mean() == pytest.approx(1 / 13, abs=0.002)
    assert (fillers >= 8).mean() == pytest.approx(8 / 13, abs=0.004)


def test_accuracy_is_the_published_mean_over_sequences(draw: Draw) -> None:
    batch = draw(ZOOLOGY)
    scored = batch.targets != IGNORE
    answers = np.where(np.random.default_rng(0).random(scored.shape) < 0.5, batch.targets, 0)
    each = ((answers == batch.targets) & scored).sum(axis=1) / scored.sum(axis=1)
    assert ZOOLOGY.score(batch, answers)["accuracy"] == pytest.approx(each.mean())


@pytest.mark.parametrize("task", [REPAIRED, ZOOLOGY, Mqar(length=64, pairs=16)])
def test_chance_is_a_guess_among_the_values_shown(task: Mqar, assert_expects: Callable[..., None]) -> None:
    def guess(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        shown = batch.inputs[:, 1 : 2 * task.pairs : 2]
        return np.take_along_axis(shown, rng.integers(task.pairs, size=batch.inputs.shape), axis=1)

    assert_expects(task, guess, task.chance())
    assert task.chance() == 1 / task.pairs


@pytest.mark.parametrize("task", [REPAIRED, ZOOLOGY])
def test_the_ceiling_is_a_look_at_the_pairs(task: Mqar, assert_expects: Callable[..., None]) -> None:
    def look(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        context = batch.inputs[:, : 2 * task.pairs].tolist()
        facts = [dict(zip(row[::2], row[1::2], strict=True)) for row in context]
        return np.array([[fact.get(x, 0) for x in row] for fact, row in zip(facts, batch.inputs.tolist(), strict=True)])

    assert_expects(task, look, task.ceiling(), sets=4)


@pytest.mark.parametrize("protocol", ["repaired", "zoology"])
def test_pairs_are_shown_in_every_pass_in_a_fresh_order_unless_as_published(protocol: Any, draw: Draw) -> None:
    task = Mqar(protocol=protocol, length=64, pairs=4, passes=3)
    batch = draw(task, count=200)
    sources, others = task.sources(batch), 0
    for row, targets, told in zip(batch.inputs.tolist(), batch.targets.tolist(), sources.tolist(), strict=True):
        passes = [list(zip(row[at : at + 8 : 2], row[at + 1 : at + 8 : 2], strict=True)) for at in (0, 8, 16)]
        assert dict(passes[0]) == dict(passes[1]) == dict(passes[2])
        assert len(dict(passes[0])) == 4
        others += passes[0] != passes[1]
        due = {at: target for at, target in enumerate(targets) if target != IGNORE}
        assert sorted(row[at] for at in due) == sorted(dict(passes[0]))
        for at, target in due.items():
            assert target == dict(passes[0])[row[at]]
            assert at >= 24
            assert 16 <= told[at] < 24
            assert row[told[at]] == target
    assert others > 150 if protocol == "repaired" else others == 0


def test_passes_came_later_and_leave_old_specs_as_they_were() -> None:
    assert "passes" not in plain(Mqar())
    assert plain(Mqar(passes=2))["passes"] == 2


@pytest.mark.parametrize("passes", [1, 2])
def test_dense_queries_follow_a_blank_back_to_back_and_come_in_any_order(passes: int, draw: Draw) -> None:
    task = Mqar(length=8 * passes + 5, pairs=4, passes=passes, dense=True)
    batch = draw(task, count=4000)
    context = 8 * passes
    assert (batch.inputs[:, context] == 0).all()
    assert (batch.targets[:, : context + 1] == IGNORE).all()
    for row, targets in zip(batch.inputs[:200].tolist(), batch.targets[:200].tolist(), strict=True):
        facts = dict(zip(row[:context:2], row[1:context:2], strict=True))
        assert sorted(row[context + 1 :]) == sorted(facts)
        assert targets[context + 1 :] == [facts[key] for key in row[context + 1 :]]
    same_place = (batch.inputs[:, context + 1 :] == batch.inputs[:, 0:8:2]).mean()
    assert same_place == pytest.approx(1 / 4, abs=4 * np.sqrt(3 / 16 / 4000))


def test_dense_came_later_and_leaves_old_specs_as_they_were() -> None:
    assert "dense" not in plain(Mqar())
    assert plain(Mqar(length=13, dense=True))["dense"] is True


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"dense": True}, "4 pairs, a blank and dense queries take 13 positions, length is 64: set length to 13"),
        ({"dense": True, "length": 13, "protocol": "zoology"}, "protocol 'zoology' has no dense queries"),
        ({"length": 64, "pairs": 17}, "lower pairs to 16, or raise length"),
        ({"length": 63}, "length must be even"),
        ({"passes": 0}, "passes must be at least 1"),
        ({"passes": 8}, "4 pairs and their queries take 72 positions, length is 64: lower pairs to 3"),
        ({"pairs": 0}, "pairs must be at least 1"),
        ({"vocab": 8}, "raise vocab to at least 10"),
        ({"vocab": 64, "protocol": "zoology"}, "use protocol 'repaired'"),
        ({"power": 0.0}, "power must be positive"),
        ({"power": float("nan")}, "power must be positive"),
        ({"power": 200.0, "length": 1024}, "power must be at most 105 with 508 slots"),
    ],
)
def test_impossible_geometry_is_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Mqar(**dials)


def test_every_other_geometry_can_be_drawn(draw: Draw) -> None:
    for vocab, length, pairs in [(4, 4, 1), (10, 16, 4), (66, 128, 32), (65, 64, 16)]:
        task = Mqar(vocab=vocab, length=length, pairs=pairs)
        batch = draw(task)
        assert task.score(batch, batch.targets)["accuracy"] == 1.0


@pytest.mark.parametrize(("pairs", "most"), [(256, 1.5), (16, 1.1)])
def test_drawing_takes_little_memory_beside_what_it_hands_out(pairs: int, most: float, draw: Draw) -> None:
    """Pages that are new to the process cost more time than the drawing itself."""
    task = Mqar(length=1024, pairs=pairs)
    tracemalloc.start()
    batch = draw(task, count=1024)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most * (batch.inputs.nbytes + batch.targets.nbytes)


BITS = {
    REPAIRED: "b31e7a616d5d029b",
    ZOOLOGY: "5409f063aed2e3f2",
    Mqar(length=1024, pairs=256): "c7e6ebd62eb78971",
    Mqar(length=1024, pairs=256, protocol="zoology"): "d4c19a114c581e7c",
    Mqar(length=256, pairs=9, power=1.0): "735e3aec888a761e",
    Mqar(vocab=300, length=64, pairs=16): "79377ab4de803dd0",
}


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert {task: digest(task) for task in BITS} == BITS
