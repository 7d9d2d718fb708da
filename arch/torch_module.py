"""Any causal torch module x [B, T, D] -> y [B, T, D] as a mixer.

    {kind: module, of: "my_mixers:MyLayer", options: {heads: 2}}

The class comes from code that the user named; a name alone, as a record has it, imports nothing. Its constructor takes the
model's width by one of the names in WIDTHS. What else the class may have:

state_floats  (width, length) -> floats that it carries after `length` tokens; called on the class
step          (x [B, D], state) -> (y [B, D], state): one token, from state None before the first; its state is counted
flops         (width, length) -> operations per token, forward; called on the class; else two for every parameter

B batch, T time, D model width
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import torch
from torch import Tensor, nn

from recallmap.arch.laws import floats_in
from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from recallmap.arch.seeded import seeded

WIDTHS = ("width", "d_model", "dim", "hidden_size")  # names of a constructor's parameter for the model's width

# Tokens that are stepped through to count a state: one that does not grow by then is taken to stay, one that grows is followed
# further, beyond all lengths at which it is compared with what a module holds, and then goes on in a straight line.
COUNTED, FOLLOWED = 64, 2048

Value = bool | int | float | str | None
Option = Value | tuple[Value, ...]
Known = Literal["declared", "counted", "unknown"]


class _Offer:
    """A class, and what defined it."""

    def __init__(self, cls: type[nn.Module], code: str) -> None:
        self.cls, self.code = cls, code


_OFFERS: dict[str, _Offer] = {}


def offer(classes: Mapping[str, type[nn.Module]], code: str) -> None:
    """Make classes usable by these names (`my_mixers:MyLayer`). `code` says what defined them."""
    _OFFERS.update({name: _Offer(cls, code) for name, cls in classes.items()})


def withdraw(names: Iterable[str]) -> None:
    """Take back what was offered."""
    for name in names:
        _OFFERS.pop(name, None)
    for known in (_parameters, _declared, _counted):
        known.cache_clear()


class Options(dict[str, Option]):
    """Options of a constructor, which nobody changes."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(sorted(self.items(), key=lambda item: item[0])))


@dataclass(frozen=True, kw_only=True)
class TorchModule(MixerSpec):
    """A causal torch module from outside.

    of       the class, as file:Class or module:Class
    options  further arguments of its constructor, by name
    state    whether the size of its state is declared by the class, counted from its `step`, or unknown; found out
    code     what defined the class; found out
    """

    kind: Literal["module"] = "module"
    of: str
    options: Mapping[str, Option] = field(default_factory=Options)
    state: Known | None = None
    code: str = ""

    equation: ClassVar[str] = "that of the module"
    state_formula: ClassVar[str] = "as the class declares, or as counted from its step; else unknown"
    source: ClassVar[str] = "the user's code"

    def __post_init__(self) -> None:
        found = _OFFERS.get(self.of)
        if found is None:
            raise ValueError(_nowhere(self.of))
        if self.code not in ("", found.code):
            raise ValueError(
                f"code must be '{found.code}', got '{self.code}': the code has changed since; leave code out"
            )
        known = _known(found.cls)
        if self.state not in (None, known):
            raise ValueError(f"state must be '{known}', got '{self.state}': leave it out, it is found out")
        object.__setattr__(self, "code", found.code)
        object.__setattr__(self, "state", known)
        object.__setattr__(self, "options", Options(_fitting(found.cls, self.options)))

    @property
    def cls(self) -> type[nn.Module]:
        """The class. Raises ValueError where its code was taken back, or has changed."""
        found = _OFFERS.get(self.of)
        if found is None:
            raise ValueError(_nowhere(self.of))
        if found.code != self.code:
            raise ValueError(
                f"of {self.of} is now defined by {found.code}, and was by {self.code}: read its document again"
            )
        return found.cls

    @property
    def verifiable(self) -> bool:
        """True where the size of the state can be checked by running the module token by token."""
        return hasattr(self.cls, "step")

    def check(self, width: int) -> None:
        self.parameters(width)

    def build(self, width: int) -> MixerModule:
        return _Wrapped(self, self.made(width))

    def made(self, width: int) -> nn.Module:
        """The module by itself. Raises ValueError where the constructor raises anything."""
        try:
            made: nn.Module = self.cls(**{_width_name(self.cls): width}, **self.options)
        except Exception as error:
            raise ValueError(
                f"of {self.of} cannot be built at width {width}: {type(error).__name__}: {error}"
            ) from error
        return made

    def parameters(self, width: int) -> int:
        return _parameters(self, width)

    def state_size(self, width: int, length: int) -> StateSize:
        if self.state == "declared":
            return _declared(self, width, length)
        if self.state == "counted":
            return _counted(self, width, length)
        return StateSize(0, width * length)  # the tokens so far, which are enough for any causal module

    def flops(self, width: int, length: int) -> float:
        own = hasattr(self.cls, "flops")
        return float(_of_class(self, "flops", width, length)) if own else 2.0 * self.parameters(width)


