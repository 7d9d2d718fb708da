"""Where the time of a cohort's optimizer step goes, by kernel."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from recallmap.arch.backbone import BackboneSpec
from recallmap.search.measurement.benchmarks import WARM_UPS, Row, members_of
from recallmap.search.sequences.drawn_ahead import drawing_ahead, workers_for
from recallmap.search.training.cohort import Cohort
from recallmap.synth.tasks import Task

SMALL = 0.005  # share below which kernels are added up


def step_profile(
    arch: BackboneSpec,
    task: Task,
    *,
    members: int = 8,
    batch: int = 32,
    steps: int = 10,
    dtype: str = "float32",
    device: str = "cpu",
) -> list[Row]:
    """Rows of the kernels of a training step on a GPU, or of torch's operations on a CPU, those that take most first: their
    calls a step, and milliseconds a step and member, of their own. Those below half a percent are one row. The step is not
    compiled, as in a training of a few thousand steps. Raises ValueError as `bench_step`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else the profiler says on stderr that it begins
    where = torch.device(device)
    specs = members_of(arch, task, where, members=members, batch=batch, steps=steps, dtype=dtype)
    with drawing_ahead(workers_for(where.type)):
        cohort = Cohort(specs, where)
        try:
            feed = iter(cohort.feed)
            for _ in range(WARM_UPS):
                cohort.train_step(next(feed))
            batches = [next(feed) for _ in range(steps)]
            activity = ProfilerActivity.CUDA if where.type == "cuda" else ProfilerActivity.CPU
            threads = _ExperimentalConfig(profile_all_threads=True)  # lanes of a CPU have some of their own
            with profile(activities=[activity], acc_events=True, experimental_config=threads) as seen:
                for each in batches:
                    cohort.train_step(each)
                if where.type == "cuda":
                    torch.cuda.synchronize()
        finally:
            cohort.close()
    return _rows(seen, where.type == "cuda", steps, members)


def _rows(seen: Any, on_gpu: bool, steps: int, members: int) -> list[Row]:
    times: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in seen.events():
        if not on_gpu or event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] += event.self_device_time_total if on_gpu else event.self_cpu_time_total
            calls[event.name] += 1
    total = sum(times.values())
    shown = [name for name in times if times[name] >= SMALL * total]
    rows = [(name, calls[name], times[name]) for name in sorted(shown, key=lambda name: -times[name])]
    rest = [name for name in times if name not in shown]
    rows.append((f"{len(rest)} others", sum(calls[name] for name in rest), sum(times[name] for name in rest)))
    return [
        {"kernel": name[:100], "calls a step": count / steps, "ms a step and member": time / steps / members / 1e3}
        | {"share": time / total if total else 0.0}
        for name, count, time in [*rows, ("all", sum(calls.values()), total)]
    ]
