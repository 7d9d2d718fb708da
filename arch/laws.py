"""Laws of modules that move information along time, checked by running them. `verdicts` runs all of them.

The modules are mixers or whole blocks: x [B, T, D], state -> y [B, T, D], state, as `MixerModule` says. Laws of outputs and
states test two sets of weights, the module's own and the same nudged, so that parameters that begin at zero (a gate, a map
back) take part.

B batch, T time, D model width
"""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.utils import _pytree as pytree

from recallmap.arch.mixers.mixer import State, StateSize
from recallmap.arch.seeded import seeded

LENGTHS = (1, 3, 7, 33)  # tokens; odd, so that what works in chunks has a ragged one
FEW = 7  # up to so many tokens all places are tried, and they are read one by one
NUDGE = 0.1  # standard deviation of the noise that is added to every weight
# Relative to the largest output: modules may compute parts in lower precision, and states in another order.
SEEN, REMEMBERED = 1e-4, 1e-3
ROUNDED = 2e-2  # of the outputs' length: bfloat16 has 8 bits
MEMBERS = 3  # of a cohort
STACKING = "vmap = alone"  # the law's name


class Verdict(NamedTuple):
    """The result of a law. `fault` says in one line where it is broken, by how much, and what was expected; "" where it
    holds. `length` tokens show it first, at the output `position`. `skipped` says why it does not apply, where it does not."""

    law: str
    fault: str = ""
    length: int = 0
    position: int = 0
    skipped: str = ""

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


