"""NVIDIA's Multi-Process Service, by which the kernels of several processes run on a GPU side by side.

Without it processes take turns on a GPU, and a small kernel leaves most of it empty. The service is ours alone: it lives in a
folder of its own, and a process that watches us ends it with us, however that comes about. Where it is not installed or does
not start, processes take turns; where the user runs one, ours is not needed.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from recallmap.search.workers.pool import Program
from recallmap.search.workers.process import receive, send

if TYPE_CHECKING:
    import torch

SERVICE = "nvidia-cuda-mps-control"
FOLDER, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"  # of the service; clients know it by the first
PATIENCE = 10.0  # seconds for it to start, and to end
AT_ONCE = 3  # cohorts with which hybrid_search keeps an H100 at work 90 % of the time; with one it is 68 %


def cohorts_at_once(device: torch.device) -> int:
    """How many cohorts train at once on this device where nobody says it: one where they would take turns."""
    return AT_ONCE if device.type == "cuda" and (FOLDER in os.environ or shutil.which(SERVICE)) else 1


@contextmanager
def side_by_side_on(device: torch.device) -> Iterator[Mapping[str, str]]:
    """What processes that are to share this device need in their environment; nothing where no service of ours runs."""
    if device.type != "cuda" or FOLDER in os.environ or shutil.which(SERVICE) is None:
        yield {}
        return
    watch = Program(__name__)
    try:
        yield receive(watch.wire)
    except EOFError:  # it could not be started
        yield {}
    finally:
        watch.end(2 * PATIENCE)


def main() -> None:
    """Run a service until standard input, a socket, is closed. Answers with the environment of its clients."""
    wire = socket.socket(fileno=0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        clients = {FOLDER: folder, LOGS: folder}
        env = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"} | clients
        service = subprocess.Popen([SERVICE, "-f"], env=env, stdin=subprocess.DEVNULL)
        try:
            send(wire, clients if _answers(service, Path(folder)) else {})
            with suppress(EOFError, OSError):
                receive(wire)
        finally:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([SERVICE], input=b"quit\n", env=env, timeout=PATIENCE, check=False)
            _end(service)


def _answers(service: subprocess.Popen[bytes], folder: Path) -> bool:
    until = time.monotonic() + PATIENCE
    while service.poll() is None and time.monotonic() < until:
        if (folder / "control").exists():
            return True
        time.sleep(0.02)
    return False


def _end(service: subprocess.Popen[bytes]) -> None:
    try:
        service.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        service.kill()
        service.wait()
