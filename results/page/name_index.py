"""Numbers of trials, architectures and rows in a page's data, so that the page holds each name once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from recallmap.results.analysis.labels import differing, flatten, leaves_of
from recallmap.results.record import Record


def carried(figure: float | None) -> float | None:
    """A figure as the page's data has it: short, yet exact enough that the page rounds it to what tables show."""
    return None if figure is None else round(figure, 6)


class Names:
    """Names by number, so that the page holds each name once."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers: dict[str, int] = {}
        for name in names:
            self.of(name)

    def of(self, name: str) -> int:
        return self._numbers.setdefault(name, len(self._numbers))

    @property
    def names(self) -> list[str]:
        return list(self._numbers)


class Index:
    """The numbers of trials, architectures and rows of the tables in the page's data."""

    def __init__(self, done: list[Record], row_of: dict[str, str]) -> None:
        self.done = done
        self.trial = {r.key: number for number, r in enumerate(done)}
        self.row_of = row_of
        self.archs = Names(sorted({r.arch for r in done}))
        self.growing = {self.archs.of(r.arch) for r in done if r.state_grows}
        self.rows = Names(sorted({row_of[r.key] for r in done}))
        lines, examples = Names(), {row_of[r.key]: r for r in done}
        self.line = {row: lines.of(_but_sizes(r)) for row, r in examples.items()}  # those of one line may be joined
        self.varied = _varied(done)


def _varied(done: list[Record]) -> list[Mapping[str, Any]]:
    """The seed of every trial, and the options of architecture and training in which trials of one architecture differ, by
    path. All options of very many trials would take gigabytes."""
    members: dict[str, list[int]] = defaultdict(list)
    for number, record in enumerate(done):
        members[record.arch].append(number)
    varied: list[Mapping[str, Any]] = [{}] * len(done)
    for own in members.values():
        leaves = [
            {"seed": done[n].seed, **leaves_of(done[n]), **dict(flatten(done[n].spec.get("training", {}), "training"))}
            for n in own
        ]
        paths = differing(leaves)
        for number, leaf in zip(own, leaves, strict=True):
            varied[number] = {path: leaf[path] for path in paths if path in leaf}
    return varied


def _but_sizes(record: Record) -> str:
    """An architecture without its sizes, which are whole numbers."""
    others = {path: value for path, value in leaves_of(record).items() if type(value) is not int}
    return json.dumps([record.arch, others], sort_keys=True)
