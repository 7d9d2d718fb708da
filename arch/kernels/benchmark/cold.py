"""Seconds of an op's first call, where nothing is compiled: in a process of its own, with an empty cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark.timing import Shape


def first_calls(op: str, variant: str, shape: Shape, *, dtype: str, **more: Any) -> dict[str, Any]:
    """A row of seconds, of `fused` on this machine's GPU: `forward_s` of a first call, `forward_backward_s` of one with its
    gradients, each in a process of its own where Triton has compiled one kernel of no importance before; `triton_s` is what
    that one took. `threads` is the number of CPUs. `more` are arguments of the op.

    Raises ValueError where `fused` does not serve, or where there is no GPU; RuntimeError where a process fails."""
    if not torch.cuda.is_available():
        raise ValueError("a first call compiles kernels for a GPU, and there is none here")
    device = torch.device("cuda")
    select.choose(op, device=device, dtype=getattr(torch, dtype), wanted="fused", sizes=asdict(shape))
    asked = {"op": op, "variant": variant, "shape": asdict(shape), "dtype": dtype, "more": more}
    forward, both = (_in_a_process(asked | {"backward": backward}) for backward in (False, True))
    return (
        {"op": op, "variant": variant, **asdict(shape), "dtype": dtype, "device": torch.cuda.get_device_name(device)}
        | {"threads": os.cpu_count(), "triton_s": both["triton"]}
        | {"forward_s": forward["call"], "forward_backward_s": both["call"]}
    )


def _in_a_process(asked: dict[str, Any]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "seconds.json")
        told = subprocess.run(
            [sys.executable, "-m", "recallmap.arch.kernels.benchmark.cold_process", json.dumps(asked), answer],
            env=os.environ | {"TRITON_CACHE_DIR": folder},
            capture_output=True,
            text=True,
            check=False,
        )
        if told.returncode:
            raise RuntimeError(told.stderr.strip().rpartition("\n")[2][:300])
        found: dict[str, float] = json.loads(answer.read_text(encoding="utf-8"))
    return found
