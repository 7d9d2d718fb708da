"""Kinds from outside, as a user meets them: one file in an empty folder, from check to table."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import recallmap as rm
from recallmap.arch.mixers import Mixer
from recallmap.arch.mixers.linear_attention import LinearAttention
from recallmap.results.ledger import Ledger
from recallmap.results.page.figure_data import figures
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.documents import outside, type_hints
from recallmap.search.documents.nodes import Place, SpecError
from recallmap.search.proposers.search_results import Candidate, Findings, shares_on_front
from recallmap.search.training.run_cohort import failed

MIXERS = '''
from dataclasses import dataclass
from typing import Literal

from torch import nn

from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, StateSize

@dataclass(frozen=True, kw_only=True)
class Shift(MixerSpec):
    """Adds the token before."""

    kind: Literal["shift"] = "shift"
    gain: float = 0.5

    def __post_init__(self):
        if self.gain <= 0:
            raise ValueError(f"gain must be positive, got {self.gain}")

    def check(self, width): ...

    def build(self, width):
        return _Shift(self, width)

    def state_size(self, width, length):
        return StateSize(width)

    def flops(self, width, length):
        return 2.0 * width * width + 2 * width

class _Shift(MixerModule):
    def __init__(self, spec, width):
        super().__init__()
        self.gain, self.out = spec.gain, nn.Linear(width, width)

    def mix(self, x_BTD, state, return_state):
        import torch

        before = torch.zeros_like(x_BTD[:, :1]) if state is None else state
        return self.out(x_BTD + self.gain * torch.cat([before, x_BTD[:, :-1]], 1)), x_BTD[:, -1:]
'''

ARCH = """
uses: [my_mixers.py]
name: mine
width: 8
stack: [{kind: block, mixer: {kind: shift, gain: 0.25}}]
"""

STUDY = """
name: story
trial:
  task: {kind: parity, length: 8}
  arch: mine.yaml
  training: {steps: 2, batch: 4, evaluations: 1}
  data: {validation: 8, test: 8}
