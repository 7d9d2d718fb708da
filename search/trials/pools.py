"""Pools of sequences as tensors, with the member that reads each set and the positions that are scored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recallmap.search.sequences.prepared import Prepared
from recallmap.synth.batch import IGNORE
from recallmap.synth.tasks import Task

HORIZON = 64  # steps whose fresh sequences are drawn at once

FEW = 2**18  # tokens of the sequences that positions are counted in


class Pool:
    """Sequences of U sets, and the set that each of N members reads. Members that need the same set share it.

    inputs [U, S, T], at [U, S, Q] or None (every position), targets and weight [U, S, Q]; S is that of the largest set, and
    counts_N [N] says how many sequences each member has
    """

    def __init__(
        self, sets: Sequence[Prepared], owner_N: Sequence[int], device: torch.device, columns: int = 1
    ) -> None:
        """`columns` is the least Q, by which successive pools keep their shape."""
        self.owner = moved(torch.tensor(owner_N), device)
        self.counts_N = moved(torch.tensor([len(sets[owner].inputs) for owner in owner_N]), device)
        self.columns = max(columns, *(one.columns for one in sets))
        fitting = [one.with_columns(self.columns) for one in sets]
        self.inputs = _stack([one.inputs for one in fitting], device)
        positions = [one.at for one in fitting if one.at is not None]
        self.at = _stack(positions, device) if positions else None
        self.targets = _stack([one.targets for one in fitting], device)
        if any(one.weight is not None for one in fitting):
            self.weight = _stack([one.weights() for one in fitting], device)
        elif self.targets.dim() == 3:
            self.weight = (self.targets != IGNORE).float()
        else:
            self.weight = torch.ones(self.targets.shape[:3], device=device)

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
    some = Prepared.of(task.sample(np.random.default_rng(0), max(1, min(16, FEW // task.shape[0])), "train"))
    return some.width if some.at is None else some.columns


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on the device. A GPU fetches it when it comes to that, and the caller does not wait."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _stack(arrays: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    """[U, S, ...]; a set of fewer sequences ends in zeros, which no row reads. Whole numbers travel in the type that they come
    in, and are int64 on the device."""
    kind = torch.from_numpy(np.empty(0, dtype=np.result_type(*arrays))).dtype
    shape = (len(arrays), max(map(len, arrays)), *arrays[0].shape[1:])
    whole = torch.zeros(shape, dtype=kind, pin_memory=device.type == "cuda")
    for place, array in zip(whole.numpy(), arrays, strict=True):
        place[: len(array)] = array
    there = whole.to(device, non_blocking=True)
    return there if there.is_floating_point() else there.long()
