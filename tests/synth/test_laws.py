"""What holds for every task."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.streams import Stream
from recallmap.synth.task import Split
from recallmap.synth.task import Task as AnyTask

Draw = Callable[..., Batch]
SPLITS: tuple[Split, ...] = get_args(Split)


def rows(batch: Batch) -> set[bytes]:
    return {row.tobytes() for row in np.ascontiguousarray(batch.inputs)}


def same(one: Batch, other: Batch) -> bool:
    return bool(
        np.array_equal(one.inputs, other.inputs)
        and np.array_equal(one.targets, other.targets)
        and all(np.array_equal(one.aux[name], other.aux[name], equal_nan=True) for name in {*one.aux, *other.aux})
    )


def test_a_spec_is_frozen_hashable_and_equal_by_value(task: AnyTask) -> None:
    again = dataclasses.replace(task)
    assert again == task
    assert hash(again) == hash(task)
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.protocol = "other"  # type: ignore[misc]


def test_an_unknown_protocol_is_refused(task: AnyTask) -> None:
    with pytest.raises(ValueError, match="protocol must be"):
        dataclasses.replace(task, protocol="nonsense")


@pytest.mark.parametrize("split", SPLITS)
def test_inputs_and_targets_have_the_shape_that_the_task_tells(task: AnyTask, split: Split, draw: Draw) -> None:
    batch = draw(task, count=5, split=split)
    length, vocab = task.shape
    tokens = task.signal == "tokens"
    shape = (5, length) if tokens else (5, length, vocab)
    assert batch.inputs.shape == batch.targets.shape == shape
    assert batch.inputs.dtype == batch.targets.dtype == (np.int64 if tokens else np.float32)
    assert len(batch) == 5


def test_one_generator_gives_one_batch(task: AnyTask, draw: Draw) -> None:
    assert same(draw(task, count=8), draw(task, count=8))
    assert not same(draw(task, count=8), draw(task, count=8, seed=1))


def test_roles_cover_the_vocabulary(token_task: AnyTask) -> None:
    assert token_task.roles().vocab == token_task.shape[1]


@pytest.mark.parametrize("split", SPLITS)
def test_tokens_lie_in_the_vocabulary(token_task: AnyTask, split: Split, draw: Draw) -> None:
    batch = draw(token_task, split=split)
    vocab = token_task.shape[1]
    scored = batch.targets != IGNORE
    assert ((batch.inputs >= 0) & (batch.inputs < vocab)).all()
    assert ((batch.targets[scored] >= 0) & (batch.targets[scored] < vocab)).all()
    assert scored.any(axis=1).all(), "a sequence that asks nothing"


@pytest.mark.parametrize("split", SPLITS)
def test_a_source_shows_the_answer(token_task: AnyTask, split: Split, draw: Draw) -> None:
    batch = draw(token_task, split=split)
    sources = token_task.sources(batch)
    found = sources >= 0
    assert sources.shape == batch.targets.shape
    assert (batch.targets[found] != IGNORE).all()
    shown = np.take_along_axis(batch.inputs, np.maximum(sources, 0), axis=1)
    assert (shown[found] == batch.targets[found]).all()


def test_a_source_lies_in_the_past(token_task: AnyTask, draw: Draw) -> None:
    sources = token_task.sources(draw(token_task))
    readers = np.arange(sources.shape[1]) if token_task.readout == "each" else sources.shape[1] - 1
    assert (sources <= readers).all()


def test_right_answers_score_one(token_task: AnyTask, draw: Draw) -> None:
    batch = draw(token_task)
    sure = np.eye(token_task.shape[1])[np.maximum(batch.targets, 0)] if token_task.wants_probabilities else None
    assert token_task.score(batch, batch.targets, sure)[token_task.metric] == pytest.approx(1.0)


def test_only_scored_positions_count(token_task: AnyTask, draw: Draw) -> None:
    batch = draw(token_task)
    vocab = token_task.shape[1]
    answers = np.random.default_rng(0).integers(vocab, size=batch.targets.shape)
    sure = np.full((*answers.shape, vocab), 1 / vocab) if token_task.wants_probabilities else None
    elsewhere = np.where(batch.targets == IGNORE, (answers + 1) % vocab, answers)
    assert token_task.score(batch, answers, sure) == token_task.score(batch, elsewhere, sure)


def test_scores_are_named_before_anything_is_trained(task: AnyTask, draw: Draw) -> None:
    batch = draw(task, count=64, split="test")
    guesses = np.roll(batch.targets, 1, axis=0)
    shares = np.full((*batch.targets.shape, task.shape[1]), 0.5) if task.wants_probabilities else None
    told = task.score(batch, guesses, shares)
    assert task.score_names() == [name for name in told if "/" not in name]
    assert task.metric in task.score_names()


def test_chance_lies_below_the_ceiling(task: AnyTask) -> None:
    assert 0 <= task.chance() < task.ceiling() <= 1


@pytest.mark.parametrize("split", SPLITS)
def test_a_stream_is_the_same_in_any_portions(task: AnyTask, split: Split) -> None:
    stream = Stream(task, 3, split)
    edge = stream.block
    whole = stream.take(edge - 6, 12)
    pieces = [Stream(task, 3, split).take(edge + 2, 4), stream.take(edge - 6, 1), stream.take(edge - 5, 7)]
    assert same(Batch.join([pieces[1], pieces[2], pieces[0]]), whole)


def test_streams_do_not_depend_on_the_hash_of_strings() -> None:
    code = (
        "import hashlib; from typing import get_args\n"
        "from recallmap.synth.streams import Stream; from recallmap.synth.tasks import Task\n"
        "takes = [Stream(task(), 1, 'train').take(0, 4).inputs for task in get_args(Task)]\n"
        "print(hashlib.sha256(b''.join(inputs.tobytes() for inputs in takes)).hexdigest())"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]


def test_splits_and_seeds_have_streams_of_their_own(task: AnyTask) -> None:
    firsts = [Stream(task, seed, split).take(0, 1).inputs.tobytes() for seed in (0, 1) for split in SPLITS]
    assert len(set(firsts)) == len(firsts)


def test_no_test_sequence_was_trained_on(task: AnyTask) -> None:
    asked = rows(Stream(task, 0, "test").take(0, 1024)) | rows(Stream(task, 0, "validation").take(0, 512))
    stream = Stream(task, 0, "train")
    for start in range(0, 20_000, stream.block):
        assert not asked & rows(stream.take(start, stream.block))
