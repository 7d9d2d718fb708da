"""Tables say what was measured, beside what was published, and hide nothing that failed."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from recallmap.results.analysis.confidence import bounded_interval
from recallmap.results.analysis.published_figures import Column, Published, PublishedTable, Row
from recallmap.results.record import Record
from recallmap.results.score_tables.breakdowns import all_tables, further_tables
from recallmap.results.score_tables.notes import BELOW_CHANCE
from recallmap.results.score_tables.rendering import html, latex, markdown, render
from recallmap.results.score_tables.scores import table_of
from recallmap.results.score_tables.table import MAD, Cell, Line, Table, more_is_better
from recallmap.synth.tasks import Task

Make = Callable[..., Record]

MESANET = Published.from_dict(
    {
        "name": "a_paper",
        "source": "A paper",
        "tables": [
            {
                "about": "mad",
                "where": "Table 9",
                "unit": "percent",
                "columns": [
                    {"name": "recall", "tasks": ["in_context_recall", "noisy_in_context_recall"], "settings": 2},
                    {"name": "copying", "tasks": ["selective_copying"], "settings": 13},
                    {"name": "average", "mean": True},
                ],
                "rows": [{"arch": "mesa", "values": [100, 96, 98]}, {"arch": "hawk", "values": [90, 80, 85]}],
            }
        ],
    }
)


@pytest.fixture
def small(make: Make) -> list[Record]:
    """Two architectures on three tasks; one trial failed."""
    scores = {"in_context_recall": 0.9, "noisy_in_context_recall": 0.7, "selective_copying": 0.95}
    records = [
        make(
            arch=arch,
            task=task,
            seed=seed,
            score=score * skill + (0.01 if seed else 0.0),
            chance=0.1,
            state_bytes=state,
        )
        for arch, skill, state in (("gla", 0.5, 16384), ("mesa", 1.0, 65536))
        for task, score in scores.items()
        for seed in range(2)
    ]
    return [*records, make(arch="gla", task="selective_copying", seed=2, error="out of memory", chance=0.1)]


def line(table: Table, name: str) -> Line:
    return next(one for one in table.lines if one.labels[0] == name)


def cell(table: Table, row: str, column: str) -> Cell:
    return line(table, row).cells[table.columns.index(column)]


# Golden texts: what a user reads

MARKDOWN = """\
### MAD

| architecture | state | seeds | recall | copying | average |
| --- | --- | --- | ---: | ---: | ---: |
| mesa | 65.5 kB | 2 | **80.5** (80.0 / 81.0) | **95.5** (95.0 / 96.0) | **88.0** (87.5 / 88.5) |
| *↳ published* |  |  | 100.0 | 96.0 | 98.0 |
| *↳ difference* |  |  | −19.5 | – | – |
| gla | 16.4 kB | 2 | 40.5 (40.0 / 41.0) | 48.0 (47.5 / 48.5) †1 | 44.2 (43.8 / 44.8) †1 |
| chance |  |  | 10.0 | 10.0 | 10.0 |
| ceiling |  |  | 100.0 | 100.0 | 100.0 |
| hawk (published) |  |  | 90.0 | 80.0 | 85.0 |

