"""Any causal torch module as a mixer: signature, options, costs, state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recallmap.arch import laws, torch_module
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.cost import cost
from recallmap.arch.mixers.mixer import StateSize
from recallmap.arch.torch_module import COUNTED, FOLLOWED, TorchModule

WIDTH, TIME = 8, 11


class Mean(nn.Module):
    """The mean so far; nothing is said of its state."""

    def __init__(self, dim: int, gain: float = 1.0, bias: bool = True) -> None:
        super().__init__()
        self.gain, self.linear = gain, nn.Linear(dim, dim, bias=bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.gain * self.linear(
            x_BTD.cumsum(1) / torch.arange(1, x_BTD.shape[1] + 1, device=x_BTD.device)[:, None]
        )


class Declared(Mean):
    @staticmethod
    def state_floats(width: int, length: int) -> int:
        return width + 1

    @staticmethod
    def flops(width: int, length: int, gain: float = 1.0) -> float:
        return 3.0 * width * gain


class Cached(nn.Module):
    """A layer that gives its cache, too, with a window of `keep` tokens as its state."""

    def __init__(self, d_model: int, keep: int = 4) -> None:
        super().__init__()
        self.keep, self.linear = keep, nn.Linear(d_model, d_model)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, None]:
        padded = torch.cat([torch.zeros_like(x_BTD[:, :1]).expand(-1, self.keep - 1, -1), x_BTD], 1)
        return self.linear(padded.unfold(1, self.keep, 1).sum(-1)), None

    def step(self, x_BD: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        seen = x_BD[:, None] if state is None else torch.cat([state, x_BD[:, None]], 1)
        return self.linear(seen.sum(1)), seen[:, -(self.keep - 1) :]


class Ahead(Mean):
    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.linear(x_BTD.flip(1))


class Narrow(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise RuntimeError("heads must share out the width")
        self.linear = nn.Linear(width, width // heads)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.linear(x_BTD)


class Sized(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()


CLASSES = (Mean, Declared, Cached, Ahead, Narrow, Sized)


@pytest.fixture(autouse=True)
def offered() -> Iterator[None]:
    torch_module.offer({f"mine:{cls.__name__}": cls for cls in CLASSES}, "mine.py+0123")
    yield
    torch_module.withdraw(f"mine:{cls.__name__}" for cls in CLASSES)


def module(name: str, **options: Any) -> TorchModule:
    return TorchModule(of=f"mine:{name}", options=options)


@pytest.mark.parametrize("spec", ["Mean", "Declared", "Cached"])
def test_its_outputs_are_those_of_the_module(spec: str) -> None:
    mixer = module(spec).build(WIDTH)
    x = torch.randn(2, TIME, WIDTH)
    y = mixer.get_submodule("inner")(x)
    assert torch.equal(mixer(x)[0], y[0] if isinstance(y, tuple) else y)


@pytest.mark.parametrize("spec", ["Mean", "Declared", "Cached"])
def test_any_cut_with_the_state_carried_gives_the_same_outputs(spec: str) -> None:
    mixer = module(spec).build(WIDTH)
    assert laws.is_causal(mixer, WIDTH).holds
    x = torch.randn(2, TIME, WIDTH)
    first, state = mixer(x[:, :4], return_state=True)
    second, _ = mixer(x[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), mixer(x)[0])


def test_a_state_is_declared_or_counted_from_steps_or_unknown() -> None:
    assert [module(name).state for name in ("Mean", "Declared", "Cached")] == ["unknown", "declared", "counted"]
    assert module("Declared").state_size(WIDTH, 100) == StateSize(WIDTH + 1)
    assert module("Mean").state_size(WIDTH, 100) == StateSize(0, 100 * WIDTH)  # the tokens so far
    cached = module("Cached", keep=4)
    assert [cached.state_size(WIDTH, n) for n in (1, 2, 3, 9)] == [
        StateSize(0, WIDTH),
        StateSize(0, 2 * WIDTH),
        StateSize(3 * WIDTH),
        StateSize(3 * WIDTH),
    ]
    wide = module("Cached", keep=COUNTED + 10)
    assert wide.state_size(WIDTH, COUNTED) == StateSize(0, COUNTED * WIDTH)
    assert wide.state_size(WIDTH, 3 * COUNTED) == StateSize((COUNTED + 9) * WIDTH)
    endless = module("Cached", keep=2 * FOLLOWED)
    assert endless.state_size(WIDTH, FOLLOWED + 100) == StateSize(0, (FOLLOWED + 100) * WIDTH)
    size = laws.counted_state(cached.build(WIDTH), WIDTH, lambda length: cached.state_size(WIDTH, length))
    assert size.holds, size.fault


def test_costs_are_those_of_the_class() -> None:
    assert module("Mean").parameters(WIDTH) == WIDTH * WIDTH + WIDTH
    assert module("Mean", bias=False).parameters(WIDTH) == WIDTH * WIDTH
    assert module("Mean").flops(WIDTH, 5) == 2 * (WIDTH * WIDTH + WIDTH)
    assert module("Declared", gain=2).flops(WIDTH, 5) == 6 * WIDTH
    arch = BackboneSpec(name="mine", width=WIDTH, stack=(Block(mixer=module("Declared")),))  # type: ignore[arg-type]
    assert cost(arch, vocab=4, length=16).state_floats == WIDTH + 1
    assert sum(p.numel() for p in arch.build(vocab=4).parameters()) == arch.parameters(4)


def test_options_that_say_the_same_are_the_same() -> None:
    assert module("Mean", gain=2) == module("Mean", gain=2.0)
    assert hash(module("Mean", gain=2)) == hash(module("Mean", gain=2.0))
    assert module("Mean", gain=2) != module("Mean", gain=3)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("Mea", {}, r"^of must name a class .* got 'mine:Mea', expected .* \(did you mean 'mine:Mean'\?\)$"),
        (
            "Mean",
            {"gian": 2.0},
            r"^options\.gian is no parameter of Mean, expected gain, bias \(did you mean 'gain'\?\)$",
        ),
        ("Mean", {"gain": "much"}, r"^options\.gain of Mean must be a number, got 'much'$"),
        ("Mean", {"bias": 1}, r"^options\.bias of Mean must be true or false, got 1$"),
        ("Mean", {"dim": 8}, r"^options\.dim is the model's width, which the module gets by itself; leave it out$"),
        ("Narrow", {}, r"^options lacks heads, which the constructor of Narrow needs$"),
        (
            "Sized",
            {},
            r"^of Sized: its constructor must take the width by one of the names width, d_model, dim, hidden_size",
        ),
    ],
)
def test_a_wrong_name_or_option_is_refused_with_a_remedy(name: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        module(name, **options)


def test_a_module_that_cannot_be_built_or_has_another_width_says_so() -> None:
    with pytest.raises(
        ValueError, match="of mine:Narrow cannot be built at width 8: RuntimeError: heads must share out"
    ):
        module("Narrow", heads=3).check(WIDTH)
    with pytest.raises(ValueError, match=r"mine:Narrow returns \[1, 3, 4\], expected a tensor \[1, 3, 8\]"):
        module("Narrow", heads=2).build(WIDTH)(torch.zeros(1, 3, WIDTH))


def test_a_module_that_looks_ahead_breaks_the_law_of_causality() -> None:
    assert not laws.is_causal(module("Ahead").build(WIDTH), WIDTH).holds


def test_data_of_other_code_or_another_state_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"code must be 'mine\.py\+0123', got 'mine\.py\+9': the code has changed since"
    ):
        TorchModule(of="mine:Mean", code="mine.py+9")
    with pytest.raises(ValueError, match="state must be 'unknown', got 'declared'"):
        TorchModule(of="mine:Mean", state="declared")
