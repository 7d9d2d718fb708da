"""How a needle in its haystack is written down: in a small vocabulary of tokens, or in bytes.

Legend: n sequences, m columns, of which each row may use fewer
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.prose import ADJECTIVES, NOUNS, Ids, Tokens, ZipfMarkov, new_names, python_manual
from recallmap.synth.vocab import Roles

Positions = NDArray[np.int64]
Piece = tuple[int, ...] | Literal["key", "value"]  # token ids, or what stands there
Hidden = Literal["number", "uuid", "pass key"]
Hay = Literal["noise", "prose"]

_SIDE = 64  # adjectives, and nouns
KEYS = _SIDE * _SIDE  # a key is an adjective and a noun

# The layout of tokens
_BEGIN, _END, _FULL_STOP, _DIGIT, _HYPHEN, _ADJECTIVE, _NOUN, _WORD = 1, 2, 3, 4, 20, 32, 96, 160
_NOISE = (4, 4, 4, 3, 4)  # words in the sentences of the noise block

_TEXT_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
_TEXT_BEGIN, _TEXT_END = 256, 257
_TEXT_OPENING = (
    "A special magic {name} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {name} afterwards.\n"
)
_TEXT_NEEDLE = "One of the special magic {name}s for <key> is: <value>.{gap}"
_TEXT_QUERY = (
    "\nWhat is the special magic {name} for <key> mentioned in the provided text? "
    "The special magic {name} for <key> mentioned in the provided text is "
)
_PASS_OPENING = (
    "A pass key is hidden within the following text. Make sure to memorize it. I will quiz you about it afterwards.\n"
)
_PASS_NEEDLE = "The pass key is <value>. Remember it. <value> is the pass key.{gap}"
_PASS_QUERY = "\nWhat is the pass key? The pass key is "


class Form(NamedTuple):
    """The fixed phrases around a haystack, and where key and value go among them."""

    opening: tuple[Piece, ...]
    needle: tuple[Piece, ...]
    query: tuple[Piece, ...]  # from the end of the haystack to the end of the sequence

    def size(self, key: int, value: int) -> int:
        """Positions that all phrases take with a key and a value of these sizes."""
        sizes = {"key": key, "value": value}
        return sum(sizes[p] if isinstance(p, str) else len(p) for p in self.opening + self.needle + self.query)


class Part(NamedTuple):
    """Columns start .. stop - 1 of `tokens` ([n, m], or [1, m] for all rows); either bound may differ by row."""

    tokens: Tokens
    start: int | Positions
    stop: int | Positions

    @property
    def size(self) -> int | Positions:
        return self.stop - self.start


class Haystack(NamedTuple):
    tokens: Tokens  # [n, m] or [1, m], m at least the room of every row
    gap: Positions  # [n]: the column before which the needle goes


@dataclass(frozen=True)
class Script(ABC):
    """A way to write. Keys are numbers below KEYS; values are rows of symbols: 0 to 15 for digits, 16 for the hyphen.

    In both kinds of haystack the needle goes after sentence (line of noise, in bytes) floor(sentences x depth / 100).
    """

    @property
    @abstractmethod
    def roles(self) -> Roles: ...

    @property
    @abstractmethod
    def symbols(self) -> Tokens:
        """The token of each of the 17 symbols."""

    @property
    @abstractmethod
    def longest_key(self) -> int: ...

    @property
    @abstractmethod
    def block(self) -> Tokens:
        """The noise that is repeated."""

    @property
    @abstractmethod
    def stop(self) -> int:
        """The token after which noise may be parted."""

    @abstractmethod
    def key(self, numbers: Positions) -> Part: ...

    @abstractmethod
    def form(self, hidden: Hidden, hay: Hay) -> Form: ...

    @abstractmethod
    def prose(self, rng: np.random.Generator, room: Positions, depth: NDArray[Any]) -> Haystack:
        """Prose that fills `room` columns of each row."""

    def noise(self, rng: np.random.Generator, room: Positions, depth: NDArray[Any]) -> Haystack:
        """The block again and again, cut off where `room` columns are full."""
        size = self.block.size
        times = int(room.max()) // size + 1
        stops = np.flatnonzero(np.tile(self.block, times) == self.stop) + 1
        sentences = np.searchsorted(stops, room, side="right")
        gap = np.append(0, stops)[_number(sentences, depth)]
        return Haystack(np.tile(self._blocks(rng, room.size), times), gap)

    def _blocks(self, rng: np.random.Generator, count: int) -> Tokens:
        return self.block[None]


@dataclass(frozen=True)
class TokenScript(Script):
    """Digits, adjectives, nouns, and words of which haystacks and phrases alike are made."""

    words: int
    template_seed: int
    source_seed: int
    cue: Literal["direct", "ruler"]
    permuted: bool

    @property
    def roles(self) -> Roles:
        names = [
            "pad",
            "begin",
            "end",
            "full_stop",
            "digit",
            "hex_digit",
            "hyphen",
            "unused",
            "adjective",
            "noun",
            "word",
        ]
        return _roles(names, (0, 1, 2, 3, 4, 14, 20, 21, 32, 96, 160, _WORD + self.words))

    @property
    def symbols(self) -> Tokens:
        return np.arange(_DIGIT, _HYPHEN + 1, dtype=np.uint16)

    @property
    def longest_key(self) -> int:
        return 2

    @cached_property
    def block(self) -> Tokens:
        rng = np.random.default_rng([self.template_seed, 1])
        drawn = rng.choice(self.words, size=sum(_NOISE), p=self._source.unigram) + _WORD
        return np.insert(drawn, np.cumsum(_NOISE), _FULL_STOP).astype(np.uint16)

    @property
    def stop(self) -> int:
        return _FULL_STOP

    def key(self, numbers: Positions) -> Part:
        adjective, noun = np.divmod(numbers, _SIDE)
        return Part(np.stack([_ADJECTIVE + adjective, _NOUN + noun], axis=1).astype(np.uint16), 0, 2)

    def form(self, hidden: Hidden, hay: Hay) -> Form:
        """Words of phrases are all distinct: one word may not announce two things."""
        order = tuple((_WORD + np.random.default_rng([self.template_seed, 2]).permutation(self.words)).tolist())
        begin, end, stop = (_BEGIN,), (_END,), (_FULL_STOP,)
        if hidden == "pass key":
            announce, remember, affirm, question = order[:4], order[4:6], order[6:10], order[10:16]
            told: tuple[Piece, ...] = (announce, "value", stop, remember, stop, "value", affirm, stop)
            return Form((begin,), told, (question, announce, "value", end))
        announce, question, mark, answer, equals = order[:7], order[7:14], order[14:15], order[15:20], order[20:21]
        between = order[21:27] if self.cue == "ruler" else ()
        told = (announce, "key", equals, "value", stop)
        return Form((begin,), told, (question, "key", mark, answer, "key", between, equals, "value", end))

    def prose(self, rng: np.random.Generator, room: Positions, depth: NDArray[Any]) -> Haystack:
        length = int(room[0])
        tokens, ends = self._source.sample(rng, room.size, length, Ids(_FULL_STOP, _DIGIT, _WORD), self.permuted)
        sentences = ends.sum(axis=1)
        number = _number(sentences, depth)
        stops = np.append(-1, np.flatnonzero(ends))  # the first stands in where no sentence comes before
        stop = stops[np.cumsum(sentences) - sentences + number] % length
        return Haystack(tokens, np.where(number == 0, 0, stop + 1))

    @cached_property
    def _source(self) -> ZipfMarkov:
        return ZipfMarkov(self.words, self.source_seed)

    def _blocks(self, rng: np.random.Generator, count: int) -> Tokens:
        if not self.permuted:
            return self.block[None]
        names = new_names(rng, count, self.words) + np.uint16(_WORD)
        return np.where(self.block == _FULL_STOP, self.block, names[:, np.maximum(self.block, _WORD) - _WORD])


@dataclass(frozen=True)
class TextScript(Script):
    """Bytes and two marks: RULER's phrases, noise of short sentences in lines, prose from the Python manual."""

    @property
    def roles(self) -> Roles:
        names = ["control", "sign", "digit", "mark", "capital", "bracket", "letter", "brace", "unused"]
        return _roles([*names, "begin", "end", "pad"], (0, 32, 48, 58, 65, 91, 97, 123, 128, 256, 257, 258, 259))

    @property
    def symbols(self) -> Tokens:
        return np.array(list(b"0123456789abcdef-"), dtype=np.uint16)

    @property
    def longest_key(self) -> int:
        return _text_keys()[0].shape[1]

    @property
    def block(self) -> Tokens:
        return np.array(list(_TEXT_NOISE.encode()), dtype=np.uint16)

    @property
    def stop(self) -> int:
        return ord("\n")

    def key(self, numbers: Positions) -> Part:
        letters, sizes = _text_keys()
        return Part(letters[numbers], 0, sizes[numbers])

    def form(self, hidden: Hidden, hay: Hay) -> Form:
        """In noise the needle is a line of its own, in prose a sentence among others."""
        templates = (_TEXT_OPENING, _TEXT_NEEDLE, _TEXT_QUERY)
        if hidden == "pass key":
            templates = (_PASS_OPENING, _PASS_NEEDLE, _PASS_QUERY)
        opening, needle, query = (
            _pieces(template.format(name=hidden, gap="\n" if hay == "noise" else " ")) for template in templates
        )
        return Form(((_TEXT_BEGIN,), *opening), needle, (*query, "value", (_TEXT_END,)))

    def prose(self, rng: np.random.Generator, room: Positions, depth: NDArray[Any]) -> Haystack:
        """A window that starts with a sentence, cut off where `room` bytes are full."""
        letters, starts = python_manual()
        longest = int(room.max())
        start = rng.choice(starts[starts <= letters.size - longest], size=room.size)
        tokens = np.lib.stride_tricks.sliding_window_view(letters, longest)[start].astype(np.uint16)
        first = np.searchsorted(starts, start, side="right")
        sentences = np.searchsorted(starts, start + room, side="right") - first
        number = _number(sentences, depth)
        return Haystack(tokens, np.where(number == 0, 0, starts[first + number - 1] - start))


