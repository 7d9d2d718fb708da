"""The house rules that a machine can hold, computed from the imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PILLARS = ("synth", "arch", "search", "results")
FILES = sorted(path.relative_to(ROOT) for pillar in PILLARS for path in (ROOT / pillar).rglob("*.py"))

MAY_IMPORT = {"synth": {"synth"}, "arch": {"arch"}, "results": {"results"}, "search": set(PILLARS)}
ONLY_IN = {  # heavy libraries, and where alone each may be imported
    "yaml": "search/documents/yaml_text.py",
    "ray": "search/engines/ray_workers.py",
    "optuna": ("search/proposers/", "search/samplers/"),
    "fla": "arch/kernels/benchmark/peers.py",
    "scipy": "results/analysis/",
    "transformers": "search/weights/modeling_recallmap.py",
    "tensorboard": "search/engines/listeners/tensorboard.py",
    "wandb": "search/engines/listeners/wandb.py",
    "mlflow": "search/engines/listeners/mlflow.py",
}
AHEAD = Path("arch/kernels/ahead.py")  # compiles what the fused implementations launch
MOST_LINES = 600  # of a Python file
MOST_FLOORS = 8  # of the wings of a pillar
ORDER_IN_ARCH = [  # a room may import rooms further down, never further up
    {"arch.cost", "arch.expand"},
    {"arch.backbone"},
    {"arch.stack"},
    {"arch.block"},
    {"arch.mixers", "arch.mlp"},
    {"arch.parts", "arch.kernels"},
]
SHARED = {
    "__init__.py",
    "laws.py",
    "mixer.py",
    "sampler.py",
    "genetic.py",
}  # of a family: its union, its interface, a part of several
DOCUMENTS = [
    path.relative_to(ROOT)
    for folder in (*PILLARS, "docs")
    for path in sorted((ROOT / folder).rglob("*.md"))
    if path.parent.name != "tables" and path.name not in ("NOTES.md", "REPORT.md")  # made by command, or a diary
]
DOCUMENTS += [Path(name) for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md")]
TESTS = sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))
_NAME = re.compile(r"(?<![\w./-])(?:recallmap\.)?((?:synth|arch|search|results)(?:\.\w+)+)")
_PATH = re.compile(r"(?<![\w./-])((?:synth|arch|search|results|docs|tests)/[\w./-]*\w)")
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "misc", "common", "manager"}


def by_folder(paths: Sequence[Path]) -> pytest.MarkDecorator:
    """One test a folder: of one for each file and rule there would be thousands."""
    folders: dict[str, list[Path]] = {}
    for path in paths:
        folders.setdefault(path.parent.as_posix(), []).append(path)
    return pytest.mark.parametrize("paths", list(folders.values()), ids=list(folders))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def module_of(path: Path) -> str:
    """A file's import name below `recallmap`."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, wherever in it (under TYPE_CHECKING too), `from a import b` as a.b, ours without
    `recallmap`."""
    found: list[str] = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{name.name}" for name in node.names]
    return tuple(name.removeprefix("recallmap.") for name in found)


@cache
def graph() -> Mapping[str, frozenset[str]]:
    """What of our own every module imports."""
    own = {}
    for module, path in MODULES.items():
        found = {name if name in MODULES else name.rpartition(".")[0] for name in imports(path)}
        own[module] = frozenset(found & set(MODULES) - {module})
    return own


def wing_of(module: str) -> str:
    """The folder of a pillar that a module stands in, or the module where it is a door."""
    parts = MODULES[module].parts
    return ".".join(parts[:2]) if len(parts) > 2 else module


def floors(edges: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Every node's floor: one above the highest that it imports. AssertionError names a circle."""
    found: dict[str, int] = {}

    def climb(node: str, way: tuple[str, ...]) -> int:
        assert node not in way, f"a circle: {' -> '.join([*way[way.index(node) :], node])}"
        if node not in found:
            found[node] = 1 + max((climb(below, (*way, node)) for below in sorted(edges[node])), default=0)
        return found[node]

    for node in edges:
        climb(node, ())
    return found


def floor(module: str) -> int | None:
    for number, rooms in enumerate(ORDER_IN_ARCH):
        if any(module == room or module.startswith(room + ".") for room in rooms):
            return number
    return None


def test_no_import_runs_in_a_circle() -> None:
    floors(graph())


@pytest.mark.parametrize("pillar", PILLARS)
def test_a_pillar_has_few_floors_and_its_wings_no_circle(pillar: str) -> None:
    inside = {module: names for module, names in graph().items() if module.split(".")[0] == pillar and module != pillar}
    wings: dict[str, set[str]] = {wing_of(module): set() for module in inside}
    for module, names in inside.items():
        own = wing_of(module)
        wings[own] |= {wing_of(name) for name in names if name.startswith(pillar + ".")} - {own}
    assert max(floors({wing: frozenset(below) for wing, below in wings.items()}).values()) <= MOST_FLOORS


@by_folder(FILES)
def test_no_pillar_imports_another(paths: list[Path]) -> None:
    for path in paths:
        allowed = MAY_IMPORT[path.parts[0]]
        foreign = {m for m in imports(path) if m.split(".")[0] in PILLARS and m.split(".")[0] not in allowed}
        assert not foreign, path


