"""Records as pandas frames: read them, find the front, print the tables, draw the page's figures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pandas as pd

from recallmap.results import record_files
from recallmap.results.analysis.labels import leaves_of, row_names
from recallmap.results.analysis.published_figures import Published
from recallmap.results.exports.frame import frame
from recallmap.results.page import drawing
from recallmap.results.page.figure_data import opening
from recallmap.results.page.points import on_front
from recallmap.results.record import Record, unique
from recallmap.results.score_tables.breakdowns import all_tables, tables_by
from recallmap.results.score_tables.rendering import Format, render
from recallmap.search import codec
from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Place, fault

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Shown = Literal["front", "learning"]

FIGURES = {"front": drawing.front, "learning": drawing.learning}


class RecordFrame(pd.DataFrame):
    """A frame that knows the records of its rows, and so does each selection, sorting or concatenation of its rows."""

    _metadata = ("records",)
    records: Mapping[str, Record]  # by key

    @property
    def _constructor(self) -> Any:
        return RecordFrame

    def __finalize__(self, other: Any, method: str | None = None, **rest: Any) -> RecordFrame:
        super().__finalize__(other, method=method, **rest)
        joined = getattr(other, "input_objs", getattr(other, "objs", ()))  # of pandas 3, and before
        known = [own for part in joined if (own := getattr(part, "records", None)) is not None]
        if known and len(known) == len(joined):
            object.__setattr__(self, "records", {key: one for own in known for key, one in own.items()})
        return self


Shows: TypeAlias = "pd.DataFrame | Sequence[Record]"  # records as a frame of `records`, or as `run` returns them


class Text(str):
    """Text that a prompt and a notebook show as it is, not quoted."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        return str(self)


def records(*sources: str | os.PathLike[str] | Sequence[Record]) -> RecordFrame:
    """Records as a frame with a row for each: `records("runs/demo.sqlite")`, `records("mad")`.

    sources  ledgers, .jsonl files, folders of these, records as `run` returns them, or the name of a file of records that
             ships with recallmap. A trial that several have counts once, `done` first

    Columns: `label`, the name of the architecture in tables; the plain fields of `Record`; every test score by its name
    (`accuracy`), `validation_<score>`; every leaf of the spec by its path, such as `task.length`, `training.lr` or
    `arch.stack.0.mixer.key_dim`; and a short name, such as `mixer.key_dim`, for what varies and has one value in a stack.
    Raises SpecError for an unknown source, and LedgerError for one that cannot be read.
    """
    found = unique(record for source in sources for record in _read(source))
    made = frame(found)
    names = row_names(found)
    made.insert(0, "label", pd.Series([names[record.key] for record in found], dtype="string"))
    for name, values in _short(found).items():
        if name not in made:
            made[name] = pd.Series(values, dtype="object").infer_objects()
    result = RecordFrame(made)
    object.__setattr__(result, "records", {record.key: record for record in found})
    return result


def front(of: Shows, setting: str | None = None, /) -> pd.DataFrame:
    """The front: the architectures that no other beats in both score and size of state, by setting. Where the state is unknown
    an architecture is on none.

    setting  one of the page's settings, or a part of its name; None: all

    Columns: setting, label, arch, state_bytes, score (mean over seeds under the hyper-parameters that validation chose),
    deviation (standard deviation over seeds; none for one), seeds, share (of draws of seeds in which it is on the front).
    Raises ValueError where no trial has a score.
    """
    shown = _views(of, setting)
    rows = []
    for view in shown.views:
        means = view["means"]
        for mean in (mean for mean, yes in zip(means, on_front(means), strict=True) if yes):
            names = {"label": shown.rows[mean["row"]], "arch": shown.archs[mean["arch"]]}
            figures = {"state_bytes": mean["state"], "score": mean["mean"], "deviation": mean["half"]}
            more = {"seeds": mean.get("count") or len(mean["trials"]), "share": mean["share"]}
            rows.append({"setting": view["label"], **names, **figures, **more})
    columns = ["setting", "label", "arch", "state_bytes", "score", "deviation", "seeds", "share"]
    return pd.DataFrame(rows, columns=columns).astype({"deviation": "float64"})


