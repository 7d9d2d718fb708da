"""Benchmarks of ops and of the training step: a cohort against the same trials one by one, after their losses agree."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark.cold import first_calls
from recallmap.arch.kernels.benchmark.timing import SHAPES, Shape, bench, variants
from recallmap.search.measurement.forward_latency import taken
from recallmap.search.sequences.drawn_ahead import drawing_ahead, workers_for
from recallmap.search.training.batches import Asked
from recallmap.search.training.cohort import Cohort
from recallmap.search.training.lane import Lane
from recallmap.search.trials import memory_needs
from recallmap.search.trials.pools import HORIZON, Pool
from recallmap.search.trials.settings import Data, Training
from recallmap.search.trials.single import TrialSpec
from recallmap.synth.tasks import Task

Row = dict[str, Any]  # plain values by name

KERNELS: list[tuple[str, str, dict[str, int]]] = [
    ("attention", "full", {}),
    ("attention", "fading", {}),
    ("gated_linear", "plain", {}),
    ("gated_linear", "head", {}),
    ("gated_linear", "channel", {}),
    ("delta", "plain", {}),
    ("delta", "head", {}),
    ("delta", "channel", {}),
    ("delta", "pair_channel", {}),
    ("mesa", "head", {"steps": 5}),
    ("mesa", "head", {"steps": 15}),
    ("mesa", "head", {"steps": 30}),
    ("mesa", "ridge", {}),
    ("mlstm", "head", {}),
    ("slots", "gated", {}),
    ("path", "plain", {}),
    ("log_linear", "gated", {}),
    ("linear_scan", "scan", {}),
    ("gated_scan", "gates", {}),
    ("selective_scan", "rates", {}),
    ("kernel_attention", "exponential", {}),
    ("short_conv", "unit", {}),
    ("add_norm", "plain", {}),
    ("norm_gate", "silu", {}),
    ("swiglu", "plain", {}),
    ("rotary", "shared", {}),
    ("monomials", "quadratic", {}),
    ("newton_schulz", "muon", {}),
    ("spanned", "atlas", {}),
    ("spanned_newton_schulz", "atlas", {}),
    ("spanned_sum", "atlas", {}),
    ("retained", "memora", {}),
    ("retained", "moneta", {}),
    ("memory", "deep", {}),
    ("memory", "linear", {}),
    ("memory", "ttt", {}),
]

# Shapes for the growth of time and memory: one axis at a time, from a small model's heads. Batches shrink as sequences
# lengthen. A cohort's members fold into the batch: each has 32 sequences, as in MAD.
GROWTH = {
    "T": [f"{max(1, 8192 // time)},{time},4,64,64" for time in (128 * 2**i for i in range(9))],
    "K": [f"16,512,4,{width},{width}" for width in (16, 32, 64, 128, 256)],
    "members": [f"{32 * members},128,8,16,16" for members in (1, 2, 4, 8, 16, 32)],
}

CG_STEPS = (1, 2, 5, 10, 15, 20, 30)

WARM_UPS = 3

EXAMINED = 512  # sequences

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
    """Rows of milliseconds per step and member, for the cohort and for its members one by one. On a GPU the first member
    stands for all, because each costs a compilation.

    `ms a step and member` is the median over `steps`. It holds no drawing, because sequences come HORIZON steps at a time.
    `mean ms a step and member` is over a whole horizon in the training loop, drawing included; one by one, the first
    member's. `waiting` is the share of that time in which the loop waited for sequences. `data ms` is gathering a batch,
    `optimizer ms` the optimizer, and the rest of a step is forward and backward; `examining ms` is the evaluation of 512
    sequences. TFLOP/s count three forward passes by `arch.cost`; `of ceiling` is their share of a large matrix product's
    on this device in this precision.

    Raises ValueError where the device has no memory for so many members, and RuntimeError where the losses disagree."""
    where = torch.device(device)
    specs = members_of(arch, task, where, members=members, batch=batch, steps=2 * steps + 4 * HORIZON, dtype=dtype)
    base = specs[0]
    alone = specs if where.type == "cpu" else specs[:1]
    with drawing_ahead(workers_for(where.type)):
        together, losses, preparing = _time([specs], where, steps)
        single, losses_alone, preparing_alone = _time([[s] for s in alone], where, steps)
    worst = float(((losses[: len(alone)] - losses_alone).abs() / losses_alone.abs()).max())
    if not worst < (AGREEMENT if dtype == "float32" else AGREEMENT_BF16):
        raise RuntimeError(
            f"the cohort's losses differ from those of its members alone by {worst:.1e}; a wrong step is not timed"
        )
    row: Row = {
        "arch": arch.name,
        "task": task.kind,
        "batch": batch,
        "length": task.shape[0],
        "dtype": dtype,
    }
    operations = 3 * base.price().flops_per_token * batch * task.shape[0]
    ceiling = _ceiling(where, getattr(torch, dtype))
    rows = []
    for name, phases, count, before in (
        (f"{members} together", together, members, preparing),
        ("one by one", single, len(alone), preparing_alone),
    ):
        each = {phase: milliseconds / count for phase, milliseconds in phases.items()}
        reached = operations / each["step"] / 1e9  # of operations in milliseconds, in TFLOP/s
        rows.append(
            row
            | {"trained": name, "ms a step and member": each["step"], "member steps/s": 1e3 / each["step"]}
            | {"mean ms a step and member": each["mean"], "waiting": phases["waiting"] / phases["mean"]}
            | {"data ms": each["data"], "optimizer ms": each["optimizer"], "examining ms": each["examining"]}
            | {"TFLOP/s": reached, "of ceiling": reached / ceiling, "prepared s": before}
            | {"faster": single["step"] / len(alone) / each["step"]}
        )
    return rows


def members_of(
    arch: BackboneSpec, task: Task, where: torch.device, *, members: int, batch: int, steps: int, dtype: str
) -> list[TrialSpec]:
    """Trials that differ in seed and rate, for so many steps after the warm-up. Raises ValueError where the device lacks memory
    for so many."""
    if dtype not in get_args(get_type_hints(Training)["dtype"]):
        raise ValueError(f"a step trains in float32 or bfloat16, got {dtype}")
    training = Training(steps=steps + WARM_UPS, batch=batch, dtype=dtype, evaluations=1)  # type: ignore[arg-type]
    base = TrialSpec(task=task, arch=arch, training=training, data=Data(validation=EXAMINED, test=1))
    most = memory_needs.fitting(base.needs, where)
    if where.type != "cpu":  # where all members keep what a step needs at once
        most = min(most, int(memory_needs.held_by(where) // base.bytes))
    if members > most:
        held, needed = memory_needs.said(memory_needs.held_by(where)), memory_needs.said(members * base.bytes)
        raise ValueError(
            f"members must be at most {most:,}, as {where.type} has {held} of memory, got {members:,}, which take about "
            f"{needed}"
        )
    return [replace(base, seed=s, training=replace(training, lr=1e-3 * (1 + s % 4))) for s in range(members)]


def bench_growth(*, dtype: str, device: str, part: tuple[int, int] = (1, 1), only: Sequence[str] = ()) -> Iterator[Row]:
    """Rows of time and memory of every op by sequence length, width of heads and members, and of Mesa's by steps, for the
    implementation that "auto" takes. One that cannot be timed has a row with the reason. `only` as for `bench_kernels`;
    `part` (i, n): every n-th row from the i-th on. Raises ValueError where no kind has such a name."""
    kinds = dict.fromkeys((op, variant) for op, variant, _ in _chosen(only))
    asked = [(axis, *kind, dict[str, int](), text) for kind in kinds for axis in GROWTH for text in GROWTH[axis]]
    if ("mesa", "head") in kinds:
        asked += [("steps", "mesa", "head", {"steps": steps}, GROWTH["T"][2]) for steps in CG_STEPS]
    first, parts = part
    for axis, op, variant, more, text in asked[first - 1 :: parts]:
        for row in _rows_of(op, variant, more, [text], dtype=dtype, device=device, beside=False):
            yield {"axis": axis} | row


def bench_op(
    op: str, shapes: Sequence[str], *, dtype: str, device: str, variant: str | None = None, beside: bool = False
) -> list[Row]:
    """Rows of milliseconds of an op's implementations, and with `beside` of a published kernel, at shapes "B,T,H,K,V" or S1,
    S2, S4, L1, L2 (`SHAPES`). Raises ValueError on a bad shape, on an unknown op or variant, and where an implementation
    disagrees with the definition."""
    which = [_shape(text) for text in shapes]
    return bench(op, which, variant=variant, dtype=getattr(torch, dtype), device=device, beside=beside)


def bench_kernels(
    shapes: Sequence[str],
    *,
    dtype: str,
    device: str,
    part: tuple[int, int] = (1, 1),
    only: Sequence[str] = (),
) -> Iterator[Row]:
    """Rows of `bench_op` for every kind of inputs that a published kernel takes, for the implementation that "auto" takes, and
    on a GPU for another library's, where an op has it for its first kind.
    One that cannot be timed has a row with the reason, so that the table is complete. `only`: kinds by OP or OP/VARIANT, none
    for all; `part` (i, n): every n-th of them from the i-th on. Raises ValueError where no kind has such a name."""
    kinds = _chosen(only)
    first, parts = part
    for op, variant, more in kinds[first - 1 :: parts]:
        yield from _rows_of(op, variant, more, shapes, dtype=dtype, device=device, beside=True)


def bench_cold(
    shapes: Sequence[str], *, dtype: str, device: str, part: tuple[int, int] = (1, 1), only: Sequence[str] = ()
) -> Iterator[Row]:
    """Rows of seconds of the first calls of every op that has kernels, where none is compiled (`cold.first_calls`). What its
    kernels refuse has a row with the reason. `only` and `part` as for `bench_kernels`. Raises ValueError where no kind has
    such a name, and without a GPU."""
    if torch.device(device).type != "cuda":
        raise ValueError(f"a first call compiles kernels for a GPU, got device {device}")
    first, parts = part
    kinds = [kind for kind in _chosen(only) if "fused" in select.implementations(kind[0])]
    for op, variant, more in kinds[first - 1 :: parts]:
        for text in shapes:
            try:
                row = first_calls(op, variant, _shape(text), dtype=dtype, **more)
            except (ValueError, RuntimeError) as error:
                row = {"op": op, "variant": variant, "note": str(error)[:300]}
            yield {"shape": text, **row, **more}


def _chosen(only: Sequence[str]) -> list[tuple[str, str, dict[str, int]]]:
    known = sorted({op for op, *_ in KERNELS} | {f"{op}/{variant}" for op, variant, _ in KERNELS})
    for name in only:
        if name not in known:
            raise ValueError(f"only: got {name[:60]!r}, expected one of {', '.join(known)}")
    return [kind for kind in KERNELS if not only or kind[0] in only or f"{kind[0]}/{kind[1]}" in only]


def _rows_of(
    op: str, variant: str, more: dict[str, int], shapes: Sequence[str], *, dtype: str, device: str, beside: bool
) -> Iterator[Row]:
    where, precision = torch.device(device), getattr(torch, dtype)
    able = [select.choose(op, device=where, dtype=precision)]
    if where.type == "cuda" and "library" in select.implementations(op) and variant == variants(op)[0]:
        able.append("library")  # of other kinds of inputs it serves where it is asked for by name alone
    for text in shapes:
        try:
            rows = bench(
                op,
                [_shape(text)],
                variant=variant,
                implementations=able,
                dtype=precision,
                device=where,
                beside=beside,
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
    if len(parts) != len(names) or not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", part) for part in parts):
        raise ValueError(
            f"shape: got {text[:60]!r}, expected {len(names)} whole numbers ({', '.join(names)}) with commas between, or one "
            f"of {', '.join(SHAPES)}"
        )
    return Shape(**dict(zip(names, map(int, parts), strict=True)))


def _time(
    cohorts: Sequence[Sequence[TrialSpec]], device: torch.device, steps: int
) -> tuple[dict[str, float], Tensor, float]:
    """Milliseconds of a step (median, and mean in the loop) and of its phases (medians), over all cohorts one after the
    other; the losses [N] after the warm-up, and seconds of preparation. The first cohort's mean stands for all."""
    total: dict[str, float] = {}
    losses, preparing = [], 0.0
    for specs in cohorts:
        cohort = Cohort(specs, device)
        for lane in cohort.lanes:
            lane.saved = math.inf  # as in a long training
        try:
            began = time.perf_counter()
            feed = iter(cohort.feed)
            for _ in range(WARM_UPS):
                loss_N = cohort.train_step(next(feed))
            losses.append(loss_N.clone().cpu())
            preparing += time.perf_counter() - began
            for phase, milliseconds in _phases(cohort, feed, steps).items():
                total[phase] = total.get(phase, 0.0) + milliseconds
            if specs is cohorts[0]:
                total |= {name: len(cohorts) * mean for name, mean in _in_the_loop(cohort, feed).items()}
        finally:
            cohort.close()
    return total, torch.cat(losses), preparing


