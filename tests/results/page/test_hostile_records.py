"""Text in records is text wherever it is shown: it makes no element, no link and no mark-up, and hides nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from recallmap.results import escape
from recallmap.results.analysis.labels import row_names
from recallmap.results.page.architecture_section import Detail
from recallmap.results.page.dashboard import page, write_page
from recallmap.results.publishing import report
from recallmap.results.record import Record
from recallmap.results.score_tables.rendering import markdown
from recallmap.results.score_tables.scores import table_of

Make = Callable[..., Record]
Browser = Any  # of conftest.py

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<a href='https://example.org'>press</a>",
    "<b>bold</b><br><extra></extra>",
    "\" onmouseover='alert(1)' x=\"",
    "[press](javascript:alert(1))",
    "![seen](https://example.org/x.png)",
    "https://example.org www.example.org a@example.org",
    "| `a` | *b* | __c__ | ~~d~~ | $e$",
    "# a > b - c",
    "%{x}%{customdata}${title}",
    "&lt;b&gt;&#60;i&#62;",
    "a\x00\x1b[31m\x07b\nc\td",
    "\u202egpj.exe\u2066 \u200b\ufeff\u2028",
    "half a pair \ud800",
    "__proto__",
)
HARMLESS = tuple(f"name{chr(97 + n)}" for n in range(len(HOSTILE)))  # one for each


def records_of(make: Make, names: tuple[str, ...]) -> list[Record]:
    """Two architectures by two seeds on every task, with a name in every field that holds text."""
    records = []
    for n, name in enumerate(names):
        for arch, score in ((name, 0.5), (f"second {name}", 0.7)):
            for seed in range(3):
                record = make(
                    arch=arch,
                    seed=seed,
                    score=score + seed / 100,
                    state_bytes=1000 * (n + 1),
                    arch_dials={"said": name, name: n},
                    training={"optimizer": name},
                    dials={"vocab": name},
                    error=f"it broke\n{name}" if seed == 2 else None,
                    curve={"step": [10, 20], "validation_accuracy": [0.1, score]},
                    references={name: 0.4},
                )
                scores = dict.fromkeys((f"{name}/{name}={name}", f"{name}/{name}=other"), 0.3)
                records.append(
                    replace(
                        record,
                        study=name,
                        task=name,
                        setting=name,
                        protocol=name,
                        device=name,
                        commit=name,
                        created=name,
                        scores={**record.scores, **scores},
                        implementation={name: name},
                    )
                )
    return records


def page_of(records: list[Record]) -> dict[str, Any]:
    """What `page` is told of them."""
    rows = sorted(set(row_names(records).values()))
    probed = [
        {"mixer": row, "keys": "gaussian", "passes": 1, "chance": 0.25, "state_floats": 16, "load": 0.25, "arch": row}
        | {"pairs": pairs, "recall": 1.0, "error": 0.1, "bounds": {row: 16}}
        for row in rows[:3]
        for pairs in (4, 8)
    ]
    details = {row: Detail(yaml=f"name: {row}\nwidth: 8\n", mixers={row: (row, row)}) for row in rows}
    return {"title": records[0].arch, "tables": table_of(records), "probed": probed, "details": details}


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, each so often, and the words between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[tuple[str, ...]] = Counter()
        self.words: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag
        self.found[tag, *(name for name, _ in attrs)] += 1

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.words.append(data)


def test_a_page_has_the_elements_that_it_would_have_of_harmless_names(make: Make) -> None:
    hostile, harmless = (
        Elements(page(records, **page_of(records)))
        for records in (records_of(make, HOSTILE), records_of(make, HARMLESS))
    )
    assert hostile.found == harmless.found
    said = " ".join("".join(hostile.words).split())
    for name in HOSTILE:
        assert " ".join(escape.visible(name).split()) in said


def test_markdown_has_the_elements_that_it_would_have_of_harmless_names(make: Make) -> None:
    reader = MarkdownIt("commonmark").enable("table")

    def elements(names: tuple[str, ...]) -> Counter[str]:
        records = records_of(make, names)
        tables = table_of(records)
        text = "\n".join([*map(markdown, tables), report._tables("kept", "kept.jsonl", records, tables)])
        blocks = reader.parse(text)
        found = Counter(token.type for token in [*blocks, *(one for block in blocks for one in block.children or ())])
        return Counter(
            {kind: number for kind, number in found.items() if kind not in ("text", "text_special", "html_inline")}
        )

    assert elements(HOSTILE) == elements(HARMLESS)


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_shows_text_as_it_is(name: str) -> None:
    (block,) = (one for one in MarkdownIt("commonmark").parse(f"- {escape.markdown(name)}") if one.type == "inline")
    assert {one.type for one in block.children or ()} <= {"text", "text_special", "html_inline"}
    shown = "".join(one.content for one in block.children or () if one.type != "html_inline")
    assert shown == " ".join(escape.visible(name).split())
    # What GitHub makes links of without being asked.
    raw = escape.markdown(name)
    assert not re.search(r"\w://|\bwww\.|\w@\w", raw)


@pytest.mark.parametrize(
    "text", ["__c__", "a__b", "_a_", "~~a~~", "1. a", "- a", "> a", "# a", "+ a", "$a$", "&amp;", "  a"]
)
def test_signs_of_markdown_are_shown(text: str) -> None:
    (block,) = (one for one in MarkdownIt("commonmark").parse(f"- {escape.markdown(text)}") if one.type == "inline")
    assert "".join(one.content for one in block.children or ()) == text.strip()


@pytest.mark.parametrize(
    "text", ["conv_mesa width=64", "in-context & noisy recall", "−0.3 of 4", "0.5", "mqar: pairs 4", "C++ 1.5"]
)
def test_plain_names_stand_in_markdown_as_they_are(text: str) -> None:
    assert escape.markdown(text) == text


def test_text_has_one_door_to_html() -> None:
    """The standard library's escape is used where it is wrapped and nowhere else."""
    folder = Path(escape.__file__).parent
    assert [
        p.name for p in folder.rglob("*.py") if re.search(r"^\s*(import html|from html)\b", p.read_text(), re.M)
    ] == ["escape.py"]