def table(
    of: Shows,
    /,
    *,
    by: str | None = None,
    beside: str | None = None,
    settings: bool = False,
    form: Format = "markdown",
) -> Text:
    """The tables of scores, as `recallmap table` prints them.

    by        break scores down by a part or an option: "pairs", "length", "window", ...
    beside    published figures to compare with, such as "mesanet"
    settings  show MAD tasks by setting, too
    form      "markdown", "csv", "latex" or "html"

    Raises ValueError where hyper-parameters cannot be chosen, or for an unknown option.
    """
    own = _records_of(of)
    if by is not None:
        return Text(render(tables_by(own, by), form))
    return Text(render(all_tables(own, _published(beside), settings=settings), form))


def figure(of: Shows, name: Shown = "front", /, *, setting: str | None = None, beside: str | None = None) -> Figure:
    """A figure of the page, as plotly draws it.

    name     "front": score against state; "learning": validation score against optimizer steps
    setting  one of the page's settings, or a part of its name; None: the one that the page opens with
    beside   published figures to draw as outlined markers, such as "mesanet"

    Raises ValueError where no trial has a score.
    """
    if name not in FIGURES:
        known = list(FIGURES)
        said = f"got {name!r}, expected {type_hints.either(known)}{type_hints.guess(str(name), known)}"
        raise fault(Place("figure"), "", said)
    shown = _views(of, setting, beside)
    return FIGURES[name](shown, shown.views[opening(shown.views)])


def _views(of: Shows, setting: str | None, beside: str | None = None) -> drawing.Views:
    """The page's views of some settings; of all where none is asked for."""
    published = _published(beside)
    own = _records_of(of)
    if not any(record.score is not None for record in own):
        raise fault(Place("records"), "", f"none of {len(own)} records has a score; train some with recallmap.run")
    shown = drawing.Views.of(own, [published] if published else [])
    if setting is None:
        return shown
    labels = [view["label"] for view in shown.views]
    chosen = [view for view in shown.views if view["label"] == setting] or [
        view for view in shown.views if setting in view["label"] or setting in view.get("setting", "")
    ]
    if not chosen:
        meant = type_hints.guess(setting, labels)
        raise fault(Place("setting"), "", f"got {setting!r}, expected {type_hints.either(labels)}{meant}")
    return shown._replace(views=chosen)


def _records_of(of: Shows) -> list[Record]:
    """The records of a frame's rows, in their order."""
    if not isinstance(of, pd.DataFrame):
        return list(of)
    known = getattr(of, "records", None)
    if known is None or "key" not in of:
        raise fault(
            Place("records"),
            "",
            "got a frame that does not know its records, expected rows of recallmap.records(...) with their column 'key'",
        )
    return [known[key] for key in dict.fromkeys(of["key"])]


def _read(source: str | os.PathLike[str] | Sequence[Record]) -> list[Record]:
    if not isinstance(source, str | os.PathLike):
        return list(source)
    text = os.fspath(source)
    shipped = {file.stem: file for file in record_files.files(record_files.kept())}
    if os.path.exists(text) or text not in shipped:
        if not os.path.exists(text):
            may = (
                f"no such file, and no records of this name ship with recallmap{type_hints.guess(text, list(shipped))}"
            )
            raise fault(
                Place(text), "", f"{may}; expected a ledger, a .jsonl, a folder, or {type_hints.either(list(shipped))}"
            )
        return record_files.read(Path(text))
    return record_files.read(shipped[text])


def _published(name: str | None) -> Published | None:
    return None if name is None else Published.from_dict(codec.read_published(name))


def _short(found: Sequence[Record]) -> dict[str, list[Any]]:
    """The options of architectures that vary, by the last two parts of their paths, where each record has one value."""
    known: dict[int, dict[str, dict[str, Any]]] = {}  # by name and text of the value, for leaves that records share
    rows = []
    for record in found:
        leaves = leaves_of(record)
        if id(leaves) not in known:
            own = known[id(leaves)] = {}
            for path, value in leaves.items():
                parts = path.split(".")[-2:]
                if len(parts) == 2 and not any(part.isdigit() for part in parts):
                    own.setdefault(".".join(parts), {})[repr(value)] = value
        rows.append(known[id(leaves)])
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name, {}) for row in rows]
        if all(len(one) <= 1 for one in values) and len({tuple(one) for one in values}) > 1:
            columns[name] = [next(iter(one.values()), None) for one in values]
    return columns
