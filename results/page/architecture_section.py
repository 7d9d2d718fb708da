"""The page's section on architectures: for each its YAML, its state, and the cost of its trials."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from recallmap.results import escape
from recallmap.results.analysis.labels import row_names
from recallmap.results.analysis.natural_order import by_number
from recallmap.results.record import Record
from recallmap.results.score_tables.table import size

MOST_UNFOLDED = 16  # architectures; of more, the variants of one are folded


@dataclass(frozen=True, kw_only=True)
class Detail:
    """Facts that need a reader of architectures: the YAML, and the state formula and equation of each mixer."""

    yaml: str
    mixers: Mapping[str, tuple[str, str]]  # kind -> (state formula, equation)


_SECTION = """<section id="architectures" data-name="Architectures">
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
    families: dict[str, list[str]] = defaultdict(list)
    for row, own in sorted(by_row.items(), key=lambda item: by_number(item[0])):
        families[own[0].arch].append(_part(row, own, details[row]))
    left_out = f" Here are those of the tables above, {len(by_row)} of {of:,}." if of > len(details) else ""
    folded = len(by_row) > MOST_UNFOLDED
    parts = [_family(arch, own) if folded and len(own) > 1 else "\n".join(own) for arch, own in families.items()]
    return _SECTION.format(parts="\n".join(parts), left_out=left_out) if parts else ""


def _family(arch: str, parts: Sequence[str]) -> str:
    """The variants of one architecture, folded under its name."""
    inside = "\n".join(parts)
    return f"<details><summary>{escape.html(arch)}: {len(parts)} variants</summary>\n{inside}</details>"


def _part(row: str, own: Sequence[Record], detail: Detail) -> str:
    name = escape.html(row)
    mixers = "".join(
        f"<dt>{escape.html(kind)}</dt><dd>state {escape.html(formula)} floats<br>{escape.html(equation)}</dd>"
        for kind, (formula, equation) in detail.mixers.items()
    )
    costs = "".join(f"<dt data-cost>{said}</dt><dd{value}</dd>" for said, value in _costs(own).items())
    yaml = "\n".join(map(escape.html, detail.yaml.split("\n")))
    return (
        f'<details data-row="{name}"><summary>{name}</summary>'
        f'<dl>{mixers}{costs}</dl><pre tabindex="0">{yaml}</pre></details>'
    )


def _costs(own: Sequence[Record]) -> dict[str, str]:
    """The cost of the trials of one architecture, "least to most" where they differ, each as the end of a tag and its text:
    where they agree, the tag has the number as `data-value`."""

    def span(values: Sequence[float], say: Callable[[float], str], more: str = "") -> str:
        least, most = min(values), max(values)
        mark = f' data-value="{least:.10g}"' if least == most else ""
        return f"{mark}>{' to '.join(dict.fromkeys(map(say, (least, most))))}{more}"

    def whole(value: float) -> str:
        return f"{value:,.0f}"

    grows = ", grows with length" if any(r.state_grows for r in own) else ""
    costs: dict[str, tuple[Sequence[float], Callable[[float], str]]] = {
        "state after the task's length": ([r.state_bytes for r in own], lambda value: size(round(value))),
        "parameters": ([r.parameters for r in own], whole),
        "operations a token, forward": ([r.flops_per_token for r in own], whole),
        "seconds a trial": ([r.seconds for r in own], whole),
    }
    mores = {"state after the task's length": grows}
    return {
        name: span(values, say, mores.get(name, "")) for name, (values, say) in costs.items() if say(max(values)) != "0"
    }
