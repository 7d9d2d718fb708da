"""Kept weights: those that a record is of come back as a model, whatever happened while they were trained."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

import recallmap as rm
from recallmap.arch.backbone import Backbone
from recallmap.arch.mixers import GatedDeltaNet, Mamba2
from recallmap.results.ledger import Ledger, LedgerError
from recallmap.results.record import Record
from recallmap.search.cli.app import app
from recallmap.search.documents import outside
from recallmap.search.engines import inline, ray_workers
from recallmap.search.engines.plan import Report
from recallmap.search.python.running import _Listed, run
from recallmap.search.training import checkpoints, loop, run_cohort
from recallmap.search.training.batches import Asked
from recallmap.search.training.cohort import Cohort
from recallmap.search.training.padding import row_of
from recallmap.search.trial import Data, Training
from recallmap.search.trials import Trial
from recallmap.search.trials.online import OnlineTrial
from recallmap.search.trials.online_learner import Learner
from recallmap.search.trials.phased import Expansion, Phase, PhasedTrial
from recallmap.search.trials.single import TrialSpec
from recallmap.search.weights.kept import ABOUT, ARCHITECTURE, WEIGHTS, WeightFolder
from recallmap.synth.tasks import Learnability

CPU = torch.device("cpu")
TINY: dict[str, Any] = {"steps": 6, "batch": 4, "evaluations": 3, "data": {"validation": 8, "test": 8}}
ARCH = rm.arch(GatedDeltaNet(heads=2), width=16, name="tiny")
TIED = rm.arch(ARCH, tied=True, soft_cap=5.0)


def trial(vocab: int = 32, arch: Any = ARCH, **options: Any) -> TrialSpec:
    task = options.pop("task", rm.task("mqar", vocab=vocab, length=16, pairs=2))
    return rm.trial(task, arch, **(TINY | options))


def scored(spec: TrialSpec, model: Backbone) -> dict[str, float]:
    """The scores on test of a model with these weights."""
    cohort = Cohort([spec], CPU)
    try:
        asked = cohort.evaluation_set("test", {0: Asked(spec.task, spec.seed, spec.data.test)})
        return cohort.evaluate([0], [row_of(model)], asked)[0]
    finally:
        cohort.close()


def interrupted(after: int) -> Any:
    """A report at which somebody stops the run, once, after so many from within cohorts."""
    seen = [0]

    def report(told: Report) -> None:
        seen[0] += told.progress is not None
        if told.progress is not None and seen[0] == after:
            raise KeyboardInterrupt

    return report


# Models that come back. ---------------------------------------------------------------------------

KINDS = {
    "vocabularies": [trial(32), trial(14, seed=1), trial(50, stop_at=-1.0)],
    "tied heads": [trial(32, TIED), trial(14, TIED)],
    "another step than the last": [trial(lr=lr, steps=8, evaluations=8) for lr in (0.3, 1.0)],
    "read-out from the last": [
        trial(task=rm.task("compression", vocab=vocab, length=8), implementation="recurrent") for vocab in (8, 13)
    ],
    "vectors": [trial(task=Learnability(width=8, length=8))],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_of_a_record_comes_back_and_has_its_scores(kind: str, tmp_path: Path) -> None:
    specs = KINDS[kind]
    for spec, record in zip(specs, run(specs, device="cpu", keep_weights=tmp_path), strict=True):
        model = rm.load(tmp_path / record.key)
        assert not model.training
        assert {**record.scores, **scored(spec, model)} == record.scores
        assert rm.read_arch(tmp_path / record.key / ARCHITECTURE) == spec.arch
        about = json.loads((tmp_path / record.key / ABOUT).read_text())
        assert (about["key"], about["vocabulary"], about["score"]) == (record.key, spec.task.shape[1], record.score)
        assert rm.task(about["task"]) == spec.task


def test_logits_of_a_model_that_came_back_are_those_of_the_one_that_was_trained(tmp_path: Path) -> None:
    spec = trial()
    found: dict[str, Mapping[str, Tensor]] = {}
    run_cohort.train([spec], "", CPU, lambda progress: found.update(progress.weights), weights=True)
    (record,) = run([spec, trial(14)], device="cpu", keep_weights=tmp_path)[:1]
    model = spec.arch.build(vocab=32, seed=5)
    model.load_state_dict(dict(found[record.key]))
    tokens = torch.randint(32, (3, 16), generator=torch.Generator().manual_seed(0))
    assert torch.equal(rm.load(tmp_path / record.key)(tokens), model(tokens))


def test_of_members_that_were_padded_only_their_own_rows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [trial(32), trial(14, seed=1), trial(50)]
    monkeypatch.setattr(run_cohort, "LOOPS", {TrialSpec: partial(loop.train, at_once=3)})
    for spec, record in zip(specs, run(specs, device="cpu", keep_weights=tmp_path), strict=True):
        assert record.cohort == 3
        model = rm.load(tmp_path / record.key)
        assert model.embedding.weight.shape == (spec.task.shape[1], 16)
        assert scored(spec, model)["loss"] == pytest.approx(record.scores["loss"], rel=1e-5)


def test_cohorts_that_train_at_once_keep_the_models_of_one_after_another(tmp_path: Path) -> None:
    specs = [trial(seed=seed) for seed in range(3)]
    run(specs, device="cpu", keep_weights=tmp_path / "one")
    study, weights = _Listed(listed=tuple(specs)), WeightFolder(tmp_path / "two")
    inline.run(study, tmp_path / "a.sqlite", device="cpu", cohort_size=1, cohorts_per_gpu=2, weights=weights)
    ours, theirs = kept_below(tmp_path / "two"), kept_below(tmp_path / "one")
    assert len(ours) == 3
    assert_same(ours, theirs)


def kept_below(folder: Path) -> dict[str, dict[str, Tensor]]:
    return {path.parent.name: load_file(path) for path in folder.glob(f"*/{WEIGHTS}")}


def assert_same(ours: dict[str, dict[str, Tensor]], theirs: dict[str, dict[str, Tensor]]) -> None:
    """To the last bit."""
    assert ours.keys() == theirs.keys()
    for key, weights in ours.items():
        assert weights.keys() == theirs[key].keys()
        assert all(torch.equal(weights[name], weight) for name, weight in theirs[key].items())


def test_a_trial_in_phases_keeps_the_model_of_its_last(tmp_path: Path) -> None:
    arch = rm.arch(Mamba2(heads=2, form="shared_qk", key_dim=4), width=16)
    spec = PhasedTrial(
        task=rm.task("mqar", vocab=32, length=16, pairs=2),
        arch=arch,
        training=Training(steps=4, batch=4, evaluations=2),
        data=Data(validation=8, test=8),
        phases=(Phase(), Phase(expand=Expansion(factor=2, count="all", start="inherit"))),
    )
    (record,) = run(spec, device="cpu", keep_weights=tmp_path)
    model = rm.load(tmp_path / record.key)
    assert model.spec == spec.archs[-1] != arch
    assert scored(spec.parts[-1], model)["loss"] == record.scores["loss"]


LAYER = '''"""A layer with a buffer that it draws."""

import torch
from torch import nn


class Masked(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.map = nn.Linear(width, width)
        self.register_buffer("mask", torch.rand(width))

    def forward(self, x):
        return self.map(x) * self.mask
'''


def test_code_from_outside_is_named_first_and_its_buffers_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("masked.py").write_text(LAYER)
    rm.use("masked.py")
    try:
        block = {"kind": "block", "mixer": {"kind": "module", "of": "masked:Masked"}}
        spec = trial(arch=rm.arch({"name": "mine", "width": 16, "stack": [block]}))
        (record,) = run(spec, device="cpu", keep_weights="kept")
        folder = Path("kept") / record.key
        assert "blocks.0.mixer.inner.mask" in load_file(folder / WEIGHTS)
        assert scored(spec, rm.load(folder))["loss"] == record.scores["loss"]
    finally:
        outside.forget()
    with pytest.raises(rm.SpecError, match=r"is of masked\.py\+\w+, which is not loaded; name the file by --use"):
        rm.load(folder)
    rm.use("masked.py")
    try:
        assert scored(spec, rm.load(folder))["loss"] == record.scores["loss"]
    finally:
        outside.forget()


def test_a_class_that_no_file_has_is_given_when_its_model_is_loaded(tmp_path: Path) -> None:
    class Mine(GatedDeltaNet):
        pass

    arch = rm.arch(Mine(heads=2), width=16)
    (record,) = run(trial(arch=arch), device="cpu", keep_weights=tmp_path)
    assert rm.load(tmp_path / record.key, arch=arch).spec == arch


# What may happen to a run. ------------------------------------------------------------------------


def test_weights_are_written_before_the_record_is_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [trial(seed=seed) for seed in (0, 1)]
    add, path = Ledger.add, tmp_path / "tiny.sqlite"

    def killed(self: Ledger, record: Record) -> None:
        assert (tmp_path / record.key / ABOUT).is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        run(specs, ledger=path, device="cpu", keep_weights=tmp_path)
    assert len(list(tmp_path.glob(f"*/{ABOUT}"))) == 1
    monkeypatch.setattr(Ledger, "add", add)
    records = run(specs, ledger=path, device="cpu", keep_weights=tmp_path)
    assert [scored(spec, rm.load(tmp_path / r.key))["loss"] for spec, r in zip(specs, records, strict=True)] == [
        record.scores["loss"] for record in records
    ]


def test_weights_that_cannot_be_written_leave_no_record(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    (record,) = run(trial(), device="cpu")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / record.key).write_text("in the way")
    with pytest.raises(LedgerError, match=f"{record.key}: cannot write the weights of a trial: .*in its place"):
        run(trial(), ledger=path, device="cpu", keep_weights=tmp_path / "kept")
    with Ledger.open(path) as ledger:
        assert not ledger.keys()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_resumed_cohort_keeps_what_one_without_interruption_keeps(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints.CheckpointFolder.__init__, "__defaults__", (0.0,))
    specs = [trial(32), trial(14, stop_at=-1.0), trial(50, seed=1)]
    records = run(specs, device="cpu", keep_weights=tmp_path / "whole")
    assert {record.cohort for record in records} == {3}
    path = tmp_path / "tiny.sqlite"
    with pytest.raises(KeyboardInterrupt):
        run(specs, ledger=path, device="cpu", keep_weights=tmp_path / "kept", report=interrupted(after))
    monkeypatch.setattr(WeightFolder, "lacking", lambda *_: [])
    run(specs, ledger=path, device="cpu", keep_weights=tmp_path / "kept")
    assert_same(kept_below(tmp_path / "kept"), kept_below(tmp_path / "whole"))


def test_a_cohort_that_had_ended_when_it_was_killed_keeps_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was saved at its last step, and no record had reached the ledger."""
    monkeypatch.setattr(checkpoints.CheckpointFolder.__init__, "__defaults__", (0.0,))
    path, spec = tmp_path / "tiny.sqlite", trial(evaluations=1)
    add = Ledger.add

    def killed(self: Ledger, record: Record) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "add", killed)
    with pytest.raises(KeyboardInterrupt):
        run(spec, ledger=path, device="cpu")
    monkeypatch.setattr(Ledger, "add", add)
    monkeypatch.setattr(Cohort, "train_step", None)
    (record,) = run(spec, ledger=path, device="cpu", keep_weights=tmp_path / "kept")
    assert scored(spec, rm.load(tmp_path / "kept" / record.key))["loss"] == record.scores["loss"]


