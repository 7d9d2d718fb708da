"""GP: Bayesian optimisation with a Gaussian process."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from recallmap.search.samplers.sampler import SamplerSpec, parameter


@dataclass(frozen=True, kw_only=True)
class Gp(SamplerSpec):
    """A Gaussian process with a Matern 5/2 kernel for each goal; the point of the largest expected improvement, or of the
    hypervolume with several goals. Parameters that not every point has are drawn at random.
    Ament et al. 2023, Unexpected improvements to expected improvement; Daulton et al. 2020 for several goals.

    startup        points that are done before the model is used; up to then points are random
    deterministic  whether the model takes goals as free of noise, so that the same point always gives the same figures
    """

    kind: Literal["gp"] = "gp"
    startup: int = parameter(10)
    deterministic: bool = parameter(False)

    source: ClassVar[str] = "Ament et al. 2023"

    def __post_init__(self) -> None:
        self.count("startup", 1)

    def build(self, seed: int, generation: int) -> Any:
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import GPSampler

        with warnings.catch_warnings():  # the interface of deterministic may change: only this file depends on it
            warnings.simplefilter("ignore", ExperimentalWarning)
            return GPSampler(
                seed=seed,
                n_startup_trials=self.startup,
                deterministic_objective=self.deterministic,
                warn_independent_sampling=False,  # it is documented above
            )
