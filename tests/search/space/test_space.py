"""The language of a search, story by story: what each dial may turn to, and where its author is told of a slip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recallmap.arch.mixers import Mixer
from recallmap.arch.stack import flatten
from recallmap.search import codec
from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import SpecError
from recallmap.search.space import word_patterns
from recallmap.search.space.corners import Given
from recallmap.search.space.parameters import IntDial, SequenceDial
from recallmap.search.space.search_space import Search
from recallmap.search.study.spec import StudySpec

BASE = """\
name: story
trial:
  task: {kind: mqar, vocab: 32, length: 16, pairs: 2}
  arch: {name: tiny, width: 16, stack: [{kind: block, mixer: {kind: attention, heads: 2}}]}
  training: {steps: 10, lr: 1e-3}
space:
  kind: random
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "story.yaml"


def read(file: Path, rest: str, *sets: str) -> StudySpec:
    file.write_text(BASE + rest)
    return codec.read_study(str(file), overrides=sets)


def faults(file: Path, rest: str, *sets: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(file, rest, *sets)
    return [line.removeprefix(f"{file}:") for line in str(caught.value).splitlines()]


def space_of(study: StudySpec) -> Search:
    assert isinstance(study.space, Search)
    return study.space


def trial(study: StudySpec, **choices: Any) -> Any:
    """The first trial of the point with these choices; a dial that is not given stands at its first end."""
    given = Given(choices)
    found = study.expanded(space_of(study).point(given))[0]
    assert not given.wrong
    return found


def test_a_choice_a_whole_number_and_a_number(file: Path) -> None:
    study = read(
        file,
        "  dials:\n"
        "    trial.training.schedule: {choice: [{kind: cosine}, {kind: linear, floor: 1e-4}]}\n"
        "    trial.arch.width: {int: [8, 32], step: 8}\n"
        "    trial.training.lr: {float: [1e-4, 1e-1], log: true}\n",
    )
    chosen = {"trial.training.schedule": "linear", "trial.arch.width": 24, "trial.training.lr": 0.02}
    spec = trial(study, **chosen)
    assert (spec.training.schedule.kind, spec.training.schedule.floor) == ("linear", 1e-4)
    assert (spec.arch.width, spec.training.lr) == (24, 0.02)
    assert space_of(study).names == tuple(chosen)


def test_a_mixer_brings_its_own_dials(file: Path) -> None:
    study = read(
        file,
        "  dials:\n"
        "    trial.arch.stack[0].mixer:\n"
        "      choice:\n"
        "        - {kind: attention, heads: 2, window: {choice: [null, 4]}}\n"
        "        - {kind: mesa, heads: {int: [1, 2]}, cg_steps: {int: [0, 30]}}\n",
    )
    at = "trial.arch.stack[0].mixer"
    assert space_of(study).names == (at, f"{at}.attention.window", f"{at}.mesa.heads", f"{at}.mesa.cg_steps")
    mesa = trial(study, **{at: "mesa", f"{at}.mesa.heads": 2, f"{at}.mesa.cg_steps": 7}).arch.stack[0].mixer
    assert (mesa.kind, mesa.heads, mesa.cg_steps) == ("mesa", 2, 7)
    assert trial(study, **{at: "attention", f"{at}.attention.window": 4}).arch.stack[0].mixer.window == 4
    corners = [choices for choices, _ in space_of(study).corners()]
    assert len(corners) == 2 + 2 * 2
    assert not any(f"{at}.mesa.heads" in choices for choices in corners if choices[at] == "attention")


def test_names_of_options_are_what_tells_them_apart(file: Path) -> None:
    dials = "  dials:\n    trial.arch.stack[0].mixer: {choice: [attention, {heads: 4}, {kind: gla}, {kind: gla, heads: 2}]}\n"
    ((_, options),) = _options(read(file, dials))
    assert options == ("attention", "{heads: 4}", "gla", "gla #2")


def _options(study: StudySpec) -> Iterator[tuple[str, tuple[Any, ...]]]:
    found: dict[str, tuple[Any, ...]] = {}

    class Watching(Given):
        def choice(self, name: str, options: tuple[Any, ...]) -> Any:
            found[name] = options
            return super().choice(name, options)

    space_of(study).point(Watching({}))
    yield from found.items()


SEQUENCE = """\
  dials:
    trial.arch.stack:
      sequence:
        a: {{kind: block, mixer: {{kind: attention, heads: {{choice: [1, 2]}}}}}}
        m: {{kind: block, mixer: {{kind: mesa, heads: 2}}}}
{limits}
"""


def words(study: StudySpec) -> set[str]:
    """All that the corners hold: every letter of a sequence is an end."""
    kinds = {"attention": "a", "mesa": "m"}
    points = [study.expanded(point)[0] for _, point in space_of(study).corners()]
    return {"".join(kinds[block.mixer.kind] for block in flatten(p.arch.stack)) for p in points}


@pytest.mark.parametrize(
    ("limits", "allowed"),
    [
        ("length: 2", {"aa", "am", "ma", "mm"}),
        ("length: [1, 2]", {"a", "m", "aa", "am", "ma", "mm"}),
        ("length: 4\n      repeat: 1", {"amam", "mama"}),
        ("length: 3\n      repeat: 2", {"aam", "ama", "amm", "maa", "mam", "mma"}),
        ("length: [2, 4]\n      pattern: (ma)+", {"ma", "mama"}),
        ("length: 3\n      pattern: '[^a]*a[^a]*'", {"amm", "mam", "mma"}),
        ("length: 4\n      repeat: 2\n      pattern: m.*", {"maam", "mama", "mamm", "mmaa", "mmam"}),
    ],
)
def test_an_order_of_blocks_is_a_word_within_its_limits(file: Path, limits: str, allowed: set[str]) -> None:
    if "(ma)+" in limits:  # there is no word of three letters
        (found,) = faults(file, SEQUENCE.format(limits="      " + limits))
        assert "length 3 leaves no word within pattern and repeat" in found
        limits = limits.replace("[2, 4]", "4")
        allowed = {"mama"}
    assert words(read(file, SEQUENCE.format(limits="      " + limits))) == allowed


def test_a_pattern_that_takes_exponential_time_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_patterns, "SECONDS", 0.5)
    (found,) = faults(file, SEQUENCE.format(limits="      length: 16\n      pattern: '((a|m)*)*x'"))
    assert "pattern takes more than 0.5 s on 65,536 words of at most 16 letters: a repeat within a repeat" in found


