"""A memory and an attention in one residual block: side by side, one behind the other, or one in the other's context.

gate     (MAG)  o = norm(attention(z)) * silu(norm(memory(z))),   z = [persistent; x]
layer    (MAL)  o = attention(norm(memory(z))),   z = [persistent; x]
context  (MAC)  by segments: y = attention([persistent; h_1, x_1, h_2, x_2, ...]) at the x, where h = M(x) with the memory as
                it was before the segment; then the memory takes in y, and o = norm(y) * silu(norm(memory(y)))

Persistent tokens are learned vectors before the first token. Behrouz et al. 2025 (Titans), section 4. MAC as printed shows
all of a segment's h to each of its tokens, so that the future reaches the past. Here a token sees those up to its own.

B batch, T time, D model width, P persistent tokens
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recallmap.arch.block import Block, BlockModule
from recallmap.arch.mixers import Mixer
from recallmap.arch.mixers.mixer import MixerModule, MixerSpec, State, StateSize
from recallmap.arch.mlp import Mlp
from recallmap.arch.parts.heads import HeadsState, check_at_least, check_at_most
from recallmap.arch.parts.memory_heads import MemoryHeads
from recallmap.arch.parts.norm import Norm, RMSNorm, count_norm

MOST_PERSISTENT = 100_000  # tokens: every sequence is that much longer


@dataclass(frozen=True, kw_only=True)
class _Combination(ABC):
    """A block whose mixer is made of two.

    memory      a memory that learns at test time; any mixer for gate and layer
    attention   any mixer; softmax attention keeps the persistent tokens in sight, whatever its window
    persistent  learned tokens before the first one
    """

    kind: str
    memory: Mixer
    attention: Mixer
    persistent: int = 4
    mlp: Mlp | None = None

    equation: ClassVar[str]
    norms: ClassVar[int] = 2  # RMSNorms between the two

    def __post_init__(self) -> None:
        check_at_least(0, persistent=self.persistent)
        check_at_most(MOST_PERSISTENT, persistent=self.persistent)

    @property
    def mixer(self) -> MixerSpec:
        """Both as one mixer."""
        return _Combined(kind=self.kind, of=self)

    @property
    def sighted(self) -> MixerSpec:
        """The attention with the persistent tokens in sight."""
        return self.attention.sighted(self.persistent)

    def differs(self) -> tuple[str, ...]:
        """Differences of both parts, and of their combination, from the published layer, as for a mixer."""
        return tuple(dict.fromkeys((*self.memory.differs(), *self.attention.differs())))

    def check(self, width: int) -> None:
        for name, part in (("memory", self.memory), ("attention", self.attention)):
            try:
                part.check(width)
                if shared := part.lends() | part.borrows():
                    raise ValueError(
                        f"it shares {', '.join(sorted(shared))} with other blocks, which a {self.kind!r} does not pass on; "
                        "expected a mixer that shares nothing"
                    )
            except ValueError as error:
                raise ValueError(f"{name} ({part.kind}): {error}") from error

    def build(self, width: int, norm: Norm) -> nn.Module:
        return BlockModule(cast(Block, self), width, norm)  # it asks a block for its mixer and its mlp

    def parameters(self, width: int, norm: Norm) -> int:
        mlp = count_norm(norm, width) + self.mlp.parameters(width) if self.mlp else 0
        return count_norm(norm, width) + self.parameters_of_mixer(width) + mlp

    def parameters_of_mixer(self, width: int) -> int:
        both = self.memory.parameters(width) + self.sighted.parameters(width)
        return both + (self.persistent + self.norms) * width

    def state_size(self, width: int, length: int) -> StateSize:
        seen = length + self.persistent
        return self.memory.state_size(width, seen) + self.sighted.state_size(width, seen)

    def kept_floats(self, width: int, length: int) -> float:
        seen = length + self.persistent
        return self.memory.kept_floats(width, seen) + self.sighted.kept_floats(width, seen)

    def flops(self, width: int, length: int) -> float:
        return self.flops_of_mixer(width, length) + (self.mlp.flops(width) if self.mlp else 0.0)

    def flops_of_mixer(self, width: int, length: int) -> float:
        seen = length + self.persistent
        return self.memory.flops(width, seen) + self.sighted.flops(width, seen)

    @abstractmethod
    def module(self, width: int) -> MixerModule: ...


@dataclass(frozen=True, kw_only=True)
class _Combined(MixerSpec):
    """A combination in the place of a mixer."""

    of: _Combination

    state_formula: ClassVar[str] = "that of both"
    source: ClassVar[str] = "Behrouz et al. 2025 (Titans), section 4"

    @property
    def equation(self) -> str:  # type: ignore[override]
        return self.of.equation

    def differs(self) -> tuple[str, ...]:
        return self.of.differs()

    def check(self, width: int) -> None:
        self.of.check(width)

    def build(self, width: int) -> MixerModule:
        return self.of.module(width)

    def parameters(self, width: int) -> int:
        return self.of.parameters_of_mixer(width)

    def state_size(self, width: int, length: int) -> StateSize:
        return self.of.state_size(width, length)

    def kept_floats(self, width: int, length: int) -> float:
        return self.of.kept_floats(width, length)

    def flops(self, width: int, length: int) -> float:
        return self.of.flops_of_mixer(width, length)


@dataclass(frozen=True, kw_only=True)
class Gate(_Combination):
    """Memory as a gate (MAG): both read the same tokens, and the memory's answer gates the attention's."""

    kind: Literal["gate"] = "gate"

    equation: ClassVar[str] = "o = norm(attention(z)) * silu(norm(memory(z))),  z = [persistent; x]"

    def module(self, width: int) -> MixerModule:
        return _Gate(self, width)


@dataclass(frozen=True, kw_only=True)
class Layer(_Combination):
    """Memory as a layer (MAL): attention reads the memory's answers."""

    kind: Literal["layer"] = "layer"

    norms: ClassVar[int] = 1
    equation: ClassVar[str] = "o = attention(norm(memory(z))),  z = [persistent; x]"

    def module(self, width: int) -> MixerModule:
        return _Layer(self, width)


