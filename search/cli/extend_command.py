"""The command extend: learning rates beyond the edge of a grid, and on both sides of a grid of one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from recallmap.search.cli.app import Records, Sets, Source, app, records_of, refuse
from recallmap.search.cli.next_command import words_given
from recallmap.search.cli.streams import say

RATES = "axes.trial.training.lr"


@app.command()
def extend(source: Source, ledger: Records = None, sets: Sets = []) -> None:  # noqa: B006
    """Propose learning rates an octave further, where the best rate is at the edge of the grid. A grid of one rate is both of
    its edges. Prints the command."""
    from recallmap.results.analysis.grid_edges import at_edges, of_one_rate
    from recallmap.search import codec
    from recallmap.search.cli.sources import holds_records
    from recallmap.search.space.search_space import Search

    unknown = holds_records(source)
    study = None if unknown else codec.read_study(source, overrides=sets)
    if study is not None and isinstance(study.space, Search):
        refuse(f"{source} is a search, which proposes learning rates by itself: widen its space.within instead")
    records = records_of(source, ledger, sets, [], curves=False).records
    try:
        found, single = at_edges(records), of_one_rate(records)
    except ValueError as error:  # hyper-parameters that cannot be chosen
        refuse(str(error))
    for one in found:
        say(f"{one.row} on {one.where}: best at {one.rate:g}, the {one.edge} rate; try {one.further:g}")
    for cell in single:
        say(
            f"{cell.row} on {cell.where}: trained at {cell.rate:g} alone, and a grid of one rate cannot tell whether it is the "
            f"best; try {cell.lower:g} and {cell.higher:g}"
        )
    if not found and not single:
        say("every best learning rate is inside its grid, or at the ceiling")
        return
    further = {one.further for one in found} | {rate for cell in single for rate in (cell.lower, cell.higher)}
    rates = ",".join(f"{rate:g}" for rate in sorted(further))
    grids = ["space"] if study is None else list(_grids(study.space, "space"))
    given = [*words_given(ledger, sets), *(word for grid in grids for word in ("--set", f"{grid}.{RATES}=[{rates}]"))]
    say(f"next: {shlex.join(['recallmap', 'run', 'STUDY' if unknown else source, *given])}")


def _grids(space: object, path: str) -> Iterator[str]:
    """The paths of the grids of a study, of which a union has several."""
    from recallmap.search.space.grid import Union

    if isinstance(space, Union):
        for number, part in enumerate(space.spaces):
            yield from _grids(part, f"{path}.spaces[{number}]")
    else:
        yield path
