"""Laws that a mixer, an MLP or a block from outside must hold before it trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from recallmap.arch import laws
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.parts.norm import Norm
from recallmap.arch.stack import flatten
from recallmap.search.documents.nodes import Fault, Place, SpecError

if TYPE_CHECKING:
    from recallmap.search.trials import Trial

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


def _faults(arch: BackboneSpec, length: int, device: torch.device) -> Iterator[Fault]:
    blocks = list(flatten(arch.stack))
    for block in dict.fromkeys(blocks):
        outside = dict.fromkeys(_from_outside(block))
        if outside and (broken := _broken(block, arch.width, arch.norm, length, device)):
            place = f"block {blocks.index(block)} ({', '.join(outside)})"
            yield Fault(Place(f"architecture {arch.name}"), place, f"{broken}; it does not train and no record is made")


def _from_outside(part: Any) -> Iterator[str]:
    """The kinds in it whose classes are not ours."""
    if isinstance(part, tuple):
        for one in part:
            yield from _from_outside(one)
    if not is_dataclass(part) or isinstance(part, type):
        return
    if not type(part).__module__.startswith(INSIDE):
        yield str(getattr(part, "kind", type(part).__name__))
    for field in fields(part):
        yield from _from_outside(getattr(part, field.name))


@cache
def _broken(block: Any, width: int, norm: Norm, length: int, device: torch.device) -> str:
    """The first law that the block breaks, and how; "" where both hold."""
    most = min(length, LONGEST)
    lengths = sorted({*laws.LENGTHS, most - 1 + most % 2} - {0})

    def size(tokens: int) -> Any:
        return block.state_size(width, tokens)

    for dtype in (torch.float32, torch.float64):
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                module = block.build(width, norm).to(device)
                verdicts = (
                    laws.is_causal(module, width, lengths=lengths, dtype=dtype),
                    laws.counted_state(module, width, size, lengths=lengths, dtype=dtype),
                )
        except Exception as error:  # whatever a stranger's code does
            if dtype == torch.float64:  # nobody trains in it
                return ""
            return (
                f"cannot be run before training: {type(error).__name__}: {error}; expected outputs [B, T, D] and a state for "
                "any number of tokens from 1 on, as recallmap.arch.mixers.mixer.MixerModule says"
            )
        broken = next((verdict for verdict in verdicts if not verdict.holds), None)
        if broken:
            return f"breaks the law of {broken.law}: {broken.fault}"
    return ""
