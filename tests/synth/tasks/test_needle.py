"""A needle in a haystack."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.prose import ADJECTIVES, NOUNS, python_manual
from recallmap.synth.tasks.needle import Needle

Draw = Callable[..., Batch]

STOP, WORD = 3, 160
TOKENS = [Needle(level=1), Needle(level=2), Needle(level=3), Needle(level=3, cue="ruler", permuted=True)]
TEXTS = [Needle(mode="text", length=1024, level=level) for level in (1, 2, 3)]
PASSKEYS = [Needle(level="passkey"), Needle(level="passkey", mode="text")]
SIZE = {1: 7, 2: 7, 3: 36, "passkey": 5}
ALL = [*TOKENS, *TEXTS, *PASSKEYS]


def named(task: Needle) -> str:
    return f"{task.mode}-{task.level}-{task.cue}"


def read(task: Needle, tokens: Sequence[int]) -> str:
    """Text, or of tokens only digits and hyphens as text."""
    if task.mode == "text":
        return "".join(chr(token) if token < 256 else "" for token in tokens)
    return "".join("0123456789abcdef-"[token - 4] if 4 <= token < 21 else "?" for token in tokens)


def answers(task: Needle, batch: Batch) -> list[str]:
    return [read(task, row[row != IGNORE].tolist()) for row in batch.targets]


def without_needle(row: NDArray[np.int64], start: int, stop: int, end: int) -> NDArray[np.int64]:
    """What is left of the haystack, given where the needle starts and stops and the haystack ends."""
    return np.concatenate([row[1:start], row[stop:end]])


@pytest.mark.parametrize("task", ALL, ids=named)
def test_a_sequence_is_exactly_full(task: Needle, draw: Draw) -> None:
    batch = draw(task)
    marks = {name: task.roles().of(name).start for name in ("begin", "end", "pad")}
    assert (batch.inputs[:, 0] == marks["begin"]).all()
    assert (batch.inputs[:, -1] == marks["end"]).all()
    assert not np.isin(batch.inputs[:, 1:-1], list(marks.values())).any()
    last = batch.inputs[:, -1 - SIZE[task.level] : -1]
    assert (batch.targets[:, -2 - SIZE[task.level] : -2] == last).all()
    assert (batch.targets != IGNORE).sum() == last.size


@pytest.mark.parametrize(
    ("dials", "phrases"),
    [
        ({"level": 1}, 45),
        ({"level": 2}, 45),
        ({"level": 3}, 103),
        ({"level": 3, "cue": "ruler"}, 109),
        ({"level": "passkey"}, 40),
    ],
)
def test_phrases_take_the_room_that_the_protocol_says(dials: dict[str, Any], phrases: int, draw: Draw) -> None:
    with pytest.raises(ValueError, match=f"take {phrases + 24} positions, length is {phrases + 23}"):
        Needle(length=phrases + 23, **dials)
    assert draw(Needle(length=phrases + 24, **dials)).inputs.shape == (64, phrases + 24)


@pytest.mark.parametrize("task", ALL, ids=named)
def test_values_are_what_they_are_called(task: Needle, draw: Draw) -> None:
    for value in answers(task, draw(task, count=200)):
        if task.level == 3:
            assert uuid.UUID(value).version == 4
            assert str(uuid.UUID(value)) == value
            assert uuid.UUID(value).variant == uuid.RFC_4122
        else:
            assert re.fullmatch(r"[1-9][0-9]+", value)


@pytest.mark.parametrize("task", TOKENS, ids=named)
def test_the_needle_tells_the_key_that_the_question_asks_for(task: Needle, draw: Draw) -> None:
    batch = draw(task)
    at, rows = batch.aux["shown"], np.arange(64)
    asked = task.length - 2 - SIZE[task.level]  # the last token before the answer: "is"
    between = 6 if task.cue == "ruler" else 0
    assert (batch.inputs[rows, at - 1] == batch.inputs[:, asked]).all()
    for back in (1, 2):
        key = batch.inputs[:, asked - between - back]
        assert (batch.inputs[rows, at - 1 - back] == key).all()
        assert np.isin(key, task.roles().of("noun" if back == 1 else "adjective")).all()
        assert ((batch.inputs == key[:, None]).sum(axis=1) == 3).all()  # once in the needle, twice in the question


@pytest.mark.parametrize("task", TOKENS, ids=named)
def test_phrases_are_words_of_the_haystack(task: Needle, draw: Draw) -> None:
    batch = draw(task)
    starts = batch.aux["shown"] - 10
    phrases = [row[start : start + 7] for row, start in zip(batch.inputs, starts, strict=True)]
    assert len({phrase.tobytes() for phrase in phrases}) == 1
    assert (phrases[0] >= WORD).all()


@pytest.mark.parametrize("depth", [0.0, 37.0, 50.0, 100.0])
@pytest.mark.parametrize("task", TOKENS, ids=named)
def test_the_needle_stands_after_its_share_of_sentences(task: Needle, depth: float, draw: Draw) -> None:
    size = SIZE[task.level]
    batch = draw(replace(task, depth=depth))
    end = task.length - (19 + size) - (6 if task.cue == "ruler" else 0)
    for row, at in zip(batch.inputs, batch.aux["shown"], strict=True):
        assert row[at + size] == STOP
        sentences = (without_needle(row, at - 10, at + size + 1, end) == STOP).sum()
        assert (row[1 : at - 10] == STOP).sum() == int(sentences * depth / 100)
        assert at == 11 or row[at - 11] == STOP


def test_noise_is_one_block_again_and_again(draw: Draw) -> None:
    for task in (TOKENS[0], replace(TOKENS[0], permuted=True)):
        batch = draw(task)
        hay = np.stack(
            [
                without_needle(row, at - 10, at + 8, 512 - 26)
                for row, at in zip(batch.inputs, batch.aux["shown"], strict=True)
            ]
        )
        assert hay.shape == (64, 512 - 45)
        assert (hay[:, 24:] == hay[:, :-24]).all()
        assert (hay[0, :24] == STOP).nonzero()[0].tolist() == [4, 9, 14, 18, 23]
        assert (len(np.unique(hay, axis=0)) == 1) != task.permuted


def test_prose_is_fresh_in_every_sequence(draw: Draw) -> None:
    starts = {row[200:220].tobytes() for row in draw(TOKENS[1], count=200).inputs}
    assert len(starts) == 200


def test_with_new_names_words_are_as_likely_as_each_other(draw: Draw) -> None:
    for permuted in (False, True):
        inputs = draw(replace(TOKENS[1], permuted=permuted, depth=0.0), count=1000).inputs[:, 19:400]
        share = np.bincount(inputs[inputs >= WORD] - WORD, minlength=256) / (inputs >= WORD).sum()
        assert (share.max() > 0.05) != permuted
        assert (share.max() < 0.006) == permuted


def test_a_tenth_of_the_keys_is_held_out(draw: Draw) -> None:
    def keys(split: str) -> set[tuple[int, ...]]:
        return {tuple(row) for row in draw(Needle(length=69), 20_000, split).inputs[:, -11:-9].tolist()}

    shown, tested, checked = keys("train"), keys("test"), keys("validation")
    assert tested == checked
    assert len(tested) == 410
    assert 3600 < len(shown) <= 4096 - 410
    assert not tested & shown
    assert {len({key[part] for key in shown}) for part in (0, 1)} == {64}


def test_keys_of_text_are_words_and_a_tenth_is_held_out(draw: Draw) -> None:
    def keys(split: str) -> set[str]:
        texts = [read(TEXTS[0], row) for row in draw(replace(TEXTS[0], length=512), 2500, split).inputs]
        return {re.findall(r"for (\S+) mentioned", text)[0] for text in texts}

    shown, tested = keys("train"), keys("test")
    assert len(tested) > 350
    assert not tested & shown
    assert {key.split("-")[0] for key in shown | tested} == set(ADJECTIVES)
    assert {key.split("-")[1] for key in shown | tested} == set(NOUNS)


def test_training_draws_any_depth_and_evaluation_the_grid_of_forty(draw: Draw) -> None:
    task = TOKENS[0]
    grid = np.rint(np.linspace(0, 100, 40))
    asked, trained = draw(task, count=4000), draw(task, count=4000, split="train")
    assert set(asked.aux["depth"].tolist()) == set(grid.tolist())
    assert not np.isin(trained.aux["depth"], grid).any()
    assert trained.aux["depth"].mean() == pytest.approx(50, abs=2)
    assert set(task.slices(trained)["depth"].tolist()) == set(grid.astype(int).tolist())
    assert (task.slices(asked)["depth"] == asked.aux["depth"]).all()


def test_scores_are_told_by_depth(draw: Draw) -> None:
    task = TOKENS[1]
    batch = draw(task, count=400)
    early = batch.aux["depth"] < 50
    scores = task.score(batch, np.where(early[:, None], batch.targets, 0))
    assert task.metric == "exact_match"
    assert scores["exact_match"] == pytest.approx(early.mean())
    assert scores["accuracy"] == pytest.approx(early.mean())
    assert (scores["exact_match/depth=0"], scores["exact_match/depth=100"]) == (1.0, 0.0)
    assert sum(name.startswith("exact_match/depth=") for name in scores) == 40


@pytest.mark.parametrize("task", [TOKENS[2], TEXTS[0]], ids=named)
def test_lm_weighs_the_answer_like_all_tokens_together(task: Needle, draw: Draw) -> None:
    task = replace(task, loss="lm")
    batch = draw(task, split="train")
    assert (batch.targets[:, :-1] == batch.inputs[:, 1:]).all()
    assert (batch.targets[:, -1] == IGNORE).all()
    cross_entropy = np.random.default_rng(0).random(batch.targets.shape)
    answer = slice(-2 - SIZE[task.level], -2)
    wanted = cross_entropy[:, answer].mean(axis=1) + cross_entropy[:, :-1].mean(axis=1)
    assert (batch.aux["weight"] * cross_entropy).sum(axis=1) == pytest.approx(wanted, rel=1e-4)
    for split in ("validation", "test"):
        qa, lm = draw(replace(task, loss="qa"), split=split), draw(task, split=split)
        assert "weight" not in lm.aux
        assert (qa.targets == lm.targets).all()


@pytest.mark.parametrize("task", TEXTS, ids=named)
def test_text_has_the_phrases_of_ruler(task: Needle, draw: Draw) -> None:
    name = "uuid" if task.level == 3 else "number"
    for row in draw(task).inputs:
        text = read(task, row)
        opening, body = text.split("\n", 1)
        context, query = body.rsplit("\n", 1)
        assert len(opening) + 1 == {"number": 131, "uuid": 127}[name]
        (needle,) = re.findall(rf"One of the special magic {name}s for \S+ is: \S+\.", context)
        key, value = re.findall(r"for (\S+) is: (\S+)\.", needle)[0]
        assert len(needle) == {"number": 43, "uuid": 41}[name] + len(key) + len(value)
        assert query.endswith(f" {value}")
        assert len("\n" + query) == {"number": 134, "uuid": 130}[name] + 2 * len(key) + 1 + len(value)
        assert query.count(key) == 2


@pytest.mark.parametrize("task", TEXTS[1:], ids=named)
def test_text_prose_is_a_window_of_the_manual(task: Needle, draw: Draw) -> None:
    manual = bytes(python_manual().letters).decode()
    for row in draw(task, count=24).inputs:
        context = read(task, row).split("\n")[1]
        before, after = re.split(r"One of the special magic \S+ for \S+ is: \S+\. ", context)
        assert before + after in manual
        assert before == "" or before[-2] in ".!?"


def test_text_noise_has_the_needle_on_a_line_of_its_own(draw: Draw) -> None:
    block = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
    assert len(block) == 89
    for row in draw(TEXTS[0]).inputs:
        lines = read(TEXTS[0], row).split("\n")[1:-1]
        needle = next(i for i, line in enumerate(lines) if line.startswith("One of"))
        assert set(lines[:needle] + lines[needle + 1 : -1]) <= {block}
        assert block.startswith(lines[-1]) or needle == len(lines) - 1


def test_the_pass_key_is_told_twice(draw: Draw) -> None:
    task = PASSKEYS[1]
    for row in draw(task).inputs:
        text = read(task, row)
        (value,) = re.findall(r"What is the pass key\? The pass key is (\d{5})$", text)
        assert f"\nThe pass key is {value}. Remember it. {value} is the pass key.\n" in text
    batch = draw(PASSKEYS[0])
    for row, at in zip(batch.inputs, batch.aux["shown"], strict=True):
        assert row[at - 4 : at].tolist() == row[-10:-6].tolist()
        assert row[at : at + 5].tolist() == row[at + 9 : at + 14].tolist() == row[-6:-1].tolist()


@pytest.mark.parametrize("task", ALL, ids=named)
def test_chance_is_one_in_all_values_that_may_be_told(task: Needle, draw: Draw) -> None:
    batch = draw(task, count=2000)
    values = np.array([list(value) for value in answers(task, batch)])
    assert 1 / task.chance() == pytest.approx(float(np.prod([len(set(column)) for column in values.T], dtype=float)))


@pytest.mark.parametrize("task", ALL, ids=named)
def test_the_ceiling_is_to_find_the_needle(task: Needle, assert_expects: Callable[..., None]) -> None:
    size = SIZE[task.level]

    def look(row: list[int]) -> list[int]:
        question = row[: task.length - 1 - size]
        between = 6 if task.cue == "ruler" else 0
        cue = question[-3 - between : len(question) - between - 1] + question[-1:]  # key and "is"
        if task.mode == "text":
            key = re.findall(r"for (\S+) mentioned", read(task, question))
            cue = list((f"for {key[0]} is: " if key else "The pass key is ").encode())
        elif task.level == "passkey":
            cue = question[-4:]
        start = next(i for i in range(len(row)) if row[i : i + len(cue)] == cue) + len(cue)
        return row[start : start + size]

    def oracle(rng: np.random.Generator, batch: Batch) -> NDArray[np.int64]:
        told = np.zeros_like(batch.targets)
        told[:, task.length - 2 - size : task.length - 2] = [look(row) for row in batch.inputs.tolist()]
        return told

    assert_expects(task, oracle, task.ceiling(), sets=2, count=24)


@pytest.mark.parametrize("task", [TOKENS[1], TOKENS[2], TEXTS[0]], ids=named)
def test_exact_match_under_the_true_prefix_is_that_of_greedy_decoding(task: Needle, draw: Draw) -> None:
    """A reader that copies well but for a slip that depends on all it read: its free run goes astray for good."""
    batch, size = draw(task, count=40), SIZE[task.level]
    start = task.length - 1 - size

    def says(prefix: list[int], shown: int) -> int:
        slips = hash(tuple(prefix)) % (2 * size) == 0
        return 5 if slips else prefix[shown + len(prefix) - start]

    forced, free = np.zeros_like(batch.targets), np.zeros_like(batch.targets)
    for i, (row, shown) in enumerate(zip(batch.inputs.tolist(), batch.aux["shown"].tolist(), strict=True)):
        run = row[:start]
        for t in range(start, start + size):
            forced[i, t - 1] = says(row[:t], shown)
            run = [*run, says(run, shown)]
            free[i, t - 1] = run[-1]
    exact = [task.score(batch, said)["exact_match"] for said in (forced, free)]
    assert exact[0] == exact[1]
    assert 0.2 < exact[0] < 0.95


@pytest.mark.parametrize(
    ("dials", "said"),
    [
        ({"level": 4}, "level must be one of 1, 2, 3, passkey"),
        ({"loss": "ce"}, "loss must be one of qa, lm"),
        ({"depth": 101}, "depth must be a percentage"),
        ({"depth": -1.0}, "depth must be a percentage"),
        ({"words": 31}, "words must lie in 32..4096"),
        ({"template_seed": -1}, "seeds must not be negative"),
        ({"mode": "text", "permuted": True}, "belong to the token mode"),
        ({"mode": "text", "cue": "ruler"}, "cue 'ruler' belongs to levels 1 to 3 of the token mode"),
        ({"level": "passkey", "cue": "ruler"}, "cue 'ruler' belongs to levels 1 to 3"),
        ({"mode": "text", "length": 300}, "length is 300: raise it"),
        ({"mode": "text", "length": 2**19}, "length must not exceed"),
    ],
)
def test_impossible_geometry_is_refused_with_a_remedy(dials: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Needle(**dials)


@pytest.mark.parametrize("task", [Needle(length=4096, level=3, words=1024), Needle(length=8192, level=2, mode="text")])
def test_long_haystacks_can_be_drawn(task: Needle, draw: Draw) -> None:
    batch = draw(task, count=4)
    assert task.score(batch, batch.targets)["exact_match"] == 1.0
    assert (task.sources(batch) >= 0).sum() == 4 * SIZE[task.level]


def test_the_bits_are_the_ones_we_know(digest: Callable[..., str]) -> None:
    tasks = (TOKENS[0], TOKENS[3], replace(TOKENS[1], loss="lm"), PASSKEYS[1])
    assert [digest(task) for task in tasks] == [
        "ca4ea2ee8cc7ec86",
        "8a7f9d68f260a9fa",
        "acd0bfb142288916",
        "e9704d34d5b06667",
    ]
