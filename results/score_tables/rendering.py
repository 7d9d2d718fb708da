"""Tables as text: Markdown, CSV (one figure a line), LaTeX, and the HTML that the page shows."""

from __future__ import annotations

import csv as csv_module
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from recallmap.results import escape
from recallmap.results.score_tables.table import Cell, Line, Table, Unit, size

Format = Literal["markdown", "csv", "latex", "html"]

MISSING = "–"

NARROWEST = 16  # columns of a name in a terminal

_OPTION = re.compile(r" (?=\d)")  # the space between an option and its value; no line may break there,

_UNIT = re.compile(r"(?<=\d) (?=[kMG]?B)")  # nor between a number and its unit


def render(tables: Sequence[Table], form: Format, *, width: int | None = None) -> str:
    """All tables in one text. Raises ValueError on an unknown format.

    width  columns of the terminal that shows Markdown; None: no terminal, one line per row
    """
    if form == "csv":
        return csv(tables)
    if form == "html":
        return "\n".join(html(table, number) for number, table in enumerate(tables)) + "\n"
    if form not in ("markdown", "latex"):
        raise ValueError(f"format must be markdown, csv, latex or html, got '{form}'")
    if form == "latex":
        return "\n".join(map(latex, tables))
    return "\n".join(markdown(table, width=width) for table in tables)


def markdown(table: Table, *, width: int | None = None) -> str:
    """A table with its notes below; published figures and differences are rows under the architecture's own.

    width  columns of the terminal: a wider table comes in pieces, each with the architectures and as many columns as fit;
           times and sizes that are 0 or unknown in every row are left out, and a note names them
    """
    table = table if width is None else _without_idle(table)
    heads = [escape.markdown(word) for word in (*table.corner, *table.columns)]
    rows = []
    for labels, figures, style in _rows(table, bold=lambda text: f"**{text}**"):
        first = f"*{escape.markdown(labels[0])}*" if style == "aside" else escape.markdown(labels[0])
        rows.append([first, *map(escape.markdown, labels[1:]), *figures])
    aligned = ["---"] * len(table.corner) + ["---:"] * len(table.columns)
    lines = [heads, aligned, *rows]
    notes = [f"- {escape.markdown(note)}" for note in _notes(table)]
    if width is not None:
        notes = [textwrap.fill(note, width, subsequent_indent="  ", break_on_hyphens=False) for note in notes]
    fits = width is None or max(map(len, map(_row, lines))) <= width
    pieces = [lines] if fits else _pieces(lines, len(table.corner), width or 0)
    text = "\n\n".join("\n".join(map(_row, piece)) for piece in pieces)
    return "\n".join([f"### {escape.markdown(table.heading)}", "", text, "", *notes, ""])


def _without_idle(table: Table) -> Table:
    """A table without the times and sizes that are 0 or unknown in every row. Its last note names them."""
    costs = [unit in ("seconds", "bytes") for unit in table.units]
    kept = [at for at, cost in enumerate(costs) if not cost or any(line.cells[at].mean for line in table.lines)]
    idle = [column for at, column in enumerate(table.columns) if at not in kept]
    if not idle:
        return table
    return replace(
        table,
        columns=tuple(table.columns[at] for at in kept),
        units=tuple(table.units[at] for at in kept),
        lines=tuple(replace(line, cells=tuple(line.cells[at] for at in kept)) for line in table.lines),
        notes=(*table.notes, f"Left out, because 0 or unknown in every row: {', '.join(idle)}."),
    )


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(words)} |"


def _pieces(lines: Sequence[Sequence[str]], corner: int, width: int) -> Iterator[list[list[str]]]:
    """A table that is too wide in pieces: the first column and as many others as fit. A row that is not the architecture's own
    stands where it has a figure. A name that leaves no room for a figure goes on below itself."""
    wide = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    room = max(width - max(wide[1:]) - len(_row(["", ""])), NARROWEST)
    names = [textwrap.wrap(line[0], room, subsequent_indent="  ", break_on_hyphens=False) or [""] for line in lines]
    wide[0] = max(len(part) for name in names for part in name)
    left = list(range(1, len(wide)))
    while left:
        taken = 1
        while taken < len(left) and sum(wide[at] + 3 for at in (0, *left[: taken + 1])) + 1 <= width:
            taken += 1
        shown, left = (0, *left[:taken]), left[taken:]
        yield [
            [_padded(cells[at], wide[at], rule=number == 1, right=at >= corner) for at in shown]
            for number, (name, line) in enumerate(zip(names, lines, strict=True))
            if number < 2 or line[1] or any(line[at] not in ("", "–") for at in shown[1:])
            for cells in ((name[0], *line[1:]), *((part, *[""] * len(line[1:])) for part in name[1:]))
        ]


