"""What every implementation of every op owes: it is its `recurrent` form, in numbers, gradients, states and members."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from recallmap.arch import kernels
from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.benchmark.tolerance import TABLE, Case, Of, attainable, error, tolerance

NESTED = {"weights", "norm"}  # inputs that are several tensors, learned, without a batch
KEEP_TOKENS = ("attention", "path")  # their states have an axis of time ahead of that of heads
SIZES = {"batch": 2, "heads": 2, "key_width": 6, "value_width": 5}
GATES = ("log_decay", "log_a", "beta", "alpha", "lam", "i", "f", "weight", "bias")


def exemplified(op: str) -> bool:
    try:
        timing.variants(op)
    except ValueError:
        return False
    return True


OPS = [op for op in select.ops() if exemplified(op)]
EVERY = [(op, name) for op in OPS for name in select.implementations(op) if name != "fused"]
EVERY_VARIANT = [(op, variant) for op in OPS for variant in timing.variants(op)]
WITH_KEYS = [(op, variant) for op, variant in EVERY_VARIANT if "k" in timing.example(op, variant, timing.Shape(time=1))]
ALTERNATIVES = [(op, name) for op, name in EVERY if name != "recurrent"]
PARALLEL = [(op, variant, name) for op, variant in EVERY_VARIANT for o, name in ALTERNATIVES if o == op]


def run(op: str, name: str, inputs: dict[str, Any], **more: Any) -> tuple[Tensor, Any]:
    o, state = getattr(kernels, op)(**inputs, implementation=name, **more)
    return timing.joined(o), state


def example(op: str, variant: str, time: int, seed: int = 0, **sizes: int) -> dict[str, Any]:
    inputs = timing.example(op, variant, timing.Shape(time=time, **{**SIZES, **sizes}), seed=seed)
    return {"steps": 8, **inputs} if op == "mesa" else inputs


def along_time(inputs: dict[str, Any]) -> set[str]:
    """The names of what has a batch and a time."""
    first = inputs["v" if "v" in inputs else "x"].shape[:2]
    return {key for key, x in inputs.items() if isinstance(x, Tensor) and x.ndim > 2 and x.shape[:2] == first}


@cache
def carried(op: str, variant: str, time: int, **sizes: int) -> Any:
    """A state that `time` tokens left behind."""
    return run(op, "recurrent", example(op, variant, time, seed=7, **sizes), return_state=True)[1]


def tensors(state: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(state) if isinstance(x, Tensor)]


def with_tensors(state: Any, replaced: list[Tensor]) -> Any:
    new = iter(replaced)
    return pytree.tree_map(lambda x: next(new) if isinstance(x, Tensor) else x, state)


def everything(
    op: str,
    name: str,
    inputs: dict[str, Any],
    state: Any,
    dtype: torch.dtype,
    device: str = "cpu",
    weights: list[Tensor] | None = None,
) -> dict[str, Tensor]:
    """Outputs, the last state, and the gradients of a random function of both, by every input and the initial state: of their
    sum with `weights`, where it is given."""

    def cast(key: str, x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        lowest = dtype if key in timing.CONTENT else torch.promote_types(dtype, torch.float32)
        return x.detach().to(device, lowest).requires_grad_(key != "sign")

    inputs = {key: pytree.tree_map(partial(cast, key), x) for key, x in inputs.items()}
    leaves = {key: x for key, x in inputs.items() if isinstance(x, Tensor) and x.requires_grad}
    for key in (
        NESTED if state is None else NESTED - {"weights"}
    ) & inputs.keys():  # a state stands in for first weights
        leaves |= {f"{key}_{i}": x for i, x in enumerate(tensors(inputs[key]))}
    initial = None
    if state is not None:
        lowest = torch.promote_types(dtype, torch.float32)
        parts = [x.detach().to(device, lowest).requires_grad_() for x in tensors(state)]
        leaves |= {f"initial_{i}": x for i, x in enumerate(parts)}
        initial = with_tensors(state, parts)
    o, final = run(op, name, inputs, initial_state=initial, return_state=True)
    results = {"o": o} | {f"final_{i}": x for i, x in enumerate(tensors(final))}
    weighed = [w.to(x) for w, x in zip(weights or drawn_weights(results), results.values(), strict=True)]
    gradients = torch.autograd.grad(list(results.values()), list(leaves.values()), weighed)
    everything = results | {f"d_{key}": x for key, x in zip(leaves, gradients, strict=True)}
    return {key: x.cpu() for key, x in everything.items()}


def drawn_weights(results: dict[str, Tensor]) -> list[Tensor]:
    """A random weight for every number of the results."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64).bfloat16() for x in results.values()]


