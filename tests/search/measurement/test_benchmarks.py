"""The benchmark of a training step."""

from __future__ import annotations

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import BaseConv
from recallmap.search.measurement.benchmarks import bench_step
from recallmap.synth.tasks import Mqar

ARCH = BackboneSpec(name="tiny", width=16, stack=(Block(mixer=BaseConv()),))


def test_the_bench_of_a_step_holds_the_drawing_and_says_how_long_the_loop_waited() -> None:
    together, single = bench_step(ARCH, Mqar(vocab=32, length=16, pairs=2), members=2, batch=4, steps=2)
    for row in (together, single):
        assert row["mean ms a step and member"] > 0
        assert 0 < row["waiting"] < 1
