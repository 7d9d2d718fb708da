"""Running from Python: studies, lists of trials, and the probe of memories."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import torch

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.mixers.mixer import MixerSpec
from recallmap.results.atomic_write import remedy
from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.documents.built_in import Source
from recallmap.search.documents.nodes import Node, Place, cut, fault
from recallmap.search.engines import inline
from recallmap.search.engines.listeners.audience import listening
from recallmap.search.engines.listeners.listener import Listener
from recallmap.search.engines.plan import Report
from recallmap.search.engines.trial_sources import trials_of
from recallmap.search.measurement import capacity_probe
from recallmap.search.python.specs import arch, study
from recallmap.search.study.spec import StudySpec
from recallmap.search.trials import Trial
from recallmap.search.weights.kept import WeightFolder

if TYPE_CHECKING:
    import pandas as pd


def run(
    of: StudySpec | Source | Trial | Sequence[Trial],
    *,
    ledger: str | os.PathLike[str] | None = None,
    device: str | None = None,
    report: Callable[[Report], None] = lambda _: None,
    keep_weights: str | os.PathLike[str] | None = None,
    log: Sequence[str | Listener] = (),
) -> list[Record]:
    """Train a study, a trial or a list of trials in this process; returns a record for each different trial, in order.

    Trials of equal shape train together. A trial that diverges gives a record with status "failed", not an exception.

    of      a study as `study` takes it, or trials as `trial` makes them
    ledger  a file that keeps the records (made if need be): finished trials in it are not trained again, and after an
            interruption the same call resumes. None: records are only returned. A class of one's own is known by its kind and
            options: after a change of its code, take another file
    device  cpu, cuda, cuda:1, ...; None: cuda where there is one
    report  called with a `Report` at each step of progress
    keep_weights  a folder in which each trained trial has one, named by the key of its record, with its weights: those of the
            checkpoint that validation chose; `load` reads it. A trial that the ledger knows is not trained, and a warning
            says so
    log     `tensorboard:DIR`, `wandb:PROJECT`, `mlflow:URI`, or a `Listener` of one's own: it is told of trials, of their
            curves and scores

    Raises SpecError for a wrong study, and LedgerError where the ledger or weights cannot be written.
    """
    asked = _asked(of)
    _check_device(device)
    weights = None if keep_weights is None else _weights_in(Path(keep_weights))
    with (
        TemporaryDirectory(prefix="recallmap.") as folder,
        listening(log, asked.name, place="log", say=lambda line: warnings.warn(line, stacklevel=4)) as audience,
    ):
        path = Path(folder) / "run.sqlite" if ledger is None else Path(ledger)
        if path.suffix == ".jsonl":
            raise fault(Place("ledger"), "", f"got {path}, a file of records, expected a ledger such as runs/a.sqlite")
        plan = inline.run(asked, path, device=device, report=report, weights=weights, listeners=audience)
        keys = dict.fromkeys(content_key.key(trial) for trial in trials_of(asked, path))
        with Ledger.open(path) as kept:
            known = {record.key: record for record in kept.of(set(keys))}
    for line in () if weights is None else weights.lacking(plan.trials, plan.known):
        warnings.warn(line.replace("--ledger of another name", "another ledger"), stacklevel=2)
    return [known[key] for key in keys if key in known]


def probe(
    source: Source | BackboneSpec | MixerSpec,
    *,
    pairs: Sequence[int] | None = None,
    keys: capacity_probe.Keys = "gaussian",
    passes: int = 1,
    seed: int = 0,
) -> pd.DataFrame:
    """The capacity of an architecture's memories, measured without training: a row for each mixer and number of pairs.

    pairs   numbers of key-value pairs that are written; None: around the bounds of theory
    keys    their directions: "gaussian", "orthonormal", "correlated" or "quantised"
    passes  times that they are written

    Columns: arch, mixer, keys, passes, pairs; error |o - v| / |v| and recall (share of pairs read back as the nearest
    value); chance; key_dim, value_dim, state_floats, load, bounds. Raises ValueError where no mixer has such a memory.
    """
    import pandas as pd

    return pd.DataFrame(capacity_probe.probe(arch(source), pairs=pairs, keys=keys, passes=passes, seed=seed))


@dataclass(frozen=True, kw_only=True)
class _Listed(StudySpec):
    """A study whose trials are given one by one."""

    name: str = "python"
    trial: Node = field(default_factory=lambda: Node({}, Place("run")))
    listed: tuple[Trial, ...]

    def trials(self) -> tuple[Trial, ...]:
        return self.listed

    def rejected(self) -> tuple[tuple[Trial, str], ...]:
        return ()


def _asked(of: StudySpec | Source | Trial | Sequence[Trial]) -> StudySpec:
    if isinstance(of, StudySpec):
        return of
    if isinstance(of, Trial):
        return _Listed(listed=(of,))
    if not isinstance(of, list | tuple):
        return study(of)  # type: ignore[arg-type]
    wrong = next((part for part in of if not isinstance(part, Trial)), None)
    if wrong is not None or not of:
        got = "an empty list" if not of else f"a list with {type(wrong).__name__} in it"
        raise fault(Place("run"), "", f"got {got}, expected a study, or a list of trials as recallmap.trial makes them")
    unique = {content_key.key(trial): trial for trial in of}
    return _Listed(listed=tuple(unique.values()))


def _weights_in(folder: Path) -> WeightFolder:
    weights = WeightFolder(folder)
    try:
        weights.make_ready()
    except OSError as error:
        raise fault(Place("keep_weights"), "", f"{folder} cannot be written in: {remedy(error)}") from None
    return weights


def _check_device(name: str | None) -> None:
    try:
        if name is not None:
            torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise fault(Place("device"), "", f"got {name!r}, which cannot be used here ({cut(reason)})") from None
