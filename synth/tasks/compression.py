"""Compression (MAD): random tokens, then one token at whose vector all of them must be readable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.mad import MadTask
from recallmap.synth.task import Split
from recallmap.synth.vocab import Roles


@dataclass(frozen=True, kw_only=True)
class Compression(MadTask):
    """length - 1 uniform tokens and the compression token; the targets are the inputs. All splits are alike.

    "mad-lab" scores the last position too, where the answer is always the compression token: one class of the macro
    accuracy for nothing. "repaired" does not score it.
    """

    kind: Literal["compression"] = "compression"
    vocab: int = 16
    length: int = 32

    readout: ClassVar[Literal["each", "last"]] = "last"
    answer_role: ClassVar[str] = "data"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 2:
            raise ValueError(f"length must be at least 2 (a token and the compression token), got {self.length}")
        if self.vocab < 3:
            raise ValueError(f"vocab must be at least 3 (two tokens and the compression token), got {self.vocab}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        return Roles({"data": range(self.vocab - 1), "compress": range(self.vocab - 1, self.vocab)})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        inputs = rng.integers(self.vocab - 1, size=(count, self.length))
        inputs[:, -1] = self.vocab - 1
        targets = inputs.copy()
        if not self.published:
            targets[:, -1] = IGNORE
        return Batch(inputs=inputs, targets=targets)

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The position itself."""
        return np.where(batch.targets == IGNORE, -1, np.arange(self.length))

    def choices(self, batch: Batch) -> NDArray[np.int64]:
        """All data tokens; at the last position the compression token alone."""
        return np.where(np.arange(self.length) < self.length - 1, self.vocab - 1, np.ones_like(batch.targets))
