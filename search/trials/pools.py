"""Pools of sequences as tensors, with the member that reads each set and the positions that are scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks import Task

HORIZON = 64  # steps whose fresh sequences are drawn at once

ROUND = 4  # positions read out are a multiple of this, so that the shape of batches seldom changes

WORTHWHILE = 0.75  # logits are taken at scored positions alone where these are fewer than this share of all

FEW = 2**18  # tokens of the sequences that positions are counted in


class Pool:
    """Sequences of U sets, and the set that each of N members reads. Members that need the same set share it.

    inputs [U, S, T], at [U, S, Q] or None (every position), targets and weight [U, S, Q], of the largest set; counts_N [N]
    """

    def __init__(
        self, batches: Sequence[Batch], owner_N: Sequence[int], device: torch.device, columns: int = 1
    ) -> None:
        """`columns` is the least Q, by which successive pools keep their shape."""
        self.owner = torch.tensor(owner_N, device=device)
        self.counts_N = torch.tensor(
            [len(batches[owner]) for owner in owner_N], device=device
        )  # sequences of each member
        masks = [_scored(batch) for batch in batches]
        most = max(int(mask.sum(1).max(initial=0)) for mask in masks)
        self.columns = max(columns, -(-most // ROUND) * ROUND)
        everywhere = self.columns > WORTHWHILE * masks[0].shape[1]
        positions = None if everywhere else [_positions(mask, self.columns) for mask in masks]
        targets = [b.targets for b in batches]
        weights = [
            np.asarray(b.aux.get("weight", m), dtype=np.float32) * m for b, m in zip(batches, masks, strict=True)
        ]
        if positions is not None:
            targets = [_take(t, p) for t, p in zip(targets, positions, strict=True)]
            # where a sequence scores fewer positions than the longest, the rest repeat unscored ones
            weights = [_take(w, p) for w, p in zip(weights, positions, strict=True)]
        self.inputs = _stack([b.inputs for b in batches], device)
        self.at = None if positions is None else _stack(positions, device)
        self.targets, self.weight = _stack(targets, device), _stack(weights, device)

    def batch(self, rows_NB: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """inputs [N, B, T], at [N, B, Q] or None, targets and weight [N, B, Q]; a row of -1 is read but not scored."""
        owner_N1, real_NB = self.owner[:, None], rows_NB >= 0
        rows_NB = rows_NB.clamp(min=0)
        at = None if self.at is None else self.at[owner_N1, rows_NB]
        weight = self.weight[owner_N1, rows_NB] * real_NB[..., None]
        return self.inputs[owner_N1, rows_NB], at, self.targets[owner_N1, rows_NB], weight

    def of(self, positions: Sequence[int]) -> Pool:
        """The same sequences for these members alone."""
        part = object.__new__(Pool)
        part.inputs, part.at, part.targets, part.weight = self.inputs, self.at, self.targets, self.weight
        part.columns = self.columns
        index = torch.tensor(positions, device=self.owner.device)
        part.owner, part.counts_N = self.owner[index], self.counts_N[index]
        return part


@cache
def positions(task: Task) -> int:
    """The approximate number of positions of a sequence that are read out."""
    few = task.sample(np.random.default_rng(0), max(1, min(16, FEW // task.shape[0])), "train")
    return int(Pool([few], [0], torch.device("cpu")).targets.shape[2])


def _scored(batch: Batch) -> NDArray[np.bool_]:
    if batch.targets.ndim == 3:
        return np.ones(batch.targets.shape[:2], dtype=bool)
    return batch.targets != IGNORE


def _positions(mask: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """The scored positions of each sequence first, in order, then unscored ones up to `most` columns."""
    return np.argsort(~mask, axis=1, kind="stable")[:, :most]


def _take(values: NDArray[Any], positions: NDArray[np.int64]) -> NDArray[Any]:
    index = positions.reshape(positions.shape + (1,) * (values.ndim - 2))
    return np.take_along_axis(values, index, axis=1)


def _stack(arrays: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    """[U, S, ...]; a set of fewer sequences ends in zeros, which no row reads."""
    most = max(len(array) for array in arrays)
    full = [np.pad(a, [(0, most - len(a))] + [(0, 0)] * (a.ndim - 1)) if len(a) < most else a for a in arrays]
    return torch.as_tensor(np.stack(full), device=device)
