"""Mesa: against a dense solve for every token in numpy, and the systems that are the same thing."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from recallmap.arch.kernels import MesaState, delta, gated_linear, mesa, mesa_steps_taken
from recallmap.arch.kernels.benchmark import timing
from recallmap.arch.kernels.benchmark.tolerance import error
from recallmap.arch.kernels.mesa.chunked import CHUNKS
from recallmap.arch.kernels.mesa.conjugate import Gradient, Start
from recallmap.arch.kernels.mesa.fused.plan import segments_for

IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["recurrent", "chunked"])


def example(variant: str, time: int = 40, **sizes: int) -> dict[str, Any]:
    shape = timing.Shape(**{"batch": 2, "heads": 2, "key_width": 6, "value_width": 3, **sizes}, time=time)
    return timing.example("mesa", variant, shape)


def dense(inputs: dict[str, Any]) -> np.ndarray:
    """np.linalg.solve for every token, with the sums over the past written out."""
    q, k, v, lam, decay, beta = (inputs[name].numpy() for name in ("q", "k", "v", "lam", "log_decay", "beta"))
    decay = np.exp(decay) * (inputs["sign"].numpy() if "sign" in inputs else 1)
    o = np.zeros_like(v)
    for b, t, h in np.ndindex(*v.shape[:3]):
        weight = np.array([np.prod(decay[b, s + 1 : t + 1, h]) * beta[b, s, h] for s in range(t + 1)])[:, None]
        keys, values = k[b, : t + 1, h], v[b, : t + 1, h]
        system = keys.T @ (weight * keys) + np.diag(lam[h])
        o[b, t, h] = np.linalg.solve(system, q[b, t, h]) @ (keys.T @ (weight * values))
    return o


def recursive_least_squares(inputs: dict[str, Any]) -> np.ndarray:
    """P_t = (P - beta P k^T k P / (gamma + beta k P k^T)) / gamma from P_0 = 1 / lam, o = q P_t kv_t."""
    q, k, v, lam, decay, beta = (inputs[name].numpy() for name in ("q", "k", "v", "lam", "log_decay", "beta"))
    o = np.zeros_like(v)
    for b, h in np.ndindex(v.shape[0], v.shape[2]):
        inverse, kv = np.diag(1 / lam[h]), np.zeros((k.shape[-1], v.shape[-1]))
        for t in range(v.shape[1]):
            key, gamma, write = k[b, t, h], np.exp(decay[b, t, h]), beta[b, t, h]
            kv = gamma * kv + write * np.outer(key, v[b, t, h])
            image = inverse @ key
            inverse = (inverse - write * np.outer(image, image) / (gamma + write * key @ image)) / gamma
            o[b, t, h] = q[b, t, h] @ inverse @ kv
    return o


def close(x: Tensor, y: Tensor, rtol: float = 1e-9) -> None:
    torch.testing.assert_close(x, y, rtol=rtol, atol=1e-12)


@IMPLEMENTATIONS
@pytest.mark.parametrize("x0", ["diag", "q", "zero"])
@pytest.mark.parametrize("variant", ["head", "signed"])
def test_thirty_steps_are_the_dense_solve(variant: str, x0: Start, implementation: str) -> None:
    """I-14: CG(30) = np.linalg.solve."""
    inputs = example(variant)
    o, _ = mesa(**inputs, x0=x0, steps=30, implementation=implementation)
    np.testing.assert_allclose(o.numpy(), dense(inputs), rtol=1e-9, atol=1e-12)


@IMPLEMENTATIONS
def test_no_step_from_the_query_is_gated_linear_attention(implementation: str) -> None:
    """I-14; from q / diag it is not."""
    inputs = example("head")
    plain = {key: x for key, x in inputs.items() if key != "lam"}
    expected, _ = gated_linear(**plain, implementation=implementation)
    close(mesa(**inputs, steps=0, x0="q", implementation=implementation)[0], expected)
    assert not torch.allclose(mesa(**inputs, steps=0, x0="diag", implementation=implementation)[0], expected)


@IMPLEMENTATIONS
def test_a_huge_regulariser_is_gated_linear_attention(implementation: str) -> None:
    """I-14: lam o -> GLA."""
    inputs = example("head")
    lam = inputs.pop("lam")
    expected, _ = gated_linear(**inputs, implementation=implementation)
    o, _ = mesa(**inputs, lam=torch.full_like(lam, 1e12), implementation=implementation)
    torch.testing.assert_close(1e12 * o, expected, rtol=1e-9, atol=1e-9)


@IMPLEMENTATIONS
def test_one_step_from_zero_points_along_gated_linear_attention(implementation: str) -> None:
    """I-14"""
    inputs = example("head")
    plain = {key: x for key, x in inputs.items() if key != "lam"}
    along, _ = gated_linear(**plain, implementation=implementation)
    o, _ = mesa(**inputs, steps=1, x0="zero", implementation=implementation)
    cosine = torch.nn.functional.cosine_similarity(o, along, dim=-1)
    close(cosine, torch.ones_like(cosine))
    assert not torch.allclose(o, along)


@IMPLEMENTATIONS
def test_without_a_regulariser_recall_is_perfect(implementation: str) -> None:
    """I-14: lam -> 0 and no more tokens than key channels: every key gives its value, in fp64 to the last but few digits."""
    inputs = example("head", time=6)
    inputs["lam"] = torch.full_like(inputs["lam"], 1e-9)
    _, state = mesa(**inputs, return_state=True, implementation=implementation)
    nothing = {"k": torch.zeros_like(inputs["k"]), "v": torch.zeros_like(inputs["v"]), "lam": inputs["lam"]}
    o, _ = mesa(inputs["k"], **nothing, initial_state=state, steps=60, implementation=implementation)
    torch.testing.assert_close(o, inputs["v"], rtol=1e-4, atol=1e-5)
    dull, _ = gated_linear(inputs["k"], inputs["k"], inputs["v"])
    assert not torch.allclose(dull, inputs["v"], rtol=0.1, atol=0.1)


@IMPLEMENTATIONS
def test_it_is_recursive_least_squares(implementation: str) -> None:
    """I-14: without decay with the same lam, with decay where lam fades like the state."""
    inputs = example("head")
    fading = recursive_least_squares(inputs)
    lam = inputs["lam"]
    past = MesaState(torch.diag_embed(lam).expand(2, -1, -1, -1), torch.zeros(2, 2, 6, 3).double())
    o, _ = mesa(**inputs | {"lam": torch.full_like(lam, 1e-14)}, initial_state=past, implementation=implementation)
    np.testing.assert_allclose(o.numpy(), fading, rtol=1e-7, atol=1e-9)

    inputs["log_decay"] = torch.zeros_like(inputs["log_decay"])
    o, _ = mesa(**inputs, implementation=implementation)
    np.testing.assert_allclose(o.numpy(), recursive_least_squares(inputs), rtol=1e-9, atol=1e-11)


@IMPLEMENTATIONS
def test_it_takes_newton_steps(implementation: str) -> None:
    """I-14: without decay Phi_t = Phi_{t-1} - (kk_t + lam)^-1 beta k^T (k Phi_{t-1} - v), read by q."""
    inputs = example("head", time=20)
    inputs["log_decay"] = torch.zeros_like(inputs["log_decay"])
    o, _ = mesa(**inputs, implementation=implementation)
    q, k, v, lam, beta = (inputs[name].numpy() for name in ("q", "k", "v", "lam", "beta"))
    for b, h in np.ndindex(2, 2):
        curvature, phi = np.diag(lam[h]), np.zeros((6, 3))
        for t in range(20):
            key, write = k[b, t, h], beta[b, t, h]
            curvature = curvature + write * np.outer(key, key)
            phi = phi - np.linalg.solve(curvature, write * np.outer(key, key @ phi - v[b, t, h]))
            np.testing.assert_allclose(o[b, t, h].numpy(), q[b, t, h] @ phi, rtol=1e-9, atol=1e-11)


@IMPLEMENTATIONS
def test_its_first_token_is_longhorns(implementation: str) -> None:
    """I-9: at t = 1, Mesa with beta and lam is the delta rule of (beta / lam) / (1 + beta / lam |k|^2)."""
    inputs = example("head", time=1)
    inputs["lam"] = torch.full_like(inputs["lam"], 0.7)
    ratio = inputs["beta"] / 0.7
    longhorn = ratio / (1 + ratio * inputs["k"].square().sum(-1))
    expected, _ = delta(inputs["q"], inputs["k"], inputs["v"], beta=longhorn, implementation=implementation)
    close(mesa(**inputs, implementation=implementation)[0], expected)


@IMPLEMENTATIONS
@pytest.mark.parametrize("gradient", ["implicit", "unroll"])
@pytest.mark.parametrize("x0", ["diag", "q", "zero"])
def test_gradients_are_those_of_the_exact_solution(x0: Start, gradient: Gradient, implementation: str) -> None:
    """At more steps than channels; the reference is autograd through torch.linalg.solve."""
    inputs = {key: x.requires_grad_() for key, x in example("head", time=12).items()}
    weights = torch.randn(2, 12, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    o, _ = mesa(**inputs, x0=x0, gradient=gradient, steps=9, implementation=implementation)
    found = torch.autograd.grad(o, list(inputs.values()), weights)

    kk, kv, outputs = torch.zeros(2, 2, 6, 6).double(), torch.zeros(2, 2, 6, 3).double(), []
    for t in range(12):
        q, k, v, decay, beta = (inputs[key][:, t] for key in ("q", "k", "v", "log_decay", "beta"))
        fade, write = decay.exp()[..., None, None], (beta[..., None] * k)[..., None]
        kk, kv = fade * kk + write * k[..., None, :], fade * kv + write * v[..., None, :]
        solved = torch.linalg.solve(kk + torch.diag_embed(inputs["lam"]), q)
        outputs.append((solved[..., None, :] @ kv).squeeze(-2))
    expected = torch.autograd.grad(torch.stack(outputs, 1), list(inputs.values()), weights)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-9)


def far_from_the_query(width: int, steps: int, *, seed: int = 0) -> dict[str, Any]:
    """Two keys in turn, written with all strength, and hardly any decay: the first residual is thirty times as long as the
    query, in the end."""
    shape = timing.Shape(batch=1, time=70, heads=2, key_width=width, value_width=width)
    inputs = timing.example("mesa", "from_query", shape, seed=seed) | {"steps": steps}
    inputs["k"] = inputs["k"][:, torch.arange(70) % 2]
    inputs["log_decay"] = 0.002 * inputs["log_decay"].clamp(min=-1)
    inputs["beta"] = torch.full_like(inputs["beta"], 0.99)
    return inputs


@cache
def slopes_far_from_the_query(seed: int, name: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Of outputs, by queries and ridge."""
    inputs = far_from_the_query(16, 24, seed=seed)
    weights = torch.randn(1, 70, 2, 16, generator=torch.Generator().manual_seed(3))
    given = {key: x.float().to(dtype) if isinstance(x, Tensor) else x for key, x in inputs.items()}
    leaves = [given[key].requires_grad_() for key in ("q", "lam")]
    return torch.autograd.grad(mesa(**given, implementation=name)[0], leaves, weights.to(dtype))


