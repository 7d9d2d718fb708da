"""Kernels that a study's cohorts will need, compiled before they are, by worker processes with no GPU of their own.

A kernel depends on a block, on the form of what it reads and on the kind of GPU, and on the number of sequences only up to
MOST. So each distinct block is run once on so many at most, forward and backward, by a process whose launches only compile.
Cohorts then find their kernels in Triton's cache on disk.

N members, P parameters of one member, B batch, T time
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.kernels.ahead import Target, cache_folder, compiling_for, fingerprint, target_here
from recallmap.arch.parts.norm import Norm
from recallmap.arch.stack import flatten
from recallmap.search.training.cohort import sequences_at_once
from recallmap.search.training.foreign import wraps
from recallmap.search.training.lane import answers, training_losses
from recallmap.search.training.padding import row_of
from recallmap.search.training.phase_clock import phase
from recallmap.search.training.stacked_model import Stacked
from recallmap.search.trials import Trial
from recallmap.search.trials.single import TrialSpec
from recallmap.search.workers.pool import Workers

MOST = 512  # sequences of all members: from there on no op chooses other kernels

TOKENS = 2**17  # of them, at most: a CPU runs what is not ours

VOCAB = 16

FOLDER = "recallmap"  # in Triton's cache

NICE = 5  # by so much workers stand behind those that train and draw


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the kernels of a block depend on: the block in its model, the members and sequences of each in a training step, and
    the GPU."""

    block: Any
    width: int
    norm: Norm
    length: int
    dtype: str
    implementation: str
    members: int
    batch: int
    target: Target


def wanted(specs: Sequence[Trial], target: Target) -> list[Wanted]:
    """What a cohort of these trials needs, which have one shape. Blocks from outside are not among it: they are not ours to run
    elsewhere."""
    found: dict[Wanted, None] = {}
    parts = [part for part in getattr(specs[0], "parts", (specs[0],)) if isinstance(part, TrialSpec)]
    for part in parts:
        forms: dict[str, Any] = {"width": part.arch.width, "norm": part.arch.norm, "target": target}
        forms |= {"dtype": part.training.dtype, "implementation": part.training.implementation}
        for length in sorted({task.shape[0] for task in [each.task for each in part.mix] or [part.task]}):
            members, batch = _few(len(specs), part.training.batch, length)
            for block in dict.fromkeys(flatten(part.arch.stack)):
                if not wraps(block):
                    found[Wanted(block=block, length=length, members=members, batch=batch, **forms)] = None
    return list(found)


def _few(members: int, batch: int, length: int) -> tuple[int, int]:
    """Members and sequences of each that have the kernels of so many."""
    most = min(MOST, max(2, TOKENS // length))
    if members * batch <= most:
        return members, batch
    fewer = min(members, 2)
    return fewer, most // fewer


def compile_block(one: Wanted) -> int:
    """Compile the kernels of a training step and of an evaluation; returns their number, those in the cache counted, too."""
    arch = BackboneSpec(name="one block", width=one.width, stack=(one.block,), norm=one.norm)
    models = [arch.build(vocab=VOCAB, seed=seed).use(one.implementation) for seed in range(one.members)]
    model = Stacked(models[0], [VOCAB] * one.members, torch.device("cpu"))
    flat_NP = model.layout.padded([row_of(model) for model in models]).requires_grad_()
    evaluated = sequences_at_once("cuda", members=one.members, length=one.length, batch=one.batch, logits=VOCAB)

    def drawn(sequences: int) -> tuple[Stacked, bool, Tensor, Tensor]:
        inputs_NBT = torch.zeros(one.members, sequences, one.length, dtype=torch.int64)
        return model, one.dtype == "bfloat16", flat_NP, inputs_NBT

    note = _note(one)
    with compiling_for(one.target) as kernels:
        read = drawn(one.batch)
        torch.autograd.grad(training_losses(*read, None, read[-1], torch.ones(read[-1].shape)).sum(), flat_NP)
        with torch.no_grad():
            answers(*drawn(_few(one.members, evaluated, one.length)[1]), None)
    note.parent.mkdir(parents=True, exist_ok=True)
    note.touch()
    return len(kernels)


def is_compiled(one: Wanted) -> bool:
    """True where `compile_block` has done this on this machine, with the same sources and version of Triton."""
    return _note(one).exists()


def _note(one: Wanted) -> Path:
    """A file in Triton's cache that says so; it goes with the cache."""
    return cache_folder() / FOLDER / hashlib.sha256(f"{fingerprint()}\n{one}".encode()).hexdigest()


def main() -> None:
    """Compile what is asked for, until nobody listens."""
    from recallmap.search.workers.process import serve

    os.nice(NICE)
    torch.set_num_threads(1)
    serve(compile_block)


class KernelsAhead:
    """The kernels that workers compile for the cohorts of a run, on one kind of GPU. Each block is asked for once."""

    def __init__(self, workers: Workers, target: Target) -> None:
        self.workers, self.target = workers, target
        self.asked: dict[Wanted, Future[int | None]] = {}

    def ask(self, specs: Sequence[Trial]) -> list[Future[int | None]]:
        """Have the kernels of a cohort compiled: their number for each of its blocks that were not; None where a worker
        failed."""
        found = []
        for one in wanted(specs, self.target):
            if one not in self.asked and not is_compiled(one):
                self.asked[one] = self.workers.ask(self.workers.seat(), one)
            found += [self.asked[one]] if one in self.asked else []
        return found

    @phase("compiling")
    def wait(self, specs: Sequence[Trial]) -> None:
        """Wait until the kernels of a cohort are compiled. What failed there is compiled, and told, where it is used."""
        for future in self.ask(specs):
            future.result()


_AHEAD: ContextVar[KernelsAhead | None] = ContextVar("kernels ahead", default=None)


@contextmanager
def compiling_ahead(device: torch.device, workers: int) -> Iterator[KernelsAhead | None]:
    """So many workers for the cohorts that are trained in this context; None on a CPU, and without Triton."""
    if device.type != "cuda" or not workers or not find_spec("triton"):
        yield None
        return
    crew = Workers(workers, __name__)
    ahead = KernelsAhead(crew, target_here())
    token = _AHEAD.set(ahead)
    try:
        yield ahead
    finally:
        _AHEAD.reset(token)
        crew.close()


def ask_for_kernels(specs: Sequence[Trial]) -> None:
    """Have the kernels of a cohort compiled, where they are compiled ahead."""
    if (ahead := _AHEAD.get()) is not None:
        ahead.ask(specs)


def await_kernels(specs: Sequence[Trial]) -> None:
    """Wait for the kernels of a cohort, where they are compiled ahead."""
    if (ahead := _AHEAD.get()) is not None:
        ahead.wait(specs)
