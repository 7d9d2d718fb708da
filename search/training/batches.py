"""The sequences that a cohort trains and is evaluated on, of every member, on the device, by row.

N members, U distinct sets of sequences, S sequences of a set, B batch, T time, Q positions read out
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recallmap.search.sequences.drawn_ahead import DrawnAhead
from recallmap.search.sequences.prepared import Prepared
from recallmap.search.sequences.request import Request
from recallmap.search.training.phase_clock import phase
from recallmap.search.trials.pools import HORIZON, Pool, moved
from recallmap.synth.batch import Batch
from recallmap.synth.task import Split
from recallmap.synth.tasks import Task

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec


class Asked(NamedTuple):
    """Sequences that a member reads.

    size  of a fixed set, or of a split; None: fresh ones at every step
    """

    task: Task
    seed: int
    size: int | None


class Feed:
    """An iterator of (pool, rows [N, B]) for each lane of N members: the batch of each member at each optimizer step.

    A member's batches depend on its own spec and seed alone, never on the rest of the cohort. One that has taken all its
    steps stays in its lane and reads on, what is at hand.
    """

    def __init__(
        self, specs: Sequence[TrialSpec], device: torch.device, lanes: Sequence[Sequence[int]] | None = None
    ) -> None:
        self.device = device
        self.batch = specs[0].training.batch
        self.order = _order(max(specs, key=lambda spec: spec.steps))
        members = lanes or [range(len(specs))]
        self.portions = [
            Portion([[_reader(specs[m], part, self.order) for m in lane] for lane in members])
            for part in range(max(1, len(specs[0].mix)))
        ]
        for portion in self.portions:
            portion.ask(0, self.batch)

    def keep(self, positions: list[int]) -> None:
        """Go on with the members at these positions alone."""
        for portion in self.portions:
            portion.keep(positions)

    @property
    def waited(self) -> float:
        """Seconds that the training loop has waited for pools, the first ones included."""
        return sum(portion.waited for portion in self.portions)

    @property
    def columns(self) -> list[list[int]]:
        """The columns of the pools of every portion, by member; later pools keep them."""
        return [portion.columns_of_members for portion in self.portions]

    @columns.setter
    def columns(self, found: Sequence[Sequence[int]]) -> None:
        for portion, columns in zip(self.portions, found, strict=True):
            portion.columns_of_members = list(columns)

    def __iter__(self) -> Iterator[list[tuple[Pool, Tensor]]]:
        return self.after(0)

    def after(self, steps: int) -> Iterator[list[tuple[Pool, Tensor]]]:
        """The batches after so many steps."""
        taken = [self.order[:steps].count(portion) for portion in range(len(self.portions))]
        for which in self.order[steps:]:
            portion = self.portions[which]
            yield portion.at(taken[which], self.batch, self.device)
            taken[which] += 1


class Reader(NamedTuple):
    """A member that reads a portion, at so many steps."""

    asked: Asked
    steps: int


class Portion:
    """One training task of every member, and the sequences of it that lie on the device. Those of the next horizon are asked
    for as soon as those before are there.

    steps   how many of the cohort's optimizer steps read it
    waited  seconds spent on having pools
    """

    def __init__(self, lanes: Sequence[Sequence[Reader]]) -> None:
        self.lanes = [list(lane) for lane in lanes]
        self.fixed = lanes[0][0].asked.size is not None
        self.steps = max(reader.steps for lane in lanes for reader in lane)
        self.ahead = DrawnAhead()
        self.pools: list[Pool] = []  # a pool each lane
        self.pool_start = -1
        self.rows: list[Tensor] = []  # [HORIZON, N or 1, B] each lane
        self.rows_start = -1
        self.columns = [1] * len(lanes)  # the most Q so far in each lane: sums are in its order, to their last digit
        self.waited = 0.0

    def keep(self, positions: list[int]) -> None:
        staying, first = set(positions), 0
        kept = []
        for number, lane in enumerate(self.lanes):
            own = [position for position in range(len(lane)) if first + position in staying]
            first += len(lane)
            if own:
                kept.append((number, own))
        self.columns = [self.columns[number] for number, _ in kept]
        self.pools = [self.pools[number].of(own) for number, own in kept if self.pools]
        self.lanes = [[self.lanes[number][position] for position in own] for number, own in kept]
        self.rows_start = -1

    @property
    def columns_of_members(self) -> list[int]:
        return [columns for columns, lane in zip(self.columns, self.lanes, strict=True) for _ in lane]

    @columns_of_members.setter
    def columns_of_members(self, found: list[int]) -> None:
        ends = np.cumsum([len(lane) for lane in self.lanes])
        self.columns = [max(found[end - len(lane) : end]) for end, lane in zip(ends, self.lanes, strict=True)]

    @phase("drawing")
    def at(self, step: int, batch: int, device: torch.device) -> list[tuple[Pool, Tensor]]:
        """The pool and the rows [N, B] of every lane, of this portion's step number `step`."""
        first = step - step % HORIZON
        start = 0 if self.fixed else first
        if not self.pools or self.pool_start != start:
            began = time.perf_counter()
            self._draw(start, batch, device)
            self.waited += time.perf_counter() - began
            if not self.fixed:
                self.ask(start + HORIZON, batch)
        if self.rows_start != first:
            self.rows, self.rows_start = [moved(rows, device) for rows in self._rows(first, batch)], first
        return [
            (pool, rows[step - first].expand(len(lane), -1))
            for pool, rows, lane in zip(self.pools, self.rows, self.lanes, strict=True)
        ]

    def ask(self, start: int, batch: int) -> None:
        """Have the sequences drawn that are read from step `start` on."""
        self.ahead.ask(list(self._requests(start, batch).values()))

    def _requests(self, start: int, batch: int) -> dict[Asked, Request]:
        """The distinct sets of sequences that members read from step `start` on."""
        columns: dict[Asked, int] = {}  # what all lanes that read a set have at least
        for lane, own in zip(self.lanes, self.columns, strict=True):
            for asked, steps in lane:
                if self.fixed or steps > start:
                    columns[asked] = min(own, columns.get(asked, own))
        return {
            asked: Request(
                task=asked.task,
                seed=asked.seed,
                split="train",
                start=start * batch,
                count=asked.size or batch * HORIZON,
                columns=least,
                goes_on=not self.fixed,
            )
            for asked, least in columns.items()
        }

    def _draw(self, start: int, batch: int, device: torch.device) -> None:
        requests = self._requests(start, batch)
        answers = self.ahead.take(list(requests.values()))
        self.ahead.forget()  # of members that have left
        drawn = {asked: answer.prepared for asked, answer in zip(requests, answers, strict=True)}
        at_hand = next(iter(drawn))  # for those that have taken all their steps
        made: dict[Hashable, Pool] = {}  # lanes that read the same share it
        self.pools = []
        for number, lane in enumerate(self.lanes):
            owned = tuple(asked if asked in drawn else at_hand for asked, _ in lane)
            alike = owned, self.columns[number]
            if alike not in made:
                made[alike] = _pool(owned, drawn, device, self.columns[number])
            self.pools.append(made[alike])
            self.columns[number] = made[alike].columns
        self.pool_start = start

    def _rows(self, first: int, batch: int) -> list[Tensor]:
        """Rows of every lane at the steps from `first` on, until the horizon: [., N or 1, B]."""
        if not self.fixed:
            fresh = torch.arange(HORIZON * batch).view(HORIZON, 1, batch)
            return [fresh] * len(self.lanes)
        steps = range(first, min(first + HORIZON, self.steps))
        return [
            torch.from_numpy(np.array([[_shuffled(step, batch, a.seed, a.size) for a, _ in lane] for step in steps]))
            for lane in self.lanes
        ]


