"""Regularised evolution: children of tournament winners in a population whose oldest die."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from recallmap.results.analysis.pareto import front
from recallmap.search.documents.numbers import written
from recallmap.search.samplers.sampler import LINEAGE, POINT, SamplerSpec, parameter

MUTATIONS = ("insert", "delete", "swap", "change", "graft")

TRIES = 16  # mutations drawn for a child that no earlier point equals; then one that does is taken

_PLACE = re.compile(
    r"(?P<path>.+)\[(?P<at>\d+)\](?: of .+)?"
)  # a block of a sequence; its letters where not all may stand


@dataclass(frozen=True, kw_only=True)
class Evolution(SamplerSpec):
    """A point is a child: the best of a sample of the population, with one mutation. The population is the newest points that
    are done, so that the oldest die whatever their goals. With several goals the parent is one that no other of its sample
    beats. A child that equals an earlier point is drawn anew, and so is a block that may not stand where it was put.
    Real et al. 2019, Regularized evolution for image classifier architecture search, AAAI.

    population  points that live; until so many are done, points are random. null: two generations, because after one
                generation all parents would be dead
    sample      draws of the tournament, with replacement. null: a quarter of the population, at least 2
    insert      rate of: a block more, anywhere in a sequence
    delete      rate of: a block less
    swap        rate of: two different blocks change places
    change      rate of: one block or one other parameter is drawn anew
    graft       rate of: a sequence ends as that of another parent does, with the parameters of its blocks; parameters outside
                of sequences come from either. Rates matter relative to each other, and one that cannot apply does not count
    """

    kind: Literal["evolution"] = "evolution"
    population: int | None = parameter(None)
    sample: int | None = parameter(None)
    insert: float = parameter(0.2)
    delete: float = parameter(0.2)
    swap: float = parameter(0.2)
    change: float = parameter(1.0)
    graft: float = parameter(0.2)

    source: ClassVar[str] = "Real et al. 2019"

    def __post_init__(self) -> None:
        self.count("population", 2)
        self.count("sample", 1)
        for name in MUTATIONS:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1, got {getattr(self, name)}")
        if not self.change:
            raise ValueError(f"change must be above 0, because it alone applies to every point, got {self.change}")

    def build(self, seed: int, generation: int) -> Any:
        size = 2 * generation if self.population is None else self.population
        sample = max(2, size // 4) if self.sample is None else self.sample
        return _optuna_sampler(seed, size, sample, {name: getattr(self, name) for name in MUTATIONS})


@dataclass(frozen=True, kw_only=True)
class _Genome:
    """The parameters of a point, with its sequences of blocks put together.

    words      letters of each sequence by its path; None where only one letter could stand, so that none was chosen
    values     all other parameters by name
    lengths    the least and the most letters of each sequence
    alphabets  letters that were offered
    """

    words: Mapping[str, tuple[Any, ...]]
    values: Mapping[str, Any]
    lengths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    alphabets: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """The value of a parameter by its name; None where it has none."""
        if (place := _PLACE.fullmatch(name)) and place["path"] in self.words:
            word, at = self.words[place["path"]], int(place["at"])
            return word[at] if at < len(word) else None
        path = name.removesuffix(".length")
        return len(self.words[path]) if path != name and path in self.words else self.values.get(name)

    def expressed(self) -> tuple[Any, ...]:
        """What tells it from others: its words, and the parameters that do not belong to an absent block."""
        absent = [
            f"{path}.{letter}"
            for path, word in self.words.items()
            for letter in self.alphabets[path]
            if letter not in word
        ]
        own = {name: value for name, value in self.values.items() if not any(_within(name, part) for part in absent)}
        return tuple(sorted(self.words.items())), tuple(sorted((name, repr(value)) for name, value in own.items()))


@dataclass(frozen=True, kw_only=True)
class _Child:
    genome: _Genome
    parents: tuple[int, ...]
    change: str


Draw = Callable[[str, Any], Any]  # a random value of a parameter, by its name and its distribution

Mutation = tuple[_Genome, str]  # a child, and what was changed in it


def _optuna_sampler(seed: int, size: int, sample: int, rates: Mapping[str, float]) -> Any:
    from optuna.samplers import RandomSampler
    from optuna.study import StudyDirection
    from optuna.trial import TrialState

    class RegularisedEvolution(RandomSampler):
        """Gives a point the values of a child; random ones while the population grows, and where a child has none."""

        def __init__(self) -> None:
            super().__init__(seed=seed)
            self._children: dict[int, _Child | None] = {}

        def sample_independent(self, study: Any, trial: Any, name: str, space: Any) -> Any:
            if trial.number not in self._children:
                child = self._children[trial.number] = self._child(study, trial)
                if child is not None:
                    note = {"parents": child.parents, "change": child.change}
                    study._storage.set_trial_system_attr(trial._trial_id, LINEAGE, note)
            child = self._children[trial.number]
            wanted = None if child is None else child.genome.get(name)
            if wanted is not None and _offers(space, wanted):
                return wanted
            return super().sample_independent(study, trial, name, space)

        def _child(self, study: Any, trial: Any) -> _Child | None:
            points = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
            # Those of an interrupted driver that lack values are asked for again.
            points = [t for t in points if t.state != TrialState.FAIL or POINT in t.user_attrs]
            living = [t for t in points if t.state == TrialState.COMPLETE][-size:]
            if len(living) < size:
                return None

            def draw(name: str, space: Any) -> Any:
                return RandomSampler.sample_independent(self, study, trial, name, space)

            maximise = [direction == StudyDirection.MAXIMIZE for direction in study.directions]
            known = {_genome(one).expressed() for one in points}
            rng = np.random.default_rng(seed)
            return _born(living, known, maximise, sample, rates, rng, draw)

    return RegularisedEvolution()


def _born(
    living: Sequence[Any],
    known: set[tuple[Any, ...]],
    maximise: Sequence[bool],
    sample: int,
    rates: Mapping[str, float],
    rng: np.random.Generator,
    draw: Draw,
) -> _Child | None:
    """A child of the living, which no known point equals where one can be found."""
    child = None
    for _ in range(TRIES):
        parent, mate = (_winner(living, maximise, sample, rng) for _ in range(2))
        child = _mutated(parent, mate, rates, rng, draw) or child
        if child is not None and child.genome.expressed() not in known:
            break
    return child


def _winner(living: Sequence[Any], maximise: Sequence[bool], sample: int, rng: np.random.Generator) -> Any:
    drawn = [living[at] for at in rng.integers(len(living), size=sample)]
    on = front([one.values for one in drawn], maximise)
    return drawn[int(rng.choice(np.flatnonzero(on)))]


def _mutated(parent: Any, mate: Any, rates: Mapping[str, float], rng: np.random.Generator, draw: Draw) -> _Child | None:
    """The parent with one mutation, drawn by the rates from those that apply to it; None where none does."""
    own, other = _genome(parent), _genome(mate)
    left = {name: rate for name, rate in rates.items() if rate > 0}
    while left:
        shares = np.array(list(left.values()))
        name = str(rng.choice(list(left), p=shares / shares.sum()))
        del left[name]
        found: Mutation | None
        if name == "graft":
            found = None if mate.number == parent.number else _grafted(own, other, _place(mate), rng)
        else:
            found = _changed(parent, own, rng, draw) if name == "change" else _reordered(name, own, rng)
        if found is not None:
            parents = (_place(parent), *([_place(mate)] if name == "graft" else []))
            return _Child(genome=found[0], parents=parents, change=found[1])
    return None


def _reordered(mutation: str, own: _Genome, rng: np.random.Generator) -> Mutation | None:
    """A sequence with a block more or less, or with two blocks in each other's place."""
    if not own.words:
        return None
    path = str(rng.choice(sorted(own.words)))
    word, (least, most) = own.words[path], own.lengths[path]
    at = int(rng.integers(len(word) + (mutation == "insert")))
    if mutation == "insert":
        letter = own.alphabets[path][int(rng.integers(len(own.alphabets[path])))]
        if len(word) >= most:
            return None
        new, said = (*word[:at], letter, *word[at:]), f"insert {letter} at {at}"
    elif mutation == "delete":
        if len(word) <= least:
            return None
        new, said = (*word[:at], *word[at + 1 :]), f"delete {word[at] or 'the block'} at {at}"
    else:
        others = [to for to in range(len(word)) if None not in (word[to], word[at]) and word[to] != word[at]]
        if not others:
            return None
        to = others[int(rng.integers(len(others)))]
        swapped = list(word)
        swapped[at], swapped[to] = word[to], word[at]
        new, said = tuple(swapped), f"swap {word[at]} at {at} with {word[to]} at {to}"
    return replace(own, words={**own.words, path: new}), said


