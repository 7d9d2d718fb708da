"""Kernels compiled before cohorts need them, for a GPU that is not here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recallmap.arch.kernels.ahead import Target, compiling_for
from recallmap.arch.stack import flatten
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.training import kernels_ahead
from recallmap.search.training.kernels_ahead import MOST, KernelsAhead, Wanted, ask_for_kernels, await_kernels, wanted
from recallmap.search.trials import Trial

HOPPER = Target("cuda", 90, 32)
MLP = {"kind": "swiglu", "expand": 2}
STUDY: dict[str, Any] = {
    "name": "story",
    "trial": {
        "task": {"kind": "mqar", "vocab": 16, "length": 16, "pairs": 2},
        "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": "base_conv", "mlp": MLP}]},
        "training": {"steps": 3, "batch": 4, "evaluations": 1, "lr": 3e-3},
        "data": {"validation": 8, "test": 8},
    },
    "space": {"kind": "grid", "axes": {"trial.seed": [0, 1]}},
}


def trials(*overrides: str, **trial: Any) -> tuple[Trial, ...]:
    return codec.read_study(STUDY | {"trial": STUDY["trial"] | trial}, overrides=overrides).trials()


def blocks(*mixers: str) -> dict[str, Any]:
    stack = [{"kind": "block", "mixer": mixer, "mlp": MLP} for mixer in mixers]
    return {"arch": {"name": "tiny", "width": 16, "stack": stack}}


def test_each_distinct_block_is_wanted_once() -> None:
    found = wanted(trials(**blocks("gla", "mesa", "gla")), HOPPER)
    assert [one.block.mixer.kind for one in found] == ["gla", "mesa"]
    assert {(one.members, one.batch, one.length, one.dtype) for one in found} == {(2, 4, 16, "float32")}


def test_all_that_kernels_depend_on_tells_blocks_apart() -> None:
    one = trials()
    others = [
        trials("trial.arch.width=32"),
        trials("trial.task.length=32"),
        trials("trial.training.dtype=bfloat16"),
        trials("trial.training.batch=8"),
        one[:1],
    ]
    every = [wanted(specs, HOPPER)[0] for specs in (one, *others)]
    assert len({*every, wanted(one, Target("cuda", 80, 32))[0]}) == len(every) + 1


def test_of_many_sequences_a_few_stand_for_all() -> None:
    (one,) = wanted(trials("trial.training.batch=4096"), HOPPER)
    assert one.members * one.batch == MOST


def test_phases_want_the_blocks_of_each() -> None:
    study = codec.read_study("statex", overrides=["budget=smoke"])
    phased = max(study.trials(), key=lambda spec: len(set(spec.archs)))  # its state is expanded on the way
    assert len(set(phased.archs)) > 1
    found = {one.block for one in wanted([phased], HOPPER)}
    assert found == {block for arch in phased.archs for block in flatten(arch.stack)}


class Slow:
    """Workers that answer when they are told to."""

    def __init__(self) -> None:
        self.asked: list[Wanted] = []
        self.futures: list[Future[int | None]] = []

    def seat(self) -> int:
        return 0

    def ask(self, seat: int, one: Wanted) -> Future[int | None]:
        self.asked.append(one)
        self.futures.append(Future())
        return self.futures[-1]


def test_a_block_is_asked_for_once_and_one_that_is_known_never(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Slow()
    ahead = KernelsAhead(workers, HOPPER)  # type: ignore[arg-type]
    specs = trials(**blocks("gla", "mesa"))
    known = wanted(trials(**blocks("mesa")), HOPPER)
    monkeypatch.setattr(kernels_ahead, "is_compiled", lambda one: one in known)
    ahead.ask(specs)
    ahead.ask(specs)
    assert [one.block.mixer.kind for one in workers.asked] == ["gla"]
    workers.futures[0].set_result(None)  # the worker failed: what is missing compiles where it is used
    ahead.wait(specs)


def test_without_workers_nobody_waits() -> None:
    ask_for_kernels(trials())
    await_kernels(trials())


def test_a_process_that_interprets_kernels_compiles_none() -> None:
    with pytest.raises(RuntimeError, match="unset TRITON_INTERPRET"), compiling_for(HOPPER):
        pass


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (),
            "--capability: there is no GPU here; give the compute capability of the one that will train, such as 9.0\n",
        ),
        (("--capability", "90"), "--capability: got '90', expected X.Y, such as 9.0 for an H100\n"),
        (("--capability", "sm_90"), "--capability: got 'sm_90', expected X.Y, such as 9.0 for an H100\n"),
    ],
)
def test_a_target_that_cannot_be_is_refused(words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["compile", "demo", *words], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (2, said)


def compiled(folder: Path, *words: str) -> str:
    """Output of `recallmap compile` for Hopper, in a process that does not interpret."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(folder / "cache"), "COLUMNS": "200"}
    command = [sys.executable, "-m", "recallmap", "compile", *words, "--capability", "9.0", "--workers", "1"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.slow
def test_a_study_is_compiled_once_without_a_gpu(tmp_path: Path) -> None:
    (tmp_path / "story.yaml").write_text(json.dumps(STUDY))
    first = compiled(tmp_path, "story.yaml")
    assert " kernels of 1 block compiled for compute capability 9.0 in " in first
    assert int(first.split()[0]) >= 6  # a convolution, norms and SwiGLU, forward and backward
    assert list((tmp_path / "cache").rglob("*.cubin"))
    again = compiled(tmp_path, "story.yaml")
    assert again.startswith("0 kernels of 0 blocks compiled")
    assert again.endswith(", 1 of 1 known\n")


@pytest.mark.slow
@pytest.mark.parametrize("mixer", ["gated_deltanet", "gla", "mesa", "mlstm", "attention", "titans", "hawk", "rwkv7"])
def test_more_sequences_want_no_other_kernels(mixer: str, tmp_path: Path) -> None:
    """What stands for a cohort of many members is compiled; then such a cohort finds all that it wants."""
    code = f"""
from dataclasses import replace
from recallmap.search import codec
from recallmap.search.training import kernels_ahead
from recallmap.arch.kernels.ahead import Target, compiling_for
from recallmap.arch.stack import flatten
import json, os
study = codec.read_study(json.loads({json.dumps(json.dumps(STUDY | {"trial": STUDY["trial"] | blocks(mixer)}))}))
(one,) = kernels_ahead.wanted(study.trials() * 8, Target("cuda", 90, 32))
few = replace(one, members=2, batch=kernels_ahead.MOST // 2)
kernels_ahead.compile_block(few)
def files():
    return {{name for _, _, names in os.walk(os.environ["TRITON_CACHE_DIR"]) for name in names if name.endswith(".cubin")}}
before = files()
kernels_ahead.MOST = kernels_ahead.TOKENS = 10**9
kernels_ahead.compile_block(replace(one, members=4, batch=kernels_ahead_batch))
print(len(before), sorted(files() - before))
""".replace("kernels_ahead_batch", "384")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" []\n"), done.stdout
    assert int(done.stdout.split()[0]) > 2
