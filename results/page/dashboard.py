"""One page of records that needs nothing else: recall against state, strengths, learning, tables.

The page loads nothing and sends nothing: its policy allows only the scripts that it holds, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import Any

from recallmap.results import escape
from recallmap.results.analysis.labels import counted, devices_of
from recallmap.results.analysis.measures import answers
from recallmap.results.analysis.pairs_held import Row
from recallmap.results.analysis.published_figures import Published
from recallmap.results.analysis.validity import Agreement
from recallmap.results.atomic_write import write_whole
from recallmap.results.page import compression, thinning
from recallmap.results.page.architecture_section import Detail
from recallmap.results.page.architecture_section import section as architectures_section
from recallmap.results.page.figure_data import figures, hyper_names
from recallmap.results.page.heat_map import brief, says_no_more
from recallmap.results.page.learnability_section import section as online_section
from recallmap.results.page.overview_section import section as overview_section
from recallmap.results.page.probe_section import section as probe_section
from recallmap.results.page.search_section import SearchView
from recallmap.results.page.search_section import section as search_section
from recallmap.results.page.validity_section import section as validity_section
from recallmap.results.record import Record
from recallmap.results.score_tables.rendering import html as table_html
from recallmap.results.score_tables.table import Table

NOTHING = "'none'"  # in the words of a content security policy

_SPARED = re.compile(r"^[ \t]+(//.*)?|^//.*\n", re.MULTILINE)

MOST_UNFOLDED = 12  # tables

FAILURES = 200  # rows of the table of failed trials; reasons are counted over all of them

_STATE = """<section id="recall" data-name="State and recall">
<h2>How much recall does a byte of state buy?</h2>
<p id="stateseen" class="seen"></p>
<p class="read">Higher is better, further left is cheaper. Click a marker to find the same trial in every figure and table.</p>
<details class="how"><summary>What marks and lines mean</summary>
<p class="read">A large marker is the mean over seeds under the chosen
hyper-parameters, its bar the standard deviation over seeds; small markers are single trials. A line joins the sizes of an
architecture. The dashed line joins those that no other beats in both recall and state; the grey band is its 95 % range when
seeds are drawn anew, and needs five seeds of each. Dotted lines and the markers ◆ ✚ ✖ ▼ ✦: the state grows with length, and
is counted at the length named below. Outlined markers: published figures, at our state.</p></details>
<div class="controls"><label for="view">Setting</label><select id="view"></select></div>
<p id="infull" class="read"></p>
<p id="hint" class="read" hidden>Learning curves, scores by part and progress belong to one task: choose one above.</p>
<div id="state" class="plot" role="img"
aria-label="Recall against recurrent state; the tables below hold the same figures"></div>
<p id="thinned" class="read"></p>
<div id="choose" class="controls" role="group" aria-label="Architectures">
<label>Find an architecture <input id="find" type="search" placeholder="part of its name" autocomplete="off"></label>
<button type="button" id="these">Only these</button>
<button type="button" id="showall">Show all</button>
<button type="button" id="shownone">Hide all</button>
<button type="button" id="best">Colour the best eight</button>
<span id="found" class="read" role="status"></span></div>
<ul id="legend" class="legend" aria-label="Architectures; press to show or hide, double click for one alone"></ul>
<p><button type="button" id="unfold" aria-controls="legend" aria-expanded="false" hidden></button></p>
<div id="picked" role="status"></div>
</section>"""

_EQUAL = """<section id="equal" data-name="Equal state">
<h2>Who recalls most at equal state?</h2>
<p id="equalseen" class="seen"></p>
<p class="read">Architectures whose states are at most 1.5 times the least of them, best first: the mean over seeds with its
standard deviation, then the score and the state in figures. Nothing is interpolated between sizes.</p>
<div class="controls"><label for="equalstate">State</label><select id="equalstate"></select></div>
<div id="equalplot" class="plot" role="img"
aria-label="Scores at equal state; the tables below hold the same figures"></div>
</section>"""

_COMPARE = """<section id="compare" data-name="Compare two">
<h2>How do two architectures differ?</h2>
<p class="read">Choose two by typing a part of their names. Left and right: their documents, line by line. Below: their cost,
and every score ± its standard deviation over seeds. This describes the seeds, and decides no difference.</p>
<div class="controls"><label>First <input id="one" list="rownames" type="search" autocomplete="off"></label>
<label>Second <input id="other" list="rownames" type="search" autocomplete="off"></label>
<button type="button" id="swap">Swap</button><datalist id="rownames"></datalist></div>
<p id="pairmissed" class="read" role="status"></p>
<div id="pair" hidden>
<p id="pairsaid" class="read"></p>
<div class="wide" tabindex="0" role="region" aria-label="Documents of both">
<table id="pairlines"><thead><tr><th scope="col" data-of="0"></th><th scope="col" data-of="1"></th></tr></thead>
<tbody></tbody></table></div>
<h3>Cost</h3>
<div class="wide" tabindex="0" role="region" aria-label="Cost of both">
<table id="paircost"><thead><tr><th scope="col">cost</th><th scope="col" class="figure" data-of="0"></th>
<th scope="col" class="figure" data-of="1"></th><th scope="col" class="figure">first / second</th></tr></thead>
<tbody></tbody></table></div>
<h3>Scores</h3>
<p id="pairscored" class="read"></p>
<div class="wide tall" tabindex="0" role="region" aria-label="Scores of both">
<table id="pairscores"><thead><tr><th scope="col">setting</th><th scope="col" class="figure" data-of="0"></th>
<th scope="col" class="figure" data-of="1"></th><th scope="col" class="figure">first − second</th></tr></thead>
<tbody></tbody></table></div>
</div>
</section>"""

# What scripts fill: the contents of the page, a note on its address, and a box for text that no clipboard takes.
_AIDS = """<nav id="contents" aria-label="Contents" hidden><ol></ol></nav>
<p id="unfitting" class="read" role="status" hidden></p>
<dialog id="copybox" aria-labelledby="copywhat"><p id="copywhat"></p>
<textarea id="copytext" readonly rows="14" aria-label="Text to copy"></textarea>
<p><button type="button" id="closecopy">Close</button></p></dialog>"""

# In the order in which they are run: each uses what those before it define.
_SCRIPTS = (
    "figures.js",
    "breakdowns.js",
    "heat_map.js",
    "labels.js",
    "equal_state.js",
    "legend.js",
    "contents.js",
    "address.js",
    "comparing.js",
    "copying.js",
    "linking.js",
)

_HEAT = """<section id="strengths" data-name="Strengths">
<h2>What is each architecture good at?</h2>
<p id="heatseen" class="seen"></p>
<p class="read">A row is an architecture, a column a task or one of its settings. The number is the mean test score; the
colour is how far it gets from chance to ceiling. Blank: not trained, or every trial failed. A star: over some of the column's
settings only, so not to be compared.</p>
<div class="controls"><label for="table">Table</label><select id="table"></select></div>
<div class="wide" tabindex="0" role="region" aria-label="Scores by architecture and column">
<div class="beside"><div id="heat" class="plot" role="img" aria-label="The tables below hold the same figures"></div>
<div id="heatmean" aria-hidden="true" hidden></div></div></div>
</section>"""

_CURVES = """<section id="learning" data-name="Learning">
<h2>How fast do they learn it?</h2>
<p id="curveseen" class="seen"></p>
<p class="read">Validation score of the training setting against optimizer steps: a line for each seed, under the chosen
hyper-parameters. Colours as above; dotted where the state grows. Click any other trial to see its line too.</p>
<p id="curvesmeant" class="read"></p>
<div id="curves" class="plot" role="img" aria-label="Validation score against optimizer steps"></div>
<ul id="curvekey" class="legend key" aria-label="Architectures"></ul>
</section>"""

_CUTS = """<section id="cuts" data-name="Parts and options">
<h2>Where do they succeed, and which option helps?</h2>
<p class="read">Test score of the chosen setting by a part of the answers (length, depth, position, distance), or by an option
of the task or the architecture; all else on a line is equal. Bars: standard deviation over seeds. Dotted: chance.</p>
<div class="controls"><label for="cut">Figure</label><select id="cut"></select></div>
<p id="cutmeant" class="read"></p>
<div id="cutplot" class="plot" role="img" aria-label="Score by part of the answers, or by option"></div>
<ul id="cutlegend" class="legend key" aria-label="Lines"></ul>
</section>"""

_HELD = """<section id="holdings" data-name="Pairs held">
<h2>How many pairs does a state hold?</h2>
<p id="heldseen" class="seen"></p>
<p class="read">The most pairs up to which every setting is recalled at 99 % (filled) and at 90 % (outlined, dashed), trained.
$probed</p>
<div class="controls"><label for="holding">Setting</label><select id="holding"></select></div>
<div id="held" class="plot" role="img" aria-label="Pairs held against recurrent state"></div>
<ul id="heldkey" class="legend key" aria-label="Architectures"></ul>
</section>"""

_HELD_UNTRAINED = """Small and dotted: the untrained memory's capacity at 99 %, by the probe below. Flat strokes: the bound
of theory for a head."""

_PROGRESS = """<section id="progress" data-name="Progress">
<h2>How did the study go?</h2>
<p class="read">Left to right: trials in the order in which they ended. Up: the share of the plane (score from chance to
ceiling, logarithm of state) that the best of them dominate. Below: the share of the scores' variance between architectures,
and between the values of one option within an architecture, while all else varies. Options that vary together share the
credit.</p>
<div id="progressplot" class="plot low" role="img" aria-label="Dominated share of the plane against trials finished"></div>
<figure><figcaption><h3>Which options matter</h3></figcaption>
<table class="bars"><tbody id="dials"></tbody></table></figure>
</section>"""

_TRIALS = """<section id="all" data-name="Every trial">
<h2>Every trial of the setting</h2>
<p class="read"><span id="count"></span>. Click a heading to sort, a row to find the trial in the figures.</p>
$filter
<div class="wide tall" tabindex="0" role="region" aria-label="Every trial of the setting">
<table id="trials"><thead></thead><tbody></tbody></table></div>
<p><button type="button" id="more" hidden></button></p>
</section>"""

_FAILED = """<section id="failed" data-name="Failed">
<h2>What failed</h2>
<p class="read">These trials are in no mean; a † in the tables marks where they are missing.</p>
<ul class="reasons">$listed</ul>
<div class="wide tall" tabindex="0" role="region" aria-label="Failed trials">
<table><thead><tr>$heads</tr></thead><tbody>$lines</tbody></table></div>
$rest
</section>"""

_FILTER = """<div class="controls"><label>Rows with
<input class="filter" type="search" placeholder="words, such as mesa 1e-3" autocomplete="off"></label></div>"""

_READ_TABLES = """Architectures that were trained here, then chance, ceiling and published figures. Click a heading to
sort, a row to find its trials in the figures. By keyboard: Tab to a table, arrows from row to row, Enter, Escape."""


def page(
    records: Sequence[Record],
    *,
    title: str,
    tables: Sequence[Table],
    beside: Sequence[Published] = (),
    probed: Sequence[Row] = (),
    details: Mapping[str, Detail] = MappingProxyType({}),
    searched: SearchView | None = None,
    validity: Sequence[Agreement] = (),
    again: int = 0,
) -> str:
    """One HTML page of all records, and of the tables that were made of them.

    beside    published figures, drawn where they are comparable
    probed    measurements of the probe; their `arch` is an architecture's row (see `row_names`)
    details   facts on architectures, by row
    searched  the points of the search that these are records of
    validity  how far their scores order architectures as papers of language models do
    again     seconds after which the page looks for a newer version; 0 for a study that is done
    """
    if not records:
        lead = "There are no trials here yet: nothing has been trained."
        return _whole(title, lead, [], footer="", again=again)
    failed = [r for r in records if r.score is None]
    done = [r for r in records if r.score is not None]
    sections: list[str] = []
    carried: list[str] = []  # compressed: the data, then scripts
    running: list[str] = []  # scripts: the first unpacks the others
    if done:
        data = figures(records, tables, beside=beside, probed=probed) | {"again": again}
        sections += [
            _AIDS,
            *([found] if (found := overview_section(data["views"], data["archs"])) else []),
            _STATE,
            _EQUAL,
            *([Template(_HELD).substitute(probed=_HELD_UNTRAINED if probed else "")] if data["held"] else []),
            *([probe_section(probed, [arch["name"] for arch in data["archs"]])] if probed else []),
        ]
        sections += [*([_HEAT] if data["tables"] else []), _CUTS, _CURVES]
        sections += [found] if (found := online_section(done)) else []
        sections += [found] if (found := search_section(searched)) else []
        sections += [found] if (found := validity_section(validity)) else []
        sections.append(_PROGRESS)
        library, small = compression.plotly()
        own = "\n".join(map(_script, _SCRIPTS))
        carried = [compression.compressed(_json(packed(data))), small, compression.compressed(own)]
        running = [_script("unpacking.js"), library, own]
    if tables:
        shown = _tables(tables)
        sections.append(
            f'<section id="tables" data-name="Tables">\n<h2>The figures</h2>\n<p class="read">{_READ_TABLES}</p>\n'
            f"{_FILTER if done else ''}\n{shown}</section>"
        )
    if done:
        known = {row: details[row] for row in thinning.names(details, tables)}
        sections += [
            _COMPARE,
            Template(_TRIALS).substitute(filter=_FILTER),
            architectures_section(records, known, of=len(details)),
        ]
    if failed:
        sections.append(_failures(failed))
    return _whole(
        title,
        _lead(records, failed, again),
        sections,
        carried=carried,
        running=running,
        footer=_footer(records),
        again=0 if done else again,
    )


def _tables(tables: Sequence[Table]) -> str:
    """The tables that say something of their own, one below the other; each folded where they are many."""
    told = [(n, _shortened(thinning.rows(table))) for n, table in enumerate(tables) if not says_no_more(table, tables)]
    written = [table_html(table, number) for number, table in told]
    if len(told) > MOST_UNFOLDED:
        heads = [
            f"{table.heading}: {counted(_rows(table), 'row')}, {counted(len(table.columns), 'column')}"
            for _, table in told
        ]
        pairs = zip(heads, written, strict=True)
        written = [f"<details><summary>{escape.html(head)}</summary>\n{text}</details>" for head, text in pairs]
    return "\n".join(written)


def _shortened(table: Table) -> Table:
    """The table with short names of columns, and a note that says so; unchanged where all are short."""
    heads = tuple(brief(table.columns))
    note = "Columns are named by as few options as tell them apart; recallmap table names all."
    return table if heads == table.columns else replace(table, columns=heads, notes=(note, *table.notes))


def _rows(table: Table) -> int:
    return sum(line.kind == "measured" for line in table.lines)


def write_page(path: Path, records: Sequence[Record], **rest: Any) -> None:
    """Write the `page` whole or not at all, so that a browser may read it while it is made anew. Raises OSError."""
    write_whole(path, page(records, **rest))


def _whole(
    title: str,
    lead: str,
    sections: Sequence[str],
    *,
    carried: Sequence[str] = (),
    running: Sequence[str] = (),
    footer: str,
    again: int = 0,
) -> str:
    """The whole page. It may run the scripts of `running`; the first is in it as it is, the others are in what is `carried`.
    One that has no scripts is loaded `again` by the browser itself."""
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in running)
    policy = (
        f"default-src {NOTHING}; script-src {hashes or NOTHING}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"base-uri {NOTHING}; form-action {NOTHING}"
    )
    scripts = [f'<script type="application/zlib">{text}</script>' for text in carried]
    scripts += [f"<script>{text}</script>" for text in running[:1]]
    return Template(_asset("page.html")).substitute(
        policy=policy,
        title=escape.html(title),
        style=_asset("style.css"),
        refresh=f'\n<meta http-equiv="refresh" content="{again}">' if again else "",
        lead=lead,
        body="\n".join(sections),
        footer=footer,
        scripts="\n".join(scripts),
    )


def _lead(records: Sequence[Record], failed: Sequence[Record], again: int) -> str:
    lost = f" {len(failed):,} of them failed." if failed else ""
    news = (
        f" The study may still run: the page looks for news every {again} seconds while nothing is picked."
        if again
        else ""
    )
    trials, archs = (
        counted(len({r.key for r in records}), "trial"),
        counted(len({r.arch for r in records}), "architecture"),
    )
    asked = [[(r.protocol, answer.setting) for answer in answers(r)] for r in records]
    trained = {settings[0] for settings in asked}
    more = len({setting for settings in asked for setting in settings} - trained)
    tasks = counted(len({r.task for r in records}), "task")
    return (
        "Each trial trains one small model from scratch on one synthetic task, then tests its recall on sequences that it "
        f"has not seen. Here: {trials} of {archs} on {counted(len(trained), 'setting')} of {tasks}"
        f"{f', tested on {more:,} more' if more else ''}.{lost}{news}"
    )


def _footer(records: Sequence[Record]) -> str:
    def those(values: Iterable[str | None]) -> str:
        return ", ".join(sorted({value for value in values if value}))

    days = sorted(r.created[:10] for r in records if r.created)
    facts = [
        f"Trained {days[0]}{f' to {days[-1]}' if days[-1] != days[0] else ''}." if days else "",
        f"On {devices}." if (devices := ", ".join(devices_of(records))) else "",
        f"Code {commits}."
        if (commits := those(r.commit[:12] + "+" * r.commit.endswith("+") for r in records if r.commit))
        else "",
        "Scores are those of the test split, under the checkpoint that validation chose." if records else "",
        "The page holds all that it shows, loads nothing and sends nothing.",
    ]
    return f"<p>{escape.html(' '.join(fact for fact in facts if fact))}</p>"


def _failures(failed: Sequence[Record]) -> str:
    reasons = Counter(_reason(r) for r in failed)
    listed = "".join(f"<li>{count} × {escape.html(reason)}</li>" for reason, count in reasons.most_common(10))
    heads = "".join(f'<th scope="col">{h}</th>' for h in ("architecture", "task", "hyper-parameters", "seed", "reason"))
    lines = []
    for record, hypers in list(zip(failed, hyper_names(failed), strict=True))[:FAILURES]:
        words = [f"{record.task} {record.setting}".strip(), hypers, str(record.seed)]
        cells = "".join(f"<td>{escape.html(word)}</td>" for word in words)
        reason = f'<td class="reason">{escape.html(_reason(record))}</td>'
        lines.append(f'<tr><th scope="row">{escape.html(record.arch)}</th>{cells}{reason}</tr>')
    rest = f"<p>The first {FAILURES} of {len(failed)} are listed.</p>" if len(failed) > FAILURES else ""
    return Template(_FAILED).substitute(listed=listed, heads=heads, lines="\n".join(lines), rest=rest)


def _reason(record: Record) -> str:
    said = (record.error or "").strip().splitlines() or ["its score was not a finite number"]
    return said[-1][:300]


def packed(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with shared parts written once and referred to by number: lists of trials in `lists`, cuts of views in
    `cuts`."""
    lists: dict[tuple[int, ...], int] = {}
    cuts = {id(cut): cut for view in data["views"] for cut in view.get("cuts", ())}
    places = {of: number for number, of in enumerate(cuts)}

    def number(trials: Any) -> Any:
        if trials and not isinstance(trials[0], int):
            return [number(own) for own in trials]
        return lists.setdefault(tuple(trials), len(lists))

    def pack(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: number(value) if name == "trials" else pack(value) for name, value in part.items()}
        return [pack(one) for one in part] if isinstance(part, list) and part and isinstance(part[0], dict) else part

    views = [view | {"cuts": [places[id(cut)] for cut in view.get("cuts", ())]} for view in data["views"]]
    shared = {"views": pack(views), "cuts": pack(list(cuts.values()))}
    shared |= {name: pack(data[name]) for name in ("held", "tables")}
    return {**data, **shared, "lists": list(lists)}


def _json(data: Any) -> str:
    """JSON in ASCII, because UTF-8 cannot write the halves of pairs that a name may hold."""
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return importlib.resources.files("recallmap.results").joinpath("page", "assets", name).read_text(encoding="utf-8")


def _script(name: str) -> str:
    """A script of ours without indentation and without lines of comment: a page is sent as often as it is looked at."""
    return _SPARED.sub("", _asset(name))
