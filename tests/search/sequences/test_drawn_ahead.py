"""Sequences that worker processes draw ahead: the same to the last bit, and nothing left running."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import Attention, BaseConv
from recallmap.arch.mlp import SwiGLU
from recallmap.results.ledger import LedgerError
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.documents import outside
from recallmap.search.engines import inline
from recallmap.search.sequences.drawn_ahead import DrawnAhead, drawing_ahead, workers_for
from recallmap.search.sequences.request import Request, Source
from recallmap.search.training.batches import Feed
from recallmap.search.training.checkpoints import CheckpointFolder, checkpointing
from recallmap.search.training.run_cohort import follow_cohort, run_cohort, train
from recallmap.search.trial import Data, Portion, Training, TrialSpec
from recallmap.synth.tasks import (
    GroupWord,
    InContextRecall,
    Learnability,
    Mqar,
    Regbench,
    Task,
)

CPU = torch.device("cpu")
TASK = Mqar(vocab=32, length=24, pairs=3)
SHORT = Mqar(vocab=32, length=16, pairs=2)
REGBENCH = Regbench(
    letters=6, states=(3, 4), alphabet=(3, 6), out_degree=(1, 2), words=(3, 5), word_length=(1, 8), length=44
)
MIX = (Portion(task=TASK, examples=20), Portion(task=SHORT, examples=9))
ARCH = BackboneSpec(
    name="tiny",
    width=16,
    stack=(Block(mixer=BaseConv(), mlp=SwiGLU(expand=1)), Block(mixer=Attention(heads=2), mlp=SwiGLU(expand=1))),
)


def trials(
    task: Task, *seeds: int, train: int | None = None, mix: tuple[Portion, ...] = (), **dials: Any
) -> list[TrialSpec]:
    training = Training(**({"steps": 18, "batch": 5, "evaluations": 3} | dials))
    data = Data(train=train, validation=40, test=30)
    return [TrialSpec(task=task, arch=ARCH, mix=mix, training=training, data=data, seed=seed) for seed in seeds]


def leaving() -> list[TrialSpec]:
    """Two members are good enough and leave: the second after 5 steps, the first after 10."""
    first, second, last = trials(SHORT, 0, 1, 2, steps=30, lr=1e-2, evaluations=6)
    return [
        replace(first, training=replace(first.training, stop_at=0.06)),
        replace(second, training=replace(second.training, stop_at=0.0)),
        last,
    ]


COHORTS = {
    "fresh": trials(TASK, 0, 1, 2),
    "one": trials(InContextRecall(vocab=8, length=16), 0),
    "epochs": trials(TASK, 0, 1, train=13, steps=None, epochs=5),
    "fixed": trials(InContextRecall(vocab=8, length=16), 0, 1, train=13),
    "mix": trials(TASK, 0, 1, mix=MIX),
    "mix of epochs": trials(TASK, 0, 1, mix=MIX, steps=None, epochs=4),
    "two tasks": [*trials(TASK, 0), *trials(replace(TASK, pairs=5), 0)],
    "regbench": trials(REGBENCH, 0, 1, batch=2),
    "group word": trials(GroupWord(), 0, 1),
    "vectors": trials(Learnability(), 0, 1, steps=6, batch=2, evaluations=1),
    "further tests": [replace(one, tests=(SHORT,)) for one in trials(TASK, 0, 1)],
    "members leave": leaving(),
}


@pytest.fixture(autouse=True)
def short_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallmap.search.training.batches.HORIZON", 4)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The worker processes that were started."""
    found: list[subprocess.Popen[bytes]] = []

    class Seen(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            if "-c" in self.args:  # and not git, say
                found.append(self)

    monkeypatch.setattr("recallmap.search.workers.pool.subprocess.Popen", Seen)
    return found


def figures(records: list[Record]) -> list[object]:
    return [
        (r.status, r.scores, r.validation, r.curve, r.steps, r.tests and [t["scores"] for t in r.tests])
        for r in records
    ]


def request(task: Task = TASK, seed: int = 0, **more: Any) -> Request:
    return Request(**({"task": task, "seed": seed, "split": "train", "start": 0, "count": 20} | more))


def test_any_number_of_workers_gives_the_same_records(started: list[subprocess.Popen[bytes]]) -> None:
    alone = {name: figures(run_cohort(specs, device="cpu")) for name, specs in COHORTS.items()}
    assert [record.steps for record in run_cohort(leaving(), device="cpu")] == [10, 5, 30]
    for workers in (1, 3):
        with drawing_ahead(workers):
            for name, specs in COHORTS.items():
                assert figures(run_cohort(specs, device="cpu")) == alone[name], (name, workers)
    assert len(started) == 1 + 3  # they outlive a cohort


@pytest.mark.parametrize("case", ["fresh", "mix", "epochs", "regbench", "members leave"])
def test_a_cohort_is_resumed_with_other_workers(case: str, tmp_path: Path) -> None:
    specs = COHORTS[case]
    expected = figures(run_cohort(specs, device="cpu"))
    with checkpointing(CheckpointFolder(tmp_path, every=0)):
        with drawing_ahead(2):
            steps = follow_cohort(specs, device="cpu")
            next(steps), next(steps)
            steps.close()
        assert list(tmp_path.iterdir())
        with drawing_ahead(1):
            assert figures(run_cohort(specs, device="cpu"))[-1] == expected[-1]


def test_workers_draw_and_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with drawing_ahead(2):
        ahead = DrawnAhead()
        monkeypatch.setattr(Source, "answer", lambda *_: 1 / 0)
        first, second = ahead.take([request(), request(seed=1, scored=True)])
    monkeypatch.undo()
    alone = Source().answer(request())
    np.testing.assert_array_equal(first.prepared.inputs, alone.prepared.inputs)
    assert first.batch is None
    assert second.batch is not None
    assert second.batch.inputs.dtype == np.int64
    assert first.prepared.inputs.dtype == np.int8


def test_a_reader_asks_for_one_horizon_ahead_and_none_after_the_last() -> None:
    with drawing_ahead(1):
        feed = Feed(trials(TASK, 0, 1, steps=10), CPU)
        (portion,) = feed.portions
        asked = []
        for step, _ in enumerate(feed):
            if step == 5:
                feed.keep([1])
            asked.append(sorted((r.start // feed.batch, r.seed) for r in portion.ahead.pending))
    assert asked == [[(4, 0), (4, 1)]] * 4 + [[(8, 0), (8, 1)]] * 4 + [[]] * 2


@pytest.mark.parametrize("case", ["fresh", "mix", "epochs", "fixed", "mix of epochs", "regbench"])
def test_who_stays_reads_what_it_reads_alone(case: str) -> None:
    specs = [replace(COHORTS[case][0], seed=seed) for seed in (0, 1, 2)]
    with drawing_ahead(2):
        feed = Feed(specs, CPU)
        for step, (batches, alone) in enumerate(zip(feed, Feed(specs[2:], CPU), strict=True), 1):
            ((pool, rows),), ((own_pool, own_rows),) = batches, alone
            ours, own = pool.batch(rows), own_pool.batch(own_rows)
            assert torch.equal(ours[0][-1], own[0][0])
            assert float(ours[3][-1].sum()) == float(own[3].sum())
            if step in (2, 7):  # within a horizon
                feed.keep([1, 2] if step == 2 else [1])


FAILING = """
    from dataclasses import dataclass
    from recallmap.synth.tasks import Mqar

    @dataclass(frozen=True, kw_only=True)
    class Failing(Mqar):
        def sample(self, rng, count, split):
            if split == "train":
                raise ArithmeticError(f"no {count} sequences")
            return super().sample(rng, count, split)
"""


def test_a_task_that_raises_in_a_worker_raises_the_same_in_the_cohort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_task.py").write_text(textwrap.dedent(FAILING))
    monkeypatch.syspath_prepend(tmp_path)
    task = __import__("failing_task").Failing(vocab=32, length=24, pairs=3)
    with drawing_ahead(2):
        (with_workers,) = train(trials(task, 0), "", CPU, lambda _: None)
        (other,) = train(trials(TASK, 0), "", CPU, lambda _: None)
    (alone,) = train(trials(task, 0), "", CPU, lambda _: None)
    assert with_workers.error == alone.error == "ArithmeticError: no 1024 sequences"
    assert other.status == "done"


def test_a_task_that_cannot_travel_is_drawn_here() -> None:
    class Here(Mqar):
        """No other process finds its class."""

    task = Here(vocab=32, length=24, pairs=3)
    with drawing_ahead(1):
        (answer,) = DrawnAhead().take([request(task)])
    np.testing.assert_array_equal(answer.prepared.inputs, Source().answer(request(task)).prepared.inputs)


OWN = """
from dataclasses import dataclass
from typing import Literal
from recallmap.synth.tasks.mqar import Mqar

@dataclass(frozen=True, kw_only=True)
class Mine(Mqar):
    kind: Literal["mine"] = "mine"
"""


def test_a_worker_draws_a_task_of_the_users_file_unless_the_file_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_task.py").write_text(OWN, encoding="utf-8")
    outside.use([str(tmp_path / "own_task.py")])
    try:
        task = codec.read_task({"kind": "mine", "vocab": 32, "length": 24, "pairs": 3})
        there = Source().answer(request(task)).prepared.inputs
        with drawing_ahead(1), monkeypatch.context() as patched:
            patched.setattr(Source, "answer", lambda *_: pytest.fail("drawn here"))
            (answer,) = DrawnAhead().take([request(task)])
        np.testing.assert_array_equal(answer.prepared.inputs, there)
        (tmp_path / "own_task.py").write_text(f"{OWN}# changed", encoding="utf-8")
        with drawing_ahead(1):
            (answer,) = DrawnAhead().take([request(task)])
        np.testing.assert_array_equal(answer.prepared.inputs, there)
    finally:
        outside.forget()


def test_a_worker_that_is_killed_costs_no_sequence(started: list[subprocess.Popen[bytes]]) -> None:
    wanted = [request(seed=seed, count=500) for seed in range(8)]
    alone = [Source().answer(one) for one in wanted]
    with drawing_ahead(2):
        ahead = DrawnAhead()
        ahead.ask(wanted)
        started[0].kill()
        found = ahead.take(wanted)
        found += ahead.take(wanted)
    for one, other in zip(found, alone * 2, strict=True):
        np.testing.assert_array_equal(one.prepared.inputs, other.prepared.inputs)


def test_a_machine_without_room_for_a_process_draws_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr("recallmap.search.workers.pool.subprocess.Popen", full)
    with drawing_ahead(2):
        assert len(DrawnAhead().take([request(), request(seed=1)])) == 2


@pytest.mark.parametrize("ends", [None, KeyboardInterrupt, LedgerError])
def test_a_study_leaves_no_worker_however_it_ends(
    ends: type[BaseException] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    started: list[subprocess.Popen[bytes]],
) -> None:
    plain = {
        "name": "ahead",
        "trial": codec.plain(trials(TASK, 0)[0]),
        "space": {"kind": "grid", "axes": {"trial.seed": [0, 1]}},
    }
    (tmp_path / "ahead.yaml").write_text(yaml.safe_dump(plain))
    monkeypatch.setattr("recallmap.search.engines.inline.workers_for", lambda _: 2)

    def report(told: Any) -> None:
        if ends is not None and told.progress is not None:
            raise ends

    with pytest.raises(ends) if ends else contextlib.nullcontext():
        inline.run(codec.read_study(tmp_path / "ahead.yaml"), tmp_path / "ahead.sqlite", report=report, device="cpu")
    assert [process.returncode for process in started] == [0, 0]  # they were waited for


def test_a_driver_that_is_killed_leaves_no_worker() -> None:
    code = """
        import subprocess, time
        from recallmap.search.sequences.drawn_ahead import DrawnAhead, drawing_ahead
        from recallmap.search.sequences.request import Request
        from recallmap.synth.tasks import Mqar
        Popen = subprocess.Popen

        def seen(*given, **named):
            process = Popen(*given, **named)
            print(process.pid, flush=True)
            return process

        subprocess.Popen = seen
        ask = [Request(task=Mqar(), seed=seed, split="train", start=0, count=200_000) for seed in range(2)]
        with drawing_ahead(2):
            DrawnAhead().ask(ask)
            print("asked", flush=True)
            time.sleep(600)
    """
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    with driver.stdout:
        first, second, said = (driver.stdout.readline().strip() for _ in range(3))
        assert said == "asked"
        driver.kill()
        driver.wait()
    assert_ended([int(first), int(second)])


def assert_ended(left: list[int]) -> None:
    """These processes end without more ado."""
    until = time.monotonic() + 60
    while left and time.monotonic() < until:
        left = [number for number in left if runs(number)]
        time.sleep(0.05)
    for number in left:
        os.kill(number, signal.SIGKILL)
    assert not left


def runs(number: int) -> bool:
    """False for a process that has ended and that nobody has waited for, too."""
    stat = Path(f"/proc/{number}/stat")
    try:
        if stat.parent.parent.joinpath("self").exists():
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        os.kill(number, 0)
    except OSError:
        return False
    return True


def test_workers_that_last_serve_the_next_cohorts_and_end_with_the_process() -> None:
    code = """
        from recallmap.search.sequences import drawn_ahead
        from recallmap.search.workers import pool
        from recallmap.search.sequences.request import Request
        from recallmap.synth.tasks import Mqar
        started = []
        Popen = pool.subprocess.Popen
        pool.subprocess.Popen = lambda *given, **named: started.append(Popen(*given, **named)) or started[-1]
        for start in (0, 10):
            with drawn_ahead.drawing_ahead(1, lasting=True):
                drawn_ahead.DrawnAhead().take([Request(task=Mqar(), seed=0, split="train", start=start, count=10)])
        print(*[process.pid for process in started])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    (number,) = map(int, done.stdout.split())
    assert_ended([number])


def test_a_worker_loads_no_torch() -> None:
    code = "import sys, recallmap.search.sequences.worker_process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_cpu_that_trains_has_no_workers_beside_it() -> None:
    assert workers_for("cpu") == 0
    assert workers_for("cuda", 1 / 1000) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["fresh", "mix", "epochs", "regbench", "vectors"])
def test_on_a_gpu_batches_are_those_of_a_cpu(case: str) -> None:
    with drawing_ahead(3):
        on_gpu, on_cpu = (Feed(COHORTS[case], device) for device in (torch.device("cuda"), CPU))
        kept = [  # all before any is read: copies to the device are not waited for
            [None if part is None else part.clone() for part in pool.batch(rows)] for ((pool, rows),) in on_gpu
        ]
        for batch, ((pool, rows),) in zip(kept, on_cpu, strict=True):
            for one, other in zip(batch, pool.batch(rows), strict=True):
                assert (one is None) == (other is None)
                if one is not None and other is not None:
                    assert one.dtype == other.dtype
                    assert torch.equal(one.cpu(), other)
