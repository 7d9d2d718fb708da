"""Settings of a trial's training: schedule, optimizer, data, training mix."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from recallmap.synth.tasks import Task

VERSION = (
    1  # of the training protocol; raise it when the same spec would now give other numbers (and say so in CHANGELOG)
)

MOST_STEPS = 10**8  # a fast GPU takes more than a day for so many of the smallest

MOST_EVALUATIONS = 10**5


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning rate schedule: a linear warm-up from `start` to the peak, then `kind`.

    warmup  steps if an integer, else a fraction of all steps
    start   learning rate at step 0 of the warm-up
    floor   learning rate at the last step (cosine, linear)
    """

    kind: Literal["constant", "cosine", "linear"] = "cosine"
    warmup: int | float = 0.05
    start: float = 0.0
    floor: float = 0.0

    def __post_init__(self) -> None:
        if self.warmup < 0 or (isinstance(self.warmup, float) and self.warmup > 1):
            raise ValueError(f"warmup must be a number of steps or a fraction in [0, 1], got {self.warmup}")
        if self.start < 0 or self.floor < 0:
            raise ValueError(f"start and floor must not be negative, got {self.start} and {self.floor}")


@dataclass(frozen=True, kw_only=True)
class Training:
    """AdamW and its options. `steps` counts optimizer steps; with 0 the initial model is tested. `epochs` instead of `steps`
    needs a fixed training set."""

    steps: int | None = None
    epochs: int | None = None
    batch: int = 32
    lr: float = 1e-3
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    clip: float | None = 1.0  # the largest gradient norm of a trial; None: not clipped
    schedule: Schedule = field(default_factory=Schedule)
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the forward pass; parameters and optimizer stay float32
    evaluations: int = 10  # on validation, evenly spread; the last is after the last step
    stop_at: float | None = None  # end early once validation accuracy is above this
    implementation: Literal["auto", "recurrent", "chunked", "fused"] = "auto"

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"give either steps or epochs, got steps={self.steps} and epochs={self.epochs}")
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"steps must not be negative, got {self.steps}")
        for name in ("epochs", "batch", "evaluations"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name, most in (("steps", MOST_STEPS), ("evaluations", MOST_EVALUATIONS)):
            if (value := getattr(self, name)) is not None and value > most:
                raise ValueError(f"{name} must be at most {most:,}, got {value:,}")
        if self.lr <= 0:
            raise ValueError(f"lr must be positive, got {self.lr}")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")
        if not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"betas must lie in [0, 1), got {self.betas}")
        if self.eps <= 0:
            raise ValueError(f"eps must be positive, got {self.eps}")
        if self.clip is not None and self.clip <= 0:
            raise ValueError(f"clip must be positive or null, got {self.clip}")


@dataclass(frozen=True, kw_only=True)
class Data:
    """Numbers of sequences. Train, validation and test come from disjoint streams of the trial's seed."""

    train: int | None = None  # a fixed training set of this size, shuffled every epoch; None: fresh sequences for ever
    validation: int = 512
    test: int = 1024

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, kw_only=True)
class Portion:
    """One part of a training mix: a task, and its number of sequences in an epoch."""

    task: Task
    examples: int

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ValueError(f"examples must be at least 1, got {self.examples}")
