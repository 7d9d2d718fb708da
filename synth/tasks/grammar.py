"""Sentences of a layered context-free grammar (Lano of Allen-Zhu 2025), modelled token by token."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles

_SYMBOLS = 3  # of every level but the first, and terminals
_BEGIN, _END, _FIRST = 1, 2, 3  # token ids; _FIRST is the first terminal, 0 the padding
_OUTCOMES = _SYMBOLS + 1  # of a prediction: a terminal or the end
_TOO_LONG = 1e-4  # the share of sentences that may be drawn anew, so that the floor of the loss stays what it is
_GRAIN = 2**30  # parts of a nat
_DEEPEST = 7  # levels; sentences of more have thousands of tokens

# As published: levels from the top, parted by "/"; their symbols by "|"; a rule's digits are symbols of the next level.
_PUBLISHED = {
    "cfg3f": (
        "12 102 200 11 / 202 12 22 | 00 01 102 | 21 10 012 02 / 22 020 10 11 | 210 12 21 | 120 200 02 / "
        "12 212 021 | 02 202 21 022 | 011 110 00 221 / 122 202 022 | 11 20 200 | 020 21 112 / "
        "110 211 201 21 | 200 01 220 | 010 22 00"
    ),
    "cfg3k": (
        "01 22 21 / 20 211 22 02 | 121 122 11 01 | 21 12 002 / 120 20 202 221 | 111 02 110 210 | 21 020 100 122 / "
        "21 12 212 100 | 121 200 22 | 11 20 011 / 022 112 22 | 01 011 100 11 | 21 00 12 / "
        "00 11 220 020 | 102 000 010 | 01 110 202 12 / 22 020 10 | 12 001 20 011 | 022 11 000 212"
    ),
}


class Rules(NamedTuple):
    """The rules of one level: of each symbol how many and the number of its first; of each its right side, padded with -1,
    and how long that is."""

    number: NDArray[np.int64]  # [symbols]
    first: NDArray[np.int64]  # [symbols]
    right: NDArray[np.int64]  # [rules, 3]
    size: NDArray[np.int64]  # [rules]


@dataclass(frozen=True, kw_only=True)
class Grammar(Task):
    """A begin mark and a sentence of a grammar; every next token is due, an end at last. Rows are padded on the right, and all
    splits are alike. A sentence that does not fit is drawn anew.

    The grammar has levels of three symbols, the first of one. A symbol becomes, by one of 3 or 4 rules, each as likely, 2 or 3
    symbols of the next level; right sides differ within a level. The symbols of the last level are the tokens.

    rules   cfg3f, cfg3k: a published grammar, of 6 or of 7 levels. drawn: one drawn from `seed`
    levels  of rules
    seed    of the grammar that is drawn, not of its sentences
    length  most tokens of a row, the begin mark included

    Headline: `information`, what of the grammar a model knows: 0 of one who knows only that a token or an end comes, 1 of one
    whose loss is the entropy of derivations; at most 1. Sentences that have two derivations make the true floor lower, of cfg3f
    by at most 0.31 of its 186.2 nats. Few levels make few sentences, so that those of tests come in training, too.
    """

    kind: Literal["grammar"] = "grammar"
    protocol: Literal["repaired"] = "repaired"
    rules: Literal["cfg3f", "cfg3k", "drawn"] = "cfg3f"
    levels: int = 6
    seed: int = 0
    length: int = 512

    metric: ClassVar[str] = "information"
    wants_probabilities: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        if self.rules not in (*_PUBLISHED, "drawn"):
            raise ValueError(f"rules must be 'cfg3f', 'cfg3k' or 'drawn', got '{self.rules}'")
        if self.rules != "drawn" and (self.levels, self.seed) != (len(_published(self.rules)), 0):
            raise ValueError(
                f"rules '{self.rules}' has levels {len(_published(self.rules))} and needs seed 0, got levels {self.levels}, "
                f"seed {self.seed}: use rules 'drawn'"
            )
        if not 1 <= self.levels <= _DEEPEST:
            raise ValueError(f"levels must lie in 1..{_DEEPEST}, got {self.levels}")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, got {self.seed}")
        sizes = _sizes(self.grammar)
        longer = 1 - sizes[: max(self.length, 0)].sum()
        if longer > _TOO_LONG:
            least = 1 + int(np.argmax(sizes.cumsum() >= 1 - _TOO_LONG))
            raise ValueError(
                f"{longer:.2g} of sentences are longer than length {self.length} holds: give at least {least}, or fewer levels"
            )

    @property
    def grammar(self) -> tuple[Rules, ...]:
        """The rules of every level, from the top."""
        return _drawn(self.levels, self.seed) if self.rules == "drawn" else _published(self.rules)

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return _FIRST + _SYMBOLS

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        marks = {"pad": 0, "begin": _BEGIN, "end": _END}
        return Roles(
            {name: range(token, token + 1) for name, token in marks.items()} | {"terminal": range(_FIRST, self.vocab)}
        )

    @property
    def floor(self) -> float:
        """The entropy of derivations, in nats a prediction, the end included: the least loss but for double parses."""
        entropy = np.zeros(_SYMBOLS)
        for level in reversed(self.grammar):
            below = np.append(entropy, 0.0)[level.right].sum(axis=1)  # -1, the padding, has none
            entropy = np.log(level.number) + np.add.reduceat(below, level.first) / level.number
        sizes = _sizes(self.grammar)
        return float(entropy[0] / (1 + sizes @ np.arange(sizes.size)))

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        inputs = np.zeros((count, self.length), dtype=np.int64)
        inputs[:, 0] = _BEGIN
        size = np.zeros(count, dtype=np.int64)
        wrong = np.arange(count)
        while wrong.size:
            tokens, sizes = _sentences(rng, self.grammar, wrong.size)
            fits = sizes < self.length
            row = np.repeat(np.arange(wrong.size), sizes)
            place = 1 + np.arange(tokens.size) - np.repeat(sizes.cumsum() - sizes, sizes)
            kept = fits[row]
            inputs[wrong[row[kept]], place[kept]] = _FIRST + tokens[kept]
            size[wrong[fits]] = sizes[fits]
            wrong = wrong[~fits]
        targets = np.full(inputs.shape, IGNORE)
        time = np.arange(self.length)
        targets[:, :-1] = np.where(time[:-1] < size[:, None], inputs[:, 1:], IGNORE)
        targets[np.arange(count), size] = _END
        return Batch(inputs=inputs, targets=targets)

    def chance(self) -> float:
        """Each terminal and the end as likely: no information."""
        return 0.0

    def ceiling(self) -> float:
        """The loss of one who knows the grammar and parses."""
        return 1.0

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How many tokens are read, rounded up to a power of two."""
        return {"read_up_to": np.broadcast_to(score.up_to(np.arange(1, self.length + 1)), batch.targets.shape)}

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """Those of tokens, and of probabilities [n, T, V]:

        nats         the loss a prediction
        information  (ln 4 - nats) / (ln 4 - floor), at most 1
        """
        scores = self.scoring(batch).of(predictions)
        if probabilities is not None:
            scores["nats"] = float(self._nats(batch, probabilities).mean())
            scores["information"] = min(1.0, (np.log(_OUTCOMES) - scores["nats"]) / (np.log(_OUTCOMES) - self.floor))
        return scores

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        errors: dict[str, float | None] = dict(self.scoring(batch).standard_errors(predictions))
        if probabilities is not None:
            rows = self.scoring(batch).rows
            sums = np.bincount(rows, self._nats(batch, probabilities), minlength=len(batch))
            errors["nats"] = error = score.standard_error(sums, np.bincount(rows, minlength=len(batch)))
            errors["information"] = None if error is None else error / (np.log(_OUTCOMES) - self.floor)
        return score.known(errors)

    def _nats(self, batch: Batch, probabilities: NDArray[Any]) -> NDArray[Any]:
        """[scored positions]: minus the logarithm of what was given to the target, to 2^-30, so that sums are exact in any
        order."""
        row, at = np.nonzero(batch.targets != IGNORE)
        given = probabilities[row, at, batch.targets[row, at]].astype(np.float64)
        found: NDArray[Any] = np.round(-np.log(np.maximum(given, np.finfo(np.float32).tiny)) * _GRAIN) / _GRAIN
        return found


