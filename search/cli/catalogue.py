"""What comes with recallmap, as rows of data: tasks, mixers, architectures, suites, studies, samplers."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from recallmap.search import codec
from recallmap.search.documents import built_in, type_hints
from recallmap.search.documents.nodes import Node, SpecError

Row = dict[str, Any]


def tasks() -> list[Row]:
    """Every task with its options, and the scores of guessing (chance), of known shortcuts (references) and of an oracle
    (ceiling)."""
    from recallmap.synth.tasks import Task

    return [row_of_task(kind, spec) for kind, spec in sorted(type_hints.kinds_of(Task).items())]


def row_of_task(kind: str, spec: Any) -> Row:
    """The row of one task."""
    task = codec.read_task(kind)
    length, vocab = task.shape
    bounds = {"chance": task.chance(), "references": task.references(), "ceiling": task.ceiling()}
    return {"task": kind, **_options(spec), "length": length, "vocab": vocab, **bounds, "metric": task.metric}


def mixers() -> list[Row]:
    """Every mixer with its recurrence, its state, its source, and its default differences from the source."""
    from recallmap.arch.mixers import Mixer

    return [row_of_mixer(kind, spec) for kind, spec in sorted(type_hints.kinds_of(Mixer).items())]


def row_of_mixer(kind: str, spec: Any) -> Row:
    """The row of one mixer."""
    names = {"equation": "equation", "state_floats": "state_formula", "source": "source"}
    facts = {name: getattr(spec, own) for name, own in names.items()}
    differs = () if type_hints.needed(spec) else spec().differs()  # unknown where it needs an option
    return {"mixer": kind, **facts, "differs": differs, **_options(spec)}


def differences() -> list[Row]:
    """Every architecture of the zoo, and by mixer the differences from what was published under its name."""
    from recallmap.arch.stack import flatten

    rows = []
    for name in built_in.builtin("arch"):
        blocks = flatten(codec.read_arch(name).stack)
        by_mixer = {block.mixer.kind: block.mixer.differs() for block in blocks}
        rows.append({"arch": name, "about": built_in.about("arch", name), "differs": by_mixer})
    return rows


def archs() -> list[Row]:
    """Every architecture of the zoo, with its cost for 64 token ids at length 128."""
    from recallmap.arch.cost import cost

    rows = []
    for name in built_in.builtin("arch"):
        spec = codec.read_arch(name)
        price = cost(spec, vocab=64, length=128)
        figures = {"parameters": price.parameters, "state_bytes": price.state_bytes, "state_grows": price.state_grows}
        about = built_in.about("arch", name)
        rows.append({"arch": name, "width": spec.width, "blocks": stack_of(spec.stack), **figures, "about": about})
    return rows


def suites() -> list[Row]:
    """Every published suite, with its settings by tier."""
    rows = []
    for name in built_in.builtin("suite"):
        tiers = built_in.document(name, "suite").value["tiers"].value
        counts = {tier: len(settings.value) for tier, settings in tiers.items()}
        rows.append({"suite": name, "tiers": counts, "about": built_in.about("suite", name)})
    return rows


def studies() -> list[Row]:
    """Every study that comes with the package. One with a fault has no number of trials."""
    rows = []
    for name in built_in.builtin("study"):
        study = built_in.document(name, "study")
        budgets = study.get("budgets") or Node({}, study.place)
        said = study.get("description")
        about = built_in.about("study", name) if said is None else str(said.value)
        rows.append({"study": name, **_trials(name), "budgets": list(budgets.value), "about": about})
    return rows


def samplers() -> list[Row]:
    """Every sampler of a search with its parameters."""
    from recallmap.search.samplers import Sampler

    return [row_of_sampler(kind, spec) for kind, spec in sorted(type_hints.kinds_of(Sampler).items())]


def row_of_sampler(kind: str, spec: Any) -> Row:
    """The row of one sampler."""
    return {"sampler": kind, "source": spec.source, "several_goals": spec.several_goals, **_options(spec)}


def stack_of(stack: tuple[Any, ...]) -> str:
    """`2 x (gated_deltanet + swiglu, attention + swiglu)`."""
    words = []
    for part in stack:
        if part.kind == "repeat":
            inside = stack_of(part.blocks)
            words.append(inside if part.times == 1 else f"{part.times} x ({inside})")
            continue
        inner = [getattr(part, name) for name in type_hints.plain(part) if name != "kind"]
        words.append(" + ".join(spec.kind for spec in inner if hasattr(spec, "kind")) or part.kind)
    return ", ".join(words)


def _trials(name: str) -> Row:
    try:
        return {"trials": codec.read_study(name).most_trials, "fault": None}
    except SpecError as error:
        return {"trials": None, "fault": str(error.faults[0])}


def _options(spec: type) -> Row:
    """Options with their defaults, and the names of those that have none and must be given."""
    known = [field for field in type_hints.dials(spec) if field.name != "kind"]
    made = {
        field.name: field.default_factory() if field.default_factory is not MISSING else field.default
        for field in known
        if (field.default, field.default_factory) != (MISSING, MISSING)
    }
    options = {name: type_hints.plain(value) for name, value in made.items()}
    return {"options": options, "needed": [field.name for field in known if field.name not in made]}