@dataclass(frozen=True, kw_only=True)
class Context(_Combination):
    """Memory as a context (MAC): attention within a segment, over its tokens and the memory's earlier answers to them.

    segment  tokens between two looks at the memory
    """

    kind: Literal["context"] = "context"
    segment: int = 32

    equation: ClassVar[str] = "y = attention([persistent; M(x); x]),  o = norm(y) * silu(norm(memory(y)))"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, segment=self.segment)
        if not isinstance(self.memory, MemoryHeads):
            raise ValueError(
                f"context reads its memory without writing to it, which {self.memory.kind!r} cannot do; "
                "expected a memory that learns at test time, such as 'titans' or 'atlas'"
            )

    def differs(self) -> tuple[str, ...]:
        ahead = "a token sees what was read ahead of it in its segment, as printed all of it and so the future"
        return (*super().differs(), ahead)

    def module(self, width: int) -> MixerModule:
        return _Context(self, width)

    def state_size(self, width: int, length: int) -> StateSize:
        into = (length - 1) % self.segment + 1 if length else 0
        then = self.memory.state_size(width, length - into)  # its convolution counts as that of the reads
        attended = self.sighted.state_size(width, self.persistent + 2 * into)
        return self.memory.state_size(width, length) + then + StateSize(attended.total)

    def flops_of_mixer(self, width: int, length: int) -> float:
        seen = self.persistent + 2 * min(self.segment, length)
        return 2 * self.memory.flops(width, length) + 2 * self.sighted.flops(width, seen)


class CombinedState(NamedTuple):
    """The states of memory and attention."""

    memory: State = None
    attention: State = None


class ContextState(NamedTuple):
    """The state of a memory as a context.

    memory     the memory now
    ahead      the memory at the start of the segment, without its convolution
    reads      the state of the reads' convolution
    attention  the attention's state within the segment
    into       tokens of the segment that were seen
    """

    memory: State = None
    ahead: State = None
    reads: Tensor | None = None
    attention: State = None
    into: int = 0


