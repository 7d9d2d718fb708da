"""One way to stop a study, for Ctrl-C, SIGTERM and a closed terminal."""

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
    """The exit code of a stopped process, 128 and the number of the signal."""

    code: int = 128 + signal.SIGINT


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt in this context, as Ctrl-C does; only the first of them does. A signal
    that is ignored, as under nohup, stays ignored."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield stop
        return
    before = {number: signal.getsignal(number) for number in ASKING}

    def hear(number: int, frame: FrameType | None) -> None:
        for each in before:  # a second signal, as from a terminal that closes, would break off the cleaning up
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
    """Restore the handlers of these signals after this context, where there were any."""
    before = {number: signal.getsignal(number) for number in ASKING}
    yield
    if threading.current_thread() is threading.main_thread():
        for number, handler in before.items():
            if handler not in (signal.SIG_DFL, None):
                signal.signal(number, handler)
