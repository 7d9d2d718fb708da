"""Sequences that are drawn before they are needed, by worker processes that live as long as an engine's run.

What is drawn is a pure function of the request. So the number of workers changes no bit, and what a worker fails at (a task
that raises, a task that cannot travel, a worker that was killed) is drawn by who asked for it, where the same error is met.
"""

from __future__ import annotations

import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache

from recallmap.search.sequences.request import Answer, Request, Source
from recallmap.search.sequences.worker_process import receive, send
from recallmap.synth.task import Split, Task

MOST = (
    12  # workers of a process: one or two draw as fast as a GPU trains, the others shorten the first wait of a cohort
)

PATIENCE = 5.0  # seconds in which a worker ends by itself


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
                self.pending[request] = self.workers.ask(self.seats[request.stream], request)

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
        crew = _lasting(workers) if lasting else _Workers(workers)
    token = _WORKERS.set(crew)
    try:
        yield
    finally:
        _WORKERS.reset(token)
        if crew is not None and not lasting:
            crew.close()


@cache
def _lasting(workers: int) -> _Workers:
    return _Workers(workers)


class _Workers:
    """At most so many worker processes, each with a seat. Each starts when its seat is first taken."""

    def __init__(self, most: int) -> None:
        self.workers: list[_Worker | None] = [None] * most
        self.turn = itertools.count()
        self.lock = threading.Lock()

    def seat(self) -> int:
        """The seat of a new stream."""
        return next(self.turn) % len(self.workers)

    def ask(self, seat: int, request: Request) -> Future[Answer | None]:
        """The answer, once it is there; None where there will be none."""
        with self.lock:
            worker = self.workers[seat]
            if worker is None:
                worker = self.workers[seat] = _Worker()
        return worker.ask(request)

    def close(self) -> None:
        started = [worker for worker in self.workers if worker is not None]
        for worker in started:
            worker.hang_up()
        for worker in started:
            worker.wait()


class _Worker:
    """One worker process, and the thread that hears its answers."""

    def __init__(self) -> None:
        self.wire, theirs = socket.socketpair()
        # Not by multiprocessing: that runs the user's script again in every worker, and not at all in some kinds of processes.
        # In a session of its own it does not hear Ctrl-C: it ends when this process closes the socket, or is gone.
        code = f"import sys; sys.path[:] = {list(map(str, sys.path))!r}; from {receive.__module__} import main; main()"
        self.process: subprocess.Popen[bytes] | None = None
        with suppress(OSError), theirs:  # OSError: no room for another process
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.gone = False
        self.numbers = itertools.count()
        self.pending: dict[int, Future[Answer | None]] = {}
        self.lock = threading.Lock()
        self.ear = threading.Thread(target=self._listen, name="sequences drawn ahead", daemon=True)
        self.ear.start()

    def ask(self, request: Request) -> Future[Answer | None]:
        future: Future[Answer | None] = Future()
        number = next(self.numbers)
        with self.lock:
            if self.gone:
                future.set_result(None)
                return future
            self.pending[number] = future
            try:
                send(self.wire, (number, pickle.dumps(request)))
            except Exception:  # a task that cannot be pickled says so in many ways; OSError: the worker is gone
                self.pending.pop(number).set_result(None)
        return future

    def hang_up(self) -> None:
        with suppress(OSError):
            self.wire.shutdown(socket.SHUT_RDWR)

    def wait(self) -> None:
        self.ear.join()
        self.wire.close()
        if self.process is None:
            return
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _listen(self) -> None:
        try:
            while True:
                number, answer = receive(self.wire)
                with self.lock:
                    future = self.pending.pop(number)
                future.set_result(answer)
        except Exception:  # it was closed, here or there
            pass
        finally:
            with self.lock:
                self.gone = True
                for future in self.pending.values():
                    future.set_result(None)
                self.pending.clear()


_WORKERS: ContextVar[_Workers | None] = ContextVar("workers", default=None)
