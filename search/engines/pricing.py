"""The cost of a plan: operations of every trial, and minutes from measured rates of the same kind of device."""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources

import torch

from recallmap.results import record_files
from recallmap.results.analysis.labels import counted, device_label, devices_of
from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.results.record_files import read
from recallmap.search.documents import built_in, type_hints
from recallmap.search.documents.nodes import SpecError
from recallmap.search.training.origin import device_name
from recallmap.search.trials import Trial, memory_needs
from recallmap.search.trials.geometry import setting

GUESSED_FROM = "demo.jsonl"  # kept records, by which minutes on a CPU are guessed that was never timed

RECENT = 1000  # last records of a ledger, from which minutes are estimated


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Measured operations per second of training, three forward passes a step.

    whole    over all architectures; 0 where nothing was measured
    by_arch  by name, for architectures that were measured
    source   the measurement, or why there is none and how to get one
    """

    whole: float = 0.0
    by_arch: Mapping[str, float] = field(default_factory=dict)
    source: str

    @property
    def known(self) -> bool:
        return self.whole > 0

    def of(self, arch: str) -> float:
        """The rate of an architecture, or the overall one where it was not measured."""
        return self.by_arch.get(arch, self.whole)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Trials of one architecture on one task setting, and the operations of training them. A first phase that trials share
    counts in the group where it comes first."""

    arch: str
    task: str
    trials: tuple[Trial, ...]
    operations: float

    def seconds(self, rates: Rates) -> float:
        """Seconds on one device."""
        return self.operations / rates.of(self.arch)


def priced(trials: Sequence[Trial]) -> list[Group]:
    """The trials in groups, in the order of their first ones, each trial priced."""
    members: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        task = f"{trial.task.kind} {setting(trial.task)}".rstrip()
        members.setdefault((trial.name, task), []).append(trial)
    seen: set[Hashable] = set()
    return [
        Group(arch=arch, task=task, trials=tuple(own), operations=sum(operations_of(trial, seen) for trial in own))
        for (arch, task), own in members.items()
    ]


def seconds_of(trials: Sequence[Trial], rates: Rates) -> float | None:
    """Seconds of training these on one device; None where no rate is known."""
    return sum(group.seconds(rates) for group in priced(trials)) if rates.known else None


def operations_of(trial: Trial, seen: set[Hashable]) -> float:
    """Operations of training a trial, without stretches that were `seen` before; its own are added there."""
    new = {what: count for what, count in trial.stretches if what not in seen}
    seen.update(new)
    return sum(new.values())


def rates_on(device: torch.device, ledger: Ledger) -> Rates:
    """Rates from the ledger's records of this kind of device, else from the bench figures that come with the package, else
    none."""
    name = device_name(device)
    kept = ledger.all() if len(ledger) else []
    done = [r for r in kept if r.status == "done" and r.device == name and r.seconds > 0]
    found = _of_records(done[-RECENT:], f"of this ledger on {device_label(name)}")
    return found if found.known else _of_bench(name)


def rates_or_guess(device: torch.device, ledger: Ledger) -> Rates:
    """Rates as of `rates_on`; where there are none, a guess that says so: on a CPU the rates of the kept records of `demo`, on
    a GPU the bench figures of another one. For a reader, and not to decide by."""
    found = rates_on(device, ledger)
    if found.known:
        return found
    if device.type == "cpu":
        kept = [r for r in read(record_files.kept() / GUESSED_FROM) if r.status == "done" and r.seconds > 0]
        guess = _of_records(kept, f"of {GUESSED_FROM} on {' and '.join(devices_of(kept))}")
    elif device.type == "cuda":
        guess = _of_bench(None)
    else:
        return found
    if not guess.known:
        return found
    return replace(
        guess, source=f"by a guess, {guess.source}, which may be four times too fast or too slow; {found.source}"
    )


