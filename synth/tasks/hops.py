"""Hops over a cycle told in context (Depo of Allen-Zhu 2025): the word that comes k steps after a given one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import dealt, distinct, distinct_as, orders
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles
from recallmap.synth.words import Words

_FEWEST = 3  # words of a cycle under "depo"
_BEGIN = 1


@dataclass(frozen=True, kw_only=True)
class Hops(Task):
    """One cycle of distinct words: a begin mark, then every fact "word, next word" in random order, then queries "k, word,
    mark, the word k steps on", whose starts differ.

    Words have `min_tokens` to `max_tokens` tokens, each of `symbols`; the last token is of a role of its own and so marks
    the end. All sizes are equally likely, and a word that is there already is drawn anew. Answers are scored, from the
    mark on. Rows that are shorter than the longest are padded on the right.

    nodes    words of the cycle
    hops     most steps that a query asks for. Training asks for 1 to `hops`, validation and test for powers of two (for 24
             besides where `hops` is 32)
    queries  of a sequence
    drawn    fixed: every cycle has `nodes` words. depo: training draws 3 to `nodes`, n in proportion to
             1 / (n + sqrt(nodes)), with one query a word where those are fewer

    Under protocol "depo" short cycles are asked for more steps than they have, so that an answer can be the start itself.
    "repaired" asks for fewer steps than words.

    Headline: `word_accuracy`, the share of answers all of whose tokens are right. One step is plain recall.
    """

    kind: Literal["hops"] = "hops"
    protocol: Literal["repaired", "depo"] = "repaired"
    nodes: int = 32
    hops: int = 4
    queries: int = 8
    symbols: int = 128
    min_tokens: int = 1
    max_tokens: int = 1
    drawn: Literal["fixed", "depo"] = "fixed"

    metric: ClassVar[str] = "word_accuracy"

    def __post_init__(self) -> None:
        if self.protocol not in ("repaired", "depo"):
            raise ValueError(f"protocol must be 'repaired' or 'depo', got '{self.protocol}'")
        if self.drawn not in ("fixed", "depo"):
            raise ValueError(f"drawn must be 'fixed' or 'depo', got '{self.drawn}'")
        if self.protocol == "depo" and self.drawn != "depo":
            raise ValueError(f"protocol 'depo' needs drawn 'depo', got '{self.drawn}': use protocol 'repaired'")
        for name, least in (("nodes", _FEWEST), ("hops", 1), ("queries", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        words = self.words
        if self.hops >= self.nodes:
            raise ValueError(
                f"hops must be below nodes, {self.nodes}, or an answer can be the start itself; got {self.hops}"
            )
        if self.queries > self.nodes:
            raise ValueError(f"queries must be at most nodes, {self.nodes}, for starts differ; got {self.queries}")
        if self.nodes > words.most:
            raise ValueError(
                f"{self.symbols} symbols make {words.number} words of {self.min_tokens} to {self.max_tokens} tokens, of "
                f"which a cycle can have {words.most}, got nodes {self.nodes}: raise symbols or max_tokens, or lower nodes"
            )
        if self.shape[0] > 2**22:
            raise ValueError(f"{self.nodes:,} nodes take {self.shape[0]:,} positions, at most 2^22 can be: lower nodes")

    @property
    def words(self) -> Words:
        """Those that a cycle is of."""
        return Words(symbols=self.symbols, min_tokens=self.min_tokens, max_tokens=self.max_tokens)

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return self.roles().vocab

    @property
    def shape(self) -> tuple[int, int]:
        return 1 + 2 * self.nodes * self.max_tokens + self.queries * (2 * self.max_tokens + 2), self.vocab

    def roles(self) -> Roles:
        found, first = {"pad": range(1), "begin": range(_BEGIN, _BEGIN + 1)}, _BEGIN + 1
        for name, size in (("inner", self.words.inner), ("final", self.symbols), ("hop", self.hops), ("mark", 1)):
            found[name], first = range(first, first + size), first + size
        return Roles(found)

    @property
    def tested(self) -> tuple[int, ...]:
        """The numbers of steps that validation and test ask for."""
        powers = {2**power for power in range(self.hops.bit_length())}
        return tuple(sorted(powers | ({24} if self.hops == 32 else set())))

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        nodes = self._sizes(rng, count, split)
        words, steps = self._cycle(rng, nodes), self._steps(rng, nodes, split)
        fact = self._order(rng, nodes)  # which word each fact begins with
        following = np.where(fact + 1 < nodes[:, None], fact + 1, 0)
        start = self._starts(rng, nodes)
        answer = (start + steps) % nodes[:, None]
        row = np.arange(count)[:, None] * self.nodes
        place = np.empty_like(fact)  # of every word, the fact that ends in it
        place.ravel()[row + np.where(np.arange(self.nodes) < nodes[:, None], following, fact)] = np.arange(self.nodes)
        words = words.ravel()
        pairs = words.take(np.stack([row + fact, row + following], axis=2)).reshape(count, -1)
        asked = np.stack([steps - 1, words.take(row + start), np.zeros_like(steps), words.take(row + answer)], axis=2)
        if self.drawn == "depo" or self.min_tokens < self.max_tokens:
            told = np.where(np.arange(self.queries) < nodes[:, None], place.take(row + answer), -1)
            return self._ragged(nodes, pairs, asked, told)
        return self._even(pairs, asked, place.take(row + answer))

    def _even(self, pairs: NDArray[np.int64], asked: NDArray[np.int64], told: NDArray[np.int64]) -> Batch:
        """Words of one size laid out: int64 [n, 2 nodes] words of facts, int64 [n, queries, (step, start, mark, answer)], and
        int64 [n, queries] the fact that tells each answer."""
        spelling, size = self.words.spelling(_BEGIN + 1), self.max_tokens
        inputs = np.empty((len(pairs), self.shape[0]), dtype=np.int64)
        targets = np.full(inputs.shape, IGNORE)
        facts, block = inputs[:, : -self.queries * (2 * size + 2)], self._questions(inputs)
        facts[:, 0], facts[:, 1:] = _BEGIN, spelling.take(pairs, axis=0).reshape(len(pairs), -1)
        block[:, :, 0] = self.roles().of("hop").start + asked[:, :, 0]
        block[:, :, 1 : 1 + size] = spelling.take(asked[:, :, 1], axis=0)
        block[:, :, 1 + size] = self.roles().of("mark").start
        block[:, :, 2 + size :] = due = spelling.take(asked[:, :, 3], axis=0)
        self._questions(targets)[:, :, 1 + size : -1] = due
        return Batch(inputs=inputs, targets=targets, aux={"told": 1 + size * (2 * told + 1)})

    def _ragged(
        self, nodes: NDArray[np.int64], pairs: NDArray[np.int64], asked: NDArray[np.int64], told: NDArray[np.int64]
    ) -> Batch:
        """Words of several sizes, or of sequences of several numbers of words, laid out one after another; arguments as of
        `_even`, of which each sequence has its own number, and told is -1 where nothing is asked."""
        spelling = self.words.spelling(_BEGIN + 1)  # its last row is no word
        single = np.zeros((self.hops + 2, self.max_tokens), dtype=np.int32)
        single[:, 0] = [*self.roles().of("hop"), self.roles().of("mark").start, _BEGIN]
        table, hop, begin = np.concatenate([spelling, single]), len(spelling), len(spelling) + self.hops + 1
        asked[:, :, 0] += hop
        asked[:, :, 2] = begin - 1
        asked[told < 0] = hop - 1
        pairs[np.arange(2 * self.nodes) >= 2 * nodes[:, None]] = hop - 1
        count, length = len(pairs), self.shape[0]
        slots = np.concatenate([np.full((count, 1), begin), pairs, asked.reshape(count, -1)], axis=1)
        sizes = (table > 0).sum(axis=1).take(slots)
        first = sizes.cumsum(axis=1) - sizes

        # A word's padding falls on tokens of the words behind it, which are nearer to the begin of theirs and so come later.
        wide = np.zeros((count, length + self.max_tokens), dtype=np.int32)
        at = first + np.arange(count)[:, None] * wide.shape[1] + self.max_tokens
        for tokens in table.T[::-1].copy():
            at -= 1
            wide.ravel()[at] = tokens.take(slots)
        answers, due = first[:, -4 * self.queries :][:, 3::4], table.take(asked[:, :, 3], axis=0)
        targets = np.full((count, length), IGNORE)
        row, query, token = np.nonzero(due)
        targets[row, answers[row, query] + token - 1] = due[row, query, token]
        second = np.take_along_axis(first[:, 2 : 1 + 2 * self.nodes : 2], np.maximum(told, 0), axis=1)
        inputs = wide[:, :length].astype(np.int64)
        return Batch(inputs=inputs, targets=targets, aux={"told": np.where(told < 0, -1, second)})

    def drawn_bytes(self, count: int) -> float:
        return 3 * super().drawn_bytes(count)

    def _sizes(self, rng: np.random.Generator, count: int, split: Split) -> NDArray[np.int64]:
        """int64 [n]: words of every cycle."""
        if self.drawn == "fixed" or split != "train":
            return np.full(count, self.nodes)
        sizes = np.arange(_FEWEST, self.nodes + 1)
        rising = (1 / (sizes + np.sqrt(self.nodes))).cumsum()
        return sizes[np.searchsorted(rising, rng.random(count) * rising[-1], side="right")]

    def _cycle(self, rng: np.random.Generator, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n, nodes]: the number of each word of the cycle, in its order."""
        if self.min_tokens == self.max_tokens:
            few = 8 * self.nodes > self.words.number
            return (dealt if few else distinct)(rng, len(nodes), self.nodes, self.words.number)
        words = self.words.distinct(rng, np.arange(self.nodes) < nodes[:, None])
        return np.take_along_axis(words, self._order(rng, nodes), axis=1)

    def _order(self, rng: np.random.Generator, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.drawn == "fixed":
            return dealt(rng, len(nodes), self.nodes, self.nodes)
        return orders(rng, nodes, self.nodes)

    def _steps(self, rng: np.random.Generator, nodes: NDArray[np.int64], split: Split) -> NDArray[np.int64]:
        size = len(nodes), self.queries
        if split != "train":
            return np.array(self.tested)[rng.integers(len(self.tested), size=size)]
        most = self.hops if self.protocol == "depo" else np.minimum(self.hops, nodes - 1)[:, None]
        return 1 + np.floor(rng.random(size) * most).astype(np.int64)

    def _starts(self, rng: np.random.Generator, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.drawn == "fixed":
            return dealt(rng, len(nodes), self.queries, self.nodes)
        asked = np.arange(self.queries) < nodes[:, None]
        starts = distinct_as(
            lambda rows: np.floor(rng.random(rows.size) * nodes[rows]).astype(np.int64), asked, self.nodes
        )
        return np.where(asked, starts, 0)

    def chance(self) -> float:
        """A guess among the other words of the cycle."""
        return 1 / (self.nodes - 1)

    def ceiling(self) -> float:
        return 1.0

    def references(self) -> dict[str, float]:
        """`one_hop`: always the next word, right where one step is asked for."""
        return {"one_hop": 1 / len(self.tested)}

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The same token of the answer in the fact that ends in it."""
        time = np.arange(batch.inputs.shape[1])
        mark = np.maximum.accumulate(np.where(self._marks(batch), time, -1), axis=1)
        told = np.take_along_axis(batch.aux["told"], np.maximum(self._query(batch), 0), axis=1)
        return np.where(batch.targets != IGNORE, told + time - mark, -1)

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """The number of steps asked for."""
        first = self.roles().of("hop").start
        is_hop = (batch.inputs >= first) & (batch.inputs < first + self.hops)
        steps = np.where(is_hop, batch.inputs - first + 1, -1)
        at = np.maximum.accumulate(np.where(is_hop, np.arange(batch.inputs.shape[1]), 0), axis=1)
        return {"hops": np.take_along_axis(steps, at, axis=1)}

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """Those of tokens, `word_accuracy`, and `word_accuracy/hops=<k>`."""
        labels = self.slices(batch)
        scores = score.of_tokens(batch.targets, predictions, labels)
        wrong, steps = self._answered(batch, predictions, labels["hops"])
        scores["word_accuracy"] = float(1 - wrong[steps > 0].mean())
        for asked in np.unique(steps[steps > 0]).tolist():
            scores[f"word_accuracy/hops={asked}"] = float(1 - wrong[steps == asked].mean())
        return scores

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        errors: dict[str, float | None] = dict(self.scoring(batch).standard_errors(predictions))
        wrong, steps = (
            part.reshape(-1, self.queries) for part in self._answered(batch, predictions, self.slices(batch)["hops"])
        )
        errors["word_accuracy"] = score.standard_error((wrong & (steps > 0)).sum(axis=1), (steps > 0).sum(axis=1))
        for asked in np.unique(steps[steps > 0]).tolist():
            own = steps == asked
            errors[f"word_accuracy/hops={asked}"] = score.standard_error((wrong & own).sum(axis=1), own.sum(axis=1))
        return score.known(errors)

    def _answered(
        self, batch: Batch, predictions: NDArray[Any], hops: NDArray[Any]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """[n * queries]: whether the answer to a query is wrong, and the steps asked for; -1 where nothing is."""
        scored = batch.targets != IGNORE
        answer = (np.arange(len(batch))[:, None] * self.queries + self._query(batch))[scored]
        wrong = np.bincount(answer, (predictions != batch.targets)[scored], minlength=len(batch) * self.queries) > 0
        steps = np.full(wrong.size, -1)
        steps[answer] = hops[scored]
        return wrong, steps

    def _questions(self, wide: NDArray[Any]) -> NDArray[Any]:
        """[n, queries, k, start, mark, answer]: the queries of unpadded tokens or targets, as a view."""
        size = 2 * self.max_tokens + 2
        return wide[:, -self.queries * size :].reshape(len(wide), self.queries, size)

    def _marks(self, batch: Batch) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = batch.inputs == self.roles().of("mark").start
        return found

    def _query(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: which query the answer at each position belongs to; -1 before the first mark."""
        return self._marks(batch).cumsum(axis=1) - 1
