"""Memories over implicit features: chunks are the recurrence, and the recurrence is a memory over features written out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import normalize
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from recallmap.arch import kernels
from recallmap.arch.kernels.kernel_attention import kernel_attention, kernel_attention_read
from recallmap.arch.kernels.kernel_delta import kernel_delta, kernel_delta_read
from recallmap.arch.kernels.monomials import monomials
from recallmap.arch.kernels.test_time.implicit_features import Anchors, Exponential, Kernel, Polynomial
from recallmap.arch.kernels.test_time.learning_rule import DOT, L2, Rule

B, T, H, K, V = 2, 11, 2, 2, 2
POWERS = 16  # the rest of the exponential's series is below 1e-14 on the unit ball
QUADRATIC = Polynomial(torch.tensor([1.0, 0.5, 0.2], dtype=torch.float64))
PLAIN = Polynomial(torch.tensor([0.0, 1.0], dtype=torch.float64))

Op = Callable[..., tuple[Tensor, Any]]


def inputs(window: int = 1, depth: int = 1, *, anchors: int = 2, seed: int = 0) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    def share(*shape: int) -> Tensor:
        return torch.rand((B, T, H, *shape), generator=rng, dtype=torch.float64)

    given = {n: normalize(normal(B, T, H, K), dim=-1) for n in ("q", "k")} | {"v": normal(B, T, H, V)}
    given |= {"eta": 0.2 * share(), "alpha": 0.5 + 0.5 * share(), "gamma": share(window)}
    deep = Anchors(
        0.5 * normal(H, anchors, K), normal(H, anchors, 4), tuple(normal(H, 4, n) for n in [4] * (depth - 2) + [V])
    )
    return given | {"window": window, "anchors": deep if depth > 1 else None}


def leaves(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def cut(given: dict[str, Any], when: slice) -> dict[str, Any]:
    return {n: x[:, when] if isinstance(x, Tensor) else x for n, x in given.items()}


def everything(op: Op, given: dict[str, Any], at: int | None = None, **more: Any) -> list[Tensor]:
    """Outputs, state, and gradients by all inputs of a function of both; the sequence may be cut `at` a token."""
    xs, shape = pytree.tree_flatten(given)
    xs = [x.clone().requires_grad_() if isinstance(x, Tensor) else x for x in xs]
    call = pytree.tree_unflatten(xs, shape) | {"return_state": True} | more
    if at is None:
        o, state = op(**call)
    else:
        first, state = op(**cut(call, slice(0, at)))
        second, state = op(**cut(call, slice(at, None)), initial_state=state)
        o = torch.cat([first, second], 1)
    results = [o, *leaves(state)]
    function = sum(((x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum() for x in results), torch.zeros(()))
    return results + list(torch.autograd.grad(function, leaves(xs), allow_unused=True, materialize_grads=True))


OPS = pytest.mark.parametrize("op", [kernel_attention, kernel_delta], ids=lambda x: x.__name__)


@OPS
@pytest.mark.parametrize(("window", "gradient_chunk"), [(1, 1), (1, 4), (3, 1), (3, 4), (2, 16)])
@pytest.mark.parametrize(
    ("depth", "kernel"), [(1, Exponential()), (1, QUADRATIC), (2, Exponential(0.7)), (3, QUADRATIC)]
)
def test_chunks_are_the_recurrence_wherever_they_are_cut(
    op: Op, window: int, gradient_chunk: int, depth: int, kernel: Kernel
) -> None:
    dials: dict[str, Any] = {"kernel": kernel, "gradient_chunk": gradient_chunk, "residual": depth > 1}
    given = inputs(window, depth)
    expected = everything(op, given, implementation="recurrent", **dials)
    for at, chunk in ((None, 4), (6, None)):
        found = everything(op, given, at, implementation="chunked", chunk=chunk, **dials)
        for x, y in zip(found, expected, strict=True):
            assert (x - y).norm() <= 1e-10 * y.norm().clamp(min=1e-3)


@OPS
@pytest.mark.parametrize(("window", "chunk"), [(1, 1), (3, 1), (2, 4)])
@pytest.mark.parametrize("depth", [1, 2])
def test_it_is_a_memory_over_the_features_written_out(op: Op, window: int, chunk: int, depth: int) -> None:
    given = inputs(window, depth)
    roots = torch.tensor([math.factorial(i) ** -0.5 for i in range(POWERS + 1)], dtype=torch.float64)

    def phi(x: Tensor) -> Tensor:
        return monomials(x, roots)[0]

    first = torch.zeros(H, math.comb(K + POWERS, POWERS), V, dtype=torch.float64)
    anchors, weights = given["anchors"], (first,)
    if anchors is not None:
        weights = (phi(anchors.points).mT @ anchors.coefficients, *anchors.weights)
    found, state = op(**given, gradient_chunk=chunk, residual=True, return_state=True)
    rule = Rule(loss=DOT if op is kernel_attention else L2, window=window, chunk=chunk, residual=True)
    shared = {n: given[n] for n in ("q", "k", "v", "eta", "alpha", "gamma")}
    expected, known = kernels.memory(**shared, weights=weights, rule=rule, features=phi, return_state=True)
    assert known is not None
    assert_close(found, expected, rtol=1e-12, atol=1e-12)
    read = kernel_attention_read if op is kernel_attention else kernel_delta_read
    assert_close(
        read(state, given["q"], kernel=Exponential(), residual=True),
        kernels.memory_read(known, given["q"], rule=rule, features=phi),
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("window", [1, 3])
def test_with_the_plain_dot_product_swdt_is_swla_and_dot_is_omega(window: int) -> None:
    given = inputs(window)
    shared = {n: given[n] for n in ("q", "k", "v", "eta", "alpha", "gamma")}
    nothing = (torch.zeros(H, K, V, dtype=torch.float64),)
    for op, loss in ((kernel_attention, DOT), (kernel_delta, L2)):
        expected, _ = kernels.memory(**shared, weights=nothing, rule=Rule(loss=loss, window=window))
        assert_close(op(**given, kernel=PLAIN)[0], expected)


def test_deep_transformer_of_depth_one_is_attention_without_its_sum() -> None:
    q, k, v = (inputs()[n] for n in ("q", "k", "v"))
    scores = torch.einsum("bthk,bshk->bhts", q, k).exp().tril()
    assert_close(kernel_attention(q, k, v)[0], torch.einsum("bhts,bshv->bthv", scores, v))
    assert_close(kernel_attention(q, k, v, normalize=True)[0], kernels.attention(q, k, v, scale=1.0)[0])


def test_a_sliding_window_weighs_every_old_token_and_forgets_none() -> None:
    q, k, v = (inputs()[n] for n in ("q", "k", "v"))
    scores = torch.einsum("bthk,bshk->bhts", q, k).exp()
    weight = (torch.arange(T)[:, None] - torch.arange(T) + 1).clamp(0, 3)
    assert_close(kernel_attention(q, k, v, window=3)[0], torch.einsum("bhts,ts,bshv->bthv", scores, weight.double(), v))


def test_dot_of_one_token_is_a_triangular_solve() -> None:
    given = inputs()
    q, k, v, eta, alpha = (given[n].transpose(1, 2) for n in ("q", "k", "v", "eta", "alpha"))
    until = alpha.log().cumsum(-1)
    fade = (until[..., :, None] - until[..., None, :]).exp().tril()
    undecayed = torch.zeros_like(fade)
    undecayed[..., 1:, :] = fade[..., :-1, :]
    coupling = eta[..., None] * (undecayed * (k @ k.mT).exp())
    written = torch.linalg.solve(torch.eye(T, dtype=torch.float64) + coupling.tril(-1), eta[..., None] * v)
    expected = ((q @ k.mT).exp() * fade) @ written
    found = kernel_delta(**(given | {"gamma": None}))[0]
    assert_close(found.transpose(1, 2), expected)


def test_an_empty_memory_answers_nothing() -> None:
    given = cut(inputs(), slice(0, 0))
    for normalized in (False, True):
        _, state = kernel_attention(**given, normalize=normalized, return_state=True)
        assert state is not None
        o = kernel_attention_read(state, inputs()["q"], kernel=Exponential(), normalize=normalized)
        assert_close(o, torch.zeros(B, T, H, V, dtype=torch.float64))


@OPS
def test_a_deep_memory_needs_no_anchors(op: Op) -> None:
    given = inputs(depth=2, anchors=0)
    o, _ = op(**given)
    assert o[:, 1:].abs().min() > 0


@OPS
def test_a_member_of_a_stack_is_what_it_is_alone(op: Op) -> None:
    members = [inputs(2, 2, seed=seed) for seed in range(2)]
    flat = [pytree.tree_flatten(member) for member in members]
    where = [i for i, x in enumerate(flat[0][0]) if isinstance(x, Tensor)]

    def loss(*tensors: Tensor) -> Tensor:
        xs = [tensors[where.index(i)] if i in where else x for i, x in enumerate(flat[0][0])]
        return op(**pytree.tree_unflatten(xs, flat[0][1]), gradient_chunk=4, implementation="chunked")[0].sin().sum()

    single = [[xs[i] for i in where] for xs, _ in flat]
    by_all = grad(loss, argnums=tuple(range(len(where))))
    together = vmap(by_all)(*(torch.stack(xs) for xs in zip(*single, strict=True)))
    for number, xs in enumerate(single):
        for x, y in zip(together, by_all(*xs), strict=True):
            assert_close(x[number], y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": torch.ones(B, T, H, 2)}, "gamma has shape"),
        ({"residual": True, "v": torch.ones(B, T, H, 5)}, "as wide as values"),
        ({"normalize": True, "residual": True}, "normalize needs a linear memory"),
        ({"anchors": Anchors(torch.ones(H, 1, K), torch.ones(H, 1, 3), ())}, "belong to a deep memory"),
        (
            {"anchors": Anchors(torch.ones(H, 1, K), torch.ones(H, 2, 3), (torch.ones(H, 3, V),))},
            "coefficients has shape",
        ),
        ({"anchors": Anchors(torch.ones(H, 1, K), torch.ones(H, 1, 3), (torch.ones(H, 3, 7),))}, "must have 2 columns"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernel_attention(**(inputs() | change))
