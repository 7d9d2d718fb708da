"""The time that this process has a device for: wall time, shared equally by the cohorts that train on it at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class DeviceTime:
    """A clock that goes n times slower while n cohorts share the device. `wall` is a clock in seconds."""

    def __init__(self, wall: Callable[[], float] = time.perf_counter) -> None:
        self.wall = wall
        self.lock = threading.Lock()  # another thread hears of the others
        self.cohorts = 1
        self.passed, self.last = 0.0, wall()

    def now(self) -> float:
        """Seconds since it was made."""
        with self.lock:
            return self._advance()

    def share(self, cohorts: int) -> None:
        """From now on so many cohorts train at once, the one of this process counted."""
        with self.lock:
            self._advance()
            self.cohorts = max(1, cohorts)

    def _advance(self) -> float:
        wall = self.wall()
        self.passed, self.last = self.passed + (wall - self.last) / self.cohorts, wall
        return self.passed


_CLOCK = DeviceTime()

now, share = _CLOCK.now, _CLOCK.share
