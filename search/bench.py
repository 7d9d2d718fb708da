"""Time the training step: a cohort beside the same trials one by one, after both gave the same losses."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from arch.backbone import BackboneSpec
from arch.kernels import select
from arch.kernels.bench import SHAPES, Shape, bench
from search.training import Cohort
from search.trial import Data, Training, TrialSpec
from synth.tasks import Task

Row = dict[str, Any]  # plain values by name

KERNELS: list[tuple[str, str, dict[str, int]]] = [
    ("attention", "full", {}),
    ("gated_linear", "plain", {}),
    ("gated_linear", "head", {}),
    ("gated_linear", "channel", {}),
    ("delta", "plain", {}),
    ("delta", "head", {}),
    ("delta", "pair_channel", {}),
    ("mesa", "head", {"steps": 5}),
    ("mesa", "head", {"steps": 15}),
    ("mesa", "head", {"steps": 30}),
    ("mlstm", "head", {}),
    ("linear_scan", "scan", {}),
    ("short_conv", "unit", {}),
    ("memory", "linear", {}),
]

WARM_UPS = 3
AGREEMENT = 1e-3  # relative difference of losses after the warm-up, in float32
AGREEMENT_BF16 = 5e-2


def bench_step(
    arch: BackboneSpec,
    task: Task,
    *,
    members: int = 8,
    batch: int = 32,
    steps: int = 20,
    dtype: str = "float32",
    device: str = "cpu",
) -> list[Row]:
    """Rows of milliseconds a step and a member, data included: median over `steps`, of the cohort and of its members one
    by one (the first two stand for all on a GPU, where each costs a compilation). Raises RuntimeError where the losses
    disagree: what is wrong is not timed."""
    training = Training(steps=steps + WARM_UPS, batch=batch, dtype=dtype, evaluations=1)  # type: ignore[arg-type]
    base = TrialSpec(task=task, arch=arch, training=training, data=Data(validation=1, test=1))
    specs = [replace(base, seed=s, training=replace(training, lr=1e-3 * (1 + s % 4))) for s in range(members)]
    where = torch.device(device)
    alone = specs if where.type == "cpu" else specs[:2]
    together, losses, preparing = _time([specs], where)
    single, losses_alone, preparing_alone = _time([[s] for s in alone], where)
    worst = float(((losses[: len(alone)] - losses_alone).abs() / losses_alone.abs()).max())
    if not worst < (AGREEMENT if dtype == "float32" else AGREEMENT_BF16):
        raise RuntimeError(f"the cohort's losses differ from its members' alone by {worst:.1e}: not timed")
    row: Row = {
        "arch": arch.name,
        "task": task.kind,
        "batch": batch,
        "length": task.shape[0],
        "dtype": dtype,
    }
    ours, theirs = together / members, single / len(alone)
    return [
        row | {"trained": name, "ms a step and member": cost, "prepared s": before, "faster": theirs / cost}
        for name, cost, before in (
            (f"{members} together", ours, preparing),
            ("one by one", theirs, preparing_alone),
        )
    ]


def bench_op(
    op: str, shapes: Sequence[str], *, dtype: str, device: str, variant: str | None = None, beside: bool = False
) -> list[Row]:
    """Rows of milliseconds of an op's implementations, and with `beside` of its peer, at shapes "B,T,H,K,V" or S1, S2, S4, L1
    (arch.kernels.bench.SHAPES). Raises ValueError on a shape that is none, on an unknown op or variant, and where an
    implementation disagrees with the definition."""
    which = [_shape(text) for text in shapes]
    return bench(op, which, variant=variant, dtype=getattr(torch, dtype), device=device, beside=beside)


def bench_kernels(shapes: Sequence[str], *, dtype: str, device: str) -> Iterator[Row]:
    """Rows of `bench_op` for every kind of inputs that a published kernel takes, of the implementation that "auto" takes. One
    that cannot be timed is a row that says why: the table is to be whole."""
    where, precision = torch.device(device), getattr(torch, dtype)
    for op, variant, more in KERNELS:
        able = [select.choose(op, device=where, dtype=precision)]
        for text in shapes:
            try:
                rows = bench(
                    op,
                    [_shape(text)],
                    variant=variant,
                    implementations=able,
                    dtype=precision,
                    device=where,
                    beside=True,
                    **more,
                )
            except (ValueError, RuntimeError) as error:
                rows = [{"op": op, "variant": variant, "implementation": " ".join(able), "note": str(error)[:300]}]
            yield from ({"shape": text, **row, **more} for row in rows)


def _shape(text: str) -> Shape:
    if text in SHAPES:
        return SHAPES[text]
    names = [f.name for f in fields(Shape)]
    parts = text.split(",")
    if len(parts) != len(names) or not all(part.strip().isdigit() for part in parts):
        raise ValueError(
            f"a shape is {len(names)} whole numbers ({', '.join(names)}) with commas between, or one of "
            f"{', '.join(SHAPES)}; got {text!r}"
        )
    return Shape(**dict(zip(names, map(int, parts), strict=True)))


def _time(cohorts: Sequence[Sequence[TrialSpec]], device: torch.device) -> tuple[float, Tensor, float]:
    """Median milliseconds of a step of all cohorts one after the other, the losses [N] after the warm-up, and seconds
    of preparation."""
    times: list[list[float]] = []
    losses, preparing = [], 0.0
    for specs in cohorts:
        cohort = Cohort(specs, device)
        try:
            began = time.perf_counter()
            feed = iter(cohort.feed)
            for _ in range(WARM_UPS):
                loss_N = cohort.train_step(*next(feed))
            losses.append(loss_N.clone().cpu())
            preparing += time.perf_counter() - began
            times.append([*_steps(feed, cohort.train_step, device)])
        finally:
            cohort.close()
    return sum(statistics.median(t) for t in times), torch.cat(losses), preparing


def _steps(feed: Iterator[tuple[object, Tensor]], step: Callable[..., Tensor], device: torch.device) -> Iterator[float]:
    for pool, rows in feed:
        began = time.perf_counter()
        step(pool, rows)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        yield (time.perf_counter() - began) * 1e3
