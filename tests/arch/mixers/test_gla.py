"""Gated linear attention: one recurrence, two gates, two published surroundings."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from recallmap.arch.mixers.gla import GatedLinearAttention
from recallmap.arch.mixers.mixer import StateSize

VECTOR = GatedLinearAttention(
    heads=4,
    gate="vector",
    key_dim=16,
    qk_norm=False,
    write_gate=False,
    short_conv=0,
    activation="identity",
    out_norm="shared",
    out_gate=True,
)


class SameForAllChannels(nn.Module):
    """A head's decay, given to each of its key channels."""

    def __init__(self, decay: nn.Module, key_dim: int) -> None:
        super().__init__()
        self.decay, self.key_dim = decay, key_dim

    def forward(self, x: Tensor) -> Tensor:
        return self.decay(x).repeat_interleave(self.key_dim, dim=-1)


def test_equal_channels_are_a_scalar_gate() -> None:
    torch.manual_seed(0)
    scalar = GatedLinearAttention(heads=2).build(16).double()
    vector = GatedLinearAttention(heads=2, gate="vector").build(16).double()
    vector.decay = SameForAllChannels(scalar.get_submodule("decay"), 8)
    shared = {n: p for n, p in scalar.state_dict().items() if not n.startswith("decay")}
    vector.load_state_dict(shared, strict=False)
    x = torch.randn(2, 37, 16, dtype=torch.float64)
    assert_close(vector(x)[0], scalar(x)[0])


@pytest.mark.parametrize(
    "spec",
    [GatedLinearAttention(heads=2), GatedLinearAttention(heads=2, signed_decay=True), VECTOR],
    ids=["scalar", "signed", "vector"],
)
def test_it_is_a_matrix_that_fades_and_is_added_to(spec: GatedLinearAttention) -> None:
    torch.manual_seed(0)
    module, x = spec.build(16).double(), torch.randn(1, 9, 16, dtype=torch.float64)
    q, k, v, _ = module.get_submodule("qkv")(x, None)
    if spec.signed_decay:
        torch.nn.init.zeros_(module.get_parameter("decay.linear.bias"))
        decay = torch.tanh(module.get_submodule("decay.linear")(x) / 2)
        assert decay.min() < 0 < decay.max()
    else:
        decay = module.get_submodule("decay")(x).exp()
    decay = decay.reshape(1, 9, spec.heads, -1, 1)
    beta = torch.sigmoid(module.get_submodule("write.linear")(x)) if spec.write_gate else torch.ones(1, 9, spec.heads)
    memory, outputs = torch.zeros(1, spec.heads, *spec.sizes(16), dtype=torch.float64), []
    for t in range(9):
        memory = decay[:, t] * memory + beta[:, t, :, None, None] * k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append((q[:, t, :, None] @ memory).squeeze(-2) * (1.0 if spec.qk_norm else 16**-0.5))
    read = module.get_submodule("read")(torch.stack(outputs, 1), x)
    assert_close(module(x)[0], module.get_submodule("out")(read))


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v = 128, 8, 16, 16
    mesanet = GatedLinearAttention(heads=h)
    count = sum(p.numel() for p in mesanet.build(d).parameters())
    assert count == 2 * d * h * (k + v) + 8 * h * k + 2 * (d * h + h) + h * v
    assert mesanet.state_size(d, 1000) == StateSize(h * k * v + 3 * 2 * h * k)
    assert mesanet.flops(d, 1000) == 2 * d * h * (2 * k + 2 * v + 2) + 8 * 2 * h * k + 5 * h * k * v

    h, k, v = 4, 16, 32
    count = sum(p.numel() for p in VECTOR.build(d).parameters())
    assert count == 2 * d * h * k + 3 * d * h * v + 16 * (d + h * k) + h * k + v
    assert VECTOR.state_size(d, 1000) == StateSize(h * k * v)


def test_a_sign_a_channel_is_refused() -> None:
    with pytest.raises(ValueError, match="signed_decay needs gate 'scalar', got 'vector'"):
        GatedLinearAttention(gate="vector", signed_decay=True)
