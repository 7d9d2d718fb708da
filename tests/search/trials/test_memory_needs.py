"""What cannot run is refused before anything is built or drawn; what may run somewhere is not."""

from __future__ import annotations

import json
import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from recallmap.arch.backbone import BackboneSpec
from recallmap.results.ledger import Ledger
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import SpecError
from recallmap.search.engines import inline
from recallmap.search.training import run_cohort
from recallmap.search.trial import Data, Training, TrialSpec
from recallmap.search.trials import Trial, memory_needs
from recallmap.search.trials.memory_needs import MODEL, MOST
from recallmap.synth.task import Task
from recallmap.synth.tasks import Mqar, Needle

STUDY: dict[str, Any] = {
    "name": "bombs",
    "trial": {
        "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
        "arch": {
            "name": "small",
            "width": 16,
            "stack": [
                {"kind": "block", "mixer": "base_conv"},
                {"kind": "repeat", "times": 2, "blocks": [{"kind": "block", "mixer": "mesa", "mlp": "swiglu"}]},
            ],
        },
        "training": {"steps": 4, "batch": 4, "evaluations": 1},
        "data": {"validation": 4, "test": 4},
    },
}
MIXER, SEARCH = (
    "trial.arch.stack[0].mixer={kind: ",
    "space={kind: tpe, dials: {trial.training.lr: {float: [1e-4, 1e-2]}}, ",
)
BOMBS = [
    "trial.task.length=1000000000",
    "trial.task.vocab=1000000000000",
    "trial.task={kind: in_context_recall, length: 1000000000}",
    "trial.task={kind: fuzzy_in_context_recall, length: 1000000000}",
    "trial.task={kind: selective_copying, length: 1000000000}",
    "trial.task={kind: compression, length: 1000000000}",
    "trial.task={kind: memorization, vocab: 1000000000000}",
    "trial.task={kind: regbench, words: [10, 1000000000]}",
    "trial.task={kind: regbench, states: [4, 1000000000]}",
    "trial.task={kind: parity, length: 1000000000}",
    "trial.task={kind: cycle_navigation, places: 1000000000000}",
    "trial.task={kind: modular_arithmetic, modulus: 1000000000000}",
    "trial.task={kind: group_word, group: Z1000000000}",
    "trial.task={kind: needle, length: 1000000000}",
    "trial.task={kind: learnability, width: 1000000000}",
    "trial.tests=[{kind: mqar, vocab: 32, length: 1000000000, pairs: 2}]",
    "trial.mix=[{task: {kind: mqar, vocab: 32, length: 16, pairs: 2}, examples: 1000000000000}]",
    "trial.training.batch=1000000000",
    "trial.training.evaluations=1000000000",
    "trial.training.steps=1000000000",
    "trial={training: {steps: null, epochs: 1000000000}, data: {train: 64}}",
    "trial.data.train=1000000000000",
    "trial.data.validation=1000000000000",
    "trial.data.test=1000000000000",
    "trial.arch.width=1000000000",
    "trial.arch.stack[1].times=1000000000",
    "trial.arch.stack[1].blocks[0].mlp.expand=1e300",
    f"{MIXER}base_conv, short_conv: 1000000000000}}",
    f"{MIXER}attention, heads: 2, head_dim: 1000000000000}}",
    f"{MIXER}mesa, key_dim: 1000000000000}}",
    f"{MIXER}mesa, cg_steps: 1000000000}}",
    f"{MIXER}gla, value_dim: 1000000000000}}",
    f"{MIXER}hawk, expand: 1e15}}",
    f"{MIXER}mamba1, state_dim: 1000000000000}}",
    f"{MIXER}rwkv7, gate_rank: 1000000000000}}",
    f"{MIXER}polysketch, sketch: 1000000000000}}",
    f"{MIXER}titans, depth: 1000000000}}",
    f"{MIXER}titans, window: 1000000000000}}",
    f"{MIXER}titans, expansion: 1e300}}",
    f"{MIXER}atlas, degree: 1000000000}}",
    f"{MIXER}atlas, newton_schulz: 1000000000}}",
    f"{MIXER}deep_transformer, anchors: 1000000000000}}",
    "trial.arch.stack[0]={kind: gate, memory: titans, attention: attention, persistent: 1000000000000}",
    "space={kind: grid, axes: {trial.arch.width: [16, 1000000000]}}",
    "space={kind: tpe, dials: {trial.arch.width: {int: [16, 1000000000]}}}",
    "space={kind: tpe, dials: {trial.arch.stack: {sequence: {a: {kind: block, mixer: mesa}}, length: 1000000000}}}",
    f"{SEARCH}points: 1000000000000}}",
    f"{SEARCH}generation: 1000000000}}",
    f"{SEARCH}over: {{{', '.join(f'trial.x{i}: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]' for i in range(9))}}}}}",
]
MEGABYTES = 100  # that refusing may take


