"""What a mixer, an MLP or a block from outside must hold before it trains, and whether several can train as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from recallmap.arch import laws
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.parts.norm import Norm
from recallmap.arch.seeded import seeded
from recallmap.arch.stack import flatten
from recallmap.arch.torch_module import TorchModule
from recallmap.search.documents.nodes import Fault, Place, SpecError

if TYPE_CHECKING:
    from recallmap.search.trials import Trial

TRIED = 9  # tokens of the comparison of a cohort with one alone

LONGEST = 1025  # tokens; sequences that are longer are not read to the end

INSIDE = "recallmap.arch."  # modules of our own kinds begin so


def check(trials: Sequence[Trial], device: torch.device) -> None:
    """Check that every block with a kind from outside is causal and carries the state that it declares. It is run on
    `device` at short lengths and at nearly as many tokens as the trial reads. Raises SpecError with all faults.

    Our own kinds are not run: the tests hold them to the same laws. Each block is run once in a process.
    """
    asked: dict[tuple[BackboneSpec, int], None] = {}
    for trial in trials:
        for part in getattr(trial, "parts", (trial,)):  # of a trial in phases
            if isinstance(part.arch, BackboneSpec):
                tasks = (part.task, *part.tests, *(portion.task for portion in part.mix))
                asked[part.arch, max(task.shape[0] for task in tasks)] = None
    faults = [found for arch, length in asked for found in _faults(arch, length, device)]
    if faults:
        raise SpecError(faults)


def why_alone(trials: Sequence[Trial], device: torch.device) -> str:
    """Why the members of a cohort must run one at a time on `device`: a block with a kind from outside does not run under
    torch.vmap, or gives other outputs or gradients there than alone. "" where all may run as one, and where no kind is from
    outside. Each block is tried once in a process."""
    for trial in trials:
        for part in getattr(trial, "parts", (trial,)):
            if isinstance(part.arch, BackboneSpec):
                blocks = list(flatten(part.arch.stack))
                for block in dict.fromkeys(blocks):
                    kinds = dict.fromkeys(_from_outside(block))
                    if kinds and (why := _apart(block, part.arch.width, part.arch.norm, device)):
                        return f"block {blocks.index(block)} ({', '.join(kinds)}) {why}"
    return ""


def has_outside(trials: Sequence[Trial]) -> bool:
    """True where a block has a kind from outside."""
    parts = [part for trial in trials for part in getattr(trial, "parts", (trial,))]
    archs = {part.arch for part in parts if isinstance(part.arch, BackboneSpec)}
    return any(kind for arch in archs for block in flatten(arch.stack) for kind in _from_outside(block))


@cache
def _apart(block: Any, width: int, norm: Norm, device: torch.device) -> str:
    """How a block's outputs or gradients under torch.vmap differ from those alone; "" where they agree."""
    with seeded(0):
        modules = [block.build(width, norm).to(device) for _ in range(2)]
    try:
        verdict = laws.stacking(modules, width, length=TRIED, dtype=torch.float32)
    except Exception as error:  # whatever a stranger's code does
        return f"does not run under torch.vmap: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return "" if verdict.holds else f"breaks the law of {verdict.law}: {verdict.fault}"


def _faults(arch: BackboneSpec, length: int, device: torch.device) -> Iterator[Fault]:
    blocks = list(flatten(arch.stack))
    for block in dict.fromkeys(blocks):
        outside = dict.fromkeys(_from_outside(block))
        if outside and (broken := _broken(block, arch.width, arch.norm, length, device)):
            place = f"block {blocks.index(block)} ({', '.join(outside)})"
            yield Fault(Place(f"architecture {arch.name}"), place, f"{broken}; it does not train and no record is made")


def _specs(part: Any) -> Iterator[Any]:
    """All specs in it, itself included."""
    if isinstance(part, tuple):
        for one in part:
            yield from _specs(one)
    if is_dataclass(part) and not isinstance(part, type):
        yield part
        for field in fields(part):
            yield from _specs(getattr(part, field.name))


def _from_outside(block: Any) -> Iterator[str]:
    """The kinds in it whose classes are not ours."""
    for spec in _specs(block):
        if isinstance(spec, TorchModule) or not type(spec).__module__.startswith(INSIDE):
            yield str(getattr(spec, "kind", type(spec).__name__))


def wraps(part: Any) -> bool:
    """True for a mixer or a block with a torch module in it."""
    return any(isinstance(spec, TorchModule) for spec in _specs(part))


def counts_state(block: Any) -> bool:
    """True where the state of a block can be counted: not that of a torch module which cannot be run token by token."""
    return all(spec.verifiable for spec in _specs(block) if isinstance(spec, TorchModule))


@cache
def _broken(block: Any, width: int, norm: Norm, length: int, device: torch.device) -> str:
    """The first law that the block breaks, and how; "" where both hold."""
    most = min(length, LONGEST)
    lengths = sorted({*laws.LENGTHS, most - 1 + most % 2} - {0})

    def size(tokens: int) -> Any:
        return block.state_size(width, tokens)

    for dtype in (torch.float32, torch.float64):
        try:
            with seeded(0):
                module = block.build(width, norm).to(device)
                verdicts = [laws.is_causal(module, width, lengths=lengths, dtype=dtype)]
                if counts_state(block):
                    verdicts.append(laws.counted_state(module, width, size, lengths=lengths, dtype=dtype))
        except Exception as error:  # whatever a stranger's code does
            if dtype == torch.float64:  # nobody trains in it
                return ""
            return (
                f"cannot be run before training: {type(error).__name__}: {error}{laws.line_of(error)}; expected outputs "
                "[B, T, D] and a state for any number of tokens from 1 on, as recallmap.arch.mixers.mixer.MixerModule says "
                "(of a torch module, only the outputs)"
            )
        broken = next((verdict for verdict in verdicts if not verdict.holds), None)
        if broken:
            return f"breaks the law of {broken.law}: {broken.fault}"
    return ""
