"""Better than random is a test over repeats, here of searches whose answers nobody trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.proposers import sampler_comparison
from recallmap.search.proposers.journal import Journal
from recallmap.search.proposers.proposer import Answer
from recallmap.search.space.search_space import Search
from recallmap.search.study.spec import StudySpec

STUDY = """
name: contest
trial: {task: mqar, arch: gla, training: {steps: 1}}
space:
  kind: evolution
  population: 2
  beside: [random]
  points: 8
  generation: 2
  dials: {trial.training.lr: {float: [0.01, 1.0]}}
goals: [{score: accuracy, direction: maximise}]
"""

Score = Callable[[str, int], float]  # of a point: by its sampler and its place


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "contest.yaml").write_text(STUDY, encoding="utf-8")
    return tmp_path


def repeats(count: int = 5) -> list[StudySpec]:
    return [codec.read_study(Path("contest.yaml"), overrides=[f"space.seed={seed}"]) for seed in range(count)]


def answered(score: Callable[[int], Score], count: int = 5) -> Journal:
    """The journal of repeats that are finished."""
    journal = Journal(Path("runs") / "contest.journal")
    for seed, of in enumerate(repeats(count)):
        assert isinstance(of.space, Search)
        for arm in of.space.arms:
            proposer = journal.proposer(of.address(arm), of.space, arm, [True])
            for place in range(of.space.points):
                proposer.tell(proposer.ask(), Answer(end="done", values=(score(seed)(arm, place),)))
    return journal


def rising(lead: float) -> Callable[[int], Score]:
    """Scores that rise from 0 to 0.5, or those of evolution to a lead that is as large again in the last of five repeats."""

    def of(seed: int) -> Score:
        return lambda arm, place: place / 7 * (0.5 + lead * (1 + seed / 4) * arm.startswith("evolution"))

    return of


def test_a_sampler_that_leads_in_every_repeat_is_better_than_random() -> None:
    evolution, chance = sampler_comparison.standings(repeats(), answered(rising(0.25)))
    assert np.allclose(evolution.curves[:, -1], [0.75, 0.8125, 0.875, 0.9375, 1.0])
    assert np.allclose(chance.curves, [[place / 14 for place in range(8)]] * 5)
    assert evolution.comparison is not None
    assert evolution.comparison.paired
    assert evolution.comparison.difference == pytest.approx(0.375)
    assert evolution.p == pytest.approx(
        0.0011, abs=1e-4
    )  # t = 0.375 / (0.0988 / sqrt(5)) = 8.49 with 4 degrees of freedom
    assert (evolution.verdict, chance.verdict, chance.p) == ("better", "", None)
    low, high = evolution.after(8)[1] or (0, 0)
    assert low < evolution.after(8)[0] == 0.875 < high


@pytest.mark.parametrize(("lead", "count", "verdict"), [(-0.1, 5, "worse"), (0.0, 5, "undecided"), (0.2, 4, "")])
def test_a_verdict_needs_five_repeats_and_a_difference(lead: float, count: int, verdict: str) -> None:
    evolution, _ = sampler_comparison.standings(repeats(count), answered(rising(lead), count))
    assert evolution.verdict == verdict


def test_the_table_and_its_data_come_by_command() -> None:
    answered(rising(0.25))
    shown = CliRunner().invoke(app, ["best", "contest.yaml", "--repeats", "5"])
    assert shown.exit_code == 0, shown.output
    heads, _, ours, chance, *_ = (line for line in shown.output.splitlines() if line.strip())
    assert [head.strip() for head in heads.split("  ") if head.strip()] == [
        *("sampler", "after 2", "after 4", "after 8", "less random", "adjusted p", "than random"),
    ]
    assert ours.strip().startswith("evolution(population=2)")
    assert ours.rstrip().endswith("better")
    assert "0.375 [0.252, 0.498]" in ours
    assert chance.strip().startswith("random")
    assert "means over 5 repeats with 95 % intervals" in " ".join(shown.output.split())
    data = json.loads(CliRunner().invoke(app, ["best", "contest.yaml", "--repeats", "5", "--json"]).stdout)
    assert [one["sampler"] for one in data] == ["evolution(population=2)", "random"]
    assert len(data[0]["mean"]) == len(data[0]["intervals"]) == 8
    assert data[0]["verdict"] == "better"


def test_repeats_may_begin_at_a_later_seed() -> None:
    answered(lambda seed: rising(0.25 if seed else -0.4)(seed))  # all of them but the first are for evolution
    told = {
        asked: json.loads(CliRunner().invoke(app, ["best", "contest.yaml", "--repeats", asked, "--json"]).stdout)
        for asked in ("5", "0-4", "1-4")
    }
    assert told["5"] == told["0-4"]
    assert [len(told[asked][0]["curves"]) for asked in ("5", "1-4")] == [5, 4]
    assert told["1-4"][0]["curves"] == told["5"][0]["curves"][1:]


def test_what_cannot_be_compared_is_refused_with_a_remedy() -> None:
    answered(rising(0.0), 2)
    for more, said in (
        (("--repeats", "1"), "--repeats must be from 2 to 1000, or the first and the last of so many seeds"),
        (("--repeats", "3-3"), "such as 5-14, got 3-3"),
        (("--repeats", "five"), "such as 5-14, got five"),
        (
            ("--repeats", "3"),
            "has 0 of 8 points with space.seed=2; to finish that repeat, run the study with --set space.seed=2",
        ),
        (("--repeats", "2", "--point", "random 1"), "--repeats compares samplers and writes no winner"),
        (
            ("--repeats", "2", "--set", "space.beside=[tpe]"),
            "has the samplers evolution(population=2), tpe; add others",
        ),
    ):
        refused = CliRunner().invoke(app, ["best", "contest.yaml", *more])
        assert refused.exit_code == 2
        assert said in " ".join(refused.output.split())