def held() -> int:
    """The most bytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("bomb", BOMBS)
def test_what_no_machine_can_run_is_refused_at_once(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec.read_study(STUDY)
    monkeypatch.setattr(BackboneSpec, "build", None)
    before = held()
    with pytest.raises(SpecError) as caught:
        codec.read_study(STUDY, overrides=[bomb])
    assert held() - before < MEGABYTES * 2**20
    assert len(str(caught.value)) < 1000
    assert " at most " in str(caught.value) or "has 1000000000" in str(caught.value)


@pytest.mark.parametrize("words", [("run",), ("run", "--dry-run"), ("check",)], ids=lambda words: " ".join(words))
def test_every_verb_refuses_it_with_exit_code_2(words: tuple[str, ...], tmp_path: Path) -> None:
    study = STUDY | {"space": {"kind": "grid", "axes": {"trial.training.batch": [4, 10**9]}}}
    file = tmp_path / "bomb.yaml"
    file.write_text(yaml.safe_dump(study), encoding="utf-8")
    verb, *rest = words
    result = CliRunner().invoke(
        app, [verb, str(file), *rest, *(["--ledger", str(tmp_path / "x.sqlite")] if verb == "run" else [])]
    )
    assert result.exit_code == 2, result.output
    assert "at most" in result.stderr
    assert not (tmp_path / "x.sqlite").exists()


def transformer(width: int, blocks: int) -> BackboneSpec:
    block = {"kind": "block", "mixer": {"kind": "attention", "heads": 16}, "mlp": {"kind": "swiglu", "expand": 3}}
    stack = [{"kind": "repeat", "times": blocks, "blocks": [block]}]
    return codec.read_arch({"name": "large", "width": width, "stack": stack})


@pytest.mark.parametrize(
    ("task", "arch", "training", "data"),
    [
        (Mqar(vocab=50_000, length=2048, pairs=64), transformer(2048, 24), Training(steps=10**6, batch=64), Data()),
        (
            Mqar(vocab=32, length=32_768, pairs=8),
            transformer(256, 4),
            Training(steps=10**5, batch=64),
            Data(test=10_000),
        ),
        (Needle(length=32_768), transformer(2048, 24), Training(steps=10**4, batch=8, dtype="bfloat16"), Data()),
        (
            Mqar(vocab=32, length=2**20, pairs=8),
            transformer(64, 2),
            Training(steps=10, batch=1),
            Data(validation=1, test=1),
        ),
        (
            Mqar(),
            transformer(64, 2),
            Training(epochs=1000, batch=1024, evaluations=1000),
            Data(train=10**6, test=10**5),
        ),
        (Mqar(length=16, pairs=2), transformer(32, 1000), Training(steps=10**7, batch=1), Data()),
    ],
    ids=["1e9 parameters", "32k tokens", "both", "1M tokens", "1e6 sequences", "1000 blocks"],
)
def test_what_is_large_but_may_run_somewhere_is_no_fault(
    task: Task, arch: BackboneSpec, training: Training, data: Data
) -> None:
    spec = TrialSpec(task=task, arch=arch, training=training, data=data)  # type: ignore[arg-type]
    assert sum(spec.needs.values()) < MOST


def test_what_asks_for_most_is_named_with_what_it_asks_for() -> None:
    with pytest.raises(SpecError) as caught:
        codec.read_study(STUDY, overrides=["trial.data.test=1000000000000"])
    assert str(caught.value) == (
        "--set: trial.data.test: data.test needs 512 TB of memory, expected at most 17.6 TB for a trial; lower it, or the "
        "lengths and widths that it is multiplied by"
    )


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 KB"), (2e9, "2 GB"), (1.76e13, "17.6 TB"), (5e18, "5,000,000 TB")],
)
def test_bytes_are_said_as_people_say_them(count: float, said: str) -> None:
    assert memory_needs.said(count) == said


# On this machine. ---------------------------------------------------------------------------------


def test_a_trial_that_this_machine_cannot_hold_fails_and_the_others_are_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = codec.read_study(STUDY, overrides=["space={kind: grid, axes: {trial.arch.width: [16, 64]}}"])
    small, large = (sum(trial.needs.values()) for trial in study.trials())
    monkeypatch.setattr("recallmap.search.trials.memory_needs.held_by", lambda device: (small + large) / 2)
    inline.run(study, tmp_path / "x.sqlite", device="cpu")
    done, failed = sorted(Ledger.open(tmp_path / "x.sqlite").all(), key=lambda record: record.status)
    assert (done.status, failed.status) == ("done", "failed")
    assert failed.error is not None
    assert failed.error.startswith("MemoryError: a trial takes ")
    assert failed.parameters > done.parameters > 0


def test_a_cohort_is_as_many_as_the_machine_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    (trial,) = codec.read_study(STUDY).trials()
    needs = {MODEL: 100.0, "data.test": 60.0}
    for held_, many in ((129, 0), (130, 1), (229, 1), (231, 2), (1031, 10)):
        monkeypatch.setattr("recallmap.search.trials.memory_needs.held_by", lambda device, held_=held_: float(held_))
        assert memory_needs.fitting(needs, torch.device("cpu")) == many
    assert memory_needs.largest(replace(trial, data=Data(test=10**9)).needs) == "data.test"


def test_a_failed_trial_has_its_record_whatever_of_it_cannot_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a model that cannot be built, nor a task whose chance cannot be known, ends a study, or the next call of it."""

    def fail(self: object, **_: object) -> None:
        raise RuntimeError("out of all bounds")

    monkeypatch.setattr(BackboneSpec, "build", fail)
    for name in ("chance", "ceiling", "references"):
        monkeypatch.setattr(Mqar, name, fail)
    study = codec.read_study(STUDY, overrides=["space={kind: grid, axes: {trial.seed: [0, 1]}}"])
    for _ in range(2):
        inline.run(study, tmp_path / "x.sqlite", device="cpu")
    records = Ledger.open(tmp_path / "x.sqlite").all()
    assert [(r.status, r.error) for r in records] == [("failed", "RuntimeError: out of all bounds")] * 2
    assert all(r.parameters > 0 for r in records)
    monkeypatch.setattr(TrialSpec, "price", fail)
    failed = run_cohort.failed(study.trials()[0], "died", study="bombs", device=torch.device("cpu"))
    assert (failed.parameters, failed.key) == (0, codec.key(study.trials()[0]))


