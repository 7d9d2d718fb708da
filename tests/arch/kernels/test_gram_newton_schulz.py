"""Newton-Schulz by S^T S: what S is multiplied by to be what newton_schulz makes of it; and its kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from arch.kernels import select
from arch.kernels.gram_newton_schulz import gram_newton_schulz
from arch.kernels.newton_schulz import newton_schulz

NAMES = select.implementations("gram_newton_schulz")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def results(x: Tensor, **dials: Any) -> list[Tensor]:
    """Outputs, and the gradient of a random function of them."""
    x = x.detach().requires_grad_()
    y, _ = gram_newton_schulz(x, **dials)
    return [y.detach().cpu(), torch.autograd.grad(y, x, drawn(*y.shape, seed=1).to(y))[0].cpu()]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rows", "columns"), [(153, 16), (20, 5), (40, 32), (3, 7)], ids=str)
def test_s_times_it_is_newton_schulz_of_s(name: str, rows: int, columns: int, device: str) -> None:
    """With its derivative by S, whatever its size and shape."""
    s = drawn(2, 3, rows, columns).to(device).requires_grad_()
    weight = drawn(2, 3, rows, columns, seed=1).to(device)
    expected, _ = newton_schulz(s, implementation="recurrent")
    found = s @ gram_newton_schulz(s.mT @ s, implementation=name)[0]
    assert_close(found, expected, rtol=1e-8, atol=1e-8)
    (slope,) = torch.autograd.grad(found, s, weight)
    assert_close(slope, torch.autograd.grad(expected, s, weight)[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", NAMES)
def test_small_singular_values_keep_their_digits_where_the_square_is_told_in_fp64(name: str, device: str) -> None:
    u, s, vh = torch.linalg.svd(drawn(1, 60, 16), full_matrices=False)
    s = u @ torch.diag_embed(torch.logspace(0, -6, s.shape[-1], dtype=torch.float64)) @ vh
    q = gram_newton_schulz((s.mT @ s).to(device), implementation=name)[0].cpu()
    expected = newton_schulz(s, implementation="recurrent")[0]
    assert_close(s @ q, expected, rtol=0, atol=1e-7)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7])
def test_fused_takes_any_number_of_steps(steps: int, device: str) -> None:
    s = drawn(2, 9, 5)
    expected = results(s.mT @ s, steps=steps, implementation="recurrent")
    for x, y in zip(results((s.mT @ s).to(device), steps=steps, implementation="fused"), expected, strict=True):
        assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("poisoned")
def test_fused_programs_take_one_matrix_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from arch.kernels.gram_newton_schulz import fused

    monkeypatch.setattr(fused, "SCRATCH", 1)  # one program
    s = drawn(3, 9, 5)
    expected = results(s.mT @ s, steps=2, implementation="recurrent")
    for x, y in zip(results(s.mT @ s, steps=2, implementation="fused"), expected, strict=True):
        assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_its_symmetric_part_alone_is_read(name: str) -> None:
    s, turn = drawn(4, 9, 5), drawn(4, 5, 5, seed=2)
    expected = results(s.mT @ s, implementation=name)
    for x, y in zip(results(s.mT @ s + turn - turn.mT, implementation=name), expected, strict=True):
        assert_close(x, y)
    assert_close(expected[1], expected[1].mT)


@pytest.mark.parametrize("name", NAMES)
def test_of_zeros_it_is_finite_and_so_is_its_derivative(name: str) -> None:
    q, slope = results(torch.zeros(1, 3, 3, dtype=torch.float64), steps=2, implementation=name)
    assert_close(q[0], 3.4445**2 / 1e-7 * torch.eye(3, dtype=torch.float64), rtol=1e-6, atol=0)
    assert slope.isfinite().all()


@pytest.mark.parametrize("shape", [(5,), (), (3, 4)])
def test_what_is_no_square_is_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"gram_newton_schulz: x must be \[..., columns, columns\], got shape"):
        gram_newton_schulz(torch.zeros(shape))


def test_no_step_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="gram_newton_schulz: steps must be at least 1, got 0"):
        gram_newton_schulz(torch.zeros(2, 2), steps=0)


def test_squares_too_wide_for_the_kernels_are_told() -> None:
    told = "implementation 'fused' takes squares up to 32 wide, got 33; use 'chunked'"
    with pytest.raises(ValueError, match=told):
        gram_newton_schulz(torch.zeros(1, 33, 33), implementation="fused")
