"""Ancestors in order (Brevo of Allen-Zhu 2025): all that a node of a graph needs, parents before children."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import distinct, orders
from recallmap.synth.score import Scoring
from recallmap.synth.task import LONGEST, MOST_IDS, Split, Task
from recallmap.synth.vocab import Roles
from recallmap.synth.words import Words, packed

_EXAM = 4096  # sequences that chance is computed on
_DEGREE = 4  # most parents, and most children, of a node
_BEGIN, _ASK, _ANSWER, _END, _FIRST = 1, 2, 3, 4, 5  # token ids; _FIRST is the first of nodes, 0 the padding
_MARKS = ("pad", "begin", "ask", "answer", "end")


@dataclass(frozen=True, kw_only=True)
class TopologicalOrder(Task):
    """A graph without cycles: a begin mark, its edges "parent, child" in random order, then a mark, the node that is asked for,
    a mark, and all its ancestors and itself, each after its parents; an end. Ancestors are due from the second mark on.

    The first 1 to floor((n - 1) / 4) + 1 of n nodes are leaves, without parents, all numbers as likely. Each later node draws
    1 to 4 parents among earlier nodes with fewer than 4 children. Of the orders that are right a random one is shown: from the
    last on, of the nodes all of whose children are taken, each is as likely. Rows are padded on the right.

    nodes       of a graph
    names       of one token, of which each graph takes some for its nodes; None: `nodes`
    drawn       fixed: every graph has `nodes` nodes. brevo: training draws 3 to `nodes`, n in proportion to
                1 / (n + sqrt(nodes))
    symbols     None: a node's name is one token. Otherwise it is a word of `min_tokens` to `max_tokens` tokens, each of
                `symbols`; the last token is of a role of its own. All sizes are equally likely, and a word that is there
                already is drawn anew

    Under protocol "brevo" the last node is asked for; under "repaired" one of the last quarter, as the public code means to.

    Headline: `legal`, the share of choices that are an ancestor or the node itself, not yet named, whose parents all are. A
    word is legal where all its tokens are: each begins, with those shown before it, a word that may be chosen. What comes
    before a choice is the order shown, so it is not the share of free answers that are right.
    """

    kind: Literal["topological_order"] = "topological_order"
    protocol: Literal["repaired", "brevo"] = "repaired"
    nodes: int = 20
    names: int | None = None
    drawn: Literal["fixed", "brevo"] = "fixed"
    symbols: int | None = field(default=None, metadata={"later": True})
    min_tokens: int = field(default=1, metadata={"later": True})
    max_tokens: int = field(default=1, metadata={"later": True})

    metric: ClassVar[str] = "legal"
    exam: ClassVar[int] = _EXAM

    def __post_init__(self) -> None:
        if self.protocol not in ("repaired", "brevo"):
            raise ValueError(f"protocol must be 'repaired' or 'brevo', got '{self.protocol}'")
        if self.drawn not in ("fixed", "brevo"):
            raise ValueError(f"drawn must be 'fixed' or 'brevo', got '{self.drawn}'")
        if self.protocol == "brevo" and self.drawn != "brevo":
            raise ValueError(f"protocol 'brevo' needs drawn 'brevo', got '{self.drawn}': use protocol 'repaired'")
        if self.nodes < 4:
            raise ValueError(f"nodes must be at least 4, or there is no order to choose; got {self.nodes}")
        if self.names is not None and not self.nodes <= self.names <= MOST_IDS - _FIRST:
            raise ValueError(
                f"names must be at least nodes, {self.nodes}, and at most {MOST_IDS - _FIRST:,}, got {self.names:,}"
            )
        if self.symbols is None and (self.min_tokens, self.max_tokens) != (1, 1):
            raise ValueError(
                f"names of {self.min_tokens} to {self.max_tokens} tokens need symbols: give them, or leave out min_tokens and "
                "max_tokens"
            )
        if self.symbols is not None and self.names is not None:
            raise ValueError(
                f"a node's name is one of {self.names:,} names or a word of symbols, not both: leave out names or symbols"
            )
        if self.nodes > self.words.most:
            raise ValueError(
                f"{self.symbols} symbols make {self.words.number} words of {self.min_tokens} to {self.max_tokens} tokens, of "
                f"which a graph can have {self.words.most}, got nodes {self.nodes}: raise symbols or max_tokens, or lower nodes"
            )
        if self.shape[0] > LONGEST:
            raise ValueError(f"nodes take {self.shape[0]:,} positions, at most {LONGEST:,}: lower them")

    @property
    def words(self) -> Words:
        """Those that name nodes."""
        symbols = self.symbols if self.symbols is not None else self.names or self.nodes
        return Words(symbols=symbols, min_tokens=self.min_tokens, max_tokens=self.max_tokens)

    @property
    def _edges(self) -> int:
        """Most edges of a graph."""
        return 4 * self.nodes - 10  # the first nodes have fewer earlier ones than 4

    @property
    def _last(self) -> int:
        """The first id of tokens that end a node's name."""
        return _FIRST + self.words.inner

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return self._last + self.words.symbols

    @property
    def shape(self) -> tuple[int, int]:
        return 4 + (2 * self._edges + 1 + self.nodes) * self.max_tokens, self.vocab

    def roles(self) -> Roles:
        found = {name: range(token, token + 1) for name, token in zip(_MARKS, range(_FIRST), strict=True)}
        if self.symbols is None:
            return Roles(found | {"node": range(_FIRST, self.vocab)})
        return Roles(found | {"inner": range(_FIRST, self._last), "final": range(self._last, self.vocab)})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        each, most = np.arange(count), self.nodes
        sizes = self._sizes(rng, count, split)
        parents = self._graph(rng, sizes)
        quarter = np.maximum(sizes // 4, 1) if self.protocol == "repaired" else np.ones(count)
        asked = sizes - 1 - np.floor(rng.random(count) * quarter).astype(np.int64)
        order, rank, named = self._order(rng, parents, asked)

        highest = np.full((count, most), -1)  # rank among the parents of each node
        for parent in range(_DEGREE):
            at = parents[:, :, parent]
            highest = np.maximum(highest, np.where(at >= 0, np.take_along_axis(rank, np.maximum(at, 0), axis=1), -1))
        there = (parents >= 0).reshape(count, -1)
        edges = there.sum(axis=1)
        names = self._names(rng, parents)
        shuffled = np.argsort(np.where(there, rng.random(there.shape), 2.0), axis=1)[:, : self._edges]
        told = np.take_along_axis(parents.reshape(count, -1), shuffled, axis=1)
        told = np.take_along_axis(names, np.maximum(told, 0), axis=1)
        child = np.take_along_axis(names, shuffled // _DEGREE, axis=1)

        size, pairs = self.max_tokens, 1 + 2 * self._edges * self.max_tokens
        spelling = self.words.spelling(_FIRST)
        wide = np.zeros((count, self.shape[0]), dtype=np.int64)
        wide[:, 0], wide[:, pairs], wide[:, pairs + 1 + size], wide[:, -1] = _BEGIN, _ASK, _ANSWER, _END
        shown = np.arange(self._edges) < edges[:, None]
        pair = np.where(shown[:, :, None], np.stack([told, child], axis=2), -1)  # -1 is no word
        wide[:, 1:pairs] = spelling[pair].reshape(count, -1)
        wide[:, pairs + 1 : pairs + 1 + size] = spelling[names[each, asked]]
        answer = np.where(np.arange(most) < named[:, None], np.take_along_axis(names, order, axis=1), -1)
        due = np.full(wide.shape, IGNORE)
        wide[:, pairs + 2 + size : -1] = spelled = spelling[answer].reshape(count, -1)
        due[:, pairs + 2 + size : -1] = np.where(spelled > 0, spelled, IGNORE)
        used = wide > 0
        targets = np.full(wide.shape, IGNORE)
        targets[:, :-1] = packed(due, used, IGNORE)[:, 1:]
        aux = {"name": names, "ready": 1 + highest, "rank": rank}  # by node
        return Batch(inputs=packed(wide, used, 0), targets=targets, aux=aux)

    def drawn_bytes(self, count: int) -> float:
        return 2 * super().drawn_bytes(count)

    def _names(self, rng: np.random.Generator, parents: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n, nodes]: the number of the word that names each node, -1 where it has no edge."""
        count, most = parents.shape[:2]
        there = parents >= 0
        shown = parents.max(axis=2) >= 0
        shown[np.nonzero(there)[0], parents[there]] = True
        if self.symbols is None:
            return np.where(shown, distinct(rng, count, most, self.words.number), -1)
        nodes = shown.sum(axis=1)
        words = self.words.distinct(rng, np.arange(most) < nodes[:, None])
        words = np.take_along_axis(words, orders(rng, nodes, most), axis=1)
        return np.where(shown, np.take_along_axis(words, shown.cumsum(axis=1) - 1, axis=1), -1)

    def _sizes(self, rng: np.random.Generator, count: int, split: Split) -> NDArray[np.int64]:
        """int64 [n]: nodes of every graph."""
        if self.drawn == "fixed" or split != "train":
            return np.full(count, self.nodes)
        sizes = np.arange(3, self.nodes + 1)
        rising = (1 / (sizes + np.sqrt(self.nodes))).cumsum()
        return sizes[np.searchsorted(rising, rng.random(count) * rising[-1], side="right")]

    def _graph(self, rng: np.random.Generator, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 [n, nodes, 4]: the parents of every node, -1 where there is none."""
        count = sizes.size
        leaves = 1 + np.floor(rng.random(count) * ((sizes - 1) // 4 + 1)).astype(np.int64)
        parents = np.full((count, self.nodes, _DEGREE), -1)
        children = np.zeros((count, self.nodes), dtype=np.int64)
        for node in range(1, self.nodes):
            free = children[:, :node] < _DEGREE
            most = np.minimum(free.sum(axis=1), _DEGREE)
            drawn = 1 + np.floor(rng.random(count) * most).astype(np.int64)
            drawn[(node < leaves) | (node >= sizes)] = 0
            keys = np.where(free, rng.random((count, node)), 2.0)
            first = min(_DEGREE, node)
            chosen = np.argpartition(keys, np.arange(first), axis=1)[:, :first]
            row, column = np.nonzero(np.arange(first) < drawn[:, None])
            parents[row, node, column] = chosen[row, column]
            children[row, chosen[row, column]] += 1
        return parents

    def _order(
        self, rng: np.random.Generator, parents: NDArray[np.int64], asked: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The ancestors of the node asked for and itself: in order [n, nodes], the place of every node in it or -1 [n, nodes],
        and how many they are [n]. Nodes whose children are all taken wait; one is taken at random, from the last on."""
        count, most = asked.size, self.nodes
        each = np.arange(count)
        related = np.zeros((count, most), dtype=bool)
        related[each, asked] = True
        left = np.zeros((count, most), dtype=np.int64)  # children among the related that are still to be taken
        for node in range(most - 1, 0, -1):
            for parent in parents[:, node].T:
                row = np.flatnonzero(related[:, node] & (parent >= 0))
                related[row, parent[row]] = True
                left[row, parent[row]] += 1
        named = related.sum(axis=1)
        waiting, waits = np.zeros((count, most), dtype=np.int64), np.ones(count, dtype=np.int64)
        waiting[:, 0] = asked
        order, rank = np.zeros((count, most), dtype=np.int64), np.full((count, most), -1)
        for step in range(int(named.max())):
            row = np.flatnonzero(step < named)
            pick = np.floor(rng.random(count) * waits).astype(np.int64)[row]
            taken, place = waiting[row, pick], named[row] - 1 - step
            waits[row] -= 1
            waiting[row, pick] = waiting[row, waits[row]]
            order[row, place], rank[row, taken] = taken, place
            for above in parents[row, taken].T:
                has = above >= 0
                left[row[has], above[has]] -= 1
                ready = row[has][left[row[has], above[has]] == 0]
                waiting[ready, waits[ready]] = above[has][left[row[has], above[has]] == 0]
                waits[ready] += 1
        return order, rank, named

    def chance(self) -> float:
        """A guess among the nodes of edges that are not yet named, at every token anew among those whose names begin as shown,
        on 4,096 sequences."""
        return _chance(self)

    def ceiling(self) -> float:
        return 1.0

    def places(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: at each scored position how many nodes are named already, elsewhere -1."""
        ends = self._ends(batch)
        return np.where(batch.targets != IGNORE, ends.cumsum(axis=1) - ends, -1)

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How many nodes are named already, rounded up to a power of two; the first choice, 0, needs the whole plan."""
        places = self.places(batch)
        return {"place_up_to": np.where(places > 0, score.up_to(places), places)}

    def scoring(self, batch: Batch) -> Scoring:
        """That of choices, each of which stands at the last token of its word."""
        if self not in batch.scorings:
            due = np.where(self._ends(batch), batch.targets, IGNORE)
            batch.scorings[self] = Scoring(due, self.slices(batch))
        found: Scoring = batch.scorings[self]
        return found

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """legal                share of choices that are legal
        exact_match          share of sequences where all are
        legal/place_up_to=P  of choices after P/2 + 1 to P nodes; 0: of the first
        """
        return _renamed(self.scoring(batch).of(self._legal(batch, predictions)))

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        return _renamed(self.scoring(batch).standard_errors(self._legal(batch, predictions)))

    def _ends(self, batch: Batch) -> NDArray[np.bool_]:
        """bool [n, T]: where the last token of a node's name is due."""
        found: NDArray[np.bool_] = batch.targets >= self._last
        return found

    def _legal(self, batch: Batch, predictions: NDArray[Any]) -> NDArray[Any]:
        """At the last token of each choice the target where the choice is legal; elsewhere what is none."""
        row, at = np.nonzero(batch.targets != IGNORE)
        ends = self._ends(batch)[row, at]
        choice = ends.cumsum() - ends  # of each scored token
        first = np.flatnonzero(np.diff(choice, prepend=-1))
        token, row, last = np.arange(at.size) - first[choice], row[first], at[ends]
        due, said = np.zeros((2, row.size, self.max_tokens), dtype=np.int64)
        due[choice, token], said[choice, token] = (of[row[choice], at] for of in (batch.targets, predictions))

        place = self.places(batch)[row, last][:, None]
        may = (batch.aux["ready"][row] <= place) & (place <= batch.aux["rank"][row])  # choose the node
        spelled = self.words.spelling(_FIRST)[batch.aux["name"][row]]  # [choices, nodes, tokens]
        right = np.ones(row.size, dtype=bool)
        for token_due, token_said, tokens in zip(due.T, said.T, spelled.transpose(2, 0, 1), strict=True):
            right &= (token_due == 0) | (may & (tokens == token_said[:, None])).any(axis=1)
            may &= tokens == token_due[:, None]
        found = np.zeros_like(batch.targets)
        found[row[right], last[right]] = batch.targets[row[right], last[right]]
        return found


def _renamed(scores: dict[str, float]) -> dict[str, float]:
    return {
        name.replace("accuracy", "legal", 1): value for name, value in scores.items() if not name.startswith("macro")
    }


@lru_cache(maxsize=64)
def _chance(task: TopologicalOrder) -> float:
    batch = task.sample(np.random.default_rng(0), _EXAM, "test")
    name, ready, rank = (batch.aux[of] for of in ("name", "ready", "rank"))
    spelled = task.words.spelling(_FIRST)[name]
    guessed = []
    for place in range(int(rank.max()) + 1):
        row, node = np.nonzero(rank == place)
        free = (name[row] >= 0) & ((rank[row] < 0) | (rank[row] >= place))
        may = (ready[row] <= place) & (place <= rank[row])
        right = np.ones(row.size)
        for token in range(task.max_tokens):
            said, due = spelled[row, :, token], spelled[row, node, token]
            legal = np.zeros((row.size, task.vocab), dtype=bool)
            where, which = np.nonzero(may)
            legal[where, said[where, which]] = True
            right *= np.where(
                due > 0, (free & np.take_along_axis(legal, said, axis=1)).sum(axis=1) / free.sum(axis=1), 1
            )
            free &= said == due[:, None]
            may &= said == due[:, None]
        guessed.append(right)
    return float(np.concatenate(guessed).mean())