def _changed(parent: Any, own: _Genome, rng: np.random.Generator, draw: Draw) -> Mutation | None:
    """One block or one other parameter drawn anew, until it is another."""
    lengths = {f"{path}.length" for path in own.words}
    free = [name for name in sorted(parent.distributions) if not parent.distributions[name].single()]
    free = [name for name in free if name not in lengths]
    if not free:
        return None
    name = free[int(rng.integers(len(free)))]
    old = parent.params[name]
    new = next((value for _ in range(TRIES) if (value := draw(name, parent.distributions[name])) != old), old)
    said = f"change {name.removeprefix('trial.').removeprefix('arch.')}: {written(old)} to {written(new)}"
    place = _PLACE.fullmatch(name)
    if place is None or place["path"] not in own.words:
        return replace(own, values={**own.values, name: new}), said
    word, at = own.words[place["path"]], int(place["at"])
    words = {**own.words, place["path"]: (*word[:at], new, *word[at + 1 :])}
    return replace(own, words=words), f"change {old} at {at} to {new}"


def _grafted(own: _Genome, other: _Genome, mate: int, rng: np.random.Generator) -> Mutation | None:
    """A sequence that ends as another parent's, and values outside of sequences from either."""
    inside = tuple(f"{path}." for path in own.words)
    loose = [name for name in sorted(own.values) if not name.startswith(inside) and name in other.values]
    taken = {name: other.values[name] for name in loose if rng.random() < 0.5}
    shared = sorted(path for path in own.words if path in other.words)
    if not shared:
        return (replace(own, values={**own.values, **taken}), f"graft from {mate}") if taken else None
    path = shared[int(rng.integers(len(shared)))]
    word, theirs, (least, most) = own.words[path], other.words[path], own.lengths[path]
    cuts = [
        (kept, begin)
        for kept in range(len(word) + 1)
        for begin in range(len(theirs))
        if least <= kept + len(theirs) - begin <= most
    ]
    kept, begin = cuts[int(rng.integers(len(cuts)))]
    end = theirs[begin:]
    for letter in {*end} - {None}:
        taken |= {name: value for name, value in other.values.items() if _within(name, f"{path}.{letter}")}
    said = f"graft {''.join(str(letter or '?') for letter in end)} of {mate} at {kept}"
    return replace(own, words={**own.words, path: (*word[:kept], *end)}, values={**own.values, **taken}), said


