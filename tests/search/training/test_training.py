"""Training as a specification: the optimizer, the schedule, what one member owes to its company (nothing)."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.kernels import select
from recallmap.arch.mixers import Attention, BaseConv, GatedDeltaNet, Mesa, Mixer
from recallmap.arch.mlp import SwiGLU
from recallmap.results.analysis.measures import is_error
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.training.adamw import AdamW, learning_rate
from recallmap.search.training.batches import Feed
from recallmap.search.training.best_checkpoint import evaluation_steps
from recallmap.search.training.cohort import Cohort, sequences_at_once
from recallmap.search.training.cuda_graph import CapturedStep, compiled
from recallmap.search.training.lane import COMPILING, Lane, losses
from recallmap.search.training.loop import train
from recallmap.search.training.outcome import Outcome
from recallmap.search.training.packing import at_most, pack, room
from recallmap.search.training.run_cohort import follow_cohort, run_cohort
from recallmap.search.trial import Data, Portion, Schedule, Training, TrialSpec, run_trial
from recallmap.search.trials.pools import positions
from recallmap.synth.score import error_name
from recallmap.synth.tasks import Compression, InContextRecall, Mqar, Rearrangement, Task

TASK = Mqar(vocab=32, length=16, pairs=2)
RECALL = InContextRecall(vocab=8, length=16)


def arch(*mixers: object, width: int = 16) -> BackboneSpec:
    blocks = tuple(Block(mixer=m, mlp=SwiGLU(expand=1)) for m in mixers or (BaseConv(), Attention(heads=2)))
    return BackboneSpec(name="tiny", width=width, stack=blocks)


def trial(
    task: Task = TASK,
    *,
    seed: int = 0,
    backbone: BackboneSpec | None = None,
    train: int | None = None,
    **dials: object,
) -> TrialSpec:
    return TrialSpec(
        task=task,
        arch=backbone or arch(),
        training=Training(**({"steps": 12, "batch": 8, "evaluations": 3} | dials)),
        data=Data(train=train, validation=32, test=48),
        seed=seed,
    )


def outcomes(specs: list[TrialSpec], at_once: int) -> list[Outcome]:
    steps = train(specs, torch.device("cpu"), at_once=at_once)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def lane_of(specs: list[TrialSpec], device: str = "cpu") -> tuple[Lane, list[Any]]:
    """All of these in one lane, and their first batch."""
    cohort = Cohort(specs, torch.device(device), len(specs))
    (lane,), ((pool, rows),) = cohort.lanes, next(iter(cohort.feed))
    cohort.close()
    return lane, list(pool.batch(rows))


def broken(says: str) -> Any:
    """A backend of the compiler that can build nothing."""

    def build(*args: Any) -> Any:
        raise RuntimeError(says)

    return build


def figures(record: Record) -> dict[str, float]:
    """All measured numbers of a record, by name."""
    flat = {f"scores.{k}": v for k, v in record.scores.items()}
    flat |= {f"validation.{k}": v for k, v in record.validation.items()}
    flat |= {f"curve.{k}.{i}": v for k, values in record.curve.items() for i, v in enumerate(values)}
    for number, test in enumerate(record.tests):
        flat |= {f"tests.{number}.{k}": v for k, v in test["scores"].items()}
    return flat


@pytest.mark.parametrize("at_once", [1, 3, 4], ids=["a thread each", "three stacked", "all stacked"])
@pytest.mark.parametrize(
    "mixer", [Attention(heads=2), GatedDeltaNet(heads=2), Mesa(heads=2, cg_steps=4)], ids=lambda m: m.kind
)
def test_a_cohort_gives_every_trial_what_it_has_alone(mixer: Mixer, at_once: int) -> None:
    backbone = arch(BaseConv(), mixer)
    specs = [
        trial(backbone=backbone, seed=0, lr=1e-3, weight_decay=0.1),
        trial(backbone=backbone, seed=1, lr=3e-3, weight_decay=0.0),
        trial(Mqar(vocab=32, length=16, pairs=4), backbone=backbone, seed=0, lr=1e-2, clip=0.1),
        trial(backbone=backbone, seed=2, lr=3e-4, schedule=Schedule(kind="linear", warmup=3)),
    ]
    together = outcomes(specs, at_once)
    for spec, ours in zip(specs, together, strict=True):
        (alone,) = outcomes([spec], 1)
        assert (ours.error, ours.steps, ours.selected_step) == (None, alone.steps, alone.selected_step)
        for name in ("scores", "validation"):
            assert getattr(ours, name) == pytest.approx(getattr(alone, name), rel=1e-4, abs=1e-5)
        for name, values in alone.curve.items():
            assert ours.curve[name] == pytest.approx(values, rel=1e-4, abs=1e-5)
    assert len({o.scores["loss"] for o in together}) == 4


def test_a_cohort_gives_every_trial_the_record_it_has_alone() -> None:
    specs = [trial(seed=0), trial(seed=1, lr=3e-3, weight_decay=0.5)]
    for spec, record in zip(specs, run_cohort(specs), strict=True):
        alone = run_trial(spec)
        assert (record.key, record.spec, record.status) == (alone.key, alone.spec, "done")
        assert (record.cohort, alone.cohort) == (2, 1)
        assert figures(record) == pytest.approx(figures(alone), rel=1e-4, abs=1e-5)


def test_training_learns() -> None:
    task = Mqar(vocab=16, length=16, pairs=4)
    record = run_trial(trial(task, backbone=arch(width=32), steps=250, batch=32, lr=1e-2, evaluations=5))
    assert record.scores["accuracy"] > 0.9 > 3 * record.chance
    assert record.curve["train_loss"][-1] < 0.5 * record.curve["train_loss"][0]
    assert record.scores["accuracy"] == pytest.approx(record.validation["accuracy"], abs=0.15)


def test_the_loss_that_is_told_is_the_mean_of_all_steps_since_the_last_evaluation() -> None:
    each, few = (run_trial(trial(RECALL, steps=6, evaluations=evaluations)).curve for evaluations in (6, 2))
    assert (each["step"], few["step"]) == ([1, 2, 3, 4, 5, 6], [3, 6])
    assert few["train_loss"] == pytest.approx([sum(each["train_loss"][i : i + 3]) / 3 for i in (0, 3)])
    assert few["train_loss"] != pytest.approx([each["train_loss"][i] for i in (2, 5)])


@pytest.mark.parametrize(
    "spec",
    [
        trial(RECALL),
        trial(Compression(vocab=8, length=8)),
        trial(RECALL, train=20, steps=None, epochs=3),
        replace(
            trial(), mix=(Portion(task=TASK, examples=20), Portion(task=Mqar(vocab=32, length=24, pairs=4), examples=9))
        ),
        replace(trial(), tests=(Mqar(vocab=32, length=32, pairs=4), Mqar(vocab=32, length=16, pairs=1))),
        replace(trial(Rearrangement(alphabet=8, length=4)), tests=(Rearrangement(alphabet=8, length=6),)),
        trial(InContextRecall(vocab=8, length=16, protocol="mad-lab")),
        trial(Mqar(vocab=32, length=16, pairs=2, protocol="zoology")),
        trial(dtype="bfloat16"),
    ],
    ids=[
        "every position scored",
        "read-out from the last",
        "epochs",
        "mix",
        "tests",
        "references",
        "mad-lab",
        "zoology",
        "bfloat16",
    ],
)
def test_every_way_to_train_ends_in_a_whole_record(spec: TrialSpec) -> None:
    record = run_trial(spec)
    assert (record.status, record.error) == ("done", None)
    assert record == Record.from_dict(record.to_dict())
    assert set(record.scores) >= {"accuracy", "loss", "exact_match"}
    assert all(math.isfinite(v) for v in figures(record).values())
    for own in (record.scores, *(test["scores"] for test in record.tests)):
        named = {error_name(name) for name in own} & own.keys()
        assert named == {name for name in own if is_error(name)} >= {"exact_match_stderr", "loss_stderr"}
        assert 0 < own["loss_stderr"] < own["loss"]
    assert [test.get("references", {}) for test in record.tests] == [task.references() for task in spec.tests]
    assert bool(record.published_choice) == (spec.task.protocol != "repaired")
    assert record.selected_step in record.curve["step"]
    assert record.implementation or spec.task.readout == "last"


def test_a_fixed_set_is_gone_through_whole_every_epoch() -> None:
    spec = trial(RECALL, train=20, steps=None, epochs=2)
    rows = [rows[0].tolist() for ((_, rows),) in Feed([spec], torch.device("cpu"))]
    assert [len(r) for r in rows] == [8] * 6
    epochs = [[i for r in part for i in r] for part in (rows[:3], rows[3:])]
    assert all(sorted(e) == [-1] * 4 + list(range(20)) for e in epochs)
    assert epochs[0] != epochs[1]


def test_one_member_diverges_and_the_others_do_not_notice() -> None:
    specs = [trial(seed=0), trial(seed=1, lr=1e30, clip=None, steps=12), trial(seed=2)]
    records = run_cohort(specs)
    assert [r.status for r in records] == ["done", "failed", "done"]
    assert "not finite at step" in (records[1].error or "")
    assert figures(records[2]) == pytest.approx(figures(run_trial(specs[2])), rel=1e-4, abs=1e-5)


def test_a_member_that_is_good_enough_stops_and_the_others_go_on() -> None:
    specs = [trial(seed=0, stop_at=-1.0), trial(seed=1)]
    early, late = run_cohort(specs)
    assert (early.steps, late.steps) == (4, 12)
    assert figures(late) == pytest.approx(figures(run_trial(specs[1])), rel=1e-4, abs=1e-5)


def test_who_is_through_is_a_record_at_once_and_takes_no_more_of_the_time() -> None:
    specs = [trial(seed=0, stop_at=-1.0), trial(seed=1, lr=1e30, clip=None), trial(seed=2)]
    began = time.perf_counter()
    steps, told, records = follow_cohort(specs), list[dict[int, Record]](), list[Record]()
    while not records:
        try:
            told.append(dict(next(steps).ended))
        except StopIteration as end:
            records = end.value
    wall = time.perf_counter() - began
    assert [list(ended) for ended in told] == [[0, 1], [], [2]]
    for number, record in (told[0] | told[2]).items():
        ours, last = (replace(r, created="", commit=None) for r in (record, records[number]))
        assert ours == last
    assert records[0].seconds == records[1].seconds < records[2].seconds
    assert sum(r.seconds for r in records) <= wall


def test_what_validation_chose_is_what_is_tested() -> None:
    record = run_trial(trial(steps=40, lr=3e-2, evaluations=10))
    best = max(zip(record.curve["validation_accuracy"], [-x for x in record.curve["validation_loss"]], strict=True))
    chosen = record.curve["step"].index(record.selected_step)
    assert record.curve["validation_accuracy"][chosen] == best[0] == record.validation["accuracy"]


def test_a_gpu_has_room_for_cohorts_that_make_it_busy_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu, cpu = room(torch.device("cuda")), room(torch.device("cpu"))
    short, long = trial(Mqar(vocab=32, length=16, pairs=2)), trial(Mqar(vocab=32, length=4096, pairs=2))
    wide = replace(long, arch=replace(long.arch, width=8192))
    assert [gpu(short), gpu(long), gpu(wide)] == [64, 8, 1]
    assert cpu(short) == cpu(long) == 8


def test_where_every_token_has_matrices_of_its_own_there_is_room_for_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    study = codec.read_study("mqar_zoology")
    gpu = room(torch.device("cuda"))
    found = {trial.arch.name: gpu(trial) for trial in study.trials() if trial.arch.width == 64}
    assert [found[f"conv_{kind}"] for kind in ("titans", "dot", "atlas", "memora")] == [8, 3, 3, 1]


def test_what_is_read_out_takes_room_and_half_the_digits_half_of_it() -> None:
    few, many = (trial(replace(TASK, vocab=vocab)).bytes for vocab in (2**10, 2**14))
    narrow, wide = (trial(replace(TASK, vocab=2**14), dtype=dtype).bytes for dtype in ("bfloat16", "float32"))
    logits = 8 * positions(TASK) * 4 * 3 * (2**14 - 2**10)  # batch, positions, bytes of a number, numbers of a logit
    assert positions(TASK) == 4
    assert logits < many - few < logits + 20 * 33 * (2**14 - 2**10)
    assert wide == many
    assert narrow < 0.9 * wide


@pytest.fixture
def worth_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few the steps."""
    monkeypatch.setattr("recallmap.search.training.lane.COMPILING", 0.0)