def test_the_word_is_in_the_name_of_the_architecture(file: Path) -> None:
    study = read(file, SEQUENCE.format(limits="      length: 2"))
    at = "trial.arch.stack"
    assert trial(study, **{f"{at}[0]": "m", f"{at}[1]": "a"}).arch.name == "tiny_ma"


def test_the_dials_of_a_letter_hold_wherever_it_stands(file: Path) -> None:
    study = read(file, SEQUENCE.format(limits="      length: 3"))
    at = "trial.arch.stack"
    spec = trial(study, **{f"{at}[0]": "a", f"{at}[1]": "m", f"{at}[2]": "a", f"{at}.a.mixer.heads": 2})
    assert [block.mixer.heads for block in spec.arch.stack] == [2, 2, 2]


def test_where_a_limit_forbids_letters_the_dial_is_another_one(file: Path) -> None:
    """The options of a dial never change: a proposer could not learn from one that does."""
    names = space_of(read(file, SEQUENCE.format(limits="      length: 3\n      repeat: 2"))).names
    assert {name for name in names if "[" in name} == {f"trial.arch.stack[{i}]" for i in range(3)}
    dial = SequenceDial(sequence=dict.fromkeys("abc"), length=3, repeat=1)  # type: ignore[arg-type]
    assert dial.nexts("a", 3) == ("b", "c")


def test_a_dial_stands_anywhere_within_a_document(file: Path) -> None:
    study = read(file, "  dials: {trial: {training: {lr: {float: [0.1, 0.2]}}, task: {pairs: {choice: [1, 2]}}}}\n")
    spec = trial(study, **{"trial.training.lr": 0.15, "trial.task.pairs": 2})
    assert (spec.training.lr, spec.task.pairs, spec.task.vocab) == (0.15, 2, 32)


