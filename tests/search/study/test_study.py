"""A study as a specification: what varies, in which order, and where its author is told of a slip."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recallmap.search import codec
from recallmap.search.cli.file_summary import check
from recallmap.search.documents.nodes import SpecError
from recallmap.search.space import grid
from recallmap.search.space.axis_values import axis_values
from recallmap.search.study import overlay

BASE = """\
name: story
trial:
  task: {kind: mqar, vocab: 32, length: 16, pairs: 2}
  arch:
    name: tiny
    width: 16
    stack:
      - kind: repeat
        times: 1
        blocks: [{kind: block, mixer: {kind: attention, heads: 2}}]
  training: {steps: 10, lr: 1e-3}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "story.yaml"


def read(file: Path, rest: str = "", *sets: str, base: str = BASE) -> Any:
    file.write_text(base + rest)
    return codec.read_study(str(file), overrides=sets)


def faults(file: Path, rest: str = "", *sets: str, base: str = BASE) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(file, rest, *sets, base=base)
    return [line.removeprefix(f"{file}:") for line in str(caught.value).splitlines()]


def test_without_a_space_there_is_one_trial(file: Path) -> None:
    (trial,) = read(file).trials()
    assert (trial.task.kind, trial.arch.width, trial.training.lr, trial.seed) == ("mqar", 16, 1e-3, 0)


def test_the_first_axis_varies_slowest(file: Path) -> None:
    study = read(file, "space: {kind: grid, axes: {trial.training.lr: [1e-2, 1e-3], trial.seed: [2, 0, 1]}}")
    assert [(t.training.lr, t.seed) for t in study.trials()] == [
        (1e-2, 2),
        (1e-2, 0),
        (1e-2, 1),
        (1e-3, 2),
        (1e-3, 0),
        (1e-3, 1),
    ]


def test_an_axis_reaches_into_lists_and_repeats(file: Path) -> None:
    study = read(file, "space: {kind: grid, axes: {'trial.arch.stack[0].blocks[0].mixer.heads': [1, 4]}}")
    assert [t.arch.stack[0].blocks[0].mixer.heads for t in study.trials()] == [1, 4]


def test_an_axis_of_architectures_takes_names_paths_and_mappings(file: Path) -> None:
    own = codec.dump(codec.read_arch("gla")).replace("name: gla", "name: own")
    (file.parent / "own.yaml").write_text(own)
    study = read(file, "space: {kind: grid, axes: {trial.arch: [mesa, ./own.yaml, {name: tiny, width: 8}]}}")
    mesa, mine, tiny = (t.arch for t in study.trials())
    assert mesa == codec.read_arch("mesa")
    assert mine.name == "own"
    assert (tiny.width, tiny.stack) == (8, read(file).trials()[0].arch.stack)


TWO = "space: {kind: grid, axes: {trial.arch: [mesa, gla], trial.arch.width: [64, 128], trial.seed: [0, 1, 2]}}\n"


@pytest.mark.parametrize(
    ("only", "left"),
    [
        ("{arch: mesa}", [("mesa", w, s) for w in (64, 128) for s in range(3)]),
        ("{arch: {name: mesa, width: 128}, seed: [2, 0]}", [("mesa", 128, 0), ("mesa", 128, 2)]),
        ("{arch: {width: [64]}, seed: 1, task: mqar, training: {lr: 1e-3}}", [("mesa", 64, 1), ("gla", 64, 1)]),
        ("{'arch.stack[0].blocks[0].mixer.kind': gla, seed: 0}", [("gla", 64, 0), ("gla", 128, 0)]),
        ("{}", [(a, w, s) for a in ("mesa", "gla") for w in (64, 128) for s in range(3)]),
    ],
)
def test_a_part_of_a_grid_is_what_says_all_that_is_asked_for(file: Path, only: str, left: list[Any]) -> None:
    trials = read(file, f"{TWO}only: {only}").trials()
    assert [(t.arch.name, t.arch.width, t.seed) for t in trials] == left
    assert set(trials) <= set(read(file, TWO).trials())