class _Wrapped(MixerModule):
    """The module in the place of a mixer. Without `step`, its state is the tokens so far, which it reads again."""

    def __init__(self, spec: TorchModule, inner: nn.Module) -> None:
        super().__init__()
        self.name, self.steps = spec.of, spec.verifiable
        self.inner = inner

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        if self.steps and (return_state or state is not None):
            pieces: list[Tensor] = []
            for x_BD in x_BTD.unbind(1):
                y_BD, state = self.inner.step(x_BD, state)  # type: ignore[operator]
                pieces.append(y_BD)
            return torch.stack(pieces, 1), state
        seen_BTD = x_BTD if state is None else torch.cat([state, x_BTD], 1)
        y_BTD = self.inner(seen_BTD)
        y_BTD = y_BTD[0] if isinstance(y_BTD, tuple | list) else y_BTD  # many layers give their cache too
        if not isinstance(y_BTD, Tensor) or y_BTD.shape != seen_BTD.shape:
            got = list(y_BTD.shape) if isinstance(y_BTD, Tensor) else type(y_BTD).__name__
            raise ValueError(f"{self.name} returns {got}, expected a tensor {list(seen_BTD.shape)}, as its input")
        return y_BTD[:, -x_BTD.shape[1] :], seen_BTD


# Costs. -------------------------------------------------------------------------------------------


@cache
def _parameters(spec: TorchModule, width: int) -> int:
    """Learned parameters, counted without memory where the constructor allows that."""
    with seeded(0):
        try:
            with torch.device("meta"):
                made = spec.made(width)
        except ValueError:
            made = spec.made(width)
    return sum(value.numel() for value in made.parameters())


@cache
def _declared(spec: TorchModule, width: int, length: int) -> StateSize:
    """The floats that the class declares; what another token adds is the part that grows."""
    floats, after = (int(_of_class(spec, "state_floats", width, tokens)) for tokens in (length, length + 1))
    if min(floats, after) < 0:
        raise ValueError(f"of {spec.of} declares a state of {floats:,} floats, expected at least 0")
    return _split(floats, after - floats, length)


@cache
def _counted(spec: TorchModule, width: int, length: int) -> StateSize:
    """The floats of the state that `step` hands on after `length` tokens."""
    with seeded(0), torch.no_grad():
        module: Any = spec.made(width).eval()
        state, floats = None, [0]
        while len(floats) <= min(length + 1, COUNTED if floats[-1] == floats[-2:][0] else FOLLOWED):
            try:
                _, state = module.step(torch.randn(1, width), state)
            except Exception as error:
                raise ValueError(
                    f"of {spec.of}: step(x [B, D], state) -> (y [B, D], state) fails: {type(error).__name__}: {error}"
                ) from error
            floats.append(floats_in(state))
    slope = floats[-1] - floats[-2]
    total = floats[length] if length < len(floats) else floats[-1] + slope * (length - len(floats) + 1)
    return _split(total, slope, length)


