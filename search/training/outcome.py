"""Progress that training reports, and the outcome of each member."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A report from within a cohort.

    loss      mean over members and the steps up to the last evaluation; NaN before the first of this call
    accuracy  last validation score of each member; NaN before the first
    ended     outcomes of members that have finished since the last report, by member
    points    new points of curves, by member: train loss, validation loss, validation score; none of trials in phases
    weights   of members that ended, by name, where they are asked for
    resumed   True where a saved cohort, or a phase of one, trains on from this step
    """

    step: int
    steps: int
    members: int
    loss: float
    accuracy: tuple[float, ...]
    ended: Mapping[int, Any] = field(default_factory=dict)
    points: Mapping[Any, tuple[float, float, float]] = field(default_factory=dict)
    weights: Mapping[Any, Mapping[str, Tensor]] = field(default_factory=dict)
    resumed: bool = False

    @property
    def best(self) -> float | None:
        """The highest validation score of a member; None before the first."""
        return max((score for score in self.accuracy if not math.isnan(score)), default=None)


@dataclass(kw_only=True)
class Outcome:
    """The result of training one member."""

    error: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    tests: list[dict[str, float]] = field(default_factory=list)
    curve: dict[str, list[float]] = field(default_factory=dict)
    published_choice: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    selected_step: int = 0
    seconds: float = 0.0  # the member's share of the cohort's wall time; a trial that has stopped accrues none
    compile_seconds: float = 0.0  # likewise, of compiling and graph capture; not in `seconds`
    compiled: str = "no: on a CPU"  # "yes" where the optimizer step was compiled, or why not
    weights: dict[str, Tensor] = field(default_factory=dict)  # those of the checkpoint that validation chose
