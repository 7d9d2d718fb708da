"""Cohorts whose members differ in task, vocabulary, steps and numbers of sequences: each has what it has alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.kernels import cross_entropy, embedding
from recallmap.arch.mixers import Attention, BaseConv
from recallmap.search import codec
from recallmap.search.sequences.drawn_ahead import drawing_ahead
from recallmap.search.training import lane
from recallmap.search.training.checkpoints import CheckpointFolder, checkpointing
from recallmap.search.training.cohort import Cohort
from recallmap.search.training.loop import train
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.training.padding import Layout, row_of
from recallmap.search.training.run_cohort import run_cohort
from recallmap.search.training.stacked_model import Stacked
from recallmap.search.training.time_limit import TimeIsUp, TimeLimit
from recallmap.search.trial import Data, Portion, Schedule, Training, TrialSpec
from recallmap.synth.tasks import (
    Compression,
    InContextRecall,
    Learnability,
    Memorization,
    Mqar,
    Regbench,
    SelectiveCopying,
    Task,
)

CPU = torch.device("cpu")
ARCH = BackboneSpec(name="tiny", width=16, stack=(Block(mixer=BaseConv()), Block(mixer=Attention(heads=2))))
TIED = replace(ARCH, tied=True, soft_cap=5.0)
TASK = Mqar(vocab=32, length=16, pairs=2)
LETTERS = Regbench(
    letters=6, states=(3, 4), alphabet=(3, 6), out_degree=(1, 2), words=(3, 5), word_length=(1, 8), length=16
)


def trial(task: Task = TASK, *, arch: BackboneSpec = ARCH, data: Data | None = None, **rest: Any) -> TrialSpec:
    own = {name: rest.pop(name) for name in ("seed", "mix", "tests") if name in rest}
    training = Training(**({"steps": 12, "batch": 8, "evaluations": 3, "lr": 3e-3} | rest))
    return TrialSpec(task=task, arch=arch, training=training, data=data or Data(validation=32, test=24), **own)


def epochs(train: int, number: int, task: Task = TASK, **rest: Any) -> TrialSpec:
    return trial(task, data=Data(train=train, validation=16, test=16), steps=None, epochs=number, **rest)


VOCABULARIES = [
    trial(TASK),
    trial(Mqar(vocab=14, length=16, pairs=4), seed=1),
    trial(InContextRecall(vocab=8, length=16)),
    trial(Memorization(vocab=50, length=16), weight_decay=0.5),
]
CASES = {
    "steps": [trial(), trial(steps=5, seed=1), trial(steps=16, evaluations=2), trial(steps=1)],
    "no step at all": [trial(steps=0), trial(steps=3), trial(steps=0, seed=1)],
    "schedules": [trial(schedule=Schedule(kind="linear", warmup=3), clip=0.1), trial(steps=7, evaluations=7)],
    "numbers of sequences": [
        trial(data=Data(validation=9, test=33)),
        trial(seed=1, data=Data(validation=40, test=3)),
    ],
    "training sets and epochs": [epochs(20, 3), epochs(33, 2, seed=1), epochs(8, 4), epochs(64, 1)],
    "vocabularies": VOCABULARIES,
    "tied heads": [replace(spec, arch=TIED) for spec in VOCABULARIES],
    "read-out from the last": [trial(Compression(vocab=8, length=8)), trial(Compression(vocab=13, length=8), steps=5)],
    "probabilities": [trial(LETTERS), trial(Mqar(vocab=24, length=16, pairs=2))],
    "protocols": [
        trial(Memorization(vocab=20, length=16, protocol="mad-lab")),
        trial(Mqar(vocab=32, length=16, pairs=2, protocol="zoology"), steps=8),
        trial(),
    ],
    "mixes and tests": [
        trial(
            replace(TASK, vocab=vocab),
            steps=steps,
            seed=vocab,
            mix=tuple(
                Portion(task=replace(TASK, vocab=vocab, length=n), examples=size)
                for n, size in ((16, 20), (24, vocab // 2 - 3))
            ),
            tests=tuple(Mqar(vocab=vocab, length=n, pairs=pairs) for n in lengths),
        )
        for vocab, steps, pairs, lengths in ((32, 9, 2, (24,)), (36, 14, 4, (20, 32)), (32, 12, 1, ()))
    ],
    "those who leave": [
        trial(steps=12, stop_at=-1.0),
        trial(InContextRecall(vocab=8, length=16), lr=1e30, clip=None, steps=9),
        trial(Mqar(vocab=50, length=16, pairs=1), steps=15),
    ],
}
FIGURES = ("error", "scores", "validation", "tests", "curve", "published_choice", "steps", "selected_step")


def follow(specs: list[TrialSpec], at_once: int | None = None) -> Iterator[Progress]:
    return train(specs, CPU, at_once=at_once)


def ended(steps: Iterator[Progress]) -> list[Outcome]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def assert_equal(ours: Outcome, theirs: Outcome) -> None:
    """To the last bit."""
    for name in FIGURES:
        assert str(getattr(ours, name)) == str(getattr(theirs, name)), name
    assert ours.weights.keys() == theirs.weights.keys()
    assert all(torch.equal(ours.weights[name], weight) for name, weight in theirs.weights.items())


def assert_close(ours: Outcome, theirs: Outcome) -> None:
    """But for sums in another order."""
    assert (ours.error, ours.steps, ours.selected_step) == (theirs.error, theirs.steps, theirs.selected_step)
    for name in ("scores", "validation", "published_choice"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-4, abs=1e-5, nan_ok=True)
    for one, other in zip(ours.tests, theirs.tests, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5, nan_ok=True)
    for name, values in theirs.curve.items():
        assert ours.curve[name] == pytest.approx(values, rel=1e-4, abs=1e-5, nan_ok=True)
    assert ours.weights.keys() == theirs.weights.keys()
    for name, weight in theirs.weights.items():
        torch.testing.assert_close(ours.weights[name], weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_a_member_of_a_mixed_cohort_has_to_the_last_bit_what_it_has_alone(case: str) -> None:
    specs = CASES[case]
    assert len({spec.shape for spec in specs}) == 1
    for spec, ours in zip(specs, ended(follow(specs)), strict=True):
        (alone,) = ended(follow([spec]))
        assert_equal(ours, alone)


@pytest.mark.parametrize("case", CASES)
def test_a_member_of_a_padded_stack_has_what_it_has_alone(case: str) -> None:
    """As on a GPU: all members in one call, vocabularies and sets of sequences padded to the largest."""
    specs = CASES[case]
    for spec, ours in zip(specs, ended(follow(specs, len(specs))), strict=True):
        (alone,) = ended(follow([spec]))
        assert_close(ours, alone)


@pytest.mark.parametrize("task", [t() for t in get_args(Task) if t.signal == "tokens"], ids=lambda task: task.kind)
def test_every_task_trains_beside_one_of_a_wider_vocabulary(task: Task) -> None:
    length, vocab = task.shape
    wider = SelectiveCopying(vocab=vocab + 7, length=length, copies=1)
    if task.readout == "last":
        wider = replace(task, vocab=vocab + 7)
    few = {"steps": 2, "batch": 2, "evaluations": 1, "data": Data(validation=4, test=4)}
    specs = [trial(task, **few), trial(wider, **few)]
    assert specs[0].shape == specs[1].shape
    apart, stacked = ended(follow(specs)), ended(follow(specs, 2))
    for spec, ours, padded in zip(specs, apart, stacked, strict=True):
        (alone,) = ended(follow([spec]))
        assert_equal(ours, alone)
        assert_close(padded, alone)


def test_what_is_padded_has_no_part_in_training() -> None:
    """Not in weights, gradients, decay, clip norm or moments: it is 0 from beginning to end."""
    cohort = Cohort([replace(s, arch=TIED) for s in VOCABULARIES], CPU, len(VOCABULARIES))
    (lane,) = cohort.lanes
    for _, loss_N in cohort.trained(0):
        assert loss_N.isfinite().all()
    for tensor in (lane.flat, lane.optimizer.first, lane.optimizer.second):
        embedding_NVD = lane.model.layout.parameters(tensor)["embedding.weight"]
        for spec, rows_VD in zip(cohort.specs, embedding_NVD, strict=True):
            vocab = spec.task.shape[1]
            assert rows_VD[:vocab].abs().sum(1).all()
            assert not rows_VD[vocab:].any()
    cohort.close()


def test_logits_beyond_a_members_vocabulary_are_minus_infinity() -> None:
    vocabs = [8, 5]
    models = [ARCH.build(vocab=vocab, seed=vocab) for vocab in vocabs]
    stacked = Stacked(models[0], vocabs, CPU)
    inputs = torch.randint(0, 5, (2, 3, 16))
    logits = stacked.logits(stacked.layout.padded([row_of(model) for model in models]), inputs, None)
    for model, vocab, own, read in zip(models, vocabs, logits, inputs, strict=True):
        torch.testing.assert_close(own[..., :vocab], model(read))
        assert (own[..., vocab:] == -math.inf).all()


@pytest.mark.parametrize("name", sorted(codec.builtin("arch")))
def test_every_architecture_keeps_its_own_initial_values_when_it_is_padded(name: str) -> None:
    arch, vocabs = codec.read_arch(name), [7, 12]
    models = [arch.build(vocab=vocab, seed=1, length=8) for vocab in vocabs]
    layout = Layout(models[0], vocabs, CPU)
    flat = layout.padded([row_of(model) for model in models])
    for position, model in enumerate(models):
        assert torch.equal(layout.own(flat[position], position), row_of(model))
        assert flat[position].count_nonzero() == row_of(model).count_nonzero()
    widest = dict(models[1].named_parameters())
    for parameter, value in layout.parameters(flat).items():
        assert torch.equal(value[1], widest[parameter])


def test_vectors_of_other_widths_train_apart() -> None:
    shapes = {trial(Learnability(width=width, length=16)).shape for width in (8, 12)}
    assert len(shapes) == 2


@pytest.mark.parametrize("stop", [1, 3, 5])
@pytest.mark.parametrize("at_once", [1, 4])
def test_an_interrupted_mixed_cohort_ends_as_if_it_had_not_been(stop: int, at_once: int, tmp_path: Path) -> None:
    specs = [
        trial(Mqar(vocab=50, length=16, pairs=1), steps=15),
        trial(steps=6, evaluations=2),
        trial(InContextRecall(vocab=8, length=16), steps=9, evaluations=4, seed=3),
        trial(Memorization(vocab=20, length=16), steps=14),
    ]
    expected = ended(follow(specs, at_once))
    with checkpointing(CheckpointFolder(tmp_path / "checkpoints", every=0)) as checkpoints:
        steps = follow(specs, at_once)
        for _ in range(stop):
            next(steps)
        steps.close()  # type: ignore[attr-defined]
        again = follow(specs, at_once)
        found = ended(again)
        checkpoints.clear()
    assert not (tmp_path / "checkpoints").exists()
    for ours, theirs in zip(found, expected, strict=True):
        (assert_equal if at_once == 1 else assert_close)(ours, theirs)


@pytest.mark.parametrize("stop", [2, 8, 13])
def test_a_mixed_cohort_whose_time_is_up_between_evaluations_goes_on_to_the_last_bit(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [
        trial(steps=16, evaluations=2),
        trial(Mqar(vocab=50, length=16, pairs=1), steps=9),
        trial(seed=1, steps=14),
    ]
    expected, asked = ended(follow(specs)), iter(range(1, 100))
    monkeypatch.setattr(TimeLimit, "is_up_on", lambda *_: next(asked) == stop)
    with checkpointing(CheckpointFolder(tmp_path, every=1e6)):
        with pytest.raises(TimeIsUp):
            ended(follow(specs))
        for ours, theirs in zip(ended(follow(specs)), expected, strict=True):
            assert_equal(ours, theirs)


def test_a_mixed_cohort_goes_on_without_those_who_are_through(tmp_path: Path) -> None:
    """Also where the one that is through had the widest vocabulary, and where all are stacked."""
    early, wide = trial(steps=6, evaluations=2), trial(Mqar(vocab=50, length=16, pairs=1), steps=4, evaluations=1)
    rest = [trial(InContextRecall(vocab=8, length=16), steps=14, evaluations=7), trial(steps=12, seed=3)]
    expected = [ended(follow([spec]))[0] for spec in rest]
    for number, at_once in enumerate((1, 4)):
        with checkpointing(CheckpointFolder(tmp_path / str(number), every=0)):
            steps = follow([early, rest[0], wide, rest[1]], at_once)
            through: set[int] = set()
            while not through >= {0, 2}:
                through |= set(next(steps).ended)
            steps.close()  # type: ignore[attr-defined]
            later = follow(rest, at_once)
            assert [next(later).step, next(later).step] == [6, 8]
            for ours, theirs in zip(ended(later), expected, strict=True):
                (assert_equal if at_once == 1 else assert_close)(ours, theirs)


def test_members_are_reported_when_their_own_steps_end() -> None:
    specs = [trial(steps=4, evaluations=1), trial(steps=9, evaluations=3), trial(steps=6, evaluations=2)]
    told = [(progress.step, progress.steps, sorted(progress.ended)) for progress in follow(specs)]
    assert told == [(3, 9, []), (4, 9, [0]), (6, 9, [2]), (9, 9, [1])]


def test_a_record_says_how_many_trained_together() -> None:
    records = run_cohort([trial(), trial(Mqar(vocab=50, length=16, pairs=1), steps=5)], device="cpu")
    assert [(r.status, r.cohort, r.steps) for r in records] == [("done", 2, 12), ("done", 2, 5)]
    assert [r.parameters for r in records] == [
        sum(p.numel() for p in ARCH.build(vocab=v).parameters()) for v in (32, 50)
    ]


def test_a_padded_step_compiles_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallmap.search.training.lane.COMPILING", 0.0)
    lanes = []
    for backend in ("", "aot_eager"):
        cohort = Cohort(VOCABULARIES, CPU, len(VOCABULARIES))
        (lane,), ((pool, rows),) = cohort.lanes, next(iter(cohort.feed))
        cohort.close()
        batch = pool.batch(rows)
        if backend:
            assert lane.compile(batch, backend=backend) == "yes"
        lane.update(*batch)
        lanes.append(lane)
    plain, compiled = lanes
    torch.testing.assert_close(compiled.flat, plain.flat)


def test_a_file_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    """It has no sums of losses, and one number of columns for all members."""
    specs = [trial(), trial(Mqar(vocab=32, length=16, pairs=4), seed=1)]
    expected = ended(follow(specs))
    with checkpointing(CheckpointFolder(tmp_path, every=0)):
        steps = follow(specs)
        next(steps), next(steps)
        steps.close()  # type: ignore[attr-defined]
        (path,) = tmp_path.iterdir()
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            about = file.metadata()
        said = json.loads(about["said"])
        del tensors[max(name for name in tensors if name.startswith("row "))]
        save_file(tensors, path, metadata=about | {"said": json.dumps(said | {"columns": [8]})})
        rest = follow(specs)
        assert [next(rest).step, next(rest).step] == [8, 12]
        for ours, theirs in zip(ended(rest), expected, strict=True):
            assert_close(ours, theirs)


@pytest.mark.parametrize("case", ["steps", "vocabularies", "training sets and epochs"])
def test_sequences_of_a_mixed_cohort_that_are_drawn_ahead_are_the_same(case: str) -> None:
    with drawing_ahead(2):
        ahead = ended(follow(CASES[case]))
    for ours, theirs in zip(ahead, ended(follow(CASES[case])), strict=True):
        assert_equal(ours, theirs)


@pytest.mark.parametrize("scored", ["every position", "some"])
@pytest.mark.parametrize("arch", [ARCH, TIED], ids=["head", "tied"])
def test_the_kernels_that_end_a_step_on_a_gpu_give_its_losses_and_gradients(
    arch: BackboneSpec, scored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the interpreter: cross entropy over vocabularies of members, and the vectors of their tokens."""
    vocabs, generator = [9, 13], torch.Generator().manual_seed(0)
    models = [arch.build(vocab=vocab, seed=seed) for seed, vocab in enumerate(vocabs)]
    model = Stacked(models[0], vocabs, CPU)
    flat = model.layout.padded([row_of(one) for one in models]).requires_grad_()
    inputs = torch.randint(9, (2, 3, 8), generator=generator)
    at = None if scored == "every position" else torch.randint(8, (2, 3, 4), generator=generator)
    targets = torch.randint(-1, 9, (inputs if at is None else at).shape, generator=generator)

    def found() -> list[torch.Tensor]:
        losses = lane.training_losses(model, False, flat, inputs, at, targets, (targets >= 0).float())
        return [losses, *torch.autograd.grad(losses.sum(), flat)]

    expected = found()
    for module in (lane, embedding, cross_entropy):
        monkeypatch.setattr(module, "fuses", lambda x: True)
    torch.testing.assert_close(found(), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("worth", [0.0, math.inf], ids=["compiled", "as it is"])
def test_on_a_gpu_a_mixed_cohort_trains_as_on_a_cpu(worth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallmap.search.training.lane.COMPILING", worth)
    specs = [*VOCABULARIES, trial(steps=5, evaluations=2), trial(Mqar(vocab=40, length=16, pairs=1), stop_at=-1.0)]
    for spec, record in zip(specs, run_cohort(specs, device="cuda"), strict=True):
        alone = run_cohort([spec], device="cpu")[0]
        assert (record.status, record.steps) == ("done", alone.steps)
        assert (record.implementation["compiled step"] == "yes") == (worth == 0.0)
        assert record.scores == pytest.approx(alone.scores, rel=1e-2, abs=2e-2, nan_ok=True)
