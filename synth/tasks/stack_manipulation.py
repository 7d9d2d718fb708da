"""One stack after a number of actions (Delétang et al. 2023): what lies on it, from the top."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import LONGEST, Split, Task, check_sizes
from recallmap.synth.vocab import Roles

_END, _POP, _PUSH, _BLANK, _PAD = (
    2,
    3,
    4,
    6,
    7,
)  # token ids, beside bits 0 and 1; _PUSH is that of 0, behind it that of 1


@dataclass(frozen=True, kw_only=True)
class StackManipulation(Task):
    """Bits from the bottom of a stack to its top, then actions, each as likely to pop, to push 0 and to push 1. A pop of
    nothing does nothing. Then blanks: the stack is due from its top, and an end behind it. All splits are alike.

    The number of bits is uniform from 1 to one less than the size, which is that of bits and actions.

    length      the size
    min_length  fewest; sizes from there to `length` are equally likely, shorter sequences are padded. None: all have `length`
    """

    kind: Literal["stack_manipulation"] = "stack_manipulation"
    protocol: Literal["repaired"] = "repaired"
    length: int = 40
    min_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        check_sizes(self.length, self.min_length)
        if self.shape[0] > LONGEST:
            raise ValueError(f"length {self.length:,} takes {self.shape[0]:,} positions, at most {LONGEST:,}: lower it")

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return _PAD + 1

    @property
    def shape(self) -> tuple[int, int]:
        return 2 * self.length + 1, self.vocab

    @property
    def _sizes(self) -> range:
        return range(self.length if self.min_length is None else self.min_length, self.length + 1)

    def roles(self) -> Roles:
        return Roles(
            {
                "bit": range(_END),
                "end": range(_END, _POP),
                "pop": range(_POP, _PUSH),
                "push": range(_PUSH, _BLANK),
                "blank": range(_BLANK, _PAD),
                "pad": range(_PAD, self.vocab),
            }
        )

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        size = rng.integers(self._sizes.start, self._sizes.stop, size=count)
        bits = 1 + np.floor(rng.random(count) * (size - 1)).astype(np.int64)
        tokens = rng.integers(2, size=(self.length, count))
        action = rng.integers(_POP, _BLANK, size=(self.length, count))
        at = np.arange(self.length)[:, None]
        tokens = np.where(at < bits, tokens, np.where(at < size, action, _PAD))
        stack = np.zeros((self.length + 1) * count, dtype=np.int64)
        height, pops, each = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64), np.arange(count)
        for token in tokens:
            popping, adds = token == _POP, (token < _END) | ((token >= _PUSH) & (token < _BLANK))
            place = height * count + each
            stack[place] = np.where(adds, token & 1, stack.take(place))
            pops += popping
            height += adds
            height -= popping & (height > 0)
        number = np.arange(self.length + 1)
        from_top = height[:, None] - 1 - number
        answer = stack.take(np.maximum(from_top, 0) * count + each[:, None])
        answer = np.where(from_top >= 0, answer, np.where(from_top == -1, _END, IGNORE))
        inputs, targets = (np.full((count, self.shape[0]), rest) for rest in (_PAD, IGNORE))
        inputs[:, : self.length] = tokens.T
        asked = size[:, None] + number
        row = np.broadcast_to(each[:, None], asked.shape)
        shown = number <= size[:, None]
        inputs[row[shown], asked[shown]] = _BLANK
        targets[row[shown], asked[shown]] = answer[shown]
        return Batch(inputs=inputs, targets=targets, aux={"pops": pops})

    def drawn_bytes(self, count: int) -> float:
        return 2 * super().drawn_bytes(count)

    def chance(self) -> float:
        """A guess of every bit, by one who does not know where the stack ends: half of its expected height in all answers."""
        height = float(np.mean([_expected_height(size) for size in self._sizes]))
        return 0.5 * height / (height + 1)

    def ceiling(self) -> float:
        return 1.0

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Number of pops, rounded up to a power of two; 0 is turning a string round."""
        pops = batch.aux["pops"]
        return {"pops_up_to": np.where(pops > 0, score.up_to(pops), 0)}


def _expected_height(size: int) -> float:
    """The expected height of the stack after bits and actions of so many together."""
    shares = np.zeros(size + 2)  # of each height among all numbers of bits that are told by now
    for at in range(1, size + 1):
        moved = np.zeros_like(shares)
        moved[1:] = 2 / 3 * shares[:-1]
        moved[:-1] += shares[1:] / 3
        moved[0] += shares[0] / 3
        shares = moved
        if at < size:
            shares[at] += 1 / (size - 1)
    return float(shares @ np.arange(size + 2))
