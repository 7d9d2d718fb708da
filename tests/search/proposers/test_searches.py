"""Laws of all searches: the same seed is the same study, a cut loses and repeats nothing, constraints hold."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from optuna.storages.journal import JournalFileBackend
from typer.testing import CliRunner

from recallmap.results.ledger import Ledger, LedgerError
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.documents.nodes import SpecError
from recallmap.search.documents.type_hints import kinds_of
from recallmap.search.engines.driver import Driver
from recallmap.search.engines.plan import Report
from recallmap.search.engines.trial_sources import trials_of
from recallmap.search.proposers.generations import told_points
from recallmap.search.proposers.journal import Journal, append_lines, journal_of
from recallmap.search.proposers.proposer import Told, point_of
from recallmap.search.proposers.search_results import findings_of
from recallmap.search.samplers import Sampler
from recallmap.search.space.corners import Given
from recallmap.search.space.search_space import Search
from recallmap.search.study.inner_grid import judged
from recallmap.search.study.spec import StudySpec
from recallmap.search.training import run_cohort
from recallmap.search.training.outcome import Outcome
from recallmap.search.training.packing import at_most, pack
from recallmap.search.training.trial_record import record_of
from recallmap.search.trials import Trial

KINDS = list(kinds_of(Sampler))
every_sampler = pytest.mark.parametrize("kind", KINDS)

JOINT = {  # samplers that note more than values in the journal, so that a point that is resumed must have their notes
    "tpe in groups": {"kind": "tpe", "multivariate": True, "group": True, "startup": 3},
    "nsga2 with a population of 6": {"kind": "nsga2", "population": 6},
}

TRIAL = {
    "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
    "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": {"kind": "attention", "heads": 2}}]},
    "training": {"steps": 8, "batch": 4, "evaluations": 1},
    "data": {"validation": 8, "test": 8},
}
DIALS = {
    "trial.training.lr": {"float": [1e-4, 1e-1], "log": True},
    "trial.arch.width": {"int": [8, 32], "step": 8},
    "trial.arch.stack": {
        "sequence": {
            "a": {"kind": "block", "mixer": {"kind": "attention", "heads": 2, "window": {"choice": [None, 4, 8]}}},
            "l": {
                "kind": "block",
                "mixer": {
                    "choice": [{"kind": "linear_attention", "heads": {"int": [1, 2]}}, {"kind": "gla", "heads": 2}]
                },
            },
        },
        "length": [1, 3],
        "pattern": "[^a]*a?[^a]*",
    },
}

RUNGS = {"values": [2, 4], "keep": 0.5}
SMALL = {
    "name": "tiny",
    "trial": TRIAL,
    "space": {
        "kind": "random",
        "points": 3,
        "generation": 3,
        "dials": {"trial.training.lr": {"float": [1e-4, 1e-1], "log": True}},
    },
}
FIRST = [{"trial.training.lr": 0.01, "trial.arch.width": 24}, {"trial.arch.width": 8}]


def study(kind: str = "random", *, space: dict[str, Any] | None = None, **more: Any) -> StudySpec:
    searched = {**JOINT.get(kind, {"kind": kind}), "points": 10, "generation": 4, "dials": DIALS}
    return read_once(json.dumps({"name": "tiny", "trial": TRIAL, "space": searched | (space or {})} | more))


@cache
def read_once(document: str) -> StudySpec:
    """Every corner of a space is read with it, so that it takes longer than what most tests here do with it."""
    return codec.read_study(json.loads(document))


def score(trial: Trial) -> float:
    """Between 0 and 1, whatever the trial is: as good as any for a sampler."""
    return int(hashlib.sha256(codec.canonical(trial).encode()).hexdigest()[:6], 16) / 16**6


def answered(trial: Trial, of: StudySpec) -> Record:
    """The record of a trial that nobody trained."""
    scores = {"accuracy": score(trial), "loss": 1 - score(trial)}
    outcome = Outcome(scores=scores, validation=scores, steps=trial.steps)
    return record_of(trial, outcome, study=of.name, device=torch.device("cpu"), members=1, implementation={})


def drive(
    of: StudySpec,
    path: Path,
    *,
    stop_after: int | None = None,
    report: Callable[[Report], None] = lambda _: None,
) -> list[str]:
    """Answer everything that is asked, works in turn from the last to the first; the keys of what was trained."""
    trained: list[str] = []
    with Ledger(path) as ledger:
        driver = Driver(of, ledger, report=report, cohort_size=3, where="cpu")
        while not driver.finished:
            out = list(iter(driver.next, None))
            for work in reversed(out):
                if stop_after is not None and len(trained) >= stop_after:
                    return trained
                driver.keep(work, [answered(spec, of) for spec in work.specs])
                trained += [codec.key(spec) for spec in work.specs]
    return trained


def told(of: StudySpec, path: Path) -> dict[str, tuple[Told, ...]]:
    return told_points(of, Journal(journal_of(path)))


class Uncut(NamedTuple):
    """A study that nothing stopped."""

    path: Path
    trained: list[str]
    told: dict[str, tuple[Told, ...]]


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Uncut]:
    @cache
    def of(kind: str, *, first: bool = False) -> Uncut:
        space = {"first": FIRST} if first else {}
        path = tmp_path_factory.mktemp(kind) / "uncut.sqlite"
        trained = drive(study(kind, space=space), path)
        return Uncut(path, trained, told(study(kind, space=space), path))

    return of


@every_sampler
def test_the_same_seed_is_the_same_study(kind: str, uncut: Callable[..., Uncut], tmp_path: Path) -> None:
    path = tmp_path / "same.sqlite"
    assert drive(study(kind), path) == uncut(kind).trained
    assert told(study(kind), path) == uncut(kind).told
    assert [one.end for one in uncut(kind).told[kind]] == ["done"] * 10
    assert len(set(uncut(kind).trained)) == len(uncut(kind).trained)


@every_sampler
def test_another_seed_is_another_study(kind: str, uncut: Callable[..., Uncut], tmp_path: Path) -> None:
    other = study(kind, space={"seed": 1})
    drive(other, tmp_path / "other.sqlite", stop_after=4)
    assert not set(uncut(kind).trained) & {record.key for record in Ledger.open(tmp_path / "other.sqlite").all()}


@every_sampler
def test_again_it_asks_and_trains_nothing(kind: str, uncut: Callable[..., Uncut]) -> None:
    assert drive(study(kind), uncut(kind).path) == []
    assert told(study(kind), uncut(kind).path) == uncut(kind).told


@every_sampler
def test_more_points_go_on_where_fewer_ended(kind: str, uncut: Callable[..., Uncut], tmp_path: Path) -> None:
    path = tmp_path / "grown.sqlite"
    drive(study(kind, space={"points": 8}), path)
    drive(study(kind), path)
    assert told(study(kind), path) == uncut(kind).told


@every_sampler
def test_values_stand_within_their_bounds(kind: str, uncut: Callable[..., Uncut]) -> None:
    for one in uncut(kind).told[kind]:
        assert 1e-4 <= one.choices["trial.training.lr"] <= 1e-1
        assert one.choices["trial.arch.width"] in (8, 16, 24, 32)
        letters = [value for name, value in one.choices.items() if re.search(r"stack\[\d\]", name)]
        assert letters.count("a") <= 1
        assert ("trial.arch.stack.l.mixer.linear_attention.heads" in one.choices) == (
            one.choices.get("trial.arch.stack.l.mixer") == "linear_attention"
        )


@every_sampler
def test_constraints_hold_and_what_breaks_them_is_told_and_not_trained(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    bounded = study(kind, constraints={"state_bytes": 2000})
    drive(bounded, path)
    ends = [one.end for one in told(bounded, path)[kind]]
    assert ends.count("done") == 10
    assert "rejected" in ends
    assert max(record.state_bytes for record in Ledger.open(path).all()) <= 2000
    assert all("state_bytes" in one.why for one in told(bounded, path)[kind] if one.end == "rejected")


@every_sampler
@pytest.mark.parametrize("stop_after", [0, 3, 6])
def test_a_driver_that_stops_while_it_trains_loses_and_repeats_nothing(
    kind: str, stop_after: int, uncut: Callable[..., Uncut], tmp_path: Path
) -> None:
    path = tmp_path / "cut.sqlite"
    before = drive(study(kind), path, stop_after=stop_after)
    after = drive(study(kind), path)
    assert sorted(before + after) == sorted(uncut(kind).trained)
    assert told(study(kind), path) == uncut(kind).told


@pytest.mark.parametrize("gone", ["nothing", "journal", "ledger"])
@pytest.mark.parametrize("rungs", [None, RUNGS], ids=["whole budgets", "rungs"])
def test_a_resumed_search_counts_what_the_ledger_had_and_what_it_did(
    rungs: dict[str, Any] | None, gone: str, tmp_path: Path
) -> None:
    """Stopped within a generation, at its end, after all."""
    of = study(space={"points": 4, "generation": 2, "rungs": rungs, "beside": ["tpe"], "anchors": ["gla"]})
    for stop_after in (1, 3, None):
        path = tmp_path / f"{stop_after}.sqlite"
        drive(of, path, stop_after=stop_after)
        if gone == "journal":
            journal_of(path).unlink()
        if gone == "ledger":
            path.unlink()
        before = Ledger(path).keys()
        reports: list[Report] = []
        trained = drive(of, path, report=reports.append)
        end = reports[-1]
        assert (end.known, end.done, end.failed) == (len(before), len(trained), 0), stop_after
        assert end.trials == len(before) + len(trained)
        assert all(r.known + r.done <= r.trials for r in reports)


class Cut(BaseException):
    """The driver is killed."""


def kill_at_write(writes: int, patch: pytest.MonkeyPatch) -> None:
    """Kills the driver in the middle of a later write to the journal: half of a line is there."""
    left = iter(range(writes))

    def fragile(path: Path, logs: Sequence[Mapping[str, Any]]) -> None:
        if next(left, None) is None:
            with path.open("ab") as file:
                file.write(b'{"op_code":')
            raise Cut
        append_lines(path, logs)

    patch.setattr("recallmap.search.proposers.journal.append_lines", fragile)


@pytest.mark.parametrize("kind", ["tpe", "nsga2", *JOINT])
@pytest.mark.parametrize("writes", [(0,), (1,), (4, 3), (12, 5, 2), (25,), (38, 9), (44, 12, 30), (75, 4), (96,)])
def test_a_driver_that_is_killed_while_it_writes_the_journal_loses_and_repeats_nothing(
    kind: str,
    writes: tuple[int, ...],
    uncut: Callable[..., Uncut],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, and again while it takes up what the one before left."""
    path = tmp_path / "cut.sqlite"
    for count in writes:
        with monkeypatch.context() as patch:
            kill_at_write(count, patch)
            with pytest.raises(Cut):
                drive(study(kind, space={"first": FIRST}), path)
    drive(study(kind, space={"first": FIRST}), path)
    assert sorted(record.key for record in Ledger.open(path).all()) == sorted(uncut(kind, first=True).trained)
    assert told(study(kind, space={"first": FIRST}), path) == uncut(kind, first=True).told


