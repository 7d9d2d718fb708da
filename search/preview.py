"""A task to look at: sequences with the roles of their tokens, what is asked where, and where the answer stands."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.text import Text

from search import typed
from search.listing import said
from synth.batch import IGNORE, Batch
from synth.task import Split, Task
from synth.vocab import Roles

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")
LABEL = 6  # columns of a row's name


def preview(task: Task, *, count: int, split: Split, seed: int, width: int) -> Iterator[Text]:
    """The lines to print, none wider than `width` where that is possible."""
    batch = task.sample(np.random.default_rng(seed), count, split)
    yield from _about(task, split, seed)
    if task.signal == "vectors":
        yield from _vectors(batch)
        return
    roles = task.roles()
    marks = _marks(roles)
    yield from _legend(roles, marks)
    sources = task.sources(batch)
    for row in range(count):
        yield Text(f"\nsequence {row}")
        yield from _sequence(batch.inputs[row], batch.targets[row], sources[row], roles, marks, width)


def _about(task: Task, split: Split, seed: int) -> Iterator[Text]:
    dials = "  ".join(f"{f.name} {said(getattr(task, f.name))}" for f in typed.dials(type(task)) if f.name != "kind")
    length, vocab = task.shape
    unit = "token ids" if task.signal == "tokens" else "channels"
    yield Text.assemble((task.kind, "bold"), "  ", dials)
    yield Text(
        f"{length} positions, {vocab} {unit}; {task.metric}: chance {task.chance():.4g}, ceiling {task.ceiling():.4g}"
    )
    yield Text(f"split {split}, seed {seed}")


def _legend(roles: Roles, marks: dict[str, str]) -> Iterator[Text]:
    parts = []
    for index, (name, ids) in enumerate(roles.ranges.items()):
        if len(ids):
            span = str(ids[0]) if len(ids) == 1 else f"{ids[0]}-{ids[-1]}"
            parts.append((f"{marks[name]} {name} {span}   ", COLOURS[index % len(COLOURS)]))
    yield Text.assemble(*parts)
    yield Text(
        "in: what the model sees   out: what it should say there   from: the position that tells it (underlined)", "dim"
    )


def _marks(roles: Roles) -> dict[str, str]:
    """A letter for every role, its own."""
    marks: dict[str, str] = {}
    for name in roles:
        free = [letter for letter in (*name, *"abcdefghijklmnopqrstuvwxyz") if letter not in marks.values()]
        marks[name] = free[0]
    return marks


def _sequence(
    inputs: np.ndarray, targets: np.ndarray, sources: np.ndarray, roles: Roles, marks: dict[str, str], width: int
) -> Iterator[Text]:
    """Rows at, in, out and from, as many columns at a time as fit."""
    names = list(roles)

    def token(value: int) -> tuple[str, str]:
        role = roles.name_of(value)
        return f"{marks[role]}{value}", COLOURS[names.index(role) % len(COLOURS)]

    scored = targets != IGNORE
    told = {int(s) for s in sources[scored] if s >= 0}
    seen = [token(int(value)) for value in inputs]
    asked = [token(int(value)) if hit else ("", "") for value, hit in zip(targets, scored, strict=True)]
    asked = [(text or "·", style or "dim") for text, style in asked]
    origin = [str(int(s)) if hit and s >= 0 else "·" for s, hit in zip(sources, scored, strict=True)]
    cell = max(len(text) for text, _ in (*seen, *asked)) + 1
    cell = max(cell, len(str(len(inputs))) + 1)
    each = max(1, (width - LABEL) // cell)
    for start in range(0, len(inputs), each):
        part = range(start, min(start + each, len(inputs)))
        yield _row("at", [(str(i), "dim") for i in part], cell)
        yield _row("in", [(seen[i][0], f"{seen[i][1]} underline" if i in told else seen[i][1]) for i in part], cell)
        if scored[part].any():
            yield _row("out", [asked[i] for i in part], cell)
        if any(origin[i] != "·" for i in part):
            yield _row("from", [(origin[i], "dim") for i in part], cell)
        yield Text()


def _row(label: str, cells: list[tuple[str, str]], width: int) -> Text:
    row = Text(f"{label:<{LABEL}}", no_wrap=True, overflow="ignore")
    for text, style in cells:
        row.append(" " * (width - len(text)))
        row.append(text, style)
    return row


def _vectors(batch: Batch) -> Iterator[Text]:
    """Vectors cannot be read; their first numbers and their size can."""
    for row, (inputs, targets) in enumerate(zip(batch.inputs, batch.targets, strict=True)):
        shapes = f"inputs {inputs.shape[0]} x {inputs.shape[1]}, targets {targets.shape[0]} x {targets.shape[1]}"
        yield Text(f"\nsequence {row}: {shapes}")
        for name, values in (("in", inputs), ("out", targets)):
            for position in (0, 1, len(values) - 1):
                few = " ".join(f"{v:7.3f}" for v in values[position][:8])
                more = " ..." if values.shape[1] > 8 else ""
                yield Text(
                    f"{name:<{LABEL}}at {position:<6} norm {np.linalg.norm(values[position]):7.3f}   {few}{more}"
                )
