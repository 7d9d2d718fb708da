"""Of what version everything is that a trial is trained with: packages, Python, and the commit of a checkout."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path

PACKAGES = ("torch", "triton", "numpy")  # whose versions a record keeps


def versions() -> dict[str, str]:
    """Of the packages that are installed, and of Python."""
    return {name: found for name in PACKAGES if (found := version(name))} | {"python": platform.python_version()}


def version(package: str) -> str | None:
    """Of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def commit(file: Path = Path(__file__)) -> str | None:
    """The git commit that the code runs from, "+" where the tree has changes; None outside a checkout of ours, as where the
    package is installed below somebody else's."""
    here = file.parent
    try:
        ours, head, changes = (
            subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=False)
            for words in (
                ["ls-files", "--error-unmatch", file.name],
                ["rev-parse", "HEAD"],
                ["status", "--porcelain", "-uno"],
            )
        )
    except FileNotFoundError:  # no git on this machine
        return None
    if ours.returncode != 0 or head.returncode != 0:
        return None
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")


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
