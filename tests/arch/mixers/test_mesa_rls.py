"""The first Mesa layer: least squares by recursion, with a ridge that fades."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from recallmap.arch.mixers.mesa import Mesa
from recallmap.arch.mixers.mesa_rls import MesaRls
from recallmap.arch.mixers.mixer import StateSize


def solved(module: nn.Module, x: Tensor, fade: Tensor) -> Tensor:
    """Every read-out from a dense solve of its regression, the ridge fading with the past."""
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    beta = torch.sigmoid(module.get_submodule("write.linear")(x))
    keys = torch.diag_embed(0.25 + nn.functional.softplus(module.get_parameter("ridge"))).expand(1, -1, -1, -1)
    values = torch.zeros_like(keys)
    outputs = []
    for t in range(x.shape[1]):
        key = beta[:, t, :, None, None] * k[:, t, :, :, None]
        keys = fade[:, t, :, None, None] * keys + key * k[:, t, :, None]
        values = fade[:, t, :, None, None] * values + key * v[:, t, :, None]
        outputs.append((q[:, t, :, None] @ torch.linalg.solve(keys, values)).squeeze(-2))
    y: Tensor = module.get_submodule("out")(module.get_submodule("read")(torch.stack(outputs, 1), x))
    return y


def test_it_solves_the_ridge_regression_whose_ridge_fades_too() -> None:
    torch.manual_seed(0)
    module, x = MesaRls(heads=2, least_decay=0.7).build(16).double(), torch.randn(1, 19, 16, dtype=torch.float64)
    nn.init.normal_(module.get_parameter("ridge"))
    nn.init.zeros_(module.get_parameter("decay.linear.bias"))
    fade = 0.7 + 0.3 * torch.sigmoid(module.get_submodule("decay.linear")(x))
    assert_close(module(x)[0], solved(module, x, fade), rtol=1e-9, atol=1e-9)


def test_what_never_fades_is_mesa() -> None:
    torch.manual_seed(0)
    rls, mesa = MesaRls(heads=2, least_decay=1.0).build(16).double(), Mesa(heads=2, decay_cap=1.0).build(16).double()
    mesa.load_state_dict(rls.state_dict(), strict=False)
    nn.init.zeros_(mesa.get_parameter("decay.linear.weight"))
    nn.init.constant_(mesa.get_parameter("decay.linear.bias"), 50.0)
    x = torch.randn(2, 37, 16, dtype=torch.float64)
    assert_close(rls(x)[0], mesa(x)[0], rtol=1e-9, atol=1e-9)


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 128, 8, 16, 16
    spec = MesaRls(heads=h)
    count = sum(p.numel() for p in spec.build(d).parameters())
    assert count == 2 * d * h * (k + v) + 8 * h * k + 2 * (d * h + h) + h * v + h * k
    assert spec.state_size(d, 1000) == StateSize(h * (k * v + k * k) + 3 * 2 * h * k)
    core = 4 * k * v + 7 * k * k
    assert spec.flops(d, 1000) == 2 * d * h * (2 * k + 2 * v + 2) + 8 * 2 * h * k + h * core


@pytest.mark.parametrize(
    ("dials", "message"),
    [
        ({"least_decay": 0.0}, "least_decay must lie in"),
        ({"lambda_floor": 0.0}, "lambda_floor must be positive"),
        ({"lambda_init": 0.25}, "lambda_init must be above lambda_floor"),
    ],
)
def test_what_makes_the_solve_ill_posed_is_refused(dials: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MesaRls(**dials)  # type: ignore[arg-type]
