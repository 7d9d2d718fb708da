"""The check of a document of any sort: its faults, or a summary."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from recallmap.results.analysis.labels import counted
from recallmap.search import codec
from recallmap.search.cli.catalogue import stack_of
from recallmap.search.cli.listings import has_unknown_state
from recallmap.search.documents import built_in, content_key, outside, type_hints
from recallmap.search.documents.built_in import TELLING
from recallmap.search.documents.nodes import Fault, Place, SpecError, fault, merged
from recallmap.search.space.search_space import Search
from recallmap.search.study.dropped import dropped
from recallmap.search.study.spec import StudySpec
from recallmap.search.trials import Trial

PRICED = 60  # most corners of a search whose cost is computed


def check(source: str) -> str:
    """Summarise a file, or every built-in document of a name. Raises SpecError with all its faults."""
    from recallmap.synth.tasks import Task

    names = {what: list(built_in.named(what)) for what in ("study", "arch", "suite")}
    outside.join_installed()
    names["task"] = list(type_hints.kinds_of(Task))
    named = [what for what, known in names.items() if source in known]
    if not named and not os.path.exists(source):
        meant = type_hints.guess(Path(source).stem, [name for known in names.values() for name in known])
        raise fault(Place(source), "", f"no file, and no built-in study, arch, suite or task{meant}")
    return "\n".join(_SUMMARIES[what](source) for what in named or [_sort_of(source)])


def code_of(source: str) -> list[str]:
    """The code from outside that a file, or a document that comes with the package, would execute. Raises SpecError."""
    ours = any(source in built_in.named(what) for what in ("study", "arch", "suite"))
    return [] if ours else outside.would_execute(built_in.document(Path(source), "document"))


def _sort_of(source: str) -> str:
    node = built_in.document(Path(source), "document")
    what = built_in.sort_of(node)
    if not what:
        telling = type_hints.either([f"'{key}' ({built_in.one(sort)})" for key, sort in TELLING.items()])
        raise fault(node.place, "", f"no key shows the sort of this document, expected {telling}")
    return what


def _task(source: str) -> str:
    task = codec.read_task(source)
    length, vocab = task.shape
    bounds = f"{task.metric} from {task.chance():.4g} (chance) to {task.ceiling():.4g} (ceiling)"
    return f"task {task.kind}: {length} positions, {vocab} {'ids' if task.signal == 'tokens' else 'channels'}, {bounds}"


def _arch(source: str) -> str:
    from recallmap.arch.cost import cost

    spec = codec.read_arch(source)
    price = cost(spec, vocab=64, length=128)
    grows = " and growing" if price.state_grows else ""
    state = (
        "an unknown state"
        if has_unknown_state(spec)
        else f"{price.state_bytes:,} bytes of state after 128 tokens{grows}"
    )
    return (
        f"arch {spec.name}: width {spec.width}, {stack_of(spec.stack)}; {price.parameters:,} parameters for 64 "
        f"token ids, {state}"
    )


def _study(source: str) -> str:
    """Summarise a study under every budget, so that a slip in one is known before it is used, and say which of its values no
    trial has."""
    study = codec.read_study(source)
    lines = [f"study {study.name}: {_trials(study)}"]
    unused = dict.fromkeys(dropped(study))
    for name in study.budgets.value:
        budgeted = codec.read_study(source, overrides=[f"budget={json.dumps(name)}"])  # 100 is a name, too
        lines.append(f"  budget {name}: {_trials(budgeted)}")
        unused |= dict.fromkeys(dropped(budgeted))
    return "\n".join([*lines, *unused])


def _trials(study: StudySpec) -> str:
    if isinstance(study.space, Search):
        return "; ".join(outlook_of(study))
    trials, rejected = study.trials(), study.rejected()
    counts = [
        counted(len({t.task for t in trials}), "task setting"),
        counted(len({t.arch for t in trials}), "architecture"),
        counted(len({t.seed for t in trials}), "seed"),
    ]
    beyond = f"; {len(rejected)} more break its constraints" if rejected else ""
    return f"{counted(len(trials), 'trial')} ({', '.join(counts)}){beyond}"


def some_corners(study: StudySpec) -> list[tuple[Trial, ...]]:
    """The trials of some points of a search, at the corners of its space."""
    if not isinstance(study.space, Search):
        raise TypeError(f"{study.name} is a grid: its trials are known")
    corners = [point for _, point in study.space.corners()]
    return [study.expanded(point) for point in corners[:: math.ceil(len(corners) / PRICED)]]


def outlook_of(study: StudySpec) -> list[str]:
    """The points and trials of a search, and the cost of its corners."""
    space = study.space
    if not isinstance(space, Search):
        raise TypeError(f"{study.name} is a grid: its trials are known")
    many = counted(space.points, "point")
    others = [sampler.label for sampler in space.beside]
    beside = f", as many by {type_hints.either(others).replace(' or ', ' and ')}" if others else ""
    anchors = f", {counted(len(space.anchors), 'anchor')}" if space.anchors else ""
    each = counted(len(space.each), "trial")
    corners = [point for _, point in space.corners()]
    priced = [trials[0] for trials in some_corners(study)]
    allowed = [trial.price() for trial in priced if not study.constraints.broken_by(trial)]
    lines = [
        f"{many} by {space.sampler.label}{beside}{anchors}, {each} each: at most {study.most_trials:,} trials",
        f"{counted(len(space.names), 'search parameter')}, {counted(len(corners), 'corner')} can be built",
    ]
    if len(allowed) < len(priced):
        lines.append(f"{len(priced) - len(allowed)} of {len(priced)} corners break a constraint")
    if allowed:
        for name in ("parameters", "state_bytes"):
            figures = [getattr(price, name) for price in allowed]
            lines.append(f"{name.replace('_', ' ')} from {min(figures):,} to {max(figures):,} at the corners")
    return lines


def _suite(source: str) -> str:
    """Summarise a suite. Every setting is read as a trial, on a base that lacks nothing."""
    from recallmap.search.trials.single import TrialSpec

    suite = built_in.document(source, "suite")
    bare = {"task": {}, "arch": content_key.plain(codec.read_arch("attention")), "training": {"steps": 1}}
    tiers = suite.get("tiers")
    faults: list[Fault] = []
    lines = []
    for tier in tiers.value if tiers is not None and isinstance(tiers.value, dict) else {"": None}:
        counts: Counter[str] = Counter()
        for index, setting in enumerate(built_in.settings_of(suite, tier)):
            try:
                base = type_hints.node_of(bare, setting.place)  # what a setting lacks it lacks where it stands
                trial = type_hints.read(TrialSpec, merged(base, setting), openers=built_in.openers())
                counts[trial.task.kind] += 1
            except SpecError as error:
                faults += [Fault(f.place, f"tiers.{tier}[{index}].{f.path}", f.message) for f in error.faults]
        held = ", ".join(f"{kind} {n}" for kind, n in counts.items())
        lines.append(f"  tier {tier}: {counted(counts.total(), 'setting')} ({held})")
    if faults:
        raise SpecError(faults)
    return "\n".join([f"suite {Path(source).stem}", *lines])


_SUMMARIES: dict[str, Callable[[str], str]] = {"task": _task, "arch": _arch, "study": _study, "suite": _suite}
