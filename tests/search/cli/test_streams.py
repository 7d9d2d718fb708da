"""Whatever stdout is - closed, full, cut off, without our signs - a verb says so in a sentence or goes on."""

from __future__ import annotations

import ast
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record, write_records

ROOT = Path(__file__).parents[3]
VERB = [sys.executable, "-m", "recallmap.search.cli"]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **more}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With records of two seeds and of one that failed, so that a table has a †."""
    records = [
        Record(
            key=str(seed),
            study="story",
            status="done" if seed < 2 else "failed",
            error=None if seed < 2 else "diverged",
            spec={"task": {"pairs": 4}, "arch": {"name": "größe"}, "seed": seed},
            task="mqar",
            setting="",
            protocol="repaired",
            arch="größe",
            seed=seed,
            scores={"accuracy": 0.5 + seed / 10} if seed < 2 else {},
            validation={"accuracy": 0.5},
        )
        for seed in range(3)
    ]
    write_records(tmp_path / "all.jsonl", records)
    return tmp_path


@pytest.mark.parametrize(
    ("setting", "row"),
    [
        ({"PYTHONIOENCODING": "ascii"}, "| gr\\xf6\\xdfe | 0 B | 2 | 55.0 (50.0 / 60.0) !1 |"),
        ({"PYTHONIOENCODING": "latin-1"}, "| größe | 0 B | 2 | 55.0 (50.0 / 60.0) !1 |"),
        (
            {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
            "| gr\\xf6\\xdfe | 0 B | 2 | 55.0 (50.0 / 60.0) !1 |",
        ),
    ],
)
def test_signs_that_stdout_lacks_are_told_in_those_that_it_has(setting: dict[str, str], row: str, folder: Path) -> None:
    done = subprocess.run(
        [*VERB, "table", "all.jsonl"], cwd=folder, env=environment(**setting), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert row in done.stdout.decode("latin-1")


def test_a_table_fits_a_stdout_without_frames(folder: Path) -> None:
    done = subprocess.run(
        [*VERB, "list", "suites"],
        cwd=folder,
        env=environment(PYTHONIOENCODING="ascii"),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"state_tracking" in done.stdout


SMALL = ("run", "parity", "--set", "budget=smoke", "--device", "cpu", "--json")


@pytest.mark.parametrize("words", [("--version",), ("table", "all.jsonl"), ("list", "suites"), SMALL])
def test_who_reads_no_further_is_no_news(words: tuple[str, ...], folder: Path) -> None:
    with subprocess.Popen(
        [*VERB, *words], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_all_that_is_said_goes_through_one_door() -> None:
    for pillar in ("synth", "arch", "search", "results"):
        for path in (ROOT / pillar).rglob("*.py"):
            names = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
            called = {name.id for name in names if isinstance(name, ast.Name)}
            assert not called & {"print", "Console"} or path.name == "streams.py", path


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
@pytest.mark.parametrize("words", [("--version",), ("table", "all.jsonl"), ("list", "suites")])
def test_a_full_disk_behind_stdout_is_told(words: tuple[str, ...], folder: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*VERB, *words], cwd=folder, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    said = "the output cannot be written: No space left on device; free some space, or write elsewhere\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_study_without_any_open_stream_trains_and_writes_nothing_into_its_ledger(folder: Path) -> None:
    study = {
        "name": "story",
        "trial": {
            "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
            "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": {"kind": "linear_attention"}}]},
            "training": {"steps": 1, "batch": 4, "evaluations": 1},
            "data": {"validation": 8, "test": 8},
        },
    }
    (folder / "story.yaml").write_text(json.dumps(study))
    command = f"exec {sys.executable} -m recallmap.search.cli run story.yaml <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", command], cwd=folder, env=environment(), check=False)
    assert done.returncode == 0
    with Ledger.open(folder / "runs" / "story.sqlite") as ledger:
        assert [record.status for record in ledger.all()] == ["done"]


def test_what_is_written_to_a_closed_terminal_does_not_change_the_exit_code() -> None:
    program = (
        "import sys; from recallmap.search.cli.streams import made_ready, settle\n"
        "with made_ready():\n"
        "    input(); settle(); print('to nobody'); print('to nobody', file=sys.stderr); sys.exit(129)"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment(), stdin=subprocess.PIPE, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        os.close(ours)
        process.communicate(b"go\n")
    assert process.returncode == 129
