"""RegBench: languages that no other split has, prompts of their words, and what is right in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks.regbench import PAD, Languages, Regbench

Draw = Callable[..., Batch]
Automaton = list[dict[int, int]]  # of each state, where its letters lead

TASK = Regbench()
PUBLISHED = Regbench(protocol="seq-icl")
TINY = {"letters": 3, "states": (3, 4), "alphabet": (2, 3), "out_degree": (1, 2)}


def automata(languages: Languages) -> list[Automaton]:
    return [
        [dict(zip(s[:k].tolist(), t[:k].tolist(), strict=True)) for k, s, t in zip(*rows, strict=True)]
        for rows in zip(languages.degree, languages.symbols, languages.targets, strict=True)
    ]


def minimal(automaton: Automaton) -> tuple[Any, ...]:
    """The minimal automaton, its states numbered as a walk in the order of letters meets them: equal for equal
    languages. Classes of states are split until letters and the classes they lead to agree (Moore)."""
    part = [0] * len(automaton)
    while True:
        marks = [(part[s], tuple(sorted((x, part[t]) for x, t in a.items()))) for s, a in enumerate(automaton)]
        finer = [sorted(set(marks)).index(mark) for mark in marks]
        if len(set(finer)) == len(set(part)):
            break
        part = finer
    number, queue, edges = {part[0]: 0}, [0], []
    for state in queue:
        for letter, target in sorted(automaton[state].items()):
            if part[target] not in number:
                number[part[target]] = len(number)
                queue.append(target)
            edges.append((number[part[state]], letter, number[part[target]]))
    return tuple(edges)


def languages_of(task: Regbench, split: Any, count: int = 1000, seed: int = 0) -> Languages:
    return task.languages(np.random.default_rng(seed), count, split)


# Languages. -----------------------------------------------------------------------------------------------------------


def test_languages_have_the_published_statistics() -> None:
    shapes = [minimal(automaton) for automaton in automata(languages_of(PUBLISHED, "train"))]
    states = np.array([1 + max(max(a, b) for a, _, b in edges) for edges in shapes])
    edges = np.array([len(edges) for edges in shapes])
    assert states.mean() == pytest.approx(7.01, abs=0.39)
    assert states.std() == pytest.approx(2.42, abs=0.2)
    assert edges.sum() / states.sum() == pytest.approx(2.00, abs=0.04)
    assert edges.mean() == pytest.approx(14.0, abs=0.8)
    assert np.mean([len({x for _, x, _ in edges}) for edges in shapes]) == pytest.approx(7.46, abs=0.35)


def test_edges_are_as_the_dials_say() -> None:
    languages = languages_of(PUBLISHED, "train", count=3000)
    raw = automata(languages)
    assert {len(state) for automaton in raw for state in automaton} == {1, 2, 3}
    assert not any(s in state.values() for automaton in raw for s, state in enumerate(automaton))
    assert all(len(set(state.values())) == len(state) for automaton in raw for state in automaton)
    assert np.isin(languages.symbols, TASK.roles().of("letter")).all()
    reach = np.where(languages.edges(), languages.targets, 0).max(axis=(1, 2))
    assert set(reach.tolist()) <= set(range(12))
    used = languages.symbols[languages.edges()]
    assert np.bincount(used, minlength=19)[1:] / used.size == pytest.approx(np.full(18, 1 / 18), abs=0.004)


def test_hashes_tell_languages_apart_and_nothing_else() -> None:
    languages = languages_of(Regbench(protocol="seq-icl", **TINY), "train", count=3000)
    shapes = [minimal(automaton) for automaton in automata(languages)]
    full, short = languages.fingerprints(8)[:, 0].tolist(), languages.fingerprints(3)[:, 0].tolist()
    assert len(set(shapes)) < 1500, "too few languages repeat for a test of this"
    assert len(set(full)) == len(set(shapes)) == len(set(zip(full, shapes, strict=True)))
    assert len(set(zip(short, shapes, strict=True))) == len(set(shapes)), "one language, two hashes"


def test_distinct_hashes_are_the_states_of_the_minimal_automaton() -> None:
    languages = languages_of(TASK, "train", count=200)
    for automaton, hashes in zip(automata(languages), languages.fingerprints(24), strict=True):
        reached = [0]
        for state in reached:
            reached += [t for t in automaton[state].values() if t not in reached]
        assert len(set(hashes[reached].tolist())) == 1 + max(max(a, b) for a, _, b in minimal(automaton))


@pytest.mark.parametrize("dials", [TINY, {}], ids=["few languages", "default"])
def test_no_language_is_in_two_splits_whatever_the_seeds(dials: dict[str, Any]) -> None:
    task = Regbench(**dials)
    seen = {
        split: {minimal(a) for seed in (1, 2) for a in automata(languages_of(task, split, count=500, seed=seed))}
        for split in ("train", "validation", "test")
    }
    assert all(seen.values())
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]


def test_published_splits_share_languages() -> None:
    task = Regbench(protocol="seq-icl", **TINY)
    train, test = ({minimal(a) for a in automata(languages_of(task, "train", seed=s))} for s in (1, 2))
    assert train & test


def test_a_split_without_languages_is_an_error() -> None:
    only = Regbench(letters=1, states=(2, 2), alphabet=(1, 1), out_degree=(1, 1))  # its one language: a, aa, aaa ...
    homes = []
    for split in ("train", "validation", "test"):
        with contextlib.suppress(ValueError):
            homes += [split] * len(languages_of(only, split, count=1))
    assert len(homes) == 1
    with pytest.raises(ValueError, match="so few languages that none falls to"):
        languages_of(only, "test" if homes != ["test"] else "train", count=1)


# Prompts. -------------------------------------------------------------------------------------------------------------


def test_prompts_have_the_published_statistics(draw: Draw) -> None:
    batch = draw(TASK, count=1000, split="train")
    size = (batch.inputs != PAD).sum(axis=1)
    words = (batch.inputs == TASK.separator).sum(axis=1) + 1
    legal = np.bitwise_count(batch.aux["legal"][batch.targets != IGNORE])
    assert words.mean() == pytest.approx(14.47, abs=0.51)
    assert ((size - words + 1) / words).mean() == pytest.approx(24.94, abs=0.48)
    assert size.mean() == pytest.approx(374.4, abs=17)
    assert size.std() == pytest.approx(93, abs=8)
    assert np.bincount(legal)[1:] / len(legal) == pytest.approx([0.347, 0.332, 0.321], abs=0.02)
    assert np.log(legal).mean() == pytest.approx(0.583, abs=0.028)
    assert (1 / legal).mean() == pytest.approx(0.620, abs=0.02)


def test_a_prompt_is_words_that_its_automaton_reads(draw: Draw) -> None:
    rng = np.random.default_rng(0)
    raw = automata(languages_of(TASK, "test", count=50))  # the draws of a sample begin with its languages
    batch = TASK.sample(rng, 50, "test")
    for automaton, inputs, targets, legal in zip(raw, batch.inputs, batch.targets, batch.aux["legal"], strict=True):
        state = automaton[0].get(int(inputs[0]))
        for token, target, bits in zip(inputs.tolist(), targets.tolist(), legal.tolist(), strict=True):
            if token == PAD:
                assert (target, bits) == (IGNORE, 0)
                continue
            assert state is not None
            state = 0 if token == TASK.separator else state
            assert bits == sum(1 << letter for letter in automaton[state])
            if target != IGNORE:
                state = automaton[state][target]


def test_every_letter_but_the_first_is_scored(draw: Draw) -> None:
    batch = draw(TASK)
    follows = batch.inputs[:, 1:]
    letter = (follows != PAD) & (follows != TASK.separator)
    assert (batch.targets[:, :-1] == np.where(letter, follows, IGNORE)).all()
    words = (batch.inputs == TASK.separator).sum(axis=1) + 1
    assert ((batch.targets != IGNORE).sum(axis=1) == (batch.inputs != PAD).sum(axis=1) - words).all()


def test_letters_are_drawn_uniformly(draw: Draw) -> None:
    batch = draw(TASK, count=2000)
    scored = batch.targets != IGNORE
    legal, target = batch.aux["legal"][scored], batch.targets[scored].astype(np.uint32)
    rank = np.bitwise_count(legal & ((np.uint32(1) << target) - np.uint32(1)))
    for options in (2, 3):
        seen = np.bincount(rank[np.bitwise_count(legal) == options])
        assert seen / seen.sum() == pytest.approx(np.full(options, 1 / options), abs=0.005)


def test_long_prompts_end_at_a_whole_word(draw: Draw) -> None:
    task = Regbench(words=(9, 12), word_length=(10, 10), length=119)
    size = (draw(task).inputs != PAD).sum(axis=1)
    assert set(size.tolist()) == {98, 109, 119}  # 9 words, 10, and 11, whose last letter is a target only


def test_every_prompt_has_a_scored_letter_however_short(draw: Draw) -> None:
    batch = draw(Regbench(words=(2, 3), word_length=(1, 20), length=21), count=2000)
    assert (batch.targets != IGNORE).any(axis=1).all()


def test_few_prompts_are_cut_at_the_default_length(draw: Draw) -> None:
    whole = draw(Regbench(length=950), count=4000).inputs != PAD
    assert (whole.sum(axis=1) > TASK.length).mean() < 0.003


# Scores. --------------------------------------------------------------------------------------------------------------


def test_any_letter_that_the_automaton_allows_is_right() -> None:
    task = Regbench(word_length=(1, 3), length=4)
    batch = Batch(
        inputs=np.array([[1, 2, 19, 3]]),
        targets=np.array([[2, IGNORE, 3, 1]]),
        aux={"legal": np.array([[0b0110, 0b0010, 0b1010, 0b0010]], dtype=np.uint32)},
    )
    for answers, accuracy in [([2, 0, 3, 1], 1.0), ([1, 0, 1, 1], 1.0), ([0, 0, 19, 1], 1 / 3), ([3, 1, 2, 2], 0.0)]:
        assert task.score(batch, np.array([answers]))["accuracy"] == pytest.approx(accuracy)


def test_the_oracle_has_accuracy_one_and_no_distance(draw: Draw) -> None:
    batch = draw(TASK)
    bits = batch.aux["legal"][..., None] >> np.arange(TASK.vocab, dtype=np.uint32) & 1
    truth = bits / np.maximum(bits.sum(axis=-1, keepdims=True), 1)
    scores = TASK.score(batch, truth.argmax(axis=-1), truth)
    assert scores["accuracy"] == TASK.ceiling() == 1.0
    assert scores["tvd"] == pytest.approx(0, abs=1e-7)


def test_distance_is_half_the_sum_of_differences(draw: Draw) -> None:
    batch = draw(TASK)
    even = np.full((*batch.inputs.shape, TASK.vocab), 1 / TASK.vocab)
    legal = np.bitwise_count(batch.aux["legal"][batch.targets != IGNORE])
    assert TASK.score(batch, batch.targets, even)["tvd"] == pytest.approx((1 - legal / TASK.vocab).mean())


def test_guesses_among_all_tokens_score_as_published_and_among_letters_as_chance(draw: Draw) -> None:
    batch, rng = draw(TASK, count=1000, seed=1), np.random.default_rng(0)
    tokens, letters = (rng.integers(a, b, batch.inputs.shape) for a, b in [(0, 20), (1, 19)])
    assert TASK.score(batch, tokens)["accuracy"] == pytest.approx(0.098, abs=0.003)
    assert TASK.score(batch, letters)["accuracy"] == pytest.approx(TASK.chance(), abs=0.003)


def test_accuracy_grows_with_the_position_in_the_prompt(draw: Draw) -> None:
    batch = draw(TASK, count=100)
    scores = TASK.score(batch, TASK.n_grams(batch.inputs, 3)[2].argmax(axis=-1))
    by_position = [scores[f"accuracy/position={p}"] for p in (4, 16, 64, 256)]
    assert by_position == sorted(by_position)
    assert by_position[0] < 0.7 < 0.9 < by_position[-1]


# Lines to compare with. -----------------------------------------------------------------------------------------------


def counted(words: list[list[int]], order: int) -> dict[int, float]:
    """What a back-off n-gram expects after the last letter of the last word, by plain counting."""
    padded = [[0] * (order - 1) + word for word in words]
    seen = {letter for word in words for letter in word}

    def times(gram: list[int]) -> int:
        return sum(word[i : i + len(gram)] == gram for word in padded for i in range(len(word) - len(gram) + 1))

    def expected(context: list[int]) -> dict[int, float]:
        if not context:
            total = sum(len(word) for word in words)
            return {x: times([x]) / total for x in seen}
        own = {x: times([*context, x]) / times(context) for x in seen if times([*context, x])}
        lower = {x: p for x, p in expected(context[1:]).items() if x not in own}
        rest = sum(lower.values())
        return own | {x: (1 - sum(own.values())) * p / rest for x, p in lower.items() if rest > 0}

    # a context of start marks alone is shorter in a lower order, so it is counted once a word
    return expected(padded[-1][len(padded[-1]) - order + 1 :]) if order > 1 else expected([])


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_n_grams_are_counts_of_the_prompt_so_far(order: int, draw: Draw) -> None:
    task = Regbench(words=(3, 5), word_length=(1, 8), length=50)
    for inputs in draw(task, count=6).inputs:
        expected = task.n_grams(inputs[None], order)[order - 1, 0]
        words: list[list[int]] = [[]]
        for position, token in enumerate(inputs[inputs != PAD].tolist()):
            if token == task.separator:
                words.append([])
            else:
                words[-1].append(token)
            plain = np.zeros(task.vocab)
            for letter, share in counted(words, order).items():
                plain[letter] = share
            assert expected[position] == pytest.approx(plain, abs=1e-5)


def test_n_grams_have_the_published_accuracy_and_distance(draw: Draw) -> None:
    batch = draw(TASK, count=400)
    known = [(0.487, 0.620), (0.821, 0.332), (0.931, 0.261), (0.950, 0.273), (0.952, 0.290)]
    for expected, (accuracy, distance) in zip(TASK.n_grams(batch.inputs, 5), known, strict=True):
        scores = TASK.score(batch, expected.argmax(axis=-1), expected)
        assert scores["accuracy"] == pytest.approx(accuracy, abs=0.02)
        assert scores["tvd"] == pytest.approx(distance, abs=0.02)


def test_references_lie_between_chance_and_ceiling_in_order() -> None:
    lines = TASK.references()
    assert list(lines) == ["1-gram", "2-gram", "3-gram", "4-gram", "5-gram", "known states"]
    values = [TASK.chance(), *lines.values(), TASK.ceiling()]
    assert values == sorted(values)
    assert lines["3-gram"] == pytest.approx(0.931, abs=0.01)


def test_known_states_are_those_left_before() -> None:
    task = Regbench(states=(4, 5), words=(2, 3), word_length=(1, 6), length=20)
    rng = np.random.default_rng(0)
    languages = task.languages(rng, 1024, "test")
    tokens, states = task._written(rng, languages)
    same, right = languages.fingerprints(10), []
    for row, (letters, now) in enumerate(zip(tokens.tolist(), states.tolist(), strict=True)):
        left = {same[row, 0]}
        for position in range(task.length):
            if letters[position + 1] not in (PAD, task.separator):
                here = same[row, now[position] - row * same.shape[1]]
                right.append(1.0 if here in left else task.chance())
                left.add(here)
    assert task.references()["known states"] == pytest.approx(np.mean(right), abs=1e-9)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"letters": 31}, "letters must be at most 30"),
        ({"letters": 10}, "alphabet must be at most the 10 letters"),
        ({"states": (3, 12)}, "out_degree must be at most 2"),
        ({"words": (5, 4)}, "words must be two numbers"),
        ({"states": (0, 4)}, "states must be two numbers"),
        ({"words": (1, 9)}, "start words or word_length at 2"),
        ({"length": 49}, "above the longest word's 49 letters"),
    ],
)
def test_impossible_dials_are_refused(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Regbench(**dials)


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert [digest(task) for task in (TASK, PUBLISHED)] == ["54c4af66a65f0583", "0fc7d6f107d35e6e"]
