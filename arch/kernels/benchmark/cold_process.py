"""The process of one first call: it prints its seconds as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark import timing


@triton.jit
def _of_no_importance(x_ptr: Any) -> None:
    tl.store(x_ptr, 2 * tl.load(x_ptr))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main(asked: str) -> None:
    """Time a first call of what is asked for (`cold.first_calls`)."""
    told = json.loads(asked)
    device, dtype = torch.device("cuda"), getattr(torch, told["dtype"])
    shape = timing.Shape(**told["shape"])
    calls = timing.prepared(told["op"], "fused", told["variant"], shape, dtype=dtype, device=device, **told["more"])
    x = torch.ones(16, 16, device=device, requires_grad=True)
    (x @ x).sum().backward()  # what PyTorch itself takes to start
    starting = _seconds(lambda: _of_no_importance[(1,)](x.detach()))
    select.load(told["op"], "fused")
    print(json.dumps({"triton": starting, "call": _seconds(calls[told["backward"]])}))


if __name__ == "__main__":
    main(sys.argv[1])
