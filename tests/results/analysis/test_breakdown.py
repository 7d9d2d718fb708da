"""Scores by part and by dial: a line joins what differs in nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from recallmap.results.analysis.breakdown import (
    Cut,
    averaged,
    by_dials,
    by_every_setting,
    by_parts,
    by_settings,
    further_scores,
)
from recallmap.results.analysis.measures import Measure, measures
from recallmap.results.record import Record

Make = Callable[..., Record]


def mixer(**dials: Any) -> dict[str, Any]:
    """Of an architecture with one block."""
    return {"stack": [{"kind": "block", "mixer": {"kind": "omeganet", **dials}}]}


def with_parts(make: Make, parts: dict[str, float], **rest: Any) -> Record:
    record = make(**rest)
    record.scores.update(parts)
    return record


def lines(cut: Cut) -> dict[str, dict[str, float]]:
    """Means by strand and value."""

    def mean(measure: Measure) -> float:
        return sum(measure.values.values()) / len(measure.values)

    return {s.row: {value: mean(m) for value, m in s.cells.items()} for s in cut.strands}


def test_a_dial_is_cut_with_all_others_fixed(make: Make) -> None:
    records = [
        make(arch_dials=mixer(window=w, degree=d), score=w / 100 + d / 10, seed=s)
        for w in (1, 4, 16)
        for d in (1, 2)
        for s in range(2)
    ]
    cuts = {cut.by: cut for cut in by_dials(measures(records))}
    assert set(cuts) == {"window", "degree"}
    assert cuts["window"].values == ("1", "4", "16")
    assert lines(cuts["window"]) == {
        "mesa degree=1": pytest.approx({"1": 0.11, "4": 0.14, "16": 0.26}),
        "mesa degree=2": pytest.approx({"1": 0.21, "4": 0.24, "16": 0.36}),
    }


def test_what_architectures_are_called_is_no_dial(make: Make) -> None:
    named = [("atlas", 4, 2), ("window of 1", 1, 2), ("without polynomial", 4, 1)]
    records = [make(arch=a, arch_dials={"name": a, **mixer(window=w, degree=d)}, score=w / 8) for a, w, d in named]
    cuts = {cut.by: cut for cut in by_dials(measures(records))}
    assert lines(cuts["window"]) == {"atlas / window of 1": {"1": 0.125, "4": 0.5}}
    assert lines(cuts["degree"]) == {"atlas / without polynomial": {"1": 0.5, "2": 0.5}}


def test_dials_that_only_vary_together_give_no_line(make: Make) -> None:
    records = [make(arch_dials=mixer(key_dim=k, value_dim=k)) for k in (8, 16)]
    assert by_dials(measures(records)) == []


def test_a_dial_that_is_not_set_stands_first(make: Make) -> None:
    records = [make(arch_dials=mixer(tolerance=t), score=0.5) for t in (1e-2, 1e-6, None, 1e-4)]
    (cut,) = by_dials(measures(records))
    assert cut.values == ("none", "1e-06", "0.0001", "0.01")


def test_what_was_not_expanded_is_the_start_of_every_expansion(make: Make) -> None:
    def phased(expand: dict[str, Any] | None, score: float) -> Record:
        record = make(arch="gla", score=score, seed=0)
        record.spec["phases"] = [{"expand": None}, {"expand": expand}]
        return replace(record, key=str(expand))

    merge = {"heads": "merge", "start": "reinitialise"}
    counts = [phased({**merge, "count": n}, 0.1 * (i + 2)) for i, n in enumerate((1, 4, "all"))]
    inherit = phased({**merge, "count": 4, "start": "inherit"}, 0.25)
    cuts = {cut.by: cut for cut in by_dials(measures([phased(None, 0.1), *counts, inherit]))}
    assert cuts["count"].values == ("none", "1", "4", "all")
    assert pytest.approx({"none": 0.1, "1": 0.2, "4": 0.3, "all": 0.4}) in list(lines(cuts["count"]).values())
    assert pytest.approx({"none": 0.1, "reinitialise": 0.3, "inherit": 0.25}) in list(lines(cuts["start"]).values())


def test_a_setting_is_cut_by_the_dial_that_alone_differs(make: Make) -> None:
    records = [make(dials={"pairs": p, "length": n}, score=p / n) for p, n in ((4, 64), (8, 64), (8, 128))]
    found = measures(records)
    here = next(m for m in found if (m.dials["pairs"], m.dials["length"]) == (8, 64))
    cuts = {cut.by: cut.values for cut in by_settings(found, here.dials)}
    assert cuts == {"pairs": ("4", "8"), "length": ("64", "128")}


def test_answers_are_cut_by_the_parts_that_the_task_told(make: Make) -> None:
    depths = {f"accuracy/depth={d}": d / 100 for d in (100, 0, 50)}
    blocks = {"cg_steps": 3.0, "cg_steps/block=0/head=0": 3.0, "cg_steps/block=0/head=1": 3.0}
    (cut,) = by_parts(measures([with_parts(make, depths | blocks)]))
    assert (cut.by, cut.metric, cut.values) == ("depth", "accuracy", ("0", "50", "100"))
    assert lines(cut) == {"mesa": {"0": 0.0, "50": 0.5, "100": 1.0}}


def test_a_scaled_score_goes_before_the_plain_one(make: Make) -> None:
    both = {f"{name}/length={n}": 0.5 for name in ("accuracy", "scaled_accuracy", "exact_match") for n in (40, 64)}
    (cut,) = by_parts(measures([with_parts(make, both)]))
    assert cut.metric == "scaled_accuracy"
    assert {(m.chance, m.ceiling) for s in cut.strands for m in s.cells.values()} == {(0.0, 1.0)}


def test_of_lengths_that_hold_each_other_the_longest_counts(make: Make) -> None:
    short = with_parts(make, {f"accuracy/length={n}": 0.9 for n in (16, 40)}, dials={"length": 40})
    long = with_parts(make, {f"accuracy/length={n}": 0.8 for n in (16, 40, 64)}, dials={"length": 64})
    (cut,) = by_parts(measures([short, long]))
    assert lines(cut) == {"mesa": {"16": 0.8, "40": 0.8, "64": 0.8}}


def test_stretches_of_positions_stand_in_their_order(make: Make) -> None:
    parts = {f"accuracy/position={name}": 0.5 for name in ("128-256", "0-16", "16-128")}
    (cut,) = by_parts(measures([with_parts(make, parts)]))
    assert cut.values == ("0-16", "16-128", "128-256")


def test_many_parts_are_joined_to_stretches(make: Make) -> None:
    grid = [round(n * 100 / 39) for n in range(40)]
    records = [make(seed=s) for s in range(2)]
    for seed, record in enumerate(records):
        record.scores.update({f"accuracy/depth={d}": n / 40 for n, d in enumerate(grid) if (seed, n) != (1, 0)})
    (cut,) = by_parts(measures(records))
    assert len(cut.values) == 10
    assert (*cut.values[:3], cut.values[-1]) == ("0-8", "10-18", "21-28", "92-100")
    (strand,) = cut.strands
    assert strand.cells["10-18"].values == {0: pytest.approx(5.5 / 40), 1: pytest.approx(5.5 / 40)}
    assert strand.cells["0-8"].values == {0: pytest.approx(1.5 / 40), 1: pytest.approx(2 / 40)}, "of those that it has"
    words = {f"accuracy/depth={n}": 0.5 for n in [*range(39), "deep"]}
    (cut,) = by_parts(measures([with_parts(make, words)]))
    assert len(cut.values) == 40, "what is no number has no neighbours"


def test_further_scores_are_those_that_tell_something_else(make: Make) -> None:
    record = with_parts(make, {"tvd": 0.1, "cg_steps": 4.0, "macro_accuracy": 0.5, "cg_steps/block=0/head=0": 4.0})
    assert further_scores(measures([record])) == ["cg_steps", "tvd"]


def test_a_mean_over_settings_is_of_those_that_all_have(make: Make) -> None:
    records = [
        make(task="parity", dials={"length": n, "labels": labels}, seed=s, score=n / 100 + s / 10, chance=n / 1000)
        for n in (40, 80)
        for labels in ("all", "final")
        for s in range(2)
    ]
    whole = [m for m in measures(records) if m.values]
    by_length, by_labels = by_every_setting(whole)
    assert (by_length.by, by_labels.by) == ("length", "labels")
    (strand,) = by_length.strands
    assert {value: m.values for value, m in strand.cells.items()} == {
        "40": {0: 0.4, 1: 0.5},
        "80": pytest.approx({0: 0.8, 1: 0.9}),
    }
    assert by_labels.strands[0].cells["all"].values == pytest.approx({0: 0.6, 1: 0.7})
    assert by_labels.strands[0].cells["all"].chance == pytest.approx(0.06)
    assert len(strand.cells["40"].keys) == 4


def test_a_part_that_one_setting_lacks_is_in_no_mean(make: Make) -> None:
    records = [make(task="parity", dials={"length": n, "labels": labels}) for n, labels in ((8, "all"), (16, "final"))]
    for record, parts in zip(records, ((4, 8), (4, 8, 16)), strict=True):
        record.scores.update({f"accuracy/length={n}": 0.5 for n in parts})
    (cut,) = by_parts([m for m in measures(records) if m.values])
    assert cut.values == ("4", "8", "16")
    assert averaged(cut).values == ("4", "8")
