"""What a task hands out: inputs, and a target at every position that is scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

IGNORE = -100  # the target of a position that is not scored


@dataclass(frozen=True, kw_only=True)
class Batch:
    """n sequences of equal length. The target at position t is what the model's output at position t should say.

    inputs   int64 [n, T], or float32 [n, T, channels] where the task's signal is "vectors"
    targets  int64 [n, T] with IGNORE where unscored, or float32 [n, T, channels]
    aux      what scoring or slicing needs beyond targets, by name; every array has the leading axis n
    scorings what scoring needs of the targets, by task: the same sequences are scored many times
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    aux: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    scorings: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.inputs)

    def rows(self, index: slice | NDArray[Any]) -> Batch:
        """The sequences that `index` picks, in its order."""
        return Batch(
            inputs=self.inputs[index],
            targets=self.targets[index],
            aux={name: values[index] for name, values in self.aux.items()},
        )

    @staticmethod
    def join(batches: list[Batch]) -> Batch:
        """The sequences of several batches of one task, in order."""
        first = batches[0]
        return Batch(
            inputs=np.concatenate([b.inputs for b in batches]),
            targets=np.concatenate([b.targets for b in batches]),
            aux={name: np.concatenate([b.aux[name] for b in batches]) for name in first.aux},
        )
