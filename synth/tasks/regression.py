"""Regression in context (Garg et al. 2022): the answer of a linear function to a question, after examples of it.

Legend: n sequences, T positions, d width, S supports of a sparse function, s of its numbers
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import Batch
from recallmap.synth.draws import dealt
from recallmap.synth.score import bins, known, standard_error
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles

Floats = NDArray[np.float64]

_EXAM = 512  # sequences that the ceiling is averaged over, where it has no closed form
_MIXED = 128  # where it is a mixture over supports
_SUPPORTS = 2000  # most supports that it is a mixture over
_WIDEST = 1024
_RATES = np.arange(1, 101) / 100  # among which the step of `delta_rule` is chosen


@dataclass(frozen=True, kw_only=True)
class Regression(Task):
    """A linear function per sequence, y = w x + noise, of which each position tells the last answer and asks the next.

    inputs   [n, T, d + 1]  the previous answer y_{t-1} (0 at t = 0), then the question x_t ~ N(0, I)
    targets  [n, T, d + 1]  the answer y_t, then zeros that are not scored
    `clean` [n, T] among aux is w x without noise, of variance 1; `weight` makes a relative loss the squared one.

    width     d
    length    T, questions in a sequence
    noise     standard deviation of what is added to every answer
    sparsity  so many numbers of w are not 0, at random places. None: all
    skew      whether the variance of question i falls as 1 / i^2, their sum being d all the same

    w ~ N(0, I / d), or I / sparsity at its places. The headline `explained` is 1 - (output - w x)^2, averaged.
    """

    kind: Literal["regression"] = "regression"
    protocol: Literal["repaired"] = "repaired"
    width: int = 16
    length: int = 64
    noise: float = 0.0
    sparsity: int | None = None
    skew: bool = False

    signal: ClassVar[Literal["tokens", "vectors"]] = "vectors"
    metric: ClassVar[str] = "explained"
    exam: ClassVar[int] = _EXAM

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        if not 3 <= self.width <= _WIDEST:
            raise ValueError(f"width must be at least 3 and at most {_WIDEST:,}, got {self.width:,}")
        if self.length < 2:
            raise ValueError(f"length must be at least 2 (an answer must precede a question), got {self.length}")
        if self.noise and not 0.001 <= self.noise <= 100:
            raise ValueError(f"noise must be 0 or lie in 0.001..100 (answers have deviation 1), got {self.noise}")
        if self.sparsity is None:
            return
        if not 1 <= self.sparsity < self.width:
            raise ValueError(f"sparsity must lie in 1..{self.width - 1} (below the width), got {self.sparsity}")
        if self.skew:
            raise ValueError("sparsity and skew have no ceiling together: leave one of them out")
        if comb(self.width, self.sparsity) > _SUPPORTS:
            raise ValueError(
                f"{self.sparsity} of {self.width} numbers can be chosen in {comb(self.width, self.sparsity):,} ways, and "
                f"the ceiling is computed over at most {_SUPPORTS:,}: lower sparsity or width"
            )

    @property
    def vocab(self) -> int:
        """Channels of inputs and targets."""
        return self.width + 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        return Roles({"answer": range(1), "question": range(1, self.vocab)})

    @property
    def variances(self) -> Floats:
        """[d]: of the numbers of a question."""
        falling = 1 / np.arange(1, self.width + 1) ** (2 if self.skew else 0)
        return self.width * falling / falling.sum()

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        inputs = np.empty((count, self.length, self.vocab), dtype=np.float32)
        questions = self._questions(rng, count)
        inputs[..., 1:] = questions
        clean = (questions @ self._functions(rng, count)[:, :, None])[:, :, 0]
        answers = clean
        if self.noise:
            answers = clean + np.float32(self.noise) * rng.standard_normal(clean.shape, dtype=np.float32)
        inputs[:, 0, 0], inputs[:, 1:, 0] = 0, answers[:, :-1]
        targets = np.zeros_like(inputs)
        targets[..., 0] = answers
        return Batch(inputs=inputs, targets=targets, aux={"clean": clean, "weight": np.square(answers)})

    def drawn_bytes(self, count: int) -> float:
        return 16.0 * count * (self.length + self.width) * self.vocab

    def _questions(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        drawn = rng.standard_normal((count, self.length, self.width), dtype=np.float32)
        return drawn * np.sqrt(self.variances).astype(np.float32) if self.skew else drawn

    def _functions(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        if self.sparsity is None:
            return rng.standard_normal((count, self.width), dtype=np.float32) * np.float32(self.width**-0.5)
        functions = np.zeros((count, self.width), dtype=np.float32)
        numbers = rng.standard_normal((count, self.sparsity), dtype=np.float32) * np.float32(self.sparsity**-0.5)
        np.put_along_axis(functions, dealt(rng, count, self.sparsity, self.width), numbers, axis=1)
        return functions

    def chance(self) -> float:
        """An output of zeros."""
        return 0.0

    def ceiling(self) -> float:
        """The posterior mean of w x: 1 less the posterior variance, averaged over positions. Without noise and skew that is
        t / d after t examples, up to 1. With either, it is averaged over 512 sequences; of a sparse function over 128, by
        the exact mixture over all supports, which without noise errs no more once there are more examples than numbers."""
        return _ceiling(self)

    def references(self) -> dict[str, float]:
        """Two learners that keep less than all examples tell:

        gd_one_step  the best single step of gradient descent from 0, as a layer can that sums values times keys
        delta_rule   a step of the best constant size on every example in turn, normalised by the question's energy, as a
                     layer can that corrects what it holds; without skew only, which has no closed form
        """
        t, d, noise = np.arange(self.length), self.width, self.noise**2
        second, third = np.square(self.variances).sum(), (self.variances**3).sum()
        told = t * second**2 / (d * ((t + 1) * third + second * d + noise * d * second))
        lines = {"gd_one_step": float(told.mean())}
        if not self.skew:
            error, errors = np.ones(_RATES.size), np.zeros(_RATES.size)
            for _ in t:
                errors += error
                error = error * (1 - _RATES * (2 - _RATES) / d) + _RATES**2 * noise / (d - 2)
            lines["delta_rule"] = float(1 - errors.min() / self.length)
        return lines

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """`explained`, its complement `squared_error`, and `explained/position=<bin>`."""
        error = np.square(predictions[..., 0] - batch.aux["clean"], dtype=np.float64)
        scores = {"explained": float(1 - error.mean()), "squared_error": float(error.mean())}
        for name, positions in bins(self.length).items():
            scores[f"explained/position={name}"] = float(1 - error[:, positions].mean())
        return scores

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        error = np.square(predictions[..., 0] - batch.aux["clean"], dtype=np.float64)
        whole = standard_error(error.mean(axis=1))
        parts = {
            name: standard_error(error[:, positions].mean(axis=1)) for name, positions in bins(self.length).items()
        }
        of_parts = {f"explained/position={name}": value for name, value in parts.items()}
        return known({"explained": whole, "squared_error": whole, **of_parts})

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        names = np.empty(self.length, dtype="U16")
        for name, positions in bins(self.length).items():
            names[positions] = name
        return {"position": np.broadcast_to(names, batch.targets.shape[:2])}


@lru_cache(maxsize=64)
def _ceiling(task: Regression) -> float:
    if task.sparsity is not None:
        return 1 - _sparse_error(task)
    if not task.noise and not task.skew:
        return float(np.minimum(np.arange(task.length) / task.width, 1).mean())
    rng, d = np.random.default_rng(0), task.width
    left = np.tile(np.eye(d) / d, (_EXAM, 1, 1))  # the posterior covariance of w
    error = 0.0
    steps = task.length if task.noise else min(d, task.length)  # without noise d examples tell all
    for x in rng.standard_normal((steps, _EXAM, d)) * np.sqrt(task.variances):
        error += float((np.diagonal(left, axis1=1, axis2=2) @ task.variances).mean())
        left, _, _ = _told(left, x, task.noise**2)
    return 1 - error / task.length


def _sparse_error(task: Regression) -> float:
    """The mean posterior variance of w x, over a mixture of all supports."""
    assert task.sparsity is not None
    rng, s = np.random.default_rng(0), task.sparsity
    supports = np.array(list(combinations(range(task.width), s)))
    placed = np.eye(task.width)[supports.ravel()]  # [S s, d]
    truth = task._functions(rng, _MIXED).astype(np.float64)
    left = np.tile(np.eye(s) / s, (_MIXED, len(supports), 1, 1))
    mean, evidence = np.zeros((_MIXED, len(supports), s)), np.zeros((_MIXED, len(supports)))
    error = 0.0
    steps = task.length if task.noise else min(s + 1, task.length)
    for step in range(steps):
        share = np.exp(evidence - evidence.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        within = (share * (np.trace(left, axis1=2, axis2=3) + np.square(mean).sum(axis=2))).sum(axis=1)
        whole = (share[:, :, None] * mean).reshape(_MIXED, -1) @ placed
        error += float((within - np.square(whole).sum(axis=1)).mean())
        if step == steps - 1:
            break
        x = rng.standard_normal((_MIXED, task.width))
        y = (x * truth).sum(axis=1) + task.noise * rng.standard_normal(_MIXED)
        shown = x[:, supports]
        left, gain, variance = _told(left, shown, task.noise**2)
        surprise = y[:, None] - (mean * shown).sum(axis=2)
        mean += gain * surprise[:, :, None]
        evidence -= (np.log(variance) + surprise**2 / variance) / 2
    return error / task.length


def _told(left: Floats, x: Floats, noise: float) -> tuple[Floats, Floats, Floats]:
    """What is left of covariances [..., d, d] after an example each at `x` [..., d], with the gains [..., d] of means and
    the variances [...] of the answers."""
    along = (left @ x[..., None])[..., 0]
    variance = (along * x).sum(axis=-1) + noise
    gain = along / variance[..., None]
    return left - gain[..., None] * along[..., None, :], gain, variance
