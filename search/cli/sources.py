"""Sources of records: a ledger, a file or a folder of records, and those that come with the package."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from recallmap.results import record_files
from recallmap.results.analysis.labels import counted
from recallmap.results.exports.frame import FIELDS, leaves
from recallmap.results.ledger import EXPORTED, Ledger, LedgerError, LeftOut
from recallmap.results.record import SHORT, Record, address, records_in
from recallmap.results.record_files import LEDGERS, SUFFIXES, files, is_ledger, is_lines, read
from recallmap.results.storage.layout import Row, rows_of
from recallmap.results.storage.lock import writer_of
from recallmap.search import codec
from recallmap.search.cli.next_command import training
from recallmap.search.documents import built_in, content_key, type_hints, yaml_text
from recallmap.search.documents.nodes import Fault, Place, SpecError, fault

if TYPE_CHECKING:
    from recallmap.search.study.spec import StudySpec

RUNS = Path("runs")  # the default folder of ledgers

KEPT = "results/records"  # of the package

MOST_VALUES = 12  # listed where an unknown value was asked for


class Found(NamedTuple):
    """Records, their title, and a note for the user."""

    title: str
    records: list[Record]
    note: str = ""


def found(
    source: str,
    ledger: Path | None = None,
    sets: Sequence[str] = (),
    *,
    patient: bool = False,
    curves: bool = True,
) -> Found:
    """The records of a ledger, of a file or a folder of records, or of those trials of a study that are kept.

    patient  wait where there are no records yet
    curves   read their curves, which only the page shows

    Raises SpecError or LedgerError, and where there are none.
    """
    if not holds_records(source):
        study = codec.read_study(source, overrides=sets)
        result = of_study(study, source, ledger, patient=patient, curves=curves)
        if not result.records and not patient:
            path = ledger or default_ledger(study)
            own = ledger if path.suffix in LEDGERS else None  # no run writes records elsewhere
            raise fault(Place(str(path)), "", untrained(study, path, training(source, own, sets)))
    elif ledger or sets:
        said = "--ledger" if ledger else "--set"
        raise fault(
            Place(said),
            "",
            f"got it with {source}, which is records, expected a study; leave it out, or choose with --only KEY=VALUE",
        )
    else:
        result = Found(Path(source).stem or source, read(Path(source), patient=patient, curves=curves))
    if not result.records and not patient:
        raise fault(Place(source), "", "holds no records yet; train some with: recallmap run STUDY")
    return result


def of_study(
    study: StudySpec, source: str, ledger: Path | None, *, patient: bool = False, curves: bool = True
) -> Found:
    """The records of a study's trials in its ledger, or in another place of records. A built-in study without a ledger uses
    the records that come with the package."""
    from recallmap.search.engines.trial_sources import trials_of
    from recallmap.search.space.search_space import Search

    path = ledger or default_ledger(study)
    search = isinstance(study.space, Search)
    own = {content_key.key(trial) for file in (files(path) if search else [path]) for trial in trials_of(study, file)}
    if ledger is None and not patient and source in built_in.builtin("study") and not os.path.exists(path):
        records = read(record_files.kept(), keys=own)
        if records:
            few = f", of the {len(own)} trials of {study.name}" if len(records) < len(own) else ""
            note = f"no ledger at {path}; using {len(records)} records kept with recallmap in {KEPT}{few}"
            return Found(study.name, records, note)
        if (shipped := record_files.kept() / f"{study.name}.jsonl").is_file():
            raise LedgerError(
                f"there is no ledger at {path}, and no trial of {study.name} with these options is kept with recallmap; "
                f"train with: recallmap run {source}; or look at those that are kept: recallmap table {shipped}"
            )
    held = read(path, patient=patient, curves=curves, keys=own)
    others = 0 if held or patient else len(read(path, curves=False))
    if search and not own and others and path.suffix not in LEDGERS and not os.path.exists(journal_at(path)):
        raise fault(
            Place(str(path)),
            "",
            f"the journal of the search {study.name} says which records are its own, and there is none at "
            f"{journal_at(path)}; give the ledger of the search, or look at all records: recallmap table {path}",
        )
    if others and not search:
        raise fault(
            Place(str(path)),
            "",
            f"holds {counted(others, 'record')}, none of the {len(own)} trials of {study.name} with these options; "
            f"change --set, or look at all records: recallmap table {path}",
        )
    note = f"{path} has {len(held)} of the {len(own)} trials of {study.name}" if len(held) < len(own) else ""
    return Found(study.name, held, "" if patient else note)


def untrained(study: StudySpec, path: Path, command: str) -> str:
    """What is to be said where nothing of a study has finished in a place of records, with the command that trains it: who
    writes the ledger now, or which cohorts a stopped run has saved; else, of a search, the budgets in which something has."""
    from recallmap.search.cli.unfinished import said_saved, saved_of
    from recallmap.search.proposers.journal import Journal
    from recallmap.search.space.search_space import Search

    search = isinstance(study.space, Search)
    none = f"no {'point' if search else 'trial'} of {study.name} has finished"
    writer, saved = writer_of(path), saved_of(study, path)
    kept = f"; {said_saved(saved)}" if saved else ""
    if writer:
        return f"{none} yet{kept}; {writer} writes this ledger now: look again later, or resume when it has ended: {command}"
    budgets = ", ".join(Journal(journal_at(path)).budgets(study.name)) if search else ""
    others = f" with these options, but with others of budget {budgets}; repeat their --set, or" if budgets else ";"
    if saved and not budgets:
        return f"{none}, and its run was stopped{kept}; resume it with: {command}"
    return f"{none}{others} train it with: {command}"


def default_ledger(study: StudySpec) -> Path:
    return RUNS / f"{study.name}.sqlite"


def journal_at(path: Path) -> Path:
    """The journal of a place of records. Raises SpecError where a folder has several."""
    from recallmap.search.proposers.journal import journal_of

    known = [journal_of(file) for file in files(path) if os.path.exists(journal_of(file))]
    if len(known) > 1:
        raise fault(
            Place(str(path)), "", "holds the journals of several ledgers, expected one; give one of these ledgers"
        )
    return known[0] if known else journal_of(files(path)[0])


def holds_records(source: str) -> bool:
    """True where a source is records and not a study; an exported table counts as such, and reading it says what it is."""
    if source in built_in.builtin("study"):
        return False
    return source.endswith((*SUFFIXES, *EXPORTED)) or os.path.isdir(source) or is_ledger(Path(source))


def each(path: Path, *, skip_bad: bool, say: Callable[[str], None]) -> Iterator[Row]:
    """The records of a ledger or of a file, one after another, as rows that a ledger merges. With `skip_bad`, lines that are no
    records and damaged records are left out, counted and reported to `say`. Raises LedgerError."""
    if not is_lines(path):
        left_out = LeftOut()
        with Ledger.open(path) as ledger:
            yield from ledger.rows(left_out=left_out if skip_bad else None)
        if len(left_out):
            keys = f": {', '.join(key[:12] for key in left_out.keys[:5])}" if left_out.keys else ""
            say(f"{path}: left out {counted(len(left_out), 'damaged record')}{keys}")
        return
    skipped: list[str] = []
    try:
        yield from rows_of(records_in(path, skipped=skipped if skip_bad else None, passing=True))
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # it names file and line
        raise LedgerError(
            f"{error}; nothing was merged: mend the line, or leave out bad records with --skip-bad"
        ) from error
    if skipped:
        say(f"left out {counted(len(skipped), 'line')}, the first of them {skipped[0]}")


def merge_lines(
    places: Sequence[Path], output: Path, *, skip_bad: bool, untraceable: bool, say: Callable[[str], None]
) -> tuple[int, int]:
    """Merge into a file of records, by way of a ledger, because there may be more than memory holds. Returns the number of
    records in the file, and that of new ones.

    untraceable  take records without a clean commit into `results/records` too, where published figures rest on them

    Raises OSError or LedgerError, and then leaves the file as it was.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with (
        TemporaryDirectory(prefix=".merged.", dir=output.parent) as folder,
        Ledger(Path(folder) / "merged.sqlite") as ledger,
    ):
        before = ledger.merge(each(output, skip_bad=skip_bad, say=say)) if os.path.exists(output) else 0
        published = not untraceable and output.resolve().parent.parts[-2:] == ("results", "records")
        known = ledger.keys() if published else set()
        ledger.merge(*(each(place, skip_bad=skip_bad, say=say) for place in places))
        new = (r for r in ledger.each(curves=False) if r.key not in known) if published else ()
        if lost := sum(not record.traceable for record in new):
            raise LedgerError(
                f"{output}: {counted(lost, 'new record')} untraceable (no commit, or uncommitted changes), but "
                "published figures rest on this folder; train these trials again from a clean commit, or keep them with "
                "--untraceable"
            )
        ledger.export(output)
        return len(ledger), len(ledger) - before