@pytest.mark.parametrize("implementation", ["recurrent", "chunked", "fused"])
@pytest.mark.parametrize("seed", range(3))
def test_a_first_residual_much_longer_than_the_query_costs_no_digits(seed: int, implementation: str) -> None:
    exact = slopes_far_from_the_query(seed, "recurrent", torch.float64)
    for x, y in zip(slopes_far_from_the_query(seed, implementation, torch.float32), exact, strict=True):
        assert (x - y).norm() <= 1.5e-5 * y.norm()


@pytest.mark.parametrize("implementation", ["recurrent", "chunked", "fused"])
def test_steps_beyond_the_solution_lead_away_from_nothing(implementation: str) -> None:
    """Sixty more than it takes: residuals are no more than rounding by then."""
    inputs = far_from_the_query(64, 96)
    rounded = {key: x.float() if isinstance(x, Tensor) else x for key, x in inputs.items()}
    exact = mesa(**{key: x.double() if isinstance(x, Tensor) else x for key, x in rounded.items()})[0]
    o = mesa(**rounded, implementation=implementation)[0]
    assert (o - exact).norm(dim=1).div(exact.norm(dim=1)).max() <= 1e-4


@IMPLEMENTATIONS
def test_few_steps_have_another_gradient_unrolled(implementation: str) -> None:
    inputs = {key: x.requires_grad_() for key, x in example("head", time=12).items()}
    gradients = [
        torch.autograd.grad(mesa(**inputs, steps=1, gradient=g, implementation=implementation)[0].sum(), inputs["k"])[0]
        for g in get_args(Gradient)
    ]
    assert not torch.allclose(gradients[0], gradients[1], rtol=1e-3)


