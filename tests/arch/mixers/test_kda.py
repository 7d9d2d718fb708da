"""Kimi Delta Attention: the delta rule on a memory that fades key channel by key channel."""

from __future__ import annotations

import math
from itertools import permutations, product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from recallmap.arch import kernels
from recallmap.arch.mixers import KDA, GatedDeltaNet
from recallmap.arch.mixers.mixer import MixerModule, StateSize
from recallmap.arch.parts.preconditioner import PreconditionedState

HEADS, KEY, VALUE, WIDTH = 2, 6, 4, 16
SPECS = [
    KDA(heads=HEADS, key_dim=KEY, value_dim=VALUE, scale="key_dim"),
    KDA(scale="one", heads=HEADS, key_dim=KEY, value_dim=VALUE, decay="bounded", gate_rank=3),
    KDA(scale="one", heads=HEADS, key_dim=KEY, value_dim=VALUE, decay="signed", beta_max=2, activation="identity"),
]


def published(spec: KDA, module: MixerModule, x: Tensor) -> Tensor:
    """The layer as flash-linear-attention has it, token by token, with the weights of `module`; signs as CKDA has them."""
    weights = module.get_parameter
    taps = weights("qkv.conv.weight")
    mapped = F.pad((x @ weights("qkv.linear.weight").T).mT, (taps.shape[1] - 1, 0))
    shaped = F.conv1d(mapped, taps.flip(-1)[:, None], groups=len(taps)).mT
    shaped = F.silu(shaped) if spec.activation == "silu" else shaped
    q, k, v = (part.unflatten(-1, (HEADS, -1)) for part in shaped.split([HEADS * KEY, HEADS * KEY, HEADS * VALUE], -1))
    q, k = (part * (part.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for part in (q, k))
    beta = spec.beta_max * torch.sigmoid(x @ weights("write.linear.weight").T)
    z = (x @ weights("decay.down.weight").T @ weights("decay.up.weight").T).unflatten(-1, (HEADS, KEY))
    z = z + weights("decay.bias")
    if spec.decay == "signed":
        fade = 2 * torch.sigmoid(z) - 1
    elif spec.decay == "bounded":
        fade = torch.exp(-5 * torch.sigmoid(weights("decay.log_rate").exp() * z))
    else:
        fade = torch.exp(-weights("decay.log_rate").exp() * F.softplus(z))
    memory, outputs = torch.zeros(x.shape[0], HEADS, KEY, VALUE).to(x), []
    for t in range(x.shape[1]):
        memory = fade[:, t, :, :, None] * memory
        stored = torch.einsum("bhk,bhkv->bhv", k[:, t], memory)
        memory = memory + torch.einsum("bhk,bhv->bhkv", k[:, t], beta[:, t, :, None] * (v[:, t] - stored))
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], memory))
    o = torch.stack(outputs, 1) * spec.read_scale(WIDTH)
    o = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weights("read.norm.weight")
    gate = x @ weights("read.gate.0.weight").T @ weights("read.gate.1.weight").T + weights("read.gate.1.bias")
    return (o * torch.sigmoid(gate).unflatten(-1, (HEADS, -1))).flatten(-2) @ weights("out.weight").T


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.decay)
def test_the_whole_layer_is_the_published_one(spec: KDA) -> None:
    torch.manual_seed(0)
    module, x = spec.build(WIDTH).double(), torch.randn(2, 40, WIDTH, dtype=torch.float64)
    nn.init.normal_(module.get_parameter("decay.up.weight"))
    assert_close(module(x)[0], published(spec, module, x), rtol=1e-12, atol=1e-12)


def test_a_decay_by_head_makes_it_gated_deltanet() -> None:
    torch.manual_seed(0)
    theirs = GatedDeltaNet(heads=2).build(16).double()
    ours = KDA(scale="one", heads=2, decay="head", gate_form="full", gate_activation="silu").build(16).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 37, 16, dtype=torch.float64)
    assert torch.equal(ours(x)[0], theirs(x)[0])


def test_channels_that_fade_alike_are_one_decay_a_head() -> None:
    torch.manual_seed(0)
    q, k, v = (F.normalize(torch.randn(2, 37, 2, 8, dtype=torch.float64), dim=-1) for _ in "qkv")
    log_decay, beta = torch.rand(2, 37, 2, dtype=torch.float64).log(), torch.rand(2, 37, 2, dtype=torch.float64)
    gated, _ = kernels.delta(q, k, v, log_decay=log_decay, beta=beta)
    assert_close(kernels.delta(q, k, v, log_decay=log_decay[..., None].expand_as(k), beta=beta)[0], gated)


def test_what_is_corrected_has_faded_first() -> None:
    """The pair form reads a state that has not, so that its a carries the decay; without it outputs are others."""
    torch.manual_seed(0)
    q, k, v = (F.normalize(torch.randn(2, 37, 2, 8, dtype=torch.float64), dim=-1) for _ in "qkv")
    log_decay, beta = torch.rand_like(k).log(), torch.rand(2, 37, 2, dtype=torch.float64)
    expected, _ = kernels.delta(q, k, v, log_decay=log_decay, beta=beta)
    written = beta[..., None] * k
    pair, _ = kernels.delta(q, written, v, log_decay=log_decay, a=log_decay.exp() * k, b=written)
    unfaded, _ = kernels.delta(q, written, v, log_decay=log_decay, a=k, b=written)
    assert_close(pair, expected)
    assert (unfaded - expected).abs().max() > 1e-3


