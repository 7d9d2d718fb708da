"""The command extend: learning rates beyond the edge of a grid."""

from __future__ import annotations

import shlex

from recallmap.search.cli.app import Records, Sets, Source, app, records_of, refuse
from recallmap.search.cli.next_command import words_given
from recallmap.search.cli.streams import say

AXIS = "space.axes.trial.training.lr"


@app.command()
def extend(source: Source, ledger: Records = None, sets: Sets = []) -> None:  # noqa: B006
    """Propose learning rates an octave further, where the best rate is at the edge of the grid. Prints the command."""
    from recallmap.results.analysis.grid_edges import at_edges
    from recallmap.search.cli.sources import holds_records

    records = records_of(source, ledger, sets, [], curves=False).records
    try:
        found = at_edges(records)
    except ValueError as error:  # hyper-parameters that cannot be chosen
        refuse(str(error))
    for one in found:
        say(f"{one.row} on {one.where}: best at {one.rate:g}, the {one.edge} rate; try {one.further:g}")
    if not found:
        say("every best learning rate is inside its grid, or at the ceiling")
        return
    rates = ",".join(f"{rate:g}" for rate in sorted({one.further for one in found}))
    study = "STUDY" if holds_records(source) else source
    say(f"next: {shlex.join(['recallmap', 'run', study, *words_given(ledger, sets), '--set', f'{AXIS}=[{rates}]'])}")
