"""A trial in phases as a specification: each starts from what the one before has learned, in a cohort as alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.combine import Gate
from recallmap.arch.cost import cost
from recallmap.arch.mixers import Attention, GatedLinearAttention, Mamba2, Mesa, Mixer, Titans
from recallmap.arch.stack import Repeat
from recallmap.results.record import Record
from recallmap.search import codec
from recallmap.search.training import phases
from recallmap.search.training.loop import train
from recallmap.search.training.outcome import Outcome, Progress
from recallmap.search.training.packing import at_most, pack
from recallmap.search.training.run_cohort import follow_cohort, run_cohort
from recallmap.search.trial import Data, Training, TrialSpec, run_trial
from recallmap.search.trials.phased import APART, Expansion, Phase, PhasedTrial, with_options
from recallmap.synth.tasks import Mqar

SHORT, LONG = Mqar(vocab=32, length=16, pairs=2), Mqar(vocab=32, length=32, pairs=4)
SSM = Mamba2(heads=2, form="shared_qk", key_dim=4)
GLA = GatedLinearAttention(heads=2)
ZERO = Expansion(factor=2, count=2, start="zero")


def arch(mixer: Mixer) -> BackboneSpec:
    return BackboneSpec(name="tiny", width=16, stack=(Block(mixer=mixer), Block(mixer=mixer)))


def training(steps: int = 6, **dials: Any) -> Training:
    return Training(**({"steps": steps, "batch": 8, "evaluations": 2, "lr": 3e-3} | dials))


def trial(*phases: Phase, mixer: Mixer = SSM, seed: int = 0, **dials: Any) -> PhasedTrial:
    fields: dict[str, Any] = {"training": training(), "data": Data(validation=16, test=16)} | dials
    return PhasedTrial(task=LONG, arch=arch(mixer), phases=phases, seed=seed, **fields)


def outcomes(specs: list[PhasedTrial]) -> list[Outcome]:
    return ended(phases.train(specs, torch.device("cpu")))


def ended(steps: Iterator[Progress]) -> list[Outcome]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


STILL = training(1, lr=1e-30, weight_decay=0.0, evaluations=1)  # a step that changes nothing


def test_one_phase_is_the_trial_itself() -> None:
    spec = trial(Phase())
    plain = TrialSpec(task=LONG, arch=spec.arch, training=spec.training, data=spec.data)
    (record,) = run_cohort([spec])
    alone = run_trial(plain)
    assert (record.scores, record.validation, record.curve) == (alone.scores, alone.validation, alone.curve)
    assert record.key != alone.key


def test_a_phase_goes_on_with_what_the_one_before_has_learned() -> None:
    learned, kept = (
        outcomes([trial(Phase())]),
        outcomes([trial(Phase(task=LONG, training=training()), Phase(training=STILL))]),
    )
    for name, value in learned[0].weights.items():
        assert torch.equal(kept[0].weights[name], value)


def test_new_keys_of_zero_answer_as_before() -> None:
    before, after = (
        outcomes([trial(Phase(), Phase(expand=expansion, training=STILL))])[0].scores for expansion in (None, ZERO)
    )
    assert after["loss"] == pytest.approx(before["loss"], rel=1e-5)


STEEP = Mesa(heads=2, cg_steps=8, short_conv=0)
TEST_ALONE = training(0)


def test_what_was_trained_with_some_dials_is_tested_with_others() -> None:
    """One training for all of them."""
    few, many = (
        trial(Phase(dials={"cg_steps": 8}), Phase(training=TEST_ALONE), mixer=replace(STEEP, cg_steps=steps))
        for steps in (0, 8)
    )
    assert few.family == many.family
    fewer, same = run_cohort([few, many])
    for spec, record in ((few, fewer), (many, same)):
        (learned,) = outcomes([trial(Phase(), mixer=many.arch.stack[0].mixer)])
        last = TrialSpec(task=LONG, arch=spec.arch, training=TEST_ALONE, data=spec.data, seed=APART)
        (tested,) = ended(train([last], torch.device("cpu"), starts=[learned.weights]))
        assert (record.scores, record.validation) == (tested.scores, tested.validation)
    assert same.scores["cg_steps"] > 1
    assert fewer.scores["cg_steps"] == 0
    assert fewer.scores["loss"] != same.scores["loss"]
    assert (fewer.steps, fewer.curve["step"]) == (6, [3, 6, 6])
    assert fewer.curve["train_loss"][:2] == same.curve["train_loss"][:2]
    assert fewer.curve["train_loss"][2] is None


def test_a_phase_without_steps_answers_with_the_weights_it_began_with() -> None:
    (kept,) = outcomes([trial(Phase(), Phase(training=TEST_ALONE))])
    (learned,) = outcomes([trial(Phase())])
    assert (kept.steps, kept.selected_step) == (6, 6)
    for name, value in learned.weights.items():
        assert torch.equal(kept.weights[name], value)


def test_dials_of_a_phase_go_with_an_expansion() -> None:
    merging = Expansion(heads="merge", count=1)
    spec = trial(Phase(dials={"activation": "identity"}), Phase(expand=merging), mixer=GLA)
    assert spec.parts[0].arch == arch(replace(GLA, activation="identity"))
    assert spec.parts[1].arch == merging.of(spec.arch)
    assert run_cohort([spec])[0].status == "done"


def test_dials_reach_every_mixer_that_has_them_and_no_other() -> None:
    both = Gate(memory=Titans(heads=2), attention=Attention(heads=2, window=4))
    stack = (Block(mixer=Mesa(heads=2)), Repeat(times=2, blocks=(both, Block(mixer=Mesa(heads=2, tolerance=1e-3)))))
    spec = BackboneSpec(name="tiny", width=16, stack=stack)
    assert with_options(spec, {"tolerance": 0.1, "rope": False}) == replace(
        spec,
        stack=(
            Block(mixer=Mesa(heads=2, tolerance=0.1)),
            Repeat(
                times=2,
                blocks=(
                    replace(both, attention=Attention(heads=2, window=4, rope=False)),
                    Block(mixer=Mesa(heads=2, tolerance=0.1)),
                ),
            ),
        ),
    )


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        (
            (Phase(dials={"cg_step": 3}), Phase()),
            r"phases: dials of phase 1: no mixer has cg_step, .* \(did you mean 'cg_steps'",
        ),
        ((Phase(dials={"cg_steps": "few"}), Phase()), r"cg_steps got text 'few', expected a whole number"),
        ((Phase(dials={"cg_steps": -1}), Phase()), r"dials of phase 1: cg_steps must be at least 0, got -1"),
        ((Phase(dials={"key_dim": 3}), Phase()), r"must leave parameters as they are, with key_dim 3 they have other"),
        ((Phase(), Phase(dials={"cg_steps": 3})), r"the last one has the options of the trial's own arch"),
    ],
)
def test_dials_that_cannot_be_are_told(phases: tuple[Phase, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trial(*phases, mixer=STEEP)


def test_the_record_is_of_the_last_phase_and_counts_all() -> None:
    spec = trial(Phase(task=SHORT, training=training(4)), Phase(expand=Expansion(factor=2, count=1)), tests=(SHORT,))
    (record,) = run_cohort([spec])
    last = spec.parts[-1].arch
    assert (record.status, record.error) == ("done", None)
    assert record.arch == "tiny_wide2_1of2 reinitialise"
    assert record.state_floats == cost(last, vocab=32, length=32).state_floats > spec.parts[0].price(32).state_floats
    assert (record.steps, record.curve["step"]) == (10, [2, 4, 7, 10])
    assert record.selected_step in (7, 10)
    assert [test["length"] for test in record.tests] == [16]


@pytest.mark.parametrize(
    ("mixer", "expansion"), [(SSM, Expansion(factor=2, count=2)), (GLA, Expansion(heads="merge", count=1))]
)
def test_a_cohort_gives_every_trial_what_it_has_alone(mixer: Mixer, expansion: Expansion) -> None:
    phases = (Phase(task=SHORT), Phase(expand=expansion))
    specs = [trial(*phases, mixer=mixer, seed=s, training=training(lr=lr)) for s, lr in ((0, 1e-3), (1, 1e-2))]
    for spec, record in zip(specs, run_cohort(specs), strict=True):
        (alone,) = run_cohort([spec])
        assert record.key == alone.key
        assert record.scores == pytest.approx(alone.scores, rel=1e-4, abs=1e-5)
        assert record.curve["validation_loss"] == pytest.approx(alone.curve["validation_loss"], rel=1e-4)


@pytest.mark.parametrize("phase", [0, 1])
def test_a_member_that_diverges_fails_alone(phase: int) -> None:
    mad = training(lr=1e30, clip=None)
    phases = [Phase(), Phase()]
    phases[phase] = Phase(training=mad)
    other = [Phase(training=training(clip=None)) if p.training else p for p in phases]
    failed, done = run_cohort([trial(*phases), trial(*other)])
    assert (failed.status, done.status) == ("failed", "done")
    assert "not finite" in (failed.error or "")
    assert ("phase 2" in (failed.error or "")) == (phase == 1)


def test_no_phase_reads_what_an_earlier_one_has_read() -> None:
    seeds = [part.seed for s in range(3) for part in trial(Phase(), Phase(), seed=s).parts]
    assert len(set(seeds)) == 6


def test_cohorts_agree_in_the_first_phase() -> None:
    one, other = trial(Phase(), Phase(expand=ZERO)), trial(Phase(training=training(7)), Phase(expand=ZERO))
    assert one.shape != other.shape
    assert one.shape == trial(Phase(), Phase(expand=replace(ZERO, count=1))).shape
    assert one.shape == replace(one, seed=5, training=training(lr=1e-5)).shape
    assert one.shape != trial(Phase(), Phase(), Phase()).shape


def test_a_family_stays_in_one_cohort_however_little_room_there_is() -> None:
    """What follows on one first phase is compared seed by seed: it must be one, not two that differ in their last digits."""
    ends = [Phase(), Phase(expand=ZERO), Phase(expand=replace(ZERO, start="inherit"))]
    specs = [trial(Phase(task=SHORT), end, seed=seed) for end in ends for seed in (0, 1)]
    assert pack(specs, at_most(2)) == [[0, 2, 4], [1, 3, 5]]
    assert pack(specs, at_most(8)) == [[0, 1, 2, 3, 4, 5]]
    assert pack(specs[:3], at_most(1)) == [[0, 2], [1]]


def test_who_is_through_is_known_before_the_others_are() -> None:
    """A study that is stopped in the last phase of a cohort loses what was still in training, no more."""
    specs = [trial(Phase(task=SHORT), end) for end in (Phase(), Phase(expand=ZERO))]
    steps = follow_cohort(specs)
    early: dict[int, Record] = {}
    while True:
        try:
            progress = next(steps)
        except StopIteration as end:
            records = end.value
            break
        if not early and progress.ended:
            early = dict(progress.ended)
            assert (progress.step, progress.steps) == (12, 18)
    assert list(early) == [0]
    assert (early[0].key, early[0].scores, early[0].curve) == (records[0].key, records[0].scores, records[0].curve)


def test_what_trials_have_in_common_is_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds, each as it is and with two expansions: one pre-training of two members, then three of their own."""
    expansions = (None, ZERO, replace(ZERO, count=1))
    specs = [trial(Phase(task=SHORT), Phase(expand=e), seed=seed) for seed in (0, 1) for e in expansions]
    trained: list[list[int]] = []

    def train(parts: list[TrialSpec], *given: Any, **more: Any) -> Any:
        trained.append([part.seed % APART for part in parts])
        return real(parts, *given, **more)

    real = phases.loop.train
    monkeypatch.setattr(phases.loop, "train", train)
    together = run_cohort(specs)
    assert trained == [[0, 1]] * 4
    for spec, record in zip(specs, together, strict=True):
        (alone,) = run_cohort([spec])
        assert record.scores == pytest.approx(alone.scores, rel=1e-4, abs=1e-5)
        assert record.curve["step"] == alone.curve["step"]