def test_a_point_is_trained_over_tasks_and_seeds(file: Path) -> None:
    over = "  over: {trial: [{task: {pairs: 1}}, {task: memorization}], trial.seed: [0, 3]}\n"
    study = read(file, "  dials: {trial.training.lr: {float: [0.1, 0.2]}}\n" + over)
    trials = study.expanded(space_of(study).point(Given({})))
    assert [(t.task.kind, t.seed) for t in trials] == [
        ("mqar", 0),
        ("mqar", 3),
        ("memorization", 0),
        ("memorization", 3),
    ]
    assert study.most_trials == 64 * 4


def test_every_mixer_can_be_meant_at_once(file: Path) -> None:
    kinds = sorted(type_hints.kinds_of(Mixer))
    dials = "  dials:\n    trial.arch.stack[0].mixer: {choice: [{every: mixer}]}\n"
    ((_, options),) = _options(read(file, dials))
    assert options == tuple(kinds)
    axis = '[{every: mixer, as: {name: "*", stack: [{kind: block, mixer: "*"}]}}]'
    grid = f"space:\n  kind: grid\n  axes:\n    trial.arch: {axis}\n"
    file.write_text(BASE.partition("space:")[0] + grid)
    trials = codec.read_study(str(file)).trials()
    assert [t.arch.name for t in trials] == [t.arch.stack[0].mixer.kind for t in trials] == kinds  # type: ignore[union-attr]


def test_of_every_mixer_some_may_be_meant_and_dials_reach_those_that_have_them(file: Path) -> None:
    def mixers(which: str) -> dict[str, Any]:
        axis = f'[{{{which}, as: {{name: "of_*", stack: [{{kind: block, mixer: {{kind: "*"}}}}]}}}}]'
        file.write_text(BASE.partition("space:")[0] + f"space:\n  kind: grid\n  axes:\n    trial.arch: {axis}\n")
        return {t.arch.name: t.arch.stack[0].mixer for t in codec.read_study(str(file)).trials()}  # type: ignore[union-attr]

    kinds = type_hints.kinds_of(Mixer)
    found = mixers("every: mixer, having: {heads: 2, rope: false}")
    assert set(found) == {f"of_{kind}" for kind in kinds}
    assert (found["of_attention"].heads, found["of_attention"].rope, found["of_gla"].heads) == (2, False, 2)
    assert found["of_hawk"] == kinds["hawk"]()
    assert set(found) - set(mixers("every: mixer, but: [hawk, gla]")) == {"of_hawk", "of_gla"}
    assert list(mixers("every: [mesa, gla]")) == ["of_mesa", "of_gla"]
    for wrong, said in (
        ("every: [mesa, hawkk]", r'no mixer "hawkk" \(did you mean \'hawk\'\?\)'),
        ("every: [{kind: gla}]", 'no mixer {"kind": "gla"}'),
        ("every: []", "no mixer is left, expected at least one"),
        ("every: mixer, but: hawk", r'got "hawk", expected a list of mixers'),
        ("every: mixer, having: {haeds: 2}", "no mixer has a parameter 'haeds'"),
        ("every: mixer, having: [2]", r"got \[2\], expected parameters of mixers"),
        ("every: mixer, haveing: {}", "unknown key 'haveing', expected every, but, as, having"),
    ):
        with pytest.raises(SpecError, match=said):
            mixers(wrong)


def test_a_budget_and_the_command_line_reach_into_a_search(file: Path) -> None:
    rest = (
        "  dials: {trial.training.lr: {float: [0.1, 0.2]}}\n  over: {trial.seed: [0, 1]}\n"
        "budgets: {smoke: {space.points: 3, space.over.trial.seed: [7]}}\nbudget: smoke\n"
    )
    study = read(file, rest, "space.kind=tpe", "space.dials.trial.training.lr={float: [0.3, 0.4]}")
    assert (space_of(study).sampler.kind, space_of(study).points, len(space_of(study).each)) == ("tpe", 3, 1)
    assert trial(study).training.lr == 0.3
    (found,) = faults(file, rest, "trial.training.lr=0.2")
    assert found.endswith("lost: say instead --set 'space.dials.trial.training.lr.float=[0.2, 0.2]'")


