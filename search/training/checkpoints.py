"""What cohorts have learned so far, on disk: who is interrupted goes on from there, and not from the beginning.

Training says at its evaluations where it is, and it is written down every few minutes where somebody keeps a shelf.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recallmap.results.atomic_write import FULL, begin, remedy, write_whole
from recallmap.results.ledger import LedgerError
from recallmap.search.documents import content_key

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec


def shelf_of(ledger_path: Path) -> Path:
    """Where the unfinished cohorts of a ledger lie."""
    return Path(ledger_path).with_suffix(".unfinished")


EVERY = 120.0  # seconds between two writings

WHOLE = ".safetensors"

_NAME = re.compile(rf"[0-9a-f]{{32}}{WHOLE}")

# What is not whole: a file that was being written, what is `known` to be through of one, and a draft of that.
_HALF = re.compile(r"[0-9a-f]{32}\.partial|(?P<known>[0-9a-f]{32}\.through)|\.[0-9a-f]{32}\.\d+\.through")


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
        self.owners: list[str] = []  # keys, in the ledger, of the trials for which cohorts are trained now

    def tidy(self, done: Set[str]) -> None:
        """Remove what a driver left that was killed: the ledger has every trial (`done`: their keys) for which it was laid
        down, or it is half of something. The caller holds the ledger, so nobody else is at work here."""
        for laid in self.files():
            if laid.owners and laid.owners <= done:
                laid.path.unlink()
        for path in list(self.folder.iterdir()) if self.folder.is_dir() else ():
            if (half := _HALF.fullmatch(path.name)) and not (half["known"] and path.with_suffix(WHOLE).exists()):
                with suppress(OSError):  # a folder: none of ours
                    path.unlink()
        self._leave()

    def laid(self) -> list[frozenset[str]]:
        """The keys of the trials of every cohort that lies here: those that go on only together with each other."""
        return [laid.keys for laid in self.files()]

    def clear(self) -> None:
        """Forget the cohorts that were taken up or laid down since the last call: they are through. What others were laid down
        with stays until they are."""
        for path, trials in self.used:
            for half in (_beside(path), *(() if path.exists() else (_through(path),))):
                _remove(half)
            laid = _laid_in(path)
            if laid is None:
                continue
            through = {*trials, *_told_through(path)}
            if not laid.going <= through:
                write_whole(_through(path), json.dumps(sorted(through)))
                continue
            path.unlink()
            _remove(_through(path))
        self.used = []
        self._leave()

    def files(self, first: Path | None = None) -> Iterator[_Laid]:
        """All that lies here. What cannot be read is told of and goes, for its trials to begin anew; what is not ours, a link
        or a file of another name or content, is neither read nor touched."""
        found = sorted(self.folder.glob(f"*{WHOLE}")) if self.folder.is_dir() else []
        for path in sorted(found, key=lambda path: path != first):
            if (laid := _laid_in(path)) is not None:
                yield laid

    def _leave(self) -> None:
        """Without a folder, where nothing lies in it."""
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            with suppress(OSError):  # a link to one
                self.folder.rmdir()


class Place:
    """Of one cohort on the shelf: of these trials, that begin with these weights [N, P], under this PyTorch."""

    def __init__(self, shelf: Shelf, specs: Sequence[TrialSpec], weights_NP: Tensor) -> None:
        starts = weights_NP.detach().cpu().contiguous().numpy()
        self.trials = [
            hashlib.sha256(f"{torch.__version__}\n{content_key.key(spec)}\n".encode() + row.tobytes()).hexdigest()[:32]
            for spec, row in zip(specs, starts, strict=True)
        ]
        self.keys = [content_key.key(spec) for spec in specs]
        self.owners = shelf.owners or self.keys
        name = hashlib.sha256("\n".join(self.trials).encode()).hexdigest()[:32]
        self.shelf, self.path = shelf, shelf.folder / f"{name}{WHOLE}"
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
            about = {"said": said, "trials": self.trials, "keys": self.keys, "owners": self.owners}
            begin(beside)
            save_file(apart, beside, metadata={name: json.dumps(value) for name, value in about.items()})
            handle = os.open(beside, os.O_RDWR | os.O_NOFOLLOW)
            try:
                os.fsync(handle)  # before it takes the place of what is whole
            finally:
                os.close(handle)
            beside.replace(self.path)
        except (OSError, SafetensorError) as error:
            why = f"{error}; make room for it, or move away what is in its place"
            if isinstance(error, OSError) and error.errno in FULL:
                why = remedy(error)
            raise LedgerError(f"{self.path.parent}: what is unfinished cannot be written there: {why}") from error
        self.last = time.monotonic()

    def take_up(self) -> tuple[dict[str, Tensor], dict[str, Any], list[int]] | None:
        """What was written last of these trials, on the CPU, and which of the trials in it each is; None where nothing was.
        There may be more in it: those that were through have left the cohort."""
        from safetensors import safe_open

        for laid in self.shelf.files(self.path):
            if set(self.trials) <= set(laid.trials):
                with safe_open(laid.path, framework="pt") as file:
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                self.shelf.used.append((laid.path, self.trials))
                return tensors, dict(laid.said), [laid.trials.index(trial) for trial in self.trials]
        return None


@dataclass(frozen=True, kw_only=True)
class _Laid:
    """A file of a cohort.

    said    what training said of it
    trials  that were laid down, each by a hash
    keys    of these trials
    owners  keys, in the ledger, of the trials for which they were trained: of one of several phases these are others
    """

    path: Path
    said: Mapping[str, Any]
    trials: tuple[str, ...]
    keys: frozenset[str]
    owners: frozenset[str]

    @property
    def going(self) -> set[str]:
        """The trials that were not through when it was written."""
        return {self.trials[member] for member in self.said["members"]}


def _laid_in(path: Path) -> _Laid | None:
    """What lies at a path; None where nothing does, or nothing of ours. Ours that cannot be read is told of, and goes."""
    from safetensors import SafetensorError, safe_open

    if not _is_file(path):
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = {name: json.loads(text) for name, text in (file.metadata() or {}).items()}
        keys = frozenset(about["keys"])
        owners = frozenset(about.get("owners", keys))  # files of earlier versions do not tell
        return _Laid(path=path, said=about["said"], trials=tuple(about["trials"]), keys=keys, owners=owners)
    except (ValueError, KeyError, TypeError, OSError):  # somebody else's, unreadable, or gone just now
        return None
    except SafetensorError:
        if _NAME.fullmatch(path.name):
            warnings.warn(f"{path} is damaged: what was unfinished there begins anew", RuntimeWarning, stacklevel=2)
            path.unlink()
        return None


def _told_through(path: Path) -> list[str]:
    """Of the trials in a file those that are told to be through since."""
    try:
        return list(map(str, json.loads(_through(path).read_text()))) if _is_file(_through(path)) else []
    except (OSError, ValueError, TypeError):
        return []


def _is_file(path: Path) -> bool:
    """Itself, and no link to one: what we did not write we do not follow."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _remove(path: Path) -> None:
    with suppress(OSError):  # nothing is there, or a folder
        path.unlink()


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
