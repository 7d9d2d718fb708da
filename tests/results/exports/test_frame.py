"""A record's row says all that its spec says, in columns that pieces of a table share."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from recallmap.results.exports.frame import Cells, columns_of, frame
from recallmap.results.exports.pieces import export
from recallmap.results.record import Record, read_records

Make = Callable[..., Record]
KEPT = Path(__file__).parents[3] / "results" / "records"


def stacked(make: Make, key_dim: int, **rest: Any) -> Record:
    return make(arch_dials={"stack": [{"kind": "block", "mixer": {"kind": "mesa", "key_dim": key_dim}}]}, **rest)


def row(record: Record) -> dict[str, Any]:
    cells = Cells()
    return cells.own(record) | cells.known[cells.place(record)]


def said_of_the_spec(record: Record) -> dict[str, Any]:
    """The row of a record that is like all others but for its spec."""
    nobody = Record(
        key="", study="", status="done", spec=record.spec, task="", setting="", protocol="", arch="", seed=0
    )
    return row(nobody)


def without_nulls(value: Any) -> Any:
    """A spec as far as it is set: null is what is not set."""
    if isinstance(value, Mapping):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    return [without_nulls(part) for part in value] if isinstance(value, list) else value


def test_trials_that_differ_inside_the_stack_have_rows_that_differ(make: Make) -> None:
    table = frame([stacked(make, 16), stacked(make, 32)])
    assert table["arch.stack.0.mixer.key_dim"].tolist() == [16, 32]
    assert {"task.length", "training.lr", "data.validation", "arch.name", "arch.width", "version"} <= set(table.columns)


@pytest.mark.parametrize("name", ["mqar_capacity", "statex", "cg_steps", "mad_rates_cpu"])
def test_kept_records_whose_specs_differ_have_rows_that_differ(name: str) -> None:
    records = read_records(KEPT / f"{name}.jsonl")
    specs = {json.dumps(without_nulls(r.spec), sort_keys=True) for r in records}
    assert len({json.dumps(said_of_the_spec(r), sort_keys=True) for r in records}) == len(specs) > 1


def test_any_two_specs_that_differ_give_rows_that_differ(make: Make) -> None:
    rng = random.Random(3)

    def spec(depth: int) -> Any:
        kind = rng.choice(["leaf", "leaf", "list", "mapping"]) if depth else "mapping"
        if kind == "mapping":
            return {
                rng.choice(["seed", "error", "accuracy", "a", "b"]): spec(depth + 1) for _ in range(rng.randint(0, 2))
            }
        if kind == "list":
            return [spec(depth + 1) for _ in range(rng.randint(0, 2))]
        return rng.choice([0, 1, 2.5, "1", "true", "x", True, False, 2**53, 2**53 + 1])

    specs = {json.dumps(one, sort_keys=True): one for one in (spec(0) for _ in range(400))}
    records = [replace(make(seed=7), spec=one) for one in specs.values()]
    rows = frame(records).astype("string").fillna("").agg("|".join, axis=1)
    assert rows.nunique() == len(specs) > 150


def test_pieces_of_a_table_have_the_columns_of_the_whole(make: Make) -> None:
    records = [
        stacked(make, 16),
        make(task="parity", dials={"vocab": "words"}, error="lost"),
        make(task="parity", score=None, peak_bytes=2**40),
        make(data={"train": 64}),
    ]
    columns = columns_of(iter(records))
    pieces = [frame(records[start : start + 1], columns) for start in range(len(records))]
    assert {str(piece.dtypes.to_dict()) for piece in pieces} == {str(frame(records).dtypes.to_dict())}
    pd.testing.assert_frame_equal(pd.concat(pieces, ignore_index=True), frame(records))
    assert frame([], columns).columns.tolist() == list(columns)


@pytest.mark.parametrize("name", ["mqar_capacity", "parity_cpu", "learnability_cpu"])
def test_files_hold_what_the_frame_holds(name: str, tmp_path: Path) -> None:
    records = read_records(KEPT / f"{name}.jsonl")
    for suffix in (".csv", ".parquet"):
        export(lambda: records, tmp_path / f"a{suffix}")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == frame(records).to_csv(index=False)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), frame(records))


def test_a_file_holds_a_spec_in_the_column_of_the_scores_of_others_and_none_where_there_is_none(
    make: Make, tmp_path: Path
) -> None:
    named = replace(make(seed=1), scores={"training.lr": 0.25, "accuracy": 1.0})
    bare = [replace(make(seed=seed), spec={}) for seed in (2, 3)]
    for number, records in enumerate(([make(), named], [named, make(), *bare], bare)):
        for suffix in (".csv", ".parquet"):
            export(lambda records=records: records, tmp_path / f"{number}{suffix}")  # type: ignore[misc]
        assert (tmp_path / f"{number}.csv").read_text(encoding="utf-8") == frame(records).to_csv(index=False)
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{number}.parquet"), frame(records))


def test_whole_numbers_stay_whole_where_some_rows_have_none(make: Make) -> None:
    table = frame([stacked(make, 16), make(), make(data={"train": 64})])
    assert table["arch.stack.0.mixer.key_dim"].dropna().tolist() == [16]
    text = table.to_csv(index=False)
    assert "16.0" not in text
    assert "64.0" not in text


def test_a_score_or_a_dial_does_not_hide_a_field(make: Make) -> None:
    record = replace(make(seed=3), scores={"accuracy": 0.5, "seed": 9.0}, spec={"seed": 4, "error": "x"})
    (cells,) = frame([record]).to_dict("records")
    assert (cells["seed"], cells["scores.seed"], cells["spec.seed"], cells["spec.error"]) == (3, 9.0, 4, "x")


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1"])
def test_no_text_of_a_csv_file_is_a_formula_and_numbers_stay_numbers(name: str, make: Make, tmp_path: Path) -> None:
    record = replace(make(arch=name, task="parity", error=name), scores={"accuracy": -0.5, name: 1.0})
    export(lambda: [record], tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        heads, cells = csv.reader(file)
    assert not any(text.startswith(("=", "+", "@", "\t", "\r", "＝")) for text in (*heads, *cells))
    found = dict(zip(heads, cells, strict=True))
    assert found["accuracy"] == "-0.5"
    assert [text for text in (*heads, *cells) if text.startswith("-") and text != "-0.5"] == []
    assert found["arch"].startswith("'")
