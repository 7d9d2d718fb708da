"""What cohorts have learned so far, on disk: who is interrupted goes on from there, and not from the beginning.

Training says at its evaluations where it is, and it is written down every few minutes where somebody keeps a shelf.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from results.ledger import LedgerError
from search import codec

if TYPE_CHECKING:
    from search.trial import TrialSpec

EVERY = 120.0  # seconds between two writings


class Shelf:
    """A folder of unfinished cohorts. Files are safetensors; a folder that is not needed is not made.

    every  seconds between two writings of a cohort
    """

    def __init__(self, folder: Path, every: float = EVERY) -> None:
        self.folder, self.every = folder, every
        self.used: list[Path] = []

    def clear(self) -> None:
        """Forget the cohorts that were taken up or laid down since the last call: they are through."""
        for path in self.used:
            path.unlink(missing_ok=True)
            _beside(path).unlink(missing_ok=True)
        self.used = []
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()


class Place:
    """Of one cohort on the shelf: of these trials, that begin with these weights [N, P], under this PyTorch."""

    def __init__(self, shelf: Shelf, specs: Sequence[TrialSpec], weights_NP: Tensor) -> None:
        starts = weights_NP.detach().cpu().contiguous().numpy()
        self.trials = [
            hashlib.sha256(f"{torch.__version__}\n{codec.key(spec)}\n".encode() + row.tobytes()).hexdigest()[:32]
            for spec, row in zip(specs, starts, strict=True)
        ]
        name = hashlib.sha256("\n".join(self.trials).encode()).hexdigest()[:32]
        self.shelf, self.path = shelf, shelf.folder / f"{name}.safetensors"
        self.every, self.last = shelf.every, time.monotonic()
        shelf.used.append(self.path)

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
            save_file(apart, beside, metadata={"said": json.dumps(said), "trials": json.dumps(self.trials)})
            beside.replace(self.path)
        except (OSError, SafetensorError) as error:
            raise LedgerError(f"{self.path.parent}: what is unfinished cannot be written there: {error}") from error
        self.last = time.monotonic()

    def take_up(self) -> tuple[dict[str, Tensor], dict[str, Any], list[int]] | None:
        """What was written last of these trials, on the CPU, and which of the trials in it each is; None where nothing was.
        There may be more in it: those that were through have left the cohort."""
        from safetensors import safe_open

        others = sorted(self.shelf.folder.glob("*.safetensors")) if self.shelf.folder.is_dir() else []
        for path in [self.path, *others]:
            if not path.exists():
                continue
            with safe_open(path, framework="pt") as file:
                about = file.metadata()
                trials = json.loads(about.get("trials", "[]"))  # files of earlier versions do not tell
                if not set(self.trials) <= set(trials):
                    continue
                self.shelf.used.append(path)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                return tensors, json.loads(about["said"]), [trials.index(trial) for trial in self.trials]
        return None


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
