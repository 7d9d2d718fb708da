"""DeltaProduct: several delta steps a token, of which only the last is read."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from recallmap.arch.mixers import DeltaNet, DeltaProduct, GatedDeltaNet
from recallmap.arch.mixers.mixer import MixerModule, StateSize
from recallmap.arch.parts.heads import HeadsState

H, K, V = 2, 6, 4


class Given(nn.Module):
    """A part that answers the same whatever it reads."""

    def __init__(self, *answer: Tensor | None) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *_: object) -> object:
        return self.answer if len(self.answer) > 1 else self.answer[0]


def final(spec: DeltaProduct, k: Tensor, v: Tensor, beta: Tensor, memory: Tensor) -> Tensor:
    """The memory [K, V] behind tokens with keys [T, N, K], values [T, N, V] and strengths [T, N] in one head."""
    module = spec.build(4).double()
    module.qkv = Given(k[None, :, -1:], k[None], v[None], None)
    module.write = Given(beta[None])
    x = torch.zeros(1, len(k), 4, dtype=torch.float64)
    _, state = module(x, HeadsState(None, memory[None, None]), return_state=True)
    result: Tensor = state.memory[0, 0]
    return result


def single(**options: object) -> DeltaProduct:
    return DeltaProduct(scale="one", heads=1, decay="none", short_conv=0, **options)  # type: ignore[arg-type]


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def nested(module: MixerModule, x: Tensor, steps: int) -> Tensor:
    """The published layer, token by token and step by step, with the weights of `module`."""
    weights = module.get_parameter
    taps = weights("qkv.conv.weight")
    mapped = F.pad((x @ weights("qkv.linear.weight").T).mT, (taps.shape[1] - 1, 0))
    shaped = F.silu(F.conv1d(mapped, taps.flip(-1)[:, None], groups=len(taps))).mT
    q, k, v = shaped.split([H * K, steps * H * K, steps * H * V], -1)
    q, k, v = q.unflatten(-1, (H, K)), k.unflatten(-1, (steps, H, K)), v.unflatten(-1, (steps, H, V))
    q, k = (part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for part in (q, k))
    beta = 2 * torch.sigmoid(x @ weights("write.linear.weight").T).unflatten(-1, (steps, H))
    step = F.softplus(x @ weights("decay.linear.weight").T + weights("decay.bias"))
    fade = torch.exp(-weights("decay.log_rate").exp() * step)
    memory, outputs = torch.zeros(x.shape[0], H, K, V).to(x), []
    for t in range(x.shape[1]):
        memory = fade[:, t, :, None, None] * memory
        for j in range(steps):
            error = v[:, t, j] - torch.einsum("bhk,bhkv->bhv", k[:, t, j], memory)
            memory = memory + torch.einsum("bhk,bhv->bhkv", k[:, t, j], beta[:, t, j, :, None] * error)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], memory))
    o = torch.stack(outputs, 1) * K**-0.5
    o = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weights("read.norm.weight")
    o = o * F.silu(x @ weights("read.gate.weight").T).unflatten(-1, (H, -1))
    return o.flatten(-2) @ weights("out.weight").T


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_whole_layer_is_the_published_one(steps: int) -> None:
    torch.manual_seed(0)
    module = DeltaProduct(heads=H, key_dim=K, value_dim=V, steps=steps, scale="key_dim").build(16).double()
    x = torch.randn(2, 23, 16, dtype=torch.float64)
    assert_close(module(x)[0], nested(module, x, steps), rtol=1e-12, atol=1e-12)


def test_one_step_is_deltanet_and_gated_deltanet() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 37, 16, dtype=torch.float64)
    pairs = [
        (DeltaProduct(scale="one", heads=2, steps=1, decay="none"), DeltaNet(heads=2, beta_max=2)),
        (DeltaProduct(scale="one", heads=2, steps=1), GatedDeltaNet(heads=2, beta_max=2)),
    ]
    for ours, theirs in pairs:
        product, plain = ours.build(16).double(), theirs.build(16).double()
        product.load_state_dict(plain.state_dict())
        assert torch.equal(product(x)[0], plain(x)[0])
        assert (ours.parameters(16), ours.flops(16, 9)) == (theirs.parameters(16), theirs.flops(16, 9))
        assert ours.state_size(16, 9) == theirs.state_size(16, 9)


def test_a_step_without_strength_does_nothing() -> None:
    k, v, beta, memory = F.normalize(normal(7, 3, 4), dim=-1), normal(7, 3, 4), normal(7, 3).sigmoid(), normal(4, 4)
    only = beta * torch.tensor([0, 1, 0])
    expected = final(single(steps=1), k[:, 1:2], v[:, 1:2], beta[:, 1:2], memory)
    assert_close(final(single(steps=3), k, v, only, memory), expected)


def test_the_same_pair_twice_is_once_with_more_strength() -> None:
    k, v, beta, memory = F.normalize(normal(7, 1, 4), dim=-1), normal(7, 1, 4), normal(7, 1).sigmoid(), normal(4, 4)
    once = final(single(steps=1), k, v, 1 - (1 - beta) ** 2, memory)
    twice = final(single(steps=2), *(y.repeat_interleave(2, 1) for y in (k, v, beta)), memory)
    assert_close(twice, once)


def test_the_order_of_steps_matters() -> None:
    k, v, beta, memory = F.normalize(normal(7, 2, 4), dim=-1), normal(7, 2, 4), normal(7, 2).sigmoid(), normal(4, 4)
    forth, back = (
        final(single(steps=2), *ordered, memory) for ordered in ((k, v, beta), (k.flip(1), v.flip(1), beta.flip(1)))
    )
    assert (forth - back).abs().max() > 0.1


def test_two_mirrors_turn_space_as_far_as_one_likes() -> None:
    """A turn about z by a quarter, four times: two mirrors at half the angle a token."""
    mirrors = torch.tensor([[1.0, 0, 0], [math.cos(math.pi / 4), math.sin(math.pi / 4), 0]]).double()
    k, beta = mirrors.expand(4, 2, 3), torch.full((4, 2), 2.0).double()
    turn = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]).double()
    for tokens in range(1, 5):
        memory = final(
            single(steps=2, key_dim=3, value_dim=3), k[:tokens], 0 * k[:tokens], beta[:tokens], torch.eye(3).double()
        )
        assert_close(memory, torch.linalg.matrix_power(turn, tokens))


def test_four_steps_a_token_follow_any_permutation_of_five() -> None:
    """S5: a permutation is at most four swaps, and a swap is the mirror that takes e_i - e_j to its opposite."""
    generator, unit = torch.Generator().manual_seed(0), torch.eye(5).double()
    word = [torch.randperm(5, generator=generator).tolist() for _ in range(9)]
    k, beta, expected = torch.zeros(9, 4, 5).double(), torch.zeros(9, 4).double(), unit
    for t, target in enumerate(word):
        row = list(range(5))
        for i in range(4):
            j = row.index(target[i])
            if i != j:
                k[t, i], beta[t, i] = (unit[i] - unit[j]) / math.sqrt(2), 2.0
                row[i], row[j] = row[j], row[i]
        expected = expected[target]
    assert_close(final(single(steps=4, key_dim=5, value_dim=5), k, 0 * k, beta, unit), expected)


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v, n = 64, 3, 16, 32, 3
    spec = DeltaProduct(scale="one", heads=h, key_dim=k, value_dim=v, steps=n)
    assert sum(p.numel() for p in spec.build(d).parameters()) == spec.parameters(d) == 45734
    assert spec.state_size(d, 1000) == StateSize(h * k * v + 3 * h * ((1 + n) * k + n * v))
    channels = h * ((1 + n) * k + n * v)
    assert spec.flops(d, 1000) == 2 * d * (channels + 2 * h * v + (n + 1) * h) + 8 * channels + h * (4 * n + 3) * k * v


def test_what_it_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        DeltaProduct(scale="one", steps=0)
    with pytest.raises(ValueError, match="beta_max must be 1 or 2"):
        DeltaProduct(scale="one", beta_max=3)  # type: ignore[arg-type]
