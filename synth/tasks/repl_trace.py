"""Traces of a program that swaps variables (after Siems et al. 2026): assignments, swaps, and prints of values."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import permutations
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import LONGEST, Split, Task
from recallmap.synth.vocab import Roles

_EXAM = 4096  # sequences that the line `last_shown` is computed on, and the ceiling of hidden swaps
_MOST_MOVED, _MOST_HIDDEN = (
    6,
    4,
)  # variables whose permutations are tokens, and that are followed where swaps are hidden
_IS, _PRINT, _SWAP, _END, _FIRST = 0, 1, 2, 3, 4  # token ids; _FIRST is the first variable


@dataclass(frozen=True, kw_only=True)
class ReplTrace(Task):
    """Lines of four tokens: "variable = value ;" for every variable, the values all different, then `lines` times either
    "print variable value ;", with probability `prints`, or "swap variable variable ;", of two different ones.

    The value is due at the variable of a print. With `loss` "lm" training asks for every next token; validation and test ask
    for values alone. A sequence without a print is drawn anew.

    variables  number of variables, and of values
    lines      prints and swaps
    prints     the share of prints
    moves      swap: as above. element: instead of swaps "move element ; ;", where an element is one token for a permutation of
               all variables, each as likely; a variable takes the value of the one in its place there
    hidden     the share of moves that are told and do not happen, which nothing shows but later prints. An oracle then says
               the likeliest value given all that was told; it follows at most 4 variables

    Values that were shown and not swapped since are recall: the reference `last_shown` is of one who follows no swap. Test
    longer traces.
    """

    kind: Literal["repl_trace"] = "repl_trace"
    protocol: Literal["repaired"] = "repaired"
    variables: int = 5
    lines: int = 32
    prints: float = 0.5
    loss: Literal["answers", "lm"] = "answers"
    moves: Literal["swap", "element"] = field(default="swap", metadata={"later": True})
    hidden: float = field(default=0.0, metadata={"later": True})

    exam: ClassVar[int] = _EXAM

    def __post_init__(self) -> None:
        if self.protocol != "repaired":
            raise ValueError(f"protocol must be 'repaired', got '{self.protocol}'")
        if self.loss not in ("answers", "lm"):
            raise ValueError(f"loss must be 'answers' or 'lm', got '{self.loss}'")
        if self.moves not in ("swap", "element"):
            raise ValueError(f"moves must be 'swap' or 'element', got '{self.moves}'")
        if not 0 <= self.hidden < 1:
            raise ValueError(f"hidden must be at least 0 and below 1, got {self.hidden}")
        if self.moves == "element" and self.variables > _MOST_MOVED:
            raise ValueError(
                f"variables must be at most {_MOST_MOVED} where every permutation is a token, got {self.variables}: use moves "
                "'swap'"
            )
        if self.hidden > 0 and self.variables > _MOST_HIDDEN:
            raise ValueError(
                f"variables must be at most {_MOST_HIDDEN} where moves are hidden, for the oracle follows no more; "
                f"got {self.variables}"
            )
        if self.variables < 2:
            raise ValueError(f"variables must be at least 2, or there is nothing to swap; got {self.variables}")
        if self.lines < 1:
            raise ValueError(f"lines must be at least 1, got {self.lines}")
        if not 0 < self.prints < 1:
            raise ValueError(f"prints must be above 0 and below 1, got {self.prints}")
        if self.prints * self.lines < 0.1:
            raise ValueError(f"{self.lines} lines hardly ever print at {self.prints}: raise lines or prints")
        if self.shape[0] > LONGEST:
            raise ValueError(f"variables and lines take {self.shape[0]:,} positions, at most {LONGEST:,}: lower lines")

    @property
    def vocab(self) -> int:
        """Number of token ids."""
        return _FIRST + 2 * self.variables + (len(_orders(self.variables)) if self.moves == "element" else 0)

    @property
    def shape(self) -> tuple[int, int]:
        return 4 * (self.variables + self.lines), self.vocab

    def roles(self) -> Roles:
        values = _FIRST + self.variables
        elements = values + self.variables
        words = {"is": _IS, "print": _PRINT, ("swap" if self.moves == "swap" else "move"): _SWAP, "end": _END}
        found = {name: range(token, token + 1) for name, token in words.items()}
        found |= {"variable": range(_FIRST, values), "value": range(values, elements)}
        return Roles(found | ({"element": range(elements, self.vocab)} if self.moves == "element" else {}))

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        names, values = self.variables, _FIRST + self.variables
        shape = self.lines, count
        printed = rng.random(shape) < self.prints
        while (silent := np.flatnonzero(~printed.any(axis=0))).size:
            printed[:, silent] = rng.random((self.lines, silent.size)) < self.prints
        one = rng.integers(names, size=shape)
        other = (one + rng.integers(1, names, size=shape)) % names
        held = rng.permuted(
            np.tile(np.arange(names), (count, 1)), axis=1
        ).ravel()  # value of every variable of all rows
        inputs = np.empty((count, *self.shape[:1]), dtype=np.int64)
        inputs[:, 3::4] = _END
        inputs[:, 1 : 4 * names : 4], inputs[:, 0 : 4 * names : 4] = _IS, _FIRST + np.arange(names)
        inputs[:, 2 : 4 * names : 4] = values + held.reshape(count, names)

        happens = ~printed
        if self.hidden > 0:
            happens &= rng.random(shape) >= self.hidden
        if self.moves == "element":
            element = rng.integers(len(_orders(names)), size=shape)
            told, behind = values + names + element, np.full(shape, _END)
            said, since = _permuted(held.reshape(count, names), printed, happens, one, _orders(names)[element])
        else:
            told, behind = _FIRST + one, _FIRST + other
            said, since = _swapped(held, names, printed, happens, one, other)
        rest = inputs[:, 4 * names :].reshape(count, self.lines, 4)
        rest[:, :, 0] = np.where(printed, _PRINT, _SWAP).T
        rest[:, :, 1] = np.where(printed, _FIRST + one, told).T
        rest[:, :, 2] = np.where(printed, values + said, behind).T
        targets = np.full(inputs.shape, IGNORE)
        if self.loss == "lm" and split == "train":
            targets[:, :-1] = inputs[:, 1:]
        else:
            targets[:, 4 * names + 1 :: 4] = np.where(printed, values + said, IGNORE).T
        return Batch(inputs=inputs, targets=targets, aux={"swaps": np.where(printed, since, -1).T.copy()})

    def drawn_bytes(self, count: int) -> float:
        return 2 * super().drawn_bytes(count)

    def chance(self) -> float:
        """A guess among all values."""
        return 1 / self.variables

    def ceiling(self) -> float:
        """1; where moves are hidden, how likely the likeliest value is on average, on 4,096 sequences."""
        return _likeliest(self) if self.hidden > 0 else 1.0

    def references(self) -> dict[str, float]:
        """`last_shown`: always the value that was last seen beside that variable, swaps ignored, on 4,096 sequences."""
        return {"last_shown": _last_shown(self)}

    def last_shown(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: at each print the value last seen beside its variable, elsewhere IGNORE."""
        found = np.full(batch.inputs.shape, IGNORE)
        seen = batch.inputs[:, 2 : 4 * self.variables : 4].copy()
        each = np.arange(len(batch))
        for at in range(4 * self.variables, self.shape[0], 4):
            shows = batch.inputs[:, at] == _PRINT
            variable = np.where(shows, batch.inputs[:, at + 1] - _FIRST, 0)
            old = seen[each, variable]
            found[:, at + 1] = np.where(shows, old, IGNORE)
            seen[each, variable] = np.where(shows, batch.inputs[:, at + 2], old)
        return found

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The value where it was last shown, beside whatever variable."""
        found = np.full(batch.inputs.shape, -1)
        shown = np.empty((len(batch), self.variables), dtype=np.int64)
        values = _FIRST + self.variables
        each = np.arange(len(batch))
        for at in range(0, self.shape[0], 4):
            prints, value = batch.inputs[:, at] == _PRINT, batch.inputs[:, at + 2] - values
            tells = prints | (at < 4 * self.variables)
            row = each[prints]
            found[row, at + 1] = shown[row, value[prints]]
            shown[each[tells], value[tells]] = at + 2
        return np.where(batch.targets != IGNORE, found, -1)

    def likeliest(self, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """At each print the likeliest value given all that was told, int64 [n, T], elsewhere IGNORE; and how likely it is
        [n, T], elsewhere 0. All orders of the values are followed exactly."""
        names, states = self.variables, _orders(self.variables)
        number = {tuple(order): index for index, order in enumerate(states.tolist())}
        after = np.array(
            [[number[tuple(state[order])] for state in states] for order in states]
        )  # [order, state before]
        values, each = _FIRST + names, np.arange(len(batch))
        start = batch.inputs[:, 2 : 4 * names : 4] - values
        share = np.zeros((len(batch), len(states)))
        share[each, [number[tuple(order)] for order in start.tolist()]] = 1
        swaps = np.zeros((names, names), dtype=np.int64)  # the order that a swap of two variables is
        for one, other in permutations(range(names), 2):
            order = np.arange(names)
            order[[one, other]] = other, one
            swaps[one, other] = number[tuple(order.tolist())]
        said, likely = np.full(batch.inputs.shape, IGNORE), np.zeros(batch.inputs.shape)
        for at in range(4 * names, self.shape[0], 4):
            word, second, third = batch.inputs[:, at : at + 3].T
            moves = np.flatnonzero(word == _SWAP)
            if self.moves == "element":
                told = second[moves] - values - names
            else:
                told = swaps[second[moves] - _FIRST, third[moves] - _FIRST]
            moved = np.zeros((moves.size, len(states)))
            np.put_along_axis(moved, after[told], share[moves], axis=1)
            share[moves] = self.hidden * share[moves] + (1 - self.hidden) * moved
            shows = np.flatnonzero(word == _PRINT)
            held = states[:, second[shows] - _FIRST].T  # [prints, states]: the value there in each state
            of_value = np.stack([(share[shows] * (held == value)).sum(axis=1) for value in range(names)], axis=1)
            said[shows, at + 1] = values + of_value.argmax(axis=1)
            likely[shows, at + 1] = of_value.max(axis=1)
            share[shows] *= held == (third[shows] - values)[:, None]
            share[shows] /= share[shows].sum(axis=1, keepdims=True)
        return said, likely

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """How often the variable was swapped since a print or its assignment told it, rounded up to a power of two; 0 is
        recall."""
        swaps = np.full(batch.inputs.shape, -1)
        swaps[:, 4 * self.variables + 1 :: 4] = batch.aux["swaps"]
        return {"swaps_since": np.where(swaps > 0, score.up_to(swaps), swaps)}


@lru_cache(maxsize=8)
def _orders(names: int) -> NDArray[np.int64]:
    """int64 [orders, names]: all permutations in lexicographic order, as in the task group_word."""
    found = np.array(list(permutations(range(names))))
    found.setflags(write=False)
    return found


def _swapped(
    held: NDArray[np.int64],
    names: int,
    printed: NDArray[np.bool_],
    happens: NDArray[np.bool_],
    one: NDArray[np.int64],
    other: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The value of variable `one` before each line, and how many swaps told of it since it was shown, both [lines, n]."""
    first = np.arange(printed.shape[1]) * names
    said, since = np.empty_like(one), np.empty_like(one)
    swaps = np.zeros(held.size, dtype=np.int64)
    for line, (left, right, shows, does) in enumerate(zip(first + one, first + other, printed, happens, strict=True)):
        said[line] = value = held.take(left)
        since[line] = touched = swaps.take(left)
        to = np.where(does, right, left)
        held[left], held[to] = held.take(to), value
        moved = ~shows
        swaps[left] = np.where(shows, 0, touched + moved)
        swaps[right] += moved
    return said, since


