"""Reach: how far beyond its training a model still answers, of every seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recallmap.results.analysis.labels import canonical_text
from recallmap.results.analysis.measures import Measure

_TRAINED = "tests.trained_"  # begins the name of a parameter of the setting that was trained, where tests differ in it


@dataclass(frozen=True, kw_only=True)
class Reach:
    """The largest value of a parameter of the task up to which each seed is above midway between chance and the ceiling.

    row      name of the architecture
    option   the parameter in which alone tests differ from the trained setting, such as length
    dials    the other parameters of the setting
    trained  its value in training
    tested   the larger values, rising
    of       a value for every seed; 0 where the seed is not above midway where it was trained
    own      the measures at all these values
    """

    row: str
    option: str
    dials: Mapping[str, Any]
    trained: float
    tested: tuple[float, ...]
    of: Mapping[int, float]
    own: tuple[Measure, ...]


def reaches(measures: Sequence[Measure]) -> list[Reach]:
    """The reach of every architecture from every setting that it was trained on and tested beyond, by one parameter alone.
    Seeds that lack a test, and scores without chance and ceiling, are left out."""
    groups: dict[tuple[str, str], dict[float, Measure]] = defaultdict(dict)
    for measure in measures:
        option = _option(measure)
        value = measure.dials.get(option)
        if measure.chance is not None and measure.ceiling is not None and isinstance(value, int | float):
            groups[measure.row, canonical_text(_rest(measure))][value] = measure
    found = []
    for by_value in groups.values():
        first = next(iter(by_value.values()))
        option = _option(first)
        trained = first.dials[_TRAINED + option]
        values = sorted(value for value in by_value if value >= trained)
        if len(values) < 2 or values[0] != trained:
            continue
        own = tuple(by_value[value] for value in values)
        seeds = sorted(set.intersection(*(set(m.values) for m in own)))
        if seeds:
            found.append(
                Reach(
                    row=first.row,
                    option=option,
                    dials=_rest(first),
                    trained=trained,
                    tested=tuple(values[1:]),
                    of={seed: _reach(seed, values, own) for seed in seeds},
                    own=own,
                )
            )
    return found


def _option(measure: Measure) -> str:
    """The parameter in which tests differ from the trained setting, "" where they differ in none or several."""
    options = [name.removeprefix(_TRAINED) for name in measure.dials if name.startswith(_TRAINED)]
    return options[0] if len(options) == 1 else ""


def _rest(measure: Measure) -> dict[str, Any]:
    """The parameters of the setting but that in which tests differ."""
    option = _option(measure)
    return {name: value for name, value in measure.dials.items() if name != option}


def _reach(seed: int, values: Sequence[float], own: Sequence[Measure]) -> float:
    reached = 0.0
    for value, measure in zip(values, own, strict=True):
        if measure.values[seed] <= ((measure.chance or 0.0) + (measure.ceiling or 0.0)) / 2:
            break
        reached = value
    return reached