@pytest.mark.parametrize(
    ("phases", "message"),
    [
        ((), "at least one phase"),
        ((Phase(), Phase(task=SHORT)), "leave its task out"),
        ((Phase(task=Mqar(vocab=64, length=16, pairs=2)), Phase()), "vocabularies of 64, 32"),
        ((Phase(expand=Expansion()),), "one of them"),
        ((Phase(expand=Expansion(heads="merge")),), "no block with heads to merge"),
    ],
)
def test_what_cannot_be_done_is_refused(phases: tuple[Phase, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trial(*phases)


def test_a_study_says_phases() -> None:
    study = codec.read_study(
        {
            "name": "phases",
            "trial": {
                "kind": "phased",
                "arch": "gla",
                "task": {"kind": "mqar", "vocab": 32, "length": 32},
                "training": {"steps": 2},
                "phases": [{"task": {"kind": "mqar", "vocab": 32, "length": 16}}, {}],
            },
            "space": {
                "kind": "grid",
                "axes": {"trial.phases[1].expand": [None, {"heads": "merge", "count": 1, "start": "inherit"}]},
            },
        }
    )
    plain, merged = study.trials()
    assert isinstance(merged, PhasedTrial)
    assert (plain.name, merged.name) == ("gla", "gla_merged_1of2 inherit")
    assert codec.from_plain(PhasedTrial, codec.plain(merged)) == merged
