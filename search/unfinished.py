"""What cohorts have learned so far, on disk: who is interrupted goes on from there, and not from the beginning.

Training says at its evaluations where it is, and it is written down every few minutes where somebody keeps a shelf.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from results.ledger import LedgerError
from results.write import begin, remedy, write_whole
from search import codec

if TYPE_CHECKING:
    from search.trial import TrialSpec

EVERY = 120.0  # seconds between two writings


class Shelf:
    """A folder of unfinished cohorts. Files are safetensors; a folder that is not needed is not made. Raises LedgerError where
    the folder is a link: what is damaged in it goes, and would go elsewhere.

    every  seconds between two writings of a cohort
    """

    def __init__(self, folder: Path, every: float = EVERY) -> None:
        if folder.is_symlink():
            raise LedgerError(
                f"{folder} is a symbolic link, it must be a folder that recallmap makes beside the ledger; remove the link, "
                "or put the ledger itself where it points to"
            )
        self.folder, self.every = folder, every
        self.used: list[tuple[Path, list[str]]] = []

    def laid(self) -> list[frozenset[str]]:
        """The keys of the trials of every cohort that lies here: those that go on only together with each other."""
        return [frozenset(json.loads(about.get("keys", "[]"))) for _, about in self.files()]

    def clear(self) -> None:
        """Forget the cohorts that were taken up or laid down since the last call: they are through. What others were laid down
        with stays until they are."""
        for path, trials in self.used:
            _beside(path).unlink(missing_ok=True)
            if not path.exists():
                continue
            known = _through(path)
            through = {*trials, *(json.loads(known.read_text()) if known.exists() else ())}
            about = _about(path)
            if about is not None and not _going(about) <= through:
                write_whole(known, json.dumps(sorted(through)))
                continue
            path.unlink()
            known.unlink(missing_ok=True)
        self.used = []
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def files(self, first: Path | None = None) -> Iterator[tuple[Path, dict[str, str]]]:
        """All that lies here, and what each says of itself. One that cannot be read is told of and goes, for its trials to
        begin anew."""
        found = sorted(self.folder.glob("*.safetensors")) if self.folder.is_dir() else []
        for path in sorted(found, key=lambda path: path != first):
            about = _about(path)
            if not path.exists():
                continue  # another worker was through with it just now
            if about is None:
                warnings.warn(f"{path} is damaged: what was unfinished there begins anew", RuntimeWarning, stacklevel=2)
                path.unlink()
            else:
                yield path, about


class Place:
    """Of one cohort on the shelf: of these trials, that begin with these weights [N, P], under this PyTorch."""

    def __init__(self, shelf: Shelf, specs: Sequence[TrialSpec], weights_NP: Tensor) -> None:
        starts = weights_NP.detach().cpu().contiguous().numpy()
        self.trials = [
            hashlib.sha256(f"{torch.__version__}\n{codec.key(spec)}\n".encode() + row.tobytes()).hexdigest()[:32]
            for spec, row in zip(specs, starts, strict=True)
        ]
        self.keys = [codec.key(spec) for spec in specs]
        name = hashlib.sha256("\n".join(self.trials).encode()).hexdigest()[:32]
        self.shelf, self.path = shelf, shelf.folder / f"{name}.safetensors"
        self.every, self.last = shelf.every, time.monotonic()
        shelf.used.append((self.path, self.trials))

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self.last >= self.every

    def lay_down(self, tensors: Mapping[str, Tensor], said: Mapping[str, Any]) -> None:
        """Write tensors, and plain data about them: whole or not at all. Raises LedgerError where that cannot be."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        beside = _beside(self.path)
        apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            about = {"said": said, "trials": self.trials, "keys": self.keys}
            begin(beside)
            save_file(apart, beside, metadata={name: json.dumps(value) for name, value in about.items()})
            with beside.open("rb+") as file:
                os.fsync(file.fileno())  # before it takes the place of what is whole
            beside.replace(self.path)
        except (OSError, SafetensorError) as error:
            why = remedy(error) if isinstance(error, OSError) else f"{error}; free some space if the disk is full"
            raise LedgerError(f"{self.path.parent}: what is unfinished cannot be written there: {why}") from error
        self.last = time.monotonic()

    def take_up(self) -> tuple[dict[str, Tensor], dict[str, Any], list[int]] | None:
        """What was written last of these trials, on the CPU, and which of the trials in it each is; None where nothing was.
        There may be more in it: those that were through have left the cohort."""
        from safetensors import safe_open

        for path, about in self.shelf.files(self.path):
            trials = json.loads(about.get("trials", "[]"))  # files of earlier versions do not tell
            if set(self.trials) <= set(trials):
                with safe_open(path, framework="pt") as file:
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                self.shelf.used.append((path, self.trials))
                return tensors, json.loads(about["said"]), [trials.index(trial) for trial in self.trials]
        return None


def _about(path: Path) -> dict[str, str] | None:
    """What a file says of itself; None where it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata())
    except (FileNotFoundError, SafetensorError):
        return None


def _going(about: Mapping[str, str]) -> set[str]:
    """Of the trials in a file those that were not through when it was written."""
    trials = json.loads(about.get("trials", "[]"))
    return {trials[member] for member in json.loads(about["said"])["members"]} if trials else set()


def _through(path: Path) -> Path:
    """Where the trials of a file are told that are through since."""
    return path.with_suffix(".through")


def _beside(path: Path) -> Path:
    """Where a file is while it is not whole."""
    return path.with_suffix(".partial")


_SHELF: ContextVar[Shelf | None] = ContextVar("shelf", default=None)


@contextmanager
def kept_on(shelf: Shelf) -> Iterator[Shelf]:
    """Within it, cohorts that are trained are laid down on the shelf, and taken up from it."""
    token = _SHELF.set(shelf)
    try:
        yield shelf
    finally:
        _SHELF.reset(token)


def place_of(specs: Sequence[TrialSpec], weights: Tensor) -> Place | None:
    """Where these trials are kept that begin, as one cohort, with these weights; None where nobody keeps them."""
    shelf = _SHELF.get()
    return None if shelf is None else Place(shelf, specs, weights)
