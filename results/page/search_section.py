"""The page's section on a search: its front over time beside random search, and its best points, block by block.

The figures are drawn here, as SVG in the page's own colours, and need no script.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from recallmap.results import escape
from recallmap.results.analysis.block_effects import FAMILIES, FEWEST, Effect, Repeated, telling
from recallmap.results.analysis.pareto import front
from recallmap.results.score_tables.table import in_few_digits

MOST_SHOWN = 30  # points with their blocks

NULL = "random"  # the sampler that the others must beat

WIDTH, HEIGHT = 380, 250  # of a figure

LEFT, RIGHT, TOP, BOTTOM = 44, 12, 30, 34  # its margins

COLOURS = 8  # of the page; beyond them the letter alone tells blocks apart


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a search wants more of, or less."""

    name: str
    maximise: bool


@dataclass(frozen=True, kw_only=True)
class SearchPoint:
    """A trained point of a search.

    sampler  its label
    values   of the goals on validation; `tested` on test
    blocks   kind and options of each block's mixer, in order
    parent   name of the point that it descends from, "" for none; `change` says what tells them apart
    arch     name of its architecture; `yaml` is all of it
    """

    name: str
    sampler: str
    values: tuple[float, ...]
    tested: tuple[float, ...]
    blocks: tuple[tuple[str, str], ...]
    parent: str = ""
    change: str = ""
    arch: str = ""
    yaml: str = ""

    @property
    def said(self) -> str:
        """Its name, with that of its architecture."""
        return f"{self.name} ({self.arch})" if self.arch else self.name


@dataclass(frozen=True, kw_only=True)
class SearchView:
    """A search, as the page shows it.

    points   all of them, in the order in which each sampler proposed them
    best     names of points, best first
    volumes  the hypervolume after each point, by sampler; the first is the search's own
    anchors  label of the known architectures, which no sampler proposed
    repeated effects of blocks and of their places; None where the search orders none
    limits   heads, then a line a limit of state: the best found point beside the best anchor; empty without anchors
    """

    goals: tuple[Goal, ...]
    points: tuple[SearchPoint, ...]
    best: tuple[str, ...]
    volumes: Mapping[str, Sequence[float]]
    anchors: str
    repeated: Repeated | None = None
    limits: Sequence[Sequence[str]] = ()


_SECTION = """<section id="search" data-name="Search">
<h2>What did the search find?</h2>
<p class="seen">{seen}</p>
{figures}
{limits}
<h3>The best {count} of {of}</h3>
<p class="read">Fronts first, then the first goal, on validation. A square is a block, from the input on the left to the output;
point at it to read its options. Below a parent stands what was changed in it; places count from 0.{study}
Numbers of points count those, too, that a constraint ruled out.</p>
<p>{blocks}</p>
<div class="wide" tabindex="0" role="region" aria-label="The best points of the search">
<table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table></div>
{repeats}
</section>"""

_FIGURES = """<p class="read">{first}.{second} Dashed: random search, the null model. One search is one draw:
<code style="white-space:nowrap">recallmap best STUDY --repeats 5</code> tests the difference over repeats.</p>
<p>{key}</p>
<div style="display:grid;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr));gap:12px">
{drawn}
</div>"""

_FIRST = "First: the share of the space of the goals that the points so far dominate, on a scale over all points"

_SECOND = " Second: the front on validation; paler, as it was after a quarter and a half of the points."

_STUDY = " There and in the names of architectures, blocks have the letters of the study, which are in brackets here."

_LIMITS = """<h3>Did it beat the anchors?</h3>
<p class="read">The best found point and the best anchor, a known architecture that was trained alike, within each limit of
state. Both are chosen on validation and shown on test. The found one is the best of many and so scores too high: train both
again with fresh seeds.</p>
<div class="wide" tabindex="0" role="region" aria-label="The best within limits of state">
{table}</div>"""

_REPEATS = """<h3>What repeats?</h3>
<p class="read">Differences of {score} on test over {points} points of random search, at equal state and number of blocks, with
95 % bootstrap intervals over points. p is adjusted by Holm over all effects of a kind; bold: the interval excludes zero and p
is below 0.05. Only what {fewest} points have and {fewest} have not is tested. Points that evolution or a model proposed do not
count: their scores chose their blocks. Letters: {legend}.</p>
<div class="wide" tabindex="0" role="region" aria-label="What repeats in the search">
{table}</div>
<details><summary>All {count}</summary>
<div class="wide" tabindex="0" role="region" aria-label="All effects of blocks">
{whole}</div></details>"""