def test_a_member_that_ended_before_its_cohort_died_keeps_the_weights_of_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU it has other ones when it is trained again in a half of the cohort."""
    early, late = trial(14, stop_at=-1.0), trial(32)
    follow, lives = run_cohort.follow_cohort, [0]

    def dying(specs: Sequence[Trial], **how: Any) -> Any:
        steps = follow(specs, **how)
        while True:
            try:
                progress = next(steps)
            except StopIteration as end:
                return end.value
            if lives[0]:  # as on a GPU
                noise = {key: {name: w + 1 for name, w in of.items()} for key, of in progress.weights.items()}
                progress = replace(progress, weights=noise)
            yield progress
            if len(specs) > 1 and progress.ended:
                lives[0] += 1
                raise RuntimeError("out of memory, say")

    monkeypatch.setattr(run_cohort, "follow_cohort", dying)
    records = run([early, late], device="cpu", keep_weights=tmp_path)
    monkeypatch.undo()
    assert lives[0] == 1
    assert scored(early, rm.load(tmp_path / records[0].key))["loss"] == records[0].scores["loss"]


def test_a_trial_that_is_known_is_told_of_and_one_whose_weights_are_there_is_not(tmp_path: Path) -> None:
    path, specs = tmp_path / "tiny.sqlite", [trial(seed=seed) for seed in range(3)]
    run(specs[:1], ledger=path, device="cpu", keep_weights=tmp_path)
    run(specs[:2], ledger=path, device="cpu", keep_weights=tmp_path)
    run(specs, ledger=path, device="cpu")
    with pytest.warns(
        UserWarning, match="^1 trial was known already; its weights are not kept; train it with another led"
    ):
        run(specs, ledger=path, device="cpu", keep_weights=tmp_path)
    with pytest.warns(UserWarning, match="^3 trials were known already; their weights are not kept; train them with "):
        run(specs, ledger=path, device="cpu", keep_weights=tmp_path / "new")


def test_an_online_learner_has_no_weights_and_a_failed_trial_none(tmp_path: Path) -> None:
    learner = OnlineTrial(task=Learnability(width=8, length=16), arch=Learner(hidden=1, expand=1))
    with pytest.warns(UserWarning, match="^1 online learner without weights to keep$"):
        records = run([learner, trial(lr=1e30, clip=None)], device="cpu", keep_weights=tmp_path / "kept")
    assert [record.status for record in records] == ["done", "failed"]
    assert not list((tmp_path / "kept").iterdir())


STUDY = """name: tiny
trial:
  task: {kind: parity, length: 8}
  arch: {name: tiny, width: 16, stack: [{kind: block, mixer: {kind: linear_attention, heads: 2}}]}
  training: {steps: 4, batch: 4, evaluations: 2}
  data: {validation: 8, test: 8}