def test_a_search_survives_being_written_and_read(file: Path) -> None:
    study = read(file, SEQUENCE.format(limits="      length: 2") + "  first: [{'trial.arch.stack[0]': m}]\n")
    again = codec.read_study(codec.plain(study))
    assert again == study
    assert again.address("random") == study.address("random")


def test_what_is_asked_names_the_search_and_how_long_or_beside_what_does_not(file: Path) -> None:
    dials = "  dials: {trial.training.lr: {float: [0.1, 0.2]}}\n"
    address = read(file, dials).address("random")
    assert read(file, dials + "  points: 5\n  beside: [tpe]\n  anchors: [mesa]\n").address("random") == address
    for other in ("  seed: 1\n", "  generation: 3\n", "goals: [{score: loss, direction: minimise}]\n"):
        assert read(file, dials + other).address("random") != address


def test_corners_are_a_sample_where_they_are_many_and_every_end_of_every_dial_comes(file: Path) -> None:
    dials = "".join(
        f"    trial.training.{name}: {{float: [0.1, 0.2]}}\n" for name in ("lr", "weight_decay", "clip", "eps")
    )
    dials += "    trial.arch.width: {int: [8, 64], step: 8}\n    trial.seed: {int: [0, 9]}\n"
    dials += "    trial.data.test: {int: [8, 9]}\n    trial.data.validation: {int: [8, 9]}\n"
    dials += "    trial.training.batch: {choice: [1, 2, 3]}\n"
    corners = list(space_of(read(file, "  dials:\n" + dials)).corners())
    assert len(corners) == 200 < 2**8 * 3
    for name, ends in {"trial.arch.width": {8, 64}, "trial.training.batch": {1, 2, 3}, "trial.seed": {0, 9}}.items():
        assert {choices[name] for choices, _ in corners} == ends


