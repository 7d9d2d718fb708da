"""Words of several tokens."""

from __future__ import annotations

import numpy as np
import pytest

from recallmap.synth.words import Words, packed

WORDS = Words(symbols=2, min_tokens=1, max_tokens=3)


def test_every_word_is_spelled_once_and_tells_its_end() -> None:
    spelled = [tuple(token for token in row if token) for row in WORDS.spelling(5).tolist()]
    assert spelled.pop() == ()
    assert len({*spelled}) == len(spelled) == WORDS.number == 2 + 4 + 8
    assert {len(word) for word in spelled} == {1, 2, 3}
    assert {token for word in spelled for token in word[:-1]} == {5, 6}
    assert {word[-1] for word in spelled} == {7, 8}
    single = Words(symbols=3, min_tokens=1, max_tokens=1)
    assert single.spelling(5).tolist() == [[5], [6], [7], [0]]


def test_all_sizes_are_as_likely_and_what_is_there_already_is_drawn_anew() -> None:
    """Of four words the two of one token run out: without repeats, more of the others are drawn."""
    rng = np.random.default_rng(0)
    size = (WORDS.spelling(5) > 0).sum(axis=1)
    one = size[WORDS.distinct(rng, np.ones((30_000, 1), dtype=bool))]
    error = np.sqrt(2 / 9 / 30_000)
    assert np.bincount(one.ravel(), minlength=4)[1:] / 30_000 == pytest.approx([1 / 3] * 3, abs=4 * error)
    used = np.arange(5) < np.random.default_rng(1).integers(1, 6, size=1000)[:, None]
    drawn = WORDS.distinct(rng, used)
    for row, there in zip(drawn, used, strict=True):
        assert len({*row[there].tolist()}) == there.sum()
        assert (row[there] < WORDS.number).all()
        assert (size[row[there]] == 1).sum() <= 2


def test_used_tokens_move_to_the_left() -> None:
    wide = np.array([[1, 0, 2, 0], [0, 0, 0, 3]])
    assert packed(wide, wide > 0, -100).tolist() == [[1, 2, -100, -100], [3, -100, -100, -100]]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((0, 1, 1), "symbols must be at least 1"),
        ((4, 0, 1), "min_tokens must be at least 1"),
        ((4, 3, 2), "max_tokens must be at least min_tokens, 3, got 2"),
        ((1024, 1, 3), "1,024 symbols make more than 1,048,576 words of up to 3 tokens: lower"),
    ],
)
def test_impossible_words_are_refused_with_a_remedy(sizes: tuple[int, int, int], said: str) -> None:
    symbols, least, most = sizes
    with pytest.raises(ValueError, match=said):
        Words(symbols=symbols, min_tokens=least, max_tokens=most)