def in_parts(
    op: str, inputs: dict[str, Any], state: Any, of: dict[str, Tensor], at_once: int = 32
) -> dict[str, Tensor]:
    """What the recurrence gives in fp64 in place of `of`, so many sequences at a time: the derivatives of 256 deep memories
    would take 64 GiB at once. A batch is told from what sequences share by its size, which is no other's."""
    batch = inputs["v" if "v" in inputs else "x"].shape[0]
    if batch <= at_once:
        return everything(op, "recurrent", inputs, state, torch.float64)

    def cut(first: int, x: Any) -> Any:
        return x[first : first + at_once] if isinstance(x, Tensor) and x.shape[0] == batch else x

    weights = drawn_weights({key: x for key, x in of.items() if not key.startswith("d_")})
    parts = []
    for first in range(0, batch, at_once):
        some_inputs, some_state, some = pytree.tree_map(partial(cut, first), (inputs, state, weights))
        parts.append(everything(op, "recurrent", some_inputs, some_state, torch.float64, weights=some))
    each = {key: [part[key] for part in parts] for key in of}
    return {key: torch.cat(x) if of[key].shape[0] == batch else torch.stack(x).sum(0) for key, x in each.items()}


def rounded(inputs: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The inputs as they are in `dtype` (gates at least fp32), in fp64."""

    def cast(key: str, x: Any) -> Any:
        lowest = dtype if key in timing.CONTENT else torch.promote_types(dtype, torch.float32)
        return x.to(lowest).double() if isinstance(x, Tensor) else x

    return {key: pytree.tree_map(partial(cast, key), x) for key, x in inputs.items()}


def per(op: str, key: str, x: Tensor) -> tuple[int, ...]:
    """The axes of sequence and head."""
    if key.startswith(("final", "initial", "d_initial")):
        return (0, 2) if op in KEEP_TOKENS and x.ndim > 2 else (0, 1)
    return (0, 2) if x.ndim > 2 and not key.startswith(tuple(f"d_{name}" for name in NESTED)) else (0,)


def assert_agree(
    op: str, found: dict[str, Tensor], reference: dict[str, Tensor], dtype: torch.dtype, case: Case = "random"
) -> None:
    assert found.keys() == reference.keys()
    for key, x in found.items():
        gate = key.removeprefix("d_") in GATES
        of: Of = "output" if not key.startswith("d_") else "gate_gradient" if gate else "gradient"
        allowed = max(tolerance(op, dtype, of=of, case=case), attainable(reference[key], x.dtype, per(op, key, x)))
        assert error(x, reference[key], per(op, key, x)) <= allowed, key


def solved(inputs: dict[str, Any]) -> dict[str, Any]:
    """Of an ill-conditioned system only the solution has all its digits in fp32, not every step on the way to it."""
    return inputs | {"steps": max(12, 3 * inputs["k"].shape[-1] // 2)} if "steps" in inputs else inputs


def in_three_chunks(op: str, variant: str) -> dict[str, Any]:
    """70 tokens, or 40 in chunks of half the length where every token takes the steps of a solver."""
    return example(op, variant, 40) | {"chunk": 16} if op == "mesa" else example(op, variant, 70)


def hurried(inputs: dict[str, Any]) -> dict[str, Any]:
    """With so few steps of a solver as suffice where both sides take the same ones."""
    return inputs | {"steps": 3} if "steps" in inputs else inputs


def hard(op: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Decays near 1 and near 1e-4 side by side, zero keys, write strengths 0, 1 and 2."""
    hard = dict(inputs)
    for decay in {"log_decay", "log_a"} & inputs.keys():
        shape = inputs[decay].shape
        strong = torch.rand(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64) < 0.3
        hard[decay] = torch.where(strong, -9.2, -1e-4) + 1e-5 * inputs[decay]
    if "beta" in inputs:
        time = inputs["beta"].shape[1]
        hard["beta"] = torch.tensor([0.0, 1.0, 2.0]).double()[torch.arange(time) % 3, None].expand_as(inputs["beta"])
    for content in {"k", "x"} & inputs.keys():
        nonzero = torch.arange(inputs[content].shape[1])[:, None, None] % 5 != 3
        hard[content] = inputs[content] * nonzero
    return solved(hard)


def repeated(op: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """Two keys in turn, written with all strength, hardly any decay."""
    again = dict(inputs)
    again["k"] = inputs["k"][:, torch.arange(inputs["k"].shape[1]) % 2]
    if "a" in inputs:
        again["a"] = again["k"]
        again["b"] = 0.99 * again["k"]
    if "log_decay" in inputs:
        again["log_decay"] = 0.002 * inputs["log_decay"].clamp(min=-1)
    if "beta" in inputs:
        again["beta"] = torch.full_like(inputs["beta"], 1.9 if op == "delta" else 0.99)
    return solved(again)


@pytest.mark.parametrize(
    ("op", "variant", "time"),
    [
        (op, variant, time)
        for op, variant in EVERY_VARIANT
        for time in ((1, 3, 63, 64, 65, 200) if variant == timing.variants(op)[0] else (3, 65))
    ],
)
def test_implementations_are_the_recurrence(op: str, variant: str, time: int) -> None:
    inputs, state = example(op, variant, time), carried(op, variant, 20) if time != 64 else None
    expected = everything(op, "recurrent", inputs, state, torch.float64)
    for name in (name for o, name in ALTERNATIVES if o == op):
        assert_agree(op, everything(op, name, inputs, state, torch.float64), expected, torch.float64)


@pytest.mark.parametrize(("op", "variant"), EVERY_VARIANT)
def test_sequences_of_a_batch_know_nothing_of_each_other(op: str, variant: str) -> None:
    inputs, state = example(op, variant, 3, batch=7), carried(op, variant, 4, batch=7)
    together = everything(op, "recurrent", inputs, state, torch.float64)
    assert_agree(op, in_parts(op, inputs, state, together, at_once=3), together, torch.float64)


@pytest.mark.parametrize(("op", "variant"), EVERY_VARIANT)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_hard_gates_and_empty_keys_cost_no_precision(op: str, variant: str, dtype: torch.dtype) -> None:
    inputs = rounded(hard(op, in_three_chunks(op, variant)), dtype)
    expected = everything(op, "recurrent", inputs, None, torch.float64)
    for name in (name for o, name in (ALTERNATIVES if dtype == torch.float64 else EVERY) if o == op):
        assert_agree(op, everything(op, name, inputs, None, dtype), expected, dtype)


@pytest.mark.parametrize(("op", "variant"), WITH_KEYS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_repeated_keys_stay_within_their_own_bound(op: str, variant: str, dtype: torch.dtype) -> None:
    inputs = rounded(repeated(op, example(op, variant, 70)), dtype)
    expected = everything(op, "recurrent", inputs, None, torch.float64)
    for name in (name for o, name in (ALTERNATIVES if dtype == torch.float64 else EVERY) if o == op):
        assert_agree(op, everything(op, name, inputs, None, dtype), expected, dtype, "repeated")


@pytest.mark.parametrize(("op", "variant"), EVERY_VARIANT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_low_precision_inputs_cost_no_more_than_their_rounding(op: str, variant: str, dtype: torch.dtype) -> None:
    inputs = rounded(in_three_chunks(op, variant), dtype)
    expected = everything(op, "recurrent", inputs, None, torch.float64)
    for name in (name for o, name in EVERY if o == op):
        found = everything(op, name, inputs, None, dtype)
        assert found["o"].dtype == dtype
        assert_agree(op, found, expected, dtype)


@pytest.mark.parametrize(("op", "name"), ALTERNATIVES)
def test_a_long_sequence(op: str, name: str) -> None:
    inputs = example(op, timing.variants(op)[0], 1000, batch=1, key_width=4, value_width=2) | (
        {"steps": 4} if op == "mesa" else {}
    )
    with torch.no_grad():
        found, expected = (run(op, n, inputs)[0] for n in (name, "recurrent"))
    assert error(found, expected, (0, 2)) <= tolerance(op, torch.float64)


@cache
def by_own_chunk(op: str, variant: str) -> dict[str, Tensor]:
    return everything(op, "chunked", example(op, variant, 70), carried(op, variant, 20), torch.float64)


@pytest.mark.parametrize(("op", "variant"), EVERY_VARIANT)
@pytest.mark.parametrize("chunk", [1, 8, 64, 128])
def test_the_chunk_does_not_matter(op: str, variant: str, chunk: int) -> None:
    inputs, state = example(op, variant, 70) | {"chunk": chunk}, carried(op, variant, 20)
    found = everything(op, "chunked", inputs, state, torch.float64)
    assert_agree(op, found, by_own_chunk(op, variant), torch.float64)


@cache
def uncut(op: str, name: str, variant: str) -> tuple[Tensor, Any]:
    return run(op, name, example(op, variant, 70), return_state=True)


@pytest.mark.parametrize(("op", "variant"), EVERY_VARIANT)
@pytest.mark.parametrize("cut", [1, 17, 64, 69])
def test_a_sequence_can_be_cut_anywhere(op: str, variant: str, cut: int) -> None:
    inputs = example(op, variant, 70)
    moving = along_time(inputs)
    for name in (name for o, name in EVERY if o == op):
        whole, expected = uncut(op, name, variant)
        head = {key: x[:, :cut] if key in moving else x for key, x in inputs.items()}
        tail = {key: x[:, cut:] if key in moving else x for key, x in inputs.items()}
        first, state = run(op, name, head, return_state=True)
        second, final = run(op, name, tail, initial_state=state, return_state=True)
        assert error(torch.cat((first, second), 1), whole, (0, 2)) <= tolerance(op, torch.float64)
        for x, y in zip(tensors(final), tensors(expected), strict=True):
            assert error(x, y, (0, 1)) <= tolerance(op, torch.float64)


@pytest.mark.parametrize(("op", "variant"), EVERY_VARIANT)
def test_steps_are_the_sequence(op: str, variant: str) -> None:
    inputs = example(op, variant, 20)
    moving = along_time(inputs)
    whole, expected = run(op, "auto", inputs, return_state=True)
    state, outputs = None, []
    for t in range(20):
        now = {key: x[:, t] if key in moving else x for key, x in inputs.items()}
        o, state = getattr(kernels, f"{op}_step")(state, **now)
        outputs.append(timing.joined(o))
    assert error(torch.stack(outputs, 1), whole, (0, 2)) <= tolerance(op, torch.float64)
    for x, y in zip(tensors(state), tensors(expected), strict=True):
        assert error(x, y, (0, 1)) <= tolerance(op, torch.float64)


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_the_future_does_not_reach_the_past(op: str, name: str) -> None:
    inputs, other = (example(op, timing.variants(op)[0], 40, seed=seed) for seed in (0, 1))
    mixed = {
        key: torch.cat((x[:, :23], other[key][:, 23:]), 1) if key in along_time(inputs) else x
        for key, x in inputs.items()
    }
    ours, theirs = run(op, name, inputs)[0], run(op, name, mixed)[0]
    assert error(ours[:, :23], theirs[:, :23], (0, 2)) <= 1e-12
    assert not torch.allclose(ours[:, 23:], theirs[:, 23:])


@pytest.mark.parametrize(("op", "variant", "name"), PARALLEL)
@pytest.mark.parametrize("time", [20, 70])
def test_members_of_a_cohort_are_what_they_are_alone(op: str, variant: str, name: str, time: int) -> None:
    """Stacked members, each with its own inputs, gates, constants and state, with gradients from outside and from inside."""
    members = [example(op, variant, time, seed=seed) for seed in range(3)]
    states = [tensors(carried(op, variant, 20)) for _ in members]
    frame = carried(op, variant, 20)
    names = [key for key, x in members[0].items() if isinstance(x, Tensor)]
    fixed = {key: x for key, x in members[0].items() if key not in names}
    leaves = [key for key in names if key != "sign"]
    single = [[*(member[key] for key in names), *state] for member, state in zip(members, states, strict=True)]

    def outputs(*xs: Tensor) -> tuple[Tensor, ...]:
        inputs = fixed | dict(zip(names, xs[: len(names)], strict=True))
        state = with_tensors(frame, list(xs[len(names) :]))
        o, final = run(op, name, inputs, initial_state=state, return_state=True)
        return o, *tensors(final)

    def loss(*xs: Tensor) -> Tensor:
        return sum(((x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in outputs(*xs)), torch.zeros(()))

    stacked = [torch.stack(xs) for xs in zip(*single, strict=True)]
    wanted = [i for i, key in enumerate(names) if key in leaves] + list(range(len(names), len(stacked)))
    for i in wanted:
        stacked[i].requires_grad_()
    outside = torch.autograd.grad(torch.vmap(loss)(*stacked).sum(), [stacked[i] for i in wanted])
    inside = torch.vmap(torch.func.grad(loss, argnums=tuple(wanted)))(*(x.detach() for x in stacked))
    batched = torch.vmap(outputs)(*(x.detach() for x in stacked))
    for m, xs in enumerate(single):
        alone = [x.clone().requires_grad_(i in wanted) for i, x in enumerate(xs)]
        for x, y in zip(batched, outputs(*alone), strict=True):
            torch.testing.assert_close(x[m], y.detach(), rtol=1e-10, atol=1e-12)
        gradients = torch.autograd.grad(loss(*alone), [alone[i] for i in wanted])
        for x, y, z in zip(outside, inside, gradients, strict=True):
            torch.testing.assert_close(x[m], z, rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(y[m], z, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("op", "variant"), EVERY_VARIANT)
def test_gradients_are_those_of_finite_differences(op: str, variant: str) -> None:
    inputs = example(op, variant, 5, batch=1, key_width=2, value_width=2)
    frame = carried(op, variant, 4, batch=1, key_width=2, value_width=2)
    names = [key for key, x in inputs.items() if isinstance(x, Tensor) and key != "sign"]
    state = [x.detach().requires_grad_() for x in tensors(frame)]

    def outputs(*xs: Tensor) -> tuple[Tensor, ...]:
        now = inputs | dict(zip(names, xs, strict=False))
        initial = with_tensors(frame, list(xs[len(names) :]))
        o, final = run(op, "chunked", now, initial_state=initial, return_state=True, chunk=4)
        return o, *tensors(final)

    leaves = [inputs[key].detach().requires_grad_() for key in names]
    assert torch.autograd.gradcheck(outputs, (*leaves, *state), fast_mode=True)


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_same_inputs_same_bits(op: str, name: str) -> None:
    inputs = example(op, timing.variants(op)[0], 70)
    first, second = (everything(op, name, inputs, None, torch.float32) for _ in range(2))
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_no_tokens_change_nothing(op: str, name: str) -> None:
    state = carried(op, timing.variants(op)[0], 20)
    inputs = example(op, timing.variants(op)[0], 1)
    empty = {key: x[:, :0] if key in along_time(inputs) else x for key, x in inputs.items()}
    o, final = run(op, name, empty, initial_state=state, return_state=True)
    assert o.shape == (SIZES["batch"], 0, *run(op, "recurrent", inputs)[0].shape[2:])
    assert all(torch.equal(x, y) for x, y in zip(tensors(final), tensors(state), strict=True))


@pytest.mark.parametrize(("op", "name"), EVERY)
def test_ops_opt_out_of_autocast(op: str, name: str) -> None:
    inputs = {
        key: x.float() if isinstance(x, Tensor) else x for key, x in example(op, timing.variants(op)[0], 70).items()
    }
    expected = run(op, name, inputs)[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(run(op, name, inputs)[0], expected)


@pytest.mark.parametrize("op", OPS)
def test_no_state_is_made_that_nobody_asked_for(op: str) -> None:
    assert run(op, "auto", example(op, timing.variants(op)[0], 5))[1] is None


@pytest.mark.parametrize("op", dict(WITH_KEYS))
@pytest.mark.parametrize(("key", "message"), [("k", "k has shape"), ("q", "q has shape"), ("v", "has shape")])
def test_shapes_that_do_not_fit_are_told(op: str, key: str, message: str) -> None:
    inputs = example(op, timing.variants(op)[0], 5)
    with pytest.raises(ValueError, match=f"{op}: .*{message}"):
        run(op, "auto", inputs | {key: inputs[key][:, :4]})


# Fused kernels: interpreted in fp32 on a CPU, on small shapes; all of it on a GPU.

FUSED = [
    (op, variant)
    for op, variant in EVERY_VARIANT
    if "fused" in select.implementations(op) and (op, variant) != ("mesa", "unrolled")  # the kernels solve implicitly
]
GPU = pytest.param("cuda", marks=pytest.mark.gpu)
NARROW = {"batch": 1, "key_width": 16, "value_width": 16}
ONE_HEAD = NARROW | {"heads": 1}
TOKEN_BY_TOKEN = ("newton_schulz", "spanned_newton_schulz")  # have no chunks
SHORT_CHUNKS = ("mesa", "slots", "path", "log_linear")


def long(op: str, time: int, device: str = "cpu") -> int:
    """Tokens: so many on a GPU. The interpreter takes long, so that an op without chunks gets an eighth, and one whose
    chunks are short 40 instead of 70 or 85."""
    if device == "cpu" and op in TOKEN_BY_TOKEN:
        return -(-time // 8)
    return 40 if device == "cpu" and op in SHORT_CHUNKS and 40 < time < 100 else time


def sizes_of(op: str, variant: str, device: str = "cpu") -> dict[str, int]:
    """Two heads, but one in the interpreter, whose time is that of its programs, unless heads share an input. Two are there in
    the laws of the recurrence, of the form that the compiler is told, and of members."""
    inputs = example(op, variant, 1, **NARROW).values()
    shared = any(isinstance(x, Tensor) and x.ndim == 4 and x.shape[2] == 1 for x in inputs)
    return NARROW if device != "cpu" or shared else ONE_HEAD


def assert_fused_agrees(
    op: str, inputs: dict[str, Any], state: Any, dtype: torch.dtype, device: str, case: Case = "random"
) -> dict[str, Tensor]:
    """Return what the kernels gave."""
    inputs = rounded(inputs, dtype)
    found = everything(op, "fused", inputs, state, dtype, device)  # first: it may refuse
    assert_agree(op, found, in_parts(op, inputs, state, found), dtype, case)
    return found


def assert_form_is_told(op: str, inputs: dict[str, Any], state: Any, found: dict[str, Tensor]) -> None:
    """What the compiler runs in place of the kernels has the shapes, types and strides of what they give."""
    inputs = rounded(inputs, torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        inputs = {key: mode.from_tensor(x) if isinstance(x, Tensor) else x for key, x in inputs.items()}
        if state is not None:
            state = with_tensors(state, [mode.from_tensor(x) for x in tensors(state)])
        told = everything(op, "fused", inputs, state, torch.float32)
    for key, x in found.items():
        assert (x.shape, x.dtype, x.stride()) == (told[key].shape, told[key].dtype, told[key].stride()), key


@contextmanager
def refusals_skipped() -> Iterator[None]:
    """A door knows more of its inputs than their widths, such as how deep a memory is."""
    try:
        yield
    except ValueError as error:
        if not re.match(r"implementation 'fused' (takes|holds) ", str(error)):
            raise
        pytest.skip(str(error))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    ("op", "variant", "time"),
    [
        (op, variant, time)
        for op, variant in FUSED
        for time in ((1, 37, 150) if variant == timing.variants(op)[0] else (1, 85))  # 85: more than the longest chunk
    ],
)
def test_fused_is_the_recurrence_and_the_compiler_is_told_its_form(
    op: str, variant: str, time: int, device: str
) -> None:
    inputs = example(op, variant, long(op, time, device), **NARROW)
    state = carried(op, variant, 20, **NARROW) if time != 37 else None
    found = assert_fused_agrees(op, inputs, state, torch.float32, device)
    if device == "cpu" and time > 1:  # of one token, strides say little
        assert_form_is_told(op, inputs, state, found)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(("op", "variant"), FUSED)
def test_fused_bears_hard_gates(op: str, variant: str, device: str) -> None:
    inputs = hard(op, example(op, variant, long(op, 70, device), **sizes_of(op, variant, device)))
    assert_fused_agrees(op, inputs, None, torch.float32, device)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(("op", "variant"), [one for one in FUSED if one in WITH_KEYS])
def test_fused_bears_repeated_keys(op: str, variant: str, device: str) -> None:
    inputs = repeated(op, example(op, variant, long(op, 70, device), **sizes_of(op, variant, device)))
    assert_fused_agrees(op, inputs, None, torch.float32, device, "repeated")


@pytest.mark.parametrize(("op", "variant"), FUSED)
def test_fused_takes_half_precision(op: str, variant: str) -> None:
    assert_fused_agrees(op, example(op, variant, long(op, 37), **sizes_of(op, variant)), None, torch.float16, "cpu")


@pytest.mark.slow  # a minute; repeated keys, below, are the harder case
@pytest.mark.usefixtures("poisoned", "tensor_cores")
@pytest.mark.parametrize(("op", "variant"), FUSED)
def test_fused_bears_the_digits_of_tensor_cores(op: str, variant: str) -> None:
    assert_fused_agrees(op, example(op, variant, long(op, 70), **sizes_of(op, variant)), None, torch.bfloat16, "cpu")


@pytest.mark.usefixtures("poisoned", "tensor_cores")
@pytest.mark.parametrize(("op", "variant"), [(op, variant) for op, variant in FUSED if "repeated" in TABLE[op]])
def test_fused_bears_the_digits_of_tensor_cores_where_keys_repeat(op: str, variant: str) -> None:
    inputs = repeated(op, example(op, variant, long(op, 70), **sizes_of(op, variant)))
    assert_fused_agrees(op, inputs, None, torch.bfloat16, "cpu", "repeated")


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(("op", "variant"), FUSED)
def test_fused_members_are_what_they_are_alone(op: str, variant: str, device: str) -> None:
    """Stacked members, each with its own inputs, gates, constants and state."""
    time = long(op, 20, device)
    members = [hurried(example(op, variant, time, seed=seed, **NARROW)) for seed in range(2)]
    frame = carried(op, variant, time, **NARROW)
    names = [key for key, x in members[0].items() if isinstance(x, Tensor)]
    names += sorted((NESTED - {"weights"}) & members[0].keys())  # a state stands in for first weights
    fixed = {key: x for key, x in members[0].items() if key not in names}
    fixed = pytree.tree_map(lambda x: x.float().to(device) if isinstance(x, Tensor) else x, fixed)
    counts = [len(tensors(members[0][key])) for key in names]
    stacked = [
        torch.stack(own).float().to(device)
        for key in names
        for own in zip(*(tensors(m[key]) for m in members), strict=True)
    ]
    told = [key for key, count in zip(names, counts, strict=True) for _ in range(count)]
    stacked += [torch.stack([x * m for m in range(1, 3)]).float().to(device) for x in tensors(frame)]
    for key, x in zip([*told, *("state" for _ in tensors(frame))], stacked, strict=True):
        x.requires_grad_(key != "sign")

    def outputs(*xs: Tensor) -> tuple[Tensor, ...]:
        given = iter(xs)
        inputs = {
            key: with_tensors(members[0][key], [next(given) for _ in range(n)])
            for key, n in zip(names, counts, strict=True)
        }
        initial = with_tensors(frame, [*given])
        o, final = run(op, "fused", fixed | inputs, initial_state=initial, return_state=True)
        return o, *tensors(final)

    leaves = [x for x in stacked if x.requires_grad]
    together = torch.vmap(outputs)(*stacked)
    one_by_one = [torch.stack(xs) for xs in zip(*(outputs(*(x[m] for x in stacked)) for m in range(2)), strict=True)]
    for x, y in zip(together, one_by_one, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)
    gradients = (torch.autograd.grad(sum(x.sin().sum() for x in xs), leaves) for xs in (together, one_by_one))
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("op", "variant"), FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("key_width", "value_width"),
    [(8, 8), (16, 16), (32, 32), (64, 64), (128, 128), (256, 256), (24, 20), (64, 128), (64, 32), (16, 64), (32, 128)],
)
def test_fused_at_every_width(op: str, variant: str, dtype: torch.dtype, key_width: int, value_width: int) -> None:
    sizes = {"key_width": key_width, "value_width": value_width}
    case: dict[str, Any] = {"device": "cuda", "dtype": dtype, "sizes": {"time": 150, "heads": 2, "batch": 2, **sizes}}
    if (reason := select.why_not(op, "fused", **case)) is not None:
        pytest.skip(reason)
    inputs, state = example(op, variant, 150, **sizes), carried(op, variant, 20, **sizes)
    with refusals_skipped():
        assert_fused_agrees(op, inputs, state, dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("op", "variant"), FUSED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("time", [1, 63, 64, 128, 256, 1000])
def test_fused_at_every_length(op: str, variant: str, dtype: torch.dtype, time: int) -> None:
    state = carried(op, variant, 20, **NARROW)
    assert_fused_agrees(op, example(op, variant, time, **NARROW), state, dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("op", "variant"), FUSED)
@pytest.mark.parametrize("time", [1, 63, 65, 1000])
def test_fused_of_wide_heads_at_every_length(op: str, variant: str, time: int) -> None:
    """Of one sequence: tables cut its time into segments that are worked on side by side."""
    sizes = {"batch": 1, "key_width": 128, "value_width": 128}
    with refusals_skipped():
        state = carried(op, variant, 20, **sizes)
        assert_fused_agrees(op, example(op, variant, time, **sizes), state, torch.bfloat16, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "variant"), FUSED)
@pytest.mark.parametrize("case", ["random", "hard"])
@pytest.mark.parametrize("width", [16, 64, 128])
def test_fused_in_bf16(op: str, variant: str, case: str, width: int) -> None:
    inputs = example(op, variant, 200, key_width=width, value_width=width)
    with refusals_skipped():
        assert_fused_agrees(op, hard(op, inputs) if case == "hard" else inputs, None, torch.bfloat16, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "variant"), FUSED)
@pytest.mark.parametrize("width", [8, 16, 64])
def test_fused_in_bf16_of_many_sequences(op: str, variant: str, width: int) -> None:
    """Of as many as a cohort has; tables choose other kernels for them."""
    inputs = example(op, variant, 150, batch=256, key_width=width, value_width=width)
    with refusals_skipped():
        assert_fused_agrees(op, inputs, None, torch.bfloat16, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "variant", "width"),
    [
        (op, variant, width)
        for op, variant in FUSED
        for width in (16, 64, 128)
        if "repeated" in TABLE[op] and (variant, width) != ("pair_signed", 128)  # grows by more than fp32 holds
    ],
)
def test_fused_in_bf16_on_repeated_keys(op: str, variant: str, width: int) -> None:
    inputs = repeated(op, example(op, variant, 200, key_width=width, value_width=width))
    assert_fused_agrees(op, inputs, None, torch.bfloat16, "cuda", "repeated")


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "variant"), FUSED)
def test_fused_gives_the_same_bits_every_time(op: str, variant: str) -> None:
    inputs = example(op, variant, 300, batch=8, key_width=32, value_width=32)
    first, *others = (everything(op, "fused", inputs, None, torch.bfloat16, "cuda") for _ in range(5))
    assert all(torch.equal(x[key], first[key]) for x in others for key in first)
