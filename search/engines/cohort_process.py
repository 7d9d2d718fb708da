"""The inside of a process that trains one cohort after another for a driver on this machine.

Messages to it: ("train", a ShippedCohort), ("share", number of cohorts that train at once), ("stop",). It answers ("ready",)
or ("unable", why) at first, then for a cohort ("progress", Progress) and at its end ("done", records, seconds by phase),
("lost", why) where the device is gone for this process, or ("error", exception).
"""

from __future__ import annotations

import os
import pickle
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

import torch

from recallmap.search.engines.driver import EngineError
from recallmap.search.engines.shipped import ShippedCohort, train
from recallmap.search.training import device_time
from recallmap.search.training.devices import DeviceLost, begin_afresh
from recallmap.search.training.time_limit import TimeLimit
from recallmap.search.workers.process import receive, send

IDLE = 0.2  # seconds without a cohort after which memory is given back to those that train


@dataclass(frozen=True, kw_only=True)
class Stoppable(TimeLimit):
    """The limit of a run, which is over, too, once the run is stopped."""

    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def left(self) -> float:
        return -1.0 if self.stopped.is_set() else super().left


def main() -> None:
    """Train what arrives on standard input, a socket, until it is closed."""
    wire = socket.socket(fileno=0)
    todo: SimpleQueue[Any] = SimpleQueue()
    stopped = threading.Event()
    threading.Thread(target=_listen, args=(wire, todo, stopped), daemon=True).start()
    _, device, cores = todo.get()
    with suppress(OSError):  # nobody listens any more
        try:
            torch.set_num_threads(cores)
            torch.zeros(1, device=device).item()
        except Exception as error:
            send(wire, ("unable", f"{device} does not answer: {_first_line(error)}"))
            return
        send(wire, ("ready",))
        while True:
            _follow(wire, _next(todo, torch.device(device)), stopped)


def _next(todo: SimpleQueue[Any], device: torch.device) -> Any:
    try:
        return todo.get(timeout=IDLE)
    except Empty:
        begin_afresh(device)
        return todo.get()


def _follow(wire: socket.socket, message: Any, stopped: threading.Event) -> None:
    """Train a cohort, and tell of it. Raises OSError where nobody listens."""
    try:
        if isinstance(message, Exception):  # it did not arrive whole
            raise message
        cohort: ShippedCohort = message[1]
        limit = Stoppable(seconds=cohort.limit.seconds, until=cohort.limit.until, stopped=stopped)
        records, seconds = train(replace(cohort, limit=limit), lambda progress: send(wire, ("progress", progress)))
        found: tuple[Any, ...] = ("done", records, seconds)
    except DeviceLost as error:
        found = ("lost", str(error))
    except Exception as error:  # of whatever kind, it is raised in the driver
        found = ("error", _that_travels(error))
    send(wire, found)


def _listen(wire: socket.socket, todo: SimpleQueue[Any], stopped: threading.Event) -> None:
    """Hear what the driver says while a cohort trains; and its end, however that comes about."""
    try:
        while True:
            try:
                message = receive(wire)
            except (EOFError, OSError):
                return
            except Exception as error:  # code from outside that cannot be used here, say
                todo.put(error)
                continue
            if message[0] == "stop":
                stopped.set()
            elif message[0] == "share":
                device_time.share(message[1])
            else:
                todo.put(message)
    finally:
        os._exit(0)


def _that_travels(error: Exception) -> Exception:
    """The error, or one that says the same, if it does not survive a journey."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return EngineError(f"{type(error).__name__}: {error}")
    return error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
