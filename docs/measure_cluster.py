"""Measure where a cluster saturates, and how a study scales over the GPUs of one host.

    python docs/measure_cluster.py TABLE actors [ACTORS ...]       # 8 64, by default
    python docs/measure_cluster.py TABLE gpus SECONDS [GPUS ...]   # 1 and all, by default
    python docs/measure_cluster.py TABLE mad EPOCHS [GPUS[xWORKERS] ...]  # workers a GPU; by default as recallmap has
    python docs/measure_cluster.py TABLE killed
    python docs/measure_cluster.py TABLE figure PICTURE

`actors`: Ray on this machine, with so many actors, which sleep instead of training: 16 trials a cohort, six reports each.
They sleep ever shorter, until the driver cannot follow: what it takes, a second, is what any number of GPUs can hand in.
`gpus`: what `recallmap run hybrid_search --set budget=wide --engine ray` trains in SECONDS on so many GPUs of this host,
one run after the other; each goes on with its ledger, search_GPUS.sqlite beside the table. `mad`: a row of MAD's paper
tier, attention, so many epochs for each of its 528 trials; 1x2 trains it on one GPU that two workers share. `killed`: 128
trials on all GPUs, of whose workers one is killed, and later half of them at once, as if a GPU had fallen away. Rows are
added to the table, a CSV. `figure` draws the actors' rows as an SVG.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any

import torch

from recallmap.results.ledger import Ledger
from recallmap.search import codec
from recallmap.search.engines import ray_workers
from recallmap.search.engines.shipped import ShippedCohort, Trained
from recallmap.search.measurement import gpu_busy
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.training.trial_record import record_of

ROOT = Path(__file__).parents[1]
HYBRIDS = ["hybrid_search", "--set", "budget=wide"]
MAD = [
    "mad",
    "--set=budget=paper",
    "--set=space.axes.trial.seed=[0]",
    "--set=space.axes.trial.arch=[attention]",
    "--set=trial.training.evaluations=1",
]
MEMBERS, REPORTS = 16, 6
BEGUN = 45.0  # seconds by which Ray and its workers have begun
SLEEPS = (8.0, 2.0, 0.5)  # seconds of a cohort
COHORTS = 4  # that each actor trains, and more where they sleep short
LEAST = 10.0  # seconds of a measurement, at least
STUDY: dict[str, Any] = {
    "name": "asleep",
    "trial": {
        "task": {"kind": "mqar", "vocab": 16, "length": 12, "pairs": 2},
        "arch": {
            "name": "small",
            "width": 16,
            "stack": [{"kind": "block", "mixer": {"kind": "gated_deltanet", "heads": 2}}],
        },
        "training": {"steps": 600, "batch": 4, "lr": 1e-3, "evaluations": REPORTS},
        "data": {"validation": 8, "test": 8},
    },
}

Row = dict[str, Any]


def main(table: Path, part: str, words: Sequence[str]) -> None:
    if part == "actors":
        for actors in map(int, words or ("8", "64")):
            for seconds in SLEEPS:  # each by a driver of its own, whose memory is then its own
                subprocess.run([sys.executable, __file__, str(table), "asleep", str(actors), str(seconds)], check=True)
    elif part == "asleep":
        _note(table, _asleep(int(words[0]), float(words[1])))
    elif part == "gpus":
        counts = [*map(int, words[1:])] or sorted({1, torch.cuda.device_count()})
        for gpus in counts:
            ledger = table.with_name(f"search_{gpus}.sqlite")
            _note(table, _trained("hybrid_search, budget wide", HYBRIDS, gpus, int(words[0]), ledger))
    elif part == "mad":
        epochs = int(words[0])
        what = f"mad, attention, {'an epoch' if epochs == 1 else f'{epochs} epochs'}"
        for word in words[1:] or map(str, sorted({1, torch.cuda.device_count()})):
            number, _, workers = word.partition("x")
            with tempfile.TemporaryDirectory() as folder:
                path, study = Path(folder) / "mad.sqlite", [*MAD, f"--set=trial.training.epochs={epochs}"]
                _note(table, _trained(what, study, int(number), 600, path, workers))
    elif part == "killed":
        _note(table, _killed())
    elif part == "figure":
        Path(words[0]).write_text(_figure(_rows(table)), encoding="utf-8")
    else:
        raise SystemExit(__doc__)


def _note(table: Path, row: Row) -> None:
    rows = [*_rows(table), row | {"commit": _commit(), "date": time.strftime("%Y-%m-%d")}]
    print(json.dumps(row), flush=True)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _rows(table: Path) -> list[Row]:
    if not table.exists():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# Actors that sleep. -------------------------------------------------------------------------------


def _asleep(actors: int, seconds: float) -> Row:
    """Records a second from so many actors that sleep so long a cohort, from when as many cohorts are through to the last."""

    def sleeping(cohort: ShippedCohort, tell: Callable[[Progress], None]) -> Trained:
        for report in range(1, REPORTS + 1):
            time.sleep(seconds / REPORTS)
            tell(Progress(step=100 * report, steps=600, members=len(cohort.specs), loss=1.0, accuracy=(0.5,)))
        outcome = Outcome(scores={"accuracy": 0.5}, validation={"accuracy": 0.5}, steps=600, selected_step=600)
        device = torch.device("cpu")
        made = [
            record_of(spec, outcome, study="asleep", device=device, members=len(cohort.specs), implementation={})
            for spec in cohort.specs
        ]
        return made, {}

    ray_workers._train = sleeping
    os.sched_getaffinity = lambda _: set(range(actors))  # each actor takes a CPU, and here they take none
    cohorts = actors * max(COHORTS, round(LEAST / seconds))
    axes = {"trial.seed": [*range(MEMBERS)], "trial.training.steps": [*range(600, 600 + cohorts)]}
    study = codec.read_study(STUDY | {"space": {"kind": "grid", "axes": axes}})
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "asleep.sqlite"

        def heard(report: Any) -> None:
            if report.records:
                times.append(time.monotonic())

        used = _processor_seconds()
        ray_workers.run(study, path, report=heard, device="cpu", cohort_size=MEMBERS)
        used = _processor_seconds() - used
        with Ledger.open(path) as ledger:
            records = [*ledger.all()]
        began = time.monotonic()
        with Ledger(Path(folder) / "again.sqlite") as ledger:
            for record in records:
                ledger.add(replace(record))
        writing = time.monotonic() - began
    wall = times[-1] - times[actors - 1]
    return {
        "what": "actors asleep",
        "actors": actors,
        "seconds_a_cohort": seconds,
        "offered_trials_a_second": round(actors * MEMBERS / seconds, 1),
        "trials_a_second": round((len(times) - actors) * MEMBERS / wall, 1),
        "driver_cpu_share": round(used / (times[-1] - times[0]), 2),
        "driver_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "ledger_writes_a_second": round(len(records) / writing),
        "cores": os.cpu_count(),
    }


def _processor_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    return own.ru_utime + own.ru_stime


def _figure(rows: Sequence[Row]) -> str:
    """Trials a second that were offered and taken, on logarithmic axes, a line a number of actors and of cores."""
    rows = [row for row in rows if row["what"] == "actors asleep"]
    left, bottom, width, height = 70, 40, 560, 320
    low, high = 1.0, 2048.0

    def at(value: float) -> float:
        return log(value / low) / log(high / low)

    def x(value: float) -> float:
        return left + width * at(value)

    def y(value: float) -> float:
        return height + 20 - height * at(value)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 120} {height + bottom + 40}" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for tick in (1, 4, 16, 64, 256, 1024):
        parts.append(
            f'<line x1="{x(tick):.0f}" y1="{y(low):.0f}" x2="{x(tick):.0f}" y2="{y(high):.0f}" stroke="#e4e4e4"/>'
        )
        parts.append(
            f'<line x1="{x(low):.0f}" y1="{y(tick):.0f}" x2="{x(high):.0f}" y2="{y(tick):.0f}" stroke="#e4e4e4"/>'
        )
        parts.append(f'<text x="{x(tick):.0f}" y="{y(low) + 18:.0f}" text-anchor="middle">{tick}</text>')
        parts.append(f'<text x="{left - 8}" y="{y(tick) + 4:.0f}" text-anchor="end">{tick}</text>')
    diagonal = f'x1="{x(low):.0f}" y1="{y(low):.0f}" x2="{x(high):.0f}" y2="{y(high):.0f}"'
    below = f'x="{left + width / 2:.0f}" y="{y(low) + 38:.0f}" text-anchor="middle"'
    aside = f'transform="translate(18 {height / 2 + 20:.0f}) rotate(-90)" text-anchor="middle"'
    parts += [
        f'<line {diagonal} stroke="#999" stroke-dasharray="4 4"/>',
        f"<text {below}>trials a second that actors finish</text>",
        f"<text {aside}>trials a second in the ledger</text>",
    ]
    kinds = sorted({(int(row["actors"]), int(row["cores"])) for row in rows})
    for color, (actors, cores) in zip(("#0072b2", "#d55e00", "#009e73", "#cc79a7"), kinds, strict=False):
        own = sorted(
            (float(row["offered_trials_a_second"]), float(row["trials_a_second"]))
            for row in rows
            if (int(row["actors"]), int(row["cores"])) == (actors, cores)
        )
        line = " ".join(f"{x(offered):.1f},{y(taken):.1f}" for offered, taken in own)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x(o):.1f}" cy="{y(t):.1f}" r="4" fill="{color}"/>' for o, t in own]
        offered, taken = own[-1]
        said = f"{actors} actors, {cores} cores"
        parts.append(f'<text x="{x(offered) + 8:.0f}" y="{y(taken) + 14:.0f}" fill="{color}">{said}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


# GPUs of one host. --------------------------------------------------------------------------------


def _trained(what: str, study: Sequence[str], gpus: int, seconds: int, path: Path, workers: str = "") -> Row:
    """What a study trains on so many GPUs, of those that this process sees, after what this ledger holds."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count())))).split(",")
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(seen[:gpus])}
    command = [sys.executable, "-m", "recallmap", "run", *study, "--engine", "ray"]
    command += ["--cohorts-per-gpu", workers] if workers else []
    devices = [torch.device("cuda", number) for number in range(gpus)]
    known = _count(path)
    began = time.monotonic()
    with gpu_busy.sampled(gpu_busy.reader(devices)) as busy:
        process = subprocess.Popen(
            [*command, "--for", f"{seconds}s", "--ledger", str(path)],
            env=os.environ | visible,
            start_new_session=True,
        )
        counts: list[tuple[float, int]] = []
        while process.poll() is None and time.monotonic() - began < seconds + 30:
            time.sleep(1)
            counts.append((time.monotonic() - began, _count(path)))
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(30)
    wall = time.monotonic() - began
    with Ledger.open(path) as ledger:
        records = [record for record in [*ledger.all()][known:] if record.status == "done"]
    steps = sum(record.steps for record in records)
    return {
        "what": what,
        "gpus": gpus,
        "workers_a_gpu": workers,
        "seconds": round(wall, 1),
        "trials_an_hour": round(len(records) / wall * 3600),
        "trials_an_hour_then": _rate_once_begun(counts),
        "gpu_busy": busy.mean and round(busy.mean, 3),
        "us_a_step_and_trial": round(1e6 * sum(record.seconds for record in records) / steps) if steps else None,
        "trials_a_cohort": round(sum(record.cohort for record in records) / len(records), 1) if records else None,
        "device": torch.cuda.get_device_name(),
    }


