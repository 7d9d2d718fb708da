"""Laws of modules that move information along time, checked by running them: causality, and the declared state.

The modules are mixers or whole blocks: x [B, T, D], state -> y [B, T, D], state, as `MixerModule` says. A law tests two sets
of weights, the module's own and the same nudged, so that parameters that begin at zero (a gate, a map back) take part.

B batch, T time, D model width
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from recallmap.arch.mixers.mixer import State, StateSize

LENGTHS = (1, 3, 7, 33)  # tokens; odd, so that what works in chunks has a ragged one
FEW = 7  # up to so many tokens all places are tried, and they are read one by one
NUDGE = 0.1  # standard deviation of the noise that is added to every weight
# Relative to the largest output: modules may compute parts in lower precision, and states in another order.
SEEN, REMEMBERED = 1e-4, 1e-3


class Verdict(NamedTuple):
    """The result of a law. `fault` says in one line where it is broken, by how much, and what was expected; "" where it
    holds. `length` tokens show it first, at the output `position`."""

    law: str
    fault: str = ""
    length: int = 0
    position: int = 0

    @property
    def holds(self) -> bool:
        return not self.fault


def is_causal(
    module: nn.Module,
    width: int,
    *,
    lengths: Sequence[int] = LENGTHS,
    dtype: torch.dtype = torch.float64,
    tolerance: float = SEEN,
) -> Verdict:
    """Check that no output depends on a later token, on the number of tokens, or on other sequences.

    The smallest counterexample among `lengths` is reported. The module is in eval mode, on its device; its errors pass
    through.
    """
    law, both = "causality", _weights(module, dtype)
    for length in sorted(lengths):
        places = _places(length)
        for own in both:
            x_1TD, other_1TD = (_tokens(own, seed, (1, length, width), dtype) for seed in (0, 1))
            y_1TD = _outputs(own, x_1TD)
            later = [torch.cat([x_1TD[:, : t + 1], other_1TD[:, t + 1 :]], 1) for t in places]
            beside_1TD, *changed = _outputs(own, torch.cat([x_1TD, *later])).split(1)
            if apart := _first_apart(beside_1TD, y_1TD, tolerance):
                fault = (
                    f"of {_count(length)}, output {apart[0]} (from 0) is another by {apart[1]:.2g} when they are read again, "
                    "beside other sequences; expected the same in eval mode"
                )
                return Verdict(law, fault, length, apart[0])
            for t, after_1TD in zip(places, changed, strict=True):
                for how, found_1TD in (("change", after_1TD), ("are left out", _outputs(own, x_1TD[:, : t + 1]))):
                    if apart := _first_apart(found_1TD[:, : t + 1], y_1TD[:, : t + 1], tolerance):
                        fault = (
                            f"of {_count(length)}, output {apart[0]} (from 0) changes by {apart[1]:.2g} when those after {t} "
                            f"{how}; expected outputs 0 to {t} as they were, for none may see what comes later"
                        )
                        return Verdict(law, fault, length, apart[0])
    return Verdict(law)


def counted_state(
    module: nn.Module,
    width: int,
    declared: Callable[[int], StateSize],
    *,
    lengths: Sequence[int] = LENGTHS,
    dtype: torch.dtype = torch.float64,
    tolerance: float = REMEMBERED,
) -> Verdict:
    """Check that the state has as many floats as `declared` says for so many tokens, and is all that later outputs depend on.
    Outputs token by token (in two parts where there are more than a few) must be those of the whole sequence.

    The smallest counterexample among `lengths` is reported. A module cannot help itself with hidden memory, because every
    part is read by a fresh copy. The module is in eval mode, on its device; its errors pass through.
    """
    law, both = "counted state", _weights(module, dtype)
    for length in sorted(lengths):
        parts = [1] * length if length <= FEW else [length // 2, length - length // 2]
        for own in both:
            x_1TD, other_1TD = (_tokens(own, seed, (1, length, width), dtype) for seed in (0, 1))
            says = declared(length).total
            if says == 0 and (position := _looks_back(own, x_1TD, other_1TD, tolerance)):
                fault = (
                    f"it declares a state of 0 floats, but of {_count(length)}, output {position} (from 0) depends on those "
                    "before; expected the number of floats that it carries from one token to the next"
                )
                return Verdict(law, fault, length, position)
            y_1TD, state = _carried(own, x_1TD, None)
            if what := _uncountable(state):
                return Verdict(
                    law, f"its state holds a {what}; expected tensors, numbers, None and tuples of these", length
                )
            if (held := floats_in(state)) != says:
                fault = (
                    f"after {_count(length)} it declares a state of {says} floats and holds {held}; expected as many"
                )
                return Verdict(law, fault, length, length - 1)
            pieces, state = [], None
            for piece_1TD in x_1TD.split(parts, dim=1):
                piece_1TD, state = _carried(own, piece_1TD, state)
                pieces.append(piece_1TD)
            if apart := _first_apart(torch.cat(pieces, 1), y_1TD, tolerance):
                fault = (
                    f"of {_count(length)} read in {len(parts)} parts, output {apart[0]} (from 0) is another by {apart[1]:.2g}; "
                    f"expected those of the whole, for the state that it declares, {says} floats, is all it may remember"
                )
                return Verdict(law, fault, length, apart[0])
            if (held := floats_in(state)) != says:
                fault = (
                    f"after {_count(length)} read in {len(parts)} parts it holds {held} floats, declared are {says}; "
                    "expected as many"
                )
                return Verdict(law, fault, length, length - 1)
    return Verdict(law)


def floats_in(state: State) -> int:
    """Floats that the state of one sequence holds. A complex number counts as two. A whole number is a position and counts
    as none; in a tensor of whole numbers all but one count, because tokens can hide in it."""
    found = 0
    for leaf in pytree.tree_leaves(state):
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            found += leaf.numel() * (2 if leaf.is_complex() else 1)
        elif isinstance(leaf, Tensor):
            found += max(0, leaf.numel() - 1)
        elif isinstance(leaf, float):
            found += 1
    return found


def _uncountable(state: State) -> str:
    """The type of a part that has no number of floats, or ""."""
    known = (Tensor, int, float, type(None))
    return next((type(leaf).__name__ for leaf in pytree.tree_leaves(state) if not isinstance(leaf, known)), "")


def _weights(module: nn.Module, dtype: torch.dtype) -> tuple[nn.Module, nn.Module]:
    """Copies of the module, to be run without gradients: with its own weights, and with all of them nudged."""
    own, nudged = (copy.deepcopy(module).to(dtype).eval().requires_grad_(False) for _ in range(2))
    generator = torch.Generator().manual_seed(2)
    for weight in nudged.parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.add_(NUDGE * noise.to(weight.device, weight.dtype))
    return own, nudged


def _tokens(module: nn.Module, seed: int, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """Random inputs [B, T, D] on the module's device."""
    weights = chain(module.parameters(), module.buffers())
    device = next((weight.device for weight in weights), torch.device("cpu"))
    x_BTD = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x_BTD.to(device, dtype)