space: {kind: grid, axes: {trial.seed: [0, 1]}}
"""

MINE = {"name": "mine", "width": 8, "stack": [{"kind": "block", "mixer": {"kind": "shift"}}]}

TASK = '''
from dataclasses import dataclass
from typing import Literal

from recallmap.synth.tasks.parity import Parity

@dataclass(frozen=True, kw_only=True)
class Odd(Parity):
    """Parity under another name."""

    kind: Literal["odd"] = "odd"
'''

SAMPLER = '''
from dataclasses import dataclass
from typing import Any, Literal

from recallmap.search.samplers.sampler import SamplerSpec, parameter

@dataclass(frozen=True, kw_only=True)
class Dice(SamplerSpec):
    """Random points."""

    kind: Literal["dice"] = "dice"
    sides: int = parameter(6)
    source = "none"

    def build(self, seed: int, generation: int) -> Any:
        import optuna

        return optuna.samplers.RandomSampler(seed=seed)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with a file of mixers, an architecture and a study; what is loaded is forgotten at the end."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("my_mixers.py", MIXERS), ("mine.yaml", ARCH), ("story.yaml", STUDY)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    yield tmp_path
    outside.forget()


def recallmap(*words: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": None}).invoke(app, list(words))  # as into a file, whatever the terminal
    assert result.exit_code == code, f"{result.output}{result.exception!r}"
    return result.output


def refused(*words: str) -> str:
    return recallmap(*words, code=2)


# The whole way. -----------------------------------------------------------------------------------


def test_a_mixer_of_one_file_goes_from_check_to_table() -> None:
    checked = recallmap("check", "story.yaml")
    assert checked.startswith("ok: study story: 2 trials")
    assert "executed my_mixers.py+" in checked
    assert "mixer shift" in checked
    assert "mine: width 8, shift" in recallmap("cost", "mine.yaml")
    assert "2 done, 0 failed" in recallmap("run", "story.yaml", "--device", "cpu")
    table = recallmap("table", "story.yaml")
    assert "| mine | 32 B |" in table
    assert "my_mixers.py+" in table
    assert "2 known, 0 done" in recallmap("run", "story.yaml", "--device", "cpu")


def test_the_command_line_names_code_for_any_verb(folder: Path) -> None:
    (folder / "mine.yaml").write_text(ARCH.replace("uses: [my_mixers.py]\n", ""), encoding="utf-8")
    assert "unknown kind 'shift'" in refused("check", "mine.yaml")
    assert "mixer shift" in recallmap("check", "mine.yaml", "--use", "my_mixers.py")
    assert "shift" in recallmap("cost", "mine.yaml", "--use", "my_mixers.py")
    assert "shift" in recallmap("list", "mixers", "--use", "my_mixers.py").splitlines()
    assert "shift" not in recallmap("list", "mixers").splitlines()
    schema = json.loads(recallmap("check", "--schema", "arch", "--use", "my_mixers.py"))
    assert set(schema["$defs"]["Shift"]["properties"]) == {"kind", "gain", "code"}
    assert schema["$defs"]["BackboneSpec"]["properties"]["uses"]["items"] == {"type": "string"}
    assert "uses" in json.loads(recallmap("check", "--schema", "study"))["$defs"]["StudySpec"]["properties"]
    done = recallmap("run", "story.yaml", "--use", "my_mixers.py", "--device", "cpu")
    assert "next: recallmap table story.yaml --use my_mixers.py" in done


def test_every_mixer_of_a_space_includes_those_from_outside() -> None:
    base = {"task": {"kind": "parity", "length": 8}, "training": {"steps": 1}}
    every = {"every": ["shift", "mesa"], "as": {"name": "*", "width": 8, "stack": [{"kind": "block", "mixer": "*"}]}}
    study = {
        "name": "both",
        "uses": ["my_mixers.py"],
        "trial": base,
        "space": {"kind": "grid", "axes": {"trial.arch": [every]}},
    }
    assert [trial.arch.name for trial in codec.read_study(study).trials()] == ["shift", "mesa"]


def test_results_of_changed_code_are_other_records_and_other_rows(folder: Path) -> None:
    recallmap("run", "story.yaml", "--device", "cpu")
    (folder / "my_mixers.py").write_text(MIXERS.replace("x_BTD + self.gain", "x_BTD - self.gain"), encoding="utf-8")
    assert "0 known, 2 done" in recallmap("run", "story.yaml", "--device", "cpu")
    with Ledger(folder / "runs/story.sqlite") as ledger:
        assert len(ledger.keys()) == 4
        codes = {record.spec["arch"]["stack"][0]["mixer"]["code"] for record in ledger.all()}
    assert len(codes) == 2
    table = recallmap("table", "runs/story.sqlite")
    assert all(f"mine code={code}" in table.replace("<!-- -->", "") for code in codes)


def test_a_file_beside_it_that_it_imports_is_part_of_its_code(folder: Path) -> None:
    (folder / "my_gains.py").write_text("GAIN = 0.5\n", encoding="utf-8")
    (folder / "unrelated.py").write_text("raise RuntimeError\n", encoding="utf-8")
    (folder / "my_mixers.py").write_text(
        f"from my_gains import GAIN\n{MIXERS}".replace("0.5", "GAIN"), encoding="utf-8"
    )
    first = codec.read_arch(folder / "mine.yaml")
    (folder / "my_gains.py").write_text("GAIN = 0.75\n", encoding="utf-8")
    second = codec.read_arch(folder / "mine.yaml")
    assert codec.key(first) != codec.key(second)
    assert type(second.stack[0].mixer)().gain == 0.75  # type: ignore[union-attr]


def test_a_record_is_shown_without_its_code(folder: Path) -> None:
    recallmap("run", "story.yaml", "--device", "cpu")
    (folder / "my_mixers.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    assert "my_mixers.py+" in recallmap("table", "runs/story.sqlite")
    recallmap("dashboard", "runs/story.sqlite", "-o", "page.html")
    page = (folder / "page.html").read_text(encoding="utf-8")
    assert "unknown kind" in page
    assert "my_mixers.py+" in page
    recallmap("export", "runs/story.sqlite", "-o", "rows.csv")
    recallmap("merge", "runs/story.sqlite", "-o", "lines.jsonl")
    assert not [name for name in sys.modules if "my_mixers" in name]


def test_plain_data_never_leads_to_execution(folder: Path) -> None:
    from recallmap.arch.backbone import BackboneSpec
    from recallmap.search.trial import TrialSpec

    data = {"uses": ["my_mixers.py"], "name": "a", "stack": [{"kind": "block", "mixer": "mesa"}]}
    with pytest.raises(SpecError, match="uses: unknown key"):
        codec.from_plain(BackboneSpec, data)
    trial = {"task": {"kind": "parity"}, "arch": str(folder / "mine.yaml"), "training": {"steps": 1}}
    with pytest.raises(SpecError, match=r"unknown key|unknown kind"):
        codec.from_plain(TrialSpec, trial)
    assert outside.loaded() == ()


def test_data_of_other_code_is_not_read_as_if_it_were_of_this(folder: Path) -> None:
    arch = codec.read_arch(folder / "mine.yaml")
    data = codec.plain(arch)
    assert codec.key(codec.from_plain(type(arch), data)) == codec.key(arch)
    data["stack"][0]["mixer"]["code"] = "my_mixers.py+000000000000"
    with pytest.raises(SpecError, match="the code has changed since; leave code out"):
        codec.from_plain(type(arch), data)


@pytest.mark.parametrize("family", outside.FAMILIES, ids=lambda family: family.noun)
def test_a_spec_from_outside_is_its_class_with_one_more_field(family: outside.Family, folder: Path) -> None:
    """Tried on all of ours, as if their classes came from a file."""
    union = outside._union(family)
    for kind, spec in type_hints.kinds_of(union).items():
        if type_hints.needed(spec):
            continue
        mine, coded = (
            type_hints.read(spec, type_hints.node_of({"kind": kind}, Place(""))),
            outside._with_code(spec, "x+1"),
        )
        own = type_hints.read(coded, type_hints.node_of({"kind": kind}, Place("")))
        assert isinstance(own, spec)
        assert codec.plain(own) == {**codec.plain(mine), "code": "x+1"}
        assert type_hints.read(coded, type_hints.node_of(codec.plain(own), Place(""))) == own
        assert type_hints.names_of(coded, kind) == (*type_hints.names_of(spec, kind), "code")
        assert codec.canonical(mine) == codec.canonical(
            type_hints.read(union, type_hints.node_of({"kind": kind}, Place("")))
        )


def test_nothing_from_outside_changes_our_own_kinds(folder: Path) -> None:
    before = codec.canonical(LinearAttention()), list(type_hints.kinds_of(Mixer)), codec.key(codec.read_arch("mesa"))
    outside.use(["my_mixers.py"])
    assert list(type_hints.kinds_of(Mixer)) == [*before[1], "shift"]
    assert type_hints.kinds_of(Mixer | None) == type_hints.kinds_of(Mixer)
    assert (codec.canonical(LinearAttention()), codec.key(codec.read_arch("mesa"))) == (before[0], before[2])
    outside.forget()
    assert list(type_hints.kinds_of(Mixer)) == before[1]


# Other families. ----------------------------------------------------------------------------------


def test_a_task_from_outside_is_previewed_and_its_setting_says_its_code(folder: Path) -> None:
    (folder / "my_tasks.py").write_text(TASK, encoding="utf-8")
    assert recallmap("preview", "odd", "length=8", "--use", "my_tasks.py")
    assert "odd" in recallmap("list", "tasks", "--use", "my_tasks.py")
    run = ("run", "story.yaml", "--use", "my_tasks.py", "--set", "trial.task={kind: odd, length: 8}", "--device", "cpu")
    assert "2 done" in recallmap(*run)
    with Ledger(folder / "runs/story.sqlite") as ledger:
        assert {record.setting.partition("+")[0] for record in ledger.all()} == {"length=8 code=my_tasks.py"}


def test_a_sampler_from_outside_proposes_points(folder: Path) -> None:
    (folder / "my_samplers.py").write_text(SAMPLER, encoding="utf-8")
    study = STUDY.replace(
        "{kind: grid, axes: {trial.seed: [0, 1]}}",
        "{kind: dice, sides: 8, points: 2, generation: 1, dials: {trial.training.lr: {float: [1e-4, 1e-2], log: true}}}",
    )
    (folder / "search.yaml").write_text(f"uses: [my_samplers.py]\n{study}", encoding="utf-8")
    assert "2 points by dice(sides=8)" in recallmap("check", "search.yaml")
    assert "dice" in recallmap("list", "samplers", "--use", "my_samplers.py")


def test_the_address_of_a_search_depends_on_the_code_of_what_it_searches(folder: Path) -> None:
    space = {"kind": "random", "points": 2, "dials": {"trial.training.lr": {"float": [1e-4, 1e-2]}}}
    trial = {"task": {"kind": "parity", "length": 8}, "arch": "mine.yaml", "training": {"steps": 1}}
    study = {"name": "s", "trial": trial, "space": space}
    before = codec.read_study(study).address("random")
    assert codec.read_study(study).address("random") == before
    (folder / "my_mixers.py").write_text(f"{MIXERS}\n# changed\n", encoding="utf-8")
    assert codec.read_study(study).address("random") != before


# Installed packages. ------------------------------------------------------------------------------


@pytest.fixture
def package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`some_package` 1.2, installed, with a mixer that an entry point names."""
    site = folder / "site"
    (site / "some_package").mkdir(parents=True)
    (site / "some_package/__init__.py").write_text("", encoding="utf-8")
    (site / "some_package/mixers.py").write_text(MIXERS, encoding="utf-8")
    info = site / "some_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-package\nVersion: 1.2\n", encoding="utf-8")
    (info / "top_level.txt").write_text("some_package\n", encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    for name in ("some_package", "some_package.mixers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return info


def test_a_module_of_an_installed_package_is_known_by_its_version(package: Path, folder: Path) -> None:
    (folder / "mine.yaml").write_text(ARCH.replace("my_mixers.py", "some_package.mixers"), encoding="utf-8")
    assert "executed some-package==1.2: mixer shift" in recallmap("check", "mine.yaml")
    data = codec.plain(codec.read_arch(folder / "mine.yaml"))
    assert data["stack"][0]["mixer"]["code"] == "some-package==1.2"


def test_a_package_that_is_installed_from_a_checkout_is_known_by_its_source(package: Path, folder: Path) -> None:
    (package / "direct_url.json").write_text('{"url": "file:///a", "dir_info": {"editable": true}}', encoding="utf-8")
    outside.use(["some_package.mixers"])
    (one,) = outside.loaded()
    assert one.source.code.startswith("some_package.mixers+")


def test_a_module_has_more_kinds_than_an_entry_point_names(package: Path, folder: Path) -> None:
    text = MIXERS.replace("class Shift(", "class Shove(").replace('"shift"', '"shove"')
    (package.parent / "some_package/mixers.py").write_text(MIXERS + text, encoding="utf-8")
    (package / "entry_points.txt").write_text(
        "[recallmap.mixers]\nshift = some_package.mixers:Shift\n", encoding="utf-8"
    )
    (folder / "mine.yaml").write_text(
        ARCH.replace("my_mixers.py", "some_package.mixers").replace("kind: shift, ", "kind: shove, ")
    )
    assert "mixer shift, mixer shove" in recallmap("check", "mine.yaml")


def test_an_installed_package_offers_its_kinds_by_entry_points(package: Path, folder: Path) -> None:
    (package / "entry_points.txt").write_text(
        "[recallmap.mixers]\nshift = some_package.mixers:Shift\nlost = some_package.mixers:Lost\n", encoding="utf-8"
    )
    (folder / "mine.yaml").write_text(ARCH.replace("uses: [my_mixers.py]\n", ""), encoding="utf-8")
    checked = recallmap("check", "mine.yaml")
    assert "executed some-package==1.2: mixer shift" in checked
    assert "recallmap.mixers: lost is left out: some_package.mixers:Lost of some-package==1.2 is neither" in checked
    assert "shift" in recallmap("list", "mixers")
    recallmap("run", "story.yaml", "--device", "cpu")
    sys.modules.pop("some_package.mixers")
    recallmap("table", "runs/story.sqlite")
    assert "some_package.mixers" not in sys.modules


# Faults. ------------------------------------------------------------------------------------------


def test_a_slip_in_an_option_is_told_as_for_our_own_kinds(folder: Path) -> None:
    (folder / "mine.yaml").write_text(ARCH.replace("gain: 0.25", "gian: 0.25"), encoding="utf-8")
    assert "stack[0].mixer.gian: unknown key, expected gain, code (did you mean 'gain'?)" in refused(
        "check", "mine.yaml"
    )
    (folder / "mine.yaml").write_text(ARCH.replace("0.25", "two"), encoding="utf-8")
    assert "mine.yaml:5:50: stack[0].mixer.gain: got text 'two', expected a number" in refused("check", "mine.yaml")
    (folder / "mine.yaml").write_text(ARCH.replace("0.25", "0"), encoding="utf-8")
    assert "stack[0].mixer.gain: gain must be positive, got 0" in refused("check", "mine.yaml")
    (folder / "mine.yaml").write_text(ARCH.replace("kind: shift", "kind: shfit"), encoding="utf-8")
    assert "(did you mean 'shift'?)" in refused("check", "mine.yaml")


def test_files_and_modules_that_are_not_there_are_told_at_their_places_all_at_once(folder: Path) -> None:
    (folder / "mine.yaml").write_text(ARCH.replace("my_mixers.py", "my_mixer.py, no.where, 'a b'"), encoding="utf-8")
    said = refused("check", "mine.yaml")
    assert "mine.yaml:2:8: uses[0]: my_mixer.py: no such file (did you mean 'my_mixers.py'?)" in said
    assert "uses[1]: no.where: no such module" in said
    assert "uses[2]: a b: expected a Python file such as my_mixers.py" in said
    (folder / "mine.yaml").write_text(ARCH.replace("my_mixers.py", "my_mixers"), encoding="utf-8")
    assert "no such module (did you mean 'my_mixers.py'?)" in refused("check", "mine.yaml")
    (folder / "mine.yaml").write_text(ARCH.replace("[my_mixers.py]", "my_mixers.py"), encoding="utf-8")
    assert "uses: got 'my_mixers.py', expected a list of files and modules" in refused("check", "mine.yaml")


def test_code_that_does_not_import_is_told_by_the_users_own_lines(folder: Path) -> None:
    (folder / "deep.py").write_text("def f():\n    import json\n    json.loads('{')\n\nf()\n", encoding="utf-8")
    (folder / "outer.py").write_text("import deep\n", encoding="utf-8")
    said = refused("check", "mine.yaml", "--use", "outer.py")
    assert "--use: outer.py: cannot be imported: JSONDecodeError: " in said
    assert "in deep.py:3: json.loads('{'), called by deep.py:5: f(), called by outer.py:1: import deep" in said
    assert "json/decoder.py" not in said
    (folder / "outer.py").write_text("x = 1\ny = (\n", encoding="utf-8")
    assert "SyntaxError: '(' was never closed in outer.py:2: y = (" in refused(
        "check", "mine.yaml", "--use", "outer.py"
    )
    (folder / "outer.py").write_text("import sys\nsys.exit(3)\n", encoding="utf-8")
    assert "SystemExit: 3 in outer.py:2: sys.exit(3)" in refused("check", "mine.yaml", "--use", "outer.py")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("Shift(MixerSpec)", "Shift"),
            "defines nothing that recallmap can use, expected a frozen dataclass that is a ",
        ),
        (
            ('Literal["shift"] = "shift"', 'Literal["mesa"] = "mesa"'),
            "kind 'mesa' exists already of recallmap",
        ),
        (
            ('Literal["shift"]', "str"),
            'kind must be a Literal, the name in YAML, such as kind: Literal["shift"]',
        ),
        (("    def flops(", "    def flop("), "lacks flops, which every MixerSpec has"),
        (("gain: float", "gain: Gain"), "its type hints cannot be read: NameError: name 'Gain'"),
        (("gain: float = 0.5", "code: float = 0.5"), "its field 'code' is taken"),
        (
            ("@dataclass(frozen=True, kw_only=True)", ""),
            "expected @dataclass(frozen=True, kw_only=True) above",
        ),
    ],
    ids=["no spec", "ours", "no literal", "abstract", "hint", "taken", "undecorated"],
)
def test_a_class_that_is_no_spec_is_told_with_a_remedy(change: tuple[str, str], said: str, folder: Path) -> None:
    text = "from __future__ import annotations\n" + MIXERS.replace("(MixerModule)", "(object)").replace(*change)
    (folder / "my_mixers.py").write_text(text, encoding="utf-8")
    told = refused("check", "mine.yaml")
    assert said in told
    assert ("class Shift in line" in told) == ("defines nothing" not in said)
    assert outside.loaded() == ()


