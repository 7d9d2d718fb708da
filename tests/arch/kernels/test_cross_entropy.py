"""Cross entropy over vocabularies of members, in parts and as kernels: torch's over a member's own token ids."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import cross_entropy as door
from recallmap.arch.kernels.cross_entropy import cross_entropy

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
VOCABS = (5, 70, 64)


def drawn(dtype: torch.dtype, rows: int = 37) -> tuple[Tensor, Tensor]:
    """Logits, of some size too, and targets, a few of them to be ignored."""
    generator = torch.Generator().manual_seed(0)
    logits = (20 * torch.randn(3, rows, 70, generator=generator)).to(dtype)
    targets = torch.stack([torch.randint(-1, vocab, (rows,), generator=generator) for vocab in VOCABS])
    return logits, targets


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("kernels", [False, True], ids=["in parts", "fused"])
def test_it_is_torchs_over_a_members_own_ids(
    kernels: bool, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "fuses", lambda x: kernels)
    logits, targets = (x.to(device) for x in drawn(dtype))
    logits.requires_grad_()
    weight = torch.linspace(0, 1, targets.numel(), device=device).view(targets.shape)
    found = cross_entropy(logits, targets, torch.tensor(VOCABS, device=device))
    own = [
        F.cross_entropy(one[:, :vocab].float(), target.clamp(min=0), reduction="none")
        for one, target, vocab in zip(logits, targets, VOCABS, strict=True)
    ]
    assert found.dtype == torch.float32
    assert_close(found, torch.stack(own))
    (gradient,), (expected,) = (
        torch.autograd.grad((loss * weight).sum(), logits) for loss in (found, torch.stack(own))
    )
    assert gradient.dtype == dtype
    assert_close(gradient, expected)
    assert not gradient[0, :, 5:].any()


@pytest.mark.parametrize("kernels", [False, True], ids=["in parts", "fused"])
def test_what_is_not_finite_is_told_to_its_own_member(kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "fuses", lambda x: kernels)
    logits, targets = drawn(torch.float32)
    logits[1, 3, 2] = torch.nan
    finite = cross_entropy(logits, targets, torch.tensor(VOCABS)).isfinite()
    assert not finite[1, 3]
    assert finite.sum() == finite.numel() - 1


def test_shapes_that_do_not_fit_are_told() -> None:
    logits, targets = drawn(torch.float32)
    with pytest.raises(ValueError, match=r"got shapes \[3, 37, 70\], \[3, 37\] and \[2\]"):
        cross_entropy(logits, targets, torch.tensor(VOCABS[:2]))
