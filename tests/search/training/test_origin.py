"""What code and what machine a record is from."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from recallmap.search.training import origin
from recallmap.search.training.origin import commit_of, device_name, named

ROOT = Path(__file__).parents[3]
STAMP = "0123456789abcdef0123456789abcdef01234567"
Git = Callable[..., str]


@pytest.fixture
def git(monkeypatch: pytest.MonkeyPatch) -> Git:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")

    def run(root: Path, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    return run


@pytest.fixture
def checkout(tmp_path: Path, git: Git) -> Path:
    """A repository with what this one has for stamps, all committed."""
    root = tmp_path / "checkout"
    (root / "search").mkdir(parents=True)
    for name in ("Makefile", ".gitignore", ".gitattributes", "search/commit.txt"):
        shutil.copy(ROOT / name, root / name)
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "all")
    return root


def stamped(root: Path) -> str:
    subprocess.run(["make", "--quiet", "stamp"], cwd=root, capture_output=True, check=True)
    return (root / ".commit").read_text(encoding="utf-8").strip()


def test_git_speaks_for_a_checkout_whatever_its_stamp_says(checkout: Path, git: Git) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    (checkout / ".commit").write_text(STAMP, encoding="utf-8")
    assert commit_of(checkout) == head
    (checkout / "Makefile").write_text("changed", encoding="utf-8")
    assert commit_of(checkout) == f"{head}+"


def test_a_copy_without_git_has_the_commit_of_its_stamp(checkout: Path, git: Git, tmp_path: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    assert stamped(checkout) == head
    assert git(checkout, "status", "--porcelain") == ""  # it is ignored
    with (checkout / "search" / "commit.txt").open("a", encoding="utf-8") as file:
        file.write("changed")
    assert stamped(checkout) == f"{head}+"
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    assert commit_of(copy) == f"{head}+"


def test_a_copy_without_git_and_stamp_has_no_commit(checkout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    assert commit_of(copy) is None
    (copy / ".commit").write_text("main", encoding="utf-8")
    assert commit_of(copy) is None


def test_what_git_archives_has_its_commit(checkout: Path, git: Git, tmp_path: Path) -> None:
    git(checkout, "archive", "--format", "zip", "--output", str(tmp_path / "all.zip"), "HEAD")
    shutil.unpack_archive(tmp_path / "all.zip", tmp_path / "copy")
    assert commit_of(tmp_path / "copy") == git(checkout, "rev-parse", "HEAD")


def test_a_copy_has_nothing_of_a_repository_that_it_lies_in(checkout: Path) -> None:
    inner = checkout / "lib" / "recallmap"
    inner.mkdir(parents=True)
    assert commit_of(inner) is None
    (inner / ".commit").write_text(f"{STAMP}+\n", encoding="utf-8")
    assert commit_of(inner) == f"{STAMP}+"


def test_without_git_on_the_machine_the_stamp_speaks(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / ".commit").write_text(STAMP, encoding="utf-8")
    monkeypatch.setenv("PATH", str(checkout))
    assert commit_of(checkout) == STAMP


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD  EPYC, 9\n\n"
            "processor\t: 1\nmodel name\t: Other\n",
            "AMD EPYC 9 (family 25 model 17)",
        ),
        ("processor\t: 0\nmodel name\t: Some Core\n", "Some Core"),
        ("processor\t: 0\nCPU implementer\t: 0x41\n\n", ""),
        ("", ""),
    ],
    ids=["x86", "no family", "arm", "nothing"],
)
def test_a_processor_is_told_by_name_family_and_model(cpuinfo: str, name: str) -> None:
    assert named(cpuinfo) == name


def test_a_cpu_has_its_threads_and_its_processor_and_begins_as_it_always_did() -> None:
    """Tables share out records by what stands ahead of the first comma."""
    name = device_name(torch.device("cpu"))
    assert name == f"cpu, {torch.get_num_threads()} threads of {origin.processor()}"
    assert origin.processor()
    assert name.count(",") == 1
