"""Goals of a search, and constraints that its points must meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal

from recallmap.results.record import Record
from recallmap.search.trials import Trial

Split = Literal["validation", "test"]

STATIC = ("parameters", "state_bytes", "state_floats", "flops_per_token")  # figures known before training

_LEAST = "least_"  # of a lower limit

SPEED = "milliseconds"  # a forward pass over a batch, timed when nothing else runs


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A score or a cost, and the better direction. For a point of several trials it is their mean.

    score  a score's name, parameters, state_bytes, state_floats, flops_per_token, or milliseconds (measured after
           training, one architecture after the other)
    task   only trials on this task; null: all
    """

    score: str
    direction: Literal["maximise", "minimise"]
    task: str | None = None

    def __post_init__(self) -> None:
        if self.score in ("seconds", "compile_seconds"):
            raise ValueError(
                f"score {self.score} is timed while other trials train, so it says nothing of one; use {SPEED}"
            )

    @property
    def name(self) -> str:
        return self.score if self.task is None else f"{self.score} on {self.task}"

    def of(self, records: Sequence[Record], milliseconds: float | None, *, split: Split = "validation") -> float:
        """The mean over the records of a point. Raises ValueError where there is no such figure."""
        if self.score == SPEED:
            if milliseconds is None:
                raise ValueError(f"{SPEED} were not measured")
            return milliseconds
        meant = [record for record in records if self.task in (None, record.task)]
        if not meant:
            raise ValueError(f"no trial on the task {self.task}")
        return sum(self._figure(record, split) for record in meant) / len(meant)

    def _figure(self, record: Record, split: Split) -> float:
        if self.score in STATIC:
            return float(getattr(record, self.score))
        scores = record.validation if split == "validation" else record.scores
        if self.score not in scores:
            known = ", ".join(name for name in scores if "/" not in name)
            raise ValueError(f"{record.task} has no {split} score '{self.score}', has {known or 'none'}")
        return scores[self.score]


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Limits on the cost of a trial; a trial beyond one is not trained. None: no limit.

    least_parameters  the fewest parameters; all others are upper limits. Both limits together make points of a size
    """

    parameters: int | None = None
    state_bytes: int | None = None
    flops_per_token: float | None = None
    least_parameters: int | None = field(default=None, metadata={"later": True})

    def __post_init__(self) -> None:
        for f in fields(self):
            bound = getattr(self, f.name)
            if bound is not None and bound < 1:
                raise ValueError(f"{f.name} must be at least 1 or null, got {bound}")
        least, most = self.least_parameters, self.parameters
        if least is not None and most is not None and least > most:
            raise ValueError(f"least_parameters must be at most parameters, {most:,}, got {least:,}")

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def broken_by(self, spec: Trial) -> str:
        """The constraints that a trial breaks, in words; "" where it may be trained."""
        said = []
        for name in self.excess(spec):
            figure, end = name.removeprefix(_LEAST), "least" if name.startswith(_LEAST) else "most"
            said.append(f"{figure} {getattr(spec.price(), figure):,} (at {end} {self.limits[name]:,})")
        return ", ".join(said)

    def excess(self, spec: Trial) -> dict[str, float]:
        """The relative distance beyond each limit that is passed."""
        price = spec.price()
        found = {}
        for name, bound in self.limits.items():
            beyond = getattr(price, name.removeprefix(_LEAST)) / bound - 1
            found[name] = -beyond if name.startswith(_LEAST) else beyond
        return {name: over for name, over in found.items() if over > 0}
