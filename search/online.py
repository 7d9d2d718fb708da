"""An MLP that learns one mapping of vectors online, as a trial beside those of trained mixers: OnlineTrial -> Record."""

from __future__ import annotations

import time
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from arch.cost import BYTES_PER_FLOAT, Cost
from search import memory
from search.learner import Learner
from search.training import Outcome, Progress
from search.trial import VERSION
from synth.task import Task
from synth.tasks.learnability import Learnability, bins

WINDOWS = 64  # points of a curve: means over as many equal stretches of positions


@dataclass(frozen=True, kw_only=True)
class OnlineTrial:
    """A learner sees every question of one sequence once, answers, and takes a gradient step on its error.

    Every error is of a question not yet learnt from, so that one pass trains, validates and tests.
    """

    kind: Literal["online"] = "online"
    task: Learnability
    arch: Learner = field(default_factory=Learner)
    seed: int = 0
    version: int = VERSION

    tests: ClassVar[tuple[Task, ...]] = ()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
        if self.version != VERSION:
            raise ValueError(
                f"version {self.version} of the training protocol is not this one ({VERSION}): leave it out"
            )
        memory.check(self.needs)

    @property
    def name(self) -> str:
        """Of the learner in tables."""
        return self.arch.name

    @property
    def shape(self) -> Hashable:
        """Trials that agree in it learn as one stack."""
        return (self.arch, self.task.width, self.task.length)

    @property
    def family(self) -> Hashable:
        """See TrialSpec: each is on its own."""
        return self

    @property
    def steps(self) -> int:
        """One for every position."""
        return self.task.length

    @property
    def tokens(self) -> int:
        """Positions of all steps together."""
        return self.task.length

    @property
    def stretches(self) -> tuple[tuple[Hashable, float], ...]:
        """As of TrialSpec: one, with a step at every position."""
        return ((self, 3 * self.price().flops_per_token * self.tokens),)

    @property
    def effort(self) -> float:
        """Roughly the operations of the trial."""
        return float(self.steps * self.arch.parameters(self.task.width))

    @property
    def needs(self) -> dict[str, float]:
        """Bytes of memory that it surely takes, by the path of what asks for them."""
        return {memory.MODEL: self.bytes, "task": self.task.drawn_bytes(1)}

    @property
    def bytes(self) -> float:
        """Roughly what learning takes of a GPU's memory: weights, gradient and moments."""
        return float(BYTES_PER_FLOAT * self.arch.parameters(self.task.width) * (2 + self.arch.moments))

    def price(self, length: int | None = None) -> Cost:
        """The state is what a learner carries from one position to the next: its weights and their moments."""
        parameters = self.arch.parameters(self.task.width)
        floats = parameters * (1 + self.arch.moments)
        return Cost(
            parameters=parameters,
            state_floats=floats,
            state_bytes=BYTES_PER_FLOAT * floats,
            growing_floats=0,
            flops_per_token=2.0 * parameters,
            length=length or self.task.length,
        )

    @staticmethod
    def train(specs: Sequence[OnlineTrial], device: torch.device) -> Generator[Progress, None, list[Outcome]]:
        """All of one shape, together; an Outcome for every spec, in order."""
        began = time.perf_counter()
        members = [(spec.task, spec.seed) for spec in specs]
        steps, length = specs[0].arch.follow(members, device), specs[0].steps
        none = (float("nan"),) * len(specs)
        while True:
            try:
                done, loss = next(steps)
            except StopIteration as end:
                each = (time.perf_counter() - began) / len(specs)
                return [replace(_outcome(losses_T), seconds=each) for losses_T in end.value]
            yield Progress(step=done, steps=length, members=len(specs), loss=loss, accuracy=none)


def _outcome(losses_T: NDArray[np.float32]) -> Outcome:
    length = len(losses_T)
    bad = np.flatnonzero(~np.isfinite(losses_T))
    if len(bad):
        return Outcome(error=f"diverged: the loss was not finite at step {bad[0] + 1} of {length}", steps=length)
    explained = {f"explained/position={name}": float(1 - losses_T[part].mean()) for name, part in bins(length).items()}
    mean = float(losses_T.mean(dtype=np.float64))
    scores = {"explained": 1 - mean, "relative_error": mean, "loss": mean}
    return Outcome(
        scores=scores | explained, validation=scores, curve=_curve(losses_T), steps=length, selected_step=length
    )


def _curve(losses_T: NDArray[np.float32]) -> dict[str, list[float]]:
    """Mean losses by stretch of positions, each where it ends."""
    parts = np.array_split(losses_T, min(WINDOWS, len(losses_T)))
    loss = [float(part.mean()) for part in parts]
    return {
        "step": np.cumsum([len(part) for part in parts]).tolist(),
        "train_loss": loss,
        "validation_loss": loss,
        "validation_accuracy": [1 - one for one in loss],
    }