def test_of_every_family_it_is_said_how_a_kind_of_ones_own_is_named() -> None:
    for family in outside.FAMILIES:
        with pytest.raises(SpecError, match=r", or one of your own, by --use FILE or uses: \[FILE\]$"):
            type_hints.read(outside._union(family), type_hints.node_of("zzzzzz", Place("mine")))
    with pytest.raises(SpecError, match=r"space.kind: unknown kind 'zzzzzz', .*, or one of your own, by --use FILE"):
        codec.read_study(codec.parse(STUDY.encode(), "story").plain() | {"space": {"kind": "zzzzzz"}})


def test_two_files_may_not_define_one_kind(folder: Path) -> None:
    (folder / "again.py").write_text(MIXERS, encoding="utf-8")
    said = refused("check", "mine.yaml", "--use", "again.py")
    assert "kind 'shift' exists already in again.py+" in said


def test_a_mixer_from_outside_that_sees_the_future_does_not_train(folder: Path) -> None:
    (folder / "my_mixers.py").write_text(
        MIXERS.replace("x_BTD + self.gain", "x_BTD.flip(1) + self.gain"), encoding="utf-8"
    )
    said = refused("run", "story.yaml", "--device", "cpu")
    assert "block 0 (shift): breaks the law of causality" in said


# Torch modules. -----------------------------------------------------------------------------------

