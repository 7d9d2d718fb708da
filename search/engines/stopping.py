"""One way to stop a study, for Ctrl-C, SIGTERM, a closed terminal and a time limit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from recallmap.search.training.time_limit import NEVER, TimeIsUp, TimeLimit

ASKING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

OUT_OF_TIME = 124  # exit code of a process whose time was up, as that of timeout(1)

GRACE = 3.5  # seconds after the end of a limit in which cohorts are saved; then whatever runs is broken off


@dataclass
class Stop:
    """The exit code of a stopped process, 128 and the number of the signal."""

    code: int = 128 + signal.SIGINT


@contextmanager
def stoppable(limit: TimeLimit = NEVER) -> Iterator[Stop]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in this context, as Ctrl-C does; only the first of them does. A signal
    that is ignored, as under nohup, stays ignored. TimeIsUp is raised GRACE after the limit, unless it `is_noticed`."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield stop
        return
    before = {number: signal.getsignal(number) for number in ASKING}

    def hear(number: int, frame: FrameType | None) -> None:
        is_noticed()
        for each in before:  # a second signal, as from a terminal that closes, would break off the cleaning up
            signal.signal(each, signal.SIG_IGN)
        stop.code = 128 + number
        raise KeyboardInterrupt

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, hear)
    timed = limit.is_set and hasattr(signal, "setitimer")
    if timed:
        alarm = signal.signal(signal.SIGALRM, _ring)
        signal.setitimer(signal.ITIMER_REAL, max(limit.left + GRACE, 1e-3))
    try:
        yield stop
    finally:
        if timed:
            is_noticed()
            signal.signal(signal.SIGALRM, alarm)
        for number, handler in before.items():
            signal.signal(number, handler)


def is_noticed() -> None:
    """Take note that a study stops: its cleaning up is not broken off by its time limit any more."""
    if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _ring(number: int, frame: FrameType | None) -> None:
    raise TimeIsUp


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the handlers of these signals after this context, where there were any."""
    before = {number: signal.getsignal(number) for number in ASKING}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            if handler not in (signal.SIG_DFL, None):
                signal.signal(number, handler)