def test_a_part_of_a_grid_is_asked_for_on_the_command_line(file: Path) -> None:
    (trial,) = read(file, TWO, "only.arch=gla", "only.arch.width=64", "only.seed=[2]").trials()
    assert (trial.arch.name, trial.arch.width, trial.seed) == ("gla", 64, 2)


def test_an_architecture_that_was_renamed_is_meant_by_both_its_names(file: Path) -> None:
    renamed = TWO.replace("gla", "gla_mesanet")
    for space in (TWO, renamed):
        for name in ("gla", "gla_mesanet"):
            assert [t.arch.name for t in read(file, f"{space}only: {{arch: {name}, seed: 0}}").trials()] == ["gla"] * 2
    assert read(file, TWO).trials() == read(file, renamed).trials()


def test_a_parameter_that_came_after_records_were_kept_is_heard_of_at_its_default(file: Path) -> None:
    place = "arch.stack[0].blocks[0].mixer.scale"
    axes = f"space: {{kind: grid, axes: {{trial.arch: [deltanet], 'trial.{place}': [one, key_dim]}}}}\n"
    for scale in ("one", "key_dim"):
        (trial,) = read(file, f"{axes}only: {{'{place}': {scale}}}").trials()
        assert trial.arch.stack[0].blocks[0].mixer.scale == scale


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("{arch: {widht: 64}}", "13:7: only.arch.widht: no trial has 'widht' there, expected name, width, stack"),
        ("{arch: {width: 65}}", "13:22: only.arch.width: no trial has 65, expected 64 or 128"),
        ("{arch: [gla, mess]}", "13:14: only.arch: no trial has mess, expected mesa or gla (did you mean 'mesa'?)"),
        ("{seed: {of: 1}}", "13:7: only.seed.of: no trial has 'of' there"),
        ("mesa", "13:7: only: expected a mapping"),
    ],
)
def test_a_part_that_no_trial_has_is_told(file: Path, only: str, said: str) -> None:
    (found,) = faults(file, f"{TWO}only: {only}")
    assert found.startswith(said)


def test_a_part_that_leaves_nothing_is_told_and_of_a_search_there_is_none(file: Path) -> None:
    union = "space: {kind: union, spaces: [{kind: grid, axes: {trial.arch: [mesa]}}, {kind: grid, axes: {trial.seed: [7]}}]}\n"
    assert faults(file, union + "only: {arch: mesa, seed: 7}") == [
        "13:7: only: no trial matches all of these; leave some out"
    ]
    search = "space: {kind: random, points: 2, dials: {trial.arch.width: {choice: [16, 32]}}}\n"
    assert faults(file, search + "only: {seed: 0}") == [
        "13:7: only: a search has no list of trials to choose from: narrow its space"
    ]


def test_a_later_axis_reaches_into_what_an_earlier_one_brought(file: Path) -> None:
    study = read(file, "space: {kind: grid, axes: {trial.arch: [mesa, gla], trial.arch.width: [64, 128]}}")
    assert [(t.arch.name, t.arch.width) for t in study.trials()] == [
        ("mesa", 64),
        ("mesa", 128),
        ("gla", 64),
        ("gla", 128),
    ]


def test_the_axis_trial_links_values(file: Path) -> None:
    study = read(
        file,
        "space:\n  kind: grid\n  axes:\n    trial:\n"
        "      - {task: {length: 32}, training: {lr: 1e-2}}\n"
        "      - {task: memorization, seed: 3}\n",
    )
    longer, other = study.trials()
    assert (longer.task.length, longer.task.pairs, longer.training.lr) == (32, 2, 1e-2)
    assert (other.task.kind, other.task.vocab, other.training.lr, other.seed) == ("memorization", 256, 1e-3, 3)


def test_a_union_is_one_space_after_the_other_and_nothing_comes_twice(file: Path) -> None:
    study = read(
        file,
        "space:\n  kind: union\n  spaces:\n"
        "    - {kind: grid, axes: {trial.seed: [0, 1]}}\n"
        "    - {kind: grid, axes: {trial.seed: [1, 2]}}\n"
        "    - {kind: grid}\n",
    )
    assert [t.seed for t in study.trials()] == [0, 1, 2]
    assert len(list(grid.grid(study.space))) == 5


