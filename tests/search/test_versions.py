"""The version of everything that a trial is trained with, for people and for records."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from search import versions

ROOT = Path(__file__).parents[2]


def test_the_verbs_are_a_module_that_tells_its_version() -> None:
    command = [sys.executable, "-m", "search.cli"]
    done = subprocess.run([*command, "--version"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{versions.summary()}\n")
    own = re.fullmatch(r"recallmap \S+, torch \S+, python \d+\.\d+\.\d+(, commit [0-9a-f]{12}\+?)?", versions.summary())
    assert own is not None
    done = subprocess.run([*command, "nosuch"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "No such command 'nosuch'" in done.stderr) == (2, True)


def test_a_commit_is_told_of_a_checkout_of_ours_alone(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", *who, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    file = tmp_path / "site-packages" / "search" / "versions.py"
    file.parent.mkdir(parents=True)
    shutil.copy(ROOT / "search" / "versions.py", file)
    assert versions.commit(file) is None
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "somebody else's")
    versions.commit.cache_clear()
    assert versions.commit(file) is None  # installed below a checkout of another project
    git("add", "-f", ".")
    git("commit", "-q", "-m", "ours")
    versions.commit.cache_clear()
    assert versions.commit(file) == git("rev-parse", "HEAD")
    file.write_text("changed")
    versions.commit.cache_clear()
    assert versions.commit(file) == f"{git('rev-parse', 'HEAD')}+"
    versions.commit.cache_clear()


def test_a_record_says_what_trained_it() -> None:
    assert {"torch", "numpy", "python"} <= set(versions.versions())
    assert versions.version("no such package") is None
