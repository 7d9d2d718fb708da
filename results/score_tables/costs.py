"""Tables of the costs of architectures: parameters, state, operations, time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from recallmap.results.analysis.averages import mean
from recallmap.results.analysis.labels import devices_of, leaves_of, row_names
from recallmap.results.analysis.namesakes import remark
from recallmap.results.analysis.natural_order import by_number
from recallmap.results.analysis.outside_code import has_unknown_state
from recallmap.results.record import Record
from recallmap.results.score_tables.notes import remarks_of
from recallmap.results.score_tables.table import Cell, Line, State, Table, Unit

COSTS: dict[
    str, tuple[Unit, Callable[[Record], float | None]]
] = {  # what a trial took; speed is of trials as they trained
    "parameters": ("count", lambda r: r.parameters),
    "state": ("bytes", lambda r: r.state_bytes),
    "operations a token": ("count", lambda r: r.flops_per_token),
    "steps": ("count", lambda r: r.steps),
    "seconds a trial": ("seconds", lambda r: r.seconds),
    "steps a second": ("seconds", lambda r: r.steps / r.seconds if r.seconds else None),
    "compiling": ("seconds", lambda r: r.compile_seconds),
    "peak memory": ("bytes", lambda r: r.peak_bytes),
    "trained together": ("count", lambda r: r.cohort),
}
HOURS = "hours in all"


def cost_tables(records: Sequence[Record]) -> list[Table]:
    """The cost of trials, a line for every architecture on every task; empty where no time was recorded."""
    names = row_names(records)
    rows: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.status == "done" and record.seconds:
            rows[names[record.key], record.task].append(record)
    if not rows:
        return []
    lines = []
    for (row, task), own in rows.items():
        cells, leaves = [], leaves_of(own[0])
        unknown = {"state"} if has_unknown_state(leaves) else set()
        for name, (_, of) in COSTS.items():
            values = [value for record in own if name not in unknown and (value := of(record)) is not None]
            cells.append(Cell(mean=mean(values) if values else None, seeds=len(values)))
        spent = sum((record.seconds or 0) + (record.compile_seconds or 0) for record in own)
        cells.append(Cell(mean=spent / 3600, seeds=len(own)))
        labels = (row, task, str(len(own)))
        sizes, grows = [record.state_bytes for record in own], any(record.state_grows for record in own)
        state = None if unknown else State(lowest=min(sizes), highest=max(sizes), grows=grows)
        lines.append(Line(labels=labels, cells=tuple(cells), remark=remark(leaves), state=state))
    devices = ", ".join(devices_of(records)) or "an unknown device"
    return [
        Table(
            title="Cost and speed",
            corner=("architecture", "task", "trials"),
            columns=(*COSTS, HOURS),
            lines=tuple(sorted(lines, key=lambda line: (line.labels[1], by_number(line.labels[0])))),
            notes=(
                f"Means over trials, on {devices}. State after the task's length. Seconds are a trial's share of the cohort "
                "that it trained in, without compiling: to compare speed alone, see recallmap bench. Hours are those of all "
                "trials, with compiling.",
                *remarks_of(lines),
            ),
            units=(*(unit for unit, _ in COSTS.values()), "hours"),
        )
    ]
