"""The record of one finished trial."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Required, TypedDict, get_type_hints

from recallmap.results.atomic_write import write_whole
from recallmap.results.plain_data.record_checks import Faults, Least, Loose, check_of, told
from recallmap.results.plain_data.shared_parts import (
    Joined,
    Memo,
    Pool,
    Scores,
    are_finite,
    are_floats,
    is_finite,
    text_of,
)

SCHEMA = 1  # version of Record; raise it when a field changes meaning
SHORT = 12  # letters of a key that tell records apart where people or pages read them

Count = Annotated[int, Least(0)]
Amount = Annotated[float, Least(0)]
Score = Annotated[float, Loose()]  # one that is not finite is left out


class Training(TypedDict, total=False):
    """The fields of a trial's training that tables read."""

    steps: Count | None
    epochs: Count | None
    batch: Count
    lr: float


class Phase(TypedDict, total=False):
    """The fields of a phase that tables read."""

    training: Training | None
    dials: dict[str, Any]


class Spec(TypedDict, total=False):
    """The fields of a resolved trial that tables read; all others are plain data."""

    kind: str
    task: Required[dict[str, Any]]
    arch: dict[str, Any]
    training: Training
    data: dict[str, Any]
    mix: list[Any]
    tests: list[dict[str, Any]]
    phases: list[Phase]


class Test(TypedDict, total=False):
    """A setting that a trial was tested on, and its scores there."""

    task: Required[str]
    setting: Required[str]
    length: Required[Count]
    state_bytes: Count  # older records have none
    chance: Required[float]
    ceiling: Required[float]
    references: dict[str, Score]  # where the task has any; older records have none
    scores: Required[dict[str, Score]]


class Online(TypedDict, total=False):
    """The fields of an online learner that the page reads."""

    task: Required[OnlineTask]
    arch: Required[OnlineArch]


class OnlineTask(TypedDict, total=False):
    mapping: Required[str]
    width: Required[int]
    length: Required[Annotated[int, Least(1)]]


