"""Measure how fast studies go on a GPU, beside an earlier commit: python docs/measure_throughput.py OLD TABLE SECONDS [PART]

OLD is a worktree of commit 113bcc2 (`git worktree add OLD 113bcc2`). PARTs are hybrids, zoology, mad, noisy and step. Studies
run for SECONDS at most, and a third as long for OLD: hybrid_search and, with three mixers and an epoch a trial, mqar_zoology,
each with an empty cache of Triton; without OLD mad, all 66 settings of MAD's paper tier, an epoch a trial, and noisy, those of
noisy recall, ten epochs. The table is written as a CSV, a row a measurement. Needs one GPU, which nothing else may use
meanwhile.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from recallmap.results.ledger import Ledger
from recallmap.results.record import Record
from recallmap.search.engines.gpu_sharing import cohorts_at_once
from recallmap.search.measurement import gpu_busy

ROOT = Path(__file__).parents[1]
HYBRIDS = ["hybrid_search", "--set", "budget=mini"]
ONE_EPOCH = ["--set", "trial.training.epochs=1", "--set", "trial.training.evaluations=1"]
ZOOLOGY = ["mqar_zoology", "--set", "only.arch=[conv_attention,conv_gated_deltanet,conv_mesa]", *ONE_EPOCH]
MAD = ["mad", "--set", "budget=paper", "--set", "space.axes.trial.seed=[0]"]
NOISY = ["--set", "only.task=[noisy_in_context_recall]", "--set", "trial.training.epochs=10", *ONE_EPOCH[2:]]
MAD_TRIALS, MAD_EPOCHS = 528, 200  # of a row of its table: 66 settings, eight cells
PARTS = ("hybrids", "zoology", "mad", "noisy", "step")
GRACE = 20  # seconds beyond its time after which a run is interrupted; after as many more it is killed
OLD_MAIN = "import sys; from search.cli import main; sys.argv[0] = 'recallmap'; main()"

Row = dict[str, Any]


def main(old: Path, table: Path, seconds: int, parts: Sequence[str]) -> None:
    """Measure these parts, and write the table after each measurement; rows of a table that is there stay."""
    device = torch.cuda.get_device_name()
    versions = f"torch {torch.__version__}, triton {_version('triton')}"
    rows: list[Row] = []
    if table.exists():
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))

    def note(what: str, commit: str, **figures: Any) -> None:
        row = {"what": what, "commit": commit, **figures, "device": device, "versions": versions}
        rows.append(row)
        print(json.dumps(row), flush=True)
        names = list(dict.fromkeys(name for row in rows for name in row))
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)

    here = _commit(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        if "hybrids" in parts:
            _beside("hybrid_search", HYBRIDS, old, here, Path(folder), seconds, note)
        if "zoology" in parts:
            _beside("mqar_zoology, an epoch", ZOOLOGY, old, here, Path(folder), seconds, note)
        if "mad" in parts:
            _mad("an epoch", ONE_EPOCH, here, Path(folder), seconds, note)
        if "noisy" in parts:
            _mad("noisy recall, ten epochs", NOISY, here, Path(folder), seconds, note)
        if "step" in parts:
            _steps(here, Path(folder), seconds, note)


def _beside(
    name: str, study: Sequence[str], old: Path, here: str, folder: Path, seconds: int, note: Callable[..., None]
) -> None:
    """The old commit, then this one, each with an empty cache."""
    ledger = folder / f"{study[0]}_old.sqlite"
    command = [sys.executable, "-c", OLD_MAIN, "run", *study, "--ledger", str(ledger)]
    cold = {"TRITON_CACHE_DIR": f"{folder}/{study[0]}_old", "PYTHONPATH": str(old)}
    wall, busy = _run(command, cold, old, seconds // 3 - GRACE)
    done = sqlite3.connect(ledger).execute("SELECT count(*) FROM records").fetchone()[0]
    note(f"{name}, cold cache", _commit(old), seconds=wall, trials_an_hour=done / wall * 3600, gpu_busy=busy)
    ledger = folder / f"{study[0]}.sqlite"
    command = _ours("run", *study, "--ledger", str(ledger), "--for", f"{seconds}s")
    wall, busy = _run(command, {"TRITON_CACHE_DIR": f"{folder}/{study[0]}"}, ROOT, seconds)
    at_once = cohorts_at_once(torch.device("cuda"))
    note(f"{name}, cold cache, cohorts at once {at_once}", here, seconds=wall, gpu_busy=busy, **_figures(ledger, wall))


def _mad(part: str, trained: Sequence[str], here: str, folder: Path, seconds: int, note: Callable[..., None]) -> None:
    for arch in ("attention", "gated_deltanet_mesanet"):
        ledger = folder / f"{arch}_{len(trained)}.sqlite"
        more = ["--set", f"space.axes.trial.arch=[{arch}]", "--ledger", str(ledger), "--for", f"{seconds}s"]
        wall, busy = _run(_ours("run", *MAD, *trained, *more), {}, ROOT, seconds)
        done = _trained(ledger)
        hours = sum(record.seconds for record in done) * MAD_EPOCHS / 3600 if len(done) == MAD_TRIALS else None
        short = [record for record in done if record.length in (127, 128)]
        what = f"MAD paper tier, {part}, {arch}"
        note(what, here, seconds=wall, gpu_busy=busy, **_figures(ledger, wall), hours_a_row=hours)
        if short:
            note(f"{what}, settings of 128 tokens", here, us_a_step_and_trial=_us(short))


def _steps(here: str, folder: Path, seconds: int, note: Callable[..., None]) -> None:
    for arch in ("attention", "mesa", "gated_deltanet_mesanet"):
        out = folder / f"{arch}.jsonl"
        step = ["--arch", arch, "--task", "in_context_recall", "--members", "32", "--dtype", "bfloat16"]
        _run(_ours("bench", "step", *step, "-o", str(out)), {}, ROOT, seconds // 2)
        lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []  # none: it took too long
        for row in map(json.loads, lines):
            median, mean = row["ms a step and member"], row["mean ms a step and member"]
            note(f"step, {arch}, {row['trained']}", here, us_a_step=1e3 * median, mean_us_a_step=1e3 * mean)


def _ours(*words: str) -> list[str]:
    return [sys.executable, "-m", "recallmap", *words]


def _run(
    command: Sequence[str], environment: dict[str, str], folder: Path, seconds: float
) -> tuple[float, float | None]:
    """Run a command until it ends, or interrupt it; its seconds, and the mean share of them in which the GPU worked."""
    began = time.monotonic()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as said,
        gpu_busy.sampled(gpu_busy.reader([torch.device("cuda")])) as busy,
    ):
        process = subprocess.Popen(
            command, env=os.environ | environment, cwd=folder, stdout=said, text=True, start_new_session=True
        )
        try:
            process.wait(seconds + GRACE)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        said.seek(0)
        print("".join(line for line in said if line.startswith("time:")), end="", flush=True)
    return time.monotonic() - began, busy.mean


def _trained(path: Path) -> list[Record]:
    with Ledger.open(path) as ledger:
        return [record for record in ledger.all() if record.status == "done"]


def _figures(path: Path, wall: float) -> Row:
    """Trials an hour, and the mean over them of the microseconds of a step."""
    done = _trained(path)
    return {"trials_an_hour": len(done) / wall * 3600, "us_a_step_and_trial": _us(done)}


def _us(records: Sequence[Record]) -> float | None:
    """Microseconds of a step and trial."""
    steps = sum(record.steps for record in records)
    return 1e6 * sum(record.seconds for record in records) / steps if steps else None


def _commit(folder: Path) -> str:
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


def _version(package: str) -> str:
    from importlib.metadata import version

    return version(package)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or PARTS)