def weave(count: int, parts: list[Part]) -> Positions:
    """The parts side by side, row by row: int64 [count, T]. All rows must come out equally long."""
    ids = np.concatenate([np.broadcast_to(part.tokens, (count, part.tokens.shape[1])) for part in parts], axis=1)
    kept = np.concatenate([_kept(count, part) for part in parts], axis=1)
    return ids[kept].reshape(count, -1).astype(np.int64)


def _kept(count: int, part: Part) -> NDArray[np.bool_]:
    column = np.arange(part.tokens.shape[1], dtype=np.int32)
    start, stop = (np.reshape(bound, (-1, 1)).astype(np.int32) for bound in (part.start, part.stop))
    return np.broadcast_to((column >= start) & (column < stop), (count, column.size))


def _number(sentences: Positions, depth: NDArray[Any]) -> Positions:
    """Of the sentence after which the needle goes, 0 for before all."""
    return np.floor(sentences * depth / 100).astype(np.int64)


def _roles(names: list[str], edges: tuple[int, ...]) -> Roles:
    return Roles({name: range(a, b) for name, (a, b) in zip(names, pairwise(edges), strict=True)})


def _pieces(template: str) -> tuple[Piece, ...]:
    """A template cut where key and value go."""
    holes: dict[str, Piece] = {"key": "key", "value": "value"}
    texts = template.replace(">", "<").split("<")
    return tuple(holes.get(text, tuple(text.encode("ascii"))) for text in texts)


@lru_cache(maxsize=1)
def _text_keys() -> tuple[Tokens, Positions]:
    """Letters of every key, padded [KEYS, m], and their number."""
    keys = [f"{adjective}-{noun}".encode() for adjective in ADJECTIVES for noun in NOUNS]
    longest = max(map(len, keys))
    padded = np.frombuffer(b"".join(key.ljust(longest) for key in keys), dtype=np.uint8)
    return padded.reshape(len(keys), longest).astype(np.uint16), np.array([len(key) for key in keys])
