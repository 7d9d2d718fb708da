"""The interface of every mixer: a frozen spec that builds a module which moves information along time.

B batch, T time, D model width
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

State = Any  # a tensor, or a (named) tuple of states, tensors, ints and None
Lent = dict[str, Tensor]  # what mixers hand to those of later blocks within one call, by its name: [B, T, ...]


class StateSize(NamedTuple):
    """Floats that a mixer carries from one token to the next, for one sequence."""

    fixed: int  # whatever the length
    growing: int = 0  # that part which is still growing with length, at the length asked for

    @property
    def total(self) -> int:
        return self.fixed + self.growing

    def __add__(self, other: object) -> StateSize:
        assert isinstance(other, StateSize)
        return StateSize(self.fixed + other.fixed, self.growing + other.growing)


class Memory(NamedTuple):
    """A mixer's key-value memory by itself, to be measured without training. B batch, T time, H heads

    answer  (q [B, T, H, K], k [B, T, H, K], v [B, T, H, V], write [B, T, H]) -> [B, T, H, V], by the mixer's op, with learned
            gates at their largest capacity: nothing fades, `write` 1 takes a pair in whole, and 0 only reads, with k and v of
            0. Keys and queries have length 1.
    bounds  pairs that a head can hold in theory, by the name of the bound; none where it is unbounded
    """

    heads: int
    key_dim: int
    value_dim: int
    answer: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    bounds: Mapping[str, int]


class Channels(NamedTuple):
    """The rows of parameters that belong to a mixer's key channels, by the parameter's name, for state expansion."""

    keys: Mapping[str, range]
    queries: Mapping[str, range]  # of the same parameters
    muting: frozenset[str]  # those of them whose rows of 0 make a key channel 0
    anew: frozenset[str]  # parameters that StateX reinitialises: of those above their key and query rows, of others all


class MixerModule(nn.Module, ABC):
    """A causal module x [B, T, D] -> y [B, T, D]; any cut of a sequence with the state carried over gives the same outputs.

    One token with a state is the decode step. It runs under torch.vmap over stacked parameters: it writes nothing in place
    and branches on no data. A map back to the model's width is a submodule named `out`.
    """

    implementation: str = "auto"  # of the ops it calls; the backbone sets it for all mixers at once

    def forward(
        self, x_BTD: Tensor, state: State = None, *, return_state: bool = False, lent: Lent | None = None
    ) -> tuple[Tensor, State]:
        """Run the mixer. `state` None is the state before the first token. The second result is None unless `return_state`.

        lent  what mixers of earlier blocks lend within this call, to which this one adds what it lends; None: nothing

        Raises ValueError where there is no token.
        """
        if x_BTD.shape[1] < 1:
            raise ValueError("a mixer needs at least one token, got a sequence of length 0")
        y_BTD, carried = self.mix_beside({} if lent is None else lent, x_BTD, state, return_state)
        return y_BTD, carried if return_state else None

    def gauge(self, x_BTD: Tensor) -> dict[str, Tensor]:
        """Statistics on whole sequences, besides its outputs: means over batch and time, one per head [H]."""
        return {}

    @abstractmethod
    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        """Compute `forward` for at least one token; the second result is used only with `return_state`."""

    def mix_beside(self, lent: Lent, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        """`mix` of a mixer whose spec lends or borrows: it reads `lent` and adds to it. Others have `mix` alone."""
        return self.mix(x_BTD, state, return_state)


@dataclass(frozen=True, kw_only=True)
class MixerSpec(ABC):
    """The spec of a mixer: frozen data that checks itself; `build` makes the module.

    Geometry that depends on the model's width is checked in `check`, which the backbone calls when it is specified.
    """

    kind: str

    joinable: ClassVar[bool] = True  # others may define more of its family
    equation: ClassVar[str] = ""  # the recurrence in one line
    state_formula: ClassVar[str] = ""  # floats a mixer carries, in one line
    source: ClassVar[str] = ""  # paper and equation

    def differs(self) -> tuple[str, ...]:
        """Differences of this mixer, with its options, from the layer that its kind's name promises: a phrase each, empty where
        none is known. "Theirs" is the public code of `source`, or its paper where there is no such code."""
        return ()

    def lends(self) -> frozenset[str]:
        """Names of what it hands to mixers of later blocks within a call."""
        return frozenset()

    def borrows(self) -> frozenset[str]:
        """Names of what it needs from a mixer of an earlier block."""
        return frozenset()

    @abstractmethod
    def check(self, width: int) -> None:
        """Raise ValueError where this mixer does not fit a model of `width`."""

    @abstractmethod
    def build(self, width: int) -> MixerModule:
        """The module, initialised from torch's global generator (the backbone seeds it)."""

    def parameters(self, width: int) -> int:
        """The number of learned parameters: as many as `build` makes. Ours compute it by arithmetic, however large it is; this
        one counts those of a module without memory."""
        with torch.device("meta"):
            return sum(value.numel() for value in self.build(width).parameters())

    @abstractmethod
    def state_size(self, width: int, length: int) -> StateSize:
        """Floats carried after `length` tokens, caches of convolutions included; integers (positions) do not count."""

    @abstractmethod
    def flops(self, width: int, length: int) -> float:
        """Floating-point operations per token, forward, projections and core, at the mean context of `length` tokens.
        A multiply-add is 2."""

    def kept_floats(self, width: int, length: int) -> float:
        """Approximate floats per token that training keeps besides the outputs of linear maps: a token's own matrices, and
        attention scores where no kernel recomputes them."""
        return 0.0

    def memory(self, width: int) -> Memory | None:
        """The key-value memory, for the capacity probe; None where there is none, or where it is not described."""
        return None

    def sighted(self, prefix: int) -> MixerSpec:
        """This mixer with that many first tokens in sight of every later one, where it has a window."""
        return self

    def merged(self, width: int) -> MixerSpec | None:
        """This mixer with all its heads in one of as many channels; None where it has no heads to merge."""
        return None

    def widened(self, width: int, factor: int) -> MixerSpec | None:
        """This mixer with `factor` times as many key channels; None where they cannot be widened by themselves."""
        return None

    def key_channels(self, width: int) -> Channels | None:
        """The rows of its key channels; needed where there is `widened`."""
        return None
