"""Tables beyond the headline, in every format."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable

import pytest

from recallmap.results.record import Record
from recallmap.results.score_tables.breakdowns import all_tables, further_tables, tables_by
from recallmap.results.score_tables.costs import cost_tables
from recallmap.results.score_tables.rendering import render
from recallmap.results.score_tables.scores import table_of

Make = Callable[..., Record]


@pytest.fixture
def records(make: Make) -> list[Record]:
    """Two architectures, of which one counts its steps; answers told apart by depth."""
    found = []
    for arch, score in (("mesa", 0.9), ("gla", 0.5)):
        for seed in range(2):
            record = make(arch=arch, seed=seed, score=score, device="a GPU", peak_bytes=2_000_000, flops_per_token=1e6)
            record.scores.update({f"accuracy/depth={d}": score - d / 1000 + seed / 100 for d in (0, 100)})
            record.scores.update({"cg_steps": 4.0 + seed} if arch == "mesa" else {})
            found.append(record)
    return found


MARKDOWN = """\
### mqar, CG steps

| architecture | state | seeds | length 64, pairs 4 |
| --- | --- | --- | ---: |
| mesa | 1 kB | 2 | 4.500 (4.000 / 5.000) |

- CG steps on test: mean over seeds, in parentheses both of two seeds.
- Everywhere: vocab 256.
- Protocol: repaired.

### mqar, accuracy by depth

| architecture | state | seeds | depth 0 | depth 100 |
| --- | --- | --- | ---: | ---: |
| gla | 1 kB | 2 | 50.5 (50.0 / 51.0) | 40.5 (40.0 / 41.0) |
| mesa | 1 kB | 2 | **90.5** (90.0 / 91.0) | **80.5** (80.0 / 81.0) |
| chance |  |  | 25.0 | 25.0 |
| ceiling |  |  | 100.0 | 100.0 |

- Accuracy on test, percent: mean over seeds, in parentheses both of two seeds.
- Protocol: repaired.

### Cost and speed

| architecture | task | trials | parameters | state | operations a token | steps | seconds a trial | steps a second | \
compiling | peak memory | trained together | hours in all |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| gla | mqar | 2 | 400,000 | 1 kB | 1,000,000 | 1,000 | 12.5 | 80 | 0 | 2 MB | 1 | 0.00694 |
| mesa | mqar | 2 | 400,000 | 1 kB | 1,000,000 | 1,000 | 12.5 | 80 | 0 | 2 MB | 1 | 0.00694 |