def test_a_step_is_compiled_where_that_saves_more_than_it_takes() -> None:
    """By the steps, and by what each of all members computes."""
    (few, batch), (more, _) = lane_of([trial()]), lane_of([trial(steps=60_000)])
    wide = [trial(Mqar(vocab=2**14, length=2**12, pairs=4), batch=2**11, steps=800, seed=s) for s in (0, 1)]
    (long,) = Cohort(wide, torch.device("cpu"), 2).lanes
    assert few.saved < COMPILING / 1000
    assert COMPILING < more.saved < 2 * COMPILING
    assert COMPILING < long.saved < 2 * COMPILING
    assert few.compile(batch) == "not worth it: 12 steps"
    assert few.losses == few.member_losses
    assert few.optimize == few.optimizer.step


@pytest.mark.usefixtures("worth_compiling")
def test_a_step_of_more_operations_than_compile_in_minutes_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    (plain, _), (lane, batch) = lane_of([trial()]), lane_of([trial()])
    assert lane.compile(batch, backend="eager") == "yes"
    assert lane.losses != lane.member_losses
    monkeypatch.setattr(
        "recallmap.search.training.lane.MOST", 10
    )  # as if this shape had more operations than the one before
    assert re.fullmatch(r"no: a forward pass is \d+ operations, more than 10", lane.compile(batch, backend="eager"))
    assert lane.losses == lane.member_losses
    assert_close(lane.update(*batch), plain.update(*batch))
    monkeypatch.setattr("recallmap.search.training.lane.MOST", 1500)
    assert lane.compile(batch, backend="eager") == "yes"
    assert lane.losses != lane.member_losses


