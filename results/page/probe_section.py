"""The page's section on the probe: accuracy of untrained memories against the number of pairs that they hold."""

from __future__ import annotations

import importlib.resources
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from recallmap.results import escape
from recallmap.results.analysis.natural_order import by_number
from recallmap.results.atomic_write import write_whole

Row = Mapping[str, Any]  # of search.measurement.capacity_probe.probe

LEAST_ERROR = 1e-12  # smaller ones are drawn there

COLOURS = 7  # of style.css

DASHES = ("none", "7 3", "2 3", "9 3 2 3", "4 5")

MOST_CURVES = 24  # curves that are told apart; with more, one of each mixer is drawn

LABELS = {
    "error": "relative error",
    "recall": "nearest value is right",
    "pairs": "pairs written to a head",
    "load": "pairs in all heads, for each float of state",
}

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BELOW = 360, 260, 44, 12, 22, 40

MOST_TICKS = 7  # along pairs or load

QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)

_READ = """Pairs of random vectors are written through the mixer's op, nothing fades, and each is read back by its key.
Error is |o - v| / |v|; a value is recalled if it is the nearest, by angle, of all that were written. Upright dots: what a bound
of theory allows, in pairs a head. Nothing is trained. Keys have length 1: where features of such keys are nearly alike, as
those of elu + 1 are, a memory answers near chance here, and learns longer keys in training."""

_MANY = " Of each mixer the memory that recalls most is drawn; the table has all, whose number is in parentheses."


def section(rows: Sequence[Row], archs: Sequence[str] = ()) -> str:
    """Curves and table of the probe's rows as one HTML section that needs no script. `archs` gives colours, in order, to
    architectures whose rows begin with their name; curves of one colour differ in their dashes. Of many curves one of each
    mixer is drawn."""
    told = [
        name
        for name in ("mixer", "keys")
        if len({(row["arch"], row[name]) for row in rows}) > len({row["arch"] for row in rows})
    ]
    curves: dict[str, list[Row]] = {}
    rows = sorted(rows, key=lambda row: by_number(row["arch"]))
    for row in rows:
        curves.setdefault(", ".join([row["arch"], *(str(row[name]) for name in told)]), []).append(row)
    many = len(curves) > MOST_CURVES
    groups: dict[str, list[str]] = {}  # of curves that look alike
    for name, own in sorted(curves.items(), key=lambda curve: curve[1][0]["mixer"]) if many else curves.items():
        groups.setdefault(own[0]["mixer"] if many else name, []).append(name)
    styles, taken = {}, Counter[int]()
    for number, group in enumerate(groups):
        arch = "" if many else curves[group][0]["arch"]
        called = [known for known in archs if arch == known or arch.startswith(f"{known} ")]
        colour = (archs.index(max(called, key=len)) if called else number) % COLOURS
        styles[group] = f"stroke:var(--c{colour});stroke-dasharray:{DASHES[taken[colour] % len(DASHES)]}"
        taken[colour] += 1
    legend = "".join(
        f"<li>{_key(style)} {escape.html(group)}{f' ({len(groups[group])})' if many else ''}</li>"
        for group, style in styles.items()
    )
    if many:
        groups = {mixer: [max(names, key=lambda name: _recalled(curves[name]))] for mixer, names in groups.items()}
    drawn = [(styles[group], name, curves[name]) for group, names in groups.items() for name in names]
    figures = "".join(
        f"<figure>{_figure(drawn, *what)}</figure>"
        for what in (("error", "pairs"), ("recall", "pairs"), ("recall", "load"))
    )
    return (
        '<section id="capacity" data-name="Untrained memories">\n<h2>How many pairs does an untrained memory hold?</h2>\n'
        f'<p class="read">{_READ}{_MANY if many else ""}</p>\n'
        f'<ul class="legend">{legend}</ul>\n<div class="panels">{figures}</div>\n{_table(rows)}\n</section>'
    )


def _recalled(curve: Sequence[Row]) -> float:
    return float(sum(row["recall"] for row in curve))


def page(rows: Sequence[Row], *, title: str) -> str:
    """The section as its own page, which loads nothing and runs nothing."""
    text = {name: _asset(name) for name in ("page.html", "style.css")}
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return Template(text["page.html"]).substitute(
        policy=policy,
        title=escape.html(title),
        style=text["style.css"],
        refresh="",
        lead="A memory measured without training.",
        body=section(rows),
        footer="<p>The page holds all that it shows, loads nothing and sends nothing.</p>",
        scripts="",
    )


