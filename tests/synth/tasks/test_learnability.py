"""Regression in context, and the five mappings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import e, erf
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import Batch
from recallmap.synth.score import bins
from recallmap.synth.tasks.learnability import Learnability, Mapping

Draw = Callable[..., Batch]
Reals = NDArray[np.float64]

MAPPINGS: tuple[Mapping, ...] = get_args(Mapping)
SMALL = {mapping: Learnability(mapping=mapping, width=8, length=24) for mapping in MAPPINGS}


def gelu(z: Reals) -> Reals:
    return z * (1 + np.vectorize(erf)(z / 2**0.5)) / 2


def attention(i: Reals, w_q: Reals, w_k: Reals, w_v: Reals, window: int) -> Reals:
    mixed = np.zeros_like(i)
    for j in range(len(i)):
        past = i[max(0, j - window + 1) : j + 1]
        logits = past @ w_k @ (i[j] @ w_q) / i.shape[1] ** 0.5
        mixed[j] = np.exp(logits) @ (past @ w_v) / np.exp(logits).sum()
    return mixed


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_the_equations_written_out(mapping: Mapping) -> None:
    task = SMALL[mapping]
    rng, d = np.random.default_rng(3), task.width
    i = rng.standard_normal((24, d), dtype=np.float32).astype(np.float64)
    matrices = [rng.standard_normal((d, d), dtype=np.float32).astype(np.float64) for _ in range(5)]
    w_1, w_2, w_q, w_k, w_v = (w / d**0.5 for w in matrices)
    mixed = attention(i, w_q, w_k, w_v, window=24 // 8 if mapping == "window_mlp" else 24)
    expected = {
        "low_rank": (i, i @ w_1 @ w_2),  # rank 8 of 8: X and Y are square, and drawn first
        "mlp": (i, gelu(i @ w_1) @ w_2),
        "attention_mlp": (i, gelu(mixed @ w_1) @ w_2),
        "attention_inputs": (mixed, gelu(mixed @ w_1) @ w_2),
        "window_mlp": (i, gelu(mixed @ w_1) @ w_2),
    }[mapping]
    drawn = task.draw(np.random.default_rng(3), 1)
    assert drawn.questions_nTd[0] == pytest.approx(expected[0], abs=1e-5)
    assert drawn.answers_nTd[0] == pytest.approx(expected[1], abs=1e-5)


def test_long_sequences_attend_as_short_ones_do() -> None:
    whole = Learnability(mapping="attention_inputs", width=8, length=700)
    window = Learnability(mapping="window_mlp", width=8, length=700, window=700)
    rng = np.random.default_rng(3)
    i = rng.standard_normal((700, 8), dtype=np.float32).astype(np.float64)
    w = [rng.standard_normal((8, 8), dtype=np.float32).astype(np.float64) / 8**0.5 for _ in range(5)]
    drawn, same = (task.draw(np.random.default_rng(3), 1) for task in (whole, window))
    assert drawn.questions_nTd[0] == pytest.approx(attention(i, w[2], w[3], w[4], window=700), abs=1e-5)
    assert same.answers_nTd == pytest.approx(drawn.answers_nTd, abs=1e-5)
    near = replace(window, window=1).draw(np.random.default_rng(3), 1)
    assert near.answers_nTd[0] == pytest.approx(gelu(i @ w[4] @ w[0]) @ w[1], abs=1e-4)


def test_low_rank_is_low_and_keeps_the_variance() -> None:
    answers = Learnability(width=64, length=512, rank=5).draw(np.random.default_rng(0), 8).answers_nTd
    assert np.linalg.matrix_rank(answers).tolist() == [5] * 8
    assert np.square(Learnability(width=64).draw(np.random.default_rng(0), 64).answers_nTd).mean() == pytest.approx(
        1, abs=0.05
    )


def test_attention_outputs_are_noise_that_fades_and_a_linear_share_that_stays() -> None:
    task = Learnability(mapping="attention_inputs", width=64, length=1024)
    energy = np.square(task.draw(np.random.default_rng(0), 24).questions_nTd).mean(axis=(0, 2))
    for start in (64, 128, 256, 512):
        middle = 1.5 * start
        assert energy[start : 2 * start].mean() == pytest.approx(e / middle + 1 / 64, rel=0.15)
    assert energy[0] == pytest.approx(1, rel=0.1)


def test_without_curvature_an_mlp_is_explained_to_three_quarters() -> None:
    """Landmarks of the mlp: the best constant leaves 0.813, the best affine map 0.225."""
    left = []
    for seed in range(4):
        questions, _, answers = Learnability(mapping="mlp", width=256, length=4096).draw(np.random.default_rng(seed), 1)
        i, o = np.insert(questions[0].astype(np.float64), 0, 1, axis=1), answers[0].astype(np.float64)
        fits = [o.mean(axis=0), i @ np.linalg.solve(i.T @ i, i.T @ o)]
        left.append([np.mean(np.square(fit - o).sum(1) / np.square(o).sum(1)) for fit in fits])
    constant, affine = np.mean(left, axis=0)
    assert constant == pytest.approx(0.813, abs=0.02)
    assert affine / (1 - 257 / 4096) == pytest.approx(0.225, abs=0.006)  # a fit's own noise is not left over


def test_options_change_what_they_say() -> None:
    task = SMALL["attention_inputs"]
    plain = task.draw(np.random.default_rng(0), 4)
    even = replace(task, normalise=True).draw(np.random.default_rng(0), 4)
    assert np.square(even.questions_nTd).mean(axis=2) == pytest.approx(np.ones((4, 24)), rel=1e-4)
    sharp = replace(task, temperature=1e-3).draw(np.random.default_rng(0), 4)
    assert np.isfinite(sharp.answers_nTd).all()
    assert np.square(sharp.questions_nTd[:, -8:]).mean() > 2 * np.square(plain.questions_nTd[:, -8:]).mean()
    with_bias = Learnability(mapping="mlp", width=8, length=4000, bias=True).draw(np.random.default_rng(0), 1)
    assert with_bias.features_nTF.shape[2] == 9
    assert (with_bias.features_nTF[..., -1] == 1).all()


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_a_position_shows_the_answer_before_and_its_question(mapping: Mapping, draw: Draw) -> None:
    task = SMALL[mapping]
    batch = draw(task, count=16)
    drawn = task.draw(np.random.default_rng(0), 16)
    assert (batch.inputs[..., 8:] == drawn.questions_nTd).all()
    assert (batch.inputs[:, 1:, :8] == drawn.answers_nTd[:, :-1]).all()
    assert (batch.targets[..., :8] == drawn.answers_nTd).all()
    assert not batch.inputs[:, 0, :8].any()
    assert not batch.targets[..., 8:].any()
    assert {task.roles().name_of(channel) for channel in range(8)} == {"answer"}


def test_every_sequence_has_a_mapping_of_its_own(draw: Draw) -> None:
    batch = draw(Learnability(width=8, length=64), count=2)
    questions, answers = batch.inputs[..., 8:].astype(np.float64), batch.targets[..., :8].astype(np.float64)
    maps = [np.linalg.lstsq(i, o, rcond=None)[0] for i, o in zip(questions, answers, strict=True)]
    assert questions[0] @ maps[0] == pytest.approx(answers[0], abs=1e-4)
    assert np.abs(questions[1] @ maps[0] - answers[1]).max() > 0.5


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_zeros_explain_nothing_and_the_answers_all(mapping: Mapping, draw: Draw) -> None:
    task = Learnability(mapping=mapping)
    batch = draw(task)
    nothing = task.score(batch, np.zeros_like(batch.targets))
    assert nothing["explained"] == task.chance() == 0
    assert nothing["relative_error"] == 1
    everything = task.score(batch, batch.targets)
    assert everything["explained"] == 1
    assert {name for name in everything if "/" in name} == {f"explained/position={name}" for name in bins(128)}
    noise = batch.targets.copy()
    noise[..., task.width :] = 7
    assert task.score(batch, noise) == everything


def test_error_is_relative_to_each_answer(draw: Draw) -> None:
    task = Learnability()
    batch = draw(task)
    halved = batch.targets.copy()
    halved[:, :64] *= 0.5
    scores = task.score(batch, halved)
    assert scores["explained"] == pytest.approx(0.875)
    assert scores["explained/position=16-64"] == pytest.approx(0.75)
    assert scores["explained/position=64-128"] == 1


def test_positions_are_named_by_their_bin(draw: Draw) -> None:
    assert list(bins(4096)) == [
        *("0-16", "16-64", "64-128", "128-256", "256-512", "512-1024"),
        *("1024-2048", "2048-3072", "3072-4096"),
    ]
    assert bins(100) == {"0-16": slice(0, 16), "16-64": slice(16, 64), "64-100": slice(64, 100)}
    labels = Learnability(length=100).slices(draw(Learnability(length=100), count=3))["position"]
    assert labels.shape == (3, 100)
    assert labels[2, [0, 15, 16, 63, 64, 99]].tolist() == ["0-16", "0-16", "16-64", "16-64", "64-100", "64-100"]


@pytest.mark.parametrize("task", [*SMALL.values(), replace(SMALL["mlp"], bias=True)], ids=lambda task: task.mapping)
def test_the_ceiling_is_least_squares_on_the_features(task: Learnability) -> None:
    task = replace(task, length=32)
    _, features, answers = (part.astype(np.float64) for part in task.draw(np.random.default_rng(1), 256))
    told = np.zeros((256, 32, 16))
    for t in range(1, 32):
        last = np.linalg.pinv(features[:, :t]) @ answers[:, :t]
        told[:, t, :8] = (features[:, t : t + 1] @ last)[:, 0]
    batch = Batch(inputs=told, targets=np.concatenate([answers, 0 * answers], axis=2))
    explained = task.score(batch, told)["explained"]
    # Least squares is best for squared error; for the relative error it falls a little short of the energy it spans.
    assert task.ceiling() - 0.06 < explained < task.ceiling() + 0.005


def test_of_a_linear_map_nobody_knows_more_than_was_shown() -> None:
    for width, length in [(16, 128), (64, 32)]:
        shown = np.minimum(np.arange(length) / width, 1).mean()
        assert Learnability(width=width, length=length).ceiling() == pytest.approx(shown, abs=0.005)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"width": 7}, "width must be at least 8"),
        ({"length": 1}, "an answer must precede"),
        ({"rank": 2}, "rank must lie in 3..16"),
        ({"rank": 17}, "rank must lie in 3..16"),
        ({"mapping": "mlp", "rank": 4}, "rank belongs to low_rank, not to mlp"),
        ({"window": 4}, "window belongs to window_mlp, not to low_rank"),
        ({"mapping": "window_mlp", "window": 0}, "window must be at least 1"),
        ({"mapping": "mlp", "temperature": 2.0}, "temperature belongs to attention_mlp, attention_inputs, window_mlp"),
        ({"bias": True}, "bias belongs to mlp"),
        ({"mapping": "attention_mlp", "temperature": 0.0}, "temperature must be at least 1e-06"),
        ({"mapping": "attention_mlp", "temperature": float("nan")}, "temperature must be at least 1e-06"),
        ({"mapping": "rnn"}, "mapping must be one of low_rank, mlp"),
    ],
)
def test_impossible_geometry_is_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Learnability(**dials)
