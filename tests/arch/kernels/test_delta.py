"""The delta rule: against its recurrence and its triangular system in numpy, and the systems that are the same thing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from recallmap.arch.kernels import delta, gated_linear
from recallmap.arch.kernels.benchmark import timing
from tests.arch.kernels.conftest import assert_one_state_agrees

GPU = pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu)
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["recurrent", "chunked"])


def example(variant: str, time: int = 70, **sizes: int) -> dict[str, Any]:
    shape = timing.Shape(**{"batch": 2, "heads": 2, "key_width": 6, "value_width": 3, **sizes}, time=time)
    return timing.example("delta", variant, shape)


def close(x: Tensor, y: Tensor) -> None:
    torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


def by_matrices(q: Any, k: Any, v: Any, log_decay: Any, beta: Any) -> np.ndarray:
    """S_t = a_t (I - beta_t k_t^T k_t) S_{t-1} + beta_t k_t^T v_t with the matrices written out (Yang et al. 2025, eq. 10)."""
    q, k, v, decay, beta = (x.numpy() for x in (q, k, v, log_decay.exp(), beta))
    o = np.zeros_like(v)
    for b, h in np.ndindex(v.shape[0], v.shape[2]):
        state = np.zeros((k.shape[-1], v.shape[-1]))
        for t in range(v.shape[1]):
            key = k[b, t, h]
            forget = np.eye(len(key)) - beta[b, t, h] * np.outer(key, key)
            state = decay[b, t, h] * forget @ state + beta[b, t, h] * np.outer(key, v[b, t, h])
            o[b, t, h] = q[b, t, h] @ state
    return o


def by_triangle(q: Any, k: Any, v: Any, beta: Any) -> np.ndarray:
    """Without decay: O = tril(Q K^T) (I + diag(beta) tril_-(K K^T))^-1 diag(beta) V, one system for the whole sequence."""
    q, k, v, beta = (x.numpy() for x in (q, k, v, beta))
    o = np.zeros_like(v)
    for b, h in np.ndindex(v.shape[0], v.shape[2]):
        keys, write = k[b, :, h], beta[b, :, h, None]
        system = np.eye(len(keys)) + write * np.tril(keys @ keys.T, -1)
        o[b, :, h] = np.tril(q[b, :, h] @ keys.T) @ np.linalg.solve(system, write * v[b, :, h])
    return o


@IMPLEMENTATIONS
def test_the_recurrence_with_matrices(implementation: str) -> None:
    inputs = example("head")
    o, _ = delta(**inputs, implementation=implementation)
    np.testing.assert_allclose(o.numpy(), by_matrices(**inputs), rtol=1e-10, atol=1e-12)


@IMPLEMENTATIONS
def test_the_triangular_system(implementation: str) -> None:
    inputs = example("plain")
    inputs["beta"] = 2 * inputs["beta"]
    o, _ = delta(**inputs, implementation=implementation)
    np.testing.assert_allclose(o.numpy(), by_triangle(**inputs), rtol=1e-10, atol=1e-12)


@IMPLEMENTATIONS
def test_without_decay_it_is_deltanet(implementation: str) -> None:
    """I-7"""
    inputs = example("plain")
    expected, _ = delta(**inputs, implementation=implementation)
    close(delta(**inputs, log_decay=torch.zeros(2, 70, 2).double(), implementation=implementation)[0], expected)


@IMPLEMENTATIONS
def test_orthonormal_keys_make_it_linear_attention(implementation: str) -> None:
    """I-7"""
    inputs = example("plain", time=6)
    inputs["k"] = torch.eye(6).double()[None, :, None].expand(2, 6, 2, 6)
    inputs["beta"] = torch.ones_like(inputs["beta"])
    expected, _ = gated_linear(inputs["q"], inputs["k"], inputs["v"], implementation=implementation)
    close(delta(**inputs, implementation=implementation)[0], expected)


@IMPLEMENTATIONS
def test_asking_for_what_was_just_written_gives_it_back(implementation: str) -> None:
    """I-7"""
    inputs = example("head")
    inputs["q"], inputs["beta"] = inputs["k"], torch.ones_like(inputs["beta"])
    close(delta(**inputs, implementation=implementation)[0], inputs["v"])


@IMPLEMENTATIONS
def test_the_pair_spells_deltanet(implementation: str) -> None:
    """I-8: RWKV-7 with w = 1, a = beta, k = beta k."""
    inputs = example("plain")
    k, beta = inputs["k"], inputs.pop("beta")[..., None]
    expected, _ = delta(**inputs, beta=beta.squeeze(-1), implementation=implementation)
    close(delta(inputs["q"], beta * k, inputs["v"], a=k, b=beta * k, implementation=implementation)[0], expected)


@IMPLEMENTATIONS
def test_the_pair_spells_gated_deltanet(implementation: str) -> None:
    """I-8: w = alpha, a = alpha beta, k = beta k; the same with the decay by channel."""
    inputs = example("head")
    expected, _ = delta(**inputs, implementation=implementation)
    k, beta, decay = inputs["k"], inputs["beta"][..., None], inputs["log_decay"][..., None]
    for log_decay in (inputs["log_decay"], decay.expand_as(k)):
        o, _ = delta(
            inputs["q"],
            beta * k,
            inputs["v"],
            a=k,
            b=decay.exp() * beta * k,
            log_decay=log_decay,
            implementation=implementation,
        )
        close(o, expected)


@IMPLEMENTATIONS
def test_the_pair_that_erases_nothing_is_gated_linear_attention(implementation: str) -> None:
    """I-8"""
    inputs = example("pair_channel")
    inputs["b"] = torch.zeros_like(inputs["b"])
    expected, _ = gated_linear(
        inputs["q"], inputs["k"], inputs["v"], log_decay=inputs["log_decay"], scale=1.0, implementation=implementation
    )
    close(delta(**inputs, implementation=implementation)[0], expected)


@IMPLEMENTATIONS
def test_beta_with_channels_decays_first_and_corrects_then(implementation: str) -> None:
    """The pair with a = e^g k, b = beta k, which reads the decayed state."""
    inputs = example("channel")
    k, beta = inputs["k"], inputs["beta"][..., None]
    o, _ = delta(
        inputs["q"],
        beta * k,
        inputs["v"],
        a=inputs["log_decay"].exp() * k,
        b=beta * k,
        log_decay=inputs["log_decay"],
        implementation=implementation,
    )
    close(delta(**inputs, implementation=implementation)[0], o)


@IMPLEMENTATIONS
def test_longhorn_is_deltanet(implementation: str) -> None:
    """I-9: the minimiser of |S - S_{t-1}|^2 + beta |k S - v|^2, solved densely, is a delta rule of beta / (1 + beta |k|^2)."""
    inputs = example("plain", time=30)
    inputs["k"] = 1.7 * inputs["k"]
    strength = 4 * inputs["beta"]
    inputs["beta"] = strength / (1 + strength * inputs["k"].square().sum(-1))
    o, _ = delta(**inputs, implementation=implementation)
    q, k, v, s = (x.numpy() for x in (inputs["q"], inputs["k"], inputs["v"], strength))
    for b, h in np.ndindex(2, 2):
        state = np.zeros((6, 3))
        for t in range(30):
            key = k[b, t, h]
            normal = np.eye(6) + s[b, t, h] * np.outer(key, key)
            state = np.linalg.solve(normal, state + s[b, t, h] * np.outer(key, v[b, t, h]))
            np.testing.assert_allclose(o[b, t, h].numpy(), q[b, t, h] @ state, rtol=1e-9, atol=1e-11)


@IMPLEMENTATIONS
def test_a_boundless_longhorn_overwrites(implementation: str) -> None:
    """I-9: beta to infinity is DeltaNet with write strength 1 on unit keys."""
    inputs = example("plain")
    expected, _ = delta(inputs["q"], inputs["k"], inputs["v"], implementation=implementation)
    inputs["beta"] = torch.full_like(inputs["beta"], 1e12 / (1 + 1e12))
    torch.testing.assert_close(delta(**inputs, implementation=implementation)[0], expected, rtol=1e-9, atol=1e-9)


@IMPLEMENTATIONS
def test_one_hot_keys_make_longhorn_its_own_approximation(implementation: str) -> None:
    """I-9: (1 - (k*k)^T eps) * S + k^T (eps v), elementwise, is exact where keys are one-hot."""
    inputs = example("plain", time=30)
    inputs["k"] = torch.nn.functional.one_hot(torch.arange(30) * 5 % 6, 6).double()[None, :, None].expand(2, 30, 2, 6)
    fade = (1 - inputs["k"] * inputs["beta"][..., None]).log()
    write = inputs["beta"][..., None] * inputs["k"]
    expected, _ = gated_linear(
        inputs["q"], write, inputs["v"], log_decay=fade, scale=1.0, implementation=implementation
    )
    close(delta(**inputs, implementation=implementation)[0], expected)


@IMPLEMENTATIONS
def test_omega_of_one_token(implementation: str) -> None:
    """I-13: alpha S - eta k^T (k S - v) is the pair (k, eta k), and Gated DeltaNet with beta = eta / alpha, v = alpha v."""
    inputs = example("head")
    eta = 0.5 * inputs["beta"]
    alpha, k, v = inputs["log_decay"].exp(), inputs["k"], inputs["v"]
    pair, _ = delta(
        inputs["q"],
        eta[..., None] * k,
        v,
        a=k,
        b=eta[..., None] * k,
        log_decay=inputs["log_decay"],
        implementation=implementation,
    )
    gated, _ = delta(
        inputs["q"],
        k,
        alpha[..., None] * v,
        log_decay=inputs["log_decay"],
        beta=eta / alpha,
        implementation=implementation,
    )
    state = torch.zeros(2, 2, 6, 3).double()
    for t in range(70):
        error = k[:, t, :, None] @ state - v[:, t, :, None]
        state = alpha[:, t, :, None, None] * state - eta[:, t, :, None, None] * k[:, t, :, :, None] * error
        close(pair[:, t], (inputs["q"][:, t, :, None] @ state).squeeze(-2))
    close(pair, gated)


@IMPLEMENTATIONS
def test_signs_are_decays_below_zero(implementation: str) -> None:
    """beta = 2 on one key flips its value, and so does a sign."""
    inputs = example("signed", time=8, key_width=2, value_width=2)
    inputs["log_decay"], inputs["beta"] = (torch.zeros_like(inputs["beta"]) for _ in range(2))
    inputs["sign"] = -torch.ones_like(inputs["sign"])
    memory = torch.randn(2, 2, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    _, final = delta(**inputs, initial_state=memory, return_state=True, implementation=implementation)
    assert final is not None
    close(final, memory)
    odd = {key: x[:, :7] for key, x in inputs.items()}
    _, final = delta(**odd, initial_state=memory, return_state=True, implementation=implementation)
    assert final is not None
    close(final, -memory)


@IMPLEMENTATIONS
def test_reflections_keep_the_norm_for_a_thousand_tokens(implementation: str) -> None:
    """beta = 2 on unit keys is a product of reflections: in fp32 the state neither grows nor shrinks."""
    inputs = {key: x.float() for key, x in example("plain", time=1000).items()}
    inputs["beta"], inputs["v"] = torch.full_like(inputs["beta"], 2.0), torch.zeros_like(inputs["v"])
    memory = torch.randn(2, 2, 6, 3, generator=torch.Generator().manual_seed(0))
    _, final = delta(**inputs, initial_state=memory, return_state=True, implementation=implementation)
    assert final is not None
    torch.testing.assert_close(final.norm(dim=(-2, -1)), memory.norm(dim=(-2, -1)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("implementation", ["chunked", "fused"])
@pytest.mark.parametrize("mixed", ["all sizes", "none and all"])
def test_channels_may_fade_by_any_size_side_by_side(mixed: str, implementation: str) -> None:
    """Log decays from -1e-4 to -100 in one head, and strengths up to 2, as Kimi Delta Attention can have them."""
    inputs = example("channel", time=70, key_width=16, value_width=16)
    sizes = -torch.logspace(-4, 2, 16) if mixed == "all sizes" else -100.0 * (torch.arange(16) % 2)
    inputs["log_decay"] = sizes.double().expand_as(inputs["log_decay"]).contiguous()
    inputs["beta"] = 2 * inputs["beta"]
    single = {name: x.float() for name, x in inputs.items()}
    expected, _ = delta(**{name: x.double() for name, x in single.items()}, implementation="recurrent")
    o, _ = delta(**single, implementation=implementation)
    torch.testing.assert_close(o, expected.float(), rtol=0, atol=2e-6 * expected.abs().max().item())


def test_half_a_pair_is_refused() -> None:
    inputs = example("pair", time=5)
    with pytest.raises(ValueError, match="takes beta, or a and b together, or none of them; got a"):
        delta(inputs["q"], inputs["k"], inputs["v"], a=inputs["a"])
    with pytest.raises(ValueError, match="got beta, a, b"):
        delta(**inputs, beta=inputs["a"][..., 0])


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), GPU], ids=str)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "by chunks"])
@pytest.mark.parametrize("variant", timing.variants("delta"))
def test_a_program_for_a_sequence_and_one_for_a_chunk_give_the_same(
    variant: str, whole: bool, device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = import_module("recallmap.arch.kernels.delta.fused.plan")
    form = plan.Walk(16, 4, 4, 1, 1) if whole else None
    monkeypatch.setattr(plan, "walk_for", lambda *sizes: form)
    for width, time in ((16, 40),) if device == "cpu" else ((16, 200), (32, 200), (64, 200)):
        shape = timing.Shape(batch=2, time=time, heads=2, key_width=width, value_width=width)
        inputs = timing._on(timing.example("delta", variant, shape), dtype, torch.device(device))
        assert timing.disagreement("delta", "fused", inputs) <= 1


assert_wide_heads_agree = partial(assert_one_state_agrees, "delta")


def wide() -> Iterator[Any]:
    """In 16 bits on a CPU the forms that have products of their own, because the interpreter is slow."""
    for variant in timing.variants("delta"):
        for time in (1, 85):
            yield pytest.param(time, variant, "cpu", torch.float32)
            yield pytest.param(time, variant, "cuda", torch.bfloat16, marks=pytest.mark.gpu)
        if variant in ("plain", "head", "channel", "pair_channel"):
            yield pytest.param(85, variant, "cpu", torch.bfloat16)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("time", "variant", "device", "dtype"), [*wide()])
def test_wide_heads_by_chunks(
    time: int,
    variant: str,
    device: str,
    dtype: torch.dtype,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Programs of a chunk read what the walks leave, with gradients or without."""
    if (device, dtype) == ("cpu", torch.bfloat16):
        request.getfixturevalue("tensor_cores")
    plan = import_module("recallmap.arch.kernels.delta.fused.plan")
    monkeypatch.setattr(plan, "walk_for", lambda *sizes: None)
    batch = 1 if (device, time) == ("cpu", 85) else 2  # the time of the interpreter is that of its programs
    inputs = timing._on(example(variant, time, batch=batch, key_width=40, value_width=36), dtype, torch.device(device))
    initial = torch.randn(batch, 2, 40, 36, generator=torch.Generator().manual_seed(0)).to(device)
    assert_wide_heads_agree(inputs, initial, dtype, "random")