def section(found: SearchView | None) -> str:
    """The section, "" where there is no search or no point of it is done."""
    if found is None or not found.points:
        return ""
    known = {one.name: one for one in found.points}
    best = [known[name] for name in found.best[:MOST_SHOWN]]
    letters = _letters(
        kind for one in (*best, *(known[p.parent] for p in best if p.parent in known)) for kind, _ in one.blocks
    )
    own = [f"{goal.name} (test)" for goal in found.goals]
    study = found.repeated.letters if found.repeated is not None else {}
    return _SECTION.format(
        seen=escape.html(_seen(found)),
        study=_STUDY if study else "",
        figures=_figures(found) if found.volumes else "",
        limits=_LIMITS.format(table=_limits(found.limits)) if found.limits else "",
        repeats=_repeats(found.repeated),
        count=len(best),
        of=f"{len(found.points):,}",
        blocks=" ".join(
            f'<span style="white-space:nowrap;margin-right:12px">{_square(letters, kind, kind)} '
            f"{escape.html(_with_letters(kind, study))}</span>"
            for kind in letters
        ),
        heads=_heads(["point", "blocks", *own, "parent, and what was changed"], own),
        rows="\n".join(_row(one, known.get(one.parent), letters) for one in best),
    )


def _repeats(found: Repeated | None) -> str:
    """What repeats: the effects that hold and the largest of each family, and all behind a press."""
    if found is None:
        return ""
    if found.why:
        return f'<h3>What repeats?</h3>\n<p class="read">Not estimated: {escape.html(found.why)}.</p>'
    return _REPEATS.format(
        score=escape.html(found.score),
        points=found.points,
        fewest=FEWEST,
        legend=escape.html(found.legend),
        table=_effects(telling(found.effects), found),
        count=len(found.effects),
        whole=_effects(found.effects, found),
    )


def _effects(effects: Sequence[Effect], found: Repeated) -> str:
    figures = ["points", found.score, "95 % interval", "adjusted p"]
    rows = []
    for one in effects:
        low, high = one.interval
        said = f"{one.effect:+.3f}"
        cells = [f"{one.points} of {found.points}", said, f"{low:+.3f} to {high:+.3f}", f"{one.adjusted:.2g}"]
        drawn = "".join(
            f'<td class="figure">{f"<b>{cell}</b>" if one.holds and cell == said else cell}</td>' for cell in cells
        )
        rows.append(
            f'<tr><th scope="row">{escape.html(one.said)}</th>'
            f'<td class="prose">{escape.html(FAMILIES[one.family])}</td>{drawn}</tr>'
        )
    return _table(_heads(["blocks", "effect of", *figures], figures), rows)


def _limits(lines: Sequence[Sequence[str]]) -> str:
    heads, *rest = lines
    rows = [
        f'<tr><th scope="row">{escape.html(first)}</th>{"".join(f"<td>{escape.html(cell)}</td>" for cell in cells)}</tr>'
        for first, *cells in rest
    ]
    return _table(_heads(heads), rows)


def _table(heads: str, rows: Sequence[str]) -> str:
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n{chr(10).join(rows)}\n</tbody></table>"


def _heads(names: Sequence[str], figures: Collection[str] = ()) -> str:
    """Heads of a table; those of figures stand to the right, as these do."""
    right = ' class="figure"'
    return "".join(f'<th scope="col"{right if name in figures else ""}>{escape.html(name)}</th>' for name in names)


def _with_letters(kind: str, study: Mapping[str, Sequence[str]]) -> str:
    """A kind of block, with the letters that the study has for it."""
    own = [letter for letter, kinds in study.items() if kind in kinds]
    return f"{kind} ({', '.join(own)})" if own else kind


def _letters(kinds: Iterable[str]) -> dict[str, str]:
    """A letter for each kind of block: the first of its name that no other has, in the order of the alphabet of kinds."""
    found: dict[str, str] = {}
    for kind in sorted(set(kinds)):
        free = [letter for letter in kind.upper() if letter.isalnum() and letter not in found.values()]
        found[kind] = free[0] if free else str(len(found))
    return found