class EvaluationSet:
    """The sequences of a split for members of these groups, and the scoring of their answers."""

    @phase("drawing")
    def __init__(
        self,
        asked: Mapping[int, Asked],
        split: Split,
        device: torch.device,
        groups: Sequence[Sequence[int]],
        ahead: DrawnAhead | None = None,
    ) -> None:
        """`ahead` may have been asked for them already (`evaluated`)."""
        self.asked = dict(asked)
        self.tasks = {member: one.task for member, one in asked.items()}
        requests = evaluated(asked.values(), split)
        answers = dict(zip(requests, (ahead or DrawnAhead()).take(list(requests.values())), strict=True))
        self.batches = {one: answer.batch for one, answer in answers.items() if answer.batch is not None}
        sets = {one: answer.prepared for one, answer in answers.items()}
        made: dict[Hashable, Pool] = {}
        self.places: dict[int, tuple[Pool, int]] = {}  # of each member: its group's pool, and its position there
        for group in groups:
            members = [member for member in group if member in asked]
            owned = tuple(asked[member] for member in members)
            if members and owned not in made:
                made[owned] = _pool(owned, sets, device)
            self.places.update((member, (made[owned], position)) for position, member in enumerate(members))

    def pool(self, members: Sequence[int]) -> Pool:
        """The sequences of these members, which are of one group."""
        pool, _ = self.places[members[0]]
        return pool.of([self.places[member][1] for member in members])

    def inputs(self, member: int) -> Tensor:
        """[S, T] (or [S, T, channels]): what a member reads."""
        pool, position = self.places[member]
        return pool.inputs[pool.owner[position]][: len(self.batches[self.asked[member]])]

    def score(self, member: int, answers: NDArray[Any], probabilities: NDArray[Any] | None) -> dict[str, float]:
        """The task's scores of one member's answers [S, Q] (probabilities [S, Q, V])."""
        return self.tasks[member].score(*self._placed(member, answers, probabilities))

    def standard_errors(
        self, member: int, answers: NDArray[Any], probabilities: NDArray[Any] | None
    ) -> dict[str, float]:
        """The standard errors of these scores, by the score's name."""
        return self.tasks[member].standard_errors(*self._placed(member, answers, probabilities))

    def _placed(
        self, member: int, answers: NDArray[Any], probabilities: NDArray[Any] | None
    ) -> tuple[Batch, NDArray[Any], NDArray[Any] | None]:
        """The sequences of a member, and its answers and probabilities at their positions."""
        pool, position = self.places[member]
        batch = self.batches[self.asked[member]]
        count = len(batch)
        answers, probabilities = answers[:count], None if probabilities is None else probabilities[:count]
        if pool.at is not None:
            at_SQ = pool.at[pool.owner[position]][:count].cpu().numpy()
            answers = _put(answers, at_SQ, batch.targets.shape[1])
            probabilities = None if probabilities is None else _put(probabilities, at_SQ, batch.targets.shape[1])
        return batch, answers, probabilities


