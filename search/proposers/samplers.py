"""Optuna's samplers, made from a search's proposer."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from recallmap.search.space.parameters import Choices
from recallmap.search.space.search_space import Search

STARTUP = 10  # points that tpe draws at random before it has a model; no more than a generation


def sampler_of(kind: str, space: Search, ordinal: int) -> Any:
    """A sampler for one point: seeded by its place, so that a study that was stopped goes on as if it was not."""
    from optuna import samplers
    from optuna.exceptions import ExperimentalWarning

    seed = int(np.random.SeedSequence((space.seed, ordinal)).generate_state(1)[0])
    if kind == "tpe":
        return samplers.TPESampler(seed=seed, n_startup_trials=min(STARTUP, space.generation))
    if kind == "nsga2":
        return samplers.NSGAIISampler(population_size=space.generation, seed=seed)
    if kind == "nsga3":
        with warnings.catch_warnings():  # its interface may change: here is all that depends on it
            warnings.simplefilter("ignore", ExperimentalWarning)
            return samplers.NSGAIIISampler(population_size=space.generation, seed=seed)
    if kind == "gp":
        return samplers.GPSampler(seed=seed)
    return samplers.RandomSampler(seed=seed)


def fixing(values: Choices, base: Any) -> Any:
    """A sampler that gives these values, and leaves the others to the base."""
    from optuna import samplers
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return samplers.PartialFixedSampler(values, base)