SUITE = """\
name: own
tiers:
  smoke:
    - {task: {kind: mqar, vocab: 32, length: 16, pairs: 2}}
    - {task: {kind: mqar, vocab: 32, length: 16, pairs: 4}, data: {train: 100}}
"""


@pytest.mark.parametrize("axis", ["{suite: ./own.yaml, tier: smoke}", "[{suite: ./own.yaml, tier: smoke}, {seed: 5}]"])
def test_a_suite_stands_for_its_settings(file: Path, axis: str) -> None:
    (file.parent / "own.yaml").write_text(SUITE)
    study = read(file, f"space: {{kind: grid, axes: {{trial: {axis}}}}}")
    assert [(t.task.pairs, t.data.train) for t in study.trials()][:2] == [(2, None), (4, 100)]


BUDGETS = """\
space: {kind: grid, axes: {trial.seed: [0, 1, 2]}}
budgets:
  smoke: {trial.training.steps: 2, space.axes.trial.seed: [0]}
  paper: {trial.training: {steps: 1000, lr: 1e-4}}
"""


def test_a_budget_patches_the_study(file: Path) -> None:
    assert [t.training.steps for t in read(file, BUDGETS).trials()] == [10, 10, 10]
    assert [t.training.steps for t in read(file, BUDGETS + "budget: smoke\n").trials()] == [2]
    paper = read(file, BUDGETS + "budget: smoke\n", "budget=paper")
    assert [(t.training.steps, t.training.lr) for t in paper.trials()] == [(1000, 1e-4)] * 3
    assert paper.budget == "paper"


def test_a_budget_may_have_a_name_that_looks_like_a_number(file: Path) -> None:
    read(file, "budgets: {100000: {trial.seed: 1}, true: {trial.seed: 2}}\n")
    assert "budget 100000: 1 trial" in check(str(file))
    assert "budget true: 1 trial" in check(str(file))


def test_the_command_line_has_the_last_word(file: Path) -> None:
    study = read(file, BUDGETS, "budget=smoke", "trial.training.steps=7", "space.axes.trial.seed=[4, 5]")
    assert [(t.training.steps, t.seed) for t in study.trials()] == [(7, 4), (7, 5)]


def test_the_command_line_reaches_into_a_named_architecture(file: Path) -> None:
    (trial,) = read(file, "", "trial.arch=mesa", "trial.arch.stack[0].blocks[0].mixer.heads=2").trials()
    assert (trial.arch.name, trial.arch.stack[0].blocks[0].mixer.heads) == ("mesa", 2)


def test_a_grid_beyond_all_measure_is_refused(file: Path) -> None:
    many = list(range(1000))
    (found,) = faults(file, f"space: {{kind: grid, axes: {{trial.seed: {many}, trial.data.test: {many}}}}}")
    assert found.endswith("space: has 1,000,000 points, expected at most 100,000")


def test_a_new_axis_by_the_command_line(file: Path) -> None:
    study = read(file, "", "space.kind=grid", "space.axes.trial.training.weight_decay=[0, 0.1]")
    assert [t.training.weight_decay for t in study.trials()] == [0, 0.1]


def test_constraints_are_judged_before_training(file: Path) -> None:
    study = read(
        file,
        "constraints: {parameters: 3000}\nspace: {kind: grid, axes: {trial.arch.width: [8, 16, 32]}}",
    )
    assert [t.arch.width for t in study.trials()] == [8, 16]
    ((rejected, why),) = study.rejected()
    assert rejected.arch.width == 32
    assert why.endswith("(at most 3,000)")


def test_points_of_one_size_have_a_least_and_a_most(file: Path) -> None:
    grid = "space: {kind: grid, axes: {trial.arch.width: [8, 16, 32]}}"
    study = read(file, f"constraints: {{parameters: 3000, least_parameters: 1000}}\n{grid}")
    assert [t.arch.width for t in study.trials()] == [16]
    small, large = (why for _, why in study.rejected())
    assert small.endswith("(at least 1,000)")
    assert large.endswith("(at most 3,000)")
    excess = [study.constraints.excess(trial) for trial, _ in study.rejected()]
    assert [list(one) for one in excess] == [["least_parameters"], ["parameters"]]
    assert 0 < excess[0]["least_parameters"] < 1
    with pytest.raises(SpecError, match="least_parameters must be at most parameters, 3,000, got 4,000"):
        read(file, f"constraints: {{parameters: 3000, least_parameters: 4000}}\n{grid}")


