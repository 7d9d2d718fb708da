"""Figures of the page as plotly figures for Python: the same data, colours and marks as page/assets/figures.js draws."""

from __future__ import annotations

import importlib.resources
import math
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from recallmap.results import escape
from recallmap.results.analysis.labels import row_names
from recallmap.results.analysis.published_figures import Published
from recallmap.results.page.figure_data import hyper_names, views_of
from recallmap.results.page.name_index import Index
from recallmap.results.page.points import on_front
from recallmap.results.record import Record
from recallmap.results.score_tables.table import readable, size

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FIXED = ("circle", "square", "triangle-up", "star", "hexagon")  # marks of architectures; as in figures.js
GROWING = ("diamond", "cross", "x", "triangle-down", "star-diamond")  # of those whose state grows

COLOURS = 7

MOST_TICKS = 11

View = dict[str, Any]


class Views(NamedTuple):
    """Settings as the page shows them, and the numbers of trials, architectures and rows that they use."""

    views: list[View]
    numbers: Index  # of trials, architectures and rows

    @classmethod
    def of(cls, records: Sequence[Record], beside: Sequence[Published] = ()) -> Views:
        """The views of records, one of which needs a score."""
        index = Index([r for r in records if r.score is not None], row_names(records))
        return cls(views_of(records, index, beside), index)

    @property
    def archs(self) -> list[str]:
        return self.numbers.archs.names

    @property
    def rows(self) -> list[str]:
        return self.numbers.rows.names


def front(shown: Views, view: View) -> Figure:
    """Score against size of state: means and their deviations over seeds, single trials, the front and its 95 % band."""
    from plotly.graph_objects import Figure

    style, means = _style(), view["means"]
    right = max(1, *view["states"]) * 1.6
    traces = _band(view, right, style)
    best = [mean for mean, yes in zip(means, on_front(means), strict=True) if yes]
    if best:
        x, y = [max(1, m["state"]) for m in best], [m["mean"] for m in best]
        line = {"shape": "hv", "color": style["quiet"], "width": 1.5, "dash": "dash"}
        traces.append(_lines([*x, right], [*y, y[-1]], "front", line))
    if not view.get("meansOnly"):
        traces += _trials(shown, view)
    for arch in dict.fromkeys(mean["arch"] for mean in means):
        own = [mean for mean in means if mean["arch"] == arch]
        traces += _paths(shown, arch, own)
        mark = _mark(shown, arch) | {"size": 13, "line": {"color": style["paper"], "width": 1.5}}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": _plain(shown.archs[arch]),
                "x": [max(1, mean["state"]) for mean in own],
                "y": [mean["mean"] for mean in own],
                "error_y": {"type": "data", "array": [mean["half"] for mean in own], "thickness": 1.5, "width": 4},
                "marker": mark,
                "text": [_about(shown, mean, view) for mean in own],
                "hovertemplate": "%{text}<extra>mean</extra>",
                "meta": "means",
            }
        )
    traces += _published(shown, view)
    states = [max(1, state) for state in view["states"]]
    axis = {"type": "log", "title": {"text": "recurrent state (log scale)"}} | _byte_ticks(min(states), max(states))
    return Figure(data=traces, layout=_layout(view, view, xaxis=axis, yaxis=_score_axis(view)))


def learning(shown: Views, view: View) -> Figure:
    """Validation score against optimizer steps: a line for each seed, under the chosen hyper-parameters.

    Raises ValueError for a mean over tasks, whose curves share no axis.
    """
    from plotly.graph_objects import Figure

    if view.get("meansOnly"):
        raise ValueError(f"setting: got '{view['label']}', whose tasks share no axis of steps; choose one of its tasks")
    named, traces = set[int](), []
    for mean in view["means"]:
        for trial in mean["trials"]:
            record = shown.numbers.done[trial]
            steps, scores = record.curve.get("step", ()), record.curve.get("validation_accuracy", ())
            if not steps or not scores:
                continue
            arch = mean["arch"]
            line = {"color": _colour(arch), "width": 1.5, "dash": _dash(shown, arch)}
            about = (
                f"<b>{_plain(shown.rows[mean['row']])}</b>, seed {record.seed}<br>%{{x}} steps: %{{y}}<extra></extra>"
            )
            trace = _lines(steps, scores, "curves", line) | {"name": _plain(shown.archs[arch]), "opacity": 0.85}
            trace |= {"legendgroup": str(arch), "showlegend": arch not in named, "hovertemplate": about}
            traces.append({name: value for name, value in trace.items() if name != "hoverinfo"})
            named.add(arch)
    axis = _score_axis(view)
    axis["title"] = {"text": f"{axis['title']['text']}, validation"}
    xaxis = {"title": {"text": "optimizer steps"}, "rangemode": "tozero"}
    return Figure(data=traces, layout=_layout(view, view["own"], xaxis=xaxis, yaxis=axis))