@IMPLEMENTATIONS
@pytest.mark.parametrize("gradient", ["implicit", "unroll"])
def test_zero_queries_and_converged_rows_divide_by_nothing(gradient: Gradient, implementation: str) -> None:
    inputs = {key: x.float() for key, x in example("head", time=20).items()}
    inputs["q"][:, 3:5], inputs["k"][:, 4:6], inputs["beta"][:, 7] = 0, 0, 0
    inputs = {key: x.requires_grad_() for key, x in inputs.items()}
    o, _ = mesa(**inputs, steps=60, gradient=gradient, implementation=implementation)
    assert not o[:, 3:5].any()
    assert o.isfinite().all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(o.sum(), list(inputs.values())))


@pytest.mark.parametrize("implementation", ["recurrent", "chunked", "fused"])
@pytest.mark.parametrize("x0", get_args(Start))
def test_queries_that_are_no_numbers_are_seen_in_outputs(x0: Start, implementation: str) -> None:
    inputs = {key: x.float() for key, x in example("head", 20).items()}
    inputs["q"][0] = torch.nan
    o, _ = mesa(**inputs, x0=x0, implementation=implementation)
    assert o[0].isnan().all()
    assert o[1].isfinite().all()


@IMPLEMENTATIONS
def test_a_tolerance_stops_every_row_for_itself(implementation: str) -> None:
    inputs = example("head", key_width=16)
    exact = mesa(**inputs, steps=60, implementation=implementation)[0]
    rough = mesa(**inputs, steps=60, tolerance=1e-3, implementation=implementation)[0]
    taken = mesa_steps_taken(**inputs, steps=60, tolerance=1e-3, implementation=implementation)
    assert taken.shape == (2, 40, 2)
    assert 1 <= taken.min() < taken.max() < 16
    assert torch.equal(mesa_steps_taken(**inputs, steps=3, implementation=implementation), torch.full_like(taken, 3))
    torch.testing.assert_close(rough, exact, rtol=1e-2, atol=1e-2)
    assert not torch.allclose(rough, exact, rtol=1e-6)
    alone = {key: x if key == "lam" else x[:1] for key, x in inputs.items()}
    first = mesa(**alone, steps=60, tolerance=1e-3, implementation=implementation)[0]
    close(first, rough[:1])


