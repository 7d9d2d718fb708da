"""The preview of a task: sequences with the roles of their tokens, the questions, and the positions of their answers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
from rich.text import Text

from recallmap.search.cli.listings import said
from recallmap.search.documents import type_hints
from recallmap.synth.batch import IGNORE, Batch
from recallmap.synth.task import Split, Task
from recallmap.synth.vocab import Roles

COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow")

LABEL = 6  # columns of a row's name

VALUES = 4  # numbers shown of a vector

ENDS = 3  # vectors shown of the begin and of the end of a sequence


def preview(task: Task, *, count: int, split: Split, seed: int, width: int) -> Iterator[Text]:
    """The lines to print, no wider than `width` where that is possible."""
    batch = task.sample(np.random.default_rng(seed), count, split)
    yield from _about(task, split, seed)
    if task.signal == "vectors":
        yield from _vectors(batch, task.roles())
        return
    roles = task.roles()
    marks = _marks(roles)
    yield from _legend(roles, marks, np.union1d(batch.inputs, batch.targets))
    sources = task.sources(batch)
    for row in range(count):
        yield Text(f"\nsequence {row}")
        yield from _sequence(batch.inputs[row], batch.targets[row], sources[row], roles, marks, width)


def _about(task: Task, split: Split, seed: int) -> Iterator[Text]:
    options = "  ".join(
        f"{f.name} {said(getattr(task, f.name))}" for f in type_hints.dials(type(task)) if f.name != "kind"
    )
    length, vocab = task.shape
    unit = "token ids" if task.signal == "tokens" else "channels"
    yield Text.assemble((task.kind, "bold"), "  ", options)
    yield Text(" ".join(inspect.cleandoc(type(task).__doc__ or "").partition("\n\n")[0].split()))
    lines = {"chance": task.chance(), **task.references(), "ceiling": task.ceiling()}
    said_lines = ", ".join(f"{name} {value:.4g}" for name, value in lines.items())
    yield Text(f"{length} positions, {vocab} {unit}; {task.metric}: {said_lines}")
    yield Text(f"split {split}, seed {seed}")


def _legend(roles: Roles, marks: dict[str, str], present: np.ndarray) -> Iterator[Text]:
    """The roles that occur, and their token ids."""
    parts = []
    for index, (name, ids) in enumerate(roles.ranges.items()):
        if len(ids) and np.any((present >= ids[0]) & (present <= ids[-1])):
            span = f"id {ids[0]}" if len(ids) == 1 else f"ids {ids[0]}-{ids[-1]}"
            parts.append((f"{marks[name]} {name} ({span})   ", COLOURS[index % len(COLOURS)]))
    yield Text.assemble(*parts)
    yield Text(
        "a number counts within its role, from 0   in: the model's input   out: its target there   "
        "from: the position of the answer (underlined)",
        "dim",
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
    """Rows at, in, out and from, as many columns at a time as fit. Stretches without question or answer, but for the first,
    are only named."""
    names = list(roles)

    def token(value: int) -> tuple[str, str]:
        role = roles.name_of(value)
        ids = roles.of(role)
        number = "" if len(ids) == 1 else str(value - ids[0])
        return f"{marks[role]}{number}", COLOURS[names.index(role) % len(COLOURS)]

    scored = targets != IGNORE
    told = {int(s) for s in sources[scored] if s >= 0}
    seen = [token(int(value)) for value in inputs]
    asked = [token(int(value)) if hit else ("", "") for value, hit in zip(targets, scored, strict=True)]
    asked = [(text or "·", style or "dim") for text, style in asked]
    origin = [str(int(s)) if hit and s >= 0 else "·" for s, hit in zip(sources, scored, strict=True)]
    cell = max(len(text) for text, _ in (*seen, *asked)) + 1
    cell = max(cell, len(str(len(inputs))) + 1)
    each = max(1, (width - LABEL) // cell)
    skipped: range | None = None
    for start in range(0, len(inputs), each):
        part = range(start, min(start + each, len(inputs)))
        if start and not scored[part].any() and not told.intersection(part):
            skipped = range(skipped.start if skipped else start, part.stop)
            continue
        if skipped:
            yield from _skipped(skipped, seen)
            skipped = None
        yield _row("at", [(str(i), "dim") for i in part], cell)
        yield _row("in", [(seen[i][0], f"{seen[i][1]} underline" if i in told else seen[i][1]) for i in part], cell)
        if scored[part].any():
            yield _row("out", [asked[i] for i in part], cell)
        if any(origin[i] != "·" for i in part):
            yield _row("from", [(origin[i], "dim") for i in part], cell)
        yield Text()
    if skipped:
        yield from _skipped(skipped, seen)


def _skipped(part: range, seen: list[tuple[str, str]]) -> Iterator[Text]:
    kinds = sorted({seen[i][0] for i in part})
    what = f"all {kinds[0]}" if len(kinds) == 1 else "no question, no answer"
    yield Text(f"{'...':<{LABEL}}{part.start} to {part.stop - 1}: {what}", "dim")
    yield Text()


def _row(label: str, cells: list[tuple[str, str]], width: int) -> Text:
    row = Text(f"{label:<{LABEL}}", no_wrap=True, overflow="ignore")
    for text, style in cells:
        row.append(" " * (width - len(text)))
        row.append(text, style)
    return row


def _vectors(batch: Batch, roles: Roles) -> Iterator[Text]:
    """The first and last vectors: the first numbers of every role's channels, and their norm. A target of zeros is not
    scored and not shown."""
    names = list(roles)
    shown = {name: ids for name, ids in roles.ranges.items() if len(ids)}
    spans = [
        (f"{name} (channels {ids[0]}-{ids[-1]})   ", COLOURS[names.index(name) % len(COLOURS)])
        for name, ids in shown.items()
    ]
    yield Text.assemble(*spans)
    yield Text("in: the model's input   out: its target there; norm, then the first numbers", "dim")
    for row, (inputs, targets) in enumerate(zip(batch.inputs, batch.targets, strict=True)):
        yield Text(f"\nsequence {row}")
        length = len(inputs)
        for position in range(length) if length <= 2 * ENDS else (*range(ENDS), *range(length - ENDS, length)):
            if length > 2 * ENDS and position == length - ENDS:
                yield Text("...", "dim")
            line = Text(f"at {position:<6}", no_wrap=True, overflow="ignore")
            for label, values in (("in", inputs[position]), ("out", targets[position])):
                line.append(f" {label}", "dim")
                for name, ids in shown.items():
                    part = values[ids[0] : ids[-1] + 1]
                    if label == "out" and not part.any():
                        continue
                    few = " ".join(f"{v:5.2f}" for v in part[:VALUES])
                    more = " ..." if len(part) > VALUES else ""
                    said_here = f"  {name} {np.linalg.norm(part):5.2f}: {few}{more}"
                    line.append(said_here, COLOURS[names.index(name) % len(COLOURS)])
            yield line
