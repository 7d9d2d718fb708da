"""Modular arithmetic: the value of an expression, read digit by digit, with or without brackets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import MOST_IDS, Split
from recallmap.synth.tracking import UnlockingTask
from recallmap.synth.vocab import Roles

Tokens = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ModularArithmetic(UnlockingTask):
    """An expression and `=`, where its value modulo `modulus` is due (Grazzi et al. 2025; Beck et al. 2024).

    Without brackets: digits with uniform +, - and * between, * binding tighter; sizes are even. `labels: all` also asks
    for the value so far at every operator. With brackets: fully bracketed sums, differences and negations, split at a
    uniform place, without *; only the whole has a value, so `labels` must be `final`.

    The public generator counts a place for the answer (and one more with brackets): its sizes 3 to 39 without brackets
    are 2 to 38 here, its 3 to 40 with brackets are 1 to 38. With brackets it raises sizes below 5 (3 here) to 5, so that
    `-d=` has three of 38 sizes and a digit alone never comes; and its mask of the answer is a digit. Protocol `unlocking`
    keeps both: there `min_length: 1` is the published setting.

    With `unknown` a uniform digit of a bracketed expression is hidden, its value stands behind `=`, and the digit is due there:
    solve_equation of Delétang et al. 2023, whose generator favours digits behind brackets.
    """

    kind: Literal["modular_arithmetic"] = "modular_arithmetic"
    brackets: bool = False
    modulus: int = 5
    length: int = 38
    labels: Literal["all", "final"] = "final"
    unknown: bool = field(default=False, metadata={"later": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unknown:
            if not self.brackets or self.protocol != "repaired":
                raise ValueError(
                    "unknown needs brackets and protocol 'repaired': with * several digits may solve, and no published form of "
                    f"this task has one; got brackets {str(self.brackets).lower()}, protocol '{self.protocol}'"
                )
            if (self.length if self.min_length is None else self.min_length) < 3:
                raise ValueError(
                    "min_length and length must be at least 3 with unknown, for x, = and a value; got "
                    f"{self.min_length}, {self.length}"
                )
        if not 2 <= self.modulus <= MOST_IDS:
            raise ValueError(f"modulus must be at least 2 and at most {MOST_IDS:,}, got {self.modulus:,}")
        if self.brackets and self.labels == "all":
            raise ValueError("labels must be 'final' with brackets: an expression with open brackets has no value yet")
        shortest = self.length if self.min_length is None else self.min_length
        if self._shortest > 2:
            if self.length < self._shortest:
                raise ValueError(
                    f"length must be at least {self._shortest} with brackets under protocol 'unlocking', which makes nothing "
                    f"shorter than -d=; got {self.length}"
                )
            if self.min_length == 2:
                raise ValueError(
                    "min_length 2 would be a digit and =, which protocol 'unlocking' never makes with brackets: take 1 for "
                    "the published sizes, of which the least three are -d=, or 3 for as many of each"
                )
        elif shortest < 2:
            raise ValueError(f"min_length and length must be at least 2, a digit and =; got {shortest}")

    @property
    def _unit(self) -> int:
        return 1 if self.brackets else 2

    @property
    def _shortest(self) -> int:
        """Symbols of the shortest sequence that is ever made."""
        return 3 if self.brackets and self.protocol == "unlocking" else 2

    @property
    def _widest(self) -> int:
        return 254  # even, and with brackets the public generator leaves one place more empty

    def roles(self) -> Roles:
        if self.brackets:
            operators = self.modulus + 6
            pad = operators + self.unknown
            unknown = {"unknown": range(operators, pad)} if self.unknown else {}
            return Roles(
                {
                    "digit": range(self.modulus),
                    "operator": range(self.modulus, operators),
                    **unknown,
                    "pad": range(pad, pad + 1),
                }
            )
        return Roles({"pad": range(1), "operator": range(1, 5), "digit": range(5, 5 + self.modulus)})

    @property
    def symbols(self) -> dict[str, int]:
        """The token of every operator and bracket; digit d is the d-th token of the role."""
        names = "+-*()=" if self.brackets else "+-*="
        return dict(zip(names, self.roles().of("operator"), strict=True))

    @property
    def answers(self) -> range:
        return self.roles().of("digit")

    def sizes(self, rng: np.random.Generator, count: int, split: Split) -> Tokens:
        return np.maximum(super().sizes(rng, count, split), self._shortest)

    def sample(self, rng: np.random.Generator, count: int, split: Split) -> Batch:
        batch = super().sample(rng, count, split)
        if self.brackets and self.protocol == "unlocking":
            after = (batch.targets != IGNORE).argmax(axis=1) + 1
            batch.inputs[np.arange(count), after] = self.answers.start
        return batch

    def trace(self, rng: np.random.Generator, sizes: Tokens, width: int) -> tuple[Tokens, Tokens]:
        tokens = np.zeros((len(sizes), width), dtype=np.int64)
        answers = np.full((len(sizes), width), IGNORE)
        if self.unknown:
            values = self._bracketed(rng, tokens, sizes - 2)
            hidden = self._hide(rng, tokens, sizes - 2)
            np.put_along_axis(answers, sizes[:, None] - 1, hidden[:, None], axis=1)
            np.put_along_axis(tokens, sizes[:, None] - 1, self.answers.start + values[:, None], axis=1)
            np.put_along_axis(tokens, sizes[:, None] - 2, self.symbols["="], axis=1)
            return tokens, answers
        if self.brackets:
            values = self._bracketed(rng, tokens, sizes - 1)
            np.put_along_axis(answers, sizes[:, None] - 1, self.answers.start + values[:, None], axis=1)
        else:
            answers[:, 1::2] = self.answers.start + self._flat(rng, tokens)
        np.put_along_axis(tokens, sizes[:, None] - 1, self.symbols["="], axis=1)
        return tokens, answers

    def _flat(self, rng: np.random.Generator, tokens: Tokens) -> Tokens:
        """Writes digits and operators in turn; the value [n, width // 2] of what stands before each operator."""
        count, numbers = len(tokens), tokens.shape[1] // 2
        digits = rng.integers(0, self.modulus, (count, numbers))
        operators = rng.integers(0, 3, (count, numbers), dtype=np.uint8).astype(np.int64) + self.symbols["+"]
        tokens[:, 0 : 2 * numbers : 2] = digits + self.answers.start
        tokens[:, 1 : 2 * numbers : 2] = operators
        values = np.empty_like(digits)
        total, product = np.zeros(count, dtype=np.int64), digits[:, 0]  # of finished products, and the one at its end
        for place in range(numbers):
            values[:, place] = (total + product) % self.modulus
            if place + 1 < numbers:
                operator, digit = operators[:, place], digits[:, place + 1]
                times = operator == self.symbols["*"]
                total = np.where(times, total, values[:, place])
                sign = np.where(operator == self.symbols["-"], -1, 1)
                product = np.where(times, product, sign) * digit % self.modulus
        return values

    def _bracketed(self, rng: np.random.Generator, tokens: Tokens, sizes: Tokens) -> Tokens:
        """Writes an expression of sizes[i] tokens at the start of row i; its value [n].

        All parts of one depth are written at once. A part of up to four tokens is a digit, d, -d, (d) or (-d), a longer
        one is (left operator right). Nothing multiplies, so a digit just counts with the sign that it gets on the way.
        """
        symbols, values = self.symbols, np.zeros(len(sizes), dtype=np.int64)
        row, start, size, sign = np.arange(len(sizes)), np.zeros_like(sizes), sizes, np.ones_like(sizes)
        while row.size:
            wrapped = size >= 3
            tokens[row[wrapped], start[wrapped]] = symbols["("]
            tokens[row[wrapped], (start + size)[wrapped] - 1] = symbols[")"]
            leaf = size <= 4
            signed = sign[leaf] * self._write_leaves(rng, tokens, row[leaf], start[leaf], size[leaf])
            np.add.at(values, row[leaf], signed)
            row, start, size, sign = row[~leaf], start[~leaf], size[~leaf], sign[~leaf]
            left = rng.integers(1, size - 3)
            minus = rng.integers(0, 2, len(row), dtype=np.uint8).astype(np.int64)
            tokens[row, start + 1 + left] = np.where(minus, symbols["-"], symbols["+"])
            row, sign = np.concatenate([row, row]), np.concatenate([sign, sign * (1 - 2 * minus)])
            start = np.concatenate([start + 1, start + 2 + left])
            size = np.concatenate([left, size - 3 - left])
        return values % self.modulus

    def _hide(self, rng: np.random.Generator, tokens: Tokens, sizes: Tokens) -> Tokens:
        """Puts the unknown in the place of one digit of each expression, all as likely; the token [n] of that digit."""
        told = np.arange(tokens.shape[1]) < sizes[:, None]
        digits = told & (tokens >= self.answers.start) & (tokens < self.answers.stop)
        which = np.floor(rng.random((len(tokens), 1)) * digits.sum(axis=1, keepdims=True)).astype(np.int64)
        place = (digits & (digits.cumsum(axis=1) == which + 1)).argmax(axis=1)[:, None]
        hidden = np.take_along_axis(tokens, place, axis=1)[:, 0]
        np.put_along_axis(tokens, place, self.roles().of("unknown").start, axis=1)
        return hidden

    def _write_leaves(
        self, rng: np.random.Generator, tokens: Tokens, row: Tokens, start: Tokens, size: Tokens
    ) -> Tokens:
        """Writes the digit, and the minus before it where the size is even; the value of each."""
        digit = rng.integers(0, self.modulus, len(row))
        at, negated = start + size // 2, size % 2 == 0
        tokens[row, at] = digit + self.answers.start
        tokens[row[negated], at[negated] - 1] = self.symbols["-"]
        return np.where(negated, -digit, digit)
