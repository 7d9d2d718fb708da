"""Tables beyond the headline, in every format."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from results.further import further_tables, tables_by
from results.record import Record
from results.render import render

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
### mqar, cg steps

| architecture | state | seeds | length 64, pairs 4 |
| --- | --- | --- | ---: |
| mesa | 1 kB | 2 | 4.500 ±6.353 |

- Cg steps on test: mean over seeds, ± half of the 95 % t interval over seeds.
- Everywhere: vocab 256.

### mqar, accuracy by depth

| architecture | state | seeds | depth 0 | depth 100 |
| --- | --- | --- | ---: | ---: |
| gla | 1 kB | 2 | 50.5 ±6.4 | 40.5 ±6.4 |
| mesa | 1 kB | 2 | **90.5** ±6.4 | **80.5** ±6.4 |
| chance |  |  | 25.0 | 25.0 |
| ceiling |  |  | 100.0 | 100.0 |

- Accuracy on test, percent: mean over seeds, ± half of the 95 % t interval over seeds.

### Cost and speed

| architecture | task | trials | parameters | state | operations a token | steps | seconds a trial | steps a second | \
compiling | peak memory | trained together |
| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
| gla | mqar | 2 | 400,000 | 1 kB | 1,000,000 | 1,000 | 12.5 | 80 | 0 | 2 MB | 1 |
| mesa | mqar | 2 | 400,000 | 1 kB | 1,000,000 | 1,000 | 12.5 | 80 | 0 | 2 MB | 1 |

- Means over trials, on a GPU. State after the task's length. Seconds are a trial's share of the cohort that it trained in, \
without compiling: to compare speed alone, see recallmap bench.
"""


def test_other_scores_parts_and_costs(records: list[Record]) -> None:
    assert render(further_tables(records), "markdown") == MARKDOWN


LATEX = r"""\begin{table}
\centering
\caption{mqar, accuracy by depth. Accuracy on test, percent: mean over seeds, $\pm$ half of the 95 \% t interval over seeds.}
\begin{tabular}{lllrr}
\toprule
architecture & state & seeds & depth 0 & depth 100 \\
\midrule
gla & 1 kB & 2 & 50.5 $\pm$6.4 & 40.5 $\pm$6.4 \\
mesa & 1 kB & 2 & \textbf{90.5} $\pm$6.4 & \textbf{80.5} $\pm$6.4 \\
\midrule
chance &  &  & 25.0 & 25.0 \\
ceiling &  &  & 100.0 & 100.0 \\
\bottomrule
\end{tabular}
\end{table}
"""

CSV = """\
table,kind,architecture,setting,state,column,mean,low,high,seeds,settings,failed,published,difference,chance,ceiling,mark,outside
"mqar, accuracy by depth",measured,gla,,1 kB,depth 0,0.5,,,1,1,0,,,0.25,1.0,,0
"mqar, accuracy by depth",measured,gla,,1 kB,depth 100,0.4,,,1,1,0,,,0.25,1.0,,0
"mqar, accuracy by depth",chance,chance,,,depth 0,0.25,,,0,0,0,,,,,,0
"mqar, accuracy by depth",chance,chance,,,depth 100,0.25,,,0,0,0,,,,,,0
"mqar, accuracy by depth",ceiling,ceiling,,,depth 0,1.0,,,0,0,0,,,,,,0
"mqar, accuracy by depth",ceiling,ceiling,,,depth 100,1.0,,,0,0,0,,,,,,0
"""

HTML = """\
<figure class="table"><figcaption><h3>mqar, accuracy by depth</h3></figcaption><div class="wide" tabindex="0" role="region" \
aria-label="mqar, accuracy by depth"><table class="sortable" data-table="0"><thead><tr><th scope="col">architecture</th>\
<th scope="col">state</th><th scope="col">seeds</th><th scope="col" class="figure">depth&nbsp;0</th>\
<th scope="col" class="figure">depth&nbsp;100</th></tr></thead>
<tbody><tr class="measured" data-line="0"><th scope="row">gla</th><td>1&nbsp;kB</td><td>1</td>\
<td class="figure" data-value="0.5">50.0</td><td class="figure" data-value="0.4">40.0</td></tr></tbody>
"""


def test_a_cut_as_latex(records: list[Record]) -> None:
    assert render(tables_by(records, "depth"), "latex") == LATEX


def test_a_cut_as_csv(records: list[Record]) -> None:
    assert render(tables_by(records[2:3], "depth"), "csv") == CSV


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
    with pytest.raises(ValueError, match="nothing here varies by 'depth', may come pairs, window"):
        tables_by(records, "depth")


def test_parts_of_several_settings_stand_below_each_other(make: Make) -> None:
    records = []
    for pairs in (4, 8):
        record = make(dials={"pairs": pairs})
        record.scores.update({f"accuracy/depth={d}": 0.5 for d in (0, 100)})
        records.append(record)
    (table,) = tables_by(records, "depth")
    assert table.corner == ("architecture", "setting", "state", "seeds")
    assert [line.labels[1] for line in table.lines] == ["pairs 4", "pairs 8", ""]


def test_a_loss_is_best_where_it_is_smallest(make: Make) -> None:
    records = []
    for arch, distance in (("a", 0.4), ("b", 0.1)):
        record = make(arch=arch)
        record.scores["tvd"] = distance
        records.append(record)
    table = further_tables(records)[0]
    assert [(line.labels[0], line.cells[0].mark) for line in table.lines] == [("b", "best"), ("a", "")]
