"""Sentences of a layered grammar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Grammar

Draw = Callable[..., Batch]

SMALL = Grammar(rules="drawn", levels=2, seed=3, length=16)
END = SMALL.roles().of("end").start


def derivations(task: Grammar, level: int = 0, symbol: int = 0) -> list[tuple[tuple[int, ...], float]]:
    """Every derivation of a symbol: its sentence, and how likely it is."""
    if level == task.levels:
        return [((task.roles().of("terminal").start + symbol,), 1.0)]
    rules = task.grammar[level]
    found = []
    for rule in range(rules.first[symbol], rules.first[symbol] + rules.number[symbol]):
        parts = [derivations(task, level + 1, part) for part in rules.right[rule].tolist() if part >= 0]
        for chosen in product(*parts):
            words, shares = zip(*chosen, strict=True)
            found.append((sum(words, ()), float(np.prod(shares)) / rules.number[symbol]))
    return found


def entropy(shares: Any) -> float:
    return float(-np.sum([share * np.log(share) for share in shares]))


@pytest.mark.parametrize(
    ("task", "mean", "deviation", "shares", "nats", "floor"),
    [
        (Grammar(), 249.9, 69.4, [0.427, 0.267, 0.306], 186.2, 0.742),
        (Grammar(rules="cfg3k", levels=7, length=1024), 516.0, 92.9, [0.405, 0.242, 0.353], 421.7, 0.815),
    ],
)
def test_published_grammars_have_the_published_lengths_tokens_and_floors(
    task: Grammar, mean: float, deviation: float, shares: list[float], nats: float, floor: float, draw: Draw
) -> None:
    """Sentences drawn by the public code, and the entropy of its rules: nats a sentence and a prediction."""
    batch = draw(task, count=2000)
    sizes = (batch.targets != IGNORE).sum(axis=1) - 1
    assert sizes.mean() == pytest.approx(mean, abs=4 * deviation / np.sqrt(2000))
    assert sizes.std() == pytest.approx(deviation, abs=4 * deviation / np.sqrt(2 * 2000))
    assert sizes.min() >= 2**task.levels
    tokens = batch.inputs[batch.inputs > END]
    assert np.bincount(tokens)[END + 1 :] / tokens.size == pytest.approx(shares, abs=0.002)
    assert task.floor == pytest.approx(floor, abs=0.0005)
    assert task.floor * (mean + 1) == pytest.approx(nats, abs=0.001 * nats)


def test_the_next_token_is_due_and_then_the_end(draw: Draw) -> None:
    batch = draw(SMALL, count=200)
    sentences = {words for words, _ in derivations(SMALL)}
    for row, targets in zip(batch.inputs.tolist(), batch.targets.tolist(), strict=True):
        size = sum(target != IGNORE for target in targets)
        assert row[0] == SMALL.roles().of("begin").start
        assert tuple(row[1:size]) in sentences
        assert targets[:size] == [*row[1:size], END]
        assert set(row[size:]) == {0}
        assert set(targets[size:]) == {IGNORE}


def test_one_who_knows_the_grammar_has_the_loss_that_the_ceiling_says(draw: Draw) -> None:
    """The exact chance of every next token, from all derivations, scores the entropy of sentences; the entropy of derivations
    is the floor."""
    made = derivations(SMALL)
    sentences: Counter[tuple[int, ...]] = Counter()
    for words, share in made:
        sentences[(*words, END)] += share  # type: ignore[assignment]
    assert sum(sentences.values()) == pytest.approx(1)
    predictions = sum(len(words) * share for words, share in sentences.items())
    assert SMALL.floor * predictions == pytest.approx(entropy(share for _, share in made))

    starts: Counter[tuple[int, ...]] = Counter()
    for words, share in sentences.items():
        for size in range(len(words) + 1):
            starts[words[:size]] += share  # type: ignore[assignment]
    batch = draw(SMALL, count=2000)
    shares = np.zeros((*batch.targets.shape, SMALL.vocab))
    for row, targets, given in zip(batch.inputs.tolist(), batch.targets.tolist(), shares, strict=True):
        for at in range(sum(target != IGNORE for target in targets)):
            before = tuple(row[1 : at + 1])
            given[at] = [starts[(*before, token)] / starts[before] for token in range(SMALL.vocab)]
    scores, errors = (score(batch, batch.targets, shares) for score in (SMALL.score, SMALL.standard_errors))
    assert scores["nats"] == pytest.approx(entropy(sentences.values()) / predictions, abs=4 * errors["nats"])
    assert scores["information"] > 1 - 4 * errors["information"]


def test_one_who_knows_only_the_outcomes_knows_nothing(draw: Draw) -> None:
    batch = draw(SMALL)
    even = np.full((*batch.targets.shape, SMALL.vocab), 0.25)
    assert SMALL.score(batch, batch.targets, even)["information"] == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_a_drawn_grammar_has_three_or_four_rules_a_symbol_and_no_right_side_twice(seed: int) -> None:
    for level in Grammar(rules="drawn", levels=3, seed=seed).grammar:
        assert set(level.number.tolist()) <= {3, 4}
        assert set(level.size.tolist()) <= {2, 3}
        assert len(np.unique(level.right, axis=0)) == len(level.right) == level.number.sum()


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"rules": "cfg3g"}, "rules must be 'cfg3f', 'cfg3k' or 'drawn'"),
        ({"rules": "cfg3k"}, "'cfg3k' has levels 7 and needs seed 0, got levels 6, seed 0: use rules 'drawn'"),
        ({"levels": 4}, "has levels 6 and needs seed 0, got levels 4, seed 0: use rules 'drawn'"),
        ({"rules": "drawn", "levels": 8}, r"levels must lie in 1\.\.7"),
        ({"seed": -1, "rules": "drawn"}, "seed must be at least 0"),
        ({"length": 404}, "of sentences are longer than length 404 holds: give at least 4"),
    ],
)
def test_impossible_grammars_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Grammar(**dials)
