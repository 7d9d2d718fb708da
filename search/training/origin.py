"""The code, the packages and the machine behind a record."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "triton", "numpy")  # whose versions a record keeps

ROOT = Path(__file__).resolve().parents[2]

# Where the commit is written for copies without git: by `make stamp`, and by `git archive` (export-subst).
STAMPS = (".commit", "search/commit.txt")


def versions() -> dict[str, str]:
    """Versions of the installed packages, and of Python."""
    return {name: found for name in PACKAGES if (found := version(name))} | {"python": platform.python_version()}


def version(package: str) -> str | None:
    """The version of a package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def commit() -> str | None:
    """The git commit that the code runs from, with "+" where the tree has changes; None where it is unknown."""
    return commit_of(ROOT)


def commit_of(root: Path) -> str | None:
    """The commit of a checkout, or of its stamp where git does not know it, as in a copy without .git.

    A stamp next to .git is not read, because git knows better. A repository around the copy is not read either.
    """
    try:
        told, changes = (
            subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
            for words in (["rev-parse", "HEAD", "--show-toplevel"], ["status", "--porcelain", "-uno"])
        )
    except FileNotFoundError:  # no git on this machine
        return _stamped(root)
    head, _, top = told.stdout.strip().partition("\n")
    if told.returncode != 0 or Path(top).resolve() != root.resolve():
        return _stamped(root)
    return head + ("+" if changes.stdout.strip() else "")


def _stamped(root: Path) -> str | None:
    for name in STAMPS:
        try:
            text = (root / name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        if re.fullmatch(r"[0-9a-f]{40,64}\+?", text):
            return text
    return None


def summary() -> str:
    """One line for people, such as "recallmap 0.1.0, torch 2.10.0, python 3.11.7, commit 0123456789ab"."""
    own = version("recallmap") or "(not installed)"
    parts = [
        f"recallmap {own}",
        f"torch {version('torch') or '(not installed)'}",
        f"python {platform.python_version()}",
    ]
    if (known := commit()) is not None:
        parts.append(f"commit {known[:12]}{'+' * known.endswith('+')}")
    return ", ".join(parts)


def device_name(device: torch.device) -> str:
    """The name of a GPU; for a CPU its threads and processor, on which the last digits depend."""
    import torch  # slow to import, and `--version` asks for none of it

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu, {torch.get_num_threads()} threads of {processor()}"


@functools.cache
def processor() -> str:
    """The processor as Linux names it, else as Python does."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return named(text) or platform.processor() or platform.machine() or "an unknown processor"


def named(cpuinfo: str) -> str:
    """The first processor of /proc/cpuinfo, "AMD EPYC (family 25 model 17)"; "" where it has no name.

    Several processors go by one name; family and model tell which instructions they have. No comma is in it, for lists of
    devices have theirs.
    """
    first = cpuinfo.strip().partition("\n\n")[0]
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name = " ".join(facts.get("model name", "").replace(",", " ").split())
    kin = " ".join(
        f"{word} {facts[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if facts.get(key)
    )
    return f"{name} ({kin})" if name and kin else name
