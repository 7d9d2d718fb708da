"""What a study found as a specification, and a whole search as its user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from recallmap.arch.cost import cost
from recallmap.results.ledger import Ledger
from recallmap.results.page import search_section
from recallmap.search import codec
from recallmap.search.cli import page_context
from recallmap.search.cli.app import app
from recallmap.search.engines.driver import Driver
from recallmap.search.proposers import found_architecture, search_results, state_limits, what_repeats
from recallmap.search.proposers.journal import Journal, journal_of
from recallmap.search.proposers.search_results import Candidate, Findings
from recallmap.search.study.spec import StudySpec
from recallmap.search.training.outcome import Outcome
from recallmap.search.training.trial_record import record_of
from recallmap.search.trials import Trial

STUDY = {
    "name": "story",
    "trial": {
        "task": {"kind": "mqar", "vocab": 32, "length": 16, "pairs": 2},
        "arch": {"name": "tiny", "width": 16, "stack": [{"kind": "block", "mixer": {"kind": "gla", "heads": 2}}]},
        "training": {"steps": 8, "batch": 4, "evaluations": 1},
        "data": {"validation": 8, "test": 8},
    },
    "space": {
        "kind": "random",
        "points": 12,
        "generation": 6,
        "dials": {
            "trial.training.lr": {"float": [1e-4, 1e-1], "log": True},
            "trial.arch.width": {"int": [8, 32], "step": 8},
        },
        "over": {"trial.seed": [0, 1, 2]},
    },
    "budgets": {"smoke": {"trial.training.steps": 2}},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def study(*sets: str, **space: Any) -> StudySpec:
    return codec.read_study(STUDY | {"space": STUDY["space"] | space}, overrides=sets)  # type: ignore[operator]


def rate(trial: Trial) -> float:
    """As if the rate alone decided, and a seed a little."""
    return float(trial.training.lr * 9 + trial.seed * 1e-3)  # type: ignore[union-attr]


def drive(
    of: StudySpec,
    path: Path,
    score: Callable[[Trial], float] = rate,
    *,
    lost: float = 0.0,
    commit: str | None = None,
) -> None:
    """Answer what is asked, as code of that commit; on test everything scores `lost` less."""
    with Ledger(path) as ledger:
        driver = Driver(of, ledger, where="cpu")
        while (work := driver.next()) is not None:
            records = []
            for spec in work.specs:
                scores = {"accuracy": score(spec)}
                outcome = Outcome(scores={"accuracy": score(spec) - lost}, validation=scores, steps=spec.steps)
                where = torch.device("cpu")
                record = record_of(spec, outcome, study=of.name, device=where, members=1, implementation={})
                records.append(replace(record, commit=commit))
            driver.keep(work, records)


def found(of: StudySpec, path: Path) -> Findings:
    with Ledger.open(path) as ledger:
        return search_results.findings_of(of, ledger.all(), Journal(journal_of(path)))


def test_points_are_chosen_on_validation_and_shown_on_test(folder: Path) -> None:
    drive(study(), folder / "a.sqlite", lost=0.05)
    all_of_it = found(study(), folder / "a.sqlite")
    assert len(all_of_it.candidates) == 12
    for one in all_of_it.candidates:
        assert one.tested[0] == pytest.approx(one.chosen[0] - 0.05)
        assert one.tested[1] == one.chosen[1] == one.records[0].state_bytes
    best = all_of_it.on_front()[0]
    assert best.chosen[0] == max(one.chosen[0] for one in all_of_it.candidates)
    sizes = [one.chosen[1] for one in all_of_it.on_front()]
    assert sizes == sorted(sizes, reverse=True)


def test_an_interval_is_over_seeds_and_one_seed_has_none(folder: Path) -> None:
    drive(study(), folder / "a.sqlite")
    one = found(study(), folder / "a.sqlite").candidates[0]
    accuracy, size = search_results.intervals(one, np.random.default_rng(0))
    assert accuracy is not None
    assert accuracy[0] < one.tested[0] < accuracy[1]
    assert accuracy[1] - accuracy[0] <= 2e-3 + 1e-9
    assert size is None
    alone = study(over={"trial.seed": [0]})
    drive(alone, folder / "a.sqlite")
    assert search_results.intervals(found(alone, folder / "a.sqlite").candidates[0], np.random.default_rng(0)) == [
        None,
        None,
    ]


def test_a_journal_is_replayed_once_until_it_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replay reads every line, and the results of a search ask it a dozen times."""
    from optuna.storages.journal import JournalFileBackend

    replays: list[int] = []
    read = JournalFileBackend.read_logs

    def counted(self: JournalFileBackend, beginning: int) -> Any:
        replays.extend([beginning] * (beginning == 0))
        return read(self, beginning)

    path = folder / "a.sqlite"
    drive(study(points=6), path)
    journal = Journal(journal_of(path))
    monkeypatch.setattr(JournalFileBackend, "read_logs", counted)
    with Ledger.open(path) as ledger:
        first = search_results.findings_of(study(), ledger.all(), journal)
    assert (len(first.candidates), len(replays)) == (6, 1)
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    drive(study(), path)
    with Ledger.open(path) as ledger:
        assert len(search_results.findings_of(study(), ledger.all(), journal).candidates) == 12