LR = "    trial.training.lr: {float: [1e-3, 1e-2]}\n"
FAULTS = {
    "no dials": ("  dials: {}\n", ["8:10: space.dials: expected a mapping of at least one parameter by path"]),
    "a dial outside the trial": (
        "  dials:\n    training.lr: {float: [0.1, 0.2]}\n",
        [
            "9:5: space.dials.training.lr: a parameter is a path that begins with trial (did you mean 'trial.training.lr'?)"
        ],
    ),
    "a value that does not vary": (
        "  dials:\n    trial.training.lr: 0.1\n",
        ["9:24: space.dials.trial.training.lr: nothing varies here, expected {choice: ...}, {int: ...}"],
    ),
    "slips in dials, all at once": (
        "  dials:\n    trial.training.lr: {float: [0.2, 0.1]}\n    trial.arch.width: {int: [8, 20], step: 8}\n"
        "    trial.training.batch: {int: [0, 8], log: true}\n    trial.seed: {int: [0, 1.5]}\n"
        "    trial.data.test: {choice: []}\n    trial.data.validation: {int: [8, 9], stp: 1}\n",
        [
            "9:32: space.dials.trial.training.lr.float: float must be [low, high] with low at most high, got [0.2, 0.1]",
            "10:44: space.dials.trial.arch.width.step: step 8 does not lead from 8 to 20",
            "11:33: space.dials.trial.training.batch.int: int must be positive where log is true, got [0, 8]",
            "12:27: space.dials.trial.seed.int[1]: got the number 1.5, expected a whole number",
            "13:31: space.dials.trial.data.test.choice: expected a list of at least one option",
            "14:42: space.dials.trial.data.validation.stp: unknown key, expected int, step, log (did you mean 'step'?)",
        ],
    ),
    "a dial within an option": (
        "  dials:\n    trial.arch.stack[0].mixer: {choice: [{kind: mesa, heads: {int: [2]}}]}\n",
        ["9:68: space.dials.trial.arch.stack[0].mixer[0].heads.int: got a list of 1, expected a list of 2"],
    ),
    "an option that cannot be built": (
        "  dials:\n    trial.arch.stack[0].mixer: {choice: [{kind: attention, heads: 3}, mesa]}\n",
        ["9:42: trial.arch: block 0 (attention): "],
    ),
    "a corner that cannot be built": (
        "  dials:\n    trial.arch.width: {int: [16, 36], step: 20}\n    trial.arch.stack[0].mixer.heads: {choice: [2, 8]}\n",
        ["10:38: trial.arch: block 0 (attention): "],
    ),
    "no word": (
        "  dials:\n    trial.arch.stack: {sequence: {a: mesa}, length: 2, repeat: 1}\n",
        ["9:53: space.dials.trial.arch.stack.length: length 2 leaves no word within pattern and repeat"],
    ),
    "a pattern that is none": (
        "  dials:\n    trial.arch.stack: {sequence: {a: mesa}, length: 2, pattern: '(a'}\n",
        ["9:65: space.dials.trial.arch.stack.pattern: pattern is no regular expression: missing )"],
    ),
    "too many words for a pattern": (
        "  dials:\n    trial.arch.stack: {sequence: {a: mesa, b: gla}, length: 20, pattern: 'a.*'}\n",
        ["9:74: space.dials.trial.arch.stack.pattern: pattern would be tried on 2^20 words, expected at most 100,000"],
    ),
    "points to try first that are none": (
        "  dials:\n" + LR + "  first: [{trial.training.lr: 1}, {trial.training.lrr: 1e-3}]\n",
        [
            "10:31: space.first[0].trial.training.lr: got 1, expected a number from 0.001 to 0.01",
            "10:36: space.first[1].trial.training.lrr: no parameter 'trial.training.lrr', expected trial.training.lr (did you",
        ],
    ),
    "a point to try first that says nothing": (
        "  dials:\n    trial.training.clip: {choice: [0.5, 1.0]}\n  first: [{trial.training.clip: null}]\n",
        ["10:33: space.first[0].trial.training.clip: got None, expected 0.5 or 1.0"],
    ),
    "an exclusion of nothing": (
        "  dials:\n" + LR + "  exclude: [{trial.lr: 1}, {trial.training.lr: {from: 1}}]\n",
        [
            "10:14: space.exclude[0].trial.lr: no parameter 'trial.lr'",
            "10:48: space.exclude[1].trial.training.lr: expected a value",
        ],
    ),
    "an exclusion by what is no number": (
        "  dials:\n" + LR + "  exclude: [{trial.training.lr: {least: '1e-3', most: null}}]\n",
        [
            "10:41: space.exclude[0].trial.training.lr.least: expected a number, got 1e-3",
            "10:55: space.exclude[0].trial.training.lr.most: expected a number",
        ],
    ),
    "an exclusion of everything": (
        "  dials:\n" + LR + "  exclude: [{trial.training.lr: {least: 0}}]\n",
        ["10:13: space.exclude: forbids every corner of the space"],
    ),
    "an anchor that is none": (
        "  dials:\n" + LR + "  anchors: [mesaa, {arch: mesa}]\n",
        ["10:21: space.anchors[1].arch: a patch is a path that begins with trial (did you mean 'trial.arch'?)"],
    ),
    "an anchor that is not in the zoo": (
        "  dials:\n" + LR + "  anchors: [mesaa]\n",
        ["10:13: trial.arch: 'mesaa': no built-in arch and no file"],
    ),
    "a sampler twice": (
        "  dials:\n" + LR + "  beside: [random]\n",
        ["10:11: space.beside: beside must list other samplers, each once, got random, random"],
    ),
    "no such sampler": (
        "  dials:\n" + LR + "  beside: [cmaes]\n",
        [
            "10:12: space.beside[0]: unknown kind 'cmaes', expected 'random', 'tpe', 'nsga2', 'nsga3', 'gp' or 'evolution'"
        ],
    ),
    "pairs of one": (
        "  dials:\n" + LR + "  beside: [nsga2]\n  generation: 1\n",
        ["11:15: space.generation: generation must be at least 2 for nsga2, got 1"],
    ),
    "a seed among what it is trained over": (
        "  dials:\n" + LR + "  over: {seed: [1]}\n",
        ["10:10: space.over.seed: an axis is a path that begins with trial (did you mean 'trial.seed'?)"],
    ),
    "asha with two goals": (
        "  dials:\n" + LR + "  rungs: {kind: asha, values: [1]}\n",
        ["7:3: space: space has rungs of kind asha and 2 goals: asha ranks points by one figure as they come"],
    ),
    "rungs that fall": (
        "  dials:\n" + LR + "  rungs: {values: [4, 2]}\n",
        ["10:19: space.rungs.values: values must be whole numbers that rise from 1 or more, got [4, 2]"],
    ),
    "a rung above the whole budget": (
        "  dials:\n" + LR + "  rungs: {values: [4, 10]}\n",
        ["3:3: space.rungs.values: rung 10 takes 10 steps and the whole budget 10: a rung must be cheaper"],
    ),
    "a goal timed beside others": (
        "  dials:\n" + LR + "goals: [{score: seconds, direction: minimise}]\n",
        [
            "10:17: goals[0].score: score seconds is timed while other trials train, so it says nothing of one; use "
            "milliseconds"
        ],
    ),
    "a goal on another task": (
        "  dials:\n" + LR + "goals: [{score: accuracy, task: mqra, direction: maximise}]\n",
        ["10:33: goals[0].task: no trial is on the task 'mqra', expected mqar (did you mean 'mqar'?)"],
    ),
    "a goal that the task does not score": (
        "  dials:\n"
        + LR
        + "goals:\n  - {score: acuracy, direction: maximise}\n  - {score: tvd, direction: minimise}\n",
        [
            "11:13: goals[0].score: mqar has no score 'acuracy', expected accuracy, macro_accuracy, exact_match, loss, "
            "parameters, state_bytes, state_floats, flops_per_token or milliseconds (did you mean 'accuracy'?)",
            "12:13: goals[1].score: mqar has no score 'tvd'",
        ],
    ),
    "every what": (
        "  dials:\n    trial.arch.stack[0].mixer: {choice: [{every: mixr}]}\n",
        ["9:50: space.dials.trial.arch.stack[0].mixer: got \"mixr\", expected 'mixer', or a list of mixers"],
    ),
}


