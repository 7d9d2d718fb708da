"""Words of one or several tokens, the last of a role of its own, so that a word tells its end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.draws import distinct_as

_MOST = 2**20  # words whose spellings we hold


@dataclass(frozen=True, kw_only=True)
class Words:
    """All words of `min_tokens` to `max_tokens` tokens, each of `symbols`; the last token has other ids than those before it.
    Where every word has one token, there are no inner ones.

    Raises ValueError where a size is below 1, max_tokens below min_tokens, or the words are too many to be held.
    """

    symbols: int
    min_tokens: int
    max_tokens: int

    def __post_init__(self) -> None:
        for name in ("symbols", "min_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_tokens < self.min_tokens:
            raise ValueError(f"max_tokens must be at least min_tokens, {self.min_tokens}, got {self.max_tokens}")
        if self.symbols > _MOST or self.max_tokens > _MOST.bit_length() or self.number > _MOST:
            raise ValueError(
                f"{self.symbols:,} symbols make more than {_MOST:,} words of up to {self.max_tokens} tokens: lower "
                "symbols or max_tokens"
            )

    @property
    def number(self) -> int:
        """How many words there are."""
        return sum(self.symbols**size for size in range(self.min_tokens, self.max_tokens + 1))

    @property
    def most(self) -> int:
        """How many distinct words a sequence can have: beyond, draws of words of several sizes repeat for long."""
        return self.number if self.min_tokens == self.max_tokens else self.number // 2

    @property
    def inner(self) -> int:
        """Ids of tokens that stand within a word, before its last."""
        return self.symbols if self.max_tokens > 1 else 0

    def spelling(self, first: int) -> NDArray[np.int32]:
        """int32 [number + 1, max_tokens]: the tokens of every word, ids from `first` on, inner ones before last ones, padded
        by 0; the last row is no word."""
        return _spelling(self, first)

    def distinct(self, rng: np.random.Generator, used: NDArray[np.bool_]) -> NDArray[np.int64]:
        """int64 [n, size]: where bool [n, size] `used`, numbers of words that differ within a row. All sizes of words are
        equally likely, and a word that is there already is drawn anew. The order within a row is not random: shuffle it."""
        sizes = np.arange(self.min_tokens, self.max_tokens + 1)
        spellings = self.symbols**sizes
        firsts = spellings.cumsum() - spellings

        def draw(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            size = rng.integers(sizes.size, size=rows.size)
            word: NDArray[np.int64] = firsts[size] + rng.integers(spellings[-1], size=rows.size) % spellings[size]
            return word

        return distinct_as(draw, used, self.number)


def packed(wide: NDArray[Any], used: NDArray[np.bool_], rest: int) -> NDArray[np.int64]:
    """int64 [n, T]: the used tokens of every row of `wide` moved to the left, and `rest` behind them."""
    found = np.full(wide.shape, rest, dtype=np.int64)
    found[np.arange(wide.shape[1]) < used.sum(axis=1)[:, None]] = wide[used]
    return found


@lru_cache(maxsize=64)
def _spelling(words: Words, first: int) -> NDArray[np.int32]:
    parts = []
    for size in range(words.min_tokens, words.max_tokens + 1):
        numbers = np.arange(words.symbols**size)
        tokens = np.zeros((numbers.size, words.max_tokens), dtype=np.int32)
        for place in range(size):
            tokens[:, place] = first + numbers // words.symbols**place % words.symbols
        tokens[:, size - 1] += words.inner
        parts.append(tokens)
    table = np.concatenate([*parts, np.zeros((1, words.max_tokens), dtype=np.int32)])
    table.setflags(write=False)
    return table
