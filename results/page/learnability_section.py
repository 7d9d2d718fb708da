"""The page's section on online learners: their loss against position, a panel for every learner, a line for every mapping.

The figures are drawn here, as SVG in the page's own colours, and need no script.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from recallmap.results import escape
from recallmap.results.analysis.confidence import t_interval
from recallmap.results.analysis.labels import row_names
from recallmap.results.record import Record

MAPPINGS = {  # in the order of the paper: the name of each, and the dashes of its lines
    "low_rank": ("low rank", ""),
    "mlp": ("MLP", "7 3"),
    "attention_mlp": ("attention + MLP", "2 2"),
    "attention_inputs": ("MLP of attention outputs", "9 3 2 3"),
    "window_mlp": ("window + MLP", "4 4"),
}

WIDTH, HEIGHT = 380, 250  # of a panel

LEFT, RIGHT, TOP, BOTTOM = 34, 10, 30, 34  # its margins

HIGHEST = 2.5  # top of the loss axis; higher losses leave the panel

_SECTION = """<section id="online" data-name="Learnt online">
<h2>How fast can a mapping be learnt online?</h2>
<p class="seen">{seen}</p>
<p class="read">No mixer here: an MLP sees one pair of vectors at a time and takes one gradient step on each. Its loss is
taken before that step, so that every point is of a pair not yet learnt from; 1 is what an output of zeros scores. Lines
are means over {seeds}, shades their 95 % t intervals, a point a mean over {stretch} positions.</p>
<p>{legend}</p>
<div style="display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:12px">
{panels}
</div>
</section>"""

Panel = tuple[str, str]  # a learner's row in the tables, and the setting it learnt in, less the mapping

Curves = Mapping[str, NDArray[np.float64]]  # mapping -> losses [seeds, points]


def section(records: Sequence[Record]) -> str:
    """The section, "" where there are no online trials that finished."""
    done = [r for r in records if r.spec.get("kind") == "online" and r.score is not None and _is_whole(r)]
    if not done:
        return ""
    rows = row_names(done)
    found: dict[Panel, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in sorted(done, key=lambda r: r.seed):
        found[rows[record.key], _setting(record)][record.spec["task"]["mapping"]].append(record)
    panels = {panel: {m: _losses(own) for m, own in by_mapping.items()} for panel, by_mapping in found.items()}
    several = len({setting for _, setting in panels}) > 1
    titles = {
        panel: _title(next(iter(found[panel].values()))[0], panel[0]) + (f" ({panel[1]})" if several else "")
        for panel in panels
    }
    highest = min(HIGHEST, max(1.05, *(float(_mean(c).max()) for curves in panels.values() for c in curves.values())))
    drawn = [_panel(titles[panel], curves, found[panel], highest) for panel, curves in panels.items()]
    seeds = max(len(losses) for curves in panels.values() for losses in curves.values())
    first, curves = next(iter(panels.items()))
    steps = next(iter(found[first].values()))[0].curve["step"]
    return _SECTION.format(
        seen=escape.html(_seen(titles[first], curves)),
        seeds=f"{seeds} seeds" if seeds > 1 else "one seed",
        stretch=int(steps[0] or 1),
        legend=" ".join(_key(name) for name in MAPPINGS if any(name in curves for curves in panels.values())),
        panels="\n".join(drawn),
    )


def _is_whole(record: Record) -> bool:
    losses = record.curve.get("validation_loss", ())
    return bool(losses) and None not in losses


def _setting(record: Record) -> str:
    task = record.spec["task"]
    return f"width {task['width']}, length {task['length']}"


def _losses(own: Sequence[Record]) -> NDArray[np.float64]:
    return np.array([r.curve["validation_loss"] for r in own], dtype=np.float64)


def _mean(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(losses.mean(axis=0))


def _title(record: Record, row: str) -> str:
    """The learner in words, with the options that tell it from others of its size."""
    arch = record.spec["arch"]
    other = row.removeprefix(record.arch).split()
    options = [word for word in other if not word.startswith(("hidden=", "expand="))]
    return ", ".join([f"{arch['hidden']} hidden layers", f"expansion {arch['expand']}", *options])


def _seen(title: str, curves: Curves) -> str:
    """The mapping that the first learner learns best."""
    ends = {MAPPINGS[name][0]: float(_mean(losses)[-1]) for name, losses in curves.items()}
    said = ", ".join(f"{name} {loss:.2f}" for name, loss in sorted(ends.items(), key=lambda item: item[1]))
    return f"Loss at the end with {title}, best first: {said}."


def _key(name: str) -> str:
    called, dash = MAPPINGS[name]
    line = f'<line x1="0" y1="6" x2="34" y2="6" {_stroke(name, dash)}/>'
    mark = f'<svg width="34" height="12" aria-hidden="true">{line}</svg>'
    return f'<span style="white-space:nowrap;margin-right:16px">{mark} {escape.html(called)}</span>'


def _stroke(name: str, dash: str) -> str:
    dashed = f";stroke-dasharray:{dash}" if dash else ""
    return f'style="stroke:var(--c{list(MAPPINGS).index(name)});stroke-width:2;fill:none{dashed}"'


def _panel(title: str, curves: Curves, found: Mapping[str, Sequence[Record]], highest: float) -> str:
    first = next(iter(found.values()))[0]
    length = first.length

    def x(position: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * position / length

    def y(loss: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(loss, highest) / highest

    parts = []
    for loss in np.arange(0, highest + 1e-9, 0.5).tolist():
        dash = ";stroke-dasharray:3 3" if loss == 1 else ""
        colour = "quiet" if loss == 1 else "rule"
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" '
            f'style="stroke:var(--{colour}){dash}"/>'
        )
        parts.append(_text(LEFT - 6, y(loss) + 4, f"{loss:g}", "end"))
    for position in (0, length // 2, length):
        anchor = "start" if position == 0 else "end" if position == length else "middle"
        parts.append(_text(x(position), HEIGHT - BOTTOM + 15, f"{position:,}", anchor))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, "position", "middle"))
    parts.append(_text(4, TOP - 13, "loss", "start"))
    for name in (n for n in MAPPINGS if n in curves):
        ends = [float(s or 0) for s in found[name][0].curve["step"]]
        middles = [(a + b) / 2 for a, b in zip([0.0, *ends[:-1]], ends, strict=True)]
        spreads = [t_interval(column.tolist()) for column in curves[name].T]
        if all(spread is not None for spread in spreads):
            edges = [(p, s[0]) for p, s in zip(middles, spreads, strict=True) if s]
            edges += [(p, s[1]) for p, s in zip(middles[::-1], spreads[::-1], strict=True) if s]
            area = " ".join(f"{x(p):.1f},{y(max(0.0, loss)):.1f}" for p, loss in edges)
            colour = f"var(--c{list(MAPPINGS).index(name)})"
            parts.append(f'<polygon points="{area}" style="fill:{colour};fill-opacity:0.15;stroke:none"/>')
        mean = _mean(curves[name])
        line = " ".join(f"{x(p):.1f},{y(loss):.1f}" for p, loss in zip(middles, mean.tolist(), strict=True))
        called, dash = MAPPINGS[name]
        tip = f"<title>{escape.html(called)}: {mean[-1]:.3f} at the end</title>"
        parts.append(f'<polyline points="{line}" {_stroke(name, dash)}>{tip}</polyline>')
    heading = (
        f'<text x="{LEFT}" y="17" style="fill:var(--ink);font-size:14px;font-weight:600">{escape.html(title)}</text>'
    )
    ends_said = ", ".join(f"{MAPPINGS[n][0]} {_mean(curves[n])[-1]:.2f}" for n in MAPPINGS if n in curves)
    said = escape.html(f"Loss against position with {title}; at the end: {ends_said}")
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}" style="width:100%">'
        f"{heading}{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, said: str, anchor: str) -> str:
    style = "fill:var(--quiet);font-size:12px"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{style}">{said}</text>'
