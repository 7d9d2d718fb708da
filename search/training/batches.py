"""The sequences that a cohort trains and is evaluated on, of every member, on the device, by row.

N members, U distinct sets of sequences, S sequences of a set, B batch, T time, Q positions read out
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recallmap.search.sequences.drawn_ahead import DrawnAhead
from recallmap.search.sequences.request import Request
from recallmap.search.training.phase_clock import phase
from recallmap.search.trials.pools import HORIZON, Pool, moved
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
        self.order = _order(specs[0])
        self.steps = len(self.order)
        self.portions = _portions(specs, self.order)
        for portion in self.portions:
            portion.ask(0, self.batch)
        self.seeds = [s.seed for s in specs]

    def keep(self, positions: list[int]) -> None:
        """Go on with the members at these positions alone."""
        self.seeds = [self.seeds[i] for i in positions]
        for portion in self.portions:
            portion.keep(positions)

    @property
    def waited(self) -> float:
        """Seconds that the training loop has waited for pools, the first ones included."""
        return sum(portion.waited for portion in self.portions)

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
            yield portion.at(taken[which], self.batch, self.device)
            taken[which] += 1


class Portion:
    """One training task of every member, and the sequences of it that lie on the device. Those of the next horizon are asked
    for as soon as those before are there.

    steps   how many of the cohort's optimizer steps read it
    waited  seconds spent on having pools
    """

    def __init__(self, tasks: Sequence[Task], seeds: Sequence[int], examples: Sequence[int | None], steps: int) -> None:
        self.asked = list(zip(tasks, seeds, examples, strict=True))
        self.fixed = examples[0] is not None
        self.steps = steps
        self.ahead = DrawnAhead()
        self.pool: Pool | None = None
        self.pool_start = -1
        self.rows: Tensor | None = None  # [HORIZON, N or 1, B]
        self.rows_start = -1
        self.columns = 1  # the most Q so far: sums are in its order, to their last digit
        self.waited = 0.0

    def keep(self, positions: list[int]) -> None:
        self.asked = [self.asked[i] for i in positions]
        self.rows_start = -1
        if self.pool is not None:
            self.pool = self.pool.of(positions)

    @phase("drawing")
    def at(self, step: int, batch: int, device: torch.device) -> tuple[Pool, Tensor]:
        """The pool and the rows [N, B] of this portion's step number `step`."""
        first = step - step % HORIZON
        start = 0 if self.fixed else first
        if self.pool is None or self.pool_start != start:
            began = time.perf_counter()
            self.pool, self.pool_start = self._draw(start, batch, device), start
            self.waited += time.perf_counter() - began
            if not self.fixed:
                self.ask(start + HORIZON, batch)
        if self.rows is None or self.rows_start != first:
            self.rows, self.rows_start = moved(torch.from_numpy(self._rows(first, batch)), device), first
        return self.pool, self.rows[step - first].expand(len(self.asked), -1)

    def ask(self, start: int, batch: int) -> None:
        """Have the sequences drawn that are read from step `start` on."""
        if start < self.steps:
            self.ahead.ask(self._requests(start, batch))

    def _requests(self, start: int, batch: int) -> list[Request]:
        """The distinct sets of sequences from step `start` on."""
        return [
            Request(
                task=task,
                seed=seed,
                split="train",
                start=start * batch,
                count=size or batch * HORIZON,
                columns=self.columns,
                goes_on=not self.fixed,
            )
            for task, seed, size in dict.fromkeys(self.asked)
        ]

    def _draw(self, start: int, batch: int, device: torch.device) -> Pool:
        keys = list(dict.fromkeys(self.asked))
        sets = [answer.prepared for answer in self.ahead.take(self._requests(start, batch))]
        self.ahead.forget()  # of members that have left
        pool = Pool(sets, [keys.index(asked) for asked in self.asked], device, self.columns)
        self.columns = pool.columns
        return pool

    def _rows(self, first: int, batch: int) -> NDArray[np.int64]:
        """Rows of the steps from `first` on, until the horizon: [., N or 1, B]."""
        if not self.fixed:
            return np.arange(HORIZON * batch, dtype=np.int64).reshape(HORIZON, 1, batch)
        return np.array(
            [
                [_shuffled(step, batch, seed, size) for _, seed, size in self.asked]
                for step in range(first, min(first + HORIZON, self.steps))
            ]
        )


class EvaluationSet:
    """The sequences of a split for every member, and the scoring of its answers."""

    @phase("drawing")
    def __init__(
        self,
        asked: Sequence[tuple[Task, int, int]],
        split: Split,
        device: torch.device,
        ahead: DrawnAhead | None = None,
    ) -> None:
        """`ahead` may have been asked for them already (`evaluated`)."""
        keys = list(dict.fromkeys(asked))
        self.tasks = [task for task, _, _ in asked]
        answers = (ahead or DrawnAhead()).take(evaluated(asked, split))
        self.batches = [answer.batch for answer in answers if answer.batch is not None]
        self.owner = [keys.index(one) for one in asked]
        self.pool = Pool([answer.prepared for answer in answers], self.owner, device)

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


def evaluated(asked: Sequence[tuple[Task, int, int]], split: Split) -> list[Request]:
    """The distinct sets of (task, seed, count)."""
    return [
        Request(task=task, seed=seed, split=split, start=0, count=count, scored=True)
        for task, seed, count in dict.fromkeys(asked)
    ]


def _portions(specs: Sequence[TrialSpec], order: Sequence[int]) -> list[Portion]:
    seeds = [s.seed for s in specs]
    if not specs[0].mix:
        return [Portion([s.task for s in specs], seeds, [s.data.train for s in specs], len(order))]
    fixed = specs[0].training.epochs is not None
    return [
        Portion(
            [s.mix[i].task for s in specs],
            seeds,
            [s.mix[i].examples if fixed else None for s in specs],
            order.count(i),
        )
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
