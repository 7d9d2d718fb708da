"""NSGA-III: a genetic algorithm for many goals."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from recallmap.search.samplers.genetic import Genetic
from recallmap.search.samplers.sampler import parameter

MOST_DIVISIONS = 100  # reference points are as many as there are ways to share the divisions out among the goals


@dataclass(frozen=True, kw_only=True)
class Nsga3(Genetic):
    """Parents are chosen front by front, within a front those near reference points that few others are near.
    Deb & Jain 2014, An evolutionary many-objective optimization algorithm, part I. Further parameters: see Genetic.

    divisions  parts of each goal's range between reference points
    """

    kind: Literal["nsga3"] = "nsga3"
    divisions: int = parameter(3)

    source: ClassVar[str] = "Deb & Jain 2014"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.count("divisions", 1, MOST_DIVISIONS)

    def build(self, seed: int, generation: int) -> Any:
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import NSGAIIISampler

        with warnings.catch_warnings():  # its interface may change: only this file depends on it
            warnings.simplefilter("ignore", ExperimentalWarning)
            return NSGAIIISampler(dividing_parameter=self.divisions, **self.options(seed, generation))