def _phases(cohort: Cohort, feed: Iterator[list[tuple[Pool, Tensor]]], steps: int) -> dict[str, float]:
    gradients = [torch.randn_like(lane.flat) for lane in cohort.lanes]
    asked = {member: Asked(s.task, s.seed, s.data.validation) for member, s in enumerate(cohort.specs)}
    tests = cohort.evaluation_set("validation", asked)

    def data() -> object:
        return [pool.batch(rows_NB) for pool, rows_NB in next(feed)]

    def optimize(lane: Lane, gradient_NP: Tensor) -> None:
        lane.optimize(lane.flat, gradient_NP, lane.rates[0])

    def timed(call: Callable[[], object], times: int) -> float:
        return statistics.median(taken(call, cohort.device) for _ in range(times))

    return {
        "step": timed(lambda: cohort.train_step(next(feed)), steps),
        "data": timed(data, steps),
        "optimizer": timed(lambda: cohort.each(optimize, cohort.lanes, gradients), steps),
        "examining": timed(lambda: cohort.evaluate(cohort.members, cohort.weights(cohort.members), tests), 3),
    }


def _in_the_loop(cohort: Cohort, feed: Iterator[list[tuple[Pool, Tensor]]]) -> dict[str, float]:
    """Mean milliseconds of a step over a horizon, as in training, and those of it that the loop waited for sequences. The
    clock starts at the first step of a horizon, when the sequences of the next one have just been asked for."""
    (portion,) = cohort.feed.portions
    held = portion.pool_start
    while portion.pool_start == held:
        cohort.train_step(next(feed))

    def horizon() -> None:
        for _ in range(HORIZON):
            cohort.train_step(next(feed))

    waited = cohort.feed.waited
    milliseconds = taken(horizon, cohort.device)
    return {"mean": milliseconds / HORIZON, "waiting": 1e3 * (cohort.feed.waited - waited) / HORIZON}


def _ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """TFLOP/s of a large matrix product."""
    width = 8192 if device.type == "cuda" else 1024
    x = torch.randn(width, width, device=device, dtype=dtype)
    milliseconds = statistics.median(taken(lambda: x @ x, device) for _ in range(10))
    return 2 * width**3 / milliseconds / 1e9
