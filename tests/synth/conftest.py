"""Every task, and what stories about tasks have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import UnionType
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import Batch
from recallmap.synth.streams import Stream
from recallmap.synth.task import Task as AnyTask
from recallmap.synth.tasks import Task

Answer = Callable[[np.random.Generator, Batch], NDArray[np.int64]]


def every(union: UnionType | type) -> list[Any]:
    """One of each sibling, with its defaults."""
    return [sibling() for sibling in get_args(union)]


def kind_of(spec: Any) -> str:
    return str(spec.kind)


@pytest.fixture(params=every(Task), ids=kind_of)
def task(request: pytest.FixtureRequest) -> AnyTask:
    return request.param


@pytest.fixture(params=[t for t in every(Task) if t.signal == "tokens"], ids=kind_of)
def token_task(request: pytest.FixtureRequest) -> AnyTask:
    return request.param


@pytest.fixture
def draw() -> Callable[..., Batch]:
    """Sequences of a task from a seed."""

    def sequences(task: AnyTask, count: int = 64, split: Any = "test", seed: int = 0) -> Batch:
        return task.sample(np.random.default_rng(seed), count, split)

    return sequences


@pytest.fixture
def digest() -> Callable[[AnyTask], str]:
    """The first bits of all three streams of a task, as 16 hexadecimal digits."""

    def of(task: AnyTask) -> str:
        seen = hashlib.sha256()
        for split in ("train", "validation", "test"):
            batch = Stream(task, 0, split).take(0, 64)
            seen.update(np.ascontiguousarray(batch.inputs).tobytes())
            seen.update(np.ascontiguousarray(batch.targets).tobytes())
        return seen.hexdigest()[:16]

    return of


@pytest.fixture
def assert_expects() -> Callable[..., None]:
    """That one who answers so has the expected score that a task claims, within four standard errors."""

    def agrees(task: AnyTask, answer: Answer, claimed: float, sets: int = 32, count: int = 128) -> None:
        rng = np.random.default_rng(7)
        batches = [task.sample(rng, count, "test") for _ in range(sets)]
        scores = [task.score(batch, answer(rng, batch))[task.metric] for batch in batches]
        error = np.std(scores, ddof=1) / np.sqrt(sets)
        assert abs(np.mean(scores) - claimed) <= 4 * error + 1e-12, f"{np.mean(scores)} +- {error}, not {claimed}"

    return agrees