def _padded(text: str, wide: int, *, rule: bool, right: bool) -> str:
    if rule:
        return "-" * (wide - right) + ":" * right
    return text.rjust(wide) if right else text.ljust(wide)


def latex(table: Table) -> str:
    """A booktabs table; the notes are its caption."""

    def row(words: Sequence[str]) -> str:
        return f"{' & '.join(words)} \\\\"

    parts = [
        r"\begin{table}",
        r"\centering",
        f"\\caption{{{escape.latex(' '.join((table.heading + '.', *_notes(table))))}}}",
        f"\\begin{{tabular}}{{{'l' * len(table.corner)}{'r' * len(table.columns)}}}",
        r"\toprule",
        row([escape.latex(word) for word in (*table.corner, *table.columns)]),
        r"\midrule",
    ]
    ruled = False
    for labels, figures, style in _rows(table, bold=lambda text: f"⟦{text}⟧"):
        if style == "reference" and not ruled:
            parts.append(r"\midrule")
            ruled = True
        cells = [escape.latex(f).replace("⟦", r"\textbf{").replace("⟧", "}") for f in figures]
        first = f"\\emph{{{escape.latex(labels[0])}}}" if style == "aside" else escape.latex(labels[0])
        parts.append(row([first, *map(escape.latex, labels[1:]), *cells]))
    parts += [r"\bottomrule", r"\end{tabular}", r"\end{table}", ""]
    return "\n".join(parts)


def csv(tables: Sequence[Table]) -> str:
    """One figure per line, fractions unrounded, empty where there is none: for programs. The state is in bytes, after the
    longest of a line's settings; its lowest, and whether it grows, are columns of their own."""
    text = io.StringIO()
    out = csv_module.writer(text, lineterminator="\n")
    names = (
        "mean",
        "low",
        "high",
        "seeds",
        "settings",
        "failed",
        "published",
        "difference",
        "chance",
        "ceiling",
        "mark",
        "outside",
        "lowest",
        "highest",
        "learned",
        "edge",
        "stderr",
        "state_lowest",
        "state_grows",
    )
    out.writerow(["table", "protocol", "kind", "architecture", "setting", "state", "column", *names])
    for table in tables:
        for line in table.lines:
            for column, cell in zip(table.columns, line.cells, strict=True):
                low, high = cell.interval or (None, None)
                lowest, highest = cell.spread or (None, None)
                values = [cell.mean, low, high, cell.seeds, cell.settings, cell.failed, cell.published, cell.difference]
                labels = dict(zip(table.corner, line.labels, strict=True))
                size_of = (None,) * 3 if (of := line.state) is None else (of.highest, of.lowest, int(of.grows))
                named = [line.labels[0], labels.get("setting") or labels.get("task"), size_of[0]]
                figures = [*values, cell.chance, cell.ceiling, cell.mark, int(cell.outside)]
                added = [lowest, highest, cell.learned, cell.edge, cell.sampling, *size_of[1:]]
                texts = [table.title, table.protocol, line.kind, *named, column]
                out.writerow([escape.cell(value) for value in (*texts, *figures, *added)])
    return text.getvalue()


def html(table: Table, number: int = 0) -> str:
    """A `<table>` with its title and notes. It carries its number, and a measured row its line, so that a script finds its
    trials after the rows are sorted; published figures are under our own."""
    heads = [f'<th scope="col">{escape.html(word)}</th>' for word in table.corner]
    heads += [
        f'<th scope="col" class="{kind}">{_OPTION.sub("&nbsp;", escape.html(word))}</th>'
        for word, kind in zip(table.columns, _kinds(table), strict=True)
    ]
    measured = [line for line in table.lines if line.kind == "measured"]
    own = "\n".join(_html_line(line, table, f' data-line="{i}"') for i, line in enumerate(measured))
    rest = "\n".join(_html_line(line, table) for line in table.lines if line.kind != "measured")
    below = ("Small, below a figure: the published one, and ours less it.",) if table.beside else ()
    notes = "".join(f"<li>{escape.html(note)}</li>" for note in (*below, *_notes(table)))
    return (
        f'<figure class="table"><figcaption><h3>{escape.html(table.heading)}</h3></figcaption>'
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape.html(table.title)}">'
        f'<table class="sortable" data-table="{number}"><thead><tr>{"".join(heads)}</tr></thead>\n'
        f'<tbody>{own}</tbody>\n<tbody class="rest">{rest}</tbody></table></div><ul class="notes">{notes}</ul></figure>'
    )


def _kinds(table: Table) -> list[str]:
    """The class of every column: of figures, and of the mean, which stays in view."""
    return ["figure mean" if n == table.mean_at else "figure" for n in range(len(table.columns))]