def test_steps_taken_do_not_depend_on_the_implementation() -> None:
    inputs = example("head", time=70, key_width=16)
    taken = [mesa_steps_taken(**inputs, tolerance=1e-4, implementation=name) for name in ("recurrent", "chunked")]
    assert torch.equal(*taken)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": -1}, "steps must be at least 0, got -1"),
        ({"tolerance": 0.0}, "tolerance must lie between 0 and 1"),
        ({"x0": "k"}, "x0 must be one of diag, q, zero; got 'k'"),
        ({"gradient": "none"}, "gradient must be one of implicit, unroll; got 'none'"),
        ({"lam": torch.ones(6)}, r"lam has shape \[6\], must be \[2, 6\]"),
    ],
)
def test_what_cannot_be_is_told(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"mesa: {message}"):
        mesa(**example("head", time=5) | wrong)


def test_compiled_members_keep_their_gradients() -> None:
    """Dynamo takes what it finds under vmap for constants and drops a custom backward, unless it may not look into it."""
    torch.compiler.allow_in_graph(CHUNKS.implicit)  # what the op does itself on a GPU, where cohorts are compiled
    members = [example("head", time=6) for _ in range(2)]
    names = list(members[0])
    stacked = [torch.stack([member[name] for member in members]).requires_grad_() for name in names]

    def cohort(*xs: Tensor) -> Tensor:
        return torch.vmap(lambda *x: mesa(**dict(zip(names, x, strict=True)), steps=2, implementation="chunked")[0])(
            *xs
        )

    expected = cohort(*stacked)
    found = torch.compile(cohort, backend="aot_eager", fullgraph=True)(*stacked)
    close(found, expected)
    for x, y in zip(*(torch.autograd.grad(o.square().sum(), stacked) for o in (found, expected)), strict=True):
        close(x, y)