def _genome(trial: Any) -> _Genome:
    letters: dict[str, dict[int, Any]] = {}
    alphabets: dict[str, tuple[Any, ...]] = {}
    values = dict(trial.params)
    for name in sorted(trial.params):
        if place := _PLACE.fullmatch(name):
            path = place["path"]
            letters.setdefault(path, {})[int(place["at"])] = values.pop(name)
            offered = getattr(trial.distributions[name], "choices", ())
            alphabets[path] = tuple(dict.fromkeys((*alphabets.get(path, ()), *offered)))
    words, lengths = {}, {}
    for path, by_place in letters.items():
        length = values.pop(f"{path}.length", max(by_place) + 1)
        words[path] = tuple(by_place.get(at) for at in range(length))
        bounds = trial.distributions.get(f"{path}.length")
        lengths[path] = (length, length) if bounds is None else (bounds.low, bounds.high)
    return _Genome(words=words, values=values, lengths=lengths, alphabets=alphabets)


def _offers(space: Any, value: Any) -> bool:
    """Say whether a distribution can give a value."""
    if hasattr(space, "choices"):
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in space.choices)
    if isinstance(value, bool | str) or not space.low <= value <= space.high:
        return False
    step = getattr(space, "step", None)
    return not isinstance(value, int) or step is None or (value - space.low) % step == 0


def _within(name: str, path: str) -> bool:
    return name == path or name.startswith(f"{path}.")


def _place(trial: Any) -> int:
    """A point's place in the order of asking, which no interruption changes."""
    return int(trial.user_attrs.get(POINT, trial.number))