def test_a_damaged_journal_is_told_of_and_without_it_the_search_asks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    drive(study("tpe"), path)
    journal, asked = journal_of(path), told(study("tpe"), path)
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:4], "damaged", *lines[4:]]) + "\n")
    with pytest.raises(
        LedgerError, match=r"tiny\.journal: line 5 is damaged; move the file away: the ledger has all that"
    ):
        drive(study("tpe"), path)
    journal.rename(tmp_path / "away")
    assert drive(study("tpe"), path) == []
    assert told(study("tpe"), path) == asked


def test_samplers_with_the_same_first_points_share_their_trials(tmp_path: Path) -> None:
    """All draw their first points at random by the same seed: trained once, and compared fairly."""
    path = tmp_path / "tiny.sqlite"
    beside = study("nsga2", space={"beside": ["random"]})
    trained = drive(beside, path)
    points = told(beside, path)
    assert [one.choices for one in points["nsga2"][:4]] == [one.choices for one in points["random"][:4]]
    assert points["nsga2"][4:] != points["random"][4:]
    assert len(trained) <= 16


def test_one_sampler_goes_on_while_the_last_of_anothers_generation_train_and_both_hear_what_they_would(
    tmp_path: Path,
) -> None:
    beside = study("nsga2", space={"beside": ["random"]})
    with Ledger(tmp_path / "tiny.sqlite") as ledger:
        driver = Driver(beside, ledger, cohort_size=1, where="cpu")
        went_on = 0
        while works := list(iter(driver.next, None)):
            for work in works[:-1]:
                driver.keep(work, [answered(spec, beside) for spec in work.specs])
            more = list(iter(driver.next, None))  # while the last is out
            went_on += len(more)
            for work in (works[-1], *more):
                driver.keep(work, [answered(spec, beside) for spec in work.specs])
    drive(beside, tmp_path / "waiting.sqlite")
    assert went_on
    assert told(beside, tmp_path / "tiny.sqlite") == told(beside, tmp_path / "waiting.sqlite")