def test_goals_are_accuracy_and_small_state_unless_said_otherwise(file: Path) -> None:
    assert [(g.score, g.direction) for g in read(file).goals] == [("accuracy", "maximise"), ("state_bytes", "minimise")]
    assert [g.score for g in read(file, "goals: [{score: exact_match, direction: maximise}]").goals] == ["exact_match"]


def test_what_is_dumped_is_the_same_study(file: Path) -> None:
    study = read(file, BUDGETS + "budget: smoke\n")
    again = codec.read_study(codec.plain(study))
    file.write_text(codec.dump(study))
    assert codec.read_study(file) == again == study
    assert [codec.key(t) for t in again.trials()] == [codec.key(t) for t in study.trials()]


def test_a_trial_survives_its_record(file: Path) -> None:
    (trial,) = read(file).trials()
    assert codec.from_plain(type(trial), codec.plain(trial)) == trial


FAULTS = {
    "a slip in the base": (
        BASE.replace("lr: 1e-3", "lrr: 1e-3"),
        "",
        ["11:25: trial.training.lrr: unknown key, expected steps, epochs, batch, lr"],
    ),
    "a value of an axis": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    trial.training.lr: [1e-3, abc, -1]",
        [
            "15:31: trial.training.lr: got text 'abc', expected a number",
            "15:36: trial.training.lr: lr must be positive, got -1.0",
        ],
    ),
    "a path that is not there": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    trial.trainng.lr: [1e-3, 1]",
        ["15:5: trial.trainng: unknown key, expected task, arch, training"],
    ),
    "a place that is not there": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    trial.arch.stack[1].mixer.heads: [1]",
        ["15:5: trial.arch.stack[1].mixer.heads: trial.arch.stack has no [1], expected [0] to [0]"],
    ),
    "a value that only the whole refuses": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    trial.task.pairs: [2, 5]",
        ["15:27: trial.task: 5 pairs and their queries take 20 positions"],
    ),
    "an unknown architecture": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    trial.arch: [mesa, mesaa]",
        ["15:24: trial.arch: 'mesaa': no built-in arch and no file, expected a file or"],
    ),
    "an axis outside the trial": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    training.lr: [1]",
        ["15:5: space.axes.training.lr: an axis is a path that begins with trial (did you mean 'trial.training.lr'?)"],
    ),
    "an axis that is no list": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    trial.seed: 3",
        ["15:17: space.axes.trial.seed: expected a list of values"],
    ),
    "an empty axis": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    trial.seed: []",
        ["15:17: space.axes.trial.seed: an axis must hold at least one value, got none"],
    ),
    "an unknown suite": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    trial: {suite: madd, tier: smoke}",
        ["15:20: space.axes.trial: 'madd': no built-in suite and no file"],
    ),
    "a suite without a tier": (
        BASE,
        "space:\n  kind: grid\n  axes:\n    trial: {suite: mad}",
        ["15:12: space.axes.trial: expected {suite: NAME, tier: TIER}, both text"],
    ),
    "an unknown budget": (
        BASE,
        "budgets: {smoke: {}, paper: {}}\nbudget: smok",
        ["13:9: budget: no budget 'smok', expected smoke or paper (did you mean 'smoke'?)"],
    ),
    "a slip in a budget": (
        BASE,
        "budget: a\nbudgets:\n  a:\n    trial.training.stps: 3",
        ["15:5: trial.training.stps: unknown key, expected steps"],
    ),
    "a name that is no file's name": (BASE.replace("story", "a/b"), "", ["1:7: name: name must be letters"]),
    "an unknown goal": (
        BASE,
        "goals: [{score: accuracy, direction: maximize}]",
        [
            "12:38: goals[0].direction: got text 'maximize', expected 'maximise' or 'minimise' "
            "(did you mean 'maximise'?)"
        ],
    ),
    "no trial": ("name: a\n", "", ["1:1: key 'trial' is missing"]),
    "a trial that is text": ("name: a\ntrial: b\n", "", ["2:8: trial: expected a mapping: task, arch, training, ..."]),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_placed_where_it_was_written(file: Path, case: str) -> None:
    base, rest, said = FAULTS[case]
    found = faults(file, rest, base=base)
    assert len(found) == len(said)
    for line, beginning in zip(found, said, strict=True):
        assert line.startswith(beginning)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("trial.training.lr=abc", "--set: trial.training.lr: got text 'abc', expected a number"),
        ("trial.training.stps=1", "--set: trial.training.stps: unknown key, expected steps"),
        ("trial.seed", "--set: got 'trial.seed', expected path=value such as trial.training.lr=1e-3"),
        ("trial.seed=012", "--set: trial.seed: got 012, which some read as octal: say 12, or '012' if it is text"),
        ("trial.seed=[1", "--set: trial.seed: is no YAML: a '[' above is not closed"),
        ("trial.seed=", "--set: trial.seed: got nothing, expected a whole number"),
        ("trila.seed=1", "--set: trila: unknown key, expected name, description, trial"),
    ],
)
def test_a_slip_on_the_command_line(file: Path, text: str, said: str) -> None:
    (found,) = faults(file, "", text)
    assert found.startswith(said)


