"""Points that are judged at their best: of the combinations of `within`, the one that validation chose."""

from __future__ import annotations

from collections.abc import Sequence

from recallmap.results.analysis.selection import choose_hyperparameters
from recallmap.results.record import Record
from recallmap.search.space.grid import Grid, Union
from recallmap.search.space.search_space import Search


def judged(space: Search | Grid | Union, records: Sequence[Record]) -> list[Record]:
    """The records by which a point is judged, from those of all its trials: all of them, or, where the space has an inner grid,
    on each task and setting those of the combination with the best mean validation score over seeds. Only combinations under
    which the most seeds finished can win. Raises ValueError where every combination failed on one."""
    if not isinstance(space, Search) or space.within is None:
        return list(records)
    found: list[Record] = []
    for choice in choose_hyperparameters(records):
        if not choice.trials:
            first = choice.failed[0]
            why = first.error or "no finite score"
            raise ValueError(f"{first.task} seed {first.seed}: {why}, as all {space.inner} combinations of within")
        found += choice.trials
    return found