- Means over trials, on a GPU. State after the task's length. Seconds are a trial's share of the cohort that it trained in, \
without compiling: to compare speed alone, see recallmap bench. Hours are those of all trials, with compiling.
"""


def test_other_scores_parts_and_costs(records: list[Record]) -> None:
    assert render(further_tables(records), "markdown") == MARKDOWN


CAPTION = (
    r"mqar, accuracy by depth. Accuracy on test, percent: mean over seeds, in parentheses both of two seeds. "
    r"Protocol: repaired."
)
LATEX = r"""\begin{table}
\centering
\caption{@}
\begin{tabular}{lllrr}
\toprule
architecture & state & seeds & depth 0 & depth 100 \\
\midrule
gla & 1 kB & 2 & 50.5 (50.0 / 51.0) & 40.5 (40.0 / 41.0) \\
mesa & 1 kB & 2 & \textbf{90.5} (90.0 / 91.0) & \textbf{80.5} (80.0 / 81.0) \\
\midrule
chance &  &  & 25.0 & 25.0 \\
ceiling &  &  & 100.0 & 100.0 \\
\bottomrule
\end{tabular}
\end{table}
""".replace("@", CAPTION)

CSV = """\
table,protocol,kind,architecture,setting,state,column,mean,low,high,seeds,settings,failed,published,difference,chance,ceiling,mark,outside,lowest,highest,learned,edge,stderr,state_lowest,state_grows
"mqar, accuracy by depth",repaired,measured,gla,,1000,depth 0,0.5,,,1,1,0,,,0.25,1.0,,0,,,,,,1000,0
"mqar, accuracy by depth",repaired,measured,gla,,1000,depth 100,0.4,,,1,1,0,,,0.25,1.0,,0,,,,,,1000,0
"mqar, accuracy by depth",repaired,chance,chance,,,depth 0,0.25,,,0,0,0,,,,,,0,,,,,,,
"mqar, accuracy by depth",repaired,chance,chance,,,depth 100,0.25,,,0,0,0,,,,,,0,,,,,,,
"mqar, accuracy by depth",repaired,ceiling,ceiling,,,depth 0,1.0,,,0,0,0,,,,,,0,,,,,,,
"mqar, accuracy by depth",repaired,ceiling,ceiling,,,depth 100,1.0,,,0,0,0,,,,,,0,,,,,,,
"""

HTML = """\
<figure class="table"><figcaption><h3>mqar, accuracy by depth, one seed</h3></figcaption><div class="wide" tabindex="0" \
role="region" aria-label="mqar, accuracy by depth"><table class="sortable" data-table="0"><thead><tr>\
<th scope="col">architecture</th>\
<th scope="col">state</th><th scope="col">seeds</th><th scope="col" class="figure">depth&nbsp;0</th>\
<th scope="col" class="figure">depth&nbsp;100</th></tr></thead>
<tbody><tr class="measured" data-line="0"><th scope="row">gla</th><td>1&nbsp;kB</td><td>1</td>\
<td class="figure" data-value="0.5">50.0</td><td class="figure" data-value="0.4">40.0</td></tr></tbody>
"""


def test_a_cut_as_latex(records: list[Record]) -> None:
    assert render(tables_by(records, "depth"), "latex") == LATEX


def test_a_cut_as_csv(records: list[Record]) -> None:
    assert render(tables_by(records[2:3], "depth"), "csv") == CSV


def test_numbers_are_numbers_in_csv_and_a_state_is_its_bytes(make: Make) -> None:
    records = [
        make(dials={"pairs": p}, state_bytes=b, state_grows=True, seed=s)
        for p, b in ((4, 1540), (8, 4610))
        for s in (0, 1)
    ]
    rows = list(csv.DictReader(render(all_tables(records), "csv").splitlines()))
    texts = {"table", "protocol", "kind", "architecture", "setting", "column", "mark", "edge"}
    assert all(math.isfinite(float(row[name] or 0)) for row in rows for name in row.keys() - texts)
    sized = {(row["state"], row["state_lowest"], row["state_grows"]) for row in rows if row["kind"] == "measured"}
    assert sized == {("4610", "1540", "1")}  # of score tables and of costs
    assert {row["table"] for row in rows} == {"mqar", "Cost and speed"}


def test_a_cut_as_html(records: list[Record]) -> None:
    assert render(tables_by(records[2:3], "depth"), "html").startswith(HTML)


def test_a_cut_by_a_dial_has_a_column_a_value_and_one_table_a_setting(make: Make) -> None:
    records = [make(arch_dials={"window": w}, dials={"pairs": p}, score=0.5 + w / 100) for w in (1, 4) for p in (4, 8)]
    tables = tables_by(records, "window")
    assert [t.title for t in tables] == ["mqar, pairs 4, accuracy by window", "mqar, pairs 8, accuracy by window"]
    assert [t.columns for t in tables] == [("window 1", "window 4")] * 2
    assert [cell.mean for cell in tables[0].lines[0].cells] == [0.51, 0.54]


def test_a_dial_that_does_not_vary_is_refused_with_those_that_do(make: Make) -> None:
    records = [make(arch_dials={"window": w}, dials={"pairs": p}) for w in (1, 4) for p in (4, 8)]
    with pytest.raises(ValueError, match="nothing here varies by 'depth', expected pairs, window"):
        tables_by(records, "depth")


def test_one_thread_is_said_so_and_kept_as_it_was_recorded(make: Make) -> None:
    devices = ("cpu, 1 threads", "cpu, 1 threads of a chip", "cpu, 11 threads", "cpu, 2 threads")
    records = [make(seed=seed, device=device) for seed, device in enumerate(devices)]
    (table,) = cost_tables(records)
    said = "cpu, 1 thread, cpu, 1 thread of a chip, cpu, 11 threads, cpu, 2 threads"
    assert table.notes[0].startswith(f"Means over trials, on {said}. ")
    assert [record.device for record in records] == list(devices)


def test_parts_of_several_settings_stand_below_each_other(make: Make) -> None:
    records = []
    for pairs in (4, 8):
        record = make(dials={"pairs": pairs})
        record.scores.update({f"accuracy/depth={d}": 0.5 for d in (0, 100)})
        records.append(record)
    (table,) = tables_by(records, "depth")
    assert table.corner == ("architecture", "setting", "state", "seeds")
    assert [line.labels[1] for line in table.lines] == ["pairs 4", "pairs 8", ""]


def test_parts_by_the_name_of_an_option_are_told_from_its_settings(make: Make) -> None:
    records = []
    for length in (40, 64):
        record = make(task="parity", dials={"length": length})
        record.scores.update({f"accuracy/length={n}": 0.9 for n in (16, 40, 64) if n <= length})
        records.append(record)
    parts, settings = tables_by(records, "length")
    assert (parts.title, settings.title) == (
        "parity, accuracy by length, parts of the answers",
        "parity, accuracy by length, each a setting",
    )
    assert (parts.columns[0], settings.columns[0]) == ("length 16", "length 40")
    assert parts.notes[0] == "Columns are parts of the answers at length 64, and no settings of their own."
    assert settings.notes[0] == "Every column is a setting of its own, scored over all of its answers."
    assert parts in further_tables(records)  # under one title everywhere


def test_a_loss_is_best_where_it_is_smallest(make: Make) -> None:
    records = []
    for arch, distance in (("a", 0.4), ("b", 0.1)):
        record = make(arch=arch)
        record.scores["tvd"] = distance
        records.append(record)
    table = further_tables(records)[0]
    assert [(line.labels[0], line.cells[0].mark) for line in table.lines] == [("b", "best"), ("a", "")]


def test_steps_of_a_solver_are_sorted_by_number_and_none_is_best(make: Make) -> None:
    records = []
    for steps in (10, 2, 0):
        record = make(arch_dials={"cg_steps": steps})
        record.scores["cg_steps"] = float(steps)
        records.append(record)
    lines = further_tables(records)[0].lines
    assert [line.labels[0] for line in lines] == ["mesa cg_steps=0", "mesa cg_steps=2", "mesa cg_steps=10"]
    assert [line.cells[0].mark for line in lines] == ["", "", ""]


def test_learnability_by_position_is_a_loss(make: Make) -> None:
    records = []
    for arch, explained in (("a", 0.4), ("b", 0.75)):
        record = make(arch=arch, metric="explained", score=None, chance=0.0)
        record.scores.update(
            {"explained": explained} | {f"explained/position={p}": explained for p in ("0-16", "16-64")}
        )
        records.append(record)
    table = next(t for t in further_tables(records) if t.title == "mqar, relative error by position")
    assert table.columns == ("position 0-16", "position 16-64")
    assert [(line.labels[0], line.cells[0].mean, line.cells[0].mark) for line in table.lines[:3]] == [
        ("a", 0.6, ""),
        ("b", 0.25, "best"),
        ("chance", 1.0, ""),
    ]


# How the tables of the suites are laid out


def by_prompts(make: Make) -> list[Record]:
    found = []
    for arch, score in (("attention", 0.9), ("gla", 0.6)):
        for prompts in (1000, 2000, 10000):
            for seed in range(2):
                right = score + prompts / 1e6 + seed / 50
                record = make(arch=arch, task="regbench", data={"train": prompts}, seed=seed, score=right, chance=0.1)
                record.scores["tvd"] = 1 - right
                found.append(record)
    return found


REGBENCH = """\
| architecture | state | seeds | train 1000 | train 2000 | train 10000 | mean |
| --- | --- | --- | ---: | ---: | ---: | ---: |
| attention | 1 kB | 2 | **91.1** (90.1 / 92.1) | **91.2** (90.2 / 92.2) | **92.0** (91.0 / 93.0) | **91.4** (90.4 / 92.4) |
| gla | 1 kB | 2 | 61.1 (60.1 / 62.1) | 61.2 (60.2 / 62.2) | 62.0 (61.0 / 63.0) | 61.4 (60.4 / 62.4) |
| chance |  |  | 10.0 | 10.0 | 10.0 | 10.0 |
| ceiling |  |  | 100.0 | 100.0 | 100.0 | 100.0 |

