"""The Markdown table of all tasks: source, chance, ceiling and sampling speed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np

from recallmap.search import codec
from recallmap.search.documents import built_in, type_hints
from recallmap.synth.task import Task

COUNT = 4096  # sequences drawn at a time

TIMES = 5  # repetitions; the median counts

COLUMNS = ("task", "source", "protocol", "metric", "chance", "ceiling", "length", "sequences/s")


def rows(count: int = COUNT, times: int = TIMES) -> Iterator[tuple[str, ...]]:
    """A row of COLUMNS for every kind of task at its defaults, sampled on one core (apart from numpy's own threads)."""
    from recallmap.synth.tasks import Task as AnyTask

    sources = _sources()
    for kind, spec in sorted(type_hints.kinds_of(AnyTask).items()):
        task: Any = codec.read_task(kind)
        yield (
            kind,
            "; ".join(sources.get(kind, ())),
            ", ".join(get_args(type_hints.hints_of(spec)["protocol"])),
            task.metric,
            f"{task.chance():.3g}",
            f"{task.ceiling():.3g}",
            str(task.shape[0]),
            f"{_two_digits(speed(task, count, times)):,}",
        )


def speed(task: Task, count: int, times: int) -> float:
    """Sequences per second: the median over `times` draws of `count`, after one that fills caches."""
    rng = np.random.default_rng(0)
    task.sample(rng, count, "train")
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        task.sample(rng, count, "train")
        seconds.append(time.perf_counter() - began)
    return count / statistics.median(seconds)


def markdown(table: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """The table, line by line as its rows come."""
    yield _line(COLUMNS)
    yield _line(tuple("---:" if name in ("chance", "ceiling", "length", "sequences/s") else "---" for name in COLUMNS))
    for row in table:
        yield _line(row)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def _two_digits(value: float) -> int:
    """Round a timing to two digits, because it repeats no better."""
    return int(float(f"{value:.2g}"))


def _sources() -> dict[str, list[str]]:
    """The sources of suites by the kinds of their tasks."""
    found: dict[str, list[str]] = {}
    for name in built_in.builtin("suite"):
        suite = built_in.document(name, "suite").plain()
        for kind in {setting["task"]["kind"] for tier in suite["tiers"].values() for setting in tier}:
            found.setdefault(kind, []).append(suite["source"])
    return found
