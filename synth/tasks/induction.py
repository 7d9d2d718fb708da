"""Induction: a trigger amid random tokens, and at the end again; what followed it is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import dealt, distinct
from recallmap.synth.lookback import previous_same
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles


@dataclass(frozen=True, kw_only=True)
class Induction(Task):
    """Uniform tokens, among them a trigger at a uniform place, and the trigger again at the end, where the token that
    followed it is due. All splits are alike.

    vocab     number of token ids, one of which is the trigger
    triggers  how often the trigger comes before the end; the same token follows each
    labels    final: asked at the end. all: at every trigger but the first

    At one length a model may count instead of match: test other lengths.

    Protocol "safari" is the form of H3's public code: token 0 never comes, the trigger stands one place further from the end,
    and training asks for every next token, which costs at least the logarithm of the number of tokens. Of several triggers half
    of the rows have one; the others draw places that may be equal, and a trigger that would overlap the one before is left out.
    """

    kind: Literal["induction"] = "induction"
    protocol: Literal["repaired", "safari"] = "repaired"
    vocab: int = 16
    length: int = 256
    triggers: int = 1
    labels: Literal["final", "all"] = "final"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("repaired", "safari"):
            raise ValueError(f"protocol must be 'repaired' or 'safari', got '{self.protocol}'")
        if self.labels not in ("final", "all"):
            raise ValueError(f"labels must be 'final' or 'all', got '{self.labels}'")
        if self.vocab < (least := 3 + self._first):
            raise ValueError(f"vocab must be at least {least} (two tokens and the trigger), got {self.vocab}")
        if self.triggers < 1:
            raise ValueError(f"triggers must be at least 1, got {self.triggers}")
        if self.length < 2 * self.triggers + 1:
            raise ValueError(
                f"{self.triggers} triggers, their answers and the question take {2 * self.triggers + 1} positions, length is "
                f"{self.length}: raise it, or lower triggers"
            )

        if self.protocol == "safari" and (self.labels == "all" or self.length < 4):
            raise ValueError(
                "protocol 'safari' asks at the end of 4 positions or more, got "
                f"labels {self.labels}, length {self.length}: use protocol 'repaired'"
            )

    @property
    def _first(self) -> int:
        """The first token id that comes."""
        return int(self.protocol == "safari")

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        tokens = {"token": range(self._first, self.vocab - 1), "trigger": range(self.vocab - 1, self.vocab)}
        return Roles({"blank": range(1), **tokens} if self._first else tokens)

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        inputs = rng.integers(self._first, self.vocab - 1, size=(count, self.length))
        answer = rng.integers(self._first, self.vocab - 1, size=(count, 1))
        at = self._places(rng, count)
        np.put_along_axis(inputs, at, self.vocab - 1, axis=1)
        np.put_along_axis(inputs, at + 1, answer, axis=1)
        inputs[:, -1] = self.vocab - 1
        targets = np.full((count, self.length), IGNORE)
        if self.labels == "all":
            np.put_along_axis(targets, at[:, 1:], answer, axis=1)
        if self.protocol == "safari" and split == "train":
            targets[:, :-1] = inputs[:, 1:]
        targets[:, -1:] = answer
        return Batch(inputs=inputs, targets=targets)

    def _places(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """int64 [n, triggers]: where triggers stand, in ascending order; a place that comes again means no further one."""
        # Each trigger and its answer are one thing of so many that stand in a row.
        things = self.length - 1 - self.triggers - self._first
        if self.protocol == "repaired" or self.triggers == 1:
            draw = dealt if 8 * self.triggers > things else distinct
            return np.sort(draw(rng, count, self.triggers, things), axis=1) + np.arange(self.triggers)
        at = rng.integers(self.length - 3, size=(count, self.triggers))
        one = rng.random(count) < 0.5
        at[one] = at[one, :1]
        at.sort(axis=1)
        for trigger in range(1, self.triggers):
            before = at[:, trigger - 1]
            at[:, trigger] = np.where(at[:, trigger] > before + 1, at[:, trigger], before)
        return at

    def chance(self) -> float:
        """A guess among all tokens but the trigger."""
        return 1 / (self.vocab - 1 - self._first)

    def ceiling(self) -> float:
        return 1.0

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The token behind the last earlier trigger."""
        asked = (batch.targets != IGNORE) & (batch.inputs == self.vocab - 1)
        found = np.where(asked, previous_same(batch.inputs), -1)
        return np.where(found >= 0, found + 1, -1)