- Accuracy on test, percent: mean over seeds, in parentheses both of two seeds.
- †n: n trials behind the figure failed, under any hyper-parameters; they are in no mean.
- Settings in a column, here / published: recall 2 / 2, copying 1 / 13.
- No difference is given where a column has not as many settings as the published one.
- Published figures are of protocol mad-lab, ours of repaired: differences are not like for like.
- Published: A paper, Table 9.
- Protocol: repaired.
"""


def test_markdown_beside_a_paper(small: list[Record]) -> None:
    (table,) = table_of(small, MESANET)
    assert markdown(table) == MARKDOWN


CAPTION = (
    "mqar, one seed. Accuracy on test, percent: mean over seeds, no interval, which needs three seeds. "
    "Everywhere: vocab 256. Protocol: repaired."
)
LATEX = r"""\begin{table}
\centering
\caption{@}
\begin{tabular}{lllr}
\toprule
architecture & state & seeds & length 64, pairs 4 \\
\midrule
gated\_deltanet & 512 B & 1 & \textbf{90.0} \\
mesa & 1 kB, grows & 1 & 80.0 \\
\midrule
chance &  &  & 25.0 \\
ceiling &  &  & 100.0 \\
\bottomrule
\end{tabular}
\end{table}
""".replace("@", CAPTION)


def test_latex(make: Make) -> None:
    records = [make(score=0.8, state_grows=True), make(arch="gated_deltanet", score=0.9, state_bytes=512)]
    (table,) = table_of(records)
    assert latex(table) == LATEX


def test_csv_has_a_figure_a_line_unrounded(small: list[Record]) -> None:
    rows = list(csv.DictReader(io.StringIO(render(table_of(small, MESANET), "csv"))))
    assert len(rows) == 5 * 3
    (own,) = [r for r in rows if (r["architecture"], r["column"]) == ("mesa", "recall")]
    assert float(own["mean"]) == pytest.approx(0.805)
    assert float(own["published"]) == 1.0
    assert float(own["difference"]) == pytest.approx(-0.195)
    assert (own["seeds"], own["settings"], own["failed"], own["mark"]) == ("2", "2", "0", "best")


def test_html_keeps_names_harmless(make: Make) -> None:
    (table,) = table_of([make(arch="<script>alert(1)</script>|&")])
    assert "<script>" not in html(table)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;|&amp;" in html(table)
    assert "| &lt;script>alert(1)&lt;/script>\\|& |" in markdown(table)


def test_markdown_reads_nothing_into_names(make: Make) -> None:
    (table,) = table_of([make(arch="*a* [b](c) `d` _e_ g_h")])
    assert r"| \*a\* \[b\](c) \`d\` \_e\_ g_h |" in markdown(table)


def test_an_unknown_format_says_the_known_ones(small: list[Record]) -> None:
    with pytest.raises(ValueError, match="markdown, csv, latex or html, got 'word'"):
        render(table_of(small), "word")  # type: ignore[arg-type]


# Which tables there are


def test_a_study_of_several_tasks_gives_a_table_of_mad_and_one_for_each_other_task(study: list[Record]) -> None:
    tables = table_of(study)
    assert [t.title for t in tables] == ["MAD", "mqar"]
    assert tables[0].columns == (*MAD.values(), "mean")
    assert tables[1].columns == ("length 64, pairs 4", "length 128, pairs 8", "length 256, pairs 16", "mean")


def test_one_task_of_mad_alone_is_shown_by_setting(make: Make) -> None:
    (table,) = table_of([make(task="selective_copying", dials={"copies": n}) for n in (64, 16, 32)])
    assert table.title == "selective_copying"
    assert table.columns == ("copies 16", "copies 32", "copies 64", "mean")
    assert "Everywhere: vocab 16, length 256." in table.notes


def test_settings_that_differ_in_data_are_columns_of_their_own(make: Make) -> None:
    (table,) = table_of([make(task="compression", data={"train": n}) for n in (800, 12800)])
    assert table.columns == ("train 800", "train 12800", "mean")


def test_columns_have_names_of_their_own(make: Make) -> None:
    twins = [make(task="compression", data={"train": None, "pool": {"size": n}, "hall": {"size": n}}) for n in (1, 2)]
    fresh = make(task="compression", data={"pool": {"size": 1}, "hall": {"size": 2}})
    (table,) = table_of([*twins, fresh])
    assert len(set(table.columns)) == 4


def test_what_one_setting_says_beyond_another_tells_them_apart(make: Make) -> None:
    plain, mixed = make(task="compression", score=1.0), make(task="compression", data={"train": 800}, score=0.3)
    (table,) = table_of([plain, mixed])
    assert table.columns[:2] == ("train 800", "default")
    assert [cell(table, "mesa", name).mean for name in table.columns[:2]] == [0.3, 1.0]


def test_protocols_are_kept_apart_and_a_published_one_is_shown_both_ways(make: Make) -> None:
    tasks = ("compression", "memorization")
    records = [make(task=t, protocol="mad-lab", score=0.5, published_choice={"accuracy": 0.75}) for t in tasks]
    tables = table_of(records + [make(task=t) for t in tasks])
    assert [t.title for t in tables] == [
        "MAD, protocol mad-lab",
        "MAD, protocol mad-lab as published: chosen on test",
        "MAD",
    ]
    assert [cell(t, "mesa", "compression").mean for t in tables[:2]] == [0.5, 0.75]
    assert not any("chosen on the test set" in note for note in tables[0].notes)
    assert any("chosen on the test set" in note and "honest one" in note for note in tables[1].notes)


def test_no_records_make_no_tables() -> None:
    assert table_of([]) == []


# Honesty


def test_a_task_is_the_mean_of_its_settings_and_a_column_of_its_tasks(make: Make) -> None:
    clean = [make(task="in_context_recall", dials={"length": n}, score=s) for n, s in ((128, 0.9), (256, 0.5))]
    noisy = [make(task="noisy_in_context_recall", score=0.3)]
    copying = [make(task="selective_copying", score=0.4)]
    (table,) = table_of(clean + noisy + copying, MESANET)
    assert cell(table, "mesa", "recall").mean == pytest.approx((0.7 + 0.3) / 2)
    assert cell(table, "mesa", "average").mean == pytest.approx((0.5 + 0.4) / 2)


def test_a_mean_over_tasks_needs_all_of_them(small: list[Record]) -> None:
    (table,) = table_of(small)
    assert cell(table, "mesa", "in-context recall").mean == pytest.approx(0.905)
    assert cell(table, "mesa", "compression").mean is None
    assert cell(table, "mesa", "mean").mean is None
    assert any("Not trained here: fuzzy recall, compression, memorization" in note for note in table.notes)


def test_a_column_with_a_setting_missing_is_set_beside_nothing(make: Make) -> None:
    archs = ("gla", "hawk", "mesa", "mlstm")
    columns = (Column(name="compression", tasks=("compression",)), Column(name="memorization", tasks=("memorization",)))
    rows = tuple(Row(arch=arch, values=(n / 4, n / 4)) for n, arch in enumerate(archs))
    paper = PublishedTable(about="mad", where="Table 9", columns=columns, rows=rows)
    records = [make(task=t, arch=a, score=n / 4) for n, a in enumerate(archs) for t in ("compression", "memorization")]
    harder = [make(task="compression", arch=a, dials={"vocab": 64}, score=0.1) for a in archs[1:]]
    (mad,) = table_of(records + harder, Published(name="a_paper", source="A paper", tables=(paper,)))
    assert cell(mad, "gla", "compression").mark == "partial"
    assert cell(mad, "gla", "compression").difference is None
    assert any("memorization +1.00 of 4" in note and "compression" not in note for note in mad.notes)


def test_a_column_with_a_setting_missing_is_marked_and_cannot_be_best(make: Make) -> None:
    easy = [make(task="parity", arch="gla", dials={"length": 40}, score=0.99)]
    both = [make(task="parity", dials={"length": n}, score=s) for n, s in ((40, 0.9), (80, 0.5))]
    copying = [make(task=t, arch=a) for t in ("compression", "memorization") for a in ("gla", "mesa")]
    harder = [make(task="compression", dials={"vocab": 64}, score=0.1)]
    parity, mad = (
        next(t for t in table_of(easy + both + copying + harder) if t.title == name) for name in ("parity", "MAD")
    )
    assert cell(parity, "gla", "mean").mean is None
    assert cell(mad, "gla", "compression").mark == "partial"
    assert cell(mad, "mesa", "compression").mark == "best"
    assert "50.0*" in markdown(mad)
    assert any(note.startswith("*:") for note in mad.notes)


def test_failures_are_counted_where_they_are_missing(small: list[Record]) -> None:
    (table,) = table_of(small)
    assert cell(table, "gla", "selective copying").failed == 1
    assert cell(table, "gla", "in-context recall").failed == 0
    assert line(table, "gla").labels[2] == "2"


def test_an_architecture_that_always_failed_is_still_there(make: Make) -> None:
    (table,) = table_of([make(), make(arch="gla", error="out of memory"), make(arch="gla", seed=1, error="diverged")])
    assert "| gla | 1 kB | 0 | failed †2 |" in markdown(table)
    assert "failed <small>†2</small>" in html(table)


def test_the_interval_is_over_seeds_of_the_mean_not_over_settings(make: Make) -> None:
    records = [
        make(task="parity", seed=s, dials={"length": n}, score=v) for s in range(3) for n, v in ((40, 0.9), (80, 0.1))
    ]
    (table,) = table_of(records)
    found = cell(table, "mesa", "mean")
    assert found.spread == pytest.approx((0.5, 0.5))
    assert found.interval == bounded_interval([0.5] * 3, found.chance or 0.0, 1.0)


def test_the_interval_is_that_of_the_mean_where_a_setting_lacks_a_seed(make: Make) -> None:
    records = [make(task="parity", seed=s, dials={"length": 40}, score=0.9 - 0.3 * (s == 2)) for s in range(3)]
    records += [make(task="parity", seed=s, dials={"length": 80}, score=0.5) for s in range(2)]
    mean = cell(table_of(records)[0], "mesa", "mean")
    assert (mean.mean, mean.spread, mean.seeds) == (pytest.approx(0.7), pytest.approx((0.7, 0.7)), 2)


@pytest.mark.parametrize(("rate", "mark"), [(1e-2, "↑"), (1e-3, ""), (1e-4, "↓")])
def test_a_figure_says_that_it_is_best_at_the_edge_of_the_grid(make: Make, rate: float, mark: str) -> None:
    records = [make(training={"lr": lr}, score=0.5 + 0.1 * (lr == rate)) for lr in (1e-4, 1e-3, 1e-2)]
    (table,) = table_of(records)
    assert f"| 60.0{mark} |" in markdown(table)
    assert f">60.0{mark}<" in html(table)
    assert any(note.startswith("↑, ↓:") for note in table.notes) == bool(mark)


@pytest.mark.parametrize(("score", "said"), [(0.05, 1), (0.245, 0), (0.25, 0), (0.9, 0)])
def test_a_figure_below_chance_is_explained_once(score: float, said: int, make: Make) -> None:
    records = [make(arch=arch, score=score, chance=0.25, seed=seed) for arch in ("gla", "mesa") for seed in (0, 1)]
    (table,) = table_of(records)
    assert table.notes.count(BELOW_CHANCE) == said
    (losses,) = table_of([replace(record, metric="explained", scores={"explained": score}) for record in records])
    assert BELOW_CHANCE not in losses.notes  # where no id is guessed


def test_a_figure_has_the_standard_error_of_its_test_sequences(make: Make) -> None:
    """Seeds and settings have test sequences of their own: variances of a mean add up, over the square of their number."""
    records = [
        replace(
            make(seed=seed, dials={"pairs": pairs}), scores={"accuracy": 0.5, "loss": 0.7, "accuracy_stderr": error}
        )
        for pairs, errors in ((4, (0.03, 0.04)), (8, (0.06, 0.08)))
        for seed, error in enumerate(errors)
    ]
    (table,) = table_of(records)
    each, other, mean = table.lines[0].cells
    assert (each.sampling, other.sampling) == pytest.approx((0.025, 0.05))
    assert mean.sampling == pytest.approx(np.hypot(0.025, 0.05) / 2)
    assert "| 50.0 ±2.5 (50.0 / 50.0) |" in markdown(table)
    assert "±: the standard error that the test sequences alone give" in markdown(table)
    assert next(csv.DictReader(render([table], "csv").splitlines()))["stderr"] == "0.025"
    assert [other.title for other in all_tables(records)] == ["mqar", "Cost and speed"]  # no table of errors
    older = [*records[1:], replace(records[0], scores={"accuracy": 0.5})]
    assert [cell.sampling for cell in table_of(older)[0].lines[0].cells] == [None, pytest.approx(0.05), None]


SHORTCUTS = {"one_hop": 0.5, "two_hops": 0.7}


def test_scores_of_shortcuts_are_lines_and_mark_what_does_not_lie_above_them(make: Make) -> None:
    """Who scores as a shortcut does has not learnt the task. A line is of the setting that has it, and of no other score."""
    marked = {"mesa": (0.65, "§2"), "gla": (0.3, "§1"), "hawk": (0.9, "")}
    longer = {"task": "mqar", "setting": "length=128", "length": 128, "chance": 0.2, "ceiling": 1.0}
    tests = [{**longer, "scores": {"accuracy": 0.3}}]
    specs = [{"task": {"kind": "mqar", "length": 128}}]
    records = [make(arch=arch, score=score, references=SHORTCUTS) for arch, (score, _) in marked.items()]
    (table,) = table_of(records)
    assert [(of.labels[0], of.cells[0].mean) for of in table.lines[3:]] == [
        ("chance", 0.25),
        ("one_hop", 0.5),
        ("two_hops", 0.7),
        ("ceiling", 1.0),
    ]
    assert {arch: line(table, arch).cells[0].not_above for arch in marked} == {
        a: mark for a, (_, mark) in marked.items()
    }
    assert "| gla | 1 kB | 1 | 30.0§1 |" in markdown(table)
    assert any("§1 one_hop, §2 two_hops" in note for note in table.notes)
    (table,) = table_of([make(score=0.5, references={"one_hop": 0.5}, tests=tests, test_specs=specs)])
    assert [cell.mean for cell in line(table, "one_hop").cells] == [0.5, None, None]
    assert [cell.not_above for cell in line(table, "mesa").cells] == ["§", "", ""]
    others = further_tables([replace(r, scores={**r.scores, "tvd": 0.1}) for r in records])
    assert others[0].title == "mqar, TVD"
    assert all(of.kind != "reference" and not of.cells[0].not_above for other in others for of in other.lines)


def test_copying_is_set_beside_the_bits_of_the_string_and_of_the_state(make: Make) -> None:
    """Whether a memory copies less than its state could hold. What was trained at another length does not belong there."""
    alike = {"task": "rearrangement", "chance": 1 / 16}
    further = {"task": "rearrangement", "setting": "length=32", "length": 65, "chance": 1 / 16, "ceiling": 1.0}
    tests = {
        "tests": [{**further, "scores": {"accuracy": 0.1}}],
        "test_specs": [{"kind": "rearrangement", "rule": "copy", "alphabet": 16, "length": 32}],
    }
    records = [
        make(arch=arch, dials={"length": length}, state_bytes=state, score=0.5, **alike, **tests)
        for arch, state in (("mesa", 64), ("gla", 32))
        for length in (8, 16)
    ]
    table = next(table for table in further_tables(records) if "copied" in table.title)
    assert [(one.labels[:2], *(cell.mean for cell in one.cells)) for one in table.lines] == [
        (("gla", "length 8"), 32.0, 256.0, 8.0, 0.5),
        (("gla", "length 16"), 64.0, 256.0, 4.0, 0.5),
        (("mesa", "length 8"), 32.0, 512.0, 16.0, 0.5),
        (("mesa", "length 16"), 64.0, 512.0, 8.0, 0.5),
        (("chance", ""), None, None, None, 1 / 16),
    ]
    distinct = [make(dials={"length": n, "repeats": False}, state_bytes=8, **alike) for n in (1, 2)]
    table = next(table for table in further_tables(distinct) if "copied" in table.title)
    assert table.lines[1].cells[0].mean == pytest.approx(np.log2(16 * 15))
    alone = further_tables([record for record in records if record.setting == ""])
    assert not any("copied" in table.title for table in alone)


def test_at_the_ceiling_the_edge_of_the_grid_does_not_matter(make: Make) -> None:
    (table,) = table_of([make(training={"lr": lr}, score=1.0 - lr) for lr in (1e-4, 1e-3)])
    assert cell(table, "mesa", "length 64, pairs 4").edge == ""


def test_a_figure_with_two_peaks_says_how_many_seeds_learned(make: Make) -> None:
    scores = [0.99, 0.98, 0.26, 0.97, 0.25]
    (table,) = table_of([make(seed=seed, score=score) for seed, score in enumerate(scores)])
    assert "] 3/5 |" in markdown(table)
    assert any("Wilson's 95 % intervals: 3/5 [23, 88] %" in note for note in table.notes)
    one_peak = table_of([make(seed=seed, score=0.9 + seed / 100) for seed in range(5)])[0]
    assert one_peak.lines[0].cells[0].learned is None


def test_the_seeds_that_chose_hyper_parameters_are_named_as_part_of_the_mean(make: Make) -> None:
    chosen = [make(training={"lr": lr}, score=lr) for lr in (1e-3, 1e-2)]
    assert any(note.startswith("Seeds that chose") for note in table_of(chosen)[0].notes)
    assert not any(note.startswith("Seeds that chose") for note in table_of(chosen[:1])[0].notes)


def test_averages_over_mad_have_an_interquartile_mean_beside_the_plain_one(make: Make) -> None:
    scores = {
        "compression": 0.2,
        "memorization": 0.5,
        "parity": 0.5,
        "in_context_recall": 0.6,
        "selective_copying": 1.0,
    }
    records = [make(task=task, score=score, chance=0.0) for task, score in scores.items()]
    records.append(make(arch="gla", task="compression"))  # without the other tasks it has no average
    table = next(t for t in further_tables(records) if t.title == "MAD, averages")
    assert [line.labels[0] for line in table.lines] == ["mesa"]
    assert [c.mean for c in table.lines[0].cells] == [pytest.approx(0.575), pytest.approx(0.55)]
    assert table.heading == "MAD, averages, one seed"


def test_what_was_not_trained_did_not_fail(make: Make) -> None:
    tasks = ("compression", "memorization")
    records = [
        *(make(arch="gla", task=t) for t in tasks),
        make(task=tasks[0]),
        make(task=tasks[0], seed=1, error="lost"),
    ]
    (mad,) = table_of(records)
    assert (cell(mad, "mesa", "compression").failed, cell(mad, "mesa", "mean").failed) == (1, 0)


def test_the_best_shares_its_mark_with_what_reads_the_same(make: Make) -> None:
    (table,) = table_of([make(arch=a, score=s) for a, s in (("a", 0.90001), ("b", 0.9), ("c", 0.8))])
    assert [one.cells[0].mark for one in table.lines[:3]] == ["best", "best", ""]


def test_of_the_headline_of_every_task_more_is_better_and_of_losses_and_distances_less() -> None:
    assert [task.kind for task in get_args(Task) if not more_is_better(task.metric)] == []
    less = ("loss", "nats", "tvd", "mse", "squared_error", "relative_error", "cg_steps", "loss/position=3_to_4")
    assert [name for name in less if more_is_better(name)] == []


def test_the_highest_is_the_best_of_a_score_that_is_no_accuracy(make: Make) -> None:
    records = [
        replace(make(arch=arch, metric="legal"), scores={"legal": score}, validation={"legal": score})
        for arch, score in (("gla", 0.6), ("mesa", 0.7))
    ]
    best = [line.labels[0] for line in table_of(records)[0].lines if line.cells[0].mark == "best"]
    assert best == ["mesa"]


def test_sizes_of_one_architecture_stand_together_by_state(make: Make) -> None:
    sizes = [
        make(arch=a, arch_dials={"width": w}, state_bytes=w * 100, score=w / 300)
        for w in (256, 64)
        for a in ("mesa", "gla")
    ]
    (table,) = table_of(sizes)
    assert [one.labels[:2] for one in table.lines[:4]] == [
        ("gla width=64", "6.4 kB"),
        ("gla width=256", "25.6 kB"),
        ("mesa width=64", "6.4 kB"),
        ("mesa width=256", "25.6 kB"),
    ]


# Beside published figures

README = {"vocab": 8192, "length": 64, "pairs": 4}
FIGURE: dict[str, Any] = {
    "name": "z",
    "source": "Z",
    "tables": [
        {
            "about": "mqar",
            "where": "figure",
            "how": "digitised",
            "tolerance": 0.004,
            "columns": [{"name": "one", "tasks": ["mqar"], "dials": README}],
            "rows": [
                {"arch": "mesa", "dials": {"width": 64}, "values": [0.9]},
                {"arch": "mesa", "note": "other", "values": [0.1]},
            ],
        }
    ],
}


def published(records: list[Record], figure: dict[str, Any] = FIGURE) -> float | None:
    (table,) = table_of(records, Published.from_dict(figure))
    return table.lines[0].cells[-1].published


def test_a_figure_is_set_beside_the_same_setting_and_size_alone(make: Make) -> None:
    same = {"dials": README, "arch_dials": {"width": 64}}
    assert published([make(**same)]) == 0.9
    assert published([make(**{**same, "dials": {**README, "vocab": 256}})]) is None
    assert published([make(**{**same, "arch_dials": {"width": 128}})]) is None
    assert published([make(**same, arch="gla")]) is None


def test_an_architecture_of_ours_may_stand_for_one_of_another_name(make: Make) -> None:
    row = {"arch": "transformer", "ours": ["attention"], "values": [0.8]}
    figure = {**FIGURE, "tables": [{**FIGURE["tables"][0], "rows": [row]}]}
    assert published([make(arch="attention", dials=README)], figure) == 0.8
    assert published([make(arch="transformer", dials=README)], figure) is None


def test_a_model_trained_on_a_mix_is_not_set_beside_one_trained_on_the_setting(make: Make) -> None:
    record = make(dials=README, arch_dials={"width": 64})
    record.spec["mix"] = [{"task": {"kind": "mqar"}, "examples": 100}]
    assert published([record]) is None
    mixed = {**FIGURE, "tables": [{**FIGURE["tables"][0], "mix": True}]}
    assert published([record], mixed) == 0.9


def test_the_order_of_architectures_is_held_against_the_published_one(make: Make) -> None:
    names, ours, theirs = ("mesa", "gla", "hawk", "mamba2"), (0.9, 0.8, 0.70004, 0.7), (60, 70, 30, 20)
    columns = [
        {"name": n, "tasks": [t], "settings": 25}
        for n, t in (("recall", "in_context_recall"), ("copying", "selective_copying"))
    ]
    rows = [{"arch": arch, "values": [value, None]} for arch, value in zip(names, theirs, strict=True)]
    table = {"about": "mad", "where": "", "unit": "percent", "columns": columns, "rows": rows}
    source = Published.from_dict({"name": "a_paper", "source": "A paper", "tables": [table]})
    records = [make(arch=a, task="in_context_recall", score=s) for a, s in zip(names, ours, strict=True)]

    def told(records: list[Record]) -> list[str]:
        also = make(arch="mesa", task="selective_copying")
        (found,) = [t for t in table_of([*records, also], source) if t.title == "MAD"]
        return [note for note in found.notes if note.startswith("Rank correlation")]

    (note,) = told(records)
    assert note.endswith(": recall +0.74 of 4.")  # the last two read the same: ranks 4, 3, 1.5, 1.5 against 3, 4, 2, 1
    (note,) = told([replace(record, scores={"accuracy": 1.0}) for record in records])
    assert note.endswith(": recall all alike of 4.")
    assert told(records[:3]) == []
    (note,) = told([*records, make(arch="mesa", arch_dials={"init": "torch"}, task="in_context_recall", score=0.1)])
    assert note.endswith(": recall +0.74 of 4.")  # of two rows beside one published figure the better counts


def test_a_published_mean_needs_the_settings_that_it_averages(make: Make) -> None:
    over = [{"pairs": 4}, {"pairs": 8}]
    mean = {**FIGURE["tables"][0], "columns": [{"name": "mean", "mean": True, "over": over}]}
    mean["rows"] = [{"arch": "mesa", "values": [0.7]}]
    figure = {**FIGURE, "tables": [mean]}
    assert published([make(dials={"pairs": n}) for n in (4, 8)], figure) == 0.7
    assert published([make(dials={"pairs": n}) for n in (4, 16)], figure) is None
    assert published([make(dials={"pairs": n}) for n in (4, 8, 16)], figure) is None


def test_the_mean_of_a_task_of_mad_stands_beside_its_published_column(make: Make) -> None:
    """Where it is over as many settings; one setting alone never does."""
    columns = [
        {"name": "memory", "tasks": ["memorization"], "settings": 2},
        {"name": "recall", "tasks": ["in_context_recall"], "settings": 2},
        {"name": "average", "mean": True},
    ]
    rows = [{"arch": "mesa", "values": [0.7, 0.5, 0.6]}]
    figure = {**FIGURE, "tables": [{"about": "mad", "where": "", "columns": columns, "rows": rows}]}

    def told(*vocabs: int) -> list[float | None]:
        records = [make(task="memorization", dials={"vocab": vocab}) for vocab in vocabs]
        (table,) = table_of(records, Published.from_dict(figure))
        return [cell.published for cell in table.lines[0].cells]

    assert told(256, 512) == [None, None, 0.7]
    assert told(256, 512, 1024) == [None, None, None, None]
    assert told(256) == [None]


def test_how_sure_published_figures_are_is_said(make: Make) -> None:
    (table,) = table_of([make(dials=README)], Published.from_dict(FIGURE))
    assert "Published: Z, figure, digitised to ±0.4 points." in table.notes


def test_a_source_that_has_nothing_to_compare_with_says_so(make: Make) -> None:
    (table,) = table_of([make(dials={"vocab": 256})], Published.from_dict(FIGURE))
    assert table.notes[-1] == "Published: Z has no figure for these settings, trained like this."


# On a terminal. --------------------------------------------------------------------------------------


def test_a_table_that_fits_is_as_it_is_in_a_file(small: list[Record]) -> None:
    (table,) = table_of(small, MESANET)
    rows = [line for line in markdown(table, width=1000).splitlines() if line.startswith("|")]
    assert rows == [line for line in markdown(table).splitlines() if line.startswith("|")]
    assert render([table], "markdown", width=1000) == markdown(table, width=1000)
