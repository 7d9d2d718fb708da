"""One architecture, one task setting, one set of hyper-parameters, one seed, trained once: TrialSpec -> Record."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.cost import Cost, cost
from recallmap.arch.stack import flatten
from recallmap.search.trials import memory_needs
from recallmap.search.trials.geometry import Shape, answers
from recallmap.search.trials.memory_needs import MODEL
from recallmap.search.trials.pools import HORIZON, positions
from recallmap.search.trials.settings import MOST_STEPS, VERSION, Data, Portion, Training
from recallmap.synth.tasks import Task

BYTES_A_PARAMETER = 20  # weights, gradient, two moments, the best checkpoint

# In records made on H200s in bfloat16, the rest of the peak is 5 to 9 bytes for every number that a linear map puts out
# (up to 13 for RWKV-7 and Hawk, up to 30 for memories that learn at test time), and 6 for every logit. Those peaks are of
# processes, whose earlier cohorts may have taken more. For five cohorts whose own peaks are known (Atlas on MAD, OmegaNet,
# PolySketch and RLS on MQAR, Mesa on parity) the peak is 1.4 to 1.6 times `bytes`, for Mesa 2.4 times. A cohort is made for
# a quarter of the memory.
KEPT_OF_MAPS, KEPT_OF_LOGITS = 4, 3  # times the bytes of a number


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One trial: trained on `task`, or on `mix` where it is given; validated and tested on `task`; tested on `tests` as well.

    `version` is that of the training protocol. It is part of the trial, so that its key changes when numbers do.
    """

    kind: Literal["trial"] = "trial"
    task: Task
    arch: BackboneSpec
    training: Training
    data: Data = field(default_factory=Data)
    mix: tuple[Portion, ...] = ()
    tests: tuple[Task, ...] = ()
    seed: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
        if self.version != VERSION:
            raise ValueError(
                f"version {self.version} of the training protocol is not this one ({VERSION}): leave it out"
            )
        for name, tasks in (("mix", [portion.task for portion in self.mix]), ("tests", self.tests)):
            for task in tasks:
                if _interface(task) != _interface(self.task):
                    raise ValueError(
                        f"{name}: one model answers all tasks, got {task.kind} with {_in_words(task)}, expected those of task "
                        f"{self.task.kind}, {_in_words(self.task)}"
                    )
        if self.training.epochs is not None and self.data.train is None and not self.mix:
            raise ValueError("epochs needs a fixed training set: set data.train, or give training.steps instead")
        if self.task.signal == "vectors" and self.arch.tied:
            raise ValueError(
                f"arch.tied must be false for {self.task.kind}, which has vectors and no embedding, got true"
            )
        if self.epoch > MOST_STEPS:
            path = "mix" if self.mix else "data.train"
            raise ValueError(f"{path} makes {self.epoch:,} steps an epoch, expected at most {MOST_STEPS:,}: lower it")
        if self.steps > MOST_STEPS:
            raise ValueError(
                f"training.epochs make {self.steps:,} steps, expected at most {MOST_STEPS:,}: lower epochs"
            )
        memory_needs.check(self.needs)

    @property
    def name(self) -> str:
        """The architecture's name in tables."""
        return self.arch.name

    @property
    def shape(self) -> Shape:
        """A value that is equal for trials that can train as one cohort."""
        return Shape(
            architecture=self.arch,
            length=self.task.shape[0],
            answers=answers(self.task),
            batch=self.training.batch,
            dtype=self.training.dtype,
            implementation=self.training.implementation,
            sequences="fixed" if self.fixed else "fresh",
            mix=tuple((p.task.shape[0], count) for p, count in zip(self.mix, self._batches, strict=False)),
        )

    @property
    def alike(self) -> Hashable:
        """A value that is equal for trials that can train as one cohort without padding, and end together."""
        return self.shape, self.task.shape[1], self.steps

    @property
    def family(self) -> Hashable:
        """A value that is equal for trials that share their beginning in a cohort: here each is on its own."""
        return self

    @property
    def fixed(self) -> bool:
        """True where training reads the same sequences every epoch, False where each step reads fresh ones."""
        return self.training.epochs is not None or (self.data.train is not None and not self.mix)

    @property
    def epoch(self) -> int:
        """Optimizer steps that read every sequence of a fixed set, or of a mix, once; 0 where there is neither."""
        return sum(self._batches)

    @property
    def _batches(self) -> list[int]:
        """Batches of an epoch, by portion."""
        sizes = [portion.examples for portion in self.mix] or [self.data.train or 0]
        return [math.ceil(size / self.training.batch) for size in sizes]

    @property
    def steps(self) -> int:
        """Optimizer steps."""
        return (self.training.epochs or 0) * self.epoch if self.training.steps is None else self.training.steps

    @property
    def tokens(self) -> int:
        """Positions of all steps together."""
        return self.steps * self.training.batch * self.task.shape[0]

    @property
    def stretches(self) -> tuple[tuple[Hashable, float], ...]:
        """The operations of each stretch of training, with its identity: trials with an equal stretch train it once. A step
        costs three forward passes."""
        shares = [batches / self.epoch for batches in self._batches] if self.mix else [1.0]
        each = [self.price(task.shape[0]).flops_per_token * task.shape[0] for task in self._trained]
        a_sequence = sum(share * forward for share, forward in zip(shares, each, strict=True))
        return ((self, 3 * a_sequence * self.training.batch * self.steps),)

    @property
    def effort(self) -> float:
        """Approximate operations of training, good enough to share out time."""
        return self.tokens * sum(1 for _ in flatten(self.arch.stack)) * self.arch.width * (self.arch.width + 64)

    @property
    def bytes(self) -> float:
        """Approximate bytes of GPU memory that training needs: weights, gradient, moments, and the activations of a step."""
        return BYTES_A_PARAMETER * self.price().parameters + self.training.batch * self.kept(*self.read_out)

    @property
    def read_out(self) -> tuple[int, int]:
        """The approximate number of positions of a sequence that are read out, and the number of logits at each."""
        return max(positions(task) for task in self._trained), self.task.shape[1]

    def kept(self, places: int, vocab: int) -> float:
        """Approximate bytes that a step keeps of a sequence, with so many positions read out and so many logits at each."""
        return self._kept(self._length) + KEPT_OF_LOGITS * self._number * vocab * places

    @property
    def needs(self) -> dict[str, float]:
        """Bytes of memory that it surely needs, by the path of the option that needs them: sequences, model, activations."""
        data, batch = self.data, self.training.batch
        train = {"data.train": self.task.drawn_bytes(data.train or 0)}
        if self.mix and self.training.epochs is not None:
            train = {f"mix[{i}].examples": p.task.drawn_bytes(p.examples) for i, p in enumerate(self.mix)}
        elif self.mix or data.train is None:
            train = {f"mix[{i}].examples": 8.0 * p.examples / batch for i, p in enumerate(self.mix)}
            train["training.batch"] = max(task.drawn_bytes(batch * HORIZON) for task in self._trained)
        train["training.batch"] = train.get("training.batch", 0) + batch * self._kept(self._length)
        return {
            MODEL: float(BYTES_A_PARAMETER * self.price().parameters),
            "data.validation": self.task.drawn_bytes(data.validation),
            "data.test": max(task.drawn_bytes(data.test) for task in (self.task, *self.tests)),
            "task": self.task.drawn_bytes(self.task.exam),
            **train,
        }

    @property
    def _trained(self) -> list[Task]:
        return [portion.task for portion in self.mix] or [self.task]

    @property
    def _length(self) -> int:
        """The length of the longest training sequences."""
        return max(task.shape[0] for task in self._trained)

    @property
    def _number(self) -> int:
        """Bytes of a number in the forward pass."""
        return 2 if self.training.dtype == "bfloat16" else 4

    def _kept(self, length: int) -> float:
        """Approximate bytes of activations that a step keeps of a sequence, without its logits."""
        return length * (KEPT_OF_MAPS * self._number * _outputs(self.arch) + 4 * _own(self.arch, length))

    def price(self, length: int | None = None) -> Cost:
        """The cost of the model on sequences of this length; None: its task's."""
        own, vocab = self.task.shape
        return _price(self.arch, length or own, vocab)


def _interface(task: Task) -> tuple[object, ...]:
    """The interface of a task that a model must fit: one model can answer tasks with the same interface."""
    return task.signal, task.shape[1], task.readout


def _in_words(task: Task) -> str:
    return f"{task.shape[1]} {'channels' if task.signal == 'vectors' else 'tokens'} and readout {task.readout!r}"


@cache
def _outputs(arch: BackboneSpec) -> float:
    """Numbers per token that linear maps put out, without embedding and head."""
    return arch.parameters(0) / arch.width


@cache
def _own(arch: BackboneSpec, length: int) -> float:
    """Floats per token that blocks keep besides."""
    return sum(block.kept_floats(arch.width, length) for block in flatten(arch.stack))


@cache
def _price(arch: BackboneSpec, length: int, vocab: int) -> Cost:
    return cost(arch, vocab=vocab, length=length)
