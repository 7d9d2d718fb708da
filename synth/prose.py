"""Prose to hide things in: an endless Zipf-Markov source of words, and the English text that ships with Python.

Legend: n sequences, T positions, W words
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.draws import weighted_order

Tokens = NDArray[np.uint16]

# Plain words of which keys are made.
_ADJECTIVES = """
    amber ancient arctic autumn bitter blazing brave breezy brisk bronze calm careful clever cobalt copper cosmic
    crimson curious dapper distant dusty eager early earnest elegant faded famous fearless fluent foggy gentle giant
    gilded golden graceful hasty hidden hollow humble icy jolly lavish little lonely lucid marble mellow mighty misty
    modest narrow nimble patient placid polar proud quiet rapid rustic silent silver sturdy velvet zealous
"""
_NOUNS = """
    acorn anchor antler arrow badger banner barrel basket beacon bellows bridge bucket candle canyon carpet castle
    cedar chimney cliff clover comet compass cottage crater cricket dagger desert dolphin dragon falcon feather fiddle
    forest fountain galaxy garden glacier hammer harbor helmet island jacket kettle ladder lantern meadow mirror
    monsoon mountain needle orchard otter paddle pebble pepper quarry rabbit ribbon saddle shadow spider tunnel
    violin walnut
"""
ADJECTIVES = tuple(_ADJECTIVES.split())
NOUNS = tuple(_NOUNS.split())

_SUCCESSORS = 16  # of each word
_FOLLOWS = 0.9  # the probability that the next word is a successor; else it is any word
_NUMBERS = 0.02  # share of words that give way to a number of 1 to 4 digits
_SHORTEST = 4  # words in a sentence
_ENDS = 1 / 12  # the probability that a sentence ends with a word, from the shortest length on
_FINE = 2**16  # probabilities are multiples of its inverse


class Ids(NamedTuple):
    """The first token id of each part of the source's vocabulary, all above 0."""

    full_stop: int
    digit: int
    word: int