def test_two_samplers_of_one_kind_are_told_apart_by_their_parameters_up_to_the_name_of_the_winner(folder: Path) -> None:
    both = study(kind="tpe", startup=2, beside=["tpe", "random"])
    drive(both, folder / "a.sqlite")
    all_of_it = found(both, folder / "a.sqlite")
    names = [one.name for one in all_of_it.candidates]
    assert len(names) == len(set(names)) == 36
    assert list(search_results.volumes(all_of_it)) == ["tpe(startup=2)", "tpe", "random"]
    one = search_results.winner(all_of_it, "tpe(startup=2) 11")
    assert "\nname: story_tpe_startup_2_11\n" in found_architecture.arch_document(all_of_it, one, Path())


def test_the_hypervolume_never_falls_and_proposers_share_its_scale(folder: Path) -> None:
    both = study(beside=["tpe"])
    drive(both, folder / "a.sqlite")
    curves = search_results.volumes(found(both, folder / "a.sqlite"))
    assert {kind: len(curve) for kind, curve in curves.items()} == {"random": 12, "tpe": 12}
    for curve in curves.values():
        assert curve == sorted(curve)
        assert 0 < curve[-1] <= 1
    assert curves["random"][:6] == curves["tpe"][:6]


def test_the_page_gets_the_points_with_their_parents_and_the_yaml_of_the_best(folder: Path) -> None:
    evolving = study(kind="evolution", population=6, beside=["random"])
    drive(evolving, folder / "a.sqlite")
    (folder / "story.yaml").write_text(codec.dump(evolving), encoding="utf-8")
    records = Ledger.open(folder / "a.sqlite").all()
    view = page_context.searched("story.yaml", [], folder / "a.sqlite", records)
    assert view is not None
    own, label = [one for one in view.points if one.sampler != "random"], "evolution(population=6)"
    assert [one.name for one in own] == [f"{label} {place}" for place in range(12)]
    assert [bool(one.parent) for one in own] == [False] * 6 + [True] * 6
    assert all(one.change for one in own[6:])
    assert view.points[0].blocks[0][0] == "gla"
    assert list(view.volumes) == [label, "random"]
    known = {one.name: one for one in view.points}
    assert known[view.best[0]].values[0] == max(one.values[0] for one in view.points)
    assert {name for name, one in known.items() if one.yaml} == set(view.best)
    assert len(view.best) == 18  # the six random points that both begin with count once
    assert page_context.searched(str(folder / "a.sqlite"), [], None, records) is None


def test_with_one_goal_the_best_so_far_stands_in(folder: Path) -> None:
    one = codec.read_study(STUDY | {"goals": [{"score": "accuracy", "direction": "maximise"}]})
    drive(one, folder / "a.sqlite")
    (curve,) = search_results.volumes(found(one, folder / "a.sqlite")).values()
    assert curve == sorted(curve)
    assert curve[-1] == 1


def test_the_dial_that_decides_is_the_most_important(folder: Path) -> None:
    goals = [{"score": "accuracy", "direction": "maximise"}]
    many = codec.read_study(STUDY | {"goals": goals, "space": STUDY["space"] | {"points": 30, "over": {}}})  # type: ignore[operator]
    drive(many, folder / "a.sqlite")
    shares = found(many, folder / "a.sqlite").importances["random"]
    assert next(iter(shares)) == "trial.training.lr"
    assert sum(shares.values()) == pytest.approx(1)


