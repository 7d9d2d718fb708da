"""The time that cohorts have a device for: wall time, shared equally by those that train at once in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class DeviceTime:
    """A clock that goes n times slower while n cohorts share the device. `wall` is a clock in seconds."""

    def __init__(self, wall: Callable[[], float] = time.perf_counter) -> None:
        self.wall = wall
        self.lock = threading.Lock()
        self.cohorts = 0
        self.passed, self.last = 0.0, wall()

    def now(self) -> float:
        """Seconds since it was made."""
        with self.lock:
            return self._advance()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """One more cohort on the device, while this context lasts."""
        self._join(1)
        try:
            yield
        finally:
            self._join(-1)

    def _join(self, cohorts: int) -> None:
        with self.lock:
            self._advance()
            self.cohorts += cohorts

    def _advance(self) -> float:
        wall = self.wall()
        self.passed, self.last = self.passed + (wall - self.last) / max(1, self.cohorts), wall
        return self.passed


_CLOCK = DeviceTime()

now = _CLOCK.now

SHARED: ContextVar[bool] = ContextVar("shared", default=False)  # whether cohorts beside this context's may train


@contextmanager
def sharing() -> Iterator[None]:
    """Train, in this context, a cohort beside others."""
    token = SHARED.set(True)
    try:
        with _CLOCK.shared():
            yield
    finally:
        SHARED.reset(token)
