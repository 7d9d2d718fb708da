"""A shell completes verbs, options, names and kinds, without anything heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recallmap.arch.mixers import Mixer
from recallmap.search.cli import completion
from recallmap.search.documents import built_in, type_hints
from recallmap.search.samplers import Sampler
from recallmap.synth.tasks import Task

ROOT = Path(__file__).parents[3]
HEAVY = ("torch", "pandas", "plotly", "optuna", "ray", "sqlite3", "recallmap.arch.mixers", "recallmap.search.codec")


def asked(line: str, shell: str = "bash") -> list[str]:
    """What a shell is offered for the last word of a line, by the process that it starts."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_TYPER_COMPLETE_ARGS": line}
    shells = {"_RECALLMAP_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    program = (
        "import sys\nsys.argv[0] = 'recallmap'\nfrom recallmap.search.cli import main\n"
        f"try:\n    main()\nfinally:\n    assert not [m for m in {HEAVY!r} if m in sys.modules]"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | words | shells, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1] if shell != "zsh" else [done.stdout.strip()]


@pytest.mark.parametrize(
    ("shell", "line", "said"),
    [
        ("bash", "recallmap run hybrid_s", ["hybrid_search"]),
        ("zsh", "recallmap run hybrid_s", ["""_arguments '*: :(("hybrid_search"))'"""]),
        ("fish", "recallmap run hybrid_s", ["hybrid_search"]),
        ("bash", "recallmap run demo --eng", ["--engine"]),
        ("bash", "recallmap exp", ["export"]),
    ],
)
def test_a_shell_is_offered_what_may_follow(shell: str, line: str, said: list[str]) -> None:
    assert asked(line, shell) == said


def test_every_kind_and_every_document_is_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completion.tasks("") == sorted(type_hints.kinds_of(Task))
    assert completion.archs("") == sorted(built_in.builtin("arch"))
    assert completion.studies("") == sorted(built_in.builtin("study"))
    known = {*type_hints.kinds_of(Mixer), *type_hints.kinds_of(Task), *type_hints.kinds_of(Sampler)}
    assert known | set(built_in.builtin("suite")) <= set(completion.parts(""))
    assert "delta" in completion.benches("d")


def test_files_are_offered_where_one_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("zzz.yaml", "zzz.txt", "runs/zzz.sqlite"):
        (tmp_path / name).touch()
    assert completion.studies("zz") == ["zzz.yaml"]
    assert completion.sources("runs/") == ["runs/zzz.sqlite"]
    assert completion.sources("run") == ["runs/"]
    assert completion.sources("nosuch/") == []
