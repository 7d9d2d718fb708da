"""A record survives being written, and says what it does not know."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from recallmap.results.plain_data.shared_parts import Joined, Pool
from recallmap.results.record import (
    Addresses,
    Record,
    address,
    read_records,
    records_in,
    to_json,
    write_records,
)
from recallmap.results.storage.layout import row_of, rows_of

Make = Callable[..., Record]
KEPT = Path(__file__).parents[2] / "results" / "records"


def test_json_gives_back_what_it_was_given(make: Make) -> None:
    losses = {"train_loss": [2.0, None], "validation_loss": [2.0, 1.0]}
    test = {"task": "mqar", "setting": "", "length": 64, "chance": 0.25, "ceiling": 1.0, "scores": {"x": 1.0}}
    record = make(curve={"step": [1, 2], "validation_accuracy": [0.1, 0.2], **losses}, tests=[test])
    assert Record.from_dict(json.loads(to_json(record))) == record
    assert Record.from_dict(json.loads(to_json(record)), Pool()) == record


@pytest.mark.parametrize(
    "spec", [{}, {"arch": {"seed": 3}}, {"task": {"kind": "é"}, "version": 1}, {"arch": 1, "seeds": 2.5, "version": 1}]
)
def test_the_keys_of_specs_that_share_all_but_the_seed_are_those_of_each_alone(spec: dict[str, object]) -> None:
    addresses = Addresses()
    for seed in (0, 7, 7, 10**12):
        assert (
            addresses(Joined(spec, "seed", seed))
            == addresses({**spec, "seed": seed})
            == address({**spec, "seed": seed})
        )


def test_values_that_are_equal_and_read_differently_are_no_shared_part(make: Make) -> None:
    records = [make(dials={"pairs": pairs}, seed=seed) for seed in (0, 1) for pairs in (1, 1.0, True, 1)]
    for passing in (False, True):
        pool = Pool(passing=passing)
        assert [to_json(Record.from_dict(record.to_dict(), pool)) for record in records] == [*map(to_json, records)]


@pytest.mark.parametrize("name", ["statex_cpu", "parity_cpu", "regbench_cpu", "mad_rates_cpu"])
def test_records_that_pass_by_become_the_rows_of_records_that_are_kept(name: str) -> None:
    path = KEPT / f"{name}.jsonl"
    rows = [row_of(record) for record in records_in(path)]
    assert list(rows_of(records_in(path, passing=True))) == rows
    assert rows


def test_a_field_of_another_version_is_refused_by_name(make: Make) -> None:
    with pytest.raises(ValueError, match="unknown fields flavour"):
        Record.from_dict({**make().to_dict(), "flavour": "sweet"})


def test_figures_that_are_not_finite_are_absent(make: Make) -> None:
    record = make(
        score=math.nan,
        curve={"step": [1, 2], "train_loss": [math.inf, 0.5]},
        tests=[{"scores": {"accuracy": math.nan}}],
    )
    assert record.score is None
    assert record.scores == {}
    assert record.curve == {"step": [1, 2], "train_loss": [None, 0.5]}
    assert record.tests == [{"scores": {}}]


def test_the_headline_is_the_score_under_the_metric(make: Make) -> None:
    assert make(score=0.25).score == 0.25
    assert make(error="out of memory").score is None


def test_committed_records_do_not_depend_on_the_order_of_training(make: Make, tmp_path: Path) -> None:
    records = [make(arch=arch, seed=seed) for arch in ("mesa", "gla") for seed in (1, 0)]
    write_records(tmp_path / "a.jsonl", records)
    write_records(tmp_path / "b.jsonl", reversed(records))
    text = (tmp_path / "a.jsonl").read_text()
    assert text == (tmp_path / "b.jsonl").read_text()
    assert len(text.splitlines()) == 4
    assert [(r.arch, r.seed) for r in read_records(tmp_path / "a.jsonl")] == [
        ("gla", 0),
        ("gla", 1),
        ("mesa", 0),
        ("mesa", 1),
    ]


def test_names_with_line_separators_stay_on_their_line(make: Make, tmp_path: Path) -> None:
    record = make(arch="a\u2028b\x85c\nd")
    write_records(tmp_path / "a.jsonl", [record])
    assert read_records(tmp_path / "a.jsonl") == [record]


def test_a_folder_of_records_counts_a_trial_once_and_prefers_the_finished(make: Make, tmp_path: Path) -> None:
    done = make(score=0.9)
    failed = Record.from_dict({**done.to_dict(), "status": "failed", "error": "lost", "scores": {}})
    write_records(tmp_path / "a.jsonl", [failed])
    write_records(tmp_path / "b.jsonl", [done])
    write_records(tmp_path / "c.jsonl", [failed])
    assert read_records(tmp_path) == [done]


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"key": "k"}', '{"flavour": 1}'])
def test_a_line_that_is_no_record_is_named(line: str, make: Make, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(to_json(make()) + "\n\n" + line + "\n")
    with pytest.raises(ValueError, match=r"records\.jsonl:3: not a record"):
        read_records(path)
