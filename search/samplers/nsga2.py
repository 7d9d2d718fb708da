"""NSGA-II: a genetic algorithm that ranks by fronts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from recallmap.search.samplers.genetic import Genetic


@dataclass(frozen=True, kw_only=True)
class Nsga2(Genetic):
    """Parents are chosen front by front, within a front those far apart.
    Deb et al. 2002, A fast and elitist multiobjective genetic algorithm: NSGA-II. Parameters: see Genetic."""

    kind: Literal["nsga2"] = "nsga2"

    source: ClassVar[str] = "Deb et al. 2002"

    def build(self, seed: int, generation: int) -> Any:
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler(**self.options(seed, generation))
