"""What holds for every task."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recallmap.synth import laws
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.laws import SPLITS
from recallmap.synth.score import batched_macro
from recallmap.synth.task import Split
from recallmap.synth.task import Task as AnyTask
from recallmap.synth.tasks import GroupWord, Hops, InContextRecall, Learnability, Parity


def held(verdict: laws.Verdict) -> None:
    assert verdict.holds, verdict.fault


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
def test_inputs_and_targets_have_the_shape_that_the_task_tells(task: AnyTask, split: Split) -> None:
    held(laws.shapes(task, (split,)))


def test_one_generator_gives_one_batch(task: AnyTask) -> None:
    held(laws.reproducible(task, ()))


@pytest.mark.parametrize("split", SPLITS)
def test_tokens_lie_in_the_vocabulary_that_roles_cover_and_each_sequence_asks(
    token_task: AnyTask, split: Split
) -> None:
    held(laws.vocabulary(token_task, (split,)))


@pytest.mark.parametrize("split", SPLITS)
def test_a_source_lies_in_the_past_and_shows_the_answer(token_task: AnyTask, split: Split) -> None:
    held(laws.sourced(token_task, (split,)))


def test_right_answers_score_one_only_scored_positions_count_and_scores_are_named(task: AnyTask) -> None:
    held(laws.scored(task))


def test_a_task_of_ours_says_the_standard_error_of_every_score(task: AnyTask) -> None:
    """But of parts of the answers that lie in one sequence alone. A task of one's own that scores itself need not."""
    batch = task.sample(np.random.default_rng(0), 256, "test")
    guesses = np.roll(batch.targets, 1, axis=0)
    guesses[::2] = batch.targets[::2]
    vocab = task.shape[1]
    shares = np.eye(vocab)[np.maximum(guesses, 0)] / 2 + 1 / 2 / vocab if task.wants_probabilities else None
    scores, errors = (score(batch, guesses, shares) for score in (task.score, task.standard_errors))
    assert {name for name in scores if "/" not in name} <= errors.keys() <= scores.keys()
    assert len(errors) > 0.8 * len(scores)
    assert errors[task.metric] > 0


def test_the_standard_error_of_a_scaled_score_is_scaled_and_of_words_that_of_sequences() -> None:
    tracked = GroupWord(group="S3", length=8)
    batch = tracked.sample(np.random.default_rng(0), 64, "test")
    answers = np.where(np.random.default_rng(1).random(batch.targets.shape) < 0.7, batch.targets, 0)
    errors = tracked.standard_errors(batch, answers)
    assert errors["scaled_accuracy"] == pytest.approx(errors["accuracy"] / (1 - tracked.chance()))
    hops = Hops()
    batch = hops.sample(np.random.default_rng(0), 64, "test")
    answers = np.where(np.random.default_rng(1).random(batch.targets.shape) < 0.7, batch.targets, 0)
    words = [hops.score(batch.rows(slice(n, n + 1)), answers[n : n + 1])["word_accuracy"] for n in range(64)]
    assert hops.standard_errors(batch, answers)["word_accuracy"] == pytest.approx(np.std(words, ddof=1) / 8)


def test_the_published_macro_accuracy_has_the_standard_error_of_its_batches() -> None:
    task = InContextRecall(vocab=16, length=32, protocol="mad-lab")
    batch = task.sample(np.random.default_rng(0), 512, "test")
    answers = np.where(np.random.default_rng(1).random(batch.targets.shape) < 0.7, batch.targets, 0)
    each = [batched_macro(batch.targets[n : n + 128], answers[n : n + 128]) for n in range(0, 512, 128)]
    assert task.standard_errors(batch, answers)["accuracy"] == pytest.approx(np.std(each, ddof=1) / 2)
    assert "accuracy" not in task.standard_errors(batch.rows(slice(0, 128)), answers[:128])


def test_chance_and_ceiling_are_in_order_and_bracket_blind_and_right_answers(task: AnyTask) -> None:
    held(laws.bracketed(task))


@pytest.mark.parametrize("split", SPLITS)
def test_a_stream_is_the_same_in_any_portions(task: AnyTask, split: Split) -> None:
    held(laws.reproducible(task, (split,)))


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