def test_goals_that_nobody_said_are_checked_too(file: Path) -> None:
    task = "trial.task={kind: learnability, width: 16, length: 8}"
    said = "1:1: goals[0].score: learnability has no score 'accuracy', expected explained, relative_error, loss, "
    (line,) = faults(file, "  dials:\n" + LR, task)
    assert line.startswith(said)
    goals = "goals=[{score: explained/position=1-2, direction: maximise}, {score: milliseconds, direction: minimise}]"
    assert len(read(file, "  dials:\n" + LR, task, goals).goals) == 2, "parts of a score pass by its name"


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_placed_where_it_was_written(file: Path, case: str) -> None:
    rest, said = FAULTS[case]
    found = faults(file, rest)
    assert len(found) == len(said), found
    for line, beginning in zip(found, said, strict=True):
        assert line.startswith(beginning)


def test_what_corners_that_cannot_be_built_have_in_common_is_said(file: Path) -> None:
    (found,) = faults(file, FAULTS["a corner that cannot be built"][0])
    assert "(at the corner trial.arch.width=36, trial.arch.stack[0].mixer.heads=8;" in found
    rule = "  exclude: [{trial.arch.width: 36, 'trial.arch.stack[0].mixer.heads': 8}]\n"
    read(file, FAULTS["a corner that cannot be built"][0] + rule)


def test_a_whole_number_dial_reaches_both_ends() -> None:
    assert IntDial(int=(2, 8), step=3).int == (2, 8)
    with pytest.raises(ValueError, match="step must be 1 where log is true"):
        IntDial(int=(2, 8), step=3, log=True)
