"""Gated linear attention: against its dense sum in numpy, and the systems that are the same thing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from recallmap.arch.kernels import gated_linear
from recallmap.arch.kernels.benchmark import timing
from tests.arch.kernels.conftest import assert_one_state_agrees

CUTS = [
    "chunks",
    "walked",
    "segments",
    "segments, walked",
    "prepared",
    "prepared, walked",
    "prepared, segments",
    "prepared, segments, walked",
]
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["recurrent", "chunked"])


def example(variant: str, time: int = 40, **sizes: int) -> dict[str, Any]:
    shape = timing.Shape(**{"batch": 2, "heads": 2, "key_width": 4, "value_width": 3, **sizes}, time=time)
    return timing.example("gated_linear", variant, shape)


def dense(q: Any, k: Any, v: Any, log_decay: Any = None, beta: Any = None, sign: Any = None) -> np.ndarray:
    """o_t = sum_s (q_t * product of the decays after s) . k_s beta_s v_s, every product on its own."""
    q, k, v = (x.numpy() for x in (q, k, v))
    q, k = (np.broadcast_to(x, (*v.shape[:3], x.shape[-1])) for x in (q, k))
    decay = np.ones((*v.shape[:3], 1)) if log_decay is None else np.exp(log_decay.numpy()).reshape(*v.shape[:3], -1)
    if sign is not None:
        decay = decay * sign.numpy()[..., None]
    write = np.ones(v.shape[:3]) if beta is None else beta.numpy()
    o = np.zeros_like(v)
    for b, t, h in np.ndindex(*v.shape[:3]):
        for s in range(t + 1):
            faded = q[b, t, h] * np.prod(decay[b, s + 1 : t + 1, h], axis=0)
            o[b, t, h] += faded @ k[b, s, h] * write[b, s, h] * v[b, s, h]
    return o


@IMPLEMENTATIONS
@pytest.mark.parametrize("variant", ["head", "channel", "shared", "signed", "plain"])
def test_the_dense_sum(variant: str, implementation: str) -> None:
    inputs = example(variant, time=24)
    o, _ = gated_linear(**inputs, scale=1.0, implementation=implementation)
    np.testing.assert_allclose(o.numpy(), dense(**inputs), rtol=1e-11, atol=1e-13)


@IMPLEMENTATIONS
def test_a_decay_of_one_is_linear_attention(implementation: str) -> None:
    """I-2"""
    inputs = example("plain", time=70)
    nothing = torch.zeros(2, 70, 2, dtype=torch.float64)
    plain, _ = gated_linear(**inputs, implementation=implementation)
    for log_decay in (nothing, nothing[..., None].expand(-1, -1, -1, 4)):
        o, _ = gated_linear(**inputs, log_decay=log_decay, scale=1.0, implementation=implementation)
        torch.testing.assert_close(o, plain, rtol=1e-12, atol=1e-13)


@IMPLEMENTATIONS
def test_equal_channels_are_one_head(implementation: str) -> None:
    """I-2"""
    inputs = example("head", time=70)
    by_channel = inputs["log_decay"][..., None].expand(-1, -1, -1, 4)
    expected, _ = gated_linear(**inputs, implementation=implementation)
    o, _ = gated_linear(**{**inputs, "log_decay": by_channel}, scale=1.0, implementation=implementation)
    torch.testing.assert_close(o, expected, rtol=1e-12, atol=1e-13)


@IMPLEMENTATIONS
def test_retnet_is_a_constant_decay(implementation: str) -> None:
    """I-2: one learned or fixed number a head stands for gates at every token, gradients included."""
    inputs = example("plain", time=70)
    constant = (1 - 2.0 ** (-5 - torch.arange(2, dtype=torch.float64))).log().requires_grad_()
    o, _ = gated_linear(**inputs, log_decay=constant, implementation=implementation)
    np.testing.assert_allclose(
        o.detach().numpy(), dense(**inputs, log_decay=constant.detach().expand(2, 70, 2)), rtol=1e-11, atol=1e-13
    )
    gates = constant.detach().expand(2, 70, 2).clone().requires_grad_()
    gated_linear(**inputs, log_decay=gates, implementation=implementation)[0].sum().backward()
    o.sum().backward()
    assert gates.grad is not None
    torch.testing.assert_close(constant.grad, gates.grad.sum((0, 1)))


@IMPLEMENTATIONS
def test_merged_heads(implementation: str) -> None:
    """I-6: one head of all channels sums over all pairs of key head and value head; a block mask gives the heads back."""
    inputs = example("channel", time=30)
    merged = {key: x.flatten(2).unsqueeze(2) for key, x in inputs.items()}
    o, state = gated_linear(**merged, scale=1.0, return_state=True, implementation=implementation)
    by_head, states = gated_linear(**inputs, scale=1.0, return_state=True, implementation=implementation)
    assert state is not None
    assert states is not None

    pairs = torch.zeros_like(inputs["v"])
    for keys in range(2):
        crossed = {key: x[:, :, [keys] * 2] for key, x in inputs.items() if key != "v"}
        pairs = pairs + gated_linear(**crossed, v=inputs["v"], scale=1.0, implementation=implementation)[0]
    torch.testing.assert_close(o.unflatten(-1, (2, 3)).squeeze(2), pairs, rtol=1e-11, atol=1e-12)
    assert not torch.allclose(pairs, by_head)
    for head in range(2):
        block = state[:, 0, 4 * head : 4 * head + 4, 3 * head : 3 * head + 3]
        torch.testing.assert_close(block, states[:, head], rtol=1e-11, atol=1e-12)
        read = inputs["q"][:, -1, head, None] @ block
        torch.testing.assert_close(read.squeeze(1), by_head[:, -1, head], rtol=1e-11, atol=1e-12)


def test_a_scale_of_none_is_by_kind_of_gate() -> None:
    inputs = example("channel")
    torch.testing.assert_close(gated_linear(**inputs)[0], 0.5 * gated_linear(**inputs, scale=1.0)[0])
    inputs = example("head")
    assert torch.equal(gated_linear(**inputs)[0], gated_linear(**inputs, scale=1.0)[0])


@IMPLEMENTATIONS
@pytest.mark.parametrize("variant", ["head", "channel"])
def test_decays_that_erase_all_leave_numbers(variant: str, implementation: str) -> None:
    """Gates as strong as they may be, -30 at every token, whose sums would overflow an inverse."""
    inputs = {key: x.float().requires_grad_() for key, x in example(variant, time=200).items()}
    inputs["log_decay"] = torch.full_like(inputs["log_decay"], -30.0).requires_grad_()
    o, state = gated_linear(**inputs, return_state=True, implementation=implementation)
    assert state is not None
    gradients = torch.autograd.grad((o.sum(), state.sum()), list(inputs.values()))
    assert all(x.isfinite().all() for x in (o, state, *gradients))


def test_states_of_low_precision_inputs_are_fp32() -> None:
    inputs = {key: x.bfloat16() for key, x in example("plain").items()}
    for implementation in ("recurrent", "chunked"):
        o, state = gated_linear(**inputs, return_state=True, implementation=implementation)
        assert o.dtype == torch.bfloat16
        assert state is not None
        assert state.dtype == torch.float32


def test_chunks_of_channels_are_powers_of_two() -> None:
    with pytest.raises(ValueError, match="chunk must be a power of two where log_decay goes by key channel, got 24"):
        gated_linear(**example("channel"), chunk=24)


def test_gates_that_do_not_fit_are_told() -> None:
    inputs = example("head", time=5)
    with pytest.raises(ValueError, match=r"log_decay has shape \[2, 4, 2\], must be \[2, 5, 2\] or \[2, 5, 2, 4\]"):
        gated_linear(**{**inputs, "log_decay": inputs["log_decay"][:, :4]})
    with pytest.raises(ValueError, match=r"initial_state has shape \[2, 2, 3, 4\], must be \[2, 2, 4, 3\]"):
        gated_linear(**inputs, initial_state=torch.zeros(2, 2, 3, 4))
    with pytest.raises(ValueError, match=r"beta must be a floating-point tensor, got torch\.int64"):
        gated_linear(**{**inputs, "beta": torch.ones(2, 5, 2, dtype=torch.int64)})


def cut_as(name: str, own: Any, plan: Any, device: str) -> Any:
    """The plan of a call, cut in one of the ways that it offers: in small tiles for the interpreter, on a GPU in those that
    tables name, because Triton 3.6 compiles some others wrong for Hopper (walks by 16 channels of values)."""
    small = device == "cpu"
    if "walked" in name:
        own = own._replace(outputs=plan.Outputs(16, 4, 2, True) if small else plan.Outputs(64, 4, 1, True))
    if "segments" in name:
        block = plan.Tiles(16, 16, 4, 2) if small else plan.Tiles(64, 64, 4, 3)
        totals = block._replace(key_block=32) if small else block._replace(value_block=128)
        own = own._replace(segments=3, segments_back=2, carry=block, carry_back=block, totals=totals)
    if "prepared" in name:
        blocks = ((16, 4, 2), (32, 4, 1)) if small else ((32, 1, 3), (64, 2, 1))
        own = own._replace(prepared=plan.Prepared(*blocks[0]), prepared_back=plan.Prepared(*blocks[1]))
    return own._replace(walk=False)


def cuts() -> Iterator[Any]:
    """Every cut for every kind of gate; only log decays by key channel, in 16 bits, are prepared."""
    for cut in CUTS:
        for variant in ["channel"] if "prepared" in cut else timing.variants("gated_linear"):
            for dtype in [torch.bfloat16, torch.float16] if "prepared" in cut else [torch.float32, torch.bfloat16]:
                yield pytest.param(cut, variant, "cpu", dtype)
                yield pytest.param(cut, variant, "cuda", dtype, marks=pytest.mark.gpu)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("cut", "variant", "device", "dtype"), [*cuts()])
def test_no_cut_of_the_work_changes_results(
    cut: str,
    variant: str,
    device: str,
    dtype: torch.dtype,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one token, of several chunks and a part of one, with states and without, with gradients and without."""
    if (device, dtype) == ("cpu", torch.bfloat16):
        request.getfixturevalue("tensor_cores")
    plan = import_module("recallmap.arch.kernels.gated_linear.fused.plan")
    plan_for = plan.plan_for
    monkeypatch.setattr(plan, "plan_for", lambda *sizes: cut_as(cut, plan_for(*sizes), plan, device))
    # The time of the interpreter is that of its programs.
    sizes = {"batch": 2, "heads": 2, "key_width": 100, "value_width": 90}
    if device == "cpu":
        sizes = {"batch": 1, "heads": 2 if variant == "shared" else 1, "key_width": 20, "value_width": 24}
    # The derivative by the gate of a single token is a sum that may cancel: here there are two. The state before many tokens is
    # small, as rounding what the first ones read of it would outweigh all other errors.
    for time, size in ((2, 1.0), (70, None), (300 if device == "cuda" else 150, 0.1)):
        inputs = timing._on(example(variant, time, **sizes), dtype, torch.device(device))
        if "log_decay" in inputs:
            inputs["log_decay"][:, 3::29] = -30.0
        initial = torch.randn([*sizes.values()], generator=torch.Generator().manual_seed(0)).to(device)
        initial = None if size is None else size * initial
        assert_one_state_agrees("gated_linear", inputs, initial, dtype)


def test_a_swept_cut_has_as_many_segments_as_keep_a_gpu_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = import_module("recallmap.arch.kernels.gated_linear.fused.plan")
    walked = plan.Outputs(64, 4, 2, True)
    monkeypatch.setattr(plan, "WIDE", {("none", 128): plan.Wide({"outputs": walked}, 256, 128)})

    def cut(sequences: int, time: int, gate: str = "none", exact: bool = False) -> tuple[bool, int, int]:
        found = plan.plan_for(sequences, time, 128, 128, gate, exact)
        return found.outputs.walked, found.segments, found.segments_back

    assert cut(32, 2048) == (True, 4, 2)
    assert cut(16, 8192) == (True, 8, 4)
    assert cut(16, 256) == (True, 2, 2)
    assert cut(512, 8192) == (True, 1, 1)
    assert cut(16, 8192, "head") == cut(16, 8192, exact=True) == (False, 1, 1)