# Traces. ------------------------------------------------------------------------------------------


def _band(view: View, right: float, style: dict[str, str]) -> list[dict[str, Any]]:
    if not view["band"]:
        return []
    band = [*view["band"], (right, *view["band"][-1][1:])]
    x = [max(1, state) for state, _, _ in band]
    line = {"shape": "hv", "width": 0, "color": style["quiet"]}
    red, green, blue = (int(style["quiet"][at : at + 2], 16) for at in (1, 3, 5))
    low, high = (_lines(x, [one[at] for one in band], "band", line) for at in (1, 2))
    return [low, high | {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.18)"}]


def _trials(shown: Views, view: View) -> list[dict[str, Any]]:
    """Single trials as small marks, a trace for each architecture."""
    done, hypers = shown.numbers.done, hyper_names(shown.numbers.done)
    own: dict[int, list[tuple[float, float, str]]] = {}
    for trial, score, state in zip(view["trials"], view["scores"], view["states"], strict=True):
        record, row = done[trial], shown.numbers.row_of[done[trial].key]
        words = [_figure(score / 1e6, view), f"state {size(state)}", _plain(hypers[trial]), f"seed {record.seed}"]
        about = "<br>".join([f"<b>{_plain(row)}</b>", *words])
        own.setdefault(shown.numbers.archs.of(record.arch), []).append((max(1, state), score / 1e6, about))
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [x for x, _, _ in marks],
            "y": [y for _, y, _ in marks],
            "text": [about for _, _, about in marks],
            "hovertemplate": "%{text}<extra>one trial</extra>",
            "marker": _mark(shown, arch) | {"size": 7, "opacity": 0.35},
            "showlegend": False,
            "meta": "trials",
        }
        for arch, marks in own.items()
    ]


