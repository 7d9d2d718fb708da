"""The interface of a sampler: a frozen spec of its parameters that makes an Optuna sampler.

A study writes it as `{kind: tpe, startup: 20, ...}` beside the fields of the search, or by its kind alone. Journals of old
searches know a sampler by its kind, so every parameter has the metadata {"later": True} and a default: see `parameter`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

MOST = 100_000  # of what a parameter counts: more is a slip, and takes memory

POINT = "point"  # key of a trial's user attribute in the journal: the place of its point in the order of asking

LINEAGE = "lineage"  # key of a system attribute, where a sampler says it: {"parents": [places], "change": words}


def parameter(default: Any) -> Any:
    """A field of a sampler. The default changes neither the address of a search nor its label."""
    return field(default=default, metadata={"later": True})


@dataclass(frozen=True, kw_only=True)
class SamplerSpec(ABC):
    """A subclass has `kind`, a Literal, and a `parameter` for each setting.

    source            the paper
    several_goals     whether it serves a study of several goals
    has_parents       whether Optuna gives its points populations, and those parents (see Genetic)
    least_generation  points that it must propose together
    """

    joinable: ClassVar[bool] = True  # others may define more of its family
    source: ClassVar[str]
    several_goals: ClassVar[bool] = True
    has_parents: ClassVar[bool] = False
    least_generation: ClassVar[int] = 1

    @abstractmethod
    def build(self, seed: int, generation: int) -> Any:
        """A new Optuna sampler for one point of a search that proposes `generation` points together."""

    def check(self, generation: int) -> None:
        """Raise ValueError where a search proposes too few points together."""
        if generation < self.least_generation:
            raise ValueError(f"generation must be at least {self.least_generation} for {self.label}, got {generation}")

    @property
    def label(self) -> str:
        """`tpe`, or `tpe(startup=20)`: the kind, and each parameter that has another value than its default."""
        values = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        kind = next(str(value) for name, value, _ in values if name == "kind")
        other = [
            f"{name}={json.dumps(value)}" for name, value, default in values if name != "kind" and value != default
        ]
        return f"{kind}({', '.join(other)})" if other else kind

    def count(self, name: str, least: int, most: int = MOST) -> None:
        """Raise ValueError unless the parameter of this name is within bounds, or None."""
        value = getattr(self, name)
        if value is not None and value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
        if value is not None and value > most:
            raise ValueError(f"{name} must be at most {most:,}, got {value:,}")