@dataclass(frozen=True)
class ZipfMarkov:
    """A first-order Markov chain over `words` words, cut into sentences, with a number here and there.

    The word of rank r = 0, 1, .. has the unigram probability p(r) ~ 1 / (r + 2.7). Each word has 16 distinct
    successors, drawn from the unigram by `seed` and weighted 1, 1/2, .. 1/16; with the probability 0.9 the next word is
    one of them, else it is drawn from the unigram. Sentences have 3 words and a geometric number more (mean 12). A
    number stands in the place of a word that stays unsaid.
    """

    words: int
    seed: int

    def __post_init__(self) -> None:
        if self.words < 2 * _SUCCESSORS:
            raise ValueError(f"words must be at least {2 * _SUCCESSORS}, got {self.words}")

    @cached_property
    def unigram(self) -> NDArray[np.float64]:
        weights = 1 / (np.arange(self.words) + 2.7)
        return np.asarray(weights / weights.sum())

    @cached_property
    def successors(self) -> NDArray[np.int64]:
        """int64 [W, 16], the likeliest first."""
        return weighted_order(np.random.default_rng(self.seed), self.unigram, self.words, _SUCCESSORS)

    @cached_property
    def transitions(self) -> NDArray[np.float64]:
        """[W, W]: the probability of each next word."""
        table = np.tile((1 - _FOLLOWS) * self.unigram, (self.words, 1))
        table[np.arange(self.words)[:, None], self.successors] += _FOLLOWS * _ranked()
        return table

    def entropy_rate(self) -> float:
        """Nats per word, numbers and sentences aside."""
        share = self.unigram
        for _ in range(200):  # a tenth of the chain starts afresh at every word: this is far past stationary
            share = share @ self.transitions
        return float(-(share @ (self.transitions * np.log(self.transitions))).sum())

    def sample(
        self, rng: np.random.Generator, count: int, length: int, ids: Ids, permuted: bool = False
    ) -> tuple[Tokens, NDArray[np.bool_]]:
        """Tokens, uint16 [n, T], and where sentences end, [n, T]. Every sequence starts with a sentence.

        `permuted` gives every sequence its own assignment of words to ids.
        """
        words = self._chain(rng, count, length)
        if permuted:
            words = np.take_along_axis(new_names(rng, count, self.words), words, axis=1)

        last = _sentence_ends(rng, count, length)
        number = np.flatnonzero(_fine(rng, count * length) < _NUMBERS * _FINE)
        digits = rng.integers(1, 5, size=number.size)
        span = 1 + last.astype(np.int32)  # tokens that a word takes, its full stop included
        span.ravel()[number] += digits - 1
        start = np.cumsum(span, axis=1, dtype=np.int32) - span

        tokens = np.zeros((count, length), dtype=np.uint16)
        ends = np.zeros((count, length), dtype=bool)
        row, word = np.nonzero(last & (start + span <= length))
        ends[row, start[row, word] + span[row, word] - 1] = True
        tokens[ends] = ids.full_stop
        at_digit = _spread(start.ravel()[number], digits, number // length, length)
        tokens.ravel()[at_digit] = rng.integers(ids.digit, ids.digit + 10, size=at_digit.size, dtype=np.uint16)
        said = start < length
        said.ravel()[number] = False
        tokens[tokens == 0] = words[said] + np.uint16(ids.word)  # ids of all parts are above 0
        return tokens, ends

    def _chain(self, rng: np.random.Generator, count: int, length: int) -> Tokens:
        """Ranks of words, uint16 [n, T]."""
        # The next word is table[word * stride + offset]: a successor, or with stride 0 any word.
        drawn = _steps()[_fine(rng, (length, count))]
        afresh = drawn == _SUCCESSORS
        offset = drawn.astype(np.int32)
        offset[afresh] = self._anywhere[_fine(rng, int(afresh.sum()))].astype(np.int32) + self.words * _SUCCESSORS
        stride = np.where(afresh, np.int32(0), np.int32(_SUCCESSORS))
        words = np.empty((length, count), dtype=np.int32)
        word = self._anywhere[_fine(rng, count)].astype(np.int32)
        index = np.empty_like(word)
        for t in range(length):
            words[t] = word
            np.multiply(word, stride[t], out=index)
            index += offset[t]
            np.take(self._next, index, out=word, mode="clip")
        return words.T.astype(np.uint16)

    @cached_property
    def _next(self) -> NDArray[np.int32]:
        return np.concatenate([self.successors.ravel(), np.arange(self.words)]).astype(np.int32)

    @cached_property
    def _anywhere(self) -> Tokens:
        return _lookup(self.unigram)


def new_names(rng: np.random.Generator, count: int, words: int) -> Tokens:
    """uint16 [n, W]: for every sequence a permutation of its words."""
    return np.argsort(rng.random((count, words), dtype=np.float32), axis=1).astype(np.uint16)


def _ranked() -> NDArray[np.float64]:
    weights = 1 / np.arange(1, _SUCCESSORS + 1)
    return np.asarray(weights / weights.sum())


@lru_cache(maxsize=1)
def _steps() -> Tokens:
    """The rank of a successor, or 16 for any word."""
    return _lookup(np.append(_FOLLOWS * _ranked(), 1 - _FOLLOWS))


def _lookup(probabilities: NDArray[np.float64]) -> Tokens:
    """A table that turns a uniform 16-bit number into a draw."""
    edges = np.rint(np.cumsum(probabilities) * _FINE).astype(np.int64)
    return np.searchsorted(edges, np.arange(_FINE), side="right").astype(np.uint16)


def _fine(rng: np.random.Generator, size: int | tuple[int, int]) -> Tokens:
    return rng.integers(_FINE, size=size, dtype=np.uint16)


def _sentence_ends(rng: np.random.Generator, count: int, length: int) -> NDArray[np.bool_]:
    """Which words, of `length` in each sequence, a full stop follows."""
    words = _SHORTEST - 1 + rng.geometric(_ENDS, size=(count, length // _SHORTEST + 1))
    end = np.cumsum(words, axis=1) - 1
    last = np.zeros((count, length), dtype=bool)
    row, sentence = np.nonzero(end < length)
    last[row, end[row, sentence]] = True
    return last


def _spread(start: NDArray[Any], digits: NDArray[np.int64], row: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Flat positions of all digits of all numbers, those beyond the end of their sequence left out."""
    step = np.arange(digits.sum()) - np.repeat(np.cumsum(digits) - digits, digits)
    place = np.repeat(start, digits) + step
    return (np.repeat(row, digits) * length + place)[place < length]


class Text(NamedTuple):
    """Bytes, and where a sentence begins (the first byte aside)."""

    letters: NDArray[np.uint8]
    sentences: NDArray[np.int64]


@lru_cache(maxsize=1)
def python_manual() -> Text:
    """The prose of Python's own manual, which every CPython carries: ASCII, each run of white space one blank.

    About 430,000 bytes in 3,200 sentences. The text is that of the Python version at hand.
    """
    from pydoc_data.topics import topics

    words = " ".join(topics[name] for name in sorted(topics)).encode("ascii", "ignore").split()
    letters = np.frombuffer(b" ".join(words), dtype=np.uint8)
    after_stop = np.isin(letters[:-2], list(b".!?")) & (letters[1:-1] == ord(" "))
    return Text(letters, np.flatnonzero(after_stop) + 2)
