"""The linear scan: every channel is a number that fades and takes in another."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from recallmap.arch import kernels

IMPLEMENTATIONS = ["recurrent", "chunked"]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("channels", [(3,), (2, 4), (2, 3, 2)], ids=str)
def test_it_is_its_closed_form(name: str, channels: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, gate = (torch.randn(2, 23, *channels, generator=generator, dtype=torch.float64) for _ in range(2))
    a, first = torch.sigmoid(gate), torch.randn(2, *channels, generator=generator, dtype=torch.float64)
    closed = [
        a[:, : t + 1].prod(1) * first + sum(a[:, s + 1 : t + 1].prod(1) * x[:, s] for s in range(t + 1))
        for t in range(23)
    ]
    h, last = kernels.linear_scan(x, log_a=a.log(), initial_state=first, return_state=True, implementation=name)
    assert_close(h, torch.stack(closed, 1))
    assert_close(last, closed[-1])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_channel_that_forgets_all_forgets_what_came_before_alone(name: str) -> None:
    x = torch.ones(1, 30, 2)
    log_a = torch.zeros(1, 30, 2).index_fill(1, torch.tensor([10, 20]), -1e4)
    h, _ = kernels.linear_scan(x, log_a=log_a, implementation=name)
    counted = torch.cat([torch.arange(1.0, 11)] * 3)
    assert torch.equal(h, counted[None, :, None].expand(1, 30, 2))


def test_inputs_that_do_not_fit_are_told() -> None:
    x = torch.zeros(2, 5, 3)
    with pytest.raises(ValueError, match=r"linear_scan: log_a has shape \[2, 5, 1\], must be \[2, 5, 3\]"):
        kernels.linear_scan(x, log_a=x[..., :1])
    with pytest.raises(ValueError, match=r"linear_scan: initial_state has shape \[3\], must be \[2, 3\]"):
        kernels.linear_scan(x, log_a=x, initial_state=x[0, 0])
    with pytest.raises(ValueError, match=r"linear_scan: x must be \[batch, time, channels \.\.\.\]"):
        kernels.linear_scan(x[0], log_a=x[0])
    with pytest.raises(ValueError, match="linear_scan: chunk must be at least 1"):
        kernels.linear_scan(x, log_a=x, chunk=0)
