"""Tiles of scans along time: a tile is S segments of L tokens, and threads run through their segments side by side.

First from zero, for what a segment makes of the state ahead of it; then from that state, which a scan over the segments tells.

T time, C channels, S segments, L tokens of a segment; a program has BC channels
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


@triton.jit
def load_segments(at, t_S, c, T, C, L: tl.constexpr):  # type: ignore[no-untyped-def]
    """L times [S, BC] in fp32: of every segment one token after the other. Zeros outside, which fade and bring nothing."""
    inside = (t_S < T)[:, None] & (c < C)[None, :]
    places = at + t_S[:, None] * C + c[None, :]
    x = (tl.load(places, mask=inside, other=0.0).to(tl.float32),)
    for i in tl.static_range(1, L):
        inside = (t_S + i < T)[:, None] & (c < C)[None, :]
        x += (tl.load(places + i * C, mask=inside, other=0.0).to(tl.float32),)  # type: ignore[assignment]
    return x


@triton.jit
def store_tokens(at, t_S, c, T, C, x):  # type: ignore[no-untyped-def]
    inside = (t_S < T)[:, None] & (c < C)[None, :]
    tl.store(at + t_S[:, None] * C + c[None, :], x.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _then(  # type: ignore[no-untyped-def]
    fade, brought, fade_ahead, brought_ahead, fade_2, brought_2, fade_ahead_2, brought_ahead_2
):  # fmt: skip
    """One stretch of segments after another: what all of it does to a state, and what all but its last segment does."""
    return (
        fade * fade_2,
        brought * fade_2 + brought_2,
        fade * fade_ahead_2,
        brought * fade_ahead_2 + brought_ahead_2,
    )


@triton.jit
def pass_on(whole, brought, state_C, S: tl.constexpr, REVERSE: tl.constexpr):  # type: ignore[no-untyped-def]
    """States that every segment starts from, [S, BC], and the one it all ends with, where the first starts from `state_C`."""
    segment = tl.arange(0, S)[:, None]
    first = S - 1 if REVERSE else 0
    brought += tl.where(segment == first, whole * state_C[None, :], 0.0)
    one, zero = tl.full(whole.shape, 1.0, tl.float32), tl.zeros(whole.shape, tl.float32)
    _, after, _, start = tl.associative_scan((whole, brought, one, zero), 0, _then, reverse=REVERSE)
    end_C = tl.sum(tl.where(segment == S - 1 - first, after, 0.0), 0)
    return tl.where(segment == first, state_C[None, :], start), end_C


class Tiles(NamedTuple):
    """Segments, tokens of a segment, channels, warps of a program."""

    segments: int
    length: int
    channels: int
    warps: int

    @property
    def tokens(self) -> int:
        return self.segments * self.length

    def launched(self) -> dict[str, int]:
        sizes = {"S": self.segments, "L": self.length, "BC": self.channels}
        return sizes | {"num_warps": self.warps, "num_stages": 1}


def tiles_for(batch: int, time: int, channels: int) -> Tiles:
    """Two numbers a thread; more programs where there are few channels."""
    segments = min(16, max(2, triton.next_power_of_2(time) // 8))
    block = 32 if batch * channels >= 2**14 else 16
    return Tiles(segments, 8, block, max(1, segments * block // 64))