def _of_records(records: Sequence[Record], of: str) -> Rates:
    operations: defaultdict[str, float] = defaultdict(float)  # by architecture; of all under ""
    seconds: defaultdict[str, float] = defaultdict(float)
    seen: set[Hashable] = set()
    count = 0
    for record in records:
        trial = _trial_of(record)
        if trial is None or not trial.steps:
            continue
        count += 1
        # It may have ended early. Each phase that trials share has its share of the time.
        spent = operations_of(trial, seen) * record.steps / trial.steps
        for name_of in ("", record.arch) if len(trial.stretches) == 1 else ("",):
            operations[name_of] += spent
            seconds[name_of] += record.seconds
    rates = {arch: operations[arch] / seconds[arch] for arch in operations if operations[arch]}
    if not rates:
        return Rates(source="")
    said = f"by {counted(count, 'record')} {of}, {_range(list(rates.values()))}"
    return Rates(whole=rates.pop(""), by_arch=rates, source=f"{said}, compiling left out")


def _trial_of(record: Record) -> Trial | None:
    """The trial of a record; None where it is of another version."""
    kinds = type_hints.kinds_of(Trial)
    try:
        trial: Trial = built_in.from_plain(kinds[record.spec.get("kind", "trial")], record.spec)
    except (SpecError, KeyError):
        return None
    return trial


def _of_bench(name: str | None) -> Rates:
    """Rates of `recallmap bench step` on this kind of device (None: on any), from the committed figures."""
    rows = [row for row in _bench_rows() if name in (None, row["device"]) and row["trained"].endswith("together")]
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["arch"], []).append(1e12 * float(row["TFLOP/s"]))
    if not found:
        how = "start the run, stop it after some trials (they are kept), and repeat this command"
        return Rates(source=f"no rate was measured on {device_label(name or 'any GPU')}; {how}")
    by_arch = {arch: statistics.median(rates) for arch, rates in found.items()}
    on = " and ".join(sorted({row["device"] for row in rows}))
    said = (
        f"at best: by {counted(len(rows), 'row')} of `recallmap bench step` on {on}, {_range(list(by_arch.values()))}"
    )
    return Rates(whole=statistics.median(by_arch.values()), by_arch=by_arch, source=said)


def _bench_rows() -> Iterable[dict[str, str]]:
    folder = resources.files("recallmap.results") / "records"
    for file in sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else []:
        if file.name.startswith("step_") and file.name.endswith(".csv"):
            yield from csv.DictReader(file.read_text(encoding="utf-8").splitlines())


def _range(rates: Sequence[float]) -> str:
    least, most = min(rates), max(rates)
    span = f"{least:.2g}" if f"{least:.2g}" == f"{most:.2g}" else f"{least:.2g} to {most:.2g}"
    return f"{span} operations a second"


def said_minutes(seconds: float) -> str:
    """`0.5`, `12`, `1,500`."""
    minutes = seconds / 60
    return f"{minutes:,.0f}" if minutes >= 10 else f"{minutes:.2g}"


def outlook(points: Sequence[Sequence[Trial]], most_points: int, rates: Rates) -> list[str]:
    """Lines on the cost of a search, from the trials of some points at the corners of its space."""
    priced_points = [priced(trials) for trials in points]
    each = [sum(group.operations for group in groups) for groups in priced_points]
    if not each:
        return []
    span = f"from {min(each):.3g} to {max(each):.3g} at the corners"
    lines = [f"training FLOPs of a point {span}, of all points at most {most_points * max(each):.3g}"]
    if not rates.known:
        return [*lines, f"no minutes: {rates.source}"]
    spent = [most_points * sum(group.seconds(rates) for group in groups) for groups in priced_points]
    return [
        *lines,
        f"from {said_minutes(min(spent))} to {said_minutes(max(spent))} minutes on one device {rates.source}",
    ]


def too_large(trials: Sequence[Trial], device: torch.device) -> str:
    """A line on trials that need more memory than the device has; "" where there are none."""
    wide = [trial for trial in trials if not memory_needs.fitting(trial.needs, device)]
    if not wide:
        return ""
    most = max(sum(trial.needs.values()) for trial in wide)
    return (
        f"{counted(len(wide), 'trial')} will fail here: up to {memory_needs.said(most)} of memory needed, {device.type} "
        f"has {memory_needs.said(memory_needs.held_by(device))}"
    )
