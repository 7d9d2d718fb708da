"""The process of one first call, which writes its seconds into a file, as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark import timing


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main(asked: str, answer: Path) -> None:
    """Time a first call of what is asked for (`cold.first_calls`)."""
    told = json.loads(asked)
    device, dtype = torch.device("cuda"), getattr(torch, told["dtype"])
    shape = timing.Shape(**told["shape"])
    calls = timing.prepared(told["op"], "fused", told["variant"], shape, dtype=dtype, device=device, **told["more"])
    x = torch.ones(16, 16, device=device, requires_grad=True)
    torch.autograd.grad(x @ x, x, torch.ones_like(x))  # PyTorch starts, and imports what checks derivatives
    starting = _seconds(partial(import_module("recallmap.arch.kernels.triton_tiles.nothing").start, x.detach()))
    select.load(told["op"], "fused")
    answer.write_text(json.dumps({"triton": starting, "call": _seconds(calls[told["backward"]])}), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
    # Not by Python's own way out, on which one process in 130 was aborted ("terminate called without an active exception").
    os._exit(0)
