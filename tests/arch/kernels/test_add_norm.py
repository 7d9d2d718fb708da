"""The sum and its norm: what they are, in which precision, and what is left undone where nobody reads the sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.kernels import select
from recallmap.arch.kernels.add_norm import add_norm
from recallmap.arch.kernels.norm_gate import norm_gate

EVERY = select.implementations("add_norm")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", EVERY)
def test_it_is_the_sum_and_the_norm_of_it(name: str) -> None:
    x, added, weight = drawn(2, 5, 3, 4), drawn(2, 5, 3, 4, seed=1), drawn(4, seed=2)
    (total, normed), _ = add_norm(x, added, weight=weight, implementation=name)
    assert torch.equal(total, x + added)
    assert_close(normed, norm_gate(x + added, weight=weight)[0])


@pytest.mark.parametrize("name", EVERY)
def test_the_stream_stays_wide_and_each_derivative_has_the_dtype_of_its_input(name: str) -> None:
    """As in training in 16 bits: x in fp32, what is added and the norms in 16 bits."""
    x, weight = drawn(2, 5, 1, 4).requires_grad_(), drawn(4, seed=2).requires_grad_()
    added = drawn(2, 5, 1, 4, seed=1).half().requires_grad_()
    (total, normed), _ = add_norm(x, added, weight=weight, output=torch.float16, implementation=name)
    assert (total.dtype, normed.dtype) == (torch.float32, torch.float16)
    assert torch.equal(total, x + added)
    gradients = torch.autograd.grad((total.sin() + normed.float()).sum(), (x, added, weight))
    assert [x.dtype for x in gradients] == [torch.float32, torch.float16, torch.float32]
    assert torch.equal(gradients[1], gradients[0].half())


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("wanted", ["norm", "sum", "both"])
def test_fused_takes_the_derivatives_that_there_are(wanted: str, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last norm of a model reads a sum that nothing else does."""
    from recallmap.arch.kernels.add_norm import fused

    monkeypatch.setattr(fused, "PROGRAMS", pieces)
    monkeypatch.setattr(fused, "BACKWARD_TILE", 64)
    leaves = [drawn(1, 37, 1, 16), drawn(1, 37, 1, 16, seed=1), drawn(16, seed=2)]

    def gradients(name: str) -> tuple[Any, ...]:
        x, added, weight = (leaf.clone().requires_grad_() for leaf in leaves)
        (total, normed), _ = add_norm(x, added, weight=weight, implementation=name)
        parts = {"sum": [total], "norm": [normed], "both": [total, normed]}[wanted]
        return torch.autograd.grad(sum(part.sin().sum() for part in parts), (x, added, weight), materialize_grads=True)

    assert_close(gradients("fused"), gradients("recurrent"), rtol=1e-5, atol=1e-5)


def test_what_cannot_be_is_told() -> None:
    x = torch.zeros(1, 2, 1, 4)
    with pytest.raises(ValueError, match=r"add_norm: x must be \[batch, time, heads, width\], got shape \[2, 4\]"):
        add_norm(x[0, :, 0], x, weight=torch.ones(4))
    with pytest.raises(ValueError, match=r"added has shape \[1, 2, 1, 3\], must be \[1, 2, 1, 4\]"):
        add_norm(x, x[..., :3], weight=torch.ones(4))
    wide = torch.zeros(1, 1, 1, 2000)
    with pytest.raises(ValueError, match="holds heads up to"):
        add_norm(wide, wide, weight=torch.ones(2000), implementation="fused")
