"""The page's section on architectures: for each its YAML, its state, and the cost of its trials."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recallmap.results import escape
from recallmap.results.analysis.labels import row_names
from recallmap.results.analysis.natural_order import by_number
from recallmap.results.record import Record
from recallmap.results.score_tables.table import size


@dataclass(frozen=True, kw_only=True)
class Detail:
    """Facts that need a reader of architectures: the YAML, and the state formula and equation of each mixer."""

    yaml: str
    mixers: Mapping[str, tuple[str, str]]  # kind -> (state formula, equation)


_SECTION = """<section id="architectures">
<h2>What was trained?</h2>
<p class="read">Every architecture as it was trained, with all options. Press one to see its YAML, the formula of its state and
its cost.{left_out}</p>
{parts}
</section>"""


def section(records: Sequence[Record], details: Mapping[str, Detail], of: int = 0) -> str:
    """The section, "" where there are no details. `details` are by row, as `row_names` names them, and may be some `of`
    many."""
    names = row_names(records)
    by_row: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        if names[record.key] in details:
            by_row[names[record.key]].append(record)
    parts = [_part(row, own, details[row]) for row, own in sorted(by_row.items(), key=lambda item: by_number(item[0]))]
    left_out = f" Here are those of the tables above, {len(parts)} of {of:,}." if of > len(details) else ""
    return _SECTION.format(parts="\n".join(parts), left_out=left_out) if parts else ""


def _part(row: str, own: Sequence[Record], detail: Detail) -> str:
    name = escape.html(row)
    mixers = "".join(
        f"<dt>{escape.html(kind)}</dt><dd>state {escape.html(formula)} floats<br>{escape.html(equation)}</dd>"
        for kind, (formula, equation) in detail.mixers.items()
    )
    costs = "".join(f"<dt>{said}</dt><dd>{value}</dd>" for said, value in _costs(own).items())
    yaml = "\n".join(map(escape.html, detail.yaml.split("\n")))
    return (
        f'<details data-row="{name}"><summary>{name}</summary>'
        f'<dl>{mixers}{costs}</dl><pre tabindex="0">{yaml}</pre></details>'
    )


def _costs(own: Sequence[Record]) -> dict[str, str]:
    """The cost of the trials of one architecture, "least to most" where they differ."""

    def span(values: list[float]) -> str:
        ends = dict.fromkeys(f"{f(values):,.0f}" for f in (min, max))
        return " to ".join(ends)

    sizes = dict.fromkeys(size(f(r.state_bytes for r in own)) for f in (min, max))
    grows = ", grows with length" if any(r.state_grows for r in own) else ""
    facts = {
        "state after the task's length": " to ".join(sizes) + grows,
        "parameters": span([r.parameters for r in own]),
        "operations a token, forward": span([r.flops_per_token for r in own]),
        "seconds a trial": span([r.seconds for r in own]),
    }
    return {name: value for name, value in facts.items() if value != "0"}