def test_splits_and_seeds_have_streams_of_their_own_and_no_test_sequence_is_trained_on(task: AnyTask) -> None:
    held(laws.disjoint(task))


# The laws find what breaks them. --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Echo(Parity):
    """Parity, and what may be wrong with it by name."""

    wrong: str = ""

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        if self.wrong == "broken":
            raise RuntimeError("no tokens here\nsecond line")
        own = (
            np.random.default_rng()
            if self.wrong == "fresh"
            else np.random.default_rng(0)
            if self.wrong == "fixed"
            else rng
        )
        batch = super().sample(own, count, split)
        if self.wrong == "short":
            return dataclasses.replace(batch, inputs=batch.inputs[:, 1:])
        if self.wrong == "large":
            return dataclasses.replace(batch, inputs=batch.inputs + 1)
        if self.wrong == "silent":
            targets = batch.targets.copy()
            targets[2] = IGNORE
            return dataclasses.replace(batch, targets=targets)
        return dataclasses.replace(batch, inputs=batch.inputs * 0 + 1) if self.wrong == "one" else batch

    def sources(self, batch: Batch) -> Any:
        found = np.full(batch.targets.shape, -1)
        if self.wrong == "ahead":
            found[3, 4] = 5
        if self.wrong == "blind":
            found[:, 4] = 0
        return found

    def chance(self) -> float:
        return {"low": 0.3, "high": 1.0}.get(self.wrong, super().chance())

    def score(self, batch: Batch, predictions: Any, probabilities: Any = None) -> dict[str, float]:
        found = super().score(batch, predictions, probabilities)
        return {"loss" if self.wrong == "unnamed" else name: score for name, score in found.items()}


@pytest.mark.parametrize(
    ("wrong", "law", "said"),
    [
        (
            "short",
            laws.shapes,
            r"^train: of 5 sequences inputs are \[5, 39\] of int64; expected \[5, 40\] of int64, as",
        ),
        (
            "fresh",
            laws.reproducible,
            "^the same generator gives other sequences; expected the same: take all chance from",
        ),
        ("fixed", laws.reproducible, "^another generator gives the same 8 sequences; expected others"),
        ("large", laws.vocabulary, "^train: inputs hold ids from 2 to 3; expected 0 to 2, or -100 where unscored"),
        ("silent", laws.vocabulary, "^train: sequence 2 asks nothing; expected a target in every sequence"),
        ("ahead", laws.sourced, r"^train: of sequence 3, the source of position 4 \(5\) lies in the future; expected"),
        (
            "blind",
            laws.sourced,
            r"^train: of sequence \d+, the source of position 4 \(0\) does not show the answer; expected",
        ),
        ("unnamed", laws.scored, "^the metric 'accuracy' is none of the scores loss; expected one of them"),
        ("low", laws.bracketed, "^blind answers have accuracy 0.33.* more than chance, 0.3; expected no more"),
        ("high", laws.bracketed, "^chance is 1 and the ceiling 1; expected 0 <= chance < ceiling <= 1"),
        ("one", laws.disjoint, "^two splits or seeds begin with the same sequence; expected others"),
    ],
)
def test_a_law_finds_what_breaks_it(wrong: str, law: Callable[[AnyTask], laws.Verdict], said: str) -> None:
    assert law(Echo()).holds
    assert re.search(said, law(Echo(wrong=wrong)).fault)


def test_a_short_task_trains_on_its_tests() -> None:
    assert re.search(
        "^of the first 1,024 training sequences .* are validation or test sequences too; expected none: draw from many more",
        laws.disjoint(Echo(length=12)).fault,
    )


def test_all_laws_run_on_a_task_and_those_of_tokens_do_not_apply_to_vectors() -> None:
    assert all(verdict.holds and not verdict.skipped for verdict in laws.verdicts(Echo()))
    skipped = [verdict.law for verdict in laws.verdicts(Learnability()) if verdict.skipped]
    assert skipped == ["tokens in vocabulary", "sources show the answer"]


def test_a_task_that_cannot_be_run_breaks_its_laws_with_its_own_words() -> None:
    found = [verdict.fault for verdict in laws.verdicts(Echo(wrong="broken"))]
    assert all(fault.startswith("it cannot be run: RuntimeError: no tokens here; see") for fault in found)
