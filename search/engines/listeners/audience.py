"""All listeners of a run: they are told of its trials, and cannot stop it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from recallmap.results.analysis.labels import flatten
from recallmap.results.record import SHORT, Record
from recallmap.search.documents import content_key
from recallmap.search.documents.nodes import Fault, Place, SpecError, cut
from recallmap.search.documents.type_hints import either, guess
from recallmap.search.engines.listeners import LISTENERS
from recallmap.search.engines.listeners.listener import Followed, Listener
from recallmap.search.trials import Trial

CURVE = (
    "train_loss",
    "validation_loss",
    "validation_accuracy",
)  # of a record; `Progress.points` has them in this order

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")  # variables that the engine of Ray sets for itself

LONGEST = 80  # letters of a trial's name without its key


@dataclass
class _Seat:
    """A trial in training, and the steps of its curve that were told."""

    trial: Followed
    metric: str
    steps: set[int] = field(default_factory=set)


class Audience:
    """The listeners of a run. One that raises an error is told no more; `heard` says so."""

    def __init__(self, listeners: Mapping[str, Listener] | None = None) -> None:
        self.listeners = dict(listeners or {})
        self.seats: dict[str, _Seat] = {}  # by key
        self.notes: list[str] = []
        self.proxies = {name: os.environ.get(name) for name in PROXIES}

    def begin(self, trials: Sequence[Trial]) -> None:
        """Tell of trials whose training begins."""
        for trial in trials if self.listeners else ():
            followed = _followed(trial)
            self.seats[followed.key] = _Seat(followed, trial.task.metric)
            self._tell("begin", followed)

    def points(self, step: int, points: Mapping[str, Sequence[float | None]]) -> None:
        """Tell of new points of curves, by key: train loss, validation loss, validation score."""
        for key, point in points.items():
            if (seat := self.seats.get(key)) is not None and step not in seat.steps:
                seat.steps.add(step)
                names = ("train/loss", "validation/loss", f"validation/{seat.metric}")
                known = {n: v for n, v in zip(names, point, strict=True) if v is not None and math.isfinite(v)}
                self._tell("point", seat.trial, step, known)

    def end(self, record: Record) -> None:
        """Tell of a finished trial, first of those points of its curve that were not told. A second record of a trial is not
        told."""
        seat = self.seats.get(record.key)
        if seat is None:
            return
        for step, *point in zip(*(record.curve.get(name, ()) for name in ("step", *CURVE)), strict=True):
            self.points(int(step or 0), {record.key: point})
        del self.seats[record.key]
        self._tell("end", seat.trial, record)

    def close(self) -> None:
        """End the run for all."""
        self._tell("close")
        self.listeners = {}

    def heard(self) -> tuple[str, ...]:
        """Lines about listeners that failed since the last call."""
        notes, self.notes = self.notes, []
        return tuple(notes)

    def _tell(self, what: str, *news: Any) -> None:
        for name, listener in list(self.listeners.items()):
            try:
                with self._own_proxies():
                    getattr(listener, what)(*news)
            except Exception as error:  # whatever somebody else's library does
                del self.listeners[name]
                if what == "close":
                    self.notes.append(f"{name}: {_said(error)}; what it logged may not be whole")
                    continue
                self.notes.append(f"{name}: {_said(error)}; the run goes on without it")
                with suppress(Exception):
                    listener.close()

    @contextmanager
    def _own_proxies(self) -> Iterator[None]:
        """The environment's proxies as they were before the engine began."""
        now = {name: os.environ.get(name) for name in PROXIES}
        if now == self.proxies:
            yield
            return
        _set(self.proxies)
        try:
            yield
        finally:
            _set(now)


@contextmanager
def listening(
    log: Iterable[str | Listener], study: str, *, place: str = "--log", say: Callable[[str], None]
) -> Iterator[Audience]:
    """Open the listeners that words such as `tensorboard:DIR` name, and listeners of one's own, for a run, and close them
    after it. `say` is told what went wrong at the end. Raises SpecError where one cannot be opened."""
    named = _named(log, place)
    audience = Audience(named)
    faults = []
    opened: list[Listener] = []
    for name, listener in named.items():
        try:
            listener.open(study)
            opened.append(listener)
        except Exception as error:
            faults.append(Fault(Place(place), name, f"cannot be opened: {_said(error)}"))
    try:
        if faults:
            audience.listeners = {name: one for name, one in named.items() if one in opened}
            raise SpecError(faults)
        yield audience
    finally:
        audience.close()
        for note in audience.heard():
            say(note)


def _named(log: Iterable[str | Listener], place: str) -> dict[str, Listener]:
    """The listeners by what the user calls them. Raises SpecError with all faults."""
    found: dict[str, Listener] = {}
    faults = []
    for word in log:
        if isinstance(word, Listener):
            found[f"{type(word).__name__} {len(found) + 1}"] = word
            continue
        name, _, target = str(word).partition(":")
        ways = either([f"{one}:{what}" for one, (what, _) in LISTENERS.items()])
        if name not in LISTENERS or not target:
            meant = guess(name, list(LISTENERS)) if name not in LISTENERS else ""
            faults.append(Fault(Place(place), "", f"got {str(word)!r}, expected {ways}{meant}"))
            continue
        kind = LISTENERS[name][1]
        if find_spec(kind.needs) is None:
            remedy = f"add it with: pip install 'recallmap[{kind.extra}]'"
            faults.append(Fault(Place(place), "", f"{kind.needs} is not installed; {remedy}"))
            continue
        found[str(word)] = kind(target)
    if faults:
        raise SpecError(faults)
    return found


def _followed(trial: Trial) -> Followed:
    key = content_key.key(trial)
    words = f"{trial.name}-{trial.task.kind}"[:LONGEST]
    name = re.sub(r"[^\w.-]+", "_", f"{words}-seed{trial.seed}-{key[:SHORT]}")
    return Followed(key=key, name=name, parameters=dict(flatten(content_key.plain(trial))))


def _set(environment: Mapping[str, str | None]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {cut(str(error).strip().partition(chr(10))[0])}"