def known(places: Sequence[Path], *, untraceable: bool, say: Callable[[str], None]) -> dict[str, Record]:
    """The trained trials of several places by key, the first place first; failed trials count nowhere.

    untraceable  accept records without a clean commit, and say how many

    Raises LedgerError where a file cannot be read, where a record is of another schema, has another trial's key, or is
    untraceable.
    """
    merged: dict[str, Record] = {}
    for place in places:
        found = [record for record in read(place) if record.status == "done"]
        if wrong := next((record for record in found if address(record.spec) != record.key), None):
            raise LedgerError(
                f"{place}: the record {wrong.key[:SHORT]} of {wrong.arch} has the key of another trial, expected "
                f"{address(wrong.spec)[:SHORT]}; train it again, and leave this one out"
            )
        if lost := sum(not record.traceable for record in found):
            whole = counted(len(found), "record")
            few = f"{place}: {lost} of {whole} untraceable (no commit, or uncommitted changes)"
            if not untraceable:
                raise LedgerError(
                    f"{few}; accept them with --known-untraceable, or train these trials again from a clean commit"
                )
            say(f"{few}, counted as trained")
        merged = {record.key: record for record in found} | merged
    return merged


# Selection of records. --------------------------------------------------------------------------------


def only(records: Sequence[Record], wishes: Iterable[str]) -> list[Record]:
    """The records that match all conditions, such as arch=mesa, pairs=4 or lr=1e-3; two values of one key match either. A
    key is a field of records, or a path of their specs or its end. Raises SpecError where no record matches."""
    wanted: dict[str, list[str]] = {}
    for text in wishes:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise fault(Place("--only"), "", f"got {text!r}, expected KEY=VALUE such as arch=mesa")
        wanted.setdefault(key.strip(), []).append(value.strip())
    said = [_values(record, wanted) for record in records]
    faults = [f for key, values in wanted.items() for f in _unheard(records, [one[key] for one in said], key, values)]
    if faults:
        raise SpecError(faults)
    chosen = [
        record
        for record, one in zip(records, said, strict=True)
        if all(any(_is(value, text) for value in one[key] for text in texts) for key, texts in wanted.items())
    ]
    if not chosen and records:
        raise fault(Place("--only"), "", f"no record matches all of these: {', '.join(wishes)}; leave some out")
    return chosen


