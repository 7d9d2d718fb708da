"""What repeats among the points of a search that orders blocks: which block, in which place, before which.

Points of random search alone tell, because they are independent of each other and of the scores: see
`results/analysis/block_effects.py`. A search with rungs has none of those: what is trained to its end has scored well before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from recallmap.results.analysis.block_effects import FEWEST, Effect, Repeated, block_effects, telling
from recallmap.results.analysis.comparison import ALPHA
from recallmap.results.analysis.labels import leaves_of
from recallmap.search.proposers.sampler_comparison import NULL
from recallmap.search.proposers.search_results import Candidate, Findings
from recallmap.search.space.corners import Given
from recallmap.search.space.parameters import words_of
from recallmap.search.space.search_space import ANCHORS, Search
from recallmap.search.study.differences import alphabets_of

ATTENTION = {"attention", "fox", "path"}  # kinds of mixers that look back at tokens, windowed or not


def repeated_in(found: Findings) -> Repeated | None:
    """The effects of blocks on the first goal that is a score, on test; None where the search orders no blocks, or several
    lists of them."""
    space, alphabets = found.study.space, alphabets_of(found.study)
    if not isinstance(space, Search) or len(alphabets) != 1:
        return None
    goal = found.scored
    if goal is None:
        return None
    points = _independent(found)
    asked = [one for one in found.candidates if one.proposer != ANCHORS]
    word = {one.name: "".join(words_of(space.point(Given(one.choices)))) for one in asked}
    words = [word[one.name] for one in points]
    letters = _kinds(asked, list(word.values()), alphabets[0].path)
    why = ""
    if NULL not in space.arms:
        why = f"there is no random search, whose points alone are independent: add beside: [{NULL}]"
    elif space.rungs is not None:
        why = "rungs stopped points by their scores, so that those that are done are no random sample"
    effects = [] if why else _effects(points, words, letters, goal)
    if not why and not effects:
        enough = f"{FEWEST} points of random search have it and {FEWEST} have not"
        why = f"a block is tested where {enough}, and {len(points)} are done"
    return Repeated(
        score=found.study.goals[goal].name, letters=letters, points=len(points), effects=tuple(effects), why=why
    )


def _effects(
    points: Sequence[Candidate], words: Sequence[str], letters: Mapping[str, Sequence[str]], goal: int
) -> list[Effect]:
    states = [one.state_bytes for one in points]
    attention = {letter for letter, kinds in letters.items() if kinds and ATTENTION.issuperset(kinds)}
    return block_effects(words, [one.tested[goal] for one in points], states, attention=attention)


def _independent(found: Findings) -> list[Candidate]:
    """The points of random search, each once, whose state is known."""
    own: dict[tuple[str, ...], Candidate] = {}
    for one, apart in zip(found.candidates, found.apart, strict=True):
        if one.proposer == NULL and not apart:
            own.setdefault(tuple(sorted(record.key for record in one.records)), one)
    return list(own.values())


def _kinds(points: Sequence[Candidate], words: Sequence[str], path: str) -> dict[str, tuple[str, ...]]:
    """The kinds of mixers that each letter has, in the order of the alphabet; those of a block without a mixer of its own are
    not told."""
    start = path.removeprefix("trial.arch.")
    kinds: dict[str, set[str]] = {}
    for one, word in zip(points, words, strict=True):
        leaves = leaves_of(one.records[0])
        for at, letter in enumerate(word):
            kind = leaves.get(f"{start}.{at}.mixer.kind")
            kinds.setdefault(letter, set()).update(() if kind is None else (kind,))
    return {letter: tuple(sorted(kinds[letter])) for letter in sorted(kinds)}


def table_of(found: Repeated) -> Table:
    """A line an effect: those that hold, and the largest two of each family."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    for name in ("blocks", "points", f"{found.score} (test)", "adjusted p", "holds"):
        table.add_column(name, overflow="fold")
    shown = telling(found.effects)
    for one in shown:
        low, high = one.interval
        figure = f"{one.effect:+.3f} [{low:+.3f}, {high:+.3f}]"
        table.add_row(
            one.said, f"{one.points} of {found.points}", figure, f"{one.adjusted:.2g}", "yes" if one.holds else ""
        )
    first, *_, last = [*found.letters, *found.letters]
    table.caption = (
        f"what repeats: differences over {found.points} points of random search, at equal state and number of blocks: a block "
        f"({first}) and one in a third of the order ({first} late), both less the median block; one right before another "
        f"({first} then {last}), beyond what all blocks add in their places; a number of attention blocks, less none. In "
        "brackets 95 % bootstrap intervals over points, p by Holm within each of the four; holds: the interval excludes zero "
        f"and p is below {ALPHA:.2g}. Shown are those that hold and the largest two of each, {len(shown)} of "
        f"{len(found.effects)} that rest on at least {FEWEST} points; --json has all"
    )
    return table


def data_of(found: Repeated) -> dict[str, Any]:
    """All effects as plain data for programs."""
    return {
        "score": found.score,
        "letters": {letter: list(kinds) for letter, kinds in found.letters.items()},
        "points": found.points,
        "why": found.why,
        "effects": [
            {
                "family": one.family,
                "name": one.name,
                "points": one.points,
                "effect": one.effect,
                "interval": one.interval,
                "p": one.p,
                "adjusted": one.adjusted,
                "holds": one.holds,
            }
            for one in found.effects
        ],
    }