def test_tiers_that_rank_alike_agree(folder: Path) -> None:
    """Random points are the same under every budget, so they can be compared."""
    path = folder / "a.sqlite"
    drive(study("budget=smoke"), path, lambda trial: rate(trial) / 2)
    assert found(study("budget=smoke"), path).agreements == ()
    drive(study(), path)
    (agreement,) = found(study(), path).agreements
    assert (agreement.lower, agreement.higher, agreement.points) == ("budget smoke", "budget whole", 12)
    assert agreement.correlation == pytest.approx(1)


def test_rungs_that_rank_the_other_way_round_disagree(folder: Path) -> None:
    climbing = study(rungs={"values": [4], "keep": 0.9})
    drive(climbing, folder / "a.sqlite", lambda trial: rate(trial) if trial.steps == 8 else 1 - rate(trial))
    (agreement,) = found(climbing, folder / "a.sqlite").agreements
    assert (agreement.lower, agreement.higher) == ("steps=4", "whole budget")
    assert agreement.correlation == pytest.approx(-1)


def test_the_winner_is_written_as_an_architecture_that_reads_back(folder: Path) -> None:
    drive(study(), folder / "a.sqlite")
    all_of_it = found(study(), folder / "a.sqlite")
    one = search_results.winner(all_of_it)
    (folder / "arch.yaml").write_text(found_architecture.arch_document(all_of_it, one, folder))
    arch = codec.read_arch(str(folder / "arch.yaml"))
    assert arch.name == f"story_random_{one.ordinal}"
    assert arch.width == one.choices["trial.arch.width"]
    assert cost(arch, vocab=32, length=16).state_bytes == one.chosen[1]
    other = search_results.winner(all_of_it, "random 3")
    assert (other.proposer, other.ordinal) == ("random", 3)
    with pytest.raises(
        ValueError, match="no trained point 'random 99', expected random with a number, such as 'random "
    ):
        search_results.winner(all_of_it, "random 99")


COMMITS = {"clean": "0123456789" * 4, "changed": "0123456789" * 4 + "+", "unknown": None}


@pytest.mark.parametrize("tree", COMMITS)
def test_a_found_architecture_is_written_with_its_story_ready_for_the_zoo(folder: Path, tree: str) -> None:
    """Blocks in a repeat as those of the zoo's hybrids, under the name of its file, with all that its claim rests on."""
    of = ordered(within={"trial.training.lr": [1e-3, 3e-3]}, over={"trial.seed": [0, 1]}, points=8)
    drive(of, folder / "a.sqlite", lambda trial: late(trial) + trial.training.lr, lost=0.1, commit=COMMITS[tree])  # type: ignore[union-attr]
    (folder / "story.yaml").write_text(codec.dump(of), encoding="utf-8")
    out("best", "story.yaml", "--ledger", "a.sqlite", "--name", "found_story", "-o", "found_story.yaml")
    text = (folder / "found_story.yaml").read_text()
    arch = codec.read_arch(str(folder / "found_story.yaml"))
    one = search_results.winner(found(of, folder / "a.sqlite"))
    (whole,) = arch.stack
    assert arch.name == "found_story"
    assert (whole.times, whole.blocks) == (1, one.trial.arch.stack)  # type: ignore[union-attr]
    first, *rest = text.splitlines()
    assert first.endswith(f" in turn: point {one.name} of the study story.")
    assert f"# test: accuracy {one.tested[0]:.5g}, " in text
    assert f"# validation: accuracy {one.chosen[0]:.5g}, " in text
    assert "# study: story, budget whole, 17 points" in rest
    assert "seed 0 of the samplers" in text
    assert "lr 0.003 on mqar" in text
    assert max(map(len, rest)) <= 128
    assert (
        found_architecture.story_lacks(text)
        == {
            "clean": [],
            "changed": [f"a clean commit, got {COMMITS['changed']}"],
            "unknown": ["a clean commit, got unknown"],
        }[tree]
    )
    assert found_architecture.story_lacks(text.partition("# training")[0]) == ["training", "commit"]


def test_a_name_is_for_the_file_that_is_written_and_one_that_a_file_can_have(folder: Path) -> None:
    drive(study(), folder / "a.sqlite")
    (folder / "story.yaml").write_text(codec.dump(study()), encoding="utf-8")
    for words, said in (
        (["--name", "found"], "best: --name names the architecture that -o writes; add -o FILE"),
        (
            ["--name", "a/b", "-o", "a.yaml"],
            "best: a name must be letters, digits and _ - . (it names the file), got 'a/b'",
        ),
        (["--name", "found", "--repeats", "2"], "leave -o, --point and --name out"),
    ):
        result = CliRunner().invoke(app, ["best", "story.yaml", "--ledger", "a.sqlite", *words])
        assert (result.exit_code, said in " ".join(result.stderr.split())) == (2, True)


