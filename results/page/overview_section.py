"""The page's overview: which tasks and architectures it has, each a link to where it is drawn."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from recallmap.results import escape
from recallmap.results.analysis.natural_order import by_number

MOST_IN_MENU = 3  # tasks; the menu of settings says all of so few

View = Mapping[str, Any]  # of figure_data.views_of

_SECTION = """<section id="overview" data-name="Overview">
<h2>What is on record?</h2>
<p class="read">A task leads to its figure; its number counts architectures.</p>
<ul class="legend chips" aria-label="Tasks">{tasks}</ul>
<details><summary>The {count} architectures; each leads to the figure where it is in colour, its number counts tasks</summary>
<ul class="legend chips" aria-label="Architectures">{archs}</ul></details>
</section>"""


def section(views: Sequence[View], archs: Sequence[Mapping[str, Any]]) -> str:
    """Links to the views with the most architectures, of each task and of each architecture; "" for few tasks."""
    tasks: dict[str, list[View]] = defaultdict(list)
    found: dict[int, list[View]] = defaultdict(list)  # by number of architecture
    for view in views:
        tasks[view["task"]].append(view)
        for arch in _archs([view]):
            found[arch].append(view)
    if len(tasks) <= MOST_IN_MENU:
        return ""
    sizes = {task: len(_archs(own)) for task, own in tasks.items()}
    in_tasks = {arch: len({view["task"] for view in own if not view.get("meansOnly")}) for arch, own in found.items()}
    return _SECTION.format(
        tasks="".join(
            _link(task, sizes[task], view=_fullest(tasks[task])["label"])
            for task in sorted(tasks, key=lambda task: -sizes[task])
        ),
        archs="".join(
            _link(archs[arch]["name"], in_tasks[arch], view=_fullest(own)["label"], star=archs[arch]["name"])
            for arch, own in sorted(found.items(), key=lambda item: by_number(archs[item[0]]["name"]))
        ),
        count=len(found),
    )


def _archs(views: Iterable[View]) -> set[int]:
    return {mean["arch"] for view in views for mean in view["means"]}


def _fullest(views: Sequence[View]) -> View:
    """The first of those with the most architectures."""
    return max(views, key=lambda view: len(_archs([view])))


def _link(name: str, count: int, **chosen: str) -> str:
    """A link to what is chosen, as page/assets/address.js reads it."""
    address = urlencode({key: escape.visible(value) for key, value in chosen.items()})
    return f'<li><a href="#{escape.html(address)}">{escape.html(name)} <small>{count}</small></a></li>'
