"""Sequences that are drawn before they are needed, by worker processes that live as long as an engine's run.

What is drawn is a pure function of the request. So the number of workers changes no bit, and what a worker fails at (a task
that raises, a task that cannot travel, a worker that was killed) is drawn by who asked for it, where the same error is met.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

from recallmap.search.documents import outside
from recallmap.search.sequences import worker_process
from recallmap.search.sequences.request import Answer, Foreign, Request, Source
from recallmap.search.workers.pool import Workers
from recallmap.synth.task import Split, Task

# Workers of a process: one or two draw as fast as a GPU trains, the others shorten the first wait of a cohort.
MOST = 12


class DrawnAhead:
    """The sequences of one reader. Workers draw what is asked for ahead of its use; without workers it is drawn when it is
    taken."""

    def __init__(self) -> None:
        self.workers = _WORKERS.get()
        self.source = Source()
        self.seats: dict[tuple[Task, int, Split], int] = {}  # one worker a stream: it may hold the stream's last block
        self.pending: dict[Request, Future[Answer | None]] = {}

    def ask(self, requests: Sequence[Request]) -> None:
        """Have these drawn."""
        if self.workers is None:
            return
        for request in requests:
            if request.stream not in self.seats:
                self.seats[request.stream] = self.workers.seat()
            if request not in self.pending:
                self.pending[request] = self.workers.ask(self.seats[request.stream], _with_code(request))

    def take(self, requests: Sequence[Request]) -> list[Answer]:
        """The sequences of these requests, in order. Whatever a task raises is raised here."""
        self.ask(requests)
        return [self._taken(request) for request in requests]

    def forget(self) -> None:
        """Whatever was asked for and not taken is not wanted any more."""
        self.pending.clear()

    def _taken(self, request: Request) -> Answer:
        future = self.pending.pop(request, None)
        answer = None if future is None else future.result()
        return self.source.answer(request) if answer is None else answer


def _with_code(request: Request) -> Request | Foreign:
    """The request, with the code that defines its task where that is a user's."""
    sources = outside.defining(request.task)
    return Foreign(request, sources) if sources else request


def workers_for(device: str, share: float = 1.0) -> int:
    """The number of workers beside a device of this type, or a share of it. A CPU that trains has no core to spare."""
    if device != "cuda":
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(MOST, max(1, int((cores - 2) * share)))


@contextmanager
def drawing_ahead(workers: int, *, lasting: bool = False) -> Iterator[None]:
    """So many workers for the cohorts that are trained in this context. They are started when they are first needed, and
    ended with it; `lasting` ones are there for the next such context, and end with this process."""
    crew = None
    if workers:
        crew = _lasting(workers) if lasting else Workers(workers, worker_process.__name__)
    token = _WORKERS.set(crew)
    try:
        yield
    finally:
        _WORKERS.reset(token)
        if crew is not None and not lasting:
            crew.close()


@cache
def _lasting(workers: int) -> Workers:
    return Workers(workers, worker_process.__name__)


_WORKERS: ContextVar[Workers | None] = ContextVar("workers", default=None)
