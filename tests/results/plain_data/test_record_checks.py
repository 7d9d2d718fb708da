"""A record from elsewhere is refused by name, or every verb can work with it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from recallmap.results.exports.frame import frame
from recallmap.results.ledger import Ledger
from recallmap.results.page.dashboard import page
from recallmap.results.record import FIELDS, Record, address, read_records, records_in, to_json, write_records
from recallmap.results.score_tables.breakdowns import further_tables
from recallmap.results.score_tables.rendering import render
from recallmap.results.score_tables.scores import table_of
from recallmap.search.cli.app import app

Make = Callable[..., Record]
KEPT = Path(__file__).parents[3] / "results" / "records"
BASES = ("statex_cpu", "parity_cpu", "mqar_precision_cpu", "learnability_cpu", "needle_cpu", "mad_rates_cpu")
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3.5, -0.5, 1e308, 10**30, 2**63, "", "x", "\ud800", "9" * 50),
    *([], {}, [1], [None], ["x"], {"a": 1}, {"a": None}, float("nan"), float("inf")),
)
NAMES = ("x", "", "a/b=c", "accuracy/=", "loss")


def families() -> list[list[dict[str, Any]]]:
    """Records that stand in one table with each other: seeds of an architecture, and two others."""
    found = []
    for name in BASES:
        records = read_records(KEPT / f"{name}.jsonl")
        first = records[0]
        alike = [r for r in records if (r.task, r.arch) == (first.task, first.arch)][:3]
        found.append([r.to_dict() for r in (*alike, *[r for r in records if r.arch != first.arch][:2])])
    return found


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        yield from paths(part, (*path, name))


def mutant(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The same with one thing in it that is missing, of another type, out of range, renamed, added or in a list."""
    data = copy.deepcopy(record)
    field = rng.choice(sorted(data))
    *above, last = rng.choice([(field, *path) for path in paths(data[field])] if rng.random() < 0.8 else [(field,)])
    at: Any = data
    for name in above:
        at = at[name]
    how = rng.choice(("value", "value", "missing", "renamed", "more", "listed"))
    if how == "value":
        at[last] = copy.deepcopy(rng.choice(VALUES))
    elif how == "missing":
        del at[last]
    elif how == "renamed" and isinstance(at, dict):
        at[f"{last}x"] = at.pop(last)
    elif how == "more" and isinstance(at[last], list):
        at[last].append(copy.deepcopy(rng.choice(VALUES)))
    elif how == "more" and isinstance(at[last], dict):
        at[last][rng.choice(NAMES)] = copy.deepcopy(rng.choice(VALUES))
    else:
        at[last] = [at[last]]
    return data


def at_the_door(data: dict[str, Any]) -> tuple[Record | None, str]:
    try:
        return Record.from_dict(data), ""
    except ValueError as error:
        return None, str(error)


def refusal_of_verbs(records: list[Record]) -> str:
    frame(records)
    try:
        tables = table_of(records, settings=True)
        render(tables + further_tables(records), "markdown")
        page(records, title="made up", tables=tables)
    except ValueError as error:
        return str(error)
    return ""


def test_a_changed_record_is_refused_by_name_or_every_verb_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "recallmap.results.page.compression.plotly", lambda: ("", "")
    )  # four megabytes that no record changes
    rng, whole = random.Random(11), families()
    refused = worked = 0
    for _ in range(400):
        family = rng.choice(whole)
        place = rng.randrange(len(family))
        data = mutant(family[place], rng)
        record, said = at_the_door(data)
        if record is None:
            assert any(name in said for name in (*FIELDS, *data)), said
            refused += 1
            continue
        records = [record, *(Record.from_dict(other) for number, other in enumerate(family) if number != place)]
        said = refusal_of_verbs(records)
        assert not said or "to choose by" in said, said  # the one thing that they refuse in sound records
        worked += 1
    assert refused > 200
    assert worked > 40


