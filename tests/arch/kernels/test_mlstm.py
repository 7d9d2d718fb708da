"""mLSTM's op: gated linear attention in proportion to its own weights, whatever its stabiliser."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.benchmark.tolerance import Of, attainable, error, tolerance
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


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Case(NamedTuple):
    """A call that takes chunks side by side, backward at least: of wide heads, or of narrow ones in a long sequence."""

    time: int
    key_width: int
    value_width: int
    variant: str = "head"
    given: bool = True
    shift: float = 0.0

    def inputs(self) -> dict[str, Any]:
        """Arguments in fp64, with a random first state where one is given; all input gates shifted. Where they are large no
        normaliser is bounded below: keys are positive, so that none nearly cancels."""
        shape = timing.Shape(batch=1, time=self.time, heads=2, key_width=self.key_width, value_width=self.value_width)
        inputs = timing.example("mlstm", self.variant, shape)
        inputs["i"] += self.shift
        if self.shift > 0:
            inputs |= {key: inputs[key].abs() for key in "qk"}
        if self.given:
            generator = torch.Generator().manual_seed(1)
            shapes: tuple[tuple[int, ...], ...] = (
                (1, 2, self.key_width, self.value_width),
                (1, 2, self.key_width),
                (1, 2),
            )
            inputs["initial_state"] = MlstmState(*(torch.randn(shape, generator=generator) for shape in shapes))
        return inputs


SIDE_BY_SIDE = [
    Case(1, 72, 72),
    Case(1, 128, 128, given=False),
    Case(63, 128, 128),
    Case(64, 72, 72, given=False),
    Case(70, 24, 72, "shared"),
    Case(150, 128, 40),
    Case(150, 72, 72, "shared", given=False),
    Case(150, 64, 64),
    Case(40, 48, 64, "shared", given=False),
    Case(150, 64, 64, given=False, shift=100.0),
    Case(300, 16, 16),
    Case(150, 72, 72, given=False, shift=100.0),
    Case(150, 72, 72, shift=-100.0),
]


@pytest.mark.usefixtures("poisoned", "tensor_cores")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", SIDE_BY_SIDE, ids=lambda case: "-".join(map(str, case)))
def test_fused_of_wide_heads_and_long_sequences_is_the_recurrence(case: Case, dtype: torch.dtype) -> None:
    inputs = rounded(case.inputs(), dtype)
    found, expected = derived("fused", inputs, dtype, DEVICE), derived("recurrent", inputs, torch.float64, "cpu")
    assert found.keys() == expected.keys()
    for key, x in found.items():
        of: Of = "gate_gradient" if key in ("d_i", "d_f") else "gradient" if key.startswith("d_") else "output"
        per = (0, 1) if "state" in key else (0, 2)
        allowed = max(tolerance("mlstm", dtype, of=of), attainable(expected[key], x.dtype, per))
        assert error(x, expected[key], per) <= allowed, key


def rounded(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The inputs as they are in `dtype`, gates and states in fp32."""
    return {key: x.to(dtype).double() if key in timing.CONTENT else x for key, x in inputs.items()}


def derived(name: str, inputs: dict[str, Any], dtype: torch.dtype, device: str) -> dict[str, Tensor]:
    """Outputs, last state, and the derivatives of a function of both by all inputs and the initial state."""

    def leaf(key: str, x: Tensor) -> Tensor:
        lowest = dtype if key in timing.CONTENT else torch.promote_types(dtype, torch.float32)
        return x.float().to(device, lowest).requires_grad_()

    leaves: dict[str, Any] = {key: leaf(key, x) for key, x in inputs.items() if key != "initial_state"}
    state, parts = None, {}
    if "initial_state" in inputs:
        state = MlstmState(*(leaf("state", x) for x in inputs["initial_state"]))
        parts = {f"state_{part}": x for part, x in state._asdict().items()}
    o, final = kernels.mlstm(**leaves, initial_state=state, return_state=True, implementation=name)
    assert final is not None
    results = {"o": o} | {f"last_state_{part}": x for part, x in final._asdict().items()}
    generator = torch.Generator().manual_seed(3)
    weights = [torch.randn(x.shape, generator=generator).bfloat16().to(device, x.dtype) for x in results.values()]
    gradients = torch.autograd.grad(list(results.values()), [*leaves.values(), *parts.values()], weights)
    results |= {f"d_{key}": x for key, x in zip([*leaves, *parts], gradients, strict=True)}
    return {key: x.detach().cpu() for key, x in results.items()}


