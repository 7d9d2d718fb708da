"""The sequences that a cohort trains and is evaluated on, of every member, on the device, by row.

N members, U distinct sets of sequences, S sequences of a set, B batch, T time, Q positions read out
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recallmap.search.training.phase_clock import phase
from recallmap.search.trials.pools import HORIZON, Pool
from recallmap.synth.streams import Stream
from recallmap.synth.task import Split
from recallmap.synth.tasks import Task

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec


class Feed:
    """An iterator of (pool, rows [N, B]): the batch of each member at each optimizer step.

    A member's batches depend on its own spec and seed alone, never on the rest of the cohort.
    """

    def __init__(self, specs: Sequence[TrialSpec], device: torch.device) -> None:
        self.device = device
        self.batch = specs[0].training.batch
        self.portions = _portions(specs)
        self.fixed = specs[0].training.epochs is not None or (specs[0].data.train is not None and not specs[0].mix)
        self.order = _order(specs[0])
        self.steps = len(self.order)
        self.seeds = [s.seed for s in specs]

    def keep(self, positions: list[int]) -> None:
        """Go on with the members at these positions alone."""
        self.seeds = [self.seeds[i] for i in positions]
        for portion in self.portions:
            portion.keep(positions)

    @property
    def columns(self) -> list[int]:
        """The columns of every portion's pools, which later pools keep."""
        return [portion.columns for portion in self.portions]

    @columns.setter
    def columns(self, found: Sequence[int]) -> None:
        for portion, columns in zip(self.portions, found, strict=True):
            portion.columns = columns

    def __iter__(self) -> Iterator[tuple[Pool, Tensor]]:
        return self.after(0)

    def after(self, steps: int) -> Iterator[tuple[Pool, Tensor]]:
        """The batches after so many steps."""
        taken = [self.order[:steps].count(portion) for portion in range(len(self.portions))]
        for which in self.order[steps:]:
            portion = self.portions[which]
            yield portion.at(taken[which], self.batch, self.device, fixed=self.fixed)
            taken[which] += 1


class Portion:
    """One training task of every member, and the sequences of it that lie on the device."""

    def __init__(self, tasks: Sequence[Task], seeds: Sequence[int], examples: Sequence[int | None]) -> None:
        self.asked = list(zip(tasks, seeds, examples, strict=True))
        self.streams = {(task, seed): Stream(task, seed, "train") for task, seed, _ in self.asked}
        self.pool: Pool | None = None
        self.pool_start = -1
        self.columns = 1  # the most Q so far: sums are in its order, to their last digit

    def keep(self, positions: list[int]) -> None:
        self.asked = [self.asked[i] for i in positions]
        if self.pool is not None:
            self.pool = self.pool.of(positions)

    @phase("drawing")
    def at(self, step: int, batch: int, device: torch.device, *, fixed: bool) -> tuple[Pool, Tensor]:
        """The pool and the rows [N, B] of this portion's step number `step`."""
        start = 0 if fixed else step - step % HORIZON
        if self.pool is None or self.pool_start != start:
            self.pool, self.pool_start = self._draw(start * batch, batch * HORIZON, device), start
        if fixed:
            rows = np.stack([_shuffled(step, batch, seed, size) for _, seed, size in self.asked])
        else:
            rows = np.tile(np.arange(batch) + (step - start) * batch, (len(self.asked), 1))
        return self.pool, torch.tensor(rows, device=device)

    def _draw(self, start: int, count: int, device: torch.device) -> Pool:
        keys = list(dict.fromkeys(self.asked))
        batches = [self.streams[task, seed].take(start, size or count) for task, seed, size in keys]
        pool = Pool(batches, [keys.index(asked) for asked in self.asked], device, self.columns)
        self.columns = pool.columns
        return pool


class EvaluationSet:
    """The sequences of a split for every member, and the scoring of its answers."""

    @phase("drawing")
    def __init__(self, asked: Sequence[tuple[Task, int, int]], split: Split, device: torch.device) -> None:
        keys = list(dict.fromkeys(asked))
        self.tasks = [task for task, _, _ in asked]
        self.batches = [Stream(task, seed, split).take(0, count) for task, seed, count in keys]
        self.owner = [keys.index(one) for one in asked]
        self.pool = Pool(self.batches, self.owner, device)

    @property
    def wants_probabilities(self) -> bool:
        return self.tasks[0].wants_probabilities

    def of(self, members: Sequence[int]) -> EvaluationSet:
        """The same for these members alone."""
        part = object.__new__(EvaluationSet)
        part.tasks, part.batches = [self.tasks[m] for m in members], self.batches
        part.owner, part.pool = [self.owner[m] for m in members], self.pool.of(members)
        return part

    def score(self, member: int, answers: NDArray[Any], probabilities: NDArray[Any] | None) -> dict[str, float]:
        """The task's scores of one member's answers [S, Q] (probabilities [S, Q, V])."""
        which = self.owner[member]
        batch, at = self.batches[which], self.pool.at
        if at is not None:
            at_SQ = at[which].cpu().numpy()
            answers = _put(answers, at_SQ, batch.targets.shape[1])
            probabilities = None if probabilities is None else _put(probabilities, at_SQ, batch.targets.shape[1])
        return self.tasks[member].score(batch, answers, probabilities)


def _portions(specs: Sequence[TrialSpec]) -> list[Portion]:
    seeds = [s.seed for s in specs]
    if not specs[0].mix:
        return [Portion([s.task for s in specs], seeds, [s.data.train for s in specs])]
    fixed = specs[0].training.epochs is not None
    return [
        Portion([s.mix[i].task for s in specs], seeds, [s.mix[i].examples if fixed else None for s in specs])
        for i in range(len(specs[0].mix))
    ]


def _order(spec: TrialSpec) -> list[int]:
    """The portion that each optimizer step reads. Portions of a mix alternate in an order that is drawn anew every epoch.
    It is the same for every seed, since all members of a cohort read sequences of one length at a time."""
    training = spec.training
    if not spec.mix:
        size = spec.data.train
        each = math.ceil(size / training.batch) if size else 0
        return [0] * (each * (training.epochs or 0) if training.steps is None else training.steps)
    epoch = np.repeat(np.arange(len(spec.mix)), [math.ceil(p.examples / training.batch) for p in spec.mix])
    epochs = training.epochs or math.ceil((training.steps or 0) / len(epoch))
    orders = [np.random.default_rng([0, number]).permutation(epoch) for number in range(epochs)]
    return [int(which) for order in orders for which in order][: training.steps]


def _shuffled(step: int, batch: int, seed: int, size: int | None) -> NDArray[np.int64]:
    """Rows of a fixed set at a step: a new order every epoch, the last batch of an epoch padded with -1."""
    assert size is not None
    epoch, within = divmod(step, math.ceil(size / batch))
    rows = np.full(batch, -1)
    part = _permutation(seed, epoch, size)[within * batch : (within + 1) * batch]
    rows[: len(part)] = part
    return rows


@lru_cache(maxsize=1024)
def _permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, epoch, 1]).permutation(size)


def _put(values: NDArray[Any], positions: NDArray[np.int64], length: int) -> NDArray[Any]:
    """The inverse of _take; positions not read stay 0."""
    full = np.zeros((len(values), length, *values.shape[2:]), dtype=values.dtype)
    np.put_along_axis(full, positions.reshape(positions.shape + (1,) * (values.ndim - 2)), values, axis=1)
    return full
