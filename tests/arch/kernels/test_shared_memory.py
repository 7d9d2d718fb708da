"""Programs of wide heads fit the shared memory of GPUs that have little, by tables that were made where there is more."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from recallmap.arch.kernels import select
from recallmap.arch.kernels.ahead import Target
from recallmap.arch.kernels.triton_tiles import shared_memory
from recallmap.arch.kernels.triton_tiles.shared_memory import SCARCE, stages_in_flight

LARGEST = [("attention", "fading"), ("delta", "head")]
# In a process of its own: it compiles, and this one interprets. Of each op the bytes of its kernels.
COMPILED = """
import json, sys
from functools import partial
import torch
from triton.runtime.jit import JITFunction
from recallmap.arch.kernels.ahead import Target, compiling_for
from recallmap.arch.kernels.benchmark import timing

held, run = {}, JITFunction.run
def seen(self, *args, **kwargs):
    kernel = run(self, *args, **kwargs)
    held[op][kernel.metadata.name] = max(kernel.metadata.shared, held[op].get(kernel.metadata.name, 0))
    return kernel
JITFunction.run = seen
shape = timing.Shape(batch=4, time=512, heads=8, key_width=128, value_width=128)
with compiling_for(Target("cuda", 89, 32)):
    for op, variant in json.loads(sys.argv[1]):
        held[op] = {}
        inputs = timing._on(timing.example(op, variant, shape), torch.bfloat16, torch.device("cpu"))
        timing._calls(partial(timing._run, op, "fused"), inputs)[1]()
print(json.dumps(held))
"""


@pytest.fixture(scope="module")
def held(uninterpreted: Callable[..., str]) -> dict[str, dict[str, int]]:
    """Of each op the bytes of shared memory that its kernels hold, by one process, since it takes long to start."""
    found: dict[str, dict[str, int]] = json.loads(uninterpreted(COMPILED, json.dumps(LARGEST)).splitlines()[-1])
    return found


@pytest.mark.parametrize("op", dict(LARGEST))
def test_the_largest_programs_fit_where_shared_memory_is_scarce(op: str, held: dict[str, dict[str, int]]) -> None:
    assert max(held[op].values()) > SCARCE / 2  # else another kernel is the largest
    assert max(held[op].values()) <= SCARCE, held[op]


@pytest.mark.parametrize(("capability", "stages"), [(80, 3), (86, 2), (89, 2), (90, 3), (120, 2)])
def test_fewer_loads_are_in_flight_where_shared_memory_is_scarce(
    capability: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select, "INTERPRETED", False)
    monkeypatch.setattr(shared_memory, "_target", lambda: Target("cuda", capability, 32))
    assert stages_in_flight(3) == stages
    assert stages_in_flight(1) == 1