# In a browser

FIGURES = "['state', 'held', 'heat', 'cutplot', 'curves', 'progressplot']"

# Every text that Plotly is given in any figure.
TEXTS = f"""
const texts = [], walk = (part) => {{
  if (typeof part === "string") texts.push(part);
  else if (part && typeof part === "object") Object.values(part).forEach(walk);
}};
for (const id of {FIGURES}) {{
  const figure = document.getElementById(id);
  if (!figure?.data) continue;
  for (const trace of figure.data) walk([trace.text, trace.hovertemplate, id === "heat" ? trace.customdata : null]);
  const {{ xaxis, yaxis, annotations }} = figure.layout;
  walk([xaxis.title, yaxis.title, xaxis.ticktext, yaxis.ticktext, (annotations ?? []).map((one) => one.text)]);
}}
return texts;
"""

# What of all that can be chosen is another after it was written to the address and read from it.
ADDRESSED = """
const kept = () => JSON.stringify([now.view, now.table, now.held, now.cut, [...now.hidden].sort(), now.lit, now.search,
  now.filter, now.sort, now.zoom, now.equal, now.pair].map((one) => one ?? null));
now.view = views.length - 1; now.table = data.heats.at(-1); now.held = Math.max(0, data.held.length - 1);
now.cut = views.flatMap((view) => view.cuts).at(-1)?.label ?? "";
now.hidden = new Set(Array(arguments[0]).keys()); now.lit = [1, 5, 2]; now.search = "b>&=#"; now.filter = "<b> x";
now.sort = { column: "hyper-parameters", down: false }; now.zoom = { x: [2.5, 3.25], y: [-0.5, 0.75] }; now.equal = 1500;
now.pair = [rows.at(-1), rows[0]];
const before = kept();
remember();
Object.assign(now, { view: 0, hidden: new Set(), lit: [], search: "", filter: "", zoom: null, equal: 0, pair: [], cut: "" });
recollect();
return [...(kept() === before ? [] : [before, kept()]), ...(document.getElementById("unfitting").hidden ? [] : ["unfit"])];
"""