def test_every_kept_record_passes_the_door_and_has_the_key_of_its_spec() -> None:
    count = 0
    for record in records_in(KEPT):
        assert address(record.spec) == record.key
        count += 1
    assert count > 4800


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": "3"}, "seed must be a whole number of at least 0, got '3'"),
        ({"seed": True}, "seed must be a whole number of at least 0, got true"),
        ({"seed": 2**64}, "seed must be a whole number of at least 0 and at most 9223372036854775807, got 1844"),
        ({"seconds": float("nan")}, "seconds must be a number of at least 0 that is finite, got nan"),
        ({"status": "lost"}, "status must be 'done' or 'failed', got 'lost'"),
        ({"peak_bytes": 1.5}, "peak_bytes must be a whole number of at least 0 or null, got 1.5"),
        ({"scores": {"accuracy": "high"}}, "scores.accuracy must be a number, got 'high'"),
        ({"scores": [0.5]}, "scores must be a mapping, got a list of 1"),
        ({"spec": {"arch": []}}, "spec.task is missing; spec.arch must be a mapping, got an empty list"),
        ({"arch": "a\ud800"}, "arch must be text that UTF-8 can hold, got 'a\\ud800'"),
        ({"tests": [{"task": "mqar"}]}, "tests[0].ceiling is missing; tests[0].chance is missing; tests[0].length"),
        ({"curve": {"step": [1, 2]}}, "curve.train_loss is missing; curve.validation_loss is missing"),
        ({"protocol": "other"}, "spec.task.protocol must be the record's protocol 'other', got 'repaired'"),
        ({"chance": 2.0}, "chance must be at most the ceiling, 1.0, got 2.0"),
        ({"cohort": 0, "length": -1}, "length must be a whole number of at least 0, got -1; cohort must be"),
    ],
)
def test_a_fault_is_told_with_field_what_came_and_what_may_come(change: dict[str, Any], said: str, make: Make) -> None:
    with pytest.raises(ValueError, match=r"must be|is missing") as error:
        Record.from_dict({**make().to_dict(), **change})
    assert said in str(error.value)


def test_a_curve_has_as_many_figures_of_each_name(make: Make) -> None:
    curve = {name: [1.0, 2.0] for name in ("step", "train_loss", "validation_loss", "validation_accuracy")}
    assert Record.from_dict({**make().to_dict(), "curve": curve}).curve == curve
    with pytest.raises(ValueError, match=r"as many figures of each name, got 2 of step, 1 of train_loss"):
        Record.from_dict({**make().to_dict(), "curve": {**curve, "train_loss": [1.0]}})


@pytest.mark.parametrize(
    "line", ["[" * 100_000, '{"key": "k"}', '{"seed": 1e400', b"\xff", '{"a": "\\ud800"}', "1" * 5000, "null"]
)
def test_a_file_with_a_line_that_is_no_record_is_merged_whole_or_not_at_all(
    line: str | bytes, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = [make(seed=seed) for seed in range(3)]
    write_records(tmp_path / "good.jsonl", [make(seed=7)])
    lines = [to_json(record).encode() for record in records]
    bad = line if isinstance(line, bytes) else line.encode()
    (tmp_path / "bad.jsonl").write_bytes(b"\n".join([lines[0], bad, *lines[1:]]))

    def call(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, list(words))
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stderr

    for output in ("all.sqlite", "all.jsonl"):
        code, said = call("merge", "good.jsonl", "bad.jsonl", "-o", output)
        assert code == 2
        assert said.startswith("bad.jsonl:2: not a record: ")
        assert "--skip-bad" in said
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.jsonl", "good.jsonl"]
    code, said = call("table", "bad.jsonl")
    assert (code, said.partition(": not")[0]) == (2, "bad.jsonl:2")
    code, said = call("merge", "good.jsonl", "bad.jsonl", "-o", "all.sqlite", "--skip-bad")
    assert code == 0
    assert said.startswith("left out 1 line, the first of them bad.jsonl:2: not a record: ")
    assert Ledger.open(tmp_path / "all.sqlite").all() == [make(seed=7), *records]