def evaluated(asked: Iterable[Asked], split: Split) -> dict[Asked, Request]:
    """The distinct ones of these sets."""
    return {
        one: Request(task=one.task, seed=one.seed, split=split, start=0, count=one.size or 0, scored=True)
        for one in asked
    }


def _pool(owned: Sequence[Asked], drawn: Mapping[Asked, Prepared], device: torch.device, columns: int = 1) -> Pool:
    """The pool of a lane whose members read these."""
    sets = list(dict.fromkeys(owned))
    return Pool([drawn[one] for one in sets], [sets.index(one) for one in owned], device, columns)


def _reader(spec: TrialSpec, part: int, order: Sequence[int]) -> Reader:
    """The member of this spec, as it reads this part of the mix, or all there is."""
    if not spec.mix:
        return Reader(Asked(spec.task, spec.seed, spec.data.train), spec.steps)
    portion = spec.mix[part]
    size = portion.examples if spec.fixed else None
    return Reader(Asked(portion.task, spec.seed, size), order[: spec.steps].count(part))


def _order(spec: TrialSpec) -> list[int]:
    """The portion that each optimizer step reads. Portions of a mix alternate in an order that is drawn anew every epoch.
    It is the same for every seed, since all members of a cohort read sequences of one length at a time. Of a shorter training
    it is the beginning."""
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
