"""Fuzzy in-context recall (MAD): keys and values are motifs of several tokens, and no token marks where one ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.draws import distinct
from recallmap.synth.lookback import previous_same
from recallmap.synth.mad import MadTask
from recallmap.synth.task import Split
from recallmap.synth.vocab import Roles


class Slots(NamedTuple):
    """Key-value pairs of n sequences in order; a sequence may use fewer than all. A slot names the draw it shows.

    draw    int64 [n, slots]: which drawn pair
    start   int64 [n, slots]: position of its first token, counted from the first token after the padding
    used    bool [n, slots]
    asked   bool [n, slots]: whether validation and test score its value
    """

    draw: NDArray[np.int64]
    start: NDArray[np.int64]
    used: NDArray[np.bool_]
    asked: NDArray[np.bool_]


class Motifs(NamedTuple):
    """Pairs drawn for n sequences: tokens int64 [n, pairs, width], of which the first `size` int64 [n, pairs] count."""

    keys: NDArray[np.int64]
    values: NDArray[np.int64]
    key_size: NDArray[np.int64]
    value_size: NDArray[np.int64]

    def names(self) -> NDArray[np.int64]:
        """int64 [n, pairs]: a number for every key motif; equal motifs have equal numbers."""
        base = self.keys.max() + 2
        names = np.zeros(self.key_size.shape, dtype=np.int64)
        for j in range(self.keys.shape[2]):
            names = np.where(j < self.key_size, names * base + self.keys[:, :, j] + 1, names)
        return names


@dataclass(frozen=True, kw_only=True)
class FuzzyInContextRecall(MadTask):
    """Pairs of a key motif and a value motif: distinct tokens in order, up to `key_motif` and `value_motif` of them.

    Motifs are uniform among those of their length, lengths are uniform; in validation and test all keys have
    `key_motif` tokens. Pairs follow one another without a gap until the sequence is full, one of them the probe, which
    is put in at a random point and again at the end (without `multi_query` behind a copy marker). A key keeps its
    value. Padding fills up on the left. Training scores every next token, padding included; validation and test score
    all value tokens of repeated keys (`multi_query`), or only those of the probe.

    Under "mad-lab" the random point can lie behind the last pair, and then the probe is asked without having been
    shown, in some 3 of 100 sequences. Under "repaired" it never does.
    """

    kind: Literal["fuzzy_in_context_recall"] = "fuzzy_in_context_recall"
    vocab: int = 16
    length: int = 128
    key_motif: int = 3
    value_motif: int = 3
    multi_query: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key_motif < 1 or self.value_motif < 1:
            raise ValueError(
                f"key_motif and value_motif must be at least 1, got {self.key_motif} and {self.value_motif}"
            )
        least = max(2 * self.key_motif, 2 * self.value_motif - 1, 4)
        if self._content < least:
            raise ValueError(
                f"vocab {self.vocab} leaves {max(self._content, 0)} tokens for motifs of {self.key_motif} and "
                f"{self.value_motif} distinct tokens: raise vocab by at least {least - self._content}"
            )
        if self.length <= 2 * self._widest:
            raise ValueError(
                f"length {self.length} has no room for a pair besides the probe: raise length to at least "
                f"{2 * self._widest + 1}, or lower key_motif or value_motif"
            )

    @property
    def _widest(self) -> int:
        return self.key_motif + self.value_motif

    @property
    def _content(self) -> int:
        return self.vocab - (1 if self.multi_query else 2)

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        keys, pad = self._content // 2, self._content
        parts = {"key": range(keys), "value": range(keys, pad), "pad": range(pad, pad + 1)}
        return Roles(parts if self.multi_query else {**parts, "marker": range(pad + 1, self.vocab)})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        shortest = 1 + (1 if split == "train" else self.key_motif)
        most = -(-(self.length - shortest - self._widest) // shortest)
        motifs = self._draw(rng, count, most + 1, split)
        slots = self._arrange(rng, motifs)
        tokens, asked = self._write(motifs, slots)
        if split == "train":
            asked[:] = True
        return Batch(inputs=tokens[:, :-1], targets=np.where(asked, tokens, IGNORE)[:, 1:])

    def drawn_bytes(self, count: int) -> float:
        pairs = (
            self.length / 2
        )  # as many as a sequence can hold, of motifs whose tokens are drawn from four times as many
        return super().drawn_bytes(count) + 32.0 * count * pairs * (self.key_motif + self.value_motif)

    def _draw(self, rng: np.random.Generator, count: int, pairs: int, split: Split) -> Motifs:
        """As many pairs as a sequence can hold, and last the probe."""
        keys = self._content // 2
        shape = count, pairs, -1
        size = count, pairs
        return Motifs(
            keys=distinct(rng, count * pairs, self.key_motif, keys).reshape(shape),
            values=keys + distinct(rng, count * pairs, self.value_motif, self._content - keys).reshape(shape),
            key_size=rng.integers(1 if split == "train" else self.key_motif, self.key_motif + 1, size=size),
            value_size=rng.integers(1, self.value_motif + 1, size=size),
        )

    def _arrange(self, rng: np.random.Generator, motifs: Motifs) -> Slots:
        """Lay out pairs one by one, all sequences in step; the last slot is the probe's question."""
        sizes = motifs.key_size + motifs.value_size
        names = motifs.names()
        count, probe = len(sizes), sizes.shape[1] - 1
        latest = 2 * sizes[:, -1] if self.published else sizes[:, -1] + 2 * self._widest - 1
        point = rng.integers(np.maximum(self.length - latest, 1))
        full = self.length - sizes[:, -1] - self._widest
        draw, start = np.full(sizes.shape, probe), np.zeros(sizes.shape, dtype=np.int64)
        asked = np.zeros(sizes.shape, dtype=bool)
        each, end, shown = np.arange(count), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
        for i in range(probe):
            going = end < full
            is_probe = (~shown & (end >= point)) | (names[:, i] == names[:, -1])
            names[is_probe, i] = names[is_probe, -1]
            same = names[:, : i + 1] == names[:, i, None]
            first = same.argmax(axis=1)
            draw[:, i] = np.where(is_probe, probe, first)
            asked[:, i] = (first < i) & self.multi_query
            start[:, i] = end
            end = np.where(going, end + sizes[each, draw[:, i]], end)
            shown |= is_probe & going
        start[:, -1] = end + (not self.multi_query)
        used = start < full[:, None]
        used[:, -1] = asked[:, -1] = True
        return Slots(draw, start, used, asked)

    def _write(self, motifs: Motifs, slots: Slots) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The tokens [n, length + 1], and which of them are asked for in validation and test."""
        each = np.arange(len(slots.draw))[:, None]
        key_size, value_size = motifs.key_size[each, slots.draw], motifs.value_size[each, slots.draw]
        padding = self.length + 1 - (slots.start[:, -1:] + key_size[:, -1:] + value_size[:, -1:])
        tokens = np.full((len(each), self.length + 1), self._content, dtype=np.int64)
        asked = np.zeros(tokens.shape, dtype=bool)
        if not self.multi_query:
            tokens[each, padding + slots.start[:, -1:] - 1] = self.vocab - 1
        for motif, size, offset in (motifs.keys, key_size, 0), (motifs.values, value_size, key_size):
            for j in range(motif.shape[2]):
                row, slot = np.nonzero(slots.used & (j < size))
                place = (padding + slots.start + offset + j)[row, slot]
                tokens[row, place] = motif[row, slots.draw[row, slot], j]
                asked[row, place] = slots.asked[row, slot] if motif is motifs.values else False
        return tokens, asked

    def _key_ends(self, batch: Batch) -> NDArray[np.int64]:
        """int64 [n, T]: the last position, up to each, that ends a key; -1 before the first."""
        is_key = batch.inputs < self._content // 2
        ends = is_key & ~np.pad(is_key[:, 1:], ((0, 0), (0, 1)))
        return np.maximum.accumulate(np.where(ends, np.arange(self.length), -1), axis=1)

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The same token of the value after the last earlier occurrence of the key."""
        keys, time = self._content // 2, np.arange(self.length)
        ends = self._key_ends(batch)
        names = np.zeros(batch.inputs.shape, dtype=np.int64)
        for t in range(self.length):
            grown = names[:, t - 1] * (keys + 1) + batch.inputs[:, t] + 1 if t else batch.inputs[:, 0] + 1
            names[:, t] = np.where(batch.inputs[:, t] < keys, grown, 0)
        before = previous_same(np.where(ends == time, names, -1 - time))
        last = np.where(ends >= 0, np.take_along_axis(before, np.maximum(ends, 0), axis=1), -1)
        is_value = (keys <= batch.targets) & (batch.targets < self._content)
        return np.where(is_value & (last >= 0), last + 1 + time - ends, -1)

    def choices(self, batch: Batch) -> NDArray[np.int64]:
        """All values at the end of a key; within a value those that it has not shown."""
        values = self._content - self._content // 2
        return np.maximum(1, values - (np.arange(self.length) - self._key_ends(batch)))
