"""Lines about trials tell them apart, in as few words as do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli.trial_lines import line_of
from recallmap.search.study.differences import alphabets_of, paths_of, telling, values_of
from recallmap.search.trials import Trial
from recallmap.search.trials.geometry import setting


def study(**axes: Any) -> dict[str, Any]:
    mixer = {"kind": "linear_attention", "heads": 1}
    return {
        "name": "story",
        "trial": {
            "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
            "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": mixer}] * 2},
            "training": {"steps": 4, "batch": 8, "evaluations": 1},
        },
        "space": {"kind": "grid", "axes": {"trial.seed": [0, 1], **axes}},
    }


def lines(source: Any) -> list[str]:
    """The line of every trial, but for what it scored."""
    spec = codec.read_study(source)
    paths = paths_of(spec)
    return [line_of(record(trial), paths) for trial in spec.trials()]


def record(trial: Trial, **rest: Any) -> Record:
    names: dict[str, Any] = {"study": "story", "status": "failed", "error": "", "protocol": "", "key": ""}
    task = {"task": trial.task.kind, "setting": setting(trial.task)}
    return Record(spec=codec.plain(trial), arch=trial.name, seed=trial.seed, **{**names, **task, **rest})


def test_a_study_over_a_size_inside_the_stack_says_it() -> None:
    found = lines(study(**{"trial.arch.stack[0].mixer.key_dim": [4, 8], "trial.training.lr": [1e-3, 1e-2]}))
    assert found[0] == "FAILED  tiny  mqar vocab=32 length=16 pairs=2  key_dim=4  lr 1e-3  decay 0.1  seed 0: "
    assert len(set(found)) == 8


def test_places_of_one_name_are_told_apart() -> None:
    axes = {f"trial.arch.stack[{place}].mixer.key_dim": [4, 8] for place in (0, 1)}
    found = lines(study(**axes))
    assert sum("  stack.0.mixer.key_dim=4 stack.1.mixer.key_dim=8  " in line for line in found) == 2
    assert len(set(found)) == 8


def test_what_a_line_says_already_is_not_said_again() -> None:
    assert paths_of(codec.read_study(study(**{"trial.task.pairs": [2, 4], "trial.training.lr": [1e-3, 1e-2]}))) == ()


@pytest.mark.parametrize("name", ["demo", "cg_steps", "memory_skip", "parity", "memories"])
def test_no_two_trials_of_a_study_have_the_same_line(name: str) -> None:
    found = lines(name)
    assert len(set(found)) == len(found) > 20


def test_a_search_says_its_dials() -> None:
    space = {"kind": "random", "points": 2, "dials": {"trial.arch.stack[0].mixer.key_dim": {"int": [4, 8]}}}
    assert paths_of(codec.read_study({**study(), "space": space})) == ("arch.stack.0.mixer.key_dim",)


def test_a_line_is_one_line_and_nothing_in_it_acts() -> None:
    (trial, *_) = codec.read_study(study()).trials()
    for rest in ({"error": "a\nb\x1b[31m"}, {"status": "done", "implementation": {"halved": "x\x1b[31m\u202e"}}):
        assert line_of(record(trial, **rest)).isprintable()


def test_as_few_paths_as_do() -> None:
    leaves = [{"a": a, "b": b, "c": a, "d": 0} for a in range(2) for b in range(2)]
    assert telling(["x"] * 4, leaves) == ["a", "b"]
    assert telling([0, 1, 2, 3], leaves) == []
    assert telling(["x"] * 2, [{"a": 1}, {}]) == ["a"]
    assert telling([], []) == []


def test_a_part_is_said_by_its_kind_and_what_is_not_set_is_not_said() -> None:
    leaves = {"arch.stack.0.mixer.kind": "mesa", "arch.window": None, "arch.width": 8}
    assert values_of(leaves, ["arch.stack.0.mixer", "arch.window", "arch.width", "none"]) == {
        "mixer": "mesa",
        "width": 8,
    }


# Searches for an order of blocks. -------------------------------------------------------------------


def searched() -> dict[str, Any]:
    """A search over the order of three blocks, two of which have options."""
    letters = {
        "m": {"kind": "block", "mixer": {"kind": "mesa", "heads": {"choice": [1, 2]}, "key_dim": 4}},
        "l": {
            "kind": "block",
            "mixer": {
                "choice": [
                    {"kind": "gla", "heads": {"choice": [1, 2]}},
                    {"kind": "linear_attention", "heads": {"choice": [1, 2]}},
                ]
            },
        },
        "c": {"kind": "block", "mixer": "base_conv"},
    }
    dials = {
        "trial.arch.stack": {"sequence": letters, "length": [2, 3]},
        "trial.training.weight_decay": {"float": [0, 1]},
    }
    return {**study(), "space": {"kind": "random", "points": 4, "anchors": ["mesa"], "dials": dials}}


def test_a_line_has_the_options_of_blocks_by_letter_and_never_the_kind_of_an_entry() -> None:
    spec = codec.read_study(searched())
    alphabets = alphabets_of(spec)
    assert [one.legend for one in alphabets] == ["m=heads l=mixer/heads"]
    assert paths_of(spec) == ()
    said = {
        line_of(record(trial), paths_of(spec), alphabets)
        for _, point in spec.space.corners()
        for trial in spec.expanded(point)[:1]
    }
    assert len(said) > 20
    assert not [text for text in said if "block" in text or "repeat" in text or "stack" in text]
    blocks = {text.split("  ")[0]: text.split("  ")[2] for text in said}
    assert blocks["FAILED"].startswith("mqar")
    words = {text.split("  ")[1]: [part for part in text.split("  ")[3].split(" ") if "=" in part] for text in said}
    assert all(
        {part[0] for part in own} == set(name.removeprefix("tiny_")) - {"c"} for name, own in words.items() if own
    )
    kinds = {part for own in words.values() for part in own if part.startswith("l=")}
    assert kinds <= {"l=gla/1", "l=gla/2", "l=linear_attention/1", "l=linear_attention/2"}


def test_an_anchor_has_no_blocks_in_an_order_that_was_chosen() -> None:
    spec = codec.read_study(searched())
    (anchor,) = spec.space.anchor_points()
    (trial, *_) = spec.expanded(anchor)
    assert line_of(record(trial), paths_of(spec), alphabets_of(spec)).startswith(
        "FAILED  mesa  mqar vocab=32 length=16"
    )
    assert "  lr " in line_of(record(trial)).partition("pairs=2")[2][:5]


def test_an_option_below_a_choice_is_found_in_the_trial() -> None:
    choice = {"choice": [{"kind": "mesa", "heads": {"choice": [1, 2]}}, {"kind": "gla", "heads": 1}]}
    space = {"kind": "random", "points": 2, "dials": {"trial.arch.stack[0].mixer": choice}}
    spec = codec.read_study({**study(), "space": space})
    assert paths_of(spec) == ("arch.stack.0.mixer", "arch.stack.0.mixer.heads")
    said = {
        line_of(record(spec.expanded(point)[0]), paths_of(spec)).split("  ")[3] for _, point in spec.space.corners()
    }
    assert said == {"mixer=mesa heads=1", "mixer=mesa heads=2", "mixer=gla heads=1"}


def test_a_model_that_scores_below_chance_has_not_learned() -> None:
    (trial, *_) = codec.read_study(study()).trials()
    for score, told in ((0.2, ": has not learned (try another rate or more steps)"), (0.6, "")):
        done = record(trial, status="done", scores={"accuracy": score}, chance=0.5)
        line = line_of(done)
        assert line.endswith(f"accuracy {score:.4f} (chance 0.5){told}  0.0 s")
    long = replace(done, scores={"accuracy": 0.2}, setting="x" * 60)
    assert (len(line_of(long)) <= 160, "has not learned  0.0 s" in line_of(long)) == (True, True)