def cuts(
    module: nn.Module,
    width: int,
    *,
    lengths: Sequence[int] = LENGTHS,
    at: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float64,
    tolerance: float = REMEMBERED,
) -> Verdict:
    """Check that a sequence in two parts, with the state carried over, has the outputs and the last state of the whole.

    at  tokens of the first part; None: one, half, and all but one
    """
    ways = [
        ([cut, length - cut], f"cut after {cut}")
        for length in sorted(lengths)
        for cut in sorted({1, length // 2, length - 1} if at is None else {*at})
        if 0 < cut < length
    ]
    remedy = "those of the whole: carry in the state all that later outputs need"
    return _read_in_parts("cuts", module, width, ways, remedy, dtype, tolerance)


def decoding(
    module: nn.Module,
    width: int,
    *,
    lengths: Sequence[int] = LENGTHS,
    dtype: torch.dtype = torch.float64,
    tolerance: float = REMEMBERED,
) -> Verdict:
    """Check that tokens read one by one have the outputs and the last state of all read at once."""
    ways = [([1] * length, "read one by one") for length in sorted(lengths)]
    remedy = "those of all read at once: one token with a state is the decode step"
    return _read_in_parts("decode = parallel", module, width, ways, remedy, dtype, tolerance)


def _read_in_parts(
    law: str,
    module: nn.Module,
    width: int,
    ways: Sequence[tuple[list[int], str]],
    remedy: str,
    dtype: torch.dtype,
    tolerance: float,
) -> Verdict:
    """Check sequences in parts of so many tokens, with the state carried over, against the whole. Each way has its name."""
    both = _weights(module, dtype)
    for parts, how in ways:
        length = sum(parts)
        for own in both:
            x_BTD = _tokens(own, 0, (2, length, width), dtype)
            if broken := _parts_apart(own, x_BTD, parts, tolerance):
                position, gap = broken
                fault = f"of {_count(length)} {how}, {_where(position)} is another by {gap:.2g}; expected {remedy}"
                return Verdict(law, fault, length, position)
    return Verdict(law)


def gradients(
    module: nn.Module,
    width: int,
    *,
    length: int = LENGTHS[-1],
    dtype: torch.dtype = torch.float64,
    nudged: bool = False,
) -> Verdict:
    """Check that every parameter gets a gradient that is finite and not 0, from a random weighting of all outputs.

    nudged  with the nudged weights instead of its own: a map that begins at 0 gives those before it no gradient yet
    """
    own = _weights(module, dtype)[nudged].requires_grad_(True)
    x_BTD, weight_BTD = (_tokens(own, seed, (2, length, width), dtype) for seed in (1, 3))
    (own(x_BTD)[0] * weight_BTD).sum().backward()
    faults = []
    for name, parameter in own.named_parameters():
        if parameter.grad is None:
            faults.append(f"{name} gets none (use it in every output, or leave it out)")
        elif not parameter.grad.isfinite().all():
            faults.append(f"{name} gets one that is not finite (a root or a logarithm of 0, or a division by it?)")
        elif not parameter.grad.abs().max() > 0:
            faults.append(f"{name} gets 0 (is it cut off, or multiplied by 0?)")
    many = f"; and {len(faults) - 3} more" if len(faults) > 3 else ""
    said = f"of {_count(length)}, {'; '.join(faults[:3])}{many}; expected a gradient for every parameter"
    return Verdict("gradients everywhere", said if faults else "", length if faults else 0)


def stacking(
    members: Sequence[nn.Module],
    width: int,
    *,
    length: int = LENGTHS[-1],
    dtype: torch.dtype = torch.float64,
    tolerance: float = REMEMBERED,
) -> Verdict:
    """Check that members of a cohort, stacked and run under torch.vmap, have the outputs and gradients of each alone.

    members  modules of one spec with different weights
    """
    law = STACKING
    own = [copy.deepcopy(member).to(dtype) for member in members]
    parameters, buffers = stack_module_state(own)
    if unlike := [name for name, value in buffers.items() if not (value == value[:1]).all()]:
        fault = f"its members differ in buffers ({', '.join(unlike)}), and a cohort has those of its first member"
        return Verdict(law, f"{fault}; expected the same in all: make them parameters, or compute them in `mix`")
    shared, base = dict(own[0].named_buffers()), copy.deepcopy(own[0]).to("meta")
    x_MBTD = torch.stack([_tokens(own[0], seed, (2, length, width), dtype) for seed in range(len(own))])

    def loss(values: dict[str, Tensor], inputs_BTD: Tensor) -> tuple[Tensor, Tensor]:
        y_BTD: Tensor = functional_call(base, {**values, **shared}, (inputs_BTD,))[0]
        return y_BTD.square().sum(), y_BTD

    step: Callable[..., Any] = grad(loss, has_aux=True)
    try:
        found, y_MBTD = vmap(step)({name: value.detach() for name, value in parameters.items()}, x_MBTD)
    except (RuntimeError, ValueError) as error:
        why = str(error).partition("\n")[0]
        return Verdict(
            law, f"it does not run under torch.vmap ({why}); write nothing in place and branch on no data", length
        )
    for number, member in enumerate(own):
        alone_BTD: Tensor = member(x_MBTD[number])[0]
        alone_BTD.square().sum().backward()
        if apart := _first_apart(y_MBTD[number].detach(), alone_BTD.detach(), tolerance):
            fault = (
                f"of {len(own)} members, output {apart[0]} (from 0) of member {number} is another by {apart[1]:.2g} than it is "
                "alone; expected the same: branch on no data, and draw nothing at random"
            )
            return Verdict(law, fault, length, apart[0])
        for name, parameter in member.named_parameters():
            alone = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if gap := _gap(found[name][number], alone, tolerance):
                fault = f"of {len(own)} members, the gradient of {name} is another by {gap:.2g} than alone; expected the same"
                return Verdict(law, fault, length)
    return Verdict(law)


def rounding(module: nn.Module, width: int, *, length: int = LENGTHS[-1], tolerance: float = ROUNDED) -> Verdict:
    """Check that in bfloat16 outputs are bfloat16 and close to the same weights in float64, and that states are finite.

    tolerance  of the outputs' length as a vector
    """
    law = "dtype"
    rounded = copy.deepcopy(module).to(torch.bfloat16).requires_grad_(False)
    x_BTD = _tokens(rounded, 1, (2, length, width), torch.bfloat16)
    y_BTD, state = rounded(x_BTD, return_state=True)
    exact_BTD = _outputs(copy.deepcopy(rounded).double(), x_BTD.double())
    if y_BTD.dtype != torch.bfloat16:
        return Verdict(
            law, f"of inputs in bfloat16, outputs are {y_BTD.dtype}; expected bfloat16: give them the inputs' type"
        )
    leaves = [leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, Tensor)]
    if not all(leaf.isfinite().all() for leaf in leaves):
        return Verdict(
            law, "in bfloat16 its state is not finite; expected finite numbers: compute it in float32", length
        )
    gap = float((y_BTD.double() - exact_BTD).norm() / exact_BTD.norm().clamp(min=1e-3))
    if not gap <= tolerance:
        fault = (
            f"in bfloat16, outputs differ from those of the same weights in float64 by {gap:.2g} of their length; expected at "
            f"most {tolerance}: sum and decay in float32"
        )
        return Verdict(law, fault, length)
    return Verdict(law)


def shortest(module: nn.Module, width: int, *, dtype: torch.dtype = torch.float64) -> Verdict:
    """Check that one token has one finite output, and that a sequence of none is refused with a ValueError."""
    law, (own, _) = "empty and one token", _weights(module, dtype)
    y_BTD = _outputs(own, _tokens(own, 0, (2, 1, width), dtype))
    if y_BTD.shape != (2, 1, width) or not y_BTD.isfinite().all():
        got = f"outputs {list(y_BTD.shape)}" if y_BTD.shape != (2, 1, width) else "an output that is not finite"
        return Verdict(law, f"of 1 token it has {got}; expected finite outputs [2, 1, {width}]", 1)
    said = "expected a ValueError that says 'at least one token', as MixerModule.forward raises it"
    try:
        _outputs(own, _tokens(own, 0, (2, 0, width), dtype))
    except ValueError as error:
        return (
            Verdict(law)
            if "at least one token" in str(error)
            else Verdict(law, f"of 0 tokens it says '{error}'; {said}")
        )
    except Exception as error:  # whatever code of one's own does
        return Verdict(law, f"of 0 tokens it raises {type(error).__name__}; {said}")
    return Verdict(law, f"it reads a sequence of 0 tokens; {said}")


def counted_parameters(module: nn.Module, declared: int) -> Verdict:
    """Check that a module has as many parameters as its spec declares."""
    held = sum(parameter.numel() for parameter in module.parameters())
    fault = f"it declares {declared:,} parameters and has {held:,}; expected as many" if held != declared else ""
    return Verdict("counted parameters", fault)


def verdicts(
    build: Callable[[], nn.Module],
    width: int,
    declared: Callable[[int], StateSize] | None,
    parameters: int | None = None,
) -> list[Verdict]:
    """The verdict of every law on a mixer or a block, in float64 where a law names no other type.

    build       makes the module, with weights drawn from torch's global generator
    declared    the state's size after so many tokens; None: it cannot be counted
    parameters  their declared number; None: not checked

    Errors of the module are faults of the law. Random numbers stay as they were.
    """
    with seeded(0):
        made = []
        for seed in range(MEMBERS):
            torch.manual_seed(seed)
            made.append(build())
        module = made[0]
        every: dict[str, Callable[[], Verdict]] = {
            "causality": partial(is_causal, module, width),
            "cuts": partial(cuts, module, width),
            "decode = parallel": partial(decoding, module, width),
            "counted state": partial(_counted, module, width, declared),
            "gradients everywhere": partial(gradients, module, width, nudged=True),
            STACKING: partial(stacking, made, width),
            "dtype": partial(rounding, module, width),
            "empty and one token": partial(shortest, module, width),
        }
        if parameters is not None:
            every["counted parameters"] = partial(counted_parameters, module, parameters)
        return [_tried(law, check) for law, check in every.items()]


def _counted(module: nn.Module, width: int, declared: Callable[[int], StateSize] | None) -> Verdict:
    if declared is None:
        return Verdict("counted state", skipped="it cannot be read token by token, so that its state cannot be counted")
    return counted_state(module, width, declared)


def _tried(law: str, check: Callable[[], Verdict]) -> Verdict:
    try:
        return check()
    except Exception as error:  # whatever code of one's own does
        why = str(error).partition("\n")[0]
        return Verdict(
            law,
            f"it cannot be run: {type(error).__name__}: {why}{line_of(error)}; see recallmap.arch.mixers.mixer.MixerModule",
        )


def line_of(error: BaseException) -> str:
    """` in my_layers.py:14`, the last line of code of one's own that led to an error; "" where there is none."""
    root, torch_folder = Path(__file__).resolve().parents[1], Path(torch.__file__).resolve().parent
    others = tuple(f"{folder}/" for folder in (root / "arch", root / "search", torch_folder))
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not str(Path(f.filename).resolve()).startswith(others) and Path(f.filename).is_file()]
    return f" in {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


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


