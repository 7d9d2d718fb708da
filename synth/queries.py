"""Queries of keys amid fillers, as in Zoology's recall tasks: their slots, and what stands between."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.draws import weighted_order
from recallmap.synth.vocab import Roles

_STEEPEST = 650  # the logarithm of how many times as likely the last slot may be as the first: floats end at 709

_CACHED = 2**14  # numbers whose places are sought at once: what is computed of them stays in a processor's cache


def check(power: float, gaps: int) -> None:
    """Raise ValueError where `gaps` slots cannot be drawn in proportion to (slot + 1)^(power - 1)."""
    if not 0 < power < np.inf:
        raise ValueError(f"power must be positive and finite (1.0 is uniform), got {power}")
    if gaps > 1 and (power - 1) * np.log(gaps) > _STEEPEST:
        most = 1 + _STEEPEST / np.log(gaps)
        raise ValueError(f"power must be at most {int(most)} with {gaps} slots for queries, got {power}")


def halves(vocab: int) -> Roles:
    """Keys in the lower half of the token ids, values in the upper; 0 is the blank."""
    half = vocab // 2
    return Roles({"blank": range(1), "key": range(1, half), "value": range(half, vocab)})


def slots(
    rng: np.random.Generator, gaps: int, power: float, shape: tuple[int, int], *, in_order: bool
) -> NDArray[np.int64]:
    """int64 `shape` [n, pairs]: the slot below `gaps` in which each pair is asked for, drawn without replacement in
    proportion to (slot + 1)^(power - 1).

    in_order  give slots to pairs as they are drawn, so that pairs shown early tend to be asked early
    """
    weights = np.arange(1, gaps + 1, dtype=np.float64) ** (power - 1)
    drawn = weighted_order(rng, weights, *shape)
    return drawn if in_order else rng.permuted(drawn, axis=1)


def fillers(
    rng: np.random.Generator, keys: NDArray[np.int64], width: int, vocab: int, *, avoid: bool
) -> NDArray[np.int64]:
    """int64 [n, width]: uniform tokens below `vocab`; with `avoid` none of the row's distinct `keys` [n, pairs]."""
    size = len(keys), width
    if not avoid:
        return rng.integers(vocab, size=size)
    # A number below vocab - pairs, raised by one for every own key at or below it, runs over all tokens but those.
    pairs = keys.shape[1]
    drawn = rng.integers(vocab - pairs, size=size)
    steps = np.sort(keys, axis=1) - np.arange(pairs)
    at_once = max(1, _CACHED // width)
    for start in range(0, len(keys), at_once):
        rows = slice(start, start + at_once)
        drawn[rows] += _at_most(drawn[rows], steps[rows])
    return drawn


def _at_most(numbers: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64 [n, m]: how many of its row's ascending `steps` [n, k] are at most each of `numbers` [n, m].

    By halving, all numbers at once: no branch depends on one, hence faster than to search for one after the other.
    """
    count, width = steps.shape
    bit = 1 << width.bit_length() >> 1
    padded = np.full((count, 2 * bit - 1), np.iinfo(np.int64).max)
    padded[:, :width] = steps
    flat = padded.ravel()
    before = np.arange(-1, flat.size - 1, padded.shape[1])[:, None]
    last = np.repeat(before, numbers.shape[1], axis=1)  # the place of the last step known to be small enough
    while bit:
        last += bit * (flat[last + bit] <= numbers)
        bit >>= 1
    return last - before
