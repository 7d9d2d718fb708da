"""A trial of an MLP that learns one mapping of vectors online: OnlineTrial -> Record."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from recallmap.arch.cost import BYTES_PER_FLOAT, Cost
from recallmap.search.trials import memory_needs
from recallmap.search.trials.memory_needs import MODEL
from recallmap.search.trials.online_learner import Learner
from recallmap.search.trials.settings import VERSION
from recallmap.synth.task import Task
from recallmap.synth.tasks.learnability import Learnability


@dataclass(frozen=True, kw_only=True)
class OnlineTrial:
    """An online learner: it sees every question of one sequence once, answers, and takes a gradient step on its error.

    Each error comes before the step on its question, so that one pass trains, validates and tests.
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
        memory_needs.check(self.needs)

    @property
    def name(self) -> str:
        """The learner's name in tables."""
        return self.arch.name

    @property
    def shape(self) -> Hashable:
        """A value that is equal for trials that can learn as one stack."""
        return (self.arch, self.task.width, self.task.length)

    @property
    def family(self) -> Hashable:
        """As for TrialSpec: each trial is on its own."""
        return self

    @property
    def steps(self) -> int:
        """Gradient steps: one for every position."""
        return self.task.length

    @property
    def tokens(self) -> int:
        """Positions of all steps together."""
        return self.task.length

    @property
    def stretches(self) -> tuple[tuple[Hashable, float], ...]:
        """As for TrialSpec: one, with a step at every position."""
        return ((self, 3 * self.price().flops_per_token * self.tokens),)

    @property
    def effort(self) -> float:
        """Roughly the operations of the trial."""
        return float(self.steps * self.arch.parameters(self.task.width))

    @property
    def needs(self) -> dict[str, float]:
        """Bytes of memory that it surely needs, by the path of the option that needs them."""
        return {MODEL: self.bytes, "task": self.task.drawn_bytes(1)}

    @property
    def bytes(self) -> float:
        """Approximate bytes of GPU memory: weights, gradient and moments."""
        return float(BYTES_PER_FLOAT * self.arch.parameters(self.task.width) * (2 + self.arch.moments))

    def price(self, length: int | None = None) -> Cost:
        """The cost of the learner. Its state is what it carries from position to position: weights and moments."""
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
