"""In-context recall, clean and noisy (MAD): after key-value pairs, say the value that a repeated key had before."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.lookback import previous_same
from recallmap.synth.mad import MadTask
from recallmap.synth.task import Split
from recallmap.synth.vocab import Roles


@dataclass(frozen=True, kw_only=True)
class PairRecall(MadTask):
    """The generator that clean and noisy in-context recall share.

    A sequence is length/2 slots of two tokens. A slot is a key and its value, or, with the probability `noise`, two
    noise tokens. A key's value is drawn when the key first occurs and stays. The last slot repeats a key that was
    shown, each of those equally likely; without `multi_query` a copy marker stands before it. Training scores every
    next token; validation and test score the value of every repeated key (`multi_query`), or only the last.

    With `multi_query`, inputs are all `length` tokens, and nothing is asked at the last one. "mad-lab" drops the last
    token (inputs of length - 1), and now and then keeps no slot free of noise; a sequence of nothing but noise, where
    the public code fails, is drawn again.
    """

    vocab: int = 16
    length: int = 128
    multi_query: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 4 or self.length % 2:
            raise ValueError(f"length must be even and at least 4 (two pairs), got {self.length}")
        ids, noise = self._noise
        if not 0 <= noise < 1:
            raise ValueError(f"noise must lie in [0, 1), got {noise}")
        if ids < 0:
            raise ValueError(f"noise_vocab must not be negative, got {ids}")
        if noise and ids < 1:
            raise ValueError(f"noise {noise} needs noise tokens: set noise_vocab to at least 1, or noise to 0")
        if self._content < 4:
            raise ValueError(
                f"vocab {self.vocab} leaves {max(self._content, 0)} tokens for keys and values after {ids} for noise"
                f"{'' if self.multi_query else ' and 1 for the marker'}: raise vocab by {4 - self._content} or more"
            )

    @property
    @abstractmethod
    def _noise(self) -> tuple[int, float]:
        """Number of noise tokens, and the probability that a slot is noise."""

    @property
    def _content(self) -> int:
        return self.vocab - self._noise[0] - (0 if self.multi_query else 1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.length - (self.published and self.multi_query), self.vocab

    def roles(self) -> Roles:
        keys, content = self._content // 2, self._content
        noise = content + self._noise[0]
        parts = {"key": range(keys), "value": range(keys, content), "noise": range(content, noise)}
        return Roles({name: ids for name, ids in {**parts, "marker": range(noise, self.vocab)}.items() if ids})

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        pairs = self.length // 2
        noisy = self._noisy_slots(rng, count, pairs - 1)
        keys = self._keys(rng, noisy)
        n_keys, n_values = self._content // 2, self._content - self._content // 2
        values = np.take_along_axis(rng.integers(n_keys, n_keys + n_values, size=(count, n_keys)), keys, axis=1)
        slots = np.stack([keys, values], axis=2)
        slots[:, :-1][noisy] = rng.integers(self._content, self._content + self._noise[0], size=(noisy.sum(), 2))
        if split == "train":
            asked = np.ones((count, 2 * pairs), dtype=bool)
        else:
            asked = np.zeros((count, 2 * pairs), dtype=bool)
            asked[:, 1::2] = self._repeated(keys, noisy) if self.multi_query else np.arange(pairs) == pairs - 1
        return self._aligned(slots.reshape(count, 2 * pairs), asked, split)

    def drawn_bytes(self, count: int) -> float:
        return super().drawn_bytes(count) + 16.0 * count * self.vocab  # a value for every key

    def _noisy_slots(self, rng: np.random.Generator, count: int, slots: int) -> NDArray[np.bool_]:
        """Which slots but the last are noise: never all of a sequence, or the last would have no key to repeat."""
        noise = self._noise[1]
        noisy = np.zeros((count, slots), dtype=bool)
        rows = np.arange(count if noise else 0)
        while rows.size:
            drawn = rng.random((rows.size, slots)) < noise
            kept = rng.integers(slots + self.published, size=rows.size)
            drawn[np.arange(slots) == kept[:, None]] = False
            noisy[rows] = drawn
            rows = rows[drawn.all(axis=1)]
        return noisy

    def _keys(self, rng: np.random.Generator, noisy: NDArray[np.bool_]) -> NDArray[np.int64]:
        """int64 [n, slots + 1]: a key for every slot (those of noise mean nothing), and last a key that was shown."""
        count = len(noisy)
        keys = rng.integers(self._content // 2, size=noisy.shape)
        shown = np.zeros((count, self._content // 2 + 1), dtype=bool)
        shown[np.arange(count)[:, None], np.where(noisy, -1, keys)] = True
        ranks = shown[:, :-1].cumsum(axis=1)
        last = (ranks > rng.integers(ranks[:, -1:])).argmax(axis=1)
        return np.concatenate([keys, last[:, None]], axis=1)

    def _repeated(self, keys: NDArray[np.int64], noisy: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which slots, the last one included, hold a key that an earlier slot held."""
        symbols = keys.astype(np.min_scalar_type(self._content + noisy.shape[1]))
        symbols[:, :-1][noisy] = np.broadcast_to(self._content + np.arange(noisy.shape[1]), noisy.shape)[noisy]
        return previous_same(symbols) >= 0

    def _aligned(self, tokens: NDArray[np.int64], asked: NDArray[np.bool_], split: Split) -> Batch:
        """The next token as the target, where it is asked for."""
        if not self.multi_query:
            tokens = np.insert(tokens, -2, self.vocab - 1, axis=1)
            asked = np.insert(asked, -2, split == "train", axis=1)
        targets = np.where(asked[:, 1:], tokens[:, 1:], IGNORE)
        if self.shape[0] < tokens.shape[1]:
            return Batch(inputs=tokens[:, :-1], targets=targets)
        return Batch(inputs=tokens, targets=np.pad(targets, ((0, 0), (0, 1)), constant_values=IGNORE))

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The value after the last earlier occurrence of the key."""
        keys = self._content // 2
        alone = keys + np.arange(batch.inputs.shape[1])
        symbols = np.where(batch.inputs < keys, batch.inputs, alone)
        last = previous_same(symbols.astype(np.min_scalar_type(alone[-1])))
        return np.where((batch.targets != IGNORE) & (last >= 0), last + 1, -1)

    def choices(self, batch: Batch) -> NDArray[np.int64]:
        """All values."""
        return np.full(batch.targets.shape, self._content - self._content // 2)


@dataclass(frozen=True, kw_only=True)
class InContextRecall(PairRecall):
    """Key-value pairs without noise (MAD, in-context recall)."""

    kind: Literal["in_context_recall"] = "in_context_recall"

    @property
    def _noise(self) -> tuple[int, float]:
        return 0, 0.0


@dataclass(frozen=True, kw_only=True)
class NoisyInContextRecall(PairRecall):
    """Key-value pairs between which, with the probability `noise`, two of `noise_vocab` noise tokens stand (MAD)."""

    kind: Literal["noisy_in_context_recall"] = "noisy_in_context_recall"
    vocab: int = 32
    noise_vocab: int = 16
    noise: float = 0.2

    @property
    def _noise(self) -> tuple[int, float]:
        return self.noise_vocab, self.noise
