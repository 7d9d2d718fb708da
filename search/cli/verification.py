"""Laws run on what a user names: a kind of mixer, task or sampler, an architecture, a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from recallmap.arch import laws as arch_laws
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block, Chain
from recallmap.arch.mixers import LinearAttention, Mixer
from recallmap.arch.mixers.mixer import MixerSpec, StateSize
from recallmap.arch.mlp import Mlp, MlpSpec
from recallmap.arch.parts.norm import Norm
from recallmap.arch.stack import flatten
from recallmap.arch.torch_module import TorchModule
from recallmap.results.analysis.labels import counted
from recallmap.search import codec
from recallmap.search.cli.catalogue import stack_of
from recallmap.search.documents import built_in, outside, type_hints
from recallmap.search.documents.nodes import Fault, Place, SpecError, fault
from recallmap.search.samplers import Sampler
from recallmap.search.samplers import laws as sampler_laws
from recallmap.search.samplers.sampler import SamplerSpec
from recallmap.search.training import foreign
from recallmap.synth import laws as task_laws
from recallmap.synth.task import Task as AnyTask
from recallmap.synth.tasks import Task

WIDTH = 16  # of the model around a mixer that is checked by itself


Verdict = arch_laws.Verdict | task_laws.Verdict


class Checked(NamedTuple):
    """The verdicts of all laws on one thing."""

    name: str
    verdicts: Sequence[Verdict]

    @property
    def broken(self) -> int:
        return sum(not verdict.holds for verdict in self.verdicts)

    @property
    def summary(self) -> str:
        skipped = sum(bool(verdict.skipped) for verdict in self.verdicts)
        asked = len(self.verdicts) - skipped
        held = f"{asked - self.broken} of {counted(asked, 'law')} hold" if self.broken else f"{asked} laws hold"
        apply = "does" if skipped == 1 else "do"
        return f"{self.name}: {held}{f', {skipped} {apply} not apply' if skipped else ''}"


def checked(source: str) -> Iterator[Checked]:
    """Run the laws on each thing that `source` names, one after another: a kind, an architecture of the zoo, a YAML file, or
    a Python file, which is executed. Raises SpecError where it names nothing."""
    if source.endswith(".py"):
        yield from _of_file(Path(source))
        return
    outside.join_installed()
    kinds = {**type_hints.kinds_of(Mixer), **type_hints.kinds_of(Task), **type_hints.kinds_of(Sampler)}
    archs = list(built_in.named("arch"))
    if source in kinds:
        yield _of_class(kinds[source])
    if source in archs:
        yield from of_arch(codec.read_arch(source))
    if source in kinds or source in archs:
        return
    if not os.path.exists(source):
        names = [*kinds, *archs]
        raise fault(
            Place(source),
            "",
            f"no file, and no mixer, task, sampler or architecture of this name{type_hints.guess(source, names)}; see "
            "recallmap list mixers, tasks, samplers, archs",
        )
    if built_in.sort_of(built_in.document(Path(source), "document")) == "task":
        task = codec.read_task(Path(source))
        yield Checked(f"task {task.kind}", task_laws.verdicts(task))
    else:
        yield from of_arch(codec.read_arch(Path(source)))


def _of_file(path: Path) -> Iterator[Checked]:
    """The laws of all that a Python file defines, with its defaults. The file is executed. Raises SpecError."""
    try:
        outside.use([str(path)])
    except SpecError as error:
        raise SpecError(Fault(Place(""), "", f.message) for f in error.faults) from None  # which names the file
    for one in outside.loaded():
        if one.source.path is not None and os.path.samefile(one.source.path, path):
            for _, spec in one.specs:
                yield _of_class(spec)
            for name in one.modules:
                yield _tried(f"torch module {name}", partial(TorchModule, of=f"{one.source.name}:{name}"), _of_mixer)


def _of_class(spec: type) -> Checked:
    """The laws of a kind with its defaults."""
    for base, what, laws in _FAMILIES:
        if issubclass(spec, base):
            return _tried(f"{what} {_kind_of(spec)}", spec, laws)
    raise TypeError(f"{spec.__name__} is no mixer, task or sampler")


def _tried(name: str, make: Callable[[], Any], laws: Callable[[Any], Sequence[Verdict]]) -> Checked:
    try:
        return Checked(name, laws(make()))
    except (TypeError, ValueError) as error:
        said = "expected a default for each option, with which the laws are run"
        return Checked(name, [task_laws.Verdict("defaults", f"it cannot be made with its defaults: {error}; {said}")])


def _kind_of(spec: type) -> str:
    kinds = type_hints.kinds_of(spec)
    return next(iter(kinds), spec.__name__)


def _of_mixer(spec: MixerSpec) -> Sequence[Verdict]:
    spec.check(WIDTH)
    size = partial(spec.state_size, WIDTH)
    return _of_part(spec, partial(spec.build, WIDTH), WIDTH, size, spec.parameters(WIDTH))


def _of_mlp(spec: MlpSpec) -> Sequence[Verdict]:
    """The laws of a block with this mlp behind a mixer of ours."""
    return _of_block(Block(mixer=LinearAttention(heads=1), mlp=cast(Mlp, spec)), WIDTH, "rms")


def _of_block(block: Any, width: int, norm: Norm, lenders: Sequence[Any] = ()) -> Sequence[Verdict]:
    """The laws of a block, behind those from which it borrows."""
    if not lenders:
        size, build = partial(block.state_size, width), partial(block.build, width, norm)
        return _of_part(block, build, width, size, block.parameters(width, norm))
    chain = (*lenders, block)

    def carried(length: int) -> StateSize:
        return sum((one.state_size(width, length) for one in chain), start=StateSize(0))

    parameters = sum(one.parameters(width, norm) for one in chain)
    return _of_part(block, lambda: Chain(one.build(width, norm) for one in chain), width, carried, parameters)


def _of_part(part: Any, build: Callable[[], Any], width: int, size: Any, parameters: int) -> Sequence[Verdict]:
    """The laws of a mixer or a block. A torch module need not run under torch.vmap: its trials then train one at a time."""
    counted = size if foreign.counts_state(part) else None
    found = arch_laws.verdicts(build, width, counted, parameters)
    if not foreign.wraps(part):
        return found
    alone = "its trials train one at a time"
    return [
        one._replace(fault="", skipped=f"{one.fault}; {alone}") if one.law == arch_laws.STACKING and one.fault else one
        for one in found
    ]


def of_arch(arch: BackboneSpec) -> Iterator[Checked]:
    """The laws of each different block of an architecture; one that borrows stands behind the first that lend."""
    blocks = list(flatten(arch.stack))
    for block in dict.fromkeys(blocks):
        name = f"architecture {arch.name}, block {blocks.index(block)} ({stack_of((block,))})"
        borrowed, lenders = block.mixer.borrows(), []
        for other in blocks if borrowed else ():
            if other.mixer.lends() & borrowed:
                lenders.append(other)
                borrowed -= other.mixer.lends()
        yield Checked(name, _of_block(block, arch.width, arch.norm, lenders))


_FAMILIES: tuple[tuple[type, str, Callable[[Any], Sequence[Verdict]]], ...] = (
    (MixerSpec, "mixer", _of_mixer),
    (MlpSpec, "mlp", _of_mlp),
    (AnyTask, "task", task_laws.verdicts),
    (SamplerSpec, "sampler", sampler_laws.verdicts),
)