@by_folder(FILES)
def test_our_own_modules_are_imported_under_recallmap(paths: list[Path]) -> None:
    """`import arch` would find the package of that name from elsewhere."""
    for path, node in ((p, n) for p in paths for n in ast.walk(tree(p))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
        assert not {name for name in names if name.split(".")[0] in PILLARS}, path


@by_folder(FILES)
def test_a_private_name_stays_in_its_file(paths: list[Path]) -> None:
    for path in paths:
        ours = {name for name in imports(path) if name.split(".")[0] in PILLARS}
        assert not {name for name in ours if name.rpartition(".")[2].startswith("_")}, path


@by_folder(FILES)
def test_a_heavy_library_has_one_door(paths: list[Path]) -> None:
    for path, module in ((p, m) for p in paths for m in imports(p)):
        top = module.removeprefix("torch.utils.").split(".")[0]  # torch has its own way to tensorboard
        if top in ONLY_IN:
            assert path.as_posix().startswith(ONLY_IN[top]), f"{top} may be imported in {ONLY_IN[top]} alone"
        if top == "triton":
            fused = path.name == "fused.py" or path.parent.name == "fused" or path.parent.name == "triton_tiles"
            assert fused or path == AHEAD, (
                f"triton may be imported in fused.py, fused/, triton_tiles/ and {AHEAD} alone"
            )
            assert path.as_posix().startswith("arch/kernels/")
        if module.split(".")[0] in ("torch", "triton"):
            assert path.parts[0] not in ("synth", "results")


@by_folder([p for p in FILES if p.parts[0] == "arch"])
def test_arch_is_built_from_the_ground_up(paths: list[Path]) -> None:
    for path in paths:
        here = floor(module_of(path))
        if here is not None:
            assert not {m for m in imports(path) if (other := floor(m)) is not None and other < here}, path


@pytest.mark.parametrize("family", ["synth/tasks", "arch/mixers", "search/samplers"])
def test_siblings_do_not_import_siblings(family: str) -> None:
    members = [p for p in FILES if p.parent.as_posix() == family and p.name not in SHARED]
    names = {module_of(p) for p in members}
    assert members
    for path in members:
        assert not {m for m in imports(path) if any(m == n or m.startswith(n + ".") for n in names)}


@by_folder(FILES)
def test_a_file_says_what_it_is_and_is_no_longer_than_can_be_read(paths: list[Path]) -> None:
    for path in paths:
        assert path.stem not in EMPTY_NAMES, f"{path} says nothing by its name"
        assert ast.get_docstring(tree(path)), f"{path} opens with no sentence"
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        assert lines <= MOST_LINES, f"{path} has {lines} lines, at most {MOST_LINES}"


def prose(path: Path) -> Iterator[str]:
    """The docstrings and comments of a Python file; the text of a Markdown file but for its blocks (see test_guides.py)."""
    if path.suffix == ".md":
        text = (ROOT / path).read_text(encoding="utf-8")
        yield re.sub(r"^```.*?^```$|^<!-- file: .*?$", "", text, flags=re.M | re.S)
        return
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    yield from (ast.get_docstring(node) or "" for node in ast.walk(tree(path)) if isinstance(node, documented))
    with (ROOT / path).open("rb") as file:
        lines = [line for line in file.read().decode().splitlines() if "#" in line]
        if any(_NAME.search(line) or _PATH.search(line) for line in lines):  # else no comment names anything
            file.seek(0)
            yield from (token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT)


def is_there(name: str) -> bool:
    """True for the dotted name of a module or a folder, or of a name in the text of a module."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module, rest = ".".join(parts[:count]), parts[count:]
        if module in MODULES:
            text = (ROOT / MODULES[module]).read_text(encoding="utf-8")
            return not rest or re.search(rf"\b{rest[0]}\b", text) is not None
    return (ROOT / Path(*parts)).is_dir()


@by_folder([*FILES, *TESTS, *DOCUMENTS])
def test_a_module_or_a_file_that_prose_names_exists(paths: list[Path]) -> None:
    """A name with an ending, as `search.html`, is a file's. NAME and STUDY stand for any. A command makes what git ignores."""
    made = {line.removeprefix("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()}
    for path, text in ((p, t) for p in paths for t in prose(p)):
        names = [name for name in _NAME.findall(text) if not name.endswith((".py", ".html", ".md", ".yaml", ".sqlite"))]
        assert [name for name in names if not is_there(name)] == [], path
        named = [name for name in _PATH.findall(text) if "NAME" not in name and "STUDY" not in name]
        assert [name for name in named if name not in made and not (ROOT / name).exists()] == [], path


@by_folder(TESTS)
def test_tests_mirror_the_tree(paths: list[Path]) -> None:
    for path in paths:
        assert path.parent == Path("tests") or (ROOT / path.parent.relative_to("tests")).is_dir(), path


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['recallmap', '--help']\n"
        "from recallmap.search.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'optuna', 'plotly', 'pandas', 'pydantic', 'yaml', 'numpy', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "recallmap" in done.stdout
