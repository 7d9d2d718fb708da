"""What one finished trial leaves behind."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from results.write import write_whole

SCHEMA = 1  # of Record; raise it when a field changes meaning
SHORT = 12  # letters of a key that tell records apart where people or pages read them


@dataclass(frozen=True, kw_only=True)
class Record:
    """All that one finished trial leaves behind. Plain data: survives JSON unchanged.

    `scores` are of the test split under the checkpoint that validation chose; `validation` of the same checkpoint.
    Score names: the task's `metric` (usually "accuracy"), "macro_accuracy", "exact_match", "loss", and
    "accuracy/<slice>=<value>" for parts. A figure that does not exist is absent, never NaN: one that is not finite is
    left out of the scores, and is None in a curve.
    """

    key: str  # sha256 of the canonical resolved spec: the record's address
    study: str
    status: Literal["done", "failed"]
    error: str | None = None  # why a trial failed

    spec: dict[str, Any]  # the resolved trial: task, arch, training, data, tests, mix, seed, version
    task: str  # kind
    setting: str  # the task's dials that differ from their defaults, "length=256 copies=16"; "" for the default setting
    protocol: str
    arch: str  # name of the architecture
    seed: int

    metric: str = "accuracy"  # which score is the headline
    chance: float = 0.0
    ceiling: float = 1.0
    references: dict[str, float] = field(
        default_factory=dict
    )  # of baselines that are neither chance nor oracle, by name
    scores: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    tests: list[dict[str, Any]] = field(
        default_factory=list
    )  # more settings: task, setting, length, state_bytes, chance, ceiling, scores
    curve: Mapping[str, Sequence[float | None]] = field(
        default_factory=dict
    )  # step, train_loss (its mean since the step before), validation_*: equal lengths
    published_choice: dict[str, float] = field(
        default_factory=dict
    )  # scores where a published protocol chooses on test

    parameters: int = 0
    state_floats: int = 0  # carried after `length` tokens
    state_bytes: int = 0
    state_grows: bool = False  # whether a part of it grows with length
    length: int = 0  # of the evaluated sequences
    flops_per_token: float = 0.0

    steps: int = 0  # optimizer steps taken
    selected_step: int = 0  # of the checkpoint that validation chose
    seconds: float = 0.0  # this trial's share of its cohort's wall time
    compile_seconds: float = 0.0  # this trial's share of compiling and capturing, not in `seconds`
    peak_bytes: int | None = None  # of device memory, whole cohort; None where the device does not tell
    cohort: int = 1  # trials trained together

    device: str = ""
    implementation: dict[str, str] = field(default_factory=dict)  # op -> implementation that ran
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    created: str = ""  # ISO 8601, UTC

    def __post_init__(self) -> None:
        for name in ("references", "scores", "validation", "published_choice"):
            object.__setattr__(self, name, _finite(getattr(self, name)))
        tests = [{**test, "scores": _finite(test.get("scores", {}))} for test in self.tests]
        object.__setattr__(self, "tests", tests)
        curve = {
            name: [x if x is not None and math.isfinite(x) else None for x in values]
            for name, values in self.curve.items()
        }
        object.__setattr__(self, "curve", curve)

    @property
    def score(self) -> float | None:
        """The headline on test; None where the trial failed or its figure was not finite."""
        return self.scores.get(self.metric) if self.status == "done" else None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Record:
        """Raises ValueError on a field that this version does not know."""
        unknown = sorted(set(data) - {f.name for f in fields(Record)})
        if unknown:
            raise ValueError(f"a record of another version: unknown fields {', '.join(unknown)}")
        return Record(**data)


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records for safe keeping beside the code: JSON lines, one record a line, in an order of their own.

    The same records give the same bytes, so that a changed line is a changed record.
    """
    ordered = sorted(records, key=lambda r: (r.study, r.task, r.setting, r.arch, r.seed, r.key))
    write_whole(path, "".join(to_json(record) + "\n" for record in ordered))


def read_records(path: Path) -> list[Record]:
    """Records from a file of JSON lines, or from every `*.jsonl` of a folder; a key twice counts once, `done` first.

    Raises ValueError on a line that is no record, with file and line.
    """
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    found: list[Record] = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), start=1):
            if not line.strip():
                continue
            try:
                record = Record.from_dict(json.loads(line))
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{file}:{number}: not a record: {error}") from error
            found.append(record)
    return unique(found)


def unique(records: Iterable[Record]) -> list[Record]:
    """Every key once, in order of first sight: the first record that is done, or where none is the first."""
    found: dict[str, Record] = {}
    for record in records:
        if record.key not in found or (found[record.key].status, record.status) == ("failed", "done"):
            found[record.key] = record
    return list(found.values())


def to_json(record: Record) -> str:
    """One line, keys sorted."""
    return json.dumps(record.to_dict(), sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _finite(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if math.isfinite(value)}
