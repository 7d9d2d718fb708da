"""Regression in context."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import Batch
from recallmap.synth.tasks import Regression

Draw = Callable[..., Batch]

PLAIN = Regression(width=8, length=24)
NOISY = Regression(width=8, length=24, noise=0.5)
SKEWED = Regression(width=8, length=24, noise=0.3, skew=True)
SPARSE = Regression(width=8, length=24, sparsity=2)


@pytest.mark.parametrize("task", [PLAIN, NOISY, SKEWED, SPARSE])
def test_a_slow_reader_solves_for_the_function_and_finds_every_answer(task: Regression, draw: Draw) -> None:
    batch = draw(task, count=20)
    for row, targets, clean, weight in zip(
        batch.inputs, batch.targets, batch.aux["clean"], batch.aux["weight"], strict=True
    ):
        assert row[0, 0] == 0
        assert (row[1:, 0] == targets[:-1, 0]).all()
        assert not targets[:, 1:].any()
        assert weight == pytest.approx(targets[:, 0] ** 2)
        function = np.linalg.lstsq(row[:, 1:].astype(float), clean.astype(float), rcond=None)[0]
        for x, answer in zip(row[:, 1:], clean, strict=True):
            assert sum(float(a) * float(b) for a, b in zip(x, function, strict=True)) == pytest.approx(answer, abs=1e-4)
        if not task.noise:
            assert (targets[:, 0] == clean).all()
        if task.sparsity:
            assert (np.abs(function) > 1e-4).sum() == task.sparsity


@pytest.mark.parametrize("task", [PLAIN, NOISY, SKEWED, SPARSE])
def test_answers_have_variance_one_and_noise_and_questions_what_is_said(task: Regression, draw: Draw) -> None:
    batch = draw(task, count=4000)
    each = np.square(batch.aux["clean"]).mean(axis=1)  # of a sequence
    assert abs(each.mean() - 1) < 5 * each.std() / np.sqrt(4000)
    noise = batch.targets[..., 0] - batch.aux["clean"]
    assert noise.std() == pytest.approx(task.noise, rel=0.02)
    assert batch.inputs[..., 1:].var(axis=(0, 1)) == pytest.approx(task.variances, rel=0.03)
    assert task.variances.sum() == pytest.approx(8)
    assert task.variances[0] / task.variances[2] == pytest.approx(9 if task.skew else 1)


@pytest.mark.parametrize(
    ("dials", "ceiling", "delta", "gd"),
    [
        ({"width": 8, "length": 32}, 0.859, 0.753, 0.561),
        ({"width": 16, "length": 64}, 0.867, 0.754, 0.579),
        ({"width": 16, "length": 64, "noise": 0.5}, 0.704, 0.625, 0.535),
        ({"width": 20, "length": 41}, 0.744, 0.572, 0.437),
    ],
)
def test_lines_are_as_simulated_apart(dials: dict[str, Any], ceiling: float, delta: float, gd: float) -> None:
    task = Regression(**dials)
    assert task.ceiling() == pytest.approx(ceiling, abs=0.004)
    assert task.references() == {
        "gd_one_step": pytest.approx(gd, abs=0.003),
        "delta_rule": pytest.approx(delta, abs=0.003),
    }


def player(learn: Callable[[NDArray[Any], NDArray[Any], NDArray[Any]], float]) -> Callable[..., NDArray[Any]]:
    """One who answers each question from the examples before it."""

    def play(_: np.random.Generator, batch: Batch) -> NDArray[Any]:
        said = np.zeros(batch.targets.shape)
        for guess, row, due in zip(said, batch.inputs.astype(float), batch.targets[..., 0].astype(float), strict=True):
            for t in range(len(row)):
                guess[t, 0] = learn(row[:t, 1:], due[:t], row[t, 1:])
        return said

    return play


@pytest.mark.parametrize("task", [PLAIN, NOISY, SKEWED])
def test_ridge_regression_scores_the_ceiling_and_a_gradient_step_its_line(
    task: Regression, assert_expects: Any
) -> None:
    d, ridge = task.width, task.width * max(task.noise, 1e-5) ** 2
    second, third = (task.variances**2).sum(), (task.variances**3).sum()

    def bayes(x: NDArray[Any], y: NDArray[Any], asked: NDArray[Any]) -> float:
        return float(asked @ np.linalg.solve(x.T @ x + ridge * np.eye(d), x.T @ y))

    def step(x: NDArray[Any], y: NDArray[Any], asked: NDArray[Any]) -> float:
        rate = second / ((len(y) + 1) * third + second * d + task.noise**2 * d * second)
        return float(asked @ x.T @ y * rate)

    found: list[float] = []
    rng = np.random.default_rng(7)
    for _ in range(8):
        batch = task.sample(rng, 64, "test")
        found.append(task.score(batch, player(bayes)(rng, batch))["explained"])
    assert abs(np.mean(found) - task.ceiling()) < 0.01 + 4 * np.std(found, ddof=1) / np.sqrt(8)
    assert_expects(task, player(step), task.references()["gd_one_step"], sets=12, count=64)


@pytest.mark.parametrize(("task", "rate"), [(PLAIN, 1.0), (SPARSE, 1.0), (NOISY, 0.6)])
def test_one_pass_of_normalised_steps_scores_the_delta_rule(task: Regression, rate: float, assert_expects: Any) -> None:
    def play(_: np.random.Generator, batch: Batch) -> NDArray[Any]:
        said, held = np.zeros(batch.targets.shape), np.zeros((len(batch), task.width))
        for t in range(task.length):
            x = batch.inputs[:, t, 1:].astype(float)
            said[:, t, 0] = (held * x).sum(axis=1)
            wrong = batch.targets[:, t, 0] - said[:, t, 0]
            held += rate * (wrong / np.square(x).sum(axis=1))[:, None] * x
        return said

    assert_expects(task, play, task.references()["delta_rule"])
    assert ("delta_rule" in SKEWED.references()) is False


def test_a_sparse_function_is_found_by_weighing_all_supports() -> None:
    """The mixture computed here from the density of all answers so far, not example by example."""
    task = Regression(width=6, length=10, noise=0.4, sparsity=2)
    batch = task.sample(np.random.default_rng(2), 150, "test")
    supports = [list(chosen) for chosen in combinations(range(6), 2)]
    said = np.zeros(batch.targets.shape)
    for guess, row, due in zip(said, batch.inputs.astype(float), batch.targets[..., 0].astype(float), strict=True):
        for t in range(1, task.length):
            weights, answers = [], []
            for support in supports:
                x = row[:t, 1:][:, support]
                spread = x @ x.T / 2 + task.noise**2 * np.eye(t)
                solved = np.linalg.solve(spread, due[:t])
                weights.append(-(np.linalg.slogdet(spread)[1] + due[:t] @ solved) / 2)
                answers.append(row[t, 1:][support] @ x.T @ solved / 2)
            share = np.exp(np.array(weights) - max(weights))
            guess[t, 0] = share @ answers / share.sum()
    error = np.square(said[..., 0] - batch.aux["clean"]).mean(axis=1)
    assert abs(1 - error.mean() - task.ceiling()) < 4 * error.std() / np.sqrt(150) + 0.01


def test_without_noise_a_sparse_function_takes_one_example_more_than_it_has_numbers() -> None:
    short, long = Regression(width=8, length=10, sparsity=2), Regression(width=8, length=100, sparsity=2)
    assert 10 * (1 - short.ceiling()) == pytest.approx(100 * (1 - long.ceiling()))
    assert 1 < 10 * (1 - short.ceiling()) < 3


def test_zeros_explain_nothing_and_the_function_all(draw: Draw) -> None:
    batch = draw(NOISY, count=2000)
    nothing = NOISY.score(batch, np.zeros_like(batch.targets))
    assert nothing["explained"] == pytest.approx(0, abs=0.1)
    whole = batch.targets.copy()
    whole[..., 0] = batch.aux["clean"]
    whole[..., 1:] = 7
    assert NOISY.score(batch, whole) == {
        "explained": 1,
        "squared_error": 0,
        "explained/position=0-16": 1,
        "explained/position=16-24": 1,
    }


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"width": 2}, "width must be at least 3"),
        ({"length": 1}, "an answer must precede"),
        ({"noise": -0.1}, r"noise must be 0 or lie in 0\.001\.\.100"),
        ({"noise": float("nan")}, "noise must be 0 or lie in"),
        ({"sparsity": 16}, r"sparsity must lie in 1\.\.15"),
        ({"sparsity": 8}, "12,870 ways, and the ceiling is computed over at most 2,000: lower sparsity or width"),
        ({"sparsity": 2, "skew": True}, "leave one of them out"),
    ],
)
def test_functions_without_a_ceiling_are_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Regression(**dials)