space: {kind: grid, axes: {trial.seed: [0, 1]}}
"""


def test_the_command_keeps_weights_and_says_whose_it_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_text(STUDY)
    words = ["run", "tiny.yaml", "--device", "cpu", "--keep-weights"]
    first = CliRunner().invoke(app, [*words, "kept"])
    assert (first.exit_code, "known already" in first.output) == (0, False)
    (one, _) = sorted(Path("kept").iterdir())
    checked = CliRunner().invoke(app, ["check", str(one / ARCHITECTURE)])
    assert checked.output.startswith("ok: arch tiny: width 16, linear_attention; ")
    again = CliRunner().invoke(app, [*words, "new"])
    assert (
        "2 trials were known already; their weights are not kept; train them with --ledger of another name\n"
        in again.output
    )


def test_a_folder_that_cannot_be_written_in_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inline, "train", None)
    Path("tiny.yaml").write_text(STUDY)
    Path("file").write_text("")
    refused = CliRunner().invoke(app, ["run", "tiny.yaml", "--keep-weights", "file"])
    assert (refused.exit_code, refused.output) == (
        2,
        "--keep-weights: file cannot be written in: it is a file, not a folder; choose another place\n",
    )
    with pytest.raises(rm.SpecError, match=r"^keep_weights: .*file/kept cannot be written in: Not a directory; choose"):
        run(trial(), keep_weights=tmp_path / "file" / "kept")


# Folders with something wrong. --------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (record,) = run(trial(), device="cpu", keep_weights=folder)
    return folder / record.key


def altered(kept: Path, folder: Path, name: str, change: Any) -> Path:
    """A copy of the folder with one file changed; None: without it."""
    for file in kept.iterdir():
        data = file.read_bytes() if file.name != name else change(file.read_bytes())
        if data is not None:
            (folder / file.name).write_bytes(data)
    return folder


def flipped(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]


def without(data: bytes, key: str) -> bytes:
    return json.dumps({name: value for name, value in json.loads(data).items() if name != key}).encode()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (
            WEIGHTS,
            lambda _: None,
            f"lacks {WEIGHTS}, expected a folder that --keep-weights has written to its end; train",
        ),
        (ABOUT, lambda _: None, f"lacks {ABOUT}, expected"),
        (
            WEIGHTS,
            lambda data: data[:-10],
            f"{WEIGHTS} is damaged, or is not the file that {ABOUT} is of: train the trial",
        ),
        (WEIGHTS, flipped, f"{WEIGHTS} is damaged"),
        (
            ARCHITECTURE,
            lambda data: data.replace(b"heads: 2", b"heads: 1"),
            f"{ARCHITECTURE} is damaged, or is not the f",
        ),
        (ABOUT, lambda data: data[:50], f"{ABOUT}: is damaged: .*; train the trial again with --keep-weights"),
        (ABOUT, lambda data: without(data, "seed"), f"{ABOUT}: key 'seed' is missing, expected a whole number"),
        (ABOUT, lambda data: without(data, "task"), f"{ABOUT}: task: must be a mapping, got None"),
        (ABOUT, lambda _: b"[1]", f"{ABOUT}: got a list, expected a mapping"),
        (
            ABOUT,
            lambda data: data.replace(b'"format": 1', b'"format": 2'),
            f"{ABOUT}: format: must be 1, got 2; take a new",
        ),
    ],
)
def test_a_folder_whose_files_are_wrong_says_which(
    name: str, change: Any, said: str, kept: Path, tmp_path: Path
) -> None:
    with pytest.raises(rm.SpecError, match=f"^{tmp_path}.*{said}"):
        rm.load(altered(kept, tmp_path, name, change))


def test_a_folder_that_is_none_or_holds_models_says_what_to_name(kept: Path) -> None:
    with pytest.raises(
        rm.SpecError, match="nowhere: no such folder, expected DIR/KEY that recallmap run STUDY --keep-w"
    ):
        rm.load(kept.parent / "nowhere")
    with pytest.raises(rm.SpecError, match=f"is no model, but a folder with one; name one, such as {kept}"):
        rm.load(kept.parent)


def test_another_architecture_needs_the_same_parameters(kept: Path) -> None:
    capped = rm.load(kept, arch=rm.arch(ARCH, soft_cap=1.0))
    assert capped(torch.zeros(1, 4, dtype=torch.int64)).abs().max() < 1.0
    with pytest.raises(rm.SpecError) as error:
        rm.load(kept, arch=rm.arch(ARCH, tied=True, width=32))
    said = str(error.value)
    assert f"{kept / WEIGHTS}: head.weight is no parameter of tiny" in said
    assert f"{kept / WEIGHTS}: embedding.weight has the shape [32, 16], expected [32, 32]" in said


def test_weights_with_a_parameter_missing_say_which(kept: Path, tmp_path: Path) -> None:
    weights = load_file(kept / WEIGHTS)
    del weights["embedding.weight"]
    save_file(weights, tmp_path / "less.safetensors")
    data = (tmp_path / "less.safetensors").read_bytes()
    (tmp_path / "less").mkdir()
    folder = altered(kept, tmp_path / "less", WEIGHTS, lambda _: data)
    about = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps(about | {"weights": hashlib.sha256(data).hexdigest()}))
    with pytest.raises(rm.SpecError, match=r"model\.safetensors: embedding\.weight is missing$"):
        rm.load(folder)


# Elsewhere. ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
def test_workers_of_ray_send_the_same_weights_home(tmp_path: Path) -> None:
    specs = [trial(32), trial(14, stop_at=-1.0), trial(50, seed=1)]
    run(specs, device="cpu", keep_weights=tmp_path / "inline")
    plan = ray_workers.run(
        _Listed(listed=tuple(specs)), tmp_path / "ray.sqlite", device="cpu", weights=WeightFolder(tmp_path / "ray")
    )
    assert len(plan.missing) == 3
    assert_same(kept_below(tmp_path / "ray"), kept_below(tmp_path / "inline"))


@pytest.mark.gpu
def test_on_a_gpu_members_of_a_padded_cohort_keep_their_own_models(tmp_path: Path) -> None:
    specs = [trial(32, steps=20), trial(14, steps=20, seed=1, stop_at=-1.0), trial(50, steps=20)]
    for spec, record in zip(specs, run(specs, device="cuda", keep_weights=tmp_path), strict=True):
        assert record.cohort == 3
        model = rm.load(tmp_path / record.key)
        assert model.embedding.weight.shape == (spec.task.shape[1], 16)
        assert scored(spec, model)["loss"] == pytest.approx(record.scores["loss"], rel=1e-3)
