"""Streams: what the laws do not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from recallmap.synth.streams import Stream
from recallmap.synth.task import Split, Task
from recallmap.synth.tasks import InContextRecall, Memorization, Mqar, Needle


def test_two_settings_share_no_chance() -> None:
    one, other = Mqar(vocab=256, length=32), Mqar(vocab=256, length=64)
    pairs = [Stream(task, 0, "train").take(0, 64).inputs[:, :8] for task in (one, other)]
    assert (pairs[0] == pairs[1]).mean() < 0.05


def test_a_new_dial_at_its_default_leaves_the_bits_alone() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Extended(InContextRecall):
        kind: Literal["in_context_recall"] = "in_context_recall"
        colour: str = "red"

    plain, extended, other = InContextRecall(length=8), Extended(length=8), Extended(length=8, colour="blue")
    first = [Stream(task, 0, "test").take(0, 8).inputs for task in (plain, extended, other)]
    assert (first[0] == first[1]).all()
    assert (first[0] != first[2]).any()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mqar(power=1), Mqar(power=1.0)),
        (Mqar(pairs=8), Mqar(pairs=np.int64(8))),
        (Needle(depth=50), Needle(depth=50.0)),
        (Needle(permuted=True), Needle(permuted=1)),
    ],
)
def test_equal_specs_have_one_stream(one: Task, other: Task) -> None:
    assert one == other
    assert (Stream(one, 0, "test").take(0, 8).inputs == Stream(other, 0, "test").take(0, 8).inputs).all()


def test_what_is_taken_is_the_callers_own() -> None:
    stream = Stream(InContextRecall(length=8), 0, "train")
    first = stream.take(0, 4)
    kept = first.inputs.copy()
    first.inputs[:] = 0
    assert (stream.take(0, 4).inputs == kept).all()


def test_a_block_is_generated_once_while_it_is_in_use() -> None:
    calls = []

    @dataclass(frozen=True, kw_only=True)
    class Counted(Memorization):
        def sample(self, rng, count, split):  # type: ignore[no-untyped-def]
            calls.append(count)
            return super().sample(rng, count, split)

    stream = Stream(Counted(), 0, "train")
    for start in range(0, 2 * stream.block, 100):
        stream.take(start, 100)
    assert calls == [stream.block] * 3


@pytest.mark.parametrize("length", [2, 64, 1000, 8192, 2**20])
def test_blocks_of_long_sequences_hold_few(length: int) -> None:
    block = Stream(Memorization(length=length), 0, "train").block
    assert 1 <= block <= 1024
    assert block * length <= 2**18 or block == 1


@pytest.mark.parametrize(
    ("seed", "split", "said"), [(-1, "train", "seed must not be negative"), (0, "dev", "split must be one of train")]
)
def test_a_stream_that_is_none_is_refused(seed: int, split: Split, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Stream(InContextRecall(), seed, split)


def test_a_take_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="count at least 1"):
        Stream(InContextRecall(), 0, "train").take(0, 0)


def test_tokens_of_different_blocks_are_unrelated() -> None:
    stream = Stream(InContextRecall(), 0, "train")
    one, other = stream.take(0, 512).inputs, stream.take(stream.block, 512).inputs
    assert np.mean(one[:, ::2] == other[:, ::2]) == pytest.approx(1 / 8, abs=0.01)