def _seen(found: SearchView) -> str:
    ends = {name: curve[-1] for name, curve in found.volumes.items() if curve}
    if not ends:
        return f"Done: {_points(len(found.points))}."
    best = next((one.said for one in found.points if found.best and one.name == found.best[0]), "")
    others = ", ".join(f"{name} {end:.3f} after {_points(len(found.volumes[name]))}" for name, end in ends.items())
    what = "Best so far" if len(found.goals) == 1 else "Dominated share"
    return f"{what}: {others}. First of the front: {best}."


def _stroke(found: SearchView, sampler: str) -> str:
    if sampler == NULL:
        return "stroke:var(--quiet);stroke-dasharray:6 4;stroke-width:2;fill:none"
    others = [name for name in found.volumes if name != NULL]
    return f"stroke:var(--c{others.index(sampler) % COLOURS if sampler in others else 0});stroke-width:2;fill:none"


def _keys(found: SearchView) -> Iterator[str]:
    """What each line and mark of the figures is."""
    for name in found.volumes:
        yield _key(name, f'<line x1="0" y1="6" x2="34" y2="6" style="{_stroke(found, name)}"/>')
    if _has_fronts(found) and any(one.sampler == found.anchors for one in found.points):
        yield _key(found.anchors, _cross(17, 6))


def _key(name: str, drawn: str) -> str:
    mark = f'<svg width="34" height="12" aria-hidden="true">{drawn}</svg>'
    return f'<span style="white-space:nowrap;margin-right:16px">{mark} {escape.html(name)}</span>'


def _progress(found: SearchView) -> str:
    most = max(len(curve) for curve in found.volumes.values())
    top = max(max(curve, default=0.0) for curve in found.volumes.values()) or 1.0
    lines = []
    for name, curve in found.volumes.items():
        places = [(_x((at + 1) / most), _y(value / top)) for at, value in enumerate(curve)]
        steps = [
            place
            for (x, y), (later, _) in zip(places, [*places[1:], places[-1]], strict=True)
            for place in ((x, y), (later, y))
        ]
        lines.append(_line(steps, _stroke(found, name), f"{name}: {curve[-1]:.3f} after {_points(len(curve))}"))
    title = "Best so far" if len(found.goals) == 1 else "Dominated share of the plane"
    ticks = [(0.0, "0"), (0.5, f"{most // 2}"), (1.0, f"{most}")]
    return _figure(title, "points", ticks, [(share, f"{share * top:.2f}") for share in (0, 0.5, 1)], lines)


def _figures(found: SearchView) -> str:
    """The progress of the samplers, and the fronts of two goals, with what the reader must know of them."""
    fronts = [_fronts(found)] if _has_fronts(found) else []
    return _FIGURES.format(
        first=_FIRST if len(found.goals) > 1 else "The best so far, on validation",
        second=_SECOND if fronts else "",
        key=" ".join(_keys(found)),
        drawn="\n".join([_progress(found), *fronts]),
    )


def _has_fronts(found: SearchView) -> bool:
    return len(found.goals) == 2 and bool(found.volumes)


def _fronts(found: SearchView) -> str:
    """The fronts of the search's own sampler as they moved, that of random search, and the anchors."""
    gain, cost = found.goals
    own = next((name for name in found.volumes if name != NULL), NULL)
    drawn: list[tuple[str, float, int, list[SearchPoint]]] = []
    for sampler, shares in ((NULL, (1.0,)), (own, (0.25, 0.5, 1.0))):
        mine = [one for one in found.points if one.sampler == sampler]
        for share in shares if mine else ():
            some = mine[: max(1, round(share * len(mine)))]
            on = front([one.values for one in some], [gain.maximise, cost.maximise])
            drawn.append((sampler, share, len(some), [one for one, is_on in zip(some, on, strict=True) if is_on]))
    anchors = [one for one in found.points if one.sampler == found.anchors]
    shown = [*anchors, *(one for *_, kept in drawn for one in kept)]
    logs = all(one.values[1] > 0 for one in shown)

    def scaled(one: SearchPoint) -> float:
        return math.log(one.values[1]) if logs else one.values[1]

    costs, gains = [scaled(one) for one in shown], [one.values[0] for one in shown]
    low, high, bottom, top = min(costs), max(costs), min(gains), max(gains)

    def place(one: SearchPoint) -> tuple[float, float]:
        across = (scaled(one) - low) / (high - low) if high > low else 0.5
        return _x(across), _y((one.values[0] - bottom) / (top - bottom) if top > bottom else 0.5)

    lines = []
    for sampler, share, count, kept in drawn:
        places = sorted(map(place, kept))
        steps = [
            step
            for (x, y), (later, _) in zip(places, [*places[1:], places[-1]], strict=True)
            for step in ((x, y), (later, y))
        ]
        stroke = f"{_stroke(found, sampler)};opacity:{0.3 + 0.7 * share:.2f}"
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
        whole = stroke.replace("fill:none", "fill:var(--paper)").replace("stroke-dasharray:6 4;", "")
        said = f"{sampler} after {_points(count)}: {len(kept)} on the front"
        lines.append(f'{_line(steps, stroke, said)}<g style="{whole}">{dots}</g>')
    lines += [_cross(*place(one), one.said) for one in anchors]
    ends = [math.exp(end) if logs else end for end in (low, high)]
    ticks = [(0.0, in_few_digits(ends[0])), (1.0, in_few_digits(ends[1]))]
    across = f"{cost.name}, logarithmic" if logs else cost.name
    return _figure(
        f"{gain.name} (validation)", across, ticks, [(0, in_few_digits(bottom)), (1, in_few_digits(top))], lines
    )


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"