def _parts_apart(module: nn.Module, x_BTD: Tensor, parts: Sequence[int], tolerance: float) -> tuple[int, float] | None:
    """The first output that is another when the tokens are read in parts, and by how much; -1 for the last state."""
    pieces, state = [], None
    with torch.no_grad():
        y_BTD, last = module(x_BTD, None, return_state=True)
        for piece_BTD in x_BTD.split(list(parts), dim=1):
            piece_BTD, state = module(piece_BTD, state, return_state=True)
            pieces.append(piece_BTD)
    if apart := _first_apart(torch.cat(pieces, 1), y_BTD, tolerance):
        return apart
    left, right = ([leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)] for tree in (state, last))
    if len(left) != len(right):
        return -1, math.inf
    gap = max((_gap(a, b, tolerance) for a, b in zip(left, right, strict=True)), default=0.0)
    return (-1, gap) if gap else None


def _gap(left: Tensor, right: Tensor, tolerance: float) -> float:
    """The largest difference, where it is more than `tolerance` of the largest entry; else 0."""
    if left.shape != right.shape:
        return math.inf
    if not right.numel():
        return 0.0
    found = float((left.double() - right.double()).abs().max().nan_to_num(nan=math.inf))
    return found if found > tolerance * max(float(right.double().abs().max()), 1e-3) else 0.0


def _where(position: int) -> str:
    return "the last state" if position < 0 else f"output {position} (from 0)"


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
