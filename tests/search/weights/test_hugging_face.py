"""A kept model as a folder for transformers, opened by the real library where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import recallmap as rm
from recallmap.arch.mixers import GatedDeltaNet
from recallmap.search.cli.app import app
from recallmap.search.documents import outside
from recallmap.search.python.running import run
from recallmap.search.weights import hugging_face
from recallmap.search.weights.kept import WEIGHTS

TINY: dict[str, Any] = {"steps": 4, "batch": 4, "evaluations": 1, "data": {"validation": 8, "test": 8}}


SMALL = rm.arch(GatedDeltaNet(heads=2), width=16, name="small")


def kept(folder: Path, arch: Any = "gla", task: Any = None, **options: Any) -> Path:
    spec = rm.trial(task or rm.task("mqar", vocab=32, length=16, pairs=2), arch, **(TINY | options))
    (record,) = run(spec, device="cpu", keep_weights=folder)
    return folder / record.key


def test_a_model_is_written_with_its_architecture_its_code_and_a_card(tmp_path: Path) -> None:
    folder = kept(tmp_path / "kept", SMALL)
    result = CliRunner().invoke(app, ["export", "--hf", str(folder), "-o", str(tmp_path / "mine")])
    said = f"{tmp_path / 'mine'}: modeling_recallmap.py, README.md, model.safetensors, config.json\n"
    assert (result.exit_code, result.output) == (0, said)
    config = json.loads((tmp_path / "mine" / "config.json").read_text())
    assert rm.read_arch(config["arch"]) == SMALL
    assert (config["vocab_size"], config["recallmap_record"]) == (32, folder.name)
    ours, theirs = load_file(folder / WEIGHTS), load_file(tmp_path / "mine" / "model.safetensors")
    assert {f"backbone.{name}" for name in ours} == theirs.keys()
    card = (tmp_path / "mine" / "README.md").read_text()
    assert "must be installed" in card
    assert 'from_pretrained("mine", trust_remote_code=True)' in card


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        (
            rm.task("compression", vocab=8, length=8),
            {},
            "got a model of tokens with readout 'last', expected token ids and",
        ),
        (
            rm.task("learnability", width=8, length=8),
            {},
            "got a model of vectors with readout 'each', expected token ids",
        ),
    ],
)
def test_a_model_that_is_no_causal_lm_is_refused(task: Any, options: Any, said: str, tmp_path: Path) -> None:
    folder = kept(tmp_path / "kept", SMALL, task, **options)
    with pytest.raises(rm.SpecError, match=said):
        hugging_face.export(folder, tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_code_of_a_file_cannot_be_carried_and_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["new", "mixer", "fade"]).exit_code == 0
    rm.use("my_fade.py")
    try:
        block = {"kind": "block", "mixer": {"kind": "fade"}}
        folder = kept(tmp_path / "kept", rm.arch({"name": "mine", "width": 16, "stack": [block]}))
        with pytest.raises(
            rm.SpecError, match=r"is of my_fade\.py\+\w+, which an exported folder cannot carry; make an inst"
        ):
            hugging_face.export(folder, tmp_path / "mine")
    finally:
        outside.forget()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "x.csv"], "export: got neither records nor a model, expected a STUDY, RECORDS, or --hf DIR/KEY\n"),
        (["demo", "--hf", "a", "-o", "x"], "export: --hf takes a model alone, got records as well; leave demo out\n"),
        (
            ["--hf", "a", "--only", "arch=mesa", "-o", "x"],
            "export: --hf takes a model alone, got records as well; leave their options out\n",
        ),
    ],
)
def test_export_takes_records_or_a_model(words: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["export", *words])
    assert (result.exit_code, result.output) == (2, said)


OPENED = """
import sys, torch
import recallmap as rm
from transformers import AutoConfig, AutoModelForCausalLM

kept, mine, again = sys.argv[1:]
own = rm.load(kept)
model = AutoModelForCausalLM.from_pretrained(mine, trust_remote_code=True)
assert AutoConfig.from_pretrained(mine, trust_remote_code=True).vocab_size == 32
assert not model.training
tokens = torch.randint(32, (3, 9), generator=torch.Generator().manual_seed(0))
read = []
model.backbone.register_forward_pre_hook(lambda module, given: read.append(given[0].shape[1]))

with torch.no_grad():
    assert torch.equal(model(tokens).logits, own(tokens))
    loss = torch.nn.functional.cross_entropy(own(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert torch.equal(model(tokens, labels=tokens).loss, loss)
    try:
        model(tokens, attention_mask=torch.tensor([[0] + 8 * [1]] * 3))
        raise AssertionError("padding was taken")
    except ValueError as error:
        assert "attention_mask hides tokens" in str(error)

    said = tokens
    for _ in range(5):
        said = torch.cat([said, own(said)[:, -1:].argmax(-1)], dim=1)

read.clear()
assert torch.equal(model.generate(tokens, max_new_tokens=5, do_sample=False), said)
assert read == [9, 1, 1, 1, 1], read
read.clear()
assert torch.equal(model.generate(tokens, max_new_tokens=5, do_sample=False, use_cache=False), said)
assert read == [9, 10, 11, 12, 13], read
beams = [model.generate(tokens, max_new_tokens=5, do_sample=False, num_beams=3, use_cache=use) for use in (True, False)]
assert torch.equal(*beams)
assert model.generate(tokens, max_new_tokens=4, do_sample=True).shape == (3, 13)

model.save_pretrained(again)
copy = AutoModelForCausalLM.from_pretrained(again, trust_remote_code=True)
with torch.no_grad():
    assert torch.equal(copy(tokens).logits, own(tokens))
print("opened")
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.parametrize("arch", ["attention", "gla", "mesa", "conv_attention", "titans_mac"])
def test_transformers_opens_the_folder_and_generates(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = kept(tmp_path / "kept", rm.arch(arch, width=32, tied=arch == "gla"))
    hugging_face.export(folder, tmp_path / "mine")
    words = [sys.executable, "-c", OPENED, str(folder), str(tmp_path / "mine"), str(tmp_path / "again")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout == "opened\n", done.stderr