@pytest.mark.usefixtures("worth_compiling")
def test_before_compiling_the_ops_are_those_that_training_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one implementation takes no gradient, another is loaded for training, which the compiler cannot follow."""
    asked: list[bool] = []
    why_not = select.why_not

    def note(*args: Any, differentiable: bool, **kwargs: Any) -> str | None:
        asked.append(differentiable)
        return why_not(*args, differentiable=differentiable, **kwargs)

    lane, batch = lane_of([trial(backbone=arch(Mesa(heads=2, cg_steps=2)))])
    monkeypatch.setattr(select, "why_not", note)
    lane.compile(batch, backend="eager")
    assert set(asked) == {True}


@pytest.mark.usefixtures("worth_compiling")
@pytest.mark.parametrize(
    ("says", "told"),
    [
        ("of a subprocess:\n\nName=triton_26\nRuntimeError: PassManager::run failed\n", "PassManager::run failed"),
        ("no room", "no room"),
    ],
)
def test_a_step_that_the_compiler_cannot_build_stays_as_it_is(
    says: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plain, _), (lane, batch) = lane_of([trial()]), lane_of([trial()])
    compiled = lane.compile

    def compile_step(batch: Any) -> str:
        said = compiled(batch, backend=broken(says))
        lane.optimize = lane.optimizer.step
        return said

    monkeypatch.setattr(lane, "compile", compile_step)
    captured = CapturedStep(lane)
    losses: list[Tensor] = []
    monkeypatch.setattr(captured, "_warm_up", lambda buffers: losses.append(lane.update(*buffers)))
    captured._prepare(batch)
    assert captured.compiled == f"no: RuntimeError: {told}"
    assert_close(losses, [plain.update(*batch)])


def test_what_is_said_of_shapes_that_were_compiled_and_of_those_that_were_not() -> None:
    captured = CapturedStep(lane_of([trial()])[0])
    assert captured.compiled == "yes"
    captured.said["no: too long"] = None
    assert captured.compiled == "no: too long"
    captured.said["yes"] = None
    assert captured.compiled == "in part: too long"


def fewer_at(recording: float | None, goings: Sequence[int]) -> list[int]:
    """Of a cohort of four that takes a step a second and is evaluated every four: the evaluations, from 1, after which it goes
    on with those alone that still train. Recording its step takes so many seconds, with any number; None: nothing is."""
    cohort = Cohort([trial(seed=s) for s in range(4)], torch.device("cpu"), 4)
    (lane,) = cohort.lanes
    if recording is not None:
        lane.captured = CapturedStep(lane)
        lane.captured.seconds = recording
    found = []
    for number, going in enumerate(goings, 1):
        taken = 4 * number
        if cohort.better_fewer(going, taken, 1000 - taken, taken + (lane.captured.seconds if lane.captured else 0)):
            cohort.members = cohort.members[:going]
            if lane.captured:
                lane.captured.seconds += recording or 0
            found.append(number)
    return found


def test_a_cohort_goes_on_with_fewer_by_what_recording_its_step_took() -> None:
    """A CPU records nothing; test_fewer.py has the rule."""
    assert fewer_at(None, [4, 3, 3, 1, 0]) == [2, 4]
    assert fewer_at(10.0, [4, 1, 1, 1, 1, 1, 1]) == [6]  # they cost 3 s an evaluation: 3, 6, 9, 12
    assert fewer_at(2.0, [4, 3, 3, 3, 3, 1, 1, 1]) == [5, 7]  # 1, 2, 3 and anew: 8/3


@pytest.mark.gpu
@pytest.mark.usefixtures("worth_compiling")
@pytest.mark.parametrize("fewer", [False, True])
def test_on_a_gpu_members_end_one_by_one_as_on_a_cpu(fewer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [trial(seed=0, stop_at=-1.0), trial(seed=1, lr=1e30, clip=None), trial(seed=2), trial(seed=3, lr=1e-2)]
    monkeypatch.setattr(Cohort, "better_fewer", lambda own, going, *_: fewer and 0 < going < len(own.members))
    early, bad, *rest = run_cohort(specs, device=torch.device("cuda"))
    assert (early.steps, bad.status, [r.steps for r in rest]) == (4, "failed", [12, 12])
    for record, spec in zip(rest, specs[2:], strict=True):
        assert record.implementation["compiled step"] == "yes"
        assert figures(record) == pytest.approx(figures(run_trial(spec, device="cpu")), rel=1e-2, abs=2e-2)


@pytest.mark.gpu
def test_on_a_gpu_few_steps_are_trained_as_they_are() -> None:
    specs = [trial(), trial(seed=1)]
    for record, spec in zip(run_cohort(specs, device=torch.device("cuda")), specs, strict=True):
        assert record.implementation["compiled step"] == "not worth it: 12 steps"
        assert figures(record) == pytest.approx(figures(run_trial(spec, device="cpu")), rel=1e-2, abs=2e-2)


@pytest.mark.gpu
@pytest.mark.usefixtures("worth_compiling")
def test_on_a_gpu_a_step_that_the_compiler_cannot_build_is_trained_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(function: Callable[..., Any], backend: str) -> Callable[..., Any]:
        return compiled(function, broken("no room") if function.__name__ == "member_losses" else backend)

    monkeypatch.setattr("recallmap.search.training.lane.compiled", step)
    specs = [trial(), trial(seed=1)]
    for record, spec in zip(run_cohort(specs, device=torch.device("cuda")), specs, strict=True):
        assert record.implementation["compiled step"] == "no: RuntimeError: no room"
        assert figures(record) == pytest.approx(figures(run_trial(spec, device="cpu")), rel=1e-2, abs=2e-2)


@pytest.mark.gpu
def test_the_memory_of_a_cohort_is_not_that_of_the_one_before() -> None:
    """However much what libraries keep for themselves, which is some 150 MB."""
    large, small = (run_cohort([trial(batch=batch)], device=torch.device("cuda"))[0] for batch in (2**14, 8))
    assert large.peak_bytes is not None
    assert small.peak_bytes is not None
    assert 0 < small.peak_bytes < large.peak_bytes / 2


@pytest.mark.gpu
@pytest.mark.usefixtures("worth_compiling")
def test_on_a_gpu_steps_of_every_length_share_their_memory() -> None:
    """And each computes what it would alone."""
    mix = tuple(Portion(task=Mqar(vocab=32, length=n, pairs=4), examples=64) for n in (16, 24, 40))
    specs = [replace(trial(seed=s, steps=30), mix=mix) for s in (0, 1)]
    cohort, other = (Cohort(specs, torch.device("cuda")) for _ in range(2))
    other.lanes[0].captured = None
    ours, theirs = (torch.stack([loss_N.clone() for _, loss_N in own.trained(0)]) for own in (cohort, other))
    assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    (captured,) = cohort.captured
    graphs = [step.graph for step in captured.graphs.values()]
    assert (len(graphs), len({graph.pool() for graph in graphs})) == (3, 1)


def test_cohorts_hold_trials_of_equal_shape() -> None:
    same = [trial(seed=s, lr=lr) for s in (0, 1) for lr in (1e-3, 1e-2)]
    other = [trial(batch=4), trial(backbone=arch(Attention(heads=4))), trial(Mqar(vocab=32, length=32, pairs=2))]
    assert len({s.shape for s in same}) == 1
    assert len({s.shape for s in same + other}) == 4
    assert pack([same[0], other[0], *same[1:]], at_most(3)) == [[0, 2, 3], [1], [4]]
    with pytest.raises(ValueError, match="shapes"):
        run_cohort([same[0], other[0]])


@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_optimizer_is_adamw(clip: float | None) -> None:
    specs = [trial(lr=1e-2, weight_decay=0.1, clip=clip), trial(lr=3e-2, weight_decay=0.5, clip=clip)]
    rng = torch.Generator().manual_seed(0)
    flat = torch.randn(2, 7, generator=rng)
    peers = [torch.nn.Parameter(row.clone()) for row in flat]
    optimizers = [
        torch.optim.AdamW([p], lr=s.training.lr, betas=s.training.betas, weight_decay=s.training.weight_decay)
        for p, s in zip(peers, specs, strict=True)
    ]
    ours = AdamW(specs, flat)
    rate = torch.tensor([[s.training.lr] for s in specs])
    for _ in range(5):
        gradient = torch.randn(2, 7, generator=rng)
        for peer, row, optimizer in zip(peers, gradient, optimizers, strict=True):
            peer.grad = row.clone()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([peer], clip)
            optimizer.step()
        ours.step(flat, gradient, rate)
        torch.testing.assert_close(flat, torch.stack([p.detach() for p in peers]), rtol=1e-5, atol=1e-6)


def test_the_schedule_rises_to_its_peak_and_falls_to_its_floor() -> None:
    cosine = learning_rate(Schedule(kind="cosine", warmup=0.1, start=1e-7, floor=1e-5), 1e-3, 100)
    assert len(cosine) == 100
    assert np.argmax(cosine) == 9
    assert cosine[9] == pytest.approx(1e-3)
    assert cosine[-1] == pytest.approx(1e-5)
    assert np.all(np.diff(cosine[9:]) < 0)
    linear = learning_rate(Schedule(kind="linear", warmup=0), 1.0, 4)
    assert linear == pytest.approx([0.75, 0.5, 0.25, 0.0])
    assert learning_rate(Schedule(kind="constant", warmup=2), 1.0, 4) == pytest.approx([0.5, 1, 1, 1])
    assert learning_rate(Schedule(warmup=10), 1.0, 4) == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_the_last_step_is_always_looked_at() -> None:
    assert evaluation_steps(10, 3) == {4, 7, 10}
    assert evaluation_steps(2, 5) == {1, 2}


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        (
            {"tests": (Mqar(vocab=64, length=16, pairs=2),)},
            "tests: one model answers all tasks, got mqar with 64 tokens and readout 'each', expected those of task mqar, 32 "
            "tokens and readout 'each'",
        ),
        ({"mix": (Portion(task=Mqar(vocab=16, length=16, pairs=2), examples=8),)}, "mix: one model answers all"),
    ],
)
def test_what_one_model_cannot_answer_is_refused(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(trial(), **dials)


def test_a_cohort_that_cannot_be_built_leaves_the_threads_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr("recallmap.search.training.cohort.Feed", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Cohort([trial(), trial(seed=1)], torch.device("cpu"))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("members", [1, 2])
def test_small_members_have_a_core_each_and_the_caller_has_its_cores_back(members: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        during = []
        steps = train([trial(seed=seed) for seed in range(members)], torch.device("cpu"))
        for _ in steps:
            during.append(torch.get_num_threads())
        assert set(during) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


def test_one_alone_has_all_cores_where_its_step_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = trial()
    monkeypatch.setattr("recallmap.search.training.cohort.LARGE", spec.effort / spec.steps)
    assert Cohort([spec], torch.device("cpu")).crew is None
    crew = Cohort([spec, trial(seed=1)], torch.device("cpu")).crew
    assert crew is not None
    crew.dismiss()


@pytest.mark.parametrize(
    ("module", "said", "found"),
    [
        ("recallmap.search.cli", {}, "PASSIVE None"),
        ("recallmap.search.engines.ray_workers", {}, "PASSIVE None"),
        ("recallmap.search.trial", {}, "PASSIVE None"),
        ("recallmap.search.trial", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ("recallmap.search.trial", {"GOMP_SPINCOUNT": "5"}, "None 5"),
    ],
)
def test_threads_that_wait_sleep_wherever_one_begins_unless_the_user_says_otherwise(
    module: str, said: dict[str, str], found: str
) -> None:
    """Said before PyTorch is there: its OpenMP reads it once."""
    code = f"""
