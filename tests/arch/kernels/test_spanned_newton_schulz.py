"""Newton-Schulz of matrices in the span of the same vectors: by what each becomes what newton_schulz makes of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import select
from recallmap.arch.kernels.newton_schulz import newton_schulz
from recallmap.arch.kernels.spanned_newton_schulz import spanned_newton_schulz

NAMES = select.implementations("spanned_newton_schulz")
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given(rows: int, vectors: int, columns: int, tokens: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """U [B, H, R, S], x and D."""
    u, x, d = drawn(2, 2, rows, vectors), drawn(2, tokens, 2, vectors, seed=1), drawn(2, 2, vectors, columns, seed=2)
    return u, x, d


def results(x: Tensor, d: Tensor, u: Tensor, **dials: Any) -> list[Tensor]:
    """Outputs, and the gradients of a random function of them."""
    leaves = [t.detach().requires_grad_() for t in (x, d, u)]
    y, _ = spanned_newton_schulz(*leaves, **dials)
    slopes = torch.autograd.grad(y, leaves, drawn(*y.shape, seed=3).to(y))
    return [t.detach().cpu() for t in (y, *slopes)]


def assert_all_close(found: list[Tensor], expected: list[Tensor], bound: float) -> None:
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y, rtol=bound, atol=bound * float(y.abs().max()))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("rows", "vectors", "columns"),
    [(153, 35, 16), (70, 64, 16), (16, 35, 16), (45, 27, 8), (9, 7, 5), (12, 23, 3), (40, 51, 32), (3, 4, 7)],
    ids=str,
)
def test_a_matrix_times_it_is_newton_schulz_of_the_matrix(
    name: str, rows: int, vectors: int, columns: int, device: str
) -> None:
    """With its derivatives, whatever its shape: more rows than vectors, as many columns as rows, and fewer rows."""
    leaves = [t.to(device).requires_grad_() for t in given(rows, vectors, columns)]
    u, x, d = leaves
    p = u[:, None] @ (x[..., None] * d[:, None])
    weight = drawn(*p.shape, seed=3).to(device)
    expected, _ = newton_schulz(p, implementation="recurrent")
    found = p @ spanned_newton_schulz(x, d, u, implementation=name)[0]
    assert_close(found, expected, rtol=1e-8, atol=1e-8)
    slopes, wanted = (torch.autograd.grad(y, leaves, weight, retain_graph=True) for y in (found, expected))
    assert_all_close([*slopes], [*wanted], 1e-7)


@cache
def sound(name: str, columns: int, device: str) -> list[Tensor]:
    u, x, d = given(9, 7, columns)
    return results(x.to(device), d.to(device), u.to(device), implementation=name)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", [3, 5, 16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")  # the interpreter's, of numpy
def test_a_matrix_that_is_not_finite_spoils_no_other(name: str, columns: int, bad: float, device: str) -> None:
    u, x, d = given(9, 7, columns)
    spoilt = x.clone()
    spoilt[0, 1, 1] = bad
    others = torch.ones(x.shape[:3], dtype=torch.bool)
    others[0, 1, 1] = False
    expected = sound(name, columns, device)
    found = results(spoilt.to(device), d.to(device), u.to(device), implementation=name)
    for of_spoilt, of_sound in zip(found[:2], expected[:2], strict=True):
        assert_close(of_spoilt[others], of_sound[others])


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", NAMES)
def test_small_singular_values_keep_their_digits(name: str, device: str) -> None:
    left, _, right = torch.linalg.svd(drawn(1, 1, 60, 16), full_matrices=False)
    u = left @ torch.diag_embed(torch.logspace(0, -6, 16, dtype=torch.float64)) @ right
    x, d = torch.ones(1, 1, 1, 16, dtype=torch.float64), torch.eye(16, dtype=torch.float64)[None, None]
    q = spanned_newton_schulz(x.to(device), d.to(device), u.to(device), implementation=name)[0].cpu()
    assert_close(u @ q[0], newton_schulz(u, implementation="recurrent")[0], rtol=0, atol=1e-7)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 6, 7])
def test_fused_takes_any_number_of_steps(steps: int, device: str) -> None:
    u, x, d = given(9, 8, 5)
    expected = results(x, d, u, steps=steps, implementation="recurrent")
    found = results(x.to(device), d.to(device), u.to(device), steps=steps, implementation="fused")
    assert_all_close(found, expected, 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_of_zeros_it_is_finite_and_so_are_its_derivatives(name: str) -> None:
    u, x, d = given(4, 3, 3, tokens=1)
    q, *slopes = results(0 * x, d, u, steps=2, implementation=name)
    assert_close(q[0, 0, 0], 3.4445**2 / 1e-7 * torch.eye(3, dtype=torch.float64), rtol=1e-6, atol=0)
    assert all(slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("empty", range(6))
def test_of_nothing_it_is_nothing_and_its_derivatives_are_zero(empty: int, name: str) -> None:
    batch, tokens, heads, rows, vectors, columns = (0 if i == empty else n for i, n in enumerate((2, 3, 2, 5, 4, 3)))
    x, d = drawn(batch, tokens, heads, vectors), drawn(batch, heads, vectors, columns)
    q, *slopes = results(x, d, drawn(batch, heads, rows, vectors), implementation=name)
    assert q.shape == (batch, tokens, heads, columns, columns)
    assert all(not slope.any() for slope in slopes)


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        (
            ((2, 3, 4), (2, 3, 4, 5), (2, 3, 9, 4)),
            r"x must be \[B, T, H, S\], d .* and u \[B, H, R, S\], got \[2, 3, 4\], ",
        ),
        (((2, 9, 3, 4), (2, 3, 6, 5), (2, 3, 9, 4)), "d has shape"),
        (((2, 9, 3, 4), (2, 3, 4, 5), (2, 3, 9, 5)), "u has shape"),
    ],
)
def test_shapes_that_do_not_fit_are_told(shapes: tuple[tuple[int, ...], ...], told: str) -> None:
    with pytest.raises(ValueError, match=f"spanned_newton_schulz: {told}"):
        spanned_newton_schulz(*(torch.zeros(shape) for shape in shapes))


def test_no_step_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="spanned_newton_schulz: steps must be at least 1, got 0"):
        spanned_newton_schulz(torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2), torch.zeros(1, 1, 2, 2), steps=0)


@pytest.mark.parametrize(
    ("vectors", "columns", "told"),
    [(4, 33, "takes matrices of at most 32 columns, got 33"), (65, 8, "takes at most 64 vectors, got 65")],
)
def test_what_the_kernels_cannot_hold_is_told(vectors: int, columns: int, told: str) -> None:
    given = torch.zeros(1, 1, 1, vectors), torch.zeros(1, 1, vectors, columns), torch.zeros(1, 1, vectors, vectors)
    with pytest.raises(ValueError, match=f"implementation 'fused' {told}; use 'chunked'"):
        spanned_newton_schulz(*given, implementation="fused")
