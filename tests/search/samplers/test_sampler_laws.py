"""Laws of all samplers: each is data that checks itself, and makes Optuna samplers that depend on nothing else."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from recallmap.search import codec
from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Place, SpecError
from recallmap.search.proposers.journal import Journal
from recallmap.search.proposers.proposer import Answer, Proposer, Told
from recallmap.search.samplers import Sampler, laws
from recallmap.search.samplers.sampler import SamplerSpec
from recallmap.search.space.parameters import words_of
from recallmap.search.space.search_space import Search
from recallmap.search.study.spec import StudySpec

KINDS = type_hints.kinds_of(Sampler)
every_sampler = pytest.mark.parametrize("kind", KINDS)

DIALS = {"trial.training.lr": {"float": [0.01, 1.0]}, "trial.training.weight_decay": {"float": [0.0, 1.0]}}


def read(document: Any) -> Any:
    return type_hints.read(Sampler, type_hints.node_of(document, Place("sampler")))


def study(sampler: dict[str, Any] | str, *, goals: int = 1, **space: Any) -> StudySpec:
    own = {"kind": sampler} if isinstance(sampler, str) else sampler
    wanted = [("accuracy", "maximise"), ("loss", "minimise")][:goals]
    return codec.read_study(
        {
            "name": "tiny",
            "trial": {"task": "mqar", "arch": "gla", "training": {"steps": 1}},
            "space": {**own, "points": 100, "generation": 4, "dials": DIALS, **space},
            "goals": [{"score": score, "direction": direction} for score, direction in wanted],
        }
    )


def values(choices: dict[str, Any]) -> tuple[float, ...]:
    """Two goals with their best at (0.3, 0.3) and at (0.7, 0.7): the parameters must agree to be good."""
    x, y = choices["trial.training.lr"], choices["trial.training.weight_decay"]
    return tuple(sign * ((x - at) ** 2 + (x - y) ** 2) for sign, at in ((-1, 0.3), (1, 0.7)))


def searched(of: StudySpec, path: Path, points: int, *, stop_after: int | None = None) -> tuple[Told, ...]:
    """The points of the first arm, reported generation by generation; with `stop_after` the last generation is left open when
    so many of it are reported."""
    assert isinstance(of.space, Search)
    maximise = [goal.direction == "maximise" for goal in of.goals]
    arm = next(iter(of.space.arms))
    proposer = Journal(path).proposer(of.address(arm), of.space, arm, maximise)
    while proposer.asked < points:
        asked = [proposer.ask() for _ in range(of.space.generation - proposer.asked % of.space.generation)]
        last = proposer.asked >= points
        for one in asked[:stop_after] if last else asked:
            proposer.tell(one, Answer(end="done", values=values(one.choices)[: len(of.goals)]))
    return tuple(proposer.told)


def parameters(kind: str) -> list[str]:
    return [f.name for f in type_hints.dials(KINDS[kind]) if f.name != "kind"]


def changed(kind: str) -> Iterator[dict[str, Any]]:
    """A document for each parameter, in which it has another value than its default, with others where it needs them."""
    for name in parameters(kind):
        truths = {other: True for other in parameters(kind) if "bool" in str(type_hints.hints_of(KINDS[kind])[other])}
        tries = [more | {name: value} for more in ({}, truths) for value in (False, True, 6, 0.25)]
        yield next(doc for more in tries if is_changed(doc := {"kind": kind, **more}, name))


def is_changed(document: dict[str, Any], name: str) -> bool:
    try:
        return bool(getattr(read(document), name) != getattr(read(document["kind"]), name))
    except SpecError:
        return False


CHANGED = [document for kind in KINDS for document in changed(kind)]
every_parameter = pytest.mark.parametrize("document", CHANGED, ids=lambda document: read(document).label)


def held(verdict: laws.Verdict) -> None:
    assert verdict.holds, verdict.fault


@every_sampler
def test_a_kind_alone_means_defaults_and_says_nothing_but_the_kind(kind: str) -> None:
    spec = read(kind)
    assert spec == KINDS[kind]()
    assert (codec.plain(spec), spec.label) == ({"kind": kind}, kind)


@every_sampler
def test_a_sampler_explains_each_parameter_and_names_its_source(kind: str) -> None:
    spec = KINDS[kind]
    explained = "\n".join(inspect.getdoc(part) or "" for part in spec.__mro__)
    assert all(f"\n{name} " in explained for name in parameters(kind))
    assert spec.source[-4:].isdigit()


@every_sampler
def test_no_parameter_has_the_name_of_a_field_of_the_search_that_it_stands_beside(kind: str) -> None:
    assert not set(parameters(kind)) & {f.name for f in fields(Search)}


@every_parameter
def test_another_value_is_said_reads_back_and_makes_another_search(document: dict[str, Any]) -> None:
    spec, kind = read(document), document["kind"]
    assert {"kind": kind} != codec.plain(spec).items() <= document.items()
    assert read(codec.plain(spec)) == spec
    both = study(document, beside=[kind])
    assert both == codec.read_study(codec.plain(both))
    assert isinstance(both.space, Search)
    assert list(both.space.arms) == [spec.label, kind]
    assert both.address(spec.label) != both.address(kind) == study(kind).address(kind)


@every_parameter
@pytest.mark.parametrize("goals", [1, 2])
def test_the_same_seed_gives_the_same_points_with_and_without_an_interruption(
    document: dict[str, Any], goals: int, tmp_path: Path
) -> None:
    of = study(document, goals=goals)
    whole = searched(of, tmp_path / "whole.journal", 12)
    searched(of, tmp_path / "cut.journal", 8, stop_after=2)
    assert searched(of, tmp_path / "cut.journal", 12) == whole
    assert len({tuple(one.choices.values()) for one in whole}) > 6
    assert all(0 <= value <= 1 for one in whole for value in one.choices.values())


@every_parameter
@pytest.mark.parametrize("goals", [1, 2])
def test_points_stay_inside_their_space(document: dict[str, Any], goals: int) -> None:
    held(laws.inside(read(document), goals))


@every_parameter
@pytest.mark.parametrize("goals", [1, 2])
def test_the_same_seed_gives_the_same_points_and_another_others(document: dict[str, Any], goals: int) -> None:
    held(laws.reproducible(read(document), goals))


@every_parameter
def test_each_point_has_an_optuna_sampler_of_its_own(document: dict[str, Any]) -> None:
    held(laws.apart(read(document)))


NUMBERS = [(d["kind"], name) for d in CHANGED for name in [list(d)[-1]] if type(d[name]) in (int, float)]


@pytest.mark.parametrize("value", [-1, 1_000_000_000, "many"])
@pytest.mark.parametrize(("kind", "name"), NUMBERS)
def test_an_absurd_number_is_refused_by_its_name_and_place(kind: str, name: str, value: Any) -> None:
    for document, place in (
        ({"kind": kind, name: value}, f"space.{name}"),
        ({"kind": "random", "beside": [{"kind": kind, name: value}]}, f"space.beside[0].{name}"),
    ):
        with pytest.raises(SpecError) as caught:
            study(document)
        (fault,) = caught.value.faults
        assert fault.path == place
        assert fault.message.startswith((f"{name} must ", "got text 'many', expected a"))


def test_the_readme_has_a_row_for_each_parameter() -> None:
    readme = (Path(__file__).parents[3] / "search" / "README.md").read_text(encoding="utf-8")
    rows = [row.split("|") for row in readme.splitlines() if row.startswith("| `")]
    explained = {
        (kind.strip(" `"), name.strip(" `")) for row in rows for kind in row[2].split(",") for name in row[1].split(",")
    }
    assert {(kind, name) for kind in KINDS for name in parameters(kind)} <= explained


# The laws find what breaks them. --------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Wrong(SamplerSpec):
    """Random points, and what may be wrong with them by name."""

    kind: str = "wrong"
    how: str = ""

    def build(self, seed: int, generation: int) -> Any:
        from optuna.samplers import RandomSampler

        class Astray(RandomSampler):
            def sample_independent(self, study: Any, trial: Any, name: str, space: Any) -> Any:
                return 17 if name == "heads" else super().sample_independent(study, trial, name, space)

        match self.how:
            case "astray":
                return Astray(seed=seed)
            case "fresh":
                return RandomSampler()
            case "deaf":
                return RandomSampler(seed=5)
            case "again":
                return KEPT
            case "none":
                return None
            case "broken":
                raise RuntimeError("no licence\nsecond line")
        return RandomSampler(seed=seed)


KEPT = Wrong().build(0, 4)


@pytest.mark.parametrize(
    ("how", "law", "said"),
    [
        ("astray", laws.inside, r"^point 0 \(from 0\) has heads 17; expected one of \(1, 16\)$"),
        ("deaf", laws.inside, "^of 12 points 1 are different; expected 7 at least: draw by the seed of `build`$"),
        (
            "fresh",
            laws.reproducible,
            r"^with the same seed, point 0 \(from 0\) is .*; expected the same: take all chance",
        ),
        (
            "deaf",
            laws.reproducible,
            "^another seed gives the same 12 points; expected others: hand on the seed of `build`$",
        ),
        ("again", laws.apart, "^`build` gives the same sampler twice; expected a new one$"),
        ("none", laws.apart, "^`build` makes a NoneType; expected an optuna.samplers.BaseSampler$"),
    ],
)
def test_a_law_finds_what_breaks_it(how: str, law: Any, said: str) -> None:
    assert law(Wrong()).holds
    assert re.search(said, law(Wrong(how=how)).fault)


def test_all_laws_run_on_a_sampler_and_those_of_two_goals_do_not_apply_to_one_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(verdict.holds and not verdict.skipped for verdict in laws.verdicts(read("nsga2")))
    monkeypatch.setattr(Wrong, "several_goals", False)
    found = laws.verdicts(Wrong(how="broken"))
    assert [verdict.law for verdict in found if verdict.skipped] == [
        "inside its space, two goals",
        "same seed, same points, two goals",
    ]
    said = {verdict.fault.partition("; see")[0] for verdict in found if not verdict.skipped}
    assert said == {"it cannot be run: RuntimeError: no licence"}


# Stories. -----------------------------------------------------------------------------------------


def xs(told: tuple[Told, ...]) -> list[float]:
    return [one.choices["trial.training.lr"] for one in told]


def test_tpe_is_random_until_startup_and_then_learns(tmp_path: Path) -> None:
    chance = searched(study("random"), tmp_path / "random.journal", 12)
    patient = searched(study({"kind": "tpe", "startup": 8}), tmp_path / "patient.journal", 12)
    eager = searched(study({"kind": "tpe", "startup": 4}), tmp_path / "eager.journal", 12)
    assert xs(patient)[:8] == xs(chance)[:8]
    assert xs(patient)[8:] != xs(chance)[8:]
    assert xs(eager)[:4] == xs(chance)[:4]
    assert xs(eager)[4:8] != xs(chance)[4:8]


def test_joint_tpe_comes_nearer_to_an_optimum_of_parameters_that_must_agree_than_chance(tmp_path: Path) -> None:
    best = {
        label: max(one.values[0] for one in searched(study(document), tmp_path / f"{label}.journal", 32))
        for label, document in (("chance", "random"), ("joint", {"kind": "tpe", "multivariate": True, "startup": 8}))
    }
    assert best["joint"] > best["chance"] / 4


@pytest.mark.parametrize("kind", ["nsga2", "nsga3"])
def test_without_mutation_a_genetic_algorithm_only_recombines_its_first_population(kind: str, tmp_path: Path) -> None:
    document = {"kind": kind, "population": 8, "mutation_prob": 0}
    found = searched(study(document, goals=2), tmp_path / "a.journal", 24)
    assert xs(found)[:8] == xs(searched(study("random"), tmp_path / "random.journal", 8))
    for name in DIALS:
        first = {one.choices[name] for one in found[:8]}
        assert {one.choices[name] for one in found[16:]} <= first


def test_a_gaussian_process_without_noise_proposes_other_points_after_its_startup(tmp_path: Path) -> None:
    noisy, exact = (
        searched(study({"kind": "gp", "startup": 4, "deterministic": exact}), tmp_path / f"{exact}.journal", 12)
        for exact in (False, True)
    )
    assert xs(noisy)[:4] == xs(exact)[:4]
    assert xs(noisy)[4:] != xs(exact)[4:]


BLOCKS = {
    "trial.arch.stack": {
        "length": [2, 8],
        "pattern": "[^a]*a?[^a]*",
        "sequence": {
            "a": {"kind": "block", "mixer": {"kind": "attention", "heads": 2, "window": {"choice": [4, 8, 16]}}},
            "g": {"kind": "block", "mixer": {"kind": "gla", "heads": {"choice": [1, 2, 4]}}},
            "m": {"kind": "block", "mixer": {"kind": "mesa", "heads": {"choice": [1, 2, 4]}}},
            "c": {"kind": "block", "mixer": "base_conv"},
        },
    }
}


def likeness(word: str, choices: dict[str, Any]) -> float:
    """1 for the word gmamgc with four heads in each mesa, less by a sixth for each block that differs."""
    alike = sum(one == other for one, other in zip(word, "gmamgc", strict=False)) / max(6, len(word))
    return alike + 0.1 * (choices.get("trial.arch.stack.m.mixer.heads") == 4)


def evolved(document: dict[str, Any], seed: int = 0, points: int = 96) -> list[tuple[str, Told]]:
    """Words and reports of a search for a likeness, in memory."""
    import optuna

    space = study(document, dials=BLOCKS, seed=seed, generation=8).space
    assert isinstance(space, Search)
    (arm,) = space.arms
    proposer = Proposer(optuna.create_study(direction="maximize"), space, arm)
    words: list[str] = []
    while len(words) < points:
        asked = [proposer.ask() for _ in range(space.generation)]
        words += (own := [words_of(one.point)[0] for one in asked])
        for one, word in zip(asked, own, strict=True):
            proposer.tell(one, Answer(end="done", values=(likeness(word, one.choices),)))
    return list(zip(words, proposer.told, strict=True))


def test_evolution_finds_an_order_of_blocks_that_chance_does_not() -> None:
    best = {
        kind: [max(told.values[0] for _, told in evolved({"kind": kind}, seed)) for seed in range(3)]
        for kind in ("evolution", "random")
    }
    assert all(found > by_chance for found, by_chance in zip(best["evolution"], best["random"], strict=True))
    assert max(best["evolution"]) == 1.1 > max(best["random"]) + 0.3


def test_a_child_says_its_parents_and_what_was_changed_and_no_child_equals_an_earlier_point() -> None:
    found = evolved({"kind": "evolution", "graft": 1})
    words, told = zip(*found, strict=True)
    assert all(not one.parents and not one.change for one in told[:16])  # the first population is random
    assert all(
        one.ordinal - 24 < parent < one.ordinal for one in told[16:] for parent in one.parents
    )  # the old are dead
    assert len({str(sorted(one.choices.items())) for one in told}) == len(told)
    assert {one.change.partition(" ")[0] for one in told[16:]} == {"insert", "delete", "swap", "change", "graft"}
    for one in told[16:]:
        old, new = words[one.parents[0]], words[one.ordinal]
        match one.change.split():
            case ["insert", letter, "at", at] if letter != "a":
                assert new == old[: int(at)] + letter + old[int(at) :]
            case ["delete", letter, "at", at]:
                assert (letter, new) == (old[int(at)], old[: int(at)] + old[int(at) + 1 :])
            case ["swap", one_letter, "at", _, "with", other, "at", _]:
                assert sorted(old) == sorted(new)
                assert one_letter != other
            case ["graft", end, "of", mate, "at", at]:
                assert one.parents[1] == int(mate)
                assert words[int(mate)].endswith(end)
                assert new == old[: int(at)] + end or ("a" in old[: int(at)] and "a" in end)
            case ["change", name, *_] if name.startswith("stack."):
                assert old == new


def test_change_alone_keeps_the_length_of_a_sequence() -> None:
    alone = dict.fromkeys(("insert", "delete", "swap", "graft"), 0)
    found = evolved({"kind": "evolution", **alone}, points=48)
    assert all(len(word) == len(found[one.parents[0]][0]) for word, one in found[16:])
    assert len({word for word, _ in found[16:]}) > 8
    with pytest.raises(SpecError, match="change must be above 0, because it alone applies to every point, got 0"):
        study({"kind": "evolution", "change": 0})


def test_a_sampler_of_one_goal_refuses_a_study_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KINDS["random"], "several_goals", False)
    study("random")
    with pytest.raises(SpecError, match="goals must be one for random, got 2: leave the others out, or choose tpe"):
        study("random", goals=2)


def test_group_needs_joint_densities() -> None:
    with pytest.raises(
        SpecError, match=r"space\.group: group needs multivariate: true, got null; set multivariate: true"
    ):
        study({"kind": "tpe", "group": True})


def test_a_parameter_of_another_sampler_is_unknown_with_its_place_and_the_one_that_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    text = "name: a\ntrial: {task: mqar, arch: gla, training: {steps: 1}}\nspace:\n  kind: nsga2\n  startup: 3\n  points: 5\n"
    dials = "  dials: {trial.training.lr: {float: [0.1, 0.2]}}\n"
    file.write_text(text + dials + "  beside: [{kind: tpe, start_up: 3, multivariate: yes}]\n")
    with pytest.raises(SpecError) as caught:
        codec.read_study(file)
    unknown, slip, truth = (str(fault).removeprefix(f"{file}:") for fault in caught.value.faults)
    assert unknown.startswith("5:3: space.startup: unknown key, expected population, crossover_prob, swapping_prob, ")
    assert slip.startswith("8:24: space.beside[0].start_up: unknown key, expected startup, candidates, ")
    assert slip.endswith("(did you mean 'startup'?)")
    assert truth.startswith("8:51: space.beside[0].multivariate: got text 'yes', expected true or false")


def test_a_sampler_is_set_from_the_command_line() -> None:
    found = codec.read_study("hybrid_search", overrides=["space.multivariate=true", "space.startup=20"])
    assert isinstance(found.space, Search)
    assert found.space.sampler == read({"kind": "tpe", "multivariate": True, "startup": 20})


def test_addresses_and_texts_of_searches_without_parameters_are_those_of_old_journals() -> None:
    """Literals from before samplers had parameters, and the study as it was then."""
    old = codec.read_study(Path(__file__).parent / "former_hybrid_search.yaml", overrides=["budget=paper"])
    assert isinstance(old.space, Search)
    assert [old.address(arm) for arm in old.space.arms] == [
        "hybrid_search/paper/anchors/250f2175",
        "hybrid_search/paper/tpe/4fa189b0",
        "hybrid_search/paper/random/4fa189b0",
        "hybrid_search/paper/nsga2/4fa189b0",
    ]
    assert codec.key(old) == "677ebbf12e2f6f2e576a98ac9e2ef750dc6e430c2e200019f14178a4ed14bd89"
    assert codec.plain(old.space)["beside"] == ["random", "nsga2"]
