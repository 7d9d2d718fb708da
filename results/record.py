"""What one finished trial leaves behind."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

SCHEMA = 1  # of Record; raise it when a field changes meaning


@dataclass(frozen=True, kw_only=True)
class Record:
    """All that one finished trial leaves behind. Plain data: survives JSON unchanged.

    `scores` are of the test split under the checkpoint that validation chose; `validation` of the same checkpoint.
    Score names: the task's `metric` (usually "accuracy"), "macro_accuracy", "exact_match", "loss", and
    "accuracy/<slice>=<value>" for parts. A figure that does not exist is absent, never NaN.
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
    scores: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)
    tests: list[dict[str, Any]] = field(default_factory=list)  # further test settings: task, setting, length, chance, ceiling, scores
    curve: dict[str, list[float]] = field(default_factory=dict)  # step, train_loss, validation_loss, validation_accuracy: equal lengths
    published_choice: dict[str, float] = field(default_factory=dict)  # scores where a published protocol chooses on test

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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Record:
        """Raises ValueError on a field that this version does not know."""
        unknown = sorted(set(data) - {f.name for f in fields(Record)})
        if unknown:
            raise ValueError(f"a record of another version: unknown fields {', '.join(unknown)}")
        return Record(**data)