def _sentences(
    rng: np.random.Generator, grammar: tuple[Rules, ...], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The terminals of so many sentences, one after the other, and how many each has [n]."""
    symbols, sizes = np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64)
    for level in grammar:
        rule = level.first[symbols] + np.floor(rng.random(symbols.size) * level.number[symbols]).astype(np.int64)
        made = level.size[rule].cumsum()
        ends = made[sizes.cumsum() - 1]
        sizes = np.diff(ends, prepend=0)
        right = level.right[rule].ravel()
        symbols = right[right >= 0]
    return symbols, sizes


def _ruled(symbols: list[list[tuple[int, ...]]]) -> Rules:
    """The rules of a level from the right sides of every symbol."""
    count = np.array([len(rights) for rights in symbols])
    rights = [right for own in symbols for right in own]
    padded = [(*right, *(-1 for _ in range(3 - len(right)))) for right in rights]
    return Rules(count, count.cumsum() - count, np.array(padded), np.array([len(right) for right in rights]))


@lru_cache(maxsize=len(_PUBLISHED))
def _published(rules: str) -> tuple[Rules, ...]:
    return tuple(
        _ruled([[tuple(map(int, right)) for right in symbol.split()] for symbol in level.split("|")])
        for level in _PUBLISHED[rules].split("/")
    )


@lru_cache(maxsize=64)
def _drawn(levels: int, seed: int) -> tuple[Rules, ...]:
    """A grammar of random rules: of each symbol 3 or 4, right sides of 2 or 3 symbols, sizes as likely."""
    rng = np.random.default_rng([seed, levels])
    found = []
    for level in range(levels):
        counts = rng.integers(3, 5, size=_SYMBOLS if level else 1)
        # Two shuffled decks, one of each size, dealt from by turns of a coin: no right side comes twice.
        decks = [
            [tuple(right) for right in rng.permutation(list(product(range(_SYMBOLS), repeat=size))).tolist()]
            for size in (2, 3)
        ]
        found.append(
            _ruled([[decks[int(rng.random() < 0.5) if decks[0] else 1].pop() for _ in range(n)] for n in counts])
        )
    return tuple(found)


def _sizes(grammar: tuple[Rules, ...]) -> NDArray[np.float64]:
    """[m + 1]: how likely a sentence of the grammar has so many terminals, up to the most it can have."""
    laws = [np.array([0.0, 1.0])] * _SYMBOLS
    for level in reversed(grammar):
        made = []
        for first, count in zip(level.first, level.number, strict=True):
            law = np.zeros(1)
            for right in level.right[first : first + count]:
                own = np.ones(1)
                for symbol in right[right >= 0]:
                    own = np.convolve(own, laws[symbol])
                law = np.pad(law, (0, max(0, own.size - law.size))) + np.pad(own, (0, max(0, law.size - own.size)))
            made.append(law / count)
        laws = made
    return np.asarray(laws[0])