def _permuted(
    held: NDArray[np.int64],
    printed: NDArray[np.bool_],
    happens: NDArray[np.bool_],
    one: NDArray[np.int64],
    orders: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As `_swapped`, of moves of all variables by orders [lines, n, names]."""
    said, since = np.empty_like(one), np.empty_like(one)
    moves, each, still = np.zeros_like(held), np.arange(len(held)), np.arange(held.shape[1])
    for line, (variable, shows, does, order) in enumerate(zip(one, printed, happens, orders, strict=True)):
        said[line], since[line] = held[each, variable], moves[each, variable]
        held = np.where(does[:, None], np.take_along_axis(held, order, axis=1), held)
        moves = moves + (~shows[:, None] & (order != still))
        moves[each, variable] = np.where(shows, 0, moves[each, variable])
    return said, since


@lru_cache(maxsize=64)
def _likeliest(task: ReplTrace) -> float:
    batch = task.sample(np.random.default_rng(0), _EXAM, "test")
    return float(task.likeliest(batch)[1].sum() / (batch.targets != IGNORE).sum())


@lru_cache(maxsize=64)
def _last_shown(task: ReplTrace) -> float:
    batch = task.sample(np.random.default_rng(0), _EXAM, "test")
    return task.score(batch, task.last_shown(batch))["accuracy"]