# What hovering over a mark of every trace of means in the first figure shows; Plotly takes its time between two of them.
HOVERED = """
const figure = document.getElementById("state"), said = [];
for (const [curveNumber, trace] of figure.data.entries()) {
  if (trace.meta !== "means") continue;
  Plotly.Fx.hover(figure, [{ curveNumber, pointNumber: 0 }]);
  await new Promise((go) => setTimeout(go, 60));
  said.push([...figure.querySelectorAll(".hovertext")].map((one) => one.textContent).join(" "));
}
return said;
"""


def test_the_page_shows_hostile_text_as_text(browser: Browser, make: Make, tmp_path: Path) -> None:
    records = records_of(make, HOSTILE)
    write_page(tmp_path / "page.html", records, **page_of(records))
    browser.show(tmp_path / "page.html")
    made = "document.querySelectorAll(`a:not([href^='#']), svg a, img, iframe, [onmouseover]`).length"
    options = browser.run("return [...document.querySelectorAll('#view option')].length")
    for view in range(options):
        browser.run(
            "const v = document.getElementById('view'); v.value = arguments[0]; v.dispatchEvent(new Event('change'))",
            view,
        )
        for text in browser.run(TEXTS):
            assert "<" not in re.sub(r"</?(b|br|extra)>", "", text)
        browser.run("pick([views[now.view].trials[0]])")
        assert browser.run(f"return [{made}, document.scripts.length]") == [0, 3]
    for hidden in (3, len(HOSTILE) + 3):  # an address names those that are hidden, or the others if they are fewer
        assert browser.run(ADDRESSED, hidden) == []
    assert browser.messages() == []
    assert browser.requests() == [(tmp_path / "page.html").as_uri()]
    cells = browser.run(
        "return [...document.querySelectorAll('option, th, td, summary, li span')].map((one) => one.textContent)"
    )
    shown = " ".join(" ".join(cells).split())
    for name in HOSTILE:
        assert " ".join(escape.visible(name).split()) in shown
    assert not re.search("[\x00-\x08\u202e\u2066\u200b]", shown)


def test_what_is_written_in_a_figure_is_written_as_it_is(browser: Browser, make: Make, tmp_path: Path) -> None:
    """What Plotly draws of a name is that name: no tag, entity or %{template} of it is read."""
    records = [make(arch=name, score=n / 20, state_bytes=1000 * (n + 1)) for n, name in enumerate(HOSTILE)]
    write_page(tmp_path / "page.html", records, title="Names", tables=table_of(records))
    browser.show(tmp_path / "page.html")
    drawn = browser.run("return [...document.querySelectorAll('#heat .ytick text')].map((one) => one.textContent)")
    hovered = browser.run(HOVERED)
    for name in HOSTILE:
        wanted = "".join(escape.visible(name).split())
        assert wanted in {"".join(text.split()) for text in drawn}
        assert any("".join(text.split()).startswith(f"mean{wanted}") for text in hovered)


def test_the_architecture_of_a_hostile_name_is_a_press_away(browser: Browser, make: Make, tmp_path: Path) -> None:
    names = HOSTILE[:2] + HOSTILE[12:14]
    records = [make(arch=name, score=0.1 + n / 10) for n, name in enumerate(names)]
    details = {name: Detail(yaml="name: a\n", mixers={}) for name in names}
    write_page(tmp_path / "page.html", records, title="Names", tables=[], details=details)
    browser.show(tmp_path / "page.html")
    for number in range(len(names)):
        browser.run("pick([arguments[0]])", number)
        assert browser.run("return [...document.querySelectorAll('#picked button')].map((one) => one.textContent)") == [
            "Architecture",
            "Clear",
        ]
