"""The cut of a call: queries and keys of a tile, warps and stages of every pass."""

from __future__ import annotations

from typing import Any, NamedTuple

from recallmap.arch.kernels.op_interface.custom_op import padded

KEYS_AT_ONCE = 128  # of the backward pass in one launch
MOST_QUERIES = 128  # of a tile


class Tiles(NamedTuple):
    """One launch: queries and keys of a tile, warps, stages of loads under way, registers a thread where bounded."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int | None = None


class Call(NamedTuple):
    """What the cut depends on: tokens, keys, the wider of keys and values; 16 bits a number; gates that forget."""

    time: int
    keys: int
    width: int
    narrow: bool
    fades: bool

    @property
    def whole(self) -> bool:
        """True where one program holds all derivatives of a sequence."""
        return self.keys <= KEYS_AT_ONCE and self.width <= (64 if self.narrow else 32)

    @property
    def long(self) -> bool:
        """True where tiles whose queries see all of their keys are worth a loop of their own."""
        return self.keys > (KEYS_AT_ONCE if self.fades else 2 * KEYS_AT_ONCE)


class Passes(NamedTuple):
    """The tiles of the forward pass, and of the two backward: over queries for dq, over keys for dk and dv."""

    forward: Tiles
    over_queries: Tiles
    over_keys: Tiles


class Table(NamedTuple):
    """The tiles in 16 bits, by the wider of keys and values: a call takes the first entry that is wide enough."""

    passes: dict[int, Passes]
    short: dict[int, Tiles]  # forward, of at most KEYS_AT_ONCE tokens
    at_once: dict[int, Tiles]  # backward in one launch, where one program holds all derivatives of a sequence


_PLAIN = Table(
    passes={
        32: Passes(Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 2)),
        64: Passes(Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 2), Tiles(32, 64, 4, 2)),
        128: Passes(Tiles(128, 128, 8, 2), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 2)),
        256: Passes(Tiles(64, 32, 4, 2), Tiles(64, 32, 8, 2), Tiles(32, 64, 8, 2)),
    },
    short={128: Tiles(64, 64, 4, 1), 256: Tiles(64, 32, 4, 2)},
    at_once={16: Tiles(64, 128, 8, 1, 128), 32: Tiles(32, 128, 8, 1, 128), 64: Tiles(32, 128, 8, 1)},
)
# By a sweep at L1, L2, S4 and S1 on an H200; the other widths are not measured.
_FADING = _PLAIN._replace(
    passes=_PLAIN.passes
    | {
        64: Passes(Tiles(64, 64, 4, 1), Tiles(64, 32, 4, 2), Tiles(64, 64, 4, 1)),
        128: Passes(Tiles(64, 64, 4, 3), Tiles(128, 64, 8, 3), Tiles(32, 64, 4, 3)),
    },
    at_once=_PLAIN.at_once | {16: Tiles(64, 128, 4, 1)},
)


def passes(call: Call) -> Passes:
    """The tiles of a call, none larger than it needs."""
    chosen = _half(call) if call.narrow else _single(call)
    return Passes(*(fitted(tiles, call) for tiles in chosen))


def _half(call: Call) -> Passes:
    table = _FADING if call.fades else _PLAIN
    chosen = _wide_enough(table.passes, call)
    if call.time <= KEYS_AT_ONCE:
        chosen = chosen._replace(forward=_wide_enough(table.short, call))
    if call.whole:
        at_once = _wide_enough(table.at_once, call)
        at_once = at_once if call.keys > KEYS_AT_ONCE // 2 else at_once._replace(warps=4)
        chosen = chosen._replace(over_queries=at_once, over_keys=at_once)
    return chosen


def _wide_enough(tiles: dict[int, Any], call: Call) -> Any:
    return next(tiles[width] for width in sorted(tiles) if call.width <= width)


def _single(call: Call) -> Passes:
    """In 32 bits, without tensor cores."""
    size = 32 if call.width <= 128 else 16
    forward = Tiles(32, 32, 4 if call.width <= 32 else 8, 1) if call.width <= 128 else Tiles(16, 32, 8, 1)
    backward = Tiles(32, KEYS_AT_ONCE, 8, 1) if call.whole else Tiles(size, size, 8, 1)
    return Passes(forward, backward, backward)


def fitted(tiles: Tiles, call: Call) -> Tiles:
    """Tiles with no more queries and keys than there are."""
    return tiles._replace(queries=min(tiles.queries, padded(call.time)), keys=min(tiles.keys, padded(call.keys)))


def gate_tiles(time: int) -> tuple[int, int]:
    """Tokens at a time, and warps, of the sums of gates."""
    tokens = min(2048, padded(time))
    return tokens, max(1, min(8, tokens // 128))
