"""Weights drawn from torch's global generator, which a process has one of: by one thread at a time, from a seed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_DRAWING = threading.RLock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within it the global generator on the CPU begins at the seed, for this thread alone. Afterwards it is as it was."""
    with _DRAWING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
