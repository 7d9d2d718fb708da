"""Train, validation and test sequences from one seed, reproducible bit by bit however they are asked for."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import MISSING, fields
from typing import get_args, get_type_hints

import numpy as np

from recallmap.synth.batch import Batch
from recallmap.synth.task import Split, Task

_SPLITS: tuple[Split, ...] = get_args(Split)
_KEPT = 2  # blocks in memory: a batch may straddle two


class Stream:
    """The endless sequence of sequences that (task, seed, split) stands for.

    It is generated in blocks of fixed size, each with its own key, made of task, seed, split and number of the block.
    So sequence i is the same whatever is asked before it, in whatever portions, by however many workers; and the splits
    of one seed never share a key.
    """

    def __init__(self, task: Task, seed: int, split: Split) -> None:
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        if split not in _SPLITS:
            raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got '{split}'")
        self.task = task
        self.seed = seed
        self.split = split
        self.block = _block_size(task.shape[0])
        self._entropy = (seed, _SPLITS.index(split), _fingerprint(task))
        self._blocks: OrderedDict[int, Batch] = OrderedDict()

    def take(self, start: int, count: int) -> Batch:
        """Sequences start .. start + count - 1, in arrays that are the caller's own."""
        if start < 0 or count < 1:
            raise ValueError(f"start must be at least 0 and count at least 1, got {start} and {count}")
        parts = []
        for number in range(start // self.block, (start + count - 1) // self.block + 1):
            first = number * self.block
            rows = slice(max(start - first, 0), min(start + count - first, self.block))
            parts.append(self._generate(number).rows(rows))
        return Batch.join(parts)

    def _generate(self, number: int) -> Batch:
        if number not in self._blocks:
            key = np.random.SeedSequence((*self._entropy, number))
            rng = np.random.Generator(np.random.Philox(key))
            self._blocks[number] = self.task.sample(rng, self.block, self.split)
            if len(self._blocks) > _KEPT:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(number)
        return self._blocks[number]


def _block_size(length: int) -> int:
    """Sequences in a block: a power of two that keeps a block near a quarter of a million positions."""
    return min(1024, 1 << max(0, (2**18 // length).bit_length() - 1))


def _fingerprint(task: Task) -> int:
    """64 bits of the dials that are not at their defaults, so that a new dial leaves the bits of old settings alone."""
    dials, hints = {"kind": task.kind}, get_type_hints(type(task))
    for dial in fields(task):
        value = getattr(task, dial.name)
        default = dial.default if dial.default_factory is MISSING else dial.default_factory()
        if value != default:
            dials[dial.name] = repr(_as_typed(value, hints[dial.name]))
    return int.from_bytes(hashlib.sha256(repr(sorted(dials.items())).encode()).digest()[:8], "big")


def _as_typed(value: object, hint: object) -> object:
    """Numbers that are equal, as the one that the dial's type says: 50 and 50.0, 8 and numpy's 8."""
    value = value.item() if isinstance(value, np.generic) else value
    kind = next((kind for kind in (bool, float, int) if kind in (hint, *get_args(hint))), None)
    if kind is None or not isinstance(value, (bool, float, int)):
        return value
    return kind(value) if kind(value) == value else value