QUICK = {"lossy": True, "early": True, "unroll": 2, "gradient_unroll": 2, "gradient_values": 64, "apart": True}
TURNED = {"lossy": True, "turned": True, "value_block": 32}
TURNS = [
    *((name, TURNED | {"chunk": 32}) for name in ("plain", "head", "channel", "pair_channel")),
    *((name, TURNED | {"chunk": 64, "reading": reading}) for name in ("plain", "head") for reading in (None, (32, 3))),
]
LONG = QUICK | {"chunk": 64, "pair_block": 128, "value_block": 64, "back_block": 32, "wide": True}


SHORT = TURNS[:2]  # of variants that have longer ones: the time of the interpreter is that of its programs


def choices() -> Iterator[Any]:
    """What tables may name, for every kind of inputs: random ones, those that fade slowly, repeated keys, and channels that
    fade by any size from token to token."""
    named = (
        [(name, choice) for name in ("plain", "head", "channel", "pair_channel") for choice in ({"lossy": True}, QUICK)]
        + [(name, LONG | {"early": early}) for name in ("plain", "head") for early in (True, False)]
        + [("head", {"lossy": True, "apart": False})]
        + [(name, QUICK | {"sums": True}) for name in ("channel", "pair_channel")]
        + TURNS
        + [("head", LONG | {"turned": True})]
    )
    for variant, choice in named:
        fading = () if variant == "plain" else ("slow",) if variant == "head" else ("slow", "jumps")
        for case in ("random", "repeated", *fading):
            yield pytest.param(variant, choice, case, id=f"{variant} {said(choice)} {case}")


