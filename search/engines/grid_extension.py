"""Trials beyond the edges of a grid: where the best learning rate is the highest or the lowest, one an octave further."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from recallmap.results.analysis.grid_edges import OCTAVE, at_edges
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.trials import Trial
from recallmap.search.trials.single import TrialSpec

OCTAVES = 4  # most beyond the grid, in either direction: a factor of 16


def beyond(grid: Sequence[Trial], book: Mapping[str, Record]) -> tuple[Trial, ...]:
    """The trials beyond the edges of a grid, as far as its finished trials tell: of each architecture on each setting that is
    best at the highest or lowest learning rate and below the ceiling, the best hyper-parameters at a rate an octave further,
    for every seed. Validation chooses. They follow from the records alone, so that a run that is resumed asks for the same.

    book  finished trials, by key; rivals of which one is missing wait for it

    Raises ValueError where there is a choice and no score to make it by.
    """
    rivals: dict[str, dict[str, TrialSpec]] = defaultdict(dict)  # trials that compete, by key
    for trial in grid:
        if isinstance(trial, TrialSpec):
            shared = {name: part for name, part in content_key.plain(trial).items() if name not in ("training", "seed")}
            rivals[content_key.key(shared)][content_key.key(trial)] = trial
    found: list[Trial] = []
    for own in rivals.values():
        rates = [trial.training.lr for trial in own.values()]
        limit = OCTAVE**OCTAVES * 1.001  # further rates are rounded
        while all(key in book for key in own):
            added = {
                key: trial
                for key, trial in _further(own, book)
                if min(rates) / limit <= trial.training.lr <= max(rates) * limit
            }
            if not added.keys() - own.keys():
                break
            own |= added
            found += added.values()
    return tuple(found)


def _further(own: Mapping[str, TrialSpec], book: Mapping[str, Record]) -> Iterator[tuple[str, TrialSpec]]:
    """The trials an octave beyond the edges of these rivals, by key."""
    seeds = sorted({trial.seed for trial in own.values()})
    for at in at_edges([book[key] for key in own]):
        best = own[at.keys[0]]
        for seed in seeds:
            trial = replace(best, seed=seed, training=replace(best.training, lr=at.further))
            yield content_key.key(trial), trial
