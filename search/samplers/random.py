"""Random search, the null model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from recallmap.search.samplers.sampler import SamplerSpec


@dataclass(frozen=True, kw_only=True)
class Random(SamplerSpec):
    """Independent draws: whole and real numbers uniform in their range (of logarithms with log: true), options equally likely.
    Bergstra & Bengio 2012, Random search for hyper-parameter optimization, JMLR 13."""

    kind: Literal["random"] = "random"

    source: ClassVar[str] = "Bergstra & Bengio 2012"

    def build(self, seed: int, generation: int) -> Any:
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=seed)
