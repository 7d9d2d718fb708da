"""Published figures of other work, as rows with which our tables are compared.

The files `published/*.yaml` hold the figures. The codec of `search` reads them and passes plain data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

FOLDER = Path(__file__).parents[1] / "published"

Value = str | int | float | bool

T = TypeVar("T")


def names() -> list[str]:
    """The published sources that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@dataclass(frozen=True, kw_only=True)
class Column:
    """The measurements of ours that correspond to a published column. Raises ValueError unless it has either tasks or a mean.

    tasks     kinds of tasks, averaged where there are several
    dials     parameters of the task's setting, each with its value; None where the task has no such parameter
    mean      whether the column is the mean of the other columns, or of the settings in `over`
    over      the parameters of every setting that a mean averages, where these have no columns of their own
    settings  number of settings of a task that the published figure averages
    """

    name: str
    tasks: tuple[str, ...] = ()
    dials: Mapping[str, Value | None] = field(default_factory=dict)
    mean: bool = False
    over: tuple[Mapping[str, Value], ...] = ()
    settings: int | None = None

    def __post_init__(self) -> None:
        if bool(self.tasks) == self.mean:
            got = "both" if self.mean else "neither"
            raise ValueError(f"column '{self.name}' must have either tasks or mean: true, got {got}")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One published model. `values` are in the order of the columns, None where nothing was published.

    arch   its published name
    ours   our architectures that correspond to it; by default the one of the same name
    dials  further parameters of ours that must agree, such as width
    note   how it differs from all of ours; a row with a note is shown, but compared with none
    """

    arch: str
    values: tuple[float | None, ...]
    ours: tuple[str, ...] = ()
    dials: Mapping[str, Value] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        if not self.ours:
            object.__setattr__(self, "ours", (self.arch,))

    @property
    def name(self) -> str:
        marks = [f"{name}={value}" for name, value in self.dials.items()]
        return " ".join([self.arch, *marks, *([f"({self.note})"] if self.note else [])])


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """One table or figure of a source. Values are fractions; those of a file with `unit: percent` are divided by 100.

    mix        whether its models trained on a mix of settings, not on the one setting on which they are scored
    how        "reported" in a table, "digitised" from a figure, or "quoted" by another source
    tolerance  error of the figures themselves, where they were digitised

    Raises ValueError on an unknown `how`, and where a row has more or fewer values than there are columns.
    """

    about: str
    where: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    mix: bool = False
    how: Literal["reported", "digitised", "quoted"] = "reported"
    tolerance: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        if self.how not in ("reported", "digitised", "quoted"):
            raise ValueError(f"{self.where}: how must be reported, digitised or quoted, got '{self.how}'")
        for row in self.rows:
            if len(row.values) != len(self.columns):
                raise ValueError(
                    f"{self.where}: row {row.name} has {len(row.values)} values for {len(self.columns)} columns"
                )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of a source that comes without a table of figures, and the protocol behind it."""

    about: str
    where: str
    says: str
    protocol: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Published:
    """All figures and statements of one source with which our results are compared."""

    name: str
    source: str
    tables: tuple[PublishedTable, ...] = ()
    claims: tuple[Claim, ...] = ()

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Published:
        """The source from the mapping of a file of `published/`. Raises ValueError on unknown keys and wrong values."""
        return _make(
            Published,
            data,
            tables=tuple(_table(table) for table in data.get("tables", ())),
            claims=tuple(_make(Claim, claim) for claim in data.get("claims", ())),
        )


def _table(data: Mapping[str, Any]) -> PublishedTable:
    unit = data.get("unit", "fraction")
    if unit not in ("fraction", "percent"):
        raise ValueError(f"{data.get('where')}: unit must be 'fraction' or 'percent', got '{unit}'")
    scale = 100 if unit == "percent" else 1
    rows = (
        _make(Row, row, values=_fractions(row["values"], scale), ours=tuple(row.get("ours", ())))
        for row in data["rows"]
    )
    columns = (
        _make(Column, column, tasks=tuple(column.get("tasks", ())), over=tuple(column.get("over", ())))
        for column in data["columns"]
    )
    plain = {name: value for name, value in data.items() if name != "unit"}
    return _make(PublishedTable, plain, rows=tuple(rows), columns=tuple(columns))


def _fractions(values: Iterable[float | None], scale: float) -> tuple[float | None, ...]:
    return tuple(None if value is None else value / scale for value in values)


def _make(kind: type[T], data: Mapping[str, Any], **instead: Any) -> T:
    known = _names(kind)
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)} in {kind.__name__}; it may have {', '.join(known)}")
    try:
        return kind(**{**data, **instead})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _names(kind: Any) -> Iterable[str]:
    return [f.name for f in fields(kind)]
