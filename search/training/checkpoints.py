"""Checkpoints of unfinished cohorts, from which an interrupted run resumes.

Training saves at evaluations, every few minutes, where the engine has set a checkpoint folder. Where the time of a run is
up, it saves after any step.
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
from recallmap.search.training.time_limit import NEVER, TimeLimit

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec


def checkpoint_folder(ledger_path: Path) -> Path:
    """The folder of a ledger's unfinished cohorts."""
    return Path(ledger_path).with_suffix(".unfinished")


EVERY = 120.0  # seconds between two writings

WHOLE = ".safetensors"

_NAME = re.compile(rf"[0-9a-f]{{32}}{WHOLE}")

# Partial files: one that was being written, under our name and under the one that safetensors gives it before, the list of
# `known` finished trials of one, and a draft of that list.
_HALF = re.compile(
    r"[0-9a-f]{32}\.partial|\.tmp[0-9A-Za-z]{6}|(?P<known>[0-9a-f]{32}\.through)|\.[0-9a-f]{32}\.\d+\.through"
)


class CheckpointFolder:
    """A folder of unfinished cohorts, a safetensors file each. It is made when it is first needed.

    every   seconds between two writings of a cohort
    limit   of the run, at which cohorts are saved and stop
    shared  True where other processes save in it, too: it is left where it is empty

    Raises LedgerError where the folder is a link, because damaged files in it are removed.
    """

    def __init__(self, folder: Path, every: float = EVERY) -> None:
        if folder.is_symlink():
            raise LedgerError(
                f"{folder} is a symbolic link, a folder is expected, which recallmap makes beside the ledger; remove the "
                "link, or put the ledger itself where it points to"
            )
        self.folder, self.every = folder, every
        self.limit: TimeLimit = NEVER
        self.shared = False
        self.used: list[tuple[Path, list[str]]] = []
        self.owners: list[str] = []  # keys, in the ledger, of the trials for which cohorts are trained now

    def limited(self, limit: TimeLimit) -> None:
        """Save cohorts at the end of this limit, and a few times before it: a phase that ends is not saved for itself."""
        self.limit, self.every = limit, min(self.every, limit.seconds / 4)

    def tidy(self, done: Set[str]) -> None:
        """Remove what a killed driver left: checkpoints whose trials are all in the ledger (`done`: their keys), and partial
        files. The caller holds the ledger, so nobody else is at work here."""
        for saved in self.files():
            if saved.owners and saved.owners <= done:
                saved.path.unlink()
        for path in list(self.folder.iterdir()) if self.folder.is_dir() else ():
            if (half := _HALF.fullmatch(path.name)) and not (half["known"] and path.with_suffix(WHOLE).exists()):
                with suppress(OSError):  # a folder: none of ours
                    path.unlink()
        self._leave()

    def saved(self) -> list[frozenset[str]]:
        """Keys of the trials of every saved cohort. Trials that were saved together are resumed together."""
        return [saved.keys for saved in self.files()]

    def clear(self) -> None:
        """Remove checkpoints that were saved or resumed since the last call: their cohorts have finished. A file that other
        trials still need stays until these have finished."""
        for path, trials in self.used:
            for half in (_beside(path), *(() if path.exists() else (_through(path),))):
                _remove(half)
            saved = _saved_in(path)
            if saved is None:
                continue
            through = {*trials, *_finished_since(path)}
            if not saved.going <= through:
                write_whole(_through(path), json.dumps(sorted(through)))
                continue
            path.unlink()
            _remove(_through(path))
        self.used = []
        self._leave()

    def files(self, first: Path | None = None) -> Iterator[_Saved]:
        """Every checkpoint here. A damaged one is removed with a warning, and its trials begin anew. A link, or a file of
        another name or content, is not ours: it is neither read nor touched."""
        found = sorted(self.folder.glob(f"*{WHOLE}")) if self.folder.is_dir() else []
        for path in sorted(found, key=lambda path: path != first):
            if (saved := _saved_in(path)) is not None:
                yield saved

    def _leave(self) -> None:
        """Remove the folder where it is empty."""
        if not self.shared and self.folder.is_dir() and not any(self.folder.iterdir()):
            with suppress(OSError):  # a link to one
                self.folder.rmdir()


