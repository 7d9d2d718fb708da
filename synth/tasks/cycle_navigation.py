"""Cycle navigation: after steps forward, backward and on the spot, where on the cycle?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.task import MOST_IDS
from recallmap.synth.tracking import UnlockingTask
from recallmap.synth.vocab import Roles

STAY, FORWARD, BACKWARD = 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class CycleNavigation(UnlockingTask):
    """Uniform steps from place 0 of a cycle of `places`; the answer is the place reached (Delétang et al. 2023)."""

    kind: Literal["cycle_navigation"] = "cycle_navigation"
    places: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.places <= MOST_IDS:
            raise ValueError(f"places must be at least 2 and at most {MOST_IDS:,}, got {self.places:,}")

    def roles(self) -> Roles:
        return Roles({"pad": range(1), "step": range(STAY, BACKWARD + 1), "place": range(4, 4 + self.places)})

    @property
    def answers(self) -> range:
        return self.roles().of("place")

    def trace(
        self, rng: np.random.Generator, sizes: NDArray[np.int64], width: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        steps = rng.integers(STAY, BACKWARD + 1, (len(sizes), width), dtype=np.uint8).astype(np.int64)
        moves = (steps == FORWARD).astype(np.int64) - (steps == BACKWARD)
        return steps, moves.cumsum(axis=1) % self.places + self.answers.start