def said(choice: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.items())


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("variant", "choice", "case"), [*choices()])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_tables_of_wide_heads_may_name_keeps_the_digits(
    variant: str,
    choice: dict[str, Any],
    case: Literal["random", "slow", "repeated", "jumps"],
    device: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In bf16, on random keys, also with decays so slow that something is left after a chunk, or that hardly fade until all is
    gone at once, and on two keys in turn that are written with all strength and hardly fade."""
    if device == "cpu":
        request.getfixturevalue("tensor_cores")
    plan = import_module("recallmap.arch.kernels.delta.fused.plan")
    blocks_for = plan.blocks_for
    monkeypatch.setattr(plan, "walk_for", lambda *sizes: None)
    monkeypatch.setattr(plan, "blocks_for", lambda *sizes: blocks_for(*sizes)._replace(**choice))
    widths = {"key_width": 48, "value_width": 48} if choice.get("reading") else {"key_width": 40, "value_width": 36}
    inputs = example(variant, 85, batch=1, heads=1, **widths)
    if case == "slow":
        inputs["log_decay"] = 0.05 * inputs["log_decay"]
    if case == "jumps":
        far = torch.rand(inputs["log_decay"].shape, generator=torch.Generator().manual_seed(0)) < 0.1
        inputs["log_decay"] = torch.where(far, -100.0, 0.01 * inputs["log_decay"])
    if case == "repeated":
        inputs["k"] = inputs["k"][:, torch.arange(85) % 2]
        if "a" in inputs:
            inputs |= {"a": inputs["k"], "b": 0.99 * inputs["k"]}
        if "log_decay" in inputs:
            inputs["log_decay"] = 0.002 * inputs["log_decay"].clamp(min=-1)
        if "beta" in inputs:
            inputs["beta"] = torch.full_like(inputs["beta"], 1.9)
    initial = torch.randn(1, 1, *widths.values(), generator=torch.Generator().manual_seed(0))
    on_device = timing._on(inputs, torch.bfloat16, torch.device(device))
    assert_wide_heads_agree(
        on_device, initial.to(device), torch.bfloat16, "repeated" if case == "repeated" else "random"
    )


def lengths() -> Iterator[Any]:
    """Of sequences around a chunk's, and of many chunks."""
    for variant, choice in TURNS:
        for time in (1, 63, 64, 65, *([1000] if (variant, choice) not in SHORT else [])):
            yield pytest.param(variant, choice, time, id=f"{variant} {said(choice)} {time}")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("variant", "choice", "time"), [*lengths()])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_turned_walks_may_end_anywhere(
    variant: str,
    choice: dict[str, Any],
    time: int,
    device: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where values do not fill their last block."""
    if device == "cpu":
        request.getfixturevalue("tensor_cores")
    plan = import_module("recallmap.arch.kernels.delta.fused.plan")
    blocks_for = plan.blocks_for
    monkeypatch.setattr(plan, "walk_for", lambda *sizes: None)
    monkeypatch.setattr(plan, "blocks_for", lambda *sizes: blocks_for(*sizes)._replace(**choice))
    heads = 1 if time > 100 else 2  # the time of the interpreter is that of its programs
    inputs = timing._on(
        example(variant, time, batch=1, heads=heads, key_width=64, value_width=48), torch.bfloat16, torch.device(device)
    )
    initial = torch.randn(1, heads, 64, 48, generator=torch.Generator().manual_seed(0))
    assert_wide_heads_agree(inputs, initial.to(device), torch.bfloat16, "random", scale=0.3)
