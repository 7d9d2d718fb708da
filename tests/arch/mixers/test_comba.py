"""Comba: a delta rule that corrects what the memory held before it faded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers import Comba, GatedDeltaNet
from recallmap.arch.mixers.mixer import StateSize


def test_it_is_the_published_recurrence() -> None:
    torch.manual_seed(0)
    module, x = (
        Comba(heads=2, scale="key_dim").build(16).double(),
        torch.randn(2, 21, 16, dtype=torch.float64),
    )
    weights = module.get_parameter
    torch.nn.init.normal_(weights("erased"))
    torch.nn.init.normal_(weights("correction"))
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    step = F.softplus(x @ weights("decay.linear.weight").T + weights("decay.bias"))
    fade = torch.exp(-weights("decay.log_rate").exp() * step)
    beta = torch.sigmoid(x @ weights("write.linear.weight").T)
    p, q = k * torch.sigmoid(weights("erased")), q - k * weights("correction")
    memory, outputs = torch.zeros(2, 2, 8, 8, dtype=torch.float64), []
    for t in range(21):
        error = v[:, t, :, None] - p[:, t, :, None] @ memory
        memory = fade[:, t, :, None, None] * memory + beta[:, t, :, None, None] * k[:, t, :, :, None] * error
        outputs.append((q[:, t, :, None] @ memory).squeeze(-2) / 8**0.5)
    o = torch.stack(outputs, 1)
    o = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weights("read.norm.weight")
    gate = torch.sigmoid(x @ weights("read.gate.weight").T)
    assert_close(module(x)[0], (o.flatten(-2) * gate) @ weights("out.weight").T)


def test_what_corrects_the_faded_memory_is_gated_deltanet() -> None:
    """p = a_t k, of which Comba's b k is the form with one number a head."""
    torch.manual_seed(0)
    q, k, v = (F.normalize(torch.randn(2, 37, 2, 8, dtype=torch.float64), dim=-1) for _ in "qkv")
    log_decay, beta = torch.rand(2, 37, 2, dtype=torch.float64).log(), torch.rand(2, 37, 2, dtype=torch.float64)
    written = beta[..., None] * k
    p = log_decay.exp()[..., None] * k
    expected, _ = kernels.delta(q, k, v, log_decay=log_decay, beta=beta)
    assert_close(kernels.delta(q, written, v, log_decay=log_decay, a=p, b=written)[0], expected)


def test_what_corrects_nothing_is_gated_linear_attention() -> None:
    torch.manual_seed(0)
    module, x = (
        Comba(scale="one", heads=2, correction=0.0).build(16).double(),
        torch.randn(2, 21, 16, dtype=torch.float64),
    )
    torch.nn.init.constant_(module.get_parameter("erased"), -torch.inf)  # b = 0
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    beta = torch.sigmoid(x @ module.get_parameter("write.linear.weight").T)
    o, _ = kernels.gated_linear(q, k, v, log_decay=module.get_submodule("decay")(x), beta=beta, scale=1.0)
    assert_close(module(x)[0], module.get_submodule("out")(module.get_submodule("read")(o, x)))


def test_along_a_key_the_memory_may_turn_over_with_strengths_below_one() -> None:
    """The eigenvalue a - beta b is negative where the memory fades fast: a = 0.1, beta = 0.9, b = 1."""
    k, none = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    fade = torch.full((1, 1, 1), 0.1, dtype=torch.float64).log()
    _, memory = kernels.delta(
        k, 0.9 * k, none, log_decay=fade, a=k, b=0.9 * k, initial_state=torch.ones_like(k), return_state=True
    )
    assert_close(memory, torch.full_like(k, -0.8))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 64, 3, 16, 32
    spec, gated = Comba(scale="one", heads=h, key_dim=k, value_dim=v), GatedDeltaNet(heads=h, key_dim=k, value_dim=v)
    assert sum(p.numel() for p in spec.build(d).parameters()) == gated.parameters(d) + 2 * h == 25772
    assert spec.state_size(d, 1000) == StateSize(h * k * v + 3 * h * (2 * k + v))
    assert spec.flops(d, 1000) == gated.flops(d, 1000)
