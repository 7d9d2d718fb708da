"""A clock of phases: where the wall time of a process goes.

A phase counts its own time, without that of the phases inside it. So the seconds of all phases add up to the wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ContextDecorator, contextmanager
from contextvars import ContextVar
from types import TracebackType

OTHER = "other"  # outside of all phases

PHASES = ("drawing", "building", "compiling", "capturing", "training", "evaluating", "proposing", "writing")


class PhaseClock:
    """Seconds by phase since it was made. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self.began = self.last = now()
        self.open = [OTHER]  # the phases that we are in, the innermost last
        self.spent = dict.fromkeys((*PHASES, OTHER), 0.0)

    def charge(self) -> None:
        """Charge the time since the last call to the innermost phase."""
        now = self.now()
        self.spent[self.open[-1]] += now - self.last
        self.last = now

    def seconds(self) -> dict[str, float]:
        """Seconds of every phase so far."""
        self.charge()
        return dict(self.spent)

    def stop(self) -> None:
        """Stand still from now on, so that whoever reads it again reads the same."""
        self.charge()
        at = self.last
        self.now = lambda: at


_CLOCK: ContextVar[PhaseClock | None] = ContextVar("phase clock", default=None)


@contextmanager
def timing(clock: PhaseClock | None = None) -> Iterator[PhaseClock]:
    """Let the phases of this context be timed, by a new clock unless one is given. Threads that start in it are not."""
    clock = clock or PhaseClock()
    token = _CLOCK.set(clock)
    try:
        yield clock
    finally:
        _CLOCK.reset(token)


class _Phase(ContextDecorator):
    """A context, or a decorator of functions. Nothing may be yielded from within it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        clock = _CLOCK.get()
        if clock is not None:
            clock.charge()
            clock.open.append(self.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock = _CLOCK.get()
        if clock is not None:
            clock.charge()
            clock.open.pop()


_PHASES = {name: _Phase(name) for name in PHASES}


def phase(name: str) -> _Phase:
    """The phase of this name, for `with phase("training"):` or `@phase("training")`. It costs a microsecond."""
    return _PHASES[name]
