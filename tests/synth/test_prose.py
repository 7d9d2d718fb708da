"""Prose to hide things in."""

from __future__ import annotations

import re

import numpy as np
import pytest

from recallmap.synth.prose import ADJECTIVES, NOUNS, Ids, ZipfMarkov, python_manual

STOP, DIGIT, WORD = 3, 4, 160
SOURCE = ZipfMarkov(256, 0)


def spelled(source: ZipfMarkov, count: int, length: int, permuted: bool = False) -> tuple[np.ndarray, np.ndarray]:
    return source.sample(np.random.default_rng(5), count, length, Ids(STOP, DIGIT, WORD), permuted)


def text(row: np.ndarray) -> str:
    """w a word, d a digit, s a full stop."""
    return "".join("s" if token == STOP else "d" if token < WORD else "w" for token in row)


def test_the_source_has_the_entropy_that_was_measured() -> None:
    unigram = SOURCE.unigram
    assert unigram.sum() == pytest.approx(1)
    assert -(unigram * np.log(unigram)).sum() == pytest.approx(4.74, abs=0.005)
    assert np.mean([ZipfMarkov(256, seed).entropy_rate() for seed in range(4)]) == pytest.approx(2.83, abs=0.005)


def test_every_word_has_sixteen_successors() -> None:
    assert SOURCE.transitions.sum(axis=1) == pytest.approx(np.ones(256))
    assert all(len(set(row)) == 16 for row in SOURCE.successors.tolist())
    first = SOURCE.transitions[np.arange(256), SOURCE.successors[:, 0]]
    assert (first - 0.1 * SOURCE.unigram[SOURCE.successors[:, 0]]) == pytest.approx(0.9 / 3.3807, abs=1e-4)


def test_full_stops_and_digits_have_the_share_that_was_measured() -> None:
    tokens, ends = spelled(SOURCE, 1000, 1000)
    assert (tokens == STOP).mean() == pytest.approx(0.061, abs=0.001)
    assert ((tokens >= DIGIT) & (tokens < DIGIT + 10)).mean() == pytest.approx(0.046, abs=0.001)
    assert ((tokens == STOP) == ends).all()
    assert tokens.max() < WORD + 256


def test_sentences_have_four_words_at_least_and_fifteen_on_average() -> None:
    lengths = []
    for row in spelled(SOURCE, 20, 20_000)[0]:
        plain = re.sub("d+", "w", text(row))  # two numbers side by side count once: they are rare
        lengths += [len(sentence) for sentence in plain.split("s")[:-1]]
    assert np.mean(np.array(lengths) < 4) < 0.005
    assert np.mean(lengths) == pytest.approx(15, abs=0.3)
    assert np.mean(np.array(lengths) == 4) == pytest.approx(1 / 12, abs=0.01)


def test_two_words_in_a_hundred_are_numbers_of_one_to_four_digits() -> None:
    texts = [text(row) for row in spelled(SOURCE, 200, 1000)[0]]
    alone = [len(run) for one in texts for run in re.findall("(?<=[ws])d+(?=[ws])", one)]
    assert np.bincount(alone, minlength=5)[1:5] / len(alone) == pytest.approx(np.full(4, 0.25), abs=0.03)
    assert len(alone) / sum(one.count("w") for one in texts) == pytest.approx(0.02, abs=0.002)


def test_words_follow_each_other_as_the_table_says() -> None:
    tokens = spelled(SOURCE, 2000, 500)[0].astype(np.int64) - WORD
    here, there = tokens[:, :-1], tokens[:, 1:]
    both = (here >= 0) & (there >= 0)
    seen = np.zeros((256, 256))
    np.add.at(seen, (here[both], there[both]), 1)
    often = seen.sum(axis=1) > 10_000
    share = seen[often] / seen[often].sum(axis=1, keepdims=True)
    assert often.sum() >= 8
    assert np.abs(share - SOURCE.transitions[often]).max() < 0.02


@pytest.mark.parametrize("words", [256, 4096])
def test_words_that_do_not_follow_are_drawn_from_all(words: int) -> None:
    source = ZipfMarkov(words, 0)
    tokens = spelled(source, 500, 500)[0].astype(np.int64) - WORD
    here, there = tokens[:, :-1], tokens[:, 1:]
    both = (here >= 0) & (there >= 0)
    here, there = here[both], there[both]
    afresh = ~(source.successors[here] == there[:, None]).any(axis=1)
    left = np.tile(source.unigram, (words, 1))  # of words that are no successors
    np.put_along_axis(left, source.successors, 0, axis=1)
    rare = (left[:, words // 8 :].sum(axis=1) / left.sum(axis=1))[here[afresh]].mean()
    assert (there[afresh] >= words // 8).mean() == pytest.approx(rare, abs=0.02)


def test_new_names_leave_a_sequence_its_form_but_not_its_words() -> None:
    plain, renamed = spelled(SOURCE, 2000, 200)[0], spelled(SOURCE, 2000, 200, permuted=True)[0]
    for tokens, most in ((plain, 0.02), (renamed, 0.006)):
        words = tokens[tokens >= WORD] - WORD
        assert (np.bincount(words, minlength=256).max() / words.size > most) == (tokens is plain)
    top = [np.bincount(row[row >= WORD]).max() / (row >= WORD).sum() for row in renamed]
    assert np.mean(top) > 0.06


@pytest.mark.parametrize("length", [1, 3, 4, 50, 20_000])
def test_any_length_is_filled_exactly(length: int) -> None:
    tokens, ends = spelled(ZipfMarkov(32, 1), 3, length)
    assert tokens.shape == ends.shape == (3, length)
    assert (tokens > 0).all()


def test_a_source_needs_words_enough_for_its_successors() -> None:
    with pytest.raises(ValueError, match="at least 32"):
        ZipfMarkov(31, 0)


def test_the_manual_is_plain_prose() -> None:
    letters, sentences = python_manual()
    assert letters.size > 2**18
    assert sentences.size > 1500
    assert ((letters >= 32) & (letters < 127)).all()
    whole = bytes(letters).decode()
    assert "  " not in whole
    assert all(whole[at - 2] in ".!?" and whole[at - 1] == " " for at in sentences)


def test_keys_are_made_of_64_adjectives_and_64_nouns() -> None:
    assert len(set(ADJECTIVES)) == len(set(NOUNS)) == 64
    assert all(word.isalpha() and word.islower() for word in ADJECTIVES + NOUNS)
