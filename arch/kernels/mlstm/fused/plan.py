"""The cut of a call: one walk a head or chunks side by side, tokens a chunk, and blocks and warps of every kernel."""

from typing import NamedTuple

import torch

from recallmap.arch.kernels.op_interface.custom_op import padded

WIDEST_RESIDENT = 64  # beyond it a state does not fit the registers of one program
LONGEST_RESIDENT = 256  # tokens that are not worth more than one launch
FEWEST_PROGRAMS = 128  # about one for every multiprocessor
FEW_PROGRAMS = 16  # up to so many, a carry is cut into more
MANY_PROGRAMS = 512  # from where on they share one


class Walk(NamedTuple):
    """One program a head walks its chunks, forward and backward: tokens a chunk, warps a program."""

    tokens: int
    warps: int


class Gates(NamedTuple):
    """The cut of the walk of the gates: chunks at a time, warps a program."""

    chunks: int
    warps: int


class Carry(NamedTuple):
    """The cut of the walk of the state: key and value columns a program, warps, stages of loads."""

    keys: int
    columns: int
    warps: int
    stages: int


class Tile(NamedTuple):
    """The cut of a kernel of one tile: value columns at a time, warps a program, stages of loads."""

    columns: int
    warps: int
    stages: int = 1


class Chunks(NamedTuple):
    """Chunks side by side, beside walks of the gates and of the state: tokens a chunk and a tile, and every kernel's cut."""

    tokens: int
    rows: int
    gates: Gates
    carry: Carry
    outputs: Tile
    by_queries: Tile
    by_keys: Tile


class Mixed(NamedTuple):
    """A walk forward, which leaves what chunks side by side take backward. Both have as many tokens a chunk."""

    forward: Walk
    backward: Chunks


Form = Walk | Chunks | Mixed

# By the wider of keys and values. Without tensor cores every thread holds all terms of its sums, so fp32 takes smaller blocks.
_FP32_WALK = {16: Walk(32, 4), 32: Walk(32, 8)}
_HALF_WALK = {16: Walk(64, 4), 32: Walk(64, 4), 64: Walk(64, 4)}
# Many programs want little work a token, hence short chunks and few warps; few of them want little waiting.
_HALF_WALK_OF_MANY = _HALF_WALK | {16: Walk(32, 1), 32: Walk(32, 2)}
# Two warps have no products of Hopper's own kind, which 64 columns beside fewer came out of wrong (Triton 3.6).
_HALF_WALK_UNEVEN = {64: Walk(32, 2)}


def _chunks(tokens: int, rows: int, carry: Carry, tile: Tile) -> Chunks:
    return Chunks(tokens, rows, Gates(32, 8), carry, tile, tile, tile)


_FP32_CHUNKS = {
    16: _chunks(32, 32, Carry(16, 16, 4, 1), Tile(16, 4)),
    32: _chunks(32, 32, Carry(32, 32, 8, 1), Tile(32, 8)),
    64: _chunks(32, 32, Carry(64, 32, 8, 1), Tile(32, 8)),
    128: _chunks(16, 16, Carry(128, 32, 8, 1), Tile(32, 8))._replace(outputs=Tile(16, 8)),
    256: _chunks(16, 16, Carry(256, 16, 8, 1), Tile(16, 8)),
}
# Products of 32 rows: 64 would bring in Hopper's own, which Triton 3.6 compiles to wrong results in some kernels. At width 128,
# 64 rows take two thirds of the time, with right results (180 cuts of a sweep on an H200); but with a tile by keys of 64
# columns and two stages, derivatives by k came out wrong at L1.
_HALF_CHUNKS = {
    16: _chunks(64, 32, Carry(16, 16, 4, 2), Tile(16, 4)),
    32: _chunks(64, 32, Carry(32, 32, 4, 2), Tile(32, 4)),
    64: _chunks(64, 32, Carry(32, 64, 4, 2), Tile(64, 4)),
    128: Chunks(64, 64, Gates(32, 8), Carry(32, 64, 4, 3), Tile(32, 4), Tile(64, 4, 2), Tile(128, 4)),
    256: _chunks(64, 32, Carry(32, 64, 4, 2), Tile(32, 8)),
}
_HALF_CHUNKS_OF_FEW = _HALF_CHUNKS | {128: _HALF_CHUNKS[128]._replace(carry=Carry(16, 64, 2, 3))}
# A head of 64 columns lacks registers backward. At S4 on an H200 a walk forward and chunks backward took 68 us, beside other
# work; in a sweep walks both ways took 88, chunks both ways 71.
_HALF_BEHIND_WALK = {64: Chunks(64, 32, Gates(8, 8), Carry(64, 64, 2, 2), Tile(64, 4), Tile(64, 2, 2), Tile(64, 2, 2))}


def form_for(K: int, V: int, T: int, programs: int, dtype: torch.dtype) -> Form:
    """The cut of a call with so many heads of all sequences."""
    widest, exact = max(padded(K), padded(V)), dtype == torch.float32
    if _resident(K, V, T, programs, dtype):
        walks = _FP32_WALK if exact else _HALF_WALK_OF_MANY if programs >= MANY_PROGRAMS else _HALF_WALK
        if not exact and padded(K) != padded(V):
            walks = walks | _HALF_WALK_UNEVEN
        walk = walks[widest]._replace(tokens=min(walks[widest].tokens, padded(T)))
        if not exact and padded(K) == padded(V) and widest in _HALF_BEHIND_WALK:
            return Mixed(walk, fitted(_HALF_BEHIND_WALK[widest], K, V, T))
        return walk
    half = _HALF_CHUNKS_OF_FEW if programs <= FEW_PROGRAMS else _HALF_CHUNKS
    return fitted((_FP32_CHUNKS if exact else half)[widest], K, V, T)


def fitted(form: Chunks, K: int, V: int, T: int) -> Chunks:
    """The form with no chunk longer than the sequence and no block wider than a head."""
    tokens = min(form.tokens, padded(T))

    def narrowed(tile: Tile) -> Tile:
        return tile._replace(columns=min(tile.columns, padded(V)))

    return Chunks(
        tokens=tokens,
        rows=min(form.rows, tokens),
        gates=form.gates,
        carry=form.carry._replace(keys=min(form.carry.keys, padded(K)), columns=min(form.carry.columns, padded(V))),
        outputs=narrowed(form.outputs),
        by_queries=narrowed(form.by_queries),
        by_keys=narrowed(form.by_keys),
    )


def _resident(K: int, V: int, T: int, programs: int, dtype: torch.dtype) -> bool:
    """True where one program per head walks it: the state fits, and one program per chunk would not be more parallel."""
    widest = WIDEST_RESIDENT // 2 if dtype == torch.float32 else WIDEST_RESIDENT
    return max(K, V) <= widest and (T <= LONGEST_RESIDENT or programs >= FEWEST_PROGRAMS)
