"""The memory that learns at test time: its two implementations are one, and its corners are older recurrences."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from math import inf
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import normalize
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from recallmap.arch import kernels
from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.benchmark.tolerance import error, tolerance
from recallmap.arch.kernels.memory import memory, memory_read, memory_step
from recallmap.arch.kernels.monomials import monomials
from recallmap.arch.kernels.test_time.learning_rule import (
    DOT,
    HUBER,
    KL,
    L2,
    LP,
    LQ,
    HuberLoss,
    KlRetention,
    Loss,
    LpLoss,
    LqRetention,
    Rule,
)
from recallmap.arch.kernels.test_time.network import LayerNorm, backward, forward, learn

B, T, H, K, V = 2, 11, 2, 3, 3
GATES = ("eta", "alpha", "theta", "gamma", "delta")


def cubic(x: Tensor) -> Tensor:
    """All 20 monomials of K variables up to the third degree."""
    return monomials(x, torch.ones(4, dtype=x.dtype, device=x.device))[0]


def inputs(
    rule: Rule, depth: int = 2, *, norm: bool = False, features: Any = None, time: int = T, seed: int = 0
) -> dict[str, Any]:
    """Random arguments of `memory`, fp64."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=torch.float64)

    def share(*shape: int) -> Tensor:
        return torch.rand((B, time, H, *shape), generator=rng, dtype=torch.float64)

    rows = K if features is None else features(torch.zeros(K)).shape[-1]
    widths = [rows, *[4] * (depth - 1), V]
    twice = [2 if rule.gated else 1] * (depth - 1) + [1]
    given = {
        "q": normal(B, time, H, K),
        "k": normal(B, time, H, K),
        "v": normal(B, time, H, V),
        "eta": 0.3 * share(),
        "alpha": 0.5 + 0.5 * share(),
        "theta": 0.9 * share() if rule.momentum != "none" else None,
        "gamma": share(rule.window),
        "delta": 2 * share() if isinstance(rule.loss, HuberLoss) else None,
        "weights": tuple(
            0.5 * normal(H, rows + rule.bias, columns)
            for rows, columns, times in zip(widths, widths[1:], twice, strict=False)
            for _ in range(times)
        ),
        "norm": LayerNorm(1 + 0.1 * normal(H, V), 0.1 * normal(H, V)) if norm else None,
    }
    return given | {"rule": rule, "features": features}


def cut(given: dict[str, Any], when: slice) -> dict[str, Any]:
    timed = ("q", "k", "v", *GATES)
    return {n: x[:, when] if n in timed and x is not None else x for n, x in given.items()}


