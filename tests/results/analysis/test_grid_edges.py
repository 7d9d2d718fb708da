"""Where the best learning rate is at the edge of its grid, one an octave further is proposed; of a grid of one, both sides."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recallmap.results.analysis.grid_edges import at_edges, of_one_rate
from recallmap.results.record import Record, write_records
from recallmap.search.cli.app import app

Make = Callable[..., Record]


def grid(make: Make, best: float, score: float = 0.8) -> list[Record]:
    return [make(training={"lr": lr}, score=score - 0.1 * (lr != best)) for lr in (1e-3, 3e-3, 1e-2)]


@pytest.mark.parametrize(("best", "edge", "further"), [(1e-2, "highest", 2e-2), (1e-3, "lowest", 5e-4)])
def test_a_rate_an_octave_beyond_the_edge_is_proposed(make: Make, best: float, edge: str, further: float) -> None:
    (found,) = at_edges(grid(make, best))
    assert (found.row, found.edge, found.rate, found.further) == ("mesa", edge, best, further)


def test_what_is_inside_the_grid_or_at_the_ceiling_is_left_alone(make: Make) -> None:
    assert at_edges(grid(make, 3e-3)) == []
    assert at_edges(grid(make, 1e-2, score=1.0)) == []
    assert of_one_rate(grid(make, 3e-3)) == of_one_rate(grid(make, 1e-2)) == []


def test_a_grid_of_one_rate_is_both_edges_whatever_else_was_tried(make: Make) -> None:
    alone = [make(training={"lr": 4e-3, "weight_decay": decay}, score=0.8) for decay in (0.0, 0.1)]
    (found,) = of_one_rate(alone)
    assert (found.row, found.rate, found.lower, found.higher) == ("mesa", 4e-3, 2e-3, 8e-3)
    assert at_edges(alone) == []  # a run that extends its grid goes on from an edge alone


def test_a_grid_of_one_rate_is_left_alone_at_the_ceiling_and_where_nothing_finished(make: Make) -> None:
    assert of_one_rate([make(training={"lr": 4e-3}, score=1.0)]) == []
    assert of_one_rate([make(training={"lr": 4e-3}, error="diverged")]) == []
    assert of_one_rate([replace(make(score=0.8), spec={"task": {"kind": "mqar"}})]) == []  # nothing was tried


def test_the_command_prints_what_to_run(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    write_records(path, grid(make, 1e-2))
    said = CliRunner().invoke(app, ["extend", str(path)], catch_exceptions=False).output
    assert "best at 0.01, the highest rate; try 0.02" in said
    assert said.endswith("next: recallmap run STUDY --set 'space.axes.trial.training.lr=[0.02]'\n")
    write_records(path, grid(make, 3e-3))
    said = CliRunner().invoke(app, ["extend", str(path)], catch_exceptions=False).output
    assert said == "every best learning rate is inside its grid, or at the ceiling\n"


def test_the_command_names_what_one_rate_cannot_tell_beside_what_is_at_an_edge(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    alone = make(arch="gla", training={"lr": 4e-3}, score=0.8)
    for records, rates in (([alone], "0.002,0.008"), ([alone, *grid(make, 1e-2)], "0.002,0.008,0.02")):
        write_records(path, records)
        said = CliRunner().invoke(app, ["extend", str(path)], catch_exceptions=False).output
        assert (
            "trained at 0.004 alone, and a grid of one rate cannot tell whether it is the best; try 0.002 and 0.008"
            in said
        )
        assert "inside its grid" not in said
        assert said.endswith(f"next: recallmap run STUDY --set 'space.axes.trial.training.lr=[{rates}]'\n")


def test_the_printed_command_is_one_that_a_study_of_several_grids_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["extend", "demo"], catch_exceptions=False).stdout
    assert "mamba2 key_dim=16 value_dim=16 on mqar fillers true length 64 pairs 4" in said
    assert (
        "attention head_dim=16 on selective_copying copies 4 length 32 vocab 8: best at 0.003, the lowest rate" in said
    )
    _, _, *words = shlex.split(said.splitlines()[-1])
    result = CliRunner().invoke(app, [*words, "--dry-run"], catch_exceptions=False)
    assert (words[:2], result.exit_code) == (["run", "demo"], 0)


def test_the_command_table_chooses_one_cell_a_task_where_asked(make: Make, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    scores = {1e-3: (0.71, 0.72), 1e-2: (0.93, 0.41)}
    rows = [(lr, 4 * 2**n, score) for lr, own in scores.items() for n, score in enumerate(own)]
    write_records(path, [make(training={"lr": lr}, dials={"pairs": pairs}, score=score) for lr, pairs, score in rows])
    each, one = (
        CliRunner().invoke(app, ["table", str(path), *more], catch_exceptions=False).output
        for more in ([], ["--one-cell"])
    )
    assert [score in each for score in ("93.0", "72.0")] == [True, True]
    assert [score in one for score in ("71.0", "72.0", "93.0")] == [True, True, False]
    assert "One cell of hyper-parameters a task" in one
