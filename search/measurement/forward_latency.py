"""The latency of a forward pass, measured when nothing else runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from recallmap.search.trials.single import TrialSpec

WARM_UPS = 2

TIMES = 7  # repetitions; the median counts


def milliseconds(spec: TrialSpec, device: torch.device) -> float:
    """Milliseconds of a forward pass over one batch of the trial's task, as it trains (batch, length, dtype,
    implementation)."""
    task, training = spec.task, spec.training
    length, vocab = task.shape
    model = spec.arch.build(vocab=vocab, signal=task.signal, readout=task.readout, length=length)
    model = model.use(training.implementation).to(device).eval()
    batch = task.sample(np.random.default_rng(0), training.batch, "validation")
    inputs_BT = torch.as_tensor(batch.inputs, device=device)
    inputs_BT = inputs_BT if task.signal == "tokens" else inputs_BT.float()
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=training.dtype == "bfloat16"):
        times = [taken(lambda: model(inputs_BT), device) for _ in range(WARM_UPS + TIMES)]
    return statistics.median(times[WARM_UPS:])


def taken(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of a call, until the device is done."""
    _wait(device)
    began = time.perf_counter()
    call()
    _wait(device)
    return (time.perf_counter() - began) * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
