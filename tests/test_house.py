"""The house rules that a machine can hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PILLARS = ("synth", "arch", "search", "results")
FILES = sorted(path.relative_to(ROOT) for pillar in PILLARS for path in (ROOT / pillar).rglob("*.py"))

MAY_IMPORT = {"synth": {"synth"}, "arch": {"arch"}, "results": {"results"}, "search": set(PILLARS)}
ONLY_IN = {
    "yaml": "search/codec.py",
    "ray": "search/tune.py",
    "optuna": "search/propose.py",
    "fla": "arch/kernels/benchmark/peers.py",
}
TRITON_IN = ("arch/kernels/*/fused.py", "arch/kernels/*/fused/*.py", "arch/kernels/triton_tiles/*.py")
ORDER_IN_ARCH = [  # a room may import rooms further down, never further up
    {"arch.cost", "arch.expand"},
    {"arch.backbone"},
    {"arch.stack"},
    {"arch.block"},
    {"arch.mixers", "arch.mlp", "arch.laws"},
    {"arch.parts", "arch.kernels"},
]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it, `from a import b` as a.b."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{name.name}" for name in node.names)


def floor(module: str) -> int | None:
    for number, rooms in enumerate(ORDER_IN_ARCH):
        if any(module == room or module.startswith(room + ".") for room in rooms):
            return number
    return None


@pytest.mark.parametrize("path", FILES, ids=str)
def test_no_pillar_imports_another(path: Path) -> None:
    pillar = path.parts[0]
    foreign = {m for m in imports(path) if m.split(".")[0] in PILLARS and m.split(".")[0] not in MAY_IMPORT[pillar]}
    assert not foreign


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_heavy_library_has_one_door(path: Path) -> None:
    for module in imports(path):
        top = module.split(".")[0]
        if top in ONLY_IN:
            assert path.as_posix() == ONLY_IN[top], f"{top} may be imported in {ONLY_IN[top]} alone"
        if top == "triton":
            assert any(path.match(place) for place in TRITON_IN), f"triton may be imported in {TRITON_IN} alone"
        if top in ("torch", "triton"):
            assert path.parts[0] not in ("synth", "results")


@pytest.mark.parametrize("path", [p for p in FILES if p.parts[0] == "arch"], ids=str)
def test_arch_is_built_from_the_ground_up(path: Path) -> None:
    here = floor(".".join(path.with_suffix("").parts))
    if here is None:
        return
    above = {m for m in imports(path) if (other := floor(m)) is not None and other < here}
    assert not above


@pytest.mark.parametrize("family", ["synth/tasks", "arch/mixers"])
def test_siblings_do_not_import_siblings(family: str) -> None:
    members = [p for p in FILES if p.parent.as_posix() == family and p.name not in ("__init__.py", "mixer.py")]
    names = {".".join(p.with_suffix("").parts) for p in members}
    assert members
    for path in members:
        assert not {m for m in imports(path) if any(m == n or m.startswith(n + ".") for n in names)}


def test_every_file_says_what_it_is() -> None:
    empty = {"utils", "util", "helpers", "helper", "misc", "common", "manager"}
    for path in FILES:
        assert path.stem not in empty, f"{path} says nothing by its name"
        assert ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))), f"{path} opens with no sentence"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['recallmap', '--help']\n"
        "from search.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'optuna', 'plotly', 'pandas', 'pydantic', 'yaml', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "recallmap" in done.stdout
