"""A trial in phases: train, change mixers or enlarge their state, and continue from there: PhasedTrial -> Record."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache, cached_property
from typing import Any, Literal

import torch

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.cost import Cost
from recallmap.arch.expand import Start, expand
from recallmap.arch.mixers.mixer import MixerSpec
from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Place, SpecError
from recallmap.search.trials.settings import VERSION, Data, Portion, Training
from recallmap.search.trials.single import TrialSpec
from recallmap.synth.tasks import Task

APART = 2**32  # between the seeds of two phases, so that no phase reads again what an earlier one has read


def with_options(arch: BackboneSpec, options: Mapping[str, Any]) -> BackboneSpec:
    """The architecture with these options set in every mixer that has them. Raises ValueError where no mixer has one, or
    where a value is refused."""
    known, found = dict[str, None](), set[str]()

    def laid(value: Any) -> Any:
        if isinstance(value, MixerSpec):
            names = [f.name for f in type_hints.dials(type(value)) if f.name != "kind"]
            known.update(dict.fromkeys(names))
            found.update(own := {name: options[name] for name in names if name in options})
            return type_hints.plain(value) | own
        if isinstance(value, tuple):
            return tuple(laid(part) for part in value)
        if is_dataclass(value) and not isinstance(value, type):
            return {f.name: laid(getattr(value, f.name)) for f in type_hints.dials(type(value))}
        return value

    changed = type_hints.node_of(laid(arch), Place("dials"))
    for name in options:
        if name not in found:
            raise ValueError(f"no mixer has {name}, expected {', '.join(known)}{type_hints.guess(name, list(known))}")
    try:
        spec: BackboneSpec = type_hints.read(BackboneSpec, changed)
    except SpecError as error:
        said = {f.path.rpartition(".")[2]: f.message for f in error.faults}
        words = [why if why.startswith(name) else f"{name} {why}" for name, why in said.items()]
        raise ValueError(", ".join(words)) from error
    return spec


@cache
def _parameters(arch: BackboneSpec) -> list[tuple[str, torch.Size]]:
    with torch.device("meta"):
        return [(name, value.shape) for name, value in arch.build(vocab=1, length=1).named_parameters()]


@dataclass(frozen=True, kw_only=True)
class Expansion:
    """A larger state for `count` blocks, evenly spread (see `arch.expand`), and the start of their weights."""

    heads: Literal["merge"] | None = None
    factor: int | None = None
    layers: Literal["uniform"] = "uniform"
    count: int | Literal["all"] = 4
    start: Start = "reinitialise"

    def of(self, arch: BackboneSpec) -> BackboneSpec:
        return expand(arch, heads=self.heads, factor=self.factor, layers=self.layers, count=self.count)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One stretch of training, after an expansion if one is given. Fields that are not given are those of the trial.

    dials  options of mixers in this phase alone, by name, set in every mixer that has them
    """

    expand: Expansion | None = None
    dials: Mapping[str, int | float | bool | str | None] = field(default_factory=dict)
    task: Task | None = None
    training: Training | None = None
    data: Data | None = None
    mix: tuple[Portion, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class PhasedTrial:
    """Phases one after the other; each starts from the checkpoint that validation chose in the one before.

    The last phase is the trial's own: it is validated and tested on `task`, tested on `tests` as well, and its mixers are
    those of `arch`. A phase of no steps tests the phase before. The optimizer, its schedule and the data start anew in each.
    Steps, seconds and curves are those of all phases.
    """

    kind: Literal["phased"] = "phased"
    task: Task
    arch: BackboneSpec
    training: Training
    phases: tuple[Phase, ...]
    data: Data = field(default_factory=Data)
    mix: tuple[Portion, ...] = ()
    tests: tuple[Task, ...] = ()
    seed: int = 0
    version: int = VERSION

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("phases must hold at least one phase, got none")
        if self.phases[-1].task is not None:
            raise ValueError("phases: the last one trains on the trial's own task, leave its task out")
        if self.phases[-1].dials:
            raise ValueError("phases: the last one has the options of the trial's own arch, leave its dials out")
        if not 0 <= self.seed < APART:
            raise ValueError(f"seed must lie in 0..{APART - 1}, got {self.seed}")
        forms = {(p.task.shape[1], p.task.signal, p.task.readout) for p in self.parts}
        if len(forms) > 1:
            said = ", ".join(str(p.task.shape[1]) for p in self.parts)
            raise ValueError(f"phases must agree in vocabulary and in how they are read, got vocabularies of {said}")
        for part, base, phase in zip(self.parts, self.archs, self.phases, strict=True):
            if _parameters(part.arch) != _parameters(base):
                said = ", ".join(f"{name} {value}" for name, value in phase.dials.items())
                raise ValueError(f"phases: dials must leave parameters as they are, with {said} they have other shapes")

    @cached_property
    def archs(self) -> tuple[BackboneSpec, ...]:
        """The architecture of every phase, without its `dials`."""
        archs = [self.arch]
        for phase in self.phases:
            archs.append(phase.expand.of(archs[-1]) if phase.expand else archs[-1])
        return tuple(archs[1:])

    @cached_property
    def parts(self) -> tuple[TrialSpec, ...]:
        """The phases as trials of their own."""
        parts: list[TrialSpec] = []
        for number, phase in enumerate(self.phases):
            arch = self._arch_of(number)
            try:
                part = TrialSpec(
                    task=phase.task or self.task,
                    arch=arch,
                    training=phase.training or self.training,
                    data=phase.data or self.data,
                    mix=self.mix if phase.mix is None else phase.mix,
                    tests=self.tests if number == len(self.phases) - 1 else (),
                    seed=self.seed + number * APART,
                    version=self.version,
                )
            except ValueError as error:
                own = re.match(r"\w*", str(error))
                said = own is not None and getattr(phase, own[0], None) is not None  # by the phase, not by the trial
                raise ValueError(f"phases[{number}].{error}" if said else str(error)) from error
            parts.append(part)
        return tuple(parts)

    def _arch_of(self, number: int) -> BackboneSpec:
        arch, dials = self.archs[number], self.phases[number].dials
        try:
            return with_options(arch, dials) if dials else arch
        except ValueError as error:
            raise ValueError(f"phases: dials of phase {number + 1}: {error}") from error

    @property
    def name(self) -> str:
        """The name of the last architecture, and the start of its larger blocks."""
        starts = dict.fromkeys(p.expand.start for p in self.phases if p.expand)
        return " ".join([self.parts[-1].arch.name, *starts])

    @property
    def shape(self) -> Hashable:
        """A value that is equal for trials that can train as one cohort; a shared first phase is learned once."""
        return (self.parts[0].alike, self.phases[0].expand, len(self.phases))

    @property
    def family(self) -> Hashable:
        """A value that is equal for trials that share their first phase, which is learned once in a cohort."""
        return self.until(0)

    def until(self, number: int) -> Hashable:
        """A value that is equal for trials that are the same up to phase `number`."""
        return (self.parts[: number + 1], tuple(phase.expand for phase in self.phases[: number + 1]))

    @property
    def steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(part.steps for part in self.parts)

    @property
    def tokens(self) -> int:
        """Positions of all steps together."""
        return sum(part.tokens for part in self.parts)

    @property
    def stretches(self) -> tuple[tuple[Hashable, float], ...]:
        """As for TrialSpec: one per phase, shared by trials that are the same up to it."""
        return tuple((self.until(n), part.stretches[0][1]) for n, part in enumerate(self.parts))

    @property
    def effort(self) -> float:
        """Approximate operations of training, good enough to share out time."""
        return sum(part.effort for part in self.parts)

    @property
    def bytes(self) -> float:
        """Approximate bytes of GPU memory that training needs."""
        return max(part.bytes for part in self.parts)

    @property
    def needs(self) -> dict[str, float]:
        """Bytes of memory that it surely needs, by the path of the option that needs them, in the largest phase."""
        return max((part.needs for part in self.parts), key=lambda needs: sum(needs.values()))

    def price(self, length: int | None = None) -> Cost:
        """The cost of the last model on sequences of this length; None: its task's."""
        return self.parts[-1].price(length)