def test_what_an_axis_would_undo_is_refused(file: Path) -> None:
    (found,) = faults(file, BUDGETS, "trial.seed=3")
    why = "the space varies trial.seed, so this would be lost"
    assert found == f"--set: trial.seed: {why}: say instead --set 'space.axes.trial.seed=[3]'"


def test_what_an_axis_that_the_budget_says_would_undo_is_refused(file: Path) -> None:
    rest = (
        "budgets: {smoke: {space: {kind: grid, axes: {trial.seed: [7]}}, space.axes.trial.seed: [8]}}\nbudget: smoke\n"
    )
    (found,) = faults(file, rest, "trial.seed=3")
    assert "so this would be lost" in found
    assert [t.seed for t in read(file, rest, "space.axes.trial.seed=[3]").trials()] == [3]


def test_what_a_suite_would_undo_is_refused() -> None:
    with pytest.raises(SpecError, match=r"trial\.data\.test: the space lays settings over the trial that set it too"):
        codec.read_study("learnability", overrides=["budget=smoke", "trial.data.test=64"])
    assert codec.read_study("learnability", overrides=["budget=smoke", "trial.training.dtype=float32"])


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{path}.{name}")
    yield path, value


def governed(study: str, budget: list[str]) -> dict[str, Any]:
    """What the axes and dials of a study say of its trials first, by path, and what of their parts."""
    found: dict[str, Any] = {}
    whole = overlay.with_budget(codec.document(study, "study"), [codec.override(text) for text in budget])
    for axis in overlay._axes(whole.get("space")):
        if axis.place.endswith("dials"):
            ends = next(
                (axis.values.value[kind].value for kind in ("choice", "int", "float") if kind in axis.values), ()
            )
            first = [end.plain() for end in ends[:1]]
        else:
            first = [axis_values(axis.path, axis.values)[0].plain()]
        found.update(one for value in first for one in leaves(value, axis.path) if one[0] != "trial")
    return {path: value for path, value in found.items() if len(json.dumps(value)) < 200}


def advised(message: str) -> list[str]:
    """What to type, as a message says it."""
    told, _, more = message.partition("\n")[0].partition(" and so for ")
    words = [word for word in shlex.split(told[told.index(" --set ") :]) if "=" in word]
    return [
        *words,
        *(f"{place}{words[0][words[0].index('.trial.') :]}" for place in re.split(r", | and ", more) if place),
    ]


