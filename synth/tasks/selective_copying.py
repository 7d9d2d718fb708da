"""Selective copying (MAD): data tokens strewn among blanks, to be said in order when all have passed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import dealt, distinct
from recallmap.synth.mad import MadTask
from recallmap.synth.task import Split
from recallmap.synth.vocab import Roles


@dataclass(frozen=True, kw_only=True)
class SelectiveCopying(MadTask):
    """`copies` uniform data tokens and length - 2 copies - 1 blanks mixed, then the copy token, then `copies` blanks:
    at the j-th of these the j-th data token is due. All splits are alike.

    By `spacing` gaps every blank falls into one of the gaps between data tokens, each equally likely; by uniform the data
    tokens stand at any places before the copy token, all choices equally likely. Of the gaps "repaired" counts the gap behind
    the last data token among them; "mad-lab" does not, so that the last data token always stands next to the copy
    token.
    """

    kind: Literal["selective_copying"] = "selective_copying"
    vocab: int = 16
    length: int = 256
    copies: int = 16
    spacing: Literal["gaps", "uniform"] = field(default="gaps", metadata={"later": True})

    answer_role: ClassVar[str] = "data"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spacing not in ("gaps", "uniform"):
            raise ValueError(f"spacing must be 'gaps' or 'uniform', got '{self.spacing}'")
        if self.published and self.spacing != "gaps":
            raise ValueError(f"protocol 'mad-lab' has spacing 'gaps', got '{self.spacing}': use protocol 'repaired'")
        if self.copies < 1:
            raise ValueError(f"copies must be at least 1, got {self.copies}")
        if self.length <= 2 * self.copies + 1:
            raise ValueError(
                f"length {self.length} holds no blanks among {self.copies} copies: raise length to at least "
                f"{2 * self.copies + 2}, or lower copies"
            )
        if self.vocab < 4:
            raise ValueError(f"vocab must be at least 4 (two data tokens, blank, copy), got {self.vocab}")

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        blank, copy = self.vocab - 2, self.vocab - 1
        return Roles({"data": range(blank), "blank": range(blank, copy), "copy": range(copy, self.vocab)})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        data = rng.integers(self.vocab - 2, size=(count, self.copies))
        inputs = np.full((count, self.length), self.vocab - 2, dtype=np.int64)
        np.put_along_axis(inputs, self._places(rng, count), data, axis=1)
        inputs[:, -self.copies - 1] = self.vocab - 1
        targets = np.full((count, self.length), IGNORE, dtype=np.int64)
        targets[:, -self.copies :] = data
        return Batch(inputs=inputs, targets=targets)

    def _places(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """int64 [n, copies]: where the data tokens stand, in order."""
        blanks = self.length - 2 * self.copies - 1
        if self.spacing == "uniform":
            draw = dealt if 8 * self.copies > blanks + self.copies else distinct
            return np.sort(draw(rng, count, self.copies, blanks + self.copies), axis=1)
        gaps = self.copies if self.published else self.copies + 1
        before = rng.multinomial(blanks, np.full(gaps, 1 / gaps), size=count)[:, : self.copies].cumsum(axis=1)
        return before + np.arange(self.copies)

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The data token of the same rank."""
        sources = np.full(batch.targets.shape, -1, dtype=np.int64)
        is_data = batch.inputs < self.vocab - 2
        sources[:, -self.copies :] = np.argsort(~is_data, axis=1, kind="stable")[:, : self.copies]
        return sources

    def choices(self, batch: Batch) -> NDArray[np.int64]:
        """All data tokens."""
        return np.full(batch.targets.shape, self.vocab - 2)