@torch.no_grad()
def _outputs(module: nn.Module, x_BTD: Tensor) -> Tensor:
    y_BTD: Tensor = module(x_BTD)[0]
    return y_BTD


@torch.no_grad()
def _carried(module: nn.Module, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
    """Run a copy, so that hidden memory of the module is lost."""
    y_BTD, later = copy.deepcopy(module)(x_BTD, state, return_state=True)
    return y_BTD, later


def _looks_back(module: nn.Module, x_1TD: Tensor, other_1TD: Tensor, tolerance: float) -> int:
    """The first output that depends on an earlier token; 0 where none does."""
    y_1TD, _ = _carried(module, x_1TD, None)
    for t in range(1, x_1TD.shape[1]):
        changed_1TD, _ = _carried(module, torch.cat([other_1TD[:, :t], x_1TD[:, t:]], 1), None)
        if _first_apart(changed_1TD[:, t : t + 1], y_1TD[:, t : t + 1], tolerance):
            return t
    return 0


def _places(length: int) -> list[int]:
    """The positions after which tokens are changed: the last token has none after it."""
    if length <= FEW:
        return list(range(length - 1))
    return sorted({0, length // 2, length - 2})


def _first_apart(left_BTD: Tensor, right_BTD: Tensor, tolerance: float) -> tuple[int, float] | None:
    """The first position at which two sequences differ by more than `tolerance` of the largest entry, and the difference."""
    left, right = left_BTD.double(), right_BTD.double()
    scale = torch.nan_to_num(right, posinf=0.0, neginf=0.0).abs().amax().clamp(min=1e-3)
    same = (left == right) | (left.isnan() & right.isnan())
    gap_T = torch.where(same, 0.0, (left - right).abs()).nan_to_num(nan=math.inf, posinf=math.inf).amax((0, 2))
    places = (gap_T > tolerance * scale).nonzero().flatten().tolist()
    return (places[0], float(gap_T[places[0]])) if places else None


def _count(tokens: int) -> str:
    return "1 token" if tokens == 1 else f"{tokens} tokens"
