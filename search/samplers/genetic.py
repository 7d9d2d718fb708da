"""What the genetic algorithms share: a population, crossover, mutation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from recallmap.search.samplers.sampler import SamplerSpec, parameter


@dataclass(frozen=True, kw_only=True)
class Genetic(SamplerSpec):
    """Parents are the best points of earlier populations; a point takes its values from two of them.

    population      points from which the parents of later ones are chosen; null: as many as a generation
    crossover_prob  probability that a point has two parents rather than one
    swapping_prob   probability of each value to come from the second parent
    mutation_prob   probability of each value to be drawn anew; null: one value of a point on average
    """

    population: int | None = parameter(None)
    crossover_prob: float = parameter(0.9)
    swapping_prob: float = parameter(0.5)
    mutation_prob: float | None = parameter(None)

    has_parents: ClassVar[bool] = True
    least_generation: ClassVar[int] = 2  # points descend from pairs

    def __post_init__(self) -> None:
        self.count("population", 2)
        for name in ("crossover_prob", "swapping_prob", "mutation_prob"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {value}")

    def options(self, seed: int, generation: int) -> dict[str, Any]:
        """Arguments of Optuna's samplers."""
        return {
            "seed": seed,
            "population_size": generation if self.population is None else self.population,
            "crossover_prob": self.crossover_prob,
            "swapping_prob": self.swapping_prob,
            "mutation_prob": self.mutation_prob,
        }