def leaves(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def everything(given: dict[str, Any], implementation: str, chunk: int | None, at: int | None = None) -> list[Tensor]:
    """Outputs, state, and gradients by all inputs of a function of both; the sequence may be cut `at` a token."""
    xs, shape = pytree.tree_flatten(given)
    xs = [x.clone().requires_grad_() if isinstance(x, Tensor) else x for x in xs]
    call = pytree.tree_unflatten(xs, shape) | {"implementation": implementation, "chunk": chunk, "return_state": True}
    if at is None:
        o, state = memory(**call)
    else:
        first, state = memory(**cut(call, slice(0, at)))
        second, state = memory(**cut(call, slice(at, None)), initial_state=state)
        o = torch.cat([first, second], 1)
    results = [o, *leaves(state)]
    function = sum(
        ((x * torch.linspace(-1, 1, x.numel(), device=x.device).view(x.shape)).sum() for x in results), torch.zeros(())
    )
    return results + list(torch.autograd.grad(function, leaves(xs)))


def agree(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-10) -> None:
    for x, y in zip(found, expected, strict=True):
        assert (x - y).norm() <= tolerance * y.norm().clamp(min=1e-3)


PLAIN_RULES = [
    (Rule(loss=loss, momentum=momentum, window=c, chunk=b), depth)
    for loss in (L2, DOT)
    for momentum in ("none", "inside", "outside")
    for c, b in ((1, 1), (1, 4), (3, 1), (3, 2), (3, 4), (2, 16))
    for depth in (1, 2)
    if depth == 1 or loss is L2 or b == 4
]
SPECIAL_RULES = [
    (Rule(window=3, chunk=4, cross_chunk=False), 1),
    (Rule(window=3, chunk=1, cross_chunk=False, momentum="inside"), 1),
    (Rule(window=2, chunk=4, gated=True, bias=True, residual=True, momentum="inside"), 3),
    (Rule(window=2, chunk=2, bias=True, momentum="inside"), 1),
    (Rule(window=2, chunk=4, loss=LP, bias=True), 2),
    (Rule(window=2, chunk=4, loss=HUBER, residual=True), 2),
    (Rule(window=2, chunk=4, loss=HuberLoss(beyond="norm")), 1),
    (Rule(window=2, chunk=4, retention=LQ, residual=True, momentum="outside"), 2),
    (Rule(window=2, chunk=4, retention=LqRetention(q=3, mirror=True)), 1),
    (Rule(chunk=4, retention=KlRetention(scale=2), momentum="inside"), 2),
    (Rule(window=2, chunk=4, newton_schulz=5), 2),
    (Rule(window=2, chunk=4, newton_schulz=5, momentum="outside", gated=True), 2),
    (Rule(window=2, chunk=4, newton_schulz=3, momentum="outside", retention=LQ), 2),
    (Rule(loss=DOT, retention=KL), 1),
]


def named(case: tuple[Rule, int]) -> str:
    rule, depth = case
    said = [
        f"{name}={getattr(value, 'kind', value)}"
        for name, value in vars(rule).items()
        if value != getattr(Rule(), name)
    ]
    return " ".join([f"depth={depth}", *said])


@pytest.mark.parametrize("case", [*PLAIN_RULES, *SPECIAL_RULES], ids=named)
def test_chunks_are_the_recurrence_wherever_they_are_cut(case: tuple[Rule, int]) -> None:
    rule, depth = case
    bound = tolerance("memory_newton_schulz" if rule.newton_schulz else "memory", torch.float64)
    given = inputs(rule, depth)
    expected = everything(given, "recurrent", None)
    agree(everything(given, "chunked", 4), expected, bound)
    agree(everything(given, "chunked", None, at=6), expected, bound)


@pytest.mark.parametrize(
    "rule", [Rule(chunk=4, bias=True), Rule(chunk=1, residual=True, loss=LP)], ids=lambda r: r.loss.kind
)
@pytest.mark.parametrize("depth", [1, 2])
def test_a_norm_inside_the_memory_is_part_of_it(rule: Rule, depth: int) -> None:
    given = inputs(rule, depth, norm=True)
    expected = everything(given, "recurrent", None)
    agree(everything(given, "chunked", None, at=6), expected)
    assert not torch.allclose(expected[0], everything(given | {"norm": None}, "recurrent", None)[0])


@pytest.mark.parametrize("loss", [L2, DOT, LpLoss(p=2), HuberLoss(beyond="norm")], ids=lambda x: f"{x.kind}")
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_gradients_that_are_written_out_are_those_of_the_loss(loss: Loss, normed: bool, depth: int) -> None:
    rule = Rule(loss=loss, gated=depth == 3, bias=depth == 2)
    given = inputs(rule, depth, norm=normed)
    norm, weights = given["norm"], given["weights"]
    k, v = given["k"].transpose(1, 2)[0], given["v"].transpose(1, 2)[0]
    limit = torch.full(v.shape[:-1], 0.7, dtype=torch.float64)

    def inner(weights: tuple[Tensor, ...]) -> Tensor:
        answer, _ = forward(k, lambda i, x: x @ weights[i], len(weights), rule)
        answer = answer if norm is None else norm.forward(answer)
        size = (answer - v).square().sum(-1)
        if loss.kind == "dot":
            return -(answer * v).sum()
        if loss.kind == "huber":
            return torch.where(size.sqrt() <= limit, size / 2, limit * (size.sqrt() - limit / 2)).sum()
        return size.sum() / 2

    answer, trace = forward(k, lambda i, x: x @ weights[i], len(weights), rule)
    signals = backward(learn(answer, v, limit, norm, rule), lambda i, d: d @ weights[i].mT, trace, rule)
    for x, d, expected in zip(trace.inputs, signals, grad(inner)(weights), strict=True):
        assert_close(x.mT @ d, expected)


@pytest.mark.parametrize(
    ("rule", "depth", "features"),
    [
        (Rule(window=2, chunk=2, momentum="inside"), 2, None),
        (Rule(window=2, momentum="outside"), 1, None),
        (Rule(window=2, chunk=2, momentum="outside", newton_schulz=3), 2, None),
        (Rule(window=2, chunk=2, momentum="outside", newton_schulz=3), 2, cubic),
    ],
)
def test_gradients_through_the_inner_loop_are_exact(rule: Rule, depth: int, features: Any) -> None:
    given = inputs(rule, depth, features=features, time=4)
    xs, shape = pytree.tree_flatten(given)
    where = [i for i, x in enumerate(xs) if isinstance(x, Tensor)]

    def outputs(*tensors: Tensor) -> tuple[Tensor, ...]:
        call = pytree.tree_unflatten([tensors[where.index(i)] if i in where else x for i, x in enumerate(xs)], shape)
        o, state = memory(**call, implementation="chunked", return_state=True)
        return (o, *leaves(state))

    assert torch.autograd.gradcheck(outputs, [xs[i].requires_grad_() for i in where], fast_mode=True)


@pytest.mark.parametrize(
    ("rule", "depth", "features"),
    [
        (Rule(window=2, momentum="inside"), 1, None),
        (Rule(chunk=4, window=2, momentum="outside", newton_schulz=2), 2, None),
        (Rule(chunk=4, window=2, momentum="outside", newton_schulz=2), 2, cubic),
    ],
)
def test_a_member_of_a_stack_is_what_it_is_alone(rule: Rule, depth: int, features: Any) -> None:
    members = [inputs(rule, depth, features=features, seed=seed) for seed in range(2)]
    flat = [pytree.tree_flatten(member) for member in members]
    where = [i for i, x in enumerate(flat[0][0]) if isinstance(x, Tensor)]

    def loss(*tensors: Tensor) -> Tensor:
        xs = [tensors[where.index(i)] if i in where else x for i, x in enumerate(flat[0][0])]
        return memory(**pytree.tree_unflatten(xs, flat[0][1]), implementation="chunked")[0].sin().sum()

    single = [[xs[i] for i in where] for xs, _ in flat]
    by_all = grad(loss, argnums=tuple(range(len(where))))
    together = vmap(by_all)(*(torch.stack(xs) for xs in zip(*single, strict=True)))
    for number, xs in enumerate(single):
        agree([x[number] for x in together], list(by_all(*xs)), 1e-9)


def test_steps_are_the_sequence() -> None:
    given = inputs(Rule(window=3, chunk=4, momentum="inside"), 2)
    whole, expected = memory(**given, return_state=True)
    state, outputs = None, []
    for t in range(T):
        now = {n: x[:, t] if n in ("q", "k", "v", *GATES) and x is not None else x for n, x in given.items()}
        o, state = memory_step(state, **now)
        outputs.append(o)
    agree([torch.stack(outputs, 1), *leaves(state)], [whole, *leaves(expected)])


def test_reading_learns_nothing() -> None:
    given = inputs(Rule(chunk=4, residual=True), 2, norm=True)
    _, state = memory(**given, return_state=True)
    assert state is not None
    still = {n: torch.zeros_like(given["k"]) for n in ("k", "v")} | {"eta": 0 * given["eta"], "alpha": None}
    expected, _ = memory(**(given | still), initial_state=state)
    assert_close(memory_read(state, given["q"], rule=given["rule"], norm=given["norm"]), expected)


# Corners. -------------------------------------------------------------------------------------------------------------


def outputs(given: dict[str, Any], **more: Any) -> Tensor:
    return memory(**(given | more))[0]


def linear(rule: Rule) -> dict[str, Any]:
    """A linear memory that knows nothing at first, without window weights."""
    given = inputs(rule, 1)
    return given | {"weights": (0 * given["weights"][0],), "gamma": None}


def test_one_token_of_omega_is_gated_deltanet_and_rwkv7() -> None:
    x = linear(Rule())
    q, k, v, alpha, eta = (x[n] for n in ("q", "k", "v", "alpha", "eta"))
    log_decay = alpha.log()
    gated = kernels.delta(q, k, alpha[..., None] * v, log_decay=log_decay, beta=eta / alpha, scale=1.0)[0]
    dplr = kernels.delta(q, eta[..., None] * k, v, log_decay=log_decay, a=k, b=eta[..., None] * k, scale=1.0)[0]
    assert_close(outputs(x), gated)
    assert_close(outputs(x), dplr)
    assert_close(outputs(x, alpha=None), kernels.delta(q, k, v, beta=eta, scale=1.0)[0])


def test_ttt_linear_is_deltanet_token_by_token_and_linear_attention_in_one_chunk() -> None:
    x = linear(Rule())
    q, k, v, eta = (x[n] for n in ("q", "k", "v", "eta"))
    assert_close(outputs(x, alpha=None), kernels.delta(q, k, v, beta=eta, scale=1.0)[0])
    assert_close(outputs(x, alpha=None, rule=Rule(chunk=T)), kernels.gated_linear(q, k, v, beta=eta)[0])


@pytest.mark.parametrize("depth", [1, 2])
def test_without_momentum_decay_titans_has_no_momentum(depth: int) -> None:
    x = inputs(Rule(momentum="inside", chunk=4), depth)
    assert_close(outputs(x, theta=0 * x["theta"]), outputs(x, rule=Rule(chunk=4), theta=None))


@pytest.mark.parametrize("depth", [1, 2])
def test_atlas_without_muon_is_omega_or_titans(depth: int) -> None:
    x = inputs(Rule(momentum="outside", window=2, chunk=4), depth)
    omega, titans = Rule(window=2, chunk=4), Rule(momentum="inside", window=2, chunk=4)
    assert_close(outputs(x, theta=0 * x["theta"]), outputs(x, rule=omega, theta=None))
    constant = torch.full_like(x["eta"], 0.1)
    assert_close(outputs(x, eta=constant), outputs(x, rule=titans, eta=constant))


def test_the_order_of_rate_and_momentum_matters() -> None:
    x = inputs(Rule(momentum="outside", chunk=4))
    assert not torch.allclose(outputs(x), outputs(x, rule=Rule(momentum="inside", chunk=4)))


def test_a_window_of_one_weight_is_no_window() -> None:
    x = inputs(Rule(window=3), 2)
    only = x["gamma"] * torch.tensor([1.0, 0, 0])
    assert_close(outputs(x, gamma=only), outputs(x, rule=Rule(), gamma=x["gamma"][..., :1]))
    within_chunks = Rule(window=3, cross_chunk=False)
    assert_close(outputs(x, rule=within_chunks), outputs(x, rule=Rule(), gamma=x["gamma"][..., :1]))


def test_sliding_window_linear_attention_counts_a_token_once_for_every_window_that_held_it() -> None:
    x = linear(Rule(loss=DOT, window=3))
    q, k, v = x["q"], x["k"], x["v"]
    found = outputs(x, alpha=None, eta=None)
    age = torch.arange(T)[:, None] - torch.arange(T)
    weight = (age + 1).clamp(0, 3).double()
    expected = torch.einsum("ts,bthk,bshk,bshv->bthv", weight, q, k, v)
    assert_close(found, expected)
    one = outputs(x, alpha=None, eta=None, rule=Rule(loss=DOT))
    assert_close(one, kernels.gated_linear(q, k, v)[0])


@pytest.mark.parametrize("chunk", [1, 4, 16])
def test_deep_linear_attention_of_depth_one_is_gla(chunk: int) -> None:
    x = linear(Rule(loss=DOT, chunk=chunk))
    gla = kernels.gated_linear(x["q"], x["k"], x["v"], log_decay=x["alpha"].log(), beta=x["eta"])[0]
    assert_close(outputs(x), gla)


def test_moneta_at_p_and_q_of_two_and_yaad_without_a_threshold_are_titans_minus() -> None:
    x = inputs(Rule(chunk=4))
    expected = outputs(x)
    assert_close(outputs(x, rule=Rule(chunk=4, loss=LpLoss(p=2), retention=LqRetention(q=2))), expected)
    for beyond in ("sign", "norm"):
        huber = Rule(chunk=4, loss=HuberLoss(beyond=beyond))
        assert_close(outputs(x, rule=huber, delta=torch.full_like(x["eta"], inf)), expected)


def test_memora_is_its_textbook_form() -> None:
    x = inputs(Rule(retention=KL), 1)
    weights = x["weights"][0].softmax(-2).expand(B, -1, -1, -1)
    expected = []
    for t in range(T):
        q, k, v = (x[n][:, t, :, None] for n in ("q", "k", "v"))
        u = k.mT @ (k @ weights - v) * x["gamma"][:, t, :, :, None]
        eta, alpha = (x[n][:, t, :, None, None] for n in ("eta", "alpha"))
        weights = (alpha * weights.log() - eta * u).softmax(-2)
        expected.append((q @ weights).squeeze(-2))
    assert_close(outputs(x), torch.stack(expected, 1))


def test_the_mirror_map_is_the_gradient_of_half_the_squared_norm() -> None:
    a = torch.randn(2, 3, 4, dtype=torch.float64)
    expected = grad(lambda x: x.abs().pow(3).sum((-2, -1)).pow(2 / 3).sum() / 2)(a)
    assert_close(LqRetention(q=3, mirror=True).weights(a), expected)


@pytest.mark.parametrize("rule", [Rule(), Rule(retention=LQ), Rule(retention=KL), Rule(loss=HUBER, chunk=4)])
def test_a_memory_without_a_learning_rate_stands_still(rule: Rule) -> None:
    x = inputs(rule) | {"alpha": None}
    weights = [rule.retention.weights(w) for w in x["weights"]]
    still, _ = forward(x["q"].transpose(1, 2), lambda i, h: h @ weights[i], 2, rule)
    assert_close(outputs(x, eta=0 * x["eta"]), still.transpose(1, 2))


def test_features_are_those_of_keys_and_queries_and_the_residual_takes_the_raw_ones() -> None:
    roots = torch.rand(3, dtype=torch.float64)
    x = inputs(Rule(chunk=4, window=2), 1)
    weights = (torch.randn(H, 10, V, dtype=torch.float64),)
    by_hand = {n: monomials(x[n], roots)[0] for n in ("q", "k")}
    found = outputs(x, weights=weights, features=lambda z: monomials(z, roots)[0])
    assert_close(found, outputs(x, weights=weights, **by_hand))
    residual = outputs(
        x, weights=weights, features=lambda z: monomials(z, roots)[0], rule=replace(x["rule"], residual=True)
    )
    assert_close(residual - x["q"], outputs(x, weights=weights, **(by_hand | {"v": x["v"] - x["k"]})))


@pytest.mark.parametrize(("window", "chunk"), [(1, 1), (3, 1), (1, 4)])
@pytest.mark.parametrize("strength", [0.9, 1.9, 2.1])
def test_a_key_that_repeats_is_learned_while_eta_b_sum_gamma_is_below_two(
    window: int, chunk: int, strength: float
) -> None:
    time = 8 * max(chunk, window)
    k = normalize(torch.randn(1, 1, 1, K, dtype=torch.float64), dim=-1).expand(1, time, 1, K)
    v = torch.ones(1, time, 1, V, dtype=torch.float64)
    eta = torch.full((1, time, 1), strength / (window * chunk), dtype=torch.float64)
    weights = (torch.zeros(1, K, V, dtype=torch.float64),)
    o, _ = memory(k, k, v, weights=weights, rule=Rule(window=window, chunk=chunk), eta=eta)
    error = (o - v).norm(dim=-1)[0, chunk * window - 1 :: chunk, 0]
    assert_close(error[1:], abs(1 - strength) * error[:-1])


# Kernels over many features. ------------------------------------------------------------------------------------------


class Wide(NamedTuple):
    """A deep memory over all monomials of K variables up to the second degree, (K + 1) (K + 2) / 2 of them."""

    rule: Rule
    time: int
    hidden: int = 10
    keys: int = 10  # 66 features: no more than 64 are held whole
    values: int = 3
    norm: bool = False
    at: int | None = None  # where the sequence is cut
    many: bool = False  # of several sequences in the interpreter, too, whose time is that of its programs

    def inputs(self, dtype: torch.dtype, device: str = "cpu") -> dict[str, Any]:
        """Random arguments in `dtype`, gates and weights in fp32; of one sequence where the interpreter rounds to bfloat16, as
        the batch is taken apart before anything is rounded."""
        rng = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=rng, dtype=torch.float64)

        rule, values = self.rule, self.keys if self.rule.residual else self.values
        features = (self.keys + 1) * (self.keys + 2) // 2
        shapes = ((features + rule.bias, self.hidden), (self.hidden + rule.bias, values))
        given = inputs(rule, time=self.time) | {"weights": tuple(0.5 * normal(H, m, n) for m, n in shapes)}
        given |= {n: normalize(normal(B, self.time, H, self.keys), dim=-1) for n in ("q", "k")}
        given |= {"v": normal(B, self.time, H, values), "eta": given["eta"] / rule.chunk}
        given |= {"alpha": 0.9 + 0.1 * given["alpha"]}  # what a chunk leaves must reach the next ones
        if self.norm:
            given["norm"] = LayerNorm(1 + 0.1 * normal(H, values), 0.1 * normal(H, values))
        if device == "cpu" and (dtype == torch.bfloat16 or not self.many):
            given |= {n: x[:1] for n, x in given.items() if n in ("q", "k", "v", *GATES) and x is not None}
        rounded = {n: x.to(dtype) if n in ("q", "k", "v") else single(x) for n, x in given.items()}
        placed = pytree.tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, rounded)
        roots = torch.tensor([1, 1, 0.5**0.5], device=device)
        return placed | {"features": lambda x: monomials(x.to(dtype), roots)[0].to(x.dtype)}  # rounded for all alike


