"""Gated DeltaNet-2: one gate for what is erased, by key channel, another for what is written, by value channel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers import GDN2, KDA
from recallmap.arch.mixers.mixer import MixerModule, StateSize
from recallmap.arch.parts.low_rank_gates import fading

SPEC = GDN2(scale="one", heads=2, key_dim=6, value_dim=4)


def made(spec: GDN2) -> tuple[MixerModule, Tensor]:
    torch.manual_seed(0)
    module, x = spec.build(16).double(), torch.randn(2, 21, 16, dtype=torch.float64)
    if spec.decay != "head":
        nn.init.normal_(module.get_parameter("decay.up.weight"))
    return module, x


@pytest.mark.parametrize("decay", ["softplus", "signed", "head"])
@pytest.mark.parametrize("gates", [("channel", "channel"), ("channel", "scalar"), ("scalar", "channel")])
def test_it_is_the_published_recurrence(decay: str, gates: tuple[str, str]) -> None:
    module, x = made(GDN2(scale="one", heads=2, key_dim=6, value_dim=4, decay=decay, erase=gates[0], write=gates[1]))  # type: ignore[arg-type]
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    log_decay = module.get_submodule("decay")(x)
    if decay == "head":
        fade = log_decay.exp()[..., None].expand_as(k)
    else:
        fade = log_decay[0].exp() * (1 if log_decay[1] is None else log_decay[1])
    erase, write = (
        torch.sigmoid(x @ module.get_parameter(f"{name}.linear.weight").T).unflatten(-1, (2, -1))
        for name in ("erase", "write")
    )
    memory, outputs = torch.zeros(2, 2, 6, 4, dtype=torch.float64), []
    for t in range(21):
        unit = torch.eye(6, dtype=torch.float64)
        turn = unit - k[:, t, :, :, None] * (erase * k)[:, t, :, None]
        memory = turn @ (fade[:, t, :, :, None] * memory) + k[:, t, :, :, None] * (write * v)[:, t, :, None]
        outputs.append((q[:, t, :, None] @ memory).squeeze(-2))
    read = module.get_submodule("read")(torch.stack(outputs, 1), x)
    y, state = module(x, return_state=True)
    assert_close(y, module.get_submodule("out")(read))
    assert_close(state.memory, memory)


def test_the_same_strength_in_both_gates_is_kda() -> None:
    module, x = made(GDN2(scale="one", heads=2, erase="scalar", write="scalar"))
    kda = KDA(scale="one", heads=2).build(16).double()
    module.load_state_dict(module.state_dict() | {"erase.linear.weight": module.get_parameter("write.linear.weight")})
    kda.load_state_dict({name: x for name, x in module.state_dict().items() if not name.startswith("erase")})
    assert_close(module(x)[0], kda(x)[0])


def test_what_erases_nothing_is_gated_linear_attention() -> None:
    module, x = made(SPEC)
    x = x.abs()
    nn.init.constant_(module.get_parameter("erase.linear.weight"), -1e9)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    log_decay, _ = fading(module.get_submodule("decay"), x)
    write = torch.sigmoid(x @ module.get_parameter("write.linear.weight").T).unflatten(-1, (2, -1))
    o, _ = kernels.gated_linear(q, k, write * v, log_decay=log_decay, scale=1.0)
    assert_close(module(x)[0], module.get_submodule("out")(module.get_submodule("read")(o, x)))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 64, 3, 16, 32
    spec = GDN2(scale="one", heads=h, key_dim=k, value_dim=v)
    kda = KDA(scale="one", heads=h, key_dim=k, value_dim=v)
    assert sum(p.numel() for p in spec.build(d).parameters()) == 37299
    assert spec.parameters(d) == kda.parameters(d) - d * h + d * h * (k + v)
    assert spec.state_size(d, 1000) == StateSize(h * k * v + 3 * h * (2 * k + v))
    assert spec.flops(d, 1000) - kda.flops(d, 1000) == 2 * d * h * (k + v - 1)