@pytest.mark.parametrize("time", [20, 150])
def test_nobody_who_asks_for_the_state_or_the_derivative_changes_outputs(time: int) -> None:
    inputs = {key: x.float().to(DEVICE) for key, x in Case(time, 72, 72, given=False).inputs().items()}
    asked, _ = kernels.mlstm(
        **{key: x.requires_grad_() for key, x in inputs.items()}, return_state=True, implementation="fused"
    )
    with torch.no_grad():
        alone, state = kernels.mlstm(**inputs, implementation="fused")
    assert state is None
    assert torch.equal(alone, asked)


CUT = Case(150, 40, 72)


@cache
def planned_cut() -> dict[str, Tensor]:
    return derived("fused", CUT.inputs(), torch.float32, DEVICE)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    "cut",
    [
        {"tokens": 64, "rows": 16, "gates": {"chunks": 2}},
        {"tokens": 16, "rows": 16, "gates": {"chunks": 4}},
        {"tokens": 32, "carry": {"keys": 16, "columns": 16}},
        {"tokens": 32, "outputs": {"columns": 16}, "by_queries": {"columns": 32}, "by_keys": {"columns": 64}},
    ],
    ids=str,
)
def test_no_cut_of_the_work_changes_results(cut: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from recallmap.arch.kernels.mlstm.fused import launch  # Triton is optional

    planned, form_for = planned_cut(), launch.form_for

    def other(*sizes: Any) -> Any:
        form = form_for(*sizes)
        return form._replace(
            **{name: getattr(form, name)._replace(**x) if isinstance(x, dict) else x for name, x in cut.items()}
        )

    monkeypatch.setattr(launch, "form_for", other)
    for key, x in derived("fused", CUT.inputs(), torch.float32, DEVICE).items():
        assert error(x, planned[key], (0, 1) if "state" in key else (0, 2)) <= tolerance("mlstm", torch.float32), key


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("case", "early"),
    [
        (Case(150, 40, 40), 0.0),
        (Case(63, 40, 24, "shared", given=False), 0.0),
        (Case(150, 40, 40, shift=1.0), 60.0),
    ],
    ids=str,
)
def test_chunks_backward_take_from_a_walk_what_they_make_themselves(
    case: Case, early: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`early` raises the input gate of a token of the first chunk, which then makes the last m."""
    from recallmap.arch.kernels.mlstm.fused import launch, plan  # Triton is optional

    inputs = case.inputs()
    inputs["i"][:, 5] += early
    planned = derived("fused", inputs, torch.float32, DEVICE)
    form_for = launch.form_for

    def mixed(*sizes: Any) -> plan.Mixed:
        chunks = form_for(*sizes)
        assert isinstance(chunks, plan.Chunks)
        return plan.Mixed(plan.Walk(chunks.tokens, 4), chunks)

    monkeypatch.setattr(launch, "form_for", mixed)
    for key, x in derived("fused", inputs, torch.float32, DEVICE).items():
        assert error(x, planned[key], (0, 1) if "state" in key else (0, 2)) <= tolerance("mlstm", torch.float32), key


def test_members_with_wide_heads_are_what_they_are_alone() -> None:
    inputs = Case(70, 72, 40, given=False).inputs()
    members = [{key: factor * x.float().to(DEVICE) for key, x in inputs.items()} for factor in (1.0, 0.5)]
    stacked = {key: torch.stack([member[key] for member in members]).requires_grad_() for key in inputs}

    def outputs(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
        return kernels.mlstm(q, k, v, i=i, f=f, implementation="fused")[0]

    together = torch.vmap(outputs)(*stacked.values())
    alone = torch.stack([outputs(*(x[m] for x in stacked.values())) for m in range(2)])
    assert_close(together, alone)
    gradients = (torch.autograd.grad(o.sin().sum(), list(stacked.values())) for o in (together, alone))
    for x, y in zip(*gradients, strict=True):
        assert_close(x, y, rtol=1e-4, atol=1e-5)


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
