"""The optimizer step of a small model on a CPU as a tape of operations, recorded once for every shape of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from recallmap.search.training import foreign
from recallmap.search.training.op_tape import NotRecordable, Replay, Tape

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec

FEWEST = 40  # steps of a member that is recorded: a tape costs about 15 steps to make, and saves half of each

# Bytes of a tape, and operations of a member's step (a spec's effort), at most. A larger step is arithmetic: on a tape of 57 MB
# it took 38 ms in place of 45 (measured by hand).
MOST_BYTES, MOST_EFFORT = 2**26, 1e8


class Step(Protocol):
    """An optimizer step that branches on no data: everything that outlasts it is written in place."""

    def update(self, *batch: Tensor | None) -> Tensor:
        """Take the step; losses [N]."""

    def memory(self) -> list[Tensor]:
        """All tensors that the step writes."""


def pays(specs: Sequence[TrialSpec], device: torch.device) -> bool:
    """True where a lane of these members is recorded: small models on a CPU. A kind from outside may branch on data."""
    longest = max(spec.steps for spec in specs)
    small = specs[0].effort < MOST_EFFORT * specs[0].steps and longest >= FEWEST
    return device.type == "cpu" and small and not foreign.has_outside(specs)


class RecordedStep:
    """The step from tapes. A tape serves where it gives the same bits as the step itself, which is tried once."""

    def __init__(self, lane: Step) -> None:
        self.lane = lane
        self.tapes: dict[tuple[tuple[int, ...] | None, ...], tuple[list[Tensor | None], Replay] | None] = {}

    def __call__(self, *batch: Tensor | None) -> Tensor:
        shapes = tuple(None if t is None else tuple(t.shape) for t in batch)
        if shapes not in self.tapes:
            self.tapes[shapes] = self._recorded(batch)
        found = self.tapes[shapes]
        if found is None:
            return self.lane.update(*batch)
        buffers, replay = found
        for buffer, value in zip(buffers, batch, strict=True):
            if buffer is not None and value is not None:
                buffer.copy_(value)
        return replay().clone()

    def forget(self) -> None:
        """Record anew from now on: the lane has other members."""
        self.tapes.clear()

    def _recorded(self, batch: Sequence[Tensor | None]) -> tuple[list[Tensor | None], Replay] | None:
        """Buffers for batches and the tape; None where the step cannot be recorded, is too large, or would differ. What the
        trials wrote is undone."""
        memory = self.lane.memory()
        before = [t.clone() for t in memory]
        buffers = [None if t is None else t.clone() for t in batch]

        def undo() -> list[Tensor]:
            after = [t.clone() for t in memory]
            for tensor, value in zip(memory, before, strict=True):
                tensor.copy_(value)
            return after

        wanted = [self.lane.update(*buffers).clone(), *undo()]
        try:
            with Tape() as tape:
                loss_N = self.lane.update(*buffers)
            replay = Replay(tape, tape.place_of(loss_N))
        except NotRecordable:
            return None
        finally:
            undo()
        if replay.bytes > MOST_BYTES:
            return None
        got = [replay().clone(), *undo()]
        alike = all(_bits(one).equal(_bits(other)) for one, other in zip(wanted, got, strict=True))
        return (buffers, replay) if alike else None


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)
