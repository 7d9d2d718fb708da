"""Copying beside the bits of a state: how much of a string a memory says again, of how many bits it has for it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from recallmap.results.analysis.labels import canonical_text, differing, words
from recallmap.results.analysis.measures import Measure
from recallmap.results.analysis.namesakes import remark
from recallmap.results.score_tables.columns import cell_of
from recallmap.results.score_tables.notes import notes_of
from recallmap.results.score_tables.table import Cell, Line, State, Table, protocol_of, readable, unit_of

_OF_STRING = ("length", "alphabet", "repeats")  # options of the task that set the bits of a string


def copied_bits_tables(found: Sequence[Measure], task: str, protocol: str) -> list[Table]:
    """A table for every way to ask for strings of one length again in the same order, where models were trained on several
    such lengths: a line for every architecture and length, by how many bits its state has for a bit of the string."""
    asked: dict[str, list[Measure]] = defaultdict(list)
    for measure in found:
        if _is_copying(measure):
            asked[canonical_text(_way(measure))].append(measure)
    groups = [own for own in asked.values() if len({m.dials["length"] for m in own}) > 1]
    telling = differing([_way(own[0]) for own in groups])
    return [
        _table(own, ", ".join([f"{task}{protocol_of(protocol)}", *words(own[0].dials, telling)]), protocol)
        for own in groups
    ]


def _is_copying(measure: Measure) -> bool:
    """Whether models were trained to copy strings of one length, which have some bits."""
    dials = measure.dials
    length, alphabet = dials.get("length"), dials.get("alphabet")
    if measure.task != "rearrangement" or dials.get("rule") != "copy" or dials.get("min_length") is not None:
        return False
    if measure.tested or not isinstance(length, int) or not isinstance(alphabet, int):
        return False
    return alphabet > 1 and 0 < length <= (length if dials.get("repeats", True) else alphabet)


def _way(measure: Measure) -> dict[str, Any]:
    """The parameters of the setting but those of the string's bits, and but what it was tested on."""
    return {n: v for n, v in measure.dials.items() if n not in _OF_STRING and not n.startswith("tests.")}


def _table(own: Sequence[Measure], title: str, protocol: str) -> Table:
    telling = [name for name in differing([m.dials for m in own]) if name in _OF_STRING]
    lines = [_line(m, telling) for m in sorted(own, key=lambda m: (m.arch, -_room(m), m.row))]
    chance = {m.chance for m in own}
    if len(chance) == 1:
        cells = (Cell(), Cell(), Cell(), Cell(mean=chance.pop()))
        lines.append(Line(labels=("chance", "", "", ""), cells=cells, kind="chance"))
    notes = (
        "A string of n letters out of A has n log2 A bits (fewer where none comes twice). Those of a state are of all numbers "
        "that the model carries at the end of the sequence, convolutions and caches included. A state of fewer bits than the "
        "string cannot hold it (Jelassi et al. 2024).",
        "By bits of state for a bit of the string, the most room first; every length has models of its own.",
    )
    return Table(
        title=f"{title}, copied beside bits of state",
        corner=("architecture", "setting", "state", "seeds"),
        columns=("bits of string", "bits of state", "state for a bit of string", readable(own[0].metric)),
        lines=tuple(lines),
        notes=(*notes_of(list(own), lines, "validation"), *notes),
        units=("count", "count", "count", unit_of(own[0].metric)),
        protocol=protocol,
    )


def _line(measure: Measure, telling: Sequence[str]) -> Line:
    figures = (_string_bits(measure), 8.0 * measure.state_bytes, _room(measure))
    state = State(lowest=measure.state_bytes, highest=measure.state_bytes, grows=measure.state_grows)
    return Line(
        labels=(measure.row, ", ".join(words(measure.dials, telling)), str(state), str(len(measure.values))),
        cells=(*(Cell(mean=value) for value in figures), cell_of(measure)),
        remark=remark(measure.leaves),
        state=state,
    )


def _string_bits(measure: Measure) -> float:
    """The bits of a string that is to be copied: the logarithm of the number of strings."""
    length, alphabet = measure.dials["length"], measure.dials["alphabet"]
    if measure.dials.get("repeats", True):
        return float(length * math.log2(alphabet))
    return sum(math.log2(alphabet - place) for place in range(length))


def _room(measure: Measure) -> float:
    return 8.0 * measure.state_bytes / _string_bits(measure)
