"""Expressions and their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from recallmap.search.documents.type_hints import plain
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.tasks.modular_arithmetic import ModularArithmetic

Draw = Callable[..., Batch]

FLAT = ModularArithmetic(min_length=2)
NESTED = ModularArithmetic(brackets=True, min_length=2)


def texts(task: ModularArithmetic, batch: Batch) -> list[str]:
    """Every sequence as a person would write it."""
    letters = {token: name for name, token in task.symbols.items()}
    letters |= {token: str(digit) for digit, token in enumerate(task.answers)}
    letters[task.roles().of("pad").start] = ""
    return ["".join(letters[token] for token in row) for row in batch.inputs.tolist()]


def answers(task: ModularArithmetic, batch: Batch) -> list[int]:
    return (batch.targets.max(axis=1) - task.answers.start).tolist()


@pytest.mark.parametrize(
    "task", [FLAT, NESTED, ModularArithmetic(modulus=7), ModularArithmetic(brackets=True, modulus=3)]
)
def test_the_answer_is_what_the_expression_is_worth(task: ModularArithmetic, draw: Draw) -> None:
    batch = draw(task, count=400)
    for text, answer in zip(texts(task, batch), answers(task, batch), strict=True):
        assert text.endswith("=")
        assert eval(text[:-1]) % task.modulus == answer


def test_the_unknown_is_the_one_digit_that_solves_and_any_digit_is_hidden_as_often(draw: Draw) -> None:
    task = ModularArithmetic(brackets=True, unknown=True, min_length=3, length=24)
    batch = draw(task, count=300)
    letters = {task.roles().of("unknown").start: "x", task.roles().of("pad").start: ""}
    letters |= {token: name for name, token in task.symbols.items()}
    letters |= {token: str(digit) for digit, token in enumerate(task.answers)}
    for row, answer in zip(batch.inputs.tolist(), answers(task, batch), strict=True):
        left, right = "".join(letters[token] for token in row).split("=")
        assert left.count("x") == 1
        assert [x for x in range(5) if (eval(left, {"x": x}) - int(right)) % 5 == 0] == [answer]
    pair = ModularArithmetic(brackets=True, unknown=True, length=7)  # (d+d)=v
    hidden = draw(pair, count=4000).inputs == pair.roles().of("unknown").start
    assert hidden.mean(axis=0)[[1, 3]] == pytest.approx(np.full(2, 0.5), abs=4 * np.sqrt(0.25 / 4000))


def test_the_unknown_came_later_and_leaves_old_specs_as_they_were() -> None:
    assert "unknown" not in plain(ModularArithmetic())
    assert plain(ModularArithmetic(brackets=True, unknown=True))["unknown"] is True


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"unknown": True}, "unknown needs brackets and protocol 'repaired'"),
        (
            {"unknown": True, "brackets": True, "protocol": "unlocking"},
            "unknown needs brackets and protocol 'repaired'",
        ),
        ({"unknown": True, "brackets": True, "min_length": 2}, "must be at least 3 with unknown"),
    ],
)
def test_an_unknown_without_one_solution_is_refused(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModularArithmetic(**dials)


def test_every_operator_may_ask_for_the_value_so_far(draw: Draw) -> None:
    task = ModularArithmetic(labels="all", length=12)
    batch = draw(task, count=200)
    for text, targets in zip(texts(task, batch), batch.targets.tolist(), strict=True):
        expected = [eval(text[:t]) % 5 + 5 if t % 2 else IGNORE for t in range(12)]
        assert targets == expected


def test_without_brackets_digits_and_operators_are_uniform(draw: Draw) -> None:
    symbols = Counter("".join(texts(FLAT, draw(FLAT, count=4000))))
    digits, operators = [symbols[d] for d in "01234"], [symbols[o] for o in "+-*"]
    assert np.array(digits) / sum(digits) == pytest.approx(np.full(5, 0.2), abs=0.01)
    assert np.array(operators) / sum(operators) == pytest.approx(np.full(3, 1 / 3), abs=0.01)
    assert symbols["="] == 4000


def test_short_bracketed_expressions_have_one_form(draw: Draw) -> None:
    forms = {2: "d=", 3: "-d=", 4: "(d)=", 5: "(-d)=", 6: "(d?d)="}
    for length, form in forms.items():
        for text in texts(NESTED, draw(ModularArithmetic(brackets=True, length=length))):
            shape = "".join("d" if c.isdigit() else c for c in text)
            assert shape == form or (length == 6 and shape in ("(d+d)=", "(d-d)="))


def test_bracketed_expressions_split_at_a_uniform_place(draw: Draw) -> None:
    task = ModularArithmetic(brackets=True, length=10)  # nine symbols: left part 1 to 5, right part 5 to 1
    seen: Counter[int] = Counter()
    for text in texts(task, draw(task, count=5000)):
        depth, inside = 0, text[1:-2]
        for place, symbol in enumerate(inside):
            depth += (symbol == "(") - (symbol == ")")
            if depth == 0 and symbol in "+-" and place and (inside[place - 1].isdigit() or inside[place - 1] == ")"):
                seen[place] += 1
                break
    assert sorted(seen) == [1, 2, 3, 4, 5]
    assert [seen[i] / 5000 for i in range(1, 6)] == pytest.approx([0.2] * 5, abs=0.03)


def test_brackets_do_not_multiply(draw: Draw) -> None:
    assert "*" not in "".join(texts(NESTED, draw(NESTED, count=500)))


def test_published_masks_of_the_answer_are_a_digit_with_brackets_alone(draw: Draw) -> None:
    for brackets, mask in [(True, 0), (False, 0)]:
        task = ModularArithmetic(protocol="unlocking", brackets=brackets, min_length=4)
        batch = draw(task)
        after = (batch.targets != IGNORE).argmax(axis=1) + 1
        assert (batch.inputs[np.arange(64), after] == mask).all()
        assert (mask in task.roles().of("digit")) == brackets


def test_the_published_sizes_with_brackets_give_a_minus_and_a_digit_three_shares(draw: Draw) -> None:
    """The public generator draws 3 to 40 and raises what is below 5; its expression is three tokens shorter than that."""
    task = ModularArithmetic(protocol="unlocking", brackets=True, min_length=1, length=38)
    batch = draw(task, count=20_000, split="train")
    shares = np.bincount((batch.targets != IGNORE).argmax(axis=1) + 1, minlength=39) / 20_000
    assert shares[3] == pytest.approx(3 / 38, abs=0.008)
    assert shares[4:] == pytest.approx(np.full(35, 1 / 38), abs=0.005)
    assert shares[:3].sum() == 0


def test_published_sizes_from_three_on_are_what_they_were(digest: Callable[..., str]) -> None:
    kept = ModularArithmetic(protocol="unlocking", brackets=True, min_length=3, length=38)
    assert [digest(t) for t in (kept, replace(FLAT, protocol="unlocking"))] == ["1b5d1db58a3b98cc", "d862476a4ce8c5c3"]


def test_token_ids_are_the_published_ones() -> None:
    assert FLAT.symbols == {"+": 1, "-": 2, "*": 3, "=": 4}
    assert (FLAT.answers, FLAT.vocab) == (range(5, 10), 10)
    assert NESTED.symbols == {"+": 5, "-": 6, "*": 7, "(": 8, ")": 9, "=": 10}
    assert (NESTED.answers, NESTED.vocab, NESTED.roles().of("pad").start) == (range(5), 12, 11)


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"modulus": 1}, "modulus must be at least 2"),
        ({"brackets": True, "labels": "all"}, "labels must be 'final' with brackets"),
        ({"brackets": True, "length": 1}, "must be at least 2, a digit and ="),
        ({"brackets": True, "length": 8, "min_length": 1}, "must be at least 2, a digit and ="),
        (
            {"brackets": True, "protocol": "unlocking", "min_length": 2},
            "min_length 2 would be a digit and =, .* take 1",
        ),
        ({"brackets": True, "protocol": "unlocking", "length": 2}, "length must be at least 3 with brackets"),
    ],
)
def test_impossible_dials_are_refused(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ModularArithmetic(**dials)


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    assert [digest(task) for task in (FLAT, NESTED)] == ["5d12350563a0a688", "a92bfcea177c8e47"]