def test_more_members_than_the_device_holds_are_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recallmap.search.measurement.benchmarks._time", None)
    monkeypatch.setattr(memory_needs, "held_by", lambda device: 64 * 10**9)
    block = {"kind": "block", "mixer": {"kind": "attention", "heads": 16}, "mlp": {"kind": "swiglu", "expand": 3}}
    large = {"name": "large", "width": 2048, "stack": [{"kind": "repeat", "times": 24, "blocks": [block]}]}
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(large), encoding="utf-8")
    before = held()
    words = ["bench", "step", "--arch", str(tmp_path / "large.yaml"), "--members", "1000", "--device", "cpu"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert re.fullmatch(
        r"bench step: members must be at most \d, as cpu has 64 GB of memory, got 1,000, which take about [\d.,]+ TB\n",
        result.stderr,
    )
    assert held() - before < MEGABYTES * 2**20


@pytest.mark.parametrize(
    ("words", "most"), [(("run", "demo", "--seeds"), 10_000), (("bench", "step", "--members"), 1024)]
)
def test_a_count_that_no_machine_can_run_is_refused_with_the_most_that_may_come(
    words: tuple[str, ...], most: int
) -> None:
    result = CliRunner().invoke(app, [*words, "1000000000"])
    assert result.exit_code == 2
    assert f"Invalid value for '{words[-1]}': Input should be less than or equal to {most}" in result.stderr


def test_a_head_that_is_tied_to_an_embedding_needs_tokens() -> None:
    with pytest.raises(SpecError, match=r"trial\.arch\.tied: arch\.tied must be false for learnability"):
        codec.read_study(STUDY, overrides=["trial.arch.tied=true", "trial.task={kind: learnability, width: 8}"])


RECORDS = sorted((Path(__file__).parents[3] / "results" / "records").glob("*.jsonl"))


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.stem)
def test_committed_records_read_under_their_keys_and_at_their_prices(file: Path) -> None:
    """One of each architecture on each task: bounds are no tighter than what was ever trained."""
    lines = file.read_text(encoding="utf-8").splitlines()
    every = {(r["arch"], r["task"]): r for r in map(json.loads, lines[:: max(1, len(lines) // 40)])}
    kinds = type_hints.kinds_of(Trial)
    for record in every.values():
        trial = codec.from_plain(kinds[record["spec"].get("kind", "trial")], record["spec"])
        price = trial.price()
        assert codec.key(trial) == record["key"]
        for figure in ("parameters", "state_floats", "state_bytes", "flops_per_token"):
            assert getattr(price, figure) == record[figure]
