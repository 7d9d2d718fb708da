"""How learnable is a mapping of vectors to vectors: by a learner trained online, or in the context of a trained mixer.

Five mappings (ATLAS, section on learnability, with its equations mended), i ~ N(0, I_d), f(z) = W2^T gelu(W1^T z):

low_rank          o_j = (X Y)^T i_j                      X [d, k], Y [k, d]
mlp               o_j = f(i_j)
attention_mlp     o_j = f(a_j),   a_j = sum_{l <= j} softmax_l(q_j . k_l / (tau sqrt(d))) v_l
attention_inputs  as attention_mlp, but the question is a_j itself
window_mlp        as attention_mlp, with l in (j - window, j]

Legend: n sequences, T positions, d width, F features
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import Batch
from recallmap.synth.score import bins, known, standard_error
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles

Mapping = Literal["low_rank", "mlp", "attention_mlp", "attention_inputs", "window_mlp"]
Floats = NDArray[np.float32]

_ATTENTION = ("attention_mlp", "attention_inputs", "window_mlp")
_BELONGS = {  # dial -> mappings that have it
    "rank": ("low_rank",),
    "window": ("window_mlp",),
    "temperature": _ATTENTION,
    "normalise": _ATTENTION,
    "bias": ("mlp", *_ATTENTION),
}
_LOGITS = 2**22  # attention weights held at a time
_COLDEST = 1e-6  # temperature: float32 holds what is divided by it
_WIDEST = 4096  # every sequence draws matrices of width x width
_ORACLES = 256  # sequences over which the ceiling is averaged


class Drawn(NamedTuple):
    """Sequences before they become a batch. Answers are features times the last matrix of the mapping."""

    questions_nTd: Floats
    features_nTF: Floats
    answers_nTd: Floats


@dataclass(frozen=True, kw_only=True)
class Learnability(Task):
    """Regression in context: every sequence draws its own mapping, and the answers so far are all that tells it.

    inputs   [n, T, 2d]  the previous answer o_{t-1} (zeros at t = 0), then the question i_t
    targets  [n, T, 2d]  the answer o_t, where the next input shows it, then zeros that are not scored
    So every position asks, and inputs and outputs have the same channels.

    The headline `explained` is 1 - |y - o|^2 / |o|^2, averaged over positions: 0 for zeros, 1 for the answer itself.

    mapping      see the module
    width        d
    length       T, questions in a sequence
    rank         k of low_rank; None: d / 8, but not below 8 (relative errors of a rank below 3 have no mean)
    window       of window_mlp; None: T / 8
    temperature  tau of the attention
    normalise    whether a_j is divided by its root mean square
    bias         whether f has biases: rows of W1 and W2 for one more input that is always 1
    """

    kind: Literal["learnability"] = "learnability"
    protocol: Literal["repaired"] = "repaired"
    mapping: Mapping = "low_rank"
    width: int = 16
    length: int = 128
    rank: int | None = None
    window: int | None = None
    temperature: float = 1.0
    normalise: bool = False
    bias: bool = False

    signal: ClassVar[Literal["tokens", "vectors"]] = "vectors"
    metric: ClassVar[str] = "explained"
    exam: ClassVar[int] = _ORACLES

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        if self.mapping not in get_args(Mapping):
            raise ValueError(f"mapping must be one of {', '.join(get_args(Mapping))}, got '{self.mapping}'")
        if not 8 <= self.width <= _WIDEST:
            raise ValueError(f"width must be at least 8 and at most {_WIDEST:,}, got {self.width:,}")
        if self.length < 2:
            raise ValueError(f"length must be at least 2 (an answer must precede a question), got {self.length}")
        for dial, mappings in _BELONGS.items():
            if self.mapping not in mappings and getattr(self, dial) != self.__dataclass_fields__[dial].default:
                raise ValueError(f"{dial} belongs to {', '.join(mappings)}, not to {self.mapping}: leave it out")
        if self.rank is not None and not 3 <= self.rank <= self.width:
            raise ValueError(f"rank must lie in 3..{self.width} (the width), got {self.rank}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, got {self.window}")
        if not self.temperature >= _COLDEST:
            raise ValueError(f"temperature must be at least {_COLDEST}, got {self.temperature}")

    @property
    def vocab(self) -> int:
        """Channels of inputs and targets."""
        return 2 * self.width

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        questions, _, answers = self.draw(rng, count)
        nothing = np.zeros_like(answers)
        before = np.concatenate([nothing[:, :1], answers[:, :-1]], axis=1)
        return Batch(
            inputs=np.concatenate([before, questions], axis=2), targets=np.concatenate([answers, nothing], axis=2)
        )

    def drawn_bytes(self, count: int) -> float:
        matrices = 5 if self.mapping in _ATTENTION else 2
        return 4.0 * count * (matrices * self.width**2 + 8 * self.length * self.width)

    def draw(self, rng: np.random.Generator, count: int) -> Drawn:
        """Questions and answers themselves, a mapping per sequence. One seed gives the same questions and the same f
        to all mappings, so that their curves may be compared in pairs."""
        return self._draw(rng, count, self.length)

    def roles(self) -> Roles:
        return Roles({"answer": range(self.width), "question": range(self.width, 2 * self.width)})

    def chance(self) -> float:
        """An output of zeros: all answers are symmetric about zero until the first is seen."""
        return 0.0

    def ceiling(self) -> float:
        """The share of the answers' energy that follows for one who knows all but the last matrix of the mapping and solves
        for it: least squares on the features of the questions answered so far, right from position F on, and before that
        the share of a question's feature energy within their span (averaged over sequences; of low_rank, whose only
        matrix is the last, t / d at position t). `explained` averages relative errors, to which answers that happen to be
        small add more: under it the same least squares stay below, by 0.01 at the defaults."""
        return _ceiling(self)

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        error = self._error(batch, predictions)
        scores = {"explained": float(1 - error.mean()), "relative_error": float(error.mean())}
        for name, positions in bins(self.length).items():
            scores[f"explained/position={name}"] = float(1 - error[:, positions].mean())
        return scores

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        error = self._error(batch, predictions)
        whole = standard_error(error.mean(axis=1))
        parts = {
            name: standard_error(error[:, positions].mean(axis=1)) for name, positions in bins(self.length).items()
        }
        of_parts = {f"explained/position={name}": value for name, value in parts.items()}
        return known({"explained": whole, "relative_error": whole, **of_parts})

    def _error(self, batch: Batch, predictions: NDArray[Any]) -> NDArray[Any]:
        """[n, T]: the relative squared error of every answer."""
        answers = batch.targets[..., : self.width]
        found: NDArray[Any] = np.square(predictions[..., : self.width] - answers).sum(-1) / np.square(answers).sum(-1)
        return found

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        names = np.empty(self.length, dtype="U16")
        for name, positions in bins(self.length).items():
            names[positions] = name
        return {"position": np.broadcast_to(names, batch.targets.shape[:2])}

    def _draw(self, rng: np.random.Generator, count: int, length: int) -> Drawn:
        d = self.width
        questions = _normal(rng, count, length, d)
        if self.mapping == "low_rank":
            k = self.rank if self.rank is not None else min(d, max(8, d // 8))
            x_ndk = _normal(rng, count, d, k, scale=d**-0.5)
            y_nkd = _normal(rng, count, k, d, scale=k**-0.5)
            return Drawn(questions, questions, np.matmul(questions @ x_ndk, y_nkd, dtype=np.float32))

        first = _normal(rng, count, d + self.bias, d, scale=d**-0.5)
        last = _normal(rng, count, d + self.bias, d, scale=d**-0.5)
        hidden_from = questions
        if self.mapping != "mlp":
            hidden_from = self._attention(rng, questions)
        if self.mapping == "attention_inputs":
            questions = hidden_from
        features = self._with_one(_gelu(self._with_one(hidden_from) @ first))
        return Drawn(questions, features, features @ last)

    def _attention(self, rng: np.random.Generator, inputs_nTd: Floats) -> Floats:
        n, length, d = inputs_nTd.shape
        query, key, value = (inputs_nTd @ _normal(rng, n, d, d, scale=d**-0.5) for _ in range(3))
        query *= np.float32(1 / (self.temperature * d**0.5))
        window = length
        if self.mapping == "window_mlp":
            window = self.window if self.window is not None else max(1, self.length // 8)
        mixed = _attend(query, key, value, window)
        if not self.normalise:
            return mixed
        return np.asarray(mixed / np.sqrt(np.square(mixed).mean(-1, keepdims=True)), dtype=np.float32)

    def _with_one(self, values_nTd: Floats) -> Floats:
        if not self.bias:
            return values_nTd
        return np.concatenate([values_nTd, np.ones_like(values_nTd[..., :1])], axis=2)


@lru_cache(maxsize=64)
def _ceiling(task: Learnability) -> float:
    # Column t of R holds what the features of question t add to those before: R_tt^2 is the energy outside their span.
    features = task._draw(np.random.default_rng(0), _ORACLES, min(task.length, task.width + task.bias)).features_nTF
    within_nT = 1 - _residual(features) / np.square(features).sum(-1)
    return float((within_nT.sum(1) + task.length - features.shape[1]).mean() / task.length)


def _residual(features_nTF: Floats) -> NDArray[np.float64]:
    r_nTT = np.linalg.qr(features_nTF.transpose(0, 2, 1).astype(np.float64), mode="r")
    return np.square(np.diagonal(r_nTT, axis1=1, axis2=2))


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Floats:
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= np.float32(scale)
    return values


def _gelu(z: Floats) -> Floats:
    """z Phi(z), to 2e-7: erf by Abramowitz and Stegun 7.1.26 (numpy has none)."""
    x = np.abs(z) * np.float32(0.5**0.5)
    t = 1 / (1 + np.float32(0.3275911) * x)
    tail = np.exp(-x * x)
    tail *= t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.asarray(z * np.where(z < 0, tail / 2, 1 - tail / 2), dtype=np.float32)


def _attend(query_nTd: Floats, key_nTd: Floats, value_nTd: Floats, window: int) -> Floats:
    """Softmax attention to positions (t - window, t], in blocks of sequences and of queries."""
    n, length, _ = query_nTd.shape
    out = np.empty_like(value_nTd)
    queries = min(length, 256)
    rows = max(1, _LOGITS // (queries * min(length, queries + window)))
    for a in range(0, n, rows):
        for start in range(0, length, queries):
            end, first = min(start + queries, length), max(0, start - window + 1)
            logits = query_nTd[a : a + rows, start:end] @ key_nTd[a : a + rows, first:end].transpose(0, 2, 1)
            ago = np.arange(start, end)[:, None] - np.arange(first, end)
            logits[:, (ago < 0) | (ago >= window)] = -np.inf
            logits -= logits.max(-1, keepdims=True)
            np.exp(logits, out=logits)
            logits /= logits.sum(-1, keepdims=True)
            out[a : a + rows, start:end] = logits @ value_nTd[a : a + rows, first:end]
    return out
