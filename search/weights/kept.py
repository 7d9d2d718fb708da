"""Folders of trained models: DIR/KEY holds the weights of one trial's chosen checkpoint, its architecture and what it answers.

    DIR/KEY/model.safetensors    parameters by name, as the model's `state_dict` has them
    DIR/KEY/architecture.yaml    the architecture, a document that `recallmap check` accepts
    DIR/KEY/record.json          key of the record, task, vocabulary, and the sha256 of the two other files

KEY is the key of the trial's record. record.json is written last, and removed first: a folder without it is not whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from recallmap.results.analysis.labels import counted
from recallmap.results.atomic_write import FULL, remedy, write_whole
from recallmap.results.ledger import LedgerError
from recallmap.results.record import SHORT, Record
from recallmap.search.documents import content_key, outside, type_hints, yaml_text
from recallmap.search.documents.nodes import Fault, Place, SpecError, fault
from recallmap.search.documents.type_hints import either
from recallmap.search.trials import Trial
from recallmap.search.trials.online import OnlineTrial

WEIGHTS, ARCHITECTURE, ABOUT = "model.safetensors", "architecture.yaml", "record.json"

FORMAT = 1  # of record.json; raise it when a field changes meaning

AGAIN = "train the trial again with --keep-weights and another ledger"


@dataclass(frozen=True, kw_only=True)
class About:
    """What record.json says of a model.

    key, study      of the trial's record
    arch            name of the architecture
    task            kind and options
    vocabulary      token ids; channels where `signal` is "vectors"
    signal          "tokens" or "vectors"
    readout, length  "each": an answer at every position; "last": at the end of sequences of this length
    seed            of the initial weights
    implementation  of ops in training
    dtype           of the forward pass in training and tests; the weights are float32
    selected_step   the step after which validation chose them
    metric, score   on test
    code            what defined its kinds from outside, by kind
    weights, architecture  sha256 of the files
    """

    key: str
    study: str
    arch: str
    task: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: int
    signal: str
    readout: str
    length: int
    seed: int
    implementation: str
    dtype: str
    selected_step: int
    metric: str
    score: float | None
    code: Mapping[str, str]
    weights: str
    architecture: str
    format: int = FORMAT


class WeightFolder:
    """The folder in which a run keeps the weights of its trials, a folder each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make_ready(self) -> None:
        """Make the folder where there is none, and try to write in it. Raises OSError."""
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a folder", str(self.folder))
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.folder):
            pass

    def __contains__(self, key: object) -> bool:
        """True where the trial of this key has its weights here."""
        return (self.folder / str(key) / ABOUT).is_file()

    def keep(self, trial: Trial, record: Record, weights: Mapping[str, Tensor]) -> None:
        """Write the weights of a trial, over those of an earlier training. Raises LedgerError where that fails."""
        from safetensors import SafetensorError

        own = self.folder / record.key
        part: Any = getattr(trial, "parts", (trial,))[-1]  # of a trial in phases
        architecture = yaml_text.dump(part.arch)
        try:
            (own / ABOUT).unlink(missing_ok=True)
            write_whole(own / WEIGHTS, partial(save, weights))
            write_whole(own / ARCHITECTURE, architecture)
            about = About(
                key=record.key,
                study=record.study,
                arch=part.arch.name,
                task=content_key.plain(part.task),
                vocabulary=part.task.shape[1],
                signal=part.task.signal,
                readout=part.task.readout,
                length=part.task.shape[0],
                seed=part.seed,
                implementation=part.training.implementation,
                dtype=part.training.dtype,
                selected_step=record.selected_step,
                metric=record.metric,
                score=record.scores.get(record.metric),
                code=outside.named_in(content_key.plain(part.arch)),
                weights=_digest((own / WEIGHTS).read_bytes()),
                architecture=_digest(architecture.encode()),
            )
            write_whole(own / ABOUT, json.dumps(vars(about), indent=1) + "\n")
        except (OSError, SafetensorError) as error:
            why = f"{error}; make room for it, or move away what is in its place"
            if isinstance(error, OSError) and error.errno in FULL:
                why = remedy(error)
            raise LedgerError(f"{own}: cannot write the weights of a trial: {why}") from error

    def lacking(self, trials: Iterable[Trial], known: Iterable[Trial]) -> list[str]:
        """Lines about trials of a run that have no weights here: online learners among all, and those that were `known`, so
        that it did not train them."""
        known = [t for t in known if not isinstance(t, OnlineTrial) and content_key.key(t) not in self]
        learners = sum(isinstance(trial, OnlineTrial) for trial in trials)
        lines = [f"{counted(learners, 'online learner')} without weights to keep"] if learners else []
        if len(known) == 1:
            lines += ["1 trial was known already; its weights are not kept; train it with --ledger of another name"]
        elif known:
            were = f"{len(known)} trials were known already; their weights are not kept"
            lines += [f"{were}; train them with --ledger of another name"]
        return lines


