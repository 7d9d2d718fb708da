"""What repeats in an ordered list of blocks: the effect on a score of each block, of its place, of its neighbour.

A point is a word, one letter a block, with a score and the bytes of its state. All effects are least-squares coefficients
beside log2 of the state and the number of blocks: bigger states recall more, and a longer word holds more letters, so that
either would pass for an effect of whatever letters come with it. Both are taken as linear. That is the simplest adjustment
which still leaves 81 pairs of letters to be told apart over a few hundred points: strata of the state would leave most of them
empty.

A block takes the place of another, so an effect is against the average of whatever else stood there: where some blocks add, the
others lose a little by it. Only differences between effects say which block to take.

The tests hold for points that are independent of each other and of the scores, as those of random search are. They do not
hold for points that descend from each other (evolution) or that follow a model of the scores (TPE): there a letter is frequent
because points that have it scored well, and its points resemble each other in all else. Clustering by descent would widen the
intervals, but not undo that selection. So the caller gives points of random search alone.

N points, K columns of a fit
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.results.analysis.comparison import ALPHA, holm
from recallmap.results.analysis.confidence import LEVEL, Interval

FEWEST = 8  # points that have what is tested, and points that have it not

PLACES = ("early", "middle", "late")  # thirds of a word

Family = Literal["block", "place", "pair", "attention"]

FAMILIES: Mapping[Family, str] = {
    "block": "a block anywhere, rather than not at all",
    "place": "a block in a third of the order, rather than others there",
    "pair": "a block right before another, beyond what both add in their places",
    "attention": "so many blocks of attention, rather than none",
}

_DRAWS = 1000

_FLAT = 1e-9  # share of a column's variance that others must leave for it to be told apart from them

Column = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One difference, in units of the score, at equal state and number of blocks.

    name      what has it: `a`, `a late`, `ad` (a right before d), `2`
    points    that have it; `others` have not
    interval  95 % percentile bootstrap interval over points, by itself
    p         two-sided, of the t test of the coefficient
    adjusted  p by Holm within its family
    """

    family: Family
    name: str
    points: int
    others: int
    effect: float
    interval: Interval
    p: float
    adjusted: float = 1.0

    @property
    def said(self) -> str:
        """What has it, in words."""
        if self.family == "attention":
            return f"{self.name} of attention"
        return " then ".join(self.name) if self.family == "pair" else self.name

    @property
    def excludes_zero(self) -> bool:
        return self.interval[0] > 0 or self.interval[1] < 0

    @property
    def holds(self) -> bool:
        """Whether its interval excludes zero and its adjusted p is below 5 %."""
        return self.excludes_zero and self.adjusted < ALPHA


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The effects over one search.

    score    the goal that they are effects on, as tested
    letters  kinds of mixers that a letter stands for
    points   of random search that they rest on
    why      the reason for none; "" where there are some
    """

    score: str
    letters: Mapping[str, Sequence[str]]
    points: int
    effects: tuple[Effect, ...] = ()
    why: str = ""

    @property
    def legend(self) -> str:
        """`a attention, l gla or mamba2`."""
        return ", ".join(f"{letter} {' or '.join(kinds)}" for letter, kinds in self.letters.items())


def block_effects(
    words: Sequence[str], scores: Sequence[float], states: Sequence[float], *, attention: Collection[str] = ()
) -> list[Effect]:
    """All effects that rest on at least FEWEST points on either side, family by family, the largest first.

    words      one a point, a letter a block, from the input to the output
    states     bytes of state, at least 1
    attention  letters of blocks of attention

    Raises ValueError where the lengths differ.
    """
    if not len(words) == len(scores) == len(states):
        raise ValueError(
            f"got {len(words)} words, {len(scores)} scores and {len(states)} states, expected as many of each"
        )
    if len(words) < 2 * FEWEST:
        return []
    fits = _Fits(words, scores, states)
    letters = sorted(set("".join(words)))
    found: list[Effect] = []
    for own in (
        _blocks(fits, words, letters),
        _places(fits, words, letters),
        _pairs(fits, words),
        _counts(fits, words, frozenset(attention)),
    ):
        effects = list(own)
        adjusted = holm([one.p for one in effects])
        effects = [replace(one, adjusted=p) for one, p in zip(effects, adjusted, strict=True)]
        found += sorted(effects, key=lambda one: -abs(one.effect))
    return found


def telling(effects: Sequence[Effect], *, largest: int = 2) -> list[Effect]:
    """Those that hold, and the largest few of each family besides, in the order given."""
    kept: list[Effect] = []
    for family in FAMILIES:
        own = [one for one in effects if one.family == family]
        kept += [one for rank, one in enumerate(own) if one.holds or rank < largest]
    return kept


def _blocks(fits: _Fits, words: Sequence[str], letters: Sequence[str]) -> Iterator[Effect]:
    for letter in letters:
        yield from fits.effects("block", {letter: _column(letter in word for word in words)})


def _places(fits: _Fits, words: Sequence[str], letters: Sequence[str]) -> Iterator[Effect]:
    """The places of a letter in one fit, so that what it adds late does not count for early."""
    for letter in letters:
        yield from fits.effects("place", _in_places(words, letter))


def _pairs(fits: _Fits, words: Sequence[str]) -> Iterator[Effect]:
    pairs = Counter(pair for word in words for pair in set(_neighbours(word)))
    for pair in sorted(pairs):
        if pairs[pair] < FEWEST:
            continue
        beside = {name: own for letter in dict.fromkeys(pair) for name, own in _of_letter(words, letter).items()}
        has = _column(pair in _neighbours(word) for word in words)
        yield from fits.effects("pair", {pair: has}, beside=list(beside.values()))


def _counts(fits: _Fits, words: Sequence[str], attention: Collection[str]) -> Iterator[Effect]:
    """Every number of attention blocks in one fit: what is left out of it is none of them."""
    numbers = [sum(letter in attention for letter in word) for word in words]
    if numbers.count(0) >= FEWEST:
        columns = {f"{n}": _column(own == n for own in numbers) for n in sorted(set(numbers)) if n}
        yield from fits.effects("attention", columns)


def _of_letter(words: Sequence[str], letter: str) -> dict[str, Column]:
    """Whether the letter is in each word, and in which thirds."""
    return {letter: _column(letter in word for word in words), **_in_places(words, letter)}


def _in_places(words: Sequence[str], letter: str) -> dict[str, Column]:
    """Whether the letter is in each third of each word."""
    thirds = [{_third(at, len(word)) for at, own in enumerate(word) if own == letter} for word in words]
    return {f"{letter} {place}": _column(place in own for own in thirds) for place in PLACES}


def _third(at: int, length: int) -> str:
    """The third in which the middle of a block lies."""
    return PLACES[min(2, int(3 * (at + 0.5) / length))]


def _neighbours(word: str) -> list[str]:
    return [word[at : at + 2] for at in range(len(word) - 1)]


def _column(values: Iterator[bool]) -> Column:
    return np.fromiter(values, dtype=np.float64)


class _Fits:
    """Least-squares fits of one score, over the same points and the same bootstrap draws of them."""

    def __init__(self, words: Sequence[str], scores: Sequence[float], states: Sequence[float]) -> None:
        self.scores = np.asarray(scores, dtype=np.float64)
        logs = np.log2(np.maximum(1.0, np.asarray(states, dtype=np.float64)))
        lengths = np.array([len(word) for word in words], dtype=np.float64)
        self.beside = [np.ones(len(words)), logs - logs.mean(), lengths - lengths.mean()]
        drawn = np.random.default_rng(0).integers(len(words), size=(_DRAWS, len(words)))
        self.counts = np.stack([np.bincount(own, minlength=len(words)) for own in drawn]).astype(np.float64)

    def effects(
        self, family: Family, columns: Mapping[str, Column], *, beside: Sequence[Column] = ()
    ) -> Iterator[Effect]:
        """The effects of columns of 0 and 1 that are fitted together, `beside` others that are not reported. A column that the
        others nearly give is left out."""
        matrix = np.stack([*columns.values(), *beside, *self.beside], axis=1)
        kept = {at: name for at, name in enumerate(columns) if self._is_told(matrix, at)}
        if not kept:
            return
        coefficients, *_ = np.linalg.lstsq(matrix, self.scores, rcond=None)
        drawn = self._drawn(matrix)
        for at, name in kept.items():
            has = matrix[:, at] > 0
            seen = self.counts[:, has].sum(axis=1)
            own = drawn[
                (seen > 0) & (seen < len(has)), at
            ]  # a draw without it, or with nothing else, says nothing of it
            tail = (1 - LEVEL) / 2
            low, high = np.quantile(own, [tail, 1 - tail])
            yield Effect(
                family=family,
                name=name,
                points=int(has.sum()),
                others=int((~has).sum()),
                effect=float(coefficients[at]),
                interval=(float(low), float(high)),
                p=self._p(matrix, at, coefficients),
            )

    def _is_told(self, matrix: NDArray[np.float64], at: int) -> bool:
        """Whether a column of 0 and 1 has enough points on either side, and varies where all others are equal."""
        has = matrix[:, at].sum()
        return min(has, len(matrix) - has) >= FEWEST and self._left(matrix, at) > _FLAT * has

    def _left(self, matrix: NDArray[np.float64], at: int) -> float:
        """The sum of squares of a column that the others do not give."""
        others = np.delete(matrix, at, axis=1)
        found, *_ = np.linalg.lstsq(others, matrix[:, at], rcond=None)
        return float(np.square(matrix[:, at] - others @ found).sum())

    def _p(self, matrix: NDArray[np.float64], at: int, coefficients: NDArray[np.float64]) -> float:
        from scipy.stats import t

        left = float(np.square(self.scores - matrix @ coefficients).sum())
        free = len(matrix) - int(np.linalg.matrix_rank(matrix))
        error = np.sqrt(left / free / self._left(matrix, at)) if free > 0 else 0.0
        if error <= _FLAT * abs(coefficients[at]):  # nothing varies but by it: no test says more than the points do
            return 1.0 if free <= 0 or not coefficients[at] else 0.0
        return float(2 * t.sf(abs(coefficients[at]) / error, free))

    def _drawn(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        """float [draws, K]: the coefficients of every bootstrap draw of points."""
        points, columns = matrix.shape
        products = (matrix[:, :, None] * matrix[:, None, :]).reshape(points, -1)
        squares = (self.counts @ products).reshape(-1, columns, columns)
        with_scores = self.counts @ (matrix * self.scores[:, None])
        squares += (
            _FLAT * points * np.eye(columns)
        )  # so that a draw that lacks what one column tells has a solution, 0 there
        return np.asarray(np.linalg.solve(squares, with_scores[:, :, None])[:, :, 0], dtype=np.float64)