def _paths(shown: Views, arch: int, own: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines over states, for points of one architecture that differ in its sizes and in nothing else."""
    kinds: dict[int, dict[int, float]] = {}
    for mean in own:
        best, state = kinds.setdefault(mean["line"], {}), max(1, mean["state"])
        best[state] = max(mean["mean"], best.get(state, -math.inf))
    line = {"color": _colour(arch), "width": 2, "dash": _dash(shown, arch)}
    sorted_ = [sorted(best.items()) for best in kinds.values() if len(best) > 1]
    return [_lines([x for x, _ in path], [y for _, y in path], "path", line) for path in sorted_]


def _published(shown: Views, view: View) -> list[dict[str, Any]]:
    """Published figures as outlined marks, at our state."""
    of_row = {row: shown.numbers.archs.of(r.arch) for r in shown.numbers.done for row in [shown.numbers.row_of[r.key]]}
    marks = view.get("published", ())
    if not marks:
        return []
    looks = [_mark(shown, of_row[mark["name"]]) for mark in marks]
    said = [f"<b>{_plain(m['name'])}</b><br>{_figure(m['score'], view)}<br>{_plain(m['source'])}" for m in marks]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": "published",
            "x": [max(1, mark["state"]) for mark in marks],
            "y": [mark["score"] for mark in marks],
            "text": said,
            "hovertemplate": "%{text}<extra>published</extra>",
            "marker": {
                "symbol": [f"{look['symbol']}-open" for look in looks],
                "color": [look["color"] for look in looks],
                "size": 13,
                "line": {"width": 2},
            },
            "meta": "published",
        }
    ]


def _lines(x: Sequence[Any], y: Sequence[Any], meta: str, line: dict[str, Any]) -> dict[str, Any]:
    quiet = {"hoverinfo": "skip", "showlegend": False, "meta": meta}
    return {"type": "scatter", "mode": "lines", "x": list(x), "y": list(y), "line": line, **quiet}


# Looks. -------------------------------------------------------------------------------------------


@cache
def _style() -> dict[str, str]:
    """Colours and fonts of the page, by name, as its style sheet has them for paper."""
    sheet = importlib.resources.files("recallmap.results").joinpath("page", "assets", "style.css")
    root = sheet.read_text(encoding="utf-8").partition(":root {")[2].partition("}")[0]
    return {name: value.strip() for name, value in re.findall(r"--(\w+):\s*([^;]+);", root)}


def _colour(arch: int) -> str:
    return _style()[f"c{arch % COLOURS}"]


def _dash(shown: Views, arch: int) -> str:
    return "dot" if arch in shown.numbers.growing else "solid"


def _mark(shown: Views, arch: int) -> dict[str, Any]:
    marks = GROWING if arch in shown.numbers.growing else FIXED
    return {"color": _colour(arch), "symbol": marks[arch // COLOURS % len(marks)]}


def _plain(text: str) -> str:
    """Text of records, of which plotly reads nothing as markup."""
    return escape.html(text).replace("%{", "&#37;{")


def _figure(value: float, view: View) -> str:
    return f"{100 * value:.1f} %" if view["percent"] else f"{value:.3f}"


def _about(shown: Views, mean: dict[str, Any], view: View) -> str:
    half = "" if mean["half"] is None else f" ± {_figure(mean['half'], view)}"
    seeds = mean.get("count") or len(mean["trials"])
    return "<br>".join(
        [
            f"<b>{_plain(shown.rows[mean['row']])}</b>",
            f"{_figure(mean['mean'], view)}{half}",
            f"state {size(mean['state'])}",
            "1 seed" if seeds == 1 else f"{seeds} seeds",
            f"on the front in {100 * mean['share']:.0f} % of resampled seeds",
        ]
    )


def _layout(view: View, bounds: View, **axes: dict[str, Any]) -> dict[str, Any]:
    style = _style()
    axis = {"gridcolor": style["rule"], "linecolor": style["rule"], "zeroline": False, "ticks": "outside"}
    lines = [("chance", bounds["chance"]), ("ceiling", bounds["ceiling"]), *bounds["references"].items()]
    across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "layer": "below"}
    return {
        "title": {"text": _plain(view["label"])},
        "paper_bgcolor": style["paper"],
        "plot_bgcolor": style["paper"],
        "font": {"family": style["body"], "size": 13, "color": style["ink"]},
        "hovermode": "closest",
        "margin": {"l": 56, "r": 16, "t": 56, "b": 48},
        "shapes": [
            {**across, "y0": y, "y1": y, "line": {"color": style["quiet"], "width": 1, "dash": "dot"}} for _, y in lines
        ],
        "annotations": [
            {"xref": "paper", "x": 0, "xanchor": "left", "y": y, "yanchor": "bottom", "showarrow": False}
            | {"text": f"{_plain(name)} {_figure(y, view)}", "font": {"size": 12, "color": style["quiet"]}}
            for name, y in lines
        ],
        **{name: axis | own for name, own in axes.items()},
    }


def _score_axis(view: View) -> dict[str, Any]:
    title = {"title": {"text": _plain(readable(view["metric"]))}}
    return title | ({"tickformat": ".0%", "range": [-0.02, 1.09], "dtick": 0.2} if view["percent"] else {})


def _byte_ticks(least: float, most: float) -> dict[str, Any]:
    """1, 2 and 5 of each power of ten, thinned to what has room."""
    low, high = least / 1.6, most * 1.6
    values = [base * 10**power for power in range(15) for base in (1, 2, 5) if low <= base * 10**power <= high]
    if len(values) > MOST_TICKS:
        values = [value for value in values if str(value)[0] == "1"]
    if len(values) < 2:
        values = [round(low * (high / low) ** share) for share in (0.1, 0.5, 0.9)]
    return {"tickvals": values, "ticktext": [size(v) for v in values], "range": [math.log10(low), math.log10(high)]}
