"""Cohorts that train at once on one device of this process: each in a thread, on a GPU with a stream of its own.

While one is built, compiled or evaluated, the others keep the device at work, and small ones fill it together. The driver
stays in the caller's thread: it alone writes records.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.plan import Work
from recallmap.search.engines.stopping import GRACE
from recallmap.search.training import device_time
from recallmap.search.training.checkpoints import CheckpointFolder, checkpointing
from recallmap.search.training.outcome import Progress
from recallmap.search.training.phase_clock import timing
from recallmap.search.training.run_cohort import RESUMED, train
from recallmap.search.training.time_limit import TimeIsUp, TimeLimit
from recallmap.search.trials import memory_needs

FULL = 0.8  # share of the device's memory that the estimates of all cohorts under way may reach

SWITCH = 1e-4  # seconds after which a thread in Python lets another go on: one that only feeds the GPU waits no longer


@dataclass(frozen=True, kw_only=True)
class _Stoppable(TimeLimit):
    """The limit of the run, which is over, too, once the run is stopped."""

    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def left(self) -> float:
        return -1.0 if self.stopped.is_set() else super().left


@dataclass
class _Training:
    """A work in training, in a thread of its own."""

    work: Work
    folder: CheckpointFolder
    thread: threading.Thread | None = None

    @property
    def bytes(self) -> float:
        return sum(spec.bytes for spec in self.work.specs)


@dataclass(frozen=True)
class _News:
    """What a thread tells: progress, or, at its end, records with its seconds by phase, or an error."""

    of: _Training
    progress: Progress | None = None
    records: list[Record] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    error: BaseException | None = None


def train_all(driver: Driver, device: torch.device, folder: Path, at_once: int) -> None:
    """Train all that the driver gives, `at_once` cohorts at a time where the device has memory for them. Raises what the driver
    raises, and DeviceLost, once the other cohorts were saved."""
    limit = _Stoppable(seconds=driver.limit.seconds, until=driver.limit.until)
    bench = _Bench(driver, device, folder, at_once, limit)
    with _switching_often():
        try:
            bench.train()
        except BaseException:
            bench.stop()
            raise


class _Bench:
    """The cohorts under way, and what they tell."""

    def __init__(self, driver: Driver, device: torch.device, folder: Path, at_once: int, limit: _Stoppable) -> None:
        self.driver, self.device, self.folder, self.limit = driver, device, folder, limit
        self.at_once = at_once
        self.streams = [torch.cuda.Stream(device) for _ in range(at_once)] if device.type == "cuda" else []
        self.room = FULL * memory_needs.held_by(device)
        self.out: list[_Training] = []
        self.told: SimpleQueue[_News] = SimpleQueue()
        self.next: _Training | None = None  # which waits for memory

    def train(self) -> None:
        while True:
            while len(self.out) < self.at_once and (training := self._taken()) is not None:
                self._begin(training)
            if not self.out:
                return
            self._hear(self.told.get())

    def stop(self) -> None:
        """Have all cohorts saved, and break off those that are not within a moment."""
        self.limit.stopped.set()
        for breaking in (False, True):
            for training in self.out:
                assert training.thread is not None
                if breaking and training.thread.is_alive():
                    _raise_in(training.thread, TimeIsUp)
                training.thread.join(GRACE / len(self.out))

    def _taken(self) -> _Training | None:
        """The cohort that begins now; None where there is none, or no memory for it yet."""
        if self.next is None:
            work = self.driver.next()
            if work is None:
                return None
            self.next = _Training(work, CheckpointFolder(self.folder))
        if self.driver.limit.is_up or (self.out and self.room < sum(each.bytes for each in [*self.out, self.next])):
            return None
        training, self.next = self.next, None
        return training

    def _begin(self, training: _Training) -> None:
        training.folder.shared = True
        training.folder.limited(self.limit)
        training.folder.owners = [content_key.key(spec) for spec in training.work.specs]
        stream = self.streams.pop() if self.streams else None
        context = copy_context()
        # A daemon: what cannot be broken off does not keep the process.
        training.thread = threading.Thread(
            target=lambda: context.run(self._train, training, stream),
            name=f"cohort {training.work.number}",
            daemon=True,
        )
        self.out.append(training)
        training.thread.start()

    def _hear(self, news: _News) -> None:
        if news.progress is not None:
            self.driver.progress(news.of.work, news.progress)
            return
        self.driver.time.add(news.seconds)
        self.out.remove(news.of)
        if isinstance(news.error, TimeIsUp):
            return  # it is saved
        if news.error is not None:
            raise news.error
        assert news.records is not None
        self.driver.keep(news.of.work, news.records)
        news.of.folder.clear()

    def _train(self, training: _Training, stream: Any) -> None:
        """Train a cohort, in its thread."""
        work = training.work

        def tell(progress: Progress) -> None:
            self.told.put(_News(training, progress=progress))
            if self.limit.is_up and not all(isinstance(spec, RESUMED) for spec in work.specs):
                raise TimeIsUp

        records, error = None, None
        with timing() as clock:
            try:
                with (
                    checkpointing(training.folder),
                    device_time.sharing(),
                    torch.cuda.stream(stream) if stream is not None else nullcontext(),
                ):
                    weights = self.driver.weights is not None
                    records = train(work.specs, self.driver.study.name, self.device, tell, weights=weights)
            except BaseException as why:  # of whatever kind, it is raised in the driver's thread
                error = why
        if stream is not None:
            self.streams.append(stream)
        self.told.put(_News(training, records=records, seconds=clock.seconds(), error=error))


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _raise_in(thread: threading.Thread, error: type[BaseException]) -> None:
    """Raise an error in a thread, as soon as it executes Python."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(error))