LAYERS = """
import torch
from torch import nn

class Mean(nn.Module):
    def __init__(self, width: int, gain: float = 1.0):
        super().__init__()
        self.gain, self.linear = gain, nn.Linear(width, width)

    def forward(self, x_BTD):
        return self.gain * self.linear(x_BTD.cumsum(1) / torch.arange(1, x_BTD.shape[1] + 1)[:, None])

class Stepped(Mean):
    def step(self, x_BD, state):
        count, total = (0, 0.0) if state is None else state
        count, total = count + 1, total + x_BD
        return self.gain * self.linear(total / count), (count, total)
"""

MODULE = """
uses: [my_layers.py]
name: mine
width: 8
stack: [{kind: block, mixer: {kind: module, of: "my_layers:Stepped", options: {gain: 2}}}]
"""


@pytest.fixture
def layers(folder: Path) -> Path:
    (folder / "my_layers.py").write_text(LAYERS, encoding="utf-8")
    (folder / "mine.yaml").write_text(MODULE, encoding="utf-8")
    return folder


def test_a_torch_module_goes_from_check_to_table(layers: Path) -> None:
    assert "torch module Mean, torch module Stepped" in recallmap("check", "mine.yaml")
    assert "8   floats" in recallmap("cost", "mine.yaml")
    assert "2 done, 0 failed" in recallmap("run", "story.yaml", "--device", "cpu")
    table = recallmap("table", "story.yaml")
    assert "| mine | 32 B |" in table
    assert "defines module my_layers:Stepped" in table
    assert "module" not in recallmap("list", "mixers", "--use", "my_mixers.py").split("\n\n")[0].split()