@every_sampler
def test_points_to_try_first_come_first(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    begun = study(kind, space={"first": FIRST, "points": 5})
    drive(begun, path)
    found = [one.choices for one in told(begun, path)[kind]]
    assert (found[0]["trial.training.lr"], found[0]["trial.arch.width"], found[1]["trial.arch.width"]) == (0.01, 24, 8)
    assert len(found) == 5


def test_anchors_are_trained_beside(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    anchored = study(
        space={
            "points": 2,
            "over": {"trial.seed": [0, 1]},
            "anchors": ["gla", {"trial.arch": "mesa", "trial.training.lr": 0.01}],
        }
    )
    drive(anchored, path)
    assert [one.ordinal for one in told(anchored, path)["anchors"]] == [0, 1]
    records = [record for record in Ledger.open(path).all() if record.arch in ("gla", "mesa")]
    assert sorted((r.arch, r.spec["training"]["lr"], r.seed) for r in records) == [
        ("gla", 1e-3, 0),
        ("gla", 1e-3, 1),
        ("mesa", 1e-2, 0),
        ("mesa", 1e-2, 1),
    ]
    assert drive(anchored, path) == []


def test_a_study_that_asks_something_else_is_another_search(tmp_path: Path) -> None:
    """In the same journal, and what both ask is trained once."""
    path = tmp_path / "tiny.sqlite"
    drive(study(), path)
    other = study(goals=[{"score": "accuracy", "direction": "maximise"}])
    assert drive(other, path) == []
    assert len(Journal(journal_of(path)).names()) == 2
    assert [len(one.values) for one in told(other, path)["random"]] == [1] * 10


def test_records_that_a_lost_ledger_held_are_trained_again(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    trained = drive(study(space={"points": 5}), path)
    before = told(study(), path)
    path.unlink()
    assert sorted(drive(study(space={"points": 5}), path)) == sorted(trained)
    assert told(study(), path) == before


def test_excluded_combinations_never_come(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    rules = [{"trial.arch.width": {"most": 16}, "trial.training.lr": {"least": 1e-2}}, {"trial.arch.width": [24]}]
    drive(study(space={"exclude": rules}), path)
    for one in told(study(space={"exclude": rules}), path)["random"]:
        lr, width = one.choices["trial.training.lr"], one.choices["trial.arch.width"]
        assert (one.end == "rejected") == (width == 24 or (width <= 16 and lr >= 1e-2))


def test_a_space_in_which_nothing_may_be_trained_ends_and_says_so(tmp_path: Path) -> None:
    notes: list[str] = []
    with Ledger(tmp_path / "tiny.sqlite") as ledger:
        hopeless = study(space={"points": 1, "generation": 1}, constraints={"parameters": 10})
        driver = Driver(hopeless, ledger, report=lambda r: notes.extend(r.notes), where="cpu")
        assert driver.next() is None
        assert driver.finished
    assert notes[-1].startswith("random gave up: of 50 points 0 may be trained")


def test_a_point_whose_trial_fails_fails_and_says_why(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    of = study(space={"points": 4, "over": {"trial.seed": [0, 1]}})
    with Ledger(path) as ledger:
        driver = Driver(of, ledger, where="cpu")
        while (work := driver.next()) is not None:
            driver.keep(
                work,
                [
                    run_cohort.failed(spec, "out of memory", study=of.name, device=torch.device("cpu"))
                    if spec.seed == 1
                    else answered(spec, of)
                    for spec in work.specs
                ],
            )
    assert {(one.end, one.why) for one in told(of, path)["random"]} == {("failed", "mqar seed 1: out of memory")}


@every_sampler
def test_on_rungs_only_the_better_half_climbs_and_whole_budgets_alone_are_told(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    climbing = study(kind, space={"rungs": RUNGS, "points": 8})
    drive(climbing, path)
    points = told(climbing, path)[kind]
    assert [one.end for one in points].count("done") == 2
    assert [len(one.rungs) for one in points].count(1) == 4
    for one in points:
        assert (one.values != ()) == (one.end == "done")
    for generation in (points[:4], points[4:]):
        best = max(generation, key=lambda one: (one.rungs[0][0], -one.rungs[0][1]))
        assert len(best.rungs) == 2
    steps = [record.steps for record in Ledger.open(path).all()]
    assert [steps.count(n) for n in (2, 4, 8)] == [8, 4, 2]


def test_rungs_of_kind_asha_rank_against_all_points_so_far(tmp_path: Path) -> None:
    path = tmp_path / "tiny.sqlite"
    goals = [{"score": "accuracy", "direction": "maximise"}]
    climbing = study(space={"rungs": {"kind": "asha", "values": [2], "keep": 0.25}, "points": 12}, goals=goals)
    drive(climbing, path)
    points = told(climbing, path)["random"]
    for end in (4, 8, 12):
        pool = sorted((one.rungs[0][0] for one in points[:end]), reverse=True)
        least = pool[end // 4 - 1]
        assert all((one.end == "done") == (one.rungs[0][0] >= least) for one in points[end - 4 : end])


def test_milliseconds_are_measured_when_no_work_is_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers: list[Driver] = []
    out: list[int] = []

    def watched(spec: Trial, device: torch.device) -> float:
        out.append(len(drivers[0]._out))
        return float(spec.arch.width)  # type: ignore[union-attr]

    monkeypatch.setattr("recallmap.search.engines.driver.milliseconds", watched)
    goals = [{"score": "accuracy", "direction": "maximise"}, {"score": "milliseconds", "direction": "minimise"}]
    of = study(goals=goals)
    with Ledger(tmp_path / "tiny.sqlite") as ledger:
        drivers.append(Driver(of, ledger, cohort_size=2, where="cpu"))
        while not drivers[0].finished:
            for work in list(iter(drivers[0].next, None)):
                drivers[0].keep(work, [answered(spec, of) for spec in work.specs])
    assert out == [0] * 10
    for one in told(of, tmp_path / "tiny.sqlite")["random"]:
        assert one.values[1] == one.milliseconds == one.choices["trial.arch.width"]


def test_a_goal_of_one_task_is_the_mean_over_its_trials_alone(tmp_path: Path) -> None:
    tasks = [{"task": {"kind": "mqar"}}, {"task": {"kind": "memorization", "vocab": 16, "length": 8}}]
    goals = [
        {"score": "accuracy", "direction": "maximise"},
        {"score": "accuracy", "direction": "maximise", "task": "memorization"},
    ]
    of = study(goals=goals, space={"over": {"trial": tasks, "trial.seed": [0, 1]}, "points": 2, "generation": 2})
    assert isinstance(of.space, Search)
    assert len(of.space.each) == 4
    path = tmp_path / "tiny.sqlite"
    drive(of, path)
    (one, _) = told(of, path)["random"]
    asked = [t for t in trials_of(of, path) if t.training.lr == one.choices["trial.training.lr"]]  # type: ignore[union-attr]
    assert one.values[0] == pytest.approx(sum(map(score, asked)) / 4)
    assert one.values[1] == pytest.approx(sum(score(t) for t in asked if t.task.kind == "memorization") / 2)


WITHIN = {
    "dials": {"trial.arch.width": {"int": [8, 32], "step": 8}},
    "over": {"trial.task.pairs": [2, 4], "trial.seed": [0, 1]},
    "within": {"trial.training.lr": [1e-3, 3e-3, 1e-2]},
    "points": 3,
    "generation": 3,
}


def at_its_best(of: StudySpec, trials: Sequence[Trial], scored: Callable[[Trial], float]) -> float:
    """The mean over two tasks of the best rate's mean over two seeds, of the trials in their order."""
    grid = np.asarray([scored(trial) for trial in trials]).reshape(2, 2, 3)  # tasks, seeds, rates
    return float(grid.mean(axis=1).max(axis=1).mean())


def test_a_point_is_judged_at_the_best_of_its_inner_grid_on_each_task(tmp_path: Path) -> None:
    searched = study("tpe", space=WITHIN, goals=[{"score": "accuracy", "direction": "maximise"}])
    assert len(drive(searched, tmp_path / "a.sqlite")) % 12 == 0
    points = told(searched, tmp_path / "a.sqlite")["tpe"]
    assert isinstance(searched.space, Search)
    assert len(points) == 3
    for one in points:
        trials = searched.expanded(point_of(searched.space, one, "tpe"))
        assert [(t.task.pairs, t.seed, t.training.lr) for t in trials[:4]] == [  # type: ignore[union-attr]
            *((2, 0, lr) for lr in (1e-3, 3e-3, 1e-2)),
            (2, 1, 1e-3),
        ]
        assert one.values == (pytest.approx(at_its_best(searched, trials, score)),)
        assert len(pack(trials[:6], at_most(64))) == 1  # one cohort a task
    found = findings_of(searched, Ledger.open(tmp_path / "a.sqlite").all(), Journal(journal_of(tmp_path / "a.sqlite")))
    assert [len(one.records) for one in found.candidates] == [4] * 3  # of two tasks and two seeds
    assert [one.chosen for one in found.candidates] == [one.values for one in points]


def test_a_rate_that_fails_does_not_fail_the_point_but_all_of_them_do(tmp_path: Path) -> None:
    searched = study("tpe", space=WITHIN, goals=[{"score": "accuracy", "direction": "maximise"}])
    assert isinstance(searched.space, Search)
    trials = searched.expanded(searched.space.point(Given({"trial.arch.width": 8})))

    def record(trial: Trial, fails: bool) -> Record:
        whole = answered(trial, searched)
        return replace(whole, status="failed", error="diverged", scores={}, validation={}) if fails else whole

    some = [record(t, t.training.lr == 1e-2 and t.seed == 1) for t in trials]  # type: ignore[union-attr]
    kept = judged(searched.space, some)
    assert len(kept) == 4
    assert {r.spec["training"]["lr"] for r in kept} <= {1e-3, 3e-3}
    with pytest.raises(ValueError, match="mqar seed 0: diverged, as all 3 combinations of within"):
        judged(searched.space, [record(t, fails=t.task.pairs == 2) for t in trials])  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("within", "said"),
    [
        ({"trial.training.batch": [4, 8]}, "trial.training.batch decides what is computed"),
        ({"trial.training.steps": [4, 8]}, "trial.training.steps decides what is computed"),
        ({"trial.arch.width": [8, 16]}, "trial.arch.width decides what is computed"),
        ({"trial.training.rl": [1e-3]}, "did you mean 'trial.training.lr'"),
        ({"trial.seed": [0, 1]}, "vary it in dials or over"),
    ],
)
def test_an_inner_grid_over_what_changes_the_computation_is_refused(within: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=r"space\.within") as caught:
        study(space=WITHIN | {"within": within})
    assert said in str(caught.value)


def test_what_varies_within_varies_nowhere_else() -> None:
    rate = {"trial.training.lr": {"float": [1e-4, 1e-1], "log": True}}
    with pytest.raises(SpecError, match=r"trial\.training\.lr varies in dials, too; leave one out"):
        study(space=WITHIN | {"dials": rate})


def test_the_journal_is_one_that_optuna_itself_opens(tmp_path: Path) -> None:
    import optuna

    path = tmp_path / "tiny.sqlite"
    drive(study("tpe"), path)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path.with_suffix(".journal"))))
    (name,) = optuna.get_all_study_names(storage)
    best = optuna.load_study(study_name=name, storage=storage).best_trials
    assert name.startswith("tiny/whole/tpe/")
    assert best
    assert all(len(trial.values) == 2 for trial in best)


def test_a_journal_that_is_a_link_is_refused_and_what_it_points_to_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "tiny.journal").symlink_to(tmp_path / "theirs")
    with pytest.raises(LedgerError, match=r"tiny\.journal is a symbolic link, it must be a file.*remove the link"):
        drive(study(), tmp_path / "tiny.sqlite")
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_a_journal_on_a_full_disk_is_told_with_a_remedy_and_the_same_again_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def full(path: Path, logs: Sequence[Mapping[str, Any]]) -> None:
        calls.append(1)
        if len(calls) > 8:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        append_lines(path, logs)

    (tmp_path / "tiny.yaml").write_text(json.dumps(SMALL))
    words = ["run", str(tmp_path / "tiny.yaml"), "--ledger", str(tmp_path / "tiny.sqlite"), "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr("recallmap.search.proposers.journal.append_lines", full)
        ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 2
    assert "the disk is full; free some space and run the same command again" in ended.stderr
    assert CliRunner().invoke(app, words).exit_code == 0
