"""The version of everything that a trial is trained with, for people and for records."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from recallmap.search.training import origin

ROOT = Path(__file__).parents[3]


def test_the_verbs_are_a_module_that_tells_its_version() -> None:
    command = [sys.executable, "-m", "recallmap.search.cli"]
    done = subprocess.run([*command, "--version"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{origin.summary()}\n")
    own = re.fullmatch(r"recallmap \S+, torch \S+, python \d+\.\d+\.\d+(, commit [0-9a-f]{12}\+?)?", origin.summary())
    assert own is not None
    done = subprocess.run([*command, "nosuch"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "No such command 'nosuch'" in done.stderr) == (2, True)


def test_a_record_says_what_trained_it() -> None:
    assert {"torch", "numpy", "python"} <= set(origin.versions())
    assert origin.version("no such package") is None
