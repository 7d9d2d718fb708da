"""The benchmarks of a training step, and of kernels in parts."""

from __future__ import annotations

from functools import partial

import pytest

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import BaseConv
from recallmap.search.measurement import benchmarks
from recallmap.search.measurement.benchmarks import bench_growth, bench_kernels, bench_step
from recallmap.search.measurement.step_profile import step_profile
from recallmap.synth.tasks import Mqar

ARCH = BackboneSpec(name="tiny", width=16, stack=(Block(mixer=BaseConv()),))


def test_the_bench_of_a_step_holds_the_drawing_and_says_how_long_the_loop_waited() -> None:
    together, single = bench_step(ARCH, Mqar(vocab=32, length=16, pairs=2), members=2, batch=4, steps=2)
    for row in (together, single):
        assert row["mean ms a step and member"] > 0
        assert 0 < row["waiting"] < 1


def test_the_profile_of_a_step_adds_up_to_all_of_it() -> None:
    *kernels, rest, whole = step_profile(ARCH, Mqar(vocab=32, length=16, pairs=2), members=2, batch=4, steps=2)
    assert whole["kernel"] == "all"
    for figure in ("calls a step", "ms a step and member", "share"):
        assert sum(row[figure] for row in [*kernels, rest]) == pytest.approx(whole[figure])
    assert {"aten::mm", "aten::mul"} <= {row["kernel"] for row in kernels}
    assert [row["share"] for row in kernels] == sorted((row["share"] for row in kernels), reverse=True)
    assert min(row["share"] for row in kernels) >= 0.005


def test_a_table_of_some_kinds_has_their_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "bench", lambda op, shapes, **more: [{"op": op, **more}])
    rows = bench_kernels(["S1"], dtype="float32", device="cpu", only=["delta/head", "mlstm"])
    assert [(row["op"], row["variant"]) for row in rows] == [("delta", "head"), ("mlstm", "head")]
    grown = [*bench_growth(dtype="float32", device="cpu", only=["mesa/head", "mlstm"])]
    assert {(row["op"], row["variant"]) for row in grown} == {("mesa", "head"), ("mlstm", "head")}
    assert {row["axis"] for row in grown if row["op"] == "mesa"} == {"T", "K", "members", "steps"}
    with pytest.raises(ValueError, match="only: got 'mesa/tail', expected one of"):
        next(bench_growth(dtype="float32", device="cpu", only=["mesa/tail"]))


def test_parts_of_a_table_are_the_whole_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "bench", lambda op, shapes, **more: [{"op": op, "shape": shapes[0]} | more])
    for table in (partial(bench_kernels, ["S1", "L1"]), bench_growth):
        rows = [[*map(repr, table(dtype="float32", device="cpu", part=part))] for part in ((1, 1), (1, 2), (2, 2))]
        assert len(rows[0]) == len({*rows[0]})
        assert all(rows)
        assert sorted(rows[0]) == sorted(rows[1] + rows[2])
