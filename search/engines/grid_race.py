"""A grid as a race of its cells of hyper-parameters, where one cell a task is chosen (`study.race.Race`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from recallmap.results.analysis.selection import extent, over_settings
from recallmap.results.record import Record
from recallmap.search.documents import content_key
from recallmap.search.study.race import Race
from recallmap.search.trials import Trial
from recallmap.search.trials.single import TrialSpec

_OF_CELL = ("training", "seed")
_OF_SETTING = ("task", "data", "mix", "tests")


class GridRace:
    """The race of a grid: of each architecture on each kind of task by itself.

    first  the trials of the settings on which all cells race, and those that have no rivals
    """

    def __init__(self, grid: Sequence[Trial], race: Race) -> None:
        self._race = race
        self._groups: list[_Group] = []
        rivals: dict[str, list[tuple[str, str, Trial]]] = defaultdict(list)  # cell, setting and trial, by contest
        alone: list[Trial] = []
        for trial in grid:
            if not isinstance(trial, TrialSpec):
                alone.append(trial)
                continue
            said = content_key.plain(trial)
            rest = {name: part for name, part in said.items() if name not in (*_OF_CELL, *_OF_SETTING)}
            asked = [said["task"].get(name) for name in ("kind", "protocol")]
            contest = content_key.key({"task": asked, "extent": extent(said), **rest})
            setting = content_key.key({name: said[name] for name in _OF_SETTING if name in said})
            rivals[contest].append((content_key.key(said["training"]), setting, trial))
        first = [*alone]
        for trials in rivals.values():
            settings = list(dict.fromkeys(setting for _, setting, _ in trials))
            raced = {settings[at] for at in race.raced(len(settings))}
            group = _Group()
            for cell, setting, trial in trials:
                of = group.heats if setting in raced else group.rest
                of[cell].append((content_key.key(trial), trial))
            first += [trial for own in group.heats.values() for _, trial in own]
            if group.rest:
                self._groups.append(group)
        order = {id(trial): at for at, trial in enumerate(grid)}
        self.first = tuple(sorted(first, key=lambda trial: order[id(trial)]))

    def going_on(self, book: Mapping[str, Record]) -> tuple[Trial, ...]:
        """The trials of the cells that go on, in all groups whose first trials are in the book. They follow from the records
        alone, so that a run that is resumed asks for the same. Raises ValueError where a record has no score to judge by."""
        found: list[Trial] = []
        for group in self._groups:
            if all(key in book for own in group.heats.values() for key, _ in own):
                found += [trial for cell in group.near_the_best(book, self._race) for _, trial in group.rest[cell]]
        return tuple(found)

    @property
    def most(self) -> int:
        """The number of trials that going on may add, at most."""
        left = [sorted((len(own) for own in group.rest.values()), reverse=True) for group in self._groups]
        return sum(sum(counts[: self._race.most]) for counts in left)


class _Group:
    """One architecture on one kind of task: keys and trials by cell."""

    def __init__(self) -> None:
        self.heats: dict[str, list[tuple[str, Trial]]] = defaultdict(list)
        self.rest: dict[str, list[tuple[str, Trial]]] = defaultdict(list)

    def near_the_best(self, book: Mapping[str, Record], race: Race) -> list[str]:
        """Of the cells that finished on the most settings, those near the best mean score, at most so many."""
        judged = {cell: over_settings([book[key] for key, _ in own]) for cell, own in self.heats.items()}
        finished = max(count for count, _ in judged.values())
        scores = {cell: mean[0] for cell, (count, mean) in judged.items() if mean and count == finished}
        near = [cell for cell, score in scores.items() if score >= max(scores.values()) - race.within]
        return sorted(near, key=lambda cell: -scores[cell])[: race.most]