@pytest.mark.parametrize(
    "name", [n for n in codec.builtin("study") if n not in ("mqar_capacity", "mqar_zoology", "mad")]
)
def test_what_is_advised_instead_of_what_would_be_lost_is_accepted(name: str) -> None:
    budget = ["budget=smoke"] if "smoke" in codec.read_study(name).budgets.value else []
    tried = 0
    for path, value in governed(name, budget).items():
        if tried == 4:
            break
        said = f"{path}={json.dumps(value)}"
        with pytest.raises(SpecError, match="so this would be lost") as caught:
            codec.read_study(name, overrides=[*budget, said])
        message = str(caught.value)
        if "; said there it would be refused: " in message:  # as what one task has and another has not
            continue
        codec.read_study(name, overrides=[*budget, *advised(message)])
        if "say there, too" in message:
            codec.read_study(name, overrides=[*budget, said, *advised(message)])
        tried += 1
    assert tried


def test_of_a_union_it_is_advised_what_its_spaces_have() -> None:
    with pytest.raises(SpecError) as caught:
        codec.read_study("demo", overrides=["trial.training.steps=5"])
    assert advised(str(caught.value)) == [f"space.spaces[{n}].axes.trial.training.steps=[5]" for n in (6, 7)]
    both = codec.read_study("demo", overrides=["trial.training.steps=5", *advised(str(caught.value))])
    assert {trial.steps for trial in both.trials()} == {5}
    with pytest.raises(
        SpecError, match=re.escape("a union has no axes, its spaces have: set space.spaces[0].axes.trial.seed")
    ):
        codec.read_study("demo", overrides=["space.axes.trial.seed=[1]"])


def test_what_cannot_be_said_anywhere_is_told_with_the_reason(file: Path) -> None:
    (found,) = faults(file, BUDGETS, "trial.seed=many")
    assert found.endswith("; said there it would be refused: trial.seed: got text 'many', expected a whole number")


def test_an_axis_of_a_part_comes_behind_that_of_the_whole(file: Path) -> None:
    axis = "space:\n  kind: grid\n  axes:\n    trial.arch: [mesa, gla]\n"
    axis += "    trial.training: [{lr: 1e-3}, {lr: 1e-2}]\n"
    study = read(file, axis, "space.axes.trial.arch.width=[32]", "space.axes.trial.training[1].lr=3e-3")
    assert [(t.arch.width, t.training.lr) for t in study.trials()] == [(32, 1e-3), (32, 3e-3)] * 2
    (found,) = faults(file, axis, "space.axes.trial.arch.inti=[normal]")
    expected = "name, width, stack, norm, tied, soft_cap, init, embedding_std"
    assert found.endswith(f"unknown key, expected {expected} (did you mean 'init'?)")


def test_a_fault_of_a_named_architecture_stands_in_its_own_file(file: Path) -> None:
    other = file.parent / "other.yaml"
    other.write_text("name: other\nstack:\n  - {kind: block, mixer: {kind: attention, windw: 3}}\n")
    base = "name: a\ntrial:\n  task: mqar\n  arch: ./other.yaml\n  training: {steps: 1}\n"
    (found,) = faults(file, base=base)
    assert found.startswith(f"{other}:3:44: trial.arch.stack[0].mixer.windw: unknown key, expected")
    assert found.endswith("(did you mean 'window'?)")


UNRESOLVED = {  # what the base has, what axes have, what is told
    "a misspelled name": ("gated_deltnet", {}, "4:9: trial.arch: 'gated_deltnet': no built-in arch and no file"),
    "a missing file": ("averag.yaml", {}, "averag.yaml': "),
    "a misspelled name among others": (
        "mesa",
        {"trial.arch": ["averag.yaml", "swa"]},
        "6:49: trial.arch: 'averag.yaml': ",
    ),
    "a file that names code with a fault": (
        "broken.yaml",
        {},
        "SyntaxError: '(' was never closed in broken.py:1: x = (",
    ),
}
WITHIN = {  # an axis, or a word of the command line, that reaches into what cannot be resolved
    "a width": {"trial.arch.width": [32]},
    "a block": {"trial.arch.stack[0].blocks[0].mixer.heads": [2]},
    "a mapping": {"trial": [{"arch": {"width": 32}}]},
}


