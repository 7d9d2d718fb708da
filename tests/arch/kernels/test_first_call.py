"""A first call asks for all kernels of its op before it waits for one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recallmap.arch.kernels import ahead, select
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.op_interface import first_call

# In a process of its own: this one interprets. Launches are noted, with all that their kernels are told apart by, and nothing
# is compiled. What is noted in a rehearsal, and what in the call, forward and backward, is printed.
NOTED = """
import json, sys
import torch
from triton.runtime.jit import JITFunction
from recallmap.arch.kernels import ahead
from recallmap.arch.kernels.ahead import Target, compiling_for
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.op_interface import first_call

rehearsed, called, rounds = set(), set(), []
noted = called
def note(self, *args, grid, warmup, **kwargs):
    _, specialization, options = self.device_caches[0][-1](*args, **kwargs)
    noted.add(f"{self.__name__} {specialization} {options}")

def only_note(launch):
    global noted
    noted = rehearsed
    rounds.append(launch())
    noted = called

first_call.compiles = lambda inputs: True
ahead.compile_side_by_side = only_note
found = {}
shape = timing.Shape(batch=4, time=320, heads=2, key_width=64, value_width=64)
with compiling_for(Target("cuda", 90, 32)):
    JITFunction.run = note
    for op, variant in json.loads(sys.argv[1]):
        calls = timing.prepared(op, "fused", variant, shape, dtype=torch.bfloat16, device=torch.device("cpu"))
        for ways, call in zip(("forward", "both ways"), calls):
            rehearsed.clear(), called.clear(), rounds.clear()
            try:
                call()
            except ValueError as error:
                if "implementation 'fused'" not in str(error):
                    raise
            found[f"{op} {variant} {ways}"] = [sorted(rehearsed), sorted(called), len(rounds)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def noted(uninterpreted: Callable[..., str]) -> dict[str, tuple[list[str], list[str], int]]:
    """Of each call the kernels of its rehearsal, its own, and the rounds of rehearsals; by one process, since it takes long to
    start."""
    kinds = [(op, v) for op in select.ops() if "fused" in select.implementations(op) for v in timing.variants(op)]
    found: dict[str, tuple[list[str], list[str], int]] = json.loads(
        uninterpreted(NOTED, json.dumps(kinds)).splitlines()[-1]
    )
    return found


def test_a_first_call_rehearses_all_kernels_that_it_launches_and_no_others(
    noted: dict[str, tuple[list[str], list[str], int]],
) -> None:
    """What has the form of an earlier call has its kernels, too."""
    known: set[str] = set()
    for call, (rehearsed, called, _) in noted.items():
        assert set(rehearsed) <= set(called), call
        known |= set(rehearsed)
        assert set(called) <= known, call
    assert len(known) > 100


def test_no_kernel_of_a_first_call_waits_for_one_of_another_round(
    noted: dict[str, tuple[list[str], list[str], int]],
) -> None:
    for call, (_, _, rounds) in noted.items():
        assert rounds <= 1, call


def test_a_form_is_rehearsed_once_and_lengths_within_a_factor_of_two_are_one_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that who reads token after token rehearses a dozen times, not thousands."""
    monkeypatch.setattr(first_call, "compiles", lambda inputs: True)
    monkeypatch.setattr(ahead, "compile_side_by_side", lambda launch: launch())
    rehearsals: list[tuple[int, ...]] = []

    def doubled(x: Tensor, times: int) -> Tensor:
        return times * x

    op = first_call.rehearsed(doubled, lambda x, times: rehearsals.append((*x.shape, times)))
    for time in range(1, 1025):
        assert op(torch.ones(2, time, 4), 2).shape == (2, time, 4)
    assert [time for _, time, _, _ in rehearsals] == [2**i for i in range(11)]
    rehearsals.clear()
    for x, times in ((torch.ones(2, 4, 8), 2), (torch.ones(2, 4, 4), 3), (torch.ones(2, 4, 4, requires_grad=True), 2)):
        op(x, times), op(x, times)
    assert rehearsals == [(2, 4, 8, 2), (2, 4, 4, 3), (2, 4, 4, 2)]


def test_what_calls_several_ops_has_them_all_rehearsed_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the gradients that the call will have, and once for tensors of a form."""
    monkeypatch.setattr(first_call, "compiles", lambda inputs: True)
    rounds: list[list[tuple[str, int, bool]]] = []

    def compile_side_by_side(launch: Callable[[], None]) -> None:
        rounds.append([])
        launch()

    monkeypatch.setattr(ahead, "compile_side_by_side", compile_side_by_side)

    def op(name: str) -> Callable[[Tensor], Tensor]:
        def rehearse(x: Tensor) -> Tensor:
            rounds[-1].append((name, x.shape[-1], x.requires_grad))
            return 2 * x

        return first_call.rehearsed(lambda x: 2 * x, rehearse)

    doubled, again = op("doubled"), op("again")

    @first_call.together
    def four_times(x: Tensor, *, times: int) -> Tensor:
        y = x
        for _ in range(times):
            y = again(doubled(y))
        return y

    for x in (torch.ones(2, 3, 4), torch.ones(2, 3, 4, requires_grad=True), torch.ones(2, 3, 4)):
        assert (four_times(x, times=1) == 4).all()
    with torch.no_grad():
        four_times(torch.ones(2, 3, 8, requires_grad=True), times=1)
    four_times(torch.ones(2, 3, 8), times=2)
    assert rounds == [
        [("doubled", 4, False), ("again", 4, False)],
        [("doubled", 4, True), ("again", 4, True)],
        [("doubled", 8, True), ("again", 8, False)],
        [("doubled", 8, False), ("again", 8, False), ("doubled", 8, False), ("again", 8, False)],
    ]


# Where each kernel was compiled: the names of threads, by kernel. It ends at once, since PyTorch's threads of backward may
# abort a process that ends as Python does (pytorch/pytorch#38228).
THREADS = """
import json, os, sys, threading
import torch, triton
from recallmap.arch.kernels.benchmark import timing

compiled = []
triton.knobs.compilation.listener = lambda **told: compiled.append((told["metadata"]["name"], threading.current_thread().name))
shape = timing.Shape(batch=4, time=320, heads=2, key_width=64, value_width=64)
calls = timing.prepared(sys.argv[1], "fused", sys.argv[2], shape, dtype=torch.bfloat16, device=torch.device("cuda"))
calls[1]()
torch.cuda.synchronize()
print(json.dumps(compiled), flush=True)
os._exit(0)
"""


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "variant"), [("mesa", "head"), ("delta", "pair"), ("short_conv", "unit"), ("memory", "linear")]
)
def test_no_kernel_of_a_first_call_is_compiled_where_it_is_launched(
    op: str, variant: str, tmp_path: Path, uninterpreted: Callable[..., str]
) -> None:
    compiled = json.loads(uninterpreted(THREADS, op, variant, TRITON_CACHE_DIR=str(tmp_path)).splitlines()[-1])
    assert len(compiled) > 1
    assert "MainThread" not in {thread for _, thread in compiled}