def _cells(record: Record) -> Iterator[tuple[str, Any]]:
    for name in FIELDS:
        yield name, getattr(record, name)
    yield from leaves(record)


def _values(record: Record, keys: Iterable[str]) -> Mapping[str, list[Any]]:
    """The values of a record under each of these keys; there may be several: a width of the model and of a mixer."""
    paths = {key: re.sub(r"\[(\d+)\]", r".\1", key).removeprefix("trial.") for key in keys}
    found: dict[str, list[Any]] = {key: [] for key in paths}
    for name, value in _cells(record):
        for key, path in paths.items():
            if name == path or name.endswith(f".{path}"):
                found[key].append(value)
    return found


def _is(value: Any, text: str) -> bool:
    """True where a value is that of a text of the command line, by the rules of YAML."""
    said = yaml_text.plain_scalar(text)
    return (isinstance(value, bool) == isinstance(said, bool) and value == said) or value == text


def _unheard(records: Sequence[Record], said: Sequence[list[Any]], key: str, texts: Sequence[str]) -> Iterator[Fault]:
    """Faults of a condition that no record matches."""
    values = list(dict.fromkeys((type(value), value) for own in said for value in own))
    if not values:
        ends = {name.rpartition(".")[2] for record in records for name, _ in _cells(record)}
        names = [*FIELDS, *sorted(ends - set(FIELDS))]
        yield Fault(
            Place("--only"),
            key,
            f"no record has this key, expected arch, task, study, setting, seed, status or an option of trials, such as "
            f"width or lr{type_hints.guess(key.rpartition('.')[2], names)}",
        )
        return
    for text in texts:
        if not any(_is(value, text) for _, value in values):
            words = (value if isinstance(value, str) else json.dumps(value) for _, value in values)
            known = sorted(words, key=lambda one: (len(one), one))
            few = type_hints.either(known) if len(known) <= MOST_VALUES else f"{', '.join(known[:MOST_VALUES])}, ..."
            yield Fault(Place("--only"), key, f"no record has {text}, expected {few}{type_hints.guess(text, known)}")
