"""FoX: attention whose gates forget, in the published forms."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing import assert_close

from recallmap.arch.mixers.attention import Attention
from recallmap.arch.mixers.fox import Fox, slopes
from recallmap.arch.mixers.mixer import MixerModule, StateSize

PRO = {"qk_norm": True, "shift": True, "out_norm": True, "out_gate": True}


def built(spec: Fox, width: int = 16) -> MixerModule:
    torch.manual_seed(0)
    module: MixerModule = spec.build(width).double()
    return module


def tokens(length: int = 21) -> Tensor:
    return torch.randn(2, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def attended(q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> Tensor:
    """softmax of scores and of the gates between, token by token; gates [B, T, H] are not logarithms."""
    outputs = []
    for t in range(q.shape[1]):
        behind = [gates[:, j + 1 : t + 1].log().sum(1) for j in range(t + 1)]
        scores = torch.einsum("bhk,bshk->bhs", q[:, t], k[:, : t + 1]) / q.shape[-1] ** 0.5 + torch.stack(behind, -1)
        outputs.append(torch.einsum("bhs,bshv->bhv", scores.softmax(-1), v[:, : t + 1]))
    return torch.stack(outputs, 1)


def test_the_llama_form_is_the_published_equation() -> None:
    module, x = built(Fox(heads=2)), tokens()
    q, k, v = module.get_submodule("qkv")(x).unflatten(-1, (3, 2, 8)).unbind(2)
    gates = torch.sigmoid(module.get_submodule("decay.linear")(x))
    expected = module.get_submodule("out")(attended(q, k, v, gates).flatten(-2))
    assert_close(module(x)[0], expected)


def test_the_pro_form_shifts_then_norms_then_gates() -> None:
    module, x = built(Fox(heads=2, **PRO)), tokens()

    def normed(o: Tensor) -> Tensor:
        return o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()

    q, k, v = module.get_submodule("qkv")(x).unflatten(-1, (3, 2, 8)).unbind(2)
    share = torch.sigmoid(module.get_submodule("shift")(x))[..., None]
    before = [torch.cat((torch.zeros_like(part[:, :1]), part[:, :-1]), 1) for part in (k, v)]
    k = share[:, :, :2] * before[0] + (1 - share[:, :, :2]) * k
    v = share[:, :, 2:] * before[1] + (1 - share[:, :, 2:]) * v
    gates = torch.sigmoid(module.get_submodule("decay.linear")(x))
    o = normed(attended(normed(q), normed(k), v, gates)).flatten(-2)
    expected = module.get_submodule("out")(o * torch.sigmoid(module.get_submodule("gate")(x)))
    assert_close(module(x)[0], expected)


def test_gates_that_keep_all_are_attention_without_positions() -> None:
    """11.7"""
    module = built(Fox(heads=2))
    torch.nn.init.constant_(module.get_parameter("decay.linear.bias"), 1e3)
    plain = Attention(heads=2, rope=False).build(16).double()
    plain.load_state_dict({name: x for name, x in module.state_dict().items() if not name.startswith("decay")})
    assert_close(module(tokens())[0], plain(tokens())[0])


def test_gates_that_keep_nothing_give_the_value() -> None:
    """11.7; a gate keeps at least e^-30."""
    module, x = built(Fox(heads=2)), tokens()
    torch.nn.init.constant_(module.get_parameter("decay.linear.bias"), -1e3)
    v = module.get_submodule("qkv")(x)[..., 32:]
    assert_close(module(x)[0], module.get_submodule("out")(v))


def test_constant_gates_are_alibi_before_training() -> None:
    assert_close(slopes(8), torch.tensor([2.0**-h for h in range(1, 9)]))
    x = tokens()
    assert_close(built(Fox(heads=2, gate="bias"))(x)[0], built(Fox(heads=2, gate="fixed"))(x)[0])


def test_a_head_begins_by_looking_one_or_two_tokens_back() -> None:
    assert not built(Fox(heads=2)).get_parameter("decay.linear.bias").any()


def test_it_has_the_published_size() -> None:
    assert Fox(heads=4).parameters(64) == 4 * 64**2 + 64 * 4 + 4 == 16644
    assert Fox(heads=4, **PRO).parameters(64) == 16644 + 64**2 + 3 * 64 + 2 * 64 * 4
    assert Fox(heads=8).state_size(128, 100) == StateSize(0, growing=100 * (2 * 128 + 8))
    assert Fox(heads=8, **PRO).state_size(128, 100) == StateSize(2 * 128, growing=100 * (2 * 128 + 8))


def test_it_says_where_it_is_not_the_published_layer() -> None:
    assert Fox().differs() == Fox(**PRO).differs() == ()
    assert "Pro form" in Fox(shift=True).differs()[0]
    assert "constant forget gates" in Fox(gate="bias").differs()[0]