class CohortCheckpoint:
    """The checkpoint of one cohort: of these trials, with these initial weights (a row each), under this version of PyTorch."""

    def __init__(self, folder: CheckpointFolder, specs: Sequence[TrialSpec], weights: Sequence[Tensor]) -> None:
        starts = [row.detach().cpu().contiguous().numpy() for row in weights]
        self.trials = [
            hashlib.sha256(f"{torch.__version__}\n{content_key.key(spec)}\n".encode() + row.tobytes()).hexdigest()[:32]
            for spec, row in zip(specs, starts, strict=True)
        ]
        self.keys = [content_key.key(spec) for spec in specs]
        self.owners = folder.owners or self.keys
        name = hashlib.sha256("\n".join(self.trials).encode()).hexdigest()[:32]
        self.folder, self.path = folder, folder.folder / f"{name}{WHOLE}"
        self.every, self.limit, self.last = folder.every, folder.limit, time.monotonic()
        folder.used.append((self.path, self.trials))

    @property
    def due(self) -> bool:
        """True when it is time to write again."""
        return time.monotonic() - self.last >= self.every

    def save(self, tensors: Mapping[str, Tensor], said: Mapping[str, Any]) -> None:
        """Write tensors and plain data about them, whole or not at all. Raises LedgerError where that fails."""
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
                os.fsync(handle)  # before it replaces a whole file
            finally:
                os.close(handle)
            beside.replace(self.path)
        except (OSError, SafetensorError) as error:
            why = f"{error}; make room for it, or move away what is in its place"
            if isinstance(error, OSError) and error.errno in FULL:
                why = remedy(error)
            raise LedgerError(f"{self.path.parent}: cannot write the checkpoint of a cohort: {why}") from error
        self.last = time.monotonic()

    def resume(self) -> tuple[dict[str, Tensor], dict[str, Any], list[int]] | None:
        """The last saved tensors of these trials, on the CPU, their plain data, and each trial's index in the file. None
        where nothing was saved. The file may hold more trials, which finished earlier."""
        from safetensors import safe_open

        for saved in self.folder.files(self.path):
            if set(self.trials) <= set(saved.trials):
                with safe_open(saved.path, framework="pt") as file:
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                self.folder.used.append((saved.path, self.trials))
                return tensors, dict(saved.said), [saved.trials.index(trial) for trial in self.trials]
        return None


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """A file of a cohort.

    said    plain data that training saved with it
    trials  the saved trials, a hash each
    keys    keys of these trials
    owners  keys in the ledger of the trials that they were trained for; a trial in phases has other keys than its phases
    """

    path: Path
    said: Mapping[str, Any]
    trials: tuple[str, ...]
    keys: frozenset[str]
    owners: frozenset[str]

    @property
    def going(self) -> set[str]:
        """The trials that had not finished when it was written."""
        return {self.trials[member] for member in self.said["members"]}

    @property
    def summary(self) -> SavedCohort:
        return SavedCohort(
            step=int(self.said["step"]),
            steps=self.said.get("steps"),
            trials=len(self.going),
            in_phase=self.keys.isdisjoint(self.owners),
            owners=self.owners,
        )


@dataclass(frozen=True, kw_only=True)
class SavedCohort:
    """How far a saved cohort is.

    step      steps taken
    steps     of all; None in files of earlier versions
    trials    those that train on from there
    in_phase  True where both counts are those of one phase of trials in phases
    owners    keys of the trials for which it trains
    """

    step: int
    steps: int | None
    trials: int
    in_phase: bool
    owners: frozenset[str]


def saved_cohorts(folder: Path) -> list[SavedCohort]:
    """What is saved in a folder, those that are furthest first. Nothing is removed, so anybody may look at any time."""
    from safetensors import SafetensorError

    found = []
    for path in folder.glob(f"*{WHOLE}") if folder.is_dir() and not folder.is_symlink() else ():
        with suppress(SafetensorError):  # damaged: the next run removes it
            if (saved := _read(path)) is not None:
                found.append(saved.summary)
    return sorted(found, key=lambda one: (-one.step, one.steps or 0, sorted(one.owners)))


def _saved_in(path: Path) -> _Saved | None:
    """The checkpoint at a path; None where there is none of ours. A damaged one is removed with a warning."""
    from safetensors import SafetensorError

    try:
        return _read(path)
    except SafetensorError:
        if _NAME.fullmatch(path.name):
            warnings.warn(f"{path} is damaged: the cohort in it begins anew", RuntimeWarning, stacklevel=2)
            path.unlink()
        return None


def _read(path: Path) -> _Saved | None:
    """The checkpoint at a path; None where there is none of ours. Raises SafetensorError where it is damaged."""
    from safetensors import safe_open

    if not _is_file(path):
        return None
    try:
        with safe_open(path, framework="pt") as file:
            about = {name: json.loads(text) for name, text in (file.metadata() or {}).items()}
        keys = frozenset(about["keys"])
        owners = frozenset(about.get("owners", keys))  # files of earlier versions have none
        return _Saved(path=path, said=about["said"], trials=tuple(about["trials"]), keys=keys, owners=owners)
    except (ValueError, KeyError, TypeError, OSError):  # somebody else's, unreadable, or gone just now
        return None


def _finished_since(path: Path) -> list[str]:
    """The trials in a file that have finished since it was written."""
    try:
        return list(map(str, json.loads(_through(path).read_text()))) if _is_file(_through(path)) else []
    except (OSError, ValueError, TypeError):
        return []


def _is_file(path: Path) -> bool:
    """True for a regular file, and not for a link to one: we do not follow links that we did not write."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _remove(path: Path) -> None:
    with suppress(OSError):  # nothing is there, or a folder
        path.unlink()


def _through(path: Path) -> Path:
    """The list of the trials of a file that have finished since it was written."""
    return path.with_suffix(".through")


def _beside(path: Path) -> Path:
    """The path of a file while it is being written."""
    return path.with_suffix(".partial")


_FOLDER: ContextVar[CheckpointFolder | None] = ContextVar("checkpoints", default=None)


@contextmanager
def checkpointing(folder: CheckpointFolder) -> Iterator[CheckpointFolder]:
    """Save and resume in this folder the cohorts that are trained in this context."""
    token = _FOLDER.set(folder)
    try:
        yield folder
    finally:
        _FOLDER.reset(token)


def checkpoint_of(specs: Sequence[TrialSpec], weights: Sequence[Tensor]) -> CohortCheckpoint | None:
    """The checkpoint of a cohort of these trials and initial weights; None outside of `checkpointing`."""
    folder = _FOLDER.get()
    return None if folder is None else CohortCheckpoint(folder, specs, weights)
