"""Cohorts that train at once on one device of this machine: each in a process of its own.

While one is built, compiled or evaluated, the others keep the device at work. A cohort whose process dies trains again with no
other beside it, and in halves if it dies there, too: so only the trial at fault fails, whoever else died with it.
The driver, in this process, plans the cohorts and alone writes records.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

from recallmap.search.engines import cohort_process
from recallmap.search.engines.desk import Desk
from recallmap.search.engines.driver import Driver, EngineError
from recallmap.search.engines.gpu_sharing import side_by_side_on
from recallmap.search.engines.shipped import ShippedCohort
from recallmap.search.engines.stopping import GRACE
from recallmap.search.training.kernels_ahead import ask_for_kernels, await_kernels
from recallmap.search.training.phase_clock import timing
from recallmap.search.trials import memory_needs
from recallmap.search.workers.pool import Program
from recallmap.search.workers.process import receive, send

FULL = 0.8  # share of the device's memory that the estimates of all cohorts under way may reach


def train_all(driver: Driver, device: torch.device, folder: Path, at_once: int) -> None:
    """Train all that the driver gives, `at_once` cohorts at a time where the device has memory for them. Raises what the driver
    and its processes raise, once the other cohorts were saved; EngineError where the device answers no process."""
    with side_by_side_on(device) as environment:
        bench = _Bench(driver, device, folder, at_once, environment)
        try:
            bench.train()
        except BaseException:
            bench.stop()
            raise
        finally:
            bench.close()


class _Bench:
    """The processes, and what they tell."""

    def __init__(
        self, driver: Driver, device: torch.device, folder: Path, at_once: int, environment: Mapping[str, str]
    ) -> None:
        self.desk = Desk(driver, str(device), 1 / at_once, folder=folder)
        self.room = FULL * memory_needs.held_by(device)
        self.told: SimpleQueue[tuple[_Seat, tuple[Any, ...]]] = SimpleQueue()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        cores = max(1, cores // at_once)
        self.seats = [_Seat(str(n), str(device), cores, environment, self.told) for n in range(at_once)]

    @property
    def busy(self) -> list[_Seat]:
        """The seats whose cohorts train."""
        return [seat for seat in self.seats if seat.name in self.desk.out]

    def train(self) -> None:
        while True:
            self._hand_out()
            if not self.busy:
                return
            self._hear(*self.told.get())

    def stop(self) -> None:
        """Have all cohorts saved, and wait a moment for it, which a time limit may have begun."""
        until = time.monotonic() + GRACE + min(0.0, self.desk.driver.limit.left)
        for seat in self.busy:
            seat.say("stop")
        while self.busy and (left := until - time.monotonic()) > 0:
            try:
                self._hear(*self.told.get(timeout=left))
            except Empty:
                return

    def close(self) -> None:
        for seat in self.seats:
            seat.hang_up()
        for seat in self.seats:
            seat.close()

    def _hand_out(self) -> None:
        """A cohort for every seat that has none, as far as there are cohorts and memory."""
        driver, before = self.desk.driver, len(self.busy)
        for seat in self.seats:
            if seat in self.busy or not self._has_room():
                continue
            cohort = self.desk.ask(seat.name)
            self._raise_errors()
            if cohort is None:
                break
            for specs in (cohort.specs, *(work.specs for work in driver.waiting)):
                ask_for_kernels(specs)
            seat.begin(cohort)
        if len(self.busy) != before:
            self._share()

    def _has_room(self) -> bool:
        """False where the next cohort has to wait for others to end: for their memory, or because one of them trains alone."""
        if not self.busy or not self.desk.prepare():
            return True
        if self.desk.waiting[0].alone or any(cohort.alone for cohort in self.desk.out.values()):
            return False
        under_way = sum(cohort.bytes for cohort in self.desk.out.values())
        return under_way + self.desk.waiting[0].bytes <= self.room

    def _hear(self, seat: _Seat, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind == "progress":
            self.desk.progress(seat.name, *rest)
        elif kind == "waited":
            self.desk.driver.time.add(*rest)
        elif kind in ("unable", "error"):
            del self.desk.out[seat.name]
            raise EngineError(*rest) if kind == "unable" else rest[0]
        elif kind == "lost" and not self.desk.out[seat.name].alone:
            self.desk.set_apart(seat.name)
        elif kind == "lost":
            self.desk.lost(seat.name, *rest)
        else:
            self.desk.keep(seat.name, *rest)
        if kind in ("lost", "done"):
            self._share()
        if kind == "lost":  # a service that they share serves nobody until all are gone, who do not train, too
            for idle in self.seats:
                if idle not in self.busy:
                    idle.end()
        self._raise_errors()

    def _share(self) -> None:
        for seat in self.busy:
            seat.say("share", len(self.busy))

    def _raise_errors(self) -> None:
        if self.desk.error is not None:
            raise self.desk.error


class _Seat:
    """A place for one cohort at a time: a process, started when the first comes, and the thread that hears it."""

    def __init__(
        self, name: str, device: str, cores: int, environment: Mapping[str, str], told: SimpleQueue[Any]
    ) -> None:
        self.name, self.device, self.cores, self.environment, self.told = name, device, cores, environment, told
        self.lock = threading.Lock()
        self.program: Program | None = None
        self.ready = False  # whether the process has answered
        self.closed = False

    def begin(self, cohort: ShippedCohort) -> None:
        """Have a cohort trained."""
        context = copy_context()
        threading.Thread(
            target=context.run, args=(self._follow, cohort), name=f"cohort {cohort!r}", daemon=True
        ).start()

    def say(self, *message: Any) -> None:
        """Tell the process something, if there is one."""
        with self.lock, suppress(OSError):  # it is gone, which its thread hears, too
            if self.program is not None:
                send(self.program.wire, message)

    def hang_up(self) -> None:
        """Begin the end."""
        with self.lock:
            self.closed = True
            if self.program is not None:
                self.program.hang_up()

    def close(self) -> None:
        """End the process."""
        self.hang_up()
        if (program := self._without_program()) is not None:
            program.end()

    def _follow(self, cohort: ShippedCohort) -> None:
        """Hand a cohort to the process and pass on what it tells; in a thread."""
        try:
            with timing() as clock:
                await_kernels(cohort.specs)
            self._tell("waited", {"compiling": clock.seconds()["compiling"]})
            program = self._started()
            self.say("train", cohort)
            self._hear(program)
        except BaseException as error:  # of whatever kind, it is raised in the driver's thread
            self._tell("error", error)

    def _hear(self, program: Program) -> None:
        """Pass on what the process tells of a cohort, to its end."""
        while True:
            try:
                message = receive(program.wire)
            except (EOFError, OSError):
                how = self.end()
                self._tell(
                    *(("lost", f"its process {how}") if self.ready else ("unable", f"a process for cohorts {how}"))
                )
                return
            if message[0] == "ready":
                self.ready = True
                continue
            if message[0] == "lost":
                self.end()
            self._tell(*message)
            if message[0] in ("done", "lost", "error", "unable"):
                return

    def _tell(self, *message: Any) -> None:
        self.told.put((self, message))

    def _started(self) -> Program:
        with self.lock:
            if self.closed:
                raise EngineError("the run has ended")
            if self.program is None:
                self.program, self.ready = Program(cohort_process.__name__, self.environment), False
                with suppress(OSError):  # it could not be started, which is heard, too
                    send(self.program.wire, ("begin", self.device, self.cores))
            return self.program

    def _without_program(self) -> Program | None:
        with self.lock:
            program, self.program = self.program, None
        return program

    def end(self) -> str:
        """End a process that trains no more; how it ended. The next cohort gets a new one."""
        program = self._without_program()
        return "was ended" if program is None else program.end()