def save(weights: Mapping[str, Tensor], path: Path) -> None:
    """Write weights to a safetensors file. Raises OSError or SafetensorError."""
    from safetensors.torch import save_file

    apart = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in weights.items()}
    save_file(apart, path, metadata={"format": "pt"})
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        os.fsync(handle)  # before the record of the trial is in the ledger
    finally:
        os.close(handle)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Reading. -----------------------------------------------------------------------------------------


def about_of(folder: Path, *, with_arch: bool = True) -> About:
    """What a folder says of its model. Raises SpecError with all that is wrong with its files; without `with_arch` its
    architecture may be another."""
    place = Place(str(folder))
    if not folder.is_dir():
        raise fault(
            place, "", "no such folder, expected DIR/KEY that recallmap run STUDY --keep-weights DIR has written"
        )
    names = (WEIGHTS, ARCHITECTURE, ABOUT)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        inside = sorted(path.parent.name for path in folder.glob(f"*/{ABOUT}"))
        if inside:
            models = f"{len(inside)} of them" if len(inside) > 1 else "one"
            raise fault(place, "", f"is no model, but a folder with {models}; name one, such as {folder / inside[0]}")
        lacks = either(missing).replace(" or ", " and ")
        raise fault(place, "", f"lacks {lacks}, expected a folder that --keep-weights has written to its end; {AGAIN}")
    about = _read_about(folder / ABOUT)
    wrong = [
        Fault(place, "", f"{name} is damaged, or is not the file that {ABOUT} is of: {remedy}")
        for name, digest, remedy in (
            (WEIGHTS, about.weights, AGAIN),
            (
                ARCHITECTURE,
                about.architecture,
                "bring back the one that was written; load(..., arch=...) takes another",
            ),
        )
        if (with_arch or name != ARCHITECTURE) and _digest((folder / name).read_bytes()) != digest
    ]
    if wrong:
        raise SpecError(wrong)
    return about


def _read_about(path: Path) -> About:
    """What record.json says. Raises SpecError where it cannot be read."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise fault(Place(str(path)), "", f"is damaged: {error}; {AGAIN}") from None
    if isinstance(said, dict) and said.get("format", FORMAT) != FORMAT:
        raise fault(Place(str(path)), "format", f"must be {FORMAT}, got {said['format']!r}; take a newer recallmap")
    task = said.pop("task", None) if isinstance(said, dict) else {}
    about: About = type_hints.read(About, type_hints.node_of(said, Place(str(path))))
    if not isinstance(task, dict):
        raise fault(Place(str(path)), "task", f"must be a mapping, got {task!r}")
    return replace(about, task=task)


def short(about: About) -> str:
    """Words that tell a model apart: `mesa on mqar (3f2a...)`."""
    return f"{about.arch} on {about.task.get('kind', '?')} ({about.key[:SHORT]})"