def ridged(time: int = 12, **more: Any) -> dict[str, Any]:
    inputs = example("ridge", time) | {"ridge": 0.02} | more
    return {key: x for key, x in inputs.items() if key != "alpha" or "alpha" in more}


def exact_ridge(inputs: dict[str, Any]) -> Tensor:
    """A dense solve for every token of kk + ridge |kk|, differentiable."""
    kk, kv, outputs = torch.zeros(2, 2, 6, 6).double(), torch.zeros(2, 2, 6, 3).double(), []
    for t in range(inputs["k"].shape[1]):
        q, k, v, decay, beta = (inputs[key][:, t] for key in ("q", "k", "v", "log_decay", "beta"))
        fade, write = decay.exp()[..., None, None], (beta[..., None] * k)[..., None]
        kk, kv = fade * kk + write * k[..., None, :], fade * kv + write * v[..., None, :]
        lam = inputs["ridge"] * kk.square().sum((-2, -1), keepdim=True).sqrt()
        solved = torch.linalg.solve(kk + lam * torch.eye(6).double(), q)
        outputs.append((solved[..., None, :] @ kv).squeeze(-2))
    return torch.stack(outputs, 1)


@IMPLEMENTATIONS
@pytest.mark.parametrize(("steps", "off"), [(30, 1e-3), (60, 1e-6), (120, 1e-9)])
def test_chebyshevs_iteration_nears_the_dense_solve_by_its_own_pace(
    steps: int, off: float, implementation: str
) -> None:
    """11.6: 2 * 0.754^n at most, whatever the data; the answers here are at most of length 2."""
    inputs = ridged(steps=steps)
    found, expected = mesa(**inputs, implementation=implementation)[0], exact_ridge(inputs)
    assert (found - expected).norm() <= off * expected.norm()


@IMPLEMENTATIONS
def test_gradients_of_a_ridge_go_through_the_norm(implementation: str) -> None:
    inputs = ridged(steps=120)
    leaves = [inputs[key].requires_grad_() for key in ("q", "k", "v", "log_decay", "beta")]
    found = torch.autograd.grad(mesa(**inputs, implementation=implementation)[0].sin().sum(), leaves)
    for x, y in zip(found, torch.autograd.grad(exact_ridge(inputs).sin().sum(), leaves), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-7, atol=1e-9)


@IMPLEMENTATIONS
def test_a_ridge_does_not_see_how_strongly_everything_was_written(implementation: str) -> None:
    """11.6: w -> 7 w changes nothing."""
    inputs = ridged()
    stronger = inputs | {"beta": 7 * inputs["beta"]}
    close(mesa(**stronger, implementation=implementation)[0], mesa(**inputs, implementation=implementation)[0])


@IMPLEMENTATIONS
def test_the_first_token_under_a_ridge_is_read_by_its_key(implementation: str) -> None:
    """11.6: o = (q . k) v / (1 + a)."""
    inputs = ridged(1, steps=120)
    expected = (inputs["q"] * inputs["k"]).sum(-1, keepdim=True) * inputs["v"] / 1.02
    close(mesa(**inputs, implementation=implementation)[0], expected)


@IMPLEMENTATIONS
def test_a_ridge_of_nothing_gives_nothing_and_no_nan(implementation: str) -> None:
    """11.6"""
    inputs = ridged()
    inputs["k"] = torch.zeros_like(inputs["k"])
    leaves = [inputs[key].requires_grad_() for key in ("q", "k", "v", "log_decay", "beta")]
    o, _ = mesa(**inputs, implementation=implementation)
    assert not o.any()
    assert all(x.isfinite().all() for x in torch.autograd.grad(o.sum(), leaves))