def single(tree: Any) -> Any:
    return pytree.tree_map(lambda x: x.float() if isinstance(x, Tensor) else x, tree)


def double(tree: Any) -> Any:
    return pytree.tree_map(lambda x: x.double() if isinstance(x, Tensor) else x, tree)


OMEGA = Rule(window=4, chunk=16, residual=True)
WIDE = {
    "omeganet": Wide(OMEGA, 64, many=True),
    "one token": Wide(OMEGA, 1),
    "a short last chunk": Wide(OMEGA, 63),
    "cut within a chunk": Wide(OMEGA, 37, at=19),
    "300 features": Wide(Rule(window=2, chunk=8), 11, keys=23),
    "titans": Wide(Rule(window=2, chunk=8, momentum="inside", bias=True), 19, at=11),
    "a norm": Wide(Rule(chunk=8, bias=True, residual=True), 21, norm=True),
    "swla": Wide(Rule(loss=DOT, window=4, chunk=16), 37, at=20),
    "dla with a norm": Wide(Rule(loss=DOT, chunk=16), 33, values=16, norm=True),
    "blocks of hidden units": Wide(Rule(window=4, chunk=8, residual=True), 13, hidden=70),
    "blocks with all": Wide(
        Rule(window=2, chunk=8, momentum="outside", bias=True), 21, hidden=70, values=16, norm=True, at=11, many=True
    ),
    "blocks without a window": Wide(Rule(chunk=8, momentum="inside"), 16, hidden=70),
    "blocks of dla": Wide(Rule(loss=DOT, chunk=8), 19, hidden=70),
    "wide values": Wide(Rule(window=3, chunk=8), 19, hidden=40, values=40),
}


