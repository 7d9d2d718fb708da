"""The fewest paths of a spec that tell the trials of a study apart."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from recallmap.results.analysis.labels import flatten
from recallmap.search.documents import type_hints
from recallmap.search.space.search_space import Search
from recallmap.search.study.spec import StudySpec
from recallmap.search.trials import Trial
from recallmap.search.trials.geometry import setting

SAID = ("training.lr", "training.weight_decay", "arch.lr", "seed")  # in every line of a trial


def paths_of(study: StudySpec) -> tuple[str, ...]:
    """The paths of a trial's spec that a line about it must show, besides architecture, task, setting, rate, decay and seed.
    For a search these are its parameters, because its trials are not known before it has run."""
    if isinstance(study.space, Search):
        varied = (re.sub(r"\[(\d+)\]", r".\1", name).removeprefix("trial.") for name in study.space.names)
        return tuple(path for path in varied if path not in SAID and not path.startswith("task."))
    trials = study.trials()
    leaves = _leaves(trials)
    names = [(t.name, t.task.kind, setting(t.task)) for t in trials]
    known = [(name, *map(own.get, SAID)) for name, own in zip(names, leaves, strict=True)]
    return tuple(telling(known, leaves))


def telling(known: Sequence[Hashable], leaves: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fewest paths that, with what is `known` of each trial, tell apart as many as all paths do. They are chosen one by
    one: each time the path that leaves the fewest alike."""
    alike: dict[Hashable, list[Mapping[str, Any]]] = {}
    for name, own in zip(known, leaves, strict=True):
        alike.setdefault(name, []).append(own)
    paths = list(dict.fromkeys(path for group in alike.values() for path in _differing(group)))

    def groups(chosen: Sequence[str]) -> int:
        said = ((name, *map(own.get, chosen)) for name, own in zip(known, leaves, strict=True))
        return len(set(said))

    chosen: list[str] = []
    most = groups(paths)
    while groups(chosen) < most:
        chosen.append(max((path for path in paths if path not in chosen), key=lambda path: groups([*chosen, path])))
    return [path for path in paths if path in chosen]


def values_of(leaves: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The values of a trial at these paths, where it has any, by the shortest unique end of each path. A value with parts is
    given by its kind or its name."""
    paths = tuple(paths)
    found = {}
    for path in paths:
        value = next((leaves[p] for p in (path, f"{path}.kind", f"{path}.name") if leaves.get(p) is not None), None)
        if value is not None:
            found[_end(path, paths)] = value
    return found


def _differing(group: Sequence[Mapping[str, Any]]) -> list[str]:
    if len(group) < 2:
        return []
    paths = dict.fromkeys(path for own in group for path in own)
    return [path for path in paths if len({own.get(path) for own in group}) > 1]


def _end(path: str, paths: Sequence[str]) -> str:
    """The shortest end of a path that no other has; a place in a list comes with the list's name."""
    parts = path.split(".")
    for start in range(len(parts) - 1, 0, -1):
        end = ".".join(parts[start:])
        if not parts[start].isdecimal() and sum(p == end or p.endswith(f".{end}") for p in paths) == 1:
            return end
    return path


def _leaves(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The leaves of every trial; a part that many share is walked through once."""
    known: dict[tuple[str, int], dict[str, Any]] = {}
    found = []
    for trial in trials:
        own: dict[str, Any] = {}
        sort: Any = type(trial)
        for option in type_hints.dials(sort):
            part = getattr(trial, option.name)
            place = (option.name, id(part))
            if place not in known:
                plain = type_hints.plain(part, type_hints.hints_of(sort)[option.name])
                known[place] = dict(flatten(plain, option.name))
            own |= known[place]
        found.append(own)
    return found
