"""The interface of a listener: what a tool that follows runs is told of each trial."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from recallmap.results.record import Record

Parameter = bool | int | float | str | None

COSTS = (
    "parameters",
    "state_bytes",
    "flops_per_token",
    "seconds",
    "selected_step",
)  # figures of a record besides scores


@dataclass(frozen=True, kw_only=True)
class Followed:
    """A trial that listeners follow.

    key         of its record
    name        for people, and for files: `mesa-mqar-seed0-3f2a1b9c0d4e`
    parameters  the leaves of its spec by path, such as `training.lr`
    """

    key: str
    name: str
    parameters: Mapping[str, Parameter]


class Listener(ABC):
    """A tool that follows a run. Methods are called from one thread, those of a trial in this order: begin, points, end.

    An exception in `open` stops a run before it trains. After any later one the run goes on without this listener; the
    records are in the ledger before it is told of them.
    """

    needs: ClassVar[str] = ""  # the module of its library; "": none
    extra: ClassVar[str] = ""  # the extra of recallmap that installs it

    @abstractmethod
    def open(self, study: str) -> None:
        """Get ready for a run of the study of this name."""

    @abstractmethod
    def begin(self, trial: Followed) -> None:
        """Take note of a trial whose training begins, or is resumed. Many train at once."""

    @abstractmethod
    def point(self, trial: Followed, step: int, values: Mapping[str, float]) -> None:
        """Take a point of its curve, such as {"train/loss": 2.3, "validation/loss": 2.4, "validation/accuracy": 0.1}. The
        points of a resumed trial, of one in phases and of an online learner may come at its end."""

    @abstractmethod
    def end(self, trial: Followed, record: Record) -> None:
        """Take the record of a finished trial; one that failed has the status "failed" and an error."""

    @abstractmethod
    def close(self) -> None:
        """End the run: trials that have not ended were interrupted."""


def figures_of(record: Record) -> dict[str, float]:
    """The scores of a record on test as `test/accuracy`, those of further tests as `test 1/accuracy`, and its costs."""
    tests = {f"test {number}": test["scores"] for number, test in enumerate(record.tests, 1)}
    scores = {
        f"{place}/{name}": value
        for place, of in {"test": record.scores, "chosen": record.validation, **tests}.items()
        for name, value in of.items()
    }
    costs = {name: getattr(record, name) for name in COSTS}
    return {name: float(value) for name, value in (scores | costs).items() if math.isfinite(value)}