def test_options_of_a_module_may_vary_in_a_space(layers: Path) -> None:
    axis = "space.axes.trial.arch.stack[0].mixer.options.gain=[1,2]"
    assert "4 trials, 4 to train" in recallmap("run", "story.yaml", "--set", axis, "--device", "cpu")
    table = recallmap("table", "runs/story.sqlite")
    assert "| mine gain=1 |" in table
    assert "| mine gain=2 |" in table


def test_a_module_of_unknown_state_is_on_no_front(layers: Path) -> None:
    plain = MODULE.replace("Stepped", "Mean").replace("name: mine", "name: vague")
    (layers / "vague.yaml").write_text(plain, encoding="utf-8")
    assert "an unknown state" in recallmap("check", "vague.yaml")
    assert "the state of a module is unknown" in recallmap("cost", "vague.yaml")
    both = ("--set", "space.axes.trial.arch=[mine.yaml, vague.yaml]", "--device", "cpu")
    assert "4 done" in recallmap("run", "story.yaml", *both)
    table = recallmap("table", "runs/story.sqlite")
    assert "| vague | unknown |" in table
    assert "the state of module my_layers:Mean is unknown, so that it is on no front" in table
    with Ledger(layers / "runs/story.sqlite") as ledger:
        (view, *_) = figures(ledger.all(), [])["views"]
    (vague,) = (mean for mean in view["means"] if mean.get("apart"))
    assert vague["share"] == 0
    assert sum(mean["share"] for mean in view["means"]) >= 1
    assert "vague" not in view["seen"]
    front = rm.front(rm.records("runs/story.sqlite"))
    assert set(front["label"]) == {"mine"}
    drawn = next(t for t in rm.figure(rm.records("runs/story.sqlite")).data if t.meta == "front")
    assert set(drawn.x[:-1]) == set(front["state_bytes"])  # the last point is the figure's right edge


