"""mLSTM's op: gated linear attention in proportion to its own weights, whatever its stabiliser."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.benchmark.tolerance import Of, error, tolerance
from recallmap.arch.kernels.mlstm import MlstmState

IMPLEMENTATIONS = ["recurrent", "chunked"]


def drawn(time: int = 70, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, time, 3, *shape, generator=generator, dtype=torch.float64).to(dtype)

    return {"q": normal(4), "k": normal(4), "v": normal(5), "i": normal(), "f": normal() + 2}


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_it_is_gla_over_what_gla_makes_of_ones(name: str) -> None:
    inputs = drawn()
    q, k, v, i, f = inputs.values()
    o, _ = kernels.gated_linear(q, k, v, log_decay=logsigmoid(f), beta=i.exp(), scale=0.5)
    weight, _ = kernels.gated_linear(q, k, torch.ones_like(v), log_decay=logsigmoid(f), beta=i.exp(), scale=0.5)
    assert (weight.abs() < 1).any()
    assert (weight.abs() > 1).any()
    assert_close(kernels.mlstm(**inputs, implementation=name)[0], o / weight.abs().clamp(min=1))


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("m", [-30.0, 0.0, 7.0])
def test_no_output_depends_on_the_stabiliser(name: str, m: float) -> None:
    inputs = drawn()
    C, n = torch.randn(2, 3, 4, 5, dtype=torch.float64), torch.randn(2, 3, 4, dtype=torch.float64)
    told = torch.full((2, 3), m, dtype=torch.float64)
    moved = MlstmState(C * (-told).exp()[..., None, None], n * (-told).exp()[..., None], told)
    o, last = kernels.mlstm(**inputs, initial_state=moved, return_state=True, implementation=name)
    expected, end = kernels.mlstm(
        **inputs, initial_state=MlstmState(C, n, torch.zeros_like(told)), return_state=True, implementation="recurrent"
    )
    assert_close(o, expected)
    assert last is not None
    assert end is not None
    assert_close(last.C * last.m.exp()[..., None, None], end.C * end.m.exp()[..., None, None])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("shift", [-200.0, 200.0])
def test_gates_beyond_the_range_of_floats_overflow_nothing(name: str, shift: float) -> None:
    inputs = {key: x.abs() if key in "qk" else x for key, x in drawn(dtype=torch.float32).items()}
    inputs["i"] = inputs["i"] + shift
    leaves = [x.requires_grad_() for x in inputs.values()]
    o, state = kernels.mlstm(**inputs, return_state=True, implementation=name)
    assert state is not None
    for x in (o, *state, *torch.autograd.grad(o.square().sum(), leaves)):
        assert x.isfinite().all()
    if shift < 0:
        assert o.abs().max() < 1e-30  # nothing was written, and nothing made of it
    else:
        exact, _ = kernels.mlstm(**{k: x.detach().double() for k, x in inputs.items()})
        assert (o - exact).norm() <= 1e-5 * exact.norm()


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_token_that_does_nothing_changes_nothing(name: str) -> None:
    inputs = drawn(9)
    quiet = dict(inputs)
    quiet["i"] = inputs["i"].index_fill(1, torch.tensor([8]), -1e30)
    quiet["f"] = inputs["f"].index_fill(1, torch.tensor([8]), 50.0)
    _, state = kernels.mlstm(**quiet, return_state=True, implementation=name)
    _, before = kernels.mlstm(**{key: x[:, :8] for key, x in inputs.items()}, return_state=True, implementation=name)
    assert_close(state, before)


def test_a_state_that_does_not_fit_is_told() -> None:
    inputs = drawn(2)
    wrong = MlstmState(torch.zeros(2, 3, 4, 6), torch.zeros(2, 3, 4), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"mlstm: state has shape \[2, 3, 4, 6\], must be \[2, 3, 4, 5\]"):
        kernels.mlstm(**inputs, initial_state=wrong)
    with pytest.raises(ValueError, match=r"mlstm: i has shape"):
        kernels.mlstm(**inputs | {"i": inputs["i"][:, :1]})


@pytest.mark.parametrize(("time", "width"), [(300, 16), (40, 72)])
def test_fused_derives_long_sequences_and_wide_heads_by_chunks(time: int, width: int) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = timing.example(
        "mlstm", "head", timing.Shape(batch=1, time=time, heads=1, key_width=width, value_width=width)
    )
    generator = torch.Generator().manual_seed(1)
    shapes: tuple[tuple[int, ...], ...] = ((1, 1, width, width), (1, 1, width), (1, 1))
    inputs["initial_state"] = MlstmState(*(torch.randn(shape, generator=generator) for shape in shapes))
    found, expected = (
        derived(name, inputs, dtype, device) for name, dtype in (("fused", torch.float32), ("recurrent", torch.float64))
    )
    for x, y in zip(found, expected, strict=True):
        assert error(x, y, (0,)) <= tolerance("mlstm", torch.float32)


def derived(name: str, inputs: dict[str, Any], dtype: torch.dtype, device: str) -> list[Tensor]:
    """Outputs, last state, and the derivatives of a function of both by all inputs and the initial state."""

    def leaf(x: Tensor) -> Tensor:
        return x.float().to(device, dtype).requires_grad_()

    state = MlstmState(*(leaf(x) for x in inputs["initial_state"]))
    leaves: dict[str, Any] = {key: leaf(x) for key, x in inputs.items() if key != "initial_state"}
    o, final = kernels.mlstm(**leaves, initial_state=state, return_state=True, implementation=name)
    assert final is not None
    results = [o, *final]
    loss = torch.stack([x.sin().sum() for x in results]).sum()
    gradients = torch.autograd.grad(loss, [*leaves.values(), *state])
    return [x.cpu() for x in (*results, *gradients)]


@pytest.mark.usefixtures("tensor_cores")
@pytest.mark.parametrize(
    ("of", "rows", "shape", "seed"),
    [
        ("output", [47], timing.Shape(batch=256, time=150, heads=2, key_width=16, value_width=16), 3),
        ("gradient", [132], timing.Shape(batch=256, time=150, heads=2, key_width=16, value_width=16), 8),
    ],
)
def test_fused_keeps_digits_where_little_is_left_of_large_numbers(
    of: Of, rows: list[int], shape: timing.Shape, seed: int
) -> None:
    """The sequences out of many whose normalisers, or derivatives by queries, nearly cancel."""
    inputs = {
        key: (x.bfloat16() if key in timing.CONTENT else x.float())[rows]
        for key, x in timing.example("mlstm", "head", shape).items()
    }
    generator = torch.Generator().manual_seed(seed)
    size = (shape.batch, shape.time, shape.heads, shape.value_width)
    told = torch.randn(size, generator=generator, dtype=torch.float64)[rows].bfloat16()

    def found(name: str, *dtype: torch.dtype) -> Tensor:
        leaves = {key: x.to(*dtype).requires_grad_() for key, x in inputs.items()}
        o, _ = kernels.mlstm(**leaves, implementation=name)
        return o if of == "output" else torch.autograd.grad(o, leaves["q"], told.to(*dtype))[0]

    assert error(found("fused"), found("recurrent", torch.float64), (0, 2)) <= tolerance("mlstm", torch.bfloat16, of=of)
