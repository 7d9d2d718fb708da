"""What repeats in an ordered list of blocks: the effect on a score of each block, of its place, of its neighbour.

A point is a word, one letter a block, with a score and the bytes of its state. All effects are least-squares coefficients
beside log2 of the state and the number of blocks: bigger states recall more, and a longer word holds more letters, so that
either would pass for an effect of whatever letters come with it. Both are taken as linear. That is the simplest adjustment
which still leaves 81 pairs of letters to be told apart over a few hundred points: strata of the state would leave most of them
empty.

A block takes the place of another, so no score says what it adds by itself. All letters are fitted together, and the effect of
one is against the median letter, which stands for a block that is neither good nor bad: against the mean of all others, every
letter would lose a share of what the best one adds. With two letters or three this share remains. A pair is fitted beside all
letters in all places, so that it is what they do not explain.

The tests hold for points that are independent of each other and of the scores, as those of random search are. They do not
hold for points that descend from each other (evolution) or that follow a model of the scores (TPE): there a letter is frequent
because points that have it scored well, and its points resemble each other in all else. Clustering by descent would widen the
intervals, but not undo that selection. So the caller gives points of random search alone.

N points, K columns of a fit
"""

from __future__ import annotations

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
    "block": "a block anywhere, rather than the median one",
    "place": "a block in a third of the order, rather than the median one there",
    "pair": "a block right before another, beyond what all add in their places",
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
    p         two-sided, of a t test
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
            return f"{self.name} attention block{'' if self.name == '1' else 's'}"
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
    """All effects that rest on at least FEWEST points on either side, family by family, the largest first. Pairs need twice as
    many points as there are letters in places, blocks and places at least two letters to compare.

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
    blocks = {letter: _column(letter in word for word in words) for letter in letters}
    places = {name: own for letter in letters for name, own in _in_places(words, letter).items()}
    thirds = [[name for name in places if name.endswith(f" {place}")] for place in PLACES]
    found: list[Effect] = []
    for own in (
        fits.against_median("block", blocks, [letters]),
        fits.against_median("place", places, thirds),
        fits.beyond("pair", _pairs(words), [*blocks.values(), *places.values()]),
        fits.against_none("attention", _counts(words, frozenset(attention))),
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


def _pairs(words: Sequence[str]) -> dict[str, Column]:
    """Whether each pair of neighbours is in each word."""
    neighbours = [{word[at : at + 2] for at in range(len(word) - 1)} for word in words]
    return {pair: _column(pair in own for own in neighbours) for pair in sorted(set().union(*neighbours))}


def _counts(words: Sequence[str], attention: Collection[str]) -> dict[str, Column]:
    """Whether each word has so many blocks of attention; none of them is left out."""
    numbers = [sum(letter in attention for letter in word) for word in words]
    return {f"{n}": _column(own == n for own in numbers) for n in sorted(set(numbers)) if n}


def _in_places(words: Sequence[str], letter: str) -> dict[str, Column]:
    """Whether the letter is in each third of each word."""
    thirds = [{_third(at, len(word)) for at, own in enumerate(word) if own == letter} for word in words]
    return {f"{letter} {place}": _column(place in own for own in thirds) for place in PLACES}


def _third(at: int, length: int) -> str:
    """The third in which the middle of a block lies."""
    return PLACES[min(2, int(3 * (at + 0.5) / length))]


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

    def against_median(
        self, family: Family, columns: Mapping[str, Column], groups: Sequence[Sequence[str]]
    ) -> Iterator[Effect]:
        """The effects of columns of 0 and 1 that are fitted together, each against the median of its group. A group whose
        columns the others cannot tell apart has none."""
        matrix, names = self._matrix(columns), list(columns)
        coefficients, drawn, free = self._together(matrix)
        for group in groups:
            kept = [names.index(name) for name in group if _is_tested(columns[name])]
            if len(kept) < 2 or free < 1 or not _are_told_apart(matrix, kept):
                continue
            middle, middles = np.median(coefficients[kept]), np.median(drawn[:, kept], axis=1)
            for at in kept:
                own = drawn[:, at] - middles
                yield self._effect(family, names[at], columns[names[at]], coefficients[at] - middle, own, free)

    def against_none(self, family: Family, columns: Mapping[str, Column]) -> Iterator[Effect]:
        """The effects of columns of 0 and 1 that exclude each other, against points that have none of them."""
        none = 1 - np.sum(list(columns.values()), axis=0) if columns else np.zeros(1)
        matrix = self._matrix(columns)
        coefficients, drawn, free = self._together(matrix)
        if not _is_tested(none) or free < 1:
            return
        for at, (name, column) in enumerate(columns.items()):
            if _is_tested(column) and _left(matrix, at) > _FLAT * column.sum():
                yield self._effect(family, name, column, coefficients[at], drawn[:, at], free)

    def beyond(self, family: Family, columns: Mapping[str, Column], beside: Sequence[Column]) -> Iterator[Effect]:
        """The effects of columns of 0 and 1, each by itself beside the same others. What these explain is taken out once, ahead
        of the bootstrap, whose intervals are widened by the freedom that it took."""
        others = np.stack([*beside, *self.beside], axis=1)
        points = len(others)
        basis = np.linalg.svd(others, full_matrices=False)[0][:, : np.linalg.matrix_rank(others)]
        free = points - basis.shape[1] - 1
        if free < points / 2:
            return
        left = self.scores - basis @ (basis.T @ self.scores)
        for name, column in columns.items():
            own = column - basis @ (basis.T @ column)
            squares = float(own @ own)
            if not _is_tested(column) or squares <= _FLAT * column.sum():
                continue
            value = float(own @ left) / squares
            rest = left - value * own
            drawn = value + np.sqrt(points / free) * (self.counts @ (own * rest)) / (self.counts @ np.square(own))
            error = np.sqrt(float(rest @ rest) / free / squares)
            yield self._effect(family, name, column, value, drawn, free, error=error)

    def _matrix(self, columns: Mapping[str, Column]) -> NDArray[np.float64]:
        return np.stack([*columns.values(), *self.beside], axis=1)

    def _together(self, matrix: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
        """The coefficients [K] of one fit, those of every bootstrap draw of points [draws, K], around them and widened by the
        freedom that the fit takes, and the points left free."""
        points, columns = matrix.shape
        free = points - int(np.linalg.matrix_rank(matrix))
        whole, *_ = np.linalg.lstsq(matrix, self.scores, rcond=None)
        products = (matrix[:, :, None] * matrix[:, None, :]).reshape(points, -1)
        squares = (self.counts @ products).reshape(-1, columns, columns)
        squares += _FLAT * points * np.eye(columns)  # so that a draw without what one column tells has a solution
        rest = matrix * (self.scores - matrix @ whole)[:, None]
        shifts = np.linalg.solve(squares, (self.counts @ rest)[:, :, None])[:, :, 0]
        return np.asarray(whole, dtype=np.float64), whole + shifts * np.sqrt(points / max(1, free)), free

    def _effect(
        self,
        family: Family,
        name: str,
        column: Column,
        value: float,
        drawn: NDArray[np.float64],
        free: int,
        *,
        error: float | None = None,
    ) -> Effect:
        """With the interval of draws that hold points with and without it, and a test by `error`, or by their spread."""
        from scipy.stats import t

        seen = self.counts @ column
        own = drawn[(seen > 0) & (seen < len(column))]
        low, high = np.quantile(own, [(1 - LEVEL) / 2, 1 - (1 - LEVEL) / 2])
        spread = float(own.std()) if error is None else error
        nothing = _FLAT * float(self.scores.std())  # rounding
        size = 0.0 if abs(value) <= nothing else abs(value) / spread if spread > nothing else np.inf
        return Effect(
            family=family,
            name=name,
            points=int(column.sum()),
            others=int(len(column) - column.sum()),
            effect=float(value),
            interval=(float(low), float(high)),
            p=float(2 * t.sf(size, free)),
        )


def _is_tested(column: Column) -> bool:
    """Whether a column of 0 and 1 has enough points on either side."""
    return min(column.sum(), len(column) - column.sum()) >= FEWEST


def _are_told_apart(matrix: NDArray[np.float64], kept: Sequence[int]) -> bool:
    """Whether the points decide every difference between the coefficients of these columns."""
    differences = np.zeros((len(kept) - 1, matrix.shape[1]))
    for row, at in enumerate(kept[1:]):
        differences[row, [kept[0], at]] = -1, 1
    decided = np.linalg.pinv(matrix) @ matrix
    return bool(np.allclose(differences @ decided, differences, atol=1e-6))


def _left(matrix: NDArray[np.float64], at: int) -> float:
    """The sum of squares of a column that the others do not give."""
    others = np.delete(matrix, at, axis=1)
    found, *_ = np.linalg.lstsq(others, matrix[:, at], rcond=None)
    return float(np.square(matrix[:, at] - others @ found).sum())
