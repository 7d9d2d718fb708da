"""The Ray engine's workers as a specification, with a Ray that is none: who is hired, who trains what, what deaths cost."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.engines import ray_workers
from recallmap.search.engines.desk import Desk
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.ray_workers import LIVES
from recallmap.search.engines.shipped import ShippedCohort, Trained
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.training.trial_record import record_of

STUDY = {
    "name": "tiny",
    "trial": {
        "task": {"kind": "mqar", "vocab": 16, "length": 12, "pairs": 2},
        "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": {"kind": "attention", "heads": 2}}]},
        "training": {"steps": 1, "batch": 4, "evaluations": 1},
        "data": {"validation": 8, "test": 8},
    },
    "space": {"kind": "grid", "axes": {"trial.seed": [0, 1, 2, 3, 4, 5, 6, 7]}},
}


class Lost(Exception):
    """A worker is gone."""


class NoRay:
    """What the crew asks of Ray, in this process: whoever waits hears the worker that began first. `births` say of one worker
    after the other whether it lives."""

    def __init__(self, births: Callable[[int], bool]) -> None:
        self.births = births
        self.numbers = count()
        self.made: list[Any] = []
        self.killed: list[int] = []
        self.exceptions = SimpleNamespace(RayError=Lost)

    def remote(self, **resources: float) -> Callable[[type], Any]:
        return lambda kind: SimpleNamespace(remote=lambda train: self._worker(kind(train)))

    def _worker(self, inside: Any) -> Any:
        number = next(self.numbers)

        def begin() -> None:
            if not self.births(number):
                raise Lost("told why\nit was born dead")

        follow = SimpleNamespace(options=lambda **how: SimpleNamespace(remote=inside.follow))
        worker = SimpleNamespace(number=number, ready=SimpleNamespace(remote=lambda: begin), follow=follow)
        self.made.append(worker)
        return worker

    def wait(self, waiting: list[Any], **how: Any) -> tuple[list[Any], list[Any]]:
        return waiting[:1], waiting[1:]

    def get(self, what: Any) -> Any:
        return what() if callable(what) else what

    def kill(self, worker: Any) -> None:
        self.killed.append(worker.number)


def answered(cohort: ShippedCohort, tell: Callable[[Progress], None]) -> Trained:
    tell(Progress(step=1, steps=1, members=len(cohort.specs), loss=1.0, accuracy=(0.5,)))
    outcome, cpu = Outcome(scores={"accuracy": 0.5}, validation={"accuracy": 0.5}, steps=1), torch.device("cpu")
    made = [record_of(s, outcome, study="tiny", device=cpu, members=1, implementation={}) for s in cohort.specs]
    return made, {"training": 1.0}


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "tiny.sqlite") as ledger:
        yield ledger


def trained(
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    *,
    places: int = 2,
    births: Callable[[int], bool] = lambda number: True,
    train: Callable[[ShippedCohort, Callable[[Progress], None]], Trained] = answered,
) -> tuple[NoRay, list[Record]]:
    """Train the study in cohorts of two with a crew, for which a cluster has so many places; the records by seed."""
    ray = NoRay(births)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_workers, "_places", lambda resources: places)
    monkeypatch.setattr(ray_workers, "_train", train)
    desk = Desk(Driver(codec.read_study(STUDY), ledger, cohort_size=2, where="cpu"), "cpu", lives=LIVES)
    ray_workers._Crew(desk, {"cpu": 1}).train()
    return ray, sorted(ledger.all(), key=lambda record: record.seed)


@pytest.mark.parametrize(("places", "workers"), [(1, 1), (3, 3), (16, 4)])
def test_there_are_as_many_workers_as_places_and_cohorts_and_they_stay(
    places: int, workers: int, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, records = trained(ledger, monkeypatch, places=places)
    assert [record.status for record in records] == ["done"] * 8
    assert len(ray.made) == workers
    assert not ray.killed


def test_a_worker_that_dies_before_its_first_cohort_is_replaced(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray, records = trained(ledger, monkeypatch, births=lambda number: number > 1)
    assert [record.status for record in records] == ["done"] * 8
    assert ray.killed == [0, 1]


def test_where_no_worker_can_begin_the_study_ends_and_its_trials_say_why(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_workers, "MOMENT", 0.0)
    _, records = trained(ledger, monkeypatch, births=lambda number: False)
    assert [record.status for record in records] == ["failed"] * 8
    assert {str(record.error) for record in records} == {f"the worker died {2 * LIVES} times: it was born dead"}


def test_a_cohort_that_kills_its_workers_goes_on_in_halves_until_the_trial_at_fault_fails_alone(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deadly(cohort: ShippedCohort, tell: Callable[[Progress], None]) -> Trained:
        if any(spec.seed == 5 for spec in cohort.specs):
            raise Lost("it fell")
        return answered(cohort, tell)

    ray, records = trained(ledger, monkeypatch, train=deadly)
    assert [record.seed for record in records if record.status == "failed"] == [5]
    assert len(ray.killed) == LIVES + 2 * LIVES  # of the pair, and of the trial


def test_cohorts_that_share_a_gpu_take_no_cpu() -> None:
    assert ray_workers._resources("cuda", 4) == {"cpu": 1, "gpu": 0.25}
    assert ray_workers._resources("cpu", 4) == {"cpu": 1}


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
@pytest.mark.parametrize(
    ("kind", "at_once", "places"), [("cpu", 1, 16), ("cuda", 1, 2), ("cuda", 3, 6), ("cuda", 8, 16)]
)
def test_a_cluster_has_as_many_places_as_its_resources_have_shares(
    kind: str, at_once: int, places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 16.0, "GPU": 2.0})
    assert ray_workers._places(ray_workers._resources(kind, at_once)) == places