class _Pair(MixerModule):
    def __init__(self, spec: _Combination, width: int) -> None:
        super().__init__()
        self.memory = spec.memory.build(width)
        self.attention = spec.sighted.build(width)
        self.persistent = nn.Parameter(torch.randn(spec.persistent, width)) if spec.persistent else None

    def ahead(self, x_BTD: Tensor) -> Tensor:
        """The tokens with the persistent ones before them, [persistent; x]."""
        if self.persistent is None:
            return x_BTD
        return torch.cat([self.persistent.to(x_BTD.dtype).expand(x_BTD.shape[0], -1, -1), x_BTD], 1)


class _Gate(_Pair):
    def __init__(self, spec: Gate, width: int) -> None:
        super().__init__(spec, width)
        self.attention_norm, self.memory_norm = RMSNorm(width), RMSNorm(width)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        z_BTD = self.ahead(x_BTD) if state is None else x_BTD
        state = state or CombinedState()
        y_BTD, attention = self.attention(z_BTD, state.attention, return_state=return_state)
        m_BTD, memory = self.memory(z_BTD, state.memory, return_state=return_state)
        o_BTD = self.attention_norm(y_BTD) * F.silu(self.memory_norm(m_BTD))
        return o_BTD[:, -x_BTD.shape[1] :], CombinedState(memory, attention)


class _Layer(_Pair):
    def __init__(self, spec: Layer, width: int) -> None:
        super().__init__(spec, width)
        self.norm = RMSNorm(width)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        z_BTD = self.ahead(x_BTD) if state is None else x_BTD
        state = state or CombinedState()
        m_BTD, memory = self.memory(z_BTD, state.memory, return_state=return_state)
        o_BTD, attention = self.attention(self.norm(m_BTD), state.attention, return_state=return_state)
        return o_BTD[:, -x_BTD.shape[1] :], CombinedState(memory, attention)


class _Context(_Pair):
    def __init__(self, spec: Context, width: int) -> None:
        super().__init__(spec, width)
        self.segment = spec.segment
        self.attention_norm, self.memory_norm = RMSNorm(width), RMSNorm(width)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or ContextState(into=self.segment)
        outputs, start = [], 0
        while start < x_BTD.shape[1]:
            if state.into == self.segment:
                state = ContextState(memory=state.memory, ahead=self._frozen(state.memory, x_BTD))
            piece_BTD = x_BTD[:, start : start + self.segment - state.into]
            o_BTD, state = self._within(piece_BTD, state)
            outputs.append(o_BTD)
            start += piece_BTD.shape[1]
        return torch.cat(outputs, 1), state

    def _within(self, x_BTD: Tensor, state: ContextState) -> tuple[Tensor, ContextState]:
        """The outputs for tokens of one segment."""
        h_BTD, reads = self._memory.read(x_BTD, state.ahead, state.reads)
        z_BTD = torch.stack([h_BTD, x_BTD], 2).flatten(1, 2)
        z_BTD = z_BTD if state.into else self.ahead(z_BTD)
        y_BTD, attention = self.attention(z_BTD, state.attention, return_state=True)
        y_BTD = y_BTD[:, -2 * x_BTD.shape[1] :][:, 1::2]
        m_BTD, memory = self.memory(y_BTD, state.memory, return_state=True)
        o_BTD = self.attention_norm(y_BTD) * F.silu(self.memory_norm(m_BTD))
        return o_BTD, ContextState(memory, state.ahead, reads, attention, state.into + x_BTD.shape[1])

    def _frozen(self, memory: State, x_BTD: Tensor) -> State:
        """The memory to read from while it goes on learning."""
        if memory is None:
            _, memory = self._memory.mix(x_BTD[:, :0], None, True)
        return HeadsState(None, memory.memory)

    @property
    def _memory(self) -> Any:
        return self.memory
