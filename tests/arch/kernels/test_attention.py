"""Attention: what a token sees, against a dense softmax in numpy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from recallmap.arch.kernels import AttentionState, attention, attention_step, select
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.benchmark.tolerance import Of, attainable, error, tolerance


def example(time: int, variant: str = "full", **sizes: int) -> dict[str, Any]:
    return timing.example(
        "attention", variant, timing.Shape(batch=2, heads=2, key_width=4, value_width=3, time=time, **sizes)
    )


def dense(inputs: dict[str, Any], window: int | None, prefix: int) -> np.ndarray:
    """Every query against every key, one sequence and one head at a time."""
    q, k, v = (inputs[name].numpy() for name in "qkv")
    o = np.zeros_like(v)
    for b, t, h in np.ndindex(*v.shape[:3]):
        seen = [j for j in range(t + 1) if window is None or j > t - window or j < prefix]
        scores = np.array([q[b, t, h] @ k[b, j, h] for j in seen]) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        o[b, t, h] = sum(w * v[b, j, h] for w, j in zip(weights / weights.sum(), seen, strict=True))
    return o


@pytest.mark.parametrize(("window", "prefix"), [(None, 0), (1, 0), (5, 0), (5, 3), (5, 30), (200, 2)])
@pytest.mark.parametrize("implementation", ["recurrent", "chunked"])
@pytest.mark.parametrize("chunk", [None, 7])
def test_a_token_sees_its_window_and_the_prefix(
    window: int | None, prefix: int, implementation: str, chunk: int | None
) -> None:
    inputs = example(20)
    o, _ = attention(**inputs, window=window, prefix=prefix, implementation=implementation, chunk=chunk)
    np.testing.assert_allclose(o.numpy(), dense(inputs, window, prefix), rtol=1e-12, atol=1e-14)


def test_torch_sees_a_cohort_as_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def watched(q: Tensor, *given: Any, **options: Any) -> Tensor:
        seen.append(q.shape)
        return kernel(q, *given, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    q, k, v = torch.randn(3, 4, 2, 10, 1, 8, generator=torch.Generator().manual_seed(0))
    torch.vmap(lambda *x: attention(*x, implementation="library")[0])(q, k, v)
    assert seen == [(8, 1, 10, 8)]


def test_torch_serves_wide_heads_over_long_sequences_on_a_gpu() -> None:
    wide = {"time": 2048, "key_width": 128, "value_width": 128, "whole": 1}
    serving = partial(select.choose, "attention", device="cuda", dtype=torch.bfloat16)
    assert serving(sizes=wide) == "library"
    for other in ({"time": 1024}, {"key_width": 64, "value_width": 64}, {"value_width": 64}, {"whole": 0}):
        assert serving(sizes=wide | other) == "fused"
    assert serving(sizes=wide, dtype=torch.float32) == "fused"
    assert serving(sizes=wide, device="cpu") == "chunked"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_torch_agrees_with_our_kernels_in_a_cohort_on_a_gpu(dtype: torch.dtype) -> None:
    drawn = torch.randn(4, 3, 2, 2050, 2, 128, generator=torch.Generator().manual_seed(0))  # of q, k, v and weights
    q, k, v, weight = (x.to("cuda", dtype) for x in drawn)

    def everything(implementation: str) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        o = torch.vmap(lambda *x: attention(*x, implementation=implementation)[0])(*leaves)
        return [o.detach(), *torch.autograd.grad((o * weight).sum(), leaves)]

    with select.record_choices() as chosen:
        found = everything("auto")
    assert chosen == {"attention": "library"}
    for x, y in zip(found, everything("fused"), strict=True):
        assert float((x.float() - y.float()).norm() / y.float().norm()) < 1e-2


def test_a_window_of_everything_is_attention() -> None:
    """I-1"""
    inputs = example(70)
    torch.testing.assert_close(attention(**inputs, window=70)[0], attention(**inputs)[0], rtol=1e-13, atol=0)


def test_a_window_of_one_is_the_value() -> None:
    """I-1"""
    inputs = example(70)
    assert torch.equal(attention(**inputs, window=1)[0], inputs["v"])


def test_huge_scores_stay_finite() -> None:
    inputs = {key: 1e3 * x.float() for key, x in example(30).items()}
    for implementation in ("recurrent", "chunked"):
        assert attention(**inputs, implementation=implementation)[0].isfinite().all()


@pytest.mark.parametrize(("window", "prefix", "held"), [(None, 0, 50), (8, 0, 8), (8, 3, 11), (60, 3, 50)])
@pytest.mark.parametrize("implementation", ["recurrent", "chunked"])
def test_a_state_holds_what_later_tokens_may_see(
    window: int | None, prefix: int, held: int, implementation: str
) -> None:
    inputs = example(50)
    _, state = attention(**inputs, window=window, prefix=prefix, implementation=implementation, return_state=True)
    assert state is not None
    assert state.position == 50
    assert torch.equal(state.keys[:, -8:], inputs["k"][:, -8:])
    assert state.keys.shape[1] == state.values.shape[1] == held
    if prefix:
        assert torch.equal(state.values[:, :prefix], inputs["v"][:, :prefix])


def test_a_state_of_another_window_is_refused() -> None:
    inputs = example(20)
    _, state = attention(**inputs, window=8, return_state=True)
    with pytest.raises(
        ValueError, match=r"keys of a state at position 20 has shape \[2, 8, 2, 4\], must be \[2, 5, 2, 4\]"
    ):
        attention(**inputs, window=5, initial_state=state)


def test_keys_are_kept_as_they_came() -> None:
    inputs = {key: x.bfloat16() for key, x in example(20).items()}
    for implementation in ("recurrent", "chunked"):
        _, state = attention(**inputs, return_state=True, implementation=implementation)
        assert state is not None
        assert state.keys.dtype == state.values.dtype == torch.bfloat16


def test_decoding_with_a_window_forgets() -> None:
    inputs = example(30)
    state: AttentionState | None = None
    outputs: list[Tensor] = []
    for t in range(30):
        o, state = attention_step(state, *(inputs[key][:, t] for key in "qkv"), window=4, prefix=2)
        outputs.append(o)
        assert state.keys.shape[1] == min(t + 1, 6)
    np.testing.assert_allclose(torch.stack(outputs, 1).numpy(), dense(inputs, 4, 2), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("name", "value"), [("window", 0), ("prefix", -1), ("chunk", 0)])
def test_sizes_that_cannot_be_are_told(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"attention: {name} must be at least"):
        attention(**example(5) | {name: value})


def forgetting(inputs: dict[str, Any], window: int | None, prefix: int) -> np.ndarray:
    """Every query against every key, with the gates between them summed up one by one."""
    q, k, v, g = (inputs[name].numpy() for name in ("q", "k", "v", "log_decay"))
    o = np.zeros_like(v)
    for b, t, h in np.ndindex(*v.shape[:3]):
        seen = [j for j in range(t + 1) if window is None or j > t - window or j < prefix]
        between = np.array([g[b, j + 1 : t + 1, h].sum() for j in seen])
        scores = np.array([q[b, t, h] @ k[b, j, h] for j in seen]) / np.sqrt(q.shape[-1]) + between
        weights = np.exp(scores - scores.max())
        o[b, t, h] = sum(w * v[b, j, h] for w, j in zip(weights / weights.sum(), seen, strict=True))
    return o


@pytest.mark.parametrize(("window", "prefix"), [(None, 0), (5, 0), (5, 3)])
@pytest.mark.parametrize(("implementation", "rtol"), [("recurrent", 1e-12), ("chunked", 1e-12), ("fused", 2e-6)])
def test_gates_add_up_behind_a_key_beneath_any_window(
    window: int | None, prefix: int, implementation: str, rtol: float
) -> None:
    inputs = example(20, variant="fading")
    given = inputs if implementation != "fused" else {key: x.float() for key, x in inputs.items()}
    o, _ = attention(**given, window=window, prefix=prefix, implementation=implementation, chunk=7)
    np.testing.assert_allclose(o.numpy(), forgetting(inputs, window, prefix), rtol=rtol, atol=rtol)


def test_gates_that_keep_all_are_attention_and_gates_that_keep_nothing_give_the_value() -> None:
    """11.7"""
    inputs = example(40)
    nothing = torch.zeros(2, 40, 2, dtype=torch.float64)
    torch.testing.assert_close(attention(**inputs, log_decay=nothing)[0], attention(**inputs)[0], rtol=1e-13, atol=0)
    o, _ = attention(**inputs, log_decay=nothing - 1e3)
    torch.testing.assert_close(o, inputs["v"], rtol=1e-13, atol=0)


def test_a_constant_gate_is_a_slope_over_distance() -> None:
    """11.7: ALiBi."""
    inputs, slope = example(30), torch.tensor([0.1, 0.7], dtype=torch.float64)
    distance = torch.arange(30)[:, None] - torch.arange(30)
    scores = torch.einsum("bthk,bshk->bhts", inputs["q"], inputs["k"]) / 2 - slope[:, None, None] * distance
    weights = scores.masked_fill(distance < 0, -torch.inf).softmax(-1)
    expected = torch.einsum("bhts,bshv->bthv", weights, inputs["v"])
    torch.testing.assert_close(attention(**inputs, log_decay=-slope)[0], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("implementation", ["chunked", "fused"])
def test_sums_of_a_hundred_thousand_gates_keep_their_digits(implementation: str) -> None:
    """In fp32 the sums are 3e5 here, and their differences would be off by 0.03."""
    inputs = {key: x.float() for key, x in example(40, variant="fading").items()}
    inputs["log_decay"][:, 5] = -3e5
    late = {key: x[:, 5:] for key, x in inputs.items()}
    whole = attention(**inputs, implementation=implementation)[0][:, 5:]
    torch.testing.assert_close(whole, attention(**late)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("strongest", [0.0, -3e5])
@pytest.mark.parametrize(("tokens_ahead", "time"), [(0, 400), (150, 129)])
def test_tiles_that_are_seen_whole_take_gates_as_others_do(
    dtype: torch.dtype, strongest: float, tokens_ahead: int, time: int
) -> None:
    """Long sequences have two loops. Few gates are very strong, so that sums are large where differences are not."""
    shape = timing.Shape(batch=1, heads=2, time=tokens_ahead + time, key_width=16, value_width=8)
    inputs = timing._on(timing.example("attention", "fading", shape), dtype, torch.device("cpu"))
    inputs["log_decay"][:, 40::171, 0] = strongest
    ahead = {key: x[:, :tokens_ahead].double() for key, x in inputs.items()}
    state = attention(**ahead, return_state=True)[1] if tokens_ahead else None
    carried = {} if state is None else {"keys": state.keys, "values": state.values, "fades": state.fades}
    weight = torch.randn(1, time, 2, 8, generator=torch.Generator().manual_seed(1)).to(dtype)

    def everything(implementation: str, exact: bool) -> dict[str, Tensor]:
        now = {key: x[:, tokens_ahead:] for key, x in inputs.items()} | carried
        leaves = {
            key: x.to(
                torch.float64 if exact else torch.float32 if key in ("log_decay", "fades") else dtype
            ).requires_grad_()
            for key, x in now.items()
        }
        given = {key: leaves[key] for key in inputs}
        initial = None if state is None else state._replace(**{key: leaves[key] for key in carried})
        o, _ = attention(**given, initial_state=initial, implementation=implementation)
        gradients = torch.autograd.grad(o, list(leaves.values()), weight.to(o.dtype))
        return {"o": o.detach()} | dict(zip(leaves, gradients, strict=True))

    expected = everything("chunked", exact=True)
    for key, x in everything("fused", exact=False).items():
        of: Of = "output" if key == "o" else "gate_gradient" if key in ("log_decay", "fades") else "gradient"
        allowed = max(tolerance("attention", dtype, of=of), attainable(expected[key], x.dtype, (0, 2)))
        assert error(x, expected[key], (0, 2)) <= allowed, key


def test_a_state_without_fades_is_no_state_of_gates() -> None:
    inputs = example(5)
    _, state = attention(**inputs, return_state=True)
    with pytest.raises(ValueError, match="the state has no fades, must be of a call with log_decay, as this one is"):
        attention(**inputs, log_decay=torch.zeros(2), initial_state=state)
