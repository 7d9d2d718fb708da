"""RegBench: every prompt is a handful of words of one random regular language, to be inferred while reading them.

A language is a probabilistic automaton: from each state one to three letters lead on, each to another state, all
equally likely; every state accepts. A prompt is `w1 | w2 | ... | wW`; each position inside a word asks for a letter
that the automaton allows there (Akyürek et al. 2024, in-context language learning).

n prompts (one language each), S states, D letters out of a state, T time
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles

PAD = 0
_TOKEN_BITS = 5  # a token and a state share one integer while words are written, and a set of tokens fits 32 bits
# The quarters of all hashes whose languages belong to a split.
_QUARTERS: dict[Split, tuple[int, int]] = {"train": (0, 2), "validation": (2, 3), "test": (3, 4)}
_DEPTH = 8  # letters of a word up to which languages are told apart for the split
_MOST_STATES = 1024  # of an automaton: a state is a small integer
_MOST_WORDS = 2**16  # of a prompt
_DRY = 1000  # rounds without one language of the wanted split, after which there are none
_EXAM = 1024  # prompts on which chance is computed
_READ = 256  # of which references are


@dataclass(frozen=True, kw_only=True)
class Languages:
    """n automata that start in state 0. Of the D edges of a state the first `degree` exist.

    degree, symbols, targets   [n, S], [n, S, D], [n, S, D]: symbols are token ids (1 ..), targets are states
    """

    degree: NDArray[np.int8]
    symbols: NDArray[np.int8]
    targets: NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.degree)

    def rows(self, index: slice | NDArray[Any]) -> Languages:
        return Languages(degree=self.degree[index], symbols=self.symbols[index], targets=self.targets[index])

    @staticmethod
    def join(parts: Sequence[Languages]) -> Languages:
        return Languages(
            degree=np.concatenate([p.degree for p in parts]),
            symbols=np.concatenate([p.symbols for p in parts]),
            targets=np.concatenate([p.targets for p in parts]),
        )

    def edges(self) -> NDArray[np.bool_]:
        """[n, S, D]: which edges exist."""
        return np.arange(self.symbols.shape[2]) < self.degree[..., None]

    def legal(self) -> NDArray[np.uint32]:
        """[n, S]: the letters that may follow in a state, as bits by token id."""
        bits = np.left_shift(np.uint32(1), self.symbols.astype(np.uint32))
        return np.where(self.edges(), bits, np.uint32(0)).sum(axis=2, dtype=np.uint32)

    def fingerprints(self, depth: int) -> NDArray[np.uint64]:
        """[n, S]: a hash of the words of up to `depth` letters that can be read from a state.

        It depends on the language alone, not on the automaton that gives it: two automata of one language agree
        whatever `depth`. At a depth of 2S those that agree have one language (but for chance hits of a 64-bit hash), so
        that the distinct values among reachable states are the states of the minimal automaton.
        """
        n, states, width = self.symbols.shape
        exists = np.moveaxis(self.edges(), 2, 0).reshape(width, -1)
        weight_DX = _scrambled(np.moveaxis(self.symbols, 2, 0).astype(np.uint64)).reshape(width, -1) * exists
        target_DX = (np.moveaxis(self.targets, 2, 0) + np.arange(n)[:, None] * states).reshape(width, -1) * exists
        hashes_X = np.ones(n * states, dtype=np.uint64)
        for _ in range(depth):
            hashes_X = _scrambled((hashes_X.take(target_DX) * weight_DX).sum(axis=0))
        return hashes_X.reshape(n, states)


@dataclass(frozen=True, kw_only=True)
class Regbench(Task):
    """Words of a language never seen before, one language a prompt; right is any letter that its automaton allows.

    letters      letters there are; tokens are the padding 0, the letters from 1 on, and the separator
    states       fewest and most states of an automaton (all bounds inclusive, all choices uniform)
    alphabet     fewest and most letters of one language
    out_degree   fewest and most letters that lead on from a state
    words        fewest and most words in a prompt
    word_length  fewest and most letters of a word
    length       width of the inputs: shorter prompts are padded, of longer ones (0.2 % at the defaults) the words
                 that do not fit whole are left out

    All but `length` are the published setting. Protocol `seq-icl` draws the languages of all splits alike, so that
    training and test are disjoint only by luck; `repaired` lets a hash of the language decide its split.
    Scored is every letter but a prompt's first; never the separator.
    """

    kind: Literal["regbench"] = "regbench"
    protocol: Literal["repaired", "seq-icl"] = "repaired"
    letters: int = 18
    states: tuple[int, int] = (4, 12)
    alphabet: tuple[int, int] = (4, 18)
    out_degree: tuple[int, int] = (1, 3)
    words: tuple[int, int] = (10, 19)
    word_length: tuple[int, int] = (1, 49)
    length: int = 640

    wants_probabilities: ClassVar[bool] = True
    exam: ClassVar[int] = _EXAM

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.protocol not in ("repaired", "seq-icl"):
            raise ValueError(f"protocol must be 'repaired' or 'seq-icl', got '{self.protocol}'")
        for name in ("states", "alphabet", "out_degree", "words", "word_length"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name} must be two numbers, at least 1 and in order, got [{low}, {high}]")
        for name, number in (("states", _MOST_STATES), ("words", _MOST_WORDS)):
            if getattr(self, name)[1] > number:
                raise ValueError(f"{name} must be at most {number:,}, got {getattr(self, name)[1]:,}")
        if self.letters > 2**_TOKEN_BITS - 2:
            raise ValueError(f"letters must be at most {2**_TOKEN_BITS - 2}, got {self.letters}")
        if self.alphabet[1] > self.letters:
            raise ValueError(f"alphabet must be at most the {self.letters} letters, got {self.alphabet[1]}")
        most = min(self.alphabet[0], self.states[0] - 1)
        if self.out_degree[1] > most:
            raise ValueError(
                f"out_degree must be at most {most}, got {self.out_degree[1]}: the letters out of a state differ "
                f"(alphabet starts at {self.alphabet[0]}) and lead to other, different states (from {self.states[0]})"
            )
        if self.words[0] * self.word_length[0] < 2:
            raise ValueError("the shortest prompt is one letter, which is not scored: start words or word_length at 2")
        if self.length <= self.word_length[1]:
            raise ValueError(
                f"length must be above the longest word's {self.word_length[1]} letters, got {self.length}"
            )

    @property
    def vocab(self) -> int:
        """Number of token ids: the letters, the padding and the separator."""
        return self.letters + 2

    @property
    def separator(self) -> int:
        """The token between two words."""
        return self.letters + 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        return Roles(
            {
                "pad": range(PAD, PAD + 1),
                "letter": range(1, self.separator),
                "separator": range(self.separator, self.vocab),
            }
        )

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        """Prompts of `count` languages. aux: `legal` uint32 [n, T], the letters that may follow each input, as bits."""
        languages = self.languages(rng, count, split)
        tokens, states = self._written(rng, languages)
        follows = np.where((tokens == PAD) | (tokens == self.separator), IGNORE, tokens)
        legal = np.append(languages.legal().ravel(), np.uint32(0))  # the padding stands in a state of its own, the last
        return Batch(
            inputs=tokens[:, :-1].astype(np.int64),
            targets=follows[:, 1:].astype(np.int64),
            aux={"legal": legal.take(states[:, :-1])},
        )

    def drawn_bytes(self, count: int) -> float:
        drawn = (
            count * 4 if self.protocol == "repaired" else count
        )  # languages, of which a quarter may belong to a split
        automata = 40.0 * drawn * self.states[1] * self.out_degree[1]
        return super().drawn_bytes(count) + automata + 24.0 * count * self.words[1]

    def languages(self, rng: np.random.Generator, count: int, split: Split) -> Languages:
        """`count` languages of a split. Raises ValueError where the dials allow none there."""
        if self.protocol == "seq-icl":
            return self._drawn(rng, count)
        first, last = _QUARTERS[split]
        found, missing, dry = [], count, 0
        while missing > 0:
            some = self._drawn(rng, 16 + missing * 4 // (last - first))
            quarter = some.fingerprints(_DEPTH)[:, 0] >> np.uint64(62)
            fitting = some.rows(np.flatnonzero((quarter >= first) & (quarter < last))[:missing])
            found.append(fitting)
            missing -= len(fitting)
            dry = 0 if len(fitting) else dry + 1
            if dry == _DRY:
                raise ValueError(f"{self} has so few languages that none falls to {split}: raise letters or states")
        return Languages.join(found)

    def _drawn(self, rng: np.random.Generator, count: int) -> Languages:
        """`count` languages as published, whatever their split."""
        most, width = self.states[1], self.out_degree[1]
        states = rng.integers(self.states[0], self.states[1] + 1, count)
        alphabet = rng.integers(self.alphabet[0], self.alphabet[1] + 1, count)
        letters = rng.permuted(np.tile(np.arange(1, self.letters + 1, dtype=np.int8), (count, 1)), axis=1)
        degree = rng.integers(self.out_degree[0], width + 1, (count, most), dtype=np.int8)
        ranks = _distinct(rng, alphabet[:, None], (count, most, width)).reshape(count, -1)
        symbols = np.take_along_axis(letters, ranks, axis=1).reshape(count, most, width)
        others = _distinct(rng, states[:, None] - 1, (count, most, width))
        targets = others + (others >= np.arange(most)[:, None])  # no state leads to itself
        return Languages(degree=degree, symbols=symbols, targets=targets.astype(np.int16))

    def _written(self, rng: np.random.Generator, languages: Languages) -> tuple[NDArray[Any], NDArray[Any]]:
        """Tokens of a prompt a language, and the state after each: [n, T + 1], states numbered through all languages.

        All words of all prompts walk in step, the longest first, so that those still walking stay in front.
        """
        count, states, width = languages.symbols.shape
        row, start, size = self._placed(rng, count)
        order = np.argsort(-size, kind="stable")
        state, at = row[order] * states, start[order]
        walking = np.bincount(size, minlength=self.word_length[1] + 1)[::-1].cumsum()[::-1]

        degree = languages.degree.ravel()
        after = languages.targets + np.arange(count)[:, None, None] * states
        edges = (after * 2**_TOKEN_BITS + languages.symbols).ravel()
        written = np.full((count, self.length + 1), count * states * 2**_TOKEN_BITS + PAD)
        later = start > 0
        written[row[later], start[later] - 1] = row[later] * states * 2**_TOKEN_BITS + self.separator
        flat = written.reshape(-1)
        at = at + row[order] * (self.length + 1)
        for step in range(self.word_length[1]):
            state, at = state[: walking[step + 1]], at[: walking[step + 1]]
            edge = (rng.random(len(state), dtype=np.float32) * degree.take(state)).astype(np.int64)
            taken = edges.take(state * width + edge)
            flat[at + step] = taken
            state = taken >> _TOKEN_BITS
        return written & (2**_TOKEN_BITS - 1), written >> _TOKEN_BITS

    def _placed(self, rng: np.random.Generator, count: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Row, first position and number of letters of every word of `count` prompts, by row and position."""
        words = rng.integers(self.words[0], self.words[1] + 1, count)
        size = rng.integers(self.word_length[0], self.word_length[1] + 1, (count, self.words[1]))
        start = (size + 1).cumsum(axis=1) - size - 1
        there = (np.arange(self.words[1]) < words[:, None]) & (start + size <= self.length + 1)
        return np.nonzero(there)[0], start[there], size[there]

    def chance(self) -> float:
        """Of one who guesses among all letters."""
        legal = _exam(self).aux["legal"][_exam(self).targets != IGNORE]
        return float(np.bitwise_count(legal).mean() / self.letters)

    def ceiling(self) -> float:
        """Of one who knows the automaton. Who only reads the prompt stays below: see `references`."""
        exam = _exam(self)
        return self.score(exam, exam.targets)["accuracy"]

    def references(self) -> dict[str, float]:
        """What can be had from the prompt alone, on 256 prompts:

        1-gram ... 5-gram   back-off n-grams of the prompt so far
        known states        who knows which state he is in: right wherever the prompt has left that state before, a
                            uniform guess elsewhere. A learner in context can hardly do better
        """
        return dict(_references(self))

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """accuracy     share of scored positions where the predicted letter is one that the automaton allows
        exact_match  share of prompts where it always is
        tvd          total variation between probabilities [n, T, V] and the automaton's, averaged over scored positions
        accuracy/position=P  of positions P/2 + 1 to P in the prompt
        """
        scores = self.scoring(batch).of(self._allowed(batch, predictions))
        del scores["macro_accuracy"]
        if probabilities is not None:
            scores["tvd"] = float(self._variation(batch, probabilities).mean() / 2)
        return scores

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        errors: dict[str, float | None] = dict(self.scoring(batch).standard_errors(self._allowed(batch, predictions)))
        errors.pop("macro_accuracy", None)
        if probabilities is not None:
            rows = self.scoring(batch).rows
            sums = np.bincount(rows, self._variation(batch, probabilities) / 2, minlength=len(batch))
            errors["tvd"] = score.standard_error(sums, np.bincount(rows, minlength=len(batch)))
        return score.known(errors)

    def _allowed(self, batch: Batch, predictions: NDArray[Any]) -> NDArray[Any]:
        """The targets where the predicted letter is one that the automaton allows, elsewhere what is none."""
        allowed = np.right_shift(batch.aux["legal"], np.clip(predictions, 0, 31).astype(np.uint32)) & 1 == 1
        return np.where(allowed, batch.targets, PAD)

    def _variation(self, batch: Batch, probabilities: NDArray[Any]) -> NDArray[Any]:
        """[scored positions]: the summed difference of probabilities from the automaton's."""
        scored = batch.targets != IGNORE
        allowed_PV = batch.aux["legal"][scored][:, None] >> np.arange(self.vocab, dtype=np.uint32) & 1
        truth_PV = allowed_PV / allowed_PV.sum(axis=1, keepdims=True)
        found: NDArray[Any] = np.abs(probabilities[scored] - truth_PV).sum(axis=1)
        return found

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        return {"position": np.broadcast_to(score.up_to(np.arange(1, self.length + 1)), batch.targets.shape)}

    def n_grams(self, inputs: NDArray[np.int64], orders: int) -> NDArray[np.float32]:
        """[orders, n, T, V]: what back-off n-grams of order 1 .. `orders` expect after each input.

        Their counts are those of the prompt so far. An order's own estimate is count(context, c) / count(context),
        where words start with start marks and the present occurrence of a context counts; the mass this leaves goes to
        letters not seen in the context, in proportion to the next lower order. No letter unseen in the prompt gets any.
        """
        expected = np.zeros((orders, *inputs.shape, self.vocab), dtype=np.float32)
        for row, tokens in enumerate(inputs):
            size = int((tokens != PAD).sum())
            expected[:, row, :size] = self._n_grams_of_one(tokens[:size], orders)
        return expected

    def _n_grams_of_one(self, tokens: NDArray[np.int64], orders: int) -> NDArray[np.float32]:
        """[orders, T, V] for one prompt without its padding."""
        read = np.append(self.separator, tokens)
        follows = np.zeros((len(tokens), self.vocab), dtype=np.float32)
        inside = tokens != self.separator
        follows[np.arange(len(tokens))[inside], tokens[inside]] = 1
        alike = np.tri(len(tokens) + 1, len(tokens), k=-1, dtype=bool)  # [now, earlier]: contexts are the same
        counts = alike.astype(np.float32) @ follows
        expected = [counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)]
        mark = read
        for _ in range(orders - 1):
            alike = alike & (mark[:, None] == mark[:-1])
            mark = np.where(mark == self.separator, mark, np.append(self.separator, mark[:-1]))
            counts = alike.astype(np.float32) @ follows
            own = counts / (alike.sum(axis=1, keepdims=True) + 1)
            lower = np.where(counts > 0, 0, expected[-1])
            share = (1 - own.sum(axis=1, keepdims=True)) / np.maximum(lower.sum(axis=1, keepdims=True), 1e-30)
            expected.append(own + lower * share)
        return np.stack(expected)[:, 1:]


