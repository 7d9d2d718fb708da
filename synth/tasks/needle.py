"""A needle in a haystack (S-NIAH: RULER's single needle; StateX's pass key), at an exact length, in tokens or bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from recallmap.synth import score
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.script import KEYS, Form, Hay, Hidden, Part, Piece, Script, TextScript, TokenScript, weave
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles

_DEPTHS = np.rint(np.linspace(0, 100, 40)).astype(np.int64)  # RULER's grid, in percent
_HELD_OUT = 0.1  # share of the keys that only validation and test ask for
_TEXT_LONGEST = 2**18  # below the size of the text that ships with Python


class Level(NamedTuple):
    """What the haystack is and what it hides: symbols, each `lowest` or one of the `choices` from there up."""

    hay: Hay
    hidden: Hidden
    lowest: tuple[int, ...]
    choices: tuple[int, ...]


_LEVELS = {
    1: Level("noise", "number", (1, *[0] * 6), (9, *[10] * 6)),
    2: Level("prose", "number", (1, *[0] * 6), (9, *[10] * 6)),
    3: Level(  # version 4: 8-4-4-4-12 digits and hyphens; the version and two bits of the variant are fixed
        "prose",
        "uuid",
        (*[0] * 8, 16, *[0] * 4, 16, 4, *[0] * 3, 16, 8, *[0] * 3, 16, *[0] * 12),
        (*[16] * 8, 1, *[16] * 4, 1, 1, *[16] * 3, 1, 4, *[16] * 3, 1, *[16] * 12),
    ),
    "passkey": Level("noise", "pass key", (1, *[0] * 4), (9, *[10] * 4)),
}
_ALLOWED = {
    "protocol": ("repaired",),
    "level": tuple(_LEVELS),
    "mode": ("token", "text"),
    "loss": ("qa", "lm"),
    "cue": ("direct", "ruler"),
}


@dataclass(frozen=True, kw_only=True)
class Needle(Task):
    """A value is told once for a key, between two sentences of a haystack, and asked for at the end.

    level     haystack                               value
    1         one block of five sentences, repeated  7-digit number
    2         prose                                  7-digit number
    3         prose                                  uuid, 36 symbols
    passkey   as 1                                   5-digit number; told twice, without a key

    Every sequence has exactly `length` tokens: begin, haystack with the needle in it, question, start of the answer,
    value, end. The target is the next token. Validation and test score the symbols of the value: with the true prefix
    shown, so that the headline `exact_match` is that of greedy decoding. They ask for the tenth of the keys that
    training never shows, at depths from RULER's grid of 40; training draws depths uniformly.

    mode      token: a vocabulary of digits, 64 adjectives, 64 nouns (a key is one of each) and `words` words, of which
              haystack (`synth.prose.ZipfMarkov` by `source_seed`) and phrases (by `template_seed`) are made, so that
              neither digits nor phrases give the needle away. text: bytes, RULER's phrases, prose of the Python manual
    depth     percent of the haystack's sentences (in text: lines of noise) before the needle; None: as above
    loss      what training is scored on. qa: the value. lm: all tokens, weighted by aux["weight"] [n, T] (2 a sequence)
              so that the sum of weight x cross-entropy is qa's loss plus the mean over all tokens
    cue       direct: the answer starts with key and "is", the very words before the value. ruler: six words between
    permuted  whether every sequence has its own names for the words of its haystack, so that only context predicts them
    """

    kind: Literal["needle"] = "needle"
    protocol: Literal["repaired"] = "repaired"
    level: Literal[1, 2, 3, "passkey"] = 1
    length: int = 512
    mode: Literal["token", "text"] = "token"
    depth: float | None = None
    loss: Literal["qa", "lm"] = "qa"
    cue: Literal["direct", "ruler"] = "direct"
    permuted: bool = False
    words: int = 256
    template_seed: int = 0
    source_seed: int = 0

    metric: ClassVar[str] = "exact_match"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {getattr(self, name)!r}")
        if not 32 <= self.words <= 4096:
            raise ValueError(f"words must lie in 32..4096, got {self.words}")
        if self.depth is not None and not 0 <= self.depth <= 100:
            raise ValueError(f"depth must be a percentage, 0 to 100, or null, got {self.depth}")
        if self.template_seed < 0 or self.source_seed < 0:
            raise ValueError(f"seeds must not be negative, got {self.template_seed} and {self.source_seed}")
        if self.cue == "ruler" and (self.mode == "text" or self.level == "passkey"):
            raise ValueError("cue 'ruler' belongs to levels 1 to 3 of the token mode: leave it out")
        if self.mode == "text" and (self.permuted or self.words != 256 or self.source_seed):
            raise ValueError(
                "permuted, words and source_seed belong to the token mode: leave them out of the text mode"
            )
        if self.mode == "text" and self.length > _TEXT_LONGEST:
            raise ValueError(f"length must not exceed {_TEXT_LONGEST} in the text mode, got {self.length}")
        needed = self._form.size(self._script.longest_key, self._value_size) + self._script.block.size
        if self.length < needed:
            raise ValueError(
                f"needle, question and one block of haystack take {needed} positions, length is {self.length}: raise it"
            )

    @property
    def vocab(self) -> int:
        """160 and the words; in text, bytes and three marks."""
        return self._script.roles.vocab

    @property
    def shape(self) -> tuple[int, int]:
        return self.length, self.vocab

    def roles(self) -> Roles:
        return self._script.roles

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        form, script = self._form, self._script
        value = script.symbols[self._symbols(rng, count)]
        filled = {"key": script.key(self._key(rng, count, split)), "value": Part(value, 0, self._value_size)}

        def parts(pieces: tuple[Piece, ...]) -> list[Part]:
            return [filled[p] if isinstance(p, str) else Part(np.array([p], np.uint16), 0, len(p)) for p in pieces]

        opening, needle, query = parts(form.opening), parts(form.needle), parts(form.query)
        room = np.broadcast_to(self.length - sum(part.size for part in opening + needle + query), count)
        depth = self._depth(rng, count, split)
        hay, gap = (script.noise if self._level.hay == "noise" else script.prose)(rng, room, depth)
        inputs = weave(count, [*opening, Part(hay, 0, gap), *needle, Part(hay, gap, room), *query])
        shown = gap + sum(part.size for part in opening + needle[: form.needle.index("value")])
        return Batch(
            inputs=inputs,
            targets=self._targets(inputs, value, split),
            aux={"depth": depth.astype(np.float32), "shown": shown} | self._weight(count, split),
        )

    def chance(self) -> float:
        """All symbols of the value guessed."""
        return 1 / prod(self._level.choices)

    def ceiling(self) -> float:
        """The needle is in every sequence, and nothing else there has its form."""
        return 1.0

    def sources(self, batch: Batch) -> NDArray[np.int64]:
        """The symbols of the value in the needle."""
        found = np.full(batch.targets.shape, -1, dtype=np.int64)
        found[:, self._answer] = batch.aux["shown"][:, None] + np.arange(self._value_size)
        return found

    def slices(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """The nearest depth on RULER's grid."""
        between = (_DEPTHS[1:] + _DEPTHS[:-1]) / 2
        return {"depth": _DEPTHS[np.searchsorted(between, batch.aux["depth"])]}

    def score(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        """Those of tokens, and `exact_match/depth=<percent>`."""
        depth = self.slices(batch)["depth"]
        scores = score.of_tokens(batch.targets, predictions, {"depth": depth})
        right = ((predictions == batch.targets) | (batch.targets == IGNORE)).all(axis=1)
        for percent in np.unique(depth).tolist():
            scores[f"exact_match/depth={percent}"] = float(right[depth == percent].mean())
        return scores

    def standard_errors(
        self, batch: Batch, predictions: NDArray[Any], probabilities: NDArray[Any] | None = None
    ) -> dict[str, float]:
        errors: dict[str, float | None] = dict(self.scoring(batch).standard_errors(predictions))
        depth = self.slices(batch)["depth"]
        right = ((predictions == batch.targets) | (batch.targets == IGNORE)).all(axis=1)
        for percent in np.unique(depth).tolist():
            errors[f"exact_match/depth={percent}"] = score.standard_error(right[depth == percent])
        return score.known(errors)

    @property
    def _level(self) -> Level:
        return _LEVELS[self.level]

    @property
    def _script(self) -> Script:
        if self.mode == "text":
            return _text_script()
        return _token_script(self.words, self.template_seed, self.source_seed, self.cue, self.permuted)

    @property
    def _form(self) -> Form:
        return self._script.form(self._level.hidden, self._level.hay)

    @property
    def _value_size(self) -> int:
        return len(self._level.choices)

    @property
    def _answer(self) -> slice:
        """Positions whose next token is a symbol of the value."""
        return slice(self.length - 2 - self._value_size, self.length - 2)

    def _symbols(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        return self._level.lowest + rng.integers(self._level.choices, size=(count, self._value_size))

    def _key(self, rng: np.random.Generator, count: int, split: Split) -> NDArray[np.int64]:
        shown, held_out = _keys(self.template_seed)
        return rng.choice(shown if split == "train" else held_out, size=count)

    def _depth(self, rng: np.random.Generator, count: int, split: Split) -> NDArray[Any]:
        if self.depth is not None:
            return np.full(count, float(self.depth))
        return rng.uniform(0, 100, size=count) if split == "train" else rng.choice(_DEPTHS, size=count)

    def _targets(self, inputs: NDArray[np.int64], value: NDArray[np.uint16], split: Split) -> NDArray[np.int64]:
        targets = np.full(inputs.shape, IGNORE, dtype=np.int64)
        if split == "train" and self.loss == "lm":
            targets[:, :-1] = inputs[:, 1:]
        else:
            targets[:, self._answer] = value
        return targets

    def _weight(self, count: int, split: Split) -> dict[str, NDArray[Any]]:
        if split != "train" or self.loss == "qa":
            return {}
        weight = np.zeros((count, self.length), dtype=np.float32)
        weight[:, :-1] = 1 / (self.length - 1)
        weight[:, self._answer] += 1 / self._value_size
        return {"weight": weight}


@lru_cache(maxsize=64)
def _keys(template_seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keys that training shows, and keys held out."""
    order = np.random.default_rng([template_seed, 0]).permutation(KEYS)
    held_out = round(_HELD_OUT * KEYS)
    return order[held_out:], order[:held_out]


_token_script = lru_cache(maxsize=64)(TokenScript)  # its tables are made once, not for every batch
_text_script = lru_cache(maxsize=1)(TextScript)