@IMPLEMENTATIONS
def test_what_reads_is_between_the_query_and_the_solution(implementation: str) -> None:
    """11.6: alpha = 0 is gated linear attention."""
    inputs = ridged()
    plain = {key: inputs[key] for key in ("q", "k", "v", "log_decay", "beta")}
    query, solution = gated_linear(**plain)[0], mesa(**inputs, implementation=implementation)[0]
    for alpha in (0.0, 0.3, 1.0):
        o, _ = mesa(**inputs, alpha=torch.full_like(inputs["beta"], alpha), implementation=implementation)
        close(o, (1 - alpha) * query + alpha * solution)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lam": torch.ones(2, 6)}, "give either lam or ridge, got both"),
        ({"ridge": None}, "give either lam or ridge, got neither"),
        ({"ridge": -0.1}, "ridge must be positive, got -0.1"),
        ({"sign": torch.ones(2, 5, 2)}, "a ridge bounds what has no negative eigenvalues: give lam with signs"),
    ],
)
def test_a_ridge_that_cannot_be_is_told(wrong: dict[str, Any], message: str) -> None:
    inputs = {key: x.float() if isinstance(x, Tensor) else x for key, x in ridged(5).items()}
    with pytest.raises(ValueError, match=message):
        mesa(**inputs | wrong)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_fused_reads_queries_keys_and_values_as_they_lie(device: str) -> None:
    """As parts of one tensor, which a linear map and a convolution leave; and with gaps between heads."""
    inputs = example("head", 20, value_width=6)
    parts = torch.stack([inputs[name] for name in "qkv"]).float().to(device)
    others = {name: x.float().to(device) for name, x in inputs.items() if name not in "qkv"}

    def everything(*qkv: Tensor) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() for x in qkv]
        assert [x.stride() for x in leaves] == [x.stride() for x in qkv]
        o, _ = mesa(*leaves, **others, steps=3, implementation="fused")
        return [o, *torch.autograd.grad(o.sin().sum(), leaves)]

    expected = everything(*parts)
    for axis in (2, 3, 4):
        apart = torch.stack(list(parts), axis).unbind(axis)
        for x, y in zip(everything(*apart), expected, strict=True):
            assert torch.equal(x, y)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("variant", ["head", "ridge"])
@pytest.mark.parametrize("key_width", [72, 128])
def test_fused_of_wide_keys_is_the_recurrence(key_width: int, variant: str, device: str) -> None:
    """Their derivatives in fp32 take a state by blocks."""
    inputs = example(variant, 70, batch=1, key_width=key_width, value_width=40)
    given = {key: x.float().to(device) if isinstance(x, Tensor) else x for key, x in inputs.items()}
    assert timing.disagreement("mesa", "fused", given) <= 1


def test_segments_that_are_walked_side_by_side_are_one_sequence() -> None:
    """A few sequences do not fill a GPU: of 300 tokens in chunks of 16 two halves are walked at once."""
    assert segments_for(programs=2 * 2 * 2, chunks=19) == 2
    inputs = {key: x.float().requires_grad_() for key, x in example("head", 300).items()}
    state = MesaState(torch.eye(6).repeat(2, 2, 1, 1).requires_grad_(), torch.ones(2, 2, 6, 3).requires_grad_())

    def everything(implementation: str) -> list[Tensor]:
        o, last = mesa(**inputs, steps=8, initial_state=state, return_state=True, implementation=implementation)
        assert last is not None
        by = torch.autograd.grad(o.sin().sum() + sum(x.square().sum() for x in last), [*inputs.values(), *state])
        return [o, *last, *by]

    for x, y in zip(everything("fused"), everything("chunked"), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4 * float(y.detach().abs().max()))


@pytest.mark.usefixtures("tensor_cores")
def test_in_bf16_a_gradient_of_two_keys_that_repeat_keeps_its_digits() -> None:
    """The solver may not stop before the smallest eigenvalues are served, nor its directions lose what they were rounded by."""
    inputs = example("from_query", 200, batch=1, heads=1, key_width=16, value_width=16)
    inputs["k"] = inputs["k"][:, torch.arange(200) % 2]
    inputs |= {
        "log_decay": 0.002 * inputs["log_decay"].clamp(min=-1),
        "beta": torch.full((1, 200, 1), 0.99),
        "steps": 24,
    }
    rounded = {key: x.bfloat16() if isinstance(x, Tensor) else x for key, x in inputs.items()}

    def by_query(implementation: str, dtype: torch.dtype) -> Tensor:
        given = {key: x.to(dtype) if isinstance(x, Tensor) else x for key, x in rounded.items()}
        given["q"].requires_grad_()
        o, _ = mesa(**given, implementation=implementation)
        return torch.autograd.grad((o * torch.ones_like(o).cumsum(1).cos()).sum(), given["q"])[0]

    assert error(by_query("fused", torch.bfloat16), by_query("recurrent", torch.float64), (0, 2)) < 0.02