def test_a_point_whose_records_are_elsewhere_is_left_out(folder: Path) -> None:
    drive(study(), folder / "a.sqlite")
    (folder / "b.journal").write_bytes((folder / "a.journal").read_bytes())
    with Ledger.open(folder / "a.sqlite") as whole, Ledger(folder / "b.sqlite") as part:
        part.merge([record for record in whole.all() if not (record.seed == 2 and record.spec["arch"]["width"] == 8)])
    some: tuple[Candidate, ...] = found(study(), folder / "b.sqlite").candidates
    assert 0 < len(some) < 12
    assert all(one.choices["trial.arch.width"] != 8 for one in some)


def test_a_grid_has_a_front_too(folder: Path) -> None:
    axes = {"trial.arch.width": [8, 16], "trial.training.lr": [1e-3, 1e-2], "trial.seed": [0, 1]}
    grid = codec.read_study(STUDY | {"space": {"kind": "grid", "axes": axes}})
    drive(grid, folder / "a.sqlite")
    assert list(search_results.lines_of(found(grid, folder / "a.sqlite"))) == []  # its order is no progress
    front = found(grid, folder / "a.sqlite").on_front()
    assert [(one.trial.arch.width, one.choices["lr"], len(one.by_seed)) for one in front] == [(8, 1e-2, 2)]  # type: ignore[union-attr]


def test_points_of_a_grid_that_ask_fewer_trials_than_others_are_left_out_and_told(folder: Path) -> None:
    both = {"kind": "grid", "axes": {"trial.training.lr": [1e-3, 1e-2], "trial.task.pairs": [1, 2]}}
    one = {"kind": "grid", "axes": {"trial.training.lr": [1e-4, 3e-4, 1e-1]}}
    grid = codec.read_study(STUDY | {"space": {"kind": "union", "spaces": [both, one]}})
    drive(grid, folder / "a.sqlite")
    own = found(grid, folder / "a.sqlite")
    assert ({one.choices["lr"] for one in own.candidates}, own.narrower) == ({1e-3, 1e-2}, 3)
    assert search_results.data_of(own)["narrower"] == 3
    assert str(search_results.front_table(own).caption).startswith("2 points, 3 that ask fewer trials left out; ")


def test_goals_that_nothing_scores_are_told(folder: Path) -> None:
    axes = {"trial.training.lr": [1e-3, 1e-2]}
    goals = [{"score": "nope", "direction": "maximise"}]
    grid = codec.read_study(STUDY | {"space": {"kind": "grid", "axes": axes}, "goals": goals})
    drive(grid, folder / "a.sqlite")
    with pytest.raises(ValueError, match=r"mqar has no validation score 'nope'.*give the study other goals"):
        found(grid, folder / "a.sqlite")


# What repeats, and what is beaten. ----------------------------------------------------------------

LETTERS = {
    "x": {"kind": "block", "mixer": {"kind": "mesa", "heads": 2, "cg_steps": 2}},
    "r": {"kind": "block", "mixer": {"choice": ["gla", "deltanet"]}},
    "c": {"kind": "block", "mixer": "base_conv"},
    "a": {"kind": "block", "mixer": {"kind": "attention", "heads": 2, "window": 4}},
}
ORDERED = {
    "kind": "evolution",
    "population": 8,
    "points": 56,
    "generation": 8,
    "beside": ["random"],
    "dials": {"trial.arch.stack": {"sequence": LETTERS, "length": [2, 4]}},
    "over": {"trial.seed": [0]},
    "anchors": [{"trial.arch": "swa", "trial.arch.width": 16}],
}


def ordered(*sets: str, **space: Any) -> StudySpec:
    return codec.read_study(STUDY | {"space": ORDERED | space}, overrides=sets)


def late(trial: Trial) -> float:
    """As if x at the end added a fifth, and nothing else anything."""
    word = trial.name.split("_")[-1]
    noise = np.random.default_rng(int(codec.key(trial.arch)[:8], 16)).normal()  # type: ignore[union-attr]
    return float(0.4 + 0.2 * (word[-1] == "x") + 0.02 * noise)