ROUNDED = [  # seconds each under the interpreter; one of each loss and all at once are enough there
    pytest.param(
        name, torch.bfloat16, marks=() if name in ("omeganet", "blocks with all", "swla") else pytest.mark.slow
    )
    for name in WIDE
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float32) for name in WIDE), *ROUNDED], ids=str)
def test_features_that_are_taken_in_blocks_are_all_taken(
    name: str, dtype: torch.dtype, device: str, request: pytest.FixtureRequest
) -> None:
    case = WIDE[name]
    given = case.inputs(dtype, device)
    expected = everything(double(given), "recurrent", None)
    if dtype == torch.bfloat16 and device == "cpu":
        request.getfixturevalue("tensor_cores")
    found = everything(given, "fused", None, case.at)
    agree(found, expected, tolerance("memory", dtype, of="gradient"))


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", torch.float32), pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu)],
    ids=["cpu", "cuda"],
)
@pytest.mark.parametrize("programs", [0, 256], ids=["all at once", "in blocks"])
@pytest.mark.parametrize(
    ("rule", "time"),
    [(Rule(window=3), 37), (Rule(momentum="inside", window=2), 37), (Rule(bias=True, residual=True), 1)],
    ids=["omega", "momentum", "bias and residual"],
)
def test_values_of_a_linear_memory_learn_apart(
    rule: Rule, time: int, programs: int, device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may have a block of them, where programs are few."""
    monkeypatch.setattr(import_module("recallmap.arch.kernels.memory.fused.plan"), "ENOUGH", programs)
    monkeypatch.setitem(import_module("recallmap.arch.kernels.memory.example").RULES, "linear", rule)
    shape = timing.Shape(batch=1, time=time, heads=2, key_width=40, value_width=40)
    inputs = timing._on(timing.example("memory", "linear", shape), dtype, torch.device(device))
    assert timing.disagreement("memory", "fused", inputs) <= 1


@pytest.mark.parametrize("together", [1, 8, 1024])
@pytest.mark.parametrize("cross_chunk", [True, False])
@pytest.mark.parametrize("depth", [1, 2], ids=["solved for", "chunk by chunk"])
def test_influence_is_the_same_of_however_many_pieces_it_is_made_at_once(
    depth: int, together: int, *, cross_chunk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the middle of a chunk on, over whole ones, to the middle of one."""
    monkeypatch.setattr("recallmap.arch.kernels.test_time.dual_form.TOGETHER", together)
    given = inputs(Rule(window=3, chunk=4, momentum="inside", cross_chunk=cross_chunk), depth, time=31)
    expected = everything(given, "recurrent", None)
    agree(everything(given, "chunked", None, at=6), expected, tolerance("memory", torch.float64))


# Newton-Schulz. -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Rule(window=2, chunk=4, newton_schulz=5, momentum=m) for m in ("none", "outside")])
@pytest.mark.parametrize("keys", ["random", "one key", "no keys"])
@pytest.mark.parametrize("spared", [True, False])
@pytest.mark.parametrize("features", [None, cubic], ids=["few rows", "many rows"])
def test_steps_need_not_be_made(
    rule: Rule, keys: str, features: Any, *, spared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lie in the span of a chunk, and are the same where they are made."""
    monkeypatch.setattr(import_module("recallmap.arch.kernels.memory.chunked"), "_spared", lambda *_: spared)
    given = inputs(rule, features=features)
    if keys == "one key":
        given["k"] = given["k"][:, :1].expand(-1, T, -1, -1)
    if keys == "no keys":
        given["k"] = torch.zeros_like(given["k"])
    expected = everything(given, "recurrent", None)
    bound = tolerance("memory_newton_schulz", torch.float64)
    with select.record_choices() as chosen:
        agree(everything(given, "chunked", None), expected, bound)
    assert ("spanned_newton_schulz" in chosen) == spared
    agree(everything(given, "chunked", None, at=6), expected, bound)


@pytest.mark.parametrize("rule", [Rule(window=2, chunk=4, newton_schulz=5, momentum=m) for m in ("none", "outside")])
@pytest.mark.parametrize("summed", [True, False])
def test_the_sum_of_steps_may_be_read_elsewhere(rule: Rule, *, summed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those of a square matrix, the second of three."""
    module = import_module("recallmap.arch.kernels.memory.chunked")
    monkeypatch.setattr(module, "_spared", lambda *_: False)
    monkeypatch.setattr(module, "_summed", lambda step: summed and step.shape[-2] == step.shape[-1])
    given = inputs(rule, depth=3)
    expected, bound = everything(given, "recurrent", None), tolerance("memory_newton_schulz", torch.float64)
    with select.record_choices() as chosen:
        agree(everything(given, "chunked", None), expected, bound)
    assert ("spanned_sum" in chosen) == summed
    agree(everything(given, "chunked", None, at=6), expected, bound)


RETAINED = [
    (Rule(chunk=4, retention=KlRetention(scale=2)), 2),
    (Rule(chunk=16, loss=LP, retention=LQ, residual=True, bias=True), 2),
    (Rule(retention=LqRetention(q=3, mirror=True)), 1),
]


@pytest.mark.parametrize("case", RETAINED, ids=named)
@pytest.mark.parametrize("keys", ["random", "one key", "no keys"])
def test_matrices_of_their_own_may_be_held_elsewhere(
    case: tuple[Rule, int], keys: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tokens that each take their own step."""
    given = inputs(*case)
    if keys == "one key":
        given["k"] = given["k"][:, :1].expand(-1, T, -1, -1)
    if keys == "no keys":
        given["k"] = torch.zeros_like(given["k"])
    expected, bound = everything(given, "recurrent", None), tolerance("memory", torch.float64)
    for held in (True, False):
        monkeypatch.setattr(import_module("recallmap.arch.kernels.memory.chunked"), "_held", lambda *_, held=held: held)
        with select.record_choices() as chosen:
            agree(everything(given, "chunked", None), expected, bound)
        assert ("retained" in chosen) == held
        agree(everything(given, "chunked", None, at=6), expected, bound)


STEPPED = Rule(window=2, chunk=16, newton_schulz=5, momentum="outside"), 3
IN_KERNELS = [(case, "memory", ("retained",)) for case in RETAINED]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("case", "bound", "ops"), [*IN_KERNELS, (STEPPED, "memory_newton_schulz", ("spanned", "spanned_sum"))], ids=str
)
def test_a_gpu_holds_matrices_of_their_own_in_kernels(case: tuple[Rule, int], bound: str, ops: tuple[str, ...]) -> None:
    """And loses no more of them in fp32 than products of matrices do."""
    given = inputs(*case, time=65)
    single = pytree.tree_map(lambda x: x.float() if isinstance(x, Tensor) else x, given)
    exact = everything(pytree.tree_map(lambda x: x.double() if isinstance(x, Tensor) else x, single), "recurrent", None)
    on = pytree.tree_map(lambda x: x.cuda() if isinstance(x, Tensor) else x, single)
    with select.record_choices() as chosen:
        found = everything(on, "chunked", None)
    assert {chosen[op] for op in ops} == {"fused"}
    for x, y, z in zip(found, exact, everything(single, "chunked", None), strict=True):
        lost = max(tolerance(bound, torch.float32) * y.norm().clamp(min=1e-3), 2 * (z - y).norm())
        assert (x.cpu() - y).norm() <= lost


@pytest.mark.parametrize("features", [None, cubic], ids=["few rows", "many rows"])
def test_newton_schulz_in_float32_stays_within_its_bound(features: Any) -> None:
    given = inputs(Rule(window=2, chunk=4, newton_schulz=5, momentum="outside"), features=features)
    single = {n: x.float() if isinstance(x, Tensor) else x for n, x in given.items()}
    single["weights"] = tuple(w.float() for w in given["weights"])
    exact = outputs(
        {n: x.double() if isinstance(x, Tensor) else x for n, x in single.items()}, implementation="recurrent"
    )
    found = outputs(single)
    assert found.dtype == torch.float32
    assert (found - exact).norm() <= tolerance("memory_newton_schulz", torch.float32) * exact.norm()


# What does not fit. ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dials", "message"),
    [
        ({"window": 0}, "window and chunk must be at least 1"),
        ({"newton_schulz": -1}, "newton_schulz must be 0"),
        ({"newton_schulz": 5, "momentum": "inside"}, "set momentum to 'outside'"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(dials: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**dials)


@pytest.mark.parametrize(
    ("rule", "change", "message"),
    [
        (Rule(momentum="inside"), {"theta": None}, "theta is needed"),
        (Rule(), {"theta": torch.ones(B, T, H)}, "theta has no meaning"),
        (Rule(loss=HUBER), {"delta": None}, "delta is needed"),
        (Rule(), {"gamma": torch.ones(B, T, H, 2)}, "gamma has shape"),
        (Rule(), {"weights": ()}, "at least one matrix"),
        (Rule(gated=True), {"weights": (torch.ones(H, K, V),) * 2}, "1, 3, 5"),
        (Rule(), {"weights": (torch.ones(K, V),)}, "2 heads, rows, columns"),
        (Rule(), {"weights": (torch.ones(H, K, V + 1),)}, "must have 3 columns"),
        (Rule(residual=True), {"v": torch.ones(B, T, H, 5), "weights": (torch.ones(H, K, 5),)}, "as wide as values"),
        (Rule(), {"implementation": "quickest"}, "there is no implementation 'quickest'"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(rule: Rule, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        memory(**(inputs(rule) | change))


@pytest.mark.usefixtures("tensor_cores")
def test_a_norm_magnifies_what_an_answer_loses() -> None:
    """Of 64 sequences of TTT-Linear's example this is the one where the norm, and the memory that learns by it, magnify what
    tf32 drops of an answer to more than what is allowed."""
    shape = timing.Shape(batch=64, time=256, heads=2, key_width=64, value_width=64)
    made = timing.example("memory", "ttt", shape)
    given = {key: x[1:2, :144] if isinstance(x, Tensor) and x.shape[:2] == (64, 256) else x for key, x in made.items()}
    given |= {key: given[key].bfloat16() for key in ("q", "k", "v")}
    exact = pytree.tree_map(lambda x: x.double() if isinstance(x, Tensor) else x, given)
    o, _ = memory(**given, implementation="fused")
    reference, _ = memory(**exact, implementation="recurrent")
    assert error(o, reference, (0, 2)) <= tolerance("memory", torch.bfloat16)
