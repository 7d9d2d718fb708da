"""Which blocks, places and neighbours repeat in what scores well."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from recallmap.results.analysis.block_effects import FAMILIES, FEWEST, Effect, block_effects, telling

Score = Callable[[str, float], float]


def made(score: Score, *, seed: int = 1, points: int = 500, letters: str = "xrdamkgtc") -> list[Effect]:
    """The effects over random words of three to five letters; a has eight times the state of others, and scores vary by 0.1."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list(letters), size=rng.integers(3, 6))) for _ in range(points)]
    states = [float(sum(8000 if letter == "a" else 1000 for letter in word) * rng.choice([1, 2, 4])) for word in words]
    scores = [score(word, state) + 0.1 * rng.normal() for word, state in zip(words, states, strict=True)]
    return block_effects(words, scores, states, attention="a")


def by_name(effects: list[Effect]) -> dict[str, Effect]:
    return {f"{one.family} {one.name}": one for one in effects}


def test_what_helps_late_is_found_late_and_what_adds_nothing_is_not_found() -> None:
    effects = made(lambda word, _: 0.4 + 0.2 * (word[-1] == "x" or (len(word) == 5 and word[3] == "x")))
    found = by_name(effects)
    late = found["place x late"]
    assert late.effect == pytest.approx(0.2, abs=0.04)
    assert late.interval[0] < 0.2 < late.interval[1]
    assert late.holds
    assert found["block x"].holds  # a part of its points have it late
    assert not any(one.holds for name, one in found.items() if name.startswith(("block r", "place r", "place x early")))
    assert next(one for one in telling(effects) if one.family == "place") is late
    assert len(telling(effects)) < 15 < len(effects)


def test_what_comes_with_a_bigger_state_or_a_longer_word_is_not_its_own_effect() -> None:
    """Words with a have several times the state, and longer words hold more of every letter."""
    effects = made(lambda word, state: 0.05 * np.log2(state) + 0.1 * len(word))
    assert not any(one.holds for one in effects)


def test_a_pair_is_what_comes_on_top_of_both_its_letters() -> None:
    both = made(lambda word, _: 0.2 * ("x" in word) + 0.2 * ("d" in word))
    assert not any(one.holds for one in both if one.family == "pair")
    effects = made(lambda word, _: 0.2 * ("xd" in word))
    assert next(one.name for one in effects if one.family == "pair") == "xd"
    found = by_name(effects)
    assert found["pair xd"].interval[0] < 0.2 < found["pair xd"].interval[1]
    assert found["pair xd"].holds
    assert found["pair xd"].said == "x then d"


def test_numbers_of_attention_blocks_are_compared_with_none() -> None:
    found = by_name(made(lambda word, _: 0.2 * ("a" in word), letters="xrda"))
    for number in ("1", "2"):
        assert found[f"attention {number}"].effect == pytest.approx(0.2, abs=0.06)
        assert found[f"attention {number}"].holds
    assert [found[f"attention {n}"].said for n in "12"] == ["1 attention block", "2 attention blocks"]
    assert "attention 0" not in found


def test_every_effect_rests_on_enough_points_on_either_side() -> None:
    words = ["xd", "dr", "rd", "dd"] * 20 + ["kd"] * (FEWEST - 1)
    effects = block_effects(words, np.random.default_rng(0).random(len(words)).tolist(), [100.0] * len(words))
    assert effects
    assert {one.points + one.others for one in effects} == {len(words)}
    assert min(min(one.points, one.others) for one in effects) >= FEWEST
    assert not any("k" in one.name for one in effects)
    assert block_effects(["xd"] * (2 * FEWEST - 1), [0.5] * 15, [1.0] * 15) == []


def test_a_block_that_always_comes_with_another_is_not_told_apart() -> None:
    """No fit gives either an effect of its own, until one stands without the other."""
    scores = np.random.default_rng(0).random(160).tolist()
    assert block_effects(["xd", "rr", "dx", "cc"] * 40, scores, [1.0] * 160) == []
    apart = block_effects(["xd", "rr", "xr", "cc", "cr", "dx", "rd", "dc"] * 20, scores, [1.0] * 160)
    assert {one.name for one in apart if one.family == "block"} == set("xdrc")


def test_scores_that_nothing_decides_but_a_block_are_all_its_own() -> None:
    words = ["xr", "rc", "cd", "xx", "dr", "xc", "dd", "rx"] * 10
    (one, other, *_) = block_effects(words, [0.5 * ("x" in word) for word in words], [1.0] * 80)
    assert (one.name, one.p, one.holds) == ("x", 0.0, True)
    assert one.effect == pytest.approx(0.5)
    assert (other.effect, other.p, other.holds) == (pytest.approx(0.0), pytest.approx(1.0), False)


def test_one_family_in_twenty_of_random_scores_has_an_effect() -> None:
    families = [
        any(one.holds for one in effects if one.family == family)
        for seed in range(40)
        for effects in [made(lambda *_: 0.5, seed=seed, points=96, letters="xrda")]
        for family in FAMILIES
    ]
    assert np.mean(families) < 0.1


def test_words_scores_and_states_are_of_the_same_points() -> None:
    with pytest.raises(ValueError, match="got 2 words, 1 scores and 2 states, expected as many of each"):
        block_effects(["a", "b"], [0.5], [1.0, 1.0])
