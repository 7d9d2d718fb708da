"""The fewest paths of a spec that tell the trials of a study apart, and the blocks of a search that chooses their order."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recallmap.results.analysis.labels import flatten
from recallmap.search.documents import type_hints
from recallmap.search.documents.numbers import written
from recallmap.search.space.parameters import Choices, SequenceDial, dial_of
from recallmap.search.space.search_space import Search
from recallmap.search.study.spec import StudySpec
from recallmap.search.trials import Trial
from recallmap.search.trials.geometry import setting

_ENTRY = re.compile(r"(?:^|\.)(?:stack|blocks)\.\d+\.kind$")  # whether an entry is a block or a repeat says little

SAID = ("training.lr", "training.weight_decay", "arch.lr", "seed")  # in every line of a trial


def paths_of(study: StudySpec) -> tuple[str, ...]:
    """The paths of a trial's spec that a line about it must show, besides architecture, task, setting, rate, decay and seed.
    For a search these are its parameters, because its trials are not known before it has run, but for those of blocks whose
    order it chooses: see `alphabets_of`."""
    if isinstance(study.space, Search):
        parameters, ordered = study.space.names, alphabets_of(study)
        varied = dict.fromkeys(
            _path(name, parameters) for name in parameters if not any(one.holds(name) for one in ordered)
        )
        return tuple(path for path in varied if path not in (*SAID, "arch") and not path.startswith("task."))
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
    telling_first = sorted(paths, key=lambda path: _ENTRY.search(path) is not None)
    while groups(chosen) < most:
        left = (path for path in telling_first if path not in chosen)
        chosen.append(max(left, key=lambda path: groups([*chosen, path])))
    return [path for path in paths if path in chosen]


def values_of(leaves: Mapping[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """The values of a trial at these paths, where it has any, by the shortest unique end of each path. A value with parts is
    given by its kind or its name, a block by its mixer's kind."""
    paths = tuple(paths)
    found = {}
    for path in paths:
        value = _value(leaves, path)
        if value is not None:
            found[_end(path, paths)] = value
    return found


@dataclass(frozen=True, kw_only=True)
class Alphabet:
    """The blocks whose order a search chooses. A line of a trial has their order in the architecture's name, a letter a block.

    path     where the blocks stand in the document of the study: trial.arch.stack
    options  by letter, ends of the paths of what varies in its block: mixer.heads
    """

    path: str
    options: Mapping[str, tuple[str, ...]]

    @property
    def end(self) -> str:
        """The last part of its path, such as stack."""
        return self.path.rpartition(".")[2]

    @property
    def legend(self) -> str:
        """`m=heads/key_dim l=mixer/heads`: the order of the values that lines give."""
        ends = {letter: [path.rpartition(".")[2] for path in paths] for letter, paths in self.options.items()}
        return " ".join(f"{letter}={'/'.join(own)}" for letter, own in ends.items() if own)

    def values(self, leaves: Mapping[str, Any], word: str) -> dict[str, dict[str, Any]]:
        """By letter, the values of what varies in its block, by the ends of their paths; the blocks stand in the order of the
        word. A block that lacks an option has no value of it."""
        start = self.path.removeprefix("trial.")
        found = {
            letter: {path: _value(leaves, f"{start}.{word.index(letter)}.{path}") for path in self.options[letter]}
            for letter in dict.fromkeys(word)
        }
        return {letter: {p: v for p, v in own.items() if v is not None} for letter, own in found.items()}

    def choices(self, choices: Choices, word: str) -> dict[str, dict[str, Any]]:
        """The same by what a sampler has chosen."""
        starts = {letter: f"{self.path}.{letter}." for letter in dict.fromkeys(word)}
        return {
            letter: {name.removeprefix(start): value for name, value in choices.items() if name.startswith(start)}
            for letter, start in starts.items()
        }

    def holds(self, name: str) -> bool:
        """True for a parameter of these blocks or of their order."""
        return name.startswith((f"{self.path}.", f"{self.path}["))

    def fits(self, leaves: Mapping[str, Any], word: str) -> bool:
        """True where the blocks of a trial may stand in the order of the word."""
        start = f"{self.path.removeprefix('trial.')}."
        entries = {path.removeprefix(start).partition(".")[0] for path in leaves if path.startswith(start)}
        return set(word) <= set(self.options) and len(entries) == len(word)


def alphabets_of(study: StudySpec) -> tuple[Alphabet, ...]:
    """The sequences of blocks that a search orders, as they stand in its `dials`; none for a grid."""
    space = study.space
    if not isinstance(space, Search):
        return ()
    found = []
    for path, node in space.dials.value.items():
        dial = dial_of(node)
        if isinstance(dial, SequenceDial):
            starts = {letter: f"{path}.{letter}." for letter in dial.sequence}
            options = {
                letter: tuple(
                    dict.fromkeys(
                        _path(name, space.names).removeprefix(start.removeprefix("trial."))
                        for name in space.names
                        if name.startswith(start)
                    )
                )
                for letter, start in starts.items()
            }
            found.append(Alphabet(path=path, options=options))
    return tuple(found)


def values_of_blocks(leaves: Mapping[str, Any], arch: str, alphabets: Sequence[Alphabet]) -> dict[str, dict[str, Any]]:
    """What varies in the blocks of a trial, by letter, where its architecture's name ends in their order; {} elsewhere."""
    words = arch.split("_")[-len(alphabets) :] if alphabets else []
    if len(words) < len(alphabets) or not all(a.fits(leaves, w) for a, w in zip(alphabets, words, strict=True)):
        return {}
    return {letter: own for a, w in zip(alphabets, words, strict=True) for letter, own in a.values(leaves, w).items()}


def said_blocks(values: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """`m=2/8`: the values of each letter's block, in the order of the legend."""
    return [f"{letter}={'/'.join(map(written, own.values()))}" for letter, own in values.items() if own]


def _value(leaves: Mapping[str, Any], path: str) -> Any:
    ways = (path, f"{path}.mixer.kind", f"{path}.kind", f"{path}.name")
    return next((leaves[way] for way in ways if leaves.get(way) is not None), None)


def _path(name: str, names: Sequence[str]) -> str:
    """The path in a trial of a parameter. A name has the label of what was chosen, which a path has not:
    trial.arch.stack[0].mixer.mesa.heads is at arch.stack.0.mixer.heads."""
    for chosen in sorted((other for other in names if name.startswith(f"{other}.")), key=len, reverse=True):
        _, dot, rest = name.removeprefix(f"{chosen}.").partition(".")
        name = f"{chosen}.{rest}" if dot else chosen
    return re.sub(r"\[(\d+)\]", r".\1", name).removeprefix("trial.")


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