def _split(total: int, slope: int, length: int) -> StateSize:
    growing = min(total, max(0, slope) * length)
    return StateSize(total - growing, growing)


# The class. ---------------------------------------------------------------------------------------


def _known(cls: type) -> Known:
    return "declared" if hasattr(cls, "state_floats") else "counted" if hasattr(cls, "step") else "unknown"


def _signature(cls: type) -> Mapping[str, inspect.Parameter]:
    try:
        found = inspect.signature(cls.__init__, eval_str=True)  # type: ignore[misc]
    except Exception:  # a hint that means nothing where it stands
        found = inspect.signature(cls.__init__)  # type: ignore[misc]
    return dict(list(found.parameters.items())[1:])


def _of_class(spec: TorchModule, name: str, width: int, length: int) -> Any:
    """A figure that the class declares by a function of this name; it is given those options that it asks for."""
    function = getattr(spec.cls, name)
    try:
        asked = inspect.signature(function).parameters
        return function(width, length, **{key: value for key, value in spec.options.items() if key in asked})
    except Exception as error:
        raise ValueError(
            f"of {spec.of}: {name}(width, length) fails on the class: {type(error).__name__}: {error}; expected a "
            "staticmethod that may also take options by name"
        ) from error


def _width_name(cls: type) -> str:
    known = _signature(cls)
    name = next((name for name in WIDTHS if name in known), None)
    if name is None:
        raise ValueError(
            f"of {cls.__name__}: its constructor must take the width by one of the names {', '.join(WIDTHS)}; it has "
            f"{', '.join(known) or 'no parameter'}"
        )
    return name


def _fitting(cls: type, options: Mapping[str, Option]) -> dict[str, Option]:
    """The options, checked against the signature; whole numbers in float parameters become floats. Raises ValueError."""
    known, width = _signature(cls), _width_name(cls)
    free = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    plain = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    named = [name for name, one in known.items() if one.kind not in plain and name != width]
    found: dict[str, Option] = {}
    for name, value in options.items():
        if name == width:
            raise ValueError(f"options.{name} is the model's width, which the module gets by itself; leave it out")
        if name not in named and not free:
            close = get_close_matches(name, named, n=1)
            meant = f" (did you mean '{close[0]}'?)" if close else ""
            raise ValueError(
                f"options.{name} is no parameter of {cls.__name__}, expected {', '.join(named) or 'none'}{meant}"
            )
        found[name] = _typed(cls, name, value, known.get(name))
    lacking = [name for name in named if known[name].default is inspect.Parameter.empty and name not in options]
    if lacking:
        raise ValueError(f"options lacks {', '.join(lacking)}, which the constructor of {cls.__name__} needs")
    return found


def _typed(cls: type, name: str, value: Option, parameter: inspect.Parameter | None) -> Option:
    hint = inspect.Parameter.empty if parameter is None else parameter.annotation
    if hint is inspect.Parameter.empty and parameter is not None and type(parameter.default) in (bool, int, float, str):
        hint = type(parameter.default)
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if not all(member in (bool, int, float, str, NoneType, None) for member in members):
        return value
    if type(value) in members or (value is None and None in members):
        return value
    if type(value) is int and float in members:
        return float(value)
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        NoneType: "null",
        None: "null",
    }
    expected = " or ".join(words[member] for member in members)
    raise ValueError(f"options.{name} of {cls.__name__} must be {expected}, got {value!r}")


def _nowhere(of: str) -> str:
    close = get_close_matches(of, _OFFERS, n=1)
    meant = f" (did you mean '{close[0]}'?)" if close else ""
    known = f"expected {', '.join(sorted(_OFFERS))}{meant}" if _OFFERS else "and no code from outside is loaded"
    return f"of must name a class of a file or module that `uses` or `--use` names, got '{of}', {known}"
