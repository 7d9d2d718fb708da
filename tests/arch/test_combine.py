"""A memory and an attention in one block: gate (MAG), layer (MAL), context (MAC)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from recallmap.arch.block import Block
from recallmap.arch.combine import Context, Gate, Layer
from recallmap.arch.laws import is_causal
from recallmap.arch.mixers.attention import Attention
from recallmap.arch.mixers.gated_deltanet import GatedDeltaNet
from recallmap.arch.mixers.kernel_memory import DeepTransformer, Dot
from recallmap.arch.mixers.memory import Atlas, Titans, TttLinear
from recallmap.arch.mlp import SwiGLU

WIDTH, LENGTH = 8, 13
TITANS, LOCAL = Titans(heads=2, chunk=4), Attention(heads=2, window=5)
Combination = Gate | Layer | Context
CONTEXT = Context(memory=TITANS, attention=Attention(heads=2), segment=4)
SPECS: list[Combination] = [
    Gate(memory=TITANS, attention=LOCAL, mlp=SwiGLU(expand=1)),
    Gate(memory=GatedDeltaNet(heads=2), attention=Attention(heads=2), persistent=0),
    Layer(memory=Atlas(heads=2, chunk=4, degree=1, expansion=1), attention=LOCAL),
    Layer(memory=Dot(heads=2, depth=1, chunk=1), attention=Attention(heads=2)),
    CONTEXT,
    Context(memory=TttLinear(heads=2, chunk=3), attention=LOCAL, segment=5, persistent=0),
    Context(memory=DeepTransformer(heads=2, chunk=3), attention=Attention(heads=2), segment=5, mlp=SwiGLU(expand=1)),
]
of_every_combination = pytest.mark.parametrize("spec", SPECS, ids=lambda s: f"{s.kind} of {s.memory.kind}")


def built(spec: Combination, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return spec.build(WIDTH, "rms").double()


def tokens(seed: int = 0, length: int = LENGTH) -> Tensor:
    return torch.randn(2, length, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def leaves(state: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(state) if isinstance(x, Tensor)]


@of_every_combination
def test_there_are_as_many_parameters_as_the_spec_says(spec: Combination) -> None:
    assert spec.parameters(WIDTH, "rms") == sum(p.numel() for p in built(spec).parameters())


@of_every_combination
@pytest.mark.parametrize("at", [1, 6, 10, 12])
def test_a_cut_changes_nothing_and_the_state_is_as_large_as_said(spec: Combination, at: int) -> None:
    block, x = built(spec), tokens()
    whole, last = block(x, return_state=True)
    first, state = block(x[:, :at], return_state=True)
    second, end = block(x[:, at:], state, return_state=True)
    assert_close(torch.cat([first, second], 1), whole, rtol=1e-9, atol=1e-10)
    for found, expected in zip(leaves(end), leaves(last), strict=True):
        assert_close(found, expected, rtol=1e-9, atol=1e-10)
    assert sum(s.numel() for s in leaves(state)) // 2 == spec.state_size(WIDTH, at).total
    assert block(x)[1] is None


@pytest.mark.parametrize("spec", [SPECS[0], SPECS[2]], ids=lambda s: s.kind)
def test_persistent_tokens_stay_in_sight_of_a_window(spec: Gate | Layer) -> None:
    block = built(spec)
    z = tokens(length=LENGTH + 4).requires_grad_()
    (by_token,) = torch.autograd.grad(block.mixer.attention(z)[0][:, -1].sum(), z)
    assert by_token.abs().sum((0, 2)).nonzero().flatten().tolist() == [0, 1, 2, 3, *range(LENGTH - 1, LENGTH + 4)]


@of_every_combination
def test_the_future_does_not_reach_the_past(spec: Combination) -> None:
    block, x = built(spec), tokens()
    verdict = is_causal(block, WIDTH, lengths=(3, LENGTH), tolerance=1e-10)
    assert verdict.holds, verdict.fault
    changed = torch.cat([x[:, :7], tokens(1)[:, 7:]], 1)
    before, after = block(x)[0], block(changed)[0]
    assert_close(before[:, :7], after[:, :7], rtol=0, atol=1e-13)
    assert not torch.allclose(before[:, 7:], after[:, 7:])


@of_every_combination
def test_every_parameter_learns(spec: Combination) -> None:
    block = built(spec)
    (block(tokens())[0] * tokens(1)).sum().backward()
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name


@of_every_combination
def test_a_member_of_a_stack_gives_what_it_gives_alone(spec: Combination) -> None:
    members = [built(spec, seed) for seed in range(2)]
    x = torch.stack([tokens(seed) for seed in range(2)])
    parameters, buffers = stack_module_state(members)
    assert not buffers
    base = built(spec).to("meta")

    def loss(values: dict[str, Tensor], inputs: Tensor) -> Tensor:
        return functional_call(base, values, (inputs,))[0].square().sum()

    step: Callable[..., dict[str, Tensor]] = vmap(grad(loss))
    together = step({n: p.detach() for n, p in parameters.items()}, x)
    for number, member in enumerate(members):
        member(x[number])[0].square().sum().backward()
        for name, parameter in member.named_parameters():
            assert_close(together[name][number], parameter.grad, rtol=1e-8, atol=1e-9)


@pytest.mark.gpu
@of_every_combination
def test_on_a_gpu_it_answers_and_learns_as_on_a_cpu(spec: Combination) -> None:
    """Wide enough for the kernels, and longer than a window, a segment and a chunk."""
    torch.manual_seed(0)
    block = spec.build(32, "rms")
    x, weight = torch.randn(2, 3, 70, 32)

    def everything(device: str, dtype: torch.dtype) -> list[Tensor]:
        own = copy.deepcopy(block).to(device, dtype)
        given = x.to(device, dtype).requires_grad_()
        y = own(given)[0]
        by = torch.autograd.grad((y * weight.to(device, dtype)).sum(), [given, *own.parameters()])
        return [part.detach().cpu().double() for part in (y, *by)]

    for found, exact in zip(everything("cuda", torch.float32), everything("cpu", torch.float64), strict=True):
        assert (found - exact).norm() <= 2e-3 * exact.norm()


def test_a_gate_is_attention_times_what_the_memory_answers() -> None:
    mixer, x = built(SPECS[0]).get_submodule("mixer"), tokens()
    z = torch.cat([mixer.get_parameter("persistent").expand(2, -1, -1), x], 1)
    attended = mixer.get_submodule("attention_norm")(mixer.get_submodule("attention")(z)[0])
    remembered = mixer.get_submodule("memory_norm")(mixer.get_submodule("memory")(z)[0])
    assert_close(mixer(x)[0], (attended * F.silu(remembered))[:, 4:])


def test_a_layer_attends_to_what_the_memory_answers() -> None:
    mixer, x = built(SPECS[2]).get_submodule("mixer"), tokens()
    z = torch.cat([mixer.get_parameter("persistent").expand(2, -1, -1), x], 1)
    remembered = mixer.get_submodule("norm")(mixer.get_submodule("memory")(z)[0])
    assert_close(mixer(x)[0], mixer.get_submodule("attention")(remembered)[0][:, 4:])


def test_the_first_segment_of_a_context_reads_what_a_new_memory_knows() -> None:
    spec = replace(CONTEXT, persistent=0, segment=LENGTH)
    mixer, x = built(spec).get_submodule("mixer"), tokens()
    memory = mixer.get_submodule("memory")
    _, empty = memory.mix(x[:, :0], None, True)  # type: ignore[operator]
    h, _ = memory.read(x, empty, None)  # type: ignore[operator]
    attended, _ = mixer.get_submodule("attention")(torch.stack([h, x], 2).flatten(1, 2))
    y = attended[:, 1::2]
    gate = mixer.get_submodule("memory_norm")(memory(y)[0])
    assert_close(mixer(x)[0], mixer.get_submodule("attention_norm")(y) * F.silu(gate))


@of_every_combination
def test_it_is_a_block_as_any_other(spec: Combination) -> None:
    assert spec.mixer.kind == spec.kind
    assert spec.mixer.equation
    assert spec.mixer.source
    assert spec.mixer.state_size(WIDTH, 9) == spec.state_size(WIDTH, 9)
    alone = Block(mixer=spec.memory).flops(WIDTH, 9) + Block(mixer=spec.attention).flops(WIDTH, 9)
    assert spec.flops(WIDTH, 9) > 0.9 * alone
    names = {name for name, _ in spec.build(WIDTH, "rms").named_modules()}
    assert {"mixer", "mixer.memory", "mixer.attention"} <= names
    assert {spec, spec.mixer}  # both can be keys


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="persistent must be at least 0"):
        Gate(memory=TITANS, attention=LOCAL, persistent=-1)
    with pytest.raises(ValueError, match="segment must be at least 1"):
        Context(memory=TITANS, attention=LOCAL, segment=0)
    with pytest.raises(ValueError, match="which 'gated_deltanet' cannot do"):
        Context(memory=GatedDeltaNet(heads=2), attention=LOCAL)
    with pytest.raises(ValueError, match=r"memory \(titans\): 3 heads do not share out width 8"):
        Gate(memory=Titans(heads=3), attention=LOCAL).check(8)