def test_a_module_of_unknown_state_wins_no_search_for_less_state(layers: Path) -> None:
    plain = MODULE.replace("Stepped", "Mean").replace("name: mine", "name: vague")
    (layers / "vague.yaml").write_text(plain, encoding="utf-8")
    axes = {"trial.arch": ["mine.yaml", "vague.yaml"]}
    base = {"task": {"kind": "parity", "length": 8}, "arch": "mine.yaml", "training": {"steps": 2, "batch": 4}}
    study = codec.read_study({"name": "story", "trial": base, "space": {"kind": "grid", "axes": axes}})
    candidates = tuple(
        Candidate(
            proposer="grid",
            ordinal=number,
            choices={},
            trial=trial,
            records=(failed(trial, "", study="story", device=torch.device("cpu")),),
            chosen=(0.5 + 0.1 * number, 100.0 - number),  # the second is better in both
            by_seed=((0.5 + 0.1 * number, 100.0 - number),),
        )
        for number, trial in enumerate(study.trials())
    )
    found = Findings(study=study, candidates=candidates, importances={}, agreements=())
    assert [one.trial.name for one in found.on_front()] == ["mine"]
    assert shares_on_front(found, np.random.default_rng(0)).tolist() == [1, 0]
    alone = Findings(study=study, candidates=candidates[1:], importances={}, agreements=())
    assert [one.trial.name for one in alone.on_front()] == ["vague"]


