"""The page's section on validity: how far synthetic scores order architectures as papers of language models do, as a forest."""

from __future__ import annotations

from collections.abc import Sequence

from recallmap.results import escape
from recallmap.results.analysis.validity import FEWEST_ARCHITECTURES, FEWEST_PAPERS, LEAST, OUTCOMES, Agreement
from recallmap.results.publishing.validity_table import cells, sentence

WIDTH, LEFT, RIGHT, TOP, ROW, BELOW = 380, 112, 14, 8, 22, 40  # of a figure: its margins, and the height of a row

HEADS = ("predictor", "of", "architectures", "papers", "correlation", "leaving one out", "p", "adjusted")

_READ = f"""Rank correlations within papers, pooled over papers. A bar is the 95 % bootstrap interval over architectures. Large
dots are scores, small ones baselines on the same architectures: size of the state, MAD as the papers themselves have it, month
of publication. Dashed: {LEAST:g}, below which a predictor is refuted, as it is below the size of the state. Below
{FEWEST_ARCHITECTURES} architectures or {FEWEST_PAPERS} papers there is no number."""


def section(found: Sequence[Agreement]) -> str:
    """Forests, sentences and table as one HTML section that needs no script; "" where no agreement has a number."""
    shown = [one for one in found if one.correlation is not None]
    if not shown:
        return ""
    panels = "".join(
        f"<figure>{_forest([one for one in shown if one.outcome == outcome], outcome)}</figure>"
        for outcome in OUTCOMES
        if any(one.outcome == outcome for one in shown)
    )
    said = "".join(f"<li>{escape.html(sentence(one, found))}</li>" for one in shown if not _is_baseline(one))
    return (
        '<section id="validity" data-name="Language models">\n<h2>Do these scores order architectures as papers do?</h2>\n'
        f'<p class="read">{_READ}</p>\n<div class="panels">{panels}</div>\n<ul class="notes">{said}</ul>\n{_table(found)}\n'
        "</section>"
    )


def _is_baseline(one: Agreement) -> bool:
    return ", where " in one.predictor


def _forest(rows: Sequence[Agreement], outcome: str) -> str:
    """A row for each predictor of one outcome, from -1 to 1."""
    bottom = TOP + ROW * len(rows)
    parts = []
    for tick in (-1.0, -0.5, 0.0, 0.5, 1.0):
        dark = "var(--quiet)" if tick == 0 else "var(--rule)"
        parts.append(_line(_x(tick), TOP, _x(tick), bottom, f'stroke="{dark}"'))
        parts.append(_words(_x(tick), bottom + 16, f"{tick:+g}" if tick else "0", "middle"))
    parts.append(_line(_x(LEAST), TOP, _x(LEAST), bottom, 'stroke="var(--c6)" stroke-dasharray="4 3"'))
    parts.append(_words((LEFT + WIDTH - RIGHT) / 2, bottom + 34, f"rank correlation with {outcome}", "middle"))
    for number, one in enumerate(rows):
        y, baseline = TOP + ROW * (number + 0.5), _is_baseline(one)
        colour = "var(--c6)" if baseline else "var(--c0)"
        name, low_high = one.predictor.partition(",")[0], one.interval or (one.correlation or 0.0,) * 2
        bar = _line(
            _x(low_high[0]), y, _x(low_high[1]), y, f'stroke="{colour}" stroke-width="{1.5 if baseline else 3}"'
        )
        dot = f'<circle cx="{_x(one.correlation or 0.0):.1f}" cy="{y:.1f}" r="{3 if baseline else 5}" fill="{colour}"/>'
        told = escape.html(f"{one.predictor}: {cells(one)[4]}, {one.architectures} architectures, {one.papers} papers")
        parts.append(f"<g>{bar}{dot}<title>{told}</title></g>")
        parts.append(_words(LEFT - 8, y + 4, name, "end", strong=not baseline))
    spoken = escape.html(f"Correlations of predictors with {outcome}; the table below has the figures")
    return f'<svg viewBox="0 0 {WIDTH} {bottom + BELOW}" role="img" aria-label="{spoken}">{"".join(parts)}</svg>'


def _x(correlation: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (correlation + 1) / 2


def _line(x1: float, y1: float, x2: float, y2: float, more: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {more}/>'


def _words(x: float, y: float, text: str, anchor: str, *, strong: bool = False) -> str:
    weight = ' font-weight="600"' if strong else ""
    style = f'font-size="12" fill="currentColor" text-anchor="{anchor}"{weight}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape.html(text)}</text>'


def _table(found: Sequence[Agreement]) -> str:
    heads = "".join(f'<th scope="col">{name}</th>' for name in HEADS)
    lines = "".join(f"<tr>{''.join(f'<td>{escape.html(cell)}</td>' for cell in cells(one))}</tr>" for one in found)
    return (
        '<div class="wide tall" tabindex="0" role="region" aria-label="Every rank correlation">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table></div>"
    )