| architecture | state | seeds | train 1000 | train 2000 | train 10000 | mean |
| --- | --- | --- | ---: | ---: | ---: | ---: |
| attention | 1 kB | 2 | **0.089** (0.079 / 0.099) | **0.088** (0.078 / 0.098) | **0.080** (0.070 / 0.090) | \
**0.086** (0.076 / 0.096) |
| gla | 1 kB | 2 | 0.389 (0.379 / 0.399) | 0.388 (0.378 / 0.398) | 0.380 (0.370 / 0.390) | 0.386 (0.376 / 0.396) |
"""


def by_length(make: Make) -> list[Record]:
    found = []
    for arch, score in (("deltanet", 0.8), ("mesa", 0.9)):
        record = make(arch=arch, task="parity", score=score, chance=0.5)
        record.scores["scaled_accuracy"] = 2 * score - 1
        record.scores.update({f"scaled_accuracy/length={n}": 2 * score - 1 - n / 100 for n in (8, 16, 40)})
        found.append(record)
    return found


STATE_TRACKING = """\
| architecture | state | seeds | score |
| --- | --- | --- | ---: |
| mesa | 1 kB | 1 | **90.0** |
| deltanet | 1 kB | 1 | 80.0 |
| chance |  |  | 50.0 |
| ceiling |  |  | 100.0 |

