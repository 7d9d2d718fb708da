"""Recorded steps as a specification: the same bits as the step itself, or the step itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import recallmap
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import Attention, GatedDeltaNet
from recallmap.arch.stack import flatten
from recallmap.search import codec
from recallmap.search.training.cohort import Cohort
from recallmap.search.training.lane import Lane
from recallmap.search.training.op_tape import NotRecordable, Replay, Tape
from recallmap.search.training.recorded_step import FEWEST, RecordedStep, pays
from recallmap.search.trial import Data, Training, TrialSpec
from recallmap.synth.tasks import Compression, FuzzyInContextRecall, Mqar, MqarContinuous, Task

ARCHS = {  # one of the zoo for each mixer that begins one
    next(flatten(arch.stack)).mixer.kind: arch
    for path in sorted((Path(recallmap.__file__).parent / "arch/zoo").glob("*.yaml"))
    for arch in [codec.read_arch(path.stem)]
}
TASK = Mqar(vocab=16, length=12, pairs=2)
HYBRID = BackboneSpec(
    name="tiny", width=16, stack=(Block(mixer=GatedDeltaNet(heads=2)), Block(mixer=Attention(heads=2, window=4)))
)


def trial(arch: BackboneSpec = HYBRID, task: Task = TASK, *, train: int | None = None, **dials: Any) -> TrialSpec:
    training = Training(**({"steps": FEWEST, "batch": 2, "lr": 1e-2, "evaluations": 1} | dials))
    return TrialSpec(task=task, arch=arch, training=training, data=Data(train=train, validation=4, test=4))


def lanes_of(*specs: TrialSpec, count: int = 3) -> tuple[Lane, list[list[Tensor | None]]]:
    """All of these in one lane, and so many batches."""
    cohort = Cohort(specs, torch.device("cpu"), len(specs))
    cohort.close()
    batches = [list(pool.batch(rows)) for _, ((pool, rows),) in zip(range(count), cohort.feed, strict=False)]
    return cohort.lanes[0], batches


def followed(specs: list[TrialSpec], count: int = 3) -> RecordedStep:
    """The recorded step of one lane, after steps that gave the bits which the step itself gives in another."""
    (lane, batches), (plain, _) = (lanes_of(*specs, count=count) for _ in range(2))
    recorded = RecordedStep(lane)
    for batch in batches:
        ours, theirs = [recorded(*batch), *lane.memory()], [plain.update(*batch), *plain.memory()]
        assert all(one.numpy().tobytes() == other.numpy().tobytes() for one, other in zip(ours, theirs, strict=True))
    return recorded


@pytest.mark.parametrize("mixer", ARCHS)
def test_every_mixer_has_a_tape_that_gives_the_same_bits(mixer: str) -> None:
    arch = ARCHS[mixer]
    recorded = followed([trial(replace(arch, stack=arch.stack[:1]))], count=2)  # one is recorded, another read
    assert None not in recorded.tapes.values()


@pytest.mark.parametrize(
    "specs",
    [
        [trial(), trial(lr=3e-3, clip=None, weight_decay=0.0)],
        [trial(), trial(task=Mqar(vocab=12, length=12, pairs=2))],
        [trial(dtype="bfloat16")],
        [trial(train=5)],
        [trial(task=Compression(vocab=8, length=12))],
        [trial(task=MqarContinuous())],
        [trial(task=FuzzyInContextRecall(length=20))],
        [trial(lr=1e30, clip=None)],
    ],
    ids=[
        "two members",
        "padded vocabularies",
        "bf16",
        "short batches",
        "last vector",
        "vectors",
        "parts",
        "divergence",
    ],
)
def test_so_has_every_way_to_train(specs: list[TrialSpec]) -> None:
    assert None not in followed(specs).tapes.values()


def test_each_shape_of_batches_has_a_tape() -> None:
    (lane, batches), (plain, _) = lanes_of(trial()), lanes_of(trial())
    recorded = RecordedStep(lane)
    for batch in (batches[0], [None if t is None else t[:, :1] for t in batches[1]], batches[2]):
        assert recorded(*batch).equal(plain.update(*batch))
    assert len(recorded.tapes) == 2


def test_members_that_go_on_are_recorded_anew() -> None:
    (lane, batches), (plain, _) = (lanes_of(trial(), trial(lr=1e-3)) for _ in range(2))
    recorded = lane.recorded
    assert recorded is not None
    recorded(*batches[0]), plain.update(*batches[0])
    for one in (lane, plain):
        one.keep([1])
    batch = [None if t is None else t[1:] for t in batches[1]]
    assert recorded(*batch).equal(plain.update(*batch))
    assert lane.flat.equal(plain.flat)


@pytest.mark.parametrize(
    ("spec", "device", "recorded"),
    [
        (trial(), "cpu", True),
        (trial(steps=FEWEST - 1), "cpu", False),
        (trial(batch=2**16), "cpu", False),
        (trial(), "cuda", False),
    ],
)
def test_small_steps_on_a_cpu_are_recorded_where_there_are_enough(spec: TrialSpec, device: str, recorded: bool) -> None:
    assert pays([spec], torch.device(device)) is recorded


# Tapes. -------------------------------------------------------------------------------------------


class Function:
    """A function of a batch that writes nothing, as a step."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.update = function

    def memory(self) -> list[Tensor]:
        return []


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1 if x.sum() > 0 else x - 1,
        lambda x: x[x > 0],
        lambda x: x + torch.rand(3),
        lambda x: x * x.max().item(),
    ],
    ids=["branches", "masks", "chance", "reads"],
)
def test_what_depends_on_data_or_chance_runs_as_it_is(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(NotRecordable), Tape():
        function(x)
    recorded = RecordedStep(Function(function))
    torch.manual_seed(0)
    recorded(x)
    assert recorded.tapes == {((3,),): None}
    torch.manual_seed(0)
    found = recorded(-x)
    torch.manual_seed(0)
    assert found.equal(function(-x))


def test_a_tape_that_gives_other_bits_does_not_serve() -> None:
    """A function may hide from the tape what it reads."""
    calls: list[int] = []

    def function(x: Tensor) -> Tensor:
        calls.append(1)
        return x * len(calls)

    recorded = RecordedStep(Function(function))
    assert recorded(torch.ones(1)).item() == 3  # after a call to compare with, and one to record
    assert recorded.tapes == {((1,),): None}


def test_results_share_memory_and_constants_are_made_once() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(50):
            x = x * torch.ones(1000).cumsum(0)
        return x.sum()

    x = torch.rand(1000)
    with Tape() as tape:
        result = function(x)
    replay = Replay(tape, tape.place_of(result))
    assert replay().equal(function(x))
    assert replay.bytes < 3 * 4096 + 64
    assert len(replay.calls) == 51
