"""Mesa: every read-out is the solution of a ridge regression."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.testing import assert_close

from recallmap.arch.mixers.gla import GatedLinearAttention
from recallmap.arch.mixers.mesa import Mesa
from recallmap.arch.mixers.mixer import StateSize


def test_without_a_step_from_the_query_it_is_gla() -> None:
    torch.manual_seed(0)
    mesa = Mesa(heads=2, cg_steps=0, x0="q", decay_cap=1.0).build(16).double()
    gla = GatedLinearAttention(heads=2).build(16).double()
    gla.load_state_dict({n: p for n, p in mesa.state_dict().items() if n != "ridge"})
    x = torch.randn(2, 37, 16, dtype=torch.float64)
    assert_close(mesa(x)[0], gla(x)[0])
    for module in (mesa, gla):
        module(x)[0].square().sum().backward()
    of_mesa = {name: p.grad for name, p in mesa.named_parameters()}
    assert_close(
        {name: of_mesa[name] for name, _ in gla.named_parameters()}, {n: p.grad for n, p in gla.named_parameters()}
    )
    assert of_mesa["ridge"] is None or not of_mesa["ridge"].any()


@pytest.mark.parametrize("steps", [1, 3])
def test_of_few_steps_the_gradient_is_their_own(steps: int) -> None:
    torch.manual_seed(0)
    module, x = Mesa(heads=2, cg_steps=steps).build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    names, given = zip(*((name, p.detach().requires_grad_()) for name, p in module.named_parameters()), strict=True)

    def answer(*given: Tensor) -> Tensor:
        y: Tensor = functional_call(module, dict(zip(names, given, strict=True)), (x,))[0]
        return y

    assert torch.autograd.gradcheck(answer, given, fast_mode=True)


@pytest.mark.parametrize(
    "spec",
    [
        Mesa(heads=2, x0="diag"),
        Mesa(heads=2, x0="q"),
        Mesa(heads=2, x0="zero"),
        Mesa(heads=2, signed_decay=True, lambda_floor=49.0, lambda_init=50.0),
    ],
    ids=["diag", "q", "zero", "signed"],
)
def test_it_solves_the_ridge_regression_of_all_it_saw(spec: Mesa) -> None:
    torch.manual_seed(0)
    module, x = spec.build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    nn.init.normal_(module.get_parameter("ridge"))
    nn.init.zeros_(module.get_parameter("decay.linear.bias"))
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    beta = torch.sigmoid(module.get_submodule("write.linear")(x))
    raw = module.get_submodule("decay.linear")(x)
    fade = (torch.tanh(raw / 2) if spec.signed_decay else torch.sigmoid(raw)) * (1 - (1 - 0.9975) * beta**2)
    assert (fade.min() < 0) == spec.signed_decay
    ridge = torch.diag_embed(spec.lambda_floor + nn.functional.softplus(module.get_parameter("ridge")))
    keys = values = torch.zeros(1, 2, 8, 8, dtype=torch.float64)
    outputs = []
    for t in range(9):
        key = beta[:, t, :, None, None] * k[:, t, :, :, None]
        keys = fade[:, t, :, None, None] * keys + key * k[:, t, :, None]
        values = fade[:, t, :, None, None] * values + key * v[:, t, :, None]
        outputs.append((q[:, t, :, None] @ torch.linalg.solve(keys + ridge, values)).squeeze(-2))
    read = module.get_submodule("read")(torch.stack(outputs, 1), x)
    assert_close(module(x)[0], module.get_submodule("out")(read), rtol=1e-8, atol=1e-8)


def test_lambda_starts_where_it_is_told() -> None:
    for init in (3.0, 1000.0):
        ridge = Mesa(heads=2, lambda_floor=0.5, lambda_init=init).build(16).get_parameter("ridge")
        assert_close(0.5 + nn.functional.softplus(ridge), torch.full((2, 8), init))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 128, 8, 16, 16
    spec = Mesa(heads=h)
    count = sum(p.numel() for p in spec.build(d).parameters())
    assert count == 2 * d * h * (k + v) + 8 * h * k + 2 * (d * h + h) + h * v + h * k
    assert spec.state_size(d, 1000) == StateSize(h * (k * v + k * k) + 3 * 2 * h * k)
    core = 5 * k * v + 3 * k * k + 31 * (2 * k * k + 12 * k)
    assert spec.flops(d, 1000) == 2 * d * h * (2 * k + 2 * v + 2) + 8 * 2 * h * k + h * core


@pytest.mark.parametrize(
    ("dials", "message"),
    [
        ({"tolerance": 0.0}, "tolerance must lie in"),
        ({"lambda_floor": 0.0}, "lambda_floor must be positive"),
        ({"lambda_init": 0.25}, "lambda_init must be above lambda_floor"),
        ({"decay_cap": 1.5}, "decay_cap must lie in"),
        ({"signed_decay": True}, "signed_decay needs lambda_floor of at least 49, got 0.25"),
    ],
)
def test_what_makes_the_solve_ill_posed_is_refused(dials: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mesa(**dials)  # type: ignore[arg-type]
