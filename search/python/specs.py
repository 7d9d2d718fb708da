"""Specs from Python: tasks, architectures, trials and studies by name and keyword, and models built from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, cast

from recallmap.arch.backbone import Backbone, BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.mixers import Mixer
from recallmap.arch.mixers.mixer import MixerSpec
from recallmap.arch.mlp import SwiGLU
from recallmap.search import codec
from recallmap.search.documents import built_in, outside, type_hints
from recallmap.search.documents.built_in import Source
from recallmap.search.documents.nodes import Fault, Node, Patch, Place, SpecError, fault, patched
from recallmap.search.study import overlay
from recallmap.search.study.spec import StudySpec, checked
from recallmap.search.trials.settings import Data, Training
from recallmap.search.trials.single import TrialSpec
from recallmap.synth.task import Task as AnyTask
from recallmap.synth.tasks import Task


def use(*names: str) -> None:
    """Execute Python files and modules, and take their mixers, tasks and samplers, as `--use` does on the command line:
    `use("my_fade.py")`. Their records say which code they are of. Raises SpecError with all faults."""
    outside.use(names)


def task(source: Source | Task, **options: Any) -> Task:
    """A task by its kind, from a file or a mapping, or another task, with options: `task("mqar", pairs=8)`.

    Raises SpecError with all faults. `recallmap list tasks` names every kind and its options.
    """
    if isinstance(source, AnyTask) and not options:
        return source
    node = _node(source, "task") if is_dataclass(source) else codec.task_document(source)
    found: Task = type_hints.read(Task, outside.ready(_changed(node, options, "task")), also=outside.USES)
    return found


def arch(source: Source | BackboneSpec | MixerSpec, **options: Any) -> BackboneSpec:
    """An architecture by its name in the zoo, from a file or a mapping, or another architecture, with options:
    `arch("mesa", width=64)`. A path reaches inside: `arch("mesa", **{"stack[0].blocks[0].mixer.key_dim": 16})`.

    A mixer stands for one block of it with a SwiGLU: `arch(GatedDeltaNet(heads=2), width=64)`, by the name of its kind.
    Raises SpecError with all faults. `recallmap list archs` names all of the zoo.
    """
    if isinstance(source, MixerSpec):
        return _around(source, options)
    if isinstance(source, BackboneSpec) and not options:
        return source
    node = _node(source, "arch") if is_dataclass(source) else built_in.document(source, "arch")
    whole = outside.ready(_changed(node, options, "arch"))
    found: BackboneSpec = type_hints.read(BackboneSpec, whole, also=outside.USES)
    return found


def model(
    source: Source | BackboneSpec | MixerSpec, *, vocab: int, seed: int = 0, implementation: str = "auto"
) -> Backbone:
    """An architecture's model with initial weights, a torch module on the CPU in float32: token ids [B, T] -> logits
    [B, T, vocab]. `model.step(token, state)` decodes one token. The same seed gives the same weights.

    implementation  of its ops: "auto", "recurrent", "chunked" or "fused"

    Raises SpecError as `arch` does, and ValueError for `vocab` below 1.
    """
    return arch(source).build(vocab=vocab, seed=seed).use(implementation)


_task_of, _arch_of = task, arch  # for `trial`, whose arguments have these names


def trial(
    task: Source | Task,
    arch: Source | BackboneSpec | MixerSpec,
    *,
    seed: int = 0,
    data: Mapping[str, int] | Data | None = None,
    tests: Sequence[Source | Task] = (),
    **training: Any,
) -> TrialSpec:
    """A trial: an architecture trained on a task once. `trial("mqar", "mesa", steps=1000, lr=1e-3)`; `run` trains it.

    data      numbers of sequences: `{"train": ..., "validation": 512, "test": 1024}`; without train, fresh ones for ever
    tests     further tasks that it is tested on
    training  options of training: steps or epochs, batch, lr, weight_decay, schedule, dtype, evaluations, ...

    Raises SpecError with the faults of all parts.
    """
    faults: list[Fault] = []

    def part(made: Any, *given: Any) -> Any:
        try:
            return made(*given)
        except SpecError as error:
            faults.extend(error.faults)
            return None

    def read(hint: Any, given: Any, name: str) -> Any:
        return type_hints.read(hint, _node(given, name))

    parts = {
        "task": part(_task_of, task),
        "arch": part(_arch_of, arch),
        "training": part(read, Training, training, "training"),
        "data": part(read, Data, data or {}, "data"),
        "tests": tuple(part(_task_of, other) for other in tests),
    }
    if faults:
        raise SpecError(faults)
    try:
        return TrialSpec(seed=seed, **parts)
    except ValueError as error:
        raise error if isinstance(error, SpecError) else fault(Place("trial"), "", str(error)) from None


def study(source: Source, changes: Mapping[str, Any] | None = None, /, *, budget: str | None = None) -> StudySpec:
    """A study by its name, from a file or a mapping: `study("demo", {"trial.training.batch": 16}, budget="smoke")`.

    changes  values by path, as `--set` has them on the command line
    budget   one of the study's own

    Raises SpecError with all faults. `recallmap list studies` names all that ship.
    """
    said = {**({} if budget is None else {"budget": budget}), **(changes or {})}
    place = Place("changes")
    patches = [Patch(path, _node(value, "changes"), place) for path, value in said.items()]
    return checked(overlay.with_budget(outside.ready(built_in.document(source, "study")), patches))


def _node(value: Any, name: str) -> Node:
    return type_hints.node_of(value, Place(name))


def _changed(node: Node, options: Mapping[str, Any], name: str) -> Node:
    """The document with options laid over it. A mapping merges with what it stands over."""
    for path, value in options.items():
        node = patched(node, Patch(path, _node(value, name), Place(name)))
    return node


def _around(mixer: MixerSpec, options: Mapping[str, Any]) -> BackboneSpec:
    """An architecture of one block of a mixer, which need not be of a kind that documents know."""
    known = [f.name for f in fields(BackboneSpec)]
    faults = [
        Fault(Place("arch"), name, f"unknown key, expected {', '.join(known)}{type_hints.guess(name, known)}")
        for name in options
        if name not in known
    ]
    if faults:
        raise SpecError(faults)
    block = Block(mixer=cast(Mixer, mixer), mlp=SwiGLU())
    try:
        return BackboneSpec(**{"name": mixer.kind, "stack": (block,), **options})
    except ValueError as error:
        raise fault(Place("arch"), "", str(error)) from None