def test_a_file_that_changes_under_a_spec_is_noticed(layers: Path) -> None:
    arch = codec.read_arch(layers / "mine.yaml")
    (layers / "my_layers.py").write_text(LAYERS.replace("cumsum(1)", "cumsum(1) * 2"), encoding="utf-8")
    assert codec.key(codec.read_arch(layers / "mine.yaml")) != codec.key(arch)
    with pytest.raises(ValueError, match=r"my_layers:Stepped is now defined by my_layers\.py\+"):
        arch.build(vocab=3)


def test_two_files_of_one_name_may_not_both_have_torch_modules(layers: Path) -> None:
    (layers / "other").mkdir()
    (layers / "other/my_layers.py").write_text(f"{LAYERS}\n# another\n", encoding="utf-8")
    said = refused("check", "mine.yaml", "--use", "other/my_layers.py")
    assert "my_layers.py: is the second of this name, after my_layers.py+" in said


def test_slips_in_a_module_are_told_at_their_places(layers: Path) -> None:
    (layers / "mine.yaml").write_text(MODULE.replace("Stepped", "Steped"), encoding="utf-8")
    assert "stack[0].mixer.of: of must name a class" in (said := refused("check", "mine.yaml"))
    assert "(did you mean 'my_layers:Stepped'?)" in said
    (layers / "mine.yaml").write_text(MODULE.replace("gain", "gian"), encoding="utf-8")
    assert "mine.yaml:5:86: stack[0].mixer.options.gian: options.gian is no parameter" in refused("check", "mine.yaml")
    (layers / "mine.yaml").write_text(MODULE.replace("uses: [my_layers.py]\n", ""), encoding="utf-8")
    assert "kind 'module' needs the file or module of its class: say uses:" in refused("check", "mine.yaml")


# Other processes. ---------------------------------------------------------------------------------


