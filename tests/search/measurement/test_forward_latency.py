"""Measured milliseconds: a number for whatever a task gives and wants, larger where there is more to do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from recallmap.arch.kernels import select
from recallmap.search import codec
from recallmap.search.measurement.benchmarks import KERNELS
from recallmap.search.measurement.forward_latency import milliseconds
from recallmap.search.trial import Training, TrialSpec

CPU = torch.device("cpu")


@pytest.mark.parametrize("task", ["mqar", "compression", "learnability"])
def test_every_sort_of_task_can_be_timed(task: str) -> None:
    arch = replace(codec.read_arch("gla"), width=32)
    spec = TrialSpec(task=codec.read_task(task), arch=arch, training=Training(steps=1, batch=2))
    assert 0 < milliseconds(spec, CPU) < 60_000


def test_the_batch_of_the_trial_is_what_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    forward = torch.nn.Embedding.forward

    def watched(self: torch.nn.Embedding, inputs: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(inputs.shape))
        return forward(self, inputs)

    monkeypatch.setattr(torch.nn.Embedding, "forward", watched)
    task = codec.read_task({"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2})
    arch = replace(codec.read_arch("gla"), width=16)
    milliseconds(TrialSpec(task=task, arch=arch, training=Training(steps=1, batch=3)), CPU)
    assert set(seen) == {(3, 16)}


def test_every_op_that_has_a_kernel_is_timed() -> None:
    assert {op for op, _, _ in KERNELS} == {op for op in select.ops() if "fused" in select.implementations(op)}
