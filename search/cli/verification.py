"""Laws run on what a user names: a kind of mixer, task or sampler, an architecture, a file."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from recallmap.arch import laws as arch_laws
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.mixers import Mixer
from recallmap.arch.mixers.mixer import MixerSpec
from recallmap.arch.stack import flatten
from recallmap.search import codec
from recallmap.search.cli.listings import stack_of
from recallmap.search.documents import built_in, type_hints
from recallmap.search.documents.nodes import Place, fault
from recallmap.search.samplers import Sampler
from recallmap.search.samplers import laws as sampler_laws
from recallmap.search.samplers.sampler import SamplerSpec
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
        held = (
            f"{asked - self.broken} of {type_hints.counted(asked, 'law')} hold" if self.broken else f"{asked} laws hold"
        )
        return f"{self.name}: {held}{f', {skipped} do not apply' if skipped else ''}"


def checked(source: str) -> Iterator[Checked]:
    """Run the laws on each thing that `source` names, one after another: a kind, an architecture of the zoo, a YAML file, or
    a Python file, which is executed. Raises SpecError where it names nothing."""
    if source.endswith(".py"):
        for spec in specs_in(Path(source)):
            yield _of_class(spec)
        return
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


def specs_in(path: Path) -> list[type]:
    """The mixers, tasks and samplers that a Python file defines. The file is executed. Raises SpecError."""
    place = Place(str(path))
    if not path.is_file():
        raise fault(place, "", "no such file")
    name = f"recallmap_file_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise fault(place, "", "is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except Exception as error:  # whatever code of one's own does
        line = next((frame.lineno for frame in _frames(error) if Path(frame.filename) == path), 0)
        at = f" in line {line}" if line else ""
        raise fault(place, "", f"cannot be executed: {type(error).__name__}{at}: {error}") from None
    own = [
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, MixerSpec | AnyTask | SamplerSpec) and cls.__module__ == name
    ]
    specs = [cls for cls in own if not inspect.isabstract(cls)]
    if not specs:
        abstract = "".join(f"; {cls.__name__} lacks {', '.join(sorted(cls.__abstractmethods__))}" for cls in own)
        wanted = "expected a class that derives from recallmap.MixerSpec or recallmap.Task"
        raise fault(place, "", f"defines no whole mixer, task or sampler, {wanted}{abstract}")
    return specs


def _frames(error: BaseException) -> list[Any]:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    return [*reversed(frames), error] if isinstance(error, SyntaxError) else list(reversed(frames))


def _of_class(spec: type) -> Checked:
    """The laws of a kind with its defaults."""
    for base, what, laws in _FAMILIES:
        if issubclass(spec, base):
            name = f"{what} {_kind_of(spec)}"
            try:
                return Checked(name, laws(spec()))
            except (TypeError, ValueError) as error:
                said = "expected a default for each option, with which the laws are run"
                broken = task_laws.Verdict("defaults", f"it cannot be made with its defaults: {error}; {said}")
                return Checked(name, [broken])
    raise TypeError(f"{spec.__name__} is no mixer, task or sampler")


def _kind_of(spec: type) -> str:
    kinds = type_hints.kinds_of(spec)
    return next(iter(kinds), spec.__name__)


def _of_mixer(spec: MixerSpec) -> Sequence[Verdict]:
    spec.check(WIDTH)
    size = partial(spec.state_size, WIDTH)
    return arch_laws.verdicts(partial(spec.build, WIDTH), WIDTH, size, spec.parameters(WIDTH))


def of_arch(arch: BackboneSpec) -> Iterator[Checked]:
    """The laws of each different block of an architecture."""
    blocks = list(flatten(arch.stack))
    for block in dict.fromkeys(blocks):
        name = f"architecture {arch.name}, block {blocks.index(block)} ({stack_of((block,))})"
        size = partial(block.state_size, arch.width)
        build = partial(block.build, arch.width, arch.norm)
        yield Checked(name, arch_laws.verdicts(build, arch.width, size, block.parameters(arch.width, arch.norm)))


_FAMILIES: tuple[tuple[type, str, Callable[[Any], Sequence[Verdict]]], ...] = (
    (MixerSpec, "mixer", _of_mixer),
    (AnyTask, "task", task_laws.verdicts),
    (SamplerSpec, "sampler", sampler_laws.verdicts),
)