def _killed() -> Row:
    """A search of four points, whose workers are killed: one after the first record, half of them after the 64th."""
    sizes = ["space.points=4", "space.generation=4", "space.beside=[]", "space.anchors=[]"]
    command = [sys.executable, "-m", "recallmap", "run", "hybrid_search", "--engine", "ray"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "search.sqlite"
        began = time.monotonic()
        process = subprocess.Popen(
            [*command, "--ledger", str(path), *(word for size in ["budget=mini", *sizes] for word in ("--set", size))]
        )
        killed: list[int] = []
        for least, share in ((1, 0.0), (64, 0.5)):
            while process.poll() is None and _count(path) < least:
                time.sleep(0.2)
            for pid in (workers := _workers())[: max(1, round(share * len(workers)))]:
                print(f"after {time.monotonic() - began:.0f} s and {_count(path)} records: kill {pid}", flush=True)
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        code = process.wait()
        with Ledger.open(path) as ledger:
            records = [*ledger.all()]
    done = [record for record in records if record.status == "done"]
    return {
        "what": f"hybrid_search, 128 trials, {len(killed)} workers killed: {len(done)} done, exit code {code}",
        "gpus": torch.cuda.device_count(),
        "seconds": round(time.monotonic() - began, 1),
        "device": torch.cuda.get_device_name(),
    }


def _workers() -> list[int]:
    """Processes of Ray's that train."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                name = (folder / "cmdline").read_bytes().decode(errors="replace")
                if name.startswith("ray::") and ".follow" in name:
                    found.append(int(folder.name))
    return sorted(found)


def _count(path: Path) -> int:
    """Records in a ledger that another process writes."""
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as ledger:
        (there,) = ledger.execute("SELECT count(*) FROM sqlite_master WHERE name = 'records'").fetchone()
        return int(ledger.execute("SELECT count(*) FROM records").fetchone()[0]) if there else 0


def _rate_once_begun(counts: Sequence[tuple[float, int]]) -> int | None:
    """Trials an hour from BEGUN seconds to the last record: without the start, and without what was under way at the end."""
    later = [(at, count) for at, count in counts if at >= BEGUN]
    if not later or later[-1][1] == later[0][1]:
        return None
    first, last = later[0], next(one for one in later if one[1] == later[-1][1])
    return round((last[1] - first[1]) / (last[0] - first[0]) * 3600)


def _commit() -> str:
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    return said.stdout.strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