def _html_line(line: Line, table: Table, mark: str = "") -> str:
    first, *labels = (escape.html(label) for label in line.labels)
    heading = f'<th scope="row">{first}{" <small>published</small>" if line.kind == "published" else ""}</th>'
    words = "".join(f"<td>{_UNIT.sub('&nbsp;', label)}</td>" for label in labels)
    cells = "".join(_html_cell(*each) for each in zip(line.cells, table.units, _kinds(table), strict=True))
    return f'<tr class="{line.kind}"{mark}>{heading}{words}{cells}</tr>'


def figure(value: float | None, percent: bool, *, sign: bool = False) -> str:
    """99.2 for 0.992 where percent, else 0.992; with a sign where asked, and a true minus."""
    if value is None:
        return MISSING
    plus = "+" if sign else ""
    text = f"{100 * value:{plus}.1f}" if percent else f"{value:{plus}.3f}"
    return text.replace("-", "−")


def shown(value: float | None, unit: Unit, *, sign: bool = False) -> str:
    """A figure in its unit: 99.2, 0.992, 1,234,567, 34.3 kB."""
    if value is None or unit in ("percent", "score"):
        return figure(value, unit == "percent", sign=sign)
    if unit == "bytes":
        return size(round(value))
    return f"{value:,.0f}" if unit == "count" or value >= 100 else f"{value:.3g}"


def _notes(table: Table) -> tuple[str, ...]:
    """The notes of the table, and its protocol, which a title names only where it is published."""
    return (*table.notes, *([f"Protocol: {table.protocol}."] if table.protocol else []))


def _rows(table: Table, bold: Callable[[str], str]) -> Iterator[tuple[tuple[str, ...], list[str], str]]:
    """Labels, figures and style ("own", "aside" or "reference") of every printed row."""
    blank = ("",) * (len(table.corner) - 1)
    for line in table.lines:
        style = "own" if line.kind == "measured" else "reference"
        labels = (f"{line.labels[0]} (published)", *line.labels[1:]) if line.kind == "published" else line.labels
        yield labels, [cell_text(line, *pair, bold) for pair in zip(line.cells, table.units, strict=True)], style
        if any(cell.published is not None for cell in line.cells):
            pairs = list(zip(line.cells, table.units, strict=True))
            published = [shown(c.published, unit) + (" ‡" if c.outside else "") for c, unit in pairs]
            yield ("↳ published", *blank), published, "aside"
            if any(c.difference is not None for c, _ in pairs):
                yield ("↳ difference", *blank), [shown(c.difference, unit, sign=True) for c, unit in pairs], "aside"


def cell_text(line: Line, cell: Cell, unit: Unit, bold: Callable[[str], str] = str) -> str:
    """A measured figure with its marks: "99.2↑ [51.9, 99.9] 4/5 †1"; the best of its column as `bold` has it."""
    failed = f" †{cell.failed}" if cell.failed else ""
    if cell.mean is None:
        return (f"failed{failed}" if failed else MISSING) if line.kind == "measured" else MISSING
    text = shown(cell.mean, unit)
    text = bold(text) if cell.mark == "best" else text
    return text + _marks(cell) + _sampling(cell, unit) + _spread(cell, unit) + failed


def _spread(cell: Cell, unit: Unit) -> str:
    """The interval, or both of two seeds; then the seeds that learned."""
    learned = "" if cell.learned is None else f" {cell.learned}/{cell.seeds}"
    if cell.interval is not None:
        return f" [{', '.join(shown(end, unit) for end in cell.interval)}]{learned}"
    if cell.spread is not None and cell.seeds == 2:
        return f" ({' / '.join(shown(end, unit) for end in cell.spread)}){learned}"
    return learned


def _sampling(cell: Cell, unit: Unit) -> str:
    return "" if cell.sampling is None else f" ±{shown(cell.sampling, unit)}"


def _marks(cell: Cell) -> str:
    edge = {"": "", "highest": "↑", "lowest": "↓"}[cell.edge]
    return ("*" if cell.mark == "partial" else "") + edge + cell.not_above


def _html_cell(cell: Cell, unit: Unit, kind: str) -> str:
    order = "" if cell.mean is None else f' data-value="{cell.mean:.6g}"'
    if cell.mean is None:
        text = f"failed <small>†{cell.failed}</small>" if cell.failed else MISSING
    else:
        text = shown(cell.mean, unit) + _marks(cell)
        text = f"<strong>{text}</strong>" if cell.mark == "best" else text
        spread = _sampling(cell, unit) + _spread(cell, unit)
        text += f"<small>{escape.html(spread)}</small>" if spread else ""
        text += f" <small>†{cell.failed}</small>" if cell.failed else ""
    if cell.published is not None:
        difference = f" ({shown(cell.difference, unit, sign=True)})" if cell.difference is not None else ""
        mark = " ‡" if cell.outside else ""
        text += f'<br><small class="aside">{shown(cell.published, unit)}{difference}{mark}</small>'
    return f'<td class="{kind}"{order}>{text}</td>'
