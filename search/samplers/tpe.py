"""TPE: the tree-structured Parzen estimator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from recallmap.search.samplers.sampler import SamplerSpec, parameter

STARTUP = 10  # points drawn at random by default, where a generation is no smaller


@dataclass(frozen=True, kw_only=True)
class Tpe(SamplerSpec):
    """One density of the good points and one of the others; of some candidates the one where their ratio is largest.
    Bergstra et al. 2011, Algorithms for hyper-parameter optimization; several goals as Ozaki et al. 2022, JAIR 73.

    startup        points with an answer before the model is used; up to then points are random. null: 10, or a generation
                   where that is less
    candidates     draws from the density of good points, of which the best becomes the point
    multivariate   whether one density models all parameters jointly (Falkner et al. 2018, BOHB), or one each; null: with one
                   goal. Parameters that not every point has are modelled one by one
    group          whether conditional parameters are modelled jointly as well, in groups that occur together; needs
                   multivariate: true
    constant_liar  whether points of the same generation, not trained yet, count as poor ones, so that points keep apart
    """

    kind: Literal["tpe"] = "tpe"
    startup: int | None = parameter(None)
    candidates: int = parameter(24)
    multivariate: bool | None = parameter(None)
    group: bool = parameter(False)
    constant_liar: bool = parameter(True)

    source: ClassVar[str] = "Bergstra et al. 2011"

    def __post_init__(self) -> None:
        self.count("startup", 1)
        self.count("candidates", 1)
        if self.group and not self.multivariate:
            said = "null" if self.multivariate is None else "false"
            raise ValueError(f"group needs multivariate: true, got {said}; set multivariate: true, or leave group out")

    def build(self, seed: int, generation: int) -> Any:
        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import TPESampler

        with warnings.catch_warnings():  # the interface of group may change: only this file depends on it
            warnings.simplefilter("ignore", ExperimentalWarning)
            return TPESampler(
                seed=seed,
                n_startup_trials=min(STARTUP, generation) if self.startup is None else self.startup,
                n_ei_candidates=self.candidates,
                multivariate=self.multivariate,
                group=self.group,
                constant_liar=self.constant_liar,
            )
