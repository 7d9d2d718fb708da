"""A wheel, installed beside a package called `arch` and used in a folder with a `search.py` and a `results` of one's own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from recallmap.results.ledger import Ledger

ROOT = Path(__file__).parents[1]
TINY = {
    "name": "tiny",
    "trial": {
        "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": {"kind": "mesa", "heads": 2}}]},
        "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
        "training": {"steps": 4, "batch": 4, "evaluations": 1},
        "data": {"train": 16, "validation": 4, "test": 4},
    },
    "space": {"kind": "grid", "axes": {"trial.seed": [0, 1]}},
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the wheel was installed in, and a package `arch` of somebody else's before it."""
    folder = tmp_path_factory.mktemp("wheel")
    aside = shutil.ignore_patterns(".*", "build", "runs", "tests", "records", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "source", ignore=aside)
    make = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*make, "-w", str(folder), str(folder / "source")], check=True)
    (folder / "site" / "arch").mkdir(parents=True)
    (folder / "site" / "arch" / "__init__.py").write_text("OWNER = 'somebody'\n", encoding="utf-8")
    (wheel,) = folder.glob("recallmap-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A folder whose modules have our pillars' names and may not be imported."""
    for name in ("search.py", "synth.py", "results/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"raise SystemExit('{name} was imported')\n", encoding="utf-8")
    (tmp_path / "tiny.yaml").write_text(json.dumps(TINY), encoding="utf-8")
    return tmp_path


def python(desk: Path, site: Path, *words: str) -> str:
    """What a Python in the folder says that has the wheel installed."""
    environment = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, *words], cwd=desk, env=environment, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_wheel_leaves_the_names_of_its_folders_to_others(desk: Path, site: Path) -> None:
    found = python(desk, site, "-c", "import arch, recallmap.arch as ours; print(arch.OWNER, ours.__file__)")
    assert found.split() == ["somebody", str(site / "recallmap" / "arch" / "__init__.py")]
    assert sorted(path.name for path in site.iterdir() if path.suffix != ".dist-info") == ["arch", "recallmap"]
    assert (site / "recallmap/search/templates/mixer.py").is_file()


SCRIPT = """
import recallmap as rm

arch = rm.arch("mesa", width=16)
trial = rm.trial(rm.task("mqar", vocab=32, length=16, pairs=2), arch, steps=2, data={"validation": 4, "test": 4})
df = rm.records(rm.run(trial, ledger="a.sqlite", device="cpu"))
print(df.status[0], len(rm.figure(df).data), rm.kernels.__name__)
"""


def test_a_script_of_one_s_own_runs_in_such_a_folder(desk: Path, site: Path) -> None:
    (desk / "script.py").write_text(SCRIPT, encoding="utf-8")
    assert python(desk, site, "script.py").split()[::2] == ["done", "recallmap.arch.kernels"]


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_an_installed_wheel_trains_in_a_folder_with_modules_of_the_same_names(
    engine: str, desk: Path, site: Path
) -> None:
    python(
        desk, site, "-m", "recallmap", "run", "tiny.yaml", "--engine", engine, "--device", "cpu", "--ledger", "a.sqlite"
    )
    with Ledger.open(desk / "a.sqlite") as ledger:
        assert [record.status for record in ledger.all()] == ["done", "done"]
