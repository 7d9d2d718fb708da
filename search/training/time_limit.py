"""The time limit of a run: where it is up, a cohort is saved and the run stops, to be resumed by the same command."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

import torch

NEAR = 5.0  # seconds before the end from which we wait for the GPU at every step: it may be seconds behind


class TimeIsUp(KeyboardInterrupt):
    """The time of a run is up. It stops as at Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class TimeLimit:
    """The end of a run, or none.

    seconds  length of the run
    until    its end by `time.monotonic`, which all processes of a machine share
    """

    seconds: float = math.inf
    until: float = math.inf

    @staticmethod
    def of(seconds: float, began: float | None = None) -> TimeLimit:
        """A limit of so many seconds from `began` by `time.monotonic`, else from now on."""
        return TimeLimit(seconds=seconds, until=(time.monotonic() if began is None else began) + seconds)

    def earlier(self, seconds: float) -> TimeLimit:
        """The same limit with its end so many seconds before."""
        return replace(self, until=self.until - seconds)

    @property
    def is_set(self) -> bool:
        """False where a run may take as long as it takes."""
        return self.until < math.inf

    @property
    def left(self) -> float:
        """Seconds until the end; negative after it."""
        return self.until - time.monotonic()

    @property
    def is_up(self) -> bool:
        return self.left <= 0

    def is_up_on(self, device: torch.device) -> bool:
        """As `is_up`, once this device has done what it was given."""
        if self.left > NEAR:
            return False
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        return self.is_up


NEVER = TimeLimit()
