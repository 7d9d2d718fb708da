"""Worker processes, and what they are asked for."""

from __future__ import annotations

import io
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import IO, Any

from recallmap.search.workers.process import receive, send

PATIENCE = 5.0  # seconds in which a worker ends by itself

LAST_WORDS = 4000  # bytes of what a process said last that are read


class Workers:
    """At most so many worker processes, each with a seat. Each starts when its seat is first taken. They execute `main` of a
    module."""

    def __init__(self, most: int, module: str) -> None:
        self.module = module
        self.workers: list[Worker | None] = [None] * most
        self.turn = itertools.count()
        self.lock = threading.Lock()

    def seat(self) -> int:
        """The next seat."""
        return next(self.turn) % len(self.workers)

    def ask(self, seat: int, request: Any) -> Future[Any]:
        """The answer, once it is there; None where there will be none."""
        with self.lock:
            worker = self.workers[seat]
            if worker is None:
                worker = self.workers[seat] = Worker(self.module)
        return worker.ask(request)

    def close(self) -> None:
        started = [worker for worker in self.workers if worker is not None]
        for worker in started:
            worker.hang_up()
        for worker in started:
            worker.wait()


class Program:
    """A process that executes `main` of a module, with more in its environment if need be. Its standard input is the other end
    of `wire`."""

    def __init__(self, module: str, environment: Mapping[str, str] | None = None) -> None:
        self.wire, theirs = socket.socketpair()
        # Not by multiprocessing: that runs the user's script again in every worker, and not at all in some kinds of processes.
        # In a session of its own it does not hear Ctrl-C: it ends when this process closes the socket, or is gone.
        code = f"import sys; sys.path[:] = {list(map(str, sys.path))!r}; from {module} import main; main()"
        self.process: subprocess.Popen[bytes] | None = None
        self.errors: IO[bytes] = io.BytesIO()
        with suppress(OSError), theirs:  # OSError: no room for another process
            self.errors = tempfile.TemporaryFile()  # noqa: SIM115
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self.errors,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def hang_up(self) -> None:
        """Tell it that nobody listens any more."""
        with suppress(OSError):
            self.wire.shutdown(socket.SHUT_RDWR)

    def end(self, patience: float = PATIENCE) -> str:
        """End it, by force if it takes longer; how it ended, and its last words if it has any."""
        self.hang_up()
        self.wire.close()
        with self.errors:
            if self.process is None:
                return "could not be started"
            try:
                code = self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
                code = self.process.wait()
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
            return f"{how}: {last}" if (last := self._last_words()) else how

    def _last_words(self) -> str:
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - LAST_WORDS))
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""


class Worker:
    """One worker process, and the thread that hears its answers."""

    def __init__(self, module: str) -> None:
        self.program = Program(module)
        self.gone = False
        self.numbers = itertools.count()
        self.pending: dict[int, Future[Any]] = {}
        self.lock = threading.Lock()
        self.ear = threading.Thread(target=self._listen, name="worker", daemon=True)
        self.ear.start()

    def ask(self, request: Any) -> Future[Any]:
        future: Future[Any] = Future()
        number = next(self.numbers)
        with self.lock:
            if self.gone:
                future.set_result(None)
                return future
            self.pending[number] = future
            try:
                send(self.program.wire, (number, pickle.dumps(request)))
            except Exception:  # what cannot be pickled says so in many ways; OSError: the worker is gone
                self.pending.pop(number).set_result(None)
        return future

    def hang_up(self) -> None:
        self.program.hang_up()

    def wait(self) -> None:
        self.ear.join()
        self.program.end()

    def _listen(self) -> None:
        try:
            while True:
                number, answer = receive(self.program.wire)
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
