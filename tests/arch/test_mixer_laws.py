"""What every mixer promises, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from inspect import getmodule
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.utils import _pytree as pytree

from recallmap.arch import laws
from recallmap.arch.mixers import (
    GDN2,
    HGRN2,
    KDA,
    MLSTM,
    Attention,
    Comba,
    DeltaNet,
    DeltaProduct,
    Fox,
    GatedDeltaNet,
    GatedLinearAttention,
    Gka,
    Gsa,
    Hawk,
    LinearAttention,
    LogLinear,
    Longhorn,
    Mamba1,
    Mamba2,
    Mamba3,
    Mesa,
    MesaRls,
    Mixer,
    MomentumDeltaNet,
    Path,
    Raven,
    RetNet,
    Rwkv7,
)
from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, State

WIDTH = 16
LENGTH = 63  # odd, so that the last chunk is ragged
TOLERANCE = 1e-10  # in float64, of the largest entry


def every(union: Any) -> list[MixerSpec]:
    """Every sibling with its defaults."""
    return [sibling() for sibling in get_args(union)]


SPECS = [
    *every(Mixer),
    Attention(heads=2, rope=False, bias=True),
    Attention(heads=2, head_dim=6, window=5),
    Attention(heads=2, window=1, rope=False),
    Attention(heads=2, out_gate="channel", bias=True),
    Attention(heads=2, out_gate="head"),
    Fox(heads=2, head_dim=6, qk_norm=True, shift=True, out_norm=True, out_gate=True),
    Fox(heads=2, gate="bias", out_gate=True),
    Fox(heads=2, gate="fixed", shift=True),
    LinearAttention(heads=2, feature_map="identity", normalize=False, qk_norm=True, short_conv=4, out_norm="head"),
    LinearAttention(heads=1, feature_map="taylor", key_dim=3, out_gate=True),
    GatedLinearAttention(
        heads=2,
        gate="vector",
        key_dim=4,
        qk_norm=False,
        write_gate=False,
        short_conv=0,
        out_norm="shared",
        out_gate=True,
    ),
    GatedLinearAttention(
        heads=3, gate="vector", key_dim=4, value_dim=5, conv_v=True, activation="identity", short_conv=2
    ),
    Mamba2(heads=2, form="shared_qk", key_dim=6, value_dim=10),
    Mamba2(heads=2, form="shared_qk", short_conv=0),
    Mamba3(heads=2, key_dim=6, rank=3, out_norm=True),
    Path(heads=2, head_dim=6, rank=3, forget=True),
    Gsa(heads=2, key_dim=6, value_dim=4, slots=5),
    Raven(heads=2, key_dim=6, value_dim=4, slots=5, chosen=2),
    LogLinear(heads=2, key_dim=6, value_dim=4, levels=4, short_conv=0),
    Gka(heads=2, key_dim=6, value_dim=4, blend=False, steps=5),
    Mamba3(heads=2, key_dim=6, value_dim=5, rope_fraction=1.0, trapezoid="half", out_norm=True),
    Mamba3(heads=2, key_dim=6, rope_fraction=0.0, trapezoid="none", key_bias=False),
    DeltaNet(heads=2, conv_v=False, beta_max=2, beta_bias=True, out_norm="head", out_gate=False),
    GatedDeltaNet(heads=2, decay="sigmoid", key_dim=4, value_dim=6, short_conv=1, beta_max=2),
    DeltaNet(heads=2, scale="key_dim", out_gate=False),
    GatedDeltaNet(heads=2, scale="key_dim", key_dim=4, value_dim=6),
    Comba(heads=2, key_dim=4, value_dim=6, scale="key_dim", correction=0.02),
    DeltaProduct(heads=2, steps=3, decay="none", key_dim=4, value_dim=6, scale="key_dim"),
    DeltaProduct(heads=2, steps=2, beta_max=1, conv_v=False, short_conv=2, out_gate=False),
    GDN2(heads=2, key_dim=4, value_dim=6, decay="signed", write="scalar"),
    GDN2(heads=2, decay="head", erase="scalar", scale="key_dim"),
    KDA(heads=2, key_dim=4, value_dim=6, decay="bounded", scale="key_dim", gate_rank=3, gate_activation="silu"),
    KDA(heads=2, decay="signed", beta_max=2, activation="identity", out_gate=False),
    KDA(heads=2, key_dim=4, value_dim=6, decay="signed", preconditioned=True),
    GatedDeltaNet(heads=2, preconditioned=True),
    MomentumDeltaNet(heads=2, key_dim=4, value_dim=6, corrects="unfaded", scale="key_dim"),
    KDA(heads=2, decay="head", gate_form="full", short_conv=0),
    Mesa(heads=2, key_dim=6, value_dim=4, conv_v=True, out_gate=True),
    Mesa(heads=2, x0="zero", tolerance=1e-13),
    Mesa(heads=2, signed_decay=True, lambda_floor=49.0, lambda_init=50.0),
    GatedLinearAttention(heads=2, signed_decay=True),
    Mamba2(heads=2, signed_decay=True),
    RetNet(heads=2, key_dim=4, value_dim=6, short_conv=3, activation="silu"),
    HGRN2(heads=2, key_dim=4, value_dim=6, lower_bound=0.5),
    MLSTM(heads=2, key_dim=4, value_dim=6, activation="silu", out_gate=True),
    Hawk(expand=1, gate_blocks=2, short_conv=0),
    Rwkv7(heads=2, decay_rank=3, rate_rank=4, gate_rank=5),
    Mamba1(expand=1.5, state_dim=3, step_rank=2, short_conv=0),
    Longhorn(form="exact", state_dim=5),
    MesaRls(heads=2, key_dim=6, value_dim=4, least_decay=1.0, conv_v=True),
]


def dials_of(spec: MixerSpec) -> str:
    said = [f"{f.name}={getattr(spec, f.name)}" for f in fields(spec) if getattr(spec, f.name) != f.default]
    return " ".join([spec.kind, *said])


of_every_mixer = pytest.mark.parametrize("spec", SPECS, ids=dials_of)


def module_of(spec: MixerSpec, seed: int = 0, dtype: torch.dtype = torch.float64) -> MixerModule:
    torch.manual_seed(seed)
    module: MixerModule = spec.build(WIDTH).to(dtype)
    return module


def tokens(length: int = LENGTH, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def agree(left: Any, right: Any, tolerance: float = TOLERANCE) -> None:
    """Two trees of tensors are equal within `tolerance` of their largest entries."""
    left_leaves, right_leaves = (
        [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)] for tree in (left, right)
    )
    assert len(left_leaves) == len(right_leaves) > 0
    for a, b in zip(left_leaves, right_leaves, strict=True):
        assert a.shape == b.shape
        if a.numel():
            scale = max(b.abs().max().item(), 1e-3)
            assert (a - b).abs().max().item() <= tolerance * scale


def held(verdict: laws.Verdict) -> None:
    assert verdict.holds, verdict.fault


@of_every_mixer
def test_the_future_does_not_reach_the_past(spec: MixerSpec) -> None:
    module, x = module_of(spec), tokens()
    held(laws.is_causal(module, WIDTH, lengths=(3, 33), tolerance=TOLERANCE))
    changed = torch.cat([x[:, :40], tokens(seed=2)[:, 40:]], dim=1)
    before, after = module(x)[0], module(changed)[0]
    agree(before[:, :40], after[:, :40], 1e-13)
    assert not torch.allclose(before[:, 40:], after[:, 40:])


@of_every_mixer
@pytest.mark.parametrize("cut", [1, 31, LENGTH - 1])
def test_a_cut_with_the_state_carried_over_changes_nothing(spec: MixerSpec, cut: int) -> None:
    held(laws.cuts(module_of(spec), WIDTH, lengths=(LENGTH,), at=(cut,), tolerance=TOLERANCE))


@of_every_mixer
def test_token_by_token_is_the_parallel_form(spec: MixerSpec) -> None:
    held(laws.decoding(module_of(spec), WIDTH, lengths=(LENGTH,), tolerance=TOLERANCE))


@of_every_mixer
def test_every_implementation_gives_the_same(spec: MixerSpec) -> None:
    x, weight = tokens(), tokens(seed=3)

    def computed_by(implementation: str) -> tuple[Tensor, State, list[Tensor]]:
        module = module_of(spec)
        module.implementation = implementation
        y, state = module(x, return_state=True)
        carried = sum((leaf.sin().sum() for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor)), start=0.0)
        loss = (y * weight).sum() + carried
        return y, state, list(torch.autograd.grad(loss, list(module.parameters()), allow_unused=True))

    agree(computed_by("chunked"), computed_by("recurrent"))


@pytest.mark.parametrize("spec", [s for s in SPECS if hasattr(getmodule(type(s)), "kernels")], ids=dials_of)
def test_the_op_hears_which_implementation_is_wanted(spec: MixerSpec) -> None:
    module = module_of(spec)
    module.implementation = "by hand"
    with pytest.raises(ValueError, match="there is no implementation 'by hand'"):
        module(tokens())


@of_every_mixer
def test_the_state_is_as_large_as_the_spec_says_and_all_that_is_remembered(spec: MixerSpec) -> None:
    lengths = (2, 3, LENGTH, LENGTH + 1)
    size = partial(spec.state_size, WIDTH)
    held(laws.counted_state(module_of(spec), WIDTH, size, lengths=lengths, tolerance=TOLERANCE))


@of_every_mixer
@pytest.mark.parametrize("length", [2, LENGTH])
def test_a_state_grows_where_the_spec_says_so(spec: MixerSpec, length: int) -> None:
    grown = spec.state_size(WIDTH, length + 1).total > spec.state_size(WIDTH, length).total
    assert grown == (spec.state_size(WIDTH, length).growing > 0)


@of_every_mixer
def test_there_are_as_many_parameters_as_the_spec_says(spec: MixerSpec) -> None:
    held(laws.counted_parameters(module_of(spec), spec.parameters(WIDTH)))


@of_every_mixer
def test_a_state_is_carried_only_when_asked_for(spec: MixerSpec) -> None:
    assert module_of(spec)(tokens(3))[1] is None


@of_every_mixer
def test_every_parameter_learns(spec: MixerSpec) -> None:
    held(laws.gradients(module_of(spec), WIDTH, length=LENGTH))


@of_every_mixer
def test_a_member_of_a_stack_gives_what_it_gives_alone(spec: MixerSpec) -> None:
    members = [module_of(spec, seed) for seed in range(3)]
    assert not list(members[0].buffers())
    held(laws.stacking(members, WIDTH, length=LENGTH, tolerance=TOLERANCE))


def on_a_cpu() -> Iterator[Any]:
    """Every sibling but those whose solver is told to the compiler on CUDA alone. Where siblings share a module, the first
    stands for them in the quick set."""
    seen = set()
    for spec in every(Mixer):
        if not isinstance(spec, Mesa | Gka):
            module = type(module_of(spec))
            yield pytest.param(spec, "cpu", marks=[pytest.mark.slow] if module in seen else [])
            seen.add(module)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # that the compiler itself does
@pytest.mark.parametrize(
    ("spec", "device"),
    [
        *on_a_cpu(),
        *(pytest.param(spec, "cuda", marks=pytest.mark.gpu) for spec in every(Mixer)),
    ],
    ids=lambda x: x if isinstance(x, str) else dials_of(x),
)
def test_the_compiler_reads_a_stack_of_it(spec: MixerSpec, device: str) -> None:
    """As one piece: what it cannot read trains uncompiled, and slower."""
    members = [module_of(spec, seed, torch.float32).to(device) for seed in range(2)]
    parameters = {name: value.detach() for name, value in stack_module_state(members)[0].items()}
    x = torch.stack([tokens(20, seed, torch.float32) for seed in range(2)]).to(device)
    base = module_of(spec).to("meta")

    def together(values: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return vmap(lambda own, given: functional_call(base, own, (given,))[0])(values, inputs)

    expected = together(parameters, x)
    torch._dynamo.reset()
    agree(torch.compile(together, fullgraph=True, dynamic=False, backend="eager")(parameters, x), expected, 1e-5)


@of_every_mixer
def test_bfloat16_stays_close(spec: MixerSpec) -> None:
    held(laws.rounding(module_of(spec, dtype=torch.float32), WIDTH, length=LENGTH))


@of_every_mixer
def test_the_same_seed_gives_the_same_weights(spec: MixerSpec) -> None:
    first, again, other = (list(module_of(spec, seed).parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


@of_every_mixer
def test_no_token_is_refused_and_one_is_read(spec: MixerSpec) -> None:
    held(laws.shortest(module_of(spec), WIDTH))


@of_every_mixer
def test_a_token_costs_all_matrices_and_some_core(spec: MixerSpec) -> None:
    matrices = sum(m.weight.numel() for m in module_of(spec).modules() if isinstance(m, torch.nn.Linear))
    core = spec.flops(WIDTH, LENGTH) - 2 * matrices
    assert core > 0
    assert spec.flops(WIDTH, 2 * LENGTH) >= spec.flops(WIDTH, LENGTH)


@pytest.mark.parametrize("spec", every(Mixer), ids=dials_of)
def test_a_mixer_explains_itself(spec: MixerSpec) -> None:
    for text in (spec.equation, spec.state_formula, spec.source, type(spec).__doc__, *spec.differs()):
        assert text


@pytest.mark.parametrize("cls", get_args(Mixer), ids=lambda cls: cls.kind)
def test_a_mixer_of_ours_says_itself_whether_it_differs_from_what_its_name_promises(cls: type[MixerSpec]) -> None:
    assert cls.differs is not MixerSpec.differs


@pytest.mark.parametrize("spec", [s for s in every(Mixer) if hasattr(s, "heads")], ids=dials_of)
def test_heads_that_do_not_share_out_the_width_are_refused_with_a_remedy(spec: MixerSpec) -> None:
    with pytest.raises(ValueError, match="take one of 1, 3, 9 heads, or give"):
        spec.check(9)


COUNTS = {"heads", "head_dim", "key_dim", "value_dim", "window", "short_conv", "cg_steps", "state_dim", "gate_blocks"}
COUNTS |= {"slots", "chosen", "rank", "gate_rank", "value_rank", "decay_rank", "rate_rank", "step_rank"}


@pytest.mark.parametrize(
    ("sibling", "dial"), [(s, f.name) for s in get_args(Mixer) for f in fields(s) if f.name in COUNTS]
)
def test_a_count_below_its_least_is_refused(sibling: Callable[..., MixerSpec], dial: str) -> None:
    with pytest.raises(ValueError, match=f"{dial} must be at least [01], got -1"):
        sibling(**{dial: -1})
