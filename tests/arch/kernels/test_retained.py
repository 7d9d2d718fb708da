"""A matrix read through its retention: with a plain one it is linear attention, of a softmax only differences count, and of a
norm only the direction."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import gated_linear, select
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.retained import retained
from recallmap.arch.kernels.test_time.learning_rule import KL, LQ, PLAIN, KlRetention, LqRetention, Retention

NAMES = select.implementations("retained")
SIZES = {"batch": 2, "time": 9, "heads": 3, "key_width": 7, "value_width": 5}


def example(variant: str = "memora", **sizes: int) -> dict[str, Any]:
    return timing.example("retained", variant, timing.Shape(**{**SIZES, **sizes}))


def read(name: str, inputs: dict[str, Any], **more: Any) -> tuple[Tensor, Tensor]:
    """In fp32 where a kernel computes, with memory that shows when nothing wrote it."""
    dtype = torch.float32 if name == "fused" else torch.float64
    given = {n: x.to(dtype) if isinstance(x, Tensor) else x for n, x in (inputs | more).items()}
    y, a = retained(**given, return_state=True, implementation=name)
    assert isinstance(a, Tensor)
    return y.double(), a.double()


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("plain", [PLAIN, LqRetention(q=2.0), LqRetention(q=2.0, mirror=True)], ids=str)
def test_what_keeps_all_is_linear_attention(name: str, plain: Retention) -> None:
    inputs, start = example(), drawn(2, 3, 7, 5)
    y, a = read(name, inputs | {"retention": plain, "initial_state": start})
    qkv = (inputs[n] for n in ("q", "k", "v"))
    o, state = gated_linear(
        *qkv,
        log_decay=inputs["log_decay"],
        scale=1.0,
        initial_state=start,
        return_state=True,
        implementation="recurrent",
    )
    bound = 1e-5 if name == "fused" else 1e-10
    assert_close(y, o, rtol=bound, atol=bound)
    assert_close(a, torch.as_tensor(state), rtol=bound, atol=bound)
    k = torch.zeros_like(inputs["k"]).requires_grad_()  # of an empty matrix, too, what comes next counts in full
    y, _ = read(name, inputs | {"k": k, "retention": plain})
    qkv = inputs["q"], k, inputs["v"]
    o, _ = gated_linear(*qkv, log_decay=inputs["log_decay"], scale=1.0, implementation="recurrent")
    ours, theirs = (torch.autograd.grad(x.sum(), k)[0] for x in (y, o))
    assert_close(ours, theirs, rtol=bound, atol=bound)


@pytest.mark.parametrize("name", NAMES)
def test_of_a_softmax_what_is_added_to_every_row_is_not_read(name: str) -> None:
    inputs = example(time=1)
    inputs["log_decay"] = torch.zeros_like(inputs["log_decay"])
    start = drawn(2, 3, 7, 5)
    moved = start + 50 * drawn(2, 3, 1, 5, seed=2)
    y, _ = read(name, inputs, initial_state=start)
    other, _ = read(name, inputs, initial_state=moved)
    assert_close(other, y, rtol=1e-4, atol=1e-5)
    ones = torch.ones_like(inputs["q"])
    total, _ = read(name, inputs, q=ones, initial_state=moved, retention=KlRetention(scale=3.0))
    assert_close(total, torch.full_like(total, 3.0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mirror", [False, True])
def test_of_a_norm_a_matrix_as_long_again_is_read_so_much_the_less(name: str, mirror: bool) -> None:
    """|A|_4^2 beneath A, and beneath |A|^3 of its mirror."""
    inputs = example("moneta") | {"retention": LqRetention(q=4.0, mirror=mirror)}
    start = drawn(2, 3, 7, 5)
    y, _ = read(name, inputs, initial_state=start)
    twice, _ = read(name, inputs, v=2 * inputs["v"], initial_state=2 * start)
    assert_close(twice, 2 * y if mirror else y / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("retention", [KL, LQ, LqRetention(q=3.0, mirror=True)], ids=str)
def test_of_an_empty_matrix_a_softmax_reads_the_mean_and_a_norm_nothing(name: str, retention: Retention) -> None:
    inputs = example() | {"retention": retention}
    y, a = read(name, inputs, k=torch.zeros_like(inputs["k"]))
    mean = inputs["q"].mean(-1, keepdim=True).expand_as(y)
    assert_close(y, mean if retention == KL else torch.zeros_like(y), rtol=1e-5, atol=1e-6)
    assert not a.any()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("variant", ["memora", "moneta"])
@pytest.mark.parametrize(("rows", "columns"), [(24, 96), (96, 24), (1, 200), (200, 1)])
def test_a_kernel_holds_a_long_matrix_that_is_narrow(variant: str, rows: int, columns: int, device: str) -> None:
    """And loses no more of it in fp32 than the recurrence does, of the same signals."""
    given = example(variant, time=3, key_width=rows, value_width=columns)
    tensors = {n: x.float() for n, x in given.items() if isinstance(x, Tensor)}
    signals = drawn(*tensors["v"].shape).float(), drawn(2, 3, rows, columns).float()

    def results(name: str, tensors: dict[str, Tensor]) -> list[Tensor]:
        leaves = {n: x.detach().requires_grad_() for n, x in tensors.items()}
        y, a = retained(**(given | leaves), return_state=True, implementation=name)
        assert isinstance(a, Tensor)
        return [y, a, *torch.autograd.grad((y, a), list(leaves.values()), [s.to(y) for s in signals])]

    found = results("fused", {n: x.to(device) for n, x in tensors.items()})
    exact = results("recurrent", {n: x.double() for n, x in tensors.items()})
    for x, y, z in zip(found, results("recurrent", tensors), exact, strict=True):
        assert (x.cpu() - z).norm() <= max(1e-6 * z.norm(), 4 * (y - z).norm())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("empty", SIZES)
def test_of_nothing_nothing_is_read_and_the_state_stays(empty: str, name: str) -> None:
    batch, time, heads, rows, columns = (SIZES | {empty: 0}).values()
    state, q = torch.randn(batch, heads, rows, columns), torch.ones(batch, time, heads, rows)
    v, decay = torch.ones(batch, time, heads, columns), torch.zeros(batch, time, heads)
    y, a = retained(q, q, v, retention=KL, log_decay=decay, initial_state=state, return_state=True, implementation=name)
    assert y.shape == v.shape
    assert not y.any()
    assert torch.equal(torch.as_tensor(a), state)


@pytest.mark.parametrize("name", ["q", "k", "v", "log_decay", "initial_state"])
def test_shapes_that_do_not_fit_are_told(name: str) -> None:
    inputs = example() | {"initial_state": drawn(2, 3, 7, 5)}
    inputs[name] = inputs[name][:, :2]
    with pytest.raises(ValueError, match=r"retained: (q|k|v|log_decay|state|initial_state) has shape"):
        retained(**inputs)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"key_width": 33, "value_width": 65}, "holds matrices that fit into 4,096 numbers, .*; got 33 x 65"),
        ({"key_width": 513}, "holds matrices that fit into 4,096 numbers, .*; got 513 x 5"),
        ({}, "computes in fp32 at most"),
    ],
)
def test_what_the_kernels_cannot_hold_is_told(sizes: dict[str, int], told: str) -> None:
    inputs = example(**sizes)
    given = {n: x.float() if isinstance(x, Tensor) else x for n, x in inputs.items()} if sizes else inputs
    with pytest.raises(ValueError, match=f"implementation 'fused' {told}; use 'chunked'"):
        retained(**given, implementation="fused")