class OnlineArch(TypedDict, total=False):
    hidden: Required[int]
    expand: Required[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """The result of one finished trial, as plain data that survives JSON unchanged. Nobody changes it, because records that
    are read together share parts (see `Pool`).

    `scores` are those of the test split under the checkpoint that validation chose; `validation` of the same checkpoint.
    Score names: the task's `metric` (usually "accuracy"), "macro_accuracy", "exact_match", "loss", and
    "accuracy/<slice>=<value>" for parts. "accuracy_stderr" is the standard error of "accuracy" over the test sequences,
    "accuracy_stderr/<slice>=<value>" that of a part; older records have none. A figure that does not exist is absent, never
    NaN: one that is not finite is left out of the scores, and is None in a curve.
    """

    key: str  # sha256 of the canonical resolved spec: the record's address
    study: str
    status: Literal["done", "failed"]
    error: str | None = None  # why a trial failed

    spec: Annotated[
        Mapping[str, Any], Spec
    ]  # the resolved trial: task, arch, training, data, tests, mix, seed, version
    task: str  # kind
    setting: (
        str  # the task's options that differ from their defaults, "length=256 copies=16"; "" for the default setting
    )
    protocol: str
    arch: str  # name of the architecture
    seed: Count

    metric: str = "accuracy"  # the score that is the headline
    chance: float = 0.0
    ceiling: float = 1.0
    references: Mapping[str, Score] = field(
        default_factory=dict
    )  # of baselines that are neither chance nor oracle, by name
    scores: Mapping[str, Score] = field(default_factory=dict)
    validation: Mapping[str, Score] = field(default_factory=dict)
    tests: Annotated[Sequence[Mapping[str, Any]], list[Test]] = field(
        default_factory=list
    )  # more settings: task, setting, length, state_bytes, chance, ceiling, references, scores
    curve: Mapping[str, Sequence[Score | None]] = field(
        default_factory=dict
    )  # step, train_loss (its mean since the step before), validation_*: equal lengths
    published_choice: Mapping[str, Score] = field(
        default_factory=dict
    )  # scores where a published protocol chooses on test

    parameters: Count = 0
    state_floats: Count = 0  # carried after `length` tokens
    state_bytes: Count = 0
    state_grows: bool = False  # True where a part of it grows with length
    length: Count = 0  # of the evaluated sequences
    flops_per_token: Amount = 0.0

    steps: Count = 0  # optimizer steps taken
    selected_step: Count = 0  # of the checkpoint that validation chose
    seconds: Amount = 0.0  # this trial's share of its cohort's wall time
    compile_seconds: Amount = 0.0  # this trial's share of compiling and capturing, not in `seconds`
    peak_bytes: Count | None = None  # of device memory, whole cohort; None where the device does not report it
    cohort: Annotated[int, Least(1)] = 1  # trials trained together

    device: str = ""
    implementation: Mapping[str, str] = field(default_factory=dict)  # op -> implementation that ran
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None
    created: str = ""  # ISO 8601, UTC

    def __post_init__(self) -> None:
        for name, scores in zip(_OF_SCORES, _SCORES(self), strict=True):
            if (finite := _finite(scores)) is not scores:
                object.__setattr__(self, name, finite)
        tests = [_finite_test(test) for test in self.tests] if self.tests else NO_TESTS
        object.__setattr__(self, "tests", tests)
        curve = {name: _finite_or_none(values) for name, values in self.curve.items()} if self.curve else NO_CURVE
        object.__setattr__(self, "curve", curve)

    @property
    def score(self) -> float | None:
        """The headline on test; None where the trial failed or its figure was not finite."""
        return self.scores.get(self.metric) if self.status == "done" else None

    @property
    def traceable(self) -> bool:
        """Whether it names the commit that made it, with no uncommitted changes."""
        return self.commit is not None and not self.commit.endswith("+")

    def to_dict(self) -> dict[str, Any]:
        """The record as dicts, lists and scalars of its own."""
        return {name: _own(getattr(self, name)) for name in FIELDS}

    @staticmethod
    def from_dict(data: Mapping[str, Any], pool: Pool | None = None) -> Record:
        """A record from elsewhere. Raises ValueError with all faults, and on a field that this version does not know.

        pool  shared parts of records that are read together
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"must be a mapping of fields, got {type(data).__name__}")
        try:
            own = {_NAMES[name]: value for name, value in data.items()}
        except KeyError:
            unknown = ", ".join(sorted(data.keys() - _NAMES.keys()))
            raise ValueError(f"a record of another version: unknown fields {unknown}") from None
        if pool is not None and isinstance(spec := data.get("spec"), dict):
            own["spec"] = pool.spec(spec) or spec
        if faults := _faults(own):
            raise ValueError(told(faults))
        return Record(**(own if pool is None else pool.share(own)))


def sound_record(fields: Mapping[str, Any]) -> Record:
    """A record of fields that a ledger keeps, and that were sound when it took them: without a look at each, it takes half of
    the time. Raises KeyError on a field that this version does not know."""
    if len(fields) < len(FIELDS):
        return Record(**{_NAMES[name]: value for name, value in fields.items()})
    record = object.__new__(Record)
    for name, value in fields.items():
        _PUT[name](record, value)
    return record


NO_TESTS: list[Mapping[str, Any]] = []  # one for all records that have none

NO_CURVE: dict[str, list[Score | None]] = {}  # and one for those without a curve

FIELDS = tuple(f.name for f in fields(Record))
_NAMES = {name: name for name in FIELDS}  # by which a call finds arguments at once: names that JSON gave are others
_PUT = {name: Record.__dict__[name].__set__ for name in FIELDS}  # past the lock of a frozen class
_OF_SCORES = ("references", "scores", "validation", "published_choice")
_SCORES = attrgetter(*_OF_SCORES)
_NEEDED = frozenset(f.name for f in fields(Record) if f.default is MISSING and f.default_factory is MISSING)
_CHECKS = {name: check_of(hint) for name, hint in get_type_hints(Record, include_extras=True).items()}
_ONLINE = check_of(Online)
CURVES = ("step", "train_loss", "validation_loss", "validation_accuracy")  # fields of a curve


def faults_of(record: Record) -> str:
    """The faults of a record, as in the errors of `from_dict`; "" where it is sound."""
    return told(_faults({name: getattr(record, name) for name in FIELDS}))


def _faults(data: Mapping[str, Any]) -> Faults:
    """All faults of the fields of a record. Parts in a pool are sound."""
    found: Faults = [(name, "is missing") for name in sorted(_NEEDED - data.keys())]
    for name, value in data.items():
        kind = type(value)
        if (kind is str and name in _TEXTS and value.isascii()) or (kind in _SHARED and _is_shared(value)):
            continue
        if wrong := _CHECKS[name](value):
            found += [(f"{name}{path}", said) for path, said in wrong]
    return found or _disagreements(data)


_TEXTS = frozenset(name for name, hint in get_type_hints(Record).items() if hint is str)

_SHARED = frozenset({list, Joined, Scores})  # isinstance of an abstract mapping takes ten times as long


def _is_shared(value: Any) -> bool:
    return any(type(part) is Joined for part in value) if type(value) is list else True


def _disagreements(data: Mapping[str, Any]) -> Faults:
    """Faults of fields that are sound alone and do not go together."""
    spec, curve = data["spec"], data.get("curve") or {}
    found: Faults = [("metric", "must say which score is the headline, got ''")] if data.get("metric") == "" else []
    task = spec["task"]
    for name, where, key, path in (
        ("seed", spec, "seed", "seed"),
        ("task", task, "kind", "task.kind"),
        ("protocol", task, "protocol", "task.protocol"),
    ):
        said = where.get(key, data[name])
        if said != data[name]:
            found.append((f"spec.{path}", f"must be the record's {name} {data[name]!r}, got {said!r}"))
    for number, one in enumerate((data, *data.get("tests", ()))):
        if one.get("chance", 0.0) > (ceiling := one.get("ceiling", 1.0)):
            path = f"tests[{number - 1}]." if number else ""
            found.append((f"{path}chance", f"must be at most the ceiling, {ceiling}, got {one['chance']}"))
    if spec.get("kind") == "online":
        found += [(f"spec{path}", said) for path, said in _ONLINE(dict(spec)) or ()]
    if "training" not in spec and not all(phase.get("training") for phase in spec.get("phases", ())):
        found.append(("spec.training", "is missing, and a phase has none of its own"))
    if curve:
        found += [(f"curve.{name}", "is missing") for name in CURVES if name not in curve]
        if not all((type(step) is int and step >= 0) or _is_step(step) for step in curve.get("step", ())):
            found.append(("curve.step", "must be numbers of at least 0, none of them null"))
        if len(set(map(len, curve.values()))) > 1:
            said = ", ".join(f"{len(values)} of {name}" for name, values in curve.items())
            found.append(("curve", f"must have as many figures of each name, got {said}"))
    return found


def _is_step(step: Any) -> bool:
    return isinstance(step, int | float) and 0 <= step < math.inf


def canonical(data: Any) -> str:
    """The one JSON text of plain data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, default=dict)


