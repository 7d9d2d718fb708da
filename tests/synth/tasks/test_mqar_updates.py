"""Recall of values that were overwritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import MqarUpdates

Draw = Callable[..., Batch]

AFTER = MqarUpdates(vocab=64)
MIXED = MqarUpdates(vocab=64, order="mixed")
ZOOLOGY = MqarUpdates(protocol="zoology", vocab=66, length=64, pairs=4, updates=4)


def writes_of(task: MqarUpdates, row: list[int]) -> list[tuple[int, int]]:
    size = 2 * (task.pairs + task.updates)
    return list(zip(row[0:size:2], row[1:size:2], strict=True))


@pytest.mark.parametrize("task", [AFTER, MIXED, ZOOLOGY, MqarUpdates(updates=0, fillers=False)])
def test_a_slow_reader_finds_what_each_key_was_given_last(task: MqarUpdates, draw: Draw) -> None:
    batch, roles = draw(task, count=200), task.roles()
    sources, updated = task.sources(batch).tolist(), task.slices(batch)["updated"].tolist()
    for i, (row, targets) in enumerate(zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)):
        writes = writes_of(task, row)
        keys, values = [key for key, _ in writes], [value for _, value in writes]
        assert {roles.name_of(key) for key in keys} == {"key"}
        assert {roles.name_of(value) for value in values} == {"value"}
        assert len(set(keys)) == task.pairs
        assert task.protocol == "zoology" or len(set(values)) == len(values)
        assert task.order == "mixed" or len(set(keys[: task.pairs])) == task.pairs
        last: dict[int, int] = {}
        for at, (key, _) in enumerate(writes):
            last[key] = at
        due = {at: target for at, target in enumerate(targets) if target != IGNORE}
        assert sorted(row[at] for at in due) == sorted(last)
        for at, target in due.items():
            assert at >= 2 * len(writes)
            assert target == writes[last[row[at]]][1]
            assert sources[i][at] == 2 * last[row[at]] + 1
            assert updated[i][at] == keys.count(row[at]) - 1
        if task.protocol == "repaired":
            asked = {*due}
            assert not any(row[at] in last for at in range(2 * len(writes), task.length) if at not in asked)


def test_published_values_recur_as_in_the_public_code(draw: Draw) -> None:
    """At vocab 66 a new value is the old one in 2.2 % of updates, and 46 % of sequences show a value twice."""
    batch = draw(ZOOLOGY, count=3000)
    equal, twice = [], []
    for row in batch.inputs.tolist():
        writes = writes_of(ZOOLOGY, row)
        old = dict(writes[:4])
        equal += [old[key] == value for key, value in writes[4:]]
        twice.append(len({value for _, value in writes}) < 8)
    for found, published in ((equal, 0.022), (twice, 0.46)):
        assert abs(np.mean(found) - published) < 6 * np.std(found) / np.sqrt(len(found))


def test_mixed_writes_come_in_any_order(draw: Draw) -> None:
    again = np.zeros(12)
    for row in draw(MIXED, count=2000).inputs.tolist():
        keys = [key for key, _ in writes_of(MIXED, row)]
        again += [keys.index(key) < at for at, key in enumerate(keys)]
    assert again[0] == 0
    assert again[1] / 2000 == pytest.approx(4 / 66, abs=4 * np.sqrt(0.06 / 2000))  # both of its two writes
    assert again.sum() == 8000


@pytest.mark.parametrize("task", [AFTER, MIXED, ZOOLOGY])
def test_the_first_value_and_a_guess_score_their_lines(task: MqarUpdates, assert_expects: Any) -> None:
    def play(choose: Callable[[np.random.Generator, list[tuple[int, int]], int], int]) -> Callable[..., NDArray[Any]]:
        def answer(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
            said = np.zeros_like(batch.targets)
            for guess, row, targets in zip(said, batch.inputs.tolist(), batch.targets.tolist(), strict=True):
                writes = writes_of(task, row)
                for at in [at for at, target in enumerate(targets) if target != IGNORE]:
                    guess[at] = choose(rng, writes, row[at])
            return said

        return answer

    first = play(lambda _, writes, key: next(value for own, value in writes if own == key))
    assert_expects(task, first, task.references()["first_value"], sets=12, count=64)
    if task.protocol == "repaired":
        guess = play(lambda rng, writes, _: list(dict(writes).values())[rng.integers(task.pairs)])
        assert_expects(task, guess, task.chance(), sets=12, count=64)


def test_the_line_of_the_first_value_is_the_share_of_keys_left_alone() -> None:
    assert MqarUpdates(length=256, pairs=32, updates=4).references()["first_value"] == 0.875


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"updates": 9}, r"updates must lie in 0\.\.8"),
        ({"pairs": 1, "updates": 0}, "pairs must be at least 2"),
        ({"length": 39}, "length must be even"),
        ({"length": 38}, "take 40 positions, length is 38"),
        ({"vocab": 24}, "raise vocab to at least 26"),
        ({"order": "before"}, "order must be 'after' or 'mixed'"),
        ({"protocol": "zoology", "order": "mixed"}, "use protocol 'repaired'"),
        ({"power": 0.0}, "power must be positive"),
    ],
)
def test_impossible_updates_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MqarUpdates(**dials)