@pytest.mark.parametrize("within", [*WITHIN, "--set", "nothing"])
@pytest.mark.parametrize("case", UNRESOLVED)
def test_an_architecture_that_cannot_be_resolved_has_one_fault_whatever_reaches_into_it(
    file: Path, case: str, within: str
) -> None:
    arch, axes, said = UNRESOLVED[case]
    (file.parent / "broken.py").write_text("x = (\n")
    (file.parent / "broken.yaml").write_text("uses: [broken.py]\nname: broken\nstack: []\n")
    base = f"name: a\ntrial:\n  task: mqar\n  arch: {arch}\n  training: {{steps: 1}}\n"
    space = f"space: {json.dumps({'kind': 'grid', 'axes': {**axes, **WITHIN.get(within, {})}})}\n"
    (found,) = faults(file, space, *(["trial.arch.width=32"] if within == "--set" and not axes else []), base=base)
    assert said in found


MANY = """\
nmae: story
trial:
  task: {kind: mqar, lenght: 16}
  arch: {name: a, width: wide, stack: [{kind: block, mixer: {kind: attention, head: 2}}]}
  training: {stps: 10, batch: x}
  sed: 0
"""
TRIALS = ("3:22: trial.task.lenght", "4:26: trial.arch.width", "4:79: trial.arch.stack[0].mixer.head")
TRIALS = (*TRIALS, "5:14: trial.training.stps", "5:31: trial.training.batch", "6:3: trial.sed")
OF_A_SPACE = {  # what stands below the base trial, and its faults
    "no space": ("", []),
    "a grid": ("space: {kind: grid, axes: {trial.data.test: [8, 16]}}\n", []),
    "a search": ("space: {kind: random, dials: {trial.data.test: {choice: [8, 16]}}}\n", []),
    "an axis with a fault": (
        "space: {kind: grid, axes: {trial.data.test: [8, x]}}\n",
        ["7:49: trial.data.test: got text 'x'"],
    ),
    "a space with a fault": ("space: {kind: gird, axes: {trial.data.test: [8]}}\n", ["7:15: space.kind: "]),
    "a search with a fault": ("space: {kind: tpe, pionts: 3}\n", ["7:8: space: key 'dials'", "7:20: space.pionts"]),
    "a goal with a fault": ("goals: [{score: accuracy}]\n", ["7:9: goals[0]: key 'direction' is missing"]),
}


@pytest.mark.parametrize("case", OF_A_SPACE)
def test_the_faults_of_a_study_and_of_its_trials_come_together(file: Path, case: str) -> None:
    rest, said = OF_A_SPACE[case]
    with pytest.raises(SpecError) as caught:
        read(file, rest, base=MANY)
    found = [str(f).removeprefix(f"{file}:") for f in caught.value.faults]  # the message is cut where it is long
    expected = ["1:1: nmae: ", "1:1: key 'name' is missing", *TRIALS, *said]
    assert len(found) == len(expected)
    assert all(line.startswith(beginning) for line, beginning in zip(found, expected, strict=True))


def test_what_a_space_with_a_fault_varies_is_not_looked_at(file: Path) -> None:
    base = "name: story\ntrial: {arch: mesa, training: {lr: fast, batch: many}}\n"
    axes = "{trial.task: [mqar], trial.training.lr: [1e-3]}"
    for space in (f"{{kind: gird, axes: {axes}}}", f"{{kind: grid, axis: {axes}}}"):
        found = faults(file, f"space: {space}\n", base=base)
        assert [line.split(": ")[1].partition(".")[0] for line in found] == ["trial", "space"]
        assert found[0].startswith("2:49: trial.training.batch: ")


def test_a_misspelled_uses_is_corrected_in_any_document(file: Path) -> None:
    arch = "name: own\nuse: [my_mixers.py]\nstack: [{kind: block, mixer: mesa}]\n"
    for text, read_it in (
        (f"{BASE}use: [my_mixers.py]\n", codec.read_study),
        (arch, codec.read_arch),
        ("kind: mqar\nuse: [my_tasks.py]\n", codec.read_task),
    ):
        file.write_text(text)
        with pytest.raises(SpecError, match=r"use: unknown key, expected .*, uses \(did you mean 'uses'\?\)"):
            read_it(str(file))