def write_page(path: Path, rows: Sequence[Row], *, title: str) -> None:
    """Write the section as its own page. Raises OSError where it cannot be written."""
    write_whole(path, page(rows, title=title))


def _key(style: str) -> str:
    line = f'<line x1="0" y1="6" x2="30" y2="6" style="{style};stroke-width:2"/>'
    return f'<svg width="30" height="12" aria-hidden="true">{line}</svg>'


def _figure(curves: Sequence[tuple[str, str, Sequence[Row]]], score: str, along: str) -> str:
    """A plot of curves with their styles and names. Pairs or load run along a logarithmic axis, errors up a logarithmic one,
    recall up a linear one."""
    places = [row[along] for *_, curve in curves for row in curve]
    low, high = min(places), max(*places, 2 * min(places))
    errors = score == "error"
    label = LABELS[score]
    seen = [max(row["error"], LEAST_ERROR) for *_, curve in curves for row in curve]
    top = max(1.0, *seen) if errors else 1.0
    decades = min(-1, math.floor(math.log10(min(seen))))  # the least error that is drawn, as a power of ten

    def x(count: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(count / low) / math.log(high / low)

    def y(value: float) -> float:
        most = math.log10(top)
        share = (math.log10(max(value, LEAST_ERROR)) - decades) / (most - decades) if errors else value
        return TOP + (HEIGHT - TOP - BELOW) * (1 - share)

    def words(at_x: float, at_y: float, text: str, anchor: str = "middle") -> str:
        style = f'font-size="12" fill="currentColor" text-anchor="{anchor}"'
        return f'<text x="{at_x:.1f}" y="{at_y:.1f}" {style}>{escape.html(text)}</text>'

    def line(x1: float, y1: float, x2: float, y2: float, more: str) -> str:
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'

    parts, width = [], 2 if len(curves) <= MOST_CURVES else 1
    for tick in [10.0**power for power in range(0, decades - 1, -math.ceil(-decades / 4))] if errors else QUARTERS:
        parts += [line(LEFT, y(tick), WIDTH - RIGHT, y(tick), 'stroke="var(--rule)"')]
        parts += [words(LEFT - 6, y(tick) + 4, f"{tick:g}", "end")]
    powers = range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)
    for power in powers[:: math.ceil(len(powers) / MOST_TICKS) or 1]:
        parts.append(words(x(2.0**power), HEIGHT - BELOW + 18, f"{2.0**power:g}" if power >= 0 else f"1/{2**-power}"))
    parts += [words((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, LABELS[along]), words(4, 12, label, "start")]
    for style, name, curve in curves:
        a_pair = curve[-1][along] / curve[-1]["pairs"]
        for theory, bound in curve[-1]["bounds"].items():
            if low <= bound * a_pair <= high:
                dashed = f'style="{style.partition(";")[0]};stroke-dasharray:1 4"'
                parts.append(f"<g>{line(x(bound * a_pair), TOP, x(bound * a_pair), HEIGHT - BELOW, dashed)}")
                parts.append(f"<title>{escape.html(theory)} = {bound}</title></g>")
        points = " ".join(f"{x(row[along]):.1f},{y(row[score]):.1f}" for row in curve)
        path = f'<polyline points="{points}" fill="none" style="{style};stroke-width:{width}"/>'
        parts.append(f"<g>{path}<title>{escape.html(name)}</title></g>")
    body = "".join(parts)
    spoken = escape.html(f"{label}, {LABELS[along]}")
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{spoken}">{body}</svg>'


def _table(rows: Sequence[Row]) -> str:
    names = ("arch", "mixer", "keys", "passes", "pairs", "load", "error", "recall", "chance", "state_floats", "bounds")
    heads = "".join(f'<th scope="col">{name.replace("_", " ")}</th>' for name in names)
    lines = "".join(f"<tr>{''.join(f'<td>{escape.html(said(row[n]))}</td>' for n in names)}</tr>" for row in rows)
    return (
        '<div class="wide tall" tabindex="0" role="region" aria-label="Every measurement of the probe">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def said(value: Any) -> str:
    """One figure of a row, formatted."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} = {bound:,}" for name, bound in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _asset(name: str) -> str:
    return importlib.resources.files("recallmap.results").joinpath("page", "assets", name).read_text(encoding="utf-8")
