"""State expansion as a specification: which blocks, which weights, and what the model then computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recallmap.arch.backbone import Backbone, BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.cost import cost
from recallmap.arch.expand import Start, expand, expand_weights
from recallmap.arch.kernels import gated_linear
from recallmap.arch.mixers import BaseConv, GatedLinearAttention, Mamba2, Mixer
from recallmap.arch.mlp import SwiGLU
from recallmap.arch.stack import Repeat, flatten

GLA = GatedLinearAttention(
    heads=4,
    gate="vector",
    key_dim=2,
    qk_norm=False,
    write_gate=False,
    short_conv=0,
    activation="identity",
    out_norm="shared",
    out_gate=True,
)
SSM = Mamba2(heads=2, form="shared_qk", key_dim=4, value_dim=16)
VOCAB = 11


def arch(mixer: Mixer, times: int = 8) -> BackboneSpec:
    blocks = (Block(mixer=mixer, mlp=SwiGLU(expand=1)),)
    return BackboneSpec(name="small", width=16, stack=(Repeat(times=times, blocks=blocks),))


def expanded_blocks(old: BackboneSpec, new: BackboneSpec) -> list[int]:
    return [i for i, (a, b) in enumerate(zip(flatten(old.stack), flatten(new.stack), strict=True)) if a != b]


def trained(spec: BackboneSpec) -> dict[str, Tensor]:
    """Weights that no initialisation gives."""
    rng = torch.Generator().manual_seed(5)
    model = spec.build(vocab=VOCAB, seed=3)
    return {n: p.detach() + 0.1 * torch.randn(p.shape, generator=rng) for n, p in model.named_parameters()}


def model_of(spec: BackboneSpec, weights: dict[str, Tensor]) -> Backbone:
    model = spec.build(vocab=VOCAB, seed=9)
    model.load_state_dict(weights)
    return model.double()


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(1, [0]), (2, [0, 4]), (3, [0, 2, 4]), (4, [0, 2, 4, 6]), (5, [0, 1, 2, 3, 4]), (8, list(range(8)))],
)
def test_blocks_are_chosen_evenly_from_the_first(count: int, chosen: list[int]) -> None:
    old = arch(GLA)
    assert expanded_blocks(old, expand(old, heads="merge", count=count)) == chosen


def test_all_and_the_default_of_four() -> None:
    old = arch(SSM)
    assert len(expanded_blocks(old, expand(old, factor=2, count="all"))) == 8
    assert expand(old, factor=2) == expand(old, factor=2, count=4)
    assert expand(old, factor=2).name == "small_wide2_4of8"


def test_only_blocks_that_can_be_expanded_count() -> None:
    mixed = replace(arch(GLA), stack=tuple(Block(mixer=m) for m in (BaseConv(), GLA, BaseConv(), GLA)))
    assert expanded_blocks(mixed, expand(mixed, heads="merge", count=1)) == [1]
    assert expanded_blocks(mixed, expand(mixed, heads="merge", count=2)) == [1, 3]


def test_merged_heads_multiply_the_state_and_add_no_channel() -> None:
    old = arch(GLA)
    new = expand(old, heads="merge", count=2)
    before, after = (cost(spec, vocab=VOCAB, length=32) for spec in (old, new))
    assert after.state_floats == before.state_floats * (6 + 2 * 4) // 8  # (L - m) H dk dv + m H^2 dk dv
    assert after.parameters - before.parameters == 2 * (16 - 4)  # the norm now spans all channels of values


def test_wider_keys_multiply_the_state_and_add_their_projections() -> None:
    old = arch(SSM)
    new = expand(old, factor=4, count=2)
    without = cost(arch(replace(SSM, short_conv=0)), vocab=VOCAB, length=32).state_floats
    floats = sum(
        replace(b.mixer, short_conv=0).state_size(16, 32).total
        for b in flatten(new.stack)
        if isinstance(b.mixer, Mamba2)
    )
    assert floats == without * (6 + 2 * 4) // 8
    more = cost(new, vocab=VOCAB, length=32).parameters - cost(old, vocab=VOCAB, length=32).parameters
    assert more == 2 * (2 * 3 * 4) * (16 + SSM.short_conv + 1)


def test_new_keys_of_zero_leave_the_model_as_it_was() -> None:
    old = arch(SSM, times=3)
    new = expand(old, factor=4, count=2)
    weights = trained(old)
    larger = expand_weights(old, new, weights, mode="zero")
    tokens = torch.randint(VOCAB, (2, 20), generator=torch.Generator().manual_seed(0))
    before, after = model_of(old, weights)(tokens), model_of(new, larger)(tokens)
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)
    other = model_of(new, expand_weights(old, new, weights, mode="inherit"))(tokens)
    assert (other - before).abs().max() > 1e-3


def test_new_keys_of_zero_can_learn() -> None:
    old = arch(SSM, times=1)
    new = expand(old, factor=2, count=1)
    model = model_of(new, expand_weights(old, new, trained(old), mode="zero"))
    tokens = torch.randint(VOCAB, (2, 20), generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    gradient = dict(model.named_parameters())["blocks.0.mixer.linear.weight"].grad
    assert gradient is not None
    new_keys = gradient[2 * 2 * 16 :][4:8]  # behind gate, values and the old keys
    assert new_keys.abs().min() > 0


def changed(old: BackboneSpec, new: BackboneSpec, mode: Start) -> set[str]:
    """Names of parameters that do not have all that they had."""
    weights = trained(old)
    after = expand_weights(old, new, weights, mode=mode, seed=1)
    assert {n: p.shape for n, p in model_of(new, after).named_parameters()} == {n: p.shape for n, p in after.items()}
    return {n for n, p in after.items() if p.shape != weights[n].shape or not torch.equal(p, weights[n])}


def test_merged_heads_start_anew_with_their_norm_and_nothing_else_does() -> None:
    old = arch(GLA, times=2)
    new = expand(old, heads="merge", count=1)
    own = {n for n, _ in new.build(vocab=VOCAB).named_parameters() if n.startswith("blocks.0.mixer")}
    assert changed(old, new, "reinitialise") == own
    assert "blocks.0.mixer_norm.weight" in own
    assert changed(old, new, "inherit") == {"blocks.0.mixer.read.norm.weight"}  # repeated for every head


def test_a_wider_state_space_mixer_starts_keys_queries_and_rates_anew() -> None:
    old = arch(SSM, times=2)
    new = expand(old, factor=2, count=1)
    weights = trained(old)
    place = "blocks.0.mixer."
    grown = {f"{place}{n}" for n in ("linear.weight", "conv.weight", "conv.bias")}
    assert changed(old, new, "inherit") == grown
    assert changed(old, new, "reinitialise") == grown | {f"{place}decay.log_rate", f"{place}decay.bias"}
    anew, inherited = (expand_weights(old, new, weights, mode=m, seed=1) for m in ("reinitialise", "inherit"))
    name, inner = f"{place}linear.weight", 2 * 16
    for result, keeps in ((anew[name], False), (inherited[name], True)):
        assert torch.equal(result[: 2 * inner], weights[name][: 2 * inner])  # gate and values
        assert torch.equal(result[2 * inner :][:4], weights[name][2 * inner :][:4]) == keeps  # keys
        assert torch.equal(result[2 * inner + 8 :][:4], weights[name][2 * inner + 4 :][:4]) == keeps  # queries
    assert torch.equal(anew[f"{place}conv.weight"][inner:][:4], weights[f"{place}conv.weight"][inner:][:4])


def test_a_seed_decides_what_starts_anew() -> None:
    old = arch(GLA, times=2)
    new = expand(old, heads="merge", count=1)
    first, again, other = (expand_weights(old, new, trained(old), seed=s) for s in (0, 0, 1))
    name = "blocks.0.mixer.qkv.linear.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_merged_heads_are_all_pairs_of_key_and_value_heads() -> None:
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 9, 3, 4, generator=rng, dtype=torch.float64) for _ in range(3))
    decay = -torch.rand(2, 9, 3, 4, generator=rng, dtype=torch.float64)
    one = [x.flatten(2)[:, :, None] for x in (q, k, v, decay)]
    merged = gated_linear(*one[:3], log_decay=one[3], scale=1.0)[0].unflatten(-1, (3, 4))[:, :, 0]

    def pair(i: int, j: int) -> Tensor:
        """Keys of head i with values of head j."""
        return gated_linear(q[:, :, [i]], k[:, :, [i]], v[:, :, [j]], log_decay=decay[:, :, [i]], scale=1.0)[0]

    pairs = [[pair(i, j) for i in range(3)] for j in range(3)]
    for j in range(3):
        torch.testing.assert_close(merged[:, :, [j]], sum(pairs[j]), rtol=1e-12, atol=1e-12)
    own = gated_linear(q, k, v, log_decay=decay, scale=1.0)[0]
    torch.testing.assert_close(torch.cat([pairs[i][i] for i in range(3)], 2), own, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("spec", "dials", "message"),
    [
        (arch(GLA), {}, "one of them"),
        (arch(GLA), {"heads": "merge", "factor": 2}, "one of them"),
        (arch(GLA), {"factor": 2}, "no block with keys to widen, its mixers are gla"),
        (arch(SSM), {"heads": "merge"}, "no block with heads to merge, its mixers are mamba2"),
        (arch(SSM), {"factor": 1}, "factor must be at least 2"),
        (arch(SSM), {"factor": 2, "count": 9}, r"count must lie in 1\.\.8"),
        (arch(SSM), {"factor": 2, "count": 0}, r"count must lie in 1\.\.8"),
    ],
)
def test_what_cannot_be_expanded_is_refused(spec: BackboneSpec, dials: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expand(spec, **dials)


def test_no_weights_make_merged_heads_what_they_were() -> None:
    old = arch(GLA, times=2)
    with pytest.raises(ValueError, match="take mode inherit"):
        expand_weights(old, expand(old, heads="merge", count=1), trained(old), mode="zero")
