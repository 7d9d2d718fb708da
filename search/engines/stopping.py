"""Whoever stops a study ends it in one way: with Ctrl-C, by asking its process to end, by closing its terminal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

ASKING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass
class Stop:
    """By what we were stopped. `code` is the exit code by which a shell knows of it."""

    code: int = 128 + signal.SIGINT


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Within it SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; the first of them alone. One that is ignored, as
    nohup has it, stays so."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield stop
        return
    before = {number: signal.getsignal(number) for number in ASKING}

    def hear(number: int, frame: FrameType | None) -> None:
        for each in before:  # who asks twice, as a terminal that closes may, would break off what tidies up
            signal.signal(each, signal.SIG_IGN)
        stop.code = 128 + number
        raise KeyboardInterrupt

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, hear)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """What is done within it to the handlers of these signals does not last, where there were any."""
    before = {number: signal.getsignal(number) for number in ASKING}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            if handler not in (signal.SIG_DFL, None):
                signal.signal(number, handler)
