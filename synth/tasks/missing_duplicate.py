"""The missing bit of a string told twice (Delétang et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import Split, Task, check_sizes
from recallmap.synth.vocab import Roles

_MISSING, _ODD, _PAD = 2, 3, 4  # token ids, beside bits 0 and 1


@dataclass(frozen=True, kw_only=True)
class MissingDuplicate(Task):
    """A string of uniform bits twice, of which one place, each as likely, is hidden. The bit is due at the last token. All
    splits are alike.

    length      most tokens of both strings; an odd number has a mark behind them
    min_length  fewest; sizes from there to `length` are equally likely, shorter sequences are padded. None: all have `length`
    """

    kind: Literal["missing_duplicate"] = "missing_duplicate"
    protocol: Literal["repaired"] = "repaired"
    length: int = 64
    min_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        check_sizes(self.length, self.min_length)

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return _PAD + 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        return Roles(
            {
                "bit": range(_MISSING),
                "missing": range(_MISSING, _ODD),
                "odd": range(_ODD, _PAD),
                "pad": range(_PAD, self.vocab),
            }
        )

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        fewest = self.length if self.min_length is None else self.min_length
        size = rng.integers(fewest, self.length + 1, size=(count, 1))
        half = size // 2
        bits = rng.integers(2, size=(count, self.length))
        hidden = np.floor(rng.random((count, 1)) * 2 * half).astype(np.int64)
        place = np.arange(self.length)
        inputs = np.take_along_axis(bits, place % half, axis=1)
        answer = np.take_along_axis(inputs, hidden, axis=1)
        inputs = np.where(place < 2 * half, inputs, np.where(place < size, _ODD, _PAD))
        np.put_along_axis(inputs, hidden, _MISSING, axis=1)
        targets = np.full(inputs.shape, IGNORE)
        np.put_along_axis(targets, size - 1, answer, axis=1)
        twin = np.where(hidden < half, hidden + half, hidden - half)
        return Batch(inputs=inputs, targets=targets, aux={"twin": twin[:, 0]})

    def chance(self) -> float:
        """A guess of a bit."""
        return 0.5

    def ceiling(self) -> float:
        return 1.0

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The same place of the other string, but where it is asked for at its own place."""
        twin = batch.aux["twin"][:, None]
        return np.where((batch.targets != IGNORE) & (np.arange(self.length) > twin), twin, -1)
