"""Scores of token answers, on cases small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recallmap.synth import score
from recallmap.synth.batch import IGNORE
from recallmap.synth.tasks.mqar import Mqar

N = IGNORE
TARGETS = np.array([[1, N, 2], [1, 1, N], [N, N, N], [1, 3, N]])
ANSWERS = np.array([[1, 9, 0], [1, 1, 9], [9, 9, 9], [2, 3, 9]])  # right: 1 of 2, 2 of 2, nothing asked, 1 of 2


def test_accuracy_is_the_share_of_scored_positions() -> None:
    assert score.of_tokens(TARGETS, ANSWERS)["accuracy"] == pytest.approx(4 / 6)


def test_macro_accuracy_weighs_classes_alike() -> None:
    # class 1: 3 of 4, class 2: 0 of 1, class 3: 1 of 1
    assert score.of_tokens(TARGETS, ANSWERS)["macro_accuracy"] == pytest.approx((3 / 4 + 0 + 1) / 3)


def test_exact_match_counts_sequences_that_are_asked_something() -> None:
    assert score.of_tokens(TARGETS, ANSWERS)["exact_match"] == pytest.approx(1 / 3)


def test_slices_label_sequences_or_positions() -> None:
    slices = {
        "word": np.array(["a", "b", "b", "b"]),
        "at": np.broadcast_to(np.array([0, 1, -1]), TARGETS.shape),
    }
    scores = score.of_tokens(TARGETS, ANSWERS, slices)
    parts = {name: value for name, value in scores.items() if "/" in name}
    assert parts == pytest.approx(
        {"accuracy/word=a": 1 / 2, "accuracy/word=b": 3 / 4, "accuracy/at=0": 2 / 3, "accuracy/at=1": 1.0}
    )


def test_a_wrong_class_costs_under_the_batched_macro() -> None:
    # classes 1: 3/4, 2: 0, 3: 1, and 0, which was answered but never asked: 0
    assert score.batched_macro(TARGETS, ANSWERS) == pytest.approx((3 / 4 + 0 + 1 + 0) / 4)


def test_the_batched_macro_averages_batches_by_their_size() -> None:
    # sequences 0 to 2: class 1: 3/3, 2: 0/1, and 0 answered in vain; sequence 3: class 1: 0/1, 3: 1/1, 2 in vain
    expected = (3 * (1 + 0 + 0) / 3 + 1 * (0 + 1 + 0) / 3) / 4
    assert score.batched_macro(TARGETS, ANSWERS, batch=3) == pytest.approx(expected)


def test_distances_are_rounded_up_to_powers_of_two() -> None:
    assert score.up_to(np.array([-1, 0, 1, 2, 3, 4, 5, 1024, 1025])).tolist() == [-1, 1, 1, 2, 4, 4, 8, 1024, 2048]


def test_scores_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the 3 positions is scored"):
        score.of_tokens(TARGETS[2:3], ANSWERS[2:3])
    with pytest.raises(ValueError, match="predictions must have the shape"):
        score.of_tokens(TARGETS, ANSWERS[:2])


@pytest.mark.parametrize(
    "labels",
    [[3, -1, 3, 7], [0, 10**12], ["b", "a", "b"], [2.5, 1.0], []],
    ids=["few", "wide", "words", "reals", "none"],
)
def test_distinct_labels_are_those_of_numpy(labels: list[Any]) -> None:
    given = np.array(labels)
    for ours, theirs in zip(score._distinct(given), np.unique(given, return_inverse=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_parts_of_answers_are_made_out_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    task, asked = Mqar(vocab=16, length=12, pairs=2), []
    batch = task.sample(np.random.default_rng(0), 4, "test")
    whole = task.score(batch, batch.targets)
    monkeypatch.setattr(Mqar, "slices", lambda *_: asked.append(1))
    assert task.score(batch, batch.targets) == whole
    assert asked == []


# Standard errors. -------------------------------------------------------------------------------------


def test_of_one_answer_a_sequence_the_standard_error_is_that_of_a_mean() -> None:
    rng = np.random.default_rng(0)
    targets, answers = rng.integers(4, size=(200, 1)), rng.integers(4, size=(200, 1))
    hits = (targets == answers)[:, 0]
    errors = score.Scoring(targets).standard_errors(answers)
    assert errors["accuracy"] == errors["exact_match"] == pytest.approx(hits.std(ddof=1) / np.sqrt(200))


def test_standard_errors_are_those_of_drawing_sequences_anew_and_not_answers() -> None:
    """Answers of a sequence go together: a third of the sequences is right throughout, a third nowhere."""
    rng = np.random.default_rng(0)
    targets = np.where(rng.random((300, 8)) < 0.7, rng.integers(4, size=(300, 8)), N)
    skill = rng.choice([0.0, 0.5, 1.0], size=(300, 1))
    answers = np.where(rng.random((300, 8)) < skill, targets, 9)
    half = np.broadcast_to(np.arange(8) // 4, targets.shape)
    errors = score.Scoring(targets, {"half": half}).standard_errors(answers)
    drawn = [
        score.of_tokens(targets[rows], answers[rows], {"half": half}) for rows in rng.integers(300, size=(1000, 300))
    ]
    seen = {name: float(np.std([one[name] for one in drawn])) for name in drawn[0]}
    assert errors == pytest.approx(seen, rel=0.1)
    share = 0.5 / np.sqrt((targets != N).sum())  # as if answers were independent
    assert errors["accuracy"] > 1.8 * share


def test_what_one_sequence_alone_tells_has_no_standard_error() -> None:
    assert score.Scoring(TARGETS[:1]).standard_errors(ANSWERS[:1]) == {}
    assert score.Scoring(TARGETS).batched_macro_error(ANSWERS) is None
    assert [score.error_name(name) for name in ("loss", "accuracy/depth=50")] == [
        "loss_stderr",
        "accuracy_stderr/depth=50",
    ]