import builtins, os
original = builtins.__import__
def first(name, *rest):
    if name == "torch" and first.said is None:
        first.said = f"{{os.environ.get('OMP_WAIT_POLICY')}} {{os.environ.get('GOMP_SPINCOUNT')}}"
        print(first.said, flush=True)
        os._exit(0)
    return original(name, *rest)
first.said = None
builtins.__import__ = first
import {module}
from recallmap.search import trial
"""
    clean = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    root = str(Path(__file__).parents[3])
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | said | {"PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, found, "")


def test_an_empty_portion_is_refused() -> None:
    with pytest.raises(ValueError, match="examples must be at least 1, got 0"):
        Portion(task=TASK, examples=0)


def test_a_mix_may_take_no_step() -> None:
    none = replace(trial(steps=0), mix=(Portion(task=TASK, examples=8),))
    (record,) = run_cohort([none])
    assert (record.status, record.steps) == ("done", 0)


def test_a_gpu_evaluates_as_many_sequences_at_once_as_two_steps_train_where_logits_are_few() -> None:
    few = {"members": 24, "length": 128, "batch": 64}
    assert sequences_at_once("cpu", **few, logits=8 * 64) == 2**17 // (24 * 128) == 42
    assert sequences_at_once("cuda", **few, logits=8 * 64) == 128
    assert sequences_at_once("cuda", **few, logits=128 * 8192) == 42
    assert sequences_at_once("cuda", members=4096, length=1024, batch=1, logits=0) == 2


def test_an_answer_of_0_is_no_reason_to_diverge() -> None:
    """Regression weighs an error by the square of its answer, so that the relative error of an answer of 0 counts nothing."""
    answers = torch.tensor([1.0, 0.0, 1e-22, -2.0])
    targets = torch.zeros(1, 1, 4, 3)
    targets[..., 0] = answers
    outputs = torch.randn(1, 1, 4, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (found,) = losses(outputs, targets, answers.square()[None, None])
    (gradient,) = torch.autograd.grad(found, outputs)
    whole = (outputs - targets).square().sum(-1).detach()
    assert found.item() == pytest.approx((whole[0, 0, 0] + whole[0, 0, 3]).item() / 5)
    assert gradient.isfinite().all()
    assert gradient[0, 0, [0, 3]].ne(0).all()
