"""Recursive least squares: the exact solution at every token, of a regression whose regulariser fades with the past."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.kernels.benchmark.tolerance import error
from recallmap.arch.kernels.mesa_rls import MesaRlsState

IMPLEMENTATIONS = ["recurrent", "chunked"]
HEADS, K, V = 2, 4, 3


def drawn(time: int = 41, *, least: float = 0.8, groups: int = HEADS, seed: int = 0) -> dict[str, Any]:
    """Unit keys, decays between `least` and 1, every fifth token not written."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    beta = normal(2, time, HEADS).sigmoid() * (torch.arange(time) % 5 != 3)[:, None]
    return {
        "q": normalize(normal(2, time, groups, K), dim=-1),
        "k": normalize(normal(2, time, groups, K), dim=-1),
        "v": normal(2, time, HEADS, V),
        "lam": 0.25 + normal(HEADS, K).exp(),
        "log_decay": (least + (1 - least) * normal(2, time, HEADS).sigmoid()).log(),
        "beta": beta,
    }


def everything(inputs: dict[str, Any], state: MesaRlsState | None, name: str, chunk: int | None = None) -> list[Tensor]:
    """Outputs, the last state, and the gradients of a function of both."""
    leaves = {key: x.detach().requires_grad_() for key, x in inputs.items()}
    initial = None if state is None else MesaRlsState(*(x.detach().requires_grad_() for x in state))
    o, last = kernels.mesa_rls(**leaves, initial_state=initial, return_state=True, implementation=name, chunk=chunk)
    assert last is not None
    wanted = [x for key, x in leaves.items() if initial is None or key != "lam"]  # a state has lam in it
    loss = o.sin().sum() + last.P.sin().sum() + last.kv.sin().sum()
    return [o, *last, *torch.autograd.grad(loss, [*wanted, *(initial or ())])]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_it_is_the_dense_solution_with_a_fading_regulariser(name: str) -> None:
    inputs = drawn()
    q, k, v, lam, log_decay, beta = inputs.values()
    kk, kv, outputs = torch.diag_embed(lam).expand(2, -1, -1, -1), torch.zeros(2, HEADS, K, V).double(), []
    for t in range(41):
        fade, key = log_decay[:, t, :, None, None].exp(), beta[:, t, :, None, None] * k[:, t, ..., None]
        kk, kv = fade * kk + key * k[:, t, :, None], fade * kv + key * v[:, t, :, None]
        outputs.append((q[:, t, :, None] @ torch.linalg.solve(kk, kv)).squeeze(-2))
    o, last = kernels.mesa_rls(**inputs, return_state=True, implementation=name)
    assert_close(o, torch.stack(outputs, 1), rtol=1e-9, atol=1e-9)
    assert last is not None
    assert_close(last.P, torch.linalg.inv(kk), rtol=1e-9, atol=1e-9)
    assert_close(last.kv, kv)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_without_decay_it_is_mesa_and_newtons_method(name: str) -> None:
    inputs = {key: x for key, x in drawn().items() if key != "log_decay"}
    found, _ = kernels.mesa_rls(**inputs, implementation=name)
    assert_close(found, kernels.mesa(**inputs, steps=60)[0], rtol=1e-9, atol=1e-9)

    q, k, v, lam, beta = inputs.values()
    kk, weights, outputs = torch.diag_embed(lam).expand(2, -1, -1, -1), torch.zeros(2, HEADS, K, V).double(), []
    for t in range(41):
        key, strength = k[:, t, :, None], beta[:, t, :, None, None]
        kk = kk + strength * key.mT @ key
        weights = weights - torch.linalg.solve(kk, strength * key.mT @ (key @ weights - v[:, t, :, None]))
        outputs.append((q[:, t, :, None] @ weights).squeeze(-2))
    assert_close(found, torch.stack(outputs, 1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_with_hardly_any_regulariser_it_recalls_what_fits(name: str) -> None:
    inputs = {key: x for key, x in drawn(K).items() if key in ("k", "v")}
    _, state = kernels.mesa_rls(
        inputs["k"], **inputs, lam=torch.full((HEADS, K), 1e-9).double(), return_state=True, implementation=name
    )
    assert state is not None
    assert_close(torch.einsum("bthk,bhkv->bthv", inputs["k"], state.P @ state.kv), inputs["v"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("time", [1, 3, 16, 41])
@pytest.mark.parametrize("groups", [1, HEADS])
def test_chunks_are_the_recursion(time: int, groups: int) -> None:
    inputs = drawn(time, groups=groups)
    for state in (None, kernels.mesa_rls(**drawn(20, seed=7), return_state=True)[1]):
        expected = everything(inputs, state, "recurrent")
        for chunk in (None, 1, 5, 64):
            for x, y in zip(everything(inputs, state, "chunked", chunk), expected, strict=True):
                assert_close(x, y, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("cut", [1, 16, 39])
def test_a_sequence_can_be_cut_anywhere(name: str, cut: int) -> None:
    inputs = drawn()
    halves = [
        {k: x if k == "lam" else x[:, half] for k, x in inputs.items()} for half in (slice(cut), slice(cut, None))
    ]
    whole, end = kernels.mesa_rls(**inputs, return_state=True, implementation=name)
    first, state = kernels.mesa_rls(**halves[0], return_state=True, implementation=name)
    second, last = kernels.mesa_rls(**halves[1], initial_state=state, return_state=True, implementation=name)
    assert_close(torch.cat((first, second), 1), whole)
    assert_close(last, end)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_low_precision_inputs_cost_no_more_than_their_rounding(name: str, dtype: torch.dtype) -> None:
    inputs = drawn(200, least=0.9)
    inputs |= {key: inputs[key].to(dtype) for key in "qkv"} | {
        k: inputs[k].float() for k in ("lam", "log_decay", "beta")
    }
    exact, _ = kernels.mesa_rls(**{key: x.double() for key, x in inputs.items()}, implementation="recurrent")
    found, _ = kernels.mesa_rls(**inputs, implementation=name)
    assert found.dtype == dtype
    assert error(found, exact, (0, 2)) <= (2e-5 if dtype == torch.float32 else 1e-2)


def test_gradients_are_those_of_finite_differences() -> None:
    inputs = drawn(5)
    inputs["beta"] = inputs["beta"] + 0.1  # below 0 there is no regression to solve
    state = kernels.mesa_rls(**drawn(20, seed=7), return_state=True)[1]
    assert state is not None
    names = list(inputs)

    def outputs(*xs: Tensor) -> tuple[Tensor, ...]:
        now: dict[str, Any] = dict(zip(names, xs, strict=False))
        initial = MesaRlsState(*xs[len(names) :])
        fresh, begun = kernels.mesa_rls(**now, return_state=True, implementation="chunked", chunk=3)
        o, last = kernels.mesa_rls(**now, initial_state=initial, return_state=True, implementation="chunked", chunk=3)
        return fresh, o, *(begun or ()), *(last or ())

    assert torch.autograd.gradcheck(
        outputs, [x.detach().requires_grad_() for x in [*inputs.values(), *state]], fast_mode=True
    )


def test_a_token_that_is_not_written_can_learn_to_be() -> None:
    beta = torch.zeros(2, 41, HEADS, dtype=torch.float64).requires_grad_()
    slopes = []
    for name in IMPLEMENTATIONS:
        o, _ = kernels.mesa_rls(**drawn() | {"beta": beta}, implementation=name)
        slopes.append(torch.autograd.grad((o * torch.arange(o.numel()).view(o.shape).sin()).sum(), beta)[0])
    assert slopes[0].abs().min() > 0
    assert_close(*slopes)


def test_members_of_a_cohort_are_what_they_are_alone() -> None:
    members = [drawn(20, seed=seed) for seed in range(3)]
    stacked = {key: torch.stack([m[key] for m in members]) for key in members[0]}

    def loss(inputs: dict[str, Any]) -> Tensor:
        o, last = kernels.mesa_rls(**inputs, return_state=True)
        return o.sin().sum() + sum((x.cos().sum() for x in last or ()), torch.zeros(()))

    together = torch.vmap(torch.func.grad(loss))(stacked)
    for number, member in enumerate(members):
        for key, slope in torch.func.grad(loss)(member).items():
            assert_close(together[key][number], slope, rtol=1e-9, atol=1e-11)


def test_no_tokens_give_no_outputs_and_the_state_as_it_was() -> None:
    empty = {key: x if key == "lam" else x[:, :0] for key, x in drawn(1).items()}
    o, state = kernels.mesa_rls(**empty, return_state=True)
    assert o.shape == (2, 0, HEADS, V)
    assert state is not None
    assert_close(state.P, torch.diag_embed(1 / empty["lam"]).expand(2, -1, -1, -1))
    assert not state.kv.any()


def test_inputs_that_do_not_fit_are_told() -> None:
    inputs = drawn(2)
    with pytest.raises(ValueError, match=r"mesa_rls: lam has shape \[2, 3\], must be \[2, 4\]"):
        kernels.mesa_rls(**inputs | {"lam": inputs["lam"][:, :3]})
    with pytest.raises(ValueError, match=r"mesa_rls: state has shape \[2, 2, 3, 3\], must be \[2, 2, 4, 4\]"):
        kernels.mesa_rls(**inputs, initial_state=MesaRlsState(torch.eye(3).expand(2, 2, 3, 3), torch.zeros(2, 2, 4, 3)))
