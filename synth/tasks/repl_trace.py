"""Traces of a program that swaps variables (after Siems et al. 2026): assignments, swaps, and prints of values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import LONGEST, Split, Task
from recallmap.synth.vocab import Roles

_EXAM = 4096  # sequences that the line `last_shown` is computed on
_IS, _PRINT, _SWAP, _END, _FIRST = 0, 1, 2, 3, 4  # token ids; _FIRST is the first variable


@dataclass(frozen=True, kw_only=True)
class ReplTrace(Task):
    """Lines of four tokens: "variable = value ;" for every variable, the values all different, then `lines` times either
    "print variable value ;", with probability `prints`, or "swap variable variable ;", of two different ones.

    The value is due at the variable of a print. With `loss` "lm" training asks for every next token; validation and test ask
    for values alone. A sequence without a print is drawn anew.

    variables  number of variables, and of values
    lines      prints and swaps
    prints     the share of prints

    Values that were shown and not swapped since are recall: the reference `last_shown` is of one who follows no swap. Test
    longer traces.
    """

    kind: Literal["repl_trace"] = "repl_trace"
    protocol: Literal["repaired"] = "repaired"
    variables: int = 5
    lines: int = 32
    prints: float = 0.5
    loss: Literal["answers", "lm"] = "answers"

    exam: ClassVar[int] = _EXAM

    def __post_init__(self) -> None:
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        if self.loss not in ("answers", "lm"):
            raise ValueError(f"loss must be 'answers' or 'lm', got '{self.loss}'")
        if self.variables < 2:
            raise ValueError(f"variables must be at least 2, or there is nothing to swap; got {self.variables}")
        if self.lines < 1:
            raise ValueError(f"lines must be at least 1, got {self.lines}")
        if not 0 < self.prints < 1:
            raise ValueError(f"prints must be above 0 and below 1, got {self.prints}")
        if self.prints * self.lines < 0.1:
            raise ValueError(f"{self.lines} lines hardly ever print at {self.prints}: raise lines or prints")
        if self.shape[0] > LONGEST:
            raise ValueError(f"variables and lines take {self.shape[0]:,} positions, at most {LONGEST:,}: lower lines")

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return _FIRST + 2 * self.variables

    @property
    def shape(self) -> tuple[int, int]:
        return 4 * (self.variables + self.lines), self.vocab

    def roles(self) -> Roles:
        values = _FIRST + self.variables
        words = {"is": _IS, "print": _PRINT, "swap": _SWAP, "end": _END}
        return Roles(
            {name: range(token, token + 1) for name, token in words.items()}
            | {"variable": range(_FIRST, values), "value": range(values, self.vocab)}
        )

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        names, values = self.variables, _FIRST + self.variables
        shape = self.lines, count
        printed = rng.random(shape) < self.prints
        while (silent := np.flatnonzero(~printed.any(axis=0))).size:
            printed[:, silent] = rng.random((self.lines, silent.size)) < self.prints
        one = rng.integers(names, size=shape)
        other = (one + rng.integers(1, names, size=shape)) % names
        held = rng.permuted(
            np.tile(np.arange(names), (count, 1)), axis=1
        ).ravel()  # value of every variable of all rows
        inputs = np.empty((count, *self.shape[:1]), dtype=np.int64)
        inputs[:, 3::4] = _END
        inputs[:, 1 : 4 * names : 4], inputs[:, 0 : 4 * names : 4] = _IS, _FIRST + np.arange(names)
        inputs[:, 2 : 4 * names : 4] = values + held.reshape(count, names)

        first = np.arange(count) * names
        place = first + one, first + other
        said, swaps = np.empty(shape, dtype=np.int64), np.zeros(held.size, dtype=np.int64)
        since = np.empty(shape, dtype=np.int64)
        for line, (left, right, shows) in enumerate(zip(*place, printed, strict=True)):
            said[line] = value = held.take(left)
            since[line] = touched = swaps.take(left)
            right = np.where(shows, left, right)
            held[left], held[right] = held.take(right), value
            moved = ~shows
            swaps[left] = np.where(shows, 0, touched + moved)
            swaps[right] += moved
        rest = inputs[:, 4 * names :].reshape(count, self.lines, 4)
        rest[:, :, 0] = np.where(printed, _PRINT, _SWAP).T
        rest[:, :, 1] = _FIRST + one.T
        rest[:, :, 2] = np.where(printed, values + said, _FIRST + other).T
        targets = np.full(inputs.shape, IGNORE)
        if self.loss == "lm" and split == "train":
            targets[:, :-1] = inputs[:, 1:]
        else:
            targets[:, 4 * names + 1 :: 4] = np.where(printed, values + said, IGNORE).T
        return Batch(inputs=inputs, targets=targets, aux={"swaps": np.where(printed, since, -1).T.copy()})

    def drawn_bytes(self, count: int) -> float:
        return 2 * super().drawn_bytes(count)

    def chance(self) -> float:
        """A guess among all values."""
        return 1 / self.variables

    def ceiling(self) -> float:
        return 1.0

    def references(self) -> dict[str, float]:
        """`last_shown`: always the value that was last seen beside that variable, swaps ignored, on 4,096 sequences."""
        return {"last_shown": _last_shown(self)}

    def last_shown(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: at each print the value last seen beside its variable, elsewhere IGNORE."""
        found = np.full(batch.inputs.shape, IGNORE)
        seen = batch.inputs[:, 2 : 4 * self.variables : 4].copy()
        each = np.arange(len(batch))
        for at in range(4 * self.variables, self.shape[0], 4):
            shows, variable = batch.inputs[:, at] == _PRINT, batch.inputs[:, at + 1] - _FIRST
            old = seen[each, variable]
            found[:, at + 1] = np.where(shows, old, IGNORE)
            seen[each, variable] = np.where(shows, batch.inputs[:, at + 2], old)
        return found

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The value where it was last shown, beside whatever variable."""
        found = np.full(batch.inputs.shape, -1)
        shown = np.empty((len(batch), self.variables), dtype=np.int64)
        values = _FIRST + self.variables
        each = np.arange(len(batch))
        for at in range(0, self.shape[0], 4):
            prints, value = batch.inputs[:, at] == _PRINT, batch.inputs[:, at + 2] - values
            tells = prints | (at < 4 * self.variables)
            row = each[prints]
            found[row, at + 1] = shown[row, value[prints]]
            shown[each[tells], value[tells]] = at + 2
        return np.where(batch.targets != IGNORE, found, -1)

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How often the variable was swapped since a print or its assignment told it, rounded up to a power of two; 0 is
        recall."""
        swaps = np.full(batch.inputs.shape, -1)
        swaps[:, 4 * self.variables + 1 :: 4] = batch.aux["swaps"]
        return {"swaps_since": np.where(swaps > 0, score.up_to(swaps), swaps)}


@lru_cache(maxsize=64)
def _last_shown(task: ReplTrace) -> float:
    batch = task.sample(np.random.default_rng(0), _EXAM, "test")
    return task.score(batch, task.last_shown(batch))["accuracy"]
