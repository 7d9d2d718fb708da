"""Parity: is the number of ones so far odd?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.tracking import UnlockingTask
from recallmap.synth.vocab import Roles


@dataclass(frozen=True, kw_only=True)
class Parity(UnlockingTask):
    """Uniform bits, the tokens 1 and 2 for zero and one; the answer is the parity of those read, by the same tokens.

    The defaults are MesaNet's protocol (appendix I): an answer at every position of 40. Grazzi et al. ask for one at
    the end (`labels: final`) of 2 to 39 bits (`min_length: 2`, `length: 39`), tested on up to 255.
    """

    kind: Literal["parity"] = "parity"

    def roles(self) -> Roles:
        return Roles({"pad": range(1), "bit": range(1, 3)})

    @property
    def answers(self) -> range:
        return self.roles().of("bit")

    def trace(
        self, rng: np.random.Generator, sizes: NDArray[np.int64], width: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        bits = rng.integers(0, 2, (len(sizes), width), dtype=np.uint8)
        return bits.astype(np.int64) + 1, np.bitwise_xor.accumulate(bits, axis=1).astype(np.int64) + 1