def test_specs_travel_to_a_process_that_has_never_seen_their_file(layers: Path, tmp_path: Path) -> None:
    (layers / "my_gains.py").write_text("GAIN = 2.0\n", encoding="utf-8")
    (layers / "my_mixers.py").write_text(f"from my_gains import GAIN\n{MIXERS}", encoding="utf-8")
    own, module = codec.read_arch({**MINE, "uses": ["my_mixers.py"]}), codec.read_arch("mine.yaml")
    data = pickle.dumps((outside.shipped(), pickle.dumps((own, module))))
    (tmp_path / "data").write_bytes(data)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in ("my_gains.py", "my_mixers.py", "my_layers.py"):
        (layers / file).unlink()
    code = (
        "import pickle, sys\n"
        "from recallmap.search import codec\n"
        "from recallmap.search.documents import outside\n"
        "sources, specs = pickle.load(open(sys.argv[1], 'rb'))\n"
        "outside.arrive(sources, '.')\n"
        "for spec in pickle.loads(specs): print(codec.key(spec), spec.build(vocab=3) is None)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    assert told.stdout.split() == [codec.key(own), "False", codec.key(module), "False"], told.stderr
    assert list(elsewhere.iterdir()) == []  # the files went with the process


@pytest.mark.slow
def test_ray_ships_the_named_files_to_its_workers(layers: Path) -> None:
    mixed = MODULE.replace("my_layers.py", "my_layers.py, my_mixers.py").replace(
        "stack: [", "stack: [{kind: block, mixer: shift}, "
    )
    (layers / "mine.yaml").write_text(mixed, encoding="utf-8")
    words = ["run", "story.yaml", "--engine", "ray", "--device", "cpu"]
    ran = subprocess.run(
        [sys.executable, "-m", "recallmap", *words],
        cwd=layers,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "2 done, 0 failed" in ran.stdout, ran.stderr
    recallmap("run", "story.yaml", "--device", "cpu", "--ledger", "inline.sqlite")
    with Ledger(layers / "runs/story.sqlite") as through_ray, Ledger(layers / "inline.sqlite") as inline:
        assert {r.key: r.scores for r in through_ray.all()} == {r.key: r.scores for r in inline.all()}


def test_check_says_which_code_a_file_would_execute_without_executing_it(folder: Path) -> None:
    (folder / "my_mixers.py").write_text("raise SystemExit('executed')\n", encoding="utf-8")
    (folder / "story.yaml").write_text(f"uses: [some.tasks]\n{STUDY}", encoding="utf-8")
    said = recallmap("check", "story.yaml", "--no-execute")
    assert said.startswith("would execute some.tasks, my_mixers.py+")
    assert recallmap("check", "mine.yaml", "--no-execute").startswith("would execute my_mixers.py+")
    (folder / "own.yaml").write_text("{name: own.yaml, stack: [{kind: block, mixer: mesa}]}\n", encoding="utf-8")
    for name in ("own.yaml", "demo", "mesa"):
        assert recallmap("check", name, "--no-execute") == "would execute no code from outside\n"
    (folder / "my_mixers.py").unlink()
    assert "uses: my_mixers.py: no such file" in refused("check", "mine.yaml", "--no-execute")


def test_the_winner_of_a_search_is_written_with_its_code_and_read_with_it(folder: Path) -> None:
    sampler = "{kind: random, points: 2, dials: {trial.training.lr: {float: [1e-4, 1e-2], log: true}}}"
    (folder / "search.yaml").write_text(STUDY.replace("{kind: grid, axes: {trial.seed: [0, 1]}}", sampler), "utf-8")
    recallmap("run", "search.yaml", "--device", "cpu")
    said = recallmap("best", "search.yaml", "-o", "winner.yaml")
    assert said.endswith("next: recallmap cost winner.yaml\n")
    assert "code: my_mixers.py+" in (folder / "winner.yaml").read_text(encoding="utf-8")
    assert "shift" in recallmap("cost", "winner.yaml")
    (folder / "below").mkdir()
    recallmap("best", "search.yaml", "-o", "below/winner.yaml")
    assert "uses: [../my_mixers.py]" in (folder / "below/winner.yaml").read_text(encoding="utf-8")
    assert "shift" in recallmap("cost", "below/winner.yaml")
    (folder / "my_mixers.py").write_text(f"{MIXERS}\n# changed\n", encoding="utf-8")
    assert "the code has changed since; leave code out" in refused("cost", "winner.yaml")