def _cross(x: float, y: float, said: str = "") -> str:
    """The mark of an anchor."""
    title = f"<title>{escape.html(said)}</title>" if said else ""
    way = f"M{x - 5:.1f} {y:.1f}h10M{x:.1f} {y - 5:.1f}v10"
    return f'<path d="{way}" style="stroke:var(--ink);stroke-width:2.5">{title}</path>'


def _x(share: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * share


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share


def _line(places: Sequence[tuple[float, float]], stroke: str, said: str) -> str:
    way = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{way}" style="{stroke}"><title>{escape.html(said)}</title></polyline>'


def _figure(
    up: str, across: str, below: Sequence[tuple[float, str]], beside: Sequence[tuple[float, str]], inside: Sequence[str]
) -> str:
    parts = [_text(4, 17, up, "start", "fill:var(--ink);font-size:14px;font-weight:600")]
    for share, said in beside:
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{_y(share):.1f}" y2="{_y(share):.1f}" style="stroke:var(--rule)"/>'
        )
        parts.append(_text(LEFT - 6, _y(share) + 4, said, "end"))
    for share, said in below:
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(_text(_x(share), HEIGHT - BOTTOM + 15, said, anchor))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, across, "middle"))
    said = escape.html(f"{up} against {across}")
    drawn = "".join([*parts, *inside])
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}" style="width:100%">{drawn}</svg>'


def _text(x: float, y: float, said: str, anchor: str, style: str = "fill:var(--quiet);font-size:12px") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" style="{style}">{escape.html(said)}</text>'


def _square(letters: Mapping[str, str], kind: str, said: str) -> str:
    """One block: its letter on the colour of its kind."""
    at = list(letters).index(kind)
    return (
        f'<abbr title="{escape.html(said)}" style="display:inline-block;width:22px;line-height:22px;margin:0 1px 2px 0;'
        f"text-align:center;text-decoration:none;border-radius:3px;font-weight:600;font-size:13px;"
        f'background:var(--c{at % COLOURS});color:var(--paper)">{escape.html(letters[kind])}</abbr>'
    )


def _glyphs(one: SearchPoint, letters: Mapping[str, str]) -> str:
    drawn = "".join(_square(letters, kind, f"{kind} {options}".strip()) for kind, options in one.blocks)
    said = escape.html(", ".join(kind for kind, _ in one.blocks))
    return f'<span role="img" aria-label="{said}" style="white-space:nowrap">{drawn}</span>'


def _row(one: SearchPoint, parent: SearchPoint | None, letters: Mapping[str, str]) -> str:
    """The row of a point, and below it its architecture over the whole width, a press away."""
    figures = "".join(f'<td class="figure">{in_few_digits(value)}</td>' for value in one.tested)
    said = escape.html(" ".join([one.change, *([f"(from {one.parent})"] if one.parent else [])]).strip())
    changed = f"{_glyphs(parent, letters)}<br>{said}" if parent is not None else said
    yaml = "\n".join(map(escape.html, one.yaml.split("\n")))
    below = f'<details><summary>YAML</summary><pre tabindex="0">{yaml}</pre></details>'
    shown = f'\n<tr class="below"><td colspan="{3 + len(one.tested)}">{below}</td></tr>' if one.yaml else ""
    return (
        f'<tr><th scope="row">{escape.html(one.said)}</th><td>{_glyphs(one, letters)}</td>{figures}'
        f'<td class="prose">{changed}</td></tr>{shown}'
    )