class Given(nn.Module):
    """A part that answers the same whatever it reads."""

    def __init__(self, *answer: Tensor | None) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, *_: object) -> object:
        return self.answer if len(self.answer) > 1 else self.answer[0]


@pytest.mark.parametrize("length", [1, 5, 64])
def test_one_negative_channel_and_beta_two_turn_the_plane(length: int) -> None:
    """A token turns it by twice the angle between the channel and the key, which no positive decay can do."""
    angle = torch.rand(length, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * math.pi
    module = (
        KDA(scale="one", heads=1, key_dim=2, value_dim=2, decay="signed", beta_max=2, short_conv=0).build(4).double()
    )
    key = torch.stack([angle.cos(), angle.sin()], -1).reshape(1, length, 1, 2)
    module.qkv = Given(key, key, torch.zeros_like(key), None)
    module.decay = Given(torch.zeros_like(key), torch.tensor([-1.0, 1.0]).double().expand_as(key))
    module.write = Given(torch.full((1, length, 1), 2.0, dtype=torch.float64))
    start = PreconditionedState(None, torch.eye(2).double()[None, None])
    _, state = module(torch.zeros(1, length, 4, dtype=torch.float64), start, return_state=True)
    cos, sin = (2 * angle.sum()).cos(), (2 * angle.sum()).sin()
    assert_close(state.memory[0, 0], torch.stack([torch.stack([cos, -sin]), torch.stack([sin, cos])]))


def turns_of_a_cube() -> list[Tensor]:
    """The 24 rotations, a group that is S4."""
    rows = [torch.eye(3).double()[list(order)] for order in permutations(range(3))]
    signed = [torch.diag(torch.tensor(s).double()) @ row for row in rows for s in product((1.0, -1.0), repeat=3)]
    return [turn for turn in signed if torch.linalg.det(turn) > 0]


def one_step(turn: Tensor) -> tuple[Tensor, Tensor] | None:
    """Signs and a key [3] with (I - 2 k^T k) diag(signs) = turn; None where there are none."""
    for signs in product((1.0, -1.0), repeat=3):
        mirror = turn @ torch.diag(torch.tensor(signs).double())
        values, vectors = torch.linalg.eigh(mirror)
        if torch.allclose(mirror, mirror.T) and torch.allclose(values, torch.tensor([-1.0, 1, 1]).double()):
            return torch.tensor(signs).double(), vectors[:, 0]
    return None


def test_signs_and_beta_two_follow_words_of_s4_one_step_a_token() -> None:
    """In a basis that is turned by an eighth about z; along the axes of the cube a third of its rotations takes more."""
    turns, half = turns_of_a_cube(), math.sqrt(0.5)
    assert sum(one_step(turn) is None for turn in turns) == 8
    basis = torch.tensor([[half, -half, 0], [half, half, 0], [0, 0, 1]]).double()
    word = torch.randint(24, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    steps = [one_step(basis @ turn @ basis.T) for turn in turns]
    assert all(steps)
    signs, keys = (torch.stack([steps[letter][i] for letter in word])[None, :, None] for i in range(2))  # type: ignore[index]
    module = (
        KDA(scale="one", heads=1, key_dim=3, value_dim=3, decay="signed", beta_max=2, short_conv=0).build(4).double()
    )
    module.qkv = Given(keys, keys, torch.zeros_like(keys), None)
    module.decay = Given(torch.zeros_like(keys), signs)
    module.write = Given(torch.full((1, 40, 1), 2.0, dtype=torch.float64))
    start = PreconditionedState(None, basis[None, None])
    _, state = module(torch.zeros(1, 40, 4, dtype=torch.float64), start, return_state=True)
    expected = torch.eye(3).double()
    for letter in word:
        expected = turns[letter] @ expected
    assert_close(basis.T @ state.memory[0, 0], expected)


def test_its_size_is_that_of_the_table() -> None:
    d, h, k, v, r = 64, 3, 16, 32, 32
    spec = KDA(scale="one", heads=h, key_dim=k, value_dim=v)
    count = sum(p.numel() for p in spec.build(d).parameters())
    around = 2 * d * h * (k + v) + 4 * h * (2 * k + v) + 2 * d * r + r * h * (k + v)
    assert count == around + d * h + h + h * k + h * v + v == 28275
    assert spec.state_size(d, 1000) == StateSize(h * k * v + 3 * h * (2 * k + v))
    maps = d * h * (2 * k + 2 * v + 1) + 2 * d * r + r * h * (k + v)
    assert spec.flops(d, 1000) == 2 * maps + 8 * h * (2 * k + v) + 7 * h * k * v


def test_a_write_strength_above_two_is_refused() -> None:
    with pytest.raises(ValueError, match="beta_max must be 1 or 2"):
        KDA(scale="one", beta_max=3)  # type: ignore[arg-type]
