"""Newton-Schulz: singular values near one, the same vectors, whatever the shape; and its kernels at the shapes of memories."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark.tolerance import error, tolerance
from recallmap.arch.kernels.newton_schulz import newton_schulz

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
SHAPES = [
    *((16, 16), (5, 20), (32, 16), (64, 17), (8, 8), (5, 3), (3, 3)),  # in registers: wide, tall, odd, several together
    *((64, 64), (70, 33)),  # in tiles: square, tall and odd
    *((20, 100), (153, 16), (3, 300), (64, 16), (33, 7)),  # by squares of the short side: wide, tall, odd
]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def results(x: Tensor, weight: Tensor | None = None, **dials: Any) -> list[Tensor]:
    """Outputs, and the gradient of a random function of them, or of their product with `weight`."""
    x = x.detach().requires_grad_()
    y, _ = newton_schulz(x, **dials)
    weight = (drawn(*y.shape, seed=1) if weight is None else weight).bfloat16().to(y.device, y.dtype)
    return [y.detach().cpu(), torch.autograd.grad(y, x, weight)[0].cpu()]


def assert_fused_agrees(x: Tensor, dtype: torch.dtype, device: str, *, steps: int = 5) -> None:
    x = x.to(dtype)
    expected = results(x.double(), steps=steps, implementation="recurrent")
    found = results(x.to(device), steps=steps, implementation="fused")
    for of, a, b in zip(("output", "gradient"), found, expected, strict=True):
        assert a.dtype == dtype
        axes = tuple(range(a.ndim - 2))
        assert error(a, b, axes) <= tolerance("newton_schulz", dtype, of=of), of  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["recurrent", "chunked"])
def test_it_brings_singular_values_near_one_and_keeps_their_vectors(name: str) -> None:
    x = drawn(5, 4, 7)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    y, _ = newton_schulz(x, implementation=name)
    s = s / s.norm(dim=-1, keepdim=True)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    assert_close(y, u @ torch.diag_embed(s) @ vh, rtol=1e-6, atol=1e-6)
    assert (s > 0.68).all()
    assert (s < 1.16).all()


@pytest.mark.parametrize("name", ["recurrent", "chunked"])
def test_it_is_odd_blind_to_scale_and_commutes_with_transposition(name: str) -> None:
    def orthogonal(x: Tensor) -> Tensor:
        return newton_schulz(x, implementation=name)[0]

    x = drawn(3, 4, 7)
    assert_close(orthogonal(-x), -orthogonal(x))
    assert_close(orthogonal(1e3 * x), orthogonal(x), rtol=1e-6, atol=1e-6)
    assert_close(orthogonal(x.mT), orthogonal(x).mT)


@pytest.mark.parametrize("name", select.implementations("newton_schulz"))
@pytest.mark.parametrize("shape", [(3, 3), (33, 34)])
def test_zeros_stay_zeros_and_have_a_finite_derivative(name: str, shape: tuple[int, int]) -> None:
    y, slope = results(torch.zeros(1, *shape), steps=2, implementation=name)
    assert not y.any()
    weight = drawn(1, *shape, seed=1).bfloat16().float()
    assert_close(slope, weight * 3.4445**2 / 1e-7, rtol=1e-5, atol=0)


@pytest.mark.parametrize("shape", [(5,), ()])
def test_what_is_no_matrix_is_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"newton_schulz: x must be \[..., rows, columns\], got shape"):
        newton_schulz(torch.zeros(shape))


def test_no_step_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="newton_schulz: steps must be at least 1, got 0"):
        newton_schulz(torch.zeros(2, 2), steps=0)


@pytest.mark.parametrize(("shape", "most"), [((129, 33), 128), ((4, 1025), 1024)], ids=str)
def test_matrices_too_wide_for_the_kernels_are_told(shape: tuple[int, int], most: int) -> None:
    told = f"implementation 'fused' holds matrices up to {most} wide, got {max(shape)}; use 'chunked'"
    with pytest.raises(ValueError, match=told):
        newton_schulz(torch.zeros(1, *shape), implementation="fused")


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fused_is_the_definition(shape: tuple[int, int], device: str) -> None:
    assert_fused_agrees(drawn(3, *shape), torch.float32, device, steps=2)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    ("shape", "steps"),
    [((9, 16), 1), ((9, 16), 5), ((40, 33), 1), ((40, 33), 3), *(((130, 5), n) for n in range(1, 8))],
    ids=str,
)
def test_fused_takes_any_number_of_steps(shape: tuple[int, int], steps: int, device: str) -> None:
    assert_fused_agrees(drawn(1, *shape), torch.float32, device, steps=steps)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("shape", [(3, 4), (9, 16), (40, 33), (130, 5)], ids=str)
def test_fused_programs_take_one_matrix_after_another(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    from recallmap.arch.kernels.newton_schulz.fused import launch

    monkeypatch.setattr(launch, "SCRATCH", 1)  # one program
    assert_fused_agrees(drawn(9 if max(shape) < 9 else 2, *shape), torch.float32, "cpu", steps=1)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", select.implementations("newton_schulz"))
@pytest.mark.parametrize("shape", [(4, 3), (5, 8), (16, 16)], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")  # the interpreter's, of numpy
def test_a_matrix_that_is_not_finite_spoils_no_other(
    name: str, shape: tuple[int, int], bad: float, device: str
) -> None:
    x = drawn(6, *shape).float().to(device)
    spoilt = x.clone()
    spoilt[3, 1, 0] = bad
    for of_spoilt, of_sound in zip(*(results(t, steps=3, implementation=name) for t in (spoilt, x)), strict=True):
        assert_close(of_spoilt[[0, 1, 2, 4, 5]], of_sound[[0, 1, 2, 4, 5]])


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("shape", [(153, 16), (17, 140)], ids=str)
def test_fused_keeps_the_digits_of_small_singular_values(shape: tuple[int, int], device: str) -> None:
    u, s, vh = torch.linalg.svd(drawn(1, *shape), full_matrices=False)
    x = u @ torch.diag_embed(torch.logspace(0, -6, s.shape[-1], dtype=torch.float64)) @ vh
    assert_fused_agrees(x, torch.float32, device)


def test_fused_takes_matrices_that_do_not_lie_side_by_side() -> None:
    x = drawn(2, 9, 2, 16, 2)
    for turned in (
        x.permute(0, 2, 4, 1, 3),
        x.permute(2, 4, 0, 3, 1),
        x.transpose(1, 2)[0],
        x[:1, :, 0].mT,
        x[0, :, 0, :, 0],
    ):
        assert_fused_agrees(turned, torch.float32, "cpu", steps=1)
    for rows, columns in ((3, 4), (8, 5), (33, 34), (130, 5)):
        assert_fused_agrees(drawn(2, rows, 2, columns).transpose(1, 2), torch.float32, "cpu", steps=1)


def test_fused_takes_a_matrix_of_every_member() -> None:
    x = drawn(3, 2, 9, 16).float().requires_grad_()
    together = torch.vmap(lambda one: newton_schulz(one, implementation="fused")[0], in_dims=1, out_dims=1)(x)
    alone, _ = newton_schulz(x, implementation="fused")
    assert_close(together, alone)
    for a, b in zip(*(torch.autograd.grad(y.sin().sum(), x) for y in (together, alone)), strict=True):
        assert_close(a, b)


@pytest.mark.gpu
@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        *((16, 16), (16, 32), (16, 64), (16, 128), (32, 32), (32, 64), (64, 32), (32, 128), (64, 64), (64, 128)),
        *((128, 64), (128, 128), (1, 100), (4, 9), (17, 5), (127, 90), (153, 16), (9, 256), (3, 1024), (561, 32)),
        *((8, 8), (6, 6), (4, 3)),
    ],
    ids=str,
)
def test_fused_at_every_shape(shape: tuple[int, int], dtype: torch.dtype) -> None:
    assert_fused_agrees(drawn(3, 50, *shape), dtype, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(8, 8), (16, 16), (64, 64), (153, 16)], ids=str)
def test_fused_gives_the_same_bits_every_time_for_more_matrices_than_programs(shape: tuple[int, int]) -> None:
    x = drawn(20_000, *shape).float().cuda()
    first, *others = (results(x, implementation="fused") for _ in range(3))
    assert all(torch.equal(a, b) for other in others for a, b in zip(other, first, strict=True))
    weight = drawn(*x.shape, seed=1)[-4:]
    assert_close(results(x[-4:], weight, implementation="fused")[1], first[1][-4:])