def _distinct(rng: np.random.Generator, bound: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int16]:
    """Integers of `shape`, uniform below `bound` and distinct along the last axis."""
    chance = rng.random(shape, dtype=np.float32)
    picks = np.empty(shape, dtype=np.int16)
    for last in range(shape[-1]):
        pick = (chance[..., last] * (bound - last).astype(np.float32)).astype(np.int16)
        for taken in np.moveaxis(np.sort(picks[..., :last], axis=-1), -1, 0):
            pick += pick >= taken
        picks[..., last] = pick
    return picks


def _scrambled(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64 bits that leaves no pattern (splitmix64's finalizer)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@cache
def _exam(task: Regbench) -> Batch:
    """Prompts on which chance and references are computed: fixed, so that they are the same numbers every time."""
    return task.sample(np.random.default_rng(0), _EXAM, "test")


@cache
def _references(task: Regbench) -> dict[str, float]:
    exam = _exam(task).rows(slice(_READ))
    choices = task.n_grams(exam.inputs, 5).argmax(axis=-1)
    lines = {f"{order}-gram": task.score(exam, choice)["accuracy"] for order, choice in enumerate(choices, start=1)}
    return lines | {"known states": _with_known_states(task)}


def _with_known_states(task: Regbench) -> float:
    rng = np.random.default_rng(0)
    languages = task.languages(rng, _EXAM, "test")
    states = task._written(rng, languages)[1][:, :-1]
    scored = _exam(task).targets != IGNORE
    row = np.nonzero(scored)[0]
    same = languages.fingerprints(2 * task.states[1])
    reached = same.ravel()[states[scored]]
    elsewhere = reached != same[row, 0]  # the first letter of the prompt, which is not scored, leaves the start state
    first = np.unique(np.stack([row[elsewhere].astype(np.uint64), reached[elsewhere]]), axis=1).shape[1]
    return float(1 - first / len(row) * (1 - task.chance()))