| architecture | state | seeds | score |
| --- | --- | --- | ---: |
| mesa | 1 kB | 1 | **80.0** |
| deltanet | 1 kB | 1 | 60.0 |
| chance |  |  | 0.0 |
| ceiling |  |  | 100.0 |

| architecture | state | seeds | length 8 | length 16 | length 40 |
| --- | --- | --- | ---: | ---: | ---: |
| deltanet | 1 kB | 1 | 52.0 | 44.0 | 20.0 |
| mesa | 1 kB | 1 | **72.0** | **64.0** | **40.0** |
| chance |  |  | 0.0 | 0.0 | 0.0 |
| ceiling |  |  | 100.0 | 100.0 | 100.0 |
"""


def by_level_and_depth(make: Make) -> list[Record]:
    found = []
    for level in (1, 2):
        for length in (64, 128):
            right = 1 - level * length / 1000
            record = make(arch="gla", task="needle", dials={"level": level, "length": length}, score=right, chance=0.0)
            record.scores.update({f"accuracy/depth={d}": right - d / 1000 for d in (0, 100)})
            found.append(record)
    return found


NEEDLE = """\
| architecture | state | seeds | level 1, length 64 | level 1, length 128 | level 2, length 64 | level 2, length 128 | mean |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |
| gla | 1 kB | 1 | 93.6 | 87.2 | 87.2 | 74.4 | 85.6 |
| chance |  |  | 0.0 | 0.0 | 0.0 | 0.0 | 0.0 |
| ceiling |  |  | 100.0 | 100.0 | 100.0 | 100.0 | 100.0 |

| architecture | setting | state | seeds | depth 0 | depth 100 |
| --- | --- | --- | --- | ---: | ---: |
| gla | level 1, length 64 | 1 kB | 1 | 93.6 | 83.6 |
| gla | level 1, length 128 | 1 kB | 1 | 87.2 | 77.2 |
| gla | level 2, length 64 | 1 kB | 1 | 87.2 | 77.2 |
| gla | level 2, length 128 | 1 kB | 1 | 74.4 | 64.4 |
| chance |  |  |  | 0.0 | 0.0 |
| ceiling |  |  |  | 100.0 | 100.0 |
"""


@pytest.mark.parametrize(
    ("suite", "golden"),
    [(by_prompts, REGBENCH), (by_length, STATE_TRACKING), (by_level_and_depth, NEEDLE)],
    ids=["regbench", "state tracking", "needle"],
)
def test_the_layout_of_a_suite(suite: Callable[[Make], list[Record]], golden: str, make: Make) -> None:
    records = suite(make)
    assert all_tables(records) == [*table_of(records), *further_tables(records)]
    tables = [table for table in all_tables(records) if table.title != "Cost and speed"]
    drawn = [
        "".join(f"{line}\n" for line in render([t], "markdown").split("\n") if line.startswith("|")) for t in tables
    ]
    assert "\n".join(drawn) == golden