def test_what_repeats_is_told_by_random_points_alone(folder: Path) -> None:
    drive(ordered(), folder / "a.sqlite", late)
    all_of_it = found(ordered(), folder / "a.sqlite")
    repeated = what_repeats.repeated_in(all_of_it)
    assert repeated is not None
    own = [one for one in all_of_it.candidates if one.proposer == "random"]
    assert repeated.points == len({one.records[0].key for one in own}) < len(all_of_it.candidates)
    assert repeated.letters == {"a": ("attention",), "c": ("base_conv",), "r": ("deltanet", "gla"), "x": ("mesa",)}
    effects = {(one.family, one.name): one for one in repeated.effects}
    assert effects["place", "x late"].holds
    assert effects["place", "x late"].interval[0] < 0.2 < effects["place", "x late"].interval[1] + 0.05
    assert max(repeated.effects, key=lambda one: one.effect) is effects["place", "x late"]
    assert {name for family, name in effects if family == "attention"} <= {"1", "2"}
    assert '<th scope="row">x late</th>' in search_section.section(view_of(folder, ordered()))


def view_of(folder: Path, of: StudySpec) -> search_section.SearchView | None:
    (folder / "story.yaml").write_text(codec.dump(of), encoding="utf-8")
    return page_context.searched("story.yaml", [], folder / "a.sqlite", Ledger.open(folder / "a.sqlite").all())


@pytest.mark.parametrize(
    ("space", "why"),
    [
        ({"beside": []}, "there is no random search, whose points alone are independent: add beside: [random]"),
        ({"rungs": {"values": [4]}}, "rungs stopped points by their scores"),
        ({}, "a block is tested where 8 points of random search have it and 8 have not, and 8 are done"),
    ],
)
def test_what_repeats_is_not_estimated_from_points_that_depend_on_scores_or_are_few(
    folder: Path, space: dict[str, Any], why: str
) -> None:
    of = ordered(**{"points": 8, "over": {}} | space)
    drive(of, folder / "a.sqlite", late)
    repeated = what_repeats.repeated_in(found(of, folder / "a.sqlite"))
    assert repeated is not None
    assert repeated.why.startswith(why)
    assert repeated.effects == ()
    assert f"Not estimated: {why}" in search_section.section(view_of(folder, of))


def test_nothing_repeats_where_no_blocks_are_ordered(folder: Path) -> None:
    drive(study(), folder / "a.sqlite")
    assert what_repeats.repeated_in(found(study(), folder / "a.sqlite")) is None


def test_within_each_limit_of_state_the_best_found_stands_beside_the_best_anchor(folder: Path) -> None:
    """Points of more width score higher here, and those of a narrower anchor alone are small enough."""
    anchors = [
        {"trial.arch": name, "trial.arch.width": width} for name, width in (("mesa", 64), ("swa", 16), ("gla", 32))
    ]
    wide = study(
        "trial.arch.stack[0].mixer.heads=1",
        **{"dials": {"trial.arch.width": {"int": [8, 128], "step": 8}}, "anchors": anchors},
    )

    def by_width(trial: Trial) -> float:
        return trial.arch.width / 200 + trial.seed * 1e-3  # type: ignore[union-attr]

    drive(wide, folder / "a.sqlite", by_width, lost=0.01)
    all_of_it = found(wide, folder / "a.sqlite")
    rows = state_limits.within_limits(all_of_it)
    assert [row.limit for row in rows] == [16_384, 32_768, 65_536, 131_072]
    for row in rows:
        for one in (row.found, row.anchor):
            assert one is not None
            same = [c for c in all_of_it.candidates if (c.proposer == "anchors") == (one.proposer == "anchors")]
            assert one.chosen[0] == max(c.chosen[0] for c in same if c.state_bytes <= row.limit)
        assert row.gain == pytest.approx(row.found.tested[0] - row.anchor.tested[0])  # type: ignore[union-attr]
    assert len({row.found.name for row in rows}) > 1  # type: ignore[union-attr]
    few = study("constraints.state_bytes=40000", **{"dials": wide.space.dials.plain(), "anchors": anchors})
    drive(few, folder / "a.sqlite", by_width)
    assert [row.limit for row in state_limits.within_limits(found(few, folder / "a.sqlite"))] == [16_384, 32_768]
    alone = study(dials=wide.space.dials.plain())  # type: ignore[union-attr]
    drive(alone, folder / "a.sqlite", by_width)
    assert state_limits.within_limits(found(alone, folder / "a.sqlite")) == []
    known = [one for one in all_of_it.candidates if one.proposer == "anchors"]
    assert state_limits.within_limits(replace(all_of_it, candidates=tuple(known))) == []


