"""Ancestors in order (Brevo of Allen-Zhu 2025): all that a node of a graph needs, parents before children."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import distinct
from recallmap.synth.task import LONGEST, MOST_IDS, Split, Task
from recallmap.synth.vocab import Roles

_EXAM = 4096  # sequences that chance is computed on
_DEGREE = 4  # most parents, and most children, of a node
_BEGIN, _ASK, _ANSWER, _END, _FIRST = 1, 2, 3, 4, 5  # token ids; _FIRST is the first node, 0 the padding


@dataclass(frozen=True, kw_only=True)
class TopologicalOrder(Task):
    """A graph without cycles: a begin mark, its edges "parent, child" in random order, then a mark, the node that is asked for,
    a mark, and all its ancestors and itself, each after its parents; an end. Ancestors are due from the second mark on.

    The first 1 to floor((n - 1) / 4) + 1 of n nodes are leaves, without parents, all numbers as likely. Each later node draws
    1 to 4 parents among earlier nodes with fewer than 4 children. Of the orders that are right a random one is shown: from the
    last on, of the nodes all of whose children are taken, each is as likely. Rows are padded on the right.

    nodes  of a graph
    names  of which each graph takes some for its nodes; None: `nodes`
    drawn  fixed: every graph has `nodes` nodes. brevo: training draws 3 to `nodes`, n in proportion to 1 / (n + sqrt(nodes))

    Under protocol "brevo" the last node is asked for; under "repaired" one of the last quarter, as the public code means to.

    Headline: `legal`, the share of choices that are an ancestor or the node itself, not yet named, whose parents all are. What
    comes before a choice is the order shown, so it is not the share of free answers that are right.
    """

    kind: Literal["topological_order"] = "topological_order"
    protocol: Literal["repaired", "brevo"] = "repaired"
    nodes: int = 20
    names: int | None = None
    drawn: Literal["fixed", "brevo"] = "fixed"

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
        if self.shape[0] > LONGEST:
            raise ValueError(f"nodes take {self.shape[0]:,} positions, at most {LONGEST:,}: lower them")

    @property
    def _edges(self) -> int:
        """Most edges of a graph."""
        return 4 * self.nodes - 10  # the first nodes have fewer earlier ones than 4

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return _FIRST + (self.names or self.nodes)

    @property
    def shape(self) -> tuple[int, int]:
        return 2 * self._edges + self.nodes + 5, self.vocab

    def roles(self) -> Roles:
        marks = {"pad": 0, "begin": _BEGIN, "ask": _ASK, "answer": _ANSWER, "end": _END}
        return Roles(
            {name: range(token, token + 1) for name, token in marks.items()} | {"node": range(_FIRST, self.vocab)}
        )

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
        names = distinct(rng, count, most, self.vocab - _FIRST)

        there = (parents >= 0).reshape(count, -1)
        edges = there.sum(axis=1)
        shuffled = np.argsort(np.where(there, rng.random(there.shape), 2.0), axis=1)[:, : self._edges]
        child = np.take_along_axis(names, shuffled // _DEGREE, axis=1)
        told = np.take_along_axis(parents.reshape(count, -1), shuffled, axis=1)
        told = np.take_along_axis(names, np.maximum(told, 0), axis=1)
        inputs = np.zeros((count, self.shape[0]), dtype=np.int64)
        inputs[:, 0] = _BEGIN
        facts = inputs[:, 1 : 1 + 2 * self._edges].reshape(count, self._edges, 2)
        shown = np.arange(self._edges) < edges[:, None]
        facts[:, :, 0], facts[:, :, 1] = (np.where(shown, _FIRST + name, 0) for name in (told, child))
        inputs[:, 1 : 1 + 2 * self._edges] = facts.reshape(count, -1)
        ask = 1 + 2 * edges
        inputs[each, ask], inputs[each, ask + 2] = _ASK, _ANSWER
        inputs[each, ask + 1] = _FIRST + names[each, asked]
        row, place = np.nonzero(np.arange(most) < named[:, None])
        answer = _FIRST + names[row, order[row, place]]
        inputs[row, ask[row] + 3 + place] = answer
        inputs[each, ask + 3 + named] = _END
        targets = np.full(inputs.shape, IGNORE)
        targets[row, ask[row] + 2 + place] = answer

        by_name = np.full((2, count, self.vocab - _FIRST), -1)
        for of, values in zip(by_name, (1 + highest, rank), strict=True):
            np.put_along_axis(of, names, values, axis=1)
        return Batch(inputs=inputs, targets=targets, aux={"ready": by_name[0], "rank": by_name[1]})  # by name

    def drawn_bytes(self, count: int) -> float:
        return 2 * super().drawn_bytes(count)

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
        """A guess among the nodes of edges that are not yet named, on 4,096 sequences."""
        return _chance(self)

    def ceiling(self) -> float:
        return 1.0

    def places(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: at each scored position how many nodes are named already, elsewhere -1."""
        scored = batch.targets != IGNORE
        return np.where(scored, scored.cumsum(axis=1) - 1, -1)

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How many nodes are named already, rounded up to a power of two; the first choice, 0, needs the whole plan."""
        places = self.places(batch)
        return {"place_up_to": np.where(places > 0, score.up_to(places), places)}

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

    def _legal(self, batch: Batch, predictions: NDArray[Any]) -> NDArray[Any]:
        """The targets where a choice is legal, elsewhere what is none."""
        node = np.clip(predictions - _FIRST, 0, self.vocab - _FIRST - 1)
        ready, rank = (np.take_along_axis(batch.aux[name], node, axis=1) for name in ("ready", "rank"))
        places = self.places(batch)
        legal = (predictions >= _FIRST) & (predictions < self.vocab) & (ready <= places) & (places <= rank)
        return np.where(legal, batch.targets, 0)


def _renamed(scores: dict[str, float]) -> dict[str, float]:
    return {
        name.replace("accuracy", "legal", 1): value for name, value in scores.items() if not name.startswith("macro")
    }


@lru_cache(maxsize=64)
def _chance(task: TopologicalOrder) -> float:
    batch = task.sample(np.random.default_rng(0), _EXAM, "test")
    ready, rank = batch.aux["ready"], batch.aux["rank"]
    facts = 1 + np.arange(2 * task._edges)
    before = np.where((batch.inputs == _ASK).cumsum(axis=1) == 0, batch.inputs, 0)[:, facts]
    shown = np.zeros((_EXAM, task.vocab), dtype=bool)
    np.put_along_axis(shown, before, True, axis=1)
    nodes = shown[:, _FIRST:].sum(axis=1)
    guessed = []
    for place in range(int(rank.max()) + 1):
        legal = ((ready <= place) & (place <= rank)).sum(axis=1)
        asked = rank.max(axis=1) >= place
        guessed.append(legal[asked] / (nodes[asked] - place))
    return float(np.concatenate(guessed).mean())
