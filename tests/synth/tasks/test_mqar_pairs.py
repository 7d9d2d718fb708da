"""Recall by two keys at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import MqarPairs

Draw = Callable[..., Batch]

TRIPLES = MqarPairs(vocab=64)
BLOCKS = MqarPairs(vocab=64, layout="blocks")
ZOOLOGY = MqarPairs(vocab=300, protocol="zoology", pairs=4, length=26)


def told(task: MqarPairs, row: list[int]) -> dict[tuple[int, int], tuple[int, int]]:
    """Value and its position by both keys."""
    roles, found, at, first = task.roles(), {}, 0, -1
    while len(found) < task.pairs:
        if roles.name_of(row[at]) == "first":
            first, at = row[at], at + 1
        assert [roles.name_of(token) for token in (first, *row[at : at + 2])] == ["first", "second", "value"]
        found[first, row[at]] = row[at + 1], at + 1
        at += 2
    assert at == task._context
    return found


@pytest.mark.parametrize("task", [TRIPLES, BLOCKS, ZOOLOGY, MqarPairs(pairs=4, fillers=False)])
def test_a_slow_reader_finds_every_value_by_both_keys(task: MqarPairs, draw: Draw) -> None:
    batch = draw(task, count=200)
    sources = task.sources(batch).tolist()
    for i, (row, targets) in enumerate(zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True)):
        values = told(task, row)
        firsts, seconds = {first for first, _ in values}, {second for _, second in values}
        assert len(values) == len(firsts) * len(seconds) == len({value for value, _ in values.values()}) == task.pairs
        due = {at: target for at, target in enumerate(targets) if target != IGNORE}
        assert sorted((row[at - 1], row[at]) for at in due) == sorted(values)
        for at, target in due.items():
            assert (at - 1 - task._context) % 3 == 0
            assert (target, sources[i][at]) == values[row[at - 1], row[at]]
        if task.protocol == "repaired":
            asked = {*due} | {at - 1 for at in due}
            rest = [row[at] for at in range(task._context, task.length) if at not in asked]
            assert not (firsts | seconds) & set(rest)


@pytest.mark.parametrize("task", [TRIPLES, BLOCKS])
def test_the_order_tells_nothing(task: MqarPairs, draw: Draw) -> None:
    """The n-th query asks for the n-th pair as often as for another."""
    right, batch = [], draw(task, 3000)
    for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        values = [value for value, _ in told(task, row).values()]
        asked = [target for target in targets if target != IGNORE]
        right.append(np.mean([one == other for one, other in zip(values, asked, strict=True)]))
    assert np.mean(right) == pytest.approx(1 / 9, abs=4 * np.std(right) / np.sqrt(3000))


@pytest.mark.parametrize("task", [TRIPLES, BLOCKS])
def test_one_key_and_a_guess_score_their_lines(task: MqarPairs, assert_expects: Any) -> None:
    def play(keys: int) -> Callable[..., NDArray[Any]]:
        def answer(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
            said = np.zeros_like(batch.targets)
            for guess, row, targets in zip(said, batch.inputs.tolist(), batch.targets.tolist(), strict=True):
                values = told(task, row)
                for at in [at for at, target in enumerate(targets) if target != IGNORE]:
                    choice = [value for (_, second), (value, _) in values.items() if not keys or second == row[at]]
                    guess[at] = choice[rng.integers(len(choice))]
            return said

        return answer

    assert_expects(task, play(1), task.references()["one_key"], sets=12, count=64)
    assert_expects(task, play(0), task.chance(), sets=12, count=64)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"pairs": 8}, "pairs must be a square, such as 4, 9 or 16, got 8"),
        ({"pairs": -4}, "pairs must be a square"),
        ({"pairs": 16}, "take 96 positions, length is 64"),
        ({"vocab": 24}, "raise vocab to at least 27"),
        ({"layout": "grid"}, "layout must be 'triples' or 'blocks'"),
        ({"layout": "blocks", "protocol": "zoology"}, "use protocol 'repaired'"),
    ],
)
def test_impossible_grids_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        MqarPairs(**dials)