# The verbs. ---------------------------------------------------------------------------------------


def out(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


SMOKE = ("hybrid_search", "--set", "budget=smoke")


def test_a_search_for_hybrids_from_the_first_look_to_the_winner(folder: Path) -> None:
    assert "4 points by tpe, as many by random, 1 anchor, 4 trials each: at most 36 trials" in out(
        "run", *SMOKE, "--dry-run"
    )
    assert not (folder / "runs").exists()
    said = out("run", *SMOKE, "--device", "cpu").splitlines()
    assert said[0] == "9 points, about 36 trials"
    assert sum(line.startswith(("tpe ", "random ", "anchors ")) for line in said) == 9
    assert said[-2] == "0 known, 28 done, 0 failed, in runs/hybrid_search.sqlite"
    assert said[-1] == "next: recallmap best hybrid_search --set budget=smoke"
    assert "28 known, 0 done, 0 failed" in out("run", *SMOKE, "--device", "cpu")
    best = out("best", *SMOKE, "-o", "arch.yaml")
    assert "accuracy (test)" in best
    for line in ("hypervolume (tpe): ", "hypervolume (random): ", "importance of parameters (tpe, PED-ANOVA): "):
        assert line in best
    assert "state " in out("cost", "arch.yaml")
    assert "hybrid_" in out("table", *SMOKE)


def test_what_is_beaten_and_what_repeats_fits_a_terminal_of_80_columns(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    drive(ordered(), folder / "a.sqlite", late)
    (folder / "story.yaml").write_text(codec.dump(ordered()), encoding="utf-8")
    said = out("best", "story.yaml", "--ledger", "a.sqlite")
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("importance of parameters (random, PED-ANOVA): ") for line in lines)
    assert any(line.split()[:2] == ["64", "kB"] and "swa" in line for line in lines)
    assert any(line.startswith(" x late") and line.split()[-1] == "yes" for line in lines)
    told = json.loads(out("best", "story.yaml", "--ledger", "a.sqlite", "--json"))
    assert {one["family"] for one in told["repeats"]["effects"]} == {"block", "place", "pair", "attention"}
    assert told["limits"][2]["anchor"]["arch"] == "swa"


def test_letters_are_told_also_where_nothing_repeats_and_one_seed_is_not_called_a_share(folder: Path) -> None:
    few = ordered(points=8)
    drive(few, folder / "a.sqlite", late)
    (folder / "story.yaml").write_text(codec.dump(few), encoding="utf-8")
    said = out("best", "story.yaml", "--ledger", "a.sqlite")
    assert "\nletters: a attention, c base_conv, r " in said
    assert "one seed, so no intervals; on front: whether no other point beats it on test" in said
    assert "seed in brackets" not in said
    assert "what repeats: not estimated: a block is tested where 8 points" in said


def test_who_forgets_the_budget_of_a_run_is_reminded(folder: Path) -> None:
    (folder / "story.yaml").write_text(codec.dump(study()), encoding="utf-8")
    drive(study("budget=smoke"), folder / "a.sqlite")
    for words in (["best"], ["table"], ["dashboard", "-o", "page.html"]):
        result = CliRunner().invoke(app, [*words, "story.yaml", "--ledger", "a.sqlite"])
        assert result.exit_code == 2
        assert result.stderr.startswith(
            "a.sqlite: no point of story has finished with these options, but with others of budget smoke; repeat their --set, "
            "or train it with: recallmap run story.yaml"
        )


def test_without_a_trained_point_there_is_no_winner(folder: Path) -> None:
    drive(study(), folder / "a.sqlite")
    result = CliRunner().invoke(app, ["best", *SMOKE, "--ledger", "a.sqlite"])
    assert result.exit_code == 2
    assert "no point of hybrid_search has finished; train it with: recallmap run hybrid_search" in result.stderr


def test_what_a_search_rejects_is_said(folder: Path) -> None:
    (folder / "s.yaml").write_text(codec.dump(study("constraints.state_bytes=600")))
    said = out("run", "s.yaml", "--device", "cpu", "--set", "space.points=1", "--set", "space.over.trial.seed=[0]")
    assert "random 0: not trained: state_bytes" in said
