"""Vectors of tokens by kernels of our own: torch's, in numbers and derivatives, alone and as members of a cohort."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import embedding as door
from recallmap.arch.kernels.embedding import fused
from recallmap.arch.kernels.norm_gate import norm_gate

GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens(vocab: int, *shape: int) -> Tensor:
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize(
    ("vocab", "width", "batch", "time", "programs"),
    [(1, 1, 1, 1, 1), (11, 24, 2, 37, 1), (64, 80, 2, 45, 3), (70, 16, 3, 20, 9)],
    ids=["one", "one piece", "two blocks of channels", "two blocks of ids"],
)
def test_rows_and_their_derivative_are_torchs(
    vocab: int, width: int, batch: int, time: int, programs: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "PROGRAMS", programs)
    ids = tokens(vocab, batch, time).to(device)
    weight, signal = drawn(vocab, width).to(device).requires_grad_(), drawn(batch, time, width, seed=2).to(device)
    found, expected = fused.fused(ids, weight), torch.nn.functional.embedding(ids, weight)
    assert torch.equal(found, expected)
    (one,), (other,) = (torch.autograd.grad(y, weight, signal) for y in (found, expected))
    assert_close(one, other, rtol=1e-5, atol=1e-5)
    again = torch.autograd.grad(fused.fused(ids, weight), weight, signal)[0]
    assert torch.equal(one, again)


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("wanted", ["norms", "both"])
@pytest.mark.parametrize(
    ("vocab", "width", "batch", "time", "programs"), [(11, 24, 2, 37, 1), (70, 80, 2, 45, 3)], ids=["small", "wide"]
)
def test_rows_and_their_norms_are_those_in_parts(
    vocab: int,
    width: int,
    batch: int,
    time: int,
    programs: int,
    wanted: str,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused, "PROGRAMS", programs)
    ids = tokens(vocab, 2, batch, time).to(device)
    leaves = [drawn(2, vocab, width).to(device).requires_grad_(), drawn(2, width, seed=2).to(device).requires_grad_()]
    signals = [drawn(2, batch, time, width, seed=seed).to(device) for seed in (3, 4)]

    def in_parts(ids: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.nn.functional.embedding(ids, weight)
        return y, norm_gate(y[:, :, None], weight=scale, implementation="chunked")[0].squeeze(2)

    def whole(ids: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return fused.fused_norm(ids, weight, scale, 1e-5, torch.float32)

    def everything(call: Callable[..., tuple[Tensor, Tensor]]) -> list[Tensor]:
        y, normed = torch.vmap(call)(ids, *leaves)
        loss = (normed * signals[0]).sum() + ((y * signals[1]).sum() if wanted == "both" else 0)
        return [y, normed, *torch.autograd.grad(loss, leaves)]

    assert_close(everything(whole), everything(in_parts), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_members_have_tables_of_their_own(device: str) -> None:
    ids, weight = tokens(9, 3, 2, 13).to(device), drawn(3, 9, 20).to(device).requires_grad_()

    def found(call: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        y = torch.vmap(call)(ids, weight)
        return [y, *torch.autograd.grad(y.sin().sum(), weight)]

    assert_close(found(fused.fused), found(torch.nn.functional.embedding))


def test_what_the_kernels_do_not_serve_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, weight = tokens(9, 2, 13), drawn(9, 20)
    assert door.embedding(ids, weight) is None
    monkeypatch.setattr(door, "fuses", lambda x: True)
    assert door.embedding(ids, weight) is not None
    for none in ((ids, weight.double()), (ids[:, :0], weight), (ids, drawn(door.MOST + 1, 20))):
        assert door.embedding(*none) is None
    wide = drawn(9, 200)
    assert door.embedding_norm(ids, wide, torch.ones(200), eps=1e-5, output=torch.float32) is None