def address(spec: Mapping[str, Any]) -> str:
    """The key of a resolved trial: sha256 of its canonical text."""
    return _digest(canonical(spec))


class Addresses:
    """The `address` of one spec after another, where the text that they share but for the seed is written once."""

    def __init__(self) -> None:
        self._around = Memo(_around_seed)

    def __call__(self, spec: Mapping[str, Any]) -> str:
        if not isinstance(spec, Joined):
            return address(spec)
        return _digest(canonical(spec["seed"]).join(self._around(spec)))


def _around_seed(shared: Mapping[str, Any]) -> tuple[str, str]:
    """The canonical text of a spec before its seed, and behind it."""
    before, after = ({name: shared[name] for name in shared if (name < "seed") is first} for first in (True, False))
    ahead, rest = canonical(before)[1:-1], canonical(after)[1:-1]
    return f'{{{ahead}{"," if ahead else ""}"seed":', f"{',' if rest else ''}{rest}}}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


ORDER = ("study", "task", "setting", "arch", "seed", "key")  # order of committed records


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write records to be committed: JSON lines, one record a line, in a fixed order.

    The same records give the same bytes, so that a changed line is a changed record.
    """
    write_lines(path, sorted(records, key=lambda record: tuple(getattr(record, name) for name in ORDER)))


def write_lines(path: Path, records: Iterable[Record]) -> None:
    """Write records that come in that order, one after another."""

    def write(draft: Path) -> None:
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(f"{to_json(record)}\n" for record in records)

    write_whole(path, write)


def read_records(path: Path, *, keys: Collection[str] | None = None) -> list[Record]:
    """Records from a file of JSON lines, or from every `*.jsonl` of a folder; a key twice counts once, `done` first. `keys`
    limits them.

    Raises ValueError on a line that is no record, with file, line and field.
    """
    return unique(records_in(path, keys=keys))


def records_in(
    path: Path, *, skipped: list[str] | None = None, passing: bool = False, keys: Collection[str] | None = None
) -> Iterator[Record]:
    """Records one by one, with every repetition of a key. Lines that are no records are passed over and listed in `skipped`,
    where it is given. `passing` records are not kept (see `Pool`). `keys` limits them: the lines of other keys must be JSON,
    and are not looked into."""
    pool = Pool(passing=passing)
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    if text := line.decode("utf-8").strip():
                        data = json.loads(text)
                        if keys is None or not _is_of_others(data, keys):
                            yield Record.from_dict(data, pool)
                except (ValueError, RecursionError) as error:
                    why = "nested too deeply" if isinstance(error, RecursionError) else error
                    fault = f"{file}:{number}: not a record: {why}"
                    if skipped is None:
                        raise ValueError(fault) from error
                    skipped.append(fault)


def _is_of_others(data: Any, keys: Collection[str]) -> bool:
    key = data.get("key") if isinstance(data, dict) else None
    return isinstance(key, str) and key not in keys


def unique(records: Iterable[Record]) -> list[Record]:
    """Every key once, in order of first occurrence: its first record that is done, or its first one."""
    found: dict[str, Record] = {}
    for record in records:
        if record.key not in found or (found[record.key].status, record.status) == ("failed", "done"):
            found[record.key] = record
    return list(found.values())


def to_json(record: Record) -> str:
    """One line, keys sorted."""
    return text_of({name: getattr(record, name) for name in FIELDS})


def _own(value: Any) -> Any:
    """A copy of plain data that shares nothing."""
    if isinstance(value, Mapping):
        return {name: _own(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_own(part) for part in value)
    return value


def _finite(scores: Mapping[str, float]) -> Mapping[str, float]:
    if type(scores) is Scores or not scores or (are_floats(scores) and are_finite(scores.values())):
        return scores
    return {name: value for name, value in scores.items() if is_finite(value)}


def _finite_or_none(values: Sequence[float | None]) -> list[float | None]:
    floats = [x for x in values if type(x) is float]
    if floats and len(floats) == len(values) and are_finite(floats):  # most are, and a look at each takes longer
        return [*floats]
    return [x if x is not None and is_finite(x) else None for x in values]


def _finite_test(test: Mapping[str, Any]) -> Mapping[str, Any]:
    return test if type(test) is Joined else {**test, "scores": _finite(test.get("scores", {}))}
